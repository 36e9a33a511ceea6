from .bases import Basis as Basis
from .bases import cosines as cosines
from .mixture import GenerativeNetwork as GenerativeNetwork
from .mixture import Mixture as Mixture
from .scattering import Scattering as Scattering
from .symmetries import Symmetries as Symmetries

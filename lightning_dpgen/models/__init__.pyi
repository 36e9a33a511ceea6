from .bases import Basis as Basis
from .bases import Scattering as Scattering
from .bases import cosines as cosines
from .mixture import GenerativeNetwork as GenerativeNetwork
from .mixture import Mixture as Mixture
from .poses import Symmetries as Symmetries

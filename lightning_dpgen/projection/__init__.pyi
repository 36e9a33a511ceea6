from .recovery import Recovery as Recovery
from .sensitivity import Neighbourhood as Neighbourhood
from .transformer import PrivateProjection as PrivateProjection

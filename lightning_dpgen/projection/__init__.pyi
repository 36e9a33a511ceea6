from .neighbourhood import Neighbourhood as Neighbourhood
from .recovery import Recovery as Recovery
from .transformer import PrivateProjection as PrivateProjection

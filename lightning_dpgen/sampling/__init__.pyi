from .as_store import store_of as store_of
from .contents import check_finite as check_finite
from .errors import BadRecords as BadRecords
from .lots import Lot as Lot
from .lots import LotLoader as LotLoader
from .lots import PoissonLots as PoissonLots
from .lots import poisson_loader as poisson_loader
from .stores import Store as Store

from .kmeans import Split as Split
from .settings import SplitSettings as SplitSettings

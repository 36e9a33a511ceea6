from .against_real import evaluate as evaluate
from .drawing.release import Release as Release
from .drawing.release import load_release as load_release
from .files import NotARelease as NotARelease
from .projected import ProjectedRows as ProjectedRows
from .synthetic import release_mixture as release_mixture
from .weights import FrozenTensors as FrozenTensors
from .weights import release_weights as release_weights

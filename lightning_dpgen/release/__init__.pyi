from .against_real import evaluate as evaluate
from .files import NotARelease as NotARelease
from .projected import ProjectedRows as ProjectedRows
from .sampler import Release as Release
from .sampler import load_release as load_release
from .synthetic import release_mixture as release_mixture
from .weights import release_weights as release_weights

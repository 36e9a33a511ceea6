"""The bundle, its certificate, verification, sampling and the report: what may leave."""

from typing import TYPE_CHECKING

from lightning_dpgen.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_dpgen.release.against_real import evaluate as evaluate
    from lightning_dpgen.release.certificate import NotARelease as NotARelease
    from lightning_dpgen.release.projected import ProjectedRows as ProjectedRows
    from lightning_dpgen.release.sampler import Release as Release
    from lightning_dpgen.release.sampler import load_release as load_release
    from lightning_dpgen.release.synthetic import release_mixture as release_mixture
    from lightning_dpgen.release.weights import release_weights as release_weights
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "against_real": ["evaluate"],
            "certificate": ["NotARelease"],
            "projected": ["ProjectedRows"],
            "sampler": ["Release", "load_release"],
            "synthetic": ["release_mixture"],
            "weights": ["release_weights"],
        },
    )

"""Fourier features and the private kernel k-means split."""

from typing import TYPE_CHECKING

from lightning_dpgen.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_dpgen.clustering.kmeans import Split as Split
    from lightning_dpgen.clustering.settings import SplitSettings as SplitSettings
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "kmeans": ["Split"],
            "settings": ["SplitSettings"],
        },
    )

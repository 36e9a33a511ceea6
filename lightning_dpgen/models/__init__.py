"""Models that are learned: networks stacked over k components, their losses, and the mixture that samples from them."""

from typing import TYPE_CHECKING

from lightning_dpgen.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_dpgen.models.bases import Basis as Basis
    from lightning_dpgen.models.bases import cosines as cosines
    from lightning_dpgen.models.mixture import GenerativeNetwork as GenerativeNetwork
    from lightning_dpgen.models.mixture import Mixture as Mixture
    from lightning_dpgen.models.symmetries import Symmetries as Symmetries
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "bases": ["Basis", "cosines"],
            "mixture": ["GenerativeNetwork", "Mixture"],
            "symmetries": ["Symmetries"],
        },
    )

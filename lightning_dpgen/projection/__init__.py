"""The Johnson-Lindenstrauss release: every row, projected and perturbed."""

from typing import TYPE_CHECKING

from lightning_dpgen.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_dpgen.projection.neighbourhood import Neighbourhood as Neighbourhood
    from lightning_dpgen.projection.recovery import Recovery as Recovery
    from lightning_dpgen.projection.transformer import PrivateProjection as PrivateProjection
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "neighbourhood": ["Neighbourhood"],
            "recovery": ["Recovery"],
            "transformer": ["PrivateProjection"],
        },
    )

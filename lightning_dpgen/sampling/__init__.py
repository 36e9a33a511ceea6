"""Sampling of records: stores, Poisson lots, multi-hot records."""

from typing import TYPE_CHECKING

from lightning_dpgen.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_dpgen.sampling.as_store import store_of as store_of
    from lightning_dpgen.sampling.contents import check_finite as check_finite
    from lightning_dpgen.sampling.errors import BadRecords as BadRecords
    from lightning_dpgen.sampling.lots import Lot as Lot
    from lightning_dpgen.sampling.lots import LotBlocks as LotBlocks
    from lightning_dpgen.sampling.lots import PoissonLots as PoissonLots
    from lightning_dpgen.sampling.lots import poisson_loader as poisson_loader
    from lightning_dpgen.sampling.stores import Store as Store
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "as_store": ["store_of"],
            "contents": ["check_finite"],
            "errors": ["BadRecords"],
            "lots": ["Lot", "LotBlocks", "PoissonLots", "poisson_loader"],
            "stores": ["Store"],
        },
    )

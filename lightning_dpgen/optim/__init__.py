"""Opacus-compatible optimizers: a DPOptimizer around any torch optimizer."""

from typing import TYPE_CHECKING

from lightning_dpgen.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_dpgen.optim.private import PrivateOptimizer as PrivateOptimizer
    from lightning_dpgen.optim.training_stage import training_stage as training_stage
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "private": ["PrivateOptimizer"],
            "training_stage": ["training_stage"],
        },
    )

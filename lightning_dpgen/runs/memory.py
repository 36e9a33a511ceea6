"""Memory that a machine does not have: known before a fit, or recognised among other errors, and what to do about it."""

from __future__ import annotations

import torch

from lightning_dpgen.gradients.micro_batches import free_memory
from lightning_dpgen.measure.pair_tables import what_to_leave_out
from lightning_dpgen.specs.settings import Settings
from lightning_dpgen.specs.usage_error import UsageError

ADVICE = (
    "out of memory: lower what is held at a time (model.rate, which says how many records are in a lot; model.hidden, "
    "split.k, model.components, split.features, split.memory_gib), or give the machine more"
)
# A run that has drawn is gone on with as it was begun.
LATE_ADVICE = (
    "out of memory: lower split.memory_gib, the one of its settings that a run which goes on may change, or give the "
    "machine more"
)
# As torch's allocators for a CPU and for a GPU's libraries have it, whose errors have no type of their own.
_SAID = ("allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")


def fit_memory_line(settings: Settings) -> str | None:
    """Return in words what memory the fit to what is measured takes; None where that is little."""
    needed = 0 if settings.trains_network else settings.recipe.fit_bytes
    return f"the fit to what is measured takes about {needed / 2**30:.1f} GiB of memory" if needed else None


def check_fit_memory(settings: Settings) -> None:
    """Refuse measurements whose fit needs more memory than is free, before they are made.

    Raises:
        UsageError: with the bytes, which follow from public sizes.
    """
    line, free = fit_memory_line(settings), free_memory(torch.device("cpu"))
    if line is not None and settings.recipe.fit_bytes > free:
        raise UsageError(
            f"model={settings.spec.model.name}: {line}, and {free / 2**30:.1f} GiB are free: "
            f"{what_to_leave_out(settings.schema)}; or give the machine more"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an error that says that memory could not be had, in whatever way numpy, Arrow or torch say it.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes do not match"))
        (True, False)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)

"""Activation checkpointing (`torch.utils.checkpoint`) within a loss: the function is called once, without a checkpoint.

A checkpoint keeps the inputs of a function, and calls it again on the way back. Its hooks would be handed the tensors of
all records; and book-keeping holds the inputs of each trained layer in any case, until all norms are known.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from torch.utils import checkpoint

from lightning_dpgen.gradients.process_changes import ProcessChange

_generator, _function = checkpoint._checkpoint_without_reentrant_generator, checkpoint.CheckpointFunction


def without_checkpoints() -> ProcessChange:
    """Let `checkpoint` call its function as it is inside this context, for the thread that enters it.

    Example:
        >>> import torch
        >>> with without_checkpoints(), warnings.catch_warnings(action="ignore"):
        ...     checkpoint.checkpoint(torch.exp, torch.zeros(1), use_reentrant=False)
        tensor([1.])
    """
    return _WITHOUT


def _put(around: Callable, function: Any) -> None:
    # However a program has imported `checkpoint`, that finds these two by their names in its module.
    checkpoint._checkpoint_without_reentrant_generator, checkpoint.CheckpointFunction = around, function


def _without() -> Callable[[], None]:
    _put(_around, SimpleNamespace(apply=_apply))
    return functools.partial(_put, _generator, _function)


_WITHOUT = ProcessChange(_without)


def _apply(run: Callable, preserve: bool, *args: Any) -> Any:
    if not _WITHOUT.is_inside:
        return _function.apply(run, preserve, *args)
    _say()
    return run(*args)


def _around(*args: Any, **kwargs: Any) -> Iterator[None]:
    return _nothing() if _WITHOUT.is_inside else _generator(*args, **kwargs)


def _nothing() -> Iterator[None]:
    """Do nothing before and after the function of a checkpoint."""
    _say()
    yield


@functools.cache
def _say() -> None:
    """Warn once of memory that is not saved."""
    warnings.warn(
        "activation checkpointing in a private loss: its functions are called without it, so gradients are the same and "
        "memory is that without checkpoints. To need less, take lots in parts (micro_batch, MicroBatches)",
        stacklevel=2,
    )

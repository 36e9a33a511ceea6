"""Activation checkpointing (`torch.utils.checkpoint`) within a loss: the function is called once, without a checkpoint.

A checkpoint keeps the inputs of a function, and calls it again on the way back. Its hooks would be handed the tensors of
all records; and book-keeping holds the inputs of each trained layer in any case, until all norms are known.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from torch.utils import checkpoint

_generator, _function = checkpoint._checkpoint_without_reentrant_generator, checkpoint.CheckpointFunction
_inside = threading.local()
_CHANGING = threading.Lock()
_threads = [0]


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """Let `checkpoint` call its function as it is inside this context, for the thread that enters it.

    Example:
        >>> import torch
        >>> with without_checkpoints(), warnings.catch_warnings(action="ignore"):
        ...     checkpoint.checkpoint(torch.exp, torch.zeros(1), use_reentrant=False)
        tensor([1.])
    """
    # However a program has imported `checkpoint`, that finds these two by their names in its module.
    _enter(1, _around, SimpleNamespace(apply=_apply))
    try:
        yield
    finally:
        _enter(-1, _generator, _function)


def _enter(step: int, around: Callable, function: Any) -> None:
    """Put others in the place of torch's two functions when the first thread enters, or the last one leaves."""
    _inside.depth = getattr(_inside, "depth", 0) + step
    with _CHANGING:
        _threads[0] += step
        if _threads[0] == max(step, 0):
            checkpoint._checkpoint_without_reentrant_generator, checkpoint.CheckpointFunction = around, function


def _apply(run: Callable, preserve: bool, *args: Any) -> Any:
    if not getattr(_inside, "depth", 0):
        return _function.apply(run, preserve, *args)
    _say()
    return run(*args)


def _around(*args: Any, **kwargs: Any) -> Iterator[None]:
    return _nothing() if getattr(_inside, "depth", 0) else _generator(*args, **kwargs)


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

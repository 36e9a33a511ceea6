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

import lightning_dpgen.gradients.torch_names  # noqa: F401 (checks private names of torch)
from lightning_dpgen.gradients.process_changes import ProcessChange

# However a program has imported `checkpoint`, that finds these by their names in its module. It calls the second generator
# since torch 2.14.
_NAMES = ("_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant_generator_impl")
_GENERATORS = {name: getattr(checkpoint, name) for name in _NAMES if hasattr(checkpoint, name)}
_function = checkpoint.CheckpointFunction


def without_checkpoints() -> ProcessChange:
    """Let `checkpoint` call its function as it is inside this context, for the thread that enters it.

    Example:
        >>> import torch
        >>> with without_checkpoints(), warnings.catch_warnings(action="ignore"):
        ...     checkpoint.checkpoint(torch.exp, torch.zeros(1), use_reentrant=False)
        tensor([1.])
    """
    return _WITHOUT


def _put(generators: dict[str, Callable], function: Any) -> None:
    vars(checkpoint).update(generators, CheckpointFunction=function)


def _without() -> Callable[[], None]:
    _put(
        {name: functools.partial(_around, generator) for name, generator in _GENERATORS.items()},
        SimpleNamespace(apply=_apply),
    )
    return functools.partial(_put, _GENERATORS, _function)


_WITHOUT = ProcessChange(_without)


def _apply(run: Callable, preserve: bool, *args: Any) -> Any:
    if not _WITHOUT.is_inside:
        return _function.apply(run, preserve, *args)
    _say()
    return run(*args)


def _around(generator: Callable, *args: Any, **kwargs: Any) -> Iterator[None]:
    return _nothing() if _WITHOUT.is_inside else generator(*args, **kwargs)


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

"""The surroundings of the call of a loss: values that outlive it, and functions of torch that are others meanwhile.

A tensor that the loss keeps loses its value when the call ends. TorchScript and the text of tensors, which no mode of torch
sees, are handed the numbers of all records: an error. A checkpoint (`torch.utils.checkpoint`) keeps the inputs of a
function, and calls it again on the way back. Its hooks would be handed the tensors of all records, and book-keeping holds
the inputs of each trained layer in any case, until all norms are known. So the function is called once, without a
checkpoint. Models look at values to take a shortcut (those of transformers make no attention mask where a lot has no
padding), and take none while they are traced: code that asks is told that it is.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.utils import checkpoint

import lightning_dpgen.gradients.isolation.torch_names  # noqa: F401 (checks private names of torch)
from lightning_dpgen.gradients.isolation.hidden import EscapedTensor, is_hidden

# With more objects than this in the youngest generation it is collected first; the threshold of Python's collector is 700.
_YOUNG = 2_000
_TORCH = str(Path(torch.__file__).parent)
_SCRIPTS = (
    "calls TorchScript (torch.jit), whose code is handed all records and may keep them: call the module or function of "
    "Python that it was made from"
)
_TEXT = "turns a value of a record into text (repr, str, print, logging): print shapes, or nothing"
# The attribute in which a hidden tensor keeps its hash.
_NUMBER = "_lightning_dpgen_number"


class invalidate_escaped_tensors:
    """A context in which tensors may hide records; any that outlives it loses its value."""

    _collecting: bool
    _mark: _Mark

    def __enter__(self) -> None:
        self._collecting = gc.isenabled()
        # Without collections all new objects stay in the youngest generation, which alone is searched.
        gc.disable()
        # A program that has switched collections off has all of its objects there.
        if gc.get_count()[0] > _YOUNG:
            gc.collect(0)
        self._mark = _Mark()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        tensors = _tensors_and_marks(gc.get_objects(0))
        if id(self._mark) not in map(id, tensors):
            # The loss has run a collection.
            tensors = _tensors_and_marks(gc.get_objects())
        for x in tensors:
            if isinstance(x, Tensor) and _functorch.is_functorch_wrapped_tensor(x):
                x.__class__ = EscapedTensor
                # The swap fails where torch itself holds the tensor; its new class still refuses every use.
                with torch._C.DisableTorchFunctionSubclass(), contextlib.suppress(RuntimeError):
                    torch._C._swap_tensor_impl(x, torch.empty(0))
        if self._collecting:
            gc.enable()


class _Mark(list):
    """An object that the collector knows, and that shows which generation it is in."""


def _tensors_and_marks(objects: list) -> list:
    sought = (Tensor, _Mark)
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, sought)}
    # Thousands of objects are looked at in each step, so the search is one without code of Python.
    return list(itertools.compress(objects, map(kinds.__contains__, map(type, objects))))


class _ReplacedFunctions:
    """A context in which TorchScript is an error and checkpoints are plain calls, for the threads that enter it.

    The text of a hidden value is an error in every thread, and its hash is no address, which would follow from the lot.
    ``torch.jit.is_tracing()`` answers yes, but to torch itself and to other threads. What models compute is the same.

    The first thread to enter makes the changes, and the last one to leave takes them back. Threads leave in another order
    than they entered: if each put back what it had found, the last could put back the change of another, for good.

    Example:
        >>> with REPLACED_FUNCTIONS, warnings.catch_warnings(action="ignore"):
        ...     print(torch.jit.is_tracing())
        ...     checkpoint.checkpoint(torch.exp, torch.zeros(1), use_reentrant=False)
        True
        tensor([1.])
        >>> torch.jit.is_tracing()
        False
    """

    def __init__(self) -> None:
        self._lock, self._entered, self._of_thread = threading.Lock(), 0, threading.local()
        self._originals: list[tuple[Any, str, Any]] = []
        # The original at each place, and the one that takes its place: made anew if a program has put another there.
        self._instead: dict[tuple[Any, str], tuple[Any, Any]] = {}
        # The hashes of the next hidden tensors.
        self.numbers = itertools.count()

    @property
    def is_inside(self) -> bool:
        """True for a thread that has entered."""
        return getattr(self._of_thread, "depth", 0) > 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._entered:
                self.numbers = itertools.count()
                for owner, name, change in _CHANGES:
                    original = getattr(owner, name)
                    before, instead = self._instead.get((owner, name), (None, None))
                    if before is not original:
                        instead = change(original)
                        self._instead[owner, name] = original, instead
                    self._originals.append((owner, name, original))
                    setattr(owner, name, instead)
            self._entered += 1
        self._of_thread.depth = getattr(self._of_thread, "depth", 0) + 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._of_thread.depth -= 1
        with self._lock:
            self._entered -= 1
            if not self._entered:
                while self._originals:
                    setattr(*self._originals.pop())


REPLACED_FUNCTIONS = _ReplacedFunctions()


def _refusing(original: Callable) -> Callable:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if REPLACED_FUNCTIONS.is_inside:
            raise ValueError(f"the loss {_SCRIPTS}")
        return original(*args, **kwargs)

    return call


def _without_text(original: Callable) -> Callable:
    @functools.wraps(original)
    def text(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> str:
        if is_hidden(tensor):
            raise ValueError(f"the loss {_TEXT}")
        return original(tensor, *args, **kwargs)

    return text


def _numbered(original: Callable) -> Callable:
    @functools.wraps(original)
    def number(tensor: torch.Tensor) -> int:
        if not is_hidden(tensor):
            return original(tensor)
        attributes = vars(tensor)
        if _NUMBER not in attributes:
            attributes[_NUMBER] = next(REPLACED_FUNCTIONS.numbers)
        return attributes[_NUMBER]

    return number


def _answering_as_traced(original: Callable[[], bool]) -> Callable[[], bool]:
    @functools.wraps(original)
    def is_tracing() -> bool:
        asked_by = sys._getframe(1).f_code.co_filename
        return original() or (REPLACED_FUNCTIONS.is_inside and not asked_by.startswith(_TORCH))

    return is_tracing


def _without_checkpoint(original: Any) -> Any:
    """Return what takes the place of the autograd function behind a reentrant checkpoint."""

    def apply(run: Callable, preserve: bool, *args: Any) -> Any:
        if not REPLACED_FUNCTIONS.is_inside:
            return original.apply(run, preserve, *args)
        _say_memory_is_not_saved()
        return run(*args)

    return SimpleNamespace(apply=apply)


def _without_hooks(original: Callable) -> Callable:
    """Return what takes the place of the generator that runs before and after the function of a checkpoint."""

    def around(*args: Any, **kwargs: Any) -> Iterator[None]:
        return _nothing() if REPLACED_FUNCTIONS.is_inside else original(*args, **kwargs)

    return around


def _nothing() -> Iterator[None]:
    _say_memory_is_not_saved()
    yield


@functools.cache
def _say_memory_is_not_saved() -> None:
    """Warn once."""
    warnings.warn(
        "activation checkpointing in a private loss: its functions are called without it, so gradients are the same and "
        "memory is that without checkpoints. To need less, take lots in parts (micro_batch, MicroBatches)",
        stacklevel=2,
    )


# However a program has imported `checkpoint`, that finds these by their names in its module. It calls the second generator
# since torch 2.14.
_GENERATORS = ("_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant_generator_impl")
# Each place with the function that returns what is put there instead of the original.
_BLOCKED_CALLS = (
    (torch._C.ScriptFunction, "__call__"),
    (torch._C.ScriptMethod, "__call__"),
    (torch.jit, "fork"),
    (torch.jit, "trace"),
    (torch.jit, "trace_module"),
)
_CHANGES: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    *((owner, name, _refusing) for owner, name in _BLOCKED_CALLS),
    (torch._tensor_str, "_str", _without_text),
    # Sets and dicts of tensors work on, and hold the same in each call.
    (torch.Tensor, "__hash__", _numbered),
    (torch.jit, "is_tracing", _answering_as_traced),
    (checkpoint, "CheckpointFunction", _without_checkpoint),
    *((checkpoint, name, _without_hooks) for name in _GENERATORS if hasattr(checkpoint, name)),
)

"""Refusals in terms of the loss, or of a layer: of what torch refuses under vmap, and of code that no mode sees."""

from __future__ import annotations

import functools
import itertools
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lightning_dpgen.gradients.hidden import is_hidden
from lightning_dpgen.gradients.process_changes import ProcessChange

WRITES = (
    "writes a value computed from a record into a tensor that outlives the call (a buffer, say): what is kept from lot to "
    "lot must follow from parameters alone (a codebook that follows its codes is a parameter, with a term of the loss that "
    "draws it to them), or be released with noise of its own (EmbeddingGradients, in a loop of your own)"
)
SAVED = "saved_tensors_hooks are disabled"
_DIFFERENTIATES = "takes a gradient by itself: write that gradient out, or use torch.func.grad for it and engine='func'"
_FUNCTIONS = (
    "calls an autograd.Function whose backward pass might mix records: have its forward without ctx, beside a "
    "setup_context, and set generate_vmap_rule = True in the class"
)
_FILLS = (
    "fills a tensor that outlives the call with random numbers: use torch.randn, torch.rand or torch.randn_like, which "
    "give each record its own"
)
_HOOKS = "puts a hook on a tensor, which would be handed the gradients of all records: change the loss"
_NO_RULE = "calls a function for which torch.vmap has no rule{}: compute it with other functions"
_ASSERTS = (
    "asserts what does not hold{} where a batch is one record, as each record of a lot is handed over: leave out what is "
    "asserted of the size of a batch"
)
_SHAPES = (
    "makes a shape that follows from a record (a mask as index, nonzero, torch.where of a mask alone, unique): compute the "
    "whole and choose with torch.where(mask, a, b), so that each expert of a mixture sees all tokens"
)
_GIVEN = "hands a record to numpy ({}): compute with functions of torch; an example of a record cures nothing"
_NUMPY = str(Path(np.__file__).parent)
# Words of torch where it refuses an operation on one record of many, and the reason: braces hold the operator's name.
_REASONS = {
    "data-dependent control flow": "looks at a value computed from a record (if, bool): use torch.where",
    ".item()": "looks at a value computed from a record (item, float, int): compute with tensors",
    "masked_select": "makes a shape that follows from a record (masked_select): use torch.where(mask, a, b)",
    "Batch norm got a batched tensor": "updates running statistics, into which records would be written (a batch norm in "
    "train mode): use group_norm or layer_norm, or call eval() on it",
    # Where a function is called of a shape alone (`apart.py`), torch refuses these in other words.
    **dict.fromkeys(
        ("Cannot copy out of meta", "convert meta device"),
        "takes a value of a record out of torch (tolist, numpy): compute with tensors",
    ),
    "meta function for torch.nonzero": _SHAPES,
    "no fake impl or Meta kernel": "calls a function{} whose result follows from the values of a record alone (equal, "
    "unique): compute with tensors, as in (a == b).all(dim=-1).float(); an example of a record cures nothing",
    "type meta for Dlpack": "takes a value of a record out of torch (from_dlpack, numpy): compute with tensors",
    "Cannot access data pointer": "takes a value of a record out of torch (tolist, numpy, data_ptr): compute with tensors",
    "Cannot access storage": "takes a value of a record out of torch (deepcopy, pickle): compute with tensors",
    "num_classes argument": "calls one_hot without num_classes, which would follow from records: give it",
    "dynamic shape": _SHAPES,
    SAVED: "sets hooks for saved tensors (as save_on_cpu does), which would be handed those of all records: leave them out "
    "(torch.utils.checkpoint may stay)",
    "'Sparse": "makes a sparse tensor of a record: keep it dense",
    "setup_context": _FUNCTIONS,
    "generate_vmap_rule": _FUNCTIONS,
    "is not possible because there exists": WRITES,
    "broadcast shape": WRITES,
    "requires_grad_()": _DIFFERENTIATES,
    "does not require grad": _DIFFERENTIATES,
    "backward() called": _DIFFERENTIATES,
    "register a hook": _HOOKS,
    "Expected gradient function": _HOOKS,
    "atching rule": _NO_RULE,
    "isn't supported yet": _NO_RULE,
    "do not yet support": _NO_RULE,
    # The levels of vmap are those of one thread.
    "escaped from inside": "uses a value of a record in another thread (threading, concurrent.futures): compute it in the "
    "thread that calls the loss",
    "mutating directly": "puts other numbers behind a tensor (.data =): compute a new tensor",
    "inplace randomness": _FILLS,
    "out variants of random": _FILLS,
}


def explained(error: Exception) -> ValueError | None:
    """Say in terms of the loss, or of the layer that it calls, why torch or an assertion refused an operation.

    Returns:
        None for an error that has another reason.
    """
    said = str(error)
    outside = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_NUMPY)]
    if isinstance(error, TypeError) and outside:
        return ValueError(f"{_subject(error)} {_GIVEN.format(outside[0].name)}{_line(error)}")
    for words, reason in _REASONS.items():
        if words in said:
            return ValueError(f"{_subject(error)} {reason.format(_operator(said))}{_line(error)}")
    # An assertion on values is refused before, so this one fails for any record.
    if isinstance(error, AssertionError):
        words = said.partition("\n")[0]
        return ValueError(f"{_subject(error)} {_ASSERTS.format(words and f' ({words})')}{_line(error)}")
    return None


def _subject(error: Exception) -> str:
    """Name the layer in which the error arose, where torch or another installed package has made it, or else the loss."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [x for frame in frames if isinstance(x := frame.f_locals.get("self"), nn.Module)]
    if not modules:
        return "the loss"
    file = getattr(sys.modules.get(type(modules[-1]).__module__), "__file__", None)
    installed = file is not None and "site-packages" in Path(file).parts
    return f"the layer {type(modules[-1]).__name__}" if installed else "the loss"


def _operator(said: str) -> str:
    """Return the operator of torch that an error names, in brackets."""
    found = re.search(r"aten::\w+", said)
    return f" ({found[0]})" if found else ""


def _line(error: Exception) -> str:
    """Name the line of the loss where the error arose, outside torch and this package's engine."""
    own = {str(Path(__file__).parent), str(Path(torch.__file__).parent), _NUMPY}
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not any(f.filename.startswith(x) for x in own)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""


_SCRIPTS = (
    "calls TorchScript (torch.jit), whose code is handed all records and may keep them: call the module or function of "
    "Python that it was made from"
)
# The attribute in which a hidden tensor keeps its hash.
_NUMBER = "_lightning_dpgen_number"
_TEXT = "turns a value of a record into text (repr, str, print, logging): print shapes, or nothing"


def refuse_unwatched() -> ProcessChange:
    """Make TorchScript and text of hidden values an error, for the thread that calls the loss.

    No mode of torch sees these, and they are handed the numbers of all records.
    The text of a hidden value is an error in every thread, and its hash is no address, which would follow from the lot.
    """
    return _DOORS_CLOSED


# The function found at each door, and the one in its place, which is made anew if a program has put another there.
_made: dict[tuple[Any, str], tuple[Callable, Callable]] = {}


# The hashes of the next tensors.
_numbers = itertools.count()


def _close_doors() -> Callable[[], None]:
    global _numbers
    _numbers = itertools.count()
    closed = []
    for owner, name, close in _DOORS:
        original = getattr(owner, name)
        if (owner, name) not in _made or _made[owner, name][0] is not original:
            _made[owner, name] = original, close(original) if callable(close) else _refusing(original, close)
        closed.append((owner, name, original))
        setattr(owner, name, _made[owner, name][1])

    def open_doors() -> None:
        for owner, name, original in closed:
            setattr(owner, name, original)

    return open_doors


_DOORS_CLOSED = ProcessChange(_close_doors)


def _refusing(original: Callable, reason: str) -> Callable:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _DOORS_CLOSED.is_inside:
            raise ValueError(f"the loss {reason}")
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
        own = vars(tensor)
        if _NUMBER not in own:
            own[_NUMBER] = next(_numbers)
        return own[_NUMBER]

    return number


# Each with the reason that refuses it in a loss, or the function that takes its place for a hidden value.
_DOORS = (
    (torch._C.ScriptFunction, "__call__", _SCRIPTS),
    (torch._C.ScriptMethod, "__call__", _SCRIPTS),
    *((torch.jit, name, _SCRIPTS) for name in ("fork", "trace", "trace_module")),
    (torch._tensor_str, "_str", _without_text),
    # Sets and dicts of tensors work on, and hold the same in each call.
    (torch.Tensor, "__hash__", _numbered),
)

"""Reasons, in terms of the loss or of a layer, for what torch refuses under vmap."""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path

import numpy as np
import torch
from torch import nn

WRITES = (
    "writes a value computed from a record into a tensor that outlives the call (a buffer, say): what is kept from lot to "
    "lot must follow from parameters alone (a codebook that follows its codes is a parameter, with a term of the loss that "
    "draws it to them), or be released with noise of its own (EmbeddingGradients, in a loop of your own)"
)
SAVED = "saved_tensors_hooks are disabled"
_DIFFERENTIATES = "takes a gradient by itself: use engine='func' for torch.autograd.grad, or write that gradient out"
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
    # Where a function is called of a shape alone (`unknown_functions.py`), torch refuses these in other words.
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
    message = str(error)
    outside = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_NUMPY)]
    if isinstance(error, TypeError) and outside:
        return ValueError(f"{_subject(error)} {_GIVEN.format(outside[0].name)}{_line(error)}")
    for words, reason in _REASONS.items():
        if words in message:
            return ValueError(f"{_subject(error)} {reason.format(_operator(message))}{_line(error)}")
    # An assertion on values is refused before, so this one fails for any record.
    if isinstance(error, AssertionError):
        words = message.partition("\n")[0]
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
    ours = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), _NUMPY)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""

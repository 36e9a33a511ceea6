"""Refusals of torch under vmap, in terms of the loss that caused them."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

_WRITES = (
    "writes a value computed from a record into a tensor that outlives the call (a buffer, say): what is kept from lot to "
    "lot must follow from parameters alone, or be released with noise of its own (EmbeddingGradients releases the mean of "
    "a lot, as of the codes that a codebook follows)"
)
SAVED = "saved_tensors_hooks are disabled"
_DIFFERENTIATES = "takes a gradient by itself: write that gradient out, or use torch.func.grad for it and engine='func'"
_FUNCTIONS = (
    "calls an autograd.Function whose backward pass might mix records: have its forward without ctx, beside a "
    "setup_context, and set generate_vmap_rule = True in the class"
)
_HOOKS = "puts a hook on a tensor, which would be handed the gradients of all records: change the loss"
_NO_RULE = "calls a function for which torch.vmap has no rule: compute it with other functions"
# Words of torch where it refuses an operation on one record of many, and the reason in terms of the loss.
_REASONS = {
    "data-dependent control flow": "looks at a value computed from a record (if, bool): use torch.where",
    ".item()": "looks at a value computed from a record (item, float, int): compute with tensors",
    "masked_select": "makes a shape that follows from a record (masked_select): use torch.where",
    "Batch norm got a batched tensor": "normalises by running statistics, into which records would be written: use "
    "group_norm or layer_norm",
    "Cannot access data pointer": "takes a value of a record out of torch (tolist, numpy): compute with tensors",
    "Cannot access storage": "takes a value of a record out of torch (deepcopy, pickle): compute with tensors",
    "num_classes argument": "calls one_hot without num_classes, which would follow from records: give it",
    "dynamic shape": "makes a shape that follows from a record (a mask as index, nonzero, unique): use torch.where",
    SAVED: "sets hooks for saved tensors (as activation checkpointing does), which would be handed those of all records: "
    "leave them out",
    "'Sparse": "makes a sparse tensor of a record: keep it dense",
    "setup_context": _FUNCTIONS,
    "generate_vmap_rule": _FUNCTIONS,
    "is not possible because there exists": _WRITES,
    "broadcast shape": _WRITES,
    "requires_grad_()": _DIFFERENTIATES,
    "does not require grad": _DIFFERENTIATES,
    "backward() called": _DIFFERENTIATES,
    "register a hook": _HOOKS,
    "Expected gradient function": _HOOKS,
    "atching rule": _NO_RULE,
    "isn't supported yet": _NO_RULE,
    "do not yet support": _NO_RULE,
    "mutating directly": "puts other numbers behind a tensor (.data =): compute a new tensor",
    "inplace randomness": "fills a tensor that outlives the call with random numbers: use torch.randn, torch.rand or "
    "torch.randn_like, which give each record its own",
}


def explained(error: Exception) -> Exception:
    """Say in terms of the loss why torch refused an operation; return the error itself if it has another reason."""
    said = str(error)
    for words, reason in _REASONS.items():
        if words in said:
            return ValueError(f"the loss {reason}{_line(error)}")
    return error


def _line(error: Exception) -> str:
    """Name the line of the loss where the error arose, outside torch and this package's engine."""
    own = {str(Path(__file__).parent), str(Path(torch.__file__).parent)}
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not any(f.filename.startswith(x) for x in own)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""

"""The rule of attention with projections of its own: it is taken apart into functions that have rules."""

from __future__ import annotations

import types
from collections.abc import Callable

import torch.nn.functional as F

from lightning_dpgen.gradients.hidden import is_hidden
from lightning_dpgen.gradients.tape import Rule, Tape

# Torch's own code, that begins at the first step in place of handing the whole call to traced parameters again.
_STEPS = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)


def _attention(tape: Tape, *args, **options):
    if not any(map(is_hidden, args[:3])):
        return NotImplemented
    with tape.isolation.watching():
        return _STEPS(*args, **options)


RULES: dict[Callable, Rule] = {F.multi_head_attention_forward: _attention}

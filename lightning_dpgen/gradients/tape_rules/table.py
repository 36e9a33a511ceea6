"""The table of all rules: which function of torch goes by which."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from lightning_dpgen.gradients.tape import Rule
from lightning_dpgen.gradients.tape_rules import components, convolutions, lookups, matrices, normalisation

# Functions that are as quick with a copy of a parameter for each record as they would be with a rule.
_COPIED = (
    "add", "sub", "mul", "div", "true_divide", "pow", "maximum", "minimum", "rsub", "where", "lerp", "addcmul", "addcdiv",
    "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__", "__rmul__", "__imul__", "__truediv__",
    "__rtruediv__", "__itruediv__", "__pow__", "__rpow__", "add_", "sub_", "mul_", "div_", "expand_as", "cat", "concat",
    "concatenate", "stack", "hstack", "vstack",
)  # fmt: skip

RULES: dict[Callable, Rule | None] = {
    **matrices.RULES,
    **convolutions.RULES,
    **lookups.RULES,
    **normalisation.RULES,
    **components.RULES,
    **{getattr(place, name): None for place, name in itertools.product((torch, Tensor), _COPIED) if hasattr(place, name)},
}

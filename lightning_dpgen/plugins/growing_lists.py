"""Lists of a module that grow by values of records, found while a training step is tried on made-up ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

from torch import nn

from lightning_dpgen.gradients.isolation.hidden import EscapedTensor

_GROW = (list, deque, set, dict)


class GrowingLists:
    """The lists, sets and dictionaries that a module has, with their sizes now, to be compared with those after more calls.

    A value that was computed from a record loses its content when the call ends, so a mean over such a list fails, often
    after the last step. An attribute that each call writes anew (an attention map, the balance loss of experts) is no such
    list, since the call that computes it may use it.

    Args:
        module: the module whose loss is called between this and `check`.

    Example:
        >>> module = nn.Module()
        >>> module.losses = []
        >>> GrowingLists(module).check()
    """

    def __init__(self, module: nn.Module) -> None:
        self._before = [(name, held, len(held)) for name, held in _lists_of(module)]

    def check(self) -> None:
        """Refuse a list that has grown by such values.

        Raises:
            ValueError: naming the attribute.
        """
        for name, held, size in self._before:
            if len(held) > size and any(isinstance(x, EscapedTensor) for x in _values(held)):
                raise ValueError(
                    f"training_step adds a value computed from records to {name}, and nothing can be made of it once the "
                    "call has ended: log it with self.log, whose numbers stay private, or leave it out"
                )


def _lists_of(module: nn.Module) -> Iterator[tuple[str, Collection]]:
    of_torch = vars(nn.Module()).keys()
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in of_torch:
                yield from _nested(".".join(filter(None, ("self", path, name))), value)


def _nested(name: str, value: Any) -> Iterator[tuple[str, Collection]]:
    """Yield a list, and those that are the values of a dictionary."""
    if type(value) in _GROW:
        yield name, value
    if type(value) is dict:
        for key, inner in value.items():
            if type(inner) in _GROW:
                yield f"{name}[{key!r}]", inner


def _values(held: Any) -> Collection:
    return held.values() if isinstance(held, dict) else held

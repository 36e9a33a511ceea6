"""The number of a lot, as a training step is handed it: out of reach while the step is captured.

A captured step runs without its Python, so nothing in it may follow from the number (`batch_idx`). Most steps are handed
one and hand it on, at most. While one is captured it gets an object in the place of the number that fails when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


class NumberUsed(Exception):
    """A loss uses the number of its lot while it is captured."""


class _HiddenNumber:
    """An object in the place of a whole number, of which nothing can be learnt but that it is one.

    Attributes:
        used: whether anything was asked of it.
    """

    used = False

    @property
    def __class__(self) -> type:
        # isinstance(batch_idx, int) says what it says of a number.
        return int

    def _fail(self, *_: Any) -> NoReturn:
        type(self).used = True
        raise NumberUsed("uses the number of a batch (batch_idx), which is another one in each step: leave it out")


# Operators are looked up on the class; other attributes fail when they are read.
for _name in (set(dir(int)) - set(dir(object))) | {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"}:
    setattr(_HiddenNumber, _name, _HiddenNumber._fail if _name.startswith("__") else property(_HiddenNumber._fail))
for _name in ("__str__", "__repr__", "__format__"):
    setattr(_HiddenNumber, _name, _HiddenNumber._fail)

_HIDDEN = _HiddenNumber()
_hides = False


@contextmanager
def hidden_number() -> Iterator[None]:
    """Return a context in which `number_of_lot` gives no number.

    Raises:
        NumberUsed: at its end, if it was used all the same, and code of the loss has caught the error.
    """
    global _hides
    _hides, _HiddenNumber.used = True, False
    try:
        yield
    finally:
        _hides = False
    if _HiddenNumber.used:
        _HIDDEN._fail()


def number_of_lot(number: int) -> Any:
    """Return the number that a training step is handed.

    Example:
        >>> number_of_lot(3)
        3
        >>> with hidden_number():
        ...     isinstance(number_of_lot(3), int)
        True
    """
    return _HIDDEN if _hides else number

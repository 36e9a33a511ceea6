"""Tensors that follow from parts of records, kept while they are asked for again. Private, as records are."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torch import Tensor

from lightning_dpgen.data.layout import Encoded


class KeptParts:
    """Tensors that follow from parts of records (`Records.parts`). They are gone with the records, and are never pickled.

    Args:
        most: the bytes that are kept; what does not fit is computed each time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: weakref.WeakKeyDictionary[Encoded, Tensor] = weakref.WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[KeptParts], tuple[int]]:
        return type(self), (self._most,)

    def get(self, records: Encoded, compute: Callable[[], Tensor]) -> Tensor:
        """Return what was kept for these very records, or compute it."""
        found = self._found.get(records)
        if found is None:
            found = compute()
            if found.nbytes + sum(own.nbytes for own in self._found.values()) <= self._most:
                self._found[records] = found
        return found

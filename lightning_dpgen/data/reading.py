"""Results of a reader, and its counts and numbers. All of it is private."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.names import Name, plain, positions, quote
from lightning_dpgen.sampling.errors import BadRecords

if TYPE_CHECKING:
    from lightning_dpgen.data.histories.values import HistoryValues
    from lightning_dpgen.data.tables.values import TableValues

REFUSE, CLAMP = OUTSIDE = ("refuse", "clamp")


@dataclass(frozen=True, eq=False, repr=False)
class Reading:
    """Records that were read. Private: for the curator alone.

    Args:
        encoded: N records, as the schema's layout says.
        persons: (N,) int64, a number for the person of each record; None where each record is of another person.
        counted: the kinds of changes and omissions on the way, and how often each happened.
        values: of a table or of histories: the same records by their values; None where these were not asked for.
        owners: (N,) the person of each record as the source names them, where these have no number yet.
        places: (N,) the number of each record among those of the source, from 0; beside owners alone.
    """

    encoded: Encoded
    persons: np.ndarray | None
    counted: Mapping[str, int]
    values: TableValues | HistoryValues | None = None
    owners: pa.Array | None = None
    places: np.ndarray | None = None


class Numbering:
    """Numbers for values in the order in which they are met: basket ids, persons.

    Example:
        >>> Numbering().of(pa.array(["x", "y", "x"]))
        array([0, 1, 0])
    """

    def __init__(self) -> None:
        self.known: dict[object, int] = {}

    def of(self, values: pa.Array) -> np.ndarray:
        """Return numbers (n,) int64; values that were met before keep theirs. None may be missing.

        Raises:
            BadRecords: for what cannot be told apart, such as lists.
        """
        kind = values.type
        try:
            values = plain(values).dictionary_encode()
            numbers = [self.known.setdefault(value, len(self.known)) for value in values.dictionary.to_pylist()]
        except (pa.ArrowException, TypeError):
            raise BadRecords(f"ids or persons are of {kind}: expected text or whole numbers") from None
        return np.array(numbers, np.int64)[values.indices.to_numpy()]


def one_each(values: object, n: int) -> bool:
    """Tell whether these may be one value for each of n records in memory; None stands for no values."""
    return values is None or (not isinstance(values, str) and hasattr(values, "__len__") and len(values) == n)


def check_outside(outside: str) -> None:
    """Raise ValueError for another rule than `OUTSIDE`."""
    if outside not in OUTSIDE:
        raise ValueError(f"outside={quote(outside)}: expected one of {', '.join(OUTSIDE)}")


def class_positions(classes: tuple[Name, ...], labels: pa.Array | None, place: Callable[[int], str]) -> np.ndarray:
    """Return the place of each of (n,) labels among the declared classes: (n,) int64.

    Raises:
        BadRecords: for one that was not declared, at its `place`, or missing labels.
    """
    if labels is None:
        raise BadRecords(f"the schema declares {len(classes)} classes, but there are no labels")
    at = positions(classes, labels)
    unknown = np.flatnonzero(at < 0)
    if len(unknown):
        first = int(unknown[0])
        label = quote(labels[first].as_py())
        raise BadRecords(
            f"{place(first)}: the label {label} is not among the declared classes {quote(list(classes))}: add it there if "
            "it is public, or correct it"
        )
    return at

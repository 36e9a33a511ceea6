"""Several records for a person: at most m of them take part, chosen by a public hash of that person's records alone."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from lightning_dpgen.data.layout import Encoded

# The count of records that are left out, for the private report.
MORE_ROWS = "records: more than max_rows of a person"

_STEP, _FIRST, _SECOND = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def bounded(encoded: Encoded, persons: np.ndarray, max_rows: int) -> np.ndarray:
    """Return the positions (N',) of the records that take part, in order: at most `max_rows` of each person.

    The choice follows from the records of that person alone, as if at random: by a hash of each that is mixed with one
    of all of them. So a resumed run finds the same ones, wherever in the file they are.

    Args:
        encoded: the records.
        persons: (N,) whole numbers, the person of each record. Private.
        max_rows: m, public.

    Raises:
        ValueError: if persons are not (N,) whole numbers, or `max_rows` is below 1.

    Example:
        >>> codes = np.array([[0], [1], [2], [0]], np.uint8)
        >>> kept = bounded(Encoded(np.zeros((4, 0), np.float32), codes), np.array([7, 7, 7, 3]), max_rows=2)
        >>> len(kept), 3 in kept
        (3, True)
    """
    if persons.shape != (len(encoded),) or persons.dtype.kind not in "iu":
        raise ValueError(f"persons {persons.shape} of {persons.dtype}: expected (N,) whole numbers, one for each record")
    if max_rows < 1:
        raise ValueError(f"max_rows={max_rows}: expected a whole number, 1 or more")
    own = row_hashes(encoded)
    _, person, counts = np.unique(persons, return_inverse=True, return_counts=True)
    together = np.zeros(len(counts), np.uint64)
    np.add.at(together, person, own)
    order = np.lexsort((priorities(own, together[person]), person))
    rank = np.arange(len(order)) - np.repeat(counts.cumsum() - counts, counts)
    return np.sort(order[rank < max_rows])


def priorities(own: np.ndarray, together: np.ndarray) -> np.ndarray:
    """Return the priority (N,) uint64 of each record of a person with more than m; the m lowest take part.

    Args:
        own: (N,) uint64, the hash of each record (`row_hashes`).
        together: (N,) uint64, the sum of the hashes of all records of the same person, modulo 2^64.

    Example:
        >>> own = np.array([7, 7], np.uint64)
        >>> first, second = priorities(own, np.array([7, 9], np.uint64))
        >>> first == second
        np.False_
    """
    return mixed(own ^ mixed(together))


def row_hashes(encoded: Encoded) -> np.ndarray:
    """Return a hash (N,) uint64 of each record: a function of that record alone.

    Example:
        >>> one, two, three = row_hashes(Encoded(np.zeros((3, 0), np.float32), np.array([[1], [2], [1]], np.uint8)))
        >>> one == three, one == two
        (np.True_, np.False_)
    """
    found, units = np.zeros(len(encoded), np.uint64), encoded.units
    if scipy.sparse.issparse(units):
        rows = np.repeat(np.arange(len(encoded)), np.diff(units.indptr))
        np.add.at(found, rows, mixed(units.indices.astype(np.uint64)))
        columns = [*encoded.codes.T]
    else:
        units = units.view(np.uint32) if units.dtype == np.float32 else units
        columns = [*units.T, *encoded.codes.T]
    for column in columns:
        found = mixed(found + column.astype(np.uint64))
    return found


def mixed(values: np.ndarray) -> np.ndarray:
    """Mix uint64 by SplitMix64 (Steele, Lea and Flood 2014): a bijection that looks random.

    Example:
        >>> f"{mixed(np.zeros(1, np.uint64))[0]:x}"
        'e220a8397b1dcdaf'
    """
    values = values + _STEP
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))

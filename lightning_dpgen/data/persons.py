"""Several records for a person: the full key that tells persons apart, and which m of a person's records take part."""

from __future__ import annotations

import datetime
import math
import numbers
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.names import plain
from lightning_dpgen.sampling.errors import BadRecords

# The count of records that are left out, for the private report.
MORE_ROWS = "records: more than max_rows of a person"

# Names and persons have the same hash in any process. It decides only which of a person's own entries count.
_HASH_KEY = "lightning_dpgen."

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
    hashes = row_hashes(encoded)
    _, person, counts = np.unique(persons, return_inverse=True, return_counts=True)
    together = np.zeros(len(counts), np.uint64)
    np.add.at(together, person, hashes)
    order = np.lexsort((priorities(hashes, together[person]), person))
    rank = np.arange(len(order)) - np.repeat(counts.cumsum() - counts, counts)
    return np.sort(order[rank < max_rows])


def priorities(hashes: np.ndarray, together: np.ndarray) -> np.ndarray:
    """Return the priority (N,) uint64 of each record of a person with more than m; the m lowest take part.

    Args:
        hashes: (N,) uint64, the hash of each record (`row_hashes`).
        together: (N,) uint64, the sum of the hashes of all records of the same person, modulo 2^64.

    Example:
        >>> hashes = np.array([7, 7], np.uint64)
        >>> first, second = priorities(hashes, np.array([7, 9], np.uint64))
        >>> first == second
        np.False_
    """
    return mixed(hashes ^ mixed(together))


def row_hashes(encoded: Encoded) -> np.ndarray:
    """Return a hash (N,) uint64 of each record: a function of that record alone.

    Example:
        >>> one, two, three = row_hashes(Encoded(np.zeros((3, 0), np.float32), np.array([[1], [2], [1]], np.uint8)))
        >>> one == three, one == two
        (np.True_, np.False_)
    """
    hashes, units = np.zeros(len(encoded), np.uint64), encoded.units
    if scipy.sparse.issparse(units):
        rows = np.repeat(np.arange(len(encoded)), np.diff(units.indptr))
        np.add.at(hashes, rows, mixed(units.indices.astype(np.uint64)))
        columns = [*encoded.codes.T]
    else:
        units = units.view(np.uint32) if units.dtype == np.float32 else units
        columns = [*units.T, *encoded.codes.T]
    for column in columns:
        hashes = mixed(hashes + column.astype(np.uint64))
    return hashes


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


def name_hashes(names: np.ndarray) -> np.ndarray:
    """Return a hash (K,) uint64 of each name, text or bytes (as objects) or whole numbers, alike in all processes."""
    if names.dtype.kind in "iu":
        return mixed(names.astype(np.uint64))
    return pd.util.hash_array(names, hash_key=_HASH_KEY, categorize=False)


def person_keys(values: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the different persons of these rows, and whose each row is.

    Two values are one person exactly where `reading.Numbering` gives them one number: the number 1 and the text "1" are
    two persons, and the number 1 is one person in any type of number.

    Args:
        values: (n,) text or whole numbers, or what can be told apart like these. Private.

    Returns:
        (pa.Array, np.ndarray): the keys (u,) large_binary, each once, in the order in which they are met; (n,) int64, the
        place of each row's among them. Private.

    Raises:
        BadRecords: for what cannot be told apart, such as lists, or for a value that is missing.

    Example:
        >>> keys, of_row = person_keys(pa.array(["x", "y", "x"]))
        >>> keys.to_pylist(), of_row
        ([b'sx', b'sy'], array([0, 1, 0]))
        >>> person_keys(pa.array([1.0, 2.5]))[0].to_pylist(), person_keys(pa.array([1]))[0].to_pylist()
        ([b'i1', b'q5/2'], [b'i1'])
    """
    kind = values.type
    try:
        values = plain(values)
        if values.null_count:
            raise BadRecords("a person is missing: expected the person of each record")
        values = values.dictionary_encode()
        of_row, keys = values.indices.to_numpy().astype(np.int64), _written(values.dictionary)
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
            # Some values are one person in two spellings, such as 0.0 and -0.0.
            spelled = keys.dictionary_encode()
            of_row, keys = spelled.indices.to_numpy().astype(np.int64)[of_row], spelled.dictionary
    except (pa.ArrowException, TypeError):
        raise BadRecords(f"ids or persons are of {kind}: expected text or whole numbers") from None
    return keys, of_row


def number_persons(parts: Iterable[pa.Array]) -> tuple[np.ndarray, np.ndarray]:
    """Return a number for the person of each row, and a hash of the person's key that is the same in all processes.

    Args:
        parts: the persons of rows, as `person_keys` takes them, some at a time. Private.

    Returns:
        (N,) int64, from 0 in the order in which persons are met; (N,) uint64. Private.

    Raises:
        BadRecords: as `person_keys`.

    Example:
        >>> numbers, hashes = number_persons([pa.array(["x", "y"]), pa.array(["y"])])
        >>> numbers.tolist(), hashes[1] == hashes[2], hashes[0] == hashes[1]
        ([0, 1, 1], np.True_, np.False_)
    """
    known: dict[bytes, int] = {}
    numbers, hashes = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    for part in parts:
        keys, of_row = person_keys(part)
        own = np.array([known.setdefault(key, len(known)) for key in keys.to_pylist()], np.int64)
        numbers.append(own[of_row])
        hashes.append(key_hashes(keys)[of_row])
    return np.concatenate(numbers), np.concatenate(hashes)


def key_hashes(keys: pa.Array) -> np.ndarray:
    """Return a hash (n,) uint64 of each key of a person, which is the same in all processes."""
    return name_hashes(keys.to_numpy(zero_copy_only=False))


def _written(values: pa.Array) -> pa.Array:
    """Return different values as large_binary, in which equal values of any type are equal."""
    kind = values.type
    if pa.types.is_boolean(kind):
        values, kind = values.cast(pa.int8()), pa.int8()
    if pa.types.is_integer(kind):
        texts = pc.binary_join_element_wise("i", values.cast(pa.string()), "")
    elif pa.types.is_string(kind):
        texts = pc.binary_join_element_wise("s", values, "")
    else:
        texts = pa.array([_write_value(value) for value in values.to_pylist()], pa.string())
    return texts.cast(pa.large_string()).cast(pa.large_binary())


def _write_value(value: object) -> str:
    """Return a value that is no text as text; equal ones are equal, as they are for Python.

    Raises:
        TypeError: for a value that is none of a column, such as a list.
    """
    if (isinstance(value, Decimal) and not value.is_finite()) or (isinstance(value, float) and not math.isfinite(value)):
        return f"q{float(value)}"
    if isinstance(value, numbers.Rational | float | Decimal):
        whole = Fraction(value)
        return f"i{whole.numerator}" if whole.denominator == 1 else f"q{whole}"
    if isinstance(value, datetime.datetime):
        return f"n{value.isoformat()}" if value.tzinfo is None else f"a{value.astimezone(datetime.UTC).isoformat()}"
    if isinstance(value, datetime.date):
        return f"d{value.isoformat()}"
    if isinstance(value, datetime.time):
        return f"t{value.isoformat()}"
    if isinstance(value, datetime.timedelta):
        return f"l{value.days} {value.seconds} {value.microseconds} {getattr(value, 'nanoseconds', 0)}"
    raise TypeError(f"a {type(value).__name__}: expected text or a number")

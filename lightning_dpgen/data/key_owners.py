"""Keys and their owners: categories of a column, items of sets. Private."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.privacy.noise import PrivateStream
from lightning_dpgen.sampling.errors import BadRecords


@dataclass(frozen=True, eq=False, repr=False)
class KeyOwners:
    """Entries, each of which says that an owner holds a key. One that stands twice counts once.

    Args:
        codes: (P,) positions in `names`.
        owners: (P,) the owner of each, a record or a person, as any whole number.
        names: (K,) distinct keys, text (as objects) or whole numbers (int64).

    Raises:
        BadRecords: if they are not; nothing has been spent. The message shows no key.
    """

    codes: np.ndarray
    owners: np.ndarray
    names: np.ndarray

    def __post_init__(self) -> None:
        codes, owners, names = self.codes, self.owners, self.names
        for name, array in (("codes", codes), ("owners", owners)):
            if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
                raise BadRecords(f"{name} of entries are {array.dtype} of shape {array.shape}: expected whole numbers")
        if names.ndim != 1 or not (names.dtype.kind in "iu" or all(type(name) is str for name in names.tolist())):
            raise BadRecords(f"names are {names.dtype} of shape {names.shape}: expected text or whole numbers, all alike")
        if len(codes) != len(owners):
            raise BadRecords(f"{len(codes)} entries and {len(owners)} owners: expected an owner for each")
        if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < len(names):
            raise BadRecords(f"codes of entries are not all from 0 to {len(names) - 1}, the places of their names")
        if len(set(names.tolist())) < len(names):
            raise BadRecords(
                "a key appears twice among the names: expected each once, so that holders are counted together"
            )

    @classmethod
    def of_column(cls, values: Any, owners: np.ndarray | None = None) -> KeyOwners:
        """Take the categories of a column of text or whole numbers; missing ones are left out.

        Args:
            values: (N,) an Arrow array, a pandas series, a numpy array or a list.
            owners: (N,) the owner of each row, where the unit is a person; None where it is a record.

        Raises:
            BadRecords: if they are neither text nor whole numbers, or both.

        Example:
            >>> held = KeyOwners.of_column(["Rome", None, "Paris", "Rome"])
            >>> held.names[held.codes].tolist(), held.owners.tolist()
            (['Rome', 'Paris', 'Rome'], [0, 2, 3])
        """
        column = _keys(values)
        owners = np.arange(len(column)) if owners is None else np.asarray(owners)
        if owners.shape != (len(column),):
            raise BadRecords(f"{len(column)} values and owners of shape {owners.shape}: expected an owner for each")
        there = column.is_valid().to_numpy(zero_copy_only=False)
        encoded = column.drop_null().dictionary_encode()
        return cls(encoded.indices.to_numpy(), owners[there], _array(encoded.dictionary))

    @classmethod
    def of_sets(
        cls, indptr: np.ndarray, codes: np.ndarray, names: Sequence[Any], owners: np.ndarray | None = None
    ) -> KeyOwners:
        """Take the items of sets from the rows of a CSR matrix: those of set i are ``codes[indptr[i]:indptr[i + 1]]``.

        Args:
            indptr: (N + 1,) where each set begins.
            codes: (P,) positions in `names`.
            names: the items, text or whole numbers.
            owners: (N,) the owner of each set, where the unit is a person; None where it is a set.

        Raises:
            BadRecords: if they do not fit together.

        Example:
            >>> KeyOwners.of_sets(np.array([0, 2, 2, 3]), np.array([0, 1, 1]), ["tea", "milk"]).owners.tolist()
            [0, 0, 2]
        """
        indptr, codes = np.asarray(indptr), np.asarray(codes)
        sizes = np.diff(indptr) if indptr.ndim == 1 and len(indptr) and indptr.dtype.kind in "iu" else np.array([-1])
        if (sizes < 0).any() or indptr[0] != 0 or indptr[-1] != len(codes):
            raise BadRecords(f"sets of {len(codes)} entries: expected indptr to be whole numbers that rise from 0 to that")
        owners = np.arange(len(sizes)) if owners is None else np.asarray(owners)
        if owners.shape != sizes.shape:
            raise BadRecords(f"{len(sizes)} sets and owners of shape {owners.shape}: expected an owner for each")
        items = _keys(names)
        if items.null_count:
            raise BadRecords("an item of the sets has no name: expected text or a whole number for each")
        return cls(codes, np.repeat(owners, sizes), _array(items))


def held_at_most(owners: np.ndarray, codes: np.ndarray, most: int | None, stream: PrivateStream) -> np.ndarray:
    """Return the codes that count when each owner counts once for a code, and for `most` (None for all), chosen at random.

    The choice follows from an owner's own codes and from randomness of its own, so one owner more changes no other's.
    Owners and codes are (P,) whole numbers, codes from 0.
    """
    # Owners are numbered by their places, so that a pair of owner and code is one number of 64 bits.
    distinct, owners = np.unique(owners, return_inverse=True)
    # Unsigned numbers of 64 bits would turn the sum into floats.
    codes = codes.astype(np.int64)
    if len(distinct) == len(codes):
        return codes
    kinds = int(codes.max()) + 1
    owners, codes = np.divmod(np.unique(owners.astype(np.int64) * kinds + codes), kinds)
    if most is None:
        return codes
    order = np.lexsort((stream.words(len(owners)), owners))
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    rank = np.arange(len(owners)) - np.repeat(starts, np.diff(starts, append=len(owners)))
    return codes[order][rank < most]


def _keys(values: Any) -> pa.Array:
    """Return text or whole numbers as one Arrow array, whatever they were in."""
    try:
        column = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, from_pandas=True)
        if column.null_count == len(column):
            column = pa.nulls(len(column))
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        text = (pa.types.is_null, pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
        if pa.types.is_integer(kind) or any(check(kind) for check in text):
            column = column.cast(pa.int64() if pa.types.is_integer(kind) else pa.large_string())
            return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    except (ValueError, TypeError, OverflowError, NotImplementedError):
        raise BadRecords("keys are neither all text nor all whole numbers below 2^63: give them as one of these") from None
    raise BadRecords(f"keys are of type {kind}: expected text or whole numbers; give them as one of these")


def _array(keys: pa.Array) -> np.ndarray:
    if pa.types.is_integer(keys.type):
        return keys.to_numpy(zero_copy_only=False)
    # numpy's own strings drop zeros at their ends, and are all as long as the longest; objects are not.
    return np.array(keys.to_pylist(), dtype=object)

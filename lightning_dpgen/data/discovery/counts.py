"""Values and how many count for each: categories of a column, items of sets, numbers. Private."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.discovery.value_grid import Leaves
from lightning_dpgen.data.persons import mixed, name_hashes
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.errors import BadRecords


@dataclass(frozen=True, eq=False, repr=False)
class KeyOwners:
    """Entries, each of which says that an owner holds a key. One that stands twice counts once.

    Args:
        codes: (P,) positions in `names`.
        owners: (P,) the owner of each, a record or a person, as any whole number.
        names: (K,) distinct keys, text (as objects) or whole numbers (int64).
        salts: (P,) uint64, one number for all entries of an owner, such as a hash of its name (`held_at_most`); None to
            draw it.

    Raises:
        BadRecords: if they are not; nothing has been spent. The message shows no key.
    """

    codes: np.ndarray
    owners: np.ndarray
    names: np.ndarray
    salts: np.ndarray | None = None

    def __post_init__(self) -> None:
        codes, owners, names, salts = self.codes, self.owners, self.names, self.salts
        for name, array in (("codes", codes), ("owners", owners)):
            if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
                raise BadRecords(f"{name} of entries are {array.dtype} of shape {array.shape}: expected whole numbers")
        if names.ndim != 1 or not (names.dtype.kind in "iu" or all(type(name) is str for name in names.tolist())):
            raise BadRecords(f"names are {names.dtype} of shape {names.shape}: expected text or whole numbers, all alike")
        if len(codes) != len(owners):
            raise BadRecords(f"{len(codes)} entries and {len(owners)} owners: expected an owner for each")
        if salts is not None and (salts.shape != owners.shape or salts.dtype != np.uint64):
            raise BadRecords(
                f"salts {salts.shape} of {salts.dtype}: expected uint64, one for each of {len(owners)} entries"
            )
        if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < len(names):
            raise BadRecords(f"codes of entries are not all from 0 to {len(names) - 1}, the places of their names")
        if len(set(names.tolist())) < len(names):
            raise BadRecords(
                "a key appears twice among the names: expected each once, so that holders are counted together"
            )

    @classmethod
    def of_column(cls, values: Any, owners: np.ndarray | None = None, salts: np.ndarray | None = None) -> KeyOwners:
        """Take the categories of a column of text or whole numbers; missing ones are left out.

        Args:
            values: (N,) an Arrow array, a pandas series, a numpy array or a list.
            owners: (N,) the owner of each row, where the unit is a person; None where it is a record.
            salts: (N,) as for `KeyOwners`.

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
        salts = None if salts is None else salts[there]
        return cls(encoded.indices.to_numpy(), owners[there], _array(encoded.dictionary), salts)

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


@dataclass(frozen=True, eq=False, repr=False)
class KeyCounts:
    """Keys that are held, each once, and how many owners count for each. Private.

    Args:
        names: (K,) as of `KeyOwners`, sorted.
        counts: (K,) int64, from 1.
    """

    names: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, owners: KeyOwners, most: int | None, stream: PrivateStream | None = None) -> KeyCounts:
        """Count the owners of each key, of which an owner counts for `most` (None for all), once for each.

        Args:
            stream: draws the salts of owners that have none.

        Example:
            >>> counted = KeyCounts.of(KeyOwners.of_column(["Rome", None, "Paris", "Rome"]), most=1)
            >>> counted.names.tolist(), counted.counts.tolist()
            (['Paris', 'Rome'], [1, 2])
        """
        # Keys are numbered by their names: of two that share a hash the choice follows from no other owner's.
        order = np.argsort(owners.names)
        names, place = owners.names[order], np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        kept = held_at_most(owners.owners, place[owners.codes], most, name_hashes(names), owners.salts, stream)
        counts = np.bincount(kept, minlength=len(names))
        present = np.flatnonzero(counts)
        return cls(names[present], counts[present])


@dataclass(frozen=True, eq=False, repr=False)
class NumberCounts:
    """Different numbers and how many rows count for each. Private.

    Args:
        numbers: (R,) float64, rising; infinities among them, and no NaN.
        counts: (R,) int64, from 1.
    """

    numbers: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(
        cls,
        numbers: np.ndarray,
        owners: np.ndarray | None = None,
        most: int | None = None,
        salts: np.ndarray | None = None,
        stream: PrivateStream | None = None,
    ) -> NumberCounts:
        """Count the rows of each number, of which an owner counts with `most` (None for all).

        Args:
            numbers: (N,); NaN where there is none, which is left out.
            owners: (N,) whole numbers, the owner of each row where the unit is a person; None where it is a record.
            salts, stream: as for `counts.held_at_most`; salts are (N,).

        Example:
            >>> counted = NumberCounts.of(np.array([2.0, np.nan, 1.0, 2.0]))
            >>> counted.numbers.tolist(), counted.counts.tolist()
            ([1.0, 2.0], [1, 2])
        """
        there = ~np.isnan(numbers)
        numbers = numbers[there]
        if owners is not None and most is not None:
            owners, salts = owners[there], None if salts is None else salts[there]
            hashes = number_hashes(numbers, owners)
            numbers = numbers[held_at_most(owners, np.arange(len(numbers)), most, hashes, salts, stream)]
        return cls(*np.unique(numbers, return_counts=True))

    def in_children(self, leaves: Leaves, firsts: Sequence[int], width: int, branching: int) -> np.ndarray:
        """Return how many rows count for each child of some nodes of a tree.

        Args:
            leaves: of the numbers.
            firsts: the first leaf of each node, rising.
            width: of a child, in leaves.
            branching: the number of children of a node.

        Returns:
            np.ndarray: (len(firsts), branching) int64.
        """
        edges = np.array(firsts, np.int64)[:, None] + width * np.arange(branching + 1)
        before = np.append(0, self.counts.cumsum())[np.searchsorted(leaves(self.numbers), edges)]
        return np.diff(before, axis=1)


def held_at_most(
    owners: np.ndarray,
    codes: np.ndarray,
    most: int | None,
    hashes: np.ndarray,
    salts: np.ndarray | None = None,
    stream: PrivateStream | None = None,
) -> np.ndarray:
    """Return the codes that count when each owner counts once for a code, and for `most` (None for all), as if at random.

    The choice follows from an owner's own codes and its salt, so one owner more changes no other's, and the order of the
    entries does not decide it.

    Args:
        owners, codes: (P,) whole numbers, codes from 0. Of two codes that share a hash the lower one goes first.
        hashes: (K,) uint64, a hash of what each code stands for.
        salts: (P,) uint64, one number for all entries of an owner; None to draw it.
        stream: draws the salts where they are None and some owner has several entries.
    """
    # Owners are numbered by their places, so that a pair of owner and code is one number of 64 bits.
    distinct, first, owners = np.unique(owners, return_index=True, return_inverse=True)
    # Unsigned numbers of 64 bits would turn the sum into floats.
    codes = codes.astype(np.int64)
    if len(distinct) == len(codes):
        return codes
    kinds = int(codes.max()) + 1
    owners, codes = np.divmod(np.unique(owners.astype(np.int64) * kinds + codes), kinds)
    if most is None:
        return codes
    if salts is None and stream is None:
        raise ValueError("salts=None, stream=None: expected one of them, since an owner has several entries")
    own = stream.words(len(distinct)) if salts is None else salts[first]
    order = np.lexsort((mixed(hashes[codes] ^ mixed(own)[owners]), owners))
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    rank = np.arange(len(owners)) - np.repeat(starts, np.diff(starts, append=len(owners)))
    return codes[order][rank < most]


def number_hashes(numbers: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Return a hash (N,) uint64 of each number and of its rank among equal ones of its owner, which are not alike."""
    order = np.lexsort((numbers, owners))
    numbers, owners = numbers[order], owners[order]
    fresh = np.append(True, (numbers[1:] != numbers[:-1]) | (owners[1:] != owners[:-1]))[: len(order)]
    rank = np.arange(len(order)) - np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))
    found = np.empty(len(order), np.uint64)
    found[order] = copy_hashes(numbers, rank)
    return found


def copy_hashes(numbers: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Return a hash (N,) uint64 of each number and of its rank among equal ones of its owner."""
    return mixed((numbers + 0.0).view(np.uint64) + mixed(ranks.astype(np.uint64)))


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

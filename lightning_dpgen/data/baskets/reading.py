"""Baskets from files or memory as their schema says, or without a universe for a mechanism that finds it privately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse

from lightning_dpgen.data.baskets.files import Entries, basket_place, entries_in_memory, entries_of, heads_in_memory
from lightning_dpgen.data.baskets.form import BasketForm
from lightning_dpgen.data.baskets.schema import NO_UNIVERSE, BasketSchema
from lightning_dpgen.data.files.arrays import load_csr
from lightning_dpgen.data.files.formulas import known_again
from lightning_dpgen.data.names import Name, positions, quote, texts_of, whole_numbers
from lightning_dpgen.data.persons import mixed
from lightning_dpgen.data.reading import Numbering, Reading, check_outside, class_positions
from lightning_dpgen.sampling.csr import check_csr, mark_entries
from lightning_dpgen.sampling.errors import BadRecords

_AT_ONCE = 1 << 20


def as_sets(baskets: np.ndarray, items: np.ndarray, n: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a matrix, each item once and in order: indptr (n + 1,) int64 and items (E,) int32."""
    cells = np.sort(baskets * width + items)
    cells = cells[np.diff(cells, prepend=-1) != 0]
    baskets, items = np.divmod(cells, width)
    return np.concatenate([[0], np.cumsum(np.bincount(baskets, minlength=n))]), items.astype(np.int32)


def chosen(indptr: np.ndarray, items: np.ndarray, most: int) -> np.ndarray:
    """Mark the items (E,) that are among the `most` of their basket with the smallest hashes of item and basket.

    The hash is public and fixed: a large basket is cut the same way wherever it is read.
    """
    kept = np.ones(len(items), bool)
    large = np.flatnonzero(np.diff(indptr) > most)
    # Few baskets at a time: the hashes of an item take many times the memory of the item.
    ends = np.cumsum(indptr[large + 1] - indptr[large])
    for part in np.split(large, np.searchsorted(ends, np.arange(_AT_ONCE, ends[-1] if len(ends) else 0, _AT_ONCE))):
        begins, sizes = indptr[part], indptr[part + 1] - indptr[part]
        starts = np.cumsum(sizes) - sizes
        places = np.repeat(begins - starts, sizes) + np.arange(sizes.sum())
        kept[places] = _among(items[places], starts, sizes, most)
    return kept


def _among(items: np.ndarray, starts: np.ndarray, sizes: np.ndarray, most: int) -> np.ndarray:
    """Do so for consecutive baskets that are all too large."""
    hashes = mixed(items.astype(np.uint64) + np.uint64(1))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    # Sums are modulo 2^64, so that a basket's is a difference, whatever stands before it.
    of_basket = np.repeat(mixed(sums[starts + sizes] - sums[starts]), sizes)
    order = np.lexsort((mixed(hashes ^ of_basket), np.repeat(np.arange(len(sizes)), sizes)))
    kept = np.empty(len(items), bool)
    # Entries of a basket stay together, so that each basket begins where it did.
    kept[order] = np.arange(len(items)) - np.repeat(starts, sizes) < most
    return kept


OUTSIDE_COUNTED = "items: outside the universe, left out"
CUT_COUNTED = "baskets: with more than max_items, cut"


def read_baskets(
    source: Any,
    schema: BasketSchema,
    *,
    outside: str = "refuse",
    person: str | Sequence | None = None,
    label: str | Sequence | None = None,
    form: str | None = None,
    separator: str | None = None,
    columns: tuple[str, str] | None = None,
    header: bool | None = None,
) -> Reading:
    """Read and encode baskets a block at a time, or a matrix at once: only the places of their items are kept.

    An item counts once in a basket. A basket with more than ``schema.max_items`` items keeps that many, by a
    pseudo-random choice that depends on that basket alone, and is counted. An empty basket is a record.

    Args:
        source: a path, see `BasketForm`; a DataFrame or pyarrow Table of basket ids and items; a list of lists of items; a
            scipy CSR matrix with one column an item of the universe, also from a file, of which a basket holds what is
            not 0. In rows, those of one id make one basket wherever they stand, and a row without an item makes an empty
            one. Rows with types may hold a list of items each instead, as synthetic baskets do.
        schema: what is publicly known.
        outside: ``refuse``: an item that is not in the universe is an error; ``clamp``: it is left out and counted.
        person: the column of persons, one for all rows of a basket; for lists and matrices one value for each.
        label: the column of labels (``label``), read where the schema has classes; on a line the label is the first
            entry. For lists and matrices one value for each.
        form, separator, columns, header: see `BasketForm`. Where none of these and no label is given, the form is the
            schema's own, in which the records of a release were read.

    Returns:
        Reading: units as CSR of uint8 ones in rows of sorted columns; codes of how many items they
            hold (N, 1), after those of a label (N, 2).

    Raises:
        MissingData: if there is no such file.
        BadRecords: for what cannot be read, no basket at all, or what the schema does not allow; with line and value.
        ValueError: without a schema, or for a wrong argument.

    Example:
        >>> schema = BasketSchema(("bread", "milk", "tea"), max_items=2)
        >>> reading = read_baskets([["tea", "bread", "tea"], [], ["milk", "gin"]], schema, outside="clamp")
        >>> reading.encoded.units.toarray().tolist(), reading.counted
        ([[1, 0, 1], [0, 0, 0], [0, 1, 0]], {'items: outside the universe, left out': 1})
    """
    if schema is None:
        raise ValueError(NO_UNIVERSE)
    check_outside(outside)
    baskets = _Found(schema, outside)
    if isinstance(source, np.ndarray) or (scipy.sparse.issparse(source) and source.format != "csr"):
        raise BadRecords(
            f"baskets are a {type(source).__name__}: expected a path, a list of lists of items, or a scipy CSR matrix; "
            "make one by scipy.sparse.csr_array(...)"
        )
    labels = label if schema.classes else None
    if scipy.sparse.issparse(source):
        baskets.put_matrix(source, "the matrix of baskets", *heads_in_memory(source.shape[0], labels, person))
    elif isinstance(source, list | tuple):
        baskets.put(entries_in_memory(source, labels, person))
    else:
        if all(given is None for given in (form, separator, columns, labels, header)):
            written = replace(schema.written, person=person, label=schema.written.label or bool(schema.classes))
        else:
            written = BasketForm(
                form, separator, columns, bool(schema.classes) if labels is None else labels, person, header
            )
        if written.of(source) == "matrix":
            if person is not None or written.label:
                raise BadRecords(
                    f"{source}: a matrix holds baskets alone, without labels or persons: leave out classes, label and "
                    "person, or write rows with a column for each of these"
                )
            baskets.put_matrix(load_csr(Path(source)), str(source))
        else:
            for entries in entries_of(source, written, schema.items):
                baskets.put(entries)
    return baskets.reading()


class _BasketValues:
    """One value for each basket, whatever row it stands in: a label, a person; `what` names it in an error."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._values = np.empty(0, np.int64)

    def put(self, baskets: np.ndarray, values: np.ndarray, place: Callable[[int], str]) -> None:
        """Take values (n,) from 0 of rows of these baskets (n,); raise BadRecords, saying the place, if one has two."""
        if not len(baskets):
            return
        missing = max(0, int(baskets.max()) + 1 - len(self._values))
        # It doubles each time, so that many blocks cost no more than one.
        if missing:
            missing = max(missing, len(self._values))
            self._values = np.concatenate([self._values, np.full(missing, -1)])
        fresh = np.flatnonzero(self._values[baskets] < 0)
        self._values[baskets[fresh[::-1]]] = values[fresh[::-1]]
        other = np.flatnonzero(self._values[baskets] != values)
        if len(other):
            raise BadRecords(
                f"{place(int(other[0]))}: {self.what} differs from that of an earlier row of the same basket: expected "
                "one for all rows of a basket"
            )

    def values(self, n: int) -> np.ndarray:
        """Return the values (n,) int64 of the first n baskets."""
        return self._values[:n]


class _Found:
    """The baskets read so far: places of items in the universe, and the baskets that hold them."""

    def __init__(self, schema: BasketSchema, outside: str) -> None:
        self.schema, self.outside, self.n = schema, outside, 0
        self.baskets, self.items = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        # The rows of a matrix, which is then all that is read, as `as_sets` gives them.
        self.sets: tuple[np.ndarray, np.ndarray] | None = None
        self.counted: Counter[str] = Counter()
        self.labels, self.persons = _BasketValues("the label"), _BasketValues("the person")
        self.has_persons, self._person_numbers = False, Numbering()

    def put(self, entries: Entries) -> None:
        at = positions(self.schema.items, _as_known(entries.items, self.schema.items, entries))
        outside = np.flatnonzero(at < 0)
        if len(outside) and self.outside == "refuse":
            first = int(outside[0])
            item, known = quote(entries.items[first].as_py()), len(self.schema.items)
            raise BadRecords(
                f"{entries.place(first)}: the item {item} is not among the {known:,} of the universe: add it there if it "
                "is public, correct the separator if items are split in the wrong places, or leave such items out by "
                "outside=clamp"
            )
        self.counted[OUTSIDE_COUNTED] += len(outside)
        inside = at >= 0
        self.baskets.append(entries.baskets[inside])
        self.items.append(at[inside].astype(np.int32))
        self.n = max(self.n, int(entries.heads.max(initial=-1)) + 1)
        labels = None if entries.labels is None else _as_known(entries.labels, self.schema.classes, entries)
        self._put_heads(entries.heads, labels, entries.persons, entries.head_place)

    def put_matrix(self, matrix: Any, what: str, *heads: Any) -> None:
        """Take all baskets from a CSR matrix; `heads` are as `heads_in_memory` gives them, or left out."""
        self.sets, self.n = _sets_of(matrix, what, len(self.schema.items)), matrix.shape[0]
        if heads:
            self._put_heads(*heads, basket_place)

    def _put_heads(
        self, heads: np.ndarray, labels: pa.Array | None, persons: pa.Array | None, place: Callable[[int], str]
    ) -> None:
        if classes := self.schema.classes:
            self.labels.put(heads, class_positions(classes, labels, place), place)
        if persons is not None:
            self.has_persons = True
            self.persons.put(heads, self._person_numbers.of(persons), place)

    def reading(self) -> Reading:
        if not self.n:
            raise BadRecords("there are no baskets: expected at least one, which may be empty")
        width = len(self.schema.items)
        indptr, items = self.sets or as_sets(np.concatenate(self.baskets), np.concatenate(self.items), self.n, width)
        sizes = np.diff(indptr)
        large = sizes > self.schema.max_items
        self.counted[CUT_COUNTED] += int(large.sum())
        if large.any():
            kept = chosen(indptr, items, self.schema.max_items)
            items, sizes = items[kept], np.minimum(sizes, self.schema.max_items)
            indptr = np.concatenate([[0], np.cumsum(sizes)])
        indptr = indptr.astype(scipy.sparse.get_index_dtype(maxval=max(width, len(items))))
        units = scipy.sparse.csr_array((np.ones(len(items), np.uint8), items, indptr), shape=(self.n, width))
        units.has_canonical_format = True
        labels = self.labels.values(self.n) if self.schema.classes else None
        persons = self.persons.values(self.n) if self.has_persons else None
        return Reading(self.schema.encode(units, labels), persons, dict(+self.counted))


def _as_known(values: pa.Array, names: tuple[Name, ...], entries: Entries) -> pa.Array:
    """Return values as public names, where a file of text may have an escaped one in its place."""
    if not entries.is_text or not names or type(names[0]) is not str:
        return values
    return known_again(values.cast(pa.string()), pa.array(names))


def _sets_of(matrix: Any, what: str, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a CSR matrix whose columns are the universe, as `as_sets` does, in new arrays."""
    if matrix.ndim != 2 or matrix.shape[1] != width:
        raise BadRecords(f"{what} has shape {matrix.shape}: expected (N, {width}), one column for each item")
    check_csr(matrix, what)
    # The minimum of numbers with a NaN among them is NaN. A mask would be as large as the data.
    real = matrix.dtype.kind in "fiub"
    if not real or (matrix.nnz and not (matrix.data.min() >= 0 and np.isfinite(matrix.data.max()))):
        raise BadRecords(f"{what} holds numbers that are negative, infinite or NaN: expected 1 for each item of a basket")
    held = mark_entries(matrix)
    return held.indptr.astype(np.int64), held.indices.astype(np.int32)


@dataclass(frozen=True, eq=False, repr=False)
class BasketKeys:
    """Baskets as they are, for a mechanism that finds their universe privately. Private.

    Args:
        indptr: (N + 1,) int64, where the items of each basket begin in `ids`.
        ids: (E,) int32, places in `names`; each basket's own are different, and in order.
        names: all that occur, sorted.
    """

    indptr: np.ndarray
    ids: np.ndarray
    names: pa.Array


def basket_keys(source: Any, *, integers: bool = False, form: BasketForm | None = None) -> BasketKeys:
    """Return all baskets of a source without a schema; every one of its names is private.

    Args:
        source: as for `read_baskets`, but no matrix.
        integers: whether items are publicly declared to be whole numbers, since a look at them would tell.
        form: the form of the baskets, with a label to leave out or without.

    Raises:
        MissingData: if there is no such file.
        BadRecords: for what cannot be read, or an item that is no whole number where all were declared to be.

    Example:
        >>> keys = basket_keys([["tea", "bread"], [], ["tea"]])
        >>> keys.indptr.tolist(), keys.ids.tolist(), keys.names.to_pylist()
        ([0, 2, 2, 3], [0, 1, 1], ['bread', 'tea'])
    """
    if isinstance(source, list | tuple):
        blocks = iter([entries_in_memory(source, None, None)])
    else:
        blocks = entries_of(source, form or BasketForm())
    numbers, kept, n = Numbering(), [], 0
    for entries in blocks:
        items = _whole(entries) if integers else texts_of(entries.items)
        kept.append((entries.baskets, numbers.of(items)))
        n = max(n, int(entries.heads.max(initial=-1)) + 1)
    names = sorted(numbers.known)
    ranks = np.empty(len(names), np.int64)
    ranks[[numbers.known[name] for name in names]] = np.arange(len(names))
    baskets = np.concatenate([np.empty(0, np.int64), *(pair[0] for pair in kept)])
    ids = np.concatenate([np.empty(0, np.int64), *(ranks[pair[1]] for pair in kept)])
    indptr, ids = as_sets(baskets, ids, n, max(1, len(names)))
    return BasketKeys(indptr, ids, pa.array(names, pa.int64() if integers else pa.string()))


def _whole(entries: Entries) -> pa.Array:
    values = whole_numbers(entries.items)
    wrong = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
    if len(wrong):
        first = int(wrong[0])
        item = quote(entries.items[first].as_py())
        raise BadRecords(f"{entries.place(first)}: the item {item} is not a whole number: all were declared to be")
    return values

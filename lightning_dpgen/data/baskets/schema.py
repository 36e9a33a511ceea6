"""Baskets: sets of items out of a public universe, such as purchases, or the pages of a visit; the list of these items."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import scipy.sparse

from lightning_dpgen.common.folders import place_of
from lightning_dpgen.common.strict_json import parse_json
from lightning_dpgen.data.baskets.form import BasketForm
from lightning_dpgen.data.files.text import check_there, decoded
from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer
from lightning_dpgen.data.names import Name, label_classes, names_type, public_names, quote
from lightning_dpgen.data.schema import LabelledSchema
from lightning_dpgen.sampling.csr import mark_entries
from lightning_dpgen.sampling.errors import BadRecords

MOST_ITEMS = 100_000
# Each number of items up to the first has a bin of its own; then a bin begins at the second times the one before.
_OWN, _WIDER = 10, 1.25


@dataclass(frozen=True)
class BasketSchema(LabelledSchema):
    """Sets of items; everything here is declared, nothing is read off the data.

    A record is encoded as one unit for each item, 1 where the basket holds it; the label as a group, where there is one;
    and the number of items, in bins, as the last group: models learn the sizes of baskets apart from what is in them.
    A synthetic record is the list of its items, in the order of the universe.

    Args:
        items: the universe, names or whole numbers; at most `MOST_ITEMS`.
        max_items: how many different items of a basket count, 1 and more: the public bound of one record. A reader keeps
            this many of a larger basket.
        classes: the values of the label, names or whole numbers; empty without a label.
        written: the form in which files have such baskets, real and synthetic ones; schemas that differ in it are equal.

    Raises:
        ValueError: for anything else.

    Example:
        >>> schema = BasketSchema(("bread", "milk", "tea"), max_items=2)
        >>> schema.layout.units, schema.layout.groups, schema.sizes
        (3, (3,), (0, 1, 2))
        >>> encoded = schema.encode(scipy.sparse.csr_array(np.array([[1, 0, 1], [0, 0, 0]], np.uint8)))
        >>> encoded.codes.tolist()
        [[2], [0]]
        >>> schema.decode(encoded, np.random.default_rng(0)).to_pydict()
        {'items': [['bread', 'tea'], []]}
    """

    kind: ClassVar[str] = "baskets"

    items: tuple[Name, ...] = field(repr=False)
    max_items: int
    classes: tuple[Name, ...] = ()
    written: BasketForm = field(default=BasketForm(), compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", public_names("items", _listed(self.items), 1, MOST_ITEMS))
        object.__setattr__(self, "classes", label_classes(self.classes))
        if type(self.max_items) is not int or not 1 <= self.max_items <= len(self.items):
            raise ValueError(
                f"max_items={quote(self.max_items)}: expected a whole number from 1 to {len(self.items):,}, all items"
            )

    @cached_property
    def layout(self) -> Layout:
        groups = (len(self.classes),) * bool(self.classes) + (len(self.sizes),)
        # Most baskets have room in half of max_items, and noise grows with the norm that is kept whole.
        norm = math.sqrt(max(1.0, self.max_items / 2) + len(groups))
        label = 0 if self.classes else None
        return Layout(len(self.items), 1, groups, label, norm, most=self.max_items, sizes=self.sizes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The starts of bins of numbers of items: each of the first has its own, then each bin is a quarter wider."""
        starts = [0]
        while starts[-1] < self.max_items:
            starts.append(max(starts[-1] + 1, round(_WIDER * starts[-1])) if starts[-1] >= _OWN else starts[-1] + 1)
        return tuple(start for start in starts if start <= self.max_items)

    def encode(self, units: scipy.sparse.csr_array | np.ndarray, labels: np.ndarray | None = None) -> Encoded:
        """Return records of such baskets.

        Args:
            units: (N, items) of 0 and 1, CSR without entries of 0, or dense.
            labels: (N,) positions among `classes`, where there are any.
        """
        counts = np.diff(units.indptr) if scipy.sparse.issparse(units) else units.sum(axis=1, dtype=np.int64)
        columns = ([labels] if self.classes else []) + [np.searchsorted(self.sizes, counts, side="right") - 1]
        kind = smallest_integer(max(self.layout.groups) - 1)
        return Encoded(units, np.stack(columns, axis=1).astype(kind))

    @property
    def arrow(self) -> pa.Schema:
        columns = [pa.field("items", pa.list_(names_type(self.items)))]
        if self.classes:
            columns.append(pa.field("label", names_type(self.classes)))
        return pa.schema(columns)

    def decode(self, encoded: Encoded, random: np.random.Generator, before: int = 0) -> pa.RecordBatch:
        """Return records as a table of `items`, each list in the universe's order, and `label`; nothing is random."""
        held = mark_entries(scipy.sparse.csr_array(encoded.units))
        names = pa.array(self.items, names_type(self.items))
        lists = pa.ListArray.from_arrays(held.indptr.astype(np.int32), names.take(pa.array(held.indices)))
        columns = [lists]
        if self.classes:
            columns.append(pa.array(self.classes, names_type(self.classes)).take(pa.array(encoded.codes[:, 0])))
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    @property
    def choices(self) -> dict[str, list[str]]:
        """The names of the choices of the label, and of the bins of numbers of items."""
        ends = [*(start - 1 for start in self.sizes[1:]), self.max_items]
        bins = [str(a) if a == b else f"{a} to {b}" for a, b in zip(self.sizes, ends, strict=True)]
        return super().choices | {"number of items": bins}

    @property
    def record_bytes(self) -> int:
        return 8 * (self.max_items + 1)

    def as_json(self) -> dict[str, Any]:
        """Return all that it declares; consecutive whole numbers as the first and the last of them."""
        first, last = self.items[0], self.items[-1]
        in_a_row = type(first) is int and self.items == tuple(range(first, last + 1))
        items = {"first": first, "last": last} if in_a_row else list(self.items)
        written = {"written": kept} if (kept := self.written.as_json()) else {}
        return {"kind": self.kind, "items": items, "max_items": self.max_items, "classes": list(self.classes)} | written

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> BasketSchema:
        """Return the schema that `as_json` described.

        Raises:
            ValueError: for another kind of record, missing or foreign fields, or what no schema may hold.
        """
        if not isinstance(fields, Mapping) or fields.get("kind") != cls.kind:
            raise ValueError("the schema does not describe baskets")
        if set(fields) - {"written"} != {"kind", "items", "max_items", "classes"}:
            found = quote(sorted(map(str, fields)))
            raise ValueError(f"the schema has the fields {found}: expected kind, items, max_items and classes")
        written = BasketForm.from_json(fields.get("written", {}))
        return cls(fields["items"], fields["max_items"], fields["classes"], written)


def _listed(items: Any) -> Any:
    """Return items as they are, or those between a first and a last whole number."""
    if isinstance(items, Mapping):
        if set(items) != {"first", "last"} or type(items["first"]) is not int or type(items["last"]) is not int:
            raise ValueError(f"items={quote(dict(items))}: expected a list of names, or first and last as whole numbers")
        items = range(items["first"], items["last"] + 1)
    # It is checked before it is written out: a range may be endless.
    if isinstance(items, range):
        # `len` cannot count so far.
        if not 1 <= -((items.start - items.stop) // items.step) <= MOST_ITEMS:
            raise ValueError(f"items={quote(items)}: expected 1 to {MOST_ITEMS:,} items")
        items = tuple(items)
    return items


NO_UNIVERSE = (
    "items: baskets need the list of all items that there may be, and which of them occur is private, so that "
    "reading the list off the data would be a leak: declare it, as in items=FILE or items=1..16470"
)
_ENDINGS = (".txt", ".csv", ".json")
_RANGE = re.compile(r"(-?\d{1,18})(\.\.|:)(-?\d{1,18})")
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
_MOST_BYTES = 1 << 26


def read_items(source: str | Path | None) -> tuple[Name, ...]:
    """Return the items that a public list declares.

    Args:
        source: ``1..16470``, whole numbers from the first to the last; ``0:16470``, the same as Python counts, the end left
            out; or a file: .txt with one item a line, .csv with one column, .json with a list. Where all lines are
            whole numbers, so are the items.

    Raises:
        MissingData: if there is no such file.
        BadRecords: for a list with an item twice, an empty one, or none; names the line.
        ValueError: for None: a universe is never read off the data; says what to do.

    Example:
        >>> read_items("1..4"), read_items("0:3")
        ((1, 2, 3, 4), (0, 1, 2))
    """
    if source is None or source == "":
        raise ValueError(NO_UNIVERSE)
    ends = _RANGE.fullmatch(str(source))
    if ends:
        return _between(int(ends[1]), int(ends[3]) - (ends[2] == ":"), str(source))
    # A number, as a command line may give it, is no list of one item.
    path = place_of(str(source))
    if path.suffix not in _ENDINGS:
        raise BadRecords(
            f"items={quote(str(source))}: expected whole numbers such as 1..16470, or a file that ends in "
            f"{', '.join(_ENDINGS)}"
        )
    check_there(path, "items")
    if path.stat().st_size > _MOST_BYTES:
        raise BadRecords(f"{path} is larger than {_MOST_BYTES >> 20} MiB: expected a list of at most {MOST_ITEMS:,} items")
    text = "".join(decoded(line, f"{path}, line {i}") for i, line in enumerate(path.read_bytes().splitlines(True), 1))
    text = text.removeprefix("\ufeff")
    if path.suffix == ".json":
        items = _json(path, text)
    else:
        items = _lines(path, text)
    try:
        return public_names(str(path), items, 1, MOST_ITEMS)
    except ValueError as error:
        # Places are lines, since only empty lines at the end are passed over.
        raise BadRecords(str(error) if path.suffix == ".json" else str(error).replace("(place", "(line")) from None


def _between(first: int, last: int, source: str) -> tuple[int, ...]:
    if not 0 <= last - first < MOST_ITEMS:
        raise BadRecords(f"items={quote(source)}: expected 1 to {MOST_ITEMS:,} items, the smallest first")
    return tuple(range(first, last + 1))


def _json(path: Path, text: str) -> list:
    try:
        items = parse_json(text.encode())
    except ValueError as error:
        raise BadRecords(f"{path}: {error}") from None
    if not isinstance(items, list):
        raise BadRecords(f"{path} holds a {type(items).__name__}: expected a list of items")
    return items


def _lines(path: Path, text: str) -> list:
    lines = text.rstrip().split("\n")
    if path.suffix == ".csv":
        try:
            rows = list(csv.reader(lines))
        except csv.Error as error:
            raise BadRecords(f"{path} cannot be read as CSV: {str(error)[:100]}") from None
        for place, row in enumerate(rows, 1):
            if len(row) != 1:
                raise BadRecords(f"{path}, line {place}: found {len(row)} fields, expected one item in each line")
        lines = [row[0] for row in rows]
    items = [line.strip() for line in lines]
    return [int(item) for item in items] if all(_WHOLE.fullmatch(item) for item in items) else items

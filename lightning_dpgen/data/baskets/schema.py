"""Baskets: sets of items out of a public universe, such as purchases, or the pages of a visit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import scipy.sparse

from lightning_dpgen.data.baskets.form import BasketForm
from lightning_dpgen.data.conditions import Condition, Said, label_condition
from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer
from lightning_dpgen.data.names import Name, label_choices, names_type, public_names, shown
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.sampling.csr import mark_entries

MOST_ITEMS = 100_000
MOST_CLASSES = 10_000
# Each number of items up to the first has a bin of its own; then a bin begins at the second times the one before.
_OWN, _WIDER = 10, 1.25


@dataclass(frozen=True)
class BasketSchema(Schema):
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
        object.__setattr__(self, "classes", public_names("classes", self.classes, 0, MOST_CLASSES))
        if type(self.max_items) is not int or not 1 <= self.max_items <= len(self.items):
            raise ValueError(
                f"max_items={shown(self.max_items)}: expected a whole number from 1 to {len(self.items):,}, all items"
            )
        if len(self.classes) == 1:
            raise ValueError(f"classes={shown(list(self.classes))}: expected none (no label), or two and more")

    @cached_property
    def layout(self) -> Layout:
        groups = (len(self.classes),) * bool(self.classes) + (len(self.sizes),)
        # Most baskets have room in half of max_items, and noise grows with the norm that is kept whole.
        norm = math.sqrt(max(1.0, self.max_items / 2) + len(groups))
        return Layout(
            len(self.items),
            levels=1,
            groups=groups,
            label=0 if self.classes else None,
            norm=norm,
            most=self.max_items,
            sizes=self.sizes,
        )

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

    def condition(self, said: Said) -> Condition:
        """Return a condition on the label; see `label_condition`."""
        return label_condition(self.classes, said)

    @property
    def choices(self) -> dict[str, list[str]]:
        """The names of the choices of the label, and of the bins of numbers of items."""
        ends = [*(start - 1 for start in self.sizes[1:]), self.max_items]
        bins = [str(a) if a == b else f"{a} to {b}" for a, b in zip(self.sizes, ends, strict=True)]
        return label_choices(self.classes) | {"number of items": bins}

    @property
    def label_values(self) -> tuple[str, list[Name]]:
        return "label", list(self.classes)

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
            found = shown(sorted(map(str, fields)))
            raise ValueError(f"the schema has the fields {found}: expected kind, items, max_items and classes")
        written = BasketForm.from_json(fields.get("written", {}))
        return cls(fields["items"], fields["max_items"], fields["classes"], written)


def _listed(items: Any) -> Any:
    """Return items as they are, or those between a first and a last whole number."""
    if isinstance(items, Mapping):
        if set(items) != {"first", "last"} or type(items["first"]) is not int or type(items["last"]) is not int:
            raise ValueError(f"items={shown(dict(items))}: expected a list of names, or first and last as whole numbers")
        items = range(items["first"], items["last"] + 1)
    # It is checked before it is written out: a range may be endless.
    if isinstance(items, range):
        if not 1 <= _count(items) <= MOST_ITEMS:
            raise ValueError(f"items={shown(items)}: expected 1 to {MOST_ITEMS:,} items")
        items = tuple(items)
    return items


def _count(numbers: range) -> int:
    """Return the length of a range, also where `len` cannot count so far."""
    return max(0, -((numbers.start - numbers.stop) // numbers.step))

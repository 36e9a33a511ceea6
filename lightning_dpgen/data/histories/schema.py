"""Histories: persons with attributes, and the rows of each in the order of time; what is publicly known of both."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.conditions import Clause, Condition
from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer
from lightning_dpgen.data.names import quote
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of

# The rows of a person that are kept, where there are more than `max_rows`.
Keep = Literal["first", "last"]
_MOST_ROWS = 1000
# Places of rows beside persons' attributes, all together.
_MOST_GROUPS = 100_000


@dataclass(frozen=True)
class RowOrder:
    """The order of a person's rows: the time of the first, and the distance of each from the one before.

    Args:
        name: the column of times.
        start: the time of a first row: whole numbers or dates, cut into bins.
        gap: the distance of a row from the one before, in whole numbers (of days, where times are dates), cut into bins.

    Raises:
        BadSchema: for times that are neither whole numbers nor dates, or distances below 0.
    """

    name: str
    start: Numeric
    gap: Numeric

    def __post_init__(self) -> None:
        if self.start.type not in ("integer", "date"):
            raise BadSchema(f"start is of type {self.start.type}: expected integer or date", self.name, "start")
        if self.gap.type != "integer" or self.gap.limits[0] < 0:
            raise BadSchema("expected whole numbers, 0 or more, from one row to the next", self.name, "gap")
        if self.start.missing or self.gap.missing:
            raise BadSchema("a time may be missing: expected rows that all have one", self.name, "missing")

    @classmethod
    def of(cls, name: str, start: dict[str, Any], gap: dict[str, Any]) -> Self:
        """Return an order as a file declares it; distances are whole numbers from 0, unless they say otherwise."""
        return cls(name, column_of(name, start), column_of(name, {"type": "integer", "low": 0} | gap))

    @cached_property
    def time(self) -> Numeric:
        """The column of times in a table of rows: it has one choice, so that nothing is learned of it by itself.

        It takes the times of as many rows as histories may have, though all but the first or last of these are left out.
        """
        scale, special = self.start.scale, ("density", "density_noise", "edges", "transform", "special")
        kept = {name: value for name, value in self.start.declared.dump().items() if name not in special}
        latest = int(self.start.limits[1]) + _MOST_ROWS * int(self.gap.limits[1])
        latest = min(latest, int(scale.tick("9999-12-31")) if self.start.type == "date" else 2**53)
        return column_of(self.name, kept | {"high": scale.declared(latest), "bins": 1})

    @property
    def last(self) -> int:
        """The tick at which the bins of times end: that of a second row, at the latest."""
        return int(self.start.limits[1]) + int(self.gap.limits[1])


@dataclass(frozen=True)
class HistoryNames:
    """The names by which files have histories; schemas that differ in these alone are equal.

    Args:
        persons: the table of persons, and the file without its ending.
        rows: the table of rows.
        key: the column of persons in the table of persons.
        person: the column of persons in the table of rows.
    """

    persons: str = "persons"
    rows: str = "rows"
    key: str = "person"
    person: str = "person"


@dataclass(frozen=True)
class HistorySchema(Schema):
    """Persons, each with attributes and up to m rows; everything here is declared, nothing is read off the data.

    A record is a person with all rows: one choice of each attribute, the number of rows, the bin of the first time, and for
    each place in the history the distance from the row before and the columns of the row. A place without a row has the
    last choice of each of its groups.

    Args:
        persons: the attributes of persons; None where persons have none.
        rows: the columns of a row, beside its person and its time.
        max_rows: m, the most rows of a person that count, 1 or more.
        order: the times of rows; None where rows are a set.
        keep: which rows of a person with more than m count.
        names: of tables and keys.

    Raises:
        BadSchema: for columns without bins, columns that are numbers (``encoding: scaled``), or names that appear twice.

    Example:
        >>> rows = TableSchema((column_of("ward", {"type": "category", "values": ["a", "b"]}),))
        >>> order = RowOrder.of("day", {"type": "integer", "low": 0, "high": 9, "bins": 5}, {"high": 30, "bins": 3})
        >>> schema = HistorySchema(None, rows, max_rows=2, order=order)
        >>> schema.layout.groups
        (3, 6, 3, 4, 3)
    """

    kind: ClassVar[str] = "histories"

    persons: TableSchema | None
    rows: TableSchema
    max_rows: int
    order: RowOrder | None = None
    keep: Keep = "first"
    names: HistoryNames = field(default=HistoryNames(), compare=False)

    def __post_init__(self) -> None:
        if type(self.max_rows) is not int or not 1 <= self.max_rows <= _MOST_ROWS:
            raise BadSchema(f"{quote(self.max_rows)}: expected a whole number from 1 to {_MOST_ROWS:,}", key="max_rows")
        if self.keep not in get_args(Keep):
            raise BadSchema(f"{quote(self.keep)}: expected one of {', '.join(get_args(Keep))}", key="keep")
        for part, table in (("persons", self.persons), ("rows", self.rows)):
            if table is not None and table.layout.units:
                scaled = table.scaled[0].name
                raise BadSchema("is learned as a number: expected bins (leave encoding out)", scaled, "encoding")
            if table is not None and not table.layout.groups:
                raise BadSchema("no column has two values: expected something to learn", key=part)
            if table is not None and (table.restricts or (table is self.rows and table.impossible_pairs())):
                raise BadSchema("are not kept by histories yet: leave them out", key="constraints", place=part)
        if self.rows.label is not None:
            raise BadSchema(f"{self.rows.label!r} is the label of a row: expected the label of a person", key="label")
        self._check_names()
        self._check_times()
        if len(self.layout.groups) > _MOST_GROUPS:
            raise BadSchema(
                f"{self.max_rows:,} rows of {self.per_row} columns: expected at most {_MOST_GROUPS:,} places in a history",
                key="max_rows",
            )

    def _check_names(self) -> None:
        names, of_order = self.names, [] if self.order is None else [self.order.name]
        persons = [] if self.persons is None else [column.name for column in self.persons.columns]
        rows = [*of_order, *(column.name for column in self.rows.columns)]
        for name, columns, words in (
            (names.key, persons, "the key of persons"),
            (names.person, rows, "the column of persons"),
            (names.rows, persons, "the table of rows"),
            *((name, persons, "the column of times") for name in of_order),
        ):
            if name in columns:
                raise BadSchema(f"is {words}, too: expected another name", name)
        if twice := [name for name in dict.fromkeys(rows) if name in persons or rows.count(name) > 1]:
            raise BadSchema("appears twice: expected each name once, among persons and rows", twice[0])

    def _check_times(self) -> None:
        if self.order is None:
            return
        start, gap = self.order.start, self.order.gap
        for key, column in (("start", start), ("gap", gap)):
            if column.choices < 2:
                raise BadSchema("has one bin: expected two or more (a larger high, or more bins)", self.order.name, key)
        latest = int(start.limits[1]) + (self.max_rows - 1) * int(gap.limits[1])
        most = int(start.scale.tick("9999-12-31")) if start.type == "date" else 2**53
        if latest > most:
            end = "9999-12-31" if start.type == "date" else "2^53"
            raise BadSchema(f"{self.max_rows:,} rows may pass {end}: expected a smaller high", self.order.name, "gap")

    @property
    def attributes(self) -> int:
        """The number of groups of a person's attributes."""
        return 0 if self.persons is None else len(self.persons.layout.groups)

    @property
    def per_row(self) -> int:
        """The number of groups of a row's columns."""
        return len(self.rows.layout.groups)

    @property
    def before_rows(self) -> int:
        """The number of groups before those of rows: attributes, the number of rows, and the time of the first."""
        return self.attributes + 1 + (self.order is not None)

    @cached_property
    def layout(self) -> Layout:
        attributes = () if self.persons is None else self.persons.layout.groups
        columns = tuple(choices + 1 for choices in self.rows.layout.groups)
        groups = [*attributes, self.max_rows + 1]
        ordered = [*(self.persons.layout.ordered if self.persons is not None else ())] or [0] * len(attributes)
        ordered.append(self.max_rows + 1)
        of_columns = self.rows.layout.ordered or (0,) * len(columns)
        if self.order is not None:
            groups.append(self.order.start.choices + 1)
            ordered.append(self.order.start.ordered)
        for place in range(self.max_rows):
            if self.order is not None and place:
                groups.append(self.order.gap.choices + 1)
                ordered.append(self.order.gap.ordered)
            groups += columns
            ordered += of_columns
        label = None if self.persons is None else self.persons.layout.label
        return Layout(0, None, tuple(groups), label, ordered=tuple(ordered))

    def place(self, number: int) -> slice:
        """Return the groups of the columns of a row, by its number from 0; the distance before it is one before them."""
        with_gap = self.per_row + (self.order is not None)
        start = self.before_rows + number * with_gap
        return slice(start, start + self.per_row)

    def joined(
        self, attributes: np.ndarray, counts: np.ndarray, starts: np.ndarray | None, gaps: np.ndarray, rows: np.ndarray
    ) -> Encoded:
        """Return histories from their parts.

        Args:
            attributes: (N, attributes) choices.
            counts: (N,) numbers of rows, 0 to m.
            starts: (N,) bins of the first times of persons with rows; None without an order.
            gaps: (R,) bins of the distances of rows from the one before, of all persons one behind the other; that of a
                first row is left out of account.
            rows: (R, per_row) choices of their columns.
        """
        n = len(counts)
        codes = np.tile(np.array(self.layout.groups, np.int64) - 1, (n, 1))
        codes[:, : self.attributes] = attributes
        codes[:, self.attributes] = counts
        if starts is not None:
            codes[:, self.attributes + 1] = np.where(counts > 0, starts, codes[:, self.attributes + 1])
        person = np.repeat(np.arange(n), counts)
        number = np.arange(len(person)) - np.repeat(np.cumsum(counts) - counts, counts)
        for place in range(self.max_rows):
            own = np.flatnonzero(number == place)
            at = self.place(place)
            codes[person[own], at] = rows[own]
            if self.order is not None and place:
                codes[person[own], at.start - 1] = gaps[own]
        return Encoded(np.zeros((n, 0), np.float32), codes.astype(smallest_integer(max(self.layout.groups) - 1)))

    def parted(self, encoded: Encoded) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
        """Invert `joined`; the distance of a first row is 0."""
        codes = encoded.codes.astype(np.int64)
        counts = codes[:, self.attributes]
        person = np.repeat(np.arange(len(codes)), counts)
        number = np.arange(len(person)) - np.repeat(np.cumsum(counts) - counts, counts)
        first = self.before_rows + number * (self.per_row + (self.order is not None))
        rows = codes[person[:, None], first[:, None] + np.arange(self.per_row)]
        if self.order is None:
            return codes[:, : self.attributes], counts, None, np.zeros(len(person), np.int64), rows
        gaps = np.where(number > 0, codes[person, np.maximum(first - 1, 0)], 0)
        return codes[:, : self.attributes], counts, codes[:, self.attributes + 1], gaps, rows

    @property
    def arrow(self) -> pa.Schema:
        persons = [] if self.persons is None else list(self.persons.arrow)
        return pa.schema([*persons, pa.field(self.names.rows, pa.list_(pa.struct(self.row_fields)))])

    @property
    def row_fields(self) -> list[pa.Field]:
        """The fields of a row: its time, where rows have an order, and its columns."""
        time = [] if self.order is None else [pa.field(self.order.name, self.order.start.arrow)]
        return [*time, *self.rows.arrow]

    def decode(self, encoded: Encoded, random: np.random.Generator, before: int = 0) -> pa.RecordBatch:
        """Return persons as a table of `arrow`, each with the list of rows in the order of time.

        Raises:
            ValueError: for codes that no history has, such as a row behind the last one.
        """
        attributes, counts, starts, gaps, rows = self.parted(encoded)
        if not np.array_equal(self.joined(attributes, counts, starts, gaps, rows).codes, encoded.codes):
            raise ValueError("codes: places behind the last row hold choices, or those before it hold none")
        columns = []
        if self.persons is not None:
            table = self.persons.decode(Encoded(np.zeros((len(counts), 0), np.float32), attributes), random, before)
            columns = list(table.columns)
        of_rows = self.rows.decode(Encoded(np.zeros((len(rows), 0), np.float32), rows), random, before)
        fields = list(of_rows.columns)
        if self.order is not None:
            fields.insert(0, self._times(counts, starts, gaps, random))
        ends = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
        lists = pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays(fields, fields=self.row_fields))
        return pa.RecordBatch.from_arrays([*columns, lists], schema=self.arrow)

    def _times(self, counts: np.ndarray, starts: np.ndarray, gaps: np.ndarray, random: np.random.Generator) -> pa.Array:
        """Return the times of rows (R,): a time of the first bin, and distances that are added to it."""
        assert self.order is not None
        there = counts > 0
        start, gap = self.order.start, self.order.gap
        first = start.scale.ticks(start.decode(starts[there], None, random)).astype(np.int64)
        steps = gap.scale.ticks(gap.decode(gaps, None, random)).astype(np.int64)
        begins = (np.cumsum(counts) - counts)[there]
        steps[begins] = first
        total = np.cumsum(steps)
        base = np.repeat((total - steps)[begins], counts[there])
        return start.scale.column(total - base, np.zeros(len(total), bool))

    def condition(self, clause: Clause) -> Condition:
        """Return a condition on an attribute of persons."""
        if self.persons is None:
            raise ValueError(f"column {quote(clause.column)}: persons have no attributes, on which conditions are set")
        condition = self.persons.condition(clause)
        if condition.test is not None:
            raise ValueError(
                f"column {quote(clause.column)}: a condition on values within bins is not kept by histories: expected one "
                "on a category, or at the edges of bins"
            )
        return condition

    @property
    def label_values(self) -> tuple[str, list[Any]]:
        return ("label", []) if self.persons is None else self.persons.label_values

    @property
    def choices(self) -> dict[str, list[str]]:
        names = {} if self.persons is None else dict(self.persons.choices)
        names["number of rows"] = [str(count) for count in range(self.max_rows + 1)]
        if self.order is not None:
            names[f"first {self.order.name}"] = [*self.order.start.choice_names, "no row"]
        for place in range(self.max_rows):
            if self.order is not None and place:
                names[f"distance of row {place + 1}"] = [*self.order.gap.choice_names, "no row"]
            names |= {f"{name} of row {place + 1}": [*own, "no row"] for name, own in self.rows.choices.items()}
        return names

    @property
    def record_bytes(self) -> int:
        persons = 0 if self.persons is None else self.persons.record_bytes
        return persons + self.max_rows * (8 + self.rows.record_bytes)

    def as_json(self) -> dict[str, Any]:
        order = self.order
        return {
            "kind": self.kind,
            "persons": None if self.persons is None else self.persons.as_json(),
            "rows": self.rows.as_json(),
            "max_rows": self.max_rows,
            "keep": self.keep,
            "order": None if order is None else {
                "name": order.name, "start": order.start.declared.dump(), "gap": order.gap.declared.dump()
            },
            "names": vars(self.names),
        }  # fmt: skip

    @classmethod
    def from_json(cls, fields: Any) -> Self:
        """Return the schema that `as_json` described. Safe to call on what strangers have written.

        Raises:
            BadSchema, ValueError: for anything else.
        """
        expected = {"kind", "persons", "rows", "max_rows", "keep", "order", "names"}
        if not isinstance(fields, dict) or fields.get("kind") != cls.kind or set(fields) != expected:
            raise BadSchema("the schema does not describe histories")
        persons, order, names = fields["persons"], fields["order"], fields["names"]
        if not isinstance(names, dict) or set(names) != set(vars(HistoryNames())):
            raise BadSchema(f"{quote(names)}: expected {', '.join(vars(HistoryNames()))}", key="names")
        if not all(isinstance(name, str) and name for name in names.values()):
            raise BadSchema("expected texts", key="names")
        if order is not None:
            if not isinstance(order, dict) or set(order) != {"name", "start", "gap"}:
                raise BadSchema(f"{quote(order)}: expected name, start and gap", key="order")
            order = RowOrder(order["name"], *(column_of(order["name"], order[part]) for part in ("start", "gap")))
        return cls(
            None if persons is None else TableSchema.from_json(persons),
            TableSchema.from_json(fields["rows"]),
            fields["max_rows"],
            order,
            fields["keep"],
            HistoryNames(**names),
        )

"""A table of rows of persons: its columns, the times of rows, how many count, and the rows of many persons as codes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self, get_args

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.histories.choice_pairs import Barred, barred_pairs, possible_row
from lightning_dpgen.data.names import quote
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.row_rules import CONSTRAINTS
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of

# The rows of a person that are kept, where there are more than `max_rows`.
Keep = Literal["first", "last"]
_MOST_ROWS = 1000


@dataclass(frozen=True)
class RowOrder:
    """The order of a person's rows: the time of the first, and the distance of each from the one before.

    Args:
        name: the column of times.
        start: the time of a first row: whole numbers or dates, cut into bins.
        gap: the distance of a row from the one before, in whole numbers (of days, where times are dates), cut into bins.
        end: the last time that is possible, as a file declares it; None for any that follows from the others.

    Raises:
        BadSchema: for times that are neither whole numbers nor dates, distances below 0, or an end before the last start.
    """

    name: str
    start: Numeric
    gap: Numeric
    end: int | str | None = None

    def __post_init__(self) -> None:
        if self.start.type not in ("integer", "date"):
            raise BadSchema(f"start is of type {self.start.type}: expected integer or date", self.name, "start")
        if self.gap.type != "integer" or self.gap.limits[0] < 0:
            raise BadSchema("expected whole numbers, 0 or more, from one row to the next", self.name, "gap")
        if self.start.missing or self.gap.missing:
            raise BadSchema("a time may be missing: expected rows that all have one", self.name, "missing")
        if self.end is not None:
            try:
                last = self.start.scale.tick(self.end)
            except ValueError as error:
                raise BadSchema(f"{quote(self.end)}: expected {error}", self.name, "end") from None
            if last < self.start.limits[1]:
                raise BadSchema(
                    f"{quote(self.end)}: expected {self.start.high}, the high of start, or later", self.name, "end"
                )

    @classmethod
    def of(cls, name: str, start: dict[str, Any], gap: dict[str, Any], end: int | str | None = None) -> Self:
        """Return an order as a file declares it; distances are whole numbers from 0, unless they say otherwise."""
        return cls(name, column_of(name, start), column_of(name, {"type": "integer", "low": 0} | gap), end)

    @cached_property
    def time(self) -> Numeric:
        """The column of times in a table of rows: it has one choice, so that nothing is learned of it by itself.

        It takes the times of as many rows as histories may have, though all but the first or last of these are left out.
        """
        scale, special = self.start.scale, ("density", "density_noise", "edges", "transform", "special")
        kept = {name: value for name, value in self.start.declared.dump().items() if name not in special}
        latest = int(self.start.limits[1]) + _MOST_ROWS * int(self.gap.limits[1])
        latest = min(latest, int(scale.tick("9999-12-31")) if self.start.type == "date" else 2**53)
        latest = latest if self.end is None else int(scale.tick(self.end))
        return column_of(self.name, kept | {"high": scale.declared(latest), "bins": 1})

    def read_time(self, keep: Keep) -> Numeric:
        """Return the column of times as it is read: a missing time, which no row may have, is told apart.

        Where the last rows are kept, any time before them is read.
        """
        earliest = "0001-01-01" if self.start.type == "date" else -(2**53)
        return self.time.with_values(missing=True, **({"low": earliest} if keep == "last" else {}))

    @property
    def last(self) -> int:
        """The tick at which the bins of times end: the declared one, or that of a second row, at the latest."""
        if self.end is not None:
            return int(self.start.scale.tick(self.end))
        return int(self.start.limits[1]) + int(self.gap.limits[1])

    @cached_property
    def lowest(self) -> tuple[np.ndarray, np.ndarray]:
        """The first ticks of the bins of first times, and of distances."""
        return tuple(np.array([low for low, _ in column.ranges], np.int64) for column in (self.start, self.gap))

    @cached_property
    def latest(self) -> np.ndarray:
        """The last ticks of the bins of first times."""
        return np.array([high for _, high in self.start.ranges], np.int64)


@dataclass(frozen=True, eq=False)
class RowCounts:
    """Numbers of rows of N persons: R in all, those of each person in a line, one person behind the other.

    Args:
        counts: (N,) numbers of rows, 0 to m.
    """

    counts: np.ndarray

    @cached_property
    def person(self) -> np.ndarray:
        """The person of each row (R,), from 0."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def begins(self) -> np.ndarray:
        """The place of each person's first row among all (N,), as if all persons had one."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def place(self) -> np.ndarray:
        """The place of each row (R,) in its history, from 0."""
        return np.arange(len(self.person)) - np.repeat(self.begins, self.counts)

    def shortened(self, counts: np.ndarray) -> PersonRows:
        """Return the first of the rows of each person, so many (N,), none of them more than there are."""
        kept = self.place < counts[self.person]
        return PersonRows(counts, self.starts, self.gaps[kept], self.rows[kept])


@dataclass(frozen=True, eq=False)
class PersonRows(RowCounts):
    """The rows of N persons in one table, as codes.

    Args:
        counts: (N,) numbers of rows, 0 to m.
        starts: (N,) bins of the first times of persons with rows; None without an order.
        gaps: (R,) bins of the distances of rows from the one before; that of a first row is left out of account.
        rows: (R, columns) choices of their columns.
    """

    starts: np.ndarray | None
    gaps: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True)
class RowTable:
    """A table of rows that belong to persons; everything here is declared, nothing is read off the data.

    Its part of a record is the number of rows, the bin of the first time, and for each place in the history the distance
    from the row before and the columns of the row. A place without a row has the last choice of each of its groups.

    Args:
        name: of the table.
        rows: the columns of a row, beside its person and its time.
        max_rows: m, the most rows of a person that count, 1 or more.
        order: the times of rows; None where rows are a set.
        keep: which rows of a person with more than m count.
        share: weight of its steps among those of all tables.
        person: the column of persons; tables that differ in it alone are equal.
        constraints: those that go beyond one row (`rules`), which the schema of the histories reads.

    Raises:
        BadSchema: for columns without bins, columns that are numbers (``encoding: scaled``), or names that appear twice.

    Example:
        >>> rows = TableSchema((column_of("ward", {"type": "category", "values": ["a", "b"]}),))
        >>> order = RowOrder.of("day", {"type": "integer", "low": 0, "high": 9, "bins": 5}, {"high": 30, "bins": 3})
        >>> RowTable("visits", rows, max_rows=2, order=order).groups
        (3, 6, 3, 4, 3)
    """

    name: str
    rows: TableSchema
    max_rows: int
    order: RowOrder | None = None
    keep: Keep = "first"
    share: float = 1.0
    person: str = field(default="person", compare=False)
    constraints: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        for key in ("name", "person"):
            if not isinstance(own := getattr(self, key), str) or not own:
                raise BadSchema(f"{quote(own)}: expected a text", key=key)
        if type(self.max_rows) is not int or not 1 <= self.max_rows <= _MOST_ROWS:
            raise self._refused(f"{quote(self.max_rows)}: expected a whole number from 1 to {_MOST_ROWS:,}", key="max_rows")
        if self.keep not in get_args(Keep):
            raise self._refused(f"{quote(self.keep)}: expected one of {', '.join(get_args(Keep))}", key="keep")
        if type(self.share) not in (int, float) or not 0 < self.share < math.inf:
            raise self._refused(f"{quote(self.share)}: expected a number above 0, such as 2", key="share")
        check_columns(self.name, self.rows)
        try:
            _ = self.pairs
        except BadSchema as error:
            raise self._refused(error.problem, error.column, error.key) from None
        if self.possible is None:
            raise self._refused("no row keeps them all", key="constraints")
        if self.rows.label is not None:
            raise self._refused(f"{self.rows.label!r} is the label of a row: expected the label of a person", key="label")
        if self.person in self.names:
            raise self._refused("is the column of persons, too: expected another name", self.person)
        if twice := [name for name in self.names if self.names.count(name) > 1]:
            raise self._refused("appears twice: expected each name once", twice[0])
        self._check_times()

    def _refused(self, problem: str, column: str | None = None, key: str | None = None) -> BadSchema:
        return BadSchema(problem, column, key, self.name)

    def _check_times(self) -> None:
        if self.order is None:
            return
        start, gap = self.order.start, self.order.gap
        for key, column in (("start", start), ("gap", gap)):
            if column.choices < 2:
                raise self._refused("has one bin: expected two or more (a larger high, or more bins)", self.order.name, key)
        latest = self.order.last if self.order.end is not None else 0
        latest = latest or int(start.limits[1]) + (self.max_rows - 1) * int(gap.limits[1])
        most = int(start.scale.tick("9999-12-31")) if start.type == "date" else 2**53
        if latest > most:
            end = "9999-12-31" if start.type == "date" else "2^53"
            raise self._refused(f"{self.max_rows:,} rows may pass {end}: expected a smaller high", self.order.name, "gap")

    @cached_property
    def pairs(self) -> list[Barred]:
        """The pairs of choices that no row has, by its constraints."""
        return barred_pairs(self.rows) if self.rows.restricts else []

    @cached_property
    def possible(self) -> list[int] | None:
        """The choices of a row that keeps all constraints."""
        return possible_row(self.rows.layout.groups, self.pairs)

    @property
    def names(self) -> list[str]:
        """The names of all columns but that of persons."""
        return [*([] if self.order is None else [self.order.name]), *(column.name for column in self.rows.columns)]

    @property
    def per_row(self) -> int:
        """The number of groups of a row's columns."""
        return len(self.rows.layout.groups)

    @property
    def ordered_columns(self) -> tuple[int, ...]:
        """The number of choices of each of a row's columns that are in an order: the first ones."""
        return self.rows.layout.ordered or (0,) * self.per_row

    @property
    def head(self) -> int:
        """The number of groups up to the first row: the number of rows, the first time, the columns of the first row."""
        return self.place(0).stop

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """The number of choices of each group."""
        return tuple(size for size, _ in self._sizes)

    @cached_property
    def ordered(self) -> tuple[int, ...]:
        """The number of choices of each group that are in an order: the first ones."""
        return tuple(ordered for _, ordered in self._sizes)

    @cached_property
    def _sizes(self) -> list[tuple[int, int]]:
        sizes = [(self.max_rows + 1, self.max_rows + 1)]
        columns = [(size + 1, ordered) for size, ordered in zip(self.rows.layout.groups, self.ordered_columns, strict=True)]
        for place in range(self.max_rows):
            if self.order is not None:
                time = self.order.gap if place else self.order.start
                sizes.append((time.choices + 1, time.ordered))
            sizes += columns
        return sizes

    def place(self, number: int) -> slice:
        """Return the groups of the columns of a row, by its number from 0; the distance before it is one before them."""
        with_time = self.per_row + (self.order is not None)
        stop = 1 + (number + 1) * with_time
        return slice(stop - self.per_row, stop)

    def joined(self, persons: PersonRows) -> np.ndarray:
        """Return the codes (N, groups) of rows."""
        codes = np.tile(np.array(self.groups, np.int64) - 1, (len(persons.counts), 1))
        codes[:, 0] = persons.counts
        if self.order is not None:
            codes[:, 1] = np.where(persons.counts > 0, persons.starts, codes[:, 1])
        first = self.place(0).start + persons.place * (self.per_row + (self.order is not None))
        codes[persons.person[:, None], first[:, None] + np.arange(self.per_row)] = persons.rows
        if self.order is not None:
            later = persons.place > 0
            codes[persons.person[later], first[later] - 1] = persons.gaps[later]
        return codes

    def parted(self, codes: np.ndarray) -> PersonRows:
        """Invert `joined`; the distance of a first row is 0."""
        codes = codes.astype(np.int64)
        found = PersonRows(codes[:, 0], None, np.zeros(0, np.int64), np.zeros((0, self.per_row), np.int64))
        person, first = found.person, self.place(0).start + found.place * (self.per_row + (self.order is not None))
        rows = codes[person[:, None], first[:, None] + np.arange(self.per_row)]
        if self.order is None:
            return PersonRows(codes[:, 0], None, np.zeros(len(person), np.int64), rows)
        return PersonRows(codes[:, 0], codes[:, 1], np.where(found.place > 0, codes[person, first - 1], 0), rows)

    @property
    def arrow(self) -> pa.Field:
        """The list of rows that each person has."""
        return pa.field(self.name, pa.list_(pa.struct(self.fields)))

    @property
    def fields(self) -> list[pa.Field]:
        """The fields of a row: its time, where rows have an order, and its columns."""
        time = [] if self.order is None else [pa.field(self.order.name, self.order.start.arrow)]
        return [*time, *self.rows.arrow]

    @property
    def choices(self) -> dict[str, list[str]]:
        """The names of the choices of each group, by its own name."""
        names = {"number of rows": [str(count) for count in range(self.max_rows + 1)]}
        if self.order is not None:
            names[f"first {self.order.name}"] = [*self.order.start.choice_names, "no row"]
        for place in range(self.max_rows):
            if self.order is not None and place:
                names[f"distance of row {place + 1}"] = [*self.order.gap.choice_names, "no row"]
            names |= {f"{name} of row {place + 1}": [*own, "no row"] for name, own in self.rows.choices.items()}
        return names

    @property
    def record_bytes(self) -> int:
        """The size of a person's rows in memory, in bytes."""
        return self.max_rows * (8 + self.rows.record_bytes)

    def as_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        order = self.order
        return {
            "name": self.name,
            "person": self.person,
            "rows": self.rows.as_json(),
            "max_rows": self.max_rows,
            "keep": self.keep,
            "share": self.share,
            "order": None if order is None else {
                "name": order.name, "start": order.start.declared.dump(), "gap": order.gap.declared.dump(), "end": order.end
            },
        } | ({"constraints": list(self.constraints)} if self.constraints else {})  # fmt: skip

    @classmethod
    def from_json(cls, fields: Any) -> Self:
        """Return the table that `as_json` described. Safe to call on what strangers have written.

        Raises:
            BadSchema, ValueError: for anything else.
        """
        expected = ("name", "person", "rows", "max_rows", "keep", "share", "order")
        if not isinstance(fields, dict) or set(fields) - {CONSTRAINTS} != set(expected):
            raise BadSchema(f"{quote(fields)}: expected a table of rows, by {', '.join(expected)}", key="tables")
        order, constraints = fields["order"], fields.get(CONSTRAINTS, [])
        if not isinstance(constraints, list):
            raise BadSchema(f"{quote(constraints)}: expected a list", key=CONSTRAINTS)
        if order is not None:
            if not isinstance(order, dict) or set(order) != {"name", "start", "gap", "end"}:
                raise BadSchema(f"{quote(order)}: expected name, start, gap and end", key="order")
            columns = (column_of(order["name"], order[part]) for part in ("start", "gap"))
            order = RowOrder(order["name"], *columns, order["end"])
        rows = TableSchema.from_json(fields["rows"])
        return cls(**fields | {"rows": rows, "order": order, CONSTRAINTS: tuple(constraints)})


def check_columns(place: str, table: TableSchema) -> None:
    """Refuse columns, of persons or rows, that histories do not learn.

    Raises:
        BadSchema: for columns without bins, or none with two values.
    """
    try:
        has_units = table.layout.units > 0
    except BadSchema as error:
        raise BadSchema(error.problem, error.column, error.key, place) from None
    if has_units:
        raise BadSchema(
            "is learned as a number: expected bins (leave encoding out)", table.scaled[0].name, "encoding", place
        )


def running(numbers: np.ndarray, persons: RowCounts) -> np.ndarray:
    """Return running sums (R,) of numbers, one a row, within each history.

    Example:
        >>> two = PersonRows(np.array([2, 0, 1]), None, np.zeros(3), np.zeros((3, 1)))
        >>> running(np.array([1, 2, 5]), two).tolist()
        [1, 3, 5]
    """
    total, there = np.cumsum(numbers), persons.counts > 0
    return total - np.repeat((total - numbers)[persons.begins[there]], persons.counts[there])

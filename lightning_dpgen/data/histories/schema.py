"""Histories: persons with attributes, and one or several tables of their rows; what is publicly known of all."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.conditions import Clause, Condition
from lightning_dpgen.data.histories.decoding import Limits, decode_rows, draw_attributes
from lightning_dpgen.data.histories.row_table import PersonRows, RowTable, check_columns
from lightning_dpgen.data.histories.rules import HistoryRules, parse_rules
from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer
from lightning_dpgen.data.names import quote
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.schema import TableSchema

# The name of the table of persons.
PERSONS = "persons"
# Words before a column of rows in conditions on persons.
EVER, NEVER = "ever", "never"
# Places of rows beside persons' attributes, all together; and tables of rows.
_MOST_GROUPS, _MOST_TABLES = 100_000, 20


@dataclass(frozen=True)
class HistorySchema(Schema):
    """Persons, each with attributes and with rows in each of some tables; everything here is declared.

    A record is a person with all rows: one choice of each attribute, and then table by table its rows, as `RowTable` has
    them.

    Args:
        persons: the attributes of persons; None where persons have none.
        tables: the tables of rows, one or more.
        key: the column of persons in the table of persons; schemas that differ in it alone are equal.

    Raises:
        BadSchema: for columns without bins, columns that are numbers (``encoding: scaled``), or names that appear twice in
            one table.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> visits = RowTable("visits", parse_schema("columns: {ward: {type: category, values: [a, b]}}"), max_rows=2)
        >>> orders = RowTable("orders", parse_schema("columns: {paid: {type: boolean}}"), max_rows=1)
        >>> HistorySchema(None, (visits, orders)).layout.groups
        (3, 3, 3, 2, 3)
    """

    kind: ClassVar[str] = "histories"

    persons: TableSchema | None
    tables: tuple[RowTable, ...]
    key: str = field(default="person", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not self.key:
            raise BadSchema(f"{quote(self.key)}: expected a text", key="key", place=PERSONS)
        if not 1 <= len(self.tables) <= _MOST_TABLES:
            raise BadSchema(f"{len(self.tables)} tables of rows: expected 1 to {_MOST_TABLES}", key="tables")
        names = [table.name for table in self.tables]
        if twice := [name for name in names if names.count(name) > 1 or name == PERSONS]:
            raise BadSchema(f"{quote(twice[0])}: expected another name for each table", key="tables")
        if self.persons is not None:
            check_columns(PERSONS, self.persons)
            if self.persons.restricts:
                raise BadSchema("are kept within rows alone: leave them out", key="constraints", place=PERSONS)
            attributes = [column.name for column in self.persons.columns]
            words = [(self.key, "the key of persons"), *((name, "the table of rows") for name in names)]
            if taken := [(name, own) for name, own in words if name in attributes]:
                raise BadSchema(f"is {taken[0][1]}, too: expected another name", taken[0][0], place=PERSONS)
        self._check_case()
        _ = self.rules
        if len(self.layout.groups) > _MOST_GROUPS:
            longest = max(self.tables, key=lambda table: len(table.groups))
            raise BadSchema(
                f"{longest.max_rows:,} rows of {longest.per_row} columns: expected at most {_MOST_GROUPS:,} places in a "
                "history",
                key="max_rows",
                place=longest.name,
            )

    def _check_case(self) -> None:
        """Refuse names that a database takes for one, or keeps for itself."""
        of_tables = {PERSONS: [self.key, *(column.name for column in self.persons.columns)]} if self.persons else {}
        for table in self.tables:
            order = [] if table.order is None else [table.order.name]
            of_tables[table.name] = [table.person, *order, *(column.name for column in table.rows.columns)]
        for place, names in (("tables", [*dict.fromkeys([PERSONS, *of_tables])]), *of_tables.items()):
            folded = [name.casefold() for name in names]
            for name, own in zip(names, folded, strict=True):
                if folded.count(own) > 1:
                    raise BadSchema("differs from another name by its case alone: expected another name", name, place=place)
                if place == "tables" and own.startswith("sqlite_"):
                    raise BadSchema("is a name that SQLite keeps for itself: expected another name", name, place=place)

    @property
    def attributes(self) -> int:
        """The number of groups of a person's attributes."""
        return 0 if self.persons is None else len(self.persons.layout.groups)

    @cached_property
    def parts(self) -> tuple[slice, ...]:
        """The groups of each table of rows in a record."""
        ends = itertools.accumulate((len(table.groups) for table in self.tables), initial=self.attributes)
        return tuple(slice(start, end) for start, end in itertools.pairwise(ends))

    @cached_property
    def layout(self) -> Layout:
        groups, ordered, label = (), (), None
        if self.persons is not None:
            of_persons = self.persons.layout
            groups, ordered, label = of_persons.groups, of_persons.ordered or (0,) * self.attributes, of_persons.label
        for table in self.tables:
            groups, ordered = groups + table.groups, ordered + table.ordered
        return Layout(0, None, groups, label, ordered=ordered)

    @cached_property
    def rules(self) -> tuple[HistoryRules, ...]:
        """The rules of each table of rows beyond one row."""
        return tuple(parse_rules(table.constraints, table, self.persons) for table in self.tables)

    def prefix(self, table: RowTable) -> str:
        """Return what the names of a table's parts begin with: nothing where there is no other table."""
        return f"{table.name}: " if len(self.tables) > 1 else ""

    def joined(self, attributes: np.ndarray, rows: Sequence[PersonRows]) -> Encoded:
        """Return histories from their parts.

        Args:
            attributes: (N, attributes) choices.
            rows: the rows of the persons in each table.
        """
        parts = [table.joined(persons) for table, persons in zip(self.tables, rows, strict=True)]
        codes = np.concatenate([np.asarray(attributes, np.int64), *parts], axis=1)
        return Encoded(np.zeros((len(codes), 0), np.float32), codes.astype(smallest_integer(max(self.layout.groups) - 1)))

    def parted(self, encoded: Encoded) -> tuple[np.ndarray, tuple[PersonRows, ...]]:
        """Invert `joined`."""
        rows = (table.parted(encoded.codes[:, part]) for table, part in zip(self.tables, self.parts, strict=True))
        return encoded.codes[:, : self.attributes].astype(np.int64), tuple(rows)

    @property
    def arrow(self) -> pa.Schema:
        persons = [] if self.persons is None else list(self.persons.arrow)
        return pa.schema([*persons, *(table.arrow for table in self.tables)])

    def decode(self, encoded: Encoded, random: np.random.Generator, before: int = 0) -> pa.RecordBatch:
        """Return persons as a table of `arrow`, each with a list of rows for each table, in the order of time.

        Raises:
            ValueError: for codes that no history has, such as a row behind the last one.
        """
        attributes, rows = self.parted(encoded)
        if not np.array_equal(self.joined(attributes, rows).codes, encoded.codes):
            raise ValueError("codes: places behind the last row hold choices, or those before it hold none")
        columns: list[pa.Array] = []
        limits: list[Limits | None] = [None] * len(self.tables)
        if self.persons is not None:
            values, limits = draw_attributes(self, attributes, rows, random)
            columns += self.persons.with_fakes(values, random, before).columns
        for table, rules, own, within in zip(self.tables, self.rules, rows, limits, strict=True):
            columns.append(decode_rows(table, own, random, before, limits=within, sort=rules.sorted))
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    @property
    def condition_columns(self) -> list[str]:
        """The attributes of persons, and each column of rows as ``ever event`` and ``never event``."""
        return [*([] if self.persons is None else self.persons.arrow.names), *self._of_rows]

    @cached_property
    def _of_rows(self) -> dict[str, tuple[bool, int, str]]:
        """Columns of rows by their names in conditions: whether a row has a choice or none, the table, the column."""
        several = len(self.tables) > 1
        return {
            f"{word} {table.name + '.' if several else ''}{name}": (word == EVER, number, name)
            for word in (EVER, NEVER) for number, table in enumerate(self.tables) for name in table.rows.choices
        }  # fmt: skip

    def condition(self, clause: Clause) -> Condition:
        """Return a condition on an attribute of persons, or on what any of their rows has, or none."""
        if clause.column in self._of_rows:
            ever, number, name = self._of_rows[clause.column]
            found = _by_choices(self.tables[number].rows, Clause(name, clause.operator, clause.values), clause.column)
            return Condition(None, found.may, found.sure, fits=partial(self._has_row, number, found, ever))
        if self.persons is None:
            raise ValueError(f"column {quote(clause.column)}: persons have no attributes, on which conditions are set")
        return _by_choices(self.persons, clause)

    def _has_row(self, number: int, condition: Condition, ever: bool, encoded: Encoded) -> np.ndarray:
        """Return which persons (N,) have a row that fulfils a condition; or (not `ever`) have none."""
        rows = self.tables[number].parted(encoded.codes[:, self.parts[number]])
        fits = np.isin(rows.rows[:, condition.group], sorted(condition.sure))
        return (np.bincount(rows.person[fits], minlength=len(encoded)) > 0) == ever

    @property
    def constraint_texts(self) -> tuple[list[str], list[str]]:
        texts = []
        for table, rules in zip(self.tables, self.rules, strict=True):
            texts += [f"{self.prefix(table)}{text}" for text in (*table.rows.constraint_texts[0], *rules.texts)]
        return texts, []

    @property
    def label_values(self) -> tuple[str, list[Any]]:
        return ("label", []) if self.persons is None else self.persons.label_values

    @property
    def choices(self) -> dict[str, list[str]]:
        names = {} if self.persons is None else dict(self.persons.choices)
        for table in self.tables:
            names |= {f"{self.prefix(table)}{name}": own for name, own in table.choices.items()}
        return names

    @property
    def record_bytes(self) -> int:
        persons = 0 if self.persons is None else self.persons.record_bytes
        return persons + sum(table.record_bytes for table in self.tables)

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "persons": None if self.persons is None else self.persons.as_json(),
            "key": self.key,
            "tables": [table.as_json() for table in self.tables],
        }

    @classmethod
    def from_json(cls, fields: Any) -> Self:
        """Return the schema that `as_json` described. Safe to call on what strangers have written.

        Raises:
            BadSchema, ValueError: for anything else.
        """
        if (
            not isinstance(fields, dict)
            or fields.get("kind") != cls.kind
            or set(fields) != {"kind", "persons", "key", "tables"}
        ):
            raise BadSchema("the schema does not describe histories")
        if not isinstance(fields["tables"], list):
            raise BadSchema(f"{quote(fields['tables'])}: expected a list of tables of rows", key="tables")
        persons = fields["persons"]
        return cls(
            None if persons is None else TableSchema.from_json(persons),
            tuple(map(RowTable.from_json, fields["tables"])),
            fields["key"],
        )


def _by_choices(table: TableSchema, clause: Clause, given: str | None = None) -> Condition:
    """Return a condition that choices alone decide.

    Args:
        given: the words that stand for the column in the condition; None for its name.
    """
    given = clause.column if given is None else given
    condition = table.condition(clause)
    if condition.test is not None:
        column, expected = table.rules.columns[clause.column], "one on a category, or at the edges of bins"
        if condition.group is not None and isinstance(column, Numeric):
            begins = listed((column.scale.declared(low) for low, _ in column.ranges[1 : column.ordered]), 20)
            expected = f"{given}>=X, {given}<X or both, where X begins a bin: {begins}"
        raise ValueError(
            f"column {quote(clause.column)}: a condition on values within bins is not kept by histories: expected "
            f"{expected}"
        )
    return condition

"""Tables: what is publicly known of one before a record is read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.conditions import Clause, Condition, quoted, quoted_name
from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer
from lightning_dpgen.data.reading import check_outside
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.arrays import BadValue, Misfit
from lightning_dpgen.data.tables.categories import MANY, Category
from lightning_dpgen.data.tables.column import BadParts, BadSchema, Column, Key, Modelled, shortened
from lightning_dpgen.data.tables.column_types import holds, named_types
from lightning_dpgen.data.tables.grouped import choices_of
from lightning_dpgen.data.tables.made_up import Dropped, Fake
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.relative import RELATIVE_TO, Relative, ticks_of
from lightning_dpgen.data.tables.row_rules import CONSTRAINTS, Cells, RowRules
from lightning_dpgen.data.tables.schema_keys import TableKeys, column_of
from lightning_dpgen.data.tables.search import Search
from lightning_dpgen.data.tables.value_set import value_set
from lightning_dpgen.data.tables.written_form import NumberForm, WrittenForm, problem_of_signs

_NO_CELLS: Cells = MappingProxyType({})
_MOST_COLUMNS = 10_000
_MOST_CHOICES = 2**20
_MOST_LABELS = 1000


@dataclass(frozen=True, init=False)
class TableSchema(Schema):
    """A table with one record a row. All of it is declared; nothing is read off the data.

    Args:
        columns: in their order; of some, something may still be to be found privately.
        declared: what is declared of the whole table; None for all by default.
        keys: what else is, in place of it, by the names of `TableKeys`.

    Raises:
        BadSchema: if that makes no sense.

    Example:
        >>> schema = TableSchema((
        ...     column_of("sex", {"type": "category", "values": ["F", "M"]}),
        ...     column_of("age", {"type": "integer", "low": 0, "high": 99, "bins": 10}),
        ... ), label="sex")
        >>> schema.layout.groups, schema.layout.label
        ((2, 10), 0)
        >>> table = pa.record_batch({"age": ["7", "42"], "sex": ["M", "F"]})
        >>> schema.encode(table).codes.tolist()
        [[1, 0], [0, 4]]
    """

    kind: ClassVar[str] = "table"
    label_given_rest: ClassVar[bool] = True

    columns: tuple[Column | Search, ...]
    declared: TableKeys

    label, description, table, types = Key(), Key(), Key(), Key()
    header, skip_rows, comment, strip, separator = (Key() for _ in range(5))
    charset, quotes, decimal, thousands = (Key() for _ in range(4))
    constraints, found_constraints = Key(), Key()

    def __init__(self, columns: Sequence[Column | Search], declared: TableKeys | None = None, **keys: Any) -> None:
        if not isinstance(columns, list | tuple) or not all(isinstance(column, Column | Search) for column in columns):
            raise BadSchema("columns: expected a list of columns")
        declared = declared or TableKeys()
        object.__setattr__(self, "columns", tuple(columns))
        object.__setattr__(self, "declared", declared.with_values(**keys) if keys else declared)
        self._check_columns()
        self._check_signs()
        self._check_types()
        if self.strip:
            self._check_spaces()
        if self.constraints or self.found_constraints or any(isinstance(column, Relative) for column in self.columns):
            self._check_constraints()
        if self.label is not None:
            self._check_label()

    def with_values(self, columns: Iterable[Column | Search] | None = None, **keys: Any) -> TableSchema:
        """Return the same with other columns, or other keys of the whole table."""
        return TableSchema(self.columns if columns is None else tuple(columns), self.declared, **keys)

    @property
    def recorded(self) -> list[Modelled]:
        """The columns that are read of a record, and that a synthetic row has.

        Where something is to be found privately, they hold whatever may be (`Search.widest`).
        """
        columns = [column.value if isinstance(column, Relative) else column for column in self.columns]
        columns = [column.widest if isinstance(column, Search) else column for column in columns]
        return [column for column in columns if isinstance(column, Modelled)]

    @property
    def modelled(self) -> list[Modelled]:
        """The columns as they are learned: all that are recorded, but for some that others determine; some as distances.

        Those of which something is to be found are none yet.
        """
        rules = self.rules
        left_out = {*rules.unlearned, *(column.name for column in self.open)}
        return [rules.learned.get(column.name, column) for column in self.recorded if column.name not in left_out]

    @property
    def scaled(self) -> list[Numeric]:
        """The columns that are units, in their order."""
        return [column for column in self.modelled if isinstance(column, Numeric) and column.scaled]

    @cached_property
    def layout(self) -> Layout:
        """The scaled columns as units, then the groups of columns with something to choose, in their order.

        Raises:
            BadSchema: if a column is undecided (see `with_bins`), something is to be found, or no column has two values.
        """
        for column in self.open:
            raise BadSchema(f"its {column.find} are still to be found", column.name)
        chosen = [column for column in self.modelled if column.choices]
        groups = tuple(column.choices for column in chosen)
        units = sum(column.scaled for column in self.modelled)
        if not groups and not units:
            raise BadSchema("every modelled column has one value only: expected something to learn", key="columns")
        label = None if self.label is None else self._groups.index(self.label)
        ordered = tuple(column.ordered for column in chosen)
        norm = math.sqrt(len(groups) + units)
        return Layout(units, None, groups, label, norm, ordered=ordered if any(ordered) else ())

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([(column.name, column.arrow) for column in self.columns if column.arrow is not None])

    @property
    def open(self) -> list[Search]:
        """The columns of which something is to be found privately."""
        return [column for column in self.columns if isinstance(column, Search)]

    @cached_property
    def forms(self) -> dict[str, WrittenForm]:
        """The forms of columns whose texts are written otherwise than programs do, by name."""
        forms = {column.name: column.declared.form(self.decimal, self.thousands) for column in self.columns}
        return {name: form for name, form in forms.items() if form is not None}

    def undecided(self, bins: int) -> list[Numeric]:
        """Return the columns of numbers whose bins are left open and which have more values than so many bins.

        The label is none of them, since it has a choice for each value.
        """
        return [
            column
            for column in self.modelled
            if isinstance(column, Numeric)
            and column.undecided
            and not column.density
            and column.name != self.label
            and column.grid.span > bins
        ]

    @property
    def of_many_values(self) -> list[Category]:
        """The columns of categories with very many values whose counts are not known, but for the label."""
        categories = [column for column in self.modelled if isinstance(column, Category) and not column.counts]
        return [column for column in categories if column.present > MANY and column.name != self.label]

    def with_types_of(self, kinds: Mapping[str, Any]) -> TableSchema:
        """Return the same with the types of columns of a source, by their names, for columns of which none is declared.

        Example:
            >>> schema = TableSchema((column_of("age", {"type": "integer", "low": 0, "high": 99}),))
            >>> schema.with_types_of({"age": np.dtype("int8"), "name": np.dtype("object")}).types
            {'age': 'int8'}
        """
        return self.with_values(types=named_types(kinds, {c.name: c for c in self.recorded}) | self.types)

    def with_discovery(self, discovery: Mapping[str, Any]) -> TableSchema:
        """Return the same with what was found of columns, by their names.

        See `Search.complete`, `Numeric.with_density` and `Category.with_counts`.
        """

        def complete(column: Column | Search) -> Column:
            if isinstance(column, Search):
                return column.build(discovery[column.name])
            if isinstance(column, Relative):
                return column.with_apart(complete(column.apart)) if column.name in discovery else column
            if isinstance(column, Numeric) and column.name in discovery:
                return column.with_density(**discovery[column.name])
            if isinstance(column, Category) and column.name in discovery:
                return column.with_counts(**discovery[column.name])
            return column

        return self.with_values(map(complete, self.columns))

    def with_bins(self, bins: int) -> TableSchema:
        """Return the same with so many bins (public) where none are declared; a label has a choice for each value."""

        def decided(column: Column | Search) -> Column | Search:
            most = _MOST_LABELS if column.name == self.label else bins
            return column if isinstance(column, Search) else column.with_bins(most)

        return self.with_values(map(decided, self.columns))

    def encode(self, batch: pa.RecordBatch, *, outside: str = "refuse", counted: Counter[str] | None = None) -> Encoded:
        """Encode records as numbers, each of them alone, so that none changes another.

        Args:
            batch: with the modelled columns, in any order and of any types that can be understood.
            outside: ``refuse``, or ``clamp``, where a column does not say: numbers beyond their bounds become the bound,
                categories that are not listed the column's `other`, or missing.
            counted: what was clamped is added to it: private.

        Raises:
            BadValue: naming the column, and the row of the first value that does not fit.
            ValueError: for another `outside`.
        """
        check_outside(outside)
        layout, counted = self.layout, Counter() if counted is None else counted
        codes = np.zeros((batch.num_rows, len(layout.groups)), smallest_integer(max(layout.groups, default=1) - 1))
        units = np.zeros((batch.num_rows, layout.units), np.float32)
        group = unit = 0
        for column in self.modelled:
            try:
                clamp = column.clamps(outside)
                values = self.learned(column.name, batch, clamp, counted)
                chosen, scaled = column.encode(values, clamp, counted)
            except Misfit as misfit:
                raise BadValue.of(column.name, misfit) from None
            except pa.ArrowException as error:
                # No rule above has foreseen this type, and Arrow cannot convert it.
                problem = f"is {batch.column(column.name).type} and cannot be read as declared; convert it"
                raise BadValue(column.name, None, f"{problem} ({' '.join(str(error).split())[:100]})") from None
            if column.choices:
                codes[:, group] = chosen
                group += 1
            if column.scaled:
                units[:, unit] = scaled
                unit += 1
        return Encoded(units, codes)

    def learned(self, name: str, batch: pa.RecordBatch, clamp: bool, counted: Counter[str]) -> pa.Array:
        """Return what is learned of a column of records: its values (n,), or their distances from another column.

        Args:
            batch: with the column, and the other one.
            clamp: whether values outside of what is declared are moved into it, and counted.
            counted: what was moved; private.

        Raises:
            Misfit: naming the first value from which no distance can be worked out.
        """
        relative = self.rules.relatives.get(name)
        if relative is None:
            return batch.column(name)
        return relative.distances(batch, self.rules.columns[relative.relative_to], clamp, counted)

    @cached_property
    def rules(self) -> RowRules:
        """The constraints of rows."""
        relatives = [column for column in self.columns if isinstance(column, Relative)]
        columns = {column.name: column for column in self.recorded}
        return RowRules(columns, self.constraints, self.found_constraints, relatives, self.open)

    def decode(self, encoded: Encoded, random: np.random.Generator, before: int = 0) -> pa.RecordBatch:
        """Return records as a table of `arrow`: `values`, and `with_fakes`."""
        return self.with_fakes(self.values(encoded, random), random, before)

    def with_fakes(self, values: pa.RecordBatch, random: np.random.Generator, before: int = 0) -> pa.RecordBatch:
        """Return rows with columns that are made up; row numbers follow those of `before` records."""
        arrays = [
            column.make(values.num_rows, random, before) if isinstance(column, Fake) else values.column(column.name)
            for column in self.columns
            if column.arrow is not None
        ]
        return pa.record_batch(arrays, schema=self.arrow)

    def values(self, encoded: Encoded, random: np.random.Generator, cells: Cells = _NO_CELLS) -> pa.RecordBatch:
        """Return the recorded columns of records: values of a bin are drawn by its density, and some follow from others.

        Args:
            cells: values that are given, of the choices in `encoded`: they are written as they are.

        Raises:
            ValueError: if there are choices, or numbers of columns, that the layout does not have.
        """
        layout, rows = self.layout, len(encoded)
        codes, units = encoded.codes, encoded.units
        if codes.shape != (rows, len(layout.groups)) or units.shape != (rows, layout.units):
            expected = f"{layout.units} and {len(layout.groups)} columns"
            raise ValueError(f"units of shape {units.shape} and codes of shape {codes.shape}: expected {expected}")
        if rows and ((codes < 0).any() or (codes.max(axis=0) >= np.array(layout.groups, np.int64)).any()):
            raise ValueError("codes beyond the choices of their groups")
        arrays, group, unit = {}, 0, 0
        for column in self.modelled:
            chosen = codes[:, group].astype(np.int64) if column.choices else np.zeros(rows, np.int64)
            arrays[column.name] = column.decode(chosen, units[:, unit] if column.scaled else None, random)
            group += bool(column.choices)
            unit += column.scaled
        arrays = self.rules.with_computed(arrays, rows, cells)
        return pa.record_batch({column.name: arrays[column.name] for column in self.recorded})

    def condition(self, clause: Clause) -> Condition:
        """Return a condition on a column; see `Schema.condition`.

        Example:
            >>> schema = TableSchema((column_of("age", {"type": "integer", "low": 0, "high": 99, "bins": 10}),))
            >>> condition = schema.condition(Clause("age", ">=", ("65",)))
            >>> sorted(condition.may), sorted(condition.sure)
            ([6, 7, 8, 9], [7, 8, 9])
        """
        if clause.column not in self.rules.columns:
            known = list(self.rules.columns)
            near = suggest(clause.column, known)
            raise ValueError(f"column {shortened(clause.column)}: expected one that is modelled: {listed(known)}{near}")
        column = self.rules.columns[clause.column]
        wanted = value_set(column, clause)

        relative = clause.column in self.rules.relatives

        def holds(values: pa.Array) -> np.ndarray:
            # Distances that are added up may lead beyond the bounds.
            places = ticks_of(column, values) if relative else column.numbers(values, False, Counter())
            return wanted.holds(*places)

        if clause.column not in self._groups or relative:
            return Condition(None, frozenset(), frozenset(), holds)
        may, sure = choices_of(self.rules.learned.get(clause.column, column), wanted)
        shares = {}
        if may != sure and isinstance(column, Numeric) and not column.scaled:
            shares = {code: share for code, share in enumerate(column.shares(wanted.intervals)) if code in may - sure}
            may = {code for code in may if shares.get(code, 1.0) > 0.0}
        group, test = self._groups.index(clause.column), None if may == sure else holds
        return Condition(group, frozenset(may), frozenset(sure), test, shares)

    def check_together(self, conditions: Sequence[Clause]) -> None:
        """Refuse conditions where it is sure that no record fulfils them and keeps the constraints.

        Raises:
            ValueError: naming the column, or the constraint.
        """
        columns = self.rules.columns
        self.rules.check_together([(said.column, value_set(columns[said.column], said)) for said in conditions])

    def impossible_pairs(self) -> list[tuple[int, int, np.ndarray]]:
        """Return two groups of the layout, and the pairs (a, b) of their choices that no record can have, bool."""
        return [(*map(self._groups.index, names), pairs) for names, pairs in self.rules.impossible().items()]

    def condition_text(self, name: str, choices: Sequence[int]) -> str:
        """Return the condition that a column has one of some choices, or is missing, as `parse_condition` reads it.

        The column is none that is learned by its distance from another one.

        Example:
            >>> schema = TableSchema((column_of("age", {"type": "integer", "low": 0, "high": 99, "bins": 10}),))
            >>> schema.condition_text("age", [0, 3])
            'age in (0..9, 30..39)'
        """
        column = self.rules.learned.get(name, self.rules.columns[name])
        if choices[0] == column.present:
            return f"{quoted_name(name)} is missing"
        values = [quoted(column.range_text(code)) for code in choices]
        return f"{quoted_name(name)} " + (f"= {values[0]}" if len(values) == 1 else f"in ({', '.join(values)})")

    @property
    def choices(self) -> dict[str, list[str]]:
        """The names of the choices of each column with a group.

        Example:
            >>> TableSchema((column_of("sex", {"type": "category", "values": ["F", "M"], "missing": True}),)).choices
            {'sex': ['F', 'M', 'missing']}
        """
        relatives = self.rules.relatives
        return {c.name: relatives.get(c.name, c).choice_names for c in self.modelled if c.choices}

    @property
    def label_values(self) -> tuple[str, list[str]]:
        """The name of the label, and the names of its choices."""
        return (self.label, list(self.choices[self.label])) if self.label else ("label", [])

    @property
    def restricts(self) -> bool:
        """True where the constraints of rows leave some out."""
        return self.rules.restrict

    @property
    def sheet(self) -> str | None:
        return self.table

    @property
    def made_up(self) -> list[str]:
        return [column.name for column in self.columns if isinstance(column, Fake)]

    @property
    def ungrouped(self) -> Mapping[str, Sequence[str]]:
        return self.rules.ungrouped

    @property
    def constraint_texts(self) -> tuple[Sequence[str], Sequence[str]]:
        return self.rules.texts

    @property
    def relatives(self) -> Mapping[str, Relative]:
        return self.rules.relatives

    @property
    def declared_alone(self) -> TableSchema:
        """The same without constraints that noisy tables have shown."""
        return self.with_values(found_constraints=())

    def unlabelled(self) -> TableSchema | None:
        """Return the schema of the same rows without their label, which a file may have all the same.

        Constraints that speak of the label are left out. None is returned where other columns follow from it.
        """
        dropped = column_of(self.label, {"type": "drop"}) if self.label else None
        columns = [dropped if column.name == self.label else column for column in self.columns]
        try:
            plain = self.with_values(columns, label=None, constraints=(), found_constraints=())
        except BadSchema:  # a column is relative to it
            return None
        plain = plain.with_values(constraints=tuple(said for said in self.constraints if plain._takes(said)))
        others = [size for group, size in enumerate(self.layout.groups) if group != self.layout.label]
        return plain if (plain.layout.units, list(plain.layout.groups)) == (self.layout.units, others) else None

    def _takes(self, constraint: object) -> bool:
        try:
            self.with_values(constraints=(constraint,))
        except BadSchema:
            return False
        return True

    def as_json(self) -> dict[str, Any]:
        columns = [{"name": column.name, **column.declared.dump()} for column in self.columns]
        return {"kind": self.kind, "columns": columns} | self.declared.dump()

    @classmethod
    def from_json(cls, fields: Any) -> TableSchema:
        """Return the schema that `as_json` described. Safe to call on what strangers have written.

        Raises:
            BadSchema: for another kind of record, foreign fields, or anything that makes no sense.
        """
        fields = dict(fields) if isinstance(fields, dict) else {}
        if fields.pop("kind", None) != cls.kind:
            raise BadSchema("the schema does not describe a table")
        columns = fields.pop("columns", None)
        if not isinstance(columns, list) or len(columns) > _MOST_COLUMNS:
            raise BadSchema(f"{shortened(columns)}: expected a list of at most {_MOST_COLUMNS} columns", key="columns")
        built = []
        for column in columns:
            if not isinstance(column, dict):
                raise BadSchema(f"{shortened(column)}: expected an object with name and type", key="columns")
            column = dict(column)
            built.append(column_of(column.pop("name", None), column))
        return cls(built, TableKeys.of(fields))

    @cached_property
    def _groups(self) -> list[str]:
        return [column.name for column in self.modelled if column.choices]

    def _check_columns(self) -> None:
        names = Counter(column.name for column in self.columns)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise BadSchema("appears twice: expected each name once", twice[0])
        if all(isinstance(column, Dropped | Fake) for column in self.columns):
            raise BadSchema("no column is modelled: expected at least one that is not of type drop or fake", key="columns")
        numbers = [column.apart if isinstance(column, Relative) else column for column in self.columns]
        bins = sum(column.most_choices for column in numbers if isinstance(column, Numeric))
        if len(self.columns) > _MOST_COLUMNS or bins > _MOST_CHOICES:
            raise BadSchema(f"expected at most {_MOST_COLUMNS} columns, of {_MOST_CHOICES} bins in all", key="columns")

    def _check_signs(self) -> None:
        for name, form in self.forms.items():
            if isinstance(form, NumberForm) and (problem := problem_of_signs(form.decimal, form.thousands)):
                raise BadSchema(f"{problem}, which the table declares", name, "decimal")

    def _check_constraints(self) -> None:
        if self.label in self.rules.derived:
            problem = f"{self.label!r} is the label, and other columns determine it: expected a label to learn"
            raise BadSchema(problem, key=CONSTRAINTS)
        if self.label in self.rules.relatives:
            raise BadSchema("is the label: expected a label that is learned as it is", self.label, RELATIVE_TO)
        self.rules.check()

    def _check_spaces(self) -> None:
        """Refuse names and categories with spaces around them, which are cut off the fields of a file of text."""
        for column in self.columns:
            if column.name != column.name.strip():
                raise BadSchema("spaces around a name are cut off: leave them out, or declare strip: false", column.name)
            for value in column.values if isinstance(column, Category) and column.kind is str else ():
                if value != value.strip():
                    expected = "no spaces around it, since they are cut off; or declare strip: false"
                    raise BadSchema(f"{shortened(value)}: expected {expected}", column.name, "values")

    def _check_types(self) -> None:
        """Refuse types that are none, or hold less than what may stand in a column, so that a record would decide them."""
        columns = {column.name: column for column in self.recorded} if self.types else {}
        wrong = {}
        for name, type_name in self.types.items():
            if name not in columns:
                near = suggest(name, columns)
                wrong[name] = f"{shortened(name)}: expected the name of a column that is modelled{near}"
            elif not holds(type_name, columns[name]):
                wrong[name] = (
                    f"column {shortened(name)}: {shortened(type_name)}: expected a type of pandas or Arrow that holds all "
                    "values which the schema allows, as in types: {age: int8, sex: category}"
                )
        if wrong:
            raise BadParts(wrong, "types")

    def _check_label(self) -> None:
        if self.label in [column.name for column in self.open]:
            return
        labels = [column for column in self.modelled if column.name == self.label]
        if not labels:
            near = suggest(self.label, [column.name for column in self.modelled])
            raise BadSchema(f"{shortened(self.label)}: expected the name of one of the modelled columns{near}", key="label")
        column = labels[0].with_bins(_MOST_LABELS)
        if not 2 <= column.choices <= _MOST_LABELS or not all(map(column.alone, range(column.present))):
            expected = f"a column of 2 to {_MOST_LABELS:,} choices, each of one value, such as categories"
            raise BadSchema(f"{self.label!r} has {_values_in_words(labels[0])}: expected {expected}", key="label")


def _values_in_words(column: Modelled) -> str:
    """Return how many values a column has, as they are declared."""
    if isinstance(column, Numeric) and not column.scale.whole:
        return "real numbers, which are no choices"
    if isinstance(column, Numeric) and column.undecided:
        low, high = column.limits
        return f"{high - low + 1 + sum(not low <= tick <= high for tick in column.special_ticks):,} values"
    if isinstance(column, Numeric):
        return "a number in place of choices" if column.scaled else f"{column.present:,} choices of several values each"
    return f"{column.present:,} {'value' if column.present == 1 else 'values'}"

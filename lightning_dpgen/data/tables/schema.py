"""Tables: what is publicly known of one before a record is read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.conditions import Condition, Said, quoted, quoted_name
from lightning_dpgen.data.files.text import CHARSETS, UTF8, charset_of
from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer
from lightning_dpgen.data.reading import check_outside
from lightning_dpgen.data.tables.arrays import BadValue, Misfit
from lightning_dpgen.data.tables.categories import MANY, Category
from lightning_dpgen.data.tables.column import BadParts, BadSchema, Column, Modelled, is_text, shortened
from lightning_dpgen.data.tables.column_types import holds, named_types
from lightning_dpgen.data.tables.columns import column_of
from lightning_dpgen.data.tables.grouped import choices_of
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.open_columns import Open
from lightning_dpgen.data.tables.relative import RELATIVE_TO, Relative, ticks_of
from lightning_dpgen.data.tables.row_rules import CONSTRAINTS, Cells, RowRules
from lightning_dpgen.data.tables.unmodelled import Fake
from lightning_dpgen.data.tables.value_set import value_set
from lightning_dpgen.data.tables.written_form import NEEDED, QUOTES, NumberForm, WrittenForm, problem_of_signs
from lightning_dpgen.privacy.nearest_word import suggest
from lightning_dpgen.privacy.plain_text import listed

_NO_CELLS: Cells = MappingProxyType({})
_MOST_COLUMNS = 10_000
_MOST_CHOICES = 2**20
_MOST_LABELS = 1000
_MOST_SKIPPED, _MOST_MARKS, _LONGEST_MARK = 1000, 20, 100
# Keys of the whole table, beside its columns.
_DEFAULTS = {
    "description": "",
    "label": None,
    "table": None,
    "header": True,
    "skip_rows": 0,
    "comment": (),
    "strip": True,
    "separator": None,
    "charset": UTF8,
    "quotes": NEEDED,
    "decimal": ".",
    "thousands": "",
    "types": {},
    "constraints": (),
    "found_constraints": (),
}


@dataclass(frozen=True)
class TableSchema:
    """A table with one record a row. All of it is declared; nothing is read off the data.

    Args:
        columns: in their order.
        label: the name of a column of categories, true and false, or few whole numbers; None without one.
        description: for people.
        header: whether a file of text begins with the names of columns; else they are told by their positions.
        skip_rows: the number of lines of a file of text, or of rows of a workbook, above the header or the first record.
        comment: how lines (first cells of rows) begin that are no records: texts such as ``#``, or one text.
        strip: whether spaces around the fields of a file of text are no part of them.
        separator: of fields in a file of text; None for a tab in a ``.tsv`` file, and a comma in any other.
        table: the sheet of a workbook, or the table of a database; None for the only one.
        charset: the encoding of a file of text, by the name that Python has for it.
        quotes: which fields of a written file of text stand in double quotes: ``needed``, ``texts`` or ``all``.
        decimal, thousands: where numbers are text, the sign before their decimals and the one between thousands, if any.
        types: the types in which frames and Parquet files have columns, by their names; see `column_types`.
        constraints: statements about several columns that hold of every record and every synthetic row: texts such as
            ``start <= end`` or ``pdays = -1 if and only if previous = 0``, and mappings; see `constraints`.
        found_constraints: the same, of synthetic rows alone: those that noisy tables of the records show.

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

    columns: tuple[Column, ...]
    label: str | None = None
    description: str = ""
    header: bool = True
    strip: bool = True
    separator: str | None = None
    table: str | None = None
    charset: str = UTF8
    quotes: str = NEEDED
    decimal: str = "."
    thousands: str = ""
    types: Mapping[str, str] = field(default_factory=dict)
    constraints: tuple = ()
    found_constraints: tuple = ()
    skip_rows: int = 0
    comment: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.columns, list | tuple) or not all(isinstance(column, Column) for column in self.columns):
            raise BadSchema("columns: expected a list of columns")
        object.__setattr__(self, "columns", tuple(self.columns))
        for key in ("header", "strip"):
            if type(getattr(self, key)) is not bool:
                raise BadSchema(f"{shortened(getattr(self, key))}: expected true or false", key=key)
        if not is_text(self.description):
            raise BadSchema(f"{shortened(self.description)}: expected text", key="description")
        cut = self.separator
        if cut is not None and (not isinstance(cut, str) or len(cut) != 1 or not cut.isascii() or cut in '"\r\n'):
            raise BadSchema(f"{shortened(cut)}: expected one character, such as ';'", key="separator")
        self._check_skipped()
        if type(self.table) is int:
            # Most people write a year without quotes.
            object.__setattr__(self, "table", str(self.table))
        if self.table is not None and not (is_text(self.table) and self.table):
            raise BadSchema(f"{shortened(self.table)}: expected the name of a sheet or of a table", key="table")
        charset = charset_of(self.charset) if isinstance(self.charset, str) else None
        if charset is None:
            raise BadSchema(f"{shortened(self.charset)}: expected an encoding: {', '.join(CHARSETS)}", key="charset")
        object.__setattr__(self, "charset", charset)
        if self.quotes not in QUOTES:
            raise BadSchema(f"{shortened(self.quotes)}: expected one of {', '.join(QUOTES)}", key="quotes")
        if problem := problem_of_signs(self.decimal, self.thousands):
            raise BadSchema(problem, key="decimal")
        for column in self.columns:
            form = self.forms.get(column.name)
            if isinstance(form, NumberForm) and (problem := problem_of_signs(form.decimal, form.thousands)):
                raise BadSchema(f"{problem}, which the table declares", column.name, "decimal")
        names = Counter(column.name for column in self.columns)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise BadSchema("appears twice: expected each name once", twice[0])
        if not self.recorded:
            raise BadSchema("no column is modelled: expected at least one that is not of type drop or fake", key="columns")
        numbers = [column.apart if isinstance(column, Relative) else column for column in self.columns]
        numeric = sum(column.most_choices for column in numbers if isinstance(column, Numeric))
        if len(self.columns) > _MOST_COLUMNS or numeric > _MOST_CHOICES:
            raise BadSchema(f"expected at most {_MOST_COLUMNS} columns, of {_MOST_CHOICES} bins in all", key="columns")
        self._check_types()
        if self.strip:
            self._check_spaces()
        for key in ("constraints", "found_constraints"):
            listed = getattr(self, key)
            object.__setattr__(self, key, tuple(listed) if isinstance(listed, list | tuple) else listed)
        if self.constraints or self.found_constraints or any(isinstance(column, Relative) for column in self.columns):
            self._check_constraints()
        if self.label is not None:
            self._check_label()

    @property
    def recorded(self) -> list[Modelled]:
        """The columns that are read of a record, and that a synthetic row has."""
        columns = (column.value if isinstance(column, Relative) else column for column in self.columns)
        return [column for column in columns if isinstance(column, Modelled)]

    @property
    def modelled(self) -> list[Modelled]:
        """The columns as they are learned: all that are recorded, but for some that others determine; some as distances."""
        rules = self.rules
        return [rules.learned.get(column.name, column) for column in self.recorded if column.name not in rules.unlearned]

    @property
    def scaled(self) -> list[Numeric]:
        """The columns that are units, in their order."""
        return [column for column in self.modelled if isinstance(column, Numeric) and column.scaled]

    @cached_property
    def layout(self) -> Layout:
        """The scaled columns as units, then the groups of columns with something to choose, in their order.

        Raises:
            BadSchema: if a column is undecided (see `completed`), or none has two values.
        """
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
    def open(self) -> list[Open]:
        """The columns of which something is to be found privately."""
        return [column for column in self.columns if isinstance(column, Open)]

    @cached_property
    def forms(self) -> dict[str, WrittenForm]:
        """The forms of columns whose texts are written otherwise than programs do, by name."""
        signs = {"decimal": self.decimal, "thousands": self.thousands}
        columns = [column for column in self.recorded if isinstance(column, Numeric | Open)]
        return {column.name: form for column in columns if (form := column.form(**signs)) is not None}

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
        return replace(self, types=named_types(kinds, {c.name: c for c in self.recorded}) | dict(self.types))

    def filled(self, found: Mapping[str, Any]) -> TableSchema:
        """Return the same with what was found of columns, by their names.

        See `Open.filled`, `Numeric.with_density` and `Category.with_counts`.
        """

        def filled(column: Column) -> Column:
            if isinstance(column, Open):
                return column_of(column.name, column.filled(found[column.name]))
            if isinstance(column, Numeric) and column.name in found:
                return column.with_density(**found[column.name])
            if isinstance(column, Category) and column.name in found:
                return column.with_counts(**found[column.name])
            return replace(column, apart=filled(column.apart)) if isinstance(column, Relative) else column

        return replace(self, columns=tuple(map(filled, self.columns)))

    def completed(self, bins: int) -> TableSchema:
        """Return the same with so many bins (public) where none are declared; a label has a choice for each value."""

        def decided(column: Column) -> Column:
            if isinstance(column, Relative):
                return replace(column, apart=decided(column.apart))
            if not isinstance(column, Numeric):
                return column
            return column.with_bins(_MOST_LABELS if column.name == self.label else bins)

        return replace(self, columns=tuple(map(decided, self.columns)))

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
        return RowRules(columns, self.constraints, self.found_constraints, relatives)

    def decode(self, encoded: Encoded, random: np.random.Generator, before: int = 0) -> pa.RecordBatch:
        """Return records as a table of `arrow`: `values`, and `with_fakes`."""
        return self.with_fakes(self.values(encoded, random), random, before)

    def with_fakes(self, values: pa.RecordBatch, random: np.random.Generator, before: int = 0) -> pa.RecordBatch:
        """Return rows with columns that are made up; row numbers follow those of `before` records."""
        arrays = [
            column.made(values.num_rows, random, before) if isinstance(column, Fake) else values.column(column.name)
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

    def condition(self, said: Said) -> Condition:
        """Return a condition on a column; see `Schema.condition`.

        Example:
            >>> schema = TableSchema((column_of("age", {"type": "integer", "low": 0, "high": 99, "bins": 10}),))
            >>> condition = schema.condition(Said("age", ">=", ("65",)))
            >>> sorted(condition.may), sorted(condition.sure)
            ([6, 7, 8, 9], [7, 8, 9])
        """
        if said.column not in self.rules.columns:
            known = list(self.rules.columns)
            near = suggest(said.column, known)
            raise ValueError(f"column {shortened(said.column)}: expected one that is modelled: {listed(known)}{near}")
        column = self.rules.columns[said.column]
        wanted = value_set(column, said)

        relative = said.column in self.rules.relatives

        def holds(values: pa.Array) -> np.ndarray:
            # Distances that are added up may lead beyond the bounds.
            places = ticks_of(column, values) if relative else column.numbers(values, False, Counter())
            return wanted.holds(*places)

        if said.column not in self._groups or relative:
            return Condition(None, frozenset(), frozenset(), holds)
        may, sure = choices_of(self.rules.learned.get(said.column, column), wanted)
        shares = {}
        if may != sure and isinstance(column, Numeric) and not column.scaled:
            shares = {code: share for code, share in enumerate(column.shares(wanted.intervals)) if code in may - sure}
            may = {code for code in may if shares.get(code, 1.0) > 0.0}
        group, test = self._groups.index(said.column), None if may == sure else holds
        return Condition(group, frozenset(may), frozenset(sure), test, shares)

    def check_together(self, conditions: Sequence[Said]) -> None:
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

    def as_json(self) -> dict[str, Any]:
        about = {"kind": self.kind, "columns": [{"name": column.name, **column.fields()} for column in self.columns]}
        return about | self.table_fields()

    def table_fields(self) -> dict[str, Any]:
        """Return what is declared of the whole table, where it is not the default."""
        found = {key: getattr(self, key) for key, default in _DEFAULTS.items() if getattr(self, key) != default}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}

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
        made = []
        for column in columns:
            if not isinstance(column, dict):
                raise BadSchema(f"{shortened(column)}: expected an object with name and type", key="columns")
            column = dict(column)
            made.append(column_of(column.pop("name", None), column))
        return cls.of(made, fields)

    @classmethod
    def of(cls, columns: list[Column], fields: dict[str, Any]) -> TableSchema:
        """Make a schema from its columns, and what is declared of the whole table; raise BadSchema for foreign keys too."""
        for key in fields:
            if key not in _DEFAULTS:
                near = suggest(key, ["columns", *_DEFAULTS], shortened=True)
                raise BadSchema(f"unknown here: expected one of columns, {', '.join(_DEFAULTS)}{near}", key=str(key))
        return cls(tuple(columns), **{key: value for key, value in fields.items() if value is not None})

    @cached_property
    def _groups(self) -> list[str]:
        return [column.name for column in self.modelled if column.choices]

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
                    column.refuse("values", value, "no spaces around it, since they are cut off; or declare strip: false")

    def _check_skipped(self) -> None:
        if type(self.skip_rows) is not int or not 0 <= self.skip_rows <= _MOST_SKIPPED:
            raise BadSchema(f"{shortened(self.skip_rows)}: expected a number of lines, at most 1,000", key="skip_rows")
        marks = (self.comment,) if isinstance(self.comment, str) else self.comment
        expected = "expected a text by which lines begin that are no records, or a list of such, as in '#'"
        if not isinstance(marks, list | tuple) or len(marks) > _MOST_MARKS:
            raise BadSchema(f"{shortened(marks)}: {expected}", key="comment")
        for mark in marks:
            if (
                not is_text(mark)
                or not mark.strip()
                or not mark.isprintable()
                or mark[0] in '" '
                or len(mark) > _LONGEST_MARK
            ):
                raise BadSchema(f"{shortened(mark)}: {expected}, without a quote or a space in front", key="comment")
            if mark[0] == (self.separator or ","):
                told = "expected another text than the separator, by which lines with an empty first field begin"
                raise BadSchema(f"{shortened(mark)}: {told}", key="comment")
        object.__setattr__(self, "comment", tuple(marks))

    def _check_types(self) -> None:
        """Refuse types that are none, or hold less than what may stand in a column, so that a record would decide them."""
        if not isinstance(self.types, Mapping) or not all(isinstance(name, str) for name in self.types.values()):
            raise BadSchema(f"{shortened(self.types)}: expected a type for each of some columns", key="types")
        columns = {column.name: column for column in self.recorded} if self.types else {}
        wrong = {}
        for name, own in self.types.items():
            if name not in columns:
                near = suggest(name, columns)
                wrong[name] = f"{shortened(name)}: expected the name of a column that is modelled{near}"
            elif not holds(own, columns[name]):
                wrong[name] = (
                    f"column {shortened(name)}: {shortened(own)}: expected a type of pandas or Arrow that holds all "
                    "values which the schema allows, as in types: {age: int8, sex: category}"
                )
        if wrong:
            raise BadParts(wrong, "types")

    def _check_label(self) -> None:
        found = [column for column in self.modelled if column.name == self.label]
        if not found:
            near = suggest(self.label, [column.name for column in self.modelled])
            raise BadSchema(f"{shortened(self.label)}: expected the name of one of the modelled columns{near}", key="label")
        if isinstance(found[0], Open):
            return
        column = found[0].with_bins(_MOST_LABELS) if isinstance(found[0], Numeric) else found[0]
        if not 2 <= column.choices <= _MOST_LABELS or not all(map(column.alone, range(column.present))):
            expected = f"a column of 2 to {_MOST_LABELS:,} choices, each of one value, such as categories"
            raise BadSchema(f"{self.label!r} has {_values_in_words(found[0])}: expected {expected}", key="label")


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

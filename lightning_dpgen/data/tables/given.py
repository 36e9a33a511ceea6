"""Rows of a table of which some cells are given, and the others are to be filled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.reading import CLAMP, REFUSE
from lightning_dpgen.data.tables.arrays import Misfit, plain
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Modelled, shortened
from lightning_dpgen.data.tables.grouped import choices_of
from lightning_dpgen.data.tables.localized import read_in_form
from lightning_dpgen.data.tables.narrowing import Impossible
from lightning_dpgen.data.tables.row_rules import Cells
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.sources import written_source
from lightning_dpgen.data.tables.unmodelled import Dropped, Fake
from lightning_dpgen.data.tables.value_set import ValueSet
from lightning_dpgen.privacy.nearest_word import suggest
from lightning_dpgen.privacy.plain_text import listed
from lightning_dpgen.sampling.errors import BadRecords

# The word for a missing value that is given, where the schema has none of its own.
_MISSING = "missing"
# Problems that one message tells.
_MOST_TOLD = 5


@dataclass(frozen=True, eq=False, repr=False)
class GivenRows:
    """Rows of which some cells are given. Private, where they are of real persons.

    A column that is not there is to be filled, and so is a cell that is empty (null or NaN in tables with types). A value
    that is one of the column's `missing_values`, and not the empty text, is a missing value that is given; where the schema
    has no such text, the word ``missing`` is.

    Args:
        schema: the description of whole rows.
        cells: the given values of columns, by name.
        source: where the rows stand, for messages.
        numbers: (n,) of the rows there.
    """

    schema: TableSchema
    cells: Cells
    source: RowSource
    numbers: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: np.ndarray) -> GivenRows:
        some = pa.array(rows)
        cells = {name: (known[rows], values.take(some)) for name, (known, values) in self.cells.items()}
        return GivenRows(self.schema, cells, self.source, self.numbers[rows])

    @classmethod
    def read(cls, source: Any, schema: TableSchema) -> GivenRows:
        """Read rows from what `read_table` takes; columns of the schema may be missing.

        Raises:
            MissingData: if there is no such file.
            BadRecords: for a column that the schema has not, and for cells that it does not allow, or that contradict a
                declared constraint: the first of them, by row and column.

        Example:
            >>> from lightning_dpgen.data.tables.schema_file import parse_schema
            >>> schema = parse_schema("columns: {age: {type: integer, low: 0, high: 99, bins: 10}, ill: {type: boolean}}")
            >>> given = GivenRows.read(pa.table({"age": ["42", ""]}), schema)
            >>> given.allowed()[:, :10].sum(axis=1).tolist()
            [1.0, 10.0]
        """
        rows, columns = written_source(source, schema), {column.name: column for column in schema.columns}
        foreign = [name for name in rows.columns if name not in columns]
        if foreign:
            near = suggest(foreign[0], columns)
            raise BadRecords(
                f"{rows.where} has {listed(foreign)}, not in the schema: expected some of {listed(columns)}{near}"
            )
        names = [name for name in rows.columns if not isinstance(columns[name], Dropped)]
        recorded = {column.name: column for column in schema.recorded}
        found: dict[str, list[tuple[np.ndarray, pa.Array]]] = {name: [] for name in names}
        n, problems = 0, _Problems(rows)
        # Rows are counted by some column even where none is given.
        with closing(rows.blocks(names or rows.columns)) as blocks:
            for block in blocks:
                problems.before = n
                for name in names:
                    values = _plain(name, block.column(name), rows.where)
                    if name in recorded:
                        found[name].append(_read(recorded[name], values, schema, problems))
                    else:
                        found[name].append(_read_fake(columns[name], values, problems))
                n += block.rows.num_rows
        problems.tell()
        cells = {
            name: (
                np.concatenate([np.zeros(0, bool), *(known for known, _ in parts)]),
                pa.concat_arrays([pa.nulls(0, columns[name].arrow), *(values for _, values in parts)]),
            )
            for name, parts in found.items()
        }
        given = cls(schema, cells, rows, np.arange(n))
        problems.before = 0
        for row, name, problem in schema.rules.contradicted(cells):
            problems.add(row, name, f"{problem}; correct one of them, or leave it empty to have it filled")
        problems.tell()
        given._check_unscaled()
        return given

    @property
    def known(self) -> dict[str, np.ndarray]:
        """The rows (n,) in which the value of a column is given, by its name."""
        return {name: known for name, (known, _) in self.cells.items()}

    def allowed(self) -> np.ndarray:
        """Return for each choice of the layout 1 where a row may have it, else 0: (n, width) float32.

        A column that is learned by its distance from another one is told by its choices only where both are given.
        """
        layout = self.schema.layout
        found = np.ones((len(self), layout.width), np.float32)
        groups = [column for column in self.schema.modelled if column.choices]
        for column, span in zip(groups, layout.spans, strict=True):
            rows, values = self._told(column)
            if len(rows):
                codes = column.encode(values, True, Counter())[0]
                found[rows, span] = 0.0
                found[rows, span.start + codes] = 1.0
        return found

    def narrowed(self) -> Narrowed:
        """Return what the declared constraints leave of the other cells; it takes a while for each row."""
        found = Narrowed(self.allowed(), [], {})
        rules, layout = self.schema.rules, self.schema.layout
        groups = [column for column in self.schema.modelled if column.choices]
        places = {name: rules.places_of(name, self.cells) for name in self.cells if name in rules.columns}
        for row in range(len(self)):
            wanted = {
                name: ValueSet((), missing=True) if absent[row] else ValueSet(((numbers[row].item(),) * 2,))
                for name, (numbers, absent) in places.items()
                if self.cells[name][0][row]
            }
            try:
                left = rules.left(wanted)
            except Impossible as error:
                found.impossible[row] = f"no row that has what is given keeps the constraint {error}"
                left = {}
            for column, span in zip(groups, layout.spans, strict=True):
                if column.name in left and column.name not in rules.relatives:
                    may, _ = choices_of(column, left[column.name])
                    found.allowed[row, [span.start + code for code in range(column.choices) if code not in may]] = 0.0
            found.left.append(left)
        return found

    def moved(self, values: pa.RecordBatch, left: Sequence[Mapping[str, ValueSet]]) -> Cells:
        """Return the given cells, and of filled rows (n,) those whose values are not left to them, moved to the nearest."""
        rules, cells = self.schema.rules, dict(self.cells)
        solved = {part for _, part, _ in rules.solved(self.cells)}
        for name in {name for own in left for name in own} - solved - rules.derived - set(rules.relatives):
            column = rules.columns[name]
            numbers, absent = column.numbers(values.column(name), True, Counter())
            for row, own in enumerate(left):
                if name in own and not own[name].holds(numbers[row : row + 1], absent[row : row + 1])[0]:
                    one = own[name].nearest(numbers[row : row + 1], absent[row : row + 1])
                    numbers[row], absent[row] = one[0][0], one[1][0]
            cells[name] = np.ones(len(self), bool), column.restored(numbers, absent)
        return cells

    def matches(self, values: pa.RecordBatch, encoded: Encoded) -> np.ndarray:
        """Mark the filled rows (n,) in which what follows from given cells has the choices that were drawn for it.

        So a given distance from a column that is drawn counts as the model says, and so does a given sum, which is missing
        where a part of it is.
        """
        rules, fits, names = self.schema.rules, np.ones(len(self), bool), list(self.schema.choices)
        follow = [(name, self.cells[name][0]) for name in rules.relatives if name in self.cells]
        for constraint, part, rows in rules.solved(self.cells):
            follow.append((part, rows))
            others = [name for name in constraint.columns if name != constraint.derives]
            lacks = np.any([_is_null(values.column(name)) for name in others], axis=0)
            told = [known & _is_null(own) for known, own in (self.cells[name] for name in others if name in self.cells)]
            fits &= ~rows | np.any([*told, lacks == _is_null(self.cells[constraint.derives][1])], axis=0)
        follow = [(name, rows) for name, rows in follow if name in names and rows.any()]
        if follow:
            codes = self.schema.encode(values, outside=CLAMP).codes
            for name, rows in follow:
                group = names.index(name)
                fits &= ~rows | (codes[:, group] == encoded.codes[:, group])
        return fits

    def alike(self) -> list[np.ndarray]:
        """Return the rows that have the same cells, and these with the same values, together."""
        recorded = {column.name for column in self.schema.recorded}
        keys = [np.zeros(len(self), np.int64)]
        for name, (known, values) in self.cells.items():
            if name in recorded:
                codes = values.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
                keys.append(np.where(known, codes, -2))
        found = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)[1].ravel()
        return [np.flatnonzero(found == which) for which in range(found.max(initial=-1) + 1)]

    def place(self, row: int) -> str:
        """Return where a row stands."""
        return f"{self.source.where}, {self.source.place(int(self.numbers[row]))}"

    def refusal(self, problems: Mapping[int, str]) -> BadRecords:
        """Return the error about rows, each with what is wrong with it."""
        return _told([f"{self.place(row)}: {problem}" for row, problem in sorted(problems.items())])

    def _told(self, column: Modelled) -> tuple[np.ndarray, pa.Array]:
        """Return the rows of which the choice of a learned column is known, and what is learned of it there."""
        if column.name not in self.cells:
            return np.zeros(0, np.int64), pa.nulls(0, pa.string())
        known, values = self.cells[column.name]
        relative = self.schema.rules.relatives.get(column.name)
        if relative is None:
            rows = np.flatnonzero(known)
            return rows, values.take(pa.array(rows))
        empty = np.zeros(len(self), bool), pa.nulls(len(self), relative.value.arrow)
        other, starts = self.cells.get(relative.relative_to, empty)
        rows = np.flatnonzero(known & (other | _is_null(values)))
        of: Any = self.schema.rules.columns[relative.relative_to]
        # A missing value has no distance from any other one.
        starts = pc.if_else(pa.array(other), starts, of.restored(np.array([of.limits[0]]), np.array([False]))[0])
        some = {column.name: values.take(pa.array(rows)), relative.relative_to: starts.take(pa.array(rows))}
        return rows, relative.distances(some, of, True, Counter())

    def _check_unscaled(self) -> None:
        for column in self.schema.scaled:
            if column.name in self.cells and self.cells[column.name][0].any():
                raise BadRecords(
                    f"column {shortened(column.name)}: is learned without bins (encoding: scaled), so no model can be held "
                    "to a value of it: leave its cells empty"
                )


@dataclass(frozen=True)
class Narrowed:
    """The cells that constraints leave to rows of which some are given.

    Args:
        allowed: `GivenRows.allowed` without choices that no row has that keeps the constraints.
        left: for each row the values that are left of the columns of constraints.
        impossible: rows for which there are none, and why.
    """

    allowed: np.ndarray
    left: list[dict[str, ValueSet]]
    impossible: dict[int, str]


class _Problems:
    """Problems of cells, told together.

    Attributes:
        before: the number of rows before those that are counted.
    """

    def __init__(self, rows: RowSource) -> None:
        self._rows, self._found, self.before = rows, [], 0

    @property
    def enough(self) -> bool:
        """True where no more of them are told."""
        return len(self._found) > _MOST_TOLD

    def add(self, row: int, name: str, problem: str) -> None:
        place = f"{self._rows.where}, {self._rows.place(self.before + row)}"
        self._found.append((self.before + row, f"{place}: column {shortened(name)}: {problem}"))

    def tell(self) -> None:
        """Raise BadRecords if there is any."""
        if self._found:
            raise _told([text for _, text in sorted(self._found)])


def _told(texts: list[str]) -> BadRecords:
    """Return the error of some problems in one line, the first of them in full."""
    if len(texts) == 1:
        return BadRecords(texts[0])
    said = "; ".join(f"({place}) {text}" for place, text in enumerate(texts[:_MOST_TOLD], start=1))
    return BadRecords(said + ("; and more" if len(texts) > _MOST_TOLD else ""))


def _plain(name: str, values: pa.Array, where: str) -> pa.Array:
    try:
        return plain(values)
    except Misfit as misfit:
        raise BadRecords(f"{where}: column {shortened(name)}: {misfit.problem}; {misfit.advice}") from None


def _is_null(values: pa.Array) -> np.ndarray:
    return values.is_null().to_numpy(zero_copy_only=False)


def _filled(values: pa.Array) -> np.ndarray:
    """Mark the cells (n,) that are not empty."""
    empty = pc.is_null(values, nan_is_null=True)
    if pa.types.is_string(values.type):
        empty = pc.or_(empty, pc.equal(values.fill_null(""), ""))
    return ~empty.to_numpy(zero_copy_only=False)


def _read(column: Modelled, values: pa.Array, schema: TableSchema, problems: _Problems) -> tuple[np.ndarray, pa.Array]:
    """Return where values of a column are given (n,), missing ones too, and the values."""
    rows = np.flatnonzero(_filled(values))
    missing = column.missing_values if column.missing else ()
    while len(rows):
        some = values.take(pa.array(rows))
        if pa.types.is_string(some.type) and _takes_word(column):
            some = pc.if_else(pc.equal(some, _MISSING), None, some)
        try:
            if column.name in schema.forms:
                some = read_in_form(some, schema.forms[column.name], missing)
            found = column.restored(*column.numbers(some, column.clamps(REFUSE), Counter()))
        except Misfit as misfit:
            row = 0 if misfit.row is None else misfit.row
            # Other advice is about schemas and records to learn from.
            problems.add(int(rows[row]), column.name, f"{misfit.problem}; correct it, or leave it empty to have it filled")
            # A column of another type has nothing that could be read.
            rows = np.zeros(0, np.int64) if misfit.row is None or problems.enough else np.delete(rows, row)
            continue
        return _at(rows, found, len(values))
    return _at(rows, pa.nulls(0, column.arrow), len(values))


def _takes_word(column: Modelled) -> bool:
    """Tell whether the word for a missing value has no other meaning in a column, and there is no other text for one."""
    values = column.present_names if isinstance(column, Category) else ()
    return column.missing and column.missing_values == ("",) and _MISSING not in map(str.lower, values)


def _read_fake(column: Fake, values: pa.Array, problems: _Problems) -> tuple[np.ndarray, pa.Array]:
    """Return where values of a made-up column are given, and these: they are kept, and nothing follows from them."""
    rows = np.flatnonzero(_filled(values))
    try:
        some = values.take(pa.array(rows)).cast(column.arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        expected = f"expected values of type {column.arrow}; correct them, or leave them empty"
        problems.add(int(rows[0]), column.name, expected)
        return _at(rows[:0], pa.nulls(0, column.arrow), len(values))
    return _at(rows, some, len(values))


def _at(rows: np.ndarray, values: pa.Array, n: int) -> tuple[np.ndarray, pa.Array]:
    """Return which of n cells are these rows, and the values (n,) with these values there."""
    places = np.full(n, -1)
    places[rows] = np.arange(len(rows))
    return places >= 0, values.take(pa.array(places, mask=places < 0))

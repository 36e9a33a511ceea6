"""Rows of a table of which some cells are given, and the others are to be filled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.plain_text import listed, say_count
from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.reading import CLAMP, REFUSE
from lightning_dpgen.data.tables.arrays import Misfit, is_empty, plain, quote_cell
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Modelled, shortened
from lightning_dpgen.data.tables.grouped import choices_of
from lightning_dpgen.data.tables.made_up import Dropped, Fake
from lightning_dpgen.data.tables.narrowing import Impossible
from lightning_dpgen.data.tables.row_rules import Cells, with_cells
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.sources import read_in_form, separator_advice, written_source
from lightning_dpgen.data.tables.value_set import MISSING, ValueSet
from lightning_dpgen.sampling.errors import BadRecords

# Numbers of more decimals than are declared, in words; a smaller relative difference is none.
_ROUNDED, _NEAR = "more decimals than are declared", 1e-12
# Problems that one message tells, and rows that it names for one of them.
_MOST_TOLD, _MOST_PLACES = 5, 20


@dataclass(frozen=True, eq=False, repr=False)
class GivenRows:
    """Rows of which some cells are given. Private, where they are of real persons.

    A column that is not there is to be filled, and so is a cell that is empty (null or NaN in tables with types). A value
    that is one of the column's `missing_values`, and not the empty text, is a missing value that is given; where the schema
    has no such text, the word ``missing`` is.

    Args:
        schema: the description of whole rows.
        cells: the given values of columns, by name, as a model knows them.
        source: where the rows stand, for messages.
        numbers: (n,) of the rows there.
        kept: values that stand in completed rows as they were given, though no model knows them: those of made-up columns,
            and those that are moved to what is declared before a model sees them.
        notes: what was moved or rounded, a line for each.
    """

    schema: TableSchema
    cells: Cells
    source: RowSource
    numbers: np.ndarray
    kept: Cells
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: np.ndarray) -> GivenRows:
        some = pa.array(rows)
        cells, kept = (
            {name: (known[rows], values.take(some)) for name, (known, values) in own.items()}
            for own in (self.cells, self.kept)
        )
        return replace(self, cells=cells, numbers=self.numbers[rows], kept=kept)

    @classmethod
    def read(cls, source: Any, schema: TableSchema) -> GivenRows:
        """Read rows from what `read_table` takes; columns of the schema may be missing.

        Raises:
            MissingData: if there is no such file.
            BadRecords: for a column that the schema has not, and for cells that it does not allow, or that contradict a
                declared constraint: the first few of them, by row and column.

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
            near = separator_advice(rows, columns) or suggest(foreign[0], columns)
            raise BadRecords(
                f"{rows.where} has {listed(foreign)}, not in the schema: expected some of {listed(columns)}{near}"
            )
        names = [name for name in rows.columns if not isinstance(columns[name], Dropped)]
        recorded = {column.name: column for column in schema.recorded}
        given_cells: dict[str, list[tuple[np.ndarray, pa.Array]]] = {name: [] for name in names if name in recorded}
        made_up: dict[str, list[pa.Array]] = {name: [] for name in names if name not in recorded}
        moved: dict[str, list[_Moved]] = {name: [] for name in given_cells}
        n, problems = 0, _Problems(rows)
        # Rows are counted by some column even where none is given.
        with closing(rows.blocks(names or rows.columns)) as blocks:
            for block in blocks:
                problems.before = n
                for name in names:
                    values = _plain(name, block.column(name), rows.where)
                    if name in recorded:
                        cells, own = _read(recorded[name], values, schema, problems)
                        given_cells[name].append(cells)
                        moved[name].append(own)
                    else:
                        made_up[name].append(values)
                n += block.rows.num_rows
        problems.tell()
        cells = {name: _joined(parts, columns[name].arrow) for name, parts in given_cells.items()}
        kept = {name: _joined(parts, columns[name].arrow) for name, parts in moved.items() if any(parts)}
        kept |= {name: _made_up(columns[name], parts) for name, parts in made_up.items()}
        said = tuple(line for name, parts in moved.items() for line in _said(name, parts, n))
        given = cls(schema, cells, rows, np.arange(n), kept, said)
        problems.before = 0
        for row, name, problem in schema.rules.contradicted(cells):
            problems.add(row, name, f"{problem}; correct one of them, or leave it empty to have it filled")
        problems.tell()
        given._check_unscaled()
        return given

    @property
    def arrow(self) -> pa.Schema:
        """The columns of completed rows, which are those of the schema but for made-up ones that are given as text."""
        fields = [
            field.with_type(self.kept[field.name][1].type) if field.name in self.kept else field
            for field in self.schema.arrow
        ]
        return pa.schema(fields)

    def complete(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Return whole rows (n,) with all that is given as it was given."""
        columns = []
        for field in self.arrow:
            column = with_cells(field.name, values.column(field.name), self.cells).cast(field.type)
            columns.append(with_cells(field.name, column, self.kept))
        return pa.record_batch(columns, schema=self.arrow)

    @property
    def known(self) -> dict[str, np.ndarray]:
        """The rows (n,) in which the value of a column is given, by its name."""
        return {name: known for name, (known, _) in self.cells.items()}

    def allowed(self) -> np.ndarray:
        """Return for each choice of the layout 1 where a row may have it, else 0: (n, width) float32.

        A column that is learned by its distance from another one is told by its choices only where both are given.
        """
        layout = self.schema.layout
        allowed = np.ones((len(self), layout.width), np.float32)
        groups = [column for column in self.schema.modelled if column.choices]
        for column, span in zip(groups, layout.spans, strict=True):
            rows, values = self._told(column)
            if len(rows):
                codes = column.encode(values, True, Counter())[0]
                allowed[rows, span] = 0.0
                allowed[rows, span.start + codes] = 1.0
        return allowed

    def narrowed(self) -> Narrowed:
        """Return what the declared constraints leave of the other cells; it takes a while for each row."""
        rows_left = Narrowed(self.allowed(), [], {})
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
                values = rules.left(wanted)
            except Impossible as error:
                rows_left.impossible[row] = f"no row that has what is given keeps the constraint {error}"
                values = {}
            for column, span in zip(groups, layout.spans, strict=True):
                if column.name in values and column.name not in rules.relatives:
                    may, _ = choices_of(column, values[column.name])
                    rows_left.allowed[row, [span.start + code for code in range(column.choices) if code not in may]] = 0.0
            rows_left.left.append(values)
        return rows_left

    def moved(self, values: pa.RecordBatch, allowed: Sequence[Mapping[str, ValueSet]]) -> Cells:
        """Return the given cells, and of filled rows (n,) those whose values are not left to them, moved to the nearest."""
        rules, cells = self.schema.rules, dict(self.cells)
        for name in {name for sets in allowed for name in sets} - rules.derived - set(rules.relatives):
            column = rules.columns[name]
            numbers, absent = column.numbers(values.column(name), True, Counter())
            for row, sets in enumerate(allowed):
                if name in sets and not sets[name].holds(numbers[row : row + 1], absent[row : row + 1])[0]:
                    one = sets[name].nearest(numbers[row : row + 1], absent[row : row + 1])
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
        """Return the error about rows that cannot be completed, and why: rows of the same reason are told together."""
        alike: dict[str, list[int]] = {}
        for row, problem in sorted(problems.items()):
            alike.setdefault(problem, []).append(row)
        reasons = []
        for problem, rows in list(alike.items())[:_MOST_TOLD]:
            places = [self.source.place(int(self.numbers[row])) for row in rows[:_MOST_PLACES]]
            rest = f" and {len(rows) - len(places):,} more" * (len(rows) > len(places))
            reasons.append(f"{', '.join(places)}{rest}: {problem}")
        reasons += ["more reasons"] * (len(alike) > _MOST_TOLD)
        told = f"{self.source.where}: {say_count(len(problems), 'row')} of {len(self):,} cannot be completed: "
        advice = "; leave such a row out, or correct what is given in it"
        return BadRecords(told + "; ".join(reasons) + advice)

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


@dataclass(frozen=True)
class _Moved:
    """Values of a column that were moved, as they were given.

    Args:
        rows: (n,) bool, where they are.
        values: (n,) the values, null elsewhere.
        counts: by what was wrong and what they are moved to, in words, how many.
    """

    rows: np.ndarray
    values: pa.Array
    counts: Counter[tuple[str, str | None]]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.rows, self.values))

    def __bool__(self) -> bool:
        return bool(self.counts)


def _read(
    column: Modelled, values: pa.Array, schema: TableSchema, problems: _Problems
) -> tuple[tuple[np.ndarray, pa.Array], _Moved]:
    """Return where values of a column are given (n,), missing ones too, and the values; and what of them was moved."""
    rows = np.flatnonzero(~is_empty(values))
    missing = column.missing_values if column.missing else ()
    while len(rows):
        some = values.take(pa.array(rows))
        if pa.types.is_string(some.type) and _takes_word(column):
            some = pc.if_else(pc.equal(some, MISSING), None, some)
        try:
            if column.name in schema.forms:
                some = read_in_form(some, schema.forms[column.name], missing)
            some, counted = column.readable(some), Counter()
            restored = column.restored(*column.numbers(some, column.clamps(REFUSE), counted))
            moved = _moved(column, some) if counted else []
        except Misfit as misfit:
            row = 0 if misfit.row is None else misfit.row
            # Other advice is about schemas and records to learn from.
            problems.add(int(rows[row]), column.name, f"{misfit.problem}; correct it, or leave it empty to have it filled")
            # A column of another type has nothing that could be read.
            rows = np.zeros(0, np.int64) if misfit.row is None or problems.enough else np.delete(rows, row)
            continue
        places = np.concatenate([np.zeros(0, np.int64), *(place for _, place, _ in moved)])
        moved_values = pa.concat_arrays([pa.nulls(0, column.arrow), *(array for _, _, array in moved)])
        counts = Counter({about: len(place) for about, place, _ in moved})
        rest = pa.array(np.delete(np.arange(len(rows)), places))
        if rounded := _rounded(some.take(rest), restored.take(rest)):
            counts[_ROUNDED, None] = rounded
        return _at(rows, restored, len(values)), _Moved(*_at(rows[places], moved_values, len(values)), counts)
    nothing = _at(rows, pa.nulls(0, column.arrow), len(values))
    return nothing, _Moved(*nothing, Counter())


def _moved(column: Modelled, values: pa.Array) -> list[tuple[tuple[str, str | None], np.ndarray, pa.Array]]:
    """Return the values that are moved, none of which is empty: what is wrong and what they become, rows, and values.

    Raises:
        Misfit: for one that has no place in a column of its type.
    """
    present, moved = np.flatnonzero(~column.is_missing(values)), []
    for beyond in column.beyond(values.take(pa.array(present))):
        rows = present[beyond.rows]
        try:
            kept = values.take(pa.array(rows)).cast(column.arrow)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise Misfit(int(rows[0]), f"{quote_cell(values, int(rows[0]))} is {beyond.what}", "correct it") from None
        moved.append(((beyond.what, beyond.becomes), rows, kept))
    return moved


def _rounded(values: pa.Array, restored: pa.Array) -> int:
    """Count the numbers that are not those that were given."""
    if not pa.types.is_integer(restored.type) and not pa.types.is_floating(restored.type):
        return 0
    try:
        given = values.filter(restored.is_valid()).cast(pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # Words stand for numbers, or they are moments.
        return 0
    now = restored.drop_null().cast(pa.float64()).to_numpy(zero_copy_only=False)
    return int((np.abs(given - now) > _NEAR * np.maximum(np.abs(given), np.abs(now))).sum())


def _said(name: str, parts: Sequence[_Moved], n: int) -> Iterator[str]:
    """Yield a line for each way in which values of a column were moved or rounded."""
    counts: Counter[tuple[str, str | None]] = Counter()
    for own in parts:
        counts.update(own.counts)
    for (what, becomes), count in counts.items():
        beginning = f"column {shortened(name)}: {what} in {count:,} of {say_count(n, 'row')}"
        if what == _ROUNDED:
            yield f"{beginning}: such a value is rounded"
        else:
            as_what = "a missing value" if becomes is None else becomes
            yield f"{beginning}: it stays as it was given, and empty cells of its row are filled as for {as_what}"


def _joined(parts: Sequence[Iterable[Any]], kind: pa.DataType) -> tuple[np.ndarray, pa.Array]:
    """Return the cells of all blocks, which rows (n,) and values (n,)."""
    known, values = zip(*parts, strict=True) if parts else ((), ())
    return np.concatenate([np.zeros(0, bool), *known]), pa.concat_arrays([pa.nulls(0, kind), *values])


def _takes_word(column: Modelled) -> bool:
    """Tell whether the word for a missing value has no other meaning in a column, and there is no other text for one."""
    values = column.present_names if isinstance(column, Category) else ()
    return column.missing and column.missing_values == ("",) and MISSING not in map(str.lower, values)


def _made_up(column: Fake, parts: Sequence[pa.Array]) -> tuple[np.ndarray, pa.Array]:
    """Return where values of a made-up column are given, and these: as text where their type would change them."""
    values = pa.chunked_array(parts).combine_chunks() if parts else pa.nulls(0, column.arrow)
    known = ~is_empty(values)
    given = pc.if_else(pa.array(known), values, None)
    try:
        restored = given.cast(column.arrow)
        # An identifier such as 007 is no number.
        if not pa.types.is_string(given.type) or restored.cast(pa.string()).equals(given):
            return known, restored
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    return known, given.cast(pa.string())


def _at(rows: np.ndarray, values: pa.Array, n: int) -> tuple[np.ndarray, pa.Array]:
    """Return which of n cells are these rows, and the values (n,) with these values there."""
    places = np.full(n, -1)
    places[rows] = np.arange(len(rows))
    return places >= 0, values.take(pa.array(places, mask=places < 0))

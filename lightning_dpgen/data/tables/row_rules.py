"""The constraints of a table at work: records are held to them, and synthetic rows computed, checked and repaired."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.conditions import EQUAL
from lightning_dpgen.data.reading import REFUSE
from lightning_dpgen.data.tables.arrays import BadValue, Misfit
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import BadSchema, Modelled
from lightning_dpgen.data.tables.constraint_texts import parse_constraints
from lightning_dpgen.data.tables.constraints import Comparison, Constraint, Function, Rows
from lightning_dpgen.data.tables.grouped import MOST_KINDS, Grouped
from lightning_dpgen.data.tables.impossible_pairs import impossible_pairs
from lightning_dpgen.data.tables.narrowing import Impossible, narrowed
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.relative import Relative, ordered, ticks_of
from lightning_dpgen.data.tables.search import Search
from lightning_dpgen.data.tables.value_set import ValueSet, all_values

# The keys of a schema.
CONSTRAINTS, FOUND = "constraints", "found_constraints"
# The words for what is done to a record that breaks a constraint.
REPAIRED, LEFT_OUT = "repaired", "left out"
# The made-up rows by which it is seen whether any row can keep the constraints.
_TRIED = 1024
# Repairs of one constraint may break another one, so all are made again: so many in all, or five times.
_REPAIRS = 5000
# The share of missing values in made-up rows, where there may be any.
_ABSENT = 0.25
# The share of made-up rows that must keep all constraints, perhaps once they are repaired.
_FOUND = 0.01
# Constraints that a message names, and sets of them that are looked at for those to name.
_MOST_TOLD, _MOST_TRIALS, _LONGEST_TOLD = 4, 60, 200
# Categories times constraints for which it is looked at whether a row can have them.
_MOST_LOOKED_AT = 20_000

# Values of columns that are given: by name the rows (n,) where they are, and the values (n,), anything elsewhere.
Cells = Mapping[str, tuple[np.ndarray, pa.Array]]


class RowRules:
    """The constraints of the rows of a table. All that they do to a row depends on that row alone.

    Args:
        columns: those that are read, by name.
        declared: constraints of records and synthetic rows, as a schema declares them.
        found: constraints of synthetic rows alone.
        relatives: the columns that are learned by their distance from another one.
        searches: those of which something is to be found: no constraint may speak of them.

    Attributes:
        derived: the names of the columns that others determine.
        unlearned: those of them that are not learned beside the others.
        relatives: by name, in an order in which each follows the one that it is relative to.

    Raises:
        BadSchema: for what is no constraint.
    """

    def __init__(
        self,
        columns: Mapping[str, Modelled],
        declared: Sequence,
        found_texts: Sequence,
        relatives: Sequence[Relative] = (),
        searches: Sequence[Search] = (),
    ) -> None:
        self.columns = columns
        known = dict(columns) | {search.name: search for search in searches}
        stated = parse_constraints(declared, known, CONSTRAINTS)
        self.derived = frozenset(c.derives for c in stated if c.derives is not None)
        self.unlearned = self.derived - {c.derives for c in stated if isinstance(c, Function) and c.coarse}
        self.relatives = {column.name: column for column in ordered(relatives, known, self.derived)}
        distances = [column.constraint(columns[column.relative_to]) for column in self.relatives.values()]
        self._declared = [*stated, *distances]
        self._impossible: dict[tuple[str, str], np.ndarray] | None = None
        self._all = [*self._declared, *parse_constraints(found_texts, known, FOUND)]

    @cached_property
    def learned(self) -> dict[str, Modelled]:
        """The columns that are learned in another form, by name: as distances, or rare values of categories together."""
        grouped = {column.name: Grouped.of(column, self._kinds[column.name][0]) for column in self._counted}
        return grouped | {name: column.apart for name, column in self.relatives.items()}

    @property
    def ungrouped(self) -> dict[str, list[str]]:
        """The declared constraints that groups of rare values pay no regard to, by the name of the column."""
        return {name: texts for name, (_, texts) in self._kinds.items() if texts}

    @property
    def _counted(self) -> list[Category]:
        return [column for column in self.columns.values() if isinstance(column, Category) and column.counts]

    @cached_property
    def _kinds(self) -> dict[str, tuple[np.ndarray | None, list[str]]]:
        return {column.name: self._kinds_of(column) for column in self._counted}

    def _kinds_of(self, column: Category) -> tuple[np.ndarray | None, list[str]]:
        """Return for each value of a column a number, in which values differ that declared constraints do not treat alike.

        Constraints with very many kinds of values are left out, since each kind is learned by itself; their texts follow.
        """
        count = column.present
        rows = {column.name: (np.arange(count), np.zeros(count, bool))}
        all_kinds = list[tuple[np.ndarray, str]]()
        for constraint in self._declared:
            all_kinds += [(codes, constraint.text) for codes in constraint.kinds(rows)]
            if isinstance(constraint, Function) and constraint.of.name in rows:
                # Another column may follow from this one.
                self._compute([constraint], rows, count)
        kinds, left_out = np.zeros(count, np.int64), dict[str, None]()
        for codes, text in sorted(all_kinds, key=lambda one: len(np.unique(one[0]))):
            both = np.unique(np.stack([kinds, codes]), axis=1, return_inverse=True)[1].ravel()
            if both.max() < MOST_KINDS:
                kinds = both
            else:
                left_out[text] = None
        return kinds if kinds.any() else None, list(left_out)

    @property
    def texts(self) -> tuple[list[str], list[str]]:
        """The constraints in words: those that are declared, and those of synthetic rows alone."""
        count = len(self._declared)
        return [c.text for c in self._all[:count]], [c.text for c in self._all[count:]]

    @property
    def tied(self) -> list[set[str]]:
        """The names of the columns of each constraint."""
        return [set(constraint.columns) for constraint in self._all]

    @property
    def in_order(self) -> list[tuple[Numeric, Numeric]]:
        """Pairs of dates or times of which the second one is declared to be no earlier, and is learned by itself."""
        pairs = []
        for one in self._declared:
            if not isinstance(one, Comparison) or one.operator == EQUAL:
                continue
            sides = (one.left, one.right) if one.operator in ("<", "<=") else (one.right, one.left)
            columns = [column for side in sides for column in side.columns]
            if all(column.type in ("date", "datetime") for column in columns) and columns[1].name not in self.relatives:
                pairs.append((columns[0], columns[1]))
        return pairs

    @property
    def restrict(self) -> bool:
        """True where a synthetic row can break one: computed columns keep theirs, but may lie beyond their bounds."""
        return any(c.derives is None or isinstance(self.columns[c.derives], Numeric) for c in self._all)

    def check(self) -> None:
        """Refuse constraints that no row can keep.

        Raises:
            BadSchema: naming the constraint.
        """
        for place, constraint in enumerate(self._all):
            key = CONSTRAINTS if place < len(self._declared) else FOUND
            if key == FOUND and constraint.derives is not None:
                raise BadSchema(f"{constraint.text}: expected no column that others determine", key=key)
        for is_kept, what in ((self._is_possible, "no row keeps"), (self._is_found, "no row was found that keeps")):
            if self._all and not is_kept(self._all):
                texts = [constraint.text[:_LONGEST_TOLD] for constraint in _needed(self._all, is_kept)]
                together = " and ".join(texts[:_MOST_TOLD]) + (" and others" if len(texts) > _MOST_TOLD else "")
                problem = f"{what} {together} within the bounds of the columns: correct {'one of ' * (len(texts) > 1)}"
                problem += f"{'them' if len(texts) > 1 else 'it'}, or the bounds"
                raise BadSchema(problem, key=CONSTRAINTS if self._declared else FOUND)

    def check_together(self, wanted: Sequence[tuple[str, ValueSet]]) -> None:
        """Refuse conditions on columns where it is sure that no row fulfils them.

        Args:
            wanted: columns, each perhaps several times, and the values that a condition asks for.

        Raises:
            ValueError: naming the column, or the constraint.
        """
        values = {name: all_values(column) for name, column in self.columns.items() if isinstance(column, Modelled)}
        for name, own in wanted:
            values[name] = values[name].common(own)
            if not values[name].intervals and not values[name].missing:
                raise ValueError(f"column {name!r}: no record fulfils all conditions on it: leave some out")
        try:
            narrowed(self._all, self.columns, values)
        except Impossible as found:
            raise ValueError(f"no record that keeps the constraint {found} fulfils that: leave some out") from None

    def unreachable(self) -> Iterator[tuple[str, str]]:
        """Yield columns and what their constraints leave no row, in words: values of categories, or every value."""
        names = _names(self._all)
        kinds = {name: self.columns[name] for name in names if not isinstance(self.columns[name], Numeric)}
        if sum(column.present for column in kinds.values()) * len(self._all) > _MOST_LOOKED_AT:
            return
        values = {name: all_values(self.columns[name]) for name in names}
        for name, left in narrowed(self._all, self.columns, values).items():
            if not left.intervals:
                yield name, "by the constraints no row has a value here: it is missing everywhere"
        for name, column in kinds.items():
            for code, value in enumerate(column.present_names):
                try:
                    narrowed(self._all, self.columns, values | {name: ValueSet(((code, code),))})
                except Impossible as found:
                    yield name, f"no row has {value} and keeps the constraint {found}"

    def _is_possible(self, constraints: Sequence[Constraint]) -> bool:
        """Tell whether nothing shows that no row keeps these constraints."""
        try:
            narrowed(constraints, self.columns, self._limits(constraints))
        except Impossible:
            return False
        return True

    def _is_found(self, constraints: Sequence[Constraint]) -> bool:
        """Tell whether a made-up row keeps these constraints, perhaps once it is repaired."""
        try:
            values = narrowed(constraints, self.columns, self._limits(constraints))
        except Impossible:
            return False
        random = np.random.default_rng(0)
        rows = {name: _made_up(self.columns[name], values[name], random) for name in _names(constraints)}
        self._compute(constraints, rows, _TRIED)
        # Rows of a model are repaired in the same way, and a few of them are not enough for a release.
        return self._repair(constraints, rows).mean() >= _FOUND

    def conformed(
        self, batch: pa.RecordBatch, *, outside: str = "refuse", counted: Counter[str] | None = None
    ) -> tuple[pa.RecordBatch, np.ndarray]:
        """Return the records that keep the declared constraints, and which of (n,) they are.

        Args:
            batch: with the columns that are read. Private.
            outside: ``refuse``, or ``clamp``, where columns do not say: a record that breaks a constraint on a column whose
                values are clamped is repaired, or left out if it cannot be.
            counted: what was repaired and left out is added to it, each record that is left out under one constraint:
                private.

        Raises:
            BadValue: naming the constraint and the row of the first record that breaks one.
        """
        every = np.ones(batch.num_rows, bool)
        if not self._declared:
            return batch, every
        counted = Counter() if counted is None else counted
        rows = self._rows(batch, _names(self._declared), outside, counted)
        broken = self.broken_by(rows)
        refused = [rows_of for constraint, rows_of in broken if not self.repairs(constraint, outside)]
        if refused and (wrong := np.logical_or.reduce(refused)).any():
            raise self._refusal(int(wrong.argmax()), rows, outside)
        if not any(self.columns[name].clamps(outside) for name in rows):
            return batch, every
        changed, kept = self.repair(broken, rows)
        for constraint, what, rows_of in changed:
            counted[f"{constraint.text}: {what}"] += int(rows_of.sum())
        return self._with_rows(batch, rows).filter(pa.array(kept)), kept

    def repairs(self, constraint: Constraint, outside: str) -> bool:
        """Tell whether records that break a constraint are repaired: where one of its columns clamps."""
        return any(self.columns[name].clamps(outside) for name in constraint.columns)

    def places(self, batch: pa.RecordBatch) -> Rows:
        """Return the places of the values of records about which constraints are, all moved into what is declared."""
        return self._rows(batch, _names(self._declared), None, Counter())

    def broken_by(self, rows: Rows) -> list[tuple[Constraint, np.ndarray]]:
        """Return each declared constraint, and the rows (n,) that break it."""
        return [(constraint, ~constraint.holds(rows)) for constraint in self._declared]

    def repair(
        self, broken: Sequence[tuple[Constraint, np.ndarray]], rows: Rows
    ) -> tuple[list[tuple[Constraint, str, np.ndarray]], np.ndarray]:
        """Repair rows in place, as records are.

        Returns:
            The constraints with what became of rows that broke them, in a word, and these rows (n,), each that is left out
            once; and which rows (n,) keep all constraints in the end.
        """
        kept, changed = self._repair(self._declared, rows), []
        lost = ~kept
        for constraint, rows_of in broken:
            changed += [(constraint, REPAIRED, rows_of & kept), (constraint, LEFT_OUT, rows_of & lost)]
            lost = lost & ~rows_of
        return [one for one in changed if one[2].any()], kept

    def with_computed(self, arrays: Mapping[str, pa.Array], count: int, cells: Cells) -> dict[str, pa.Array]:
        """Return the columns of so many synthetic rows from what was learned: distances are added, others are computed.

        Args:
            cells: the values of columns that are given, by which others are computed.
        """
        arrays = {
            name: array if name in self.relatives else with_cells(name, array, cells) for name, array in arrays.items()
        }
        for name, column in self.relatives.items():
            other = column.relative_to
            restored = column.restored(arrays[name], arrays[other], self.columns[other])
            arrays[name] = with_cells(name, restored, cells)
        if not self.derived:
            return arrays
        for constraint, part, open_rows in self.solved(cells):
            rows = self._made(arrays, [name for name in constraint.columns if name not in self.derived])
            rows |= {name: self.places_of(name, cells) for name in constraint.columns if name in self.derived & set(cells)}
            constraint.solve(rows, part, open_rows)
            arrays[part] = self.columns[part].restored(*rows[part])
        known = [name for name in _names(self._declared) if name not in self.derived]
        rows = self._made(arrays, known)
        self._compute(self._declared, rows, count)
        computed = {name: self.columns[name].restored(*rows[name]) for name in self.derived}
        return arrays | {name: with_cells(name, array, cells) for name, array in computed.items()}

    def places_of(self, name: str, cells: Cells) -> tuple[np.ndarray, np.ndarray]:
        """Return the places (n,) of the given values of a column, and where none is, or where it is missing (n,)."""
        known, values = cells[name]
        rows = np.flatnonzero(known)
        found, none = self.columns[name].numbers(values.take(pa.array(rows)), True, Counter())
        numbers, absent = np.zeros(len(known), found.dtype), np.ones(len(known), bool)
        numbers[rows], absent[rows] = found, none
        return numbers, absent

    def solved(self, cells: Cells) -> list[tuple[Comparison, str, np.ndarray]]:
        """Return the sums that are given where a part is not: the constraint, that part, and the rows (n,), each once."""
        solvable = []
        for constraint in self._declared:
            others = self.derived.intersection(constraint.columns) - {constraint.derives} - set(cells)
            if not isinstance(constraint, Comparison) or constraint.derives not in cells or others:
                continue
            unsolved = cells[constraint.derives][0].copy()
            parts = constraint.solvable
            # The rest of a sum may be no number of few decimals.
            for column in sorted(parts, key=lambda part: -part.scale.unit if part.scale.whole else -np.inf):
                known = cells[column.name][0] if column.name in cells else np.zeros(len(unsolved), bool)
                if column.name not in self.derived and (unsolved & ~known).any():
                    solvable.append((constraint, column.name, unsolved & ~known))
                    unsolved = unsolved & known
        return solvable

    def kept(self, values: pa.RecordBatch, known: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
        """Mark the synthetic rows (n,) that keep all constraints.

        Args:
            known: by column the rows (n,) in which its value was given. A constraint that noisy tables have shown, and was
                never declared, is not asked of what was given.
        """
        rows = self._made(values, _names(self._all))
        if not rows:
            return np.ones(values.num_rows, bool)
        if not known:
            return self._kept(self._all, rows)
        kept = np.ones(values.num_rows, bool) & self._kept(self._declared, rows)
        for constraint in self._all[len(self._declared) :]:
            given = [known.get(name, np.zeros(len(kept), bool)) for name in constraint.columns]
            kept &= constraint.holds(rows) | np.logical_and.reduce(given)
        return kept

    def contradicted(self, cells: Cells) -> Iterator[tuple[int, str, str]]:
        """Yield each row that breaks a declared constraint by given values alone, one of its columns, and what is wrong.

        The first that a row breaks of constraints about the same columns is told, such as the order of two dates, and not
        also the distance between them.
        """
        reported = defaultdict[int, list[set[str]]](list)
        rows = {name: self.places_of(name, cells) for name in _names(self._declared) if name in cells}
        for constraint in self._declared:
            if all(name in cells for name in constraint.columns):
                sure = np.logical_and.reduce([cells[name][0] for name in constraint.columns])
                for row in np.flatnonzero(sure & ~constraint.holds(rows)).tolist():
                    if not any(names <= set(constraint.columns) for names in reported[row]):
                        reported[row].append(set(constraint.columns))
                        yield row, constraint.columns[0], self._told(constraint, row, rows)

    def left(self, values: Mapping[str, ValueSet]) -> dict[str, ValueSet]:
        """Return the values that columns may have in rows that keep the declared constraints: a superset of them.

        Args:
            values: of some columns, what they may have.

        Raises:
            Impossible: for values with which no row keeps a constraint, which it names.
        """
        every = {name: all_values(self.columns[name]) for name in _names(self._declared)}
        every |= {name: own for name, own in values.items() if name in every}
        return narrowed(self._declared, self.columns, every)

    def repaired(
        self, values: pa.RecordBatch, known: Mapping[str, np.ndarray] | None = None
    ) -> tuple[pa.RecordBatch, np.ndarray]:
        """Return synthetic rows with those repaired that break a constraint, and which (n,) keep all then.

        Args:
            known: by column the rows (n,) in which its value stays.
        """
        rows = self._made(values, _names(self._all))
        kept = self._repair(self._all, rows, known)
        return self._with_rows(values, rows), kept

    def broken(self, rows: Rows) -> list[tuple[str, float]]:
        """Return each constraint in words, and the share of rows that break it."""
        return [(constraint.text, float((~constraint.holds(rows)).mean())) for constraint in self._all]

    def broken_most(self, values: pa.RecordBatch) -> str:
        """Return in words what most synthetic rows break: a constraint, or the bounds of a column."""
        rows = self._made(values, _names(self._all))
        limits = self._limits(self._all)
        shares = {f"that {name} lies within its bounds": ~own.holds(*rows[name]) for name, own in limits.items()}
        shares |= {constraint.text[:_LONGEST_TOLD]: ~constraint.holds(rows) for constraint in self._all}
        return max(shares, key=lambda text: shares[text].mean())

    def impossible(self) -> dict[tuple[str, str], np.ndarray]:
        """Return the pairs of choices of two learned columns that no row can have by declared constraints: (a, b) bool."""
        if self._impossible is None:
            learned = {
                name: self.learned.get(name, column) for name, column in self.columns.items()
                if name not in self.unlearned and isinstance(column, Modelled)
            }  # fmt: skip
            learned = {name: column for name, column in learned.items() if column.choices}
            self._impossible = impossible_pairs(self._declared, self.columns, self.relatives, learned)
        return self._impossible

    def _kept(self, constraints: Sequence[Constraint], rows: Rows) -> np.ndarray:
        """Mark the rows (n,) that keep these, with values that their columns may have."""
        limits = self._limits(constraints)
        kept = np.all([values.holds(*rows[name]) for name, values in limits.items()], axis=0)
        return np.logical_and.reduce([kept, *(constraint.holds(rows) for constraint in constraints)])

    def _repair(
        self, constraints: Sequence[Constraint], rows: Rows, known: Mapping[str, np.ndarray] | None = None
    ) -> np.ndarray:
        """Repair rows in place, but for what is known; return which (n,) keep all in the end."""
        limits, kept = self._limits(constraints), self._kept(constraints, rows)
        known = {name: own for name, own in (known or {}).items() if name in rows and own.any()}
        stay = {name: [part[own] for part in rows[name]] for name, own in known.items()}
        for _ in range(min(len(constraints) + 1, max(_REPAIRS // len(constraints), 5))):
            if kept.all():
                break
            self._repair_parts(constraints, rows, known, ~kept)
            for constraint in constraints:
                constraint.repair(rows, ~kept & ~constraint.holds(rows))
                for name in known.keys() & set(constraint.columns):
                    for part, values in zip(rows[name], stay[name], strict=True):
                        part[known[name]] = values
                if known:
                    constraint.repair_around(rows, known, ~kept & ~constraint.holds(rows))
            for name, values in limits.items():
                numbers, absent = rows[name]
                beyond = ~kept & ~values.holds(numbers, absent) & ~absent & np.logical_not(known.get(name, False))
                numbers[beyond], absent[beyond] = values.nearest(numbers[beyond], absent[beyond])
            kept = self._kept(constraints, rows)
        return kept

    def _repair_parts(
        self, constraints: Sequence[Constraint], rows: Rows, known: Mapping[str, np.ndarray], broken: np.ndarray
    ) -> None:
        """Repair the parts of known sums in place, in marked rows (n,), and after each the parts of those that it moved."""
        firm = dict(known)
        for constraint in reversed(constraints):
            if constraint.derives not in firm:
                continue
            wrong = broken & firm[constraint.derives] & ~constraint.holds(rows)
            constraint.repair_around(rows, firm, wrong)
            firm |= {name: firm.get(name, False) | wrong for name in self.derived.intersection(constraint.columns)}

    def _compute(self, constraints: Sequence[Constraint], rows: Rows, count: int) -> None:
        """Compute the columns that others determine, one after the other."""
        for constraint in constraints:
            if constraint.derives is not None:
                column = self.columns[constraint.derives]
                kind = np.int64 if not isinstance(column, Numeric) or column.scale.whole else np.float64
                rows[column.name] = np.zeros(count, kind), np.zeros(count, bool)
                constraint.repair(rows, np.ones(count, bool))

    def _limits(self, constraints: Sequence[Constraint]) -> dict[str, ValueSet]:
        return {name: all_values(self.columns[name]) for name in _names(constraints)}

    def _made(self, batch: pa.RecordBatch | Mapping[str, pa.Array], names: Sequence[str]) -> Rows:
        """Return the places of synthetic values: those that are distances added up may lie beyond their bounds."""
        found = self._rows(batch, [name for name in names if name not in self.relatives], REFUSE, Counter())
        return found | {name: ticks_of(self.columns[name], batch[name]) for name in names if name in self.relatives}

    def _rows(
        self,
        batch: pa.RecordBatch | Mapping[str, pa.Array],
        names: Sequence[str],
        outside: str | None,
        counted: Counter[str],
    ) -> Rows:
        """Return the places of values of these columns; all are moved into what is declared where `outside` is None."""
        places = {}
        for name in names:
            column = self.columns[name]
            try:
                places[name] = column.numbers(batch[name], outside is None or column.clamps(outside), counted)
            except Misfit as misfit:
                raise BadValue.of(name, misfit) from None
        return places

    def _with_rows(self, batch: pa.RecordBatch, rows: Rows) -> pa.RecordBatch:
        """Return a batch with these columns in the place of its own."""
        names = batch.schema.names
        return pa.record_batch({n: self.columns[n].restored(*rows[n]) if n in rows else batch[n] for n in names})

    def _refusal(self, row: int, rows: Rows, outside: str) -> BadValue:
        """Return what is wrong with a row that breaks a constraint."""
        one = {name: (numbers[row : row + 1], absent[row : row + 1]) for name, (numbers, absent) in rows.items()}
        broken = [constraint for constraint in self._declared if not constraint.holds(one)[0]]
        found = next(constraint for constraint in broken if not self.repairs(constraint, outside))
        advice = "correct it or the constraint in the schema, or let outside=clamp repair it or leave it out"
        return BadValue(found.columns[0], row, f"{self._told(found, row, rows)}; {advice}")

    def _told(self, constraint: Constraint, row: int, rows: Rows) -> str:
        """Return in words that a row breaks a constraint, and with which values."""
        one = {name: tuple(part[row : row + 1] for part in rows[name]) for name in constraint.columns}
        values = {name: self.columns[name].restored(*places)[0].as_py() for name, places in one.items()}
        said = listed(f"{name}={'' if value is None else value}" for name, value in values.items())
        return f"breaks the constraint {constraint.text[:_LONGEST_TOLD]} with {said}"


def with_cells(name: str, values: pa.Array, cells: Cells) -> pa.Array:
    """Return the values (n,) of a column with those that are given in their place.

    Example:
        >>> with_cells("age", pa.array([1, 2]), {"age": (np.array([False, True]), pa.array([None, 7]))}).to_pylist()
        [1, 7]
    """
    return pc.if_else(pa.array(cells[name][0]), cells[name][1], values) if name in cells else values


def _names(constraints: Sequence[Constraint]) -> list[str]:
    """Return the columns that constraints are about."""
    return sorted({name for constraint in constraints for name in constraint.columns})


def _needed(constraints: Sequence[Constraint], is_kept: Callable[[Sequence[Constraint]], bool]) -> list[Constraint]:
    """Return few of the constraints, among which the same is wrong as among all."""
    needed = list(constraints)
    # Halves are left out first, then single ones, each of which takes a while.
    size, looked = len(needed), 0
    while size and looked < _MOST_TRIALS:
        size = size // 2 if size > 1 else 0
        step, place = max(size, 1), 0
        while place < len(needed) and len(needed) > 1 and looked < _MOST_TRIALS:
            rest = needed[:place] + needed[place + step :]
            looked += 1
            if rest and not is_kept(rest):
                needed = rest
            else:
                place += step
    return needed


def _made_up(column: Modelled, values: ValueSet, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw the places of values (n,) of a column from those that it may have, and where none is."""
    intervals = values.intervals
    if not intervals:
        kind = np.float64 if isinstance(column, Numeric) and not column.scale.whole else np.int64
        return np.zeros(_TRIED, kind), np.ones(_TRIED, bool)
    absent = random.random(_TRIED) < _ABSENT if values.missing else np.zeros(_TRIED, bool)
    chosen = random.integers(0, len(intervals), _TRIED)
    firsts, lasts = (np.array(ends)[chosen] for ends in zip(*intervals, strict=True))
    if isinstance(column, Numeric) and not column.scale.whole:
        return firsts + random.random(_TRIED) * (lasts - firsts), absent
    return random.integers(firsts, lasts, endpoint=True), absent

"""Rules of histories: what holds across the rows of a person in one table, and between these rows and the person.

They are texts in the language of constraints. All of them hold of any part of a history that they hold of, so rows can be
left out, and a history can end early.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.conditions import cut_outside, parse_condition, quoted, quoted_name
from lightning_dpgen.data.histories.choice_pairs import MOST_PAIRS, Undecided, barred_choices, decided_choices
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import BadSchema, Modelled, shortened
from lightning_dpgen.data.tables.constraint_texts import parse_constraints
from lightning_dpgen.data.tables.constraints import Comparison, Constraint, Implication, Membership
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.row_rules import CONSTRAINTS
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.data.tables.value_set import value_set

# The words with which rules of a sequence of rows end.
LAST, FIRST, ONCE, RISING, FALLING = "is last", "is first", "at most once", "never falls", "never rises"
_WORDS = (LAST, FIRST, ONCE, RISING, FALLING)
# The text before the names of attributes.
OF_PERSONS = "persons."
_ABOUT_PERSONS = re.compile(r"(?<![\w.])persons\.")
# No bound of a time, in ticks; sums with others stay whole numbers of 64 bits.
NEVER = 2**60
_FORMS = (
    "expected 'event = death is last', 'event = birth is first', 'event = death at most once', 'stage never falls', "
    "'stage never rises', or a comparison of one column of a row with one of persons, such as 'ward = a if persons.sex = F'"
)


@dataclass(frozen=True, eq=False)
class SequenceRule:
    """A rule of one column over the rows of a person.

    Args:
        text: as it is declared.
        column: the place of the column among those of a row.
        word: what it says.
        labels: (choices,) int64, -1 of choices that do not count. A row that is last or first has any of the others. Rows
            with labels differ (at most once), or these never fall; the labels of a rule that never rises are turned.
        whole: whether choices are single values, so that choices alone decide.
    """

    text: str
    column: int
    word: str
    labels: np.ndarray
    whole: bool

    def broken(self, labels: np.ndarray, person: np.ndarray) -> np.ndarray:
        """Return the rows (R,) to leave out so that others keep the rule.

        Args:
            labels: (R,) of rows, -1 of those that do not count.
            person: (R,) of each row; the rows of one person are in a line, in their order.
        """
        counts, rows = labels >= 0, np.arange(len(labels))
        begins = np.flatnonzero(np.diff(person, prepend=-1))
        begin = np.repeat(begins, np.diff(begins, append=len(labels)))
        if self.word == FIRST:
            return counts & (rows > begin)
        if self.word == LAST:
            before = np.cumsum(counts) - counts
            return before > before[begin]
        if self.word == ONCE:
            order = np.lexsort((rows, labels, person))
            again = (np.diff(labels[order], prepend=-1) == 0) & (np.diff(person[order], prepend=-1) == 0)
            broken = np.zeros(len(rows), bool)
            broken[order] = again
            return broken & counts
        # Persons are in a line, so the largest label of one is below any of the next.
        height = np.where(counts, labels, -1) + begin * (int(labels.max(initial=0)) + 2)
        return counts & (height < np.maximum.accumulate(height))


@dataclass(frozen=True, eq=False)
class PairRule:
    """A rule of one attribute and one column of each row.

    Args:
        text: as it is declared.
        attribute, column: their places among those of persons, and of a row.
        barred: (a, b) bool, the pairs of choices that no row has.
    """

    text: str
    attribute: int
    column: int
    barred: np.ndarray


@dataclass(frozen=True, eq=False)
class TimeRule:
    """A bound of the times of rows: an attribute and a number; there is none where the attribute is missing.

    Args:
        text: as it is declared.
        name, attribute: of the attribute, and its place among those of persons.
        upper: whether no time is later, or none earlier.
        add: what is added to the attribute, in ticks.
        where: attributes by their places, and with which of their choices (choices,) the rule holds.
        lowest, highest: (choices,) the first and the last tick of each choice of the attribute.
    """

    text: str
    name: str
    attribute: int
    upper: bool
    add: int
    where: tuple[tuple[int, np.ndarray], ...]
    lowest: np.ndarray
    highest: np.ndarray

    def applies(self, attributes: np.ndarray) -> np.ndarray:
        """Return the persons (N,), by their choices (N, attributes), whose times it bounds."""
        there = [attributes[:, self.attribute] < len(self.lowest)]
        return np.logical_and.reduce(there + [holds[attributes[:, place]] for place, holds in self.where])


@dataclass(frozen=True)
class HistoryRules:
    """The rules of one table of rows.

    Args:
        sequence, pairs, times: by what they are about.
    """

    sequence: tuple[SequenceRule, ...] = ()
    pairs: tuple[PairRule, ...] = ()
    times: tuple[TimeRule, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.sequence or self.pairs or self.times)

    @property
    def texts(self) -> list[str]:
        return [rule.text for rule in (*self.sequence, *self.pairs, *self.times)]

    @property
    def most_rows(self) -> int | None:
        """The most rows that a person can have since each has another choice; None where there is no such rule."""
        numbers = [len(np.unique(rule.labels)) for rule in self.sequence if rule.word == ONCE and rule.labels.min() >= 0]
        return min(numbers, default=None)

    @property
    def sorted(self) -> dict[int, bool]:
        """The columns, by their places, whose values within a bin are to be put in order, and whether none may rise."""
        return {rule.column: rule.word == FALLING for rule in self.sequence if not rule.whole}

    def limits(
        self, attributes: np.ndarray, ticks: Mapping[int, np.ndarray] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the earliest and the latest time that each person's rows may have, both (N,), in ticks.

        Args:
            attributes: (N, attributes) choices.
            ticks: the values (N,) of attributes, by their places; None for the widest that choices allow.
        """
        lower, upper = np.full(len(attributes), -NEVER), np.full(len(attributes), NEVER)
        for rule in self.times:
            who = np.flatnonzero(rule.applies(attributes))
            if ticks is None:
                own = (rule.highest if rule.upper else rule.lowest)[attributes[who, rule.attribute]]
            else:
                own = ticks[rule.attribute][who]
            if rule.upper:
                upper[who] = np.minimum(upper[who], own + rule.add)
            else:
                lower[who] = np.maximum(lower[who], own + rule.add)
        return lower, upper


def once_texts(column: str, declared: Any) -> list[str]:
    """Return the rules that the key `once` of a column stands for: true, or a list of its values.

    Raises:
        ValueError: for anything else.

    Example:
        >>> once_texts("event", ["death", "new heart"])
        ['event = death at most once', 'event = "new heart" at most once']
    """
    if isinstance(declared, bool):
        return [f"{quoted_name(column)} {ONCE}"] if declared else []
    if not isinstance(declared, list) or not declared:
        raise ValueError(f"{shortened(declared)}: expected true, or a list of values, as in [death, transplant]")
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in declared]
    return [f"{quoted_name(column)} = {quoted(text)} {ONCE}" for text in texts]


def is_rule(constraint: Any) -> bool:
    """Tell whether a constraint of a table of rows goes beyond one row.

    Example:
        >>> is_rule("event = death is last"), is_rule("day <= persons.end"), is_rule("ward = a if birth = true")
        (True, True, False)
    """
    if isinstance(constraint, dict):
        names = constraint.get("columns")
        names = names if isinstance(names, list) else [constraint.get("column"), constraint.get("of")]
        return any(isinstance(name, str) and name.startswith(OF_PERSONS) for name in names)
    if not isinstance(constraint, str):
        return False
    return _ABOUT_PERSONS.search("".join(constraint.split('"')[::2])) is not None or _worded(constraint) is not None


def _worded(text: str) -> tuple[str, str] | None:
    """Return what stands before the words of a rule of a sequence, and these; None for any other text."""
    for word in _WORDS:
        start, *rest = cut_outside(text, f" {word}")
        if rest and not "".join(rest).strip():
            return start.strip(), word
    return None


def parse_rules(declared: Sequence[Any], table: Any, persons: TableSchema | None) -> HistoryRules:
    """Return the rules that a table of rows declares.

    Args:
        declared: texts, or mappings and lists of combinations as constraints of a table have them.
        table: the table (`data.histories.row_table`).
        persons: the attributes of persons.

    Raises:
        BadSchema: for all that is no rule, or cannot be kept.

    Example:
        >>> from lightning_dpgen.data.histories.row_table import RowTable
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> rows = parse_schema("columns: {event: {type: category, values: [check, death]}}")
        >>> rules = parse_rules(["event = death is last"], RowTable("visits", rows, 3), None)
        Traceback (most recent call last):
        lightning_dpgen...BadSchema: visits: constraints: 'event = death is last': rows have no order: declare order
    """
    parser = _Parser(table, persons)
    rules: list[Any] = []
    for one in declared:
        try:
            rules.append(parser.parse(one))
        except (BadSchema, ValueError) as error:
            problem = error.problem if isinstance(error, BadSchema) else str(error)
            problem = problem.removeprefix(f"{shortened(one)}: ")
            raise BadSchema(f"{shortened(one)}: {problem}", key=CONSTRAINTS, place=table.name) from None
    both = [
        {rule.column for rule in rules if isinstance(rule, SequenceRule) and rule.word == word}
        for word in (RISING, FALLING)
    ]
    if both[0] & both[1]:
        name = list(table.rows.choices)[min(both[0] & both[1])]
        raise BadSchema("never falls and never rises: declare it as an attribute", name, CONSTRAINTS, table.name)
    return HistoryRules(*(tuple(rule for rule in rules if isinstance(rule, kind))
                          for kind in (SequenceRule, PairRule, TimeRule)))  # fmt: skip


class _Parser:
    """The columns that rules of a table may speak of, each with its place."""

    def __init__(self, table: Any, persons: TableSchema | None) -> None:
        self._table, self._order = table, table.order
        self._rows = as_learned(table.rows)
        of_persons = {} if persons is None else as_learned(persons)
        self._persons = {
            f"{OF_PERSONS}{name}": (place, column_of(f"{OF_PERSONS}{name}", column.declared.dump()))
            for name, (place, column) in of_persons.items()
        }
        times = {} if self._order is None else {self._order.name: self._order.time}
        both = self._persons | self._rows
        self._columns: dict[str, Modelled] = {name: column for name, (_, column) in both.items()} | times

    def parse(self, one: Any) -> SequenceRule | PairRule | TimeRule:
        if isinstance(one, str) and (found := _worded(one)) is not None:
            return self._sequence(one, *found)
        if not is_rule(one):
            raise ValueError(_FORMS)
        (constraint,) = parse_constraints([one], self._columns, CONSTRAINTS)
        names = set(constraint.columns)
        if self._order is not None and self._order.name in names:
            return self._time(constraint)
        of_rows, of_persons = (sorted(names & own.keys()) for own in (self._rows, self._persons))
        if len(of_rows) != 1 or len(of_persons) != 1:
            raise ValueError("expected one column of a row, and one of persons")
        (column, own), (attribute, other) = self._rows[of_rows[0]], self._persons[of_persons[0]]
        if own.choices * other.choices > MOST_PAIRS:
            raise ValueError(f"expected columns with at most {MOST_PAIRS:,} pairs of choices")
        return PairRule(constraint.text, attribute, column, barred_choices(constraint, other, own))

    def _sequence(self, text: str, start: str, word: str) -> SequenceRule:
        if self._order is None and word != ONCE:
            raise ValueError("rows have no order: declare order")
        known = {form: name for name in self._rows for form in (name, quoted_name(name))}
        if start in known:
            return self._of_column(text, *self._rows[known[start]], word)
        if word in (RISING, FALLING):
            raise ValueError(f"expected a column, one of {listed(self._rows)}{suggest(start, self._rows)}")
        said = parse_condition(start, list(self._rows))
        place, column = self._rows[said.column]
        chosen = decided_choices(column, value_set(column, said))
        return SequenceRule(text, place, word, np.where(chosen, 0, -1), True)

    def _of_column(self, text: str, place: int, column: Modelled, word: str) -> SequenceRule:
        if word in (LAST, FIRST):
            raise ValueError(f"expected a choice, as in '{quoted_name(column.name)} = VALUE {word}'")
        whole = all(map(column.alone, range(column.present)))
        labels = np.arange(column.choices)
        labels[column.present :] = -1
        if word == ONCE:
            if not whole:
                raise Undecided(column)
            return SequenceRule(text, place, word, labels, True)
        if isinstance(column, Numeric) and column.special:
            raise ValueError(f"column {column.name!r} has special values, which are in no order")
        if not whole and any(column.name in names for names in self._table.rows.rules.tied):
            raise ValueError(f"column {column.name!r} is in a constraint, too: leave one out, or cut it into single values")
        if isinstance(column, Category) and column.kind is int:
            labels[: column.present] = np.argsort(np.argsort(np.array(column.values)))
        if word == FALLING:
            labels[: column.present] = column.present - 1 - labels[: column.present]
        return SequenceRule(text, place, word, labels, whole)

    def _time(self, constraint: Constraint) -> TimeRule:
        """Return the bound of times that a comparison is, perhaps under conditions on persons."""
        conditions: tuple[Constraint, ...] = ()
        bound = constraint
        if isinstance(constraint, Implication) and not constraint.both:
            bound, conditions = constraint.conclusion, constraint.conditions
        name, others = self._order.name, {} if not isinstance(bound, Comparison) else {c.name: c for c in bound.numbers}
        attribute = next((other for other in others if other in self._persons), None)
        column = others.get(attribute) if attribute is not None else None
        fine = column is not None and column.type in ("integer", "date") and set(others) == {name, attribute}
        if not (fine and isinstance(bound, Comparison) and bound.operator in _MIRRORED and _is_plain(bound)):
            raise ValueError(
                f"expected {name} compared with one attribute by <=, <, >= or >, as in '{name} <= {OF_PERSONS}end', which "
                "holds whole numbers or dates as it does"
            )
        where = []
        for condition in conditions:
            if not isinstance(condition, Membership) or condition.column.name not in self._persons:
                raise ValueError("expected conditions on persons alone")
            place, own = self._persons[condition.column.name]
            where.append((place, decided_choices(own, condition.values)))
        number, operator = bound.right.constant - bound.left.constant, bound.operator
        if bound.left.columns[0].name == attribute:
            number, operator = -number, _MIRRORED[operator]
        upper = operator in ("<", "<=")
        add = math.floor(number) if operator == "<=" else math.ceil(number) if operator == ">=" else (
            math.ceil(number) - 1 if upper else math.floor(number) + 1
        )  # fmt: skip
        lowest, highest = (np.array(ends, np.int64) for ends in zip(*column.ranges, strict=True))
        return TimeRule(
            constraint.text,
            attribute.removeprefix(OF_PERSONS),
            self._persons[attribute][0],
            upper,
            add,
            tuple(where),
            lowest,
            highest,
        )


_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _is_plain(bound: Comparison) -> bool:
    """Tell whether each side is one column, perhaps with a number."""
    sides = (bound.left, bound.right)
    return all(len(side.parts) == 1 and side.parts[0].alone and side.parts[0].factor > 0 for side in sides)


def as_learned(table: TableSchema) -> dict[str, tuple[int, Modelled]]:
    """Return the columns whose choices are those of the values that are written, by name, with their places."""
    recorded = {column.name: column for column in table.recorded}
    with_choices = [column for column in table.modelled if column.choices]
    return {column.name: (place, column) for place, column in enumerate(with_choices) if column is recorded[column.name]}

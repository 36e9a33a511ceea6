"""Constraints that are pairs of choices: these alone can be kept while columns are drawn one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.column import BadSchema, Modelled
from lightning_dpgen.data.tables.constraints import Constraint, Implication, Membership, Rows
from lightning_dpgen.data.tables.grouped import choices_of
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.value_set import ValueSet

# Pairs of choices of two columns that are gone through.
MOST_PAIRS = 250_000

# Two columns, the first one first, and which pairs (a, b) of their choices no row has, bool.
Barred = tuple[int, int, np.ndarray]


class Undecided(ValueError):
    """The choices of a column do not tell whether a row keeps a constraint."""

    def __init__(self, column: Modelled) -> None:
        super().__init__(f"cuts a bin of {column.name!r}: expected values at the edges of its bins (declare edges there)")


def decided_choices(column: Modelled, values: ValueSet) -> np.ndarray:
    """Return which choices (choices,) of a column belong to a set of values.

    Raises:
        Undecided: for a choice only some of whose values do.
    """
    may, sure = choices_of(column, values)
    if may != sure:
        raise Undecided(column)
    return np.isin(np.arange(column.choices), sorted(sure))


def barred_choices(constraint: Constraint, first: Modelled, second: Modelled) -> np.ndarray:
    """Return the pairs of choices (a, b), bool, of the two columns of a constraint that break it.

    Raises:
        Undecided: where choices do not tell.

    Example:
        >>> from lightning_dpgen.data.tables.constraint_texts import parse_constraints
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> age = column_of("age", {"type": "integer", "low": 0, "high": 99, "edges": [18, 65]})
        >>> ward = column_of("ward", {"type": "category", "values": ["a", "b"]})
        >>> (constraint,) = parse_constraints(["ward = a if age >= 18"], {"age": age, "ward": ward}, "constraints")
        >>> barred_choices(constraint, age, ward).tolist()
        [[False, False], [False, True], [False, True]]
    """
    for column in (first, second):
        parts = (constraint.conclusion, *constraint.conditions) if isinstance(constraint, Implication) else (constraint,)
        about = [part for part in parts if column.name in part.columns]
        whole = all(map(column.alone, range(column.present)))
        for part in about if not whole else ():
            if not isinstance(part, Membership):
                raise Undecided(column)
            decided_choices(column, part.values)
    grid = np.indices((first.choices, second.choices)).reshape(2, -1)
    rows: Rows = {}
    for column, codes in zip((first, second), grid, strict=True):
        places = np.array([low for low, _ in column.ranges] + [0] * column.missing)
        rows[column.name] = places[codes], codes >= column.present
    return ~constraint.holds(rows).reshape(first.choices, second.choices)


def barred_pairs(table: TableSchema) -> list[Barred]:
    """Return the pairs of choices that the constraints of a table bar; a row without any of them keeps all constraints.

    Raises:
        BadSchema: for a constraint about one column or several, or one that cuts bins of more than one value.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> columns = "ward: {type: category, values: [a, b]}, birth: {type: boolean}"
        >>> ((first, second, barred),) = barred_pairs(parse_schema(f"{{columns: {{{columns}}}, "
        ...     "constraints: [ward = a if birth = true]}"))
        >>> first, second, barred.tolist()
        (0, 1, [[False, False], [False, True]])
    """
    names, sizes, pairs = list(table.choices), table.layout.groups, []
    one = table.values(Encoded(np.zeros((1, 0), np.float32), np.zeros((1, len(names)), np.int64)), np.random.default_rng(0))
    for constraint, _ in table.rules.broken_by(table.rules.places(one)):
        if constraint.derives is not None:
            continue
        of = [names.index(name) for name in dict.fromkeys(constraint.columns) if name in names]
        fine = len(of) == len(set(constraint.columns)) == 2 and sizes[of[0]] * sizes[of[1]] <= MOST_PAIRS
        first, second = sorted(of) if fine else (0, 0)
        columns = [table.rules.columns[names[place]] for place in (first, second)]
        try:
            if not fine or any(column.name in table.rules.learned for column in columns):
                raise ValueError("expected two columns that are learned as they are")
            pairs.append((first, second, barred_choices(constraint, *columns)))
        except ValueError:
            raise BadSchema(
                f"{constraint.text}: is kept within a row where it is about two columns, and each bin of numbers is within "
                "what it says or outside: leave it out, or cut numbers at its values (edges)",
                key="constraints",
            ) from None
    return pairs


def possible_row(sizes: Sequence[int], pairs: Sequence[Barred]) -> list[int] | None:
    """Return the choices of a row without a barred pair; None if there is none.

    Example:
        >>> possible_row((2, 2), [(0, 1, np.array([[True, True], [True, False]]))])
        [1, 1]
    """
    row: list[int] = []
    following = [0]
    while len(row) < len(sizes):
        place, choice = len(row), following[-1]
        if choice == sizes[place]:
            following.pop()
            if not row:
                return None
            row.pop()
            continue
        following[-1] += 1
        if not any(second == place and barred[row[first], choice] for first, second, barred in pairs):
            row.append(choice)
            following.append(0)
    return row

"""Constraints within a row that are pairs of choices: these alone can be kept while columns are drawn one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.schema import TableSchema

# Pairs of choices of two columns that are gone through.
_MOST_PAIRS = 250_000

# Two columns, the first one first, and which pairs (a, b) of their choices no row has, bool.
Barred = tuple[int, int, np.ndarray]


def barred_pairs(table: TableSchema) -> list[Barred]:
    """Return the pairs of choices that the constraints of a table bar; a row without any of them keeps all constraints.

    Raises:
        BadSchema: for a constraint about one column or several, or about bins of more than one value.

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
    for number, (constraint, _) in enumerate(table.rules.broken_by(table.rules.places(one))):
        if constraint.derives is not None:
            continue
        of = [names.index(name) for name in dict.fromkeys(constraint.columns) if name in names]
        whole = len(of) == len(set(constraint.columns)) == 2 and sizes[of[0]] * sizes[of[1]] <= _MOST_PAIRS
        if not (whole and all(_is_whole(table, names[i]) for i in of)):
            raise BadSchema(
                f"{constraint.text}: is kept within a row where it is about two columns whose choices are single values, "
                "such as categories: leave it out, or cut numbers into bins of one value",
                key="constraints",
            )
        first, second = sorted(of)
        codes = np.zeros((sizes[first] * sizes[second], len(names)), np.int64)
        codes[:, first], codes[:, second] = np.divmod(np.arange(len(codes)), sizes[second])
        values = table.values(Encoded(np.zeros((len(codes), 0), np.float32), codes), np.random.default_rng(0))
        broken = table.rules.broken_by(table.rules.places(values))[number][1]
        pairs.append((first, second, broken.reshape(sizes[first], sizes[second])))
    return pairs


def _is_whole(table: TableSchema, name: str) -> bool:
    column = table.rules.columns[name]
    return name not in table.rules.relatives and all(column.alone(code) for code in range(column.present))


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

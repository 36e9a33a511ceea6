"""Narrowing takes no value away that a row with all constraints has, and what it proves impossible is; messages name it."""

import itertools

import numpy as np
import pytest

from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.constraint_texts import parse_constraints
from lightning_dpgen.data.tables.narrowing import Impossible, narrowed
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_advice import warnings_of
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.data.tables.value_set import all_values
from lightning_dpgen.release.drawing.description import conditions_on

FIELDS = {
    "a": {"type": "integer", "low": 0, "high": 4},
    "b": {"type": "integer", "low": 1, "high": 4, "missing": True},
    "c": {"type": "number", "low": 0, "high": 2, "decimals": 1, "bins": 2, "special": [-1]},
    "s": {"type": "category", "values": ["x", "y", "z"]},
    "t": {"type": "category", "values": ["u", "v"], "missing": True},
}
COLUMNS = {name: column_of(name, fields) for name, fields in FIELDS.items()}


def _every_row():
    """Return all rows, as `Constraint.holds` takes them."""
    kinds = []
    for column in COLUMNS.values():
        values = all_values(column)
        places = [place for low, high in values.intervals for place in range(int(low), int(high) + 1)]
        kinds.append([(place, False) for place in places] + [(0, True)] * values.missing)
    rows = list(itertools.product(*kinds))
    return {
        name: (np.array([row[i][0] for row in rows]), np.array([row[i][1] for row in rows]))
        for i, name in enumerate(COLUMNS)
    }


ROWS = _every_row()


def _condition(random):
    orders, letters = ["<", "<=", ">", ">="], list("xyz")
    return random.choice([
        f"a {random.choice([*orders, '=', '!='])} {random.integers(1, 4)}",
        f"a in (0, {random.integers(1, 5)})",
        f"a {random.choice(orders)} b",
        f"b > {random.integers(1, 4)}",
        f"b {random.choice(orders)} c + {random.integers(0, 3)}",
        f"c >= 0.{random.integers(1, 9)}",
        f"s = {random.choice(letters)}",
        f"s != {random.choice(letters)}",
        *("b is missing", "b is not missing", "c = -1", "s in (x, y)", "t = u", "t is missing"),
    ])  # fmt: skip


def _constraint(random):
    kind = random.integers(6)
    if kind == 0:
        return f"a + {random.integers(0, 5)} {random.choice(['<', '<=', '>', '>='])} b"
    if kind == 1:
        return f"{random.choice(['a', 'c', 'a - c'])} {random.choice(['<', '<=', '>', '>='])} b - {random.integers(0, 3)}"
    if kind == 2:
        return f"a = b + {random.integers(0, 4)}" if random.random() < 0.5 else "b = a + c"
    if kind == 3:
        combinations = [["x", "u"], ["x", ""], ["y", "v"], ["z", "u"], ["z", "v"]]
        return {"columns": ["s", "t"], "allowed": [combinations[i] for i in random.choice(5, 2, replace=False)]}
    if kind == 4:
        mapping = {value: int(random.integers(1, 5)) for value in ("u", "v", "")}
        return {"column": "b", "of": "t", "mapping": mapping}
    word = random.choice([" if ", " if and only if "])
    return f"{_condition(random)}{word}{' and '.join(_condition(random) for _ in range(random.integers(1, 3)))}"


def _drawn(random):
    while True:
        texts = [_constraint(random) for _ in range(random.integers(1, 5))]
        try:
            return texts, parse_constraints(texts, COLUMNS, "constraints")
        except BadSchema:
            continue


def test_no_value_of_a_row_that_keeps_all_is_taken_away():
    """The oracle looks at all rows there can be; 200 sets of constraints, of which some hold of no row."""
    random, whole = np.random.default_rng(0), {name: all_values(column) for name, column in COLUMNS.items()}
    empty = proved = smaller = 0
    for _ in range(200):
        texts, constraints = _drawn(random)
        kept = np.logical_and.reduce([constraint.holds(ROWS) for constraint in constraints])
        empty += not kept.any()
        try:
            left = narrowed(constraints, COLUMNS, whole)
        except Impossible:
            assert not kept.any(), texts
            proved += 1
            continue
        for name, values in left.items():
            numbers, absent = (part[kept] for part in ROWS[name])
            assert values.holds(numbers, absent).all(), (texts, name, values)
            smaller += values != whole[name]
    # Most of what is impossible is proved, and much is taken away.
    assert empty >= 5 and proved >= 0.5 * empty and smaller >= 100, (empty, proved, smaller)


IMPOSSIBLE = {
    "bounds": ["a > b + 4"],
    "a chain": ["a < b", "b < a"],
    "numbers": ["a >= c + 3", "b < c"],
    "one column computed": ["a = c + 6"],
    "conditions": ["a = 3 if s != x", "a = 4 if s != x", "s in (y, z) if a <= 4"],
}


@pytest.mark.parametrize("constraints", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_no_row_keeps_is_named_and_nothing_else(constraints):
    """Beside others that have nothing to do with it."""
    fields = {name: {key: value for key, value in own.items() if key != "missing"} for name, own in FIELDS.items()}
    columns = tuple(column_of(name, own) for name, own in fields.items())
    others = ["t = u if s = z", "s = x if t = v", "c < a + 10"]
    TableSchema(columns, constraints=tuple(others))
    with pytest.raises(BadSchema) as refused:
        TableSchema(columns, constraints=(*others, *constraints))
    said = str(refused.value)
    assert all(text in said for text in constraints) and not any(text in said for text in others), said
    assert "within the bounds of the columns: correct" in said and len(said.splitlines()) == 1


def test_a_comparison_may_be_kept_by_a_missing_value():
    schema = TableSchema(tuple(COLUMNS.values()), constraints=("a > b + 4",))
    assert schema.rules.texts[0] == ["a > b + 4"]


def test_categories_that_constraints_leave_no_row_are_told():
    schema = TableSchema(tuple(COLUMNS.values()), constraints=("a = 3 if s = x", "a = 4 if s = x", "a < 9 - b"))
    told = [text for name, text in warnings_of(schema) if name == "s"]
    assert told == ["no row has x and keeps the constraint a = 4 if s = x"]
    always = TableSchema(tuple(COLUMNS.values()), constraints=("b is missing if a >= 0",))
    assert ("b", "by the constraints no row has a value here: it is missing everywhere") in list(warnings_of(always))


LINKED = TableSchema(
    tuple(COLUMNS.values()), constraints=("a <= b", "c = -1 if and only if s = x", "t is missing if s = y")
).with_bins(3)
CONTRADICTIONS = {
    "one column, within a bin": (["c > 1.3", "c < 1.3"], "column 'c': no record fulfils all conditions on it"),
    "two columns of an order": (["a > 3", "b < 3"], "keeps the constraint a <= b"),
    "both directions": (["s = x", "c >= 0"], "keeps the constraint c = -1 if and only if s = x"),
    "a missing value": (["s = y", "t = v"], "keeps the constraint t is missing if s = y"),
}


@pytest.mark.parametrize(("where", "said"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_conditions_that_contradict_each_other_or_a_constraint_are_refused(where, said):
    with pytest.raises(ValueError, match=said):
        conditions_on(LINKED, where)
    for one in where:
        assert conditions_on(LINKED, one)


def test_conditions_that_a_row_fulfils_are_taken():
    fulfilled = [["a > 3", "b >= 4"], ["a > 3", "b is missing"], ["s = x", "c < 0"], ["s = y", "t is missing"], ["c = 1.3"]]
    assert all(conditions_on(LINKED, where) for where in fulfilled)

"""Rules of histories while rows are drawn and written: whatever a network has learned, no history breaks one."""

import itertools

import numpy as np
import pytest
import torch

from lightning_dpgen.data.histories.row_table import RowOrder, RowTable
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.models.histories import PersonLevel, StackedHistories
from lightning_dpgen.models.mixture import Mixture

PERSONS = parse_schema(
    "columns: {sex: {type: category, values: [F, M], missing: true}, died: {type: boolean}, "
    "birth: {type: integer, low: 0, high: 60, bins: 4}, until: {type: integer, low: 20, high: 180, bins: 5, missing: true}}"
)
COLUMNS = (
    "event: {type: category, values: [check, birth, move, death], missing: %s}, "
    "stage: {type: integer, low: 1, high: 40, bins: 4, missing: true}, "
    "level: {type: category, values: [low, middle, high]}, "
    "code: {type: category, values: [%s]}"
)
# Each rule, and what tells of a person, by attributes and rows, that it is kept.
RULES = {
    "event = death is last": lambda who, rows: "death" not in [row["event"] for row in rows[:-1]],
    "event = birth is first": lambda who, rows: "birth" not in [row["event"] for row in rows[1:]],
    "event = move at most once": lambda who, rows: [row["event"] for row in rows].count("move") < 2,
    "event at most once": lambda who, rows: _differ(row["event"] for row in rows),
    "code at most once": lambda who, rows: _differ(row["code"] for row in rows),
    "code in (c1, c2) at most once": lambda who, rows: sum(row["code"] in ("c1", "c2") for row in rows) < 2,
    "stage never falls": lambda who, rows: _rises([row["stage"] for row in rows]),
    "stage never rises": lambda who, rows: _rises([row["stage"] for row in rows][::-1]),
    "level never falls": lambda who, rows: _rises([["low", "middle", "high"].index(row["level"]) for row in rows]),
    "event != birth if persons.sex = M": lambda who, rows: who["sex"] != "M" or _lacks(rows, "event", "birth"),
    "level = low if persons.died = false": lambda who, rows: who["died"] or {row["level"] for row in rows} <= {"low"},
    "code != c3 if persons.sex is missing": lambda who, rows: who["sex"] is not None or _lacks(rows, "code", "c3"),
    "day <= persons.until": lambda who, rows: who["until"] is None or all(row["day"] <= who["until"] for row in rows),
    "day > persons.birth": lambda who, rows: all(row["day"] > who["birth"] for row in rows),
    "persons.birth + 10 <= day if persons.died = true": (
        lambda who, rows: not who["died"] or all(row["day"] >= who["birth"] + 10 for row in rows)
    ),
    "day < persons.until - 5 if persons.sex = F": (
        lambda who, rows: who["sex"] != "F" or who["until"] is None or all(row["day"] < who["until"] - 5 for row in rows)
    ),
}
WITHIN = "level = low if event = death"


def _differ(values):
    values = [value for value in values if value is not None]
    return len(values) == len(set(values))


def _rises(values):
    values = [value for value in values if value is not None]
    return values == sorted(values)


def _lacks(rows, column, value):
    return value not in [row[column] for row in rows]


def _schema(seed):
    """Return histories with some of the rules: in an order or none, of few choices or very many, alone or beside others."""
    random = np.random.default_rng(seed)
    ordered = seed % 4 < 3
    rules = [rule for rule in RULES if random.random() < 0.35]
    if not ordered:
        rules = [rule for rule in rules if "day" not in rule and not rule.endswith(("first", "last", "falls", "rises"))]
    if "stage never falls" in rules and "stage never rises" in rules:
        rules.remove("stage never falls")
    codes = ", ".join(f"c{i}" for i in range(80 if seed % 3 == 1 else 5))
    within = f", constraints: [{WITHIN}]" if seed % 2 else ""
    rows = parse_schema(f"{{columns: {{{COLUMNS % (str(seed % 5 == 0).lower(), codes)}}}{within}}}")
    gap = {"low": int(random.integers(0, 3)), "high": 60, "bins": 4}
    start = {"type": "integer", "low": 5, "high": 99, "bins": 5}
    order = RowOrder.of("day", start, gap, 120 if seed % 3 == 0 else None) if ordered else None
    table = RowTable("visits", rows, int(random.integers(1, 25)), order, constraints=tuple(rules))
    more = RowTable("more", parse_schema("columns: {paid: {type: boolean}}"), 3)
    return HistorySchema(PERSONS, (table, more) if seed % 2 else (table,)), rules


def _drawn(schema, n, seed, noise):
    network = StackedHistories(schema, 2, [-1] * len(PersonLevel(schema).layout.groups))
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in network.state_dict().items():
        if name.startswith("persons"):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) ** noise + 1e-3)
        else:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * noise)
    return Mixture(network, torch.tensor([0.3, 0.7])).sample(n, generator)


@pytest.mark.parametrize("seed", range(30))
def test_no_history_breaks_a_rule(seed):
    schema, rules = _schema(seed)
    again = HistorySchema.from_json(schema.as_json())
    assert again == schema and again.rules[0].texts == schema.rules[0].texts
    assert sorted(schema.rules[0].texts) == sorted(rules)
    for noise in (0.0, 1.0, 6.0):
        drawn = _drawn(schema, 400, seed, noise)
        people = schema.decode(drawn, np.random.default_rng(seed)).to_pylist()
        order = schema.tables[0].order
        for who in people:
            rows = who["visits"]
            for rule in rules:
                assert RULES[rule](who, rows), (rule, who)
            assert seed % 2 == 0 or all(row["level"] == "low" for row in rows if row["event"] == "death")
            if order is not None and rows:
                days = [row["day"] for row in rows]
                assert 5 <= days[0] <= 99 and (order.end is None or days[-1] <= 120)
                assert all(order.gap.low <= after - day for day, after in itertools.pairwise(days))
        counts = schema.parted(drawn)[1][0].counts
        # No row is left out as times are drawn: the choices have room for all.
        assert [len(who["visits"]) for who in people] == counts.tolist()
        assert noise > 1.0 or (counts > 1).any() or schema.tables[0].max_rows == 1

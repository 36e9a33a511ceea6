"""Rules of histories while rows are drawn and written: whatever a network has learned, no history breaks one."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

from lightning_dpgen.data.histories.read_rows import broken_rows
from lightning_dpgen.data.histories.row_table import PersonRows, RowOrder, RowTable
from lightning_dpgen.data.histories.rules import parse_rules
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.histories.values import HistoryValues
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.measure import history_steps
from lightning_dpgen.measure.histories import HistoryRecipe
from lightning_dpgen.measure.history_steps import StepTable
from lightning_dpgen.metrics.histories import broken_rules
from lightning_dpgen.models.histories import PersonLevel, StackedHistories
from lightning_dpgen.models.history_masks import barred_cells
from lightning_dpgen.models.history_network import HistoryNetwork
from lightning_dpgen.models.history_steps import Steps
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.release.drawing.draws import TooRare
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.drawing.release import load_release

PERSONS = parse_schema(
    "columns: {sex: {type: category, values: [F, M], missing: true}, died: {type: boolean}, "
    "birth: {type: integer, low: 0, high: 60, bins: 4}, until: {type: integer, low: 20, high: 180, bins: 5, missing: true}}"
)
COLUMNS = (
    "event: {type: category, values: [check, birth, move, death], missing: %s}, "
    "stage: {type: integer, low: 1, high: 40, bins: 4, missing: true}, "
    "level: {type: category, values: [low, middle, high], missing: true}, "
    "code: {type: category, values: [%s]}"
)
LEVELS = {"low": 0, "middle": 1, "high": 2}
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
    "level never falls": lambda who, rows: _rises([LEVELS[row["level"]] for row in rows if row["level"]]),
    "event != birth if persons.sex = M": (
        # A missing value is no other one.
        lambda who, rows: who["sex"] != "M" or not {None, "birth"} & {row["event"] for row in rows}
    ),
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
    rules = [rule for rule in random.permutation(list(RULES)).tolist() if random.random() < 0.35]
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


def _drawn_by_network(schema, n, seed, noise):
    network, generator = HistoryNetwork(schema, hidden=4), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, noise, generator=generator)
    return Mixture(network, torch.ones(1)).sample(n, generator)


@pytest.mark.parametrize(
    ("draw", "seed"), [*((_drawn, seed) for seed in range(40)), *((_drawn_by_network, seed) for seed in range(2, 40, 5))]
)
def test_no_history_breaks_a_rule(draw, seed):
    schema, rules = _schema(seed)
    again = HistorySchema.from_json(schema.as_json())
    assert again == schema and again.rules[0].texts == schema.rules[0].texts
    assert sorted(schema.rules[0].texts) == sorted(rules)
    level = PersonLevel(schema)
    for noise in (0.0, 1.0, 6.0):
        drawn = draw(schema, 400, seed, noise)
        persons = level.encode(drawn).codes
        assert not any(none[persons[:, a], persons[:, b]].any() for a, b, none in level.impossible_pairs())
        people = schema.decode(drawn, np.random.default_rng(seed)).to_pylist()
        order, (own, *_) = schema.tables[0].order, schema.parted(drawn)[1]
        for number, who in enumerate(people):
            rows = who["visits"]
            for rule in rules:
                assert RULES[rule](who, rows), (rule, who)
            assert seed % 2 == 0 or all(row["level"] == "low" for row in rows if row["event"] == "death")
            if order is not None and rows:
                days = [row["day"] for row in rows]
                assert 5 <= days[0] <= 99 and (order.end is None or days[-1] <= 120)
                # Choices have room for times: each lies in its bin, and no row is left out.
                gaps = own.gaps[own.begins[number] + 1 : own.begins[number] + own.counts[number]]
                ends = [order.start.ranges[own.starts[number]], *(order.gap.ranges[gap] for gap in gaps)]
                steps = np.diff(days, prepend=0)
                assert all(low <= step <= high for (low, high), step in zip(ends, steps, strict=True))
        steps, none = Steps(schema, 0), torch.zeros(400, dtype=torch.int64)
        for target, feature, size in steps.tables:
            sums = StepTable(steps, target, feature, size).sums(drawn, none).numpy()
            barred = barred_cells(schema.rules[0], schema.tables[0], target, feature.name, sums.shape)
            assert not sums[barred].any(), (target, feature.name)
        assert [len(who["visits"]) for who in people] == own.counts.tolist()
        assert noise > 1.0 or (own.counts > 1).any() or schema.tables[0].max_rows == 1


@pytest.mark.parametrize(("low", "end"), [(0, None), (0, 120), (7, 120)])
def test_times_of_any_choices_keep_bounds(low, end):
    """Also where the bins of times and of attributes leave no room: rows are left out in the end."""
    rules = [rule for rule in RULES if "day" in rule]
    rows = parse_schema("columns: {paid: {type: boolean}}")
    order = RowOrder.of(
        "day", {"type": "integer", "low": 5, "high": 99, "bins": 5}, {"low": low, "high": 60, "bins": 4}, end
    )
    schema = HistorySchema(PERSONS, (RowTable("visits", rows, 9, order, constraints=tuple(rules)),))
    random, n = np.random.default_rng(0), 3000
    counts = random.integers(0, 10, n)
    rows = PersonRows(
        counts, random.integers(0, 5, n), random.integers(0, 4, counts.sum()), np.zeros((counts.sum(), 1), int)
    )
    attributes = np.stack([random.integers(0, size, n) for size in schema.layout.groups[:4]], axis=1)
    people = schema.decode(schema.joined(attributes, [rows]), random).to_pylist()
    for who in people:
        days = [row["day"] for row in who["visits"]]
        assert all(RULES[rule](who, who["visits"]) for rule in rules)
        assert (
            (np.diff(days) >= low).all()
            and all(5 <= day <= 99 for day in days[:1])
            and max(days, default=0) <= (end or 999)
        )
    kept = np.array([len(who["visits"]) for who in people])
    assert (kept == counts).mean() > 0.3 and ((kept > 0) & (kept < counts)).any() == (low > 0)


def test_broken_rules_are_found_by_values():
    """In histories that know of no rule."""
    rules = [rule for rule in RULES if rule not in ("stage never rises", "code at most once")]
    columns = parse_schema(f"{{columns: {{{COLUMNS % ('true', 'c0, c1, c2, c3')}}}}}")
    order = RowOrder.of("day", {"type": "integer", "low": 5, "high": 99, "bins": 5}, {"high": 60, "bins": 4})
    table = RowTable("visits", columns, 4, order)
    schema = HistorySchema(PERSONS, (table,))
    batch = schema.decode(_drawn(schema, 1000, 0, 1.0), np.random.default_rng(0))
    lists, people = batch.column("visits"), batch.to_pylist()
    rows = pa.RecordBatch.from_struct_array(lists.flatten())
    person = np.repeat(np.arange(1000), pc.list_value_length(lists).to_numpy())
    values, attributes = TableValues.of(rows, columns), TableValues.of(batch, PERSONS)
    broken = dict(
        broken_rows(parse_rules(rules, table, PERSONS), table, person, rows.column("day").to_numpy(), values, attributes)
    )
    assert len(broken) == len(rules)
    for rule in rules:
        wrong = [number for number, who in enumerate(people) if not RULES[rule](who, who["visits"])]
        assert np.unique(person[broken[rule]]).tolist() == wrong and len(wrong) > 10, rule
    ruled = HistorySchema(PERSONS, (RowTable("visits", columns, 4, order, constraints=tuple(rules)),))
    shares = broken_rules(HistoryValues.of(batch, ruled))
    assert shares == {rule: float(own.mean()) for rule, own in broken.items()}


def _release(tmp_path, *rules, more=()):
    rows = parse_schema(
        "columns: {event: {type: category, values: [check, death]}, age: {type: integer, low: 0, high: 9, bins: 5}}"
    )
    order = RowOrder.of("day", {"type": "integer", "low": 0, "high": 99, "bins": 5}, {"high": 60, "bins": 4})
    schema = HistorySchema(PERSONS, (RowTable("visits", rows, 4, order, constraints=rules), *more))
    network = StackedHistories(schema, 1, [-1] * len(PersonLevel(schema).layout.groups))
    for name, tensor in network.state_dict().items():
        tensor.fill_(1.0 if name.startswith("persons") else 0.0)
    write_model(tmp_path, Mixture(network, torch.ones(1)))
    return load_release(tmp_path)


def test_conditions_ask_what_persons_ever_have(tmp_path):
    release = _release(tmp_path, "event = death is last")

    def drawn(*where):
        people = release.drawn_table(200, 3, list(where)).to_pylist()
        return [[row["event"] for row in who["visits"]] for who in people], people

    ever, _ = drawn("ever event = death")
    assert len(ever) == 200 and all(own[-1] == "death" and "death" not in own[:-1] for own in ever)
    never, people = drawn("never event = death", "sex = M", "ever age >= 8")
    assert any(never) and not any("death" in own for own in never)
    assert all(who["sex"] == "M" and any(row["age"] >= 8 for row in who["visits"]) for who in people)
    assert drawn("ever event in (check, death)", "ever event != death", "ever event = death")[0]
    for where, message in (
        ("ever evnt = death", r"expected one of sex, died, birth, until, ever event, ever age, never event, never age"),
        ("ever age >= 7", r"a condition on values within bins is not kept by histories"),
        ("ever event = birth", r"column 'event': 'birth'"),
        ("visits = death", r"there is no such column"),
    ):
        with pytest.raises(ValueError, match=message):
            release.sample(5, 0, where)
    balanced = release.drawn_table(40, 3, ["ever event = death"], balance="died").column("died").to_pylist()
    assert sum(balanced) == 20


def test_what_nobody_has_is_told(tmp_path):
    release = _release(tmp_path, "event != death if persons.sex = M")
    with pytest.raises(
        TooRare, match=r"where ever event = death, sex = M: 0 of [\d,]+ records drawn fit, and 5 were asked"
    ):
        release.sample(5, 0, ["ever event = death", "sex = M"])


def test_columns_of_several_tables_are_named_with_their_table(tmp_path):
    more = RowTable("orders", parse_schema("columns: {event: {type: boolean}}"), 3)
    release = _release(tmp_path, more=(more,))
    people = release.drawn_table(100, 3, ["ever orders.event = true", "never visits.event = death"]).to_pylist()
    assert all(any(row["event"] for row in who["orders"]) for who in people)
    assert not any(row["event"] == "death" for who in people for row in who["visits"])


def test_a_measured_release_has_the_histories_and_keeps_the_rules(monkeypatch):
    """Without noise: steps are fitted to histories that keep rules, by histories that keep them."""
    monkeypatch.setattr(history_steps, "_MADE_UP", 2000)
    rows = parse_schema(
        "columns: {event: {type: category, values: [check, move, death]}, grade: {type: integer, low: 1, high: 3}}"
    )
    order = RowOrder.of("day", {"type": "integer", "low": 0, "high": 99, "bins": 4}, {"high": 60, "bins": 4})
    rules = ("event = death is last", "event = move at most once", "grade never falls", "grade = 1 if persons.sex = F")
    schema = HistorySchema(PERSONS, (RowTable("visits", rows.with_bins(3), 5, order, constraints=rules),))
    random, n = np.random.default_rng(0), 3000
    sex, counts = random.integers(0, 2, n), random.integers(0, 6, n)
    rows = np.zeros((counts.sum(), 2), int)
    own = PersonRows(counts, random.integers(0, 4, n), random.integers(0, 4, len(rows)), rows)
    last, at = own.place == counts[own.person] - 1, random.integers(0, 5, n)
    rows[last & (random.random(len(rows)) < 0.7), 0] = 2
    rows[(own.place == at[own.person]) & ~last, 0] = 1
    rows[:, 1] = np.where(sex[own.person] == 0, 0, np.minimum(own.place, random.integers(0, 3, n)[own.person]))
    encoded = schema.joined(np.stack([sex, *np.zeros((3, n), int)], axis=1), [own])
    recipe = HistoryRecipe(schema, 1, n)
    account = Account(make_plan(recipe.specs(1.0), epsilon=math.inf, delta=1e-5))
    mixture = recipe.measure(Records(schema, encoded), torch.zeros(n, dtype=torch.int64), account)
    drawn = mixture.sample(n, torch.Generator().manual_seed(1))
    for who in schema.decode(drawn, random).to_pylist():
        assert all(RULES.get(rule, lambda *_: True)(who, who["visits"]) for rule in rules)
    ((sexes, made),) = [(attributes[:, 0], rows) for attributes, (rows,) in (schema.parted(drawn),)]
    for event, share in ((1, 0.6), (2, 0.3)):
        ever = [np.bincount(part.person, part.rows[:, 0] == event, minlength=n) for part in (made, own)]
        assert ever[0].max() == 1 and abs(ever[0].mean() - ever[1].mean()) < 0.03 and ever[1].mean() > share / 2
    levels = [np.bincount(part.rows[who[part.person] == 1, 1], minlength=3) for part, who in ((made, sexes), (own, sex))]
    assert np.abs(levels[0] / levels[0].sum() - levels[1] / levels[1].sum()).max() < 0.05
    assert made.rows[sexes[made.person] == 0, 1].max() == 0


DAYS = RowOrder.of("day", {"type": "integer", "low": 0, "high": 9, "bins": 2}, {"high": 9, "bins": 2})


def test_cells_without_a_step_are_found():
    rows = parse_schema("{columns: {event: {type: category, values: [check, move, death]}, ill: {type: boolean}}, "
                        "constraints: [ill = true if event = death]}")  # fmt: skip
    rules = ("event = death is last", "event = move at most once", "ill never falls", "event != move if persons.sex = M")
    table = RowTable("visits", rows, 5, DAYS, constraints=rules)
    found = parse_rules(rules, table, PERSONS)

    def cells(target, feature, shape):
        return barred_cells(found, table, target, feature, shape).astype(int).tolist()

    assert cells("column 0", "before: column 0", (3, 3)) == [[0, 0, 0], [0, 1, 0], [1, 1, 1]]
    assert cells("column 0", "last", (2, 3)) == [[0, 0, 1], [0, 0, 0]]
    assert cells("column 0", "attribute 0", (3, 3)) == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert cells("column 1", "before: column 1", (2, 2)) == [[0, 0], [1, 0]]
    assert cells("column 1", "before: column 1", (4, 2)) == [[0, 0], [1, 0], [0, 0], [1, 0]]
    assert cells("column 1", "now: column 0", (3, 2)) == [[0, 0], [0, 0], [1, 0]]
    assert cells("gap", "before: column 0", (3, 2)) == [[0, 0], [0, 0], [1, 1]]
    assert not np.any(cells("column 1", "rows", (4, 2)))

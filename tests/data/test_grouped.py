"""Categories with very many values: their noisy counts, the groups of rare ones, and a release of such a table."""

import json
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from contracts.door import overspent
from contracts.laws.discovery import values_account

from lightning_dpgen.api import fit
from lightning_dpgen.data.conditions import Clause
from lightning_dpgen.data.discovery.value_tree import find_values
from lightning_dpgen.data.tables.categories import MANY, Category
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.grouped import CERTAIN, GROUPS, MOST_COMMON, MOST_KINDS, Grouped
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.measure.pair_tables import FoundRule, with_rules
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.runs.warnings import noise_warnings
from lightning_dpgen.specs.settings import load_complete_settings
from lightning_dpgen.verification.verify import verify

VALUES = tuple(f"v{i:04d}" for i in range(MANY + 200))
# The chances of a category whose common values are few.
CHANCES = 1.0 / np.arange(1, len(VALUES) + 1) ** 1.3
CHANCES /= CHANCES.sum()


def _column(counts, noise=1.0, **more):
    known = {"values": list(VALUES[: len(counts)]), "counts": list(counts), "counts_noise": noise}
    return column_of("city", {"type": "category"} | known | more)


@pytest.mark.parametrize(
    ("counts", "common", "groups"),
    [
        ([90.0, -3.0, 80.0, 2.0, 1.0], 2, 1),
        ([9.0] * 40, 40, 0),
        ([0.0] * 40, 0, GROUPS),
        ([9.0, *[0.0] * 39], 1, GROUPS),
        ([9.0, 0.0], 1, 1),
        (np.arange(MOST_COMMON + 200) + 2.0 * CERTAIN, MOST_COMMON, GROUPS),
    ],
)
def test_each_value_has_one_choice_and_each_choice_a_value(counts, common, groups):
    column = Grouped.of(_column(list(counts), missing=True))
    values = pa.array([*column.value.values, None])
    codes, _ = column.encode(values, False, Counter())
    assert codes[-1] == column.present and column.choices == column.present + 1
    assert np.unique(codes[:-1]).tolist() == list(range(column.present))
    sizes = np.bincount(codes[:-1])
    assert [column.alone(code) for code in range(column.present)] == (sizes == 1).tolist()
    assert column.present == common + groups == len(set(column.present_names)) and (sizes[:common] == 1).all()
    # Groups hold about equally many values, and those of an earlier one have higher counts.
    sizes = sizes[common:]
    assert not groups or sizes.max() - sizes.min() <= 1
    rare = np.array(list(counts))[np.argsort(codes[:-1], kind="stable")][common:]
    highest = [part.max() for part in np.split(rare, sizes.cumsum()[:-1])] if groups else []
    assert sorted(highest, reverse=True) == highest


def test_a_drawn_value_is_of_its_choice_and_each_is_drawn_equally_often():
    """4,000 draws of each value: six standard deviations are a false alarm of 2e-9 a value."""
    column = Grouped.of(_column([90.0, *[0.0] * 99], missing=True))
    codes = np.repeat(np.arange(column.choices), 100 * 4000 // GROUPS)
    drawn = column.decode(codes, None, np.random.default_rng(0))
    assert np.array_equal(column.encode(drawn, False, Counter())[0], codes)
    counts = Counter(drawn.to_pylist())
    for choice in range(1, column.present):
        size = sum(column.encode(pa.array(column.value.values), False, Counter())[0] == choice)
        members = [counts[value] for value in column.value.values if _code(column, value) == choice]
        expected = 100 * 4000 // GROUPS / size
        assert len(members) == size and all(abs(count - expected) < 6 * expected**0.5 for count in members)


def _code(column, value):
    return column.encode(pa.array([value]), False, Counter())[0][0]


def test_a_condition_tells_common_values_by_their_choice_and_others_by_their_group():
    schema = TableSchema((_column([90.0, *[0.0] * 99], missing=True),))
    column = schema.modelled[0]
    for value in ("v0000", "v0050"):
        condition, code = schema.condition(Clause("city", "=", (value,))), _code(column, value)
        assert condition.may == {code} and condition.sure == ({code} if column.alone(code) else frozenset())
        assert condition.test is None or condition.test(pa.array(column.value.values)).sum() == 1
        assert (condition.test is None) == column.alone(code)
    other = schema.condition(Clause("city", "!=", ("v0050",)))
    assert other.may - other.sure == {_code(column, "v0050")} and column.present not in other.may
    assert schema.condition(Clause("city", "=", ("",))).sure == {column.present}


def test_pairs_that_no_row_can_have_are_those_of_the_choices():
    """Values of one group go with the same choices: a rare one of which a rule is has a choice of its own."""
    counts = [90.0, 80.0, *[0.0] * 98]
    of = {"type": "category", "values": ["a", "b"]}
    told = ["of = a if city = v0000", "of = a if city = v0050"]
    schema = TableSchema((_column(counts), column_of("of", of)), constraints=told)
    ((first, second, pairs),) = schema.impossible_pairs()
    assert (first, second) == (0, 1) and pairs.shape == schema.layout.groups
    assert [schema.choices["city"][code] for code in np.flatnonzero(pairs[:, 1])] == ["v0000", "v0050"]
    assert not pairs[:, 0].any()


def _followed(count=120, states=3, **more):
    """Return a table whose state follows from the city, of which few are common, and the mapping."""
    counts = [90.0, 80.0, *np.arange(count - 2.0, 0.0, -1.0) / count]
    state = column_of("state", {"type": "category", "values": [f"s{i}" for i in range(states)]})
    other = column_of("other", {"type": "category", "values": ["a", "b"]})
    mapping = {value: f"s{place % states}" for place, value in enumerate(VALUES[:count])}
    rule = {"column": "state", "of": "city", "mapping": mapping | more.pop("mapping", {})}
    return TableSchema((_column(counts, **more), state, other), constraints=[rule]), mapping


def test_a_group_is_of_one_value_of_what_follows():
    """Each pair of a group and what follows from it is possible or not as its values say, and the column is learned too."""
    schema, mapping = _followed()
    names = list(schema.choices)
    assert names == ["city", "state", "other"]
    city = schema.modelled[0]
    codes = city.encode(pa.array(list(mapping)), False, Counter())[0]
    goes = np.zeros(schema.layout.groups[:2], bool)
    goes[codes, [int(state[1:]) for state in mapping.values()]] = True
    assert (goes.sum(axis=1) == 1).all() and np.bincount(codes).max() > 1
    ((first, second, pairs),) = schema.impossible_pairs()
    assert (first, second) == (0, 1) and np.array_equal(pairs, ~goes)
    # A column of as many values as the other one says nothing more, and is computed alone.
    assert list(_followed(states=40)[0].choices) == ["city", "other"]


@pytest.mark.parametrize(
    "told",
    [
        {"columns": ["city", "other"], "allowed": [[value, "ab"[place % 2]] for place, value in enumerate(VALUES[:40])]},
        "other = a if city in (v0003, v0031)",
        {"column": "state", "of": "city", "mapping": {value: f"s{place % 4}" for place, value in enumerate(VALUES[:40])}},
    ],
    ids=["allowed", "condition", "mapping"],
)
def test_values_of_one_group_are_alike_to_constraints(told):
    """In 400 drawn rows each keeps the rule with the first value of its group as well as with the one that was drawn."""
    columns = [column_of("other", {"type": "category", "values": ["a", "b"]})]
    columns += [column_of("state", {"type": "category", "values": ["s0", "s1", "s2", "s3"]})]
    schema = TableSchema((_column([0.0] * 40), *columns), constraints=[told])
    city, random = schema.rules.learned["city"], np.random.default_rng(0)
    codes = random.integers(0, city.present, 400)
    rest = {"other": random.choice(["a", "b"], 400), "state": random.choice(["s0", "s1"], 400)}
    drawn = [pa.record_batch({"city": city.decode(codes, None, np.random.default_rng(seed)), **rest}) for seed in range(2)]
    assert drawn[0] != drawn[1]
    kept = [schema.rules.kept(batch) for batch in drawn]
    assert np.array_equal(*kept) and 0 < kept[0].sum() < 400


def test_a_mapping_looks_values_up_together(monkeypatch):
    """A schema with a mapping of many values is read in a few look-ups, each of which takes time for all values."""
    calls, codes = [], Category._codes
    monkeypatch.setattr(Category, "_codes", lambda self, values: calls.append(len(values)) or codes(self, values))
    _followed(count=MANY)
    assert len(calls) < 50 and sum(calls) < 20 * MANY


@pytest.mark.filterwarnings("ignore:debug.private_seed")
@pytest.mark.slow
def test_a_release_of_a_mapping_keeps_the_pairs_of_what_follows(tmp_path):
    """The column that follows goes with a third one as it does without the rule, and the rule holds in each row.

    Fixed seeds; without noise of its own, groups that mix cities of all states would leave hardly any of the difference.
    """
    random, count = np.random.default_rng(0), MANY + 200
    places = random.choice(count, 4_000, p=CHANCES**0.3 / (CHANCES**0.3).sum())
    state = places % 3
    other = np.where(random.random(4_000) < np.array([0.1, 0.5, 0.9])[state], "b", "a")
    frame = pd.DataFrame({"city": np.array(VALUES)[places], "state": [f"s{i}" for i in state], "other": other})
    described = {
        "columns": {
            "city": {"type": "category", "values": list(VALUES)},
            "state": {"type": "category", "values": ["s0", "s1", "s2"]},
            "other": {"type": "category", "values": ["a", "b"]},
        },
        "constraints": [
            {"column": "state", "of": "city", "mapping": {value: f"s{place % 3}" for place, value in enumerate(VALUES)}}
        ],
    }
    fitted = fit(
        frame, described, epsilon=3.0, n=4_000, run_dir=tmp_path, overrides=["model=measured", "debug.private_seed=3"]
    )
    drawn = fitted.sample(4_000, 1)
    assert (drawn["city"].str[1:].astype(int) % 3 == drawn["state"].str[1:].astype(int)).all()
    shares = drawn.groupby("state")["other"].apply(lambda own: (own == "b").mean())
    assert np.abs(shares.to_numpy() - [0.1, 0.5, 0.9]).max() < 0.08, shares


def test_a_rule_names_common_values_alone():
    schema = TableSchema((_column([90.0, *[0.0] * 99]), column_of("of", {"type": "category", "values": ["a", "b"]})))
    rules = [FoundRule((0, 0), (1, 1)), FoundRule((0, 3), (1, 0)), FoundRule((1, 0), (0, 5))]
    assert with_rules(schema, rules).found_constraints == ("of = b if city = v0000",)


def test_counts_are_written_and_read_and_others_refused():
    schema = TableSchema((_column([90.0, *[-0.5] * 99]),))
    assert TableSchema.from_json(json.loads(json.dumps(schema.as_json()))) == schema
    for counts in ([1.0], ["a"] * 3, [True] * 3, [float("nan")] * 3, "many", [1e16] * 3):
        with pytest.raises(BadSchema, match="counts"):
            column_of("x", {"type": "category", "values": ["a", "b", "c"], "counts": counts})
    with pytest.raises(BadSchema, match="counts_noise"):
        column_of("x", {"type": "category", "values": ["a", "b", "c"], "counts_noise": 1.0})
    with pytest.raises(BadSchema, match="label"):
        TableSchema((_column([90.0, *[0.0] * 99]),), label="city")


def test_counts_that_are_found_are_those_of_the_records():
    column = column_of("x", {"type": "category", "values": list(VALUES), "missing": True})
    records = np.random.default_rng(0).choice(len(VALUES), 3000, p=CHANCES)
    ticks = column.ticks(pa.array([*np.array(VALUES)[records], None]))
    with values_account(column.grid, 0.0).open("values") as access:
        found = find_values(access, "x", ticks, column.grid)
    assert found == {"counts": np.bincount(records, minlength=len(VALUES)).tolist(), "noise": 0.0}
    assert column.with_counts(**found).counts == tuple(found["counts"])


@pytest.mark.parametrize("most", [1, 3])
def test_no_person_costs_counts_more_than_their_access(most):
    grid = column_of("x", {"type": "category", "values": list(VALUES)}).grid

    def run(rows):
        owners, numbers = np.asarray(rows, dtype=float).reshape(-1, 2).T
        with values_account(grid, 1.5, max_rows=most).open("values") as access:
            return find_values(access, "x", numbers, grid, owners=owners.astype(int), most=most)

    others = [(owner, owner % 7.0) for owner in range(40)]
    greedy = [(99, 5.0)] * (most + 2), [(99, 5.0 + row) for row in range(most)]
    spent = overspent(run, others, *(others + own for own in greedy))
    assert 0.999 < spent[0] <= 1.0 + 1e-9 and spent[1] <= 1.0 + 1e-9


@pytest.mark.slow
def test_a_model_is_chosen_by_the_cells_that_pairs_will_have(tmp_path):
    """A list of 20,000 values is some hundred choices once they are counted; by themselves they are too many for tables."""
    values = [f"v{place}" for place in range(20_000)]
    (tmp_path / "s.yaml").write_text(json.dumps({"columns": {
        "city": {"type": "category", "values": values}, "of": {"type": "category", "values": ["a", "b"]},
    }}))  # fmt: skip
    words = ["data=table", f"data.schema={tmp_path / 's.yaml'}", "data.n=50000", "privacy.epsilon=1"]
    settings = load_complete_settings(words)
    assert settings.choice_reason.startswith("model=auto took measured") and settings.schema.layout.width < MOST_COMMON
    apart = load_complete_settings([*words, "data.bins_share=0"])
    assert "measured was passed over" in apart.choice_reason and apart.schema.layout.width == 20_002


@pytest.mark.parametrize(("kinds", "warned"), [(MOST_KINDS, False), (MOST_KINDS + 1, True)])
def test_a_constraint_that_groups_pay_no_regard_to_is_said(tmp_path, kinds, warned):
    states = [f"s{place}" for place in range(kinds)]
    mapping = {value: states[place % kinds] for place, value in enumerate(VALUES)}
    (tmp_path / "s.yaml").write_text(json.dumps({"columns": {
        "city": {"type": "category", "values": list(VALUES)}, "state": {"type": "category", "values": states},
    }, "constraints": [{"column": "state", "of": "city", "mapping": mapping}]}))  # fmt: skip
    words = ["data=table", f"data.schema={tmp_path / 's.yaml'}", "data.n=50000", "privacy.epsilon=1", "model=measured"]
    settings = load_complete_settings(words)
    told = [text for text in noise_warnings(settings, settings.plan()) if "rare values of city" in text]
    assert len(told) == warned and all("state" in text and f"{MOST_KINDS} kinds" in text for text in told)
    groups = [set(own % kinds) for own in map(np.array, settings.schema.rules.learned["city"]._members) if len(own) > 1]
    assert all(len(own) == 1 for own in groups) is not warned


@pytest.mark.filterwarnings("ignore")
def test_a_table_of_a_category_with_very_many_values_is_released(tmp_path):
    """Its common values keep their shares and what goes with them; all values may be drawn, asked for and verified."""
    random = np.random.default_rng(1)
    records = random.choice(len(VALUES), 6000, p=CHANCES)
    frame = pd.DataFrame({"city": np.array(VALUES)[records], "of": np.where(records % 2, "a", "b")})
    columns = {"city": {"type": "category", "values": list(VALUES)}, "of": {"type": "category", "values": ["a", "b"]}}
    overrides = ["model=measured", "debug.private_seed=3", "rows=4000"]
    folder = fit(frame, {"columns": columns}, epsilon=4.0, n=6000, run_dir=tmp_path, overrides=overrides).folder / "release"
    found = load_release(folder)
    column = found.schema.modelled[0]
    assert isinstance(column, Grouped) and 8 < column.present < 100 and len(column.value.counts) == len(VALUES)
    made = found.sample(4000, seed=0)
    real, drawn = ((one.city == "v0000").mean() for one in (frame, made))
    assert abs(real - drawn) < 0.03 and made.city.isin(VALUES).all() and made.city.nunique() > 500
    assert (made[made.city == "v0000"].of == "b").mean() > 0.9
    rare = next(value for value in VALUES[::-1] if not column.alone(_code(column, value)))
    assert set(found.sample(5, seed=0, where=f"city = {rare}").city) == {rare}
    assert "values of city" in json.loads((folder / "privacy.json").read_text())["declared"]["discovered"]
    # Noise that is repeatable is all that is wrong with it.
    (problem,) = verify(folder).problems
    assert "seed" in problem

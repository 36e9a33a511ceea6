"""The columns that an evaluation names are those in which a fault was planted, with the numbers of pandas and sklearn."""

import functools
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics import table_pairs
from lightning_dpgen.metrics.classifiers import TRAINING
from lightning_dpgen.metrics.evaluation import compute_section, evaluate_table, halve_table
from lightning_dpgen.metrics.measure import ROWS_OF_TABLES as ROWS
from lightning_dpgen.metrics.measure import measures_of
from lightning_dpgen.metrics.table_pairs import PAIRS, choose_targets
from lightning_dpgen.metrics.table_rows import find_dependencies

TOWNS = [f"t{number}" for number in range(40)]
SCHEMA = parse_schema(f"""
constraints: [first <= second]
columns:
  town: {{type: category, values: [{", ".join(TOWNS)}], missing: true}}
  region: {{type: category, values: [n, s, e, w], missing: true}}
  owner: {{type: boolean}}
  key: {{type: integer, low: 0, high: 99999, bins: 1}}
  wealth: {{type: integer, low: 0, high: 999, bins: 1, missing: true}}
  rent: {{type: number, low: 0, high: 999, decimals: 1, bins: 1, missing: true}}
  first: {{type: integer, low: 0, high: 99, bins: 1}}
  second: {{type: integer, low: 0, high: 99, bins: 1}}
  same: {{type: category, values: [x, y]}}
""")


@functools.cache
def frame(seed, n=2400):
    """Draw a table: a town says the region but for few rows, wealth the owner, and two numbers lack values together."""
    random = np.random.default_rng(seed)
    town = (random.geometric(0.12, n) - 1).clip(0, 39)
    region = np.where(random.random(n) < 0.004, random.integers(0, 4, n), town % 4)
    wealth = random.integers(0, 1000, n).astype(float)
    owner = random.random(n) < 1 / (1 + np.exp(-(wealth - 500) / 80))
    first = random.integers(0, 60, n)
    lack = random.random(n) < 0.1
    made = {
        "town": np.array(TOWNS, object)[town], "region": np.array(list("nsew"), object)[region], "owner": owner,
        "key": random.permutation(99_999)[:n], "wealth": np.where(lack, np.nan, wealth),
        "rent": np.where(lack & (random.random(n) < 0.8), np.nan, np.round(random.exponential(90.0, n).clip(0, 999), 1)),
        "first": first, "second": first + random.integers(0, 40, n), "same": "x",
    }  # fmt: skip
    return pd.DataFrame(made)


def values(made):
    return read_table(made, SCHEMA, values=True).values


def shuffled(made, *names):
    """Return the table with columns shuffled, by themselves and as one."""
    order = np.random.default_rng(9).permutation(len(made))
    return made.assign(**{name: made[name].to_numpy()[order] for name in names})


def sides(real, made, held_out=None):
    given = {"real": values(real), "synthetic": values(made)}
    return halve_table(given | ({} if held_out is None else {"held out": values(held_out)}), None, 0)


def section(name, own):
    """Return one section of an evaluation."""
    return compute_section(measures_of("table")[name], own)


def readable(side):
    """Return a side as pandas has it, categories by their values."""
    columns = {column.name: side.column(column.name) for column in side.schema.recorded}
    return pd.DataFrame(columns | {"town": np.array([*TOWNS, None], object)[columns["town"]]})


FAULTS = {
    "two categories": ("town", "region"),
    "a number and a category": ("wealth", "owner"),
    "two numbers": ("first", "second"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_pair_of_columns_that_was_shuffled_is_named_as_the_worst(fault):
    poor = values(frame(1))
    np.random.default_rng(9).shuffle(poor.column(FAULTS[fault][1]))
    own = halve_table({"real": values(frame(0)), "synthetic": poor}, None, 0)
    found = section(PAIRS, own).listings[0]
    assert {found.as_json()[0]["column"], found.as_json()[0]["other column"]} == set(FAULTS[fault])
    distances = [row["distance"] - row["distance of real ones"] for row in found.as_json()]
    assert distances == sorted(distances, reverse=True) and distances[0] > 2 * distances[1]


def test_the_worst_pair_has_the_numbers_of_a_table_of_pandas():
    """Rare towns are one value, and the shares are those of the records that are compared."""
    own = sides(frame(0), shuffled(frame(1), "region"))
    row = section(PAIRS, own).listings[0].as_json()[0]
    parts = [readable(side) for side in (own.real, own.synthetic, own.other)]
    known = parts[0]["town"].value_counts().index[:9]
    tables_of = []
    for part in parts:
        town = part["town"].where(part["town"].isin(known), "another of 31 values")
        region = np.array([*"nsew", "missing"])[part["region"]]
        tables_of.append(pd.crosstab(town, region, normalize=True).stack())
    far = [tables_of[0].sub(other, fill_value=0).abs() for other in tables_of[1:]]
    assert (row["distance"], row["distance of real ones"]) == pytest.approx([0.5 * each.sum() for each in far])
    cell = row["value"], row["other value"]
    assert far[0].max() == pytest.approx(far[0][cell])
    shares = [table.get(cell, 0.0) for table in tables_of[:2]]
    assert (row["share, real"], row["share, synthetic"]) == pytest.approx(shares)


def test_of_two_hundred_columns_the_shuffled_pair_is_named():
    names = [f"c{number}" for number in range(200)]
    schema = parse_schema(
        "columns: {" + ", ".join(f"{name}: {{type: category, values: [a, b, c]}}" for name in names) + "}"
    )
    random = np.random.default_rng(0)
    codes = random.integers(0, 3, (1200, 200), dtype=np.int32)
    codes[:, 150] = codes[:, 7]
    poor = codes[:600].copy()
    poor[:, 150] = random.permutation(poor[:, 150])
    real, made = (TableValues(schema, np.zeros((len(part), 0)), part) for part in (codes, poor))
    own = halve_table({"real": real, "synthetic": made}, None, 0)
    row = section(PAIRS, own).listings[0].as_json()[0]
    assert (row["column"], row["other column"]) == ("c7", "c150")
    assert {(own.column, own.determined) for own in own.dependencies} == {("c7", "c150"), ("c150", "c7")}


def test_values_that_are_missing_together_have_the_correlation_of_pandas():
    own = sides(frame(0), shuffled(frame(1), "rent"))
    found = section(PAIRS, own)
    row = found.listings[1].as_json()[0]
    assert {row["column"], row["other column"]} == {"wealth", "rent"} and len(found.listings[1].rows) == 1
    for name, side in (("real", own.real), ("synthetic", own.synthetic)):
        absent = readable(side)[["wealth", "rent"]].isna()
        assert row[f"both missing, {name}"] == pytest.approx(absent.all(axis=1).mean())
        assert row[f"phi, {name}"] == pytest.approx(absent.astype(float).corr().iloc[0, 1])
    score = found.scores["missing together, phi, worst difference"]
    assert score == pytest.approx(row["phi, real"] - row["phi, synthetic"]) and score > 0.6
    assert found.reference["missing together, phi, worst difference"] < 0.2


def test_dependencies_are_those_of_real_records_and_their_breaks_are_counted():
    """A column of one value, one that is nearly so, and a key say nothing; a town says its region."""
    made = frame(1).assign(same=np.where(np.arange(2400) % 800 == 0, "y", "x"))
    poor, real = shuffled(made, "region"), frame(0).assign(same=made["same"])
    own = sides(real, poor)
    (found,) = own.dependencies
    assert (found.column, found.determined) == ("town", "region")
    likely = real.groupby("town")["region"].agg(lambda of: of.value_counts().index[0])
    known = poor[poor["town"].isin(likely.index)]
    assert found.judged == len(known) and found.broken == (known["town"].map(likely) != known["region"]).sum() > 900
    assert found.real == pytest.approx((real["town"].map(likely) != real["region"]).mean()) and 0 < found.real < 0.01
    scores = section(ROWS, own)
    name = "rows that break what one column says of another, worst"
    assert scores.scores[name] == pytest.approx(found.broken / found.judged) and scores.reference[name] == found.real
    assert scores.listings[0].rows == [("town", "region", found.real, found.synthetic, found.broken, found.judged)]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_no_dependency_is_missed_and_none_is_chance(seed):
    """All pairs of columns, each counted by pandas: one is found if it is kept but for 1 %, and no copy of chance."""
    random, n = np.random.default_rng(seed), 1500
    sizes = [2, 3, 10, 60, 400, 1400]
    base = random.integers(0, sizes, (n, len(sizes)))
    by_function = [random.integers(0, 5, size)[base[:, place]] for place, size in enumerate(sizes)]
    codes = np.column_stack([base, *by_function, np.where(random.random(n) < 0.03, 1, by_function[2])]).astype(np.int32)
    listed = ", ".join(f"c{place}: {{type: integer, low: 0, high: 9999, bins: 1}}" for place in range(codes.shape[1]))
    real = TableValues(parse_schema(f"columns: {{{listed}}}"), codes.astype(float), np.zeros((n, 0), int))
    found = {(own.column, own.determined): own.real for own in find_dependencies(real, real)}
    frame = pd.DataFrame(codes, columns=[f"c{place}" for place in range(codes.shape[1])])
    mixed = frame.sample(frac=1, random_state=seed, ignore_index=True)

    def broken(x, y):
        return 1 - pd.concat([x, y], axis=1, keys=["x", "y"]).value_counts().groupby(level=0).max().sum() / n

    for x in frame:
        for y in frame:
            if x != y:
                share, chance = broken(frame[x], frame[y]), broken(frame[x], mixed[y])
                if share <= 0.01 and chance > max(0.03, 12 * share):
                    assert found[x, y] == pytest.approx(share)
                elif share > 0.01 or chance < 0.01:
                    assert (x, y) not in found


def test_broken_constraints_are_told_and_kept_ones_counted():
    real, made = frame(0), frame(1)
    assert section(ROWS, sides(real, made)).remarks["rules"] == ["the one constraint is kept by every synthetic row"]
    poor = values(made)
    poor.column("second")[:600] = 0
    own = halve_table({"real": values(real), "synthetic": poor}, None, 0)
    broken = (made["first"][:600] > 0).sum() / 2400
    line = f"first <= second is broken by {broken:.2%} of the synthetic rows, and by 0.00% of the real ones"
    assert section(ROWS, own).remarks["rules"] == [line]


def test_columns_are_chosen_by_their_own_predictability_and_scored_as_sklearn_does():
    """The town is what determines the region, and a constraint ties first to second: neither says anything of the other."""
    own = sides(frame(0), shuffled(frame(1), "wealth", "owner"), frame(2))
    targets = {
        target.column.name: target for target in choose_targets(own.real, {"region": ["town"], "town": ["region"]}, 0)
    }
    assert "owner" in targets and "region" not in targets and targets["owner"].measure == "AUC"
    found = section(TRAINING, own)
    name = "owner by gradient boosting, AUC"
    assert "region by gradient boosting, accuracy" not in found.scores
    assert not any(score.startswith(("first", "second")) for score in found.scores)
    for scores, side in ((found.scores, own.synthetic), (found.reference, own.real)):
        train, test = readable(side), readable(own.held_out)
        seen = [column.name for column in SCHEMA.recorded if column.name != "owner"]
        x, asked = (
            pd.DataFrame({n: part[n].map({t: c for c, t in enumerate(TOWNS)}) if n == "town" else part[n] for n in seen})
            for part in (train, test)
        )
        few = [n in ("town", "region", "same") for n in seen]
        model = HistGradientBoostingClassifier(
            max_iter=50, early_stopping=False, categorical_features=few, random_state=0
        ).fit(x.to_numpy(float), train["owner"])
        expected = roc_auc_score(test["owner"], model.predict_proba(asked.to_numpy(float))[:, 1])
        assert scores[name] == pytest.approx(expected, abs=1e-9) and expected > 0.9
    poor = section(TRAINING, sides(frame(0), shuffled(frame(1), "owner"), frame(2)))
    assert 0.4 < poor.scores[name] < 0.6


def test_what_the_training_lacks_is_an_answer_of_chance():
    """All owners are alike; no wealth is there; and towns that are missing are no value of a column of two."""
    own = sides(frame(0), frame(1).assign(owner=True), frame(2))
    assert section(TRAINING, own).scores["owner by gradient boosting, AUC"] == 0.5
    wealth = next(target for target in choose_targets(own.real, {}, 0) if target.column.name == "wealth")
    poor = values(frame(1).assign(wealth=None))
    assert wealth.score(poor, own.held_out, 0) == pytest.approx((0.0, 0.0), abs=1e-9)
    two = values(frame(0).assign(town=np.where(frame(0)["owner"], "t0", "t1")))
    lacking = values(frame(2).assign(town=np.where(frame(2)["owner"], None, "t1")))
    target = table_pairs.Target(SCHEMA.recorded[0], SCHEMA.recorded[2:], two)
    assert target.measure == "AUC" and target.score(two, lacking, 0) is None


def test_a_table_of_many_columns_is_predicted_by_a_choice_of_them(monkeypatch):
    monkeypatch.setattr(table_pairs, "_COLUMNS", 4)
    for target in choose_targets(values(frame(0)), {}, 0):
        assert len(target.others) == 3


@pytest.mark.parametrize("n", [1, 40])
def test_few_rows_and_columns_without_a_value_are_no_error(n):
    real = frame(0)[:n].assign(wealth=None, town=None)
    found = evaluate_table(values(real), values(frame(1)[:n]))
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert len(told["listings"]["pairs of columns that differ most, and where"]) == 10 and TRAINING in (
        *found.scores,
        *found.notes,
    )
    assert told["numbers"]["wealth"]["real"] == {} and told["numbers"]["first"]["real"]["largest"] == real["first"].max()

"""The evaluation of a table by its values: equal tables score as real halves do, and one broken column is called bad."""

import functools
import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.stats import ks_2samp, spearmanr, wasserstein_distance

from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics import evaluation, quality
from lightning_dpgen.metrics.classifiers import DETECTION, TRAINING
from lightning_dpgen.metrics.evaluation import compute_section, evaluate_table, halve_table
from lightning_dpgen.metrics.measure import COLUMNS, measures_of
from lightning_dpgen.metrics.measure import ROWS_OF_TABLES as ROWS
from lightning_dpgen.metrics.membership import MEMBERSHIP
from lightning_dpgen.metrics.quality import HEADLINE, QUALITY, MissingLibrary, import_quality_report
from lightning_dpgen.metrics.summaries import FIGURES, QuantileBins, orders, spreads, summaries
from lightning_dpgen.metrics.table_columns import column_distances
from lightning_dpgen.metrics.table_pairs import PAIRS, rank_correlations

CLOSEST, GROUPS = "distance to the closest record", "groups"

# One bin for all numbers: a model's own bins would see nothing at all of them.
SCHEMA = parse_schema("""
label: y
columns:
  age: {type: integer, low: 18, high: 95, bins: 1}
  previous: {type: integer, low: 0, high: 300, bins: 29}
  pay: {type: number, low: -100, high: 1000, bins: 1, missing: true, special: [-999]}
  job: {type: category, values: [a, b, c], missing: true}
  y: {type: category, values: ["no", "yes"]}
found_constraints: [age >= 30 if job = a]
""")


def frame(n, seed):
    """Draw a table with a spike, a special value, and missing values."""
    random = np.random.default_rng(seed)
    age = random.integers(18, 96, n)
    previous = np.where(random.random(n) < 0.82, 0, random.geometric(0.35, n)).clip(0, 300)
    pay = np.round(random.normal(10 * age, 50).clip(-100, 1000), 2)
    pay = np.where(random.random(n) < 0.1, -999.0, pay)
    job = random.choice(np.array(["a", "b", "c"], object), n, p=[0.5, 0.3, 0.2])
    y = np.where(random.random(n) < 1 / (1 + np.exp(-(age - 50) / 10 - previous)), "yes", "no")
    made = pd.DataFrame({"age": age, "previous": previous, "pay": pay, "job": job, "y": y})
    return made.mask(pd.DataFrame({name: random.random(n) < 0.05 * (name in ("pay", "job")) for name in made}))


def values(made):
    return read_table(made, SCHEMA, values=True).values


@functools.cache
def evaluated(n=1200, m=600, held=600, **asked):
    held_out = None if held is None else values(frame(held, 2))
    return evaluate_table(values(frame(n, 0)), values(frame(m, 1)), held_out=held_out, **asked)


def compared(section, real, made, held_out=None, by=None, **asked):
    """Return one section of an evaluation."""
    given = {"real": values(real), "synthetic": values(made)}
    given |= {} if held_out is None else {"held out": values(held_out)}
    return compute_section(measures_of("table")[section], replace(halve_table(given, by or "y", 0), **asked))


def numbers(found):
    return [value for scores in (*found.scores.values(), *found.reference.values()) for value in scores.values()]


def test_values_are_those_of_the_file():
    made = frame(300, 0)
    found = values(made)
    for name in ("age", "previous", "pay"):
        np.testing.assert_allclose(found.column(name), made[name].to_numpy(float))
    jobs = np.array(["a", "b", "c", None], object)[found.column("job")]
    assert list(jobs) == [None if pd.isna(job) else job for job in made["job"]]
    assert np.array_equal(found[5:9].column("age"), made["age"][5:9])
    with pytest.raises(ValueError, match="expected one of age, previous"):
        found.column("nosuch")


def test_values_as_units_and_groups_keep_special_and_missing_ones():
    found = values(pd.DataFrame({"age": [18, 95], "previous": [0, 300], "pay": [-999.0, None], "job": "a", "y": "no"}))
    encoded, layout = found.scaled()
    assert layout.units == 3 and layout.groups == (3, 4, 2) and layout.label == 2
    assert encoded.units.tolist() == [[0, 0, 0], [1, 1, 0]] and encoded.codes.tolist() == [[1, 0, 0], [2, 0, 0]]


def test_perfect_data_score_as_a_real_half():
    """The qualities of twenty other tables of this size differ by .041 at most, and by .002 on average."""
    found = evaluated()
    assert found.reference[QUALITY][HEADLINE] > 0.93
    assert abs(found.scores[QUALITY][HEADLINE] - found.reference[QUALITY][HEADLINE]) < 0.05
    assert set(found.notes) == {MEMBERSHIP} and "by their values, " in found.notes[MEMBERSHIP]
    assert all(math.isfinite(value) and value >= 0.0 for value in numbers(found))
    for section, scores in found.reference.items():
        assert [name for name in found.scores[section] if "closer to" not in name] == list(scores)
    assert found.rows == {"real": (1200, 1200), "synthetic": (600, 600), "held out": (600, 600)}
    assert "given as not learned from" in found.held_out


@pytest.mark.slow
def test_a_column_that_the_bins_of_a_model_hide_is_called_bad():
    """Zeros of 82 % became 9.5 %, drawn evenly within the first of 29 bins: of all columns one alone is broken."""
    made, random = frame(600, 1), np.random.default_rng(3)
    first = SCHEMA.modelled[1].encode(pa.array(made["previous"]), False, Counter())[0] == 0
    poor = made.assign(previous=np.where(first, random.integers(0, 10, 600), made["previous"]))
    before, after = (SCHEMA.encode(pa.RecordBatch.from_pandas(part)).codes for part in (made, poor))
    assert np.array_equal(before, after)
    found = evaluate_table(values(frame(1200, 0)), values(poor))
    assert found.scores[QUALITY][HEADLINE] < 0.6 and found.reference[QUALITY][HEADLINE] > 0.93
    assert found.scores[QUALITY]["distance of the worst column"] > 0.6
    assert found.scores[DETECTION]["AUC"] > 0.85 and found.figures["columns"][0]["name"] == "previous"


def test_scores_are_those_of_scipy():
    real, other = frame(500, 0), frame(400, 1)
    distances = column_distances(values(real), values(other), spreads(values(real)))
    # A missing value counts as larger than all others.
    expected = ks_2samp(*(part["pay"].fillna(1e9) for part in (real, other))).statistic
    assert distances["pay"] == pytest.approx(expected, abs=1e-12)
    shares = [part["job"].fillna("none").value_counts(normalize=True) for part in (real, other)]
    assert distances["job"] == pytest.approx(0.5 * shares[0].sub(shares[1], fill_value=0).abs().sum())
    both = real[["age", "previous", "pay"]].to_numpy(float)
    pairs = [spearmanr(both[:, a], both[:, b], nan_policy="omit").statistic for a, b in ((0, 1), (0, 2), (1, 2))]
    np.testing.assert_allclose(rank_correlations(both, np.array([[0, 1], [0, 2], [1, 2]])), pairs, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_quantile_bins_are_of_equal_mass_but_for_values_of_many(seed):
    random = np.random.default_rng(seed)
    column = np.where(random.random(2000) < 0.4, 3.0, random.normal(0, 9, 2000))
    column[:100] = np.nan
    bins = QuantileBins.of(column)
    shares = np.bincount(bins.codes(column), minlength=bins.count) / len(column)
    assert bins.single.tolist() == [3.0] and shares[0] == np.mean(column == 3.0) and shares[-1] == 0.05
    assert np.allclose(shares[1:-1], shares[1:-1].mean(), atol=0.002) and bins.count == 12
    # A value beside a spike is not in its bin.
    assert bins.codes(np.array([np.nextafter(3.0, 4.0)]))[0] != 0


def test_rows_that_are_copied_repeated_or_impossible():
    real, made = frame(600, 0), frame(300, 1)
    copies = pd.concat([real, made[:150], made[:150].assign(job="b", age=made["age"][0])])
    scored = compared(ROWS, real, copies).scores
    assert scored["rows identical to a real one"] > 0.2
    assert 0.02 < scored["rows that break age >= 30 if job = a"] < 0.1
    twice = pd.concat([made, made])
    assert compared(ROWS, real, twice).scores["rows identical to another of the same side"] > 0.4
    never = made.assign(previous=299)
    found = compared(ROWS, real, never).scores
    assert found["values that never occur in the real column, worst"] == 1.0


def test_groups_are_those_of_the_label_or_of_a_column():
    real, made = frame(1200, 0), frame(600, 1)
    of_label, of_age = evaluated().scores[GROUPS], compared(GROUPS, real, made, by="age").scores
    assert {name.partition(":")[0] for name in of_label} == {"y no", "y yes"}
    assert len({name.partition(":")[0] for name in of_age}) == 10
    only = compared(GROUPS, real, made.assign(age=made["age"].where(made["y"] == "no", 18))).scores
    assert only["y yes: one column, worst"] > 0.9 > 0.2 > only["y no: one column, worst"]
    with pytest.raises(ValueError, match="by='nosuch': expected a column of the table: age, previous"):
        evaluate_table(values(made), values(made), by="nosuch")


def test_copies_of_what_was_learned_from_are_close_and_others_are_not():
    """An interval of 95 % holds a half where nothing is copied, for this seed."""
    real, held_out = frame(600, 0), frame(600, 2)
    name = "closer to a record learned from than to a held-out one"
    copies, others = (compared(CLOSEST, real, made, held_out) for made in (real, frame(600, 1)))
    assert copies.scores["share at distance 0"] == 1.0 and copies.intervals[name].low > 0.9
    assert others.intervals[name].low < 0.5 < others.intervals[name].high
    attacked = compared(MEMBERSHIP, real, real, held_out)
    assert attacked.intervals["nearest record: accuracy"].low > 0.9
    without = evaluated(7, 2, None)
    assert name not in without.scores[CLOSEST] and "learned from, too" in without.notes[CLOSEST]
    assert "no record was given as not learned from" in without.held_out and MEMBERSHIP not in without.scores


@pytest.mark.parametrize(("n", "m", "held"), [(1, 1, None), (2, 3, 1), (7, 2, None)])
def test_very_few_records_are_compared_as_they_can_be(n, m, held):
    found = evaluated(n, m, held)
    assert found.scores[COLUMNS] and all(math.isfinite(value) for value in numbers(found))


COLUMN_LISTS = {
    "one category": "columns: {a: {type: category, values: [x, y]}}",
    "one number": "columns: {a: {type: integer, low: 0, high: 9, bins: 2}}",
    "a number of one value": "columns: {a: {type: integer, low: 3, high: 3, bins: 1}, b: {type: boolean}}",
    "a label of whole numbers": "{label: a, columns: {a: {type: integer, low: 0, high: 3, bins: 4}, b: {type: boolean}}}",
    "numbers that are missing": "columns: {a: {type: number, low: 0, high: 1, bins: 2, missing: true}, b: {type: boolean}}",
}


@pytest.mark.parametrize("case", COLUMN_LISTS)
def test_odd_tables_are_compared(case):
    schema, random = parse_schema(COLUMN_LISTS[case]), np.random.default_rng(0)
    made = schema.decode(_encoded(schema, 40, random), random)
    found = evaluate_table(*(TableValues.of(made.slice(start, 20), schema) for start in (0, 20)))
    assert all(math.isfinite(value) for value in numbers(found)) and (TRAINING in found.scores) == ("label" in case)
    assert json.dumps(found.as_json(), allow_nan=False)


def _encoded(schema, n, random):
    from lightning_dpgen.data.layout import Encoded

    codes = np.stack([random.integers(0, size, n) for size in schema.layout.groups], axis=1)
    if case := schema.modelled[0].missing:
        codes[:, 0] = schema.modelled[0].present * case
    return Encoded(np.zeros((n, 0), np.float32), codes)


def test_what_was_skipped_leaves_the_quality_out(monkeypatch):
    ticks = iter([0.0, 1.0, 2.0, *[11.0] * 20])
    monkeypatch.setattr("lightning_dpgen.metrics.evaluation.time.monotonic", lambda: next(ticks))
    found = evaluated.__wrapped__(40, 40, None, seconds=10)
    assert list(found.scores) == [COLUMNS, PAIRS]
    assert found.notes[QUALITY] == "left out, as parts of it were not computed: telling them apart"


def test_many_records_are_subsampled(monkeypatch):
    monkeypatch.setattr(evaluation, "ROWS", 30)
    assert evaluated.__wrapped__(100, 50, 40, seconds=1e-9).rows == {
        "real": (100, 60),
        "synthetic": (50, 30),
        "held out": (40, 30),
    }


def test_the_same_seed_gives_the_same_scores():
    assert evaluated.__wrapped__(7, 2, None).as_json() == evaluated(7, 2, None).as_json()


BAD = {
    "no real record": ({"real": values(frame(0, 0))}, "there is no real record"),
    "no synthetic record": ({"synthetic": values(frame(0, 0))}, "there is no synthetic record"),
    "another schema": (
        {"synthetic": TableValues(parse_schema("columns: {a: {type: boolean}}"), np.zeros((1, 0)), np.zeros((1, 1), int))},
        "of another schema",
    ),
    "no time": ({"seconds": 0.0}, "expected a positive number"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_compared_is_refused_in_one_line(case):
    asked, said = BAD[case]
    with pytest.raises(ValueError, match=said):
        evaluate_table(**{"real": values(frame(5, 0)), "synthetic": values(frame(5, 1))} | asked)


class _Report:
    """Stands for SDMetrics' report: it sees both tables and their kinds of columns."""

    def generate(self, real, synthetic, metadata, verbose):
        self.seen = real, synthetic, metadata

    def get_score(self):
        real, synthetic, metadata = self.seen
        assert list(real) == list(synthetic) == list(metadata["columns"]) and real["job"].isna().any()
        return 0.25

    def get_properties(self):
        return pd.DataFrame({"Property": ["Column Shapes", "Cardinality"], "Score": [0.5, np.nan]})


def test_the_report_of_sdmetrics_is_asked_for_both_sides(monkeypatch):
    monkeypatch.setattr(quality, "import_quality_report", lambda: _Report)
    found = compared("SDMetrics", frame(80, 0), frame(40, 1), sdmetrics=True)
    assert found.scores == found.reference == {"overall score": 0.25, "column shapes": 0.5}


def test_without_sdmetrics_a_line_says_how_to_have_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sdmetrics", None)
    with pytest.raises(MissingLibrary, match=r"pip install 'lightning_dpgen\[sdmetrics\]'"):
        import_quality_report()


@pytest.mark.parametrize("high", [1000, 10**6, 10**9])
def test_a_wrong_mean_is_seen_however_wide_the_bounds_are(high):
    """Some values of 2 % lie far out, and the mean is 4 times the real one: shares alone differ by 2 %."""
    schema = parse_schema(f"columns: {{cost: {{type: number, low: 0, high: {high}, decimals: 2, bins: 1, special: [-1]}}}}")
    random = np.random.default_rng(0)
    cost = 500 * random.exponential(1.0, 2000).clip(0, 8)
    cost[:200] = -100
    far = np.where(np.arange(2000) % 50 == 49, 75_000, cost)
    real, made, poor = (TableValues(schema, part[:, None], np.zeros((2000, 0), int)) for part in (cost, cost, far))
    assert column_distances(real, made, spreads(real))["cost"] == 0.0
    ordinary = cost[200:]
    length = np.quantile(ordinary, 0.99) - np.quantile(ordinary, 0.01)
    moved = wasserstein_distance(ordinary, far[far >= 0]) / length
    score = column_distances(real, poor, spreads(real))["cost"]
    assert ks_2samp(cost, far).statistic < 0.025 < 0.6 < score == pytest.approx(moved, rel=1e-3)


SPREADS = {
    "nearly all equal": ([0.0] * 400 + [9.0], np.std([0.0] * 400 + [9.0])),
    "all equal": ([7.0] * 9, 300.0), "all special": ([-1.0] * 9, 300.0), "missing": ([np.nan] * 9, 300.0),
    "special ones beside": ([*[-1.0] * 50, *range(101)], 98.0),
}  # fmt: skip


@pytest.mark.parametrize("case", SPREADS)
def test_lengths_are_positive_whatever_the_values_are(case):
    schema = parse_schema("columns: {a: {type: integer, low: 0, high: 300, bins: 1, special: [-1], missing: true}}")
    found, length = SPREADS[case]
    values = TableValues(schema, np.array(found)[:, None], np.zeros((len(found), 0), int))
    assert spreads(values).tolist() == pytest.approx([length])
    # Any other side has a distance in [0, 1].
    other = TableValues(schema, np.array([[300.0]]), np.zeros((1, 0), int))
    assert 0.0 < column_distances(values, other, spreads(values))["a"] <= 1.0


STAYS = parse_schema("""
columns:
  born: {type: date, low: 1900-01-01, high: 2023-12-31, bins: 1}
  start: {type: date, low: 2019-01-01, high: 2023-12-31, bins: 1, missing: true, special: [1900-01-01]}
  end: {type: datetime, low: 2019-01-01T00:00, high: 2024-12-31T00:00, resolution: hour, bins: 1}
  pay: {type: number, low: 0, high: 1000000, decimals: 2, bins: 1}
""")


def stays(n, seed, together):
    random = np.random.default_rng(seed)
    start, apart = pd.Timestamp("2020-03-01") + pd.to_timedelta(random.integers(0, 900, n), "D"), random.integers(1, 90, n)
    end = start + pd.to_timedelta(24 * apart, "h") if together else start[random.permutation(n)]
    made = pd.DataFrame({"born": "1960-05-05", "start": start.strftime("%Y-%m-%d"), "end": end.strftime("%Y-%m-%d %H:00")})
    made.loc[:4, "start"], made.loc[5:9, "start"] = None, "1900-01-01"
    return read_table(made.assign(pay=random.integers(1, 9, n) * 10_000.0), STAYS, values=True).values


def test_dates_out_of_order_are_told():
    real, good, poor = stays(400, 0, True), stays(400, 1, True), stays(400, 2, False)
    found = {order.score: order for order in orders(real, poor)}
    assert set(found) == {f"rows with {pair}" for pair in ("born after start", "born after end", "start after end")}
    order = found["rows with start after end"]
    start, end = (poor.column(name) for name in ("start", "end"))
    there = ~np.isnan(start) & (start > 0)
    assert order.synthetic == (24 * start[there] > end[there]).mean() > 0.4 and order.real == 0.0 and order.far
    assert "in none of the real ones: if that is publicly known, declare the constraint start <= end" in order.text
    assert not any(order.far for order in orders(real, good))
    assert not any(order.far for row in range(10, 16) for order in orders(real, poor[row : row + 1]))
    section = compute_section(measures_of("table")[ROWS], halve_table({"real": real, "synthetic": poor}, None, 0))
    assert section.scores[order.score] == order.synthetic and section.reference[order.score] == 0.0
    assert section.remarks["order of dates"] == [order.text]


def test_summaries_are_in_the_words_of_the_column_and_leave_special_values_out():
    real, made = stays(400, 0, True), stays(400, 2, False)
    found = summaries(real, made)
    pay, start = real.column("pay") / 100, real.column("start")
    assert found["pay"].sides["real"][:2] == (f"{pay.mean():,.0f}", f"{pay.std():,.0f}")
    tails = np.quantile(pay, [0, 0.001, 0.01, 0.99, 0.999, 1], method="inverted_cdf")
    assert list(found["pay"].as_json()["real"].values()) == pytest.approx([pay.mean(), pay.std(), *tails])
    day = np.datetime64(round(np.mean(start[start > 0])), "D")
    low, high = (np.datetime64(int(day), "D") for day in np.quantile(start[start > 0], [0.01, 0.99], method="inverted_cdf"))
    words = dict(zip(FIGURES, found["start"].real, strict=True))
    assert (words["mean"], words["standard deviation"]) == (str(day), f"{start[start > 0].std():.0f} days")
    assert (words["1 %"], words["99 %"]) == (str(low), str(high)) and words["least"] <= words["0.1 %"]
    assert found["born"].synthetic == ("1960-05-05", "0.0 days", *["1960-05-05"] * 6)
    assert found["end"].real[-1].startswith("2022-") and found["end"].real[1].endswith(" days")
    assert summaries(real[:5], made)["start"].real == ()

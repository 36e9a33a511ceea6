"""Figures of histories against plain pandas, and which of them finds which fault."""

import itertools

import numpy as np
import pandas as pd
import pytest
from metrics.records import few_trees
from scipy.stats import wasserstein_distance

from lightning_dpgen.data.histories.row_table import RowOrder, RowTable
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.histories.values import HistoryValues, RowValues
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics import table_pairs
from lightning_dpgen.metrics.evaluation import compute_section
from lightning_dpgen.metrics.histories import well_formed
from lightning_dpgen.metrics.history_persons import in_bins, person_features
from lightning_dpgen.metrics.history_sides import HistorySides, evaluate_histories
from lightning_dpgen.metrics.measure import Result, measures_of

# Values of which each is a level of its own, since at least one record in ten has it.
COSTS, GAPS, AGES, STARTS = (
    np.array(values, float) for values in ([5, 20, 60, 90], [0, 7, 30, 39], [10, 40, 80], [3, 20, 60, 99])
)
PERSONS = TableSchema(
    (column_of("sex", {"type": "category", "values": ["F", "M"]}),
     column_of("age", {"type": "integer", "low": 0, "high": 89, "bins": 3})), label="sex",
)  # fmt: skip
ROWS = TableSchema((
    column_of("ward", {"type": "category", "values": ["a", "b", "c"]}),
    column_of("cost", {"type": "integer", "low": 0, "high": 99, "bins": 2, "missing": True}),
))  # fmt: skip
ORDER = RowOrder.of("day", {"type": "integer", "low": 0, "high": 99, "bins": 5}, {"high": 39, "bins": 2})
VISITS, ORDERS = RowTable("visits", ROWS, max_rows=4, order=ORDER), RowTable("orders", ROWS, max_rows=4)
SCHEMA, TWO = HistorySchema(PERSONS, (VISITS,)), HistorySchema(PERSONS, (ORDERS, VISITS))
OF = measures_of("histories")
ROW_BY_ROW, SUMMED = ("rows", "steps from row to row"), ("whole histories", "columns", "attributes and rows")
SECTIONS = (*ROW_BY_ROW, *SUMMED)
TOLD, IN_BINS = "telling them apart: AUC", "telling them apart: AUC in the declared bins"


@pytest.fixture(scope="module", autouse=True)
def _few_trees():
    with few_trees(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_pairs, "_ROUNDS", 15)
        yield


def by_values(persons: pd.DataFrame, *rows: pd.DataFrame, schema: HistorySchema = SCHEMA) -> HistoryValues:
    """Return persons (sex, age, start) and the rows (person, gap, ward, cost) of each table by their values."""
    attributes = TableValues(PERSONS, persons[["age"]].to_numpy(float), persons[["sex"]].to_numpy())
    tables = []
    for table, own in zip(schema.tables, rows, strict=True):
        counts = np.bincount(own.person, minlength=len(persons))
        days = own.gap.where(own.groupby("person").cumcount() > 0, persons.start[own.person].to_numpy())
        times = None if table.order is None else days.groupby(own.person).cumsum().to_numpy(float)
        tables.append(RowValues(counts, times, TableValues(ROWS, own[["cost"]].to_numpy(float), own[["ward"]].to_numpy())))
    return HistoryValues(schema, attributes if schema.persons else None, tuple(tables))


def drawn(n: int, seed: int, steady: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Draw persons with rows that stay in their ward, cost about as much as before, and go with the person's sex.

    Args:
        steady: whether a person's rows all cost the same, and are as far apart.
    """
    random = np.random.default_rng(seed)
    sex = random.integers(0, 2, n)
    persons = pd.DataFrame({"sex": sex, "age": random.choice(AGES, n), "start": random.choice(STARTS, n)})
    rows = []
    for person, count in enumerate(random.integers(0, 5, n)):
        ward, cost = 2 * sex[person] if random.random() < 0.9 else 1, random.integers(0, 4)
        for _ in range(count):
            ward = ward if random.random() < 0.9 else random.integers(0, 3)
            cost = cost if steady else np.clip(cost + random.integers(-1, 2), 0, 3)
            seen = COSTS[cost] if steady or random.random() < 0.9 else np.nan
            gap = GAPS[(person + count) % 4] if steady else random.choice(GAPS)
            rows.append((person, gap, ward, seen))
    return persons, pd.DataFrame(rows, columns=["person", "gap", "ward", "cost"])


def scores(real: HistoryValues, synthetic: HistoryValues, sections=SECTIONS) -> dict[str, float]:
    sides, found = HistorySides(real=real, synthetic=synthetic), {}
    for section in sections:
        found |= {f"{section}: {name}": value for name, value in compute_section(OF[section], sides).scores.items()}
    return found


def apart(one: pd.Series, other: pd.Series) -> float:
    """Return the total variation distance of the values of two series, 1 where one alone is empty."""
    if one.empty or other.empty:
        return float(one.empty != other.empty)
    shares = [side.value_counts(normalize=True, dropna=False) for side in (one, other)]
    return float(0.5 * shares[0].sub(shares[1], fill_value=0.0).abs().sum())


def paired(rows: pd.DataFrame, *columns: str) -> pd.Series:
    return pd.Series(list(rows[list(columns)].fillna(-1.0).itertuples(index=False, name=None)), dtype=object)


def largest_gap(one: pd.Series, other: pd.Series) -> float:
    one, other = one.dropna(), other.dropna()
    if one.empty or other.empty:
        return float(one.empty != other.empty)
    return max(abs((one <= at).mean() - (other <= at).mean()) for at in {*one, *other})


def facts(persons: pd.DataFrame, rows: pd.DataFrame) -> dict:
    """Return the tables that distances are of, by plain pandas."""
    place = rows.groupby("person").cumcount()
    gap = rows.gap.where(place > 0).astype(float)
    rows = rows.assign(place=place, gap=gap, days=gap.fillna(rows.person.map(persons.start)))
    rows["day"] = rows.groupby("person").days.cumsum()
    rows = rows.join(persons[["sex", "age"]], on="person")
    own = rows.groupby("person")
    counts = rows.person.value_counts().reindex(range(len(persons)), fill_value=0)
    persons = persons.assign(rows=counts, first=persons.start.where(counts > 0).astype(float), mean=own.cost.mean())
    wards = pd.crosstab(rows.person, rows.ward).reindex(range(len(persons)), fill_value=0).clip(upper=1)
    found = {
        "persons": persons, "rows": rows, "first": rows[place == 0], "spans": own.day.max() - own.day.min(),
        "mean": own.cost.mean(), "sum": own.cost.sum(min_count=1), "deviation": own.cost.std(ddof=0), "wards": wards,
    }  # fmt: skip
    flags = [rows[column].fillna(-1.0).astype(str).radd(f"{column} ") for column in ("ward", "cost")]
    has = pd.crosstab(np.tile(rows.person, 2), np.concatenate(flags)).clip(upper=1)
    found["has"] = has.reindex(range(len(persons)), fill_value=0)
    for column in ("ward", "cost", "gap"):
        later = pd.DataFrame({"person": rows.person, "place": place, "after": rows[column], "before": own[column].shift()})
        found[column] = later[place > 0]
        for lag in (1, 2):
            pairs = pd.DataFrame({"before": own[column].shift(lag), "after": rows[column]}).dropna()
            varies = pairs.nunique().gt(1).all()
            found[column, lag] = pairs.before.corr(pairs.after, method="spearman") if varies else 0.0
    return found


def number_apart(made: pd.Series, real: pd.Series) -> float:
    """Return the Kolmogorov-Smirnov distance, missing values being larger than all."""
    return largest_gap(made.fillna(np.inf), real.fillna(np.inf))


def expected(real: dict, made: dict, learned: dict) -> dict[str, float]:
    def two(table: str, *columns: str) -> float:
        return apart(paired(made[table], *columns), paired(real[table], *columns))

    def of_row(table: str) -> list[float]:
        return [apart(made[table].ward, real[table].ward), number_apart(made[table].cost, real[table].cost)]

    steps = [two(column, "before", "after") for column in ("ward", "cost")]
    stays = [side["ward"].eval("before == after").mean() if len(side["ward"]) else 0.0 for side in (made, real)]
    lags = {lag: np.mean([abs(made[c, lag] - real[c, lag]) for c in ("cost", "gap")]) for lag in (1, 2)}
    has = [side["has"].reindex(columns={*made["has"], *real["has"]}, fill_value=0) for side in (made, real)]
    ever = (has[0].mean() - has[1].mean()).abs()
    both = [(side.T @ side / len(side)).to_numpy() for side in has]
    both = np.abs(both[0] - both[1])[np.triu_indices(len(ever), 1)]
    ages = [side["persons"].age for side in (made, real)]
    width = np.diff(np.quantile(learned["persons"].age, [0.01, 0.99]))[0]
    age = max(largest_gap(*ages), min(wasserstein_distance(*ages) / width, 1.0))
    attributes = [apart(made["persons"].sex, real["persons"].sex), age]
    with_rows = [two("rows", *pair) for pair in itertools.product(("sex", "age"), ("ward", "cost", "gap"))]
    return {
        "rows: number of rows": apart(made["persons"].rows, real["persons"].rows),
        "rows: first time": largest_gap(made["first"].day, real["first"].day),
        "rows: time of a row": largest_gap(made["rows"].day, real["rows"].day),
        "rows: distance from row to row": largest_gap(made["rows"].gap, real["rows"].gap),
        "rows: column of first rows, mean": np.mean(of_row("first")),
        "rows: column of a row, mean": np.mean(of_row("rows")),
        "rows: column of a row, worst": max(of_row("rows")),
        "rows: two columns of a row, mean":
            np.mean([two("rows", *pair) for pair in itertools.combinations(("ward", "cost", "gap"), 2)]),
        "steps from row to row: column before and after, mean": np.mean(steps),
        "steps from row to row: column before and after, worst": max(steps),
        "steps from row to row: category stays as it is, mean difference": abs(stays[0] - stays[1]),
        "steps from row to row: rank correlation at lag 1, mean difference": lags[1],
        "steps from row to row: rank correlation at lag 2, mean difference": lags[2],
        "whole histories: ever has a value, mean difference": ever.mean(),
        "whole histories: ever has a value, worst difference": ever.max(),
        "whole histories: ever has two values, mean difference": both.mean(),
        "whole histories: mean of a person, mean distance": largest_gap(made["mean"], real["mean"]),
        "whole histories: deviation within a person, mean distance": largest_gap(made["deviation"], real["deviation"]),
        "whole histories: sum of a person, mean distance": largest_gap(made["sum"], real["sum"]),
        "whole histories: time from first to last row": largest_gap(made["spans"], real["spans"]),
        "columns: one column, mean": np.mean(attributes),
        "columns: one column, worst": max(attributes),
        "columns: two columns, mean": two("persons", "sex", "age"),
        "columns: two columns, worst": two("persons", "sex", "age"),
        "attributes and rows: attribute and number of rows, mean":
            np.mean([two("persons", column, "rows") for column in ("sex", "age")]),
        "attributes and rows: attribute and column, mean": np.mean(with_rows),
        "attributes and rows: attribute and column, worst": max(with_rows),
    }  # fmt: skip


REAL = drawn(400, seed=0)
VALUES = by_values(*REAL)


@pytest.mark.parametrize("n", [1, 5, 300])
def test_each_number_is_that_of_pandas(n):
    other = drawn(n, seed=18)
    real, made = facts(*REAL), facts(*other)
    found = scores(VALUES, by_values(*other))
    summaries = {name: found.pop(name) for name in list(found) if "summary of a person" in name}
    assert len(summaries) == 2 and found == pytest.approx(expected(real, made, real), abs=1e-6)


def test_attributes_go_with_what_histories_come_to():
    """Rows of a person all cost the same and are as far apart, so that means are few, and each is a level."""
    parts = drawn(400, 3, steady=True), drawn(150, 4, steady=True)
    found = scores(*(by_values(*part) for part in parts), ["attributes and rows"])
    sides = [facts(*part) for part in parts]
    real, made = (
        side["persons"]
        .join(side["wards"].add_prefix("ward "))
        .assign(gaps=side["rows"].groupby("person").gap.mean(), none=0)
        for side in sides
    )
    # The share of those who ever lack a ward is a summary, too.
    pairs = itertools.product(("sex", "age"), ("first", "mean", "gaps", "ward 0", "ward 1", "ward 2", "none"))
    told = [apart(paired(made, *pair), paired(real, *pair)) for pair in pairs]
    for which, value in (("mean", np.mean(told)), ("worst", max(told))):
        assert found[f"attributes and rows: attribute and summary of a person, {which}"] == pytest.approx(value)


def test_tables_together_are_told_by_pandas_and_by_nothing_else():
    persons, rows = drawn(300, seed=5, steady=True)
    shuffled = np.random.default_rng(1).permutation(300)
    mixed = rows.assign(person=shuffled[rows.person]).sort_values("person", kind="stable")
    real, copy, made = (by_values(persons, own, rows, schema=TWO) for own in (rows, rows, mixed))
    assert max(scores(real, copy, ["tables together"]).values()) == 0.0
    found = scores(real, made, ["tables together", "whole histories", *ROW_BY_ROW])
    together = {name: found.pop(name) for name in list(found) if name.startswith("tables together: ")}
    # Sums of float32 flags and of numbers in another order are not equal to the last digit.
    assert max(value for name, value in found.items() if "deviation" not in name and "mean of" not in name) < 1e-6
    counts = [own.person.value_counts().reindex(range(300), fill_value=0) for own in (mixed, rows)]
    frames = [pd.DataFrame({"orders": own, "visits": counts[1]}) for own in counts]
    told = "tables together: numbers of orders and visits"
    assert together[told] == pytest.approx(apart(*(paired(frame, "orders", "visits") for frame in frames)))
    far = abs(np.subtract(*(frame.orders.corr(frame.visits, method="spearman") for frame in frames)))
    name = "tables together: rank correlation of the numbers of orders and visits, difference"
    assert together[name] == pytest.approx(far) and far > 0.8
    assert together["tables together: two summaries in orders and visits, mean"] > 0.1


def test_numbers_of_several_tables_are_those_of_each():
    other = drawn(40, seed=18)
    found = scores(by_values(*REAL, REAL[1], schema=TWO), by_values(*other, other[1], schema=TWO))
    for table in TWO.tables:
        schema = HistorySchema(PERSONS, (table,))
        sections = [name for name in SECTIONS if table is VISITS or name != "steps from row to row"]
        for name, value in scores(by_values(*REAL, schema=schema), by_values(*other, schema=schema), sections).items():
            section, score = name.split(": ", 1)
            assert found[name if section == "columns" else f"{section}: {table.name}: {score}"] == value
    evaluation = evaluate_histories(by_values(*other, other[1], schema=TWO), by_values(*other, other[1], schema=TWO))
    glances = [glance.words for measure in OF["rows"] for glance in measure.glances(evaluation)]
    assert glances[:2] == [f"{table}: distance of the number of rows of a person" for table in ("orders", "visits")]
    listed = [listing.title for listing in evaluation.listings if "ever" in listing.title]
    assert listed == [f"{table}: values that persons ever have" for table in ("orders", "visits")]


def test_a_perfect_copy_is_at_no_distance_and_is_not_told_apart():
    copy = VALUES[np.random.default_rng(0).permutation(len(VALUES))]
    found = scores(VALUES, copy, (*SECTIONS, "telling them apart"))
    assert found.pop(TOLD) < 0.55 and found.pop(IN_BINS) < 0.55
    found.pop("telling them apart: detected, 2 AUC - 1")
    assert max(found.values()) < 1e-6
    assert scores(VALUES, copy, ["integrity"]) == {"integrity: persons whose history is well-formed": 1.0}


def test_bins_that_are_too_coarse_are_seen():
    """Costs and distances that are drawn anew within the two bins of each, as a release draws them."""
    random = np.random.default_rng(3)
    persons, rows = drawn(400, seed=6)
    within = {"cost": (rows.cost // 50 * 50, 50), "gap": (rows.gap // 20 * 20, 20)}
    coarse = rows.assign(**{name: low + random.integers(0, width, len(rows)) for name, (low, width) in within.items()})
    sections = (*SECTIONS, "telling them apart")
    good, poor = (scores(VALUES, by_values(persons, own), sections) for own in (rows, coarse))
    assert poor[TOLD] > 0.9 and poor[IN_BINS] < 0.6 and good[TOLD] < 0.6
    seen = ["rows: distance from row to row", "rows: column of a row, worst"]
    seen += [f"whole histories: {what} of a person, mean distance" for what in ("sum", "mean")]
    assert all(poor[name] > 0.1 > good[name] for name in seen)


def test_numbers_in_bins_are_the_middles_of_these():
    persons = pd.DataFrame({"sex": [1, 0], "age": [30.0, 89.0], "start": [20, 40]})
    rows = pd.DataFrame({"person": [0, 0, 0], "gap": [0, 5, 39], "ward": [2, 2, 0], "cost": [0.0, np.nan, 99.0]})
    coarse = in_bins(by_values(persons, rows))
    assert coarse.persons.numbers.tolist() == [[44.5], [74.5]]
    assert coarse.tables[0].times.tolist() == [29.5, 29.5 + 9.5, 29.5 + 9.5 + 29.5]
    assert np.array_equal(coarse.tables[0].values.numbers, [[24.5], [np.nan], [74.5]], equal_nan=True)


def test_rows_in_another_order_are_found_by_steps_alone():
    persons, rows = REAL
    mixed = rows.sample(frac=1.0, random_state=0).sort_values("person", kind="stable").reset_index(drop=True)
    found = scores(VALUES, by_values(persons, mixed.assign(gap=rows.gap)), (*ROW_BY_ROW, "whole histories"))
    first, two = found.pop("rows: column of first rows, mean"), found.pop("rows: two columns of a row, mean")
    steps = {name: found.pop(name) for name in list(found) if name.startswith("steps")}
    assert steps["steps from row to row: rank correlation at lag 1, mean difference"] > 0.02
    assert steps["steps from row to row: column before and after, mean"] > 0.02 and first < 0.1 and two < 0.15
    assert max(value for name, value in found.items() if "deviation" not in name and "mean of" not in name) < 1e-6


def test_rows_of_another_person_are_found_by_detection():
    persons, rows = drawn(400, seed=6)
    assert scores(VALUES, by_values(persons, rows), ["telling them apart"])[TOLD] < 0.6
    mixed = rows.assign(ward=rows.ward.sample(frac=1.0, random_state=0).to_numpy())
    assert scores(VALUES, by_values(persons, mixed), ["telling them apart"])[TOLD] > 0.65
    # Whole histories of other persons are as good by themselves, and do not go with attributes.
    others = persons.assign(sex=persons.sex.sample(frac=1.0, random_state=0).to_numpy())
    found, right = (scores(VALUES, by_values(own, rows)) for own in (others, persons))
    far = {name for name in found if abs(found[name] - right[name]) > 0.03}
    parts = {"attribute and column", "attribute and summary of a person"}
    assert far == {f"attributes and rows: {part}, {which}" for part in parts for which in ("mean", "worst")}


def test_what_no_history_may_be_is_counted():
    persons = pd.DataFrame({"sex": 0, "age": 10, "start": [3, 3, 120, 60, 3]})
    rows = pd.DataFrame(
        {"person": [0, 0, 1, 1, 2, 3, *[4] * 5], "gap": [0, 9, 0, 45, 0, 0, *[1] * 5], "ward": 1, "cost": 5.0}
    )
    good = well_formed(by_values(persons, rows))
    assert good.tolist() == [True, False, False, True, False]
    until = RowTable("visits", ROWS, 9, RowOrder("day", ORDER.start, ORDER.gap, end=100))
    late = rows.assign(gap=[0, 9, 0, 39, 0, 0, *[39] * 5])
    assert well_formed(by_values(persons, late, schema=HistorySchema(None, (until,)))).tolist() == [
        True,
        True,
        False,
        True,
        False,
    ]


def test_broken_constraints_are_counted_and_told():
    columns = "{ward: {type: category, values: [a, b, c]}, paid: {type: category, values: [no, yes]}}"
    rows = parse_schema(f"{{columns: {columns}, constraints: [paid = yes if ward = a]}}")
    schema = HistorySchema(None, (RowTable("visits", rows, 4, ORDER),))
    values = TableValues(rows, np.zeros((4, 0)), np.array([[0, 0], [0, 1], [1, 0], [2, 1]]))
    broken = HistoryValues(schema, None, (RowValues(np.array([4]), np.arange(4.0), values),))
    section = compute_section(OF["integrity"], HistorySides(real=broken, synthetic=broken))
    ((name, share),) = [(name, value) for name, value in section.scores.items() if "break" in name]
    assert share == 0.25 and name.startswith("rows that break paid")
    assert section.remarks["rules"][0].endswith("is broken by 25.00% of the synthetic rows")


def test_features_are_those_of_a_person():
    persons = pd.DataFrame({"sex": [1, 0, 1], "age": [80.0, 10.0, 80.0], "start": [60, 20, 3]})
    costs = [5.0, np.nan, 90.0, np.nan]
    rows = pd.DataFrame({"person": [0, 0, 0, 2], "gap": [9, 7, 30, 9], "ward": [2, 2, 0, 1], "cost": costs})
    values, none = by_values(persons, rows), [np.nan]
    features, categories = person_features(values, VALUES)
    of_ward, of_cost, of_gap = (
        [2, 0, 0.5, 1, 0, 2, 0], [47.5, 42.5, 95, 5, 90, 5, 90, 0], [18.5, 11.5, 37, 7, 30]
    )  # fmt: skip
    assert features[0] == pytest.approx([1, 80, 3, 60, 37, *of_ward, *of_cost, *of_gap])
    assert features[1] == pytest.approx([0, 10, 0, *none * 5, *[0] * 4, *none * 13], nan_ok=True)
    alone = [1, 1, *none, 0, 1, 0, 0, *none * 8]
    assert features[2] == pytest.approx([1, 80, 1, 3, 0, *alone, *none * 5], nan_ok=True)
    assert np.flatnonzero(categories).tolist() == [0, 5, 6]


@pytest.mark.parametrize("change", ["set", "single", "bare"])
def test_histories_without_an_order_steps_or_attributes(change):
    schema = {
        "set": HistorySchema(PERSONS, (ORDERS,)),
        "single": HistorySchema(PERSONS, (RowTable("visits", ROWS, 1, ORDER),)),
        "bare": HistorySchema(None, (VISITS,)),
    }[change]
    persons, rows = drawn(60, seed=1)
    own = by_values(persons, rows if schema.tables[0].max_rows > 1 else rows.drop_duplicates("person"), schema=schema)
    found = evaluate_histories(own[:20], own[20:40], held_out=own[40:])
    assert set(found.reference["rows"]) == set(found.scores["rows"])
    assert ("steps from row to row" in found.scores) == (change == "bare")
    assert ("columns" in found.scores) == ("attributes and rows" in found.scores) == (change != "bare")
    assert "first time" in found.scores["rows"] or change == "set"
    assert "telling them apart" in found.scores and "membership inference" in found.scores
    assert [column["name"] for column in sorted(found.figures["columns"], key=lambda column: column["column"])] == [
        *([] if change == "bare" else ["sex", "age"]), "ward", "cost"
    ]  # fmt: skip


def test_all_sides_have_as_many_persons_and_synthetic_ones_are_compared_with_those_held_out():
    synthetic, held_out = by_values(*drawn(300, seed=3)), by_values(*drawn(90, seed=2))
    found = evaluate_histories(VALUES, synthetic, held_out=held_out)
    assert found.rows == {"real": (400, 90), "synthetic": (300, 90), "held out": (90, 90)}
    order = np.random.default_rng(0)
    learned, made, aside = (part[order.permutation(len(part))] for part in (VALUES, synthetic, held_out))
    told = HistorySides(real=aside, synthetic=made[:90], other=learned[:90], learned=learned)
    section = compute_section(OF["whole histories"], told)
    assert found.scores["whole histories"] == section.scores and found.reference["whole histories"] == section.reference
    halved = evaluate_histories(held_out[:40], synthetic)
    assert halved.rows == {"real": (40, 40), "synthetic": (300, 20)} and "membership inference" in halved.notes


def test_labels_and_next_rows_follow_from_histories():
    held_out, made = by_values(*drawn(400, seed=2)), drawn(400, seed=3)

    def section(name: str, persons: pd.DataFrame, rows: pd.DataFrame) -> Result:
        return compute_section(OF[name], HistorySides(real=held_out, synthetic=by_values(persons, rows), other=VALUES))

    found = section("train on synthetic, test on real", *made)
    learned, usual = (of["gradient boosting, AUC"] for of in (found.scores, found.reference))
    assert 0.65 < learned < usual + 0.1
    found = section("prediction of the next row", *made)
    following = found.scores
    assert following["next ward, accuracy"] > following["next ward, commonest value, accuracy"] + 0.2
    assert following["next cost, R2"] > 0.4
    persons, rows = made
    mixed = rows.assign(cost=rows.cost.sample(frac=1.0, random_state=0).to_numpy())
    poor = section("prediction of the next row", persons, mixed)
    assert poor.scores["next cost, R2"] < 0.1 and poor.reference == found.reference


def test_a_release_of_members_is_attacked_and_one_of_others_is_not():
    random, many = np.random.default_rng(5), []
    for seed in (50, 51, 52):
        persons, rows = drawn(400, seed)
        # Costs that tell persons apart, as those of real ones do.
        many.append(by_values(persons, rows.assign(cost=random.integers(0, 99, len(rows)))))
    members, others, new = many
    for made, found_out in ((members, True), (new, False)):
        sides = HistorySides(real=others, synthetic=made, other=members, learned=members, held_out=others)
        section = compute_section(OF["membership inference"], sides)
        for attack in ("nearest record", "densities"):
            interval = section.intervals[f"{attack}: accuracy"]
            assert (interval.low > 0.55) == found_out and (interval.low < 0.5 < interval.high) != found_out
    assert "by attributes and what histories come to" in section.note


def test_what_chance_does_is_said_in_words():
    (told,) = compute_section(
        OF["chance"], HistorySides(real=VALUES[:100], synthetic=VALUES[200:300], other=VALUES[300:])
    ).remarks["chance"]
    assert told.startswith("with 100 persons on each side, equal ones differ in a share of persons by up to 0.139")
    assert "a rank correlation" in told and "too few real persons" not in told
    (told,) = evaluate_histories(VALUES[:1], VALUES[200:]).remarks["chance"]
    assert told.endswith("there are too few real persons to stand beside synthetic ones")
    note = compute_section(OF["steps from row to row"], HistorySides(real=VALUES[:20], synthetic=VALUES)).note
    assert "no rank correlation at lag 2 of cost" in note


def test_measures_of_a_kind_take_the_place_of_those_for_all_kinds():
    for section in ("telling them apart", "train on synthetic, test on real", "membership inference"):
        assert [measure.kinds for measure in OF[section]] == [("histories",)]
        assert [measure.kinds[0] for measure in measures_of("series")[section]] == ["encoded"]

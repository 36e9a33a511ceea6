"""Distances of histories against plain pandas, and which of them finds which fault."""

import itertools

import numpy as np
import pandas as pd
import pytest

from lightning_dpgen.data.histories.row_table import PersonRows, RowOrder, RowTable
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.kinds.histories import KIND
from lightning_dpgen.metrics.evaluation import compute_section, evaluate_encoded
from lightning_dpgen.metrics.histories import Histories, well_formed
from lightning_dpgen.metrics.history_persons import person_features
from lightning_dpgen.metrics.measure import measures_of
from lightning_dpgen.metrics.sides import EncodedSides

WARDS, COSTS, SEXES, AGES, STARTS, GAPS = 3, 4, 2, 3, 5, 4
SEX = column_of("sex", {"type": "category", "values": ["F", "M"]})
PERSONS = TableSchema((SEX, column_of("age", {"type": "integer", "low": 0, "high": 89, "bins": AGES})), label="sex")
ROWS = TableSchema((
    column_of("ward", {"type": "category", "values": ["a", "b", "c"]}),
    column_of("cost", {"type": "integer", "low": 0, "high": 99, "bins": COSTS, "missing": True}),
))  # fmt: skip
ORDER = RowOrder.of("day", {"type": "integer", "low": 0, "high": 99, "bins": STARTS}, {"high": 39, "bins": GAPS})
VISITS = RowTable("visits", ROWS, max_rows=4, order=ORDER)
SCHEMA = HistorySchema(PERSONS, (VISITS,))
TWO = HistorySchema(PERSONS, (RowTable("orders", ROWS, max_rows=4), VISITS))
SECTIONS = ("rows", "steps from row to row", "whole histories", "columns", "attributes and rows")


def encoded(persons: pd.DataFrame, rows: pd.DataFrame, schema: HistorySchema = SCHEMA) -> Encoded:
    """Encode persons (sex, age, start) and their rows (person, gap, ward, cost), codes of both; the same in all tables."""
    counts = np.bincount(rows.person, minlength=len(persons))
    attributes = persons[["sex", "age"]].to_numpy()[:, : schema.attributes]
    parts = []
    for table in schema.tables:
        starts, gaps = (None, 0 * rows.gap) if table.order is None else (persons.start.to_numpy(), rows.gap)
        parts.append(PersonRows(counts, starts, gaps.to_numpy(), rows[["ward", "cost"]].to_numpy()))
    return schema.joined(attributes, parts)


def drawn(n: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Draw persons with rows that stay in their ward, cost about as much as before, and go with the person's sex."""
    random = np.random.default_rng(seed)
    sex = random.integers(0, SEXES, n)
    persons = pd.DataFrame({"sex": sex, "age": random.integers(0, AGES, n), "start": random.integers(0, STARTS, n)})
    rows = []
    for person, count in enumerate(random.integers(0, 5, n)):
        ward, cost = 2 * sex[person] if random.random() < 0.9 else 1, random.integers(0, COSTS)
        for _ in range(count):
            ward = ward if random.random() < 0.9 else random.integers(0, WARDS)
            cost = np.clip(cost + random.integers(-1, 2), 0, COSTS - 1)
            seen = COSTS if random.random() < 0.1 else cost
            rows.append((person, random.integers(0, GAPS), ward, seen))
    return persons, pd.DataFrame(rows, columns=["person", "gap", "ward", "cost"])


def scores(real: Encoded, synthetic: Encoded, sections=SECTIONS, schema: HistorySchema = SCHEMA) -> dict[str, float]:
    sides = EncodedSides(kind="histories", layout=schema.layout, names=tuple(schema.choices), real=real,
                         synthetic=synthetic, schema=schema)  # fmt: skip
    found = {}
    for section in sections:
        found |= {f"{section}: {name}": value for name, value in compute_section(OF[section], sides).scores.items()}
    return found


OF = measures_of("histories")


def apart(one: pd.Series, other: pd.Series) -> float:
    """Return the total variation distance of the values of two series, 1 where one alone is empty."""
    if one.empty or other.empty:
        return float(one.empty != other.empty)
    shares = [side.value_counts(normalize=True) for side in (one, other)]
    return float(0.5 * shares[0].sub(shares[1], fill_value=0.0).abs().sum())


def paired(rows: pd.DataFrame, *columns: str) -> pd.Series:
    return pd.Series(list(rows[list(columns)].itertuples(index=False, name=None)), dtype=object)


def largest_gap(one: pd.Series, other: pd.Series) -> float:
    one, other = one.dropna(), other.dropna()
    if one.empty or other.empty:
        return float(one.empty != other.empty)
    return max(abs((one <= at).mean() - (other <= at).mean()) for at in {*one, *other})


def facts(persons: pd.DataFrame, rows: pd.DataFrame) -> dict:
    """Return the tables that distances are of, by plain pandas."""
    rows = rows.assign(place=rows.groupby("person").cumcount())
    rows = rows.join(persons[["sex", "age"]], on="person")
    counts = rows.person.value_counts().reindex(range(len(persons)), fill_value=0)
    own = rows.assign(number=rows.cost.where(rows.cost < COSTS))
    found = {
        "counts": counts, "starts": persons.start[counts > 0], "gaps": rows.gap[rows.place > 0],
        "first": rows[rows.place == 0], "rows": rows, "persons": persons.assign(rows=counts),
        "means": own.groupby("person").number.mean(),
        "ever": [rows.person[rows[column] == choice].nunique() / len(persons)
                 for column, size in (("ward", WARDS), ("cost", COSTS + 1)) for choice in range(size)],
    }  # fmt: skip
    for column in ("ward", "cost"):
        steps = pd.DataFrame({"before": rows.groupby("person")[column].shift(), "after": rows[column]})
        found[column] = paired(steps.dropna(), "before", "after")
    for lag in (1, 2):
        pairs = pd.DataFrame({"before": own.groupby("person").number.shift(lag), "after": own.number}).dropna()
        varies = pairs.nunique().gt(1).all()
        found[f"lag {lag}"] = pairs.before.corr(pairs.after, method="spearman") if varies else 0.0
    return found


def expected(real: dict, made: dict) -> dict[str, float]:
    def two(table: str, *columns: str) -> float:
        return apart(paired(made[table], *columns), paired(real[table], *columns))

    def one(table: str, *columns: str) -> float:
        return np.mean([apart(made[table][column], real[table][column]) for column in columns])

    moved = [apart(made[column], real[column]) for column in ("ward", "cost")]
    ever = np.abs(np.subtract(made["ever"], real["ever"]))
    with_rows = [two("rows", *pair) for pair in itertools.product(("sex", "age"), ("ward", "cost"))]
    attributes = [one("persons", column) for column in ("sex", "age")]
    return {
        "rows: number of rows": apart(made["counts"], real["counts"]),
        "rows: first time": apart(made["starts"], real["starts"]),
        "rows: distance from row to row": apart(made["gaps"], real["gaps"]),
        "rows: column of first rows, mean": one("first", "ward", "cost"),
        "rows: column of a row, mean": one("rows", "ward", "cost"),
        "rows: two columns of a row, mean": two("rows", "ward", "cost"),
        "steps from row to row: column before and after, mean": np.mean(moved),
        "steps from row to row: column before and after, worst": max(moved),
        "steps from row to row: rank correlation at lag 1, mean difference": abs(made["lag 1"] - real["lag 1"]),
        "steps from row to row: rank correlation at lag 2, mean difference": abs(made["lag 2"] - real["lag 2"]),
        "whole histories: ever has a choice, mean difference": ever.mean(),
        "whole histories: ever has a choice, worst difference": ever.max(),
        "whole histories: mean of a person, mean distance": largest_gap(made["means"], real["means"]),
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
ENCODED = encoded(*REAL)


@pytest.mark.parametrize("n", [1, 2, 5, 40, 300])
def test_each_number_is_that_of_pandas(n):
    other = drawn(n, seed=18)
    found = scores(ENCODED, encoded(*other))
    assert found == pytest.approx(expected(facts(*REAL), facts(*other)), abs=1e-12)


def test_numbers_of_several_tables_are_those_of_each():
    """Beside them stands how the numbers of rows of two tables go together."""
    other = drawn(40, seed=18)
    found = scores(encoded(*REAL, TWO), encoded(*other, TWO), (*SECTIONS, "tables together"), TWO)
    for schema in (HistorySchema(PERSONS, TWO.tables[:1]), SCHEMA):
        table = schema.tables[0].name
        sections = [name for name in SECTIONS if table == "visits" or not name.startswith("steps")]
        alone = scores(encoded(*REAL, schema), encoded(*other, schema), sections, schema)
        for name, value in alone.items():
            section, score = name.split(": ")
            assert found[name if section == "columns" else f"{section}: {table}: {score}"] == value
    # Both tables have the same numbers of rows here: 0, 1, 2 and 3, 4.
    counts = [
        persons.assign(rows=rows.person.value_counts()).rows.fillna(0).replace(3, 2) for persons, rows in (REAL, other)
    ]
    assert found.pop("tables together: numbers of orders and visits") == pytest.approx(apart(*counts))
    assert found.pop("tables together: rank correlation of the numbers of orders and visits, difference") < 1e-12
    told = KIND.sides(TWO) | {"kind": "histories"}
    evaluation = evaluate_encoded(encoded(*REAL, TWO), encoded(*other, TWO), TWO.layout, list(TWO.choices), **told)
    glances = [glance.words for measure in OF["rows"] for glance in measure.glances(evaluation)]
    assert glances == [f"{table}: distance of the number of rows of a person" for table in ("orders", "visits")]
    listed = [listing.title for listing in evaluation.listings if "ever" in listing.title]
    assert listed == [f"{table}: choices that persons ever have" for table in ("orders", "visits")]


def test_a_perfect_copy_is_at_no_distance_and_is_not_told_apart():
    copy = ENCODED[np.random.default_rng(0).permutation(len(ENCODED))]
    found = scores(ENCODED, copy, (*SECTIONS, "telling them apart"))
    assert found.pop("telling them apart: AUC") < 0.55
    found.pop("telling them apart: detected, 2 AUC - 1")
    assert max(found.values()) < 1e-12
    assert scores(ENCODED, copy, ["integrity"]) == {"integrity: persons whose history is well-formed": 1.0}


def test_rows_in_another_order_are_found_by_steps_alone():
    persons, rows = REAL
    mixed = rows.sample(frac=1.0, random_state=0).sort_values("person", kind="stable")
    found = scores(ENCODED, encoded(persons, mixed.assign(gap=rows.gap.to_numpy())))
    first = found.pop("rows: column of first rows, mean")
    steps = {name: found.pop(name) for name in list(found) if name.startswith("steps")}
    assert steps["steps from row to row: rank correlation at lag 1, mean difference"] > 0.05
    assert steps["steps from row to row: column before and after, mean"] > 0.02 and first < 0.1
    assert max(found.values()) < 1e-12


def test_rows_of_another_person_are_found_by_detection():
    persons, rows = drawn(400, seed=6)
    told = "telling them apart: AUC"
    assert scores(ENCODED, encoded(persons, rows), ["telling them apart"])[told] < 0.57
    mixed = rows.assign(ward=rows.ward.sample(frac=1.0, random_state=0).to_numpy())
    assert scores(ENCODED, encoded(persons, mixed), ["telling them apart"])[told] > 0.7
    # Whole histories of other persons are as good by themselves, and do not go with attributes.
    others = persons.assign(sex=persons.sex.sample(frac=1.0, random_state=0).to_numpy())
    assert scores(ENCODED, encoded(others, rows), ["telling them apart"])[told] > 0.6
    found, right = (scores(ENCODED, encoded(own, rows)) for own in (others, persons))
    assert {name for name in found if abs(found[name] - right[name]) > 0.05} == {
        f"attributes and rows: attribute and column, {which}" for which in ("mean", "worst")
    }


def test_codes_that_no_history_has_are_counted():
    damaged = ENCODED.codes.copy()
    counts, (part,) = damaged[:, SCHEMA.attributes], SCHEMA.parts
    lacking, behind, timeless, gapless = (np.flatnonzero(counts == count)[0] for count in (1, 2, 3, 4))
    rows = damaged[:, part]
    rows[lacking, VISITS.place(0).start] = WARDS
    rows[behind, VISITS.place(3)] = 0
    rows[timeless, 1] = STARTS
    rows[gapless, VISITS.place(2).start - 1] = GAPS
    broken = Encoded(ENCODED.units, damaged)
    assert set(np.flatnonzero(~well_formed(Histories(SCHEMA, broken)))) == {lacking, behind, timeless, gapless}
    found = scores(ENCODED, broken, (*SECTIONS, "telling them apart"))
    assert all(0.0 <= value <= 1.0 for value in found.values())


def test_features_are_those_of_a_person():
    persons = pd.DataFrame({"sex": [1, 0, 1], "age": [2, 0, 1], "start": [3, 1, 0]})
    rows = pd.DataFrame({"person": [0, 0, 0, 2], "gap": [9, 1, 3, 9], "ward": [2, 2, 0, 1], "cost": [0, COSTS, 3, COSTS]})
    features, categories = person_features(Histories(SCHEMA, encoded(persons, rows)))
    seen, none = features - 1.0, [-1]
    first = [1, 2, 3, 3, 14.5 + 34.5, 2, 1, 3, 2, 0, 0.5, 1, 0, 2, 0, 3, 0, 1.5, 1.5, 1, 0, 0, 1, 1]
    assert seen[0] == pytest.approx(first)
    assert seen[1] == pytest.approx([0, 0, 0, *none, 0, *none * 6, 0, 0, 0, *none * 5, *[0] * 5])
    assert seen[2] == pytest.approx([1, 1, 1, 0, 0, *none * 3, 1, 1, *none, 0, 1, 0, 4, 4, *none * 3, *[0] * 4, 1])
    assert np.flatnonzero(categories).tolist() == [0, 8, 9]


@pytest.mark.parametrize("change", ["set", "single", "bare"])
def test_histories_without_an_order_steps_or_attributes(change):
    schema = {
        "set": HistorySchema(PERSONS, TWO.tables[:1]),
        "single": HistorySchema(PERSONS, (RowTable("visits", ROWS, 1, ORDER),)),
        "bare": HistorySchema(None, (VISITS,)),
    }[change]
    persons, rows = drawn(60, seed=1)
    own = encoded(persons, rows if schema.tables[0].max_rows > 1 else rows.drop_duplicates("person"), schema)
    found = evaluate_encoded(own[:20], own[20:40], schema.layout, list(schema.choices), kind="histories",
                             held_out=own[40:], **KIND.sides(schema))  # fmt: skip
    assert set(found.reference["rows"]) == set(found.scores["rows"])
    assert ("steps from row to row" in found.scores) == (change == "bare")
    assert ("columns" in found.scores) == ("attributes and rows" in found.scores) == (change != "bare")
    assert "first time" in found.scores["rows"] or change == "set"
    assert "telling them apart" in found.scores


def test_labels_follow_from_histories():
    held_out = encoded(*drawn(200, seed=2))
    found = evaluate_encoded(ENCODED, encoded(*drawn(300, seed=3)), SCHEMA.layout, kind="histories", held_out=held_out,
                             **KIND.sides(SCHEMA))  # fmt: skip
    learned = found.scores["train on synthetic, test on real"]["gradient boosting, AUC"]
    assert 0.65 < learned < found.reference["train on synthetic, test on real"]["gradient boosting, AUC"] + 0.1
    assert "AUC" in found.scores["telling them apart"] and "membership inference" in found.scores


def test_a_missing_schema_is_told():
    found = evaluate_encoded(ENCODED, ENCODED, SCHEMA.layout, kind="histories")
    assert found.notes["rows"] == found.notes["telling them apart"] == "the schema of the histories was not given"


def test_measures_of_a_kind_take_the_place_of_those_for_all_kinds():
    for section in ("telling them apart", "train on synthetic, test on real"):
        assert [measure.kinds for measure in OF[section]] == [("histories",)]
        assert [measure.kinds[0] for measure in measures_of("series")[section]] == ["encoded"]
    assert [measure.kinds for measure in OF["membership inference"]] == [("encoded", "table")]

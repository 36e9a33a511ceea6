"""Columns that are learned by their distance from another one: the distance comes back, and every row keeps its range."""

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_dpgen import fit
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.reading import read_open_columns, read_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import parse_schema, schema_text
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.evaluation import evaluate_table
from lightning_dpgen.models.forests import StackedProducts
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.release.drawing.release import Release
from lightning_dpgen.sampling.errors import BadRecords

# The fields of both columns, the bounds of the second one, and the distance in the schema's and in pandas' words.
KINDS = {
    "integer": ({"type": "integer", "low": -50, "high": 50}, (-60, 57), [-3, 9], 1),
    "number": ({"type": "number", "low": 0, "high": 1}, (-0.5, 1.2), [-0.25, 0.5], 1.0),
    "decimals": ({"type": "number", "low": 0, "high": 10, "decimals": 2}, (0, 10.09), [0, 0.11], 0.01),
    "date": ({"type": "date", "low": "2023-01-01", "high": "2023-12-31"}, ("2023-01-01", "2024-01-05"), [0, 12],
             pd.Timedelta(days=1)),
    "datetime": ({"type": "datetime", "resolution": "hour", "low": "2023-01-01 00:00", "high": "2023-01-20 00:00"},
                 ("2023-01-01 02:00", "2023-01-20 05:00"), [-2, 10], pd.Timedelta(hours=1)),
    "zone": ({"type": "datetime", "resolution": "minute", "zone": "Asia/Kolkata", "low": "2023-01-01 00:00",
              "high": "2023-01-02 00:00"}, ("2023-01-01 00:00", "2023-01-02 00:08"), [1, 12], pd.Timedelta(minutes=1)),
    "time": ({"type": "time", "resolution": "minute"}, ("00:00", "23:59"), [0, 11], 1),
}  # fmt: skip
SPECIAL = {"integer": 999, "number": -7.5, "decimals": 99.99, "date": "9999-12-31", "datetime": "1900-01-01 00:00"}


def schema_of(kind, *, bins=20, special=False, first=None, **second):
    about, (low, high), distance, _ = KINDS[kind]
    fields = about | {"missing": True, "low": low, "high": high, "relative_to": "a", "distance": distance, "bins": bins}
    fields |= {"special": [SPECIAL[kind]]} if special and kind in SPECIAL else {}
    columns = {"b": fields | second, "a": about | {"bins": 5} | (first or {})}
    return TableSchema.from_json({"kind": "table", "columns": [{"name": n, **c} for n, c in columns.items()]})


def release_of(schema, seed=0):
    network, random = StackedProducts(schema, 2), np.random.default_rng(seed)
    shares = [random.dirichlet(np.ones(size), 2) for size in schema.layout.groups]
    network.means.copy_(torch.from_numpy(np.concatenate(shares, axis=1)))
    return Release(Mixture(network, torch.tensor([0.4, 0.6])))


def apart(frame, kind):
    """Return distances by pandas, in the unit of the schema."""
    b, a = frame["b"], frame["a"]
    if kind == "time":
        in_minutes = [column.map(lambda t: np.nan if t is None else t.hour * 60 + t.minute) for column in (b, a)]
        return in_minutes[0] - in_minutes[1]
    if kind == "date":
        b, a = (pd.to_datetime(column.where(column.astype(str) != "9999-12-31")) for column in (b, a))
    return (b - a) / KINDS[kind][3]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("special", [False, True])
def test_every_row_keeps_range_and_bounds_and_comes_back(kind, special):
    schema = schema_of(kind, special=special, first={"missing": True})
    batch = release_of(schema).table(300, 13).combine_chunks().to_batches()[0]
    frame = batch.to_pandas(date_as_object=True)
    value = SPECIAL.get(kind)
    named = frame["b"].astype(str).isin([str(pd.Timestamp(value)) if kind == "datetime" else str(value), f"{value}.0"])
    assert named.any() == (special and kind in SPECIAL)
    found = apart(frame, kind)[frame["b"].notna() & ~named]
    unit = KINDS[kind][3] if kind == "decimals" else 1
    low, high = np.array(KINDS[kind][2]) / unit
    assert (found >= low - 1e-6).all() and (found <= high + 1e-6).all() and found.nunique() > 8
    # Without a value of the other column there is none.
    assert frame["b"].isna()[frame["a"].isna()].all() and frame["a"].isna().any() and frame["b"].isna().any()
    # A row that was drawn is a record within its bounds; its distance and its special values are kept exactly.
    read = read_table(batch, schema)
    again = schema.values(read.encoded, np.random.default_rng(1)).to_pandas(date_as_object=True)
    assert (again["b"].isna() == frame["b"].isna()).all() and (again["b"][named] == frame["b"][named]).all()
    if kind != "number":
        where = frame["b"].notna() & ~named
        assert np.allclose(apart(again, kind)[where], apart(frame, kind)[where])
    # Each record is encoded by itself.
    for row in (0, 17, 299):
        assert (schema.encode(batch.slice(row, 1)).codes[0] == read.encoded.codes[row]).all()
    assert parse_schema(schema_text(schema)) == schema == TableSchema.from_json(schema.as_json())


def test_records_out_of_range_are_refused_or_repaired_by_themselves():
    schema = schema_of("date", first={"missing": True})
    frame = pd.DataFrame({"a": ["2023-03-01", "2023-03-01", "", "2023-12-31"],
                          "b": ["2023-03-13", "2023-03-14", "2023-03-01", "2023-12-01"]})  # fmt: skip
    for row, said in ((1, "b=2023-03-14, a=2023-03-01"), (2, "b=2023-03-01, a="), (3, "b=2023-12-01, a=2023-12-31")):
        with pytest.raises(BadRecords, match="breaks the constraint b lies 0 to 12 days after a with") as raised:
            read_table(frame.iloc[[0, row]], schema)
        assert said in str(raised.value)
    read = read_table(frame, schema, outside="clamp", values=True)
    assert read.counted == {"b lies 0 to 12 days after a: repaired": 3}
    whole = schema_of("date", bins=13, first={"missing": True, "bins": 365})
    repaired = whole.values(read_table(frame, whole, outside="clamp").encoded, np.random.default_rng(0)).to_pylist()
    assert [str(row["b"]) for row in repaired] == ["2023-03-13", "2023-03-13", "None", "2023-12-31"]


def test_distances_are_looked_at_where_their_distribution_is_bought():
    about = "type: date, low: 2023-01-01, high: 2023-12-31"
    schema = parse_schema(f"columns: {{a: {{{about}}}, b: {{{about}, relative_to: a}}, c: {{{about}, relative_to: b}}}}")
    frame = pd.DataFrame({"c": ["2023-03-05", "2023-05-09"], "b": ["2023-03-04", "2023-05-01"],
                          "a": ["2023-03-01", "2023-05-01"]})  # fmt: skip
    raw, _ = read_open_columns(frame, schema, ["b", "c"])
    assert raw["b"].tolist() == [3, 0] and raw["c"].tolist() == [1, 8]
    assert [column.name for column in schema.undecided(50)] == ["a", "b", "c"]
    density = {"pieces": [[0, 100.0], [10, 1.0]], "noise": 2.0}
    filled = schema.with_discovery({"b": density}).with_bins(4)
    assert filled.columns[1].apart.density == ((0, 100.0), (10, 1.0)) and filled.columns[1].apart.edges == (3, 5, 8)
    assert TableSchema.from_json(filled.as_json()) == filled


def test_conditions_are_on_values():
    schema = schema_of("date")
    drawn = release_of(schema).sample(60, 0, ["b >= 2023-10-01", "b < 2023-11-01"])
    assert drawn["b"].astype(str).between("2023-10-01", "2023-10-31").all()
    assert release_of(schema).sample(20, 0, ["b is missing"])["b"].isna().all()
    with pytest.raises(ValueError, match="no record that keeps the constraint b lies 0 to 12 days after a fulfils"):
        release_of(schema).sample(20, 0, ["a < 2023-03-01", "b > 2023-04-01"])


def test_a_condition_on_values_that_may_lie_beyond_the_bounds():
    schema = parse_schema(
        "columns: {a: {type: integer, low: 0, high: 100}, b: {type: integer, low: 0, high: 200, relative_to: a}}"
    )
    for where, low, high in (("b < 10", 0, 9), ("b >= 150", 150, 200), ("b in (3..5, 90)", 3, 90)):
        drawn = release_of(schema.with_bins(20)).sample(10, 0, where)
        assert drawn["b"].between(low, high).all() and (drawn["b"] >= drawn["a"]).all()


FEASIBLE = {
    "late in a long time": ("date", ("1900-01-01", "2025-12-31"), ("2025-12-25", "2025-12-31"), [0, 3]),
    "one distance": ("integer", (-2000, 2000), (1500, 1500), [1000, 1000]),
    "hardly ever within the bounds": ("integer", (0, 10**9), (10**9 - 5, 10**9), [0, 10**9]),
    "behind": ("integer", (0, 50), (-9, 0), [-10, -1]),
}


@pytest.mark.parametrize(("kind", "first", "second", "distance"), FEASIBLE.values(), ids=FEASIBLE.keys())
def test_what_rows_can_keep_is_drawn(kind, first, second, distance):
    """Also where nearly every row that a model makes has to be repaired."""
    bounds = [{"type": kind, "low": low, "high": high} for low, high in (first, second)]
    columns = [{"name": "a"} | bounds[0], {"name": "b", "relative_to": "a", "distance": distance} | bounds[1]]
    schema = TableSchema.from_json({"kind": "table", "columns": columns}).with_bins(9)
    table = release_of(schema).table(200, 0).combine_chunks().to_batches()[0]
    assert table.num_rows == 200 and schema.rules.kept(table).all()
    assert (read_table(table, schema).encoded.codes == schema.encode(table).codes).all()


def test_rounding_leads_no_record_beyond_an_end():
    net = np.arange(1, 500) / 10
    schema = parse_schema("columns: {net: {type: number, low: 0, high: 100}, gross: {type: number, low: 0, high: 101,"
                          " relative_to: net, distance: [0, 0.3]}}").with_bins(5)  # fmt: skip
    frame = pd.DataFrame({"net": net, "gross": net + 0.3})
    read = read_table(frame, schema, outside="clamp")
    assert read.counted == {} and (read.encoded.codes == read_table(frame, schema).encoded.codes).all()
    with pytest.raises(BadRecords, match="breaks the constraint gross lies"):
        read_table(frame.assign(gross=net + 0.3001), schema)


@pytest.mark.parametrize(("columns", "said"), [
    ("b: {type: integer, low: 0, high: 9, relative_to: b}", "the name of another column"),
    ("b: {type: integer, low: 0, high: 9, relative_to: age}", "expected a column that is read; did you mean ages?"),
    ("b: {type: integer, low: 0, high: 9, relative_to: sex}", "a column of the same type"),
    ("b: {type: number, low: 0, high: 9, relative_to: ages}", "a column of the same type"),
    ("b: {type: integer, low: 0, high: 9, distance: [0, 3]}", "only with relative_to"),
    ("b: {type: integer, low: 0, high: 9, relative_to: ages, distance: 3}", "the least and the largest, as in"),
    ("b: {type: integer, low: 0, high: 9, relative_to: ages, distance: [5, 3]}", "distance: 3: expected low=5 or more"),
    ("b: {type: integer, low: 0, high: 9, relative_to: ages, edges: [30]}", "edges: [30]: expected increasing values"),
    ("b: {type: integer, low: private, high: private, relative_to: ages}", "bounds that are declared"),
    ("b: {type: integer, low: 0, high: 9, relative_to: open}", "with declared bounds"),
    ("b: {type: integer, low: 0, high: 9, relative_to: coded}", "'coded' has special values"),
    ("b: {type: integer, low: 0, high: 9, relative_to: lost}", "declare missing: true here"),
    ("b: {type: integer, low: 0, high: 9, relative_to: c}, c: {type: integer, low: 0, high: 9, relative_to: b}",
     "in a circle"),
    ("b: {type: category, values: [x, y], relative_to: ages}", "relative_to: expected only with type: integer, number"),
    ("b: {type: integer, low: 0, high: 9000000000000000, special: [-1], relative_to: ages}", "distances below 2^52"),
    ("b: {type: integer, low: 5, high: 9, relative_to: ages, distance: [-300, -200]}", "no row keeps b lies -300 to"),
])  # fmt: skip
def test_declarations_that_make_no_sense(columns, said):
    others = """ages: {type: integer, low: 0, high: 99}, sex: {type: category, values: [F, M]},
      coded: {type: integer, low: 0, high: 99, special: [-1]}, lost: {type: integer, low: 0, high: 99, missing: true},
      open: {type: integer, low: private, high: private}"""
    with pytest.raises(BadSchema) as raised:
        parse_schema(f"columns: {{{others}, {columns}}}")
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_a_label_and_a_computed_column_are_learned_as_they_are():
    about = "type: integer, low: 0, high: 9"
    columns = f"columns: {{a: {{{about}}}, b: {{{about}, relative_to: a}}, c: {{{about}}}}}"
    with pytest.raises(BadSchema, match="column 'b': relative_to: is the label"):
        parse_schema(f"label: b\n{columns}")
    with pytest.raises(BadSchema, match="'b': relative_to: is determined by a constraint, too"):
        parse_schema(f"{columns}\nconstraints: [b = a + c]")
    with pytest.raises(BadSchema, match="'a' is determined by other columns"):
        parse_schema(f"{columns}\nconstraints: [a = c]")
    # A computed column may follow from one that is relative.
    schema = parse_schema(f"{columns}\nconstraints: [c = b]").with_bins(10)
    drawn = release_of(schema).sample(200, 0)
    assert (drawn["c"] == drawn["b"]).all() and (drawn["b"] >= drawn["a"]).all()


def test_they_are_evaluated_by_their_values():
    schema = schema_of("date", first={"missing": True})
    batch = release_of(schema).table(120, 3).combine_chunks().to_batches()[0]
    real, made = (TableValues.of(batch.slice(start, 60), schema) for start in (0, 60))
    found = evaluate_table(real, made, by="b")
    assert found.scores["rows"]["rows that break b lies 0 to 12 days after a"] == 0.0
    assert found.worst_column[0] in ("a", "b")


@pytest.mark.filterwarnings("ignore")
def test_stays_are_as_long_as_they_were(fits_of):
    """Learned by themselves, dates in order lie far too long apart: their bins hold weeks. The noise is seeded."""
    fits_of(300)
    random = np.random.default_rng(0)
    start, stay = random.integers(0, 700, 4000), random.geometric(0.3, 4000) - 1
    day = np.datetime64("2023-01-01")
    frame = pd.DataFrame({"admitted": (day + start).astype(str), "discharged": (day + start + stay).astype(str)})
    bounds = {"type": "date", "low": "2023-01-01", "high": "2025-12-31"}
    stays = {"relative_to": "admitted", "distance": [0, 365]}
    schema = {"columns": {"admitted": bounds, "discharged": bounds | stays}}
    drawn = fit(frame, schema, epsilon=3.0, n=4000, overrides=["debug.private_seed=1"]).sample(4000, seed=0)
    found = (pd.to_datetime(drawn["discharged"]) - pd.to_datetime(drawn["admitted"])).dt.days
    # Learned by itself, and held to admitted <= discharged, a stay was of 23.6 days in the mean, and 3 % were of none.
    assert abs(found.mean() - stay.mean()) < 2.0 and (found >= 0).all() and abs((found == 0).mean() - 0.3) < 0.05

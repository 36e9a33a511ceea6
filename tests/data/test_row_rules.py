"""Every synthetic row keeps the constraints of a schema, and every record is held to them by itself."""

import functools
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import but
from scipy.stats import chisquare

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import parse_schema, schema_text
from lightning_dpgen.models.forests import StackedProducts
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.release.drawing.release import Release
from lightning_dpgen.sampling.errors import BadRecords

COLUMNS = """
columns:
  start: {type: date, low: 2020-01-01, high: 2020-12-31, bins: 12}
  end: {type: date, low: 2020-01-01, high: 2020-12-31, bins: 12, missing: true}
  net: {type: number, low: 0, high: 100, decimals: 2, bins: 5}
  tax: {type: number, low: 0, high: 20, decimals: 1, bins: 5}
  total: {type: number, low: 0, high: 115, decimals: 2, bins: 5}
  rate: {type: number, low: 0, high: 1, bins: 4}
  other: {type: number, low: 0, high: 1, bins: 4}
  previous: {type: integer, low: 0, high: 9, bins: 10}
  pdays: {type: integer, low: 0, high: 300, bins: 10, special: [-1]}
  edu: {type: category, values: [HS, "B,S", PhD], missing: true}
  years: {type: integer, low: 0, high: 20, bins: 4, missing: true}
  city: {type: category, values: [Oslo, Rome], missing: true}
  ok: {type: boolean}
  who: {type: fake, fake: row_number}
"""
MAPPING = {"column": "years", "of": "edu", "mapping": {"HS": 9, "B,S": 13, "PhD": "16", "": None}}
PAIRS = {"columns": ["city", "ok"], "allowed": [["Oslo", True], ["Rome", False], ["Rome", True], ["", False]]}
# Constraints, and what pandas says of the same.
ORACLE = [
    ("start <= end", lambda t: t["end"].isna() | (t["start"] <= t["end"])),
    ("end > start", lambda t: t["end"].isna() | (t["start"] < t["end"])),
    ("total = net + tax", lambda t: (t["total"] - t["net"] - t["tax"]).abs() < 0.0051),
    ("net + tax = total", lambda t: (t["total"] - t["net"] - t["tax"]).abs() < 0.0051),
    ("total >= net + 0.5", lambda t: t["total"].mul(100).round() >= t["net"].mul(100).round() + 50),
    ("rate < other", lambda t: t["rate"] < t["other"]),
    ("other = rate", lambda t: (t["rate"] - t["other"]).abs() < 1e-9),
    ("pdays = -1 if and only if previous = 0", lambda t: (t["pdays"] == -1) == (t["previous"] == 0)),
    ("city is missing if previous = 0 and edu in (HS, \"B,S\")",
     lambda t: t["city"].isna() | ~((t["previous"] == 0) & t["edu"].isin(["HS", "B,S"]))),
    ("ok = true if pdays >= 10", lambda t: t["ok"] | (t["pdays"] < 10)),
    ("net + tax > 25", lambda t: t["net"].mul(100).round() + t["tax"].mul(100).round() > 2500),
    ("40 >= net - tax + 5", lambda t: t["net"].mul(100).round() - t["tax"].mul(100).round() <= 3500),
    ("-net - tax >= -60", lambda t: t["net"].mul(100).round() + t["tax"].mul(100).round() <= 6000),
    ("`start` <= end if ok = false", lambda t: t["ok"] | t["end"].isna() | (t["start"] <= t["end"])),
    (MAPPING, lambda t: t["edu"].map({"HS": 9, "B,S": 13, "PhD": 16}).fillna(-5) == t["years"].fillna(-5)),
    (PAIRS, lambda t: (t["city"] == "Rome") | ((t["city"] == "Oslo") & t["ok"]) | (t["city"].isna() & ~t["ok"])),
    ("total = 10 * previous + tax", lambda t: (t["total"] - 10 * t["previous"] - t["tax"]).abs() < 0.0051),
    ("tax = 0.19 * net + 0.5", lambda t: (t["tax"] - 0.19 * t["net"] - 0.5).abs() < 0.0501),
    ("total = net + net * rate", lambda t: (t["total"] - t["net"] * (1 + t["rate"])).abs() < 0.0051),
    ("net / 10 = tax", lambda t: (t["tax"] - t["net"] / 10).abs() < 0.0501),
    ("years = pdays / previous", lambda t: t["years"].isna() == (t["previous"] == 0)),
    ("net * tax <= 500", lambda t: t["net"] * t["tax"] <= 500 + 1e-6),
    ("net / tax > 2 * rate + 3", lambda t: (t["tax"] == 0) | (t["net"] / t["tax"] > 2 * t["rate"] + 3 - 1e-9)),
]  # fmt: skip
ALL = [ORACLE[number] for number in (0, 2, 5, 7, 8, 9, 14, 15)]


def schema_of(*constraints):
    return TableSchema.from_json(parse_schema(COLUMNS).as_json() | {"constraints": list(constraints)})


def made(schema, seed, rows=400):
    """Draw rows of a schema with any choices."""
    random = np.random.default_rng(seed)
    codes = np.stack([random.integers(0, most, rows) for most in schema.layout.groups], 1).astype(np.uint8)
    return schema.values(Encoded(np.zeros((rows, 0), np.float32), codes), random)


def release_of(schema, seed=0):
    network, random = StackedProducts(schema, 2), np.random.default_rng(seed)
    shares = [random.dirichlet(np.ones(size), 2) for size in schema.layout.groups]
    network.means.copy_(torch.from_numpy(np.concatenate(shares, axis=1)))
    return Release(Mixture(network, torch.tensor([0.4, 0.6])))


@functools.cache
def _free():
    return release_of(parse_schema(COLUMNS)).sample(700, 1)


# Others of a kind stand beside each of these.
MORE = (
    "end > start", "net + tax = total", "other = rate", "40 >= net - tax + 5", "-net - tax >= -60",
    "`start` <= end if ok = false", "net / 10 = tax", "total = 10 * previous + tax", "net / tax > 2 * rate + 3",
)  # fmt: skip


@pytest.mark.parametrize("several", but({str(one[0]): [one] for one in ORACLE} | {"all": ALL}, "all", *MORE))
def test_every_row_of_a_release_keeps_them(several):
    schema = schema_of(*[constraint for constraint, _ in several])
    release = release_of(schema)
    drawn = release.sample(700, 1)
    assert len(drawn) == 700 and list(drawn) == schema.arrow.names and drawn["who"].tolist() == [*range(1, 701)]
    for _, oracle in several:
        assert oracle(drawn).all()
    # A row that was drawn is a record of the same schema, and encoded alike.
    batch = release.table(700, 1).combine_chunks().to_batches()[0]
    assert (read_table(batch, schema).encoded.codes == release.sample_encoded(700, 1).codes).all()
    # Something had to be done for it: without constraints, rows break them.
    assert not all(oracle(_free()).all() for _, oracle in several)
    fitting = release.sample(100, 1, ["previous < 5", "net >= 12.5"])
    assert all(oracle(fitting).all() for _, oracle in several) and (fitting["net"] >= 12.5).all()


@settings(max_examples=8)
@given(seed=st.integers(0, 2**31), keep=st.lists(st.booleans(), min_size=60, max_size=60))
def test_a_row_is_repaired_by_itself(seed, keep):
    """The fate of a row does not depend on others, and a row that keeps all stays as it was."""
    schema = schema_of(*[constraint for constraint, _ in ALL])
    rows = made(parse_schema(COLUMNS), seed, 60)
    counted = {}
    for some in (np.ones(60, bool), np.array(keep)):
        batch = rows.filter(pa.array(some))
        conformed, kept = schema.rules.conformed(batch, outside="clamp")
        assert len(kept) == len(batch) and kept.sum() == len(conformed) and schema.rules.kept(conformed).all()
        counted[len(batch)] = dict(zip(np.flatnonzero(some)[kept].tolist(), conformed.to_pylist(), strict=True))
        fine = schema.rules.kept(batch)
        assert conformed.filter(pa.array(fine[kept])).equals(batch.filter(pa.array(fine)))
    every, some = counted[60], counted[sum(keep)]
    assert {row: every[row] for row in every if keep[row]} == some


def test_a_mapping_of_numbers_needs_no_bins():
    columns = "a: {type: integer, low: 0, high: 200}, b: {type: category, values: [x, y]}"
    schema = parse_schema(f"columns: {{{columns}}}\nconstraints: [{{column: b, of: a, mapping: {{0: x, 200: y}}}}]")
    read = read_table(pd.DataFrame({"a": [0, 200], "b": ["x", "y"]}), schema.with_bins(10), values=True)
    assert read.values.column("b").tolist() == [0, 1]
    with pytest.raises(BadRecords, match="b follows from a with"):
        read_table(pd.DataFrame({"a": [0, 200], "b": ["x", "x"]}), schema.with_bins(10))


def test_records_are_held_to_them():
    constraints = ["start <= end", "total = net + tax", MAPPING]
    schema = schema_of(*constraints)
    good = made(schema, 3, 50).to_pandas().drop(columns=["who"], errors="ignore")
    good = good[(good["end"].isna()) | (good["start"] <= good["end"])].reset_index(drop=True)
    assert len(read_table(good, schema).encoded) == len(good)
    bad = good.copy()
    bad.loc[4, "total"] += 5
    with pytest.raises(BadRecords, match=r"row 4 .* breaks the constraint total = net \+ tax with total=") as error:
        read_table(bad, schema)
    assert len(str(error.value).splitlines()) == 1
    repaired = read_table(bad, schema, outside="clamp")
    assert repaired.counted == {"total = net + tax: repaired": 1}
    assert (repaired.encoded.codes == read_table(good, schema).encoded.codes).all()
    with pytest.raises(BadRecords, match="lacks total"):
        read_table(good.drop(columns="total"), schema)
    # A sum beyond its bounds cannot be repaired: the record is left out, with its person.
    far = good.assign(who=[f"p{number}" for number in range(len(good))])
    far.loc[2, ["net", "tax", "total"]] = [100.0, 20.0, 115.0]
    left = read_table(far, schema, outside="clamp", person="who")
    assert left.counted == {"total = net + tax: left out": 1}
    assert len(left.encoded) == len(left.persons) == len(good) - 1


def test_a_computed_column_is_not_learned():
    schema = schema_of("total = net + tax", MAPPING)
    learned = [column.name for column in schema.modelled]
    assert "total" not in learned and "years" not in learned and {"net", "tax", "edu"} <= set(learned)
    assert set(schema.choices) == set(learned) and len(schema.layout.groups) == len(learned)
    drawn = release_of(schema).sample(50, 2, ["total >= 40", "years != 9"])
    assert (drawn["total"] >= 40).all() and drawn["years"].isin([13, 16]).all()


def test_constraints_leave_the_conditional_distribution():
    """False alarm in 1 of 10,000: of independent columns, the rows that keep the constraint are as likely as before."""
    text = "columns: {a: {type: integer, low: 0, high: 2}, b: {type: integer, low: 0, high: 2}}"
    free = parse_schema(text).with_bins(3)
    schema = TableSchema.from_json(free.as_json() | {"constraints": ["a <= b"]})
    release = release_of(schema, 4)
    means = release.mixture.network.means.double()
    joint = sum(w * torch.outer(m[:3], m[3:]) for w, m in zip((0.4, 0.6), means, strict=True)).numpy()
    expected = np.array([joint[a, b] for a in range(3) for b in range(a, 3)])
    drawn = release.sample(6_000, 1)
    seen = np.array([((drawn["a"] == a) & (drawn["b"] == b)).sum() for a in range(3) for b in range(a, 3)])
    assert chisquare(seen, expected / expected.sum() * 6_000).pvalue > 1e-4
    # A repair in place of it would not pass.
    values, _ = schema.rules.repaired(free.values(release_of(free, 4).sample_encoded(6_000, 1), np.random.default_rng(0)))
    moved = values.to_pandas()
    seen = np.array([((moved["a"] == a) & (moved["b"] == b)).sum() for a in range(3) for b in range(a, 3)])
    assert chisquare(seen, expected / expected.sum() * 6_000).pvalue < 1e-6


def test_what_rejection_can_not_reach_is_repaired():
    """A model that breaks a constraint in nearly every row is released all the same."""
    schema = schema_of("start <= end", "previous <= pdays")
    release = release_of(schema)
    spans = schema.layout.spans
    for group, choice in ((0, 11), (1, 0)):
        release.mixture.network.means[:, spans[group]] = torch.nn.functional.one_hot(
            torch.tensor(choice), spans[group].stop - spans[group].start
        ).float()
    drawn = release.sample(300, 1)
    assert len(drawn) == 300 and (drawn["start"] <= drawn["end"]).all() and (drawn["previous"] <= drawn["pdays"]).all()


def test_they_are_written_and_read_again():
    schema = schema_of(*[constraint for constraint, _ in ALL])
    assert TableSchema.from_json(json.loads(json.dumps(schema.as_json(), sort_keys=True))) == schema
    assert parse_schema(schema_text(schema)) == schema
    assert parse_schema(COLUMNS + "constraints:\n  - start <= end\n").constraints == ("start <= end",)
    found = TableSchema.from_json(parse_schema(COLUMNS).as_json() | {"found_constraints": ["pdays = -1 if previous = 0"]})
    breaking = made(parse_schema(COLUMNS), 1)
    # A found one holds of what is made up, and of no record.
    assert found.rules.conformed(breaking)[0].equals(breaking) and not found.rules.kept(breaking).all()
    assert ((release_of(found).sample(500, 1).query("previous == 0")["pdays"]) == -1).all()


BAD = {
    "start <= net": "two dates or times of one type",
    "start <= nosuch": "a date",
    "a < b": "column 'a': there is no such column",
    "net <= 5": "concerns only one column",
    "pdays = -1": "concerns only one column",
    "total = total + net": "each column once",
    "ok = true if previous = 0 if net < 3": "expected one if only",
    "city = Bonn if ok = true": "expected one of 'Oslo', 'Rome'",
    "who = 3 if ok = true": "no such column",
    " ": "expected text such as",
    "total = net + taxx": "no column 'taxx'; did you mean tax?",
    "total = 0.19 * taxx": "no column 'taxx'; did you mean tax?",
    "total = net / 0": "divides by 0",
    "total = 0 * net": "a column times 0 says nothing",
    "net * tax = rate * other": "a column by itself on one side",
    "start = 2 * end": "expected numbers, or two dates",
    "net * tax <= net": "each column once",
    "net * net >= 4": "expected several columns",
    "total = net + city": "column 'city' holds no numbers",
    "total = net + wealth": "no column 'wealth': expected a number, or one of start",
    "total <= wealth": "no column 'wealth': expected a number, or one of start",
    "wealth <= total": "no column 'wealth': expected a number, or one of start",
    "total = 3 if net = wealth": "no column 'wealth': expected a number, or one of start",
    "total <= city": "column 'city' holds no numbers, dates or times",
    "city = ok": "column 'city' holds no numbers, dates or times, .*allowed: .*mapping: ",
    "city != ok": "column 'city' holds no numbers, dates or times, .*allowed: .*mapping: ",
    "total <= 5 EUR": "5 EUR: expected a number without its unit: 5",
    "net =< total": "=< is no sign here: expected <=",
    "net ≤ total": "≤ is no sign here: expected <=",
    "net <= total and tax <= total": "expected one comparison",
    "net = 3 if city = Olso": "expected one of 'Oslo', 'Rome'; did you mean Oslo",
    "start <= endd": "no column 'endd'; did you mean end?",
    "'start' <= end": "'start': expected the name of the column without quotes, or in backquotes: `start`",
    "start <= 'end'": "'end': expected the name of the column without quotes",
    "ok = true if 'previous' = 0": "'previous': expected the name of the column without quotes",
}


@pytest.mark.parametrize(("text", "words"), BAD.items(), ids=BAD.keys())
def test_bad_constraints(text, words):
    with pytest.raises(BadSchema, match=words) as error:
        parse_schema(f"{COLUMNS}constraints:\n  - {json.dumps(text)}\n", "F")
    assert str(error.value).startswith("F, line 18: constraints: ") and len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        (5, "expected a list"), ([5], "expected text such as"), ([{"column": "years"}], "expected text such as"),
        (["total = net + tax", "total = net + 1"], "two constraints determine 'total'"),
        (["total = net + tax", "net = total - tax"], "in a circle"),
        (["start < end", "end < start", "end is not missing if ok = true", "end is not missing if ok = false"], "no row"),
        ([{"column": "previous", "of": "edu", "mapping": {"HS": 9, "B,S": 3, "PhD": 6}}], "nothing about missing values"),
        ([{**MAPPING, "mapping": {"HS": 9, "": None}}], "the mapping lacks 'B,S'"),
        ([{**MAPPING, "column": "nosuch"}], "expected one that is read"),
        ([{"column": "years", "of": "edu", "map": {}}], "'map': unknown here; did you mean mapping"),
        ([{**PAIRS, "allowed": [["Bonn", True]]}], "expected one of 'Oslo', 'Rome'"),
        ([{**PAIRS, "allowed": [["Rome"]]}], "expected 2 values"),
        ([{**PAIRS, "columns": ["city", "city"]}], "each column once"),
    ],
)  # fmt: skip
def test_bad_lists_of_constraints(constraints, words):
    with pytest.raises(BadSchema, match=words):
        TableSchema.from_json(parse_schema(COLUMNS).as_json() | {"constraints": constraints})


def test_a_label_is_learned_and_private_columns_are_not_constrained():
    with pytest.raises(BadSchema, match="'ok' is the label"):
        parse_schema(
            "{label: ok, columns: {ok: {type: boolean}, a: {type: category, values: [x, y]}}, constraints: "
            "[{column: ok, of: a, mapping: {x: true, y: false}}]}"
        )
    with pytest.raises(BadSchema, match="'a' is to be found privately"):
        parse_schema(
            "{columns: {a: {type: integer, low: private, high: private}, b: {type: integer, low: 0, high: 9}}, "
            "constraints: [a <= b]}"
        )


def test_a_computed_column_is_written_and_missing_as_its_schema_says(tmp_path):
    """A German table, with a computed column of decimal commas, and one that would be missing where it must not be."""
    text = (
        "separator: ;\ndecimal: ','\ncolumns:\n"
        + "".join(f"  {name}: {{type: number, low: 0, high: 999, decimals: 2, bins: 4}}\n" for name in "abc")
        + "constraints: [c = a + b]\n"
    )
    (tmp_path / "t.csv").write_text("a;b;c\n1,5;2,25;3,75\n")
    assert len(read_table(tmp_path / "t.csv", parse_schema(text)).encoded) == 1
    with pytest.raises(BadSchema, match="'c' is computed, and would be missing where 'b' is: declare missing: true"):
        parse_schema(text.replace("b: {type", "b: {missing: true, type"))


def test_a_computed_column_is_rounded_also_from_real_numbers():
    columns = {"t": ", decimals: 1", "a": ", decimals: 0", "b": ""}
    described = "".join(f"  {name}: {{type: number, low: 0, high: 99, bins: 5{more}}}\n" for name, more in columns.items())
    schema = parse_schema(f"columns:\n{described}constraints: [t = a - b]\n")
    drawn = release_of(schema).sample(400, 1)
    assert (drawn["t"] - drawn["a"] + drawn["b"]).abs().max() <= 0.05 + 1e-9


def test_what_strangers_write_is_bounded():
    """Sizes that would take minutes or gigabytes are refused, or take no longer than their text."""
    categories = {"name": "c", "type": "category", "values": list(range(50_000))}
    numbers = [{"name": name, "type": "integer", "low": 0, "high": 9, "bins": 10} for name in "ab"]
    about = {"kind": "table", "columns": [*numbers, categories]}
    wide = f"c not in ({', '.join(map(str, range(0, 1000, 2)))}) if a=1"
    schema = TableSchema.from_json(about | {"constraints": ["c >= 5 if a=1", wide]})
    assert [len(c.conclusion.values.intervals) for c in schema.rules._declared] == [1, 500]
    many, long = ["a=1 if b=1"] * 200, ["a=1 if " + "b=1 and " * 1200 + "b=1"] * 30
    for hostile in (many, long, ["a is" + " " * 9_000 + "missing if b=1"]):
        with pytest.raises(BadSchema, match="constraints"):
            TableSchema.from_json(about | {"constraints": hostile})


def test_an_empty_table_and_one_of_no_constraints():
    schema = schema_of("start <= end")
    assert len(release_of(schema).sample(0, 1)) == 0 and len(release_of(schema).sample_encoded(0, 1)) == 0
    frame = pd.DataFrame({"start": [], "end": []})
    assert schema.rules.kept(made(schema, 1, 0)).shape == (0,) and frame.empty

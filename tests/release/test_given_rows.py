"""Rows of which some cells are given: these stay, the others are the model's given them, and every row keeps the rules."""

import stat
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from marks import but, only
from scipy.stats import chisquare

from lightning_dpgen import BadRecords, load_release
from lightning_dpgen.api import schema_of
from lightning_dpgen.cli.main import main
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.models.forests import StackedForests, StackedProducts
from lightning_dpgen.models.labelled import LabelledNetwork
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.release.drawing import draws
from lightning_dpgen.release.drawing.draws import TooRare
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.drawing.release import Release
from lightning_dpgen.release.rows.tables import write_table

sys.path.insert(0, str(Path(__file__).parent.parent / "data"))
from constraint_kinds import KINDS, rows_that_keep
from constraint_kinds import schema_of as of_few_values
from random_tables import records, schemas

RULES = schema_of({
    "label": "job",
    "constraints": [
        "total = a + b", "begin <= end", "closed is missing if and only if job = cook", "job = vet if a = 0",
    ],
    "columns": {
        "id": {"type": "fake", "fake": "row_number"},
        "begin": {"type": "date", "low": "2020-01-01", "high": "2020-12-31", "bins": 4},
        "end": {"type": "date", "low": "2020-01-01", "high": "2021-12-31", "bins": 4},
        "out": {"type": "date", "low": "2020-01-01", "high": "2021-06-30", "relative_to": "begin", "distance": [0, 90],
                "bins": 3, "missing": True},
        "a": {"type": "integer", "low": 0, "high": 9, "bins": 10},
        "b": {"type": "number", "low": 0, "high": 99, "decimals": 2, "bins": 5, "missing": True, "missing_values": ["?"]},
        "total": {"type": "number", "low": 0, "high": 300, "decimals": 2, "missing": True, "missing_values": ["?"]},
        "closed": {"type": "boolean", "missing": True, "missing_values": ["", "never"]},
        "job": {"type": "category", "values": ["cook", "vet", "clerk"]},
    },
})  # fmt: skip


def forest(schema, parents, k=2, seed=0):
    network, random = StackedForests(schema, k, parents), torch.Generator().manual_seed(seed)
    for table in network.tables:
        table.exponential_(generator=random)
    network.tilts.exponential_(generator=random)
    return network


def release_of(network):
    return Release(Mixture(network, torch.full((network.k,), 1.0 / network.k)))


def labelled(network):
    found = LabelledNetwork(network)
    found.label_weights.normal_(generator=torch.Generator().manual_seed(1))
    found.label_closeness.fill_(0.5)
    return found


def shares(schema, k=2, seed=0):
    network, random = StackedProducts(schema, k), np.random.default_rng(seed)
    parts = [random.random((k, schema.layout.units)), *(random.dirichlet(np.ones(g), k) for g in schema.layout.groups)]
    network.means = torch.from_numpy(np.concatenate(parts, axis=1)).float()
    return network


TREES = [-1, 0, 0, 4, -1, 3, -1]
MODELS = {
    "forest": lambda: forest(RULES, TREES),
    "products": lambda: shares(RULES),
    "label on top": lambda: labelled(forest(RULES, TREES)),
}


@pytest.mark.parametrize("make", but(MODELS, "label on top", "products"))
def test_rows_that_keep_the_rules_are_completed_from_any_part_of_them(make):
    """Given cells stand as they were, in their rows and order, whatever was left out; and every row keeps the rules."""
    release, random = release_of(make()), np.random.default_rng(3)
    whole = release.sample(30, seed=2).drop(columns="id").astype(object)
    whole = whole.where(whole.notna(), None)
    kept = pd.DataFrame(random.random(whole.shape) < random.random(len(whole))[:, None], whole.index, whole.columns)
    # The schema has words for a value that is missing, or none, for which "missing" stands.
    words = {"b": "?", "total": "?", "closed": "never", "out": "missing"}
    some = whole.copy()
    for name in whole:
        some[name] = [words.get(name) if value is None else value for value in whole[name]]
        some[name] = some[name].where(kept[name], None)
    some.index = [f"row {i}" for i in range(len(some))]
    found = release.complete(some, seed=5)
    assert list(found) == ["id", *whole] and found.index.equals(some.index)
    for name in whole:
        for was, now, told in zip(whole[name], found[name], some[name], strict=True):
            assert pd.isna(told) or was == now or (was is None and pd.isna(now))
    rows = pa.RecordBatch.from_pandas(found, preserve_index=False)
    assert RULES.rules.kept(rows).all()
    assert found.equals(release.complete(some, seed=5)) and not found.equals(release.complete(some, seed=6))


@settings(max_examples=12)
@given(schema=schemas(), seed=st.integers(0, 2**31))
def test_rows_of_any_schema_are_read_as_they_are_written(schema, seed, tmp_path_factory):
    """Files of given rows have the form of the schema, with empty fields; unknown cells are filled."""
    assume(not schema.layout.units)
    rows, random = records(schema, seed, 9), np.random.default_rng(seed)
    known = random.random((len(schema.columns), 9)) < 0.5
    cells = [
        pa.array([value if there else None for value, there in zip(column.to_pylist(), here, strict=True)], column.type)
        for column, here in zip(rows.columns, known, strict=True)
    ]
    release, path = release_of(shares(schema)), tmp_path_factory.mktemp("given") / "rows.csv"
    write_table(path, [pa.record_batch(cells, schema=schema.arrow)], schema.arrow, form=release.form)
    found = pa.Table.from_batches(release.complete_blocks(release.given_rows(path), 1))
    assert len(found) == 9
    for column, name in zip(cells, schema.arrow.names, strict=True):
        for told, now in zip(column.to_pylist(), found.column(name).to_pylist(), strict=True):
            assert told is None or told == now
    assert len(schema.encode(found.combine_chunks().to_batches()[0])) == 9


@pytest.mark.parametrize(
    "network", only({"products": shares, "forest": lambda schema: forest(schema, [-1, 0, -1])}, "forest")
)
def test_a_sum_or_a_distance_that_is_given_tells_of_its_parts(network):
    """By enumeration, since all bins have one value. Chi squared: a false alarm in 1 of 10,000 for each of two."""
    schema = schema_of({
        "constraints": ["total = a + b"],
        "columns": {
            "a": {"type": "integer", "low": 0, "high": 3, "bins": 4},
            "b": {"type": "integer", "low": 0, "high": 3, "bins": 4},
            "total": {"type": "integer", "low": 0, "high": 6},
            "late": {"type": "integer", "low": 0, "high": 9, "relative_to": "a", "distance": [0, 3], "bins": 4},
        },
    })  # fmt: skip
    release = release_of(network(schema))
    plain = release.mixture.sample_independent(100_000, torch.Generator().manual_seed(0)).codes
    joint = np.bincount(np.ravel_multi_index(plain.T.astype(int), (4, 4, 4)), minlength=64).reshape(4, 4, 4) / len(plain)
    a, b, late = np.indices((4, 4, 4))
    for cells, fits in (({"total": 4}, a + b == 4), ({"late": 3, "total": 3}, (a + late == 3) & (a + b == 3))):
        found = release.complete(pd.DataFrame([cells] * 1_000), seed=1)
        assert (found["total"] == found["a"] + found["b"]).all()
        seen = np.zeros((4, 4, 4))
        np.add.at(seen, (found["a"], found["b"], found["late"] - found["a"]), 1)
        expected = joint * fits
        likely = expected > 0.0
        assert not seen[~likely].any()
        assert chisquare(seen[likely], expected[likely] / expected.sum() * seen.sum()).pvalue > 1e-4


WIDE = {
    "sum": ["t = a + b + c"],
    "sum with a difference": ["t = a - b + 2 * c"],
    "sum of sums": ["t = a + b", "u = t + c"],
    "sum and order": ["t = a + b + c", "a <= b"],
    "sum and condition": ["t = a + b + c", "a = 0 if k = x"],
    "order of a sum": ["a + b <= c"],
    "hours and minutes": ["t = 100 * h + m"],
    "product": ["t = h * a"],
    "order under a condition": ["a + b <= c if k = x", "c < a if k = y"],
}


@pytest.mark.parametrize(
    "constraints", only(WIDE, "sum of sums", "sum and condition", "hours and minutes", "order under a condition")
)
def test_what_some_row_has_is_completed_though_the_model_hardly_makes_it(constraints, monkeypatch):
    """Rows are drawn evenly from all that keep the rules, and the model has nearly all of its mass elsewhere."""
    monkeypatch.setattr(draws, "_ROUNDS_GIVEN", 6)
    highs, random = {"a": 500, "b": 500, "c": 1000, "h": 23, "m": 59, "t": 99_999, "u": 99_999}, np.random.default_rng(5)
    derived = [text.split()[0] for text in constraints if text[:4] in ("t = ", "u = ")]
    columns = {name: {"type": "number", "decimals": 2, "low": 0, "high": high, "bins": 8} for name, high in highs.items()}
    columns |= {name: {"type": "integer", "low": 0, "high": highs[name], "bins": 8} for name in "hm"}
    columns["t"]["low"] = -500
    columns = {name: own for name, own in columns.items() if name not in "tu" or name in derived}
    columns["k"] = {"type": "category", "values": ["x", "y", "z"]}
    schema = schema_of({"constraints": constraints, "columns": columns})
    whole = pd.DataFrame({name: random.integers(0, highs[name], 20_000, endpoint=True) for name in "abchm"})
    whole["a"] = whole["a"].where(whole["a"] > 250, 0)
    whole["k"] = random.choice(list("xyz"), len(whole))
    for text in constraints[: len(derived)]:
        whole = whole.eval(text)
    batch = pa.RecordBatch.from_pandas(whole[list(columns)], preserve_index=False)
    whole = batch.filter(pa.array(schema.rules.kept(batch))).to_pandas().head(40)
    assert len(whole) == 40
    known = random.random(whole.shape) < 0.4
    # A total alone, too.
    known[:10] = np.isin(whole.columns, derived or ["a"])
    check_completed(schema, whole, known)


@pytest.mark.parametrize("constraint", [*KINDS["sum"], *KINDS["condition on a computed one"]])
def test_any_row_of_few_values_is_completed_though_the_model_hardly_makes_it(constraint, monkeypatch):
    """Rows are drawn evenly from all that keep the rule, by enumeration."""
    monkeypatch.setattr(draws, "_ROUNDS_GIVEN", 6)
    schema, random = of_few_values([constraint]), np.random.default_rng(1)
    codes = random.permutation(rows_that_keep(schema))[:12]
    rows = schema.values(Encoded(np.zeros((len(codes), 0), np.float32), codes), random)
    whole = rows.filter(pa.array(schema.rules.kept(rows))).to_pandas()
    check_completed(schema, whole, random.random(whole.shape) < 0.5)


def check_completed(schema, whole, known):
    """Complete rows of which some cells are known, by a model that has nearly all of its mass on the first choices."""
    network = shares(schema)
    network.means.fill_(1e-6)
    network.means[:, [span.start for span in schema.layout.spans]] = 1.0
    whole = whole.astype(object).where(whole.notna(), "missing")
    found = release_of(network).complete(whole.where(known, None), seed=1)
    assert schema.rules.kept(pa.RecordBatch.from_pandas(found, preserve_index=False)).all()
    assert (found.astype(object).where(found.notna(), "missing") == whole).to_numpy()[known].all()


def test_absent_columns_and_empty_cells_are_filled_and_words_for_missing_stay():
    release = release_of(forest(RULES, TREES))
    found = release.complete(pd.DataFrame({"b": ["?", "", None, "7.25"], "closed": ["never", "", "true", None]}), seed=1)
    assert found["b"].isna()[0] and found["b"][3] == 7.25 and found["job"][0] == "cook" and found["closed"][2] is True
    assert found["a"].between(0, 9).all() and found["id"].tolist() == [1, 2, 3, 4]
    # The distance has no text for a missing value of its own, and the total has one.
    assert release.complete(pd.DataFrame({"out": ["missing"] * 9}), seed=1)["out"].isna().all()
    with pytest.raises(BadRecords, match="'missing': expected a number"):
        release.complete(pd.DataFrame({"total": ["missing"]}))
    ids = release.complete(pd.DataFrame({"id": [7, None, 5]}), seed=1)["id"]
    assert ids.tolist() == [7, 2, 5]
    assert list(release.complete(pd.DataFrame({"a": []}), seed=1)) == ["id", *found.columns[1:]]


@pytest.mark.parametrize("rows", [pd.DataFrame(index=list("uvw")), pa.table({"a": [1, 2, 3]}).select([])], ids=type)
def test_rows_without_any_column_are_drawn(rows):
    found = release_of(forest(RULES, TREES)).complete(rows, seed=1)
    assert found["a"].between(0, 9).all() and len(found) == 3
    assert not isinstance(rows, pd.DataFrame) or found.index.equals(rows.index)


MOVING = parse_schema(
    "columns: {id: {type: fake, fake: row_number}, who: {type: fake, fake: name}, zip: {type: category, outside: clamp, "
    "values: ['01001', '94110', other], other: other}, age: {type: integer, low: 18, high: 80, bins: 4, outside: clamp}, "
    "spent: {type: number, low: 0, high: 9, bins: 3, decimals: 2}}"
)


def test_what_the_schema_moves_is_said_and_comes_back_as_it_was_given():
    """A value that is not listed, or beyond a bound, and an identifier that is no number stay; a rounded one is said."""
    rows = {"id": ["007", "", "12"], "who": ["", "Ada", ""], "zip": ["99999", "01001", ""], "age": ["90", "", "30"]}
    release = release_of(forest(MOVING, [-1, 0, -1]))
    with pytest.warns(UserWarning) as warned:
        found = release.complete(pd.DataFrame(rows | {"spent": ["1.234", "", "2.50"]}), seed=1)
    said = [str(one.message) for one in warned]
    expected = "'zip': not listed", "'age': above high", "'spent': more decimals than are declared"
    assert len(said) == 3 and all(f"{words} in 1 of 3 rows" in line for words, line in zip(expected, said, strict=True))
    for name, texts in rows.items():
        for text, now in zip(texts, found[name].astype(str), strict=True):
            assert now == text or (not text and now)
    # A column of whole numbers stays one.
    assert release.complete(pd.DataFrame({"id": ["7", ""]}), seed=1)["id"].tolist() == [7, 2]
    with pytest.warns(UserWarning, match="'zip'"):
        typed = release.complete(pd.DataFrame({"zip": pd.Categorical(["99999", "94110"]), "age": [30.0, 31.0]}), seed=1)
    assert typed["zip"].tolist() == ["99999", "94110"]


BAD = {
    "a value that is none": ({"a": ["3", "12", "x"]}, r"\(1\).*row 1.*'a': '12' is above high, 9.*\(2\).*row 2.*'a': 'x'"),
    "more than a few": ({"job": list("abcdefgh")}, r"^\(1\).*\(5\) [^(]*row 4 [^)]*\)[^(]*and more$"),
    "another column": ({"jobs": ["vet"]}, r"jobs, not in the schema.*did you mean job\?$"),
    "a rule": ({"begin": ["2020-02-01"] * 2, "end": ["2020-03-01", "2020-01-01"]}, r"row 1.*begin <= end with begin=2020"),
    "no total": ({"total": ["3", "4"], "a": [0, 1], "b": [3.0, 9.0]}, r"row 1.*breaks the constraint total = a \+ b"),
    "a rule of what is to be filled": ({"begin": ["", "2020-12-31"], "end": ["", "2020-01-01"]}, r"row 1.*begin <= end"),
    "no distance": ({"out": ["2021-06-01"], "end": ["2020-01-01"]}, r"row 0.*no row that has what is given keeps"),
    "rows of all blocks": ({"out": ["", "2021-06-01"] * 2, "job": ""}, r"2 rows of 4 cannot.*: row 1[^,]*, row 3[^,]*: no"),
    "another separator": ({"a;job": ["3;vet"]}, r"has a;job, not .*is it another separator than the schema's\?$"),
    "no separator": ({"x;y": ["3;vet"]}, r"expected some of id, .*, job$"),
    "no column of the table": (np.zeros(3), "expected"),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "said"), BAD.values(), ids=BAD)
def test_rows_that_cannot_be_are_told_by_row_and_column(rows, said, monkeypatch):
    monkeypatch.setattr("lightning_dpgen.release.drawing.draws.LARGEST_BLOCK", 2)
    release = release_of(forest(RULES, TREES))
    with pytest.raises(BadRecords, match=said) as error:
        release.complete(pd.DataFrame(rows) if isinstance(rows, dict) else rows)
    assert len(str(error.value).splitlines()) == 1


def test_a_contradiction_is_told_once():
    """The schema has the distance of two dates as a constraint beside their declared order."""
    date = {"type": "date", "low": "2020-01-01", "high": "2020-12-31", "bins": 2}
    columns = {"begin": date, "end": date | {"relative_to": "begin"}, "a": {"type": "boolean"}, "b": {"type": "boolean"}}
    release = release_of(shares(schema_of({"constraints": ["begin <= end", "a = true if b = true"], "columns": columns})))
    rows = pd.DataFrame({"begin": ["2020-02-02"] * 2, "end": ["2020-02-01"] * 2, "a": [True, False], "b": [True, True]})
    with pytest.raises(BadRecords) as error:
        release.complete(rows)
    said = str(error.value)
    assert said.count("breaks the constraint") == 3 and said.count("begin <= end") == 2 and said.count("a = true if") == 1


def test_records_without_columns_and_scaled_numbers_cannot_be_given():
    pictures = release_of(shares(ImageSchema(2, 2, levels=1, classes=2)))
    with pytest.raises(ValueError, match="kind images: expected one of a table"):
        pictures.complete(pd.DataFrame({"label": [1]}))
    schema = schema_of(
        {"columns": {"x": {"type": "number", "low": 0, "high": 1, "encoding": "scaled"}, "y": {"type": "boolean"}}}
    )
    release = release_of(shares(schema))
    with pytest.raises(BadRecords, match="'x': is learned without bins"):
        release.complete(pd.DataFrame({"x": [0.5]}))
    found = release.complete(pd.DataFrame({"y": [True, False, None]}), seed=1)
    assert found["y"].tolist()[:2] == [True, False] and found["x"].between(0, 1).all()


def test_another_kind_of_model_finds_what_is_given_by_rejection(monkeypatch):
    network = StackedVAE(RULES, 2, hidden=4, latent=2, generator=torch.Generator().manual_seed(0)).eval()
    release = release_of(network)
    rows = pd.DataFrame({"job": ["vet", "cook", "vet", ""], "a": [3, "", 3, ""]})
    found = release.complete(rows, seed=1)
    assert found["job"].tolist()[:3] == ["vet", "cook", "vet"] and found["a"][[0, 2]].tolist() == [3, 3]
    assert found.equals(release.complete(rows, seed=1)) and RULES.rules.kept(pa.RecordBatch.from_pandas(found)).all()
    for name, value in {"MOST_DRAWN": 10, "MOST_DRAWN_EACH": 1, "block_rows": lambda layout: 5}.items():
        monkeypatch.setattr(draws, name, value)
    with pytest.raises(TooRare, match=r"row 0 .*a vae_mixture makes by chance alone: 0 of 10 records drawn"):
        rare = {"begin": "2020-05-05", "end": "2020-05-05", "out": "2020-07-30", "a": 3, "b": 7.77, "closed": True}
        release.complete(pd.DataFrame([rare]), seed=1)


@pytest.mark.parametrize("make", only(MODELS, "label on top"))
def test_choices_of_a_column_have_equal_shares(make):
    release = release_of(make())
    counts = release.sample(20, 1, balance="job")["job"].value_counts()
    assert sorted(counts) == [6, 7, 7]
    found = release.sample(40, 1, where=["job != cook", "a >= 5"], balance="job")
    assert found["job"].value_counts().to_dict() == {"vet": 20, "clerk": 20} and (found["a"] >= 5).all()
    assert found["job"].tolist() != sorted(found["job"]) and found.equals(
        release.sample(40, 1, where=["job != cook", "a >= 5"], balance="job")
    )
    # Missing values are none of the choices.
    assert release.sample(20, 1, balance="closed")["closed"].value_counts().to_dict() == {False: 10, True: 10}
    bins = release.sample_encoded(25, 1, balance="b").codes[:, list(RULES.choices).index("b")]
    assert np.bincount(bins).tolist() == [5] * 5
    for wrong in ("out", "total", "id", "jab", 3):
        with pytest.raises(ValueError, match=f"^balance={wrong}: expected a column with choices of its own"):
            release.sample(3, balance=wrong)
    assert len(release.sample(0, balance="job")) == 0


def test_blocks_together_have_equal_shares(monkeypatch):
    monkeypatch.setattr("lightning_dpgen.release.drawing.draws.LARGEST_BLOCK", 50)
    assert release_of(shares(RULES)).complete(pd.DataFrame({"a": [4] * 60}), 1)["id"].tolist() == [*range(1, 61)]
    assert sorted(release_of(shares(RULES)).sample(95, 1, balance="job")["job"].value_counts()) == [31, 32, 32]
    pictures = release_of(shares(ImageSchema(2, 2, levels=1, classes=2)))
    assert np.bincount(pictures.sample_encoded(31, 1, balance="label").codes[:, 0]).tolist() == [16, 15]


def test_a_condition_that_hardly_any_record_fulfils_is_drawn_at_once():
    """Rejection would try a million records: an exact draw takes none that does not fit."""
    network = shares(RULES)
    span = RULES.layout.spans[list(RULES.choices).index("job")]
    network.means[:, span] = torch.tensor([1.0 - 2e-9, 1e-9, 1e-9])
    found = release_of(network).sample(50, 1, where="job = vet")
    assert (found["job"] == "vet").all()
    network.means[:, span] = torch.tensor([1.0, 0.0, 0.0])
    with pytest.raises(TooRare, match="where job = vet: the model makes no such record"):
        release_of(network).sample(50, 1, where="job = vet")


def test_a_value_without_mass_is_known_before_records_are_drawn(monkeypatch):
    """By the density within a bin: the share of what is drawn is exact, and nothing is drawn where it is far too small."""
    schema = parse_schema(
        "columns: {age: {type: integer, low: 0, high: 99, edges: [50], density: [[0, 1], [10, 0], [20, 9], [21, 1.0e-5]]}, "
        "job: {type: boolean}}"
    )
    release = release_of(forest(schema, [-1, 0]))
    assert len(release.sample(20, 1, where="age <= 15")) == 20
    monkeypatch.setattr(draws.ConditionalSampler, "draw", lambda *_: pytest.fail("records are drawn"))
    with pytest.raises(ValueError, match=r"column 'age': the model makes no such value"):
        release.sample(20, where="age = 15")
    with pytest.raises(
        TooRare, match=r"where age=30: about 1 in [\d,]+ records that are drawn fits, and 20 were asked for"
    ):
        release.sample(20, where="age=30")


def test_on_the_command_line(tmp_path, capsys):
    folder, rows, filled = tmp_path / "model", tmp_path / "rows.csv", tmp_path / "filled.csv"
    folder.mkdir()
    write_model(folder, Mixture(forest(RULES, TREES), torch.tensor([0.5, 0.5])))
    rows.write_text("a,job,b,note\n3,vet,?,\n,cook,,\n")

    def dpgen(*words):
        status = main(["sample", str(folder), *map(str, words)])
        return status, *capsys.readouterr()

    status, _, err = dpgen("--given", rows, "-o", filled)
    assert status == 2 and "has note, not in the schema" in err and not filled.exists()
    rows.write_text("a,job,b\n3,vet,?\n,cook,\n9,,1.5\n")
    status, out, err = dpgen("--given", rows, "-o", filled, "--seed", 1)
    assert (status, out) == (0, f"3 completed rows in {filled}\n") and err.startswith("PRIVATE where the given rows are")
    assert stat.S_IMODE(filled.stat().st_mode) == 0o600
    lines = [line.split(",") for line in filled.read_text().splitlines()]
    assert [line[4] for line in lines] == ["a", "3", lines[2][4], "9"] and lines[1][5] == "?" and lines[2][8] == "cook"
    assert dpgen("--given", rows, "--seed", 1)[1] == filled.read_text()
    rows.write_text("a,job\n")
    assert dpgen("--given", rows)[1].splitlines() == [filled.read_text().splitlines()[0]] == dpgen("-n", 0)[1].splitlines()
    rows.write_text("a,job,b\n3,vet,?\n,cook,\n9,,1.5\n")
    assert load_release(folder).complete(rows, seed=1)["a"].astype(str).tolist() == [line[4] for line in lines[1:]]
    parquet = tmp_path / "filled.parquet"
    assert dpgen("--given", rows, "-o", parquet, "--seed", 1)[0] == 0
    about = pq.read_schema(parquet).metadata
    assert about[b"covered"] == b"false" and b"as private as those" in about[b"Comment"]
    rows.write_text("a,job\n3,vet\n12,nurse\n")
    for words, said in (
        (["--given", rows], f"--given (1) {rows}, line 3: column 'a': '12' is above high, 9"),
        (["--given", rows, "-n", 3], "-n: the rows of --given"),
        (["--given", rows, "--where", "a=3"], "--where: the rows of --given"),
        (["--given", rows, "--balance", "job"], "--balance: the rows of --given"),
        (["--given", rows, "-o", tmp_path / "x.db"], "expected a name that ends in .parquet or .csv"),
        (["--given", rows, "-o", filled], "exists already"),
        (["--given", tmp_path / "none.csv"], "no file"),
        (["--balance", "jbo"], "--balance=jbo: expected a column with choices of its own"),
    ):
        status, _, err = dpgen(*words)
        assert status == 2 and said in err and len(err.splitlines()) == 1, err
    balanced = tmp_path / "balanced.csv"
    assert dpgen("--balance", "job", "-n", 9, "-o", balanced)[0] == 0
    assert sorted(pd.read_csv(balanced)["job"].value_counts()) == [3, 3, 3]

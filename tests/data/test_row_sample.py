"""A sample while reading has as many rows as it may, whole persons, equal chances, and is the same by the same seed."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightning_dpgen.data.files import parquet, rows
from lightning_dpgen.data.files.rows import rows_of
from lightning_dpgen.data.row_sample import SAMPLED, RowSample, SampledRows
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.sampling.errors import BadRecords

SCHEMA = parse_schema("columns: {a: {type: integer, low: 0, high: 999, bins: 10}}")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(rows, "_ROWS_AT_ONCE", 16)
    monkeypatch.setattr(parquet, "_ROWS_AT_ONCE", 16)


def sampled(frame, most, seed=0, person=None):
    found = SampledRows(rows_of(frame), RowSample(most, seed), person)
    return [value for block in found.blocks() for value in block.rows["a"].to_pylist()], found


@pytest.mark.parametrize("most", [1, 7, 99, 100, 500])
def test_as_many_rows_as_there_may_be(tmp_path, most):
    frame = pd.DataFrame({"a": np.arange(100)})
    found, source = sampled(frame, most, 3)
    assert len(found) == len(set(found)) == min(most, 100) and found == sorted(found)
    assert (source.seen, source.is_part) == (100, most < 100)
    # The same rows from a folder of files, in whatever blocks they come.
    (tmp_path / "rows").mkdir()
    for start in (0, 40):
        pq.write_table(pa.table({"a": np.arange(start, start + 40 + start // 2)}), tmp_path / f"rows/{start:02}.parquet")
    assert sampled(tmp_path / "rows", most, 3)[0] == found
    read = read_table(tmp_path / "rows", SCHEMA, values=True, sample=RowSample(most, 3))
    assert read.values.column("a").tolist() == found
    assert read.counted.get(SAMPLED) == (100 if most < 100 else None)


def test_rows_have_equal_chances_and_seeds_differ():
    """False alarm below 1 in 10,000: 400 seeds, a share of .2 of 50 rows, six standard deviations at the worst row."""
    frame = pd.DataFrame({"a": np.arange(50)})
    counts = np.zeros(50)
    for seed in range(400):
        counts[sampled(frame, 10, seed)[0]] += 1
    assert np.abs(counts / 400 - 0.2).max() < 6 * (0.2 * 0.8 / 400) ** 0.5
    # A biased choice, such as of the first rows, would fail.
    assert (np.eye(50)[:10].sum(axis=0) - 0.2).max() > 6 * (0.2 * 0.8 / 400) ** 0.5


@pytest.mark.parametrize("key", [int, "p{}".format], ids=["numbers", "text"])
def test_a_person_has_all_rows_or_none(key):
    who = np.arange(120) % 40
    frame = pd.DataFrame({"a": np.arange(120), "who": [key(one) for one in who]})
    found, _ = sampled(frame, 30, 1, "who")
    assert len(found) == 30 and np.bincount(who[found]).max() == np.bincount(who[found])[np.unique(who[found])].min() == 3
    # One person of more rows than the sample is there all the same.
    assert len(sampled(frame.assign(who=key(1)), 5, 1, "who")[0]) == 120


def test_a_value_that_does_not_fit_is_named_by_its_own_place():
    frame = pd.DataFrame({"a": [*range(60), 5000, *range(39)]})
    seed = next(seed for seed in range(100) if 5000 in sampled(frame, 20, seed)[0])
    with pytest.raises(BadRecords, match=r"row 60 \(from 0\): column 'a'"):
        read_table(frame, SCHEMA, sample=RowSample(20, seed))


@pytest.mark.parametrize("wrong", [{"most": 0}, {"most": 1.5}, {"most": 3, "seed": -1}])
def test_other_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match="expected a whole number"):
        RowSample(**wrong)

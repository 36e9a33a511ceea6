"""A first look at records in blocks: what it finds is what is found of the records in memory, however they are divided."""

import itertools

import numpy as np
import pandas as pd
import pytest

from lightning_dpgen.data.tables import schema as table_schema
from lightning_dpgen.passes import checksummed_file, column_counts
from lightning_dpgen.passes.kept_records import DamagedBlocks
from lightning_dpgen.passes.reduce import InProcess
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.runs import discover
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.run import load_settings_without_slow_defaults
from lightning_dpgen.specs.settings import make_schema
from lightning_dpgen.specs.source import source_of

SHOPS = [f"s{place}" for place in range(120)]
SCHEMA = f"""
columns:
  shop: {{type: category, values: [{", ".join(SHOPS)}]}}
  visits: {{type: integer, low: private, high: private}}
  pay: {{type: number, low: private, high: private, missing: true}}
  since: {{type: date, low: private, high: private}}
  age: {{type: integer, low: 0, high: 99}}
  score: {{type: number, low: -1, high: 1}}
  city: {{type: category, values: private}}
  sex: {{type: category, values: [F, M]}}
"""
N = 1500


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch):
    """Let the values of a category be counted first although they are few."""
    monkeypatch.setattr(table_schema, "MANY", 100)


@pytest.fixture
def rows():
    """Return a table of persons with one to nine rows each, some of whose columns have many values and some few."""
    random = np.random.default_rng(0)
    pay = random.lognormal(3, 1, N)
    pay[::50] = np.nan
    return pd.DataFrame(
        {
            "shop": random.choice(SHOPS[:40], N),
            "visits": random.poisson(3, N) - 1,
            "pay": pay,
            "since": pd.Timestamp("2015-01-01") + pd.to_timedelta(random.integers(0, 900, N), "D"),
            "age": random.integers(18, 90, N),
            "score": random.uniform(-1, 1, N),
            "city": random.choice(["Rome", "Ur", "Ulm", "Łódź", "Oslo"], N, p=[0.5, 0.2, 0.2, 0.05, 0.05]),
            "sex": random.choice(["F", "M"], N),
            "who": random.choice(["x", "y"], N) + pd.Series(random.integers(0, 300, N)).astype(str),
        }
    )


def _spec(folder, *words, persons=False):
    schema = folder / "t.schema.yaml"
    schema.write_text(SCHEMA)
    words = ["data=table", f"data.path={folder / 'in'}", f"data.schema={schema}", "data.n=null", *words]
    words += [
        "data.n_share=0.02",
        "data.discovery_share=0.3",
        "data.bins_share=0.3",
        "data.outside=clamp",
        "model=measured",
    ]
    words += [] if "privacy=off" in words else ["privacy.epsilon=20"]
    words += ["data.person=who", "data.max_rows=2"] if persons else []
    return load_settings_without_slow_defaults(words)


def _write(folder, rows, files, group):
    (folder / "in").mkdir(exist_ok=True)
    for path in (folder / "in").iterdir():
        path.unlink()
    for i, part in enumerate(np.array_split(np.arange(len(rows)), files)):
        rows.iloc[part].to_parquet(folder / "in" / f"{i}.parquet", row_group_size=group, index=False)


def _bought(spec, source, seen):
    account = Account(discover.plan_first_pass(spec, source).plan, stream=PrivateStream(seed=7))
    return discover.run_discovery(spec, source, seen, account)


def _in_blocks(spec, source, folder, executor=None):
    seen = source.first_look(make_schema(spec, source), folder, private=spec.privacy.private)
    try:
        seen.fill(executor)
        return _bought(spec, source, seen)
    finally:
        seen.close()


class Backwards:
    """Hands out blocks in another order, and each twice."""

    def map(self, task, keys):
        for key in reversed(keys):
            yield key, task(key)
            yield key, task(key)


@pytest.mark.parametrize("private", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("persons", [pytest.param(False, marks=pytest.mark.slow), True])
def test_it_finds_what_is_found_in_memory(tmp_path, rows, monkeypatch, persons, private):
    rows = rows if persons else rows.drop(columns="who")
    spec = _spec(tmp_path, *([] if private else ["privacy=off"]), persons=persons)
    source = source_of(spec.data)
    _write(tmp_path, rows, 1, N)
    expected = _bought(spec, source, discover.open_first_pass(spec, source))
    assert set(expected.parts) == {"shop", "visits", "pay", "since", "age", "score", "city"} and expected.n > 0
    monkeypatch.setattr(column_counts, "_ROWS", 100)
    shuffled = rows.sample(frac=1.0, random_state=1)
    for i, (table, files, executor) in enumerate([(rows, 1, None), (shuffled, 3, InProcess()), (shuffled, 2, Backwards())]):
        _write(tmp_path, table, files, 400)
        found = _in_blocks(spec, source_of(spec.data), tmp_path / f"look {i}", executor)
        assert found == expected
        assert not [path for path in (tmp_path / f"look {i}").iterdir() if b"x17" in path.read_bytes()]


def test_text_files_are_looked_at_in_ranges(tmp_path, rows, monkeypatch):
    rows = rows.drop(columns="who")
    rows["city"] = rows["city"].replace("Ur", 'Ur, "city of\nthe moon"')
    spec = _spec(tmp_path)
    _write(tmp_path, rows, 1, N)
    expected = _bought(spec, source_of(spec.data), discover.open_first_pass(spec, source_of(spec.data)))
    monkeypatch.setattr("lightning_dpgen.data.files.text._BYTES_OF_RANGE", 20_000)
    (tmp_path / "in" / "0.parquet").unlink()
    rows.to_csv(tmp_path / "in" / "a.csv", index=False)
    source = source_of(spec.data)
    assert _in_blocks(spec, source, tmp_path / "look") == expected
    assert len(list((tmp_path / "look").glob("look-*"))) > 3


class Stopped(Exception):
    pass


class StopsAfter:
    """Stops after so many blocks."""

    def __init__(self, count):
        self.left = count

    def map(self, task, keys):
        for key in keys:
            if not self.left:
                raise Stopped
            self.left -= 1
            yield key, task(key)


@pytest.mark.parametrize("persons", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_interrupted_look_goes_on(tmp_path, rows, monkeypatch, persons):
    spec = _spec(tmp_path, persons=persons)
    _write(tmp_path, rows if persons else rows.drop(columns="who"), 3, 600)
    expected = _in_blocks(spec, source_of(spec.data), tmp_path / "whole")
    made, write = [], checksummed_file.write
    monkeypatch.setattr(checksummed_file, "write", lambda path, *rest: (made.append(path.name), write(path, *rest))[1])
    for _ in itertools.count():
        seen = source_of(spec.data).first_look(make_schema(spec, source_of(spec.data)), tmp_path / "parts", private=True)
        try:
            seen.fill(StopsAfter(2))
            break
        except Stopped:
            pass
        finally:
            seen.close()
    assert len(made) == len(set(made))
    assert _in_blocks(spec, source_of(spec.data), tmp_path / "parts") == expected


@pytest.mark.parametrize("persons", [pytest.param(False, marks=pytest.mark.slow), True])
def test_what_is_damaged_is_counted_anew_or_refused(tmp_path, rows, persons):
    spec = _spec(tmp_path, persons=persons)
    _write(tmp_path, rows if persons else rows.drop(columns="who"), 2, 800)
    source, folder = source_of(spec.data), tmp_path / "look"
    expected = _in_blocks(spec, source, folder)
    for path in sorted(folder.glob("look-*"))[::5]:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] + b"!" + content[len(content) // 2 + 1 :])
    assert _in_blocks(spec, source, folder) == expected
    seen = source.first_look(make_schema(spec, source), folder, private=True)
    seen.fill()
    next(folder.glob("*-numbers")).unlink()
    with pytest.raises(DamagedBlocks, match="damaged or removed"):
        _bought(spec, source, seen)
    seen.close()


def test_what_cannot_be_read_is_told_with_its_place(tmp_path, rows):
    rows = rows.drop(columns="who").astype({"age": object})
    rows.loc[1100, "age"] = "old"
    spec = _spec(tmp_path)
    _write(tmp_path, rows.astype({"age": str}), 1, 500)
    with pytest.raises(BadRecords, match=r"0\.parquet, row group 2.*age"):
        _in_blocks(spec, source_of(spec.data), tmp_path / "look")


def test_more_categories_than_are_counted_together_are_refused_by_the_bound_alone(tmp_path, rows, monkeypatch):
    spec = _spec(tmp_path)
    _write(tmp_path, rows.drop(columns="who"), 1, 1000)
    monkeypatch.setattr(column_counts, "_MOST_KEYS", 40)
    with pytest.raises(BadRecords, match="column 'city': its different values take more than") as told:
        _in_blocks(spec, source_of(spec.data), tmp_path / "look")
    assert "Rome" not in str(told.value) and f"{40 / 2**30:g} GiB" in str(told.value)


def test_another_division_or_setting_is_another_look(tmp_path, rows):
    """Nothing that was counted of other records, or by another bound, is taken for these."""
    spec, folder = _spec(tmp_path, persons=True), tmp_path / "look"
    _write(tmp_path, rows, 1, N)
    first = _in_blocks(spec, source_of(spec.data), folder)
    _write(tmp_path, rows.iloc[: N // 3], 1, N)
    assert _in_blocks(spec, source_of(spec.data), folder).n < first.n
    _write(tmp_path, rows, 1, N)
    wider = spec.changed(data=spec.data.changed(max_rows=3))
    assert _in_blocks(wider, source_of(wider.data), folder).n > first.n

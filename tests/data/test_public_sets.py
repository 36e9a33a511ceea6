"""Sets known by name: what is declared of them holds, a missing file is named, and simulated ones are drawn as ever."""

import hashlib
import itertools
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml

from lightning_dpgen.data.files.text import MissingData
from lightning_dpgen.data.public_sets import NAMES, find_public_set, load_public_set, public_set
from lightning_dpgen.data.schema import kind_of
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.config_files import conf_dir
from lightning_dpgen.specs.run import load_data_settings
from lightning_dpgen.specs.settings import load_complete_settings
from lightning_dpgen.specs.source import source_of
from lightning_dpgen.specs.usage_error import UsageError


@cache
def _loaded(name, *, held_out=False):
    return load_public_set(name, _schema(name), held_out=held_out)


def _schema(name):
    schema = public_set(name).schema
    return schema.with_bins(20) if isinstance(schema, TableSchema) else schema


IN_FILES = [name for name in NAMES if public_set(name).files]
SIMULATED = [name for name in NAMES if public_set(name).draw is not None]
here = pytest.mark.skipif(not os.environ.get("DPGEN_DATA"), reason="needs the files under DPGEN_DATA")


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("name", IN_FILES)
def test_a_missing_file_is_named(name, held_out, tmp_path, monkeypatch):
    monkeypatch.delenv("DPGEN_DATA", raising=False)
    known = public_set(name)
    file = ((held_out and known.held_out) or known.files)[0]
    with pytest.raises(MissingData, match=rf"{name} needs.*DPGEN_DATA.*{file}"):
        find_public_set(name, held_out=held_out)
    monkeypatch.setenv("DPGEN_DATA", str(tmp_path))
    with pytest.raises(MissingData, match=rf"no file {tmp_path}/{file}"):
        load_public_set(name, held_out=held_out)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"name=kosarak: expected one of digits"):
        find_public_set("kosarak")


BOOK = (Path(__file__).parents[2] / "docs/reference/interfaces.md").read_text(encoding="utf-8")
# Files of this one are not among the others.
HERE = [name for name in NAMES if name not in (*SIMULATED, "sp500")]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_a_choice_of_the_settings(name):
    """The file of a set says its name and its number, the settings its kind, the book has it, and a plan reads nothing."""
    said, known = yaml.safe_load((conf_dir() / f"data/{name}.yaml").read_text()), public_set(name)
    assert (said["source"], said["n"]) == (name, known.n)
    settings = load_complete_settings([f"data={name}", "model=vae", "model.steps=1"])
    assert settings.spec.data.kind == kind_of(known.schema).name
    assert settings.dump_public()["data"] == name and settings.plan().private
    assert f"`{name}`" in BOOK.replace("`data=", "`")


@here
@pytest.mark.parametrize("name", HERE)
def test_what_is_declared_holds(name):
    """No record is refused (a reading beyond the bounds would be), and n is the number for training."""
    known, schema = public_set(name), _schema(name)
    reading = _loaded(name)
    assert len(reading.encoded) == known.n
    assert reading.encoded.units.shape == (known.n, schema.layout.units)
    held_out = _loaded(name, held_out=True).encoded
    assert len(held_out) > 0
    assert "readings: outside the bounds, moved to them" not in reading.counted
    schema.decode(reading.encoded[slice(20)], np.random.default_rng(0)).validate(full=True)


@here
def test_the_numbers_of_records_that_are_published():
    """FIMI's counts, and those of the data's own description."""
    counts = {name: len(_loaded(name).encoded) + len(_loaded(name, held_out=True).encoded) for name in HERE}
    assert counts == {
        "digits": 1797, "mnist": 70_000, "fashion_mnist": 70_000, "adult": 48_842, "mushroom": 8_124,
        "retail": 88_162, "bms_webview1": 59_602, "uk_demand": 5_304 - 14, "powercons": 360, "ausgrid": 366,
    }  # fmt: skip


def _digest(*arrays):
    found = hashlib.sha256()
    for array in map(np.ascontiguousarray, arrays):
        found.update(f"{array.shape} {array.dtype}".encode() + array.tobytes())
    return found.hexdigest()[:16]


def _read(*words, held_out=False):
    """Return the arrays of 60 simulated records, as settings read them."""
    source = source_of(load_data_settings([*words, "data.n=60"]))
    records, counted = source.records(source.declare(), held_out=held_out)
    units = records.encoded.units
    assert not counted and len(records) == 60
    return (units if isinstance(units, np.ndarray) else units.toarray()), records.encoded.codes


# Committed results rest on these records: what another version of numpy draws is a fault, too.
DRAWN = {
    "six_gaussians": "40cc8c16b642e52a",
    "pinwheel": "6f872bd6fc074b56",
    "transit": "d7e1e58538bd534c",
    "cdr": "534bf6122229e0aa",
    "meters": "2d94fc329344786c",
}


@pytest.mark.parametrize("name", SIMULATED)
def test_simulated_records_are_as_many_as_asked_for_and_those_of_their_draw(name):
    schema = public_set(name).schema
    drawn = [_read(f"data={name}", f"data.draw={draw}", held_out=out) for out in (False, True) for draw in (0, 1)]
    assert _digest(*drawn[0]) == DRAWN[name]
    assert _digest(*_read(f"data={name}")) == DRAWN[name]
    assert drawn[0][0].shape == (60, schema.layout.units)
    for (one, _), (other, _) in itertools.combinations(drawn, 2):
        assert one.shape == other.shape and not np.array_equal(one, other)


def test_a_day_is_of_a_meter_where_that_is_asked_for():
    words = ["data=meters", "data.n=3000"]
    by_days, by_meters = (
        source_of(load_data_settings([*words, *more])) for more in ([], ["data.person=meter", "data.max_rows=2"])
    )
    assert by_days.records(by_days.declare())[0].persons is None
    records, left_out = by_meters.records(by_meters.declare())
    assert np.bincount(records.persons).max() == 2 and len(records) + sum(left_out.values()) == 3000
    for name, words in (("meters", "meter, or none"), ("uk_demand", "none, since no person")):
        other = source_of(load_data_settings([f"data={name}", "data.person=house", "data.max_rows=2"]))
        with pytest.raises(UsageError, match=f"data.person=house.*expected {words}"):
            other.check()


def test_months_of_stocks_are_those_of_one_company_each(tmp_path, monkeypatch):
    """Three windows of 30 days and a rest; the second company misses a day of the second window."""
    monkeypatch.setenv("DPGEN_DATA", str(tmp_path))
    (tmp_path / "sp500").mkdir()
    file = tmp_path / "sp500/all_stocks_5yr.csv"
    days = [f"2013-{1 + day // 28:02d}-{1 + day % 28:02d}" for day in range(95)]
    rows = [
        f"{day},1,{price + 1},{price - 1},1,5,{name}"
        for name, price in (("B", 50.0), ("A", 10.0)) for day in days if (name, day) != ("B", days[40])
    ]  # fmt: skip
    rows[0] = f"{days[0]},1,41,39,1,5,B"
    file.write_text("\n".join(["date,open,high,low,close,volume,Name", *rows]))
    reading = load_public_set("sp500")
    assert reading.persons.tolist() == [0, 0, 0, 1, 1] and len(load_public_set("sp500", held_out=True).encoded) == 0
    # The first of B's prices is lower than the others: 1.25 times it, in bounds of 0.5 and 1.5.
    units = reading.encoded.units
    assert np.allclose(units[3], [0.5] + [0.75] * 29) and np.allclose(units[[0, 1, 2, 4]], 0.5)
    assert units.shape[1] == public_set("sp500").schema.layout.units == 30
    source = source_of(load_data_settings(["data=sp500"]))
    with pytest.raises(BadRecords, match=rf"data=sp500: there are no records that are held out: .*what {file} holds"):
        source.records(source.declare(), held_out=True)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("day,price\n1,2\n", "is not the file of S&P 500"),
        ("date,high,low,Name\n", ": 0 rows have no company .*: expected a row for each company and day"),
        ("date,high,low,Name\n1,1,1,A\n", ": 1 rows have no company"),
        ("date,high,low,Name\n1,True,1,A\n", ": column high, line 2: 'True': expected a price, as in 67.54"),
        ("date,high,low,Name\n1,1,1,A\n2,1,-inf,A\n", ": column low, line 3: '-inf': expected a price"),
        (f"date,high,low,Name\n1,1{400 * '0'},1,A\n", ": column high, line 2: '10000.*: expected a price"),
    ],
)
def test_a_file_that_is_not_of_stocks_is_refused_in_one_line(rows, said, tmp_path, monkeypatch):
    monkeypatch.setenv("DPGEN_DATA", str(tmp_path))
    (tmp_path / "sp500").mkdir()
    (tmp_path / "sp500/all_stocks_5yr.csv").write_text(rows)
    with pytest.raises(BadRecords, match=f"sp500/all_stocks_5yr.csv ?{said}") as refused:
        load_public_set("sp500")
    assert len(str(refused.value)) < 400 and "\n" not in str(refused.value)


def test_the_number_of_simulated_records_is_not_bought():
    with pytest.raises(UsageError, match=r"data.n_share=0.1: how many records are simulated is public"):
        load_complete_settings(["data=pinwheel", "data.n=null", "data.n_share=0.1"])

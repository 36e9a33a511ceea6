"""Sets known by name: what is declared of them holds, and a missing file is named."""

import os
from functools import cache

import numpy as np
import pytest

from lightning_dpgen.data.files.text import MissingData
from lightning_dpgen.data.public_sets import NAMES, find_public_set, load_public_set, public_set
from lightning_dpgen.data.tables.schema import TableSchema


@cache
def _loaded(name, *, held_out=False):
    return load_public_set(name, _schema(name), held_out=held_out)


def _schema(name):
    schema = public_set(name).schema
    return schema.with_bins(20) if isinstance(schema, TableSchema) else schema


IN_FILES = [name for name in NAMES if public_set(name).files]
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


@here
@pytest.mark.parametrize("name", NAMES)
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
    counts = {name: len(_loaded(name).encoded) + len(_loaded(name, held_out=True).encoded) for name in NAMES}
    assert counts == {
        "digits": 1797, "mnist": 70_000, "fashion_mnist": 70_000, "adult": 48_842, "mushroom": 8_124,
        "retail": 88_162, "bms_webview1": 59_602, "uk_demand": 5_304 - 14, "powercons": 360, "ausgrid": 366,
    }  # fmt: skip

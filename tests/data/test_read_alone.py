"""A value is read by itself: whatever other records stand before or behind it, in the same block or another."""

import datetime
import itertools
import json
import sqlite3
from contextlib import closing
from decimal import Decimal

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from marks import only

from lightning_dpgen.data.baskets.reading import basket_keys
from lightning_dpgen.data.files import rows, values
from lightning_dpgen.data.files.blocks import Block
from lightning_dpgen.data.series.files import readings_of
from lightning_dpgen.data.tables.reading import read_open_columns, read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.sampling.errors import BadRecords

SCHEMAS = [
    parse_schema(f"columns: {{x: {{{column}, missing: true}}}}").with_bins(50)
    for column in (
        "type: category, values: ['1', '0.5', '0.0000001', '10000000000000000', '2024-01-03', other], other: other",
        "type: integer, low: 0, high: 9007199254740992",
        "type: number, decimals: 1, low: 0, high: 1000",
        "type: boolean",
        "type: date, low: 0001-01-01, high: 9999-12-31",
        "type: datetime, low: '1500-01-01 00:00', high: '2100-01-01 00:00'",
        "type: datetime, zone: Europe/Berlin, low: '1850-01-01 00:00', high: '2100-01-01 00:00'",
        "type: time, low: '00:00', high: '23:59', resolution: minute",
    )
]
OPEN = [
    parse_schema(f"columns: {{x: {{{column}, missing: true}}}}")
    for column in ("type: category, values: private", "type: number, low: private, high: private")
]
NEW_YORK = datetime.timezone(datetime.timedelta(hours=-5))
DECIMALS = [Decimal(text) for text in ("1", "1.0", "0.5", "1E-7", "1E+16", "0.3", "0.30000000000000000001", "-9")]
NUMBERS = [1, 1.0, 0.5, 2**53, 2**53 + 1, 10**16, 1e16, 1e-7, True, None]
TEXTS = ["1", "1.0", "0.5", "true", "", "0x10", "+1", "9007199254740993", "2024-01-03", "2024-01-03 05:06:07", "05:06"]
MOMENTS = [
    datetime.date(2024, 1, 3),
    datetime.datetime(2024, 1, 3, 5, 6, 7, 8),
    datetime.datetime(2024, 1, 6, 23, tzinfo=NEW_YORK),
    datetime.datetime(1600, 1, 1),
    datetime.date(9999, 12, 31),
    datetime.time(5, 6),
]
OF_PANDAS = [
    pd.Timestamp("2024-01-06", tz="Europe/Berlin"),
    pd.Timestamp("1969-12-31 23:59:59.999999999"),
    np.datetime64("2024-01-05"),
    np.float32(0.5),
    np.bool_(True),
    np.int64(1),
    pd.NaT,
    pd.NA,
    float("nan"),
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal("1E+999999999"),
    10**400,
    datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
    b"1",
    [1],
]


def _frame(found, path):
    return pd.DataFrame({"x": pd.Series(found, dtype=object)})


def _categories(found, path):
    return pd.DataFrame({"x": pd.Series(pd.Categorical.from_codes(range(len(found)), pd.Index(found, dtype=object)))})


def _table(found, path):
    return pa.table({"x": pa.array(found)})


def _parquet(found, path):
    pa.parquet.write_table(_table(found, path), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def _csv(found, path):
    path.with_suffix(".csv").write_text("x\n" + "".join(f'"{text}"\n' for text in found))
    return path.with_suffix(".csv")


def _json_lines(found, path):
    path.with_suffix(".jsonl").write_text("".join(json.dumps({"x": value}) + "\n" for value in found))
    return path.with_suffix(".jsonl")


def _sqlite(found, path):
    path = path.with_suffix(".sqlite")
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("CREATE TABLE t (x)")
        connection.executemany("INSERT INTO t VALUES (?)", [(value,) for value in found])
    return path


def _workbook(found, path):
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    for value in ("x", *found):
        sheet.append([value])
    book.save(path.with_suffix(".xlsx"))
    return path.with_suffix(".xlsx")


# The maker of a source, its odd values, and the schemas: fewer of both where it is slow.
SOURCES = {
    "frame": (_frame, [*NUMBERS, *DECIMALS[::2], *MOMENTS, *OF_PANDAS, *TEXTS[::3]], SCHEMAS),
    "categories of a frame": (_categories, [DECIMALS[0], *DECIMALS[2:4], *MOMENTS[:3], 1.5, "1"], SCHEMAS),
    "table": (_table, DECIMALS, SCHEMAS[:3]),
    "parquet": (_parquet, DECIMALS[:4], SCHEMAS[:3]),
    "csv": (_csv, TEXTS, SCHEMAS[1:7:2]),
    "json lines": (_json_lines, [*NUMBERS, *TEXTS[::4]], SCHEMAS[:4]),
    "sqlite": (_sqlite, [*NUMBERS[:5:2], *TEXTS[::4]], SCHEMAS[:1]),
    "workbook": (_workbook, [1, 1.5, "1.0", *MOMENTS[:2]], [SCHEMAS[0]]),
}


def _read(source, schema):
    """Return the numbers of each record, or None if one cannot be read."""
    try:
        if schema in OPEN:
            return [str(value) for value in read_open_columns(source, schema)[0]["x"]]
        read = read_table(source, schema, outside="clamp", values=True).values
        return np.hstack([read.codes, read.numbers]).astype(str).ravel().tolist()
    except BadRecords:
        return None


def _check_read_alone(kind, path, pairs_of):
    """Check that all values, forwards and backwards, and pairs of them are read as each one alone."""
    made, found, schemas = SOURCES[kind]
    alone = [made([value], path / f"{place}") for place, value in enumerate(found)]
    for schema in [*schemas, *OPEN]:
        expected = [_read(source, schema) for source in alone]
        held = [place for place, codes in enumerate(expected) if codes is not None]
        for places in [held, held[::-1], *pairs_of(held)]:
            read = _read(made([found[place] for place in places], path / "several"), schema)
            wanted = [code for place in places for code in expected[place]]
            assert read == wanted, ([found[place] for place in places], schema)


@pytest.mark.parametrize("kind", SOURCES)
def test_a_value_is_read_whatever_others_there_are(tmp_path, kind):
    _check_read_alone(kind, tmp_path, lambda held: [*itertools.pairwise(held), *itertools.pairwise(held[::-1])])


@pytest.mark.parametrize("kind", only(("frame", "json lines"), "json lines"))
def test_a_value_is_read_whatever_others_there_are_in_other_blocks(monkeypatch, tmp_path, kind):
    monkeypatch.setattr(rows, "_ROWS_AT_ONCE", 2)
    pieces = values.pieces
    monkeypatch.setattr(values, "pieces", lambda found: pieces(found, 2))
    _check_read_alone(kind, tmp_path, lambda held: [])


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOURCES)
def test_a_value_is_read_whatever_other_there_is(tmp_path, kind):
    _check_read_alone(kind, tmp_path, lambda held: itertools.permutations(held, 2))


@pytest.mark.parametrize("odd", [0.5, "0.5", "tea", 2**53, 2**53 + 1, 1e300])
def test_an_item_is_read_whatever_others_there_are(odd):
    items = [7, 10**15, 10**16, 2**53]
    found = []
    for several in (items, [odd, *items], [*items, odd]):
        keys = basket_keys(pd.DataFrame({"b": range(len(several)), "x": pd.Series(several, dtype=object)}))
        names = keys.names.take(pa.array(keys.ids)).to_pylist()
        found.append(names[1:] if several[0] == odd else names[:4])
    assert found == [list(map(str, items))] * 3


def test_a_reading_is_read_whatever_others_there_are():
    own = [Decimal(str(number)) for number in np.random.default_rng(0).random(100)]
    alone, beside = (
        readings_of(Block(pa.record_batch({"t": pa.array(several)}), str), "t")
        for several in (own, [*own, Decimal("1E-30")])
    )
    np.testing.assert_array_equal(alone, beside[:-1])

"""Any type that Arrow has, with its extreme values, in any kind of column: read, or refused by file and column."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from marks import only

from lightning_dpgen.data.tables.reading import read_open_columns, read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.sampling.errors import BadRecords

COLUMNS = {
    "boolean": "{type: boolean, missing: true}",
    "integer": "{type: integer, low: 0, high: 9, missing: true}",
    "number": "{type: number, low: 0, high: 1, missing: true}",
    "wide number": "{type: number, low: -1e100, high: 1e100, encoding: scaled, missing: true}",
    "date": "{type: date, low: 2000-01-01, high: 2001-01-01, missing: true}",
    "datetime": "{type: datetime, low: 2000-01-01, high: 2001-01-01, missing: true}",
    "time": "{type: time, missing: true}",
    "texts": "{type: category, values: [a, b], missing: true}",
    "numbers": "{type: category, values: [0, 1], missing: true}",
    "bounds": "{type: number, low: private, high: private, missing: true}",
    "categories": "{type: category, values: private, missing: true}",
}


def _values():
    """Yield (name, array): extremes of every type of numbers, and one of every other type."""
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        limits = np.iinfo(name)
        yield name, pa.array(np.array([0, 1, limits.max, limits.min], name))
    for name in ("float16", "float32", "float64"):
        yield name, pa.array(np.array([0, 1, np.finfo(name).max, np.finfo(name).min, np.inf, -np.inf, np.nan], name))
    moment = datetime.datetime(2000, 1, 1)
    for unit in ("s", "ms", "us", "ns"):
        yield f"timestamp {unit}", pa.array([0, 2**62, -(2**62)], pa.timestamp(unit))
        yield f"timestamp {unit} zone", pa.array([0, 2**62], pa.timestamp(unit, tz="Asia/Kolkata"))
        yield f"duration {unit}", pa.array([0, 2**62], pa.duration(unit))
    yield "date32", pa.array([0, 2**31 - 1, -(2**31)], pa.date32())
    yield "date64", pa.array([0, 86_400_000 * 10**9], pa.date64())
    yield "time32", pa.array([0, 86_399], pa.time32("s"))
    yield "time64", pa.array([0, 86_399_999_999_999], pa.time64("ns"))
    yield "decimal", pa.array([decimal.Decimal(10) ** 37, decimal.Decimal(5)])
    yield "text", pa.array(["a", "1", "true", "1e999", "\x00", ""])
    yield "large text", pa.array(["a", "1"], pa.large_string())
    yield "bytes", pa.array([b"a", b"\xff"])
    yield "list", pa.array([[1], []])
    yield "struct", pa.array([{"a": 1}, None])
    yield "map", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8()))
    yield "nothing", pa.nulls(3)
    yield "codes", pa.array(["a", "b"]).dictionary_encode()
    yield "numbered codes", pa.array([0, 2**64 - 1], pa.uint64()).dictionary_encode()
    yield "dates as objects", pa.array([moment.date(), None])


VALUES = dict(_values())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("column", only(list(COLUMNS), "datetime", "number", "texts", "bounds"))
def test_any_type_is_read_or_refused_by_file_and_column(tmp_path, column):
    schema = parse_schema(f"columns:\n  some column: {COLUMNS[column]}").with_bins(8)
    read = read_open_columns if "private" in COLUMNS[column] else read_table
    path, refused = tmp_path / "t.parquet", 0
    for name, values in VALUES.items():
        for part in (values, *(values[i : i + 1] for i in range(len(values)))):
            table = pa.table({"some column": part})
            sources = [table]
            try:
                pa.parquet.write_table(table, path)
                sources.append(path)
            except pa.ArrowException:
                pass  # no type of a Parquet file
            for source in sources:
                try:
                    read(source, schema)
                except BadRecords as error:
                    refused += 1
                    assert "column 'some column'" in str(error) and "\n" not in str(error), (name, part)
                    assert source is table or str(path) in str(error)
                except Exception as error:
                    raise AssertionError(f"{name}: {part}") from error
    assert refused > 5


def test_a_number_beyond_int64_is_no_boolean(tmp_path):
    """In a Parquet file of uint64, as NumPy writes it."""
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(pa.table({"smoker": pa.array([0, 1, 2**64 - 1], pa.uint64())}), path)
    with pytest.raises(BadRecords, match=r"t\.parquet, .*column 'smoker': 18446744073709551615: expected true or false"):
        read_table(path, parse_schema("columns: {smoker: {type: boolean}}"))

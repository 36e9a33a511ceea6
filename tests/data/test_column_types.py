"""The types of a frame's columns come back in synthetic frames and Parquet files, and no record decides them."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from lightning_dpgen.data.schema import first_difference
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import parse_schema, schema_text
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.data.tables.sources import declared_types
from lightning_dpgen.release.rows.output_format import OutputFormat
from lightning_dpgen.release.rows.tables import write_table

INTEGER = {"type": "integer", "low": 0, "high": 99}
NUMBER = {"type": "number", "low": -3.7, "high": 99.9}
CENTS = {"type": "number", "low": 0, "high": 99.99, "decimals": 2}
DATE = {"type": "date", "low": "1999-01-01", "high": "2024-12-31"}
MOMENT = {"type": "datetime", "low": "1999-01-01 00:00:00", "high": "2024-12-31 00:00:00"}
ZONED = MOMENT | {"zone": "Europe/Berlin"}
WORD = {"type": "category", "values": ["low", "mid", "high"]}
CODE = {"type": "category", "values": [4, 6, 8]}
BOOLEAN = {"type": "boolean"}
TIME = {"type": "time"}
DAYS = [datetime.date(2001, 2, 3), datetime.date(2020, 1, 1), datetime.date(1999, 9, 9)]
MOMENTS = pd.to_datetime(["2001-02-03 04:05:06", "2020-01-01 00:00:00", "1999-09-09 01:00:00"])
CLOCKS = [datetime.time(1, 2, 3), datetime.time(23), datetime.time(0)]
PRICES = [decimal.Decimal("1.50"), decimal.Decimal("99.99"), decimal.Decimal("0.10")]
# A declaration, three values, and the types in which they come back; those after None hold no missing value.
FAMILY = [
    (INTEGER, [7, 42, 99], ["Int8", "UInt8", "Int16", "Int32", "Int64", "float32", "int8[pyarrow]", "int64[pyarrow]",
                            None, "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"]),
    (NUMBER, [0.5, 42.25, -3.5], ["float64", "float32", "Float32", "Float64", "float[pyarrow]", "double[pyarrow]"]),
    (CENTS, PRICES, [pd.ArrowDtype(pa.decimal128(38, 2))]),
    (BOOLEAN, [True, False, True], ["boolean", "bool[pyarrow]", "Int8", None, "bool", "uint8"]),
    (WORD, ["low", "high", "mid"], ["str", pd.StringDtype(), pd.ArrowDtype(pa.string()),
                                    pd.CategoricalDtype(WORD["values"]),
                                    pd.CategoricalDtype(WORD["values"], ordered=True)]),
    (CODE, [4, 8, 6], ["Int8", "Int64", pd.CategoricalDtype(CODE["values"]), None, "int64", "int16"]),
    (BOOLEAN, [True, False, True], [pd.CategoricalDtype([False, True])]),
    (DATE, DAYS, [object, "date32[pyarrow]", "datetime64[s]"]),
    (MOMENT, MOMENTS, ["datetime64[s]", "timestamp[s][pyarrow]"]),
    (ZONED, MOMENTS.tz_localize("Europe/Berlin"), ["datetime64[s, Europe/Berlin]"]),
    (TIME, CLOCKS, [object]),
]  # fmt: skip
WORDS = {"missing": True, "missing_values": ["?", ""]}
_ARROW = {"int": pd.ArrowDtype(pa.int64()), "float": pd.ArrowDtype(pa.float64()), "text": pd.ArrowDtype(pa.string())}
_MOMENTS = [np.dtype(f"datetime64[{unit}]") for unit in ("s", "ms", "us", "ns")]
_CLOCKS = [pd.ArrowDtype(kind) for kind in (pa.time32("s"), pa.time64("ns"), pa.string())]
_FILES = [pa.int64(), pa.float64(), pa.string(), pa.null()]
# Declarations, and types between which programs choose by the values of a column, or by words among them.
CHOSEN = [
    (INTEGER, ["int64", "uint64", "float64"]), (INTEGER | WORDS, ["int64", "float64", "object", "str"]),
    (INTEGER | WORDS, [pd.Int64Dtype(), pd.Float64Dtype(), pd.StringDtype(), pd.BooleanDtype()]),
    (INTEGER | WORDS, list(_ARROW.values())), (INTEGER | WORDS, [pa.int32(), *_FILES]),
    (INTEGER, [pa.int32(), *_FILES[:2]]),
    (NUMBER | WORDS, ["int64", "float64", "object", "str"]), (NUMBER | WORDS, _FILES),
    (NUMBER | WORDS, list(_ARROW.values())), (NUMBER | WORDS, [pd.Int64Dtype(), pd.Float64Dtype(), pd.StringDtype()]),
    (BOOLEAN | WORDS, ["bool", "object", "str", "float64"]), (BOOLEAN | WORDS, [pa.bool_(), *_FILES]),
    (BOOLEAN | WORDS, [pd.BooleanDtype(), pd.Int64Dtype(), pd.StringDtype()]),
    (CODE | WORDS, ["int64", "float64", "object", "str"]), (WORD | WORDS, ["object", "str", "float64"]),
    (DATE, [*_MOMENTS]), (DATE | WORDS, [*_MOMENTS, "object", "str"]),
    (DATE | {"format": "%d.%m.%Y"}, [*_MOMENTS, "object", "str"]),
    (MOMENT, [*_MOMENTS, "object", "str"]), (MOMENT | WORDS, [*_MOMENTS, "object", "str"]),
    (TIME | WORDS, [pa.time32("s"), pa.time64("us"), pa.string()]), (TIME | WORDS, _CLOCKS),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "kinds"), CHOSEN, ids=[f"{fields['type']}-{kinds[0]}" for fields, kinds in CHOSEN])
def test_no_value_chooses_a_type(fields, kinds):
    """One record more, or one word, changes the type that a program gives a column; what is released stays."""
    schema = TableSchema((column_of("a", fields), column_of("b", BOOLEAN)))
    frames = [pd.Series([], dtype=kind).dtype if isinstance(kind, str) else kind for kind in kinds]
    assert len({str(schema.with_types_of({"a": kind}).types) for kind in frames}) == 1


CASES = [
    (fields, values, kind, missing)
    for fields, values, kinds in FAMILY
    for place, kind in enumerate(kinds)
    for missing in (False, True)
    if kind is not None and not (missing and None in kinds[:place])
]


def _drawn(frame, fields, missing):
    """Return a schema with the types of a frame, and records as a release of it draws them."""
    schema = TableSchema((column_of("a", fields | {"missing": missing}), column_of("b", {"type": "boolean"})))
    schema = TableSchema.from_json(schema.with_types_of(declared_types(frame)).as_json()).with_bins(10)
    assert parse_schema(schema_text(schema)) == schema
    read = read_table(frame, schema).encoded
    return schema, schema.decode(read, np.random.default_rng(0))


def _frame(values, kind, missing):
    values = [*values, None] if missing else list(values)
    column = pd.Series(values, dtype=object).astype(kind) if kind is not object else pd.Series(values, dtype=object)
    return pd.DataFrame({"a": column, "b": [True, False, True, False][: len(values)]})


@pytest.mark.parametrize(("fields", "values", "kind", "missing"), CASES,
                         ids=[f"{case[0]['type']}-{case[2]}-{case[3]}" for case in CASES])  # fmt: skip
def test_types_of_a_frame_come_back(tmp_path, fields, values, kind, missing):
    frame = _frame(values, kind, missing)
    schema, drawn = _drawn(frame, fields, missing)
    form = OutputFormat.of(schema)
    again = form.frame(pa.Table.from_batches([drawn]))
    assert again["a"].dtype == frame["a"].dtype, (schema.types, again["a"].dtype)
    assert again["a"].isna().tolist() == frame["a"].isna().tolist()
    kinds = [type(value) for value in again["a"].dropna()]
    assert kinds == [type(value) for value in frame["a"].dropna()]
    # Synthetic values can be read as real ones are, from the frame and from a file with the same types.
    assert len(read_table(again, schema).encoded) == len(frame)
    write_table(tmp_path / "a.parquet", [drawn], schema.arrow, form=form)
    assert len(read_table(tmp_path / "a.parquet", schema).encoded) == len(frame)
    # Pandas reads such a file as it reads one that it has written from the frame.
    frame.to_parquet(tmp_path / "real.parquet")
    made, real = (pd.read_parquet(tmp_path / f"{name}.parquet")["a"].dtype for name in ("a", "real"))
    assert made == real


PARQUET = [
    (INTEGER, pa.array([1, 2, None], pa.int8())), (INTEGER, pa.array([1, 2, 3], pa.uint16())),
    (INTEGER, pa.array([1, 2, 3], pa.int64())), (NUMBER, pa.array([1.5, None, 3], pa.float32())),
    (CENTS, pa.array(PRICES, pa.decimal128(38, 2))), (WORD, pa.array(["low", None, "mid"]).dictionary_encode()),
    (BOOLEAN, pa.array([True, None, False])),
    (DATE, pa.array(DAYS, pa.date32())), (ZONED, pa.array(MOMENTS.as_unit("ms")).cast(pa.timestamp("ms", "Europe/Berlin"))),
    (TIME, pa.array(CLOCKS, pa.time32("s"))),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "column"), PARQUET, ids=lambda own: str(getattr(own, "type", "")))
def test_types_of_a_parquet_file_come_back(tmp_path, fields, column):
    table = pa.table({"a": column, "b": pa.array([True, False, True])})
    pa.parquet.write_table(table, tmp_path / "real.parquet")
    schema = TableSchema((column_of("a", fields | {"missing": column.null_count > 0}), column_of("b", BOOLEAN)))
    schema = schema.with_types_of(declared_types(tmp_path / "real.parquet")).with_bins(10)
    drawn = schema.decode(read_table(tmp_path / "real.parquet", schema).encoded, np.random.default_rng(0))
    write_table(tmp_path / "made.parquet", [drawn], schema.arrow, form=OutputFormat.of(schema))
    real, made = (pa.parquet.read_schema(tmp_path / f"{name}.parquet") for name in ("real", "made"))
    assert real.types == made.types


@pytest.mark.parametrize(("fields", "without", "with_one"), [
    (INTEGER, "int64", "float64"), (BOOLEAN, "bool", "object"), (CODE, "int64", "float64"), (INTEGER, "int8", "float64"),
])  # fmt: skip
def test_a_record_without_a_value_does_not_change_the_types(fields, without, with_one):
    """Pandas changes the type of a column because of one missing value, and a release may not tell that there was one."""
    column = column_of("a", fields | {"missing": True})
    told = {kind: TableSchema((column,)).with_types_of({"a": np.dtype(kind)}).types for kind in (without, with_one)}
    assert told[without] == told[with_one] and told[without]["a"] == with_one
    frame = OutputFormat.of(TableSchema((column,), types=told[without])).frame(
        pa.table({"a": pa.array([column.values[0] if fields is not INTEGER else 3], column.arrow)})
        if fields is not INTEGER else pa.table({"a": pa.array([3])})
    )  # fmt: skip
    assert str(frame["a"].dtype) == with_one


@pytest.mark.parametrize(("fields", "kind"), [
    (INTEGER | {"high": 300}, "int8"), (INTEGER | {"low": -1}, "uint64"), (INTEGER | {"high": 2**25}, "float32"),
    (INTEGER | {"missing": True}, "int64"), (DATE | {"high": "2500-01-01"}, "datetime64[ns]"), (NUMBER, "int64"),
    (NUMBER, "decimal128"), (INTEGER, "decimal128"), (WORD, "int8"), (INTEGER, "category"), (BOOLEAN, "period[M]"),
    (INTEGER | {"special": [-1]}, "uint8"), ({"type": "integer", "low": "private", "high": "private"}, "int8"),
])  # fmt: skip
def test_a_type_that_does_not_hold_every_record_is_not_released(fields, kind):
    column = column_of("a", fields)
    with pytest.raises(BadSchema, match=r"types: column 'a': .* holds all values"):
        TableSchema((column,), types={"a": kind})
    if "decimal" not in kind and "period" not in kind:
        assert TableSchema((column,)).with_types_of({"a": pd.api.types.pandas_dtype(kind)}).types.get("a") != kind


@pytest.mark.parametrize("digits", [4, 9])
def test_the_digits_that_a_program_has_counted_are_not_released(digits):
    column = column_of("a", CENTS)
    assert TableSchema((column,)).with_types_of({"a": pa.decimal128(digits, 2)}).types == {"a": "decimal128"}


def test_types_are_declared_by_name():
    schema = parse_schema("types: {a: Int8}\ncolumns: {a: {type: integer, low: 0, high: 9}}")
    assert schema.with_types_of({"a": np.dtype("int16")}).types == {"a": "Int8"}
    assert first_difference(schema, parse_schema("columns: {a: {type: integer, low: 0, high: 9}}")) is None
    for types, told in (
        ("{b: Int8}", "'b': expected the name"),
        ("{a: 3}", "a type for each"),
        ("{a: x}", "'x': expected a"),
    ):
        with pytest.raises(BadSchema, match=told):
            parse_schema(f"types: {types}\ncolumns: {{a: {{type: integer, low: 0, high: 9}}}}")


def test_declared_types_make_no_other_text():
    schema = parse_schema("types: {a: category}\ncolumns: {a: {type: category, values: [x, y]}}")
    assert OutputFormat.of(schema).texts(pa.record_batch({"a": ["x", "y"]})).to_pydict() == {"a": ["x", "y"]}

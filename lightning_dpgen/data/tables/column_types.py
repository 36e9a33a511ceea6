"""Types of columns in frames and Parquet files, by name: which of them a release may have, and values of these types.

Programs choose many types by the values: pandas makes a column of int64 one of float64 because of one missing value, one of
texts because of one word, and moments have nanoseconds because one of them has. No record may decide what is released, so
types between which a program chooses by values are one: the schema decides which. Types that are asked for by name are
kept (categories, narrow numbers, the nullable types of pandas, those of Arrow), if they hold every record that the schema
allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Modelled
from lightning_dpgen.data.tables.numeric import Numeric

OBJECT, CATEGORY, ORDERED = "object", "category", "ordered category"
# The end of the names of types of pandas that hold arrays of Arrow.
_ARROW = "[pyarrow]"
_TEXTS = {"str", "string[python]", "string[pyarrow]", "utf8", "large_string", "string_view"}
_UNITS = ("s", "ms", "us", "ns")
_MOMENTS = {f"datetime64[{unit}]": unit for unit in _UNITS}
_CLOCKS = {"time32[s]", "time32[ms]", "time64[us]", "time64[ns]"}
_DAYS = {"date32[day]": pa.date32(), "date64[ms]": pa.date64()}
_INTEGERS = {f"{sign}int{bits}": getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)}
# Floats, and the largest whole number up to which they hold all.
_FLOATS = {"float32": (pa.float32(), 2**24), "float64": (pa.float64(), 2**53)}
# Numbers that no program chooses by itself: asked for by name.
_NARROW = {*_INTEGERS, "float32"} - {"int64", "uint64"}
_NULLABLE = {name.replace("int", "Int").replace("uI", "UI"): name for name in _INTEGERS}
_NULLABLE |= {"Float32": "float32", "Float64": "float64", "boolean": "bool"}
_DECIMAL = "decimal128"
# Moments in nanoseconds reach from 1677 to 2262; these years are whole.
_NANOSECONDS = (-293 * 365 * 86400, 292 * 365 * 86400)


def name_of(kind: Any) -> str | None:
    """Return the name of a type of pandas or Arrow; None for one that no release has.

    Example:
        >>> name_of(pd.Int8Dtype()), name_of(pd.CategoricalDtype(ordered=True)), name_of(pa.timestamp("us", "UTC"))
        ('Int8', 'ordered category', 'datetime64[us]')
    """
    if isinstance(kind, pd.ArrowDtype):
        if str(kind.pyarrow_dtype) in ("large_string", "string_view"):
            return f"{kind.pyarrow_dtype}{_ARROW}"
        own = name_of(kind.pyarrow_dtype)
        own = "utf8" if own in ("str", OBJECT) else _NULLABLE.get(own or "", own)
        return None if own is None else f"{own}{_ARROW}"
    if isinstance(kind, pd.CategoricalDtype):
        return ORDERED if kind.ordered else CATEGORY
    if isinstance(kind, pd.StringDtype):
        return f"string[{kind.storage}]" if kind.na_value is pd.NA else "str"
    if isinstance(kind, pd.DatetimeTZDtype):
        return f"datetime64[{kind.unit}]"
    if isinstance(kind, pa.DataType):
        return _name_in_arrow(kind)
    name = str(kind)
    return name if name in {OBJECT, "bool", *_INTEGERS, *_FLOATS, *_NULLABLE, *_MOMENTS} else None


def _name_in_arrow(kind: pa.DataType) -> str | None:
    """Return the name of a type of Arrow, each of which may hold missing values: of pandas' types, one that does."""
    if pa.types.is_dictionary(kind):
        return ORDERED if kind.ordered else CATEGORY
    if pa.types.is_timestamp(kind):
        return f"datetime64[{kind.unit}]"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        # Parquet has one type for these, and pandas writes any of them.
        return "str"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_decimal(kind):
        # Programs count the digits of the numbers, so their number is no declaration: the schema has the decimals.
        return _DECIMAL
    name = {pa.float32(): "float32", pa.float64(): "float64"}.get(kind, str(kind))
    name = {own: nullable for nullable, own in _NULLABLE.items() if own in _INTEGERS}.get(name, name)
    return name if name in {*_FLOATS, *_NULLABLE, *_CLOCKS, *_DAYS} else None


def named_types(kinds: Mapping[str, Any], columns: Mapping[str, Modelled]) -> dict[str, str]:
    """Return the types that columns have in a release, by the types of a source, where they are not the usual ones.

    Args:
        kinds: of pandas or Arrow, by the names of columns.
        columns: as the schema declares them.

    Example:
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> age = column_of("age", {"type": "integer", "low": 0, "high": 99})
        >>> named_types({"age": np.dtype("int8")}, {"age": age})
        {'age': 'int8'}
        >>> named_types({"age": np.dtype("int8")}, {"age": column_of("age", age.declared.dump() | {"missing": True})})
        {'age': 'float64'}
    """
    types = {}
    for name, column in columns.items():
        if name not in kinds:
            continue
        kind = kinds[name]
        type_name = _without_values(name_of(kind), column, is_file=isinstance(kind, pa.DataType))
        if type_name is not None and type_name != _usual(column) and holds(type_name, column):
            types[name] = type_name
    return types


def _without_values(name: str | None, column: Modelled, *, is_file: bool) -> str | None:
    """Return a type that no value of the column decides; None for the usual one.

    Args:
        name: of the type in the source.
        is_file: whether it is a file's, each of whose types may hold missing values.
    """
    is_arrow = name is not None and name.endswith(_ARROW) and name not in _TEXTS
    base = name[: -len(_ARROW)] if is_arrow and name else name or ""
    plain = _NULLABLE.get(base, base)
    if is_file and not column.missing:
        base = plain
    asked = f"{base}{_ARROW}" if is_arrow else base
    # R and Spark write whole numbers of 32 bits where no value of a column is text or has decimals.
    is_narrow = plain in _NARROW and not (is_file and plain == "int32")
    if (base in (CATEGORY, ORDERED, _DECIMAL, "date64[ms]") or is_narrow) and holds(asked, column):
        return asked
    kind = _kind_of(column)
    if kind == "date" and base in _MOMENTS and _is_always_parsed(column):
        return "datetime64[s]"
    if is_arrow:
        of_arrow = {"integer": "int64", "number": "float64", "boolean": "bool", "text": "utf8", "date": "date32[day]"}
        own = f"datetime64[{column.arrow.unit}]" if kind == "datetime" else of_arrow.get(kind)
        return None if own is None else f"{own}{_ARROW}"
    if is_file or base in _NULLABLE or base.startswith("string["):
        nullable = {"integer": "Int64", "boolean": "boolean"} if column.missing or not is_file else {}
        nullable |= {} if is_file else {"number": "Float64", "text": str(name_of(pd.StringDtype()))}
        return nullable.get(kind)
    return {"integer": "float64", "boolean": OBJECT}.get(kind) if column.missing else None


def _is_always_parsed(column: Modelled) -> bool:
    """Tell whether a program that parses days reads each that the schema allows: else one would leave all as texts."""
    is_iso = getattr(column.declared, "format", None) is None and set(column.missing_values) <= {""}
    return is_iso and holds("datetime64[ns]", column)


def _kind_of(column: Modelled) -> str:
    """Return integer, number, boolean, text, date, datetime or time."""
    if isinstance(column, Category):
        return {bool: "boolean", str: "text"}.get(column.kind, "integer")
    assert isinstance(column, Numeric)
    return column.type


def _usual(column: Modelled) -> str:
    """Return the type in which pandas has values of a column that is declared without one."""
    kind = column.arrow
    if kind is None or pa.types.is_string(kind):
        return name_of(pd.Series(["a"]).dtype) or OBJECT
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        # With missing values the type would depend on whether a table has one.
        return "" if column.missing else str(kind)
    return f"datetime64[{kind.unit}]" if pa.types.is_timestamp(kind) else "float64" if kind == pa.float64() else OBJECT


def holds(name: str, column: Modelled) -> bool:
    """Tell whether a type holds every value that a column may have.

    Example:
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> age = column_of("age", {"type": "integer", "low": 0, "high": 300})
        >>> holds("int8", age), holds("int16", age), holds("category", age)
        (False, True, False)
    """
    base = name[: -len(_ARROW)] if name.endswith(_ARROW) and name not in _TEXTS else name
    nullable = base != name or base in _NULLABLE
    base = _NULLABLE.get(base, base)
    if column.missing and not nullable and (base == "bool" or base in _INTEGERS):
        return False
    if base == OBJECT:
        return True
    if isinstance(column, Category):
        kind = column.kind
        if base in (CATEGORY, ORDERED):
            return True
        if kind is str:
            return base in _TEXTS
        values = [int(value) for value in column.values]
        return (base == "bool" and kind is bool) or _holds_whole(base, min(values), max(values))
    assert isinstance(column, Numeric)
    kind = column.type
    low, high = _ends(column)
    if kind == "integer":
        return _holds_whole(base, low, high)
    if kind == "number":
        return _holds_numbers(base, column, low, high)
    if kind == "time":
        return base in _CLOCKS
    if kind == "date" and base in _DAYS:
        return True
    seconds = [tick * (86400 // column.scale.unit) for tick in (low, high)]
    return base in _MOMENTS and (
        _MOMENTS[base] != "ns" or (_NANOSECONDS[0] <= seconds[0] and seconds[1] <= _NANOSECONDS[1])
    )


def _ends(column: Numeric) -> tuple[int | float, int | float]:
    ticks = [*column.limits, *column.special_ticks.tolist()]
    return min(ticks), max(ticks)


def _holds_whole(base: str, low: int | float, high: int | float) -> bool:
    if base in _INTEGERS:
        ends = np.iinfo(base)
        return bool(ends.min <= low and high <= ends.max)
    return base in _FLOATS and -_FLOATS[base][1] <= low and high <= _FLOATS[base][1]


def _holds_numbers(base: str, column: Numeric, low: int | float, high: int | float) -> bool:
    unit = column.scale.unit
    if base in _FLOATS:
        return max(-low, high) / unit <= float(np.finfo(base).max)
    # A float64 has no more digits than these.
    return base == _DECIMAL and bool(column.decimals) and max(-low, high) < 2**53


def in_arrow(name: str, column: Modelled, values: pa.Array) -> pa.Array:
    """Return values of a column as Arrow and Parquet have them in a type."""
    base = name[: -len(_ARROW)] if name.endswith(_ARROW) and name not in _TEXTS else name
    base = _NULLABLE.get(base, base)
    if base in (CATEGORY, ORDERED) and isinstance(column, Category):
        choices = pa.array(column.values, column.arrow)
        codes = pc.index_in(values, value_set=choices).cast(pa.int32())
        return pa.DictionaryArray.from_arrays(codes, choices, ordered=base == ORDERED)
    if base in _FLOATS and isinstance(column, Numeric) and column.type == "number":
        return _rounded_within(values, column, _FLOATS[base][0])
    if base in (OBJECT, _DECIMAL) and (decimals := getattr(column, "decimals", None)):
        return values.cast(pa.decimal128(38, decimals))
    if base == OBJECT and pa.types.is_timestamp(values.type):
        # As pandas has moments of Python.
        return values.cast(pa.timestamp("us", values.type.tz))
    if base in _MOMENTS:
        return values.cast(pa.timestamp(_MOMENTS[base], getattr(column.arrow, "tz", None)))
    others: dict[str, pa.DataType] = {"bool": pa.bool_(), "utf8": pa.string(), **_INTEGERS, **_DAYS}
    others |= {own: kind for own, (kind, _) in _FLOATS.items()}
    others |= {"large_string": pa.large_string(), "string_view": pa.string_view()}
    others |= {own: getattr(pa, own[:6])(own[7:-1]) for own in _CLOCKS}
    return values.cast(others[base]) if base in others else values


def _rounded_within(values: pa.Array, column: Numeric, kind: pa.DataType) -> pa.Array:
    """Return numbers as floats, none of which is rounded beyond the bounds."""
    if kind == pa.float64():
        return values
    low, high = (tick / column.scale.unit for tick in _ends(column))
    least, most = np.float32(low), np.float32(high)
    least = np.nextafter(least, np.float32(np.inf)) if least < low else least
    most = np.nextafter(most, np.float32(-np.inf)) if most > high else most
    rounded = pc.max_element_wise(values.cast(kind, safe=False), pa.scalar(least, kind), skip_nulls=False)
    return pc.min_element_wise(rounded, pa.scalar(most, kind), skip_nulls=False)


def in_pandas(name: str, column: Modelled, values: pa.Array) -> pd.Series:
    """Return values of a column as pandas has them in a type."""
    array = in_arrow(name, column, values)
    if name.endswith(_ARROW) and name not in _TEXTS:
        return pd.Series(array, dtype=pd.ArrowDtype(array.type))
    if name in (CATEGORY, ORDERED):
        assert isinstance(column, Category)
        codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return pd.Series(pd.Categorical.from_codes(codes, list(column.values), ordered=name == ORDERED))
    if name in _NULLABLE or name in ("string[python]", "string[pyarrow]"):
        kind = pd.api.types.pandas_dtype(name)
        return pd.Series(kind.__from_arrow__(pa.chunked_array([array])))
    if name == "str" or name in ("large_string", "string_view"):
        return array.cast(pa.string()).to_pandas()
    if name in (OBJECT, _DECIMAL, *_CLOCKS, *_DAYS):
        return pd.Series(array.to_pylist(), dtype=object)
    return array.to_pandas()

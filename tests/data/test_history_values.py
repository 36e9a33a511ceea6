"""Histories by their values: as files hold them, before bins; their codes are those that a run learns from."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from data.test_histories import DAYS, PATIENTS, PERSONS, ROWS, ROWS_OF, _random, _read, _schema

from lightning_dpgen.data.histories.reading import HistoryTables, read_histories
from lightning_dpgen.data.histories.row_table import RowTable
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.histories.values import HistoryValues
from lightning_dpgen.data.tables.schema_file import parse_schema

COARSE = parse_schema("columns: {cost: {type: number, low: 0, high: 99, decimals: 2, bins: 2, missing: true}}")


def test_values_stand_as_in_the_files():
    values = _read(ROWS_OF, PATIENTS, _schema(max_rows=3, keep="last")).values
    (rows,) = values.tables
    assert values.persons.codes.tolist() == [[0], [1], [0]] and rows.counts.tolist() == [3, 1, 0]
    assert rows.times.tolist() == [4, 50, 50, 30] and rows.values.column("ward").tolist() == [1, 0, 1, 0]
    assert rows.values.column("cost").tolist() == [99, 20, 7, 5]
    assert np.array_equal(rows.gaps, [np.nan, 46, 0, np.nan], equal_nan=True)
    visits = pd.DataFrame({"person": ["x", "y"], "cost": [12.34, None]})
    read = read_histories(HistoryTables({"visits": visits}), HistorySchema(None, (RowTable("visits", COARSE, 2),)))
    (rows,) = read.values.tables
    assert rows.times is None and np.array_equal(rows.values.column("cost"), [1234, np.nan], equal_nan=True)


def test_attributes_that_stand_in_each_row_are_those_of_persons():
    rows = ROWS_OF.assign(sex=ROWS_OF.person.map({"x": "F", "y": "M"}))
    read = read_histories(HistoryTables({"visits": rows}), _schema(PERSONS, DAYS, 4))
    assert read.values.persons.codes[:, 0].tolist() == read.encoded.codes[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize("order", [DAYS, None])
def test_values_and_codes_tell_the_same_persons(order):
    """Values that are drawn of codes have these codes again, also those of some persons, and of parts that are joined."""
    schema = _schema(order=order, more=(RowTable("marks", ROWS, 2),))
    encoded = _random(schema, 60)
    values = HistoryValues.drawn(schema, encoded)
    assert np.array_equal(_codes(values), _first(schema, encoded))
    some = np.array([7, 3, 3, 59])
    assert np.array_equal(_codes(values[some]), _first(schema, encoded)[some])
    assert np.array_equal(_codes(HistoryValues.joined([values[:20], values[20:]])), _codes(values))


def _first(schema, encoded):
    """Return attributes, numbers of rows, and the codes of the rows of each person in a text."""
    attributes, tables = schema.parted(encoded)
    told = [[row.tolist() for row in np.split(own.rows, np.cumsum(own.counts)[:-1])] for own in tables]
    return np.array([str(one) for one in zip(attributes.tolist(), *told, strict=True)])


def _codes(values):
    """Return the same of values, whose columns are encoded anew."""
    told = []
    for table, rows in zip(values.schema.tables, values.tables, strict=True):
        batch = pa.record_batch(
            {
                column.name: pa.array(["abc"[code] for code in rows.values.column("ward")])
                if column.name == "ward" else pa.array(rows.values.column("cost"), pa.float64(), from_pandas=True)
                for column in table.rows.columns
            }
        )  # fmt: skip
        codes = table.rows.encode(batch, outside="refuse").codes.astype(int)
        told.append([row.tolist() for row in np.split(codes, np.cumsum(rows.counts)[:-1])])
    return np.array([str(one) for one in zip(values.persons.codes.tolist(), *told, strict=True)])

"""Synthetic records come back from a file of any format as they were: early moments of zones, and rows of nothing."""

import numpy as np
import pyarrow as pa
import pytest

from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.release.rows.output_format import OutputFormat
from lightning_dpgen.release.rows.tables import FORMATS, write_table

# Files of SQLite have several endings.
ENDINGS = [ending for ending in FORMATS if ending not in (".sqlite3", ".db")]
# Zones whose offsets had seconds: to 1883, 1937 and 1972, and one whose offset was negative and below an hour.
ZONES = ("America/New_York", "Europe/Amsterdam", "Africa/Monrovia", "Asia/Kolkata")
COLUMNS = (
    "n: {type: integer, low: 0, high: 9, missing: true}",
    "a: {type: category, values: ['', b], missing: true, missing_values: ['?']}",
    "b: {type: boolean, missing: true, missing_values: [NA]}",
    "d: {type: date, low: 1800-01-01, high: 2030-01-01, missing: true, missing_values: ['-']}",
)


def _read_again(path, schema, numbers, absent):
    """Return the numbers of records (N, columns) that were written and read again; NaN where one is missing."""
    columns = [
        column.restored(number, gone) for column, number, gone in zip(schema.columns, numbers.T, absent.T, strict=True)
    ]
    chunk = pa.record_batch(columns, schema.arrow)
    write_table(path, iter([chunk]), schema.arrow, form=OutputFormat.of(schema))
    codes = read_table(path, schema, values=True).values.rows()
    return np.stack([np.where(codes[column.name][1], np.nan, codes[column.name][0]) for column in schema.columns], axis=1)


@pytest.mark.parametrize("ending", ENDINGS)
def test_moments_of_any_time_come_back(tmp_path, ending):
    bounds = "low: '1850-01-01 00:00', high: '2025-01-01 00:00'"
    columns = [f"{zone[-3:]}: {{type: datetime, resolution: minute, zone: {zone}, {bounds}}}" for zone in ZONES]
    schema = parse_schema(f"columns: {{{', '.join(columns)}}}").with_bins(50)
    # Noon, which no clock skips.
    noons = np.arange(-43_800, 20_000, 997)[:, None].repeat(len(ZONES), axis=1) * 1440 + 720
    again = _read_again(tmp_path / f"a{ending}", schema, noons, np.zeros(noons.shape, bool))
    np.testing.assert_array_equal(again, noons)


@pytest.mark.parametrize("ending", ENDINGS)
def test_rows_of_missing_values_come_back(tmp_path, ending):
    for columns in (COLUMNS, COLUMNS[::-1], *zip(COLUMNS, strict=True)):
        _check_missing_rows(tmp_path / f"a{columns[0][0]}{len(columns)}{ending}", columns)


def _check_missing_rows(path, columns):
    """Check that four records come back, three of which have no value."""
    schema = parse_schema(f"columns: {{{', '.join(columns)}}}").with_bins(50)
    numbers, absent = np.ones((4, len(columns)), np.int64), np.zeros((4, len(columns)), bool)
    absent[[0, 2, 3]] = True
    # The empty text, which a category may be.
    numbers[1] = 0
    again = _read_again(path, schema, numbers, absent)
    np.testing.assert_array_equal(again, np.where(absent, np.nan, numbers))

"""Messages about tables of very many columns, values, tables and files stay short: lists of them are cut, with a count."""

import sqlite3
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lightning_dpgen.data.baskets.reading import read_baskets
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.conditions import Clause, parse_condition
from lightning_dpgen.data.discovery.value_grid import values_of
from lightning_dpgen.data.files.database import DatabaseQuery
from lightning_dpgen.data.files.rows import rows_of
from lightning_dpgen.data.series.reading import read_series
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.runs import table, warnings

MANY = 2000
NAMES = [f"column_{i}_of_a_long_name" for i in range(MANY)]
LONGEST = 450
ONE = "columns: {a: {type: boolean}}"


COLUMNS = [column_of(name, {"type": "integer", "low": 0, "high": 9, "bins": 10}) for name in NAMES]
SCHEMA = TableSchema(tuple(COLUMNS))
FRAME = pd.DataFrame(np.ones((2, MANY), int), columns=NAMES)
FEW = NAMES[:300]
SUM = " + ".join(NAMES[2:9])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide")
    FRAME.to_csv(folder / "a.csv", index=False)
    FRAME[FEW].to_json(folder / "a.jsonl", orient="records", lines=True)
    with sqlite3.connect(folder / "a.db") as connection:
        for name in NAMES[:300]:
            connection.execute(f"create table {name} (a int)")
        connection.execute(f"create table wide ({', '.join(f'{name} int' for name in NAMES[:1999])})")
    (folder / "parts").mkdir()
    for name, frame in (("a", FRAME), ("b", FRAME[NAMES[:5]])):
        frame.to_parquet(folder / "parts" / f"{name}.parquet")
    return folder


def _schema(**about):
    return TableSchema(COLUMNS[: len(FEW)], **about)


def _values_of_categories(count):
    frame = pd.DataFrame({"a": ["x"]})
    return read_table(frame, parse_schema(f"columns: {{a: {{type: category, values: [{', '.join(NAMES[:count])}]}}}}"))


MISTAKES = {
    "columns that lack": lambda files: read_table(FRAME[NAMES[:3]], SCHEMA),
    "columns of other names": lambda files: read_table(FRAME[FEW].rename(columns=lambda name: f"{name}_x"), _schema()),
    "no column of persons": lambda files: read_table(FRAME, SCHEMA, person="who"),
    "no column of a condition": lambda files: SCHEMA.condition(Clause("who", "=", ("1",))),
    "no column in the text of a condition": lambda files: parse_condition("who = 3", NAMES),
    "values of a condition": lambda files: SCHEMA.condition(Clause(NAMES[0], "!=", tuple(map(str, range(10))))),
    "no column of a constraint": lambda files: _schema(constraints=["who <= 3"]),
    "a term of a sum": lambda files: _schema(constraints=[f"{NAMES[0]} = {' + '.join(NAMES[2:300])} + who"]),
    "a sum that no row keeps": lambda files: _schema(constraints=[f"{NAMES[0]} = {SUM} + 100"]),
    "a sum that a row breaks": lambda files: read_table(FRAME[FEW], _schema(constraints=[f"{NAMES[0]} = {SUM}"])),
    "no column of a mapping": lambda files: _schema(constraints=[{"column": "who", "of": NAMES[0], "mapping": {"1": "2"}}]),
    "no label": lambda files: _schema(label="who"),
    "lines to fill in": lambda files: parse_schema("columns:\n" + "".join(f"  {n}:\n    low: ???\n" for n in NAMES)),
    "one of many values": lambda files: _values_of_categories(MANY),
    "one of twenty values": lambda files: _values_of_categories(20),
    "no column of values": lambda files: TableValues.of(next(rows_of(FRAME[FEW]).batches(FEW)), _schema()).column("who"),
    "text": lambda files: read_table(files / "a.csv", parse_schema(ONE)),
    "JSON lines": lambda files: read_table(files / "a.jsonl", parse_schema(ONE)),
    "one of many tables": lambda files: rows_of(files / "a.db"),
    "no such table": lambda files: rows_of(files / "a.db", table="who"),
    "no table of a query": lambda files: rows_of(DatabaseQuery(f"sqlite:///{files}/a.db", "select a from who")),
    "no column of a query": lambda files: rows_of(DatabaseQuery(f"sqlite:///{files}/a.db", "select who from wide")),
    "files of other columns": lambda files: rows_of(files / "parts"),
    "columns of readings": lambda files: read_series(files / "a.csv", SeriesSchema(length=5, low=0, high=1)),
    "columns of baskets": lambda files: read_baskets(files / "a.csv", BasketSchema(("tea", "milk"), 2), form="rows"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_wide_table_is_told_shortly(files, mistake):
    with pytest.raises(ValueError) as told:
        mistake(files)
    text = str(told.value).replace(str(files), "")
    assert len(text) < LONGEST and "\n" not in text, text
    assert text.count("of_a_long_name") <= 24


def test_noises_of_very_many_columns_are_told_shortly():
    noises = {values_of(name, level): 50.0 for name in NAMES for level in range(2)}
    noises |= {f"bounds of {name}": 3.0 for name in NAMES}
    access = SimpleNamespace(multipliers=noises)
    plan = SimpleNamespace(stages=[SimpleNamespace(access=access)], max_rows=1, private=True)
    warned = warnings._values_warning(SimpleNamespace(n=1000, parts={}), plan)
    assert NAMES[0] in warned and "more)" in warned and len(warned) < LONGEST
    assert len(table._noises(noises)) < 200

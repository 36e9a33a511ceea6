"""Kinds of files by the ends of their names, the libraries that these need, and the table that is read of several."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.text import PACKED, bare_name
from lightning_dpgen.data.names import quote
from lightning_dpgen.sampling.errors import BadRecords

TEXT = (".csv", ".tsv", ".data")
JSON_LINES = (".jsonl", ".ndjson")
PARQUET, WORKBOOK = ".parquet", ".xlsx"
DATABASES = (".sqlite", ".sqlite3", ".duckdb", ".db")
SQLITE = tuple(ending for ending in DATABASES if ending != ".duckdb")
KNOWN = (
    f"{', '.join((*TEXT, *JSON_LINES))} (or these with {', '.join(PACKED)}), {PARQUET} (also a folder of such files), "
    f"{WORKBOOK}, {', '.join(DATABASES)}"
)
_PANDAS = "python -c \"import pandas; pandas.{}.to_parquet('NEW.parquet')\""
# Advice about other kinds, by the end of the name.
_CONVERT = {
    (".xls", ".xlsb", ".xlsm", ".ods", ".numbers"): "open it in its program and save it as .xlsx or .csv",
    (".sav", ".zsav", ".por"): f"save it as Parquet ({_PANDAS.format('read_spss({name!r})')} with pyreadstat)",
    (".dta",): f"save it as Parquet ({_PANDAS.format('read_stata({name!r})')})",
    (".sas7bdat", ".xpt"): f"save it as Parquet ({_PANDAS.format('read_sas({name!r})')})",
    (".feather", ".arrow", ".ipc"): f"save it as Parquet ({_PANDAS.format('read_feather({name!r})')})",
    (".orc",): f"save it as Parquet ({_PANDAS.format('read_orc({name!r})')})",
    (".h5", ".hdf5", ".hdf"): f"save it as Parquet ({_PANDAS.format('read_hdf({name!r})')})",
    (".json",): "write one object a line (jq -c '.[]' {name} > NEW.jsonl)",
    (".xml", ".html"): "save it as .csv by the program that wrote it",
    (".zip", ".7z", ".tar", ".xz", ".rar", ".tgz"): "unpack it, or pack the single file by gzip, bzip2 or zstd",
    (".rds", ".rda", ".rdata"): "save it as Parquet in R (arrow::write_parquet(table, 'NEW.parquet'))",
    (".pkl", ".pickle"): "save it as Parquet (frame.to_parquet('NEW.parquet')): a pickle is a program, and none is run",
    (".mdb", ".accdb"): "export the table as .csv",
    (".txt", ".dat", ".asc"): "rename it to .csv or .tsv if its fields stand between separators, which the schema names",
}


def is_known(path: Path) -> bool:
    """Tell whether a file has the name of a kind that is read as a table.

    Example:
        >>> is_known(Path("a.CSV.zst")), is_known(Path("a.xlsx")), is_known(Path("a.xls"))
        (True, True, False)
    """
    return bare_name(path).endswith((*TEXT, *JSON_LINES)) or path.suffix.lower() in (PARQUET, WORKBOOK, *DATABASES)


def is_database(path: str | Path) -> bool:
    """Tell whether a file has the name of a database.

    Example:
        >>> is_database("a.sqlite"), is_database("a.csv")
        (True, False)
    """
    return Path(path).suffix.lower() in DATABASES


def unknown(path: Path) -> str:
    """Return what to say of a file of another kind.

    Example:
        >>> unknown(Path("a.ods"))
        'a.ods is not read: open it in its program and save it as .xlsx or .csv'
    """
    for ends, advice in _CONVERT.items():
        if path.name.lower().endswith(ends):
            return f"{path} is not read: {advice.format(name=path.name)}"
    return f"{path}: expected a name that ends in {KNOWN}"


def needs(library: str, extra: str, what: str) -> None:
    """Raise BadRecords if a library is not installed.

    Args:
        library: by the name under which Python imports it.
        extra: of this package, which installs it.
        what: needs it, such as a file.

    Example:
        >>> needs("no_such_library", "excel", "a.xlsx")
        Traceback (most recent call last):
        lightning_dpgen.sampling.errors.BadRecords: a.xlsx needs no_such_library: pip install 'lightning_dpgen[excel]'
    """
    if find_spec(library) is None:
        raise BadRecords(f"{what} needs {library}: pip install 'lightning_dpgen[{extra}]'")


def the_table(path: Path, name: str | None, tables: Sequence[str], views: Sequence[str] = ()) -> str:
    """Return the name of the table that is read: the one that is named, or the only one.

    Raises:
        BadRecords: if there is no such table, or it is a view, whose rows may depend on several records.

    Example:
        >>> the_table(Path("a.db"), None, ["visits"])
        'visits'
        >>> the_table(Path("a.db"), "visit", ["visits", "wards"])
        Traceback (most recent call last):
        lightning_dpgen.sampling.errors.BadRecords: a.db has no table 'visit': it has visits, wards
    """
    there = listed(tables) if tables else "none"
    if name is None:
        if len(tables) != 1:
            raise BadRecords(f"{path} has {len(tables)} tables{name_one(tables)}")
        return tables[0]
    if name in views:
        raise BadRecords(
            f"{path}: {quote(name)} is a view, whose rows may depend on several records: make a table of it, or read "
            "it by a query (of a URL such as sqlite:///FILE) and declare that its rows are independent"
        )
    if name not in tables:
        raise BadRecords(f"{path} has no table {quote(name)}: it has {there}")
    return name


def name_one(names: Sequence[str]) -> str:
    """Return the end of a message that several tables, or sheets, may be meant: how to name one, and their names.

    Example:
        >>> name_one(["visits", "wards"])
        ': name one, as in table: visits in its schema (dpgen schema --table visits drafts it): it has visits, wards'
    """
    if not names:
        return ": expected one with records"
    example = f"table: {names[0]} in its schema (dpgen schema --table {shlex.quote(names[0])} drafts it)"
    return f": name one, as in {example}: it has {listed(names)}"


def quoted(name: str) -> str:
    """Return a name as SQL writes it.

    Example:
        >>> print(quoted('a "b"'))
        "a ""b\"""
    """
    return '"' + name.replace('"', '""') + '"'

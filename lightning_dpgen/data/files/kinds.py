"""Kinds of files by the ends of their names, and how a file of another kind becomes one of these."""

from __future__ import annotations

from pathlib import Path

from lightning_dpgen.data.files.text import PACKED, bare_name

TEXT = (".csv", ".tsv", ".data")
JSON_LINES = (".jsonl", ".ndjson")
PARQUET, WORKBOOK = ".parquet", ".xlsx"
DATABASES = (".sqlite", ".sqlite3", ".duckdb", ".db")
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

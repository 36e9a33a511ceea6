"""The table of a database that a schema names."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.names import shown
from lightning_dpgen.sampling.errors import BadRecords


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
            f"{path}: {shown(name)} is a view, whose rows may depend on several records: make a table of it, or read "
            "it by a query (of a URL such as sqlite:///FILE) and declare that its rows are independent"
        )
    if name not in tables:
        raise BadRecords(f"{path} has no table {shown(name)}: it has {there}")
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

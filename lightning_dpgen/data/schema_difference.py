"""The comparison of two descriptions of a record: whether a network of one can learn from records of the other."""

from __future__ import annotations

import json
from typing import Any

from lightning_dpgen.data.names import shown
from lightning_dpgen.data.schema import Schema


def first_difference(expected: Schema, found: Schema) -> str | None:
    """Say the first part in which two descriptions differ, in words; return None if they are of the same records.

    Notes on columns, how files have the records, and the types in which frames have them, make no difference.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> first_difference(ImageSchema(2, 2, levels=1), ImageSchema(2, 3, levels=1))
        'width is 3 there and 2 here'
    """
    ours, theirs = _parts(expected), _parts(found)
    for name in ours | theirs:
        here, there = (shown(parts[name]) if name in parts else "not described" for parts in (ours, theirs))
        if ours.get(name) != theirs.get(name):
            return f"{name} is {there} there and {here} here"
    return None


def _parts(schema: Schema) -> dict[str, Any]:
    """Return a description by parts, as JSON gives them back; those of each column of a table have names of their own."""
    parts = json.loads(json.dumps(schema.as_json()))
    parts.pop("written", None)
    parts.pop("types", None)
    columns = parts.pop("columns", None)
    if columns is None:
        return parts
    # The order of columns is that of the numbers of a record.
    parts["the order of columns"] = [column["name"] for column in columns]
    for column in columns:
        name = shown(column.pop("name"))
        parts |= {f"{key} of column {name}": value for key, value in column.items() if key != "description"}
    return parts

"""The kinds of columns by the names that schemas have for them."""

from __future__ import annotations

import dataclasses
from typing import Any

from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import BadSchema, Column, shortened
from lightning_dpgen.data.tables.numeric import TYPES, Numeric
from lightning_dpgen.data.tables.open_columns import PRIVATE, open_column
from lightning_dpgen.data.tables.relative import DISTANCE, RELATIVE_TO, Relative
from lightning_dpgen.data.tables.unmodelled import Dropped, Fake
from lightning_dpgen.privacy.nearest_word import nearest, suggest

KINDS: dict[str, type[Column]] = {
    "category": Category,
    "boolean": Category,
    **dict.fromkeys(TYPES, Numeric),
    "drop": Dropped,
    "fake": Fake,
}


def column_of(name: str, fields: Any) -> Column:
    """Return the column that a schema describes by ``type``, and by what is declared of that type, as `Column.fields` does.

    Raises:
        BadSchema: if that makes no sense, naming column and key.

    Example:
        >>> column_of("sex", {"type": "category", "values": ["F", "M"]}).choices
        2
        >>> column_of("age", {"type": "integer", "low": 0, "hihg": 9})
        Traceback (most recent call last):
        lightning_dpgen.data.tables.column.BadSchema: column 'age': hihg: unknown here: did you mean 'high'?
    """
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        raise BadSchema(f"{shortened(fields)}: expected keys and values, such as type: integer", name)
    if fields.get(RELATIVE_TO) is not None and PRIVATE in (fields.get("low"), fields.get("high")):
        raise BadSchema("expected bounds that are declared, and not found privately", name, RELATIVE_TO)
    if found := open_column(name, fields):
        return found
    fields = dict(fields)
    kind = fields.pop("type", None)
    if kind is None:
        near = nearest("type", fields)
        hint = f"; did you mean type in place of {shortened(near)}?" if near else ""
        raise BadSchema(f"must be given: expected one of {', '.join(KINDS)}{hint}", name, "type")
    if not isinstance(kind, str) or kind not in KINDS:
        hint = suggest(kind, KINDS, "'{}'", shortened=True)
        raise BadSchema(f"{shortened(kind)}: expected one of {', '.join(KINDS)}{hint}", name, "type")
    known = {field.name for field in dataclasses.fields(KINDS[kind])} - {"name", "type"}
    given: dict[str, Any] = {"type": kind} if KINDS[kind] is Numeric else {}
    known |= {RELATIVE_TO, DISTANCE} if KINDS[kind] is Numeric else set()
    if kind == "boolean":
        known -= {"values", "other", "ignore_case", "counts", "counts_noise"}
        given = {"values": (False, True)}
    for key in fields:
        if key not in known:
            if key.isdecimal() and fields[key] is None:
                raise BadSchema("is the rest of a value with a comma: expected a decimal point, as in 1.5", name, key)
            near = nearest(key, sorted(known), shortened=True)
            hint = f"did you mean {near!r}?" if near else f"expected one of {', '.join(sorted(known))}"
            raise BadSchema(f"unknown here: {hint}", name, key)
    # `bins: null` and the like are the same as no key.
    given |= {key: value for key, value in fields.items() if value is not None}
    if RELATIVE_TO in given:
        return Relative.of(name, given)
    if DISTANCE in given:
        raise BadSchema("has a meaning only with relative_to: the name of another column", name, DISTANCE)
    return KINDS[kind](name=name, **given)

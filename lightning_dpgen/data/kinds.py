"""The registry of the kinds of records: each is one object, which says all in which its records differ from others.

The objects stand in `lightning_dpgen.kinds`, above the rooms that ask for them, and are imported when a kind is first asked
for. No room but theirs names the class of a kind's schema.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from lightning_dpgen.data.schema import Schema

# A `kinds.kind.Kind`, whose module is above this one.
Kind = Any
_OURS = ("tables", "baskets", "series", "pictures")


@cache
def kinds() -> dict[str, Kind]:
    """Return all kinds by their names."""
    ours = (importlib.import_module(f"lightning_dpgen.kinds.{name}").KIND for name in _OURS)
    return {kind.name: kind for kind in ours}


def register_kind(kind: Kind) -> None:
    """Add a kind of records, by which its records are learned and its releases read from then on.

    Raises:
        ValueError: for a name that another kind has.
    """
    other = kinds().setdefault(kind.name, kind)
    if type(other) is not type(kind):
        raise ValueError(f"kind {kind.name!r}: is there already, as {type(other).__name__}: take another name")


def kind_named(name: Any) -> Kind:
    """Return a kind by its name.

    Raises:
        ValueError: for an unknown one.

    Example:
        >>> kind_named("series").word
        'series'
    """
    known = kinds()
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"schema of kind {str(name)[:60]!r}: expected one of {', '.join(sorted(known))}")
    return known[name]


def kind_of(schema: Schema) -> Kind:
    """Return the kind of the records that a schema describes."""
    return kind_named(schema.kind)

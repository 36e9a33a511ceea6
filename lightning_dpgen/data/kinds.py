"""The registry of the kinds of records: each is one object, which says all in which its records differ from others.

The objects stand in `lightning_dpgen.kinds`, above the rooms that ask for them, and are imported when a kind is first asked
for. No room but theirs names the class of a kind's schema.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from lightning_dpgen.data.schema import Schema

# A `kinds.kind.Kind`, whose module is above this one.
Kind = Any
_OURS = ("tables", "baskets", "series", "pictures")
# The group of entry points of packages that bring a kind: each names a `Kind`.
ENTRY_POINTS = "lightning_dpgen.kinds"


@cache
def kinds() -> dict[str, Kind]:
    """Return all kinds by their names: ours, and those of installed packages with an entry point for them."""
    ours = [importlib.import_module(f"lightning_dpgen.kinds.{name}").KIND for name in _OURS]
    theirs = [entry.load() for entry in entry_points(group=ENTRY_POINTS)]
    # A name of ours stays ours.
    return {kind.name: kind for kind in (*theirs, *ours)}


def register_kind(kind: Kind) -> None:
    """Add a kind of records, by which its records are learned and its releases read in this process from then on.

    A package names its kinds by entry points (`ENTRY_POINTS`), so that the program knows them.

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
        raise ValueError(
            f"schema of kind {str(name)[:60]!r}: expected one of {', '.join(sorted(known))}, or the kind of an installed "
            "package"
        )
    return known[name]


def kind_of(schema: Schema) -> Kind:
    """Return the kind of the records that a schema describes."""
    return kind_named(schema.kind)

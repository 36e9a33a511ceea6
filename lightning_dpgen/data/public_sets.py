"""Public sets of records that are known by name, in files or simulated: where the knowledge of each is.

A further set is a line of `_MODULES`, a function ``make_NAME`` in that module, and ``conf/data/NAME.yaml``. Nothing that
is slow to import is needed for the names, which the settings list.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_dpgen.data.reading import Reading
    from lightning_dpgen.data.schema import Schema

# The kind of the records of each set, and the module of this room that makes it.
_MODULES = {
    "digits": ("images", "sets_in_files"),
    "mnist": ("images", "sets_in_files"),
    "fashion_mnist": ("images", "sets_in_files"),
    "adult": ("table", "sets_in_files"),
    "mushroom": ("table", "sets_in_files"),
    "retail": ("baskets", "sets_in_files"),
    "bms_webview1": ("baskets", "sets_in_files"),
    "uk_demand": ("series", "sets_in_files"),
    "powercons": ("series", "sets_in_files"),
    "ausgrid": ("series", "sets_in_files"),
    "sp500": ("series", "sets_in_files"),
    "six_gaussians": ("table", "simulated.points"),
    "pinwheel": ("table", "simulated.points"),
    "transit": ("baskets", "simulated.baskets"),
    "cdr": ("baskets", "simulated.baskets"),
    "meters": ("series", "simulated.meters"),
}
NAMES = tuple(_MODULES)
# Said of simulated records wherever a set of them is named.
NO_PEOPLE = "simulated records (no people)"
# Draws of simulated records that settings may ask for. The records held out of a draw are a later one, which none asks for.
DRAWS = 5_000


@dataclass(frozen=True)
class PublicSet:
    """A set known by name.

    Args:
        schema: public knowledge of its records.
        n: declared number of records for training; of simulated ones, how many are drawn if nothing else is asked for.
        read: records for training, or held out, from their files, or from what was drawn, by a schema.
        files: for training, as places under ``$DPGEN_DATA``.
        held_out: those of the held-out records, where they have files of their own.
        draw: of a simulated set: draws so many records by a public number, independent of those of any other number.
        person: the column of persons, where a person has several records.
    """

    schema: Schema
    n: int
    read: Callable[[Any, Any, bool], Reading]
    files: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    draw: Callable[[int, int], Any] | None = None
    person: str | None = None


def names_of(kind: str, *, simulated: bool) -> tuple[str, ...]:
    """Return the names of the sets of a kind of records, in files or simulated.

    Example:
        >>> names_of("table", simulated=True)
        ('six_gaussians', 'pinwheel')
    """
    return tuple(name for name, (of, _) in _MODULES.items() if of == kind and is_simulated(name) == simulated)


def is_simulated(name: str) -> bool:
    """Return whether a name is that of a set that is simulated from a public seed, so that no person is behind a record.

    Example:
        >>> is_simulated("meters"), is_simulated("adult"), is_simulated("my_meters")
        (True, False, False)
    """
    return name in _MODULES and _MODULES[name][1].startswith("simulated.")


@cache
def public_set(name: str) -> PublicSet:
    """Return what is publicly known of a set; no record is read.

    Raises:
        ValueError: for an unknown name.

    Example:
        >>> public_set("powercons").schema.layout.units, public_set("powercons").n
        (144, 180)
    """
    if name not in _MODULES:
        raise ValueError(f"name={name}: expected one of {', '.join(NAMES)}")
    module = import_module(f"{__package__}.{_MODULES[name][1]}")
    return getattr(module, f"make_{name}")()


def find_public_set(name: str, *, held_out: bool = False) -> list[Path]:
    """Return the files of a set, not read; arguments as for `load_public_set`.

    Raises:
        MissingData: if one is not there; says where it was looked for.
        ValueError: for an unknown name.
    """
    # It imports what reads files, which a release that names a set does not need.
    from lightning_dpgen.data.files.text import MissingData

    known = public_set(name)
    wanted, root = (held_out and known.held_out) or known.files, os.environ.get("DPGEN_DATA")
    if wanted and not root:
        raise MissingData(
            f"{name} needs its files: set the environment variable DPGEN_DATA to the folder that holds {wanted[0]}"
        )
    files = [Path(root or "") / file for file in wanted]
    for file in files:
        if not file.is_file():
            raise MissingData(f"no file {file} (looked for under DPGEN_DATA={root})")
    return files


def load_public_set(
    name: str, schema: Schema | None = None, *, held_out: bool = False, n: int | None = None, draw: int = 0
) -> Reading:
    """Load the records of a set.

    Args:
        name: one of `NAMES`.
        schema: their encoding; None takes the set's own.
        held_out: the records that no training sees; of a simulated set, a draw that no setting asks for.
        n, draw: of a simulated set: how many records, and which of its independent draws.

    Raises:
        MissingData: if a file is not there; says where it was looked for.
        BadRecords: if it is another file than the one known by this name.

    Example:
        >>> len(load_public_set("pinwheel", n=12, draw=1).encoded)
        12
    """
    known = public_set(name)
    if known.draw is None:
        source: Any = find_public_set(name, held_out=held_out)
    else:
        source = known.draw(n or known.n, draw + DRAWS * held_out)
    return known.read(source, schema or known.schema, held_out)

"""The number of records that a private search takes to find anything: public, and said before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.discovery.bounds_and_keys import bounds_of, bounds_threshold, keys_of
from lightning_dpgen.data.schema import kind_named
from lightning_dpgen.data.tables.description import BOUNDS, KEYS
from lightning_dpgen.data.tables.search import Part
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.mechanisms import key_threshold
from lightning_dpgen.specs.data import DataSpec

# A value that so large a share of the records must hold is one of few.
_MUCH = 0.01
# The fate of what is rarer.
_RARER = {
    "values": "rarer values become other",
    BOUNDS: "numbers beyond bounds are clamped",
    "items": "rarer items are left out",
}


def needed_to_find(parts: Mapping[str, Part], access: Access) -> dict[str, float]:
    """Return by how many records, or persons, each value or bound has to be held, to be found more often than not.

    Args:
        parts: what is to be found, by name; only bounds and lists of values have a threshold.
        access: the first pass, as it is planned.
    """
    needed = {}
    for name, part in parts.items():
        if part.find == BOUNDS:
            needed[name] = bounds_threshold(access.multipliers[bounds_of(name)], part.most, whole=part.whole)
        elif part.find == KEYS:
            noise = keys_of(name)
            needed[name] = key_threshold(access.multipliers[noise], part.most, access.deltas[noise])
    return needed


def check_findable(data: DataSpec, parts: Mapping[str, Part], access: Access) -> None:
    """Refuse a search that would find nothing among the declared number of records, before anything is spent.

    Raises:
        BudgetTooSmall: naming the column.
    """
    if data.n is None or data.n_share is not None:
        return
    for name, needed in needed_to_find(parts, access).items():
        if needed > data.n:
            word = found_of(data, parts[name])
            raise BudgetTooSmall(
                f"{name}: no {word} can be found with data.n={data.n}: {_sought(word, name)} takes about {needed:,.0f} "
                f"{_holders(data)} to stand out from the noise that data.discovery_share={data.share_of_discovery:g} buys; "
                f"declare the {word}, or raise data.discovery_share or privacy.epsilon"
            )


def findable_warning(data: DataSpec, n: int, parts: Mapping[str, Part], access: Access) -> str | None:
    """Return a warning of searches that find only what many of n records have; None where few are enough."""
    needed = {name: own for name, own in needed_to_find(parts, access).items() if own > _MUCH * n}
    if not needed:
        return None
    words = {name: found_of(data, parts[name]) for name in needed}
    told = listed(f"{_sought(words[name], name)} about {own:,.0f}" for name, own in needed.items())
    sorts = list(dict.fromkeys(words.values()))
    return (
        f"what is found privately takes many of {n:,} records: {told} {_holders(data)}; "
        f"{', and '.join(_RARER[word] for word in sorts)}; declare {' and '.join(sorts)}, raise data.discovery_share, or "
        "raise epsilon"
    )


def found_of(data: DataSpec, part: Part) -> str:
    """Return in a word what a search finds, and what a curator may declare in its place."""
    if part.find == BOUNDS:
        return BOUNDS
    return "values" if data.kind is None else kind_named(data.kind).discoverable


def _sought(word: str, name: str) -> str:
    return {BOUNDS: f"a bound of {name}", "items": "an item", "values": f"a value of {name}"}[word]


def _holders(data: DataSpec) -> str:
    return "records" if data.column_of_persons is None else "persons"

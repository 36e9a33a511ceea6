"""The first pass, which buys what is not declared: its stage, and how many records a find takes; all of it public."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.discovery.bounds_and_keys import bounds_of, bounds_threshold, discovery_stage, keys_of
from lightning_dpgen.data.schema import kind_named
from lightning_dpgen.data.tables.description import BOUNDS, KEYS, VALUES
from lightning_dpgen.data.tables.search import Part
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.mechanisms import key_threshold
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.planning.calibration import StageSpec, make_first_plan
from lightning_dpgen.specs.data import DataSpec
from lightning_dpgen.specs.defaults import MOST_STEPS
from lightning_dpgen.specs.model import MeasuredSpec
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.usage_error import UsageError

# The stage that buys the number of records and what else is not declared.
FIRST_PASS = "first pass"
# A value that so large a share of the records must hold is one of few.
_MUCH = 0.01
# The fate of what is rarer.
_RARER = {
    "values": "rarer values become other",
    BOUNDS: "numbers beyond bounds are clamped",
    "items": "rarer items are left out",
}


def has_first_pass(spec: RunSpec, parts: Mapping[str, Part]) -> bool:
    """Return True where something is bought before the rest is planned."""
    return spec.data.n_share is not None or bool(parts)


def share_for_values(spec: RunSpec, parts: Mapping[str, Part]) -> float:
    """Return the share of the budget for distributions of columns, where there are any to find."""
    return (spec.data.share_of_values or 0.0) if any(part.levels for part in parts.values()) else 0.0


def first_stage(spec: RunSpec, parts: Mapping[str, Part]) -> StageSpec:
    """Return the access that buys what is not declared: one pass, with its share of the budget's mu^2.

    Raises:
        UsageError: if it cannot be bought.
        BudgetTooSmall: if it would find nothing.
    """
    data, privacy = spec.data, spec.privacy
    shares = {
        "n_share": (data.n_share, data.n is None, "a noisy count of the records"),
        "discovery_share": (
            data.share_of_discovery,
            any(part.find != VALUES for part in parts.values()),
            "what is found privately",
        ),
    }
    for name, (share, needed, use) in shares.items():
        if needed and share is None:
            missing = "data.n=null" if name == "n_share" else "not all is declared"
            raise UsageError(
                f"{missing}: declare it, or give the share of the budget that {use} may use, as in data.{name}=0.01"
            )
    if privacy.private and privacy.epsilon is None:
        raise UsageError(
            "privacy.epsilon=null: what is not declared is bought with a share of it, so it must be given then"
        )
    stage = discovery_stage(
        epsilon=privacy.target,
        delta=privacy.delta,
        share=data.share_of_discovery or 0.0,
        count_share=data.n_share or 0.0,
        bounds={name: part.most for name, part in parts.items() if part.find == BOUNDS},
        keys={name: part.most for name, part in parts.items() if part.find == KEYS},
        values={name: part.levels for name, part in parts.items() if part.levels},
        values_share=share_for_values(spec, parts),
    )
    if stage.noise is not None:
        check_findable(data, parts, stage.access(stage.noise))
    return replace(stage, stage=FIRST_PASS)


def reference_plan(spec: RunSpec, stage: StageSpec) -> Plan:
    """Return the plan of a first pass, and of a reference below which the rest is planned from what it finds.

    Raises:
        BudgetTooSmall: if the first pass leaves nothing.
    """
    model, privacy = spec.model, spec.privacy
    steps = None
    if getattr(model, "noise", None) is None:
        steps = getattr(model, "steps", None) or MOST_STEPS
    return make_first_plan(
        stage,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        max_rows=spec.data.most_rows,
        # Where nothing is trained, full passes alone follow.
        sampled=0 if isinstance(model, MeasuredSpec) else steps,
    )


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
            word = describe_find(data, parts[name])
            raise BudgetTooSmall(
                f"{name}: no {word} can be found with data.n={data.n}: {_target(word, name)} takes about {needed:,.0f} "
                f"{_holders(data)} to stand out from the noise that data.discovery_share={data.share_of_discovery:g} buys; "
                f"declare the {word}, or raise data.discovery_share or privacy.epsilon"
            )


def findable_warning(data: DataSpec, n: int, parts: Mapping[str, Part], access: Access) -> str | None:
    """Return a warning of searches that find only what many of n records have; None where few are enough."""
    needed = {name: count for name, count in needed_to_find(parts, access).items() if count > _MUCH * n}
    if not needed:
        return None
    words = {name: describe_find(data, parts[name]) for name in needed}
    counts = listed(f"{_target(words[name], name)} about {count:,.0f}" for name, count in needed.items())
    sorts = list(dict.fromkeys(words.values()))
    return (
        f"what is found privately takes many of {n:,} records: {counts} {_holders(data)}; "
        f"{', and '.join(_RARER[word] for word in sorts)}; declare {' and '.join(sorts)}, raise data.discovery_share, or "
        "raise epsilon"
    )


def describe_find(data: DataSpec, part: Part) -> str:
    """Return in a word what a search finds, and what a curator may declare in its place."""
    if part.find == BOUNDS:
        return BOUNDS
    return "values" if data.kind is None else kind_named(data.kind).discoverable


def _target(word: str, name: str) -> str:
    return {BOUNDS: f"a bound of {name}", "items": "an item", "values": f"a value of {name}"}[word]


def _holders(data: DataSpec) -> str:
    return "records" if data.column_of_persons is None else "persons"

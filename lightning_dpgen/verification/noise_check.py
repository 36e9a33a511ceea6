"""The check of the noises that a certificate states: units, bounds and sizes agree with each other and with the event.

No unit or bound is computed again here: they follow from settings and from earlier results, in ways that the release does
not hold. Projected rows are an exception (`verify`). Names and mechanisms are held against the settings by `outline_check`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from lightning_dpgen.privacy.access import GAUSSIAN, PURE, dominating_laplace
from lightning_dpgen.privacy.drawn_noise import CORRELATED, MECHANISMS, read_unit
from lightning_dpgen.privacy.plan import TRAINING
from lightning_dpgen.release.stated_noises import MOST_ALIKE, NOT_DRAWN, RELATIVE_GRID

# Relative tolerance of numbers that are products of a few others, or a root of a sum of their squares.
_ROUNDING = 1e-9
# The events of one noise, as pairs of their kind and their multiplier.
_CORRELATED = "correlated Gaussian"
_LEAVES = {"GaussianDpEvent": "Gaussian", "LaplaceDpEvent": "Laplace", "CorrelatedGaussianDpEvent": _CORRELATED}
Leaf = tuple[str, float]


def check_noises(certificate: dict[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Check the noises of a certificate whose shape was checked.

    Returns:
        What is wrong, what was confirmed, and what is worth knowing, a line each.
    """
    if not certificate["private"] or certificate["epsilon"] is None:
        return [], [], []
    sums, others = certificate["noise"]["sums"], certificate["noise"]["others"]
    records = {1, certificate["declared"].get("max_rows", 1)}
    problems = [*_sums(sums, certificate["relation"], records), *_others(others), *_unlisted(sums)]
    stages = {stage["name"]: stage["event"] for stage in certificate["stages"]}
    strangers = {entry["stage"][:80] for entry in sums + others} - {name[:80] for name in stages}
    problems += [f"noise of stage {name!r}: there is no such stage" for name in sorted(strangers)]
    problems += _bought(certificate["declared"], stages, sums + others)
    chosen = []
    for name, event in stages.items():
        entries = [entry for entry in sums + others if entry["stage"] == name]
        if event["type"] == "RepeatAndSelectDpEvent":
            chosen.append(name)
            problems += [f"noise of stage {name!r}: a selection draws the number of its trials alone"] if entries else []
        else:
            problems += _stage(name, event, entries, pure=certificate["delta"] == 0.0)
    checks, notes = [], []
    if not problems and sums:
        count = sum(len(entry["names"]) for entry in sums)
        checks.append(
            f"{'one sum' if count == 1 else f'{count:,} sums'} of whole numbers: unit, bound and noise agree with each "
            "other, and the noises of each stage make up its event"
        )
        notes.append(
            "units and bounds of sums are as the run's ledger states them: this release does not show what a record adds"
        )
    if unlisted := sum(len(entry["names"]) * entry.get("unlisted", 0) for entry in sums):
        notes.append(f"bounds of noises that are not listed, none of a larger noise than those that are: {unlisted:,}")
    if lost := sum(len(entry["names"]) for entry in others if entry["mechanism"] == NOT_DRAWN):
        notes.append(f"noises that were planned and never drawn, as the run's ledger states: {lost:,}")
    if chosen:
        notes.append("units and bounds of the sums of trials are not stated: a selection shows none of its trials")
    return problems, checks, notes


def _sums(entries: list[dict[str, Any]], relation: str, records: set[int]) -> Iterator[str]:
    for entry in entries:
        what = f"noise.sums: {entry['names'][0][:80]!r} of stage {entry['stage'][:80]!r}"
        mechanism = MECHANISMS[entry["mechanism"]]
        try:
            unit = float(read_unit(entry["unit"]))
        except ValueError as error:
            yield f"{what}: {error}"
            continue
        scale = mechanism.scale_in_units(entry["multiplier"], entry["bound_in_units"], entry["records"], relation)
        if (entry["law"], entry["norm"]) != (mechanism.kind, mechanism.norm):
            yield f"{what}: {mechanism.name} is {mechanism.kind} noise for a bound in {mechanism.norm}"
        elif entry["records"] not in records:
            yield f"{what}: records={entry['records']}, but a unit of privacy has {max(records)} at most"
        elif not _close(entry["scale_in_units"], scale):
            yield f"{what}: scale_in_units={entry['scale_in_units']:.9g}, but multiplier and bound make {scale:.9g}"
        elif not _close(entry["scale"], entry["scale_in_units"] * unit):
            yield (
                f"{what}: scale={entry['scale']:.9g}, but scale_in_units and the unit make "
                f"{entry['scale_in_units'] * unit:.9g}"
            )


def _unlisted(entries: list[dict[str, Any]]) -> Iterator[str]:
    """Give a noise some of whose bounds are not listed, unless it is the largest of all that are."""
    alike: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for entry in entries:
        for noise in entry["names"]:
            alike.setdefault((entry["stage"], entry["access"], noise), []).append(entry)
    for (stage, _, noise), same in alike.items():
        more = [entry for entry in same if "unlisted" in entry]
        if more and (len(more) > 1 or len(same) != MOST_ALIKE or more[0]["scale"] < max(entry["scale"] for entry in same)):
            yield (
                f"noise.sums: {noise[:80]!r} of stage {stage[:80]!r}: bounds may be left out beside {MOST_ALIKE} others, "
                "and the largest of these says how many"
            )


def _others(entries: list[dict[str, Any]]) -> Iterator[str]:
    for entry in entries:
        what = f"noise.others: {entry['names'][0][:80]!r} of stage {entry['stage'][:80]!r}"
        mechanism = MECHANISMS.get(entry["mechanism"])
        grid = RELATIVE_GRID if mechanism is not None and mechanism.is_real else None
        if entry.get("grid") != grid or (mechanism is not None and entry["law"] != mechanism.kind):
            yield f"{what}: law or grid is not that of {entry['mechanism']}"


def _bought(declared: dict[str, Any], stages: Collection[str], entries: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Give numbers that a `PrivateTraining` is declared to have bought, and that no noise was planned for.

    The other direction is no error: weights are also released without the settings of their training.
    """
    paid = {name for entry in entries if entry["stage"] == TRAINING for name in entry["names"]}
    for name, among in (("metrics", paid), ("validation", stages)):
        bought = declared.get(name)
        if isinstance(bought, dict) and bought.keys() >= {"bounds", "every"} and name not in among:
            yield f"declared.{name}: numbers are declared to be bought, and no noise of this name is stated"


def _stage(name: str, event: dict[str, Any], entries: list[dict[str, Any]], *, pure: bool) -> list[str]:
    """Return what is wrong with the noises of a stage: those of each access together are the event of that access."""
    what = f"noise of stage {name[:80]!r}"
    accesses: dict[int, dict[str, tuple[str, float]]] = {}
    stated, kinds = set(), {}
    for entry in entries:
        for noise in entry["names"]:
            bound = float(entry["bound_in_units"]) if "unit" in entry else None
            one = entry["access"], noise, entry.get("unit"), bound
            kind = "unit" in entry, entry["mechanism"] == NOT_DRAWN
            if one in stated or kinds.setdefault((entry["access"], noise), kind) != kind:
                return [f"{what}: {noise[:80]!r} of access {entry['access']} is stated twice"]
            stated.add(one)
    for entry in entries:
        noises = accesses.setdefault(entry["access"], {})
        for noise in entry["names"]:
            if noises.setdefault(noise, (entry["law"], entry["multiplier"])) != (entry["law"], entry["multiplier"]):
                return [f"{what}: {noise[:80]!r} of access {entry['access']} has two multipliers or laws"]
    if sorted(accesses) != list(range(len(accesses))):
        return [f"{what}: accesses {sorted(accesses)[:9]}, expected numbers from 0 on"]
    stated = sorted({leaf for noises in accesses.values() for leaf in _leaves_of(noises, pure)})
    expected = sorted(set(_leaves(event)))
    mechanisms = {entry["mechanism"] for entry in entries}
    correlated = any(kind == _CORRELATED for kind, _ in expected)
    if CORRELATED.name in mechanisms and not correlated:
        return [f"{what}: it is stated to be correlated, which its event is not"]
    if correlated and mechanisms <= {CORRELATED.name, NOT_DRAWN}:
        expected = [("Gaussian" if kind == _CORRELATED else kind, multiplier) for kind, multiplier in expected]
    for kind, multiplier in _missing(expected, stated):
        return [f"{what}: no noises together make the {kind} noise of multiplier {multiplier:.9g} in its event"]
    for kind, multiplier in _missing(stated, expected):
        return [f"{what}: together they make {kind} noise of multiplier {multiplier:.9g}, which its event has not"]
    return []


def _leaves_of(noises: dict[str, tuple[str, float]], pure: bool) -> Iterator[Leaf]:
    """Give the events of the noises of one access: its Gaussians together, and each other one."""
    squares = [multiplier**-2.0 for law, multiplier in noises.values() if law == GAUSSIAN]
    if squares:
        yield "Gaussian", 1.0 / math.sqrt(math.fsum(squares))
    for law, multiplier in noises.values():
        if law != GAUSSIAN:
            yield "Laplace", dominating_laplace(1.0 / multiplier) if law == PURE and not pure else multiplier


def _leaves(tree: dict[str, Any]) -> Iterator[Leaf]:
    if tree["type"] in _LEAVES:
        yield _LEAVES[tree["type"]], float(tree["noise_multiplier"])
    for inner in [*tree.get("events", ()), *([tree["event"]] if "event" in tree else [])]:
        yield from _leaves(inner)


def _missing(wanted: list[Leaf], others: list[Leaf]) -> Iterator[Leaf]:
    """Give the leaves to which none of others, sorted, is equal but for rounding."""
    for leaf in wanted:
        place = bisect.bisect(others, leaf)
        if not any(
            kind == leaf[0] and _close(multiplier, leaf[1]) for kind, multiplier in others[max(place - 1, 0) : place + 1]
        ):
            yield leaf


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_ROUNDING)

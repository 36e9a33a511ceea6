"""The noises that each stage of a run of this software draws, and the check of a certificate against them.

The stages of a run follow from the kind of the model and from settings, which a release holds, so none can be left out or
renamed. Noises that a stage draws at times may be left out unnoticed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from lightning_dpgen.data.value_grid import VALUES_OF, without_level
from lightning_dpgen.measure.labels import LABELS
from lightning_dpgen.privacy.drawn_noise import (
    CORRELATED,
    DISCRETE_LAPLACE,
    REAL_GAUSSIAN,
    ROUNDED_GAUSSIAN,
    ROUNDED_LAPLACE,
    ROUNDED_SPHERICAL,
)
from lightning_dpgen.projection.project import CLIPPED, ROWS
from lightning_dpgen.release.description import PLAIN_WEIGHTS, PROJECTION
from lightning_dpgen.release.files import MODEL
from lightning_dpgen.release.stated_noises import NOT_DRAWN

FIRST_PASS, FIDELITY, TRAINING = "first pass", "fidelity", "training"
# The noises of a step on real numbers; the second is that of a loss with mean embeddings.
GRADIENT, EMBEDDING = "gradient", "embedding"
_WHOLE = frozenset({ROUNDED_GAUSSIAN})
_REAL = frozenset({REAL_GAUSSIAN, CORRELATED})
_MOST_NAMED = 4
# A rate that is written is rounded in its last digits at most.
_ROUNDING = 1e-9
# The names of files of records begin so.
_SYNTHETIC = "synthetic"


class Drawn(NamedTuple):
    """The noises of an access of a stage.

    Args:
        always, at_times: their names.
        mechanisms: the functions that draw them.
    """

    always: frozenset[str]
    at_times: frozenset[str] = frozenset()
    mechanisms: frozenset[str] = _WHOLE


def _drawn(always: str, at_times: str = "", mechanisms: Collection[str] = _WHOLE) -> Drawn:
    return Drawn(frozenset(always.split()), frozenset(at_times.split()), frozenset(mechanisms))


# They are written out, since what draws them takes seconds to import.
STAGES: Mapping[str, Drawn] = {
    "feature moments": _drawn("sum", "moments"),
    "clustering": _drawn("counts sums"),
    "final pass": _drawn("counts", "means"),
    "tables": _drawn("singles", "pairs"),
    "items": _drawn("sizes items"),
    "pairs": _drawn("pairs"),
    "poses": _drawn("counts plain posed lengths"),
    "means": _drawn("counts means", "values"),
    "squares": _drawn("squares"),
    "cell means": _drawn("counts means"),
    "cell squares": _drawn("squares"),
    "values": _drawn("values"),
    "scales": _drawn("scales"),
    "moments": _drawn("counts means squares"),
    "shapes": _drawn("shapes"),
    "spreads": _drawn("squares"),
    LABELS: _drawn("gradient", "agreement"),
    FIDELITY: _drawn("records means", "answers"),
    ROWS: _drawn("rows", mechanisms=(ROUNDED_GAUSSIAN, ROUNDED_LAPLACE, ROUNDED_SPHERICAL)),
    CLIPPED: _drawn("count", mechanisms=(ROUNDED_GAUSSIAN, DISCRETE_LAPLACE)),
}
# For each kind of model, and of records where that matters, the stages without which it is not made. Any other kind is a
# network.
MODELS: Mapping[str, frozenset[str]] = {
    "product_mixture": frozenset({"tables"}),
    "product_mixture of baskets": frozenset({"items", "pairs"}),
    "gaussian_mixture": frozenset({"means", "squares"}),
    "series_mixture": frozenset({"values", "scales", "moments", "shapes"}),
    PROJECTION: frozenset({ROWS}),
}


def check_stages(certificate: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Check the noises of a certificate, whose numbers agree with each other, against what the release is.

    Args:
        certificate: of a shape that was checked.
        model: the description of the model as the release holds it; empty where it holds none.

    Returns:
        What is wrong, and what is worth knowing, a line each.
    """
    if not certificate["private"] or certificate["epsilon"] is None:
        return [], []
    declared, kind = certificate["declared"], model.get("model")
    by_settings = follows_from_settings(declared, model)
    if not model and (by_settings or any(name.startswith(_SYNTHETIC) for name in certificate["released"])):
        return [f"{MODEL} is no part of the release: it says which model this is, and so which stages have made it"], []
    entries = certificate["noise"]["sums"] + certificate["noise"]["others"]
    chosen = isinstance(certificate["selection"], dict)
    if model and not chosen and all(entry["mechanism"] == NOT_DRAWN for entry in entries):
        return ["noise: all of it is stated to have been planned and never drawn, and a model is released"], []
    if not by_settings and kind != PROJECTION:
        return [], ["no settings are declared, so stages and noises are as the program states them that made it"]
    names = {stage["name"] for stage in certificate["stages"]}
    if chosen:
        return list(_trials(certificate["event"], declared, model)), []
    return [
        *_stages(names, declared, model),
        *_rates((stage["event"] for stage in certificate["stages"] if stage["name"] == TRAINING), declared),
        *_noises(names, entries, declared),
    ], []


def follows_from_settings(declared: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Return whether a run of the program by declared settings has made this; a projection has settings of its own."""
    # Settings that the owner of a network declares beside its weights are words.
    return isinstance(declared.get("model"), dict) and "schema" in declared and model.get("model") != PLAIN_WEIGHTS


def _stages(names: set[str], declared: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[str]:
    kind = _kind(model)
    needed = stages_of(kind, declared)
    # The check of projected rows asks for it by what they say (`projection_check`).
    possible = {CLIPPED} if kind == PROJECTION else set()
    for name in sorted(needed - names):
        yield f"noise: stage {name!r} is missing, but a model of kind {kind[:80]!r} by these settings is made with it"
    for name in sorted(names - needed - possible)[:_MOST_NAMED]:
        yield f"noise: stage {name[:80]!r} is there, but a model of kind {kind[:80]!r} by these settings is made without it"
    components = model.get("k")
    if TRAINING in needed and type(components) is int and components > 1 and "clustering" not in names | needed:
        yield f"noise: stage 'clustering' is missing, but a model of {components} components is made with it"


def _kind(model: Mapping[str, Any]) -> str:
    """Return the kind of a model, a key of `MODELS` unless it is a network."""
    kind, schema = str(model.get("model")), model.get("schema")
    of_baskets = isinstance(schema, dict) and schema.get("kind") == "baskets" and f"{kind} of baskets" in MODELS
    return f"{kind} of baskets" if of_baskets else kind


def _trials(event: Mapping[str, Any], declared: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[str]:
    """Give what is wrong with the event of the best of several trials, one of which has the declared settings."""
    trial = event.get("event", {})
    trials = trial["events"] if trial.get("type") == "OneOfDpEvent" else [trial]
    needed = stages_of(_kind(model), declared)
    # The event of a trial composes those of its stages.
    if max(len(one["events"]) if one["type"] == "ComposedDpEvent" else 1 for one in trials) < len(needed):
        yield f"selection: a trial has the stages {', '.join(sorted(needed))}, and its event has fewer parts"
    elif all(any(_rates([one], declared)) for one in trials):
        yield from _rates(trials[:1], declared)


def _rates(events: Iterable[Mapping[str, Any]], declared: Mapping[str, Any]) -> Iterator[str]:
    """Give a rate of the lots of a training that is not the declared one."""
    stated = declared["model"].get("rate") if isinstance(declared.get("model"), dict) else None
    for event in events:
        for rate in _sampled(event):
            if type(stated) in (int, float) and not math.isclose(rate, stated, rel_tol=_ROUNDING):
                yield f"noise of stage {TRAINING!r}: its event has lots of rate {rate:g}, and {stated:g} is declared"
                return


def _sampled(event: Mapping[str, Any]) -> Iterator[float]:
    if event["type"] == "PoissonSampledDpEvent":
        yield event["sampling_probability"]
    for part in [*event.get("events", ()), *([event["event"]] if "event" in event else ())]:
        yield from _sampled(part)


def is_measured(certificate: Mapping[str, Any]) -> bool:
    """Return whether every stage measures statistics, so that no network was trained and no step sampled records."""
    return {stage["name"] for stage in certificate["stages"]} <= {*STAGES, FIRST_PASS}


def stages_of(kind: str, declared: Mapping[str, Any]) -> set[str]:
    """Return the stages of a run with these settings.

    Args:
        kind: of `MODELS`, or of a network.
        declared: the settings as a certificate holds them.
    """
    if kind == PROJECTION:
        return {ROWS}
    model = declared["model"]
    stages = {FIRST_PASS} if _bought(declared) else set()
    stages |= {FIDELITY} if declared.get("fidelity_share") is not None else set()
    stages |= {LABELS} if model.get("label_share") else set()
    if kind not in MODELS:
        return stages | _of_split(declared.get("split")) | {TRAINING}
    if model.get("label_share") and kind in ("gaussian_mixture", "series_mixture"):
        stages |= {"spreads"}
    if kind == "gaussian_mixture":
        stages |= {"poses"} if model.get("poses") == "measured" else set()
        stages |= {"cell means", "cell squares"} if model.get("cells", 1) != 1 else set()
    return stages | MODELS[kind]


def _of_split(split: Any) -> set[str]:
    """Return the stages of a split."""
    if not isinstance(split, dict):
        return set()
    if split.get("k") == 1:
        return {"final pass"}
    dimensions, features = (split.get(name) for name in ("dimensions", "features"))
    projects = type(dimensions) is type(features) is int and dimensions < features
    moments = projects or split.get("start") == "mean"
    return {"clustering", "final pass"} | ({"feature moments"} if moments else set())


def _noises(names: set[str], entries: list[dict[str, Any]], declared: Mapping[str, Any]) -> Iterator[str]:
    of_stages: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for entry in entries:
        of_stages.setdefault(entry["stage"], {}).setdefault(entry["access"], []).append(entry)
    for name in sorted(names):
        accesses = of_stages.get(name, {})
        if name == FIRST_PASS:
            bought = frozenset(_bought(declared))
            # Distributions may be found by a share of 0.
            values = frozenset(noise for noise in bought if noise.startswith(VALUES_OF))
            expected = Drawn(bought - values, values)
        else:
            expected = STAGES.get(name) or Drawn(frozenset({GRADIENT, *_counted(declared)}), frozenset({EMBEDDING}), _REAL)
        for own in accesses.values():
            yield from _access(name, own, expected, declared)
        # A figure that was paid for and lost is not bought again.
        if name != FIDELITY and not any(all(e["mechanism"] != NOT_DRAWN for e in own) for own in accesses.values()):
            yield f"noise of stage {name[:80]!r}: it is stated to have been planned and never drawn, and the model needs it"


def _access(stage: str, own: list[dict[str, Any]], expected: Drawn, declared: Mapping[str, Any]) -> Iterator[str]:
    """Give what is wrong with the noises of one access, the first of it."""
    mechanisms = {noise: entry["mechanism"] for entry in own for noise in entry["names"]}
    most = declared.get("max_rows", 1)
    found = {without_level(noise) if stage == FIRST_PASS else noise for noise in mechanisms}
    if not expected.always <= found <= expected.always | expected.at_times:
        stated, due = (", ".join(sorted(repr(noise[:80]) for noise in own)) for own in (found, expected.always))
        yield f"noise of stage {stage[:80]!r}: it is stated for {stated[:400]}; such a stage draws it for {due[:400]}"
        return
    for noise, mechanism in mechanisms.items():
        allowed = _WHOLE if stage == TRAINING and noise in _counted(declared) else expected.mechanisms
        if mechanism not in {*allowed, NOT_DRAWN}:
            yield (
                f"noise of stage {stage[:80]!r}: {noise[:80]!r} is stated to be drawn by {mechanism}, and such a stage "
                f"draws it by {' or '.join(sorted(allowed))}"
            )
            return
    for entry in own:
        of_records = [noise for noise in entry["names"] if not _is_of_unit(stage, noise, declared)]
        if of_records and entry.get("records", most) != most:
            yield (
                f"noise of stage {stage[:80]!r}: {of_records[0][:80]!r} is stated for records={entry['records']}, and a "
                f"unit of privacy has {most}"
            )
            return


def _is_of_unit(stage: str, noise: str, declared: Mapping[str, Any]) -> bool:
    """Return whether the bound of a sum is that of a person with all records, and not of a single record."""
    if stage == FIRST_PASS:
        return noise != "n" and not noise.startswith(VALUES_OF)
    return stage == TRAINING and noise in _counted(declared)


def _counted(declared: Mapping[str, Any]) -> Iterator[str]:
    """Give the names of the noises by which a rule counts norms, and so finds a bound, in each step."""
    rule = declared.get("clipping")
    while isinstance(rule, dict):
        if isinstance(noise := rule.get("noise"), str):
            yield noise
        rule = rule.get("of")


def _bought(declared: Mapping[str, Any]) -> set[str]:
    """Return the names of what a run has bought first, as its settings tell."""
    found = declared.get("discovered")
    names = {name for name in found if isinstance(name, str)} if isinstance(found, list) else set()
    return names | ({"n"} if declared.get("n_share") is not None else set())

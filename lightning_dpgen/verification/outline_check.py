"""The part of a certificate that follows from settings alone, whichever planner has divided the budget.

It is the model, the stages with their order, rates, failures, given counts and given noises, and the names of noises. A
release of a program of one's own declares no settings, and is not held against any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from lightning_dpgen.data.discovery.value_grid import VALUES_OF
from lightning_dpgen.data.schema import kind_named, kind_of
from lightning_dpgen.data.tables.row_rules import FOUND
from lightning_dpgen.measure.copulas import CopulaRecipe
from lightning_dpgen.measure.crossings import EVIDENCE_STAGE, MOST_CHOSEN_CROSSINGS
from lightning_dpgen.metrics.fidelity import FIDELITY
from lightning_dpgen.models.initial import TRAINED
from lightning_dpgen.models.labelled import Crossed, read_crossings
from lightning_dpgen.privacy.access import PURE
from lightning_dpgen.privacy.accounting.events import encode
from lightning_dpgen.privacy.drawn_noise import NOISY_MAX, REAL_GAUSSIAN, ROUNDED_GAUSSIAN
from lightning_dpgen.privacy.plan import TRAINING
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.release.drawing.description import (
    COPULA,
    CROSSINGS,
    LABELLED,
    PROJECTION,
    is_plain_weights,
    measured_networks,
)
from lightning_dpgen.release.run_names import in_words, names_of_a_run
from lightning_dpgen.release.stated_noises import NOT_DRAWN
from lightning_dpgen.specs.first_pass import FIRST_PASS
from lightning_dpgen.specs.model import CustomSpec
from lightning_dpgen.specs.settings import Settings
from lightning_dpgen.verification.event_words import (
    LONGEST,
    ROUNDING,
    agree,
    describe_event,
    difference_message,
    event_and_count,
    quote_names,
)


def follows_from_settings(certificate: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Return whether a certificate is held against the plan of settings: all are, but for programs of one's own.

    Such a program has released the weights of a network, whose settings are words; or a mixture of this package, for which
    `release_mixture` declares words and no name of a run; or something else that declares no name of a run. A projection
    has settings of its own.
    """
    declared, kind = certificate["declared"], model.get("model")
    model_words = declared.get("model")
    if kind == PROJECTION or is_plain_weights(model, certificate["released"]):
        return False
    # This package writes models of these kinds, or of a class of a user, into a release.
    kinds = measured_networks() | {trained.kind for trained in TRAINED.values()}
    is_mixture = isinstance(kind, str) and (kind in kinds or ":" in kind)
    return bool(names_of_a_run(declared)) or not (in_words(model_words) or (model_words is None and not is_mixture))


def incomplete_settings(declared: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a part of the settings of a run, without the others that every run declares."""
    forms = {"data": str, "schema": dict, "model": dict, "seed": int, "rows": int}
    wrong = [name for name, form in forms.items() if not isinstance(declared.get(name), form)]
    if not wrong:
        return []
    others = names_of_a_run(declared)
    beside = f" beside {', '.join(others)}" if others else ", and this is a model that they make"
    stated = ", ".join(f"{name}={str(declared.get(name, 'missing'))[:40]!r}" for name in wrong)
    return [f"declared: its settings are not whole: {stated[:LONGEST]}{beside[:LONGEST]}"]


def model_problems(settings: Settings, specs: Sequence[StageSpec], model: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the model that is released has of another run."""
    schema, kind, spec = settings.schema, str(model.get("model"))[:80], settings.spec.model
    # Constraints that noisy tables have shown are not declared, and no other model shows any.
    released, shown = model.get("schema"), {FOUND: None} if kind in kind_named("table").measured_networks else {}
    if not isinstance(released, dict) or {**released, **shown} != {**schema.as_json(), **shown}:
        yield "declared.schema: the released model is of another one"
    if isinstance(spec, CustomSpec):
        # A subclass of a model of the package is released as that one.
        fits = ":" in kind or kind in {trained.kind for trained in TRAINED.values()}
    elif settings.trains_network:
        fits = kind == TRAINED[spec.name].kind
    else:
        of_copula = isinstance(settings.recipe, CopulaRecipe)
        fits = kind in kind_of(schema).measured_networks and (kind == COPULA) == of_copula
    if not fits:
        yield f"declared.model: a model of {spec.title!r} is declared, and one of kind {kind!r} is released"
    if settings.trains_network and model.get("k") != settings.split.k:
        yield f"declared.split.k={settings.split.k}: the released model has {str(model.get('k'))[:20]} components"
    if (spec.label_share or 0.0) > 0.0 and model.get(LABELLED) is not True:
        yield f"declared.model.label_share={spec.label_share:g}: the released model has no label that it pays for"
    if not spec.label_share and model.get(LABELLED) is True:
        yield "declared.model.label_share: nothing is declared to pay for the label of the released model"
    try:
        crossings = Crossed(schema.layout, read_crossings(model.get(CROSSINGS, []))).crossings
    except ValueError as error:
        yield f"{CROSSINGS}: {str(error)[:LONGEST]}"
        return
    most = MOST_CHOSEN_CROSSINGS if EVIDENCE_STAGE in {spec.stage for spec in specs} else 0
    if len(crossings) > most:
        yield f"{CROSSINGS}: the released model has {len(crossings)}, and these settings choose {most} at most"


def outline_problems(settings: Settings, specs: Sequence[StageSpec], certificate: Mapping[str, Any]) -> Iterator[str]:
    """Yield a difference that no budget explains: in stages, rates, failures, names of noises, or counts that are given.

    It is computed without a planner's search, so it also comes before one that a forgery would make long.
    """
    stated = {stage["name"]: stage["event"] for stage in certificate["stages"]}
    if [spec.stage for spec in specs] != list(stated):
        names = quote_names(spec.stage for spec in specs)
        yield f"stages: these settings plan {names}, and stated are {quote_names(stated)}"
        return
    counts = {}
    for spec in specs:
        event, counts[spec.stage] = event_and_count(stated[spec.stage])
        access = spec.access(1.0)
        planned = encode(access.event_at(pure=certificate["delta"] == 0.0))
        if not agree(planned, event, None):
            yield difference_message(spec.stage, describe_event(planned, noise=False), describe_event(event))
    flexible = next((spec.stage for spec in specs if spec.share is None), specs[-1].stage)
    repeated = {spec.stage: counts[spec.stage] - spec.count for spec in specs if spec.count is not None}
    yield from _repeats(repeated, flexible)

    choices = {(spec.stage, name) for spec in specs for name, kind in spec.kinds.items() if kind == PURE}

    def drawn_by(stage: str, noise: str) -> str:
        if (stage, noise) in choices:
            return NOISY_MAX.name
        return (REAL_GAUSSIAN if stage == TRAINING and noise not in _norms(settings) else ROUNDED_GAUSSIAN).name

    yield from unplanned_names({spec.stage: spec.noise_shares for spec in specs}, drawn_by, certificate)
    yield from _wrong_record_counts(settings, certificate)


def _repeats(repeated: Mapping[str, int], flexible: str) -> Iterator[str]:
    """Yield a stage of more or fewer accesses than planned, but for those that a run which went on may have.

    After a crash, accesses whose results were lost are made again, and the stage that has what others leave of the budget
    gives up as many as it takes (`Plan.rewrite`). A first pass that is lost ends its run. A run that stops early is
    certified as it was planned.
    """
    again = any(more > 0 for name, more in repeated.items() if name not in (flexible, FIRST_PASS))
    for name, more in repeated.items():
        allowed = more <= 0 and again if name == flexible else more > 0 and name != FIRST_PASS
        if more and not allowed:
            how = "more" if more > 0 else "fewer"
            yield f"stage {name!r}: {abs(more):,} accesses {how} are stated than these settings plan"


def wrong_given_noises(specs: Sequence[StageSpec], certificate: Mapping[str, Any]) -> Iterator[str]:
    """Yield a noise that the settings state and the certificate states otherwise, which takes no planner to see."""
    stated = {stage["name"]: stage["event"] for stage in certificate["stages"]}
    for spec in specs:
        # The noise of a first pass follows from a share.
        if spec.noise is not None and spec.stage != FIRST_PASS:
            planned, event = encode(spec.access(spec.noise).event_at(pure=False)), event_and_count(stated[spec.stage])[0]
            if not agree(planned, event, ROUNDING):
                yield difference_message(spec.stage, describe_event(planned), describe_event(event))


def is_outlined(spec: StageSpec, stated: Mapping[str, Any]) -> bool:
    """Return whether the event of a stage is that of its spec but for multipliers, and for a count that is not given."""
    event, count = event_and_count(stated)
    return agree(encode(spec.access(1.0).event_at(pure=False)), event, None) and spec.count in (None, count)


def unplanned_names(
    planned: Mapping[str, Collection[str]], drawn_by: Callable[[str, str], str], certificate: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a stage whose noises have other names than planned, are drawn otherwise than this program does, or not at all.

    Args:
        planned: the names of the noises of each stage.
        drawn_by: a function from a stage and a noise to the mechanism that draws it.
    """
    for stage, names in planned.items():
        entries = [entry for entry in noise_entries(certificate) if entry["stage"] == stage]
        drawn = {name: entry["mechanism"] for entry in entries for name in entry["names"]}
        what = f"noise of stage {stage[:80]!r}"
        if drawn.keys() != set(names):
            stated = quote_names(sorted(drawn))
            yield f"{what}: it is stated for {stated}; such a stage draws it for {quote_names(sorted(names))}"
            continue
        for name, mechanism in drawn.items():
            # A figure that was paid for and lost is not bought again.
            if mechanism == NOT_DRAWN and stage != FIDELITY:
                yield f"{what}: it is stated to have been planned and never drawn, and the model needs it"
            elif mechanism not in (drawn_by(stage, name), NOT_DRAWN):
                yield f"{what}: {name[:80]!r} is stated to be drawn by {mechanism}; it is by {drawn_by(stage, name)}"


def _wrong_record_counts(settings: Settings, certificate: Mapping[str, Any]) -> Iterator[str]:
    """Yield a noise that hides fewer records than a unit of privacy has."""
    most = settings.spec.data.most_rows
    for entry in noise_entries(certificate):
        stage = entry["stage"]
        of_records = [name for name in entry["names"] if not _is_of_unit(stage, name, settings)]
        if of_records and entry.get("records", most) != most:
            yield (
                f"noise of stage {stage!r}: {of_records[0][:80]!r} is stated for records={entry['records']}, and a unit of "
                f"privacy has {most}"
            )


def _is_of_unit(stage: str, noise: str, settings: Settings) -> bool:
    """Return whether the bound of a sum is that of a person with all records, and not of a single record."""
    if stage == FIRST_PASS:
        return noise != "n" and not noise.startswith(VALUES_OF)
    return stage == TRAINING and noise in _norms(settings)


def _norms(settings: Settings) -> Mapping[str, float]:
    """Return the shares of the noises by which a rule counts norms, and so finds a bound, in each step."""
    return {} if settings.clipping is None else settings.clipping.noise_shares


def noise_entries(certificate: Mapping[str, Any]) -> list[dict[str, Any]]:
    return certificate["noise"]["sums"] + certificate["noise"]["others"]

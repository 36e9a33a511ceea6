"""A certificate that states less than its settings plan is refused, and one of any run of these settings is not."""

import copy
import dataclasses
import functools
import json
import math
import os

import pytest
import torch
from keep_plans import KEPT, kept_stages
from kinds import KINDS, planned, stated, write_files
from marks import only

from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.measure import crossings
from lightning_dpgen.metrics.fidelity import FIDELITY
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import round_up
from lightning_dpgen.privacy.accounting.events import decode, encode
from lightning_dpgen.privacy.drawn_noise import ROUNDED_GAUSSIAN
from lightning_dpgen.privacy.planning.calibration import PLANNER
from lightning_dpgen.release.pages.dossier import MEASURING
from lightning_dpgen.release.pages.report import describe_stage
from lightning_dpgen.release.run_names import RUN_NAMES, names_of_a_run
from lightning_dpgen.runs.table import budget_table
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.settings import _NOT_SHOWN
from lightning_dpgen.specs.spec import variants
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.verification import outline_check, plan_check
from lightning_dpgen.verification.event_words import agree
from lightning_dpgen.verification.outline_check import follows_from_settings
from lightning_dpgen.verification.plan_check import check_plan

# Kinds of runs whose forgeries are tried by default; the others take a minute together.
FEW = ["table with all", "found of persons", "number", "one cluster", "network", "given noise", "classifier"]
kinds = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in FEW else pytest.mark.slow) for kind in KINDS]
)


@pytest.fixture(scope="session", autouse=True)
def _made(tmp_path_factory):
    """Plan each kind once, in a folder that holds the descriptions it names and no records."""
    folder, before, threads = tmp_path_factory.mktemp("kinds"), os.getcwd(), torch.get_num_threads()
    write_files(folder)
    torch.set_num_threads(1)

    def made(kind):
        os.chdir(folder)
        try:
            return planned(KINDS[kind])
        finally:
            os.chdir(before)

    _plan.make = functools.cache(made)
    yield
    torch.set_num_threads(threads)


def _plan(kind):
    return _plan.make(kind)


def _certificate(kind):
    return copy.deepcopy(_stated(kind))


@functools.cache
def _stated(kind):
    return stated(*_plan(kind))


def _problems(certificate, model):
    problems = check_plan(certificate, model)[0]
    assert all("\n" not in problem and len(problem) < 700 for problem in problems)
    return problems


some_kinds = pytest.mark.parametrize("kind", only(KINDS.keys(), *{*list(KINDS)[::3], *FEW}))


@some_kinds
def test_a_certificate_of_its_settings_is_their_plan(kind, tmp_path, monkeypatch):
    certificate, model = _certificate(kind)
    assert follows_from_settings(certificate, model)
    # Files that settings name are not there, and nothing is written.
    monkeypatch.chdir(tmp_path)
    problems, checks, notes = check_plan(certificate, model)
    assert (problems, notes) == ([], []) and "stage by stage" in checks[0] and not any(tmp_path.iterdir())


def test_rules_that_noisy_tables_show_are_no_part_of_the_declared_schema():
    certificate, model = _certificate("table with all")
    model = copy.deepcopy(model)
    model["schema"]["found_constraints"] = ["a = 1 if b = 2"]
    assert not any(problem.startswith("declared.schema") for problem in _problems(certificate, model))
    for schema in (None, [], model["schema"] | {"label": "another"}):
        assert "declared.schema: the released model is of another one" in _problems(certificate, model | {"schema": schema})
    certificate, model = _certificate("labels of a network")
    shown = model["schema"] | {"found_constraints": ["a = 1 if b = 2"]}
    assert "declared.schema: the released model is of another one" in _problems(certificate, model | {"schema": shown})


MANY_ROWS = ["data.n=1000000000", "data.person=who", "data.max_rows=10000"]


@pytest.mark.parametrize(
    ("kind", "words", "noise"),
    [("table", ["model.label_share=0.3", *MANY_ROWS], "labels: gradient"),
     ("many numbers", ["data.n=1000000", *MANY_ROWS[1:]], "scores: moments"),
     ("pictures", ["data.n=100000000", "privacy.epsilon=0.0001"], "means: means")],
)  # fmt: skip
def test_noise_of_too_many_units_is_refused_before_anything_is_spent(kind, words, noise, tmp_path, monkeypatch):
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"noise '{noise}' has a standard deviation of"):
        planned([*KINDS[kind], *words])


def test_a_table_is_released_by_the_model_that_was_paid_for():
    """Pairs of very many numbers are not counted, and no model of pairs follows from what is."""
    for kind, others in {"many numbers": ("forest_mixture", "product_mixture"), "table": ("copula",)}.items():
        certificate, model = _certificate(kind)
        for other in others:
            assert f"one of kind {other!r} is released" in _problems(certificate, model | {"model": other})[0]


@pytest.mark.parametrize(
    ("kind", "noise"),
    [("table", "pairs"), ("many numbers", "singles"), ("many values", "values of many, level 1"), ("asked for", "workload"),
     ("found, and a network", "values of number, level 1")],
)  # fmt: skip
def test_counts_are_bounded_by_what_a_record_adds(kind, noise):
    certificate, model = _certificate(kind)
    entry = next(own for own in certificate["noise"]["sums"] if noise in own["names"])
    for change in ({"bound_in_units": 0.5 * entry["bound_in_units"]}, {"unit": "2^-1"}):
        before = dict(entry)
        entry.update(change)
        assert f"a record moves the counts {noise!r} by " in _problems(certificate, model)[0]
        entry.update(before)


def _leaf(event):
    while event["type"] not in ("GaussianDpEvent", "LaplaceDpEvent"):
        event = event["event"] if "event" in event else event["events"][0]
    return event


def _inner(stage):
    return stage["event"]["event"] if stage["event"]["type"] == "SelfComposedDpEvent" else stage["event"]


def _scaled(certificate, name, factor):
    _leaf(next(stage["event"] for stage in certificate["stages"] if stage["name"] == name))["noise_multiplier"] *= factor
    for entry in certificate["noise"]["sums"] + certificate["noise"]["others"]:
        entry["multiplier"] *= factor if entry["stage"] == name else 1.0


def _sampled(certificate, place):
    stage = certificate["stages"][place]
    _inner(stage)  # a full pass
    lot = {"type": "PoissonSampledDpEvent", "sampling_probability": 0.01, "event": copy.deepcopy(_leaf(stage["event"]))}
    count = stage["event"].get("count", 1)
    stage["event"] = lot if count == 1 else {"type": "SelfComposedDpEvent", "event": lot, "count": count}


def _entry(certificate, place):
    noise = certificate["noise"]
    return (noise["sums"] + noise["others"])[place]


def _forgeries(kind):
    """Yield edits of a certificate whose numbers could be made to agree with each other, by name."""
    certificate = _stated(kind)[0]
    stages = certificate["stages"]
    for place, stage in enumerate(stages):
        name, event = stage["name"], stage["event"]
        yield f"{name} sampled", lambda c, m, place=place: _sampled(c, place)
        for factor in (0.99, 1.01, 10.0):
            yield f"{name} noise x {factor}", lambda c, m, name=name, factor=factor: _scaled(c, name, factor)
        yield f"{name} left out", lambda c, m, place=place: c["stages"].pop(place)
        yield f"{name} renamed", lambda c, m, place=place: c["stages"][place].update(name=f"{c['stages'][place]['name']}s")
        if event.get("count", 1) > 1:
            fewer = 1 if name != "training" or "noise" not in kind else event["count"] // 2
            yield f"{name} fewer times", lambda c, m, place=place, n=fewer: c["stages"][place]["event"].update(count=n)
        text = json.dumps(event)
        if "sampling_probability" in text:
            yield f"{name} rarer", lambda c, m, place=place: _inner(c["stages"][place]).update(sampling_probability=0.001)
        if "EpsilonDelta" in text:
            yield (
                f"{name} without failures",
                lambda c, m, place=place: c["stages"][place].update(event=_leaf(c["stages"][place]["event"])),
            )
            yield (
                f"{name} that fails less",
                lambda c, m, place=place: c["stages"][place]["event"]["events"][1].update(delta=1e-9),
            )
    if len(stages) > 1:
        yield "another order", lambda c, m: c["stages"].reverse()
    for place, entry in enumerate(certificate["noise"]["sums"] + certificate["noise"]["others"]):
        yield f"noise {place} renamed", lambda c, m, place=place: _entry(c, place).update(names=["another"])
        if entry["stage"] != FIDELITY:
            yield f"noise {place} not drawn", lambda c, m, place=place: _entry(c, place).update(mechanism="none")
        yield f"noise {place} drawn otherwise", lambda c, m, place=place: _entry(c, place).update(mechanism="another")
        if entry.get("records", 1) > 1:
            yield f"noise {place} of one record", lambda c, m, place=place: _entry(c, place).update(records=1)
        yield (
            f"noise {place} divided otherwise",
            lambda c, m, place=place: _entry(c, place).update(multiplier=2 * _entry(c, place)["multiplier"]),
        )
    for key, value in {"model": "another", "k": 77, "schema": None}.items():
        if key != "k" or "split" in certificate["declared"]:
            yield f"model.{key}", lambda c, m, key=key, value=value: m.update({key: value})
    yield "labelled", lambda c, m: m.update(labelled=not m.get("labelled", False))
    yield "delta", lambda c, m: c.update(delta=c["delta"] * 30)
    yield "another planner", lambda c, m: c["versions"].update(planner=str(PLANNER + 1))
    yield "no planner", lambda c, m: c["versions"].update(planner="none")
    yield "unknown setting", lambda c, m: c["declared"].update(another=1)
    yield "cut lots", lambda c, m: c["declared"].update(truncated_lots={"training": {"largest_lot": 9, "at_most": 9999}})
    yield "unknown setting of the model", lambda c, m: c["declared"]["model"].update(another=1)
    yield "another model", lambda c, m: c["declared"]["model"].update(name="a model")
    yield "no name of a model", lambda c, m: c["declared"]["model"].pop("name")
    for name in ("split", "clipping", "schema", "seed", "rows", "n_share", "discovered", "discovery_share", "max_rows",
                 "person", "fidelity_share", "workload"):  # fmt: skip
        if name in certificate["declared"]:
            yield f"without {name}", lambda c, m, name=name: c["declared"].pop(name)
    for name in ("rate", "steps", "noise", "components", "pairs_share", "waves", "cells", "label_share", "group_c"):
        if (value := certificate["declared"]["model"].get(name)) not in (None, 0.0):
            yield f"without {name}", lambda c, m, name=name: c["declared"]["model"].pop(name)
            halved = value // 2 if isinstance(value, int) else value / 2
            if name not in ("components", "waves", "group_c", "cells"):
                yield f"half of {name}", lambda c, m, pair=(name, halved): c["declared"]["model"].update([pair])
    if certificate["declared"].get("discovered"):
        yield "one found less", lambda c, m: c["declared"]["discovered"].pop()
        yield "one found more", lambda c, m: c["declared"]["discovered"].append("keys of b")
        yield "found otherwise", lambda c, m: c["declared"].update(discovered=["bounds of number", "keys of b"])
    if "reference" in certificate:
        yield (
            "smaller reference",
            lambda c, m: c["event"]["events"].append({"type": "GaussianDpEvent", "noise_multiplier": 1e3}),
        )
        yield "no reference", lambda c, m: (c.pop("reference"), _scaled(c, c["stages"][-1]["name"], 1.05))
    else:
        yield "a reference", lambda c, m: c.update(reference={"after": 1, "replaceable": True})


@kinds
def test_a_certificate_that_states_less_than_its_settings_plan_is_refused(kind):
    believed, count = [], 0
    for name, forge in _forgeries(kind):
        certificate, model = _certificate(kind)
        forge(certificate, model)
        count += 1
        if not _problems(certificate, model):
            believed.append(name)
    assert believed == [] and count > 20


def _numbers(declared, within=()):
    for name, value in declared.items():
        if isinstance(value, dict) and name != "schema":
            yield from _numbers(value, (*within, name))
        elif type(value) in (int, float):
            yield (*within, name)


WRONG = {
    "text": "6", "a list": [6], "an object": {"a": 6}, "true": True, "no number": math.nan, "infinite": math.inf,
    "negative": -1.0, "huge": 1e300, "a long whole number": 10**40,
}  # fmt: skip


@kinds
def test_a_declared_number_that_is_none_switches_no_check_off(kind):
    believed = []
    for path in _numbers(_stated(kind)[0]["declared"]):
        for what, value in WRONG.items():
            certificate, model = _certificate(kind)
            group = certificate["declared"]
            for name in path[:-1]:
                group = group[name]
            group[path[-1]] = value
            if not _problems(certificate, model):
                believed.append((".".join(path), what))
    assert believed == []


@pytest.mark.parametrize("value", [None, "words", 3, [], ["a"], {}, {"kind": "table"}, True], ids=str)
def test_a_declared_group_that_is_none_is_refused(value):
    for kind in ("table", "one cluster", "found"):
        for name in ("schema", "model", "split", "clipping", "data", "discovered", "person", "seed", "rows", "n"):
            certificate, model = _certificate(kind)
            # A model in words is one of a program of one's own, and a whole number is one.
            words = name == "model" and not isinstance(value, dict)
            if name in certificate["declared"] and not words and (value != 3 or name not in ("n", "seed", "rows")):
                certificate["declared"][name] = value
                assert _problems(certificate, model), (kind, name)


@pytest.mark.parametrize(
    "kind",
    [
        "classifier",
        pytest.param("given noise and steps", marks=pytest.mark.slow),
        pytest.param("network", marks=pytest.mark.slow),
        pytest.param("number of a network", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_has_lost_accesses_is_of_its_settings(kind):
    settings, plan = _plan(kind)
    last = plan.stages[-1].name if plan.flexible is None else plan.flexible
    tried = 0
    for stage in plan.stages:
        if stage.name in (last, "first pass", FIDELITY):
            continue
        for lost in (1, 2):
            planned_counts = {each.name: each.count for each in plan.stages}
            for own in (0, 1):
                made = planned_counts | {stage.name: stage.count + lost, last: own}
                try:
                    again = plan.rewrite(made, planned_counts | {last: 0})
                except Exception:
                    continue
                certificate, model = stated(settings, dataclasses.replace(plan, stages=again.stages))
                assert _problems(certificate, model) == []
                tried += 1
                # Lost accesses are no reason for still fewer steps.
                count = again.stage(last).count
                if count > 40:
                    fewer = next(each for each in certificate["stages"] if each["name"] == last)
                    fewer["event"]["count"] = count // 2
                    assert _problems(certificate, model)
    assert tried


def test_a_count_of_repeated_accesses_has_its_reasons():
    repeats = outline_check._repeats
    assert list(repeats({"clustering": 0, "training": 0}, "training")) == []
    assert list(repeats({"clustering": 2, "training": -9}, "training")) == []
    for wrong in ({"training": -1}, {"training": 1}, {"clustering": -1, "training": 0}, {"first pass": 1, "training": 0},
                  {"first pass": 1, "training": -1}, {"clustering": 1, "training": 1}):  # fmt: skip
        assert len(list(repeats(wrong, "training"))) >= 1


def _with_noise(certificate, factor):
    """Scale all multipliers, also those of a reference, as one does who wants epsilon to look small."""
    parts = certificate["event"].get("events", [])[-1:] if "reference" in certificate else []
    for stage in certificate["stages"]:
        _scaled(certificate, stage["name"], factor)
    for leaf in map(_leaf, parts):
        leaf["noise_multiplier"] *= factor
    if "reference" in certificate:
        _leaf(certificate["event"]["events"][0])["noise_multiplier"] *= factor


@kinds
def test_an_earlier_planner_is_held_against_all_that_takes_no_planner(kind, monkeypatch):
    """It has divided the budget otherwise, but it has used it, and what settings state themselves is theirs."""
    monkeypatch.setattr(plan_check, "PLANNER", PLANNER + 1)
    certificate, model = _certificate(kind)
    problems, checks, notes = check_plan(certificate, model)
    assert (problems, checks) == ([], []) and "were not planned again" in notes[0]
    for factor in (1.1, 10.0):
        certificate, model = _certificate(kind)
        _with_noise(certificate, factor)
        assert _problems(certificate, model), factor
    certificate, model = _certificate(kind)
    if "reference" in certificate:
        for stage in certificate["stages"][1:]:
            _scaled(certificate, stage["name"], 10.0)
        assert "is not used" in _problems(certificate, model)[0]
    if "noise" in kind:
        for factor in (0.99, 1.01):
            certificate, model = _certificate(kind)
            _scaled(certificate, "training", factor)
            assert "its settings give" in _problems(certificate, model)[0]
    for stage, spec in zip(_certificate(kind)[0]["stages"], _plan(kind)[0].specs(), strict=True):
        if spec.count is not None and spec.count > 1 and spec.stage == "training":
            certificate, model = _certificate(kind)
            next(own for own in certificate["stages"] if own["name"] == stage["name"])["event"]["count"] -= 1
            assert "accesses fewer" in _problems(certificate, model)[0]


def test_crossings_are_asked_of_no_planner_that_had_none(monkeypatch, tmp_path):
    """A release of the first planner is consistent as it was; and a label by crossings is one that was paid for."""
    crossed = {"crossings": [{"groups": [0, 1], "parts": [[0, 1, 1], [0, 1]]}]}
    certificate, model = _certificate("crossed")
    said = {stage["name"]: describe_stage(certificate, stage) for stage in certificate["stages"]}
    assert "3 times: a choice by the exponential mechanism, epsilon 0." in said.pop("crossings")
    assert "evidence" in said and "choice" not in "".join(said.values())
    assert "crossings  exponential mechanism, full pass  choice" in budget_table(_plan("crossed")[1])
    assert _problems(certificate, model | crossed) == []
    for wrong in (
        "x",
        [{}],
        crossed["crossings"] * 2,
        crossed["crossings"] * 9999,
        [{"groups": [0], "parts": [[0, 1, 1]]}],
    ):
        assert _problems(certificate, model | {"crossings": wrong})[0].startswith("crossings: ")
    for entry in certificate["noise"]["others"]:
        entry["mechanism"] = ROUNDED_GAUSSIAN.name
    assert "it is by report_noisy_max" in _problems(certificate, model)[0]
    with monkeypatch.context() as patch:
        write_files(tmp_path)
        patch.chdir(tmp_path)
        patch.setattr(crossings, "buys_crossings", lambda *_: False)
        certificate, model = stated(*planned(KINDS["crossed"]))
    assert "crossings" not in certificate["declared"]["model"] and _problems(certificate, model) == []
    certificate["declared"]["model"]["crossings"] = True
    assert "stages: these settings plan" in _problems(certificate, model)[0]
    del certificate["declared"]["model"]["crossings"]
    certificate["versions"]["planner"] = "1"
    assert _problems(certificate, model) == [] and "were not planned again" in check_plan(certificate, model)[2][0]
    assert "these settings choose 0 at most" in _problems(certificate, model | crossed)[0]


def test_an_earlier_planner_may_have_divided_the_budget_otherwise(monkeypatch):
    monkeypatch.setattr(plan_check, "PLANNER", PLANNER + 1)
    certificate, model = _certificate("network")
    _scaled(certificate, "training", 1.02)
    assert _problems(certificate, model) == []
    for planner in (str(PLANNER + 2), "0", "none"):
        certificate["versions"]["planner"] = planner
        assert "this software knows none beyond" in _problems(certificate, model)[0]


@some_kinds
@pytest.mark.parametrize("model_in_words", [None, "a mixture of mine", [], ["vae"], 3, "missing"], ids=str)
def test_a_part_of_the_settings_is_no_release_of_ones_own(kind, model_in_words):
    """Whatever a forger leaves of them: a name that only a run declares, or no words for a mixture of this package."""
    certificate, model = _certificate(kind)
    certificate["declared"]["model"] = model_in_words
    if model_in_words == "missing":
        del certificate["declared"]["model"]
    names = names_of_a_run(certificate["declared"])
    for left in [names, *([name] for name in names)]:
        forged = copy.deepcopy(certificate)
        for name in set(names) - set(left):
            del forged["declared"][name]
        for released in (model, model | {"model": "mine"}, {}):
            assert follows_from_settings(forged, released)
            assert "its settings are not whole" in _problems(forged, released)[0]
    for name in names:
        del certificate["declared"][name]
    own = model_in_words == "a mixture of mine"
    assert follows_from_settings(certificate, model) != own and (own or "not whole" in _problems(certificate, model)[0])


def test_names_of_a_run_are_those_that_its_settings_declare():
    """And no others, since a program of one's own may not declare them."""
    fields = {name for kind in variants(RunSpec, "data").values() for name in kind.model_fields} - _NOT_SHOWN
    assert fields - {"max_rows"} | {"discovered", "fidelity_share", "split", "clipping"} == RUN_NAMES
    always = {"data", "n", "schema", "model", "seed", "rows", "max_rows"}
    assert all(_stated(kind)[0]["declared"].keys() - always <= RUN_NAMES for kind in KINDS)


def _selection(kinds_of_trials, chosen):
    """Return the certificate of a selection among plans, and the model of one of them."""
    trials = [encode(_plan(kind)[1].composition) for kind in kinds_of_trials]
    certificate, model = _certificate(chosen)
    event = {"type": "OneOfDpEvent", "events": trials} if len(trials) > 1 else trials[0]
    certificate["event"] = {"type": "RepeatAndSelectDpEvent", "event": event, "mean": 5.0, "shape": 1.0}
    certificate["selection"] = {"chosen": {}}
    certificate["target_epsilon"] = round_up(compute_epsilon(decode(certificate["event"]), certificate["delta"]).epsilon)
    certificate["noise"] |= {"sums": [], "others": []}
    return certificate, model


def test_the_best_of_several_trials_is_planned_as_one_of_them():
    certificate, model = _selection(["network", "features"], "network")
    assert _problems(certificate, model) == []
    for trials in (["features"], ["features", "pictures"]):
        assert "none of" in _problems(*_selection(trials, "network"))[0]
    certificate, model = _selection(["pictures"], "pictures")
    assert _problems(certificate, model) == []
    certificate["event"]["event"]["events"][0]["noise_multiplier"] *= 1.5
    assert _problems(certificate, model)
    certificate, model = _selection(["network"], "network")
    certificate["selection"]["chosen"] = None
    assert _problems(certificate, model) == [] and check_plan(certificate, model)[2]
    assert "a model of" in _problems(certificate, model | {"model": "product_mixture"})[0]


def test_trials_use_the_budget_and_have_a_planner_that_is_known(monkeypatch):
    for chosen in ({}, None):
        certificate, model = _selection(["network", "features"], "network")
        certificate["selection"]["chosen"] = chosen
        certificate["target_epsilon"] *= 1.3
        assert "is not used" in _problems(certificate, model)[0]
    certificate, model = _selection(["features", "network"], "network")
    certificate["versions"]["planner"] = str(PLANNER + 1)
    assert "knows none beyond" in _problems(certificate, model)[0]
    monkeypatch.setattr(plan_check, "PLANNER", PLANNER + 2)
    assert _problems(certificate, model) == [] and "not planned again" in check_plan(certificate, model)[2][0]
    for trial in certificate["event"]["event"]["events"]:
        next(part for part in trial["events"] if part.get("count", 0) > 30)["count"] += 1
    assert _problems(certificate, model)


def test_settings_beside_the_weights_of_a_network_are_words():
    certificate, model = _certificate("network")
    weights = {"model": "weights"}
    assert follows_from_settings(certificate, model)
    assert not follows_from_settings(certificate | {"released": ["model.json", "model.safetensors"]}, weights)
    # Records are not made by weights alone.
    assert follows_from_settings(certificate | {"released": ["model.json", "model.safetensors", "rows.csv"]}, weights)
    for own, of_settings in (({"model": {}}, True), ({"model": "mine"}, False), ({}, False)):
        assert follows_from_settings({"declared": own, "released": ["numbers.txt"]}, {}) == of_settings


def test_plans_are_those_that_this_planner_has_made():
    """A change of what settings plan raises `PLANNER`; then run tests/verification/keep_plans.py."""
    kept = json.loads(KEPT.read_text())
    assert kept["planner"] == PLANNER and kept["plans"].keys() == KINDS.keys()
    for kind, stages in kept["plans"].items():
        made = kept_stages(_plan(kind)[1])
        assert agree(stages, made, plan_check._SOLVED), f"{kind}: {made} was planned as {stages}"


def test_all_that_measures_is_known_by_its_stages():
    measuring = set()
    for kind in KINDS:
        plan = _plan(kind)[1]
        measuring |= {stage.name for stage in plan.stages if stage.name != "training"}
    split = {spec.stage for spec in SplitSettings(k=4, iterations=2).for_layout(Layout(units=9)).specs(900)}
    assert measuring | split | {"rows", "clipped"} == MEASURING

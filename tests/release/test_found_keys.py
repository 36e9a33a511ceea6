"""The certificate of a run that found its keys privately: their delta is in the event tree, and cannot be taken out."""

import json

import numpy as np
import pytest
import torch
from contracts.sealed import rewrite

from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import round_up
from lightning_dpgen.privacy.accounting.events import decode
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.privacy.mechanisms import gaussian, select_keys
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.release.certificate import make_certificate
from lightning_dpgen.release.pages.report import describe
from lightning_dpgen.verification.verify import verify


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release")
    specs = [
        StageSpec("discovery", {"n": 1.0, "keys of city": 4.0}, 1, max_noise=1e3, share=0.2, deltas={"keys of city": 1e-6}),
        StageSpec("training", {"gradient": 1.0}, 10, max_noise=1e3, sampler=Poisson(0.1)),
    ]
    account = Account(make_plan(specs, epsilon=2.0, delta=1e-5))
    with account.open("discovery") as access:
        gaussian(access, "n", torch.zeros(1), sensitivity=1.0)
        select_keys(access, "keys of city", np.array(["Rome"], dtype=object), np.array([900]))
    for _ in range(10):
        with account.open("training", draw=account.sample("training", 9)[1]) as access:
            gaussian(access, "gradient", torch.zeros(1), sensitivity=1.0)
    account.verify_complete()
    (folder / "numbers.txt").write_text("1 2 3")
    certificate = make_certificate(account, unit="one row", declared={"n": 90}, released=["numbers.txt"], folder=folder)
    return folder, certificate


def _verified(made, change=lambda certificate: None):
    folder, certificate = made
    (folder / "privacy.json").write_text(json.dumps(certificate))
    rewrite(folder, change)
    return verify(folder)


def test_it_is_consistent(made):
    _, certificate = made
    verdict = _verified(made)
    assert verdict.problems == [] and round_up(verdict.epsilon) == certificate["epsilon"] <= 2.0
    (failure,) = [e for e in certificate["stages"][0]["event"]["events"] if e["type"] == "EpsilonDeltaDpEvent"]
    assert failure == {"type": "EpsilonDeltaDpEvent", "epsilon": 0.0, "delta": 1e-6}
    replaced = compute_epsilon(decode(certificate["event"]), 1e-5, relation=REPLACE_ONE, interval=None).epsilon
    assert certificate["also"]["replace_one_epsilon"] == pytest.approx(replaced, rel=1e-3)
    assert min(delta for delta, _ in certificate["also"]["curve"]) > 1e-6, "no epsilon is finite below the delta of keys"
    assert "seen with probability at most 1e-06" in describe(certificate["event"])


def test_the_second_accountant_is_asked_for_what_is_left(made):
    """A looser bound, so above ours, and not the one at the whole delta."""
    note = next(note for note in _verified(made).notes if "Opacus" in note)
    assert float(note.split()[-1]) > made[1]["epsilon"]


def _failures(certificate):
    for events in (certificate["event"]["events"][0]["events"], certificate["stages"][0]["event"]["events"]):
        yield events, next(i for i, event in enumerate(events) if event["type"] == "EpsilonDeltaDpEvent")


def _removed(certificate):
    for events, i in _failures(certificate):
        del events[i]


def _set(**fields):
    def change(certificate):
        for events, i in _failures(certificate):
            events[i].update(fields)

    return change


def _repeated(certificate):
    for events, i in _failures(certificate):
        events[i] = {"type": "SelfComposedDpEvent", "event": events[i], "count": 9}


def _only_in_the_event(certificate):
    events, i = next(_failures(certificate))
    del events[i]


FORGED = {
    "removed": (_removed, "costs only"),
    "removed from the event alone": (_only_in_the_event, "composition of the stages"),
    "smaller": (_set(delta=9e-7), "costs only"),
    "larger": (_set(delta=2e-6), "costs"),
    "all of delta": (_set(delta=1e-5), "costs so much"),
    "repeated": (_repeated, "costs"),
    "with an epsilon": (_set(epsilon=0.5), "expected 0"),
    "negative": (_set(delta=-1e-6), "delta"),
    "one": (_set(delta=1.0), "delta"),
    "text": (_set(delta="1e-6"), "delta"),
    "a foreign field": (_set(more=1), "fields"),
    "a cheaper epsilon": (lambda c: c.update(epsilon=c["epsilon"] * 0.999), "costs"),
    "a cheaper stage": (lambda c: c["stages"][0].update(epsilon=c["stages"][0]["epsilon"] * 0.999), "stage"),
    "a smaller delta of the whole": (lambda c: c.update(delta=9e-6), "costs"),
}


@pytest.mark.parametrize(("forge", "words"), FORGED.values(), ids=FORGED.keys())
def test_forgeries_with_a_new_digest_are_refused(made, forge, words):
    problems = _verified(made, forge).problems
    assert problems and any(words in problem for problem in problems), problems

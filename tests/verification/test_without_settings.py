"""Checks that need no settings: cut lots, correlated noise and the noises of a stage must be what its event costs."""

import copy

import dp_accounting
import pytest

from lightning_dpgen.privacy.accounting.event_parts import EpsilonDeltaDpEvent
from lightning_dpgen.privacy.accounting.events import encode
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE
from lightning_dpgen.privacy.sampling.samplers import TruncatedPoisson
from lightning_dpgen.privacy.sampling.strategy import Strategy
from lightning_dpgen.release.verdict import Verdict
from lightning_dpgen.verification import epsilon_check
from lightning_dpgen.verification.noise_check import check_noises

RATE = 0.25
CUT = TruncatedPoisson(RATE, 45, 80)


def _lots(failure):
    lot = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(2.0))
    parts = [lot] if failure is None else [lot, EpsilonDeltaDpEvent(0.0, failure)]
    return dp_accounting.SelfComposedDpEvent(dp_accounting.ComposedDpEvent(parts) if len(parts) > 1 else lot, 8)


@pytest.mark.parametrize(
    ("share", "cut", "good"),
    [(1.0, CUT, True), (1.5, CUT, True), (0.99, CUT, False), (0.6, CUT, False), (None, CUT, False), (1.0, None, False),
     (None, None, True), (1.0, TruncatedPoisson(RATE, 44, 80), False)],
)  # fmt: skip
def test_cut_lots_fail_as_often_as_is_stated(share, cut, good):
    failure = None if share is None else share * CUT.failure
    declared = {"n": 64} | ({} if cut is None else {"truncated_lots": {"training": cut.truncation}})
    verdict = Verdict()
    epsilon_check._check_truncated({"declared": declared}, {"training": _lots(failure)}, verdict)
    assert verdict.good == good


@pytest.mark.parametrize("relation", [ADD_OR_REMOVE_ONE, REPLACE_ONE])
@pytest.mark.parametrize("sampler", ["poisson", "cyclic"])
def test_a_relation_is_that_of_the_sampler(sampler, relation):
    event = _lots(None)
    if sampler != "poisson":
        strategy = Strategy(8, 4)
        event = epsilon_check.CorrelatedGaussianDpEvent(2.0, 1.0, strategy.sensitivity, strategy)
    verdict = Verdict()
    epsilon_check._check_correlated({"relation": relation, "declared": {"n": 64}}, [event], verdict)
    assert verdict.good == (sampler == "poisson" or relation == ADD_OR_REMOVE_ONE)


def test_noises_make_up_an_event_and_no_more():
    """A noise that its event has not would be one that nobody has paid for."""
    step = {"stage": "training", "access": 0, "names": ["gradient"], "law": "gaussian", "multiplier": 2.0}
    step |= {"mechanism": "none"}
    certificate = {
        "private": True, "epsilon": 1.0, "delta": 1e-5, "relation": ADD_OR_REMOVE_ONE, "declared": {"n": 64},
        "stages": [{"name": "training", "event": encode(_lots(None))}],
        "noise": {"sums": [], "others": [step]},
    }  # fmt: skip
    assert check_noises(certificate)[0] == []
    more = copy.deepcopy(certificate)
    more["noise"]["others"].append(step | {"access": 1, "multiplier": 3.0})
    assert "which its event has not" in check_noises(more)[0][0]
    less = copy.deepcopy(certificate)
    less["stages"][0]["event"] = {
        "type": "ComposedDpEvent",
        "events": [less["stages"][0]["event"], {"type": "GaussianDpEvent", "noise_multiplier": 3.0}],
    }
    assert "no noises together make" in check_noises(less)[0][0]

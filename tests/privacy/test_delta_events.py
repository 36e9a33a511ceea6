"""Deltas of accesses in plans, event trees, ledgers and both relations: never dropped, and never counted for less."""

import json
import math
import pickle

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from lightning_dpgen.privacy.access import PURE, Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_mu
from lightning_dpgen.privacy.accounting.event_parts import EpsilonDeltaDpEvent, gaussian_history
from lightning_dpgen.privacy.accounting.events import UnknownEvent, decode, encode
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE, Unaccountable, loss_distribution
from lightning_dpgen.privacy.accounting.renyi import compute_epsilon_by_rdp
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.mechanisms import gaussian, select_keys
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.privacy.sampling.samplers import Poisson

DELTA = 1e-5
DISCOVERY = StageSpec("discovery", {"n": 0.2, "keys": 0.8}, 1, max_noise=1e4, share=0.05, deltas={"keys": 2e-6})
TRAINING = StageSpec("training", {"gradient": 1.0}, 50, max_noise=1e4, sampler=Poisson(0.1))


def _failing(*deltas):
    return [EpsilonDeltaDpEvent(0.0, d) for d in deltas]


def _tree(*events):
    return dp_accounting.ComposedDpEvent(list(events))


@given(st.floats(0.3, 30.0), st.lists(st.floats(1e-9, 4e-6), min_size=1, max_size=2))
@settings(deadline=None, max_examples=15)
def test_full_passes_by_integration(multiplier, deltas):
    """The exact value is delta(eps) of the Gaussian by quadrature, beside the chance that one of the others fails."""
    epsilon = compute_epsilon(_tree(dp_accounting.GaussianDpEvent(multiplier), *_failing(*deltas)), DELTA).epsilon
    p, q = stats.norm(1, multiplier), stats.norm(0, multiplier)
    edge = multiplier**2 * epsilon + 0.5
    of_gaussian, _ = integrate.quad(
        lambda x: p.pdf(x) - math.exp(epsilon) * q.pdf(x),
        *(edge, edge + 30 * multiplier),
        limit=200,
        points=[edge + multiplier],
    )
    fails = 1.0 - np.prod(1.0 - np.array(deltas))
    assert fails + (1.0 - fails) * of_gaussian == pytest.approx(DELTA, rel=5e-3)


def test_a_composition_as_the_accountant_of_others_would_make_it():
    """dp-accounting knows the loss of an (epsilon, delta)-private mechanism, with a mass at infinity."""
    steps = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.5))
    steps_of_all = dp_accounting.SelfComposedDpEvent(steps, 40)
    tree = _tree(dp_accounting.GaussianDpEvent(4.0), steps_of_all, *_failing(1e-6, 2e-6, 1e-6))
    interval = 1e-3
    total = loss_distribution(dp_accounting.GaussianDpEvent(4.0), interval)
    total = total.compose(loss_distribution(steps, interval).self_compose(40))
    for d in (1e-6, 2e-6, 1e-6):
        fails = common.DifferentialPrivacyParameters(0.0, d)
        total = total.compose(pld.from_privacy_parameters(fails, value_discretization_interval=interval))
    ours = compute_epsilon(tree, DELTA, interval=interval).epsilon
    assert ours == pytest.approx(total.get_epsilon_for_delta(DELTA), rel=1e-4)
    assert ours > compute_epsilon(_tree(*tree.events[:2]), DELTA, interval=interval).epsilon * 1.01, (
        "dropped deltas would show"
    )
    assert compute_epsilon_by_rdp(tree, DELTA) > ours


@pytest.mark.parametrize("delta", [1e-5, 1e-6, 1e-9])
def test_what_uses_delta_up_has_no_epsilon(delta):
    for used in ([delta], [delta / 2, delta / 2, delta / 1e4], [min(0.9, 3 * delta)]):
        tree = _tree(dp_accounting.GaussianDpEvent(50.0), *_failing(*used))
        assert compute_epsilon(tree, delta).epsilon == math.inf == compute_epsilon_by_rdp(tree, delta)
    counted = dp_accounting.SelfComposedDpEvent(_tree(dp_accounting.GaussianDpEvent(50.0), *_failing(delta / 4)), 5)
    assert compute_epsilon(counted, delta).epsilon == math.inf


def test_failures_alone_cost_no_epsilon_and_need_a_delta():
    assert compute_epsilon(_failing(1e-6)[0], DELTA).epsilon == 0.0 == compute_epsilon_by_rdp(_failing(1e-6)[0], DELTA)
    with pytest.raises(ValueError, match="pure"):
        compute_epsilon(_failing(1e-6)[0], 0.0)
    with pytest.raises(Unaccountable):
        compute_epsilon(EpsilonDeltaDpEvent(0.5, 1e-6), DELTA)
    assert gaussian_history(_tree(dp_accounting.GaussianDpEvent(1.0), *_failing(1e-6))) is None


def test_a_record_replaced_fails_twice():
    """Probability d shifts one way and d the other: 2 d lies between two replacements, and not 1 - (1 - d)^2."""
    gaussian_alone = dp_accounting.GaussianDpEvent(4.0)
    tree = _tree(gaussian_alone, *_failing(1e-6))
    left = (DELTA - 2e-6) / (1.0 - 2e-6)
    assert (
        compute_epsilon(tree, DELTA, relation=REPLACE_ONE).epsilon
        == compute_epsilon(gaussian_alone, left, relation=REPLACE_ONE).epsilon
    )
    assert compute_epsilon(_tree(gaussian_alone, *_failing(0.5)), 0.9, relation=REPLACE_ONE).epsilon == math.inf


def test_the_order_of_events_makes_no_difference():
    events = [dp_accounting.GaussianDpEvent(3.0), *_failing(1e-7, 3e-7, 2e-6, 1e-9)]
    assert len({compute_epsilon(_tree(*np.roll(events, k)), DELTA).epsilon for k in range(5)}) == 1


def test_a_plan_stays_within_its_delta():
    plan = make_plan([DISCOVERY, TRAINING], epsilon=2.0, delta=DELTA)
    assert 1.99 < plan.epsilon <= 2.0 and plan.delta == DELTA
    # The same noise without the delta costs less, so the delta has been paid for.
    bare = make_plan([StageSpec(**{**vars(DISCOVERY), "deltas": {}}), TRAINING], epsilon=2.0, delta=DELTA)
    assert plan.stage("training").access.multiplier > bare.stage("training").access.multiplier
    # Shares are of what is left.
    full = make_plan([DISCOVERY, StageSpec("rest", {"x": 1.0}, 1, max_noise=1e4)], epsilon=2.0, delta=DELTA)
    left = (DELTA - 2e-6) / (1.0 - 2e-6)
    assert full.stage("discovery").access.multiplier ** -2 == pytest.approx(0.05 * gaussian_mu(2.0, left) ** 2, rel=3e-3)
    # Epsilon is exactly what the tree says, at the plan's own delta.
    again = decode(json.loads(json.dumps(encode(plan.event))))
    assert again == plan.event and compute_epsilon(again, DELTA).epsilon == plan.epsilon


def test_any_two_give_the_third_beside_a_delta():
    solved = make_plan([DISCOVERY, TRAINING], epsilon=2.0, delta=DELTA)
    noise = solved.stage("training").access.multiplier
    fixed = StageSpec(**{**vars(TRAINING), "noise": noise})
    by_noise = make_plan([DISCOVERY, fixed], epsilon=None, delta=DELTA)
    assert by_noise.epsilon == pytest.approx(2.0, rel=0.01) and by_noise.target_epsilon >= by_noise.epsilon
    steps = make_plan([DISCOVERY, StageSpec(**{**vars(fixed), "count": None})], epsilon=2.0, delta=DELTA)
    assert steps.stage("training").count == pytest.approx(50, abs=2) and steps.epsilon <= 2.0
    assert all(plan.stages[0].access.deltas == {"keys": 2e-6} for plan in (solved, by_noise, steps))
    off = make_plan([DISCOVERY, TRAINING], epsilon=math.inf, delta=DELTA)
    assert off.event == dp_accounting.NonPrivateDpEvent() and off.stages[0].access.deltas == {"keys": 2e-6}


@pytest.mark.parametrize("delta", [2e-6, 1e-6, 0.0])
def test_deltas_at_or_above_the_plans_are_refused(delta):
    with pytest.raises(ValueError, match="used up by the deltas of stages"):
        make_plan([DISCOVERY, TRAINING], epsilon=2.0, delta=delta)


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(ValueError, match="need a count"):
        make_plan([StageSpec(**{**vars(DISCOVERY), "count": None, "noise": 9.0})], epsilon=2.0, delta=DELTA)
    with pytest.raises(ValueError, match="without deltas"):
        make_plan([DISCOVERY], epsilon=2.0, delta=DELTA, relation=REPLACE_ONE)
    with pytest.raises(ValueError, match="full pass"):
        make_plan([StageSpec(**{**vars(DISCOVERY), "sampler": Poisson(0.5)})], epsilon=2.0, delta=DELTA)
    with pytest.raises(ValueError, match="gaussian"):
        make_plan([StageSpec(**{**vars(DISCOVERY), "kinds": {"keys": PURE}})], epsilon=2.0, delta=DELTA)


def test_accesses_and_plans_keep_their_deltas():
    plan = make_plan([DISCOVERY, TRAINING], epsilon=2.0, delta=DELTA)
    access = plan.stages[0].access
    for again in (Access.from_json(json.loads(json.dumps(access.as_json()))), pickle.loads(pickle.dumps(access))):
        assert again == access and again.event == access.event
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan
    assert "deltas" not in plan.stages[1].access.as_json()
    without = Access(access.stage, access.multipliers)
    assert without != access and without.event != access.event


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 1e-9}, {"epsilon": -1.0}, {"epsilon": None}, {"epsilon": False}, {"epsilon": "0"},
        *({"delta": bad} for bad in (0.0, 1.0, -1e-9, 1e-300, math.nan, math.inf, True, "1e-6", None, [1e-6])),
        {"more": 1},
    ],
)  # fmt: skip
def test_anything_else_in_an_event_is_refused(wrong):
    good = {"type": "EpsilonDeltaDpEvent", "epsilon": 0.0, "delta": 1e-6}
    assert decode(good) == EpsilonDeltaDpEvent(0.0, 1e-6)
    with pytest.raises(UnknownEvent):
        decode(good | wrong)
    with pytest.raises(UnknownEvent, match="merged"):
        decode({"type": "PoissonSampledDpEvent", "sampling_probability": 0.1, "event": good})


def _discover(account):
    with account.open("discovery") as access:
        gaussian(access, "n", torch.zeros(1), sensitivity=1.0)
        select_keys(access, "keys", np.array([1, 2]), np.array([500, 1]))


def test_a_resumed_run_pays_for_each_discovery(tmp_path):
    plan = make_plan([DISCOVERY, TRAINING], epsilon=2.0, delta=DELTA)
    account = Account(plan, tmp_path / "ledger")
    _discover(account)
    account.ledger._file.close(), account.ledger._witness.close(), account.ledger._lock.release()
    again = Account.resume(tmp_path / "ledger")
    assert again.plan == plan and again.ledger.accesses == [(plan.stages[0].access, 1)]
    again.go_on({})
    assert again.plan.stage("discovery").count == 2 and again.plan.stage("training").count < 50
    assert again.plan.epsilon <= 2.0
    assert again.plan.stage_events[0][1].count == 2
    _discover(again)
    for _ in range(again.plan.stage("training").count):
        with again.open("training", draw=again.sample("training", 9)[1]) as access:
            gaussian(access, "gradient", torch.zeros(1), sensitivity=1.0)
    again.verify_complete()
    assert again.certify()[1].epsilon == again.plan.epsilon


def test_a_run_that_found_its_keys_too_often_does_not_go_on():
    """Two deltas leave room, three do not, whatever the noise is."""
    spec = StageSpec(**{**vars(DISCOVERY), "deltas": {"keys": 4e-6}, "noise": 100.0})
    plan = make_plan([spec, TRAINING], epsilon=2.0, delta=DELTA)
    assert plan.rewrite({"discovery": 1}, {}).epsilon <= 2.0
    with pytest.raises(BudgetTooSmall):
        plan.rewrite({"discovery": 2}, {})

"""The cost of an account is bounded where a plan is made: no certificate is dearer to verify than a plan may be."""

import dp_accounting
import pytest

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.accounting.accountant import INTERVALS, MOST_POINTS, affordable, compute_epsilon
from lightning_dpgen.privacy.accounting.renyi import compute_epsilon_by_rdp
from lightning_dpgen.privacy.plan import MOST_STAGES, Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import Poisson


def _sampled(multiplier, rate, count=10):
    return dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier)), count
    )


def _plan(accesses):
    return Plan(tuple(Stage(access, 1, 0.1) for access in accesses), 8.0, 1e-5)


def test_a_plan_that_nobody_could_verify_is_refused():
    sampled = [Access(f"s{i}", {"sum": 5.0 + i}, sampler=Poisson(0.1)) for i in range(200)]
    with pytest.raises(ValueError, match="200 stages: accounting for their noises"):
        _plan(sampled)
    with pytest.raises(ValueError, match=f"expected at most {MOST_STAGES:,}"):
        _plan([Access(f"s{i}", {"sum": 500.0}) for i in range(MOST_STAGES + 1)])


def test_plans_of_many_stages_are_not():
    # Plans without an epsilon, or with one in closed form, cost nothing to account for.
    _plan([Access(f"s{i}", {"sum": 1e-3}, sampler=Poisson(0.1)) for i in range(5)])
    pure = [Access(f"s{i}", {"sum": 900.0 + i}, kinds={"sum": "laplace"}) for i in range(900)]
    assert Plan(tuple(Stage(access, 1, 0.1) for access in pure), 8.0, 0.0).spent.method == "closed form"
    _plan([Access(f"s{i}", {"sum": 500.0 + i}) for i in range(MOST_STAGES)])
    _plan([Access(f"s{i}", {"sum": 5.0 + i}, sampler=Poisson(0.1)) for i in range(50)])


@pytest.mark.parametrize(
    ("multiplier", "rate", "count"),
    [pytest.param(0.7, 1e-5, 30000, marks=pytest.mark.slow), (1.0, 1e-4, 1000), (5.0, 0.3, 100), (1.0, 0.01, 10**6)],
)
def test_an_account_never_takes_an_interval_that_its_reader_refuses(multiplier, rate, count):
    event = _sampled(multiplier, rate, count)
    interval = compute_epsilon(event, 1e-6).interval
    assert affordable(event, interval) and compute_epsilon_by_rdp(event, 1e-6) <= MOST_POINTS * interval


def test_equal_noises_and_full_passes_cost_nothing_more():
    lots = _sampled(1.0, 0.01)
    alone = [interval for interval in INTERVALS if affordable(lots, interval)]
    passes = [dp_accounting.GaussianDpEvent(2.0 + i) for i in range(500)]
    assert [i for i in INTERVALS if affordable(dp_accounting.ComposedDpEvent([lots, *passes]), i)] == alone
    within = dp_accounting.ComposedDpEvent([dp_accounting.ComposedDpEvent([lots, _sampled(1.0, 0.01, 70)])])
    assert [i for i in INTERVALS if affordable(within, i)] == alone

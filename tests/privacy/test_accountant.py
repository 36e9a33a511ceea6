"""Epsilon against other accountants, closed forms and its own promises."""

import math
import warnings

import dp_accounting
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_epsilon, gaussian_mu, round_down, round_up
from lightning_dpgen.privacy.accounting.renyi import compute_epsilon_by_rdp
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.privacy.sampling.samplers import Poisson

DELTA = 1e-5


def _steps(rate, multiplier, count):
    return dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier)), count
    )


def _prv(history):
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = history
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return accountant.get_epsilon(delta=DELTA, eps_error=0.01)


@pytest.mark.parametrize(
    ("rate", "multiplier", "count", "one_more"),
    [
        (0.01, 1.0, 500, 8.0),
        (0.05, 2.0, 300, 5.0),
        (0.5, 7.0, 60, 2.0),
        pytest.param(0.0017, 0.97, 2000, 30.0, marks=pytest.mark.slow),
    ],
)
def test_agrees_with_the_accountant_of_opacus(rate, multiplier, count, one_more):
    """PRV adds its error of 0.01 to what it returns, so it lies above, and within that error and 1 %."""
    event = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(one_more), _steps(rate, multiplier, count)])
    ours, theirs = compute_epsilon(event, DELTA).epsilon, _prv([(one_more, 1.0, 1), (multiplier, rate, count)])
    assert theirs - 0.01 - 0.01 * theirs <= ours <= theirs + 0.002
    assert ours <= compute_epsilon_by_rdp(event, DELTA)


@pytest.mark.parametrize(("multiplier", "delta"), [(1 / 10.66, 0.9999999), (1 / 12, 0.99999999), (2.0, 1e-30), (1e-3, 0.5)])
def test_the_shift_of_a_gaussian_is_found_at_any_delta(multiplier, delta):
    epsilon = gaussian_epsilon(1.0 / multiplier, delta)
    assert 1.0 / gaussian_mu(epsilon, delta) == pytest.approx(multiplier, rel=1e-6)
    assert gaussian_mu(math.inf, delta) == math.inf


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 4.0, 40.0])
def test_one_gaussian_is_the_closed_form(multiplier):
    epsilon = compute_epsilon(dp_accounting.GaussianDpEvent(multiplier), DELTA).epsilon
    # delta(eps) = integral of (p - e^eps q)+ with p = N(1, m^2) and q = N(0, m^2), by quadrature.
    p, q = stats.norm(1, multiplier), stats.norm(0, multiplier)
    edge = multiplier**2 * epsilon + 0.5
    width = 30 * multiplier
    delta, _ = integrate.quad(
        lambda x: p.pdf(x) - math.exp(epsilon) * q.pdf(x), edge, edge + width, limit=200, points=[edge + multiplier]
    )
    assert delta == pytest.approx(DELTA, rel=5e-3)
    assert 1 / gaussian_mu(epsilon, DELTA) == pytest.approx(multiplier, rel=2e-3)


def test_gaussians_of_one_access_are_merged_and_sampled_once():
    access = Access("training", {"norms": 4.0, "gradient": 1.0}, sampler=Poisson(0.0017))
    assert access.multiplier == pytest.approx(0.970, abs=5e-4)
    merged = compute_epsilon(dp_accounting.SelfComposedDpEvent(access.event, 11780), DELTA).epsilon
    # As two events, each sampled by itself, the lot would cost less than is spent (docs/PRIVACY.md).
    apart = compute_epsilon(dp_accounting.ComposedDpEvent([_steps(0.0017, m, 11780) for m in (4.0, 1.0)]), DELTA).epsilon
    assert merged == pytest.approx(0.981, abs=2e-3) and apart < merged - 0.02


@pytest.mark.parametrize("multipliers", [{"a": 3, "b": 2}, {"a": 3.0, "b": 2.0}])
def test_multipliers_are_python_floats(multipliers):
    access = Access("s", multipliers)
    assert all(type(m) is float for m in access.multipliers.values())
    assert type(access.event.noise_multiplier) is float


@pytest.mark.parametrize(
    "wrong",
    [{"sampler": 0.5}, *({"multipliers": m} for m in ({}, {"a": -1.0}, {"a": math.inf}))],
)
def test_an_impossible_access_is_refused(wrong):
    with pytest.raises(ValueError):
        Access(**({"stage": "s", "multipliers": {"a": 1.0}} | wrong))


def test_not_private_is_infinite():
    assert compute_epsilon(dp_accounting.NonPrivateDpEvent(), DELTA).epsilon == math.inf
    mixed = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(1.0), dp_accounting.NonPrivateDpEvent()])
    assert compute_epsilon(mixed, DELTA).epsilon == math.inf


@given(st.floats(1e-6, 1e6))
@settings(deadline=None)
def test_rounding_goes_the_safe_way(value):
    up, down = round_up(value), round_down(value)
    assert up >= value * (1 - 1e-13) and down <= value * (1 + 1e-13)
    assert up == pytest.approx(value, rel=1e-5) and down == pytest.approx(value, rel=1e-5)
    assert round_up(up) == up and round_down(down) == down


@pytest.mark.parametrize(("epsilon", "rate", "count"), [(0.3, 0.1, 50), (2.0, 0.01, 400), (6.0, 1.0, 20)])
def test_a_plan_meets_its_target_from_below(epsilon, rate, count):
    specs = [
        StageSpec("mean", {"counts": 0.2, "sums": 0.8}, 2, max_noise=1e4, share=0.2),
        StageSpec("training", {"gradient": 1.0}, count, max_noise=1e4, sampler=Poisson(rate)),
    ]
    plan = make_plan(specs, epsilon=epsilon, delta=DELTA)
    assert 0.99 * epsilon < plan.epsilon <= epsilon
    curve = plan.curve("training")
    assert list(curve.epsilons) == sorted(curve.epsilons)
    assert curve.at(0) == 0.0 and curve.at(count) >= 0.999 * plan.epsilon
    half = make_plan_prefix(plan, count // 2)
    assert curve.at(count // 2) >= compute_epsilon(half, DELTA).epsilon * (1 - 1e-9)


def make_plan_prefix(plan, count):
    first, second = plan.stages
    return dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(first.access.event, first.count),
            dp_accounting.SelfComposedDpEvent(second.access.event, count),
        ]
    )


def test_a_budget_that_is_too_small_says_what_fits():
    def plan(epsilon, count):
        return make_plan(
            [StageSpec("training", {"gradient": 1.0}, count, max_noise=20, sampler=Poisson(0.1))],
            epsilon=epsilon,
            delta=DELTA,
        )

    with pytest.raises(BudgetTooSmall, match="of the 5000 accesses") as error:
        plan(0.5, 5000)
    words = str(error.value).replace(",", "").split()
    plan(0.5, int(words[words.index("of", words.index("or")) - 1]))
    plan(float(next(w for w in words if w.startswith("epsilon=") and w != "epsilon=0.5").split("=")[1]), 5000)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, 1e9])
def test_an_impossible_epsilon_is_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon"):
        make_plan([StageSpec("t", {"g": 1.0}, 1, max_noise=10)], epsilon=epsilon, delta=DELTA)


@pytest.mark.parametrize("delta", [1.0, -1e-5, math.nan])
def test_an_impossible_delta_is_refused(delta):
    with pytest.raises(ValueError, match="delta"):
        make_plan([StageSpec("t", {"g": 1.0}, 1, max_noise=10)], epsilon=1.0, delta=delta)


def test_shares_must_leave_something():
    with pytest.raises(ValueError, match="less than 1"):
        make_plan(
            [StageSpec("a", {"g": 1.0}, 1, max_noise=10, share=1.0), StageSpec("t", {"g": 1.0}, 1, max_noise=10)],
            epsilon=1.0,
            delta=DELTA,
        )

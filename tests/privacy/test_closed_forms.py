"""Epsilon where theory has a formula, and the order in which bounds must lie: exact <= ours <= Renyi."""

import math

import dp_accounting
import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import RDPAccountant
from scipy.special import ndtr

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_mu
from lightning_dpgen.privacy.accounting.renyi import compute_epsilon_by_rdp, moments_of, sampled_moments
from lightning_dpgen.privacy.plan import Curve, Plan, Stage
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec


def _delta_of_gaussian(mu, epsilon):
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


@given(st.floats(0.01, 20.0), st.floats(-10, -1).map(lambda e: 10.0**e))
@settings(deadline=None, max_examples=60)
def test_gaussian_mu_inverts_the_closed_form(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert _delta_of_gaussian(mu, epsilon) == pytest.approx(delta, rel=1e-4)
    assert _delta_of_gaussian(1.001 * mu, epsilon) > delta > _delta_of_gaussian(0.999 * mu, epsilon)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize("multipliers", [[1.0], [0.7, 3.0], [10.0] * 40])
def test_full_passes_cost_one_gaussian_with_the_squares_added(multipliers, delta):
    """Never below the exact epsilon, and within 0.2 % of it; a multiplier wrong by sqrt 2 is rejected."""
    event = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(m) for m in multipliers])
    mu = math.sqrt(sum(m**-2 for m in multipliers))
    epsilon = compute_epsilon(event, delta).epsilon
    assert _delta_of_gaussian(mu, epsilon) <= delta * (1 + 1e-6)
    assert _delta_of_gaussian(mu, epsilon / 1.002) > delta
    assert _delta_of_gaussian(mu * math.sqrt(2), epsilon) > 1.5 * delta


@given(st.lists(st.floats(0.05, 1e3), min_size=1, max_size=5))
def test_the_merged_multiplier_is_the_smallest_and_ignores_order(multipliers):
    access = Access("s", {str(i): m for i, m in enumerate(multipliers)})
    again = Access("s", {str(i): m for i, m in enumerate(reversed(multipliers))})
    assert access.multiplier == pytest.approx(again.multiplier, rel=1e-12)
    assert access.multiplier <= min(multipliers) * (1 + 1e-12)
    assert access.multiplier == pytest.approx(sum(m**-2 for m in multipliers) ** -0.5, rel=1e-12)


@pytest.mark.parametrize(("rate", "multiplier", "count"), [(0.01, 1.0, 500), (0.3, 5.0, 50), (0.001, 0.6, 1000)])
def test_the_moments_accountant_of_opacus_lies_above(rate, multiplier, count):
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier)), count
    )
    accountant = RDPAccountant()
    accountant.history = [(multiplier, rate, count)]
    theirs = accountant.get_epsilon(delta=1e-5)
    ours = compute_epsilon(event, 1e-5).epsilon
    assert ours <= theirs and ours <= compute_epsilon_by_rdp(event, 1e-5)
    assert ours > 0.5 * theirs, "not lower than what could be true"
    # Twice as many steps, or noise smaller by sqrt 2, never cost less.
    assert ours < compute_epsilon(dp_accounting.SelfComposedDpEvent(event, 2), 1e-5, interval=1e-3).epsilon


def test_a_coarser_interval_only_overstates():
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.5)), 100
    )
    coarse, fine = (compute_epsilon(event, 1e-5, interval=i).epsilon for i in (1e-2, 1e-3))
    settled = compute_epsilon(event, 1e-5)
    assert coarse > fine >= settled.epsilon and 5e-6 <= settled.interval <= 1e-3


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0.0, 5.0)), min_size=1, max_size=6), st.integers(-3, 400))
def test_a_curve_never_shows_less_than_the_next_knot(parts, step):
    steps, epsilons, at, epsilon = [], [], 0, 0.0
    for more, extra in parts:
        at, epsilon = at + more, epsilon + extra
        steps.append(at)
        epsilons.append(epsilon)
    shown = Curve(steps, dict(zip(steps, epsilons, strict=True)).__getitem__).at(step)
    assert shown == (0.0 if step <= 0 else next((e for s, e in zip(steps, epsilons, strict=True) if s >= step), epsilon))


def test_the_curve_of_a_stage_starts_from_what_came_before():
    """Full passes, where the exact epsilon is known at each step."""
    first, second = Access("a", {"x": 3.0}), Access("b", {"x": 10.0})
    plan = Plan((Stage(first, 1, 0.5), Stage(second, 40, 0.5)), 10.0, 1e-5)
    curve = plan.curve("b", points=5)
    assert curve.steps == (2, 6, 14, 26, 40) and curve.epsilons[-1] == plan.epsilon
    for step in range(1, 41):
        assert _delta_of_gaussian(math.sqrt(1 / 9 + step / 100), curve.at(step)) <= 1e-5 * (1 + 1e-6)


def test_a_stage_gets_its_share_of_mu_squared():
    specs = [
        StageSpec("a", {"x": 1.0}, 2, max_noise=1e4, share=0.3),
        StageSpec("b", {"x": 0.25, "y": 0.75}, 5, max_noise=1e4, share=0.2),
        StageSpec("rest", {"z": 1.0}, 3, max_noise=1e4),
    ]
    plan = make_plan(specs, epsilon=2.0, delta=1e-5)
    total = gaussian_mu(2.0, 1e-5) ** 2
    parts = [stage.count * stage.access.multiplier**-2 for stage in plan.stages]
    assert parts == pytest.approx([0.3 * total, 0.2 * total, 0.5 * total], rel=3e-3)
    b = plan.stage("b").access.multipliers
    assert b["x"] ** -2 / b["y"] ** -2 == pytest.approx(1 / 3)
    assert [stage.share for stage in plan.stages] == pytest.approx([0.3, 0.2, 0.5])


def test_a_plan_without_a_budget_is_not_private():
    stages = [StageSpec("a", {"x": 1.0}, 2, max_noise=0.1, share=0.3), StageSpec("b", {"x": 1.0}, 9, max_noise=0.1)]
    plan = make_plan(stages, epsilon=math.inf, delta=1e-5)
    assert not plan.private and plan.epsilon == math.inf
    assert plan.event == dp_accounting.NonPrivateDpEvent()


@pytest.mark.parametrize("shares", [[None, None], [0.5, 0.6], [0.5, 0.5, None], [0.0, None], [-0.1, None], [1.2, None]])
def test_impossible_shares_are_refused(shares):
    specs = [StageSpec(str(i), {"x": 1.0}, 1, max_noise=100, share=share) for i, share in enumerate(shares)]
    with pytest.raises(ValueError, match="budget"):
        make_plan(specs, epsilon=1.0, delta=1e-5)


def test_an_impossible_count_is_refused():
    with pytest.raises(ValueError, match="count=0"):
        make_plan([StageSpec("a", {"x": 1.0}, 0, max_noise=100)], epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 1e4])
@pytest.mark.parametrize("rate", [1e-9, 0.01, 0.999])
def test_moments_of_sampled_noise_are_right_in_each_digit(rate, multiplier):
    """The sum itself, in sixty digits: moments may be as small as 1e-26, and are then composed a million times."""
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    with mpmath.workdps(60):
        q = mpmath.mpf(rate)
        for order, found in zip((2, 3, 64, 512), moments_of(event, (2, 3, 64, 512)), strict=True):
            terms = (
                mpmath.binomial(order, i)
                * (1 - q) ** (order - i)
                * q**i
                * mpmath.exp((i * i - i) / mpmath.mpf(multiplier) ** 2 / 2)
                for i in range(order + 1)
            )
            assert float(found / (mpmath.log(mpmath.fsum(terms)) / (order - 1)) - 1) == pytest.approx(0.0, abs=2e-12)
    assert (sampled_moments(rate, 1.001 * multiplier, [2]) < sampled_moments(rate, multiplier, [2]) * (1 - 1e-4)).all()

"""Privacy profiles against dp-accounting, quadrature, and (for replace-one) every other pair of neighbours."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from scipy import integrate, stats
from scipy.special import ndtr

from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_epsilon
from lightning_dpgen.privacy.accounting.pld import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    Unaccountable,
    addition_profile,
    gaussian_profile,
    loss_distribution,
    removal_profile,
    replacement_profile,
)

STOCK = {ADD_OR_REMOVE_ONE: NeighboringRelation.ADD_OR_REMOVE_ONE, REPLACE_ONE: NeighboringRelation.REPLACE_ONE}
SETTINGS = [
    (0.0017, 0.97, 2000, 1e-5),
    (2.2e-5, 0.97, 2000, 1e-8),
    (0.5, 2.3, 60, 1e-5),
    (0.3, 0.5, 3, 1e-10),
    (1.0, 3.0, 4, 1e-5),
]


def _sampled(rate, multiplier):
    gaussian = dp_accounting.GaussianDpEvent(multiplier)
    return gaussian if rate == 1.0 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)


@pytest.mark.parametrize("relation", STOCK)
@pytest.mark.parametrize(("rate", "multiplier", "count", "delta"), SETTINGS)
def test_is_what_dp_accounting_computes_point_by_point(rate, multiplier, count, delta, relation):
    stock = PLDAccountant(STOCK[relation], value_discretization_interval=1e-3)
    stock.compose(_sampled(rate, multiplier), count)
    ours = loss_distribution(_sampled(rate, multiplier), 1e-3, relation).self_compose(count)
    # At tiny rates and deltas the stock differences of cumulative functions lose digits; ours do not.
    assert ours.get_epsilon_for_delta(delta) == pytest.approx(stock.get_epsilon(delta), rel=1e-4)


@pytest.mark.parametrize(
    "loss", [-3.0, 0.0, 0.7, pytest.param(-0.5, marks=pytest.mark.slow), pytest.param(4.0, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("rate", "multiplier"), [(0.2, 0.8), (0.01, 2.0), (1.0, 1.5)])
def test_a_profile_is_its_integral(loss, rate, multiplier):
    """The exact value is delta(eps) = integral of (p - e^eps q)+, for each of the three pairs."""
    out, one, other = (stats.norm(mean, multiplier) for mean in (0, 1, -1))

    def mixed(shifted, x):
        return (1 - rate) * out.pdf(x) + rate * shifted.pdf(x)

    pairs = {
        removal_profile: (lambda x: mixed(one, x), out.pdf),
        addition_profile: (out.pdf, lambda x: mixed(one, x)),
        replacement_profile: (lambda x: mixed(one, x), lambda x: mixed(other, x)),
    }
    grid = np.linspace(-14 * multiplier - 1, 14 * multiplier + 1, 400_001)
    for profile, (p, q) in pairs.items():
        exact = integrate.trapezoid(np.maximum(p(grid) - math.exp(loss) * q(grid), 0.0), grid)
        assert profile(np.array([loss]), multiplier, rate)[0] == pytest.approx(exact, rel=1e-5, abs=1e-9)
    assert gaussian_profile(np.array([loss]), multiplier)[0] == pytest.approx(
        removal_profile(np.array([loss]), multiplier, 1.0)[0], rel=1e-12
    )


def _divergence(near, far, angle, multiplier, rate, epsilon):
    """Compute delta(epsilon) of one record at distance `near` from the rest, replaced by one at `far`, at an `angle`.

    The integral runs over a grid along the second's direction; across it, the first prevails on a half-line.
    """
    a, b, alpha = near / multiplier, far / multiplier, math.exp(epsilon)
    s = np.linspace(-12 - b, 12 + b, 20_001)
    keep, away = (alpha - 1) * (1 - rate), alpha * rate
    with np.errstate(divide="ignore"):
        level = np.log((keep + away * np.exp(b * s - b * b / 2)) / rate) + a * a / 2
    sine = max(math.sin(angle), 1e-12)
    edge = (a * s * math.cos(angle) - level) / (a * sine)
    inside = rate * stats.norm.pdf(s - a * math.cos(angle)) * ndtr(edge + a * sine) - (
        keep * stats.norm.pdf(s) + away * stats.norm.pdf(s - b)
    ) * ndtr(edge)
    return integrate.trapezoid(inside, s)


def test_no_pair_of_records_is_worse_than_the_antipodal_one():
    """The theorem of docs/PRIVACY.md holds at 40 random settings, and so do its three steps: angle, near, far."""
    random = np.random.default_rng(0)
    for _ in range(40):
        multiplier, rate = random.uniform(0.4, 3), random.choice([1.0, 0.5, 0.1, 0.01]) * random.uniform(0.2, 1)
        epsilon = random.exponential(1.0)
        near, far, angle = random.uniform(0.05, 1), random.uniform(0, 1), random.uniform(0, math.pi)
        bound = replacement_profile(np.array([epsilon]), multiplier, rate)[0]
        path = [
            _divergence(near, far, angle, multiplier, rate, epsilon),
            _divergence(near, far, math.pi, multiplier, rate, epsilon),
            _divergence(1.0, far, math.pi, multiplier, rate, epsilon),
            _divergence(1.0, 1.0, math.pi, multiplier, rate, epsilon),
        ]
        assert all(later >= earlier - 1e-6 * earlier - 1e-9 for earlier, later in itertools.pairwise(path))
        assert path[-1] == pytest.approx(bound, rel=2e-4, abs=1e-9)  # the edge falls between two points of the grid


def test_replacing_costs_more_than_adding_and_less_than_both():
    event = dp_accounting.SelfComposedDpEvent(_sampled(0.01, 1.0), 200)
    one = compute_epsilon(event, 1e-5).epsilon
    replaced = compute_epsilon(event, 1e-5, relation=REPLACE_ONE).epsilon
    # A removal and an addition one after the other cost (2 eps, (1 + e^eps) delta).
    both = 2 * compute_epsilon(event, 1e-5 / (1 + math.exp(2 * one))).epsilon
    assert one < replaced < both


def test_pure_epsilon_is_the_sum_of_inverse_multipliers():
    laplace = dp_accounting.LaplaceDpEvent
    event = dp_accounting.ComposedDpEvent([dp_accounting.SelfComposedDpEvent(laplace(4.0), 3), laplace(2.0)])
    assert compute_epsilon(event, 0.0).epsilon == 1.25
    assert compute_epsilon(event, 0.0, relation=REPLACE_ONE).epsilon == 1.25
    assert compute_epsilon(event, 1e-9).epsilon <= 1.2501
    with pytest.raises(ValueError, match="only Laplace noise is pure"):
        compute_epsilon(dp_accounting.ComposedDpEvent([event, dp_accounting.GaussianDpEvent(1.0)]), 0.0)


def test_what_has_no_sound_account_is_refused():
    with pytest.raises(Unaccountable, match="LaplaceDpEvent under replace_one"):
        compute_epsilon(dp_accounting.LaplaceDpEvent(1.0), 1e-5, relation=REPLACE_ONE)
    with pytest.raises(ValueError, match="relation='replace'"):
        compute_epsilon(dp_accounting.GaussianDpEvent(1.0), 1e-5, relation="replace")


@pytest.mark.parametrize("delta", [1e-8, 1e-11, 1e-12, 1e-13, 1e-15])
@pytest.mark.parametrize("count", [1000, 30_000])
def test_no_rounding_makes_epsilon_too_small(count, delta):
    """Sampled with probability nearly 1, a Gaussian of multiplier 1 has the epsilon of its closed form."""
    step = dp_accounting.PoissonSampledDpEvent(1 - 1e-9, dp_accounting.GaussianDpEvent(math.sqrt(count)))
    exact = gaussian_epsilon(1.0, delta)
    answer = compute_epsilon(dp_accounting.SelfComposedDpEvent(step, count), delta)
    assert exact * (1 - 1e-6) <= answer.epsilon <= exact * 1.15
    if answer.method == "rdp":
        assert delta < 1e-13 * count

"""Losses that are made from arrays and composed with themselves equal dp-accounting's, number by number."""

import functools
import math

import numpy as np
import pytest
from dp_accounting.pld import common, pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from lightning_dpgen.privacy.accounting.accountant import _ROUNDING
from lightning_dpgen.privacy.accounting.pld import (
    DenseLoss,
    GaussianLosses,
    addition_profile,
    epsilon_at,
    removal_profile,
    replacement_profile,
)

PROFILES = {
    "removed": (removal_profile, AdjacencyType.REMOVE),
    "added": (addition_profile, AdjacencyType.ADD),
    "replaced": (replacement_profile, AdjacencyType.REPLACE),
}
# Rate, multiplier, runs, interval; the last has a handful of points.
SETTINGS = [
    (0.01, 1.0, 1000, 1e-3),
    (0.3, 0.6, 7, 1e-3),
    (2e-5, 0.9, 10**5, 2e-3),
    (0.5, 40.0, 1, 1e-4),
    (0.9, 50.0, 3, 0.1),
]


@pytest.fixture(params=PROFILES, scope="module")
def dots(request):
    """Return a function that makes a distribution in both ways, that of dp-accounting first."""

    @functools.cache
    def of(rate, multiplier, interval):
        profile, adjacency = PROFILES[request.param]
        bounds = GaussianPrivacyLoss(multiplier, sampling_prob=rate, adjacency_type=adjacency).connect_dots_bounds()
        low, high = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
        deltas = np.clip(profile(interval * np.arange(low, high + 1), multiplier, rate), 0.0, 1.0)
        deltas = np.minimum.accumulate(deltas)
        stock = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, high, deltas)
        return stock.to_dense_pmf(), DenseLoss.connecting(interval, low, deltas)

    return of


@pytest.fixture(scope="module")
def composed(dots):
    """Return a function that makes a distribution in both ways and composes it with itself."""

    @functools.cache
    def of(rate, multiplier, count, interval):
        return tuple(own.self_compose(count) for own in dots(rate, multiplier, interval))

    return of


@pytest.mark.parametrize(("rate", "multiplier", "count", "interval"), SETTINGS)
def test_is_what_dp_accounting_makes_and_composes(dots, composed, rate, multiplier, count, interval):
    stock, ours = dots(rate, multiplier, interval)
    np.testing.assert_allclose(ours._probs, stock._probs, rtol=0, atol=1e-15)
    assert (ours._lower_loss, ours._infinity_mass) == (stock._lower_loss, stock._infinity_mass)
    # The same places are kept, but for rounding at a place itself.
    bounds = common.compute_self_convolve_bounds(stock._probs, count, 1e-15)
    assert np.abs(np.subtract(ours._bounds(count, 1e-15), bounds)).max() <= 1
    stock, ours = composed(rate, multiplier, count, interval)
    assert ours._infinity_mass == stock._infinity_mass
    # Both are off by rounding, which grows with the count; the accountant leaves it ten times as much room.
    rounding = 0.1 * _ROUNDING * count
    epsilons = np.linspace(0.0, interval * (stock._lower_loss + stock.size), 40)
    deltas, expected = ours.get_delta_for_epsilon(epsilons), stock.get_delta_for_epsilon(epsilons)
    np.testing.assert_allclose(deltas, expected, rtol=1e-9, atol=rounding)


@pytest.mark.parametrize(("rate", "multiplier", "count", "interval"), SETTINGS)
@pytest.mark.parametrize(
    "delta", [0.0, 1e-13, 1e-5, 0.3, *(pytest.param(delta, marks=pytest.mark.slow) for delta in (1e-30, 1e-9, 1e-2, 0.9))]
)
def test_epsilon_is_that_of_dp_accounting(composed, rate, multiplier, count, interval, delta):
    stock, ours = composed(rate, multiplier, count, interval)
    for removed, added in ((ours, None), (ours, stock), (stock, ours)):
        both = pld.PrivacyLossDistribution(removed, added)
        expected = both.get_epsilon_for_delta(delta)
        assert epsilon_at(both, delta) == pytest.approx(expected, rel=1e-9, abs=1e-12), (expected, delta)


@pytest.mark.parametrize("tail", [0.0, 1e-15, 1e-3, 0.5])
def test_two_in_a_row_are_those_of_dp_accounting(dots, tail):
    first, second = (dots(*setting)[1] for setting in ((0.01, 1.0, 1e-3), (0.3, 0.6, 1e-3)))
    stock = [pld_pmf.DensePLDPmf(1e-3, own._lower_loss, own._probs, own._infinity_mass, True) for own in (first, second)]
    expected, found = stock[0].compose(stock[1], tail), first.compose(second, tail)
    assert found._lower_loss == expected._lower_loss and np.array_equal(found._probs, expected._probs)
    assert found._infinity_mass == expected._infinity_mass
    for epsilon in (-1.0, 0.0, 0.5, 0.5001, 2.0, 1e3):
        delta = found.get_delta_for_epsilon(epsilon)
        assert delta == pytest.approx(expected.get_delta_for_epsilon(epsilon), rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("adjacency", AdjacencyType)
@pytest.mark.parametrize(("rate", "multiplier"), [(1e-4, 0.3), (0.3, 1.0), (1.0, 20.0)])
def test_bounds_of_losses_are_those_of_dp_accounting(adjacency, rate, multiplier):
    stock = GaussianPrivacyLoss(multiplier, sampling_prob=rate, adjacency_type=adjacency)
    assert GaussianLosses(multiplier, rate, adjacency).connect_dots_bounds() == stock.connect_dots_bounds()


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.nan])
def test_a_gaussian_without_noise_has_no_losses(multiplier):
    with pytest.raises(ValueError, match=r"multiplier=.*: expected a number above 0"):
        GaussianLosses(multiplier, 0.5, AdjacencyType.REMOVE)


@pytest.mark.parametrize(("loss", "infinite"), [(800.0, 0.0), (-800.0, 0.0), (0.0, 0.0), (1.0, 0.2), (-3.0, 1e-3)])
def test_epsilon_of_one_loss_is_that_of_dp_accounting(loss, infinite):
    """A loss of 800 has e^-loss = 0; one of -800 is above no epsilon."""
    one = pld.PrivacyLossDistribution(
        pld_pmf.DensePLDPmf(0.5, round(loss / 0.5), np.array([1.0 - infinite]), infinite, True)
    )
    for delta in (0.0, 1e-3, 0.1, 0.5):
        try:
            expected = one.get_epsilon_for_delta(delta)
        except OverflowError:
            expected = 0.0
        assert epsilon_at(one, delta) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("times", "tail"), [(0, 1e-15), (3, 0.0)])
def test_no_run_and_no_tail_are_refused(times, tail):
    with pytest.raises(ValueError, match="expected 1 or more, and a number above 0"):
        DenseLoss.connecting(0.1, -1, np.array([0.2, 0.1, 0.0])).self_compose(times, tail)

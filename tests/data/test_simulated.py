"""Simulated records are as described: Table 2's moments of baskets, days of water meters, points at their places."""

import numpy as np
import pytest

from lightning_dpgen.data.simulated import baskets, meters, points


@pytest.mark.parametrize("name", ["transit", "cdr"])
def test_moments_of_baskets_are_those_of_table_2(name):
    printed, n = baskets.WORLDS[name], 20_000
    drawn = baskets.draw_baskets(name, n)
    sizes = np.diff(drawn.indptr)
    assert drawn.shape == (n, printed.items) and sizes.max() == printed.largest and sizes.min() >= 1
    # The seed is fixed; sizes have standard deviations of 5 and 14, so a mean of 20,000 is within 0.1 at most.
    assert sizes.mean() == pytest.approx(printed.mean, abs=0.25)
    if printed.share_sd:
        assert (np.bincount(drawn.indices, minlength=printed.items) / n).std() == pytest.approx(printed.share_sd, rel=0.1)
    # Other people go to the same places: shares of items of two draws are alike.
    other = baskets.draw_baskets(name, n, draw=1)
    shares = [np.bincount(one.indices, minlength=printed.items) / n for one in (drawn, other)]
    assert np.corrcoef(*shares)[0, 1] > 0.98


def test_a_few_baskets_hold_the_largest():
    drawn = baskets.draw_baskets("transit", 3)
    assert drawn.has_canonical_format and np.diff(drawn.indptr).max() == 57


def test_days_of_meters_are_as_described():
    readings, place, meter = meters.draw_meters(4000)
    assert readings.shape == (4000, 96) and readings.min() == 0.0 and readings.max() <= meters.LARGEST
    assert all(len(set(place[meter == m])) == 1 for m in np.unique(meter)), "a meter has one neighbourhood"
    assert 900 < len(np.unique(meter)) <= meters.METERS
    totals = readings.sum(axis=1)
    assert 100 < totals.mean() < 400 and totals[place == 1].mean() > 1.3 * totals[place == 0].mean(), "gardens take water"
    early = readings[:, 16:24].sum(axis=1)
    assert early[place == 3].mean() > 2.0 * early[place == 0].mean(), "the port rises early"


def test_points_lie_at_their_places():
    six = points.draw_six_gaussians(6000)
    away = np.linalg.norm(six[:, None] - points.centres_of_six()[None], axis=2)
    # A Rayleigh distance is below three deviations but once in ninety.
    assert (away.min(axis=1) < 3.0 * points.DEVIATION).mean() == pytest.approx(1.0 - np.exp(-4.5), abs=0.005)
    assert np.bincount(away.argmin(axis=1)).min() > 850
    arms = [points.draw_pinwheel(n)[1] for n in (1, 10, 400)]
    assert [len(one) for one in arms] == [1, 10, 400] and np.bincount(arms[2]).tolist() == [100] * 4
    # An arm is the first one, turned by a quarter for each.
    spiral, arm = points.draw_pinwheel(40_000)
    means = np.array([spiral[arm == one].mean(axis=0) for one in range(4)])
    assert np.allclose(means[1:], [[y, -x] for x, y in means[:-1]], atol=0.02)

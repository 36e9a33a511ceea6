"""Keys above a threshold: the largest difference of neighbours, by integration and by sampling; and refusals."""

import math

import numpy as np
import pytest
from contracts.laws import discovery as laws
from scipy.special import ndtr
from scipy.stats import norm

from lightning_dpgen.privacy.access import LAPLACE, Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.mechanisms import key_threshold, select_keys
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import Poisson


@pytest.mark.parametrize("most", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_keys_of_one_record_are_seen_with_its_delta(most):
    laws.keys_of_one_record_are_seen_with_its_delta(most)


def _paid(epsilon, multiplier, delta):
    """Compute delta(epsilon) of the Gaussian mechanism beside a failure of probability delta, from the textbook."""
    mu = 1.0 / multiplier
    of_gaussian = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
    return delta + (1.0 - delta) * of_gaussian


def _spent(epsilon, multiplier, threshold, *, most, common):
    """Compute the larger delta(epsilon) of two neighbours, by integration over all that they release.

    One record holds `most` keys: others hold `common` of them too, and the rest is its own. By rotation, the counts of the
    common keys are one normal number that moves by the square root of their number; here none of them is below the
    threshold, which only hides.
    """
    deviation = multiplier * math.sqrt(most)
    unseen = norm.cdf((threshold - 1.0) / deviation) ** (most - common)
    shift = math.sqrt(common)
    x = np.linspace(-12 * deviation, shift + 12 * deviation, 100_001)
    without, with_it = norm.pdf(x, 0.0, deviation), unseen * norm.pdf(x, shift, deviation)
    removed = 1.0 - unseen + np.trapezoid(np.maximum(with_it - math.exp(epsilon) * without, 0.0), x)
    added = np.trapezoid(np.maximum(without - math.exp(epsilon) * with_it, 0.0), x)
    return max(removed, added)


@pytest.mark.parametrize("multiplier", [0.7, 3.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_a_new_record_costs_no_more_than_is_paid(multiplier, delta):
    """This holds for any part of its keys that others hold too; all of the price is needed where they hold none, or all."""
    most = 4
    threshold = key_threshold(multiplier, most, delta)
    for epsilon in (0.0, 0.1, 1.0, 3.0):
        paid = _paid(epsilon, multiplier, delta)
        for common in range(most + 1):
            spent = _spent(epsilon, multiplier, threshold, most=most, common=common)
            assert spent <= paid * (1 + 1e-6) + 1e-12
    # Where no other record holds its keys, it is at most delta; a threshold one lower exceeds that.
    assert _spent(20.0, multiplier, threshold, most=most, common=0) <= delta * (1 + 1e-6)
    assert _spent(20.0, multiplier, threshold - 1.0, most=most, common=0) > delta
    # Where others hold all of its keys, the cost is all of the Gaussian's.
    of_gaussian = _spent(0.1, multiplier, threshold, most=most, common=most)
    assert of_gaussian == pytest.approx(_paid(0.1, multiplier, 0.0), rel=1e-5)


@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-12, 1e-30])
@pytest.mark.parametrize("most", [1, 2, 1000])
def test_the_threshold_is_the_first_half_at_which_delta_is_met(most, delta):
    """Noisy counts are whole: one is above the threshold just where the real number is that is rounded to it."""

    def seen(threshold):
        return -math.expm1(most * norm.logcdf((threshold - 1.0) / (5.0 * math.sqrt(most))))

    threshold = key_threshold(5.0, most, delta)
    assert threshold % 1.0 == 0.5 and seen(threshold) <= delta < seen(threshold - 1.0)
    # The union bound, to which it tends for small delta, would be a little larger.
    assert threshold <= 2.0 + 5.0 * math.sqrt(most) * norm.isf(delta / most)
    assert threshold <= key_threshold(5.0, most + 1, delta) and threshold < key_threshold(5.0, most, delta / 9)


def test_it_is_one_line_of_the_ledger_with_its_delta(tmp_path):
    account = laws.discovery_account(ledger=tmp_path / "ledger")
    with account.open("discovery") as access:
        access.consume("bounds")
        keys, counts = select_keys(access, "keys", np.array([7, 3]), np.array([500, 1]))
        with pytest.raises(LedgerError, match="drawn already"):
            select_keys(access, "keys", np.array([7, 3]), np.array([500, 1]))
    account.verify_complete()
    assert keys.tolist() == [7] and abs(counts[0] - 500) < 20
    assert len(account.ledger.accesses) == 1
    assert '"deltas": {"keys": 0.02}' in (tmp_path / "ledger").read_text()


def test_no_keys_at_all_use_the_noise_up():
    with laws.discovery_account().open("discovery") as access:
        access.consume("bounds")
        assert select_keys(access, "keys", np.array([]), np.array([]))[0].tolist() == []


@pytest.mark.parametrize(
    ("keys", "counts", "most"),
    [
        ([1, 1], [2, 3], 1),
        ([1, 2], [2], 1),
        ([1, 2], [2, 0], 1),
        ([1, 2], [2.0, 1.0], 1),
        ([[1]], [[1]], 1),
        ([1], [2], 0),
        ([1], [2], 1.0),
        ([1], [2], True),
    ],
)
def test_impossible_keys_are_refused_before_noise_is_taken(keys, counts, most):
    with laws.discovery_account().open("discovery") as access:
        with pytest.raises(ValueError, match="expected"):
            select_keys(access, "keys", np.array(keys), np.array(counts), most=most)
        assert "keys" in access._undrawn
        access.consume("keys"), access.consume("bounds")


def test_noise_without_a_delta_selects_nothing():
    with laws.discovery_account().open("discovery") as access:
        with pytest.raises(LedgerError, match="no delta"):
            select_keys(access, "bounds", np.array([1]), np.array([1]))
        with pytest.raises(LedgerError, match="not listed"):
            select_keys(access, "others", np.array([1]), np.array([1]))
        access.consume("keys"), access.consume("bounds")


def test_a_plan_under_replace_one_selects_nothing():
    stage = Stage(Access("s", {"keys": 2.0}, deltas={"keys": 1e-6}), 1, 1.0)
    with Account(Plan((stage,), 1.0, 1e-5, REPLACE_ONE)).open("s") as access:
        with pytest.raises(LedgerError, match="added or removed"):
            select_keys(access, "keys", np.array([1]), np.array([1]))
        access.consume("keys")


@pytest.mark.parametrize(
    "wrong",
    [
        {"deltas": {"b": 1e-6}},
        {"deltas": {"a": 0.0}},
        {"deltas": {"a": 1.0}},
        {"deltas": {"a": -1e-6}},
        {"deltas": {"a": math.nan}},
        {"deltas": {"a": 1e-6}, "sampler": Poisson(0.5)},
        {"deltas": {"a": 1e-6}, "kinds": {"a": LAPLACE}},
    ],
)
def test_an_impossible_delta_is_refused(wrong):
    with pytest.raises(ValueError, match=r"delta"):
        Access("s", {"a": 1.0}, **wrong)

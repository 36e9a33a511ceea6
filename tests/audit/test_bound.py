"""Lower bounds: published values, and how often they are above the truth."""

import numpy as np
import pytest
from scipy.stats import norm

from lightning_dpgen.audit.bound import Finding, gaussian_shift, one_run_epsilon, pure_epsilon


@pytest.mark.parametrize(
    ("guesses", "right", "expected"),
    [(100, 50, 0.0), (100, 75, 0.700), (100, 90, 1.626), (100, 100, 3.465), (1000, 600, 0.297), (1000, 900, 2.021),
     (1000, 1000, 5.782)],
)  # fmt: skip
def test_one_run_gives_the_reference_values(guesses, right, expected):
    """m = 1000, delta = 1e-5, 95 %: values computed by others from the theorem."""
    assert one_run_epsilon(1000, guesses, right, 1e-5) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_of_randomised_response_one_run_is_rarely_above_the_truth(epsilon):
    """The worst case of the theorem. Of 400 audits at 95 %, 20 are expected at most; 40 or more by chance 2e-5."""
    random, truth = np.random.default_rng(0), 1.0 / (1.0 + np.exp(-epsilon))
    right = random.binomial(200, truth, size=400)
    bounds = {v: one_run_epsilon(1000, 200, v, 0.0) for v in np.unique(right).tolist()}
    above = sum(bounds[v] > epsilon for v in right.tolist())
    assert above < 40
    # Most bounds of a mechanism with twice the epsilon are above.
    wrong = random.binomial(200, 1.0 / (1.0 + np.exp(-2.0 * epsilon)), size=400)
    bounds = {v: one_run_epsilon(1000, 200, v, 0.0) for v in np.unique(wrong).tolist()}
    assert sum(bounds[v] > epsilon for v in wrong.tolist()) > 200


@pytest.mark.parametrize(
    "wrong", [{"right": 101}, {"guesses": 1001}, {"right": -1}, {"confidence": 0.3}, {"confidence": 1.0}], ids=str
)
def test_numbers_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        one_run_epsilon(**{"canaries": 1000, "guesses": 100, "right": 50, "delta": 1e-5} | wrong)


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_a_gaussian_shift_is_near_the_truth_and_rarely_above(mu):
    """At most 10 of 200 are expected above at 95 %; 26 or more by chance 1e-5."""
    random = np.random.default_rng(1)
    found = [gaussian_shift(random.normal(size=2000), mu + random.normal(size=2000), 0.95) for _ in range(200)]
    assert sum(shift > mu for shift in found) < 26
    assert np.median(found) > 0.8 * mu - 0.1


def test_a_pure_epsilon_is_near_the_truth_and_rarely_above():
    random = np.random.default_rng(2)
    found = [pure_epsilon(random.laplace(size=4000), 1.0 + random.laplace(size=4000), 0.95) for _ in range(200)]
    assert sum(epsilon > 1.0 for epsilon in found) < 26
    assert np.median(found) > 0.75


def test_without_noise_all_is_told():
    exact = np.zeros(2000)
    assert gaussian_shift(exact, exact + 1.0, 0.999) > 2 * norm.ppf(0.99)
    assert pure_epsilon(exact, exact + 1.0, 0.999) > 4.0
    assert gaussian_shift(exact, exact, 0.95) == pure_epsilon(exact, exact, 0.95) == 0.0


def test_a_claim_is_refuted_by_what_is_above_it():
    assert Finding("x", 1.0, 1.1, 1e-5, "").refuted and not Finding("x", 1.0, 1.0, 1e-5, "").refuted

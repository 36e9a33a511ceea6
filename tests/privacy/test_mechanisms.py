"""One law for every mechanism: its noise and its cost are those that it states, and it draws against a line of its kind."""

import math

import dp_accounting
import numpy as np
import pytest
import torch
from scipy import stats

from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.access import GAUSSIAN, LAPLACE, PURE, Access, dominating_laplace
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.events import compose_events, stage_events
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import Poisson

# The chance that a test below fails although all is right; each has a twin of the wrong size that must fail.
ALARM = 1e-6


def _open(kind, multiplier, stream=None, *, delta=1e-5, count=1):
    access = Access("stage", {"x": multiplier}, kinds={"x": kind})
    plan = Plan((Stage(access, count, 1.0),), target_epsilon=1.0, delta=delta)
    return Account(plan, stream=stream or PrivateStream(seed=3)).open("stage")


def _laplace(stream, m):
    with _open(LAPLACE, m, stream) as access:
        zeros = torch.zeros(20_000, dtype=torch.int64)
        return mechanisms.rounded_laplace(access, "x", zeros, unit=2.0**-20, sensitivity=3.0).numpy() / 3.0


def _spherical(stream, m, d=5):
    with _open(PURE, m, stream) as access:
        zeros = torch.zeros(2500, d, dtype=torch.int64)
        noisy = mechanisms.rounded_spherical(access, "x", zeros, unit=2.0**-20, sensitivity=2.0, by_row=True)
    return noisy.numpy() / 2.0


def _same_law(sample, law):
    return stats.kstest(sample, law).pvalue > ALARM


@pytest.mark.parametrize("multiplier", [0.5, 4.0])
def test_laplace_noise_has_its_law(stream_of, multiplier):
    sample = _laplace(stream_of(3), multiplier)
    assert _same_law(sample, stats.laplace(scale=multiplier).cdf)
    assert not _same_law(sample / math.sqrt(2), stats.laplace(scale=multiplier).cdf)


@pytest.mark.parametrize("multiplier", [0.5, 4.0])
def test_spherical_noise_has_its_law(stream_of, multiplier):
    sample = _spherical(stream_of(3), multiplier)
    lengths = np.linalg.norm(sample, axis=1)
    assert _same_law(lengths, stats.gamma(5, scale=multiplier).cdf)
    assert not _same_law(lengths / math.sqrt(2), stats.gamma(5, scale=multiplier).cdf)
    # On the sphere of five dimensions one coordinate u has (u + 1) / 2 from the beta distribution of shapes 2 and 2.
    assert _same_law((sample[:, 0] / lengths + 1) / 2, stats.beta(2, 2).cdf)


@pytest.mark.parametrize("monotonic", [False, True])
def test_noisy_max_is_the_exponential_mechanism(stream_of, monotonic):
    multiples, multiplier, rounds = torch.tensor([0, 2, 6, 5]), 0.7, 1500
    seen = np.zeros(4)
    with _open(PURE, multiplier, stream_of(3)) as access:
        for _ in range(rounds):
            access._undrawn["x"] = multiplier
            place = mechanisms.report_noisy_max(access, "x", multiples, unit=0.5, sensitivity=1.5, monotonic=monotonic)
            seen[place] += 1

    def fits(epsilon):
        weights = np.exp(epsilon * 0.5 * multiples.numpy() / (1.5 * (1 if monotonic else 2)))
        return stats.chisquare(seen, rounds * weights / weights.sum()).pvalue > ALARM

    assert fits(1 / multiplier) and not fits(math.sqrt(2) / multiplier)


def test_no_neighbour_changes_an_output_by_more_than_epsilon():
    """The densities of neighbours are compared over a search of shifts, by the formulas of the laws above."""
    random = np.random.default_rng(0)
    for _ in range(300):
        m, point = random.uniform(0.2, 5), random.normal(size=3) * 4
        shift = random.normal(size=3)
        l1, l2 = shift / np.abs(shift).sum(), shift / np.linalg.norm(shift)
        assert (np.abs(point).sum() - np.abs(point - l1).sum()) / m <= 1 / m + 1e-12
        assert (np.linalg.norm(point) - np.linalg.norm(point - l2)) / m <= 1 / m + 1e-12
        scores, moved = random.normal(size=5), random.uniform(-1, 1, size=5)
        first, second = (np.exp(s / (2 * m)) / np.exp(s / (2 * m)).sum() for s in (scores, scores + moved))
        assert np.abs(np.log(first / second)).max() <= 1 / m + 1e-12


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0, 8.0])
def test_the_dominating_laplace_is_above_every_pure_mechanism(epsilon):
    """Randomised response is the worst: delta(x) = (e^eps - e^x) / (1 + e^eps). Multiplier 1/e suffices at delta 0 only."""
    m = dominating_laplace(epsilon)

    def laplace(x, multiplier):
        return max(0.0, 1 - math.exp((x - 1 / multiplier) / 2))

    gaps = []
    for x in np.linspace(0, epsilon, 50):
        worst = (math.exp(epsilon) - math.exp(x)) / (1 + math.exp(epsilon))
        assert laplace(x, m) >= worst - 1e-12
        gaps.append(laplace(x, 1 / epsilon) - worst)
    assert min(gaps) < 0, "Laplace noise of multiplier 1/e would not dominate"
    assert laplace(0.0, m) == pytest.approx((math.exp(epsilon) - 1) / (math.exp(epsilon) + 1))


def test_kinds_compose_into_the_event_that_they_cost():
    access = Access("s", {"a": 2.0, "b": 3.0, "c": 4.0, "d": 5.0}, kinds={"c": LAPLACE, "d": PURE})
    event = compose_events([e for _, e in stage_events([(access, 3)])])
    assert isinstance(event, dp_accounting.SelfComposedDpEvent)
    gaussian, laplace, pure = event.event.events
    assert gaussian.noise_multiplier == pytest.approx((2**-2 + 3**-2) ** -0.5)
    assert laplace.noise_multiplier == 4.0
    assert pure.noise_multiplier == dominating_laplace(0.2) < 5.0
    assert access.as_json()["kinds"] == {"c": LAPLACE, "d": PURE}
    together = Access("s", {"c": 4.0, "d": 5.0}, kinds={"c": LAPLACE, "d": PURE})
    exact = compose_events([e for _, e in stage_events([(together, 2)], pure=True)])
    assert compute_epsilon(exact, 0.0).epsilon == 2 * (1 / 4 + 1 / 5)


@pytest.mark.parametrize(
    ("multipliers", "rate", "kinds"),
    [
        ({"a": 1.0}, 0.5, {"a": PURE}),
        ({"a": 1.0}, 0.5, {"a": LAPLACE}),
        ({"a": 1.0}, 1.0, {"b": LAPLACE}),
        ({"a": 1.0}, 1.0, {"a": "cauchy"}),
    ],
)
def test_what_no_accountant_can_join_is_refused(multipliers, rate, kinds):
    with pytest.raises(ValueError):
        Access("s", multipliers, Poisson(rate), kinds)


def test_noise_of_another_kind_is_refused():
    with _open(LAPLACE, 1.0) as access:
        for draw in (mechanisms.rounded_gaussian, mechanisms.rounded_spherical):
            with pytest.raises(LedgerError, match="is laplace in the plan"):
                draw(access, "x", torch.zeros(2, dtype=torch.int64), sensitivity=1.0)
        zeros = torch.zeros(2, dtype=torch.int64)
        assert mechanisms.rounded_laplace(access, "x", zeros, unit=2.0**-20, sensitivity=1.0).abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float16, torch.bfloat16, torch.bool])
def test_rounded_noise_is_refused_before_it_is_taken(dtype):
    """Noise that is cut to whole numbers before it is added would give counts of neighbours odds far above e^epsilon."""
    with _open(GAUSSIAN, 1.0) as access:
        with pytest.raises(TypeError, match="expected float32 or float64"):
            mechanisms.gaussian(access, "x", torch.zeros(3, dtype=dtype), sensitivity=1.0)
        mechanisms.gaussian(access, "x", torch.zeros(3), sensitivity=1.0)


@pytest.mark.parametrize("kind, draw", [(LAPLACE, mechanisms.rounded_laplace), (PURE, mechanisms.rounded_spherical)])
def test_multiples_are_checked_before_noise_is_taken(kind, draw):
    whole = torch.zeros(3, 2, dtype=torch.int64)
    with _open(kind, 1.0) as access:
        for values, unit, sensitivity, error in (
            (whole.double(), 1.0, 1.0, "expected int64"),
            (whole.T, 1.0, 1.0, "not contiguous"),
            (whole + 2**62, 1.0, 1.0, "larger unit"),
            (whole, -0.3, 1.0, "power of two"),
            (whole, 1.0, 2.0**50, "outweigh"),
            (whole, 1.0, 0.0, "sensitivity=0"),
        ):
            with pytest.raises((TypeError, ValueError), match=error):
                draw(access, "x", values, unit=unit, sensitivity=sensitivity)
        assert draw(access, "x", whole, unit=2.0**-9, sensitivity=1.0).mul(2.0**9).frac().eq(0).all()


def test_values_that_are_not_contiguous_are_refused_before_noise_is_taken():
    with _open(GAUSSIAN, 1.0) as access:
        with pytest.raises(ValueError, match="not contiguous"):
            mechanisms.gaussian(access, "x", torch.zeros(3, 2).T, sensitivity=1.0)
        mechanisms.gaussian(access, "x", torch.zeros(3, 2), sensitivity=1.0)


def test_impossible_arguments():
    with _open(PURE, 1.0) as access:
        for scores, error in (
            (torch.zeros(0).long(), "scores"),
            (torch.zeros(2, 1).long(), "scores"),
            (torch.zeros(2), "int64"),
        ):
            with pytest.raises((TypeError, ValueError), match=error):
                mechanisms.report_noisy_max(access, "x", scores, sensitivity=1.0)
        mechanisms.report_noisy_max(access, "x", torch.zeros(2, dtype=torch.int64), sensitivity=1.0)


def test_a_record_replaced_is_not_monotonic():
    """It lowers one score and raises another: half the noise would cost twice the epsilon."""
    stage = Stage(Access("stage", {"x": 1.0}, kinds={"x": PURE}), 1, 1.0)
    with Account(Plan((stage,), target_epsilon=1.0, delta=0.0, relation=REPLACE_ONE)).open("stage") as access:
        with pytest.raises(ValueError, match="replace-one"):
            mechanisms.report_noisy_max(access, "x", torch.tensor([0, 1]), sensitivity=1.0, monotonic=True)
        mechanisms.report_noisy_max(access, "x", torch.tensor([0, 1]), sensitivity=1.0)


def test_the_twin_without_privacy_gives_exact_answers():
    for kind, draw, values in [
        (LAPLACE, mechanisms.rounded_laplace, torch.ones(3, dtype=torch.int64)),
        (PURE, mechanisms.rounded_spherical, torch.ones(3, dtype=torch.int64)),
    ]:
        with _open(kind, 0.0) as access:
            assert (draw(access, "x", values, sensitivity=1) == 1).all()
    with _open(PURE, 0.0) as access:
        assert mechanisms.report_noisy_max(access, "x", torch.tensor([0, 2, 1]), sensitivity=1.0) == 1

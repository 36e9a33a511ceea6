"""Operating curves of attacks: the points of sklearn, exact intervals, and the most that a plan allows."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, norm
from sklearn.metrics import roc_auc_score, roc_curve

from experiments.dpgan import operating_curves
from experiments.dpgan.operating_curves import WRONGLY, accuracies, area, exact_interval, most_rightly, operating_points
from lightning_dpgen import StageSpec, make_plan
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_mu

EVERYONE = 4_000


def _scores(models=3, n=EVERYONE, gap=1.0, seed=0, digits=8):
    random = np.random.default_rng(seed)
    inside = random.random((models, n)) < 0.5
    scores = (random.standard_normal((models, n)) + gap * inside).round(digits)
    return torch.from_numpy(scores), torch.from_numpy(inside)


def _plan(epsilon=1.0):
    return make_plan([StageSpec("mean", {"sum": 1.0}, 1, max_noise=100)], epsilon=epsilon, delta=1e-5)


@pytest.mark.parametrize("digits", [8, 1], ids=["all scores differ", "many ties"])
def test_points_lie_on_the_curve_of_sklearn(digits):
    scores, inside = _scores(models=1, digits=digits)
    false, true, _ = roc_curve(inside[0], scores[0], drop_intermediate=False)
    found = operating_points(scores, inside)
    for share, wrongly, rightly in zip(WRONGLY, found["wrongly"], found["rightly"], strict=True):
        last = np.flatnonzero(false <= share)[-1]
        assert (wrongly, rightly) == pytest.approx((false[last], true[last])), "the lowest threshold within the share"


def test_intervals_of_points_are_those_of_clopper_and_pearson():
    scores, inside = _scores()
    found, members, others = operating_points(scores, inside), int(inside.sum()), int((~inside).sum())
    for place in range(len(WRONGLY)):
        right, wrong = round(found["rightly"][place] * members), round(found["wrongly"][place] * others)
        expected = binomtest(right, members).proportion_ci(0.95, method="exact")
        assert (found["low"][place], found["high"][place]) == pytest.approx((expected.low, expected.high))
        assert found["wrongly_high"][place] == pytest.approx(binomtest(wrong, others).proportion_ci(0.95).high)
    assert exact_interval(0, 7)[0] == 0.0 and exact_interval(7, 7)[1] == 1.0


def test_models_are_pooled_whatever_the_scale_of_their_scores():
    scores, inside = _scores(models=6, n=400, gap=0.0)
    scores = torch.rand(6, 400, generator=torch.Generator().manual_seed(0)) + 0.5 * inside
    grown = scores * 10.0 ** torch.arange(6)[:, None]
    found = [accuracies(scores, inside), accuracies(grown, inside)]
    assert found[0] == found[1] and operating_points(scores, inside) == operating_points(grown, inside)
    # Uniform numbers half their width apart: a threshold anywhere between is right three times in four.
    assert found[0]["low"] < 0.75 < found[0]["high"]


def test_areas_are_those_of_sklearn_and_their_intervals_mostly_hold_the_true_one():
    """More than 7 of 40 intervals at 95 % miss with a chance of 1e-3; 200 draws make them a little short."""
    true, missed = norm.cdf(1.0 / np.sqrt(2.0)), 0
    for seed in range(40):
        scores, inside = _scores(models=1, n=300, seed=seed, digits=8 if seed % 2 else 1)
        found = area(scores, inside, seed)
        assert found["auc"] == pytest.approx(roc_auc_score(inside[0], scores[0]))
        missed += not found["low"] <= true <= found["high"]
    assert missed <= 7


@pytest.mark.parametrize("epsilon", [0.3, 3.0, 20.0])
def test_the_most_that_one_gaussian_allows_is_its_own_curve(epsilon):
    """The best test of a Gaussian finds Phi(Phi^-1(wrongly) + mu) of the members (Neyman and Pearson)."""
    plan, wrongly = _plan(epsilon), np.array(WRONGLY)
    mu = gaussian_mu(plan.epsilon, 1e-5)
    allowed, best = most_rightly(plan, wrongly), norm.cdf(norm.ppf(wrongly) + mu)
    assert (allowed >= best - 1e-9).all(), "a bound"
    assert allowed == pytest.approx(best, abs=2e-3), "and no loose one"
    assert operating_curves.most_accurate(plan) == pytest.approx(norm.cdf(mu / 2.0), abs=2e-3)


@pytest.mark.parametrize("plan", [{"private": False}, {"private": True, "epsilon": np.inf}])
def test_a_plan_that_promises_nothing_allows_everything(plan):
    assert (most_rightly(SimpleNamespace(**plan), np.array(WRONGLY)) == 1.0).all()

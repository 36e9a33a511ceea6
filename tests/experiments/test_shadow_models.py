"""Shadow models: they find what scores alone do not, and are at chance where there is nothing."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from experiments.dpgan.shadow_models import Shadows, likelihood_ratios, train_shadows
from lightning_dpgen.metrics import MembershipInference

N = 2000


def _attacked(scores, inside):
    """Attack all models together."""
    metric = MembershipInference()
    metric.update(scores[inside], member=True)
    metric.update(scores[~inside], member=False)
    return {name: float(value) for name, value in metric.compute().items()}


def _model(gap, seed, hard=10.0, n=N):
    """Return a training whose scores differ by `hard` between records, and by `gap` between members and others; noise 1."""
    random = np.random.default_rng(seed)
    own = hard * random.standard_normal(n)

    def train(places, number):
        scores = own + random.standard_normal(n)
        scores[places] += gap
        # Scales of models tell nothing.
        return torch.from_numpy((1.0 + number) * scores - 3.0 * number)

    return train


def test_shadows_find_a_model_that_memorises_where_its_scores_alone_hardly_do():
    """With means that are known the accuracy is that of two normals, gap deviations apart; fifteen shadows come near it."""
    gap = 2.0
    found = train_shadows(_model(gap, 0), N, 16)
    by_shadows, alone = _attacked(likelihood_ratios(found), found.inside), _attacked(found.scores, found.inside)
    best = norm.cdf(gap / 2)
    assert best - 0.04 < by_shadows["accuracy"] < best + 0.01
    assert alone["accuracy"] < 0.6


def test_two_shadows_do_no_harm_where_all_records_are_as_hard():
    """Means of two scores are chance alone then: less their own the scores would be right in .76, and not .84."""
    found = train_shadows(_model(2.0, 1, hard=0.0), N, 3)
    result = _attacked(likelihood_ratios(found), found.inside)
    assert result["low"] < norm.cdf(1.0) < result["high"]


def test_records_that_had_no_part_in_the_scores_are_guessed_at_random():
    """Exact at 95 %: of 40 trials more than 7 miss with a chance of 1e-3."""
    missed = 0
    for seed in range(40):
        found = train_shadows(_model(0.0, seed, n=100), 100, 5, seed=seed)
        result = _attacked(likelihood_ratios(found), found.inside)
        missed += not result["low"] <= 0.5 <= result["high"]
    assert missed <= 7


def test_the_attacked_model_s_own_members_have_no_part_in_its_row():
    found = train_shadows(_model(2.0, 0, n=50), 50, 4)
    other = found.inside.clone()
    other[1] = ~other[1]
    rows = [likelihood_ratios(Shadows(found.scores, inside))[1] for inside in (found.inside, other)]
    assert torch.equal(*rows)


def test_each_record_takes_part_in_a_model_by_a_fair_coin():
    taken = []
    found = train_shadows(lambda places, _: taken.append(places) or torch.zeros(31), 31, 40, seed=1)
    assert [own.nonzero()[:, 0].tolist() for own in found.inside] == [places.tolist() for places in taken]
    assert len(set(map(len, taken))) > 1
    # 620 of 1,240 coins, give or take 18; beyond 5 deviations with a chance below 1e-6.
    assert abs(int(found.inside.sum()) - 620) < 90
    # A record is in 20 of 40 models, give or take 3.2; any beyond 5 deviations with a chance below 1e-4.
    assert (found.inside.sum(dim=0) - 20).abs().max() < 16
    again = train_shadows(lambda places, _: torch.zeros(31), 31, 40, seed=1)
    assert torch.equal(again.inside, found.inside)


def test_without_any_gap_and_noise_nothing_is_infinite():
    inside = torch.rand(4, 9, generator=torch.Generator().manual_seed(0)) < 0.5
    assert likelihood_ratios(Shadows(torch.zeros(4, 9), inside)).isfinite().all()


def test_two_models_are_too_few():
    with pytest.raises(ValueError, match="2 models: expected 3 or more"):
        likelihood_ratios(train_shadows(_model(0.0, 0), N, 2))

"""Trainings that are looked at on the way, and paired differences of their scores."""

import gc
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel

import lightning_dpgen
from experiments.common import watched
from experiments.dpgan import curves as dpgan_curves
from experiments.league.tasks import AdultBalanced
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.plan import TRAINING
from lightning_dpgen.specs.settings import load_complete_settings

ADULT = Path(lightning_dpgen.__file__).parent / "data/bundled/adult.schema.yaml"

pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = [
    "model=wgan", "split.k=1", "model.bias=zero", "model.hidden=8", "model.optimizer=sgd", "model.lr=0.2", "model.steps=30",
    "model.critic_steps=3", "privacy.delta=1e-5", "clipping=fixed",
]  # fmt: skip


def test_looks_are_spread_over_the_training_and_the_rate_falls_to_its_ratio(monkeypatch):
    rates = []
    pre_step = PrivateOptimizer.pre_step

    def seen(self, *given):
        rates.append(self.param_groups[0]["lr"])
        return pre_step(self, *given)

    monkeypatch.setattr(PrivateOptimizer, "pre_step", seen)
    settings = ["data=six_gaussians", *SMALL]
    found = watched.watch(settings, 3, lambda mixture: mixture.network.k, falling=0.1)
    assert [k for _, k in found] == [1, 1, 1] and found[-1][0] == 30
    assert all(steps >= due for (steps, _), due in zip(found, (10, 20, 30), strict=True))
    assert len(rates) == 30 and rates[0] == 0.2 and rates[-1] == pytest.approx(0.02)
    # One rate an outer loop.
    assert all(len(set(rates[start : start + 3])) == 1 for start in range(0, 30, 3)) and len(set(rates)) == 10


def test_a_training_that_was_stopped_goes_on_from_its_last_look(tmp_path):
    settings, seen, told = ["data=six_gaussians", *SMALL, "model.steps=60"], [], []

    def look(_):
        seen.append(len(seen))
        if len(seen) == 3:
            raise InterruptedError
        return seen[-1]

    with pytest.raises(InterruptedError):
        watched.watch(settings, 5, look, folder=tmp_path, tell=lambda found: told.append(len(found)))
    gc.collect()
    found = watched.watch(settings, 5, look, folder=tmp_path, tell=lambda found: told.append(len(found)))
    # The twelve steps after the second look were spent, and are not made again, so the last one is at 48 of 60 steps.
    assert [score for _, score in found] == [0, 1, 3, 4] and told == [1, 2, 3, 4]
    assert [steps for steps, _ in found] == [12, 24, 36, 48]
    account = Account.resume(tmp_path / "ledger")
    assert account.ledger.count(TRAINING) == 60
    account.ledger.close()


def test_a_paired_difference_has_the_interval_of_student():
    random = np.random.default_rng(0)
    ends, others = random.normal(0.8, 0.01, 10), random.normal(0.79, 0.01, 10)
    said = dpgan_curves.difference(ends, others)
    mean, low, high = (float(word.strip("()")) for word in said.split() if word != "to")
    expected = ttest_rel(ends, others).confidence_interval(0.95)
    assert math.isclose(mean, float((ends - others).mean()), abs_tol=6e-5)
    assert math.isclose(low, expected.low, abs_tol=6e-5) and math.isclose(high, expected.high, abs_tol=6e-5)


@pytest.mark.parametrize("figure", dpgan_curves.RUNS)
def test_settings_of_every_curve_are_planned_as_the_figure_says(figure, tmp_path, monkeypatch):
    monkeypatch.setattr(AdultBalanced, "files", lambda self, run: (Path("adult.csv"), ADULT))
    curves = dpgan_curves.curves_of(figure, tmp_path)
    for name, (settings, _) in curves.variants.items():
        plan = load_complete_settings([*curves.data(0), *settings, "seed=0"]).plan()
        assert plan.private == ("no privacy" not in name)
        if plan.private:
            noise = plan.stage(TRAINING).access.multipliers["gradient"]
            assert {"noise": f"sigma {noise:g}" == name, "mushroom": noise == 7.0, "sigma7": noise == 7.0}.get(figure, True)
            assert {"distance": 8.0, "decay": 3.0, "sigma7": 3.0}.get(figure, plan.epsilon) >= plan.epsilon

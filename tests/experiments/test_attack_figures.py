"""The attacks of dp-GAN's Figures 5 and 6: models of a row are pooled, each is trained once, and pictures show the rows."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from experiments.dpgan import attack_pictures, attacks
from experiments.dpgan.operating_curves import WRONGLY
from lightning_dpgen import StageSpec, make_plan


@dataclass
class Planned:
    """A pool of people of whom nothing but the plan of a training is asked."""

    epsilon: float

    def settings(self, *_):
        stages = [StageSpec("training", {"sum": 1.0}, 1, max_noise=100)]
        return SimpleNamespace(plan=lambda: make_plan(stages, epsilon=self.epsilon, delta=1e-5))


@pytest.fixture
def trained(monkeypatch):
    """Let models score members 6 deviations above others at the end, and not before; return their numbers as they train."""
    numbers, random = [], torch.Generator().manual_seed(0)

    def attacked(pool, name, n, inside, seed, points):
        numbers.append(seed)
        hard = 20.0 * torch.arange(2 * n).cos()
        scores = [hard + torch.randn(2 * n, generator=random) for _ in range(points)]
        scores[-1][torch.from_numpy(inside)] += 6.0
        return {"steps": [5, 10], attacks.NEAREST: [score.tolist() for score in scores]}

    monkeypatch.setattr(attacks, "attacked", attacked)
    monkeypatch.setitem(attacks.MODELS[attacks.PRIVATE], 60, 8)
    return numbers


def test_a_row_trains_each_model_once_and_attacks_it_at_each_point(tmp_path, trained):
    found = [attacks.row(Planned(3.0), tmp_path, attacks.PRIVATE, 60, 2) for _ in range(2)]
    assert trained == list(range(8)) and found[0] == found[1]
    assert found[0]["steps"] == [5, 10] and found[0]["models"] == 8
    before, after = found[0]["accuracy"][attacks.NEAREST + attacks.SHADOWS]
    assert before["low"] < 0.5 < before["high"] and after["low"] > 0.95
    assert found[0]["accuracy"][attacks.NEAREST][1]["accuracy"] < after["low"]
    assert found[0]["area"][attacks.NEAREST + attacks.SHADOWS]["low"] > 0.98


def test_models_that_tell_more_than_their_plan_allows_are_told(tmp_path, trained):
    """Members that stand out so are beyond epsilon 3, and not beyond epsilon 40."""
    attack = attacks.NEAREST + attacks.SHADOWS
    small, large = (attacks.row(Planned(epsilon), tmp_path, attacks.PRIVATE, 60, 2) for epsilon in (3.0, 40.0))
    assert small["beyond"][attack] > len(WRONGLY) / 2 and small["accurate"] == pytest.approx(0.6404, abs=1e-4)
    assert large["beyond"][attack] == 0 and large["accurate"] > 0.99
    assert "points are above" in attacks.describe(attacks.PRIVATE, 60, small)


def test_the_pictures_show_each_attack_over_training_by_size_and_as_a_curve(tmp_path, figures, curves):
    def point(number):
        return {"accuracy": 0.5 + number, "low": 0.5 + number - 0.01, "high": 0.5 + number + 0.02, "auc": 0.9}

    every = [(name, n) for name, of in attacks.MODELS.items() for n in of]
    places = {place: number / 1000 for number, place in enumerate(every)}
    shown = (attacks.CRITIC + attacks.SHADOWS, attacks.DENSITY + attacks.SHADOWS)
    assert shown == (attack_pictures.ON_CRITIC, attack_pictures.ON_RELEASE)

    def one(at):
        accuracy = {name: [point(at + 0.1 * j), point(at + 0.1 * j + 0.05)] for j, name in enumerate(shown)}
        line = np.array(WRONGLY)
        curve = {"wrongly": WRONGLY, "rightly": line, "low": 0.9 * line, "high": np.minimum(1.1 * line, 1.0)}
        return {"steps": [1, 4], "accuracy": accuracy, "curve": dict.fromkeys(shown, curve), "epsilon": 3.0} | {
            "accurate": 0.64, "most": np.sqrt(line)
        }  # fmt: skip

    rows = {place: one(at) for place, at in places.items()}
    attack_pictures.draw_attacks(rows, tmp_path / "attacks.png")
    attack_pictures.draw_curves(rows, tmp_path / "roc.png")
    assert (tmp_path / "attacks.png").is_file() and (tmp_path / "roc.png").is_file()
    panels, smallest = figures[0].axes, min(attacks.SIZES)
    for j in range(2):
        over, by_size = curves(panels[j]), curves(panels[2 + j])
        assert set(over) == set(by_size) == set(attacks.VARIANTS)
        for name in attacks.VARIANTS:
            at = places[name, smallest] + 0.1 * j
            assert over[name][0] == [25.0, 100.0] and over[name][1] == pytest.approx([0.5 + at, 0.55 + at])
            assert np.allclose(over[name][2], [[0.49 + at, 0.52 + at], [0.54 + at, 0.57 + at]])
            x, y, _ = by_size[name]
            assert x == sorted(attacks.MODELS[name])
            assert y == pytest.approx([0.55 + places[name, n] + 0.1 * j for n in x])
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == list(attacks.VARIANTS)
    for panel in figures[1].axes:
        drawn = [line.get_label() for line in panel.lines if line.get_label() in attacks.VARIANTS]
        assert drawn == list(attacks.VARIANTS), "a curve of each variant"
        # And beside the line of guessing the most that the plan allows.
        assert len(panel.lines) == 1 + 2 * len(attacks.VARIANTS)

"""The attacks of dp-GAN's Figures 5 and 6: models of a row are pooled, and each is trained once."""

import numpy as np
import pytest
import torch

from experiments.common.kept import Kept
from experiments.dpgan import attacks


def _inside(models, n):
    random = np.random.default_rng(0)
    inside = torch.zeros(models, 2 * n, dtype=torch.bool)
    for own in inside:
        own[torch.from_numpy(random.permutation(2 * n)[:n])] = True
    return inside


def test_models_are_pooled_whatever_the_scale_of_their_scores():
    inside = _inside(6, 200)
    scores = torch.rand(6, 400, generator=torch.Generator().manual_seed(0)) + 0.5 * inside
    found = [attacks.accuracies(scores * factor, inside) for factor in (1.0, 10.0 ** torch.arange(6)[:, None])]
    assert found[0] == found[1] and found[0]["tested"] == 1200
    # Uniform numbers half their width apart: a threshold anywhere between is right three times in four.
    assert found[0]["low"] < 0.75 < found[0]["high"]


def test_a_row_trains_each_model_once_and_attacks_it_at_each_point(tmp_path, monkeypatch):
    trained, n, random = [], 60, torch.Generator().manual_seed(0)

    def attacked(pool, name, n, inside, seed, points):
        trained.append(seed)
        hard = 20.0 * torch.arange(2 * n).cos()
        scores = [hard + torch.randn(2 * n, generator=random) for _ in range(points)]
        # Members stand out at the end, and not before.
        scores[-1][torch.from_numpy(inside)] += 6.0
        return {"steps": [5, 10], attacks.NEAREST: [score.tolist() for score in scores]}

    monkeypatch.setattr(attacks, "attacked", attacked)
    monkeypatch.setitem(attacks.MODELS[attacks.PRIVATE], n, 8)
    kept = Kept(tmp_path / "kept.json")
    found = [attacks.row(None, kept, attacks.PRIVATE, n, 2, 60.0) for _ in range(2)]
    assert trained == list(range(8)) and found[0] == found[1]
    assert found[0]["steps"] == [5, 10] and found[0]["models"] == [8]
    before, after = found[0][attacks.NEAREST + attacks.SHADOWS]
    assert before["low"] < 0.5 < before["high"] and after["low"] > 0.95
    assert found[0][attacks.NEAREST][1]["accuracy"] < after["low"]


def test_the_picture_shows_each_attack_over_training_and_by_size(tmp_path, figures, curves):
    def point(number):
        return {"accuracy": 0.5 + number, "low": 0.5 + number - 0.01, "high": 0.5 + number + 0.02, "auc": 0.9}

    every = [(name, n) for name, of in attacks.MODELS.items() for n in of]
    places = {place: number / 1000 for number, place in enumerate(every)}
    shown = (attacks.CRITIC + attacks.SHADOWS, attacks.DENSITY + attacks.SHADOWS)
    rows = {
        place: {"steps": [1, 4]} | {name: [point(at + 0.1 * j), point(at + 0.1 * j + 0.05)] for j, name in enumerate(shown)}
        for place, at in places.items()
    }
    attacks.draw(rows, tmp_path / "attacks.png")
    assert (tmp_path / "attacks.png").is_file()
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

"""The attacks of dp-GAN's Figures 5 and 6: models of a row are pooled, and each is trained once."""

import attacks
import numpy as np
import torch
from kept import Kept


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


def test_the_picture_has_rows_of_one_size_and_of_several(tmp_path):
    point = {"accuracy": 0.5, "low": 0.4, "high": 0.6, "auc": 0.5}
    found = {"steps": [1, 2], **{attack + attacks.SHADOWS: [point] * 2 for attack in (attacks.CRITIC, attacks.DENSITY)}}
    rows = {(name, n): found for name, sizes in attacks.MODELS.items() for n in sizes}
    attacks.draw(rows, tmp_path / "attacks.png")
    assert (tmp_path / "attacks.png").stat().st_size > 10_000

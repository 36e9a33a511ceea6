"""The public figure: what it measures without noise, and what one record can change of what is noised."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from contracts import laws

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.metrics import fidelity
from lightning_dpgen.metrics.fidelity import FIDELITY, fidelity_draft, measure_fidelity
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.plan import Plan, Stage

LAYOUT = Layout(units=0, groups=(3, 2), label=1, norm=2**0.5)
SCHEMA = SimpleNamespace(layout=LAYOUT)


def _records(codes):
    return Records(SCHEMA, Encoded(np.zeros((len(codes), 0), np.float32), np.array(codes, np.uint8).reshape(-1, 2)))


def _account(multiplier, max_rows=1):
    draft = fidelity_draft(LAYOUT, 100, 0.1)
    return Account(Plan((Stage(draft.access(multiplier), 1, 0.1),), 1.0, 1e-5, max_rows=max_rows))


def test_without_noise_it_is_the_distance_and_the_accuracy():
    real = _records([[0, 0]] * 50 + [[2, 1]] * 50)
    synthetic = _records([[0, 0]] * 60 + [[2, 1]] * 40).encoded
    with _account(0.0).open(FIDELITY) as access:
        found = measure_fidelity(access, real, synthetic, n=100, radius=2**0.5)
    assert found["distance of a column, mean"] == pytest.approx(0.1, abs=1e-4)
    assert found["accuracy on real records, trained on synthetic"] == 1.0
    assert found["distance of a column that noise alone makes"] == 0.0


def test_no_record_costs_more_than_the_access(monkeypatch):
    synthetic = _records([[0, 0]] * 6 + [[2, 1]] * 4).encoded

    def run(codes):
        with _account(3.0).open(FIDELITY) as access:
            return measure_fidelity(access, _records(codes), synthetic, n=10, radius=1.0)

    first = [[0, 0], [1, 1], [2, 1]]
    with laws.Door() as door:
        monkeypatch.setattr(fidelity, "gaussian", door)
        moves = {}
        walks = [door.walked(run, codes)[0] for codes in (first, [*first, [2, 1]])]
        for (access, a), (_, b) in zip(*walks, strict=True):
            moves[access] = moves.get(access, 0.0) + float((a - b).square().sum())
    assert len(moves) == 1 or all(square <= 1.0 for square in moves.values())
    for access, square in moves.items():
        assert square**0.5 * access.access.multiplier <= 1.0 + 1e-9


def test_noise_of_a_person_is_said():
    noise = []
    for max_rows in (1, 4):
        with _account(2.0, max_rows).open(FIDELITY) as access:
            figure = measure_fidelity(access, _records([[0, 0]] * 9), _records([[0, 0]]).encoded, n=9, radius=1.0)
        noise.append(figure["standard deviation of that accuracy by noise"])
    assert noise[1] == pytest.approx(4 * noise[0], rel=1e-3)


def test_no_record_and_no_label():
    assert set(fidelity_draft(Layout(units=3), 10, 0.1).weights) == {"means"}
    with _account(2.0).open(FIDELITY) as access:
        figure = measure_fidelity(access, _records([]), _records([[1, 0]]).encoded, n=5, radius=1.0)
    assert all(torch.isfinite(torch.tensor(list(figure.values()))))

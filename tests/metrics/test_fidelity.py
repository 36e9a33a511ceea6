"""The public figure: what it measures without noise, and what one record can change of what is noised."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from contracts import laws

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.metrics import fidelity
from lightning_dpgen.metrics.fidelity import fidelity_draft, measure_fidelity
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
    found = measure_fidelity(_account(0.0), real, synthetic, radius=2**0.5)
    assert found["distance of a column, mean"] == pytest.approx(0.1, abs=1e-4)
    assert found["accuracy on real records, trained on synthetic"] == 1.0
    assert found["distance of a column that noise alone makes"] == 0.0


def test_a_record_costs_what_the_access_pays(monkeypatch):
    """All of it, where its numbers are as long as the radius and its label is told: less noise would not do."""
    synthetic = _records([[0, 0]] * 6 + [[2, 1]] * 4).encoded

    def run(codes):
        return measure_fidelity(_account(3.0), _records(codes), synthetic, radius=1.0)

    first = [[0, 0], [1, 1], [2, 1]]
    with laws.Door() as door:
        monkeypatch.setattr(fidelity, "gaussian", door)
        walks = [door.walked(run, codes)[0] for codes in (first, [*first, [2, 1]])]
    assert len({access for access, _ in walks[0]}) == 1, "one look, one access"
    square = sum(float((a - b).square().sum()) for (_, a), (_, b) in zip(*walks, strict=True))
    assert 0.999 < square**0.5 * walks[0][0][0].access.multiplier <= 1.0 + 1e-9


def test_nothing_is_spent_before_all_that_takes_long_is_done(monkeypatch):
    account = _account(2.0)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fidelity, "_right_answers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure_fidelity(account, _records([[0, 0]]), _records([[1, 0]]).encoded, radius=1.0)
    assert not account.ledger.accesses


def test_noise_of_a_person_is_said():
    noise = []
    for max_rows in (1, 4):
        account = _account(2.0, max_rows)
        figure = measure_fidelity(account, _records([[0, 0]] * 9000), _records([[0, 0]]).encoded, radius=1.0)
        noise.append(figure["standard deviation of that accuracy by noise"])
    assert noise[1] == pytest.approx(4 * noise[0], rel=0.05)


def test_no_record_and_no_label():
    assert set(fidelity_draft(Layout(units=3), 10, 0.1).weights) == {"records", "means"}
    figure = measure_fidelity(_account(2.0), _records([]), _records([[1, 0]]).encoded, radius=1.0)
    assert all(torch.isfinite(torch.tensor(list(figure.values()))))

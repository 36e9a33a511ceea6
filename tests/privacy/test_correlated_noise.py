"""Correlated noise is C^-1 Z, drawn through the one door, and its memory stays with the ledger."""

import math
import os
import stat

import numpy as np
import pytest
import torch
from scipy import stats

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import BudgetTooSmall, DamagedState, LedgerError, PlanMismatch
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.noise.units import grid_step
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling import correlated_noise
from lightning_dpgen.privacy.sampling.correlated_noise import CorrelatedNoise
from lightning_dpgen.privacy.sampling.samplers import Cyclic
from lightning_dpgen.privacy.sampling.strategy import Strategy

# The chance that a test below fails although all is right; each has a twin of the wrong law that must fail.
ALARM = 1e-6
BANDED, GROUPED = Strategy(8, 4, (1.0, 0.6, 0.3)), Strategy(8, 2, (1.0, 0.5))


def _matrix(strategy):
    return sum(np.diag(np.full(8 - i, value), -i) for i, value in enumerate(strategy.coefficients))


class Known(PrivateStream):
    """A stream that remembers what it has drawn."""

    def __init__(self):
        super().__init__(seed=1)
        self.drawn = []

    def add_normal_(self, out, deviation):
        before = out.clone()
        super().add_normal_(out, deviation)
        self.drawn.append((out - before).numpy().copy())
        return out


@pytest.fixture
def unrounded(monkeypatch):
    """Release sums as they are, since a grid would hide an error below its step."""
    monkeypatch.setattr(correlated_noise, "round_to_grid_", lambda noisy, deviation: noisy)


def _plan(strategy, multiplier=2.0, count=None):
    access = Access("training", {"gradient": multiplier}, Cyclic(1.0 / strategy.period, strategy))
    return Plan((Stage(access, count or strategy.steps, 1.0),), 100.0 if multiplier else math.inf, 1e-5, n=12)


def _step(account, size=3, scale=1.0, dtype=torch.float64):
    _, draw = account.sample("training", 12)
    with account.open("training", draw=draw) as access:
        return gaussian(access, "gradient", torch.zeros(size, dtype=dtype), sensitivity=scale)


@pytest.mark.usefixtures("unrounded")
@pytest.mark.parametrize("strategy", [BANDED, GROUPED, Strategy(8, 4)])
def test_the_rows_are_the_inverse_of_the_strategy_times_independent_noise(strategy):
    stream = Known()
    account = Account(_plan(strategy), stream=stream)
    rows = np.stack([_step(account).numpy() for _ in range(8)])
    np.testing.assert_allclose(_matrix(strategy) @ rows, np.stack(stream.drawn), atol=1e-12)
    account.verify_complete()


@pytest.mark.usefixtures("unrounded")
@pytest.mark.parametrize("strategy", [BANDED, GROUPED])
@pytest.mark.parametrize("lost", [(2,), (1, 2, 3), (0, 4, 5, 6)])
def test_rows_that_were_lost_count_as_zeros(strategy, lost):
    stream, made = Known(), [step for step in range(8) if step not in lost]
    noise = CorrelatedNoise(strategy, stream)
    rows = np.zeros((8, 3))
    for step in made:
        rows[step] = noise.add_(torch.zeros(3, dtype=torch.float64), step, 1.0, 1.0).numpy()
    np.testing.assert_allclose((_matrix(strategy) @ rows)[made], np.stack(stream.drawn), atol=1e-12)


@pytest.mark.parametrize("strategy", [BANDED, GROUPED])
def test_sums_are_rounded_and_the_memory_is_not(strategy):
    """Rounded rows in the memory would make later rows follow from rounded sums, and no longer be C^-1 Z."""
    stream = Known()
    account = Account(_plan(strategy), stream=stream)
    rows = np.stack([_step(account, scale=0.7).numpy() for _ in range(8)])
    step = grid_step(0.7 * 2.0 * strategy.sensitivity)
    assert (rows % step == 0.0).all() and (rows % (2.0 * step) != 0.0).any()
    errors = rows - 0.7 * np.linalg.solve(_matrix(strategy), np.stack(stream.drawn))
    assert 0.3 * step < abs(errors).max() <= 0.5001 * step


def _whitened(strategy, stream, scales, size=4000):
    """Return what should be independent standard normals, (8, size), of steps with sensitivities of their own."""
    account = Account(_plan(strategy), stream=stream)
    rows = np.stack([_step(account, size, scale).numpy() / scale for scale in scales])
    return _matrix(strategy) @ rows / (2.0 * strategy.sensitivity)


def _is_standard(rows):
    """Return whether rows are independent standard normals: a chi-squared test of each, and one of each pair."""
    size = rows.shape[1]
    low, high = stats.chi2.ppf([ALARM / 32, 1.0 - ALARM / 32], size)
    lengths = (rows**2).sum(axis=1)
    products = (rows @ rows.T)[np.triu_indices(len(rows), 1)] / math.sqrt(size)
    return bool(((low < lengths) & (lengths < high)).all() and (abs(products) < stats.norm.isf(ALARM / 128)).all())


@pytest.mark.parametrize("strategy", [BANDED, GROUPED])
def test_the_noise_has_the_covariance_of_the_strategy(stream_of, strategy):
    scales = np.linspace(0.5, 2.0, 8)
    rows = _whitened(strategy, stream_of(3), scales)
    assert _is_standard(rows)
    # A sensitivity a tenth too small, other coefficients, and noise that is not correlated are all noticed.
    assert not _is_standard(1.1 * rows)
    released = np.linalg.solve(_matrix(strategy), rows)
    assert not _is_standard(_matrix(Strategy(8, 4, (1.0, 0.4, 0.3))) @ released)
    assert not _is_standard(released)


def test_the_twin_without_noise_stays_exact():
    account = Account(_plan(GROUPED, 0.0))
    for _ in range(8):
        _, draw = account.sample("training", 12)
        with account.open("training", draw=draw) as access:
            values = torch.ones(3)
            assert torch.equal(gaussian(access, "gradient", values, sensitivity=1.0), torch.ones(3))
    assert not account.private


def test_no_step_takes_another_number_of_parameters():
    account = Account(_plan(BANDED))
    _step(account)
    with pytest.raises(ValueError, match="the same parameters in every step"):
        _step(account, size=4)


def test_a_row_is_drawn_once():
    noise = CorrelatedNoise(BANDED, PrivateStream())
    noise.add_(torch.zeros(3), 4, 1.0, 1.0)
    with pytest.raises(ValueError, match="none is drawn twice"):
        noise.add_(torch.zeros(3), 4, 1.0, 1.0)


def _die(account):
    account.ledger._file.close()
    account.ledger._witness.close()
    account.ledger._lock.release()


def _memory(path):
    return path.with_name(f"{path.name}.noise")


def test_the_memory_is_private_and_is_erased_after_the_last_step(tmp_path):
    path = tmp_path / "ledger.jsonl"
    account = Account(_plan(BANDED), path)
    for _ in range(7):
        _step(account)
    account.save_private_state()
    assert stat.S_IMODE(os.stat(_memory(path)).st_mode) == 0o600
    _step(account)
    assert not _memory(path).exists()
    account.verify_complete()


@pytest.mark.usefixtures("unrounded")
@pytest.mark.parametrize("strategy", [BANDED, GROUPED])
@pytest.mark.parametrize("lost", [0, 2])
def test_a_run_goes_on_with_its_memory_and_its_groups_at_no_further_cost(tmp_path, strategy, lost):
    path = tmp_path / "ledger.jsonl"
    account = Account(_plan(strategy), path, stream := Known())
    rows = np.zeros((8, 3))
    for step in range(3):
        rows[step] = _step(account).numpy()
    done = account.done
    account.save_private_state()
    groups = account._correlated._groups
    for _ in range(lost):
        _step(account)
    _die(account)

    again = Account.resume(path, other := Known())
    again.go_on(done)
    # A state that is saved before the first step keeps the memory.
    again.sample("training", 12)
    again.save_private_state()
    assert again.plan == account.plan and again.count("training") == 3 + lost
    for step in range(3 + lost, 8):
        rows[step] = _step(again).numpy()
    drawn = np.stack([*stream.drawn[:3], *np.zeros((lost, 3)), *other.drawn])
    made = [step for step in range(8) if not 3 <= step < 3 + lost]
    np.testing.assert_allclose((_matrix(strategy) @ rows)[made], drawn[made], atol=1e-12)
    assert np.array_equal(groups["training"], account._correlated._groups["training"])
    again.verify_complete()
    assert again.certify()[1].epsilon == account.plan.epsilon
    assert not _memory(path).exists()


@pytest.mark.usefixtures("unrounded")
def test_a_run_goes_on_without_a_memory_that_was_not_saved(tmp_path):
    path = tmp_path / "ledger.jsonl"
    account = Account(_plan(BANDED), path, Known())
    for _ in range(3):
        _step(account)
    _die(account)
    again = Account.resume(path, other := Known())
    again.go_on({"training": 3})
    np.testing.assert_array_equal(_step(again).numpy(), other.drawn[0])
    _die(again)


def test_a_run_without_a_step_left_does_not_go_on(tmp_path):
    path = tmp_path / "ledger.jsonl"
    account = Account(_plan(BANDED), path)
    for _ in range(8):
        _step(account)
    _die(account)
    again = Account.resume(path)
    with pytest.raises(BudgetTooSmall, match="leaves no room for stage 'training'"):
        again.go_on({"training": 0})
    _die(again)


def test_a_run_does_not_go_on_with_other_groups(tmp_path):
    path = tmp_path / "ledger.jsonl"
    account = Account(_plan(GROUPED), path)
    account.sample("training", 12)
    assert _memory(path).exists(), "groups are written before they are used"
    _step(account)
    _die(account)
    _memory(path).write_bytes(b"x")
    again = Account.resume(path)
    again.go_on({"training": 1})
    with pytest.raises(DamagedState):
        again.sample("training", 12)
    _memory(path).unlink()
    with pytest.raises(LedgerError, match="groups of its records"):
        again.sample("training", 12)
    _die(again)


def test_a_run_that_is_not_complete_says_so():
    account = Account(_plan(BANDED))
    _step(account)
    with pytest.raises(PlanMismatch, match=r"1 of 8 steps \(2 epochs\)"):
        account.verify_complete()
    assert account.certify()[1].epsilon == account.plan.epsilon, "the first step costs all of it"


def test_lines_of_a_ledger_name_the_strategy_of_the_plan(tmp_path):
    path = tmp_path / "ledger.jsonl"
    account = Account(_plan(BANDED), path)
    _step(account)
    account.ledger.close()
    text = path.read_text()
    assert text.count("coefficients") == 1 and text.count(BANDED.digest) == 1
    assert Ledger.read(path).accesses == account.ledger.accesses

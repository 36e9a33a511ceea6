"""One, two and four ranks make the same steps in distribution, and a record moves them no farther than with one.

Each comparison is a Kolmogorov-Smirnov test of 800 steps against 800 for each of five parameters, at a level of 1e-5: a
false alarm in any of the ten of a test has a chance of 1e-4 (seeds are fixed, so it does not come and go). The same test
finds what one wrong line does (`BROKEN`).
"""

import contextlib
import functools
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from contracts import rank_steps
from contracts.rank_steps import GROUPS, RATE, RECORDS, N, account_of
from contracts.threads import together
from scipy.stats import ks_2samp
from torch import nn

from lightning_dpgen.gradients import engines, privatize
from lightning_dpgen.gradients.clipping import DPNorm, Fixed
from lightning_dpgen.gradients.per_sample_gradients import materialised
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.sampling import lots as lots_module
from lightning_dpgen.sampling.lots import PoissonLots

LEVEL = 1e-5


@functools.cache
def _steps(size: int, seed: int = 5, steps: int = rank_steps.STEPS) -> np.ndarray:
    """Return (steps, 5) noisy gradients, a row a step, at parameters that stay where they are."""
    return _made(size, seed, steps)


def _made(size, seed=5, steps=rank_steps.STEPS):
    ranks = together(size, lambda ranks: rank_steps.steps_of(ranks, seed, steps))
    assert all(torch.equal(ranks[0], other) for other in ranks)
    return ranks[0].numpy()


def _alike(first: np.ndarray, second: np.ndarray) -> bool:
    return all(ks_2samp(a, b).pvalue > LEVEL for a, b in zip(first.T, second.T, strict=True))


def test_two_ranks_step_as_one_does():
    """Fewer steps than below, for the default suite."""
    assert _alike(_steps(1, steps=250), _steps(2, seed=6, steps=250))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_step_as_one_does(size):
    assert _alike(_steps(1), _steps(size, seed=6))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_processes_step_as_one_does(tmp_path, size):
    """As above, but the ranks are processes connected by gloo."""
    command = [sys.executable, rank_steps.__file__]
    ranks = [subprocess.Popen([*command, str(rank), str(size), str(tmp_path)]) for rank in range(size)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0] * size
    made = [np.load(tmp_path / f"rank{rank}.npy") for rank in range(size)]
    assert all(np.array_equal(made[0], other) for other in made)
    assert _alike(_steps(1), made[0])


def _whole_noise(patch):
    """Let each rank draw the noise of all."""
    patch.setattr(Ranks, "part_of", lambda self, values: values)


def _noise_of_rank_0(patch):
    """Let the other ranks draw none."""
    own = Ranks.part_of
    patch.setattr(Ranks, "part_of", lambda self, values: own(self, values)[: None if self.leads else 0])


def _own_groups(patch):
    """Give each rank as many groups as all should have together."""

    def gradients(network, term, lot, *args, **kwargs):
        own = lots_module.Lot(lot.records, lot.offsets, lots_module.LotId(lot.draw.stage, lot.draw.size))
        made = engines.term_gradients(network, term, own, *args, **kwargs)
        made.draw = lot.draw
        return made

    patch.setattr(rank_steps, "term_gradients", gradients)


def _one_shard(patch):
    """Leave out the sum over ranks, though each divides by the expected lot of all."""
    patch.setattr("contracts.threads.ThreadRanks.sum_", lambda self, values: values.copy_(self.broadcast_object(values)))


def _every_record_everywhere(patch):
    patch.setattr(PoissonLots, "_divide", lambda self: setattr(self, "_units", len(self._store)))


BROKEN = {
    "whole noise in each rank": _whole_noise,
    "noise of rank 0 alone": _noise_of_rank_0,
    "groups of each rank": _own_groups,
    "no sum": _one_shard,
    "every record in every rank": _every_record_everywhere,
}


@pytest.mark.slow
@pytest.mark.parametrize("break_it", BROKEN.values(), ids=BROKEN)
def test_the_test_finds_what_is_broken(monkeypatch, break_it):
    sound = _steps(1)
    break_it(monkeypatch)
    assert not _alike(sound, _made(4))


def test_a_record_belongs_to_one_rank():
    """Its rank is drawn for each record by itself, anew in each fit."""

    def work(ranks):
        account = account_of(ranks, {"gradient": 1.0}, rate=1.0, seed=None)
        lots = PoissonLots(np.arange(300.0), account, clusters=torch.arange(300) % 3, k=3)
        lot = lots.draw()
        assert lot.draw.parts == 3
        ends = zip(lot.offsets, lot.offsets[1:], strict=False)
        assert all((lot.records[start:end].long() % 3 == c).all() for c, (start, end) in enumerate(ends))
        return lot.records.tolist()

    parts = together(3, work)
    assert sorted(itertools.chain(*parts)) == list(range(300))
    # Sizes are binomial: 5.5 standard deviations around 100.
    assert all(abs(len(part) - 100) < 5.5 * math.sqrt(300 * 2 / 9) for part in parts)
    assert together(3, work) != parts


def test_a_person_belongs_to_one_rank():
    persons = np.repeat(np.arange(60), 3)

    def work(ranks):
        account = account_of(ranks, {"gradient": 1.0}, rate=1.0, max_rows=3)
        return PoissonLots(persons.astype(float), account, persons=persons).draw().records.tolist()

    parts = together(2, work)
    assert sorted(itertools.chain(*parts)) == sorted(persons) and not set(parts[0]) & set(parts[1]) and all(parts)


def test_ranks_must_have_as_many_records():
    def work(ranks):
        PoissonLots(RECORDS[: N - ranks.rank], account_of(ranks, {"gradient": 1.0})).draw()

    with pytest.raises(Exception, match="rank 1 has another number of records"):
        together(2, work)


def test_ranks_must_have_the_same_records():
    """They must have the same order, too: a shard is a set of positions, and a record at two of them could be in two."""

    def work(ranks):
        records = RECORDS if ranks.leads else RECORDS.flip(0)
        PoissonLots(records, account_of(ranks, {"gradient": 1.0})).draw()

    with pytest.raises(Exception, match="rank 1 has another content or order of records"):
        together(2, work)


@pytest.mark.parametrize("rules", [(Fixed(1e-3), Fixed(100.0)), (DPNorm(4.0, bins=8), DPNorm(8.0, bins=8))], ids=str)
def test_ranks_must_have_the_same_bound(rules):
    """Each draws a part of the noise for all, of the size that its own bound asks for."""

    def work(ranks):
        weight, rule = nn.Parameter(torch.zeros(4)), rules[ranks.rank]
        account = account_of(ranks, dict.fromkeys(["gradient", *rule.noise_shares], 1.0), count=200)
        inner = torch.optim.SGD([weight], lr=0.1)
        optimizer = PrivateOptimizer(inner, account=account, clipping=rule, expected_batch_size=RATE * N)
        lots = PoissonLots(RECORDS, account)
        for _ in range(5):
            lot = lots.draw()
            optimizer.set_gradients(materialised({weight: lot.records}, lot.draw))
            optimizer.step()

    with pytest.raises(Exception, match="rank 1 has another clipping rule, bound or divisor"):
        together(2, work)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_group_reaches_twice_its_bound_across_ranks(size):
    """A record that turns the gradient of its group around: 2 C over the number of all groups, and no less."""
    weight = nn.Parameter(torch.zeros(3))
    one = torch.tensor([5.0, 0.0, 0.0])

    def exact(joined: bool):
        def work(ranks):
            account = account_of(ranks, {"gradient": 1e-9}, count=1, rate=1.0)
            rows = torch.zeros(GROUPS // size, 3)
            if ranks.rank == size - 1:
                rows[0] = -one if joined else one
            gradients = materialised({weight: rows})
            gradients.groups = GROUPS // size
            out, asked = privatize.GradientBuffer([weight]), []
            with account.open("training") as access, contextlib.ExitStack() as stack:
                patch = stack.enter_context(pytest.MonkeyPatch.context())
                if size == 1:
                    own = privatize.gaussian
                    keep = lambda *a, sensitivity, **k: asked.append(sensitivity) or own(*a, sensitivity=sensitivity, **k)  # noqa: E731
                    patch.setattr(privatize, "gaussian", keep)
                privatize.privatize([(gradients, Fixed(0.7))], access, 99.0, out)
            return out.flat.clone(), asked

        return together(size, work)[0]

    (first, asked), (second, _) = exact(False), exact(True)
    assert float((first - second).norm()) == pytest.approx(2 * 0.7 / GROUPS, rel=1e-4)
    assert asked in ([], [pytest.approx(2 * 0.7 / GROUPS)])


@pytest.mark.parametrize("size", [2, 4])
def test_one_flat_sum_a_step(size):
    """With a bound that is chosen from the lot there is one more, of the histogram."""

    def work(ranks):
        weight, sums = nn.Parameter(torch.zeros(4)), {}
        for rule in (Fixed(1.0), DPNorm(4.0, bins=8)):
            account = account_of(ranks, dict.fromkeys(["gradient", *rule.noise_shares], 1.0), count=10)
            optimizer = PrivateOptimizer(
                torch.optim.SGD([weight], lr=0.1), account=account, clipping=rule, expected_batch_size=RATE * N
            )
            lots, ranks.sums = PoissonLots(RECORDS, account), 0
            for _ in range(10):
                lot = lots.draw()
                optimizer.set_gradients(materialised({weight: lot.records}, lot.draw))
                optimizer.step()
            sums[type(rule)] = ranks.sums
        return sums

    assert together(size, work) == [{Fixed: 10, DPNorm: 20}] * size


def test_alone_nothing_is_said():
    ranks = Ranks()
    values = torch.ones(3)
    assert ranks.sum_(values) is values and ranks.broadcast_object("x") == "x" and ranks.leader_first(lambda: 3) == 3
    ranks.broadcast_([values])
    ranks.assert_equal("anything", values)

"""Where records take turns, each is drawn in its own turns alone, by draws that are its own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from lightning_dpgen import DPNorm, Fixed, make_plan
from lightning_dpgen.gradients.clipping import PerPerson
from lightning_dpgen.optim.stages import training_stage
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.sampling.samplers import Cyclic
from lightning_dpgen.privacy.sampling.strategy import Strategy
from lightning_dpgen.sampling.lots import PoissonLots, poisson_loader

# The chance that a test below fails although all is right.
ALARM = 1e-6
N = 1000


SAMPLER = Cyclic(0.25, Strategy(12, 4, (1.0, 0.5)))


def _account(rate=0.25, stream=None):
    stage = training_stage(Fixed(1.0), n=N, sampler=replace(SAMPLER, sample_rate=rate), steps=12)
    return Account(make_plan([stage], epsilon=50.0, delta=1e-5), stream=stream)


def _step(account, lot):
    with account.open("training", draw=lot.draw) as access:
        gaussian(access, "gradient", torch.zeros(2), sensitivity=1.0)


def _numbers(account, count, workers=0, records=N):
    lots = PoissonLots(torch.arange(records), account)
    taken = []
    for lot in lots.draws(count, workers):
        taken.append(lot.records.numpy())
        _step(account, lot)
    return taken


@pytest.mark.parametrize("workers", [0, 1])
def test_cyclic_sampling_keeps_a_record_to_the_turns_of_its_group(workers):
    account = _account(rate=0.2, stream=PrivateStream(seed=5))
    taken = _numbers(account, 12, workers)
    turns = [np.unique(np.concatenate(taken[turn::4])) for turn in range(4)]
    assert sum(map(len, turns)) == len(np.unique(np.concatenate(turns))), "no record is in two groups"
    # A record's turn comes with probability 1/4 at any place, and then it takes part with probability 0.8.
    sizes = np.array([len(lot) for lot in taken])
    low, high = stats.binom.ppf([ALARM / 24, 1 - ALARM / 24], N, 0.2)
    assert ((low <= sizes) & (sizes <= high)).all()
    groups = account._correlated._groups or None
    assert groups is None, "they are forgotten after the last step"


def test_groups_do_not_follow_from_places():
    account = _account(stream=PrivateStream(seed=7))
    account.sample("training", N)
    groups = account._correlated._groups["training"]
    assert stats.chisquare(np.bincount(groups, minlength=4)).pvalue > ALARM
    # Neighbours belong to the same group as often as any two records do.
    together = (groups[1:] == groups[:-1]).sum()
    assert stats.binomtest(int(together), N - 1, 0.25).pvalue > ALARM
    assert stats.binomtest(int((np.arange(N)[1:] % 4 == np.arange(N)[:-1] % 4).sum()), N - 1, 0.25).pvalue < ALARM


def test_a_lot_of_another_step_is_refused_and_costs_nothing():
    account = _account()
    lots = PoissonLots(torch.arange(N), account)
    ahead = list(lots.draws(2))
    with pytest.raises(LedgerError, match=r"drawn for step 1, and step 0 is next.*Nothing was charged"):
        _step(account, ahead[1])
    assert account.remaining("training") == 12
    spare = lots.draw()
    _step(account, ahead[0])
    with pytest.raises(LedgerError, match="drawn for step 0"):
        _step(account, spare)
    _step(account, ahead[1])
    with pytest.raises(LedgerError, match="used for an access already"):
        _step(account, ahead[1])


def test_other_records_than_those_of_the_plan_are_refused():
    account = _account()
    PoissonLots(torch.arange(N), account).draw()
    with pytest.raises(LedgerError, match="those of other records"):
        PoissonLots(torch.arange(N + 1), account).draw()
    with pytest.raises(ValueError, match="clusters"):
        PoissonLots(torch.arange(N), account, clusters=np.zeros(N, np.int64))
    with pytest.raises(ValueError, match="expected no persons"):
        poisson_loader(torch.arange(N), account, persons=np.arange(N))._lots.draw()


@pytest.mark.parametrize("rule", [DPNorm(c_max=1.0), PerPerson(Fixed(1.0))])
def test_a_rule_that_draws_noise_or_clips_persons_is_refused(rule):
    with pytest.raises(ValueError, match="a rule that draws no noise"):
        training_stage(rule, n=N, sampler=SAMPLER, steps=12)
    with pytest.raises(ValueError, match="each draws its own"):
        training_stage(Fixed(1.0), n=N, sampler=SAMPLER, steps=12, embeddings={"mean": 0.1})

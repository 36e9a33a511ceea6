"""Where records take turns, each is drawn in its own turns alone, by draws that are its own."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import IterableDataset

from lightning_dpgen import BadRecords, DPNorm, Fixed, PrivateTraining, make_plan
from lightning_dpgen.gradients.clipping import PerPerson
from lightning_dpgen.optim.stages import training_stage
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.noise import PrivateStream
from lightning_dpgen.privacy.pld import ADD_OR_REMOVE_ONE, ZERO_OUT
from lightning_dpgen.privacy.strategy import CYCLIC, FIXED_ORDER, Strategy
from lightning_dpgen.sampling.lots import PoissonLots, poisson_loader
from lightning_dpgen.sampling.streamed import StreamedStore

# The chance that a test below fails although all is right.
ALARM = 1e-6
N = 1000


def _account(sampler, period=4, rate=None, steps=12, n=N, stream=None):
    strategy = Strategy(sampler, steps, period, (1.0, 0.5))
    stage = training_stage(Fixed(1.0), n=n, sample_rate=rate or 1.0 / period, steps=steps, strategy=strategy)
    relation = ZERO_OUT if sampler == FIXED_ORDER else ADD_OR_REMOVE_ONE
    return Account(make_plan([stage], epsilon=50.0, delta=1e-5, relation=relation), stream=stream)


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
def test_a_fixed_order_passes_all_records_in_lots_of_one_size(workers):
    taken = _numbers(_account(FIXED_ORDER, period=7, steps=14), 14, workers)
    for one_pass in (taken[:7], taken[7:]):
        assert np.array_equal(np.concatenate(one_pass), np.arange(N))
    assert {len(lot) for lot in taken} == {N // 7, N // 7 + 1}


@pytest.mark.parametrize("workers", [0, 1])
def test_cyclic_sampling_keeps_a_record_to_the_turns_of_its_group(workers):
    account = _account(CYCLIC, rate=0.2, stream=PrivateStream(seed=5))
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
    account = _account(CYCLIC, stream=PrivateStream(seed=7))
    account.sample("training", N)
    groups = account._correlated._groups["training"]
    assert stats.chisquare(np.bincount(groups, minlength=4)).pvalue > ALARM
    # Neighbours belong to the same group as often as any two records do.
    together = (groups[1:] == groups[:-1]).sum()
    assert stats.binomtest(int(together), N - 1, 0.25).pvalue > ALARM
    assert stats.binomtest(int((np.arange(N)[1:] % 4 == np.arange(N)[:-1] % 4).sum()), N - 1, 0.25).pvalue < ALARM


@pytest.mark.parametrize("sampler", [FIXED_ORDER, CYCLIC])
def test_a_lot_of_another_step_is_refused_and_costs_nothing(sampler):
    account = _account(sampler)
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
    with pytest.raises(LedgerError, match="the number of records is public"):
        PoissonLots(torch.arange(N - 1), _account(FIXED_ORDER)).draw()
    account = _account(CYCLIC)
    PoissonLots(torch.arange(N), account).draw()
    with pytest.raises(LedgerError, match="those of other records"):
        PoissonLots(torch.arange(N + 1), account).draw()
    with pytest.raises(ValueError, match="clusters"):
        PoissonLots(torch.arange(N), account, clusters=np.zeros(N, np.int64))
    with pytest.raises(LedgerError, match="expected no persons"):
        poisson_loader(torch.arange(N), account, persons=np.arange(N))._lots.draw()


@pytest.mark.parametrize("rule", [DPNorm(c_max=1.0), PerPerson(Fixed(1.0))])
def test_a_rule_that_draws_noise_or_clips_persons_is_refused(rule):
    with pytest.raises(ValueError, match="a rule that draws no noise"):
        training_stage(rule, n=N, sample_rate=0.25, steps=12, strategy=Strategy(CYCLIC, 12, 4))
    with pytest.raises(ValueError, match="each draws its own"):
        training_stage(
            Fixed(1.0), n=N, sample_rate=0.25, steps=12, strategy=Strategy(CYCLIC, 12, 4), embeddings={"mean": 0.1}
        )


class Stream(IterableDataset):
    """Counts the records that are read."""

    def __init__(self, size=N):
        self.size, self.read = size, 0

    def __iter__(self):
        for number in range(self.size):
            self.read += 1
            yield torch.tensor(float(number)), number % 3


def test_a_stream_is_read_once_and_as_it_is_needed():
    stream, account = Stream(), _account(FIXED_ORDER, period=10, steps=10)
    store = StreamedStore(stream, N)
    lots, seen = PoissonLots(store, account).draws(10), []
    for step, lot in enumerate(lots):
        seen.append(lot.records[0].numpy())
        assert stream.read == 100 * (step + 1)
        _step(account, lot)
    assert np.array_equal(np.concatenate(seen), np.arange(N))
    with pytest.raises(BadRecords, match="passed these records already"):
        store.take(np.array([3]))


def test_a_stream_that_is_begun_anew_goes_on_where_the_run_was():
    store = StreamedStore(Stream(), N)
    assert store.take(np.arange(400, 402))[0].tolist() == [400.0, 401.0]


def test_streams_that_do_not_fit_are_refused():
    with pytest.raises(BadRecords, match="ended before its n records"):
        StreamedStore(Stream(5), N).take(np.arange(6))
    with pytest.raises(BadRecords, match="without items"):
        StreamedStore(Stream(0), N)
    with pytest.raises(ValueError, match="which one process reads in its order"):
        next(PoissonLots(StreamedStore(Stream(), N), _account(FIXED_ORDER)).draws(2, workers=1))
    settings = {"n": N, "epsilon": 8.0, "delta": 1e-5, "sample_rate": 0.1, "clipping": Fixed(1.0)}
    with pytest.raises(ValueError, match=r"steps=11 .* passed once, in 10 steps"):
        PrivateTraining(Stream(), steps=11, sampler="fixed_order", **settings)
    with pytest.raises(BadRecords, match="expected a map-style Dataset"):
        PrivateTraining(Stream(), steps=10, sampler="cyclic", **settings)
    assert PrivateTraining(Stream(), steps=10, sampler="fixed_order", **settings).loader().empty[0].shape == (0,)


class Failing(IterableDataset):
    def __iter__(self):
        raise KeyError("patient Smith")
        yield


def test_the_first_error_of_a_stream_tells_nothing_of_its_records():
    with pytest.raises(BadRecords) as refused:
        StreamedStore(Failing(), 10)
    assert "Smith" not in str(refused.value) and refused.value.__cause__ is None

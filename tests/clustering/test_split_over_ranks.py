"""The split is the same to the last bit for any number of ranks and blocks, and a rank that is missed is noticed."""

import pickle

import numpy as np
import pytest
import torch
from contracts.threads import ThreadRanks, together

from lightning_dpgen.clustering import features
from lightning_dpgen.clustering.features import BLOCK
from lightning_dpgen.clustering.kmeans import SplitState, private_split
from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.passes.executor import InProcess
from lightning_dpgen.passes.over_ranks import reduce_over_ranks
from lightning_dpgen.passes.stretches import stretches
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import RankLost
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.noise import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.sampling.errors import BadRecords

RECORDS = torch.rand(3 * BLOCK + 11, 6, generator=torch.Generator().manual_seed(1))
SETTINGS = SplitSettings(k=4, iterations=2, features=10, dimensions=3, radius=1.5).fitted(Layout(units=6))


class ByPickle(InProcess):
    """Each block is computed by a copy of the task, as in another process; the last one first."""

    def map(self, task, keys):
        return super().map(lambda key: pickle.loads(pickle.dumps(task))(key), keys[::-1])


def _account(ranks):
    stages = tuple(Stage(spec.access(1.0), spec.count, spec.share) for spec in SETTINGS.specs(6000))
    account = Account(Plan(stages, 1.0, 1e-5), stream=PrivateStream(seed=0))
    account.join(ranks)
    return account


def _split(ranks, records=RECORDS, *, account=None, executor=None, save=lambda _: None, state=None):
    account, public = account or _account(ranks), torch.Generator().manual_seed(0)
    made = private_split(records, torch.ones(6), SETTINGS, 6000, account, public, executor=executor, save=save, state=state)
    return made, account


def _same(first, second):
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in ("clusters", "counts", "means"))


@pytest.fixture(scope="module")
def alone():
    return _split(Ranks())[0]


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_make_the_split_of_one_process(alone, size):
    saved = [[] for _ in range(size)]
    made = together(size, lambda ranks: _split(ranks, save=saved[ranks.rank].append))
    assert all(_same(split, alone) for split, _ in made)
    # Rank 0 alone opens accesses and keeps states; the others have counted its lines.
    assert len(saved[0]) == 4 and not any(saved[1:])
    accounts = [account for _, account in made]
    assert all(account.done == accounts[0].done and account.finished for account in accounts)


@pytest.mark.parametrize("rows", [BLOCK, 3 * BLOCK])
def test_blocks_and_copies_of_their_tasks_make_the_same_split(alone, rows, monkeypatch):
    monkeypatch.setattr(features, "stretches", lambda n, _: stretches(n, rows))
    assert _same(_split(Ranks())[0], alone)
    assert _same(_split(Ranks(), executor=ByPickle())[0], alone)


def test_a_rank_may_have_no_records():
    few = RECORDS[:1]
    assert all(_same(made, _split(Ranks(), few)[0]) for made, _ in together(3, lambda ranks: _split(ranks, few)))


def test_records_in_another_order_are_refused_before_anything_is_spent():
    """A record that is in two parts would count twice."""
    accounts = {}

    def work(ranks):
        accounts[ranks.rank] = _account(ranks)
        _split(ranks, RECORDS if ranks.leads else RECORDS.flip(0), account=accounts[ranks.rank])

    with pytest.raises(Exception, match="rank 1 has another content or order of records"):
        together(2, work)
    assert not accounts[0].ledger.accesses


def test_a_dataset_is_refused_over_ranks_since_its_items_are_not_compared():
    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return len(RECORDS)

        def __getitem__(self, place):
            return RECORDS[place]

    with pytest.raises(BadRecords, match="items of a Dataset cannot be compared over ranks"):
        together(2, lambda ranks: _split(ranks, Items()))


def test_a_rank_that_dies_in_a_pass_costs_nothing_more(monkeypatch):
    """The ledger has the lines of the accesses before; what rank 0 has released is kept, and the split goes on from it."""
    accounts, saved, sums = {}, [], ThreadRanks.sum_

    def dying(ranks, values):
        if not ranks.leads and getattr(ranks, "sums", 0) == 2:
            raise MemoryError
        return sums(ranks, values)

    def work(ranks):
        accounts[ranks.rank] = _account(ranks)
        _split(ranks, account=accounts[ranks.rank], save=saved.append)

    monkeypatch.setattr(ThreadRanks, "sum_", dying)
    with pytest.raises(MemoryError):
        together(2, work)
    ledger = accounts[0].ledger
    assert sum(ledger.count(stage.name) for stage in accounts[0].plan.stages) == len(saved) == 2
    accounts[0].leave()
    _, account = _split(Ranks(), account=accounts[0], state=saved[-1])
    assert account.finished and isinstance(ledger, Ledger) and isinstance(saved[-1], SplitState)


def test_what_rank_0_cannot_do_stops_the_others():
    def work(ranks):
        def stop(_):
            raise KeyboardInterrupt

        try:
            _split(ranks, save=stop)
        except (KeyboardInterrupt, RankLost) as error:
            return type(error)

    assert together(2, work) == [KeyboardInterrupt, RankLost]


class Numbers:
    """One block of large whole numbers a rank."""

    def __init__(self, number):
        self.keys, self.shapes, self._number = ["all"], {"total": (1,)}, number

    def __len__(self):
        return 1

    def read(self, key):
        return self._number

    def __call__(self, number):
        return {"total": torch.tensor([number])}


def _total(size):
    numbers = [2**58 + 3 * rank + 1 for rank in range(size)]

    def work(ranks):
        own = Numbers(numbers[ranks.rank])
        return int(reduce_over_ranks(ranks, own, own, records=size)["total"][0])

    assert together(size, work) == [sum(numbers)] * size


def _in_floats(ranks, values, own=ThreadRanks.sum_):
    return values.copy_(own(ranks, values.double()).to(torch.int64))


def _without_rank_1(ranks, values, own=ThreadRanks.sum_):
    return own(ranks, values if ranks.rank != 1 else values.zero_())


def test_sums_over_ranks_are_exact_and_miss_none(monkeypatch):
    _total(3)
    monkeypatch.setattr(ThreadRanks, "sum_", _in_floats)
    with pytest.raises(AssertionError):
        _total(3)
    monkeypatch.setattr(ThreadRanks, "sum_", _without_rank_1)
    with pytest.raises(RuntimeError, match="left some out, or took some twice"):
        _total(3)


def test_sums_that_leave_no_room_for_other_ranks_are_refused():
    own = Numbers(2**61)

    def work(ranks):
        reduce_over_ranks(ranks, own, own, records=2)

    with pytest.raises(ValueError, match="reach 2\\^62"):
        together(2, work)


def test_numpy_records_are_divided_as_tensors_are(alone):
    made = together(2, lambda ranks: _split(ranks, np.asarray(RECORDS))[0])
    assert all(_same(split, alone) for split in made)

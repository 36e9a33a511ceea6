"""The split is the same to the last bit for any number of ranks and blocks, and a rank that is missed is noticed."""

import os
import pickle
import signal
import sys
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from contracts.threads import ThreadRanks, together

from lightning_dpgen.clustering import features
from lightning_dpgen.clustering.features import BLOCK
from lightning_dpgen.clustering.kmeans import SplitState, private_split
from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.passes.encoded_blocks import EncodedBlockStore
from lightning_dpgen.passes.kept_records import DamagedBlocks
from lightning_dpgen.passes.on_ray import OnRay
from lightning_dpgen.passes.reduce import InProcess, reduce_over_ranks
from lightning_dpgen.passes.store_slices import store_slices
from lightning_dpgen.passes.table_blocks import TableBlocks
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import RankLost
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.sampling.errors import BadRecords

RECORDS = torch.rand(3 * BLOCK + 11, 6, generator=torch.Generator().manual_seed(1))
SETTINGS = SplitSettings(k=4, iterations=2, features=10, dimensions=3, radius=1.5).for_layout(Layout(units=6))


class ByPickle(InProcess):
    """Each block is computed by a copy of the task, as in another process; the last one first."""

    def map(self, task, keys):
        return super().map(lambda key: pickle.loads(pickle.dumps(task))(key), keys[::-1])


def _account(ranks, settings=SETTINGS):
    stages = tuple(Stage(spec.access(1.0), spec.count, spec.share) for spec in settings.specs(6000))
    account = Account(Plan(stages, 1.0, 1e-5), stream=PrivateStream(seed=0))
    account.join(ranks)
    return account


def _split(ranks, records=RECORDS, *, account=None, settings=SETTINGS, **more):
    account, public = account or _account(ranks, settings), torch.Generator().manual_seed(0)
    return private_split(records, torch.ones(6), settings, 6000, account, public, **more), account


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
    monkeypatch.setattr(features, "store_slices", lambda n, _: store_slices(n, rows))
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
    accounts[0].leave_ranks()
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


class SentOnly(ByPickle):
    """Tasks are computed by copies, and the bytes of each are kept."""

    def __init__(self):
        self.sent = []

    def map(self, task, keys):
        self.sent.append(pickle.dumps(task))
        return super().map(task, keys)


@pytest.mark.parametrize("rows", [BLOCK, 3 * BLOCK])
@pytest.mark.parametrize("dimensions", [3, None], ids=["directions", "all features"])
def test_files_in_the_place_of_memory_make_the_same_split(rows, dimensions, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "store_slices", lambda n, _: store_slices(n, rows))
    settings = replace(SETTINGS, dimensions=dimensions)
    expected = _split(Ranks(), settings=settings)[0]
    for size in (1, 2):
        place = tmp_path / str(size)
        place.mkdir()
        made = together(size, lambda ranks, f=place: _split(ranks, settings=settings, executor=ByPickle(), folder=f)[0])
        assert all(_same(split, expected) for split in made)
        names = {path.name.partition("-")[0] for path in place.iterdir()}
        assert names == {"features", "clusters"} and all(path.stat().st_mode & 0o077 == 0 for path in place.iterdir())


def test_files_of_another_split_or_damaged_ones_are_made_anew(alone, tmp_path):
    _split(Ranks(), RECORDS.flip(0), executor=ByPickle(), folder=tmp_path, settings=replace(SETTINGS, gamma=0.3))
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert _same(_split(Ranks(), executor=ByPickle(), folder=tmp_path)[0], alone)
    assert all(path.read_bytes() != kept[path.name] for path in tmp_path.iterdir())
    for path in tmp_path.glob("features-*"):
        path.write_bytes(path.read_bytes()[:-40])
    assert _same(_split(Ranks(), executor=ByPickle(), folder=tmp_path)[0], alone)


def test_clusters_that_are_gone_end_the_split_in_one_line(tmp_path):
    class Losing(ByPickle):
        def map(self, task, keys):
            for found in super().map(task, keys):
                for path in tmp_path.glob("clusters-*"):
                    path.unlink()
                yield found

    with pytest.raises(DamagedBlocks, match="was damaged or removed while the run read it"):
        _split(Ranks(), executor=Losing(), folder=tmp_path)


def test_a_task_tells_no_record_where_the_records_are_in_files(tmp_path):
    """Messages to the workers do not grow with the records, and sums come back."""
    lengths = []
    for n in (4_000, 9_000):
        random, folder = np.random.default_rng(0), tmp_path / str(n)
        (folder / "kept").mkdir(parents=True)
        frame = pd.DataFrame({"age": random.integers(0, 100, n), "who": random.integers(0, n // 2, n)})
        frame.to_parquet(folder / "in.parquet")
        schema = parse_schema("columns: {age: {type: integer, low: 0, high: 99, bins: 6}}")
        source = TableBlocks(str(folder / "in.parquet"), schema, person="who")
        with closing(EncodedBlockStore(source, folder / "kept", by_rows=True)) as kept:
            kept.fill()
            store = kept.store()
            assert store.persons is not None and len(store) < n
            executor, expected = SentOnly(), _split(Ranks(), store.take(np.arange(len(store))))[0]
            assert _same(_split(Ranks(), store, executor=executor, folder=folder / "kept")[0], expected)
        assert len(executor.sent) == 5
        lengths.append([len(sent) for sent in executor.sent])
    assert np.abs(np.subtract(*lengths)).max() < 300, lengths


@dataclass
class Killing:
    """A cluster on which the first worker of each pass is killed."""

    cluster: OnRay
    victims: Path
    numbers: count = field(default_factory=count)

    def map(self, task, keys):
        return self.cluster.map(partial(_once_killed, self.victims / str(next(self.numbers)), task), keys)


def _once_killed(victim, task, key):
    if not victim.exists():
        victim.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task(key)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_worker_of_a_cluster_that_is_killed_in_each_pass_changes_no_bit(alone, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    # Workers import this file by its name.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setattr(features, "store_slices", lambda n, _: store_slices(n, BLOCK))
    places = [tmp_path / name for name in ("kept", "victims")]
    for place in places:
        place.mkdir()
    try:
        made, account = _split(Ranks(), executor=Killing(OnRay("local", cores=2), places[1]), folder=places[0])
    finally:
        ray.shutdown()
    assert _same(made, alone) and account.finished
    # Moments, two iterations, clusters, and the final pass.
    assert len(list(places[1].iterdir())) == 5

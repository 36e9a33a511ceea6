"""Partial sums by a Ray cluster: those of one process to the last bit, also where a worker is killed."""

import os
import pickle
import signal
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from slices import Slices

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.passes.on_ray import OnRay, Workers, _attempt, connect
from lightning_dpgen.passes.reduce import reduce
from lightning_dpgen.sampling.errors import BadRecords

SCHEMA = ImageSchema(3, 2, levels=255)


class Squares:
    """Sums of products of units, in a process that may have to die first."""

    def __init__(self, victim=None):
        self.shapes, self._victim = {"squares": (6, 6), "size": (1,)}, victim

    def __call__(self, records):
        if self._victim is not None and not self._victim.exists():
            self._victim.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        units = torch.from_numpy(records.encoded.units.astype(np.int64))
        return {"squares": units.T @ units, "size": torch.tensor([len(units)])}


class Unreadable(Slices):
    def read(self, key):
        if key == "slice 3":
            raise BadRecords("part-3.parquet, row group 0: cannot be read")
        return super().read(key)


def some_records():
    random = np.random.default_rng(0)
    return Records(SCHEMA, Encoded(random.integers(0, 256, (101, 6)).astype(np.uint8), np.zeros((101, 0), np.uint8)))


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        # Workers import this file by its name.
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        yield OnRay("local", cores=2)
        import ray

        ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_sums_are_those_of_one_process_and_errors_arrive(cluster, tmp_path):
    records = some_records()
    expected = reduce(Slices(records, rows=101), Squares())
    for function in (Squares(), Squares(tmp_path / "killed")):
        found = reduce(Slices(records, rows=9), function, cluster)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert (tmp_path / "killed").exists()
    with pytest.raises(BadRecords, match=r"part-3\.parquet, row group 0: cannot be read"):
        reduce(Unreadable(records, rows=9), Squares(), cluster)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_block_whose_workers_all_die_ends_in_one_line(cluster):
    with pytest.raises(OSError, match="the Ray cluster has lost a block 5 times") as raised:
        list(cluster.map(_die, ["a"]))
    assert "\n" not in str(raised.value)


class Holder:
    """A worker of a training, which holds cores of the cluster."""

    def pids(self, held):
        return {int(found["pid"]) for _, found in OnRay("auto", beside=Workers(held)).map(_where, list("abcdefghij"))}


def _where(key):
    time.sleep(0.3)
    return {"pid": torch.tensor(os.getpid())}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("held", "computing"), [(2, 1), (1, 2)])
def test_a_worker_of_a_training_computes_too_and_waits_for_no_core_that_is_held(cluster, held, computing):
    ray = connect(cluster.address, cluster.cores)
    holder = ray.remote(Holder).options(num_cpus=held).remote()
    try:
        assert len(ray.get(holder.pids.remote(held), timeout=240)) == computing
    finally:
        ray.kill(holder)


@pytest.mark.parametrize(
    ("address", "says"),
    [("local", "address=local: Ray did not start on this machine"), ("auto", "address=auto: found no Ray cluster there")],
)
@pytest.mark.parametrize("kind", [Exception, ConnectionError, OSError, AssertionError])
def test_a_ray_that_does_not_start_is_one_line(monkeypatch, address, says, kind):
    """Ray raises what its start ends in, which may be a bare Exception."""

    def fail(*_, **__):
        raise kind("The current node timed out during startup.\nThis could happen because some of the Ray processes failed")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=fail, is_initialized=lambda: False))
    with pytest.raises(OSError, match=says) as said:
        connect(address)
    assert "\n" not in str(said.value) and "timed out during startup" in str(said.value)


def test_workers_share_the_cores_that_none_of_them_holds():
    for cores, held, size in ((5, 2, 2), (2, 2, 2), (1, 2, 2), (64, 8, 8), (9, 1, 1), (12, 5, 5)):
        shares = [Workers(held, rank, size).spare(cores) for rank in range(size)]
        assert sum(shares) == max(0, cores - held) and max(shares) - min(shares) <= 1


def _refuse(key):
    raise BadRecords(f"{key}: column 'income': 'x' is no number")


class Unpacked:
    copies = 0

    def __init__(self, number):
        self.number = number

    def __setstate__(self, state):
        Unpacked.copies += 1
        self.__dict__ = state

    def __call__(self, key):
        return {"sum": torch.tensor(self.number + len(key))}


def test_a_worker_unpacks_a_task_once_for_all_blocks_of_a_pass(monkeypatch):
    monkeypatch.setattr(Unpacked, "copies", 0)
    for _ in range(2):
        packed = [pickle.dumps(Unpacked(number)) for number in (1, 2)]
        assert [int(_attempt(one, key)["sum"]) for one in packed for key in ("a", "bc")] == [2, 3, 3, 4]
    assert Unpacked.copies == 4


def _die(key):
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_error_of_a_task_is_a_value():
    """Ray would write one that is raised, with all that its message tells, to a log of the cluster."""
    found = _attempt(pickle.dumps(_refuse), "block 1")
    assert isinstance(found, BadRecords) and "income" in str(found) and found.__traceback__ is None


@pytest.mark.parametrize("given", [{"cores": 2}, {"address": "local", "cores": 0}, {"address": "local", "cores": 2.0}])
def test_cores_are_those_of_a_cluster_that_is_started(given):
    with pytest.raises(ValueError, match="expected None, or a whole number from 1 where address='local'"):
        OnRay(**given)


def test_without_ray_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"compute=ray needs Ray: pip install 'lightning_dpgen\[ray\]'"):
        list(OnRay("local").map(len, ["a"]))

"""Partial sums by the workers of a Ray cluster: tasks over blocks, few at a time, and retried where a worker is lost."""

from __future__ import annotations

import functools
import logging
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_dpgen.passes.reduce import PartialSums

# Tasks that wait or run, for each core of the cluster: enough that no core waits for the driver.
_AHEAD = 2
# Ray itself computes a block again so many times whose worker was lost.
_RETRIES = 5
# Seconds without a result after which the cluster is asked if it still has cores, and for which it may have none.
_ASKED, _PATIENCE = 10.0, 60.0


@dataclass(frozen=True)
class Workers:
    """The workers of a training on a Ray cluster, as one of them sees them.

    Args:
        training_cores: the cores that all of them hold.
        rank: of this one among those that make the pass together.
        size: how many make the pass together.
    """

    training_cores: int
    rank: int = 0
    size: int = 1

    def spare(self, cores: int) -> int:
        """Return the share of this one in the cores of a cluster that no worker holds.

        Example:
            >>> [Workers(training_cores=2, rank=rank, size=2).spare(5) for rank in range(2)]
            [1, 2]
        """
        free = max(0, cores - self.training_cores)
        return free * (self.rank + 1) // self.size - free * self.rank // self.size


class OnRay:
    """A Ray cluster computes partial sums: tasks read a block where they run, and return its sums to this process.

    Noise and ledger stay in this process. A task returns errors as values, so that no message about a record reaches the
    logs of the cluster. Partial sums are private: they wait in the memory of the cluster's machines until this process
    takes them, few at a time. A cluster whose object store is full would write them to its own disk, so give it more room
    than two results a core. All machines need to read the files of the blocks by the same paths.

    Args:
        address: of a running cluster, ``auto`` for the one of this machine or of ``RAY_ADDRESS``; ``local`` to start one on
            this machine, which ends with this process.
        cores: of a ``local`` one; None for all of this machine.
        beside: the workers of a training, of which this process is one; None where it is none. It computes blocks, too,
            and hands others to its share of the cores that no worker of the training holds.

    Raises:
        ValueError: for cores of a cluster that runs already, or fewer than 1.

    Example:
        >>> OnRay("local", cores=2).address
        'local'
    """

    def __init__(self, address: str = "auto", *, cores: int | None = None, beside: Workers | None = None) -> None:
        if cores is not None and (address != "local" or type(cores) is not int or cores < 1):
            raise ValueError(f"cores={cores!r}: expected None, or a whole number from 1 where address='local'")
        self.address, self.cores, self._beside = address, cores, beside

    def map(self, task: Callable[[str], PartialSums], keys: Sequence[str]) -> Iterator[tuple[str, PartialSums]]:
        """Yield each key with what the task returns for it, as results come.

        Raises:
            ImportError: if Ray is not installed.
            OSError: if there is no such cluster, or it loses all its workers.
            BadRecords, ValueError: as the task raises them.
        """
        ray = connect(self.address, self.cores)
        # Tasks of a worker of a training would wait for the cores that the training holds, which is for ever.
        options = {"num_cpus": 1, "max_retries": _RETRIES, "scheduling_strategy": "DEFAULT"}
        compute, rest, waiting = ray.remote(_attempt).options(**options), list(reversed(keys)), dict[Any, str]()
        shared = None
        heard = time.monotonic()
        try:
            while rest or waiting:
                while rest and len(waiting) < self._most_ahead(ray):
                    shared = ray.put(ray.cloudpickle.dumps(task)) if shared is None else shared
                    key = rest.pop()
                    waiting[compute.remote(shared, key)] = key
                takes_part = self._beside is not None and bool(rest)
                done = ray.wait(list(waiting), num_returns=1, timeout=0 if takes_part else _ASKED)[0] if waiting else []
                if done or takes_part or _cores(ray) > 0:
                    heard = time.monotonic()
                elif time.monotonic() - heard > _PATIENCE:
                    raise OSError(f"address={self.address}: the Ray cluster has had no worker for {_PATIENCE:.0f} s")
                for reference in done:
                    yield waiting.pop(reference), _result(ray, reference, self.address)
                if takes_part and not done:
                    key = rest.pop()
                    yield key, task(key)
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)

    def _most_ahead(self, ray: Any) -> int:
        """Return how many tasks may wait or run at a time."""
        if self._beside is None:
            return _AHEAD * max(1, _cores(ray))
        return _AHEAD * self._beside.spare(_cores(ray))


def _attempt(packed: bytes, key: str) -> PartialSums | Exception:
    """Return the partial sums of a block, or the error that it raised: Ray would write one that is raised to a log."""
    import torch

    torch.set_num_threads(1)
    try:
        return dict(_unpacked(packed)(key))
    except Exception as error:  # it is raised where it is taken
        return error.with_traceback(None)


# A worker keeps the task of a pass: a new copy opens all files of its source, which may take as long as a block.
@functools.lru_cache(maxsize=1)
def _unpacked(packed: bytes) -> Callable[[str], PartialSums]:
    return pickle.loads(packed)


def _result(ray: Any, reference: Any, address: str) -> PartialSums:
    try:
        result = ray.get(reference)
    except ray.exceptions.RayError as error:
        why = str(error).strip().partition("\n")[0]
        raise OSError(f"address={address}: the Ray cluster has lost a block {_RETRIES} times ({why})") from None
    if isinstance(result, Exception):
        raise result
    return result


def _cores(ray: Any) -> int:
    return int(ray.cluster_resources().get("CPU", 0))


def connect(address: str, cores: int | None = None) -> Any:
    """Return Ray, connected to a cluster; see `OnRay`.

    Raises:
        ImportError: if Ray is not installed.
        OSError: if there is no such cluster.
    """
    # Nothing about a run leaves the machines.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ImportError("compute=ray needs Ray: pip install 'lightning_dpgen[ray]'") from None
    if not ray.is_initialized():
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": False}
        try:
            if address == "local":
                ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
            else:
                ray.init(address=address, **quiet)
        except Exception as error:  # Ray raises a bare Exception where its processes do not start in time
            why = str(error).strip().partition("\n")[0]
            if address == "local":
                raise OSError(
                    f"address={address}: Ray did not start on this machine ({why}); look into "
                    "/tmp/ray/session_latest/logs, or run in this process without Ray"
                ) from None
            raise OSError(
                f"address={address}: found no Ray cluster there ({why}); start one by 'ray start --head', or take "
                "address='local'"
            ) from None
    return ray

"""The training of a network by the workers of a Ray cluster, which this program starts, hears and outlives.

A worker is a rank, and tells the command at a desk what it has to say.
"""

from __future__ import annotations

import functools
import os
import pickle
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_dpgen.cli.launch import describe_stop, is_launched, run_guarded
from lightning_dpgen.cli.real_records import check_source
from lightning_dpgen.common import pace
from lightning_dpgen.passes.on_ray import connect
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.runs import run_folder
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.reporter import TerminalReporter
from lightning_dpgen.runs.run import train
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.specs.groups import RaySpec, TrainerSpec
from lightning_dpgen.specs.run import RunSpec, load_settings
from lightning_dpgen.specs.spec import as_settings
from lightning_dpgen.specs.usage_error import FAULT, INTERRUPTED, OK, RANK_LOST, UsageError, describe_os_error
from lightning_dpgen.specs.words import replace_setting

# Ray Train would write what a worker prints or logs to files of the cluster, and change its working directory.
_QUIET = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}
# Variables of the command that its workers need on all machines.
_PASSED_ON = ("DPGEN_DATA",)
_SECONDS = 0.2
# Seconds between two questions whether the user wants to stop.
_ASKED_EVERY = 1.0


def check_trainer(trainer: TrainerSpec, compute: RaySpec) -> None:
    """Refuse settings of the Trainer that no Ray cluster has; nothing is connected yet."""
    if is_launched():
        raise UsageError("compute=ray: starts the training workers itself; start it without torchrun or srun")
    if trainer.num_nodes > 1:
        raise UsageError(
            f"trainer.num_nodes={trainer.num_nodes}: with compute=ray the cluster chooses machines: leave it out, and give "
            "trainer.devices the number of all workers"
        )
    if trainer.accelerator not in ("auto", "cpu", "gpu", "cuda"):
        raise UsageError(f"trainer.accelerator={trainer.accelerator}: with compute=ray expected auto, cpu or gpu")
    if compute.address == "local":
        have = compute.cores or os.cpu_count() or 1
        _check_cores(trainer, have, f"compute.address=local has {have}; compute.cores says how many it pretends to have")


def launch(argv: Sequence[str], folder: RunFolder, spec: RunSpec) -> dict[str, Any]:
    """Train by the workers of a cluster, and return the certificate of the release.

    Rank 0 of the workers leads the run as one process would: it writes the ledger, the state and the release in the folder,
    which all machines see by the same path. A first signal asks for a clean stop, the second leaves at once.

    Raises:
        UsageError: where a worker or the cluster was lost, with the command that goes on.
        Exception: as rank 0 raised it.
    """
    assert isinstance(spec.compute, RaySpec)
    os.environ |= _QUIET
    with _connect(spec.compute) as ray:
        use_gpu = _takes_gpus(ray.cluster_resources(), spec.trainer, spec.compute)
        desk = _make_desk(ray)
        run_folder.take(folder)
        words = replace_setting(argv, "run_dir", folder.root)
        work = functools.partial(take_part, desk, words, folder.root, os.getcwd())
        with tempfile.TemporaryDirectory(prefix="dpgen-ray-") as storage:
            fit = _Fit(_make_trainer(work, spec.trainer, use_gpu, storage))
            try:
                ends = _hear(ray, desk, fit)
            except KeyboardInterrupt:
                raise UsageError(f"interrupted{describe_stop('train', argv, folder)}", INTERRUPTED) from None
            except ray.exceptions.RayError:
                ends = {}
    return _certificate(ends, fit.error, spec.trainer.devices, describe_stop("train", argv, folder))


@contextmanager
def _connect(compute: RaySpec) -> Iterator[Any]:
    """Yield Ray, connected to the cluster; a connection that is made here ends here, and ends what runs for it."""
    before = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    try:
        ray = connect(compute.address, compute.cores)
    except ImportError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(as_settings(describe_os_error(error), "compute", compute)) from None
    try:
        yield ray
    finally:
        if not before:
            ray.shutdown()


def _takes_gpus(resources: Mapping[str, float], trainer: TrainerSpec, compute: RaySpec) -> bool:
    """Return whether each worker takes a GPU."""
    place = f"the cluster at compute.address={compute.address} has"
    gpus = int(resources.get("GPU", 0))
    wants = trainer.accelerator in ("gpu", "cuda") or (trainer.accelerator == "auto" and gpus > 0)
    if wants and gpus < trainer.devices:
        raise UsageError(
            f"trainer.devices={trainer.devices}: {place} {gpus} GPUs; expected at most as many (trainer.accelerator=cpu "
            "takes cores)"
        )
    cores = int(resources.get("CPU", 0))
    _check_cores(trainer, cores, f"{place} {cores}")
    return wants


def _check_cores(trainer: TrainerSpec, have: int, available: str) -> None:
    needed = trainer.devices * (trainer.threads or 1)
    if needed > have:
        each = f" of trainer.threads={trainer.threads} each" if trainer.threads else ""
        raise UsageError(f"trainer.devices={trainer.devices}{each}: takes {needed} cores, and {available}")


def _make_desk(ray: Any) -> Any:
    """Return the handle of a desk on this machine."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Desk).options(num_cpus=0, scheduling_strategy=here).remote()


def _make_trainer(work: Any, trainer: TrainerSpec, use_gpu: bool, storage: str) -> Any:
    """Return Ray Train's trainer, which starts the workers once: a run that has lost one is begun again by its user."""
    from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    return TorchTrainer(
        work,
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=trainer.devices, use_gpu=use_gpu, resources_per_worker={"CPU": trainer.threads or 1}
        ),
        run_config=RunConfig(
            name="dpgen",
            # Nothing is kept there: Ray Train wants a place before it starts.
            storage_path=storage,
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0),
            worker_runtime_env={"env_vars": {name: os.environ[name] for name in _PASSED_ON if name in os.environ}},
            logging_config=LoggingConfig(log_level="CRITICAL"),
        ),
    )


class _Fit:
    """A fit of Ray Train in a thread, so that signals come to this program and not to Ray, which would kill the workers.

    Attributes:
        error: the exception that it ended by.
    """

    def __init__(self, trainer: Any) -> None:
        self.error: Exception | None = None
        self._trainer = trainer
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._trainer.fit()
        except Exception as error:  # looked at when all has been heard
            self.error = error

    def over(self, seconds: float) -> bool:
        """Return True once it has ended, and False if it has not after these seconds."""
        self._thread.join(seconds)
        return not self._thread.is_alive()


def _hear(ray: Any, desk: Any, fit: _Fit) -> dict[int, End]:
    """Print what the workers say until all have ended, and return how; a signal is passed on to them.

    Raises:
        KeyboardInterrupt: on a second signal.
        RayError: if the cluster is lost.
    """
    interrupts, passed_on, over = Interrupts(), False, False
    with interrupts.caught(), interrupts.patient():
        while not over:
            over = fit.over(_SECONDS)
            for stream, text in ray.get(desk.take_lines.remote()):
                print(text, file=getattr(sys, stream), flush=True)
            if interrupts.asked and not passed_on:
                ray.get(desk.stop.remote())
                passed_on = True
        return ray.get(desk.ends.remote())


def _certificate(ends: Mapping[int, End], error: Exception | None, count: int, came_of: str) -> dict[str, Any]:
    """Return the certificate of rank 0, or raise what has kept it from making one."""
    leader = ends.get(0)
    if leader is not None and leader.status == OK:
        assert leader.certificate is not None, "rank 0 ends with a certificate"
        return leader.certificate
    if leader is not None and leader.status != RANK_LOST:
        leader.raise_error()
    # Others leave because of the first, or are ended by Ray.
    for _, end in sorted(ends.items()):
        if end.status not in (OK, RANK_LOST, INTERRUPTED):
            try:
                end.raise_error()
            except UsageError as mistake:
                raise UsageError(f"{mistake}{came_of}", RANK_LOST) from None
    lost = [rank for rank in getattr(error, "worker_failures", {}) if rank not in ends]
    if lost:
        raise UsageError(f"rank {min(lost)} of {count} was lost with its Ray worker{came_of}", RANK_LOST)
    why = "" if error is None else f" ({' '.join(str(error).split())[:300]})"
    raise UsageError(f"compute=ray: the cluster could not start {count} workers, or was lost{why}{came_of}", RANK_LOST)


class Desk:
    """An actor between the command and its workers, which keeps what they say in memory, and writes it nowhere."""

    def __init__(self) -> None:
        self._said: list[tuple[str, str]] = []
        self._ends: dict[int, End] = {}
        self._stopped = False

    def say(self, stream: str, text: str) -> None:
        """Take down a line for the ``stdout`` or ``stderr`` of the command."""
        self._said.append((stream, text))

    def take_lines(self) -> list[tuple[str, str]]:
        """Return the lines since the last call."""
        lines, self._said = self._said, []
        return lines

    def end(self, rank: int, end: End) -> None:
        """Take down how a rank has ended."""
        self._ends[rank] = end

    def ends(self) -> dict[int, End]:
        """Return how ranks have ended, those that have."""
        return self._ends

    def stop(self) -> None:
        """Ask the workers to stop at the next safe place."""
        self._stopped = True

    def is_stopped(self) -> bool:
        """Return True where the workers are to stop."""
        return self._stopped


@dataclass(frozen=True)
class End:
    """The end of a rank.

    Args:
        status: an exit status.
        certificate: of the release, from rank 0.
        error: the exception that ended it, pickled. Private, since its message may be about a record.
    """

    status: int
    certificate: dict[str, Any] | None = None
    error: bytes | None = None

    def raise_error(self) -> None:
        """Raise the error that ended the rank, if one did."""
        if self.error is not None:
            raise pickle.loads(self.error)


class _Stopped(Exception):
    """Ends the group of workers. Ray writes it to a log, so it says nothing."""


def take_part(desk: Any, argv: Sequence[str], root: Path, work_dir: str) -> None:
    """Do what this worker has to do in the training of a folder. Whatever it says goes to the desk, and to no log.

    Args:
        desk: the handle of a `Desk`.
        argv: the words of the command, with its run_dir.
        root: the folder of the run.
        work_dir: the working directory of the command, from which relative paths are read.
    """
    import ray

    # Before Lightning is imported here: Ray Train has a namespace of its choice, and ours follows it.
    import ray.train.lightning

    rank = ray.train.get_context().get_world_rank()
    with redirect_stdout(_DeskStream(desk, "stdout")), redirect_stderr(_DeskStream(desk, "stderr")):
        end = _end(lambda: _do_part(desk, argv, root, work_dir))
    # Lines arrive in their order, so all of them are there by then.
    ray.get(desk.end.remote(rank, end))
    if end.status not in (OK, RANK_LOST, INTERRUPTED):
        # Others wait for this rank, and their connection to it stays.
        raise _Stopped("a rank has ended early; the command that started it says why")


def _do_part(desk: Any, argv: Sequence[str], root: Path, work_dir: str) -> End:
    os.chdir(work_dir)
    spec = load_settings(argv)
    source, folder, ranks = check_source(spec.data), RunFolder(root), Ranks.join()
    if not ranks.leads:
        from lightning_dpgen.runs.train import run_worker

        return End(run_worker(spec, source, folder, ranks))

    def work(interrupts: Interrupts) -> dict[str, Any]:
        with _listening(desk, interrupts), pace.show_progress(sys.stderr):
            return train(spec, source, folder, interrupts, TerminalReporter(), ranks, on_ray=True)

    return End(OK, run_guarded("train", argv, folder, work))


def _end(work: Callable[[], End]) -> End:
    """Return the end of the work, with its error as a value: Ray would write one that is raised to a log."""
    try:
        return work()
    except BaseException as error:  # raised again by the command
        if isinstance(error, UsageError):
            status = error.status
        else:
            status = FAULT
            error.add_note(f"In a Ray worker:\n{traceback.format_exc()}")
        return End(status, error=_pickle_error(error))


def _pickle_error(error: BaseException) -> bytes:
    """Return an error that can be read where its class, or what it holds, is not known."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
        return data
    except Exception:  # whatever a class of the user's raises
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))


@contextmanager
def _listening(desk: Any, interrupts: Interrupts) -> Iterator[None]:
    """Ask, in a thread beside the work, whether the user wants to stop."""
    import ray

    over = threading.Event()

    def listen() -> None:
        while not over.wait(_ASKED_EVERY):
            if ray.get(desk.is_stopped.remote()):
                interrupts.asked = True
                return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _DeskStream:
    """A stream of text that goes to the desk, line by line."""

    def __init__(self, desk: Any, name: str) -> None:
        self._desk, self._name, self._begun = desk, name, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._desk.say.remote(self._name, line)
        return len(text)

    def flush(self) -> None:
        """Leave what is begun until its line is whole."""

    def isatty(self) -> bool:
        return False

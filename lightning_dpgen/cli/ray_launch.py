"""The training of a network by the workers of a Ray cluster, which this program starts, hears and outlives."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lightning_dpgen.cli.guarded import what_came_of
from lightning_dpgen.cli.launch import launched
from lightning_dpgen.cli.ray_rank import Desk, End, take_part
from lightning_dpgen.passes.on_ray import connect
from lightning_dpgen.runs import folder as run_folder
from lightning_dpgen.runs.folder import RunFolder
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.specs.argument_names import as_settings
from lightning_dpgen.specs.compose import replaced
from lightning_dpgen.specs.compute import RaySpec
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.trainer import TrainerSpec
from lightning_dpgen.specs.usage_error import INTERRUPTED, OK, RANK_LOST, UsageError, describe_os_error

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


def check_trainer(trainer: TrainerSpec, compute: RaySpec) -> None:
    """Refuse settings of the Trainer that no Ray cluster has; nothing is connected yet.

    Raises:
        UsageError: naming the setting.
    """
    if launched():
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
    with _connected(spec.compute) as ray:
        use_gpu = _takes_gpus(ray.cluster_resources(), spec.trainer, spec.compute)
        desk = _make_desk(ray)
        run_folder.take(folder)
        words = replaced(argv, "run_dir", folder.root)
        work = functools.partial(take_part, desk, words, folder.root, os.getcwd())
        with tempfile.TemporaryDirectory(prefix="dpgen-ray-") as storage:
            fit = _Fit(_make_trainer(work, spec.trainer, use_gpu, storage))
            try:
                ends = _hear(ray, desk, fit)
            except KeyboardInterrupt:
                raise UsageError(f"interrupted{what_came_of('train', argv, folder)}", INTERRUPTED) from None
            except ray.exceptions.RayError:
                ends = {}
    return _certificate(ends, fit.error, spec.trainer.devices, what_came_of("train", argv, folder))


@contextmanager
def _connected(compute: RaySpec) -> Iterator[Any]:
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
    """Return whether each worker takes a GPU.

    Raises:
        UsageError: for more workers than the cluster has GPUs or cores for.
    """
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


def _check_cores(trainer: TrainerSpec, have: int, told: str) -> None:
    needed = trainer.devices * (trainer.threads or 1)
    if needed > have:
        each = f" of trainer.threads={trainer.threads} each" if trainer.threads else ""
        raise UsageError(f"trainer.devices={trainer.devices}{each}: takes {needed} cores, and {told}")


def _make_desk(ray: Any) -> Any:
    """Return the handle of a desk on this machine."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Desk).options(num_cpus=0, scheduling_strategy=here).remote()


def _make_trainer(work: Any, trainer: TrainerSpec, use_gpu: bool, storage: str) -> Any:
    """Return Ray Train's trainer, which starts the workers once: a run that has lost one is begun again by its user."""
    import pytorch_lightning as pl
    from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
    from ray.train.lightning import RayDDPStrategy
    from ray.train.torch import TorchConfig, TorchTrainer

    if not issubclass(RayDDPStrategy, pl.strategies.DDPStrategy):
        raise UsageError(
            "compute=ray: Ray Train uses the package lightning if it is installed, and this software uses "
            "pytorch_lightning: uninstall lightning, or leave compute=ray out"
        )
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
            for stream, text in ray.get(desk.said.remote()):
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

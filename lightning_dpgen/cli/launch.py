"""A run is started, on one device or several, and ends; where it is interrupted, one line says how to go on.

Several devices have a process each, started here on one machine, or by torchrun or SLURM on several.
On one machine `dpgen train trainer.devices=2` starts itself once a device under torch's elastic agent (what torchrun is),
and stays beside its ranks: whichever of them dies, it ends the others and says how to go on. Lightning's own launcher of
scripts ends the process that could say so.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.measure.pair_tables import LostColumns
from lightning_dpgen.privacy.errors import RankLost
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.privacy.software import launched_as
from lightning_dpgen.runs import run_folder
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.memory import ADVICE, LATE_ADVICE, is_out_of_memory
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.specs.groups import TrainerSpec
from lightning_dpgen.specs.usage_error import INTERRUPTED, OK, RANK_LOST, UsageError, describe_os_error
from lightning_dpgen.specs.words import replace_setting

if TYPE_CHECKING:
    from lightning_fabric.plugins.environments import ClusterEnvironment

# Variables of which torchrun or SLURM sets one.
_LAUNCHED = ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS")
# In the environment of ranks beside which this program stays.
_BESIDE = "DPGEN_BESIDE"
# Seconds for a clean stop: the end of a block of lots, and a checkpoint.
_TO_STOP = 300


def how_to_go_on(command: str, argv: Sequence[str], folder: RunFolder) -> str:
    """Return the line that says how to go on with the run of that folder."""
    words = replace_setting(argv, "run_dir", folder.root)
    return f"To go on from where it stopped: {shlex.join(['dpgen', command, *words])}"


def describe_stop(command: str, argv: Sequence[str], folder: RunFolder) -> str:
    """Return the end of a line that says why a run was stopped."""
    if folder.release.exists():
        return f", after the release was complete: {folder.release}"
    if folder.unfinished:
        on = how_to_go_on(command, argv, folder)
        return f"; nothing was released, and the ledger holds all that was drawn. {on}"
    on = f". {how_to_go_on(command, argv, folder)}" if folder.blocks.is_dir() else ""
    return f"; nothing was released, and nothing was spent{on}"


def print_release(
    certificate: dict[str, Any], folder: RunFolder, unit: str, *more: str, warned: Sequence[str] = ()
) -> None:
    """Print what a release promises about its unit, what was warned of, where it is, and what can be done with it."""
    private = certificate["private"]
    lost = next((text.names for text in warned if isinstance(text, LostColumns)), [])
    if private and lost:
        columns = "1 column is" if len(lost) == 1 else f"{len(lost):,} columns are"
        print(
            f"\ndone, but {columns} NOTHING BUT NOISE: {listed(lost)}. Epsilon {certificate['epsilon']:g} at delta "
            f"{certificate['delta']:g}, {unit}, is spent"
        )
    elif private:
        print(f"\ndone: epsilon {certificate['epsilon']:g} at delta {certificate['delta']:g}, {unit}")
    else:
        print(f"\ndone, but NOT A PRIVATE RELEASE: {certificate['statement'].split('. ')[1]}.")
    for text in (text for text in warned if not isinstance(text, LostColumns)):
        # Advice was given before anything was spent.
        print(f"  warned: {text.partition('; ')[0]}")
    print(f"  release (may be published{'' if private else ': NO'}):  {folder.release}")
    print(f"  private (must not leave this machine):  {folder.private}")
    print("next:")
    for line in (shlex.join(["dpgen", "verify", str(folder.release)]), *more):
        print(f"  {line}")


def run_guarded(
    command: str, argv: Sequence[str], folder: RunFolder, work: Callable[[Interrupts], dict[str, Any]]
) -> dict[str, Any]:
    """Return what `work` returns.

    Args:
        command: of dpgen, with its arguments `argv`, for the line that says how to go on.
        work: is handed what the user has asked for by signals.

    Raises:
        UsageError: on an interrupt, an error of the system, or memory that there is not.
    """
    interrupts = Interrupts()
    with interrupts.caught():
        try:
            return work(interrupts)
        except KeyboardInterrupt:
            raise UsageError(f"interrupted{describe_stop(command, argv, folder)}", INTERRUPTED) from None
        except RankLost as error:
            raise UsageError(f"{error}{describe_stop(command, argv, folder)}", RANK_LOST) from None
        except OSError as error:
            # Records that were encoded in blocks are worth going on with, too.
            goes_on = folder.unfinished or folder.blocks.is_dir()
            hint = f"; {how_to_go_on(command, argv, folder)}" if goes_on else ""
            raise UsageError(f"{describe_os_error(error)}{hint}") from None
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if folder.unfinished:
                raise UsageError(f"{LATE_ADVICE}. {how_to_go_on(command, argv, folder)}") from None
            raise UsageError(f"{ADVICE}. Nothing was spent, and run_dir={folder.root} can be begun anew") from None


def launcher() -> ClusterEnvironment | None:
    """Return torchrun's or SLURM's description of its processes; None where this process was started alone."""
    if not any(name in os.environ for name in _LAUNCHED):
        return None
    # It takes two seconds to import, which a process that was started alone does not wait for.
    from lightning_fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment

    return next((kind() for kind in (TorchElasticEnvironment, SLURMEnvironment) if kind.detect()), None)


def is_launched() -> bool:
    """Return True where a launcher has started this process as one of several."""
    environment = launcher()
    return environment is not None and environment.world_size() > 1


def to_launch(trainer: TrainerSpec) -> bool:
    """Return True where this process is to start others, and not one of them.

    Raises:
        UsageError: for numbers of devices and nodes that are not those that were started.
    """
    wanted, environment = trainer.devices * trainer.num_nodes, launcher()
    if environment is not None:
        if environment.world_size() != wanted:
            raise UsageError(
                f"trainer.devices={trainer.devices} trainer.num_nodes={trainer.num_nodes}: torchrun or SLURM has started "
                f"{environment.world_size()} processes; expected as many as devices times nodes"
            )
        return False
    if trainer.num_nodes > 1:
        raise UsageError(
            f"trainer.num_nodes={trainer.num_nodes}: start this command on each node, with run_dir=... on a disk that all "
            f"nodes share: srun dpgen train ..., or torchrun --nnodes {trainer.num_nodes} --nproc-per-node "
            f"{trainer.devices} --rdzv-backend c10d --rdzv-endpoint HOST:PORT -m lightning_dpgen train ..."
        )
    if trainer.devices > 1 and _on_gpus(trainer):
        if torch.cuda.device_count() < trainer.devices:
            raise UsageError(
                f"trainer.devices={trainer.devices}: this machine has {torch.cuda.device_count()} GPUs; expected at most "
                "as many (trainer.accelerator=cpu takes processes on the CPU)"
            )
    # Two are allowed on any machine, to try a run of several; many more than there are cores take minutes to meet.
    elif trainer.devices > max(2, cores := os.cpu_count() or 1):
        raise UsageError(
            f"trainer.devices={trainer.devices}: this machine has {cores} cores; expected at most as many processes"
        )
    return wanted > 1


def launch(argv: Sequence[str], folder: RunFolder, devices: int) -> int:
    """Run the command in a process for each device; gives its exit status.

    Raises:
        UsageError: if a rank died, with the command that goes on.
    """
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    # The name that the ranks get is this run's from here on.
    run_folder.take(folder)
    words = ["train", *replace_setting(argv, "run_dir", folder.root)]
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=devices,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        shutdown_timeout=_TO_STOP,
    )
    # As torchrun does by default: threads of several processes get into each other's way.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // devices)))
    os.environ[_BESIDE] = "1"
    try:
        elastic_launch(config, sys.executable)("-m", "lightning_dpgen", *words)
    except SignalException:
        return INTERRUPTED
    except ChildFailedError as failed:
        ranks = failed.failures
        # Others leave because of the first, or because the agent stops them.
        after = (RANK_LOST, INTERRUPTED, -signal.SIGTERM)
        first = min((rank for rank, end in ranks.items() if end.exitcode not in after), default=min(ranks))
        # Rank 0 has explained the status that it leaves with.
        if first == 0 and ranks[0].exitcode > 0:
            return ranks[0].exitcode
        code = ranks[first].exitcode
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        text = f"rank {first} of {devices} {ended}{describe_stop('train', argv, folder)}"
        raise UsageError(text, RANK_LOST) from None
    finally:
        del os.environ[_BESIDE]
    return OK


@contextmanager
def join_ranks(trainer: TrainerSpec) -> Iterator[Ranks]:
    """Make this process one of those that were started; alone where one was."""
    environment = launcher()
    if not is_launched():
        if rank := launched_as():
            raise UsageError(
                f"the environment says that this process is rank {rank} of several (RANK, LOCAL_RANK or SLURM_PROCID), "
                "and it is alone: start it by torchrun or srun with all of its ranks, or unset that variable"
            )
        yield Ranks()
        return
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = environment.main_address, str(environment.main_port)
    backend = "gloo"
    if _on_gpus(trainer):
        torch.cuda.set_device(environment.local_rank())
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, rank=environment.global_rank(), world_size=environment.world_size())
    try:
        yield Ranks.join()
    finally:
        dist.destroy_process_group()


def is_watched() -> bool:
    """Return True where another process says what has happened if a rank is lost."""
    return _BESIDE in os.environ


def _on_gpus(trainer: TrainerSpec) -> bool:
    return trainer.accelerator in ("gpu", "cuda") or (trainer.accelerator == "auto" and torch.cuda.is_available())

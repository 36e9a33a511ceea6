"""The context that the stages of a run share, and the states from which a run that did not end goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_dpgen.data.records import Records
from lightning_dpgen.measure.crossings import EVIDENCE_STAGE
from lightning_dpgen.metrics.fidelity import FIDELITY
from lightning_dpgen.passes.kept_records import KeptRecords
from lightning_dpgen.passes.on_ray import Workers
from lightning_dpgen.passes.reduce import PassExecutor
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import LABELS
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.reporter import Reporter, SilentReporter
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.runs.table import budget_table
from lightning_dpgen.specs.first_pass import FIRST_PASS
from lightning_dpgen.specs.groups import ProjectSpec, RaySpec, make_executor
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.settings import Settings

if TYPE_CHECKING:
    from lightning_dpgen.plugins.split import PrivateSplitDataModule


@dataclass
class Context:
    """A run under way.

    Args:
        settings: complete.
        ranks: the processes that make the run together; this one leads.
        keeps: whether what is released of the split is kept in the folder.
    """

    settings: Settings
    account: Account
    folder: RunFolder
    interrupts: Interrupts
    reporter: Reporter = field(default_factory=SilentReporter)
    ranks: Ranks = field(default_factory=Ranks)
    keeps: bool = True

    def split_module(self, records: Records | KeptRecords) -> PrivateSplitDataModule:
        """Return the datamodule of the run, which makes its split."""
        # It imports Lightning, which a run that trains nothing does not wait for.
        from lightning_dpgen.plugins.split import PrivateSplitDataModule

        settings = self.settings
        # Records in memory would go through the object store of the cluster.
        on_cluster = isinstance(settings.spec.compute, RaySpec) and isinstance(records, KeptRecords)
        return PrivateSplitDataModule(
            records,
            settings.split,
            self.account,
            n=settings.n,
            centres=settings.centres,
            memory_gib=settings.spec.split.memory_gib,
            seed=settings.spec.seed,
            keep=self.folder.split if self.keeps else None,
            after_access=self.interrupts.stop_here,
            executor=training_executor(settings.spec, self.ranks) if on_cluster else None,
            folder=self.folder.blocks if on_cluster else None,
        )


def training_executor(spec: RunSpec, ranks: Ranks | None = None) -> PassExecutor:
    """Return what computes passes of a run that trains a network, none of which waits for a core that training holds.

    Args:
        ranks: those that make the passes together; None for this process alone.
    """
    if not isinstance(spec.compute, RaySpec):
        return make_executor(spec.compute)
    rank, size = (0, 1) if ranks is None else (ranks.rank, ranks.size)
    return make_executor(spec.compute, Workers(spec.trainer.devices * (spec.trainer.threads or 1), rank, size))


def private_stream(spec: RunSpec | ProjectSpec) -> PrivateStream:
    """Return the private stream of a run."""
    return PrivateStream(spec.debug.private_seed, secure=spec.privacy.noise == "secure")


def load_state(path: Path, account: Account, *names: str) -> dict[str, Any]:
    """Return what a run has saved under these names.

    Raises:
        LedgerError: if the ledger lacks lines that were there when it was saved.
        DamagedState: if it cannot be read.
    """
    state = durable.load(path, "head", *names)
    if not account.ledger.knows(state["head"]):
        raise LedgerError(f"{path}: refers to lines that the ledger does not hold: some of the ledger is missing")
    return state


def fidelity(account: Account, folder: RunFolder) -> dict[str, float] | None:
    """Return the public figure that a run has measured, if it was saved."""
    if folder.fidelity.is_file():
        state = durable.load(folder.fidelity, "head", "figure")
        if account.ledger.knows(state["head"]):
            return state["figure"]
    return None


def paid_once(account: Account) -> dict[str, int]:
    """Return the accesses that are not made again, for `Account.go_on`.

    What was bought first stands in the ledger. A figure that was lost is not bought again, nor are gradients of labels and
    what tells how much crossings say of them: the model would pay for it.
    """
    return {name: count for name in (FIRST_PASS, EVIDENCE_STAGE, LABELS, FIDELITY) if (count := account.ledger.count(name))}


def say_plan(run: Context, after: str = "") -> None:
    """Say that a run goes on, and by which plan."""
    run.reporter.say(f"going on with the run in {run.folder.root}{after}; its plan is now:")
    run.reporter.say(budget_table(run.account.plan, of_person=run.settings.spec.protects_persons))

"""The places where the ledger of an account can be: with this process, with rank 0, or with spawned processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.launched import launched_as
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.ranks import Ranks


class PlacedLedger(ABC):
    """A ledger in its place, which decides whether this process may open accesses.

    Attributes:
        leads: whether this process enters the run in its study.
    """

    leads = True

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def ledger(self) -> Ledger:
        """The ledger itself."""
        return self._ledger

    @property
    def path(self) -> Path | None:
        """The file of the ledger; None for one in memory."""
        return self._ledger.path

    @abstractmethod
    def check_open(self, stage: str, ranks: Ranks) -> None:
        """Raise LedgerError if this process may not open an access of a stage with these ranks."""

    def done(self, plan: Plan, counted: Mapping[str, int]) -> dict[str, int]:
        """Return how many accesses of each stage have left their mark, where this process has counted as many."""
        return dict(counted)

    @abstractmethod
    def joined(self, ranks: Ranks) -> PlacedLedger:
        """Return the ledger of this process when it is one of these ranks.

        Raises:
            LedgerError: if this process was started as one of several, and there are no others.
        """

    def aside(self, ledger: Ledger) -> PlacedLedger:
        """Return another ledger, in memory, with which this process may do as much."""
        return OwnLedger(ledger)

    def file(self) -> Path:
        """Return the path by which another process finds the ledger.

        Raises:
            TypeError: for a ledger in memory.
        """
        if self.path is None:
            raise TypeError(
                "this account keeps its ledger in memory, which ends with the processes that a Trainer spawns: give it a "
                "file (Account(plan, ledger=...)), or take strategy='ddp'"
            )
        return self.path.absolute()

    def handed_over(self) -> HandedOverLedger:
        """Leave the file to another process, and return what this one can still see of it."""
        path = self.file()
        self._ledger.detach()
        return HandedOverLedger(path)


class OwnLedger(PlacedLedger):
    """A ledger that this process writes, to a file or in memory."""

    def check_open(self, stage: str, ranks: Ranks) -> None:
        pass

    def joined(self, ranks: Ranks) -> PlacedLedger:
        return self if ranks.leads else FollowedLedger(self._ledger)


class FollowedLedger(PlacedLedger):
    """A ledger in memory that counts as the one of rank 0 does; nothing is drawn from it alone."""

    leads = False

    def check_open(self, stage: str, ranks: Ranks) -> None:
        if ranks.size == 1:
            raise LedgerError(
                f"stage {stage!r}: this process is rank {launched_as()} of several, and rank 0 alone spends what is not "
                "spent by all of them in a fit"
            )

    def joined(self, ranks: Ranks) -> PlacedLedger:
        if ranks.size == 1:
            raise LedgerError(
                f"this process was started as rank {launched_as()} (RANK, LOCAL_RANK or SLURM_PROCID), and its Trainer has "
                "one device: give the Trainer as many devices and num_nodes as were launched, or launch one process"
            )
        return OwnLedger(self._ledger) if ranks.leads else self

    def aside(self, ledger: Ledger) -> PlacedLedger:
        return FollowedLedger(ledger)


class SpawnedLedger(FollowedLedger):
    """A ledger whose file came to this spawned process, which learns on joining whether it is rank 0 and writes it."""

    def __init__(self, path: Path) -> None:
        super().__init__(Ledger())
        self._file = path

    def joined(self, ranks: Ranks) -> PlacedLedger:
        return OwnLedger(Ledger.reopen(self._file)) if ranks.leads else FollowedLedger(self._ledger)


class HandedOverLedger(PlacedLedger):
    """A ledger that spawned processes write; here it is read again from its file whenever it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def ledger(self) -> Ledger:
        return Ledger.read(self._path)

    @property
    def path(self) -> Path:
        return self._path

    def check_open(self, stage: str, ranks: Ranks) -> None:
        raise LedgerError(
            f"stage {stage!r}: this account went to the processes of a fit (strategy 'ddp_spawn'), and can only be "
            f"looked at here; Account.resume({str(self._path)!r}) goes on with a run that did not end"
        )

    def joined(self, ranks: Ranks) -> HandedOverLedger:
        return self

    def done(self, plan: Plan, counted: Mapping[str, int]) -> dict[str, int]:
        ledger = self.ledger
        return {stage.name: ledger.count(stage.name) for stage in plan.stages}

    def handed_over(self) -> HandedOverLedger:
        return self

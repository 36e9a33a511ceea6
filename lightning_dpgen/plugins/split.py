"""The datamodule that makes the private split and hands out Poisson lots."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from lightning_dpgen.clustering.kmeans import MEMORY_GIB, Split, SplitState, check_split, private_split
from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.records import Records
from lightning_dpgen.passes.kept_records import KeptRecords
from lightning_dpgen.passes.reduce import PassExecutor
from lightning_dpgen.plugins.namespaces import MisconfigurationException, pl
from lightning_dpgen.plugins.trainer_checks import validate_trainer
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.durable import make_room
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.plan import TRAINING
from lightning_dpgen.privacy.planning.stage_spec import declared_records, warn_of_declared
from lightning_dpgen.sampling.lots import LotLoader, PoissonLots, block_of


class PrivateSplitDataModule(pl.LightningDataModule):
    """The data of a mixture: records that private kernel k-means splits when training starts, in batches of lots.

    The rate of the lots and their number are the plan's. Each batch that a Trainer sees is one of several lots, drawn when
    they are asked for: ``for lot in batch: ...``.

    Args:
        records: the private records, in memory or in files.
        settings: the public settings of the split.
        account: an account whose plan holds ``settings.specs(n)`` and a stage ``training``.
        n: the declared number of records, public; None takes it from the plan. A denominator, never compared with the data.
        centres: (k, width) public records where the centres start, if ``settings.start`` is ``public``.
        memory_gib: GiB of memory for the features of the split; less takes longer.
        seed: the public seed of features and starting directions.
        block: lots in a batch; None takes `block_of` the steps.
        keep: a file for the released parts of the split, from which an interrupted one goes on; None keeps them in memory.
        after_access: called when an access of the split is done and kept: a place to stop.
        executor, folder: where the sums of the split are computed; see `private_split`.

    Attributes:
        split: the split (`Split`: private clusters of the records, public counts and means of the clusters), once
            `make_split` has made it; None before.

    Raises:
        ValueError: for n or block below 1, an n that is not the plan's, or a folder of `keep` that is not there.
        LedgerError: if the plan does not hold the accesses of these settings.
    """

    def __init__(
        self,
        records: Records | KeptRecords,
        settings: SplitSettings,
        account: Account,
        *,
        n: int | None = None,
        centres: torch.Tensor | None = None,
        memory_gib: float = MEMORY_GIB,
        seed: int = 0,
        block: int | None = None,
        keep: str | Path | None = None,
        after_access: Callable[[], None] = lambda: None,
        executor: PassExecutor | None = None,
        folder: Path | None = None,
    ) -> None:
        if block is not None and (type(block) is not int or block < 1):
            raise ValueError(f"block={block!r}: expected a whole number of lots, 1 or more, or None")
        if keep is not None and not Path(keep).parent.is_dir():
            raise ValueError(f"keep={keep}: there is no folder {Path(keep).parent}; make it first")
        if not isinstance(records, Records | KeptRecords):
            raise ValueError(
                f"records: a {type(records).__name__}: expected Records, as encode_table or encode_images return them"
            )
        super().__init__()
        self._keep, self._after_access = None if keep is None else Path(keep), after_access
        self.state: SplitState | None = None
        self._records, self.account = records, account
        self.settings = settings.for_layout(records.schema.layout)
        n = declared_records(account.plan, n)
        check_split(self.settings, n, account)
        self._centres, self._memory_gib, self._executor, self._folder = centres, memory_gib, executor, folder
        self.n, self.seed, self.block = n, seed, block
        self.split: Split | None = None

    def setup(self, stage: str) -> None:
        """Refuse a fit that would break the promise of the plan, before the split is made.

        Raises:
            MisconfigurationException: naming the setting and what to do; nothing has been spent.
        """
        if stage == "fit":
            warn_of_declared(self.n, len(self._records))
        if stage == "fit" and self.trainer is not None:
            validate_trainer(self.trainer, self.account)
            components = getattr(self.trainer.lightning_module, "k", self.settings.k)
            if components != self.settings.k:
                raise MisconfigurationException(
                    f"the model has k={components} components and the split k={self.settings.k} clusters: expected as many"
                )
            if (warning := self.settings.warning(self.account.plan, self.n)) is not None:
                warnings.warn(warning, stacklevel=2)

    def make_split(self) -> Split:
        """Return the private split, made at the first call (under a Trainer, when training starts).

        All ranks compute it together, each the sums of its own part of the records; rank 0 alone draws noise and keeps it.
        """
        # All ranks make it, or none.
        lacking = self.account.ranks.sum_(torch.tensor(self.split is None, dtype=torch.int64))
        if self.split is None or lacking:
            self.split = self._private_split()
            self.state = self.account.ranks.broadcast_object(self.state)
        return self.split

    def _private_split(self) -> Split:
        return private_split(
            self._records,
            self._kernel_scale(),
            self.settings,
            self.n,
            self.account,
            torch.Generator().manual_seed(self.seed),
            centres=self._centres,
            memory_gib=self._memory_gib,
            state=self.state,
            save=self._save,
            executor=self._executor,
            folder=self._folder,
            reserve=self._reserve,
        )

    def _save(self, state: SplitState) -> None:
        self.state = state
        if self._keep is not None:
            durable.save(self._keep, self._content(state))
        self._after_access()

    def _reserve(self, state: SplitState) -> None:
        if self._keep is not None:
            make_room(self._keep, self._content(state), self.account, "what is released next of the split")

    def _content(self, state: SplitState) -> dict[str, Any]:
        return {"head": self.account.ledger.head, "state": _fields(state)}

    def load(self) -> dict[str, int]:
        """Take up the state that `keep` holds, if there is one, and return its `done`, for `Account.go_on`.

        Raises:
            LedgerError: if the ledger lacks lines that were there when the state was saved.
            DamagedState: if the file cannot be read.
        """
        if self._keep is not None and self._keep.is_file():
            saved = durable.load(self._keep, "head", "state")
            if not self.account.ledger.knows(saved["head"]):
                raise LedgerError(
                    f"{self._keep}: refers to lines that the ledger does not hold: some of the ledger is missing"
                )
            self.load_state_dict(saved["state"])
        return dict(self.state.done) if self.state else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the released parts of the split, which go into every checkpoint of the Trainer."""
        return {} if self.state is None else _fields(self.state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state, self.split = (SplitState(**state_dict) if state_dict else None), None

    def _kernel_scale(self) -> torch.Tensor:
        """Return the weight of each column: 1, but two different labels multiply the kernel by exp(-label_weight).

        Without a kernel they add label_weight to the squared distance.
        """
        layout, settings = self._records.schema.layout, self.settings
        scale = torch.ones(layout.width)
        gamma = 1.0 if settings.kernel == "identity" else settings.gamma
        assert gamma is not None, "fitted settings have one"
        # One-hot labels of two classes are at distance 2, or its root.
        weight = settings.label_weight / (2.0 * gamma)
        scale[layout.labels] = weight if settings.kernel == "laplacian" else weight**0.5
        return scale

    def train_dataloader(self) -> LotLoader:
        clusters = self.make_split().clusters
        module = None if self.trainer is None else self.trainer.lightning_module
        store = self._records.multi_hot() if getattr(module, "takes_multi_hot", False) else None
        records = self._records if store is None else store
        lots = PoissonLots(records, self.account, clusters=clusters, k=self.settings.k)
        steps = self.account.remaining(TRAINING)
        return LotLoader(lots, steps, self.block or block_of(steps))


def _fields(state: SplitState) -> dict[str, Any]:
    return {field.name: getattr(state, field.name) for field in fields(SplitState)}

"""Anybody's LightningModule under privacy: its `training_step` gives the loss of each record, the rest is done here."""

from __future__ import annotations

import warnings
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor

from lightning_dpgen.data.lots import Lot, LotBlock
from lightning_dpgen.gradients.alone import check_alone
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.terms import DataFree, PerGroup, PerRecord
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.privacy.account import Account


class Adopted:
    """In place of a module's `training_step`: for each lot of a block, gradients, one access, one step of its optimizer.

    The module's own `training_step` is called with the records of a lot, and gives one loss a record (a tensor (B,), what
    ``reduction='none'`` leaves, summed over everything but the record), or a term, or a list of terms.

    Args:
        module: with automatic optimization, which it is switched out of.
        account: plan, ledger and private stream.
    """

    def __init__(self, module: pl.LightningModule, account: Account) -> None:
        self._module, self._account = module, account
        self._own = type(module).training_step.__get__(module)
        # The terms that it gave last; None while it gives losses.
        self._given: Any = None
        module.automatic_optimization = False
        # A function, since Lightning compares its code with that of its own class.
        module.training_step = lambda batch, batch_idx: self(batch, batch_idx)

    def __call__(self, block: LotBlock, index: int) -> None:
        wrapped = self._module.optimizers()
        # Lightning's wrapper loses what is written to it; the real optimizer is below.
        optimizer = wrapped.optimizer
        for i, lot in enumerate(block, start=1):
            private, free = self._terms(lot.to(self._module.device), index)
            optimizer.take(*private, data_free=free)
            # The last step of a block goes through the wrapper, so that Lightning counts blocks.
            (wrapped if i == len(block) else optimizer).step()

    def rehearse(self, empty: Any) -> None:
        """See on made-up records that the loss of a record depends on that record alone; see `check_alone`.

        A module that made-up records do not suit is left unchecked, with a warning.
        """

        def loss(lot: Lot, noise: Tensor) -> Tensor:
            given = self._own(lot.records, 0)
            if not isinstance(given, Tensor):
                found.append(given)
                raise _TermsGiven
            return given

        found: list[Any] = []
        try:
            check_alone(self._module, PerRecord(loss), empty)
        except _TermsGiven:
            self._given = found[0]
            for term in self._checked(self._given):
                if isinstance(term, PerRecord):
                    check_alone(self._module, term, empty)
        except (IndexError, RuntimeError, TypeError, AssertionError) as error:
            warnings.warn(
                f"training_step could not be tried on made-up records ({type(error).__name__}: {error}): it is not known "
                "whether a record's loss depends on that record alone",
                stacklevel=2,
            )

    def _terms(self, lot: Lot, index: int) -> tuple[list, list[DataFree]]:
        found: list[Any] = []

        def loss(lot: Lot, noise: Tensor) -> Tensor:
            given = self._own(lot.records, index)
            if isinstance(given, Tensor):
                return given
            found.append(given)
            raise _TermsGiven

        module, stream = self._module, self._account.stream
        # A lot of none is not handed to the network, and which terms there are does not hang on the records.
        if len(lot) or self._given is None:
            try:
                return [term_gradients(module, PerRecord(loss), lot, stream)], []
            except _TermsGiven:
                self._given = found[0]
        return self._of(self._given, lot)

    def _of(self, given: Any, lot: Lot) -> tuple[list, list[DataFree]]:
        terms, module, stream = self._checked(given), self._module, self._account.stream
        private = [term_gradients(module, t, lot, stream) for t in terms if not isinstance(t, DataFree)]
        return private, [t for t in terms if isinstance(t, DataFree)]

    def _checked(self, given: Any) -> list:
        terms = list(given) if isinstance(given, list | tuple) else [given]
        wrong = [t for t in terms if not isinstance(t, PerRecord | PerGroup | DataFree)]
        if wrong or not terms:
            what = type(wrong[0]).__name__ if wrong else "nothing"
            raise ValueError(
                f"training_step gave {what}: expected one loss a record, a tensor of as many as there are records "
                "(reduction='none', summed over everything but the record), or a PerRecord, PerGroup or DataFree term, or "
                "a list of these"
            )
        return terms


class _TermsGiven(Exception):
    """A training step gave terms and not losses."""


def check_optimizers(optimizers: list, account: Account, *, adopted: bool) -> None:
    """Refuse a fit whose steps would not be private.

    Raises:
        MisconfigurationException: saying what to do; nothing has been spent.
    """
    private = [o for o in optimizers if isinstance(o, PrivateOptimizer)]
    if not private:
        names = ", ".join(type(o).__name__ for o in optimizers) or "no optimizer"
        raise MisconfigurationException(
            f"configure_optimizers gave {names}, whose steps are not private: wrap the optimizer of what is trained on "
            "records, as in PrivateOptimizer(torch.optim.Adam(...), account=account, clipping=..., expected_lot=rate * n)"
        )
    if any(o.account is not account for o in private):
        raise MisconfigurationException(
            "the PrivateOptimizer has another account than the MomentsAccountant: hand one Account to both"
        )
    if adopted and len(optimizers) > 1:
        raise MisconfigurationException(
            f"{len(optimizers)} optimizers: a module with several steps them itself (automatic_optimization=False; "
            "term_gradients, take and step)"
        )

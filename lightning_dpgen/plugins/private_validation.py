"""Validation records that are private: noisy means of what a validation step logs, in accesses of a stage of the plan.

Each access is a full pass over the validation records, or a Poisson sample of them. `validation_step` is called with each
record alone, without gradients, and what it logs is clamped and summed as in `noisy_metrics.py`, in whole numbers, with
noise of the stage's own:

    s       <-  2^-20 (sum_i x_i + round(N(0, (2^20 multiplier sqrt(k + 1))^2)))
    mean_j  <-  m_j + h_j s_j / s_0

The stage is composed with the training, one after the other: a person may have a record in both. Accesses are made after
every so many steps, by the ledger's count of steps, and so many as were promised, whatever was lost in a crash.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.common.arguments import check_number, read_whole
from lightning_dpgen.gradients.micro_batches import LotParts
from lightning_dpgen.gradients.single_records import call_with_records, try_with_records
from lightning_dpgen.optim.stages import METRICS
from lightning_dpgen.plugins.kept_values import refuse_updated_metrics
from lightning_dpgen.plugins.namespaces import classes, pl
from lightning_dpgen.plugins.noisy_metrics import BoundedNumbers, check_purchase
from lightning_dpgen.plugins.training_data import validation_data
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.mechanisms import rounded_gaussian
from lightning_dpgen.privacy.planning.stage_spec import StageSpec, warn_of_declared
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.sampling.as_store import store_of
from lightning_dpgen.sampling.contents import check_finite
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.sampling.lots import Lot, PoissonLots

# The stage of the plan in which validation records are looked at.
VALIDATION = "validation"
# The logged values of a step, by name.
Logged = Mapping[str, Tensor | float]


class PrivateValidation:
    """Noisy means over private validation records, for `PrivateTraining(validation=...)`.

    After every so many steps, and after the last one, the module's `validation_step` is called with each of these records
    alone, in evaluation mode and without gradients; no other hook of a validation is called. What it logs by `self.log` is
    bought: there is a new noisy mean under ``public/NAME``, and its error bar under ``public/NAME_error``.

    Args:
        records: as for `PrivateTraining`; of the same people, or of others. With a LightningDataModule, the one of the
            training, these are the data set and `collate_fn` of its `val_dataloader`, as the one setup of both divides the
            records. The Trainer validates on none of them beside the fit.
        bounds: the least and the largest value of each number, public, by the name that `self.log` gets. Values outside are
            clamped.
        n: the declared number of these records, public; never ``len(records)``.
        share: the part of the budget that buys them, all numbers and all times together.
        every: the number of steps between two means.
        sample_rate: the probability with which a record takes part in a mean; 1 takes all of them. The noise of a mean is
            about the same at any rate.
        persons: (N,) the person of each record, where one person has several.
        collate_fn: makes the batch of one record, as for `PrivateTraining`.

    Raises:
        ValueError: for bounds, a number, a share or a rate that are none; `BadRecords` for records that are none.

    Example:
        >>> PrivateValidation(torch.rand(50, 3), {"val_loss": (0, 5)}, n=50, every=20)
        PrivateValidation(val_loss, n=50, share=0.02, every=20, sample_rate=1)
    """

    def __init__(
        self,
        records: Any,
        bounds: Mapping[str, tuple[float, float]],
        *,
        n: int,
        share: float = 0.02,
        every: int = 50,
        sample_rate: float = 1.0,
        persons: np.ndarray | None = None,
        collate_fn: Callable[[list], Any] | None = None,
    ) -> None:
        check_purchase(share, every)
        check_number("sample_rate", sample_rate, lambda rate: 0.0 < rate <= 1.0, "above 0, up to 1")
        self.numbers, self.n = BoundedNumbers(bounds), read_whole("n", n, of=" of records")
        self.share, self.every, self.sample_rate, self.persons = share, every, float(sample_rate), persons
        self.datamodule = records if isinstance(records, classes("LightningDataModule")) else None
        if self.datamodule is not None:
            records, of_loader = validation_data(self.datamodule, self.sample_rate)
            collate_fn = collate_fn or of_loader
        self.store = store_of(records, collate_fn=collate_fn)
        check_finite(self.store)
        if not len(self.store):
            raise BadRecords("validation records: there are none; expected one or more")
        warn_of_declared(self.n, len(self.store))

    def __repr__(self) -> str:
        return (
            f"PrivateValidation({', '.join(self.numbers.bounds)}, n={self.n}, share={self.share:g}, every={self.every}, "
            f"sample_rate={self.sample_rate:g})"
        )

    def count(self, made: int, steps: int) -> int:
        """Return the number of means that belong to so many steps made of all."""
        return made // self.every + (made == steps and made % self.every > 0)

    def stage(self, steps: int) -> StageSpec:
        """Return the spec of its stage, which stands before the one of so many steps of training."""
        return StageSpec(
            VALIDATION,
            {METRICS: 1.0},
            self.count(steps, steps),
            max_noise=self.n * self.sample_rate,
            sampler=Poisson(self.sample_rate),
            share=self.share,
            interleaved=True,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the purchase as a certificate declares it."""
        bounds = {name: list(pair) for name, pair in self.numbers.bounds.items()}
        return {"n": self.n, "bounds": bounds, "every": self.every}


class ValidationPasses:
    """The accesses to validation records in one fit.

    Args:
        validation: what is bought.
        account: the account of the fit.
        stage: the plan's stage of the steps of training.
        module: the module of the fit, on its device.
        hooks: changes the batch of a record as the hooks of a batch do.
        expected_lot: the expected number of records of a lot of training in this process: so many are computed at a time.
        listen: calls code, and returns what the module has logged in it, a number a row.
    """

    def __init__(
        self,
        validation: PrivateValidation,
        account: Account,
        stage: str,
        module: pl.LightningModule,
        hooks: Callable[[Any], Any],
        expected_lot: float,
        listen: Callable[[Callable[[], object]], Logged],
    ) -> None:
        self._validation, self._account, self._stage, self._module = validation, account, stage, module
        self._lots = PoissonLots(validation.store, account, stage=VALIDATION, persons=validation.persons)
        self._hooks, self._listen = hooks, listen
        self._parts = LotParts.of_stage(
            max(1, math.ceil(expected_lot)), self._expected / account.ranks.size, account.plan, VALIDATION, in_slots=True
        )
        self._takes_index = _counts(module.validation_step)
        self._example: Any = None

    @property
    def _expected(self) -> float:
        return self._validation.sample_rate * self._validation.n

    def rehearse(self) -> None:
        """Try the validation step on made-up records.

        Raises:
            ValueError: if it takes none, or does not log what is bought.
        """
        try:
            with self._evaluating(), refuse_updated_metrics(self._module, "validation_step"):
                empty = Lot(self._lots.empty, (0, 0)).to(self._module.device, _kind(self._module)).records
                logged = self._listen(lambda: self._try(empty))
        except ValueError as error:
            raise ValueError(f"validation: validation_step: {error}") from error
        self._validation.numbers.check_logged("validation_step", logged)

    def _try(self, empty: Any) -> None:
        self._example = try_with_records(self._step(0), self._module, empty, self._account.stream)

    def _step(self, number: int) -> Callable[[Any], object]:
        """Return the validation step of a pass, as a function of a batch."""
        more = (number,) if self._takes_index else ()
        return lambda records: self._module.validation_step(self._hooks(records), *more)

    def due(self) -> dict[str, float]:
        """Look at the records where that is due after the steps so far, and return noisy means with their error bars.

        Where a crash has lost accesses they are not made again; where it has lost steps before their access, that is made
        after the next step.
        """
        account, steps = self._account, self._account.plan.stage(self._stage).count
        made, means = account.count(self._stage), {}
        last = made == steps
        while account.count(VALIDATION) < self._validation.count(made, steps):
            means = self._look()
            if not last:
                break
        return means

    def _look(self) -> dict[str, float]:
        """Make one access."""
        account, numbers, module = self._account, self._validation.numbers, self._module
        lot = self._lots.draw()
        k = len(numbers.bounds)
        sums = torch.zeros(k + 1, dtype=torch.int64)
        with self._evaluating():
            for part in self._parts.lots(lot, account.stream):
                sums += self._sums(part.to(module.device, _kind(module)).fetch()).cpu()
        with account.open(VALIDATION, draw=lot.draw) as access:
            unit, multiplier = numbers.unit, access.access.multipliers[METRICS]
            noisy = rounded_gaussian(access, METRICS, sums, unit=unit, sensitivity=numbers.sensitivity)
        deviation = multiplier * numbers.sensitivity * account.plan.max_rows
        *of_numbers, count = noisy.tolist()
        return numbers.means(of_numbers, [count] * k, [self._expected] * k, [deviation] * k)

    def _sums(self, part: Lot) -> Tensor:
        account, numbers = self._account, self._validation.numbers
        step, some = self._step(account.step_of(VALIDATION)), next(self._module.parameters())
        logged = self._listen(lambda: call_with_records(step, part, self._example, account.stream, some))
        return numbers.sum_of(numbers.of_records(logged, part), len(part))

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Return a context for the validation step: evaluation mode, a Trainer that validates, and its precision."""
        trainer: Any = self._module.trainer
        modes = [(part, part.training) for part in self._module.modules()]
        self._module.eval()
        trainer.validating = True
        try:
            with trainer.precision_plugin.val_step_context():
                yield
        finally:
            trainer.training = True
            for part, training in modes:
                part.training = training


def _kind(module: pl.LightningModule) -> torch.dtype:
    assert isinstance(module.dtype, torch.dtype), "a module of Lightning has one type"
    return module.dtype


def _counts(step: Callable) -> bool:
    """Return whether a step takes the number of a batch behind the batch."""
    kinds = [p.kind for p in inspect.signature(step).parameters.values()]
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter.VAR_POSITIONAL in kinds or sum(kind in positional for kind in kinds) > 1

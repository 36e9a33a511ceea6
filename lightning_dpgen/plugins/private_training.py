"""A private fit of a plain LightningModule in three lines: plan, account, lots, optimizer and release of one training."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn
from torch.optim import Optimizer

from lightning_dpgen.common.folders import place_of
from lightning_dpgen.common.plain_text import say_steps
from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.gradients.terms import Views
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.optim.stages import training_stage
from lightning_dpgen.plugins.accountant import MomentsAccountant
from lightning_dpgen.plugins.automatic_module import AutomaticModule, StepOptions
from lightning_dpgen.plugins.hydra_sweep import SweepList
from lightning_dpgen.plugins.learning_rates import parts_of
from lightning_dpgen.plugins.manual_module import ManualModule
from lightning_dpgen.plugins.namespaces import MisconfigurationException, classes, pl
from lightning_dpgen.plugins.noisy_metrics import NoisyMetrics
from lightning_dpgen.plugins.private_validation import PrivateValidation
from lightning_dpgen.plugins.public_parts import PublicParts
from lightning_dpgen.plugins.purchases import Purchases
from lightning_dpgen.plugins.training_data import TrainingData
from lightning_dpgen.plugins.training_ledger import open_account
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.epsilon_range import PLD
from lightning_dpgen.privacy.errors import LedgerError, PlanMismatch
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import TRAINING, Plan, Stage
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import warn_of_declared
from lightning_dpgen.privacy.sampling.sampler_choice import make_sampler
from lightning_dpgen.privacy.sampling.samplers import POISSON
from lightning_dpgen.privacy.studies.entry import Stopped
from lightning_dpgen.privacy.studies.study import Study
from lightning_dpgen.release.weights import check_public, release_weights
from lightning_dpgen.sampling.as_store import store_of
from lightning_dpgen.sampling.contents import check_finite
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.sampling.lots import LotLoader, PoissonLots, persons_of

# The callbacks of trainings of this process, by the file of their ledger. A Trainer keeps its callback, and with it the
# account that has the file open, when the training itself is gone.
_BEGUN: weakref.WeakValueDictionary[Path, _Accountant] = weakref.WeakValueDictionary()


class PrivateTraining:
    """One private training of a LightningModule with plain optimizers, from the records to a release.

    It joins the explicit parts, which stay available: `make_plan` with a `training_stage`, an `Account`, `poisson_loader`,
    a `PrivateOptimizer` around the module's own optimizer, `MomentsAccountant` and `release_weights`. Nothing is spent
    before the fit. The module's `training_step` gives its loss as ever, or terms (`MomentsAccountant`).

    If `configure_optimizers` gives several, `training_step` gives one entry for each: a `PerRecord` or `PerGroup` term
    where records are seen, a `DataFree` term where none is. It is then called with made-up records, and the terms see real
    ones. Optimizers with a term of records are made private and take turns at the lots, so that each lot pays for one step;
    `steps` is the number of all of them. The others step beside each lot as they are, or not at all where their entry is
    None. All private ones have the same noise and `clipping`.

    A module with ``automatic_optimization=False`` trains as it stands, and `steps` is the number of those of its steps that
    see records (`ManualModule`).

    Args:
        records: tensors, arrays, a CSR matrix, columns, a Dataset or a list of items, as for `poisson_loader`. Or a
            LightningDataModule, which is prepared and set up, unless it gives training data already: the data set,
            `collate_fn` and workers of its `train_dataloader` are taken, and ``trainer.fit(model, datamodule=...)`` trains
            on lots of it.
        n: the declared number of records, public; never ``len(records)``.
        epsilon: the budget; infinite for a fit without privacy, which no certificate calls private.
        delta: above 0 and below 1/n.
        sample_rate: the probability with which each record takes part in a step.
        steps: the number of steps. All of them are one epoch of the Trainer; a pass over the
            records, which counts as an epoch for schedulers with ``interval="epoch"``, is about 1 / sample_rate steps.
        stops: numbers of steps, rising and below `steps`, at which the training may end at a smaller epsilon. A fit that
            ends earlier, by a number that the plan paid for or by none of the records, is released at the epsilon of the
            next of these, and never goes on. Each of them costs a little noise (`make_plan`).
        accountant: ``pld``, or ``rdp`` for Renyi moments, which are looser (`make_plan`).
        clipping: a rule of `lightning_dpgen.clipping`; one for each term, where a training step gives several. With a
            ``PerPerson(rule)`` the sum of a person's gradients is clipped.
        sampler: ``poisson``: each record takes part in each step by a draw of its own. ``truncated_poisson``: the same, and
            a lot of more than `largest_lot` records is cut to so many (`training_stage`). ``cyclic``: it belongs to one of
            several groups, by a draw of its own, and takes part when it is their turn; the noise of a step then takes back
            a part of that of the steps before it.
        largest_lot, at_most: for truncated lots, the most units (records, or persons) of a lot, and a number of them that
            no data set of this kind can pass. The certificate says both.
        bands: for cyclic sampling, over how many steps noise is correlated; see `make_sampler`.
        collate_fn: makes a batch of one item of a Dataset or list, as a DataLoader's does of many: with padding to a public
            length (`store_of`).
        ledger: a file for what is spent. If it holds a run with the same settings, that run goes on: fit with
            ``ckpt_path=`` and a checkpoint of it. An earlier training of this process that is not fitting gives it up. None
            keeps the ledger in memory, for a fit by one process: it ends with that process, as the weights do, and no fit
            goes on from a checkpoint of it.
        persons: (N,) the person of each record, where one person has several.
        max_rows: the largest number of records of a person; the noise is for all of them, unless clipping is `PerPerson`.
        engine: the per-record gradients; ``func`` takes any network, a record at a time.
        micro_batch: about how many records' gradients are computed at a time, so that larger lots fit into memory;
            ``auto`` finds it (`StepOptions`). None takes a lot in one piece.
        slots: whether lots are laid out in a fixed number of rows (`StepOptions`); None does it on a GPU.
        capture: whether steps in slots run without their Python, where that does the same in each (`StepOptions`).
        augment: a function that returns as many augmented views as it is given copies of a record (`Views`).
        multiplicity: the number of views of a record, whose mean loss is its loss; its gradient is clipped after that.
        averaging: the part of the average of parameters that stays in a step, from 0, below 1: `release` writes the
            average, and `averaged` puts it into the module. 0 keeps none.
        share_private_logs: let loggers of services have numbers under ``private/``, too (`MomentsAccountant`).
        metrics: noisy means of what the training step computes of each record, such as its loss, which the plan pays for:
            curves that may be looked at, and followed by callbacks.
        validation: the same of a validation step on private records.
        public: names of the module's buffers and frozen parameters that are no function of the records, and are released
            with what was trained. A fit of a module with others is refused before its first step. ``frozen`` names all of
            them; one that the fit changes is refused at the release then. The certificate lists them.
        stream: the private stream; None makes one keyed by the operating system.
        study: the study that the training belongs to, with a total for all its runs.

    Attributes:
        account: the plan, ledger and private stream, for the explicit parts.
        plan: the promise of the fit, with its noise and epsilon.

    Raises:
        ValueError: for a setting that is out of range, naming it; `BadRecords` for records that no lot can be drawn from.
        BudgetTooSmall: if the records cannot outweigh the noise.
        LedgerError: if the ledger holds a run with other settings.
        PlanMismatch: for more records than `at_most`; nothing is begun then.

    Example:
        >>> import torch
        >>> from lightning_dpgen import Fixed
        >>> private = PrivateTraining(torch.rand(100, 3), n=100, epsilon=8, delta=1e-5, sample_rate=0.2, steps=40,
        ...                           clipping=Fixed(1.0))
        >>> private
        PrivateTraining(n=100, epsilon=8, delta=1e-05, sample_rate=0.2, 0 of 40 steps (8 epochs) made)
        >>> trainer = pl.Trainer(callbacks=[private.callback()])        # doctest: +SKIP
        >>> trainer.fit(model, private.loader())                        # doctest: +SKIP
        >>> private.release(model, "release/")                          # doctest: +SKIP
    """

    account: Account
    _callback: _Accountant

    def __init__(
        self,
        records: Any,
        *,
        n: int,
        epsilon: float,
        delta: float,
        sample_rate: float,
        steps: int,
        clipping: ClippingRule | Sequence[ClippingRule],
        collate_fn: Callable[[list], Any] | None = None,
        ledger: str | Path | None = None,
        persons: np.ndarray | None = None,
        max_rows: int = 1,
        engine: str = "ghost",
        micro_batch: int | Literal["auto"] | None = None,
        slots: bool | None = None,
        capture: bool = True,
        augment: Callable[[Any], Any] | None = None,
        multiplicity: int = 1,
        averaging: float = 0.0,
        share_private_logs: bool = False,
        metrics: NoisyMetrics | None = None,
        validation: PrivateValidation | None = None,
        public: Sequence[str] | Literal["frozen"] = (),
        sampler: str = POISSON,
        bands: int | None = None,
        largest_lot: int | None = None,
        at_most: int | None = None,
        accountant: str = PLD,
        stops: Sequence[int] = (),
        stream: PrivateStream | None = None,
        study: Study | None = None,
    ) -> None:
        _check("engine", engine, engine in tuple(ENGINES), f"one of {', '.join(ENGINES)}")
        _check("ledger", ledger, isinstance(ledger, str | Path | None), "a path, or None")
        _check("stream", stream, isinstance(stream, PrivateStream | None), "a PrivateStream, or None")
        _check("study", study, isinstance(study, Study | None), "a Study, or None")
        for name, value, kind in (("metrics", metrics, NoisyMetrics), ("validation", validation, PrivateValidation)):
            # The message does not show the value, which may be records.
            _check(name, type(value).__name__, value is None or isinstance(value, kind), f"a {kind.__name__}, or None")
        _check("steps", steps, type(steps) is int and steps >= 1, "a whole number (int), 1 or more")
        _check("stops", stops, isinstance(stops, Sequence) and not isinstance(stops, str), "a list of numbers of steps")
        if augment is None and multiplicity != 1:
            raise ValueError(f"multiplicity={multiplicity!r}: several views need augment=..., which makes them of a record")
        if slots and max_rows > 1 and micro_batch is not None:
            raise ValueError(
                f"slots=True with max_rows={max_rows} and micro_batch={micro_batch!r}: the records of a person stay in one "
                "part, so parts have no fixed number of rows: leave one of the three out"
            )
        public_parts = PublicParts(public)
        views = None if augment is None else Views(augment, multiplicity)
        options = StepOptions(micro_batch, views, averaging, slots, capture)
        chosen_sampler = make_sampler(
            sampler,
            sample_rate,
            steps=steps,
            epsilon=epsilon,
            delta=delta,
            bands=bands,
            largest_lot=largest_lot,
            at_most=at_most,
        )
        share = None if metrics is None else metrics.share
        stage = training_stage(clipping, n=n, sampler=chosen_sampler, steps=steps, metrics=share)
        # Validation is interleaved with the steps.
        stages = [stage] if validation is None else [validation.stage(steps), stage]
        plan = make_plan(stages, epsilon=epsilon, delta=delta, max_rows=max_rows, accountant=accountant, stops=stops)
        data, validated = None, None if validation is None else validation.datamodule
        if isinstance(records, classes("LightningDataModule")):
            if validated not in (None, records):
                raise ValueError(
                    "validation: its records are those of another datamodule than the training's, whose setup may divide "
                    "the records in another way: hand both the same one"
                )
            data = TrainingData(records, sample_rate, validates=validated is not None)
            records, collate_fn = data.dataset, collate_fn or data.collate_fn
        store = store_of(records, collate_fn=collate_fn)
        check_finite(store)
        if not len(store):
            raise BadRecords("records: there are none; expected one or more")
        if persons is not None:
            chosen_sampler.check_persons(stage.stage)
        person_of = persons_of(store, persons, max_rows)
        chosen_sampler.check_units(stage.stage, len(store) if person_of is None else len(np.unique(person_of)))
        if validation is not None:
            persons_of(validation.store, validation.persons, max_rows)
        _check_delta(plan, study, n if validation is None else max(n, validation.n))
        warn_of_declared(plan.n, len(store))
        path = None if ledger is None else Path(ledger).resolve()
        begun = None if path is None else _BEGUN.get(path)
        # In a notebook a cell that failed is run again, and its first training has the ledger still.
        earlier = None if begun is None or begun.fitting else begun.account
        looked_at = None if validation is None else (validation.store, validation.persons)
        self.account = open_account(plan, ledger, stream, study, store, persons, earlier, looked_at)
        self.plan = self.account.plan
        self._lots = PoissonLots(store, self.account, persons=persons)
        self._callback = _Accountant(
            self._lots, data, self.account, clipping, engine, options, share_private_logs, public_parts, ledger is None
        )
        self._declared: dict[str, Any] = {}
        if metrics is not None or validation is not None:
            self._callback._purchases = Purchases(metrics, validation, self.account)
            self._declared = self._callback._purchases.declared
        self._released: Path | None = None
        if path is not None:
            _BEGUN[path] = self._callback

    @property
    def _stage(self) -> Stage:
        return self.plan.stage(TRAINING)

    def __repr__(self) -> str:
        stage, plan = self._stage, self.plan
        return (
            f"PrivateTraining(n={plan.n}, epsilon={plan.target_epsilon:g}, delta={plan.delta:g}, "
            f"sample_rate={stage.access.sample_rate:g}, "
            f"{stage.count - self.account.remaining(TRAINING)} of {say_steps(stage.count, stage.access.sample_rate)} made)"
        )

    def loader(self, block: int = 1, workers: int = 0) -> LotLoader:
        """Return the lots of the fit, for `Trainer.fit`.

        Args:
            block: lots in a batch that the Trainer sees. With 1 all that it counts are steps (`max_steps`,
                `every_n_train_steps`, `val_check_interval`). More save a tiny network up to a sixth of its time: the
                Trainer looks at checkpoints and validation after each batch alone.
            workers: the number of processes that fetch the records of the next lots, each as a whole; with 0 records are
                fetched when they are needed, those of a `micro_batch` alone.
        """
        _check("block", block, type(block) is int and block >= 1, "a whole number (int), 1 or more")
        return _Lots(self._lots, self.account.remaining(TRAINING), block, workers, self._callback)

    def callback(self) -> MomentsAccountant:
        """Return the callback that makes the module's optimizer private, for the Trainer; always the same one."""
        return self._callback

    def release(
        self,
        model: nn.Module,
        folder: str | Path,
        *,
        data: str = "records",
        unit: str | None = None,
        declared: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Write the release of the fitted module, and return its certificate; see `release_weights`.

        A fit that ended before its last step is stopped for good here, if the plan has named `stops`, and certified at the
        next of these. All ranks call it for a module whose parameters are sharded.

        Args:
            model: the module that was fitted.
            folder: must not exist; it appears complete, or not at all.
            data: a description of the records.
            unit, declared: as for `release_weights`.

        Raises:
            PlanMismatch: if no fit has made all planned steps, and the plan has no `stops`.
            ValueError: for another model, or a training that was released before; and as `release_weights`.
            FileExistsError: if the folder exists.
        """
        if self._released is not None:
            raise ValueError(f"this training was released before, to {self._released}: copy that folder instead")
        self.account.read_on()
        rest, steps, rate = self.account.remaining(TRAINING), self._stage.count, self._stage.access.sample_rate
        if rest == steps:
            raise PlanMismatch(
                "nothing was trained yet: call fit(model, loader()) with the callback first, and then release"
            )
        if rest and not self.plan.stops:
            raise PlanMismatch(
                f"{steps - rest:,} of {say_steps(steps, rate)} were made: go on with the fit, or release the weights as "
                "they are with release_weights(model, private.account, ...), which charges all of the plan (a plan with "
                "stops=[...] charges the steps up to the next of these)"
            )
        # None where an earlier program has fitted it.
        if self._callback.fitted not in (None, model):
            raise ValueError("model: expected the module that was fitted with this training's callback")
        public = self._callback.public.of(model)
        check_public(model, public)
        if self._callback.public.digest_of(model) != self.account.ledger.trained:
            raise ValueError(
                "model: its parameters are not those that the last private step left: release it before anything else "
                "changes it, or load a checkpoint that was saved after that step; what an earlier checkpoint holds, or was "
                "made of it without a further look at records, is released by release_weights(model, private.account, ...)"
            )
        if rest:
            self._stop_to_release(folder)
        average = self._callback.average
        declared = (declared or {}) | self._declared | ({} if average is None else {"averaging": average.keep})
        with nullcontext() if average is None else average.in_their_place():
            certificate = release_weights(
                model, self.account, folder, data=data, unit=unit, declared=declared, public=public
            )
        self._released = Path(folder)
        return certificate

    def _stop_to_release(self, folder: str | Path) -> None:
        """Stop the run for good, unless the release could not be written."""
        if place_of(folder).exists():
            raise FileExistsError(f"{folder} exists already: choose another folder, since a release is never overwritten")
        if not self.account.follows:
            self.account.stop()

    def stop(self) -> Stopped:
        """Stop this training for good: what it has not drawn goes back to its study, and no fit goes on with it.

        The decision must follow from what was released or paid for, or from nothing in the records: no account covers a
        stop that a private curve has suggested (`Account.stop`). Weights may be released before or after it: by
        `release_weights(model, private.account, ...)` at the cost of the whole plan, or by `release` at that of the next of
        its `stops`.

        Returns:
            The steps that were drawn, and the total of the study before and after; printed, a line.

        Raises:
            LedgerError: during a fit, and as `Account.stop`.

        Example:
            >>> print(private.stop())                       # doctest: +SKIP
            20 of 40 accesses of 'training' were drawn. The run is stopped for good: ...
        """
        if self._callback.fitting:
            raise LedgerError("a fit is under way: end it first (trainer.should_stop = True), and then stop the training")
        return self.account.stop()

    def use_average(self) -> AbstractContextManager[None]:
        """Put the average of its parameters into the fitted module, within a ``with`` block.

        Raises:
            ValueError: without `averaging`, or before a fit.

        Example:
            >>> with private.use_average():             # doctest: +SKIP
            ...     trainer.validate(model, public_data)
        """
        if self._callback.average is None:
            raise ValueError("averaging=0 keeps no average, and before a fit there is none")
        return self._callback.average.in_their_place()


def _check(name: str, value: Any, fits: bool, expected: str) -> None:
    if not fits:
        raise ValueError(f"{name}={value!r}: expected {expected}")


def _check_delta(plan: Plan, study: Study | None, n: int) -> None:
    """Refuse a delta of 1/n or more, and warn of one above 1/(10 n)."""
    if plan.private and plan.delta >= 1.0 / n:
        raise ValueError(
            f"delta={plan.delta:g}: expected less than 1/n = {1.0 / n:.3g}, since publishing one record at random would "
            "satisfy a delta of 1/n"
        )
    if plan.private and plan.delta > 0.1 / n:
        warnings.warn(f"delta={plan.delta:g}: is above 1/(10 n) = {0.1 / n:.3g}; a smaller delta is usual", stacklevel=3)
    if study is not None and study.delta > 0.1 / n:
        # A study that was begun keeps its delta, and may hold runs on more records.
        warnings.warn(
            f"study {study.name}: its delta {study.delta:g} is above 1/(10 n) = {0.1 / n:.3g}; a smaller delta is usual, "
            "and a study's is fixed when it begins",
            stacklevel=3,
        )


class _Lots(LotLoader):
    """The lots of one training, for its own fit alone."""

    def __init__(self, lots: PoissonLots, steps: int, block: int, workers: int, accountant: _Accountant) -> None:
        super().__init__(lots, steps, block, workers)
        self.accountant = accountant

    def check_fit_is_private(self) -> None:
        # Anything else that iterates, such as a Trainer without the callback, would train on bare records.
        if not self.accountant.fitting:
            raise MisconfigurationException(
                "the lots of a PrivateTraining are for a fit with its callback: Trainer(callbacks=[private.callback()])"
            )


class _Accountant(MomentsAccountant):
    """The accountant of one training, which makes the optimizer of the module private when the fit starts."""

    def __init__(
        self,
        lots: PoissonLots,
        data: TrainingData | None,
        account: Account,
        clipping: ClippingRule | Sequence[ClippingRule],
        engine: str,
        options: StepOptions,
        share_private_logs: bool,
        public: PublicParts,
        in_memory: bool,
    ) -> None:
        super().__init__(account, engine, options=options, share_private_logs=share_private_logs)
        self._lots, self._data, self._clipping, self.public = lots, data, clipping, public
        # Known to each rank by the script that all of them run; the ledger itself is in memory in all ranks but 0.
        self._in_memory = in_memory
        self.fitted: pl.LightningModule | None = None
        self.fitting = self._under_way = False
        self._sweep: SweepList | None = None

    def setup(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            self._check(module)
            if trainer.world_size > 1 and self._in_memory:
                raise MisconfigurationException(
                    f"ledger=None with {trainer.world_size} processes: the ledger would end with rank 0, and the weights "
                    "that it has paid for would be left in the others: give a file, ledger='private/ledger.jsonl'"
                )
        super().setup(trainer, module, stage)
        self.fitting = stage == "fit"
        if self.fitting and self._data is not None:
            steps = self.account.remaining(TRAINING)
            self._data.begin(_Lots(self._lots, steps, 1, self._data.workers, self), trainer)

    def _check(self, module: pl.LightningModule) -> None:
        if self.fitted not in (None, module):
            raise MisconfigurationException(
                "this training has begun with another module: fit that one, or begin with a new PrivateTraining"
            )

    def _kind_of(self, module: pl.LightningModule) -> type[AutomaticModule]:
        return AutomaticModule if module.automatic_optimization else ManualModule

    def after_last_step(self, module: pl.LightningModule) -> None:
        self.account.ledger.record_trained(self.public.digest_of(module))

    def _record(self, checkpoint: dict[str, Any]) -> None:
        super()._record(checkpoint)
        self.public.record(checkpoint)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        super().on_train_end(trainer, module)
        if self.account.plan.stops and self.account.remaining(TRAINING):
            self.after_last_step(module)

    def _go_on(self, checkpoint: dict[str, Any]) -> None:
        super()._go_on(checkpoint)
        self.public.go_on(checkpoint)
        self._under_way = True

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.public.begin(module)
        before, trainer.optimizers = trainer.optimizers, self._wrapped(trainer.optimizers)
        _point_schedulers_at(trainer, dict(zip(map(id, before), trainer.optimizers, strict=True)))
        super().on_fit_start(trainer, module)

    def _wrapped(self, optimizers: list[Optimizer]) -> list[Optimizer]:
        """Make each optimizer private whose loss sees records: one alone, or those for which terms say so."""
        if len(optimizers) == 1:
            return [self._private(optimizers[0])]
        assert self._adopted is not None, "a module with steps of its own was refused"
        private = self._adopted.which_see_records(self._lots.empty)
        if not any(private):
            raise MisconfigurationException(
                "training_step returned DataFree terms alone, which see no record: nothing of this training is private, "
                "and a Trainer without its callback fits the module"
            )
        if sum(private) > 1 and self.account.plan.stage(TRAINING).access.sampler.in_turn:
            raise MisconfigurationException(
                f"training_step returns {sum(private)} optimizers terms that see records, and noise is correlated over "
                "the steps of one: expected one of them, or sampler='poisson'"
            )
        return [self._private(o) if sees else o for o, sees in zip(optimizers, private, strict=True)]

    def _private(self, optimizer: Optimizer) -> PrivateOptimizer:
        # Lightning puts one without parameters in the place of none.
        if not any(group["params"] for group in optimizer.param_groups):
            raise MisconfigurationException(
                "configure_optimizers returned no optimizer: return one, as in torch.optim.Adam(self.parameters())"
            )
        if isinstance(optimizer, PrivateOptimizer):
            raise MisconfigurationException(
                "configure_optimizers returned a PrivateOptimizer: return the torch optimizer, which a PrivateTraining "
                "wraps"
            )
        try:
            return PrivateOptimizer(optimizer, account=self.account, clipping=self._clipping)
        except ValueError as error:
            raise MisconfigurationException(str(error)) from None

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        lots = trainer.train_dataloader
        if getattr(lots, "accountant", None) is not self:
            raise MisconfigurationException(
                f"the training data are a {type(lots).__name__}: expected the loader() of the PrivateTraining whose "
                "callback this Trainer has, or the LightningDataModule that it was given in the place of records"
            )
        # Checkpoints of shards are loaded after the fit has started.
        if not self._under_way and self.account.resumed and self.account.ledger.accesses:
            raise MisconfigurationException(
                "the ledger holds steps of an earlier fit: go on from a checkpoint of it, fit(model, loader, "
                "ckpt_path=...); if there is none, what they made is lost, and another ledger begins a new training, whose "
                "epsilon adds up"
            )
        super().on_train_start(trainer, module)
        # A study speaks for its runs itself.
        if trainer.is_global_zero and self.account.study is None and (sweep := SweepList.of_this_job()) is not None:
            sweep.enter(self.account)
            self._sweep = sweep
        self.fitted, self._under_way = module, True

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        super().on_fit_end(trainer, module)
        if self._sweep is not None:
            self._sweep.tell()

    def _restore(self, module: pl.LightningModule) -> None:
        super()._restore(module)
        self.fitting = False
        if self._data is not None:
            self._data.restore()


def _point_schedulers_at(trainer: pl.Trainer, wrapped: dict[int, Optimizer]) -> None:
    """Let schedulers know the optimizers of the Trainer: a log of rates would else take them for further ones."""
    trainer_: Any = trainer
    for config in trainer_.lr_scheduler_configs:
        if config.name is None and hasattr(config.scheduler, "optimizer"):
            config.name = f"lr-{type(config.scheduler.optimizer).__name__}"
        for part in parts_of(config.scheduler):
            if (optimizer := wrapped.get(id(getattr(part, "optimizer", None)))) is not None:
                part.optimizer = optimizer

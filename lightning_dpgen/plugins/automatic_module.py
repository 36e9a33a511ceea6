"""Any LightningModule under privacy: its `training_step` gives the loss of each record, the rest is done here."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opacus.optimizers import DPOptimizer
from torch import Tensor

from lightning_dpgen.gradients.engine_check import check_exact
from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.gradients.isolation.isolation import mean_of_records, rows_of
from lightning_dpgen.gradients.lot_number import number_of_lot
from lightning_dpgen.gradients.micro_batches import LotParts, MicroBatch, MicroBatches, check_micro_batch, takes_slots
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.gradients.probes import UNSUITED, WHOLE, probe_lot
from lightning_dpgen.gradients.shards import own_part, reshard
from lightning_dpgen.gradients.terms import DataFree, PerGroup, PerRecord, Views
from lightning_dpgen.optim.averaging import ParameterAverage
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.plugins.batch_hooks import BatchHooks
from lightning_dpgen.plugins.kept_values import GrowingLists, refuse_updated_metrics
from lightning_dpgen.plugins.learning_rates import LearningRates
from lightning_dpgen.plugins.lot_log import PRIVATE, LotLog, names_of
from lightning_dpgen.plugins.namespaces import MisconfigurationException, lightning_class, pl
from lightning_dpgen.plugins.noisy_metrics import LotMetrics
from lightning_dpgen.plugins.purchases import Purchases
from lightning_dpgen.plugins.several_optimizers import (
    check_kinds,
    check_public,
    parameters_of,
    sees_records,
    step_public,
    terms_of_each,
    training_alone,
    whose_turn,
)
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.planning.stage_spec import expected_lot_size
from lightning_dpgen.sampling.lots import Lot, LotBatch
from lightning_dpgen.sampling.slots import Slots


@dataclass(frozen=True)
class StepOptions:
    """The way in which gradients of an adopted module are computed, and what is kept of its steps.

    Args:
        micro_batch: about how many records' gradients are computed at a time, so that larger lots fit into memory: each lot
            is divided into as many parts as one of the expected size has, and the records of a part are fetched with it.
            ``auto`` takes as many records as half of what is free holds. A rule that follows the lot's norms (DPNorm) looks
            at a lot in parts twice. None takes it in one piece.
        slots: whether each lot is laid out in a fixed number of rows, which it exceeds once in 10^9 lots: the bits of a
            record's gradient then do not follow from how many others there are. It takes as much longer as there are more
            rows than records (358 for 256). None does it on a GPU.
        capture: whether steps in slots run without their Python where that does the same in each
            (`gradients/captured.py`); a line says so, or why not.
        views: augmented views of each record, whose mean loss is its loss.
        averaging: the part of the average of parameters that stays in a step, from 0, below 1; 0 keeps none.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> StepOptions(micro_batch=64).averaging
        0.0
    """

    micro_batch: MicroBatch = None
    views: Views | None = None
    averaging: float = 0.0
    slots: bool | None = None
    capture: bool = True

    def __post_init__(self) -> None:
        check_micro_batch(self.micro_batch)
        if not isinstance(self.slots, bool | None):
            raise ValueError(f"slots={self.slots!r}: expected True, False, or None (on a GPU)")
        if type(self.capture) is not bool:
            raise ValueError(f"capture={self.capture!r}: expected True or False")
        if not (isinstance(self.averaging, int | float) and 0.0 <= self.averaging < 1.0):
            raise ValueError(f"averaging={self.averaging!r}: expected a number from 0, below 1")


class AutomaticModule:
    """The private stand-in for a module's `training_step` during one fit: gradients, one access and one step for each lot.

    It calls the module's own `training_step` once for each lot, with a batch that looks like one record
    (`gradients/isolation`), and the number of the lot as `batch_idx` where the step takes one. `on_train_batch_start`
    and `on_train_batch_end` get None for batch and outputs. A scheduler by epoch steps once in as many lots as a record is
    expected in once.

    The training step gives a loss, as anywhere in Lightning: the mean over the batch, which is one record there, or one
    loss a record (a tensor (B,)), or a dict with ``loss``; or a term, or a list of terms. A module with several optimizers
    gives one entry for each of them (`plugins/several_optimizers.py`). What it logs goes to the Trainer's loggers as
    private means over the lot, and not to `trainer.callback_metrics`, where code that trains would find it. Other hooks log
    as ever, under ``private/``.

    Args:
        module: a module with automatic optimization, which is switched off until `restore`.
        stage: the plan's stage that the steps belong to.
        engine: as for `term_gradients`.
        options: how gradients are computed.
        after_last: called when the last planned step, and the module's `on_train_batch_end` after it, have changed the
            parameters, and nothing else has.
        purchases: what the fit buys beside its steps; None for nothing.

    Attributes:
        average: the average of the trained parameters; None without `StepOptions.averaging`.
        learning_rates: the schedulers of the module.
        log: the lines of the fit, once training starts.
    """

    # Attributes of the instance that hide those of its class for the time of a fit.
    _REPLACED: tuple[str, ...] = (
        "training_step", "log", "log_dict", "on_train_batch_start", "on_train_batch_end", "configure_optimizers",
    )  # fmt: skip

    def __init__(
        self,
        module: pl.LightningModule,
        account: Account,
        stage: str,
        engine: str = "ghost",
        options: StepOptions | None = None,
        after_last: Callable[[], None] = lambda: None,
        purchases: Purchases | None = None,
    ) -> None:
        self._purchases = purchases
        self._module, self._account, self._stage, self._engine = module, account, stage, engine
        options = options or StepOptions()
        self._options, self._after_last = options, after_last
        self.learning_rates = LearningRates(module, account, stage)
        # `rehearse` makes them, when the module is on its device.
        self._parts = LotParts(None, self._expected_lot)
        # The one term of a module whose training step gives losses.
        self._of_losses = [PerRecord(self._losses)]
        trained = [p for p in module.parameters() if p.requires_grad]
        self.average = ParameterAverage(trained, options.averaging) if options.averaging else None
        self._training_step = type(module).training_step.__get__(module)
        self._takes_index = _takes_index(self._training_step)
        trainer: Any = module.trainer
        self._hooks = BatchHooks(module, trainer.datamodule)
        # Made-up records for a training step that gives terms: a term that kept real ones would be neither clipped nor
        # noised. None for one that gives losses.
        self._made_up: Any = None
        # The means of what the training step has logged for a lot, by name and part of the lot, with the records of that
        # part; None outside of a lot.
        self._values: dict[tuple[str, int], tuple[Tensor | float, int]] | None = None
        # Logged values of the part that is computed, a number a row.
        self._of_rows: dict[str, Tensor | float] = {}
        self._index = 0
        self._stepping: Any = None
        # True if this step has a line in the log, and the names of its terms there, by the identity of each.
        self._has_line, self._names = False, dict[int, str]()
        self.log: LotLog | None = None
        # The losses of this step that saw no record, by name.
        self._seen: dict[str, Tensor] = {}
        self._was_automatic, module.automatic_optimization = module.automatic_optimization, False
        instance: Any = module
        self._log_elsewhere = instance.log
        instance.log, instance.log_dict = self._log, self._log_all
        # A class that calls `log` of another passes by that of the instance.
        results: Any = instance.trainer.fit_loop.epoch_loop._results
        self._results, self._keep = results, results.log
        vars(results)["log"] = self._log_result
        # Functions, since Lightning compares their code with that of its own class.
        instance.training_step = lambda batch, batch_idx=0: self._called_by_anyone(batch, batch_idx)
        # They are called for each lot, without its records.
        self._before, self._after = module.on_train_batch_start, module.on_train_batch_end
        instance.on_train_batch_start = lambda *_: None
        instance.on_train_batch_end = lambda *_: None
        # Lightning forgets there which number a learning rate follows, as steps are manual.
        configure = module.configure_optimizers
        instance.configure_optimizers = lambda: self.learning_rates.note_monitors(configure())
        if purchases is not None:
            purchases.begin(module.trainer)

    def restore(self) -> None:
        """Give the module back as it was: its next fit, with or without privacy, begins anew."""
        for name in self._REPLACED:
            vars(self._module).pop(name, None)
        vars(self._results).pop("log", None)
        self._hooks.restore()
        self._module.automatic_optimization = self._was_automatic
        if self._purchases is not None:
            self._purchases.end()

    def __call__(self, batch: LotBatch) -> None:
        module: Any = self._module
        for lot in batch:
            self._values, self._index = {}, self._account.step_of(self._stage)
            if self._lots is not None:
                self._lots.begin()
            if self._before(None, self._index) == -1:
                raise MisconfigurationException(
                    "on_train_batch_start returned -1, which ends an epoch: a fit ends with the last planned step, or with "
                    "Trainer(max_steps=...)"
                )
            self._has_line, self._seen = self.log is not None and self.log.wanted, {}
            self._step_on(lot.to(module.device, module.dtype))
            if self.average is not None:
                self.average.update()
            # A hook may have logged beside the parts of the lot.
            self._take_logged(0, 1, None)
            logged, self._values = self._values, None
            if self.log is not None and self._has_line:
                self.log.add(_means(logged))
                self.log.add_public({name: float(loss) for name, loss in self._seen.items()})
            # A module may change its parameters here (a moving average, a bound of weights), which takes no further record.
            self._after(None, None, self._index)
            if self._purchases is not None:
                self.learning_rates.follow(self._purchases.after_step())
            if not self._account.remaining(self._stage):
                self._after_last()
            # A batch ends where the Trainer ends the fit: a lot that is not drawn costs nothing.
            if 0 <= module.trainer.max_steps <= module.trainer.global_step:
                break

    def _called_by_anyone(self, batch: Any, batch_idx: int) -> Any:
        """Take the Trainer's lots; a validation step may call the training step for its loss, of its own batch."""
        if isinstance(batch, LotBatch):
            return self(batch)
        return self._training_step(batch, *((batch_idx,) if self._takes_index else ()))

    def _step_on(self, lot: Lot) -> None:
        """Make all steps of a lot, of one optimizer or several, and of their schedules."""
        module: Any = self._module
        wrapped = module.optimizers()
        if isinstance(wrapped, list):
            self._step_each(wrapped, lot)
        else:
            terms = self._of_losses if self._made_up is None else self._named([self._terms()])[0]
            self._step(wrapped, terms, lot)
        if module.trainer.lr_scheduler_configs:
            self.learning_rates.step()

    def _step(self, wrapped: Any, terms: list, lot: Lot) -> None:
        """Step a private optimizer on a lot."""
        # Lightning's wrapper loses attributes that are written to it; the real optimizer is below.
        self._stepping = wrapped.optimizer
        if self._has_line and self.log is not None:
            self.log.terms = [self._names.get(id(term), "") for term in terms if not isinstance(term, DataFree)]
        private, data_free = [], []
        for term in terms:
            if isinstance(term, DataFree):
                data_free.append(term)
            else:
                private.append(self._gradients(term, lot))
        self._stepping.set_gradients(*private, data_free=data_free, metrics=self._lots and self._lots.release)
        # Through the wrapper, so that Lightning counts steps.
        wrapped.step()

    def _step_each(self, wrapped: list, lot: Lot) -> None:
        """Step the optimizer that the lot is for, and the public ones, in the order in which the module gives them."""
        optimizers = [one.optimizer for one in wrapped]
        of_optimizers = terms_of_each(self._called(self._made_up), len(wrapped))
        check_kinds(optimizers, of_optimizers)
        of_optimizers = self._named(of_optimizers)
        turn = whose_turn(optimizers, self._index)
        for i, (optimizer, terms) in enumerate(zip(optimizers, of_optimizers, strict=True)):
            with training_alone(self._module, optimizer):
                if i == turn:
                    self._step(wrapped[i], terms, lot)
                elif not isinstance(optimizer, PrivateOptimizer):
                    # Below the wrapper: Lightning counts lots.
                    step_public(optimizer, [t for t in terms if isinstance(t, DataFree)])

    def _named(self, of_optimizers: list[list]) -> list[list]:
        """Return the terms of a step so that those without records show their losses, if it has a line in the log."""
        terms = [term for of_one in of_optimizers for term in of_one]
        if not self._has_line or self.log is None or len(terms) == 1:
            return of_optimizers
        names = self._names = dict(zip(map(id, terms), names_of(terms), strict=True))
        for number, of_one in enumerate(of_optimizers):
            if of_one and len(of_optimizers) > 1:
                self.log.optimizers[number] = names[id(of_one[0])]

        def seen(term: DataFree) -> DataFree:
            def loss() -> Tensor:
                value = term.loss()
                if isinstance(value, Tensor):
                    self._seen[names[id(term)]] = value.detach()
                return value

            return DataFree(loss)

        return [[seen(term) if isinstance(term, DataFree) else term for term in of_one] for of_one in of_optimizers]

    def check_schedules(self) -> None:
        """Try the schedules of the learning rate over the plan."""
        self.learning_rates.check(self.bought)

    def which_see_records(self, empty: Any) -> list[bool]:
        """Return for each of several optimizers whether a term of its sees records.

        Args:
            empty: the records of an empty lot.

        Raises:
            ValueError: if the training step cannot be tried on made-up records, or gives something else than terms.
        """
        self._values = {}
        try:
            given, _ = self._tried(empty)
        except UNSUITED as error:
            raise _untried(error) from error
        finally:
            self._forget_logged()
        return [sees_records(terms) for terms in terms_of_each(given, len(self._optimizers))]

    @property
    def _lots(self) -> LotMetrics | None:
        """The numbers of lots that are bought."""
        return None if self._purchases is None else self._purchases.lots

    @property
    def bought(self) -> frozenset[str]:
        """The names of the public numbers that are bought."""
        return frozenset() if self._purchases is None else self._purchases.names

    def tell_callbacks(self) -> None:
        """Let the callbacks that follow a bought number look at a new one; the Trainer is between two batches."""
        if self._purchases is not None:
            self._purchases.tell_callbacks(self._module)

    @property
    def of_user(self) -> tuple[Callable, ...]:
        """The functions that it calls in a loss, beside the module's own."""
        return self._hooks.functions + (() if self._options.views is None else (self._options.views.augment,))

    @property
    def _expected_lot(self) -> float:
        """The expected number of records of a lot in this process."""
        return expected_lot_size(self._account.plan, self._stage, None) / self._account.ranks.size

    @property
    def _optimizers(self) -> list:
        return self._module.trainer.optimizers

    def _listen(self, call: Callable[[], object]) -> dict[str, Tensor | float]:
        """Return what the module logs during a call beside the lots, by name, a number a row."""
        self._values = {}
        try:
            call()
            return dict(self._of_rows)
        finally:
            self._forget_logged()

    def _log(self, name: str, value: Any, *others: Any, **options: Any) -> None:
        if self._values is not None:
            if self._purchases is not None:
                self._purchases.check_scalar(name, value)
            self._of_rows[name] = rows_of(value) if isinstance(value, Tensor) else float(value)
            return
        self._log_elsewhere(name, value, *others, **options)

    def _log_result(self, hook: str, name: str, value: Any, **options: Any) -> None:
        if self._values is None:
            self._keep(hook, name, value, **options)
        else:
            self._log(name, value)

    def _log_all(self, values: Mapping[str, Any], *others: Any, **options: Any) -> None:
        for name, value in values.items():
            self._log(name, value, *others, **options)

    def rehearse(self, empty: Any) -> None:
        """Check on made-up records that the engine understands the training step; see `check_exact`.

        A module that takes no made-up record gets a warning, and is tried once more before its first step.
        """
        options, self._values = self._options, {}
        in_slots, plan = takes_slots(options.slots, self._module.device), self._account.plan
        self._parts = LotParts.of_stage(options.micro_batch, self._expected_lot, plan, self._stage, in_slots=in_slots)
        try:
            with refuse_updated_metrics(self._module):
                self._rehearse(empty)
                if self._lots is not None:
                    self._lots.check_logged(self._of_rows, self._of_made_up)
        except UNSUITED as error:
            if len(self._optimizers) > 1 and self._made_up is None:
                raise _untried(error) from error
            if self._options.micro_batch == "auto":
                raise ValueError(
                    f"micro_batch='auto': training_step could not be tried on made-up records ({type(error).__name__}: "
                    f"{error}), so its memory is not known: give the number of records"
                ) from error
            warnings.warn(
                f"training_step could not be tried on made-up records ({type(error).__name__}: {error}): this is "
                "tried once more before the first step",
                stacklevel=2,
            )
        finally:
            self._forget_logged()
        if self._purchases is not None:
            self._purchases.rehearse(self._module, self._hooks, self._expected_lot, self._listen)

    @property
    def _of_made_up(self) -> Tensor | None:
        """A loss for each of some made-up records; None for a training step of terms, which has several losses."""
        return own_part(next(self._module.parameters())).new_zeros(1) if self._made_up is None else None

    def _rehearse(self, empty: Any) -> None:
        some = next(self._module.parameters())
        given, lot = self._tried(empty)
        of_optimizers, lists = self._terms_of_optimizers(given, lot), GrowingLists(self._module)
        self._set_micro_batch(of_optimizers, empty)
        for optimizer, terms in of_optimizers:
            with training_alone(self._module, optimizer):
                if not isinstance(optimizer, PrivateOptimizer):
                    check_public([t for t in terms if isinstance(t, DataFree)])
                for term in terms:
                    if isinstance(term, PerRecord):
                        noise = own_part(some).new_full((len(lot), term.noise), 0.5)
                        check_exact(ENGINES[self._engine], self._module, term, lot, noise)
        lists.check()

    def _tried(self, empty: Any) -> tuple[Any, Lot]:
        """Call the training step with made-up records, and return what it gives, and these."""
        some = next(self._module.parameters())
        for whole in WHOLE:
            lot, *_ = probe_lot(Lot(empty, (0, 0)), own_part(some).new_zeros(0), 3, whole=whole)
            try:
                return self._called(lot.records), lot
            except UNSUITED:
                if whole == WHOLE[-1]:
                    raise
            finally:
                # It was a forward pass by FSDP itself.
                reshard(self._module)
        raise AssertionError("the loop returns or raises")

    def _terms_of_optimizers(self, given: Any, lot: Lot) -> list[tuple[Any, list]]:
        """Return each optimizer with its terms, as the training step has given them for made-up records."""
        optimizers = self._optimizers
        if len(optimizers) == 1 and isinstance(given, Tensor):
            return [(optimizers[0], self._of_losses)]
        self._made_up = lot.records
        if len(optimizers) == 1:
            of_optimizers = [self._checked(given)]
        else:
            of_optimizers = terms_of_each(given, len(optimizers))
            check_kinds(optimizers, of_optimizers)
        self._check_terms([term for terms in of_optimizers for term in terms])
        return list(zip(optimizers, of_optimizers, strict=True))

    def _called(self, records: Any) -> Any:
        """Call the module's own training step as Lightning does, which leaves out an index that it does not take."""
        more = (number_of_lot(self._index),) if self._takes_index else ()
        given = self._training_step(self._hooks(records), *more)
        return given["loss"] if isinstance(given, dict) and "loss" in given else given

    def _losses(self, lot: Lot, noise: Tensor) -> Tensor:
        views = self._options.views
        given = self._called(lot.records) if views is None else views.losses(self._called, lot.records)
        if isinstance(given, Tensor):
            return given
        raise ValueError(
            "training_step returns terms, so it is called with made-up records, of which none is private, and it could "
            "not be tried on these: let it return one loss for each record, or make terms without looking at the batch"
        )

    def _terms(self) -> list:
        """Return the terms of the next step of a module with one optimizer, whose training step gives terms."""
        return self._checked(self._called(self._made_up))

    def _gradients(self, term: PerRecord | PerGroup, lot: Lot) -> PerSampleGradients | MicroBatches:
        """Return the gradients of a term, in parts where the fit takes lots so."""
        stream = self._account.stream
        return self._parts.gradients(lot, lambda part, number: self._of_part(term, part, number), stream)

    def _of_part(self, term: PerRecord | PerGroup, lot: Lot, number: int) -> PerSampleGradients:
        given = self._engine, self._of_rows, self._options.capture
        gradients = self._stepping.compute_gradients(self._module, term, lot, *given)
        if self._lots is not None and isinstance(term, PerRecord):
            self._lots.take(number, self._of_rows, gradients.losses if self._made_up is None else None, lot)
        self._take_logged(number, lot.offsets[-1], lot.slots)
        return gradients

    def _forget_logged(self) -> None:
        """Drop what was logged of made-up records."""
        self._values = None
        self._of_rows.clear()

    def _take_logged(self, part: int, size: int, slots: Slots | None) -> None:
        """Keep the means over records of what was logged for a part of a lot."""
        assert self._values is not None, "a part of a lot"
        for name, x in self._of_rows.items():
            self._values[name, part] = mean_of_records(x, slots) if isinstance(x, Tensor) else x, size
        self._of_rows.clear()

    def _set_micro_batch(self, of_optimizers: list, empty: Any) -> None:
        """Find the number of records of a part, where memory is to tell."""
        if self._options.micro_batch != "auto":
            return
        some = next(self._module.parameters())

        def compute(count: int) -> Iterator[PerSampleGradients]:
            for optimizer, terms in of_optimizers:
                with training_alone(self._module, optimizer):
                    for term in terms:
                        if isinstance(term, PerRecord):
                            lot, noise, _ = probe_lot(Lot(empty, (0, 0)), own_part(some).new_zeros(0, term.noise), count)
                            yield ENGINES[self._engine](self._module, term, lot, noise)

        self._parts.fit_memory(compute, some.device)

    def _check_terms(self, terms: list) -> None:
        """Refuse terms for which a setting of this fit has no meaning."""
        self._hooks.check_terms()
        if self._options.micro_batch is not None and any(isinstance(term, PerGroup) for term in terms):
            raise ValueError(
                f"micro_batch={self._options.micro_batch!r}: a PerGroup term reaches over all parts of a lot: expected "
                "None, a lot in one piece"
            )
        if self._options.views is not None:
            raise ValueError(
                "augment: training_step returns terms, which receive records as they are: let it return one loss for "
                "each record, or make the views in the term (of_views)"
            )
        for term in terms:
            if isinstance(term, PerGroup) and term.places is not None:
                expected = self._expected_lot / term.groups
                if term.places < expected + 3.0 * math.sqrt(expected):
                    warnings.warn(
                        f"PerGroup(groups={term.groups}, places={term.places}): a group is expected to have {expected:.3g} "
                        "records and often has more than places, so many records take no part in a step: expected "
                        f"places={PerGroup.slots(self._expected_lot, term.groups)}, by PerGroup.slots",
                        stacklevel=2,
                    )

    def _checked(self, given: Any) -> list:
        """Return the terms that a training step gave as a list; refuse anything else."""
        terms = list(given) if isinstance(given, list | tuple) else [given]
        if any(isinstance(t, Tensor) for t in terms):
            raise ValueError(
                f"training_step returned a {type(given).__name__} with a tensor: expected the loss itself, as in return "
                "loss, or a list of terms alone, as in return [PerRecord(self.loss)]"
            )
        wrong = [t for t in terms if not isinstance(t, PerRecord | PerGroup | DataFree)]
        if wrong or not terms:
            what = type(wrong[0]).__name__ if wrong else "nothing"
            raise ValueError(
                f"training_step returned {what}: expected a loss (the mean over the batch, or one loss for each record), "
                "a dict with 'loss', or a PerRecord, PerGroup or DataFree term, or a list of these"
            )
        return terms


def _means(values: Mapping[tuple[str, int], tuple[Tensor | float, int]]) -> dict[str, float]:
    """Return the means over a lot of what was logged of its parts, under private names."""
    sums: dict[str, list[float]] = {}
    for (name, _), (value, size) in values.items():
        total = sums.setdefault(f"{PRIVATE}{name.removeprefix(PRIVATE)}", [0.0, 0.0])
        total[0] += float(value) * max(size, 1)
        total[1] += max(size, 1)
    return {name: value / size for name, (value, size) in sums.items()}


def _untried(error: Exception) -> ValueError:
    return ValueError(
        f"training_step could not be tried on made-up records ({type(error).__name__}: {error}), and with several "
        "optimizers it is called with these alone: let it give terms without looking at the batch (examples/gan.py)"
    )


def _takes_index(step: Any) -> bool:
    kinds = [p.kind for p in inspect.signature(step).parameters.values()]
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter.VAR_POSITIONAL in kinds or sum(kind in positional for kind in kinds) > 1


def check_optimizers(module: pl.LightningModule, optimizers: list, account: Account, stage: str, *, adopted: bool) -> None:
    """Refuse a fit whose steps would not be private.

    Raises:
        MisconfigurationException: saying what to do; nothing has been spent.
    """
    private = [o for o in optimizers if isinstance(o, PrivateOptimizer)]
    if not private:
        if any(isinstance(o, DPOptimizer) for o in optimizers):
            raise MisconfigurationException(
                "configure_optimizers returned a DPOptimizer of Opacus, whose noise stands in no ledger, so no account can "
                "state its epsilon: return PrivateOptimizer(torch.optim.Adam(...), account=account, clipping=...), a "
                "DPOptimizer with the plan's noise"
            )
        names = ", ".join(type(o).__name__ for o in optimizers) or "no optimizer"
        raise MisconfigurationException(
            f"configure_optimizers returned {names}, whose steps are not private: wrap the optimizer of what is trained "
            "on records, as in PrivateOptimizer(torch.optim.Adam(...), account=account, clipping=...)"
        )
    if any(o.account is not account for o in private):
        raise MisconfigurationException(
            "the PrivateOptimizer has another account than the MomentsAccountant: pass one Account to both"
        )
    if other := [o.stage for o in private if o.stage != stage]:
        raise MisconfigurationException(
            f"the PrivateOptimizer steps for stage={other[0]!r}, and the MomentsAccountant watches stage={stage!r}: "
            "give optimizer, loader and callback the same stage"
        )
    if adopted:
        _check_parameters(module, optimizers)


def _check_parameters(module: pl.LightningModule, optimizers: list) -> None:
    """Refuse optimizers that do not have each trainable parameter of an adopted module once, all together."""
    trainable = {id(p) for p in module.parameters() if p.requires_grad}
    frozen = {id(p) for p in module.parameters()} - trainable
    owned = [id(p) for optimizer in optimizers for p in parameters_of(optimizer)]
    have = "the optimizer has" if len(optimizers) == 1 else f"the {len(optimizers)} optimizers have"
    if missing := trainable - set(owned):
        raise MisconfigurationException(
            f"{have} {len(trainable) - len(missing)} of the module's {len(trainable)} trainable parameters: pass all, and "
            "freeze the others (requires_grad_(False)) before"
        )
    if others := set(owned) - trainable:
        raise MisconfigurationException(
            f"{have} {len(others)} parameters that are not to be trained ({len(others & frozen)} frozen in the module, "
            f"{len(others - frozen)} not of the module): pass [p for p in self.parameters() if p.requires_grad]"
        )
    if len(set(owned)) < len(owned):
        raise MisconfigurationException(
            f"{have} a parameter in common: expected each parameter in one of them, since gradients of public and private "
            "steps must not mix"
        )


def check_overrides(module: pl.LightningModule) -> None:
    """Refuse an adopted module whose hooks would not be called as Lightning calls them.

    Raises:
        MisconfigurationException: naming the hook.
    """
    plain = lightning_class(module)
    ignored = [name for name in _NOT_CALLED if getattr(type(module), name) is not getattr(plain, name)]
    if ignored:
        raise MisconfigurationException(
            f"{ignored[0]} is overridden, and is not called (or is handed many records) where a step is private: leave it "
            "out, or step the module yourself (automatic_optimization=False; term_gradients, set_gradients and step)"
        )


_NOT_CALLED = (
    "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "backward", "on_before_zero_grad",
    "on_after_backward", "on_before_optimizer_step",
)  # fmt: skip

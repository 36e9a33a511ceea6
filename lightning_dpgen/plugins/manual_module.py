"""A module with manual optimization under privacy, as it stands: each step that sees records is made on a lot of its own.

`training_step` is called once for each of its steps (`plugins/manual_runs.py`). A first call with a made-up record finds
them. The call for a step that sees records is a loss of records: each is alone in it (`gradients/isolation`), the backward
passes and steps before are not made again, and the call ends behind the step. Steps that see none are made in a call with
made-up records, as many as a lot is expected to have. So nothing but the clipped and noised gradient of a private step
leaves a call that sees records, and the order of the steps follows from public numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from lightning_dpgen.gradients.engine_check import check_exact
from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.gradients.probes import UNSUITED, WHOLE, probe_lot
from lightning_dpgen.gradients.shards import has_shards
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.plugins.automatic_module import AutomaticModule, StepOptions
from lightning_dpgen.plugins.kept_values import GrowingLists
from lightning_dpgen.plugins.manual_runs import (
    EndOfRun,
    Outline,
    PrivateRun,
    PublicRun,
    Run,
    Step,
    SteppingOptimizer,
    SteppingScheduler,
    frozen_as_before,
    other_steps,
)
from lightning_dpgen.plugins.namespaces import MisconfigurationException, pl
from lightning_dpgen.plugins.purchases import Purchases
from lightning_dpgen.plugins.record_trace import lasting_tensors, numbers_of
from lightning_dpgen.plugins.several_optimizers import in_terms, loss_names, parameters_of, training_alone
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.sampling.lots import Lot, LotBatch

# Calls of a training step within which each optimizer has to step, and one that sees records.
_CALLS = 1_000
_OF_STEPS = (
    "optimizers", "lr_schedulers", "manual_backward", "toggle_optimizer", "untoggle_optimizer", "clip_gradients",
    "zero_grad",
)  # fmt: skip


class ManualModule(AutomaticModule):
    """The private stand-in for the `training_step` of a module with ``automatic_optimization=False`` during one fit.

    An optimizer is private if a loss of its steps depends on the batch, and public otherwise. A lot is for one step of a
    private one; `batch_idx` counts calls of the training step as the module makes them. The gradient of a step is that of
    all losses behind the last `zero_grad`, with the parameters as they are then: a tensor that was computed before an
    earlier step is computed anew. Schedules step where the training step says so.

    Args:
        module, account, stage, engine, options, after_last, purchases: as for `AutomaticModule`; steps are not captured.
    """

    _REPLACED = (*AutomaticModule._REPLACED, *_OF_STEPS)

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
        options = replace(options or StepOptions(), capture=False)
        super().__init__(module, account, stage, engine, options, after_last, purchases)
        self._run: Run | None = None
        # The first calls, with which the fit is tried, and whether these have found what each optimizer sees.
        self._first: list[Outline] = []
        self._are_known = False
        # Made-up records: one that finds steps, and as many as a lot is expected to have for steps that see none.
        self._one: Any = None
        self._many: Any = None
        self._whole = 0
        # The optimizers with a step whose losses depend on the batch, in calls that were refused, too.
        self._seeing: set[int] = set()
        self._begin()
        stand_ins: tuple[Callable[..., Any], ...] = (
            self._of_optimizers, self._of_schedulers, self._backward, self._toggle, self._untoggle, self._clip, self._zero
        )  # fmt: skip
        for name, stand_in in zip(_OF_STEPS, stand_ins, strict=True):
            setattr(module, name, functools.partial(self._called_by_module, name, stand_in))

    def _begin(self) -> None:
        """Go to the place before the first call of the training step."""
        # The number of the call, its steps, the place of the next one, and the optimizers with gradients of earlier calls.
        self._number, self._outline, self._place = -1, Run([], [], 0), 0
        self._old: set[int] = set()

    # Methods of the module that a training step calls.

    def _called_by_anyone(self, batch: Any, batch_idx: int) -> Any:
        if not isinstance(batch, LotBatch):
            raise ValueError(
                "training_step makes steps by hand, and was called with a batch that is no lot, as by a validation_step: "
                "compute its loss in a method of its own, and call that from both"
            )
        return self(batch)

    def _called_by_module(self, name: str, stand_in: Callable, *args: Any, **kwargs: Any) -> Any:
        if self._run is None:
            return getattr(type(self._module), name).__get__(self._module)(*args, **kwargs)
        return stand_in(self._run, *args, **kwargs)

    def _of_optimizers(self, run: Run, use_pl_optimizer: bool = True) -> Any:
        seen = [SteppingOptimizer(run, i, optimizer) for i, optimizer in enumerate(self._optimizers)]
        return seen[0] if len(seen) == 1 else seen

    def _of_schedulers(self, run: Run) -> Any:
        seen = [SteppingScheduler(run, i, scheduler) for i, scheduler in enumerate(self._schedulers)]
        return seen[0] if len(seen) == 1 else seen or None

    def _backward(self, run: Run, loss: Tensor, **options: Any) -> None:
        run.backward(loss, **options)

    def _toggle(self, run: Run, optimizer: Any) -> None:
        run.only = optimizer.number

    def _untoggle(self, run: Run, optimizer: Any) -> None:
        run.only = None

    def _clip(self, run: Run, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(self._optimizers[optimizer.number], PrivateOptimizer):
            raise ValueError(
                f"clip_gradients of optimizer {optimizer.number}, which is private, clips sums and not records: leave it "
                "out, since the rule in clipping= bounds the gradient of each record"
            )
        run.clip(optimizer.number, *args, **kwargs)

    def _zero(self, run: Run, set_to_none: bool = True) -> None:
        for number in range(len(self._optimizers)):
            run.zero(number)

    def _log(self, name: str, value: Any, *others: Any, **options: Any) -> None:
        if self._run is not None:
            self._run.log()
        super()._log(name, value, *others, **options)

    # Calls of the training step.

    def _called(self, records: Any) -> Any:
        return self._training_step(self._hooks(records), *((self._number,) if self._takes_index else ()))

    @contextmanager
    def _within(self, run: Run) -> Iterator[None]:
        """Let the training step see the optimizers and schedules of a run, and end with it."""
        self._run = run
        try:
            yield
        except EndOfRun:
            pass
        finally:
            self._run = None

    @contextmanager
    def _without_records(self, run: Run) -> Iterator[None]:
        """Be within a run with made-up records, and drop what it logs."""
        logged = dict(self._of_rows)
        try:
            with frozen_as_before(self._module), self._within(run):
                yield
        finally:
            self._of_rows.clear()
            self._of_rows.update(logged)

    def _find_steps(self, number: int) -> Outline:
        """Call the training step with a made-up record, for the steps that it makes with this `batch_idx`.

        Raises:
            ValueError: for steps that cannot be made one by one.
        """
        self._number, self._place = number, 0
        # It may not write into what no call of a layer of torch changes.
        lasting = lasting_tensors(self._module)
        run = Outline([parameters_of(optimizer) for optimizer in self._optimizers], self._one, self._old, lasting)
        try:
            with self._without_records(run), run.trace:
                self._called(self._one)
        finally:
            self._seeing |= run.seeing
        if (written := run.trace.end()) is not None:
            raise ValueError(
                f"training_step writes into {written}, and is called once for each of its steps: write in "
                "on_train_batch_end, which is called behind each step that sees records (a bound of the critic's weights, "
                "say), or keep a moving average of the parameters by averaging=0.999"
            )
        self._outline, self._old = run, run.old
        return run

    def _loss(self, step: str, place: int, to_end: bool, lot: Lot, noise: Tensor) -> Tensor:
        """Return the loss of a step that sees records: the training step is called until it makes that."""
        run = PrivateRun(self._outline, place, to_end=to_end)
        with self._within(run):
            self._called(lot.records)
        if run.loss is None:
            raise other_steps()
        return run.loss

    def _term(self, place: int, step: Step, *, to_end: bool) -> PerRecord:
        # An engine tells losses apart by text among what they are closed over.
        return PerRecord(functools.partial(self._loss, f"step {place}, of optimizer {step.number}", place, to_end))

    def _call_without_records(self, first: int, end: int, *, dry: bool = False) -> None:
        """Make the steps from `first` to before `end`, none of which sees a record, with made-up records."""
        steps = self._outline.steps[first:end]
        if all(step.is_rate for step in steps):
            for step in () if dry else steps:
                self._schedulers[step.number].step(*step.args)
            return
        clip = functools.partial(type(self._module).clip_gradients, self._module)
        run = PublicRun(self._outline, self._optimizers, self._schedulers, first, end, clip, dry=dry)
        try:
            with self._without_records(run):
                self._called(self._many)
        finally:
            run.drop()
        if self._has_line and not dry:
            names = loss_names(self._module, self._optimizers)
            self._seen |= {names[number]: loss for number, loss in run.made.items()}

    # One step of a private optimizer for each lot.

    def _step_on(self, lot: Lot) -> None:
        self._go_to_step_with_records()
        place, wrapped = self._place, self._module.optimizers()
        step = self._outline.steps[place]
        wrapped = wrapped[step.number] if isinstance(wrapped, list) else wrapped
        # A line in the log, or a number that is bought, may be one that is logged behind the step.
        to_end = step.is_logged_after and (self._has_line or self._lots is not None)
        with frozen_as_before(self._module), training_alone(self._module, wrapped.optimizer):
            self._step(wrapped, [self._term(place, step, to_end=to_end)], lot)
        self._place += 1
        self._make_public_steps()

    def _go_to_step_with_records(self) -> None:
        """Make the public steps before the next one that sees records.

        Raises:
            ValueError: if there is none for long.
        """
        if self._number < 0:
            self._skip_steps_made()
        begun = self._number
        while self._place == len(self._outline.steps):
            if self._number - begun == _CALLS:
                raise ValueError(
                    f"training_step was called {_CALLS} times without a step that sees records: expected one for each lot "
                    "of the plan"
                )
            self._find_planned_steps(self._number + 1)
            self._make_public_steps()

    def _skip_steps_made(self) -> None:
        """Go to where an earlier fit has ended."""
        left = self._index
        while left:
            steps = self._find_planned_steps(self._number + 1).steps
            for place, step in enumerate(steps):
                if self._is_private(step):
                    left -= 1
                if not left:
                    self._place = self._end_of_public(place + 1)
                    return
            self._place = len(steps)

    def _find_planned_steps(self, number: int) -> Outline:
        outline = self._find_steps(number)
        self._check_kinds(number)
        return outline

    def _check_kinds(self, number: int) -> None:
        """Refuse a step of a public optimizer that sees records, and one of a private optimizer that sees none."""
        for step in self._outline.steps:
            if step.is_rate or step.sees_records == self._is_private(step):
                continue
            if step.sees_records:
                refusal = ValueError(
                    f"with batch_idx={number} a step of optimizer {step.number} depends on the batch, and this optimizer "
                    "is public, since its first steps do not: expected the same of each step"
                )
            else:
                refusal = ValueError(
                    f"with batch_idx={number} a step of optimizer {step.number} depends on no record, and others of its "
                    "do: each step of a private optimizer takes a lot, so add up the losses of both, or call "
                    "manual_backward for both before one step()"
                )
            refusal.add_note(self._in_terms())
            raise refusal

    def _make_public_steps(self) -> None:
        first, self._place = self._place, self._end_of_public(self._place)
        if first < self._place:
            self._call_without_records(first, self._place)

    def _end_of_public(self, place: int) -> int:
        """Return the place of the next step of a private optimizer, or that behind all steps."""
        steps = self._outline.steps
        return next((i for i in range(place, len(steps)) if self._is_private(steps[i])), len(steps))

    def _is_private(self, step: Step) -> bool:
        return not step.is_rate and isinstance(self._optimizers[step.number], PrivateOptimizer)

    @property
    def _schedulers(self) -> list:
        trainer: Any = self._module.trainer
        return [config.scheduler for config in trainer.lr_scheduler_configs]

    # Before the first lot.

    def check_schedules(self) -> None:
        self.learning_rates.check_plateaus(self.bought)

    def which_see_records(self, empty: Any) -> list[bool]:
        self._values = {}
        try:
            self._try_first_calls(empty)
        finally:
            self._forget_logged()
        return self._sees_records()

    def _sees_records(self) -> list[bool]:
        steps = [step for outline in self._first for step in outline.steps if not step.is_rate]
        return [any(s.sees_records for s in steps if s.number == i) for i in range(len(self._optimizers))]

    def _try_first_calls(self, empty: Any) -> None:
        """Find the steps of so many calls that each optimizer steps, and of one more.

        Raises:
            ValueError: with a note of the module as it would give terms.
        """
        try:
            if has_shards(self._module):
                raise ValueError("automatic_optimization=False with parameters that fully_shard has divided")
            self._make_records(empty)
            # A call that is made twice tells whether it counts.
            before = numbers_of(self._module, self._optimizers)
            self._find_steps(0)
            after = numbers_of(self._module, self._optimizers)
            if changed := [name for name, x in after.items() if x != before.get(name)]:
                raise ValueError(
                    f"training_step changes {changed[0]}, and is called once for each of its steps: let it follow from "
                    "batch_idx, or change it in on_train_batch_end"
                )
            self._begin()
            waiting = set(range(len(self._optimizers)))
            while waiting and len(self._first) < _CALLS:
                self._first.append(self._find_steps(len(self._first)))
                waiting -= {step.number for step in self._first[-1].steps if not step.is_rate}
            if waiting:
                raise MisconfigurationException(
                    f"automatic_optimization=False, and training_step makes no step of optimizer {min(waiting)} in its "
                    f"first {_CALLS} calls: expected self.manual_backward(loss) and a step() of what self.optimizers() "
                    "gives, or automatic_optimization left out and the loss returned"
                )
            self._first.append(self._find_steps(len(self._first)))
            self._are_known = True
        except UNSUITED as error:
            refusal = ValueError(
                f"training_step could not be tried on made-up records ({type(error).__name__}: {error}), and with "
                "automatic_optimization=False these find its steps: expected a training step that takes any records"
            )
            refusal.add_note(self._in_terms())
            raise refusal from error
        except (ValueError, MisconfigurationException) as error:
            error.add_note(self._in_terms())
            raise
        finally:
            self._begin()

    def _make_records(self, empty: Any) -> None:
        some = next(self._module.parameters())

        def made_up(count: int, whole: int) -> Any:
            return probe_lot(Lot(empty, (0, 0)), some.new_zeros(0), count, whole=whole)[0].records

        for whole in WHOLE:
            self._one = made_up(1, whole)
            try:
                self._find_steps(0)
            except UNSUITED:
                if whole == WHOLE[-1]:
                    raise
            else:
                self._many, self._whole = made_up(max(1, round(self._expected_lot)), whole), whole
                return
            finally:
                self._begin()

    def _rehearse(self, empty: Any) -> None:
        if self._options.views is not None:
            raise ValueError(
                "augment with automatic_optimization=False: its steps receive records as they are: make the views in "
                "training_step, or let a module with automatic optimization return the loss"
            )
        if not self._first:
            self._try_first_calls(empty)
        # Several losses are none that could be bought by the name of the one that a training step returns.
        self._made_up = self._one
        lists, tried = GrowingLists(self._module), set[tuple[int, Step]]()
        for number, outline in enumerate(self._first):
            self._number, self._outline = number, outline
            self._check_kinds(number)
            for place, step in enumerate(outline.steps):
                if (place, step) in tried:
                    continue
                # The first step that sees records tells how many of them fit into memory.
                if self._is_private(step) and not any(self._is_private(other) for _, other in tried):
                    term = self._term(place, step, to_end=False)
                    self._set_micro_batch([(self._optimizers[step.number], [term])], empty)
                self._try_step(empty, place, step)
                tried.add((place, step))
        lists.check()
        self._begin()

    def _try_step(self, empty: Any, place: int, step: Step) -> None:
        """Compute the gradient of a step for made-up records, without making it."""
        if not self._is_private(step):
            return self._call_without_records(place, place + 1, dry=True)
        optimizer, term = self._optimizers[step.number], self._term(place, step, to_end=True)
        some = next(self._module.parameters())
        lot, noise, _ = probe_lot(Lot(empty, (0, 0)), some.new_zeros(0, 0), 3, whole=self._whole)
        with frozen_as_before(self._module), training_alone(self._module, optimizer):
            check_exact(ENGINES[self._engine], self._module, term, lot, noise)

    def _in_terms(self) -> str:
        """Return the class of the module as it would give terms, which are left to be filled in."""
        otherwise = False if self._are_known else None
        sees = [True if number in self._seeing else otherwise for number in range(len(self._optimizers))]
        return in_terms(type(self._module).__name__, self._module, self._optimizers, sees)

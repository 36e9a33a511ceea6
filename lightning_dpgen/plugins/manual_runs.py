"""Calls of a training step that steps by itself: its backward passes and steps are noted, and some of them are made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lightning_dpgen.plugins.namespaces import pl
from lightning_dpgen.plugins.record_trace import RecordTrace
from lightning_dpgen.plugins.several_optimizers import parameters_of


@dataclass(frozen=True)
class Step:
    """A step of an optimizer, or of a learning-rate schedule, in a training step.

    Args:
        number: that of the optimizer in `configure_optimizers`, or of the schedule.
        is_rate: whether it is one of a schedule.
        sees_records: whether the losses of the step depend on the batch.
        is_logged_after: whether the training step logs anything behind it.
        args: what a schedule's `step` is handed.
    """

    number: int
    is_rate: bool = False
    sees_records: bool = False
    is_logged_after: bool = False
    args: tuple = ()


class EndOfRun(BaseException):
    """Ends a call of a training step behind the step that it is made for; code that catches errors lets it pass."""


class Run:
    """One call of a training step with manual optimization.

    The losses that an optimizer has behind its last `zero_grad` are those of its next step.

    Args:
        reach: for each backward pass the optimizers that it gives gradients to, as `Outline` has found them.
        steps: those that `Outline` has found.
        count: the number of optimizers.
    """

    def __init__(self, reach: list[set[int]], steps: list[Step], count: int) -> None:
        self.reach, self.steps = reach, steps
        self.only: int | None = None
        self.losses: list[list[Any]] = [[] for _ in range(count)]
        self._passes = self._made = 0

    def backward(self, loss: Tensor, **options: Any) -> None:
        """Note a backward pass."""
        if self._passes == len(self.reach):
            raise other_steps()
        for i in self.reach[self._passes]:
            self.losses[i].append(loss)
        self._passes += 1

    def zero(self, number: int) -> None:
        """Drop the losses of an optimizer."""
        self.losses[number].clear()

    def step(self, number: int) -> None:
        """Note a step of an optimizer."""
        self._pass(number)

    def step_rate(self, number: int, args: tuple) -> None:
        """Note a step of a schedule."""
        self._pass(number, is_rate=True)

    def log(self) -> None:
        """Note that a number is logged."""

    def clip(self, number: int, *args: Any, **kwargs: Any) -> None:
        """Clip the gradients of an optimizer, where they are those of a step without records."""

    def _pass(self, number: int, *, is_rate: bool = False) -> int:
        """Return the place of the next step among those that were found; refuse another one."""
        place = self._made
        known = self.steps[place] if place < len(self.steps) else None
        if known is None or (known.number, known.is_rate) != (number, is_rate):
            raise other_steps()
        self._made += 1
        return place


class Outline(Run):
    """A call with a made-up record that finds the steps of a training step, and makes none.

    Args:
        parameters: those of each optimizer.
        records: the made-up record (1, ...).
        old: the optimizers that have gradients of an earlier call.
        lasting: tensors that the training step may not write into, by name.

    Attributes:
        trace: the mode in which the training step is to be called.
        seeing: the optimizers whose steps, refused ones too, have a loss that depends on the batch.
    """

    def __init__(self, parameters: Sequence[list], records: Any, old: set[int], lasting: Mapping[str, Tensor]) -> None:
        super().__init__([], [], len(parameters))
        self._parameters, self.trace, self._old = parameters, RecordTrace(records, lasting), set(old)
        self.seeing: set[int] = set()

    def backward(self, loss: Tensor, **options: Any) -> None:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"self.manual_backward receives {what}: expected one number, such as the mean over the batch")
        numbers = range(len(self._parameters)) if self.only is None else [self.only]
        trained = [(i, p) for i in numbers for p in self._parameters[i] if p.requires_grad]
        if not trained or not loss.requires_grad:
            raise ValueError("self.manual_backward receives a loss that depends on no parameter that is trained")
        gradients = torch.autograd.grad(loss, [p for _, p in trained], allow_unused=True, retain_graph=True)
        reached = {i for (i, _), gradient in zip(trained, gradients, strict=True) if gradient is not None}
        sees = self.trace.follows(loss)
        for i in reached:
            self.losses[i].append(sees)
        self.reach.append(reached)

    def zero(self, number: int) -> None:
        super().zero(number)
        self._old.discard(number)

    def step(self, number: int) -> None:
        if sees := any(self.losses[number]):
            self.seeing.add(number)
        if number in self._old:
            raise ValueError(
                f"training_step steps optimizer {number} with gradients that an earlier step has left: call its "
                "zero_grad() before the backward passes of each step (gradients of several lots are not added up: "
                "sample_rate says how large a lot is)"
            )
        if not self.losses[number]:
            raise ValueError(
                f"training_step steps optimizer {number} behind no backward pass that reaches its parameters: expected "
                "self.manual_backward(loss) between its zero_grad() and its step() (and not loss.backward())"
            )
        self._old.add(number)
        self.steps.append(Step(number, sees_records=sees))

    def step_rate(self, number: int, args: tuple) -> None:
        self.steps.append(Step(number, is_rate=True, args=args))

    def log(self) -> None:
        self.steps[:] = [replace(step, is_logged_after=True) for step in self.steps]

    @property
    def old(self) -> set[int]:
        """The optimizers that the call leaves gradients in."""
        return self._old | {i for i, losses in enumerate(self.losses) if losses}


class PrivateRun(Run):
    """A call in which each record of a lot is alone, for the loss of one step.

    Args:
        place: that of the step among those that were found.
        to_end: whether the call goes on behind that step, for what is logged there.

    Attributes:
        loss: the loss of the step.
    """

    def __init__(self, outline: Run, place: int, *, to_end: bool) -> None:
        super().__init__(outline.reach, outline.steps, len(outline.losses))
        self._place, self._to_end = place, to_end
        self.loss: Tensor | None = None

    def step(self, number: int) -> None:
        if self._pass(number) == self._place:
            self.loss = sum_of(self.losses[number])
            if not self._to_end:
                raise EndOfRun


class PublicRun(Run):
    """A call with made-up records that makes those of its steps that see no record.

    Args:
        optimizers: of the fit, below Lightning's wrappers.
        schedulers: of the fit.
        first, end: the places of the first step to be made, and of that behind the last.
        clip_gradients: Lightning's own.
        dry: whether gradients are computed, and no step is made.

    Attributes:
        made: the loss of the last step of each optimizer that was made, by the number of the optimizer.
    """

    def __init__(
        self,
        outline: Run,
        optimizers: list,
        schedulers: list,
        first: int,
        end: int,
        clip_gradients: Callable[..., None],
        *,
        dry: bool = False,
    ) -> None:
        super().__init__(outline.reach, outline.steps, len(outline.losses))
        self._optimizers, self._schedulers, self._range = optimizers, schedulers, range(first, end)
        self._clip, self._dry = clip_gradients, dry
        self.made: dict[int, Tensor] = {}
        self.stepping = {step.number for step in outline.steps[first:end] if not step.is_rate}

    def backward(self, loss: Tensor, **options: Any) -> None:
        super().backward(loss)
        numbers = sorted(self.reach[self._passes - 1] & self.stepping)
        parameters = [p for i in numbers for p in parameters_of(self._optimizers[i]) if p.requires_grad]
        if parameters:
            # Written to these alone: the gradients of the others belong to private optimizers.
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True, **options)
            for p, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    p.grad = gradient if p.grad is None else p.grad + gradient

    def zero(self, number: int) -> None:
        super().zero(number)
        if number in self.stepping:
            for p in parameters_of(self._optimizers[number]):
                p.grad = None

    def clip(self, number: int, *args: Any, **kwargs: Any) -> None:
        if number in self.stepping:
            self._clip(self._optimizers[number], *args, **kwargs)

    def step(self, number: int) -> None:
        place = self._pass(number)
        if place in self._range and not self._dry:
            self._optimizers[number].step()
            self.made[number] = sum_of(self.losses[number]).detach()
        self._end_at(place)

    def step_rate(self, number: int, args: tuple) -> None:
        place = self._pass(number, is_rate=True)
        if place in self._range and not self._dry:
            self._schedulers[number].step(*args)
        self._end_at(place)

    def _end_at(self, place: int) -> None:
        # Code behind the last step of a training step belongs to its call.
        if place == self._range[-1] and place + 1 < len(self.steps):
            raise EndOfRun

    def drop(self) -> None:
        """Drop the gradients that the call has left."""
        for number in self.stepping:
            self.zero(number)


def sum_of(losses: Sequence[Tensor]) -> Tensor:
    """Return the sum of losses of one number each, as a scalar."""
    return functools.reduce(torch.add, [loss.reshape(()) for loss in losses])


def other_steps() -> ValueError:
    """Return the refusal of a training step whose steps do not follow from `batch_idx`."""
    return ValueError(
        "training_step makes other steps when it is called again with the same batch_idx: expected steps that follow from "
        "batch_idx alone (it is called once for each of its steps, docs/how_to/train_your_own_network.md)"
    )


class SteppingOptimizer:
    """An optimizer as a training step sees it during a run."""

    def __init__(self, run: Run, number: int, optimizer: Any) -> None:
        self._run, self._number, self._optimizer = run, number, optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def zero_grad(self, *_: Any, **__: Any) -> None:
        self._run.zero(self._number)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else closure()
        self._run.step(self._number)
        return loss

    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        self._run.only = self._number
        yield
        self._run.only = None

    @property
    def number(self) -> int:
        return self._number


class SteppingScheduler:
    """A learning-rate schedule as a training step sees it during a run."""

    def __init__(self, run: Run, number: int, scheduler: Any) -> None:
        self._run, self._number, self._scheduler = run, number, scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def step(self, *args: Any) -> None:
        self._run.step_rate(self._number, args)


@contextmanager
def frozen_as_before(module: pl.LightningModule) -> Iterator[None]:
    """Freeze and thaw parameters after the block as they were before it: a call may end where some are frozen."""
    before = [(p, p.requires_grad) for p in module.parameters()]
    try:
        yield
    finally:
        for p, requires_grad in before:
            p.requires_grad_(requires_grad)

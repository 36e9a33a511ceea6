"""The lines of a fit in the logs of its Trainer: numbers of a lot, which are private, and public ones of its step."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.micro_batches import MicroBatches
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients, shares_of_slack
from lightning_dpgen.optim.private import Gradients, PrivateOptimizer
from lightning_dpgen.plugins.namespaces import pl
from lightning_dpgen.privacy.account import Account

# The beginning of a name says who may see the number: one under ``public/`` is covered by the ledger.
PRIVATE, PUBLIC = "private/", "public/"
# The end of the name of an error bar, behind that of its noisy mean.
ERROR = "_error"
# The most bounds of a term that a line lists; of more it has the smallest and the largest.
_MOST_BOUNDS = 12
_GIB = 2.0**30


class LotLog:
    """The lines of one fit: one for every `log_every_n_steps` steps of its Trainer, for the first step, and for the last.

    It watches the private optimizers, whatever module steps them (`PrivateOptimizer.watcher`). Of each term of the loss a
    line has the mean loss, the mean norm and the share of norms above the bound, which are private, and the bound. Size of
    the lot, steps a second and memory are private, too. Epsilon by the plan and learning rates are public. Where a lot has
    several terms, the name of each stands behind a slash.

    Args:
        trainer: the Trainer of the fit, with its optimizers.
        account, stage: of the fit.
        shift: is added to the number of a step, from 1: -1 where other logs count from 0, as Lightning does.

    Attributes:
        terms: the names of the terms of the next step; a module that gives none has them numbered.
        optimizers: a name for each of several optimizers of the Trainer, at first its number.
    """

    def __init__(self, trainer: pl.Trainer, account: Account, stage: str, *, shift: int = 0) -> None:
        self._trainer, self._account, self._stage, self._shift = trainer, account, stage, shift
        self._curve = account.plan.curve(stage) if account.private else None
        self._watched = [o for o in trainer.optimizers if isinstance(o, PrivateOptimizer)]
        self.terms: Sequence[str] = ()
        self.optimizers = [str(number) for number in range(len(trainer.optimizers))]
        self._of_terms: list[_Term] = []
        # The number of records of this process's part of the lot, where the step says which lot it is of.
        self._size: int | None = None
        # The line that is not written yet, and the number of its step.
        self._line: dict[str, float] = {}
        self._number = 0
        self._before: tuple[float, int] | None = None
        self._slack: float | None = None
        for optimizer in self._watched:
            optimizer.watcher = self

    def end(self) -> None:
        """Write the last line, and let go of the optimizers."""
        self.write()
        for optimizer in self._watched:
            optimizer.watcher = None

    @property
    def _step(self) -> int:
        return self._account.step_of(self._stage)

    @property
    def wanted(self) -> bool:
        """True if the next step has a line; where several optimizers take turns, one step of each has."""
        trainer: Any = self._trainer
        every = trainer.log_every_n_steps
        if not (trainer.loggers and every):
            return False
        step, turns, left = self._step + 1, len(self._watched), self._account.remaining(self._stage)
        if trainer.max_steps >= 0:
            left = min(left, trainer.max_steps - trainer.global_step)
        return step <= turns or left <= turns or step % every < turns

    def begin(self, gradients: Sequence[Gradients], rules: Sequence[ClippingRule]) -> tuple[Gradients, ...]:
        """Begin the line of the next step, and return its gradients, of which those that are yet to be made are watched."""
        self.write()
        self._of_terms = [_Term(rule, self._account.plan.max_rows, self._look) for rule in rules]
        self._size = gradients[0].draw.size if gradients else None
        # Another number of terms than of rules is refused by the step.
        watched = tuple(term.watch(one) for one, term in zip(gradients, self._of_terms, strict=False))
        return watched + tuple(gradients[len(watched) :])

    def _look(self, gradients: PerSampleGradients) -> None:
        """Learn from the first lot with a record how much of a bound the room for rounding takes, at most."""
        # A captured step leaves its factors where they are not seen; the lot before it is not captured.
        if self._slack is None and type(gradients) is PerSampleGradients:
            self._slack = max(shares_of_slack(gradients), default=None)

    def take(self, bounds: Sequence[Sequence[float]]) -> None:
        """Complete the line of a step that was taken; all processes call this.

        Args:
            bounds: of each term.
        """
        names = [f"/{name}" if name else "" for name in self.terms]
        if len(names) != len(self._of_terms):
            names = [f"/{j}" if j else "" for j in range(len(self._of_terms))]
        line = self.numbers_of_lot(names, bounds)
        if self._before is not None:
            before, step = self._before
            line[f"{PRIVATE}steps_per_second"] = (self._step - step) / max(time.monotonic() - before, 1e-9)
        self._before = time.monotonic(), self._step
        line |= {f"{PRIVATE}{name}": value for name, value in _memory(self._trainer.strategy.root_device).items()}
        if self._slack is not None:
            line[f"{PRIVATE}share_of_slack"] = self._slack
        for name, of_term in zip(names, bounds, strict=True):
            line |= _listed(f"{PUBLIC}bound{name}", [bound for bound in of_term if math.isfinite(bound)])
        if self._curve is not None:
            line[f"{PUBLIC}epsilon"] = self._curve.at(self._step)
        rates = [group["lr"] for optimizer in self._trainer.optimizers for group in optimizer.param_groups[:1]]
        for name, rate in zip(self.optimizers, rates, strict=True):
            line[f"{PUBLIC}learning_rate/{name}" if len(rates) > 1 else f"{PUBLIC}learning_rate"] = float(rate)
        self._line, self._number, self._of_terms = line, self._step + self._shift, []

    def add(self, values: Mapping[str, float]) -> None:
        """Add numbers to the line of the step that was taken, if it has one."""
        if self._line:
            self._line |= values

    def add_means(self, sums: Mapping[str, float], count: int) -> None:
        """Add the means of losses over the whole lot, by their names; all processes call this.

        Args:
            sums: over the records of this process, which are so many.
        """
        total, *each = self._account.ranks.sum_(torch.tensor([float(count), *sums.values()], dtype=torch.float64)).tolist()
        if total:
            self.add({f"{PRIVATE}loss/{name}": x / total for name, x in zip(sums, each, strict=True)})

    def add_public(self, losses: Mapping[str, float]) -> None:
        """Add losses that saw no record; without privacy they follow from records all the same."""
        begin = PUBLIC if self._account.private else PRIVATE
        self.add({f"{begin}loss/{name}": value for name, value in losses.items()})

    def write(self) -> None:
        """Write the line of the step that was taken, if it has one and is not written yet."""
        line, self._line = self._line, {}
        if line:
            for logger in self._trainer.loggers:
                logger.log_metrics(line, step=self._number)

    def numbers_of_lot(self, names: Sequence[str], bounds: Sequence[Sequence[float]]) -> dict[str, float]:
        """Return the private numbers of the whole lot, by name."""
        sums: dict[str, tuple[float, int]] = {}
        for name, term, of_term in zip(names, self._of_terms, bounds, strict=True):
            sums |= {f"{what}{name}": pair for what, pair in term.sums(of_term).items()}
        flat = [float(self._size or 0), *(number for pair in sums.values() for number in pair)]
        lot, *totals = self._account.ranks.sum_(torch.tensor(flat, dtype=torch.float64)).tolist()
        means = zip(sums, totals[::2], totals[1::2], strict=True)
        values = {f"{PRIVATE}{name}": total / count for name, total, count in means if count}
        return {f"{PRIVATE}lot_size": lot} | values if self._size is not None else values


def names_of(terms: Sequence[Any]) -> list[str]:
    """Return a name for each of several terms: that of its function, or its number where this has none of its own.

    Example:
        >>> from lightning_dpgen import DataFree
        >>> def generator_loss(): ...
        >>> names_of([DataFree(generator_loss), DataFree(lambda: None)])
        ['generator_loss', '1']
    """
    names: list[str] = []
    for number, term in enumerate(terms):
        loss = term.loss
        while isinstance(loss, functools.partial):
            loss = loss.func
        name = getattr(loss, "__name__", "")
        names.append(name if name.isidentifier() and name not in names else str(number))
    return names


class _Term:
    """The losses of the rows of one term of a lot, and their norms, one column a bound. Private."""

    def __init__(self, rule: ClippingRule, max_rows: int, look: Callable[[PerSampleGradients], None]) -> None:
        self._rule, self._max_rows, self._look = rule, max_rows, look
        self._losses: list[Tensor] = []
        self._norms: list[Sequence[Tensor]] = []

    def watch(self, gradients: Gradients) -> Gradients:
        """Return the gradients so that they are seen when they are made."""
        if isinstance(gradients, EmbeddingGradients):
            then = gradients.then
            return replace(gradients, then=lambda mean: cast(Any, self.watch(then(mean))))
        if isinstance(gradients, MicroBatches):
            gradients.watch = self._each
        else:
            self._see(gradients)
        return gradients

    def _each(self, parts: Iterable[PerSampleGradients]) -> Iterator[PerSampleGradients]:
        # A rule that looks at all norms first makes two passes, and the last one counts.
        self._losses, self._norms = [], []
        for part in parts:
            self._see(part)
            yield part
            # Free this part's gradients before the next part is computed.
            del part

    def _see(self, gradients: PerSampleGradients) -> None:
        if gradients.losses is not None:
            self._losses.append(gradients.losses.detach())
        rows = gradients.of_persons(self._max_rows) if self._rule.by_person else gradients
        self._norms.append(self._rule.scope.norms(rows).columns)
        self._look(gradients)

    def sums(self, bounds: Sequence[float]) -> dict[str, tuple[float, int]]:
        """Return the sum and the number of losses, of finite norms, and of those that are above their bound."""
        found = {}
        if self._losses:
            losses = torch.cat(self._losses).double()
            found["loss"] = float(losses.sum()), len(losses)
        columns = [torch.cat(parts).double() for parts in zip(*self._norms, strict=True)]
        finite = [column[column.isfinite()] for column in columns]
        rows = sum(map(len, finite))
        found["norm"] = sum(float(column.sum()) for column in finite), rows
        if all(map(math.isfinite, bounds)):
            above = sum(int((column > bound).sum()) for column, bound in zip(finite, bounds, strict=False))
            found["share_clipped"] = float(above), rows
        return found


def _listed(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return values by a name and their numbers; of many, the smallest and the largest."""
    if len(values) > _MOST_BOUNDS:
        return {f"{name}/smallest": min(values), f"{name}/largest": max(values)}
    return {f"{name}/{i}" if len(values) > 1 else name: value for i, value in enumerate(values)}


def _memory(device: torch.device) -> dict[str, float]:
    """Return the memory of this process now, and the most that it has had on a GPU, in GiB."""
    found = {}
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:  # no Linux
        pass
    else:
        found["memory_gib"] = pages * os.sysconf("SC_PAGE_SIZE") / _GIB
    if device.type == "cuda":
        found["gpu_memory_gib"] = torch.cuda.max_memory_allocated(device) / _GIB
    return found

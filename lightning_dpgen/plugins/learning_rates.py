"""Schedules of the learning rate in a private fit: they step by private steps or passes, and are tried before the first."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import CyclicLR, LambdaLR, LRScheduler, MultiplicativeLR, ReduceLROnPlateau

from lightning_dpgen.plugins.namespaces import MisconfigurationException, lightning_class, pl
from lightning_dpgen.privacy.account import Account

# Far more than rounding moves a sum of rates, and far less than one of them.
_ROUNDING = 1e-9
_TAKE_FUNCTIONS = (LambdaLR, MultiplicativeLR, CyclicLR)


class LearningRates:
    """The schedulers of an adopted module: each steps when so many lots have been drawn, or passes have been made.

    A pass is as many lots as a record is expected in once. A scheduler with ``interval="epoch"`` counts passes, since all
    steps of a plan are one epoch of the Trainer. One that follows a plateau (`ReduceLROnPlateau`) steps when its monitor, a
    number that the plan buys, has a new value.

    Args:
        module: a module whose fit has begun.
        account: the account of the fit.
        stage: the plan's stage that the steps belong to.
    """

    def __init__(self, module: pl.LightningModule, account: Account, stage: str) -> None:
        self._module, self._account, self._stage = module, account, stage
        # The monitor of each scheduler that follows one, and how many values it has had.
        self._monitors: dict[int, str | None] = {}
        self._seen: dict[int, int] = {}

    def note_monitors(self, configured: Any) -> Any:
        """Return what `configure_optimizers` gave, and keep which number each scheduler of a plateau follows."""
        self._monitors = {id(scheduler): monitor for scheduler, monitor in _monitors_of(configured)}
        return configured

    @property
    def _configs(self) -> list:
        trainer: Any = self._module.trainer
        return trainer.lr_scheduler_configs

    def check(self, bought: Collection[str] = ()) -> None:
        """Try the schedulers of torch over the plan, and put them back: one that fails would end a fit that is paid for.

        A scheduler that leaves the learning rate as it is gets a warning. One with code of the user's (a class, a function,
        the hook `lr_scheduler_step`) is not tried, since that code may count its calls.

        Args:
            bought: the names of the public numbers that the plan buys, which a plateau may be one of.

        Raises:
            MisconfigurationException: for a scheduler that fails within the plan, or follows a number that is not bought.
        """
        self.check_plateaus(bought)
        for config in self._configs:
            scheduler = config.scheduler
            if isinstance(scheduler, ReduceLROnPlateau):
                continue
            steps = self._account.plan.stage(self._stage).count
            due = self._counted(config, steps) // config.frequency
            if not due or (self._is_of_torch(scheduler) and len(_try_rates(scheduler, due)) == 1):
                counted = "steps" if config.interval == "step" else "epochs (1 / sample_rate steps each)"
                warnings.warn(
                    f"{type(scheduler).__name__} with interval={config.interval!r}, frequency={config.frequency}: the "
                    f"plan has {self._counted(config, steps)} whole {counted}, in which the learning rate never changes: "
                    "return a schedule that changes it within them ({'scheduler': ..., 'interval': 'step'} counts steps)",
                    stacklevel=2,
                )

    def check_plateaus(self, bought: Collection[str] = ()) -> None:
        """Refuse a scheduler that follows a number which is not bought; see `check`."""
        for scheduler in [config.scheduler for config in self._configs]:
            monitor = self._monitors.get(id(scheduler))
            if isinstance(scheduler, ReduceLROnPlateau) and monitor not in bought:
                known = f"one of {', '.join(sorted(bought))}, or another that" if bought else "a number that"
                known += " metrics=NoisyMetrics(...) or validation=PrivateValidation(...) buys"
                raise MisconfigurationException(
                    f"a learning rate that follows a plateau (ReduceLROnPlateau, monitor={monitor!r}) would follow private "
                    f"numbers, whose cost is in no plan: take a schedule of steps, or for monitor {known}"
                )

    def step(self) -> None:
        """Step each scheduler that is due after the lot that was drawn last."""
        done = self._account.done[self._stage]
        for config in self._configs:
            if isinstance(config.scheduler, ReduceLROnPlateau):
                continue
            now, before = self._counted(config, done), self._counted(config, done - 1)
            if now // config.frequency > before // config.frequency:
                self._module.lr_scheduler_step(config.scheduler, None)

    def follow(self, values: Mapping[str, float]) -> None:
        """Step each scheduler of a plateau whose number has a new value, every `frequency` such values."""
        for config in self._configs if values else ():
            scheduler = config.scheduler
            if (monitor := self._monitors.get(id(scheduler))) is not None and monitor in values:
                seen = self._seen[id(scheduler)] = self._seen.get(id(scheduler), 0) + 1
                if seen % config.frequency == 0:
                    self._module.lr_scheduler_step(scheduler, torch.tensor(values[monitor]))

    def _is_of_torch(self, scheduler: Any) -> bool:
        hook = type(self._module).lr_scheduler_step
        return hook is lightning_class(self._module).lr_scheduler_step and all(
            type(part).__module__ == lr_scheduler.__name__ and not isinstance(part, _TAKE_FUNCTIONS)
            for part in parts_of(scheduler)
        )

    def _counted(self, config: Any, done: int) -> int:
        """Return the steps, or whole passes, in so many lots."""
        if config.interval == "step":
            return done
        return done // max(1, round(1.0 / self._account.plan.stage(self._stage).access.sample_rate))


def _try_rates(scheduler: LRScheduler, times: int) -> set[tuple[float, ...]]:
    """Return the learning rates that so many steps of a scheduler give, one for each group; it is put back after them."""
    optimizer, state = scheduler.optimizer, copy.deepcopy(scheduler.state_dict())
    groups = [{name: copy.deepcopy(x) for name, x in g.items() if name != "params"} for g in optimizer.param_groups]
    rates, steps = {_rates(optimizer)}, 0
    try:
        with warnings.catch_warnings():
            # It warns of a step before the first one of its optimizer.
            warnings.simplefilter("ignore")
            while steps < times:
                scheduler.step()
                steps += 1
                rates.add(_rates(optimizer))
    except Exception as error:
        raise MisconfigurationException(
            f"{type(scheduler).__name__}: its step {steps + 1} of {times} in this plan fails ({type(error).__name__}: "
            f"{error}): expected a schedule of {times} steps or more, such as total_steps={times} of a OneCycleLR"
        ) from error
    finally:
        scheduler.load_state_dict(state)
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            for name, value in before.items():
                if isinstance(value, Tensor):
                    group[name].copy_(value)
                else:
                    group[name] = value
    return rates


def _monitors_of(configured: Any, outer: str | None = None) -> Iterator[tuple[ReduceLROnPlateau, str | None]]:
    """Yield each scheduler of a plateau in what `configure_optimizers` gave, with its monitor."""
    if isinstance(configured, ReduceLROnPlateau):
        yield configured, outer
    elif isinstance(configured, Mapping):
        monitor = configured.get("monitor", outer)
        for name in ("lr_scheduler", "scheduler"):
            yield from _monitors_of(configured.get(name), monitor)
    elif isinstance(configured, list | tuple):
        for one in configured:
            yield from _monitors_of(one)


def parts_of(scheduler: Any) -> Iterator[Any]:
    """Yield a scheduler, and those that it is made of (SequentialLR, ChainedScheduler)."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from parts_of(part)


def _rates(optimizer: Optimizer) -> tuple[float, ...]:
    return tuple(float(group["lr"]) for group in optimizer.param_groups)

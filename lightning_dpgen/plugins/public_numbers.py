"""Bought numbers in a Trainer: in its metrics, bar and loggers, and the callbacks that follow them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_dpgen.common.plain_text import say_steps
from lightning_dpgen.plugins.lot_log import ERROR
from lightning_dpgen.plugins.namespaces import classes, pl
from lightning_dpgen.privacy.account import Account

# Hooks in which stock callbacks look at their number when an epoch or a validation ends, whether it is new or not.
_AT_ENDS = ("on_validation_end", "on_train_epoch_end")


class PublicNumbers:
    """The numbers that a fit has bought so far, shown by a Trainer.

    An `EarlyStopping` whose monitor is one of them looks at it when it is new, and at no other time. A `ModelCheckpoint`
    that saves by epochs takes each new one for the end of an epoch. Other callbacks find the last value in
    `trainer.callback_metrics`.

    Args:
        trainer: a Trainer at the setup of a fit.
        names: the names of all numbers that the fit buys.
        account, stage: the account of the fit, and the plan's stage of its steps.

    Attributes:
        shown: the last value of each number.
    """

    def __init__(self, trainer: pl.Trainer, names: Iterable[str], account: Account, stage: str) -> None:
        self._trainer, self._account, self._stage = trainer, account, stage
        self.names = frozenset(names)
        self.shown: dict[str, float] = {}
        self._new: set[str] = set()
        callbacks: list[Any] = getattr(trainer, "callbacks", [])
        following = [callback for callback in callbacks if getattr(callback, "monitor", None) in self.names]
        self._stops = [callback for callback in following if isinstance(callback, classes("callbacks.EarlyStopping"))]
        saving = [callback for callback in following if isinstance(callback, classes("callbacks.ModelCheckpoint"))]
        # With the number of new values that each has seen.
        self._saves: dict[Any, int] = {callback: 0 for callback in saving if callback.every_n_epochs}
        # One that saves by steps would fail where a validation ends before the first number is bought.
        self._following = [*self._stops, *saving]
        for callback in self._following:
            for hook in _AT_ENDS:
                vars(callback)[hook] = _nothing

    def end(self) -> None:
        """Let callbacks look at their numbers as ever."""
        for callback in self._following:
            for hook in _AT_ENDS:
                vars(callback).pop(hook, None)

    def show(self, values: Mapping[str, float]) -> None:
        """Show new values, after the step that was made last."""
        self.shown |= values
        self._new |= values.keys()
        self.show_again()
        # Lightning counts steps from 0.
        step = self._account.step_of(self._stage) - 1
        for logger in self._trainer.loggers:
            logger.log_metrics(dict(values), step=step)

    def show_again(self) -> None:
        """Put the last values where callbacks and the bar read them: a Trainer clears these when a fit begins."""
        self._trainer.callback_metrics.update({name: torch.tensor(value) for name, value in self.shown.items()})
        self._trainer.progress_bar_metrics.update(
            {name: value for name, value in self.shown.items() if not name.endswith(ERROR)}
        )

    def tell_callbacks(self, module: pl.LightningModule) -> None:
        """Let the callbacks that follow a new value look at it; a Trainer is between two batches."""
        new, self._new = self._new, set()
        for callback in self._stops:
            if callback.monitor in new:
                callback._run_early_stopping_check(self._trainer)
                if self._trainer.should_stop and (rest := self._account.remaining(self._stage)):
                    self._say_what_it_costs(callback, rest)
        for saves in self._saves:
            if saves.monitor in new:
                self._saves[saves] += 1
                if self._saves[saves] % saves._every_n_epochs == 0:
                    self._save(saves)

    def _say_what_it_costs(self, callback: Any, rest: int) -> None:
        plan = self._account.plan
        stage = plan.stage(self._stage)
        charged = (
            "the plan is charged up to the next of its stops, by private.release(...)"
            if plan.stops
            else "the plan is charged whole, since a stop that follows from what was released lowers no epsilon (but at "
            "times that stops=[...] names); release_weights(model, private.account, ...) releases the weights"
        )
        rank_zero_warn(
            f"{type(callback).__name__}(monitor={callback.monitor!r}) ends the fit after {stage.count - rest:,} of "
            f"{say_steps(stage.count, stage.access.sample_rate)}: {charged}"
        )

    def _save(self, callback: Any) -> None:
        if not callback._should_skip_saving_checkpoint(self._trainer):
            candidates = callback._monitor_candidates(self._trainer)
            callback._save_topk_checkpoint(self._trainer, candidates)
            callback._save_last_checkpoint(self._trainer, candidates)


def _nothing(*_: Any) -> None:
    """Stand in for a hook that would look at a number again."""

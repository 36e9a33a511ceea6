"""The moments accountant as a callback: it holds the plan, refuses what would break it, compares it with the ledger."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lightning_dpgen.common.plain_text import say_steps
from lightning_dpgen.gradients.shards import is_sharded
from lightning_dpgen.optim.averaging import ParameterAverage
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.plugins.automatic_module import AutomaticModule, StepOptions, check_optimizers, check_overrides
from lightning_dpgen.plugins.lot_log import LotLog
from lightning_dpgen.plugins.namespaces import Callback, MisconfigurationException, pl, rank_zero_info
from lightning_dpgen.plugins.private_logs import PrivateLogs, changes_of_logs, close_logs
from lightning_dpgen.plugins.purchases import Purchases
from lightning_dpgen.plugins.settings_log import log_settings
from lightning_dpgen.plugins.trainer_checks import (
    check_sharded,
    end_leniently,
    follow_leniently,
    shards_modules,
    validate_trainer,
)
from lightning_dpgen.plugins.training_ledger import go_on_from, record_of
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError, NotInstalled, RanksDiffer
from lightning_dpgen.privacy.plan import TRAINING, Curve
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.sampling.lots import LotLoader

# The keys of a checkpoint under which the spending stands, the average of parameters, and the last bounds of optimizers,
# which a checkpoint of shards keeps nowhere else.
LEDGER, AVERAGE, BOUNDS = "lightning_dpgen", "lightning_dpgen_average", "lightning_dpgen_bounds"
# And what was bought of records beside steps.
PURCHASES = "lightning_dpgen_purchases"
# The hooks of a module that are extended during a fit.
_HOOKS = ("on_save_checkpoint", "on_load_checkpoint")
# Types of whole numbers as wide as those of a tensor.
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class MomentsAccountant(Callback):
    """The callback that watches over a private fit.

    At setup it refuses what would silently break privacy. It adopts a module with automatic optimization
    (`AutomaticModule`): its `training_step` gives its loss as ever, its optimizer is a `PrivateOptimizer` (or each of
    several whose terms see records), and lots come from `poisson_loader`. Before the first step a rehearsal shows that
    noise of the planned size reaches each parameter. During the fit, `epsilon_at` gives epsilon by the plan. After the last
    planned step it stops the Trainer and compares ledger and plan. Every checkpoint of the Trainer, weights alone or not,
    records what was spent. A fit goes on from one only with the ledger that it belongs to (`Account.resume`), so an older
    checkpoint hides no later spending.

    On several devices (strategy ``ddp``) each runs the same script. Rank 0 writes the ledger and makes the split, each rank
    takes its part of every lot, and the sum of their noisy parts is the gradient (`Account.join`). DDP's own reducer is
    off. Parameters and torch's generators begin alike, and after each batch of lots parameters are compared. With strategy
    ``ModelParallelStrategy(data_parallel_size=<ranks>, tensor_parallel_size=1)`` and a `configure_model` that calls
    `fully_shard`, each rank keeps a shard of every parameter, of its gradient and of the optimizer's state.

    Args:
        account: the account of the run, shared with module and datamodule.
        engine: the gradients of an adopted module; ``func`` takes any network, a record at a time.
        stage: the plan's stage that the steps belong to, as for the optimizer and the loader.
        options: how the gradients of an adopted module are computed, and what is kept of its steps.
        share_private_logs: let loggers of services (Weights & Biases, MLflow) have numbers under ``private/``, too, which
            are exact functions of a few records, and bars and tables beside them show these (`PrivateLogs`). Loggers that
            write files (CSV, TensorBoard) get them in any case, in files that are their owner's alone.
        say: is told one line about steps in slots, if they are captured or why not; None logs it as Lightning does.

    Raises:
        ValueError: if the plan has no such stage.
        MisconfigurationException: at setup, naming the setting and what to do.
        PlanMismatch: at the end of a complete fit, if the accesses are not those that were promised.

    Attributes:
        complete: True once every planned access was made.
        average: the average of the adopted module's parameters, once a fit has begun; None without `StepOptions.averaging`.
    """

    settles = True
    # The numbers that a fit buys beside its steps; `PrivateTraining` sets them.
    _purchases: Purchases | None = None

    def __init__(
        self,
        account: Account,
        engine: str = "ghost",
        *,
        stage: str = TRAINING,
        options: StepOptions | None = None,
        share_private_logs: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.account, self._engine, self.stage = account, engine, account.plan.stage(stage).name
        self._options, self._share_logs = options or StepOptions(), share_private_logs
        self.average: ParameterAverage | None = None
        self.complete, self._say = False, say or rank_zero_info
        self._adopted: AutomaticModule | None = None
        self._alike = False
        self._log: LotLog | None = None
        self._without_metric: list[Any] = []
        self._logs: PrivateLogs | None = None
        self._logs_changed: list[int] = []
        self._filters: warnings.catch_warnings | None = None
        # The words in which captured steps were described.
        self._described: str | None = None
        # The optimizers of sharded parameters.
        self._sharded: list[PrivateOptimizer] = []
        # Callbacks of the Trainer that are strict outside of the fit.
        self._lenient: list[Any] = []

    def setup(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            steps_itself = self._kind_of(module) is None
            validate_trainer(trainer, self.account, self.stage, steps_itself=steps_itself, bought=self._bought)
            self._check_options(trainer)
            try:
                self.account.join(Ranks.join())
            except (LedgerError, NotInstalled, RanksDiffer) as error:
                raise MisconfigurationException(str(error)) from None
        if trainer.is_global_zero:
            close_logs(trainer.loggers)
        self._logs = PrivateLogs(trainer, share=self._share_logs, bought=self._bought)
        if stage == "fit":
            self._lenient = follow_leniently(trainer, self._bought)
            self._begin_fit(trainer, module)

    @property
    def _bought(self) -> Collection[str]:
        """The names of the public numbers that the plan buys."""
        return () if self._purchases is None else self._purchases.names

    def _begin_fit(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if (kind := self._kind_of(module)) is not None:
            self._adopted = kind(
                module, self.account, self.stage, self._engine, self._options, lambda: self.after_last_step(module),
                self._purchases,
            )  # fmt: skip
            self.average = self._adopted.average
            # Lightning sees manual steps, and would advise a ModelCheckpoint to keep the weights from before a step. A fit
            # goes on from those behind it, which the ledger counts.
            self._filters = warnings.catch_warnings()
            self._filters.__enter__()
            warnings.filterwarnings("ignore", message="Using ModelCheckpoint with manual optimization")
            # The number that a learning rate follows is looked up where it is configured.
            warnings.filterwarnings("ignore", message="The lr scheduler dict contains the key")
            # The first and the last step have a line.
            warnings.filterwarnings("ignore", message="The number of training batches .* smaller than the logging interval")
        # Hooks of the module and not of this callback, since Lightning leaves callbacks out of weights-only checkpoints.
        for hook, more in zip(_HOOKS, (self._record, self._go_on), strict=True):
            _extend(module, hook, more)
        if shards_modules(trainer):
            strategy: Any = trainer.strategy
            strategy.load_checkpoint = functools.partial(self._load, strategy.load_checkpoint)

    def _kind_of(self, module: pl.LightningModule) -> type[AutomaticModule] | None:
        """Return how a module is adopted; None for one whose steps are its own."""
        return AutomaticModule if module.automatic_optimization else None

    def _load(self, load: Callable[..., dict[str, Any]], *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Load a checkpoint of shards, whose optimizers need a state before."""
        for optimizer in self._sharded:
            optimizer.begin_state()
        return load(*args, **kwargs)

    def _check_options(self, trainer: pl.Trainer) -> None:
        if not shards_modules(trainer):
            return
        if self._engine != "ghost" or self._options.averaging or self._options.micro_batch == "auto":
            raise MisconfigurationException(
                f"engine={self._engine!r}, averaging={self._options.averaging:g}, "
                f"micro_batch={self._options.micro_batch!r} with ModelParallelStrategy: expected engine='ghost', "
                "averaging=0 and micro_batch a number or None, since no rank has whole parameters"
            )
        if self._purchases is not None and self._purchases.validates:
            raise MisconfigurationException(
                "validation=PrivateValidation(...) with ModelParallelStrategy: expected None, since no rank has whole "
                "parameters; metrics=NoisyMetrics(...) buys numbers of the training records"
            )

    def after_last_step(self, module: pl.LightningModule) -> None:
        """Do what belongs between the last planned step of an adopted module and all that follows it."""

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        self._give_back(trainer, module)

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        # Lightning calls no teardown then.
        self._give_back(trainer, module)

    def _give_back(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._adopted is not None:
            # Lightning looks for the steps of a module with automatic optimization there.
            loop = trainer.fit_loop.epoch_loop
            steps = loop.manual_optimization.optim_step_progress.total.completed
            loop.automatic_optimization.optim_progress.optimizer.step.total.completed = steps
        if self._filters is not None:
            self._filters.__exit__(None, None, None)
            self._filters = None
        if self._log is not None:
            self._log.end()
            self._log = None
        end_leniently(trainer, self._lenient)
        self._lenient = []
        for logger in self._without_metric:
            logger._default_hp_metric = True
        self._without_metric = []
        if self._logs is not None:
            self._logs.end()
            self._logs = None
        if trainer.is_global_zero:
            close_logs(trainer.loggers, ended=True)
        vars(trainer.strategy).pop("load_checkpoint", None)
        self._restore(module)

    def _restore(self, module: pl.LightningModule) -> None:
        """Give the module back as it was before the fit, free to be copied, saved, evaluated and fitted again."""
        if self._adopted is not None:
            self._adopted.restore()
            self._adopted = None
        for hook in _HOOKS:
            vars(module).pop(hook, None)

    def on_save_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        # After the fit, when the module has its own hooks again.
        self._record(checkpoint)

    def _record(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[LEDGER] = record_of(self.account)
        if self.average is not None:
            checkpoint[AVERAGE] = self.average.state_dict()
        if self._purchases is not None:
            checkpoint[PURCHASES] = self._purchases.state_dict()
        if self._sharded:
            checkpoint[BOUNDS] = [optimizer.last_bounds for optimizer in self._sharded]

    def _go_on(self, checkpoint: dict[str, Any]) -> None:
        try:
            go_on_from(self.account, checkpoint.get(LEDGER))
        except LedgerError as error:
            raise MisconfigurationException(str(error)) from None
        self._warn_of_lost_steps()
        if self._purchases is not None and PURCHASES in checkpoint:
            self._purchases.load_state_dict(checkpoint[PURCHASES])
        if self.average is not None:
            if AVERAGE not in checkpoint:
                raise MisconfigurationException(
                    f"averaging={self._options.averaging:g}: the checkpoint holds no average; go on with averaging=0, as "
                    "it began"
                )
            self.average.load_state_dict(checkpoint[AVERAGE])
        for optimizer, bounds in zip(self._sharded, checkpoint.get(BOUNDS, ()), strict=False):
            optimizer.last_bounds = bounds
        # Steps are counted by the ledger: the loops start anew, on what is left.
        checkpoint.pop("loops", None)

    def _warn_of_lost_steps(self) -> None:
        if self._adopted is None or not self.account.ranks.leads:
            return
        if lost := self.account.ledger.count(self.stage) - self.account.step_of(self.stage):
            rate = self.account.plan.stage(self.stage).access.sample_rate
            warnings.warn(
                f"{say_steps(lost, rate)} after this checkpoint are paid for, and what they made is lost: the fit makes "
                f"{say_steps(self.account.remaining(self.stage), rate)}, which are left, and a schedule of the learning "
                f"rate stops {lost:,} steps before its end",
                stacklevel=2,
            )

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if isinstance(trainer.model, DistributedDataParallel):
            # Its reducer would average gradients that are neither clipped nor noised.
            trainer.model.require_backward_grad_sync = trainer.model.require_forward_param_sync = False
        check_optimizers(module, trainer.optimizers, self.account, self.stage, adopted=self._adopted is not None)
        if self._adopted is not None:
            check_overrides(module)
            self._adopted.check_schedules()
        check_sharded(trainer, module)
        private = [optimizer for optimizer in trainer.optimizers if isinstance(optimizer, PrivateOptimizer)]
        for optimizer in private:
            optimizer.rehearse()
        if shards_modules(trainer):
            self._sharded = private
        self._without_metric = log_settings(trainer, module, self.account, self.stage)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not isinstance(trainer.train_dataloader, LotLoader):
            kind = type(trainer.train_dataloader).__name__
            raise MisconfigurationException(
                f"the training data are a {kind}, whose sampling is not the plan's: pass the records or the data set to "
                "poisson_loader(records, account), and the Trainer what it gives"
            )
        trainer.train_dataloader.watched = True
        # Lightning counts steps from 0, and so do the logs of an adopted module.
        self._log = LotLog(trainer, self.account, self.stage, shift=0 if self._adopted is None else -1)
        # The Trainer has written the hyperparameters since.
        self._close_changed_logs(trainer)
        if self._adopted is not None:
            # A fit that goes on counts from where it was.
            steps = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress.total
            steps.ready = steps.completed = self._count_logs(trainer)
            self._adopted.log = self._log
            self._adopted.rehearse(trainer.train_dataloader.empty)

    def epsilon_at(self, step: int) -> float | None:
        """Return epsilon by the plan after `step` training steps, rounded up to a knot; None without privacy."""
        return self._curve.at(step) if self.account.private else None

    @cached_property
    def _curve(self) -> Curve:
        return self.account.plan.curve(self.stage)

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if self.account.ranks.size > 1 and not self._alike:
            # Each rank's own work until here (such as pre-training) may differ in its last bits.
            _broadcast_start(module, self.account.ranks)
            self._alike = True

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if self.account.ranks.size > 1:
            _check_ranks_agree(module, self.account.ranks)
        if self._log is not None and trainer.loggers:
            self._log.write()
            self._close_changed_logs(trainer)
        if self._adopted is not None:
            # Lightning adds the one of this batch.
            self._count_logs(trainer, -1)
            self._adopted.tell_callbacks()
        self._describe_steps(trainer)
        if self.account.plan.private and not self.account.remaining(self.stage):
            self.complete = True
            trainer.should_stop = True

    def _describe_steps(self, trainer: pl.Trainer) -> None:
        """Say once how steps in slots are computed, and if they are captured or why not."""
        for optimizer in trainer.optimizers:
            if isinstance(optimizer, PrivateOptimizer) and (words := optimizer.captured) not in (None, self._described):
                self._described = words
                self._say(f"Private steps in {trainer.precision}, lots in {optimizer.slots} slots: {words}")

    def _close_changed_logs(self, trainer: pl.Trainer) -> None:
        # A process that is killed closes nothing at its end.
        if self.account.ranks.leads and (changes := changes_of_logs(trainer.loggers)) != self._logs_changed:
            close_logs(trainer.loggers)
            self._logs_changed = changes

    def _count_logs(self, trainer: pl.Trainer, shift: int = 0) -> int:
        """Let logs of other callbacks (LearningRateMonitor) count the plan's steps; return how many are made."""
        done = self.account.step_of(self.stage)
        trainer.fit_loop.epoch_loop._batches_that_stepped = done + shift
        return done

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        # One pass over the loader is the whole plan, with or without noise.
        trainer.should_stop = True

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        # Further accesses of the plan are made after the fit, by the program that planned them.
        if (self.complete and self.account.finished) or not self.account.plan.private:
            self.account.verify_complete()
        self.account.leave_ranks()


def _extend(module: pl.LightningModule, hook: str, more: Callable[[dict[str, Any]], None]) -> None:
    """Make `module` call `more` after the hook of its class."""
    of_class = getattr(type(module), hook)

    def both(checkpoint: dict[str, Any]) -> None:
        of_class(module, checkpoint)
        more(checkpoint)

    setattr(module, hook, both)


def _broadcast_start(module: nn.Module, ranks: Ranks) -> None:
    """Give all ranks the parameters and buffers of rank 0, and the state of its torch generators.

    torch's own generators are public here; private draws come from the account's stream.
    """
    ranks.broadcast_([tensor.data for tensor in _in_all(module)])
    torch.set_rng_state(ranks.broadcast_object(torch.get_rng_state()))
    device = next(module.parameters()).device
    if device.type == "cuda":
        torch.cuda.set_rng_state(ranks.broadcast_object(torch.cuda.get_rng_state(device)), device)


def _check_ranks_agree(module: nn.Module, ranks: Ranks) -> None:
    """Compare the sizes of all noise, and parameters and buffers, by the sums of their bits and of the squares of these.

    Raises:
        RanksDiffer: naming a rank that differs from rank 0.
    """
    ranks.compare()
    ranks.assert_equal("network after equal steps", [_digest(tensor) for tensor in _in_all(module)])


def _in_all(module: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers that each rank has: each number of a sharded one is on one rank alone."""
    return [tensor for tensor in (*module.parameters(), *module.buffers()) if not is_sharded(tensor)]


def _digest(tensor: Tensor) -> tuple[int, int]:
    bits = tensor.detach().contiguous().view(_WHOLE[tensor.element_size()]).to(torch.int64)
    return int(bits.sum()), int((bits * bits).sum())

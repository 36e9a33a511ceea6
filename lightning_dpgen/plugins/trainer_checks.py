"""Refusals of settings that would silently break a private fit, before anything is spent."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Collection
from typing import Any

from lightning_dpgen.common.nearest_word import nearest
from lightning_dpgen.gradients.layers import checked_layers
from lightning_dpgen.gradients.shards import check_policies, has_shards
from lightning_dpgen.plugins.lot_log import PRIVATE, PUBLIC
from lightning_dpgen.plugins.namespaces import MisconfigurationException, classes, pl
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.plan import TRAINING

# The precisions of a Trainer in which parameters, gradients and noise are whole.
PRECISIONS = ("32-true", "64-true", "bf16-mixed")
# A ModelCheckpoint's own reading of the names in a template.
_IN_BRACES = re.compile(r"\{(.*?)[:\}]")


def validate_trainer(
    trainer: pl.Trainer,
    account: Account,
    stage: str = TRAINING,
    *,
    steps_itself: bool | None = None,
    bought: Collection[str] = (),
) -> None:
    """Refuse a fit that would not keep the promise of the account's plan.

    Args:
        trainer: a Trainer that is about to fit.
        account: the account of the part that calls this.
        stage: the plan's stage that the steps belong to.
        steps_itself: whether the module makes its steps; None for one with manual optimization.
        bought: the names of the public numbers that the plan buys.

    Raises:
        MisconfigurationException: naming the setting and what to do.
    """
    module = trainer.lightning_module
    steps_itself = not module.automatic_optimization if steps_itself is None else steps_itself
    # Lightning sets these outside of its class, where type checkers do not see them.
    trainer_: Any = trainer
    callbacks: list[pl.Callback] = trainer_.callbacks
    parts = [module, trainer_.datamodule, *callbacks]
    if any(getattr(part, "account", account) is not account for part in parts):
        raise MisconfigurationException(
            "module, datamodule and MomentsAccountant have different accounts: pass one Account to all of them"
        )
    if not any(getattr(callback, "settles", False) for callback in callbacks):
        raise MisconfigurationException(
            "a private fit needs Trainer(callbacks=[MomentsAccountant(account), ...]): it stops at the last planned step "
            "and compares ledger and plan"
        )
    if not account.remaining(stage):
        raise MisconfigurationException(
            "all training steps of this account's plan have been made: without a fit, load a checkpoint that was saved "
            "after the last step, and release it; or make a new plan and account (what was spent adds up)"
        )
    try:
        checked_layers(module)
    except ValueError as error:
        raise MisconfigurationException(str(error)) from None
    if trainer.precision not in PRECISIONS:
        raise MisconfigurationException(
            f"precision={trainer.precision!r}: expected one of {', '.join(PRECISIONS)}, in which parameters stay in "
            "full precision ('16-mixed' scales the loss, so gradients would be clipped at the wrong size)"
        )
    if trainer.accumulate_grad_batches != 1:
        raise MisconfigurationException(
            f"accumulate_grad_batches={trainer.accumulate_grad_batches} joins several lots into one step, "
            "which is not what the plan promises: ask for larger lots instead"
        )
    if trainer.gradient_clip_val:
        raise MisconfigurationException(
            f"gradient_clip_val={trainer.gradient_clip_val} clips sums and not records: choose a clipping rule instead"
        )
    if (trainer.min_epochs or 0) > 1 or trainer.min_steps:
        raise MisconfigurationException(
            f"min_epochs={trainer.min_epochs}, min_steps={trainer.min_steps}: a fit ends with the last planned step; leave "
            "both out"
        )
    if trainer.max_steps != -1 and not trainer_.fast_dev_run and steps_itself:
        raise MisconfigurationException(
            f"max_steps={trainer.max_steps}: of a module that steps itself a Trainer counts blocks of lots and not steps, "
            "and a fit ends with the last planned step: leave it out, and plan as many steps as you want"
        )
    if trainer_.fast_dev_run and account.ledger.path is not None:
        raise MisconfigurationException(
            f"fast_dev_run={trainer_.fast_dev_run!r} with a ledger in {account.ledger.path}: its steps would be paid for, "
            "and the fit that follows would have to go on from a checkpoint that it does not write: try the module without "
            "ledger=, which keeps it in memory"
        )
    for callback in callbacks:
        _check_callback(callback, bought)
    if trainer_.overfit_batches:
        raise MisconfigurationException(
            "overfit_batches replaces Poisson sampling, on which the accounting rests: leave it out"
        )
    _check_strategy(trainer.strategy)


def _check_callback(callback: pl.Callback, bought: Collection[str]) -> None:
    """Refuse a callback that looks at records, or whose work a private fit does not allow."""
    name = type(callback).__name__
    monitor = getattr(callback, "monitor", None)
    if monitor is not None and not str(monitor).startswith(PUBLIC):
        raise MisconfigurationException(
            f"{name}(monitor={monitor!r}) selects by a number computed from records, whose cost is in no plan: leave it "
            "out, buy a noisy mean (metrics= or validation= of a PrivateTraining) and follow that, as in monitor="
            f"{PUBLIC + str(monitor).removeprefix(PRIVATE)!r}, or log what is computed from synthetic or public data under "
            "public/"
        )
    if monitor is not None and monitor not in bought and (near := nearest(monitor, bought)) is not None:
        raise MisconfigurationException(
            f"{name}(monitor={monitor!r}): the plan buys no number of this name, but {near!r}: follow that, or log one of "
            "your own, of public data, by a name that is less alike"
        )
    for setting in ("filename", "CHECKPOINT_NAME_LAST") if isinstance(callback, classes("callbacks.Checkpoint")) else ():
        template = getattr(callback, setting, None) or ""
        names = _IN_BRACES.findall(template)
        if private := [x for x in names if x not in ("epoch", "step") and not x.startswith(PUBLIC)]:
            raise MisconfigurationException(
                f"{name}({setting}={template!r}) writes {private[0]!r}, a number computed from records, into the name of a "
                "file: expected {epoch}, {step} or numbers under public/"
            )
    for kind in type(callback).__mro__:
        if kind.__name__ in _REFUSED_CALLBACKS:
            raise MisconfigurationException(f"{name} {_REFUSED_CALLBACKS[kind.__name__]}")


_DISCARDED = "makes steps that are discarded, and whose cost is in no plan: "
_COPIES = (
    "copies the module with its account: leave it out, and give averaging=0.999 to PrivateTraining, which keeps a moving "
    "average of the parameters and releases it"
)
# Callbacks of Lightning, by the names of their classes, since versions have others.
_REFUSED_CALLBACKS = {
    "LearningRateFinder": f"(lr_find of a Tuner) {_DISCARDED}choose by public or simulated records",
    "BatchSizeFinder": f"(scale_batch_size of a Tuner) {_DISCARDED}sample_rate is the size of lots, and "
    "micro_batch='auto' of PrivateTraining finds what fits into memory",
    "GradientAccumulationScheduler": "joins several lots into one step, which is not what the plan promises: leave it "
    "out, and ask for larger lots by sample_rate",
    "SpikeDetection": "stops a fit by the losses of records, whose cost is in no plan: leave it out; clipping bounds what "
    "a step can do",
    "ModelPruning": "changes parameters after the last private step, so they would not be what is released: leave it out, "
    "and prune the network of the release",
    "BaseFinetuning": "freezes parameters and thaws them during a fit, whose plan is for the same ones in each step: leave "
    "it out, freeze those that stay (requires_grad_(False)), and say public='frozen'",
    "StochasticWeightAveraging": _COPIES,
    "WeightAveraging": _COPIES,
}


def _check_strategy(strategy: Any) -> None:
    """Refuse a strategy in which no device sees the whole gradient of a record."""
    name = type(strategy).__name__
    if type(strategy) in classes("strategies.SingleDeviceStrategy"):
        return
    if type(strategy) in classes("strategies.ModelParallelStrategy"):
        if strategy._tensor_parallel_size != 1:
            raise MisconfigurationException(
                f"ModelParallelStrategy of {strategy._data_parallel_size} x {strategy._tensor_parallel_size} ranks (data x "
                "tensor parallel): a layer must be computed whole by the rank that has the record: expected "
                "data_parallel_size=<all ranks>, tensor_parallel_size=1"
            )
        return
    # DeepSpeed's is a subclass, and so is that of Ray Train, which differs in where its processes come from.
    if type(strategy) not in (*classes("strategies.DDPStrategy"), _ray_strategy()):
        raise MisconfigurationException(
            f"strategy={name}: expected 'auto', 'ddp' or one of its forms, RayDDPStrategy, or ModelParallelStrategy with "
            "fully_shard, in which a device clips whole gradients of its records (FSDP1, DeepSpeed and tensor parallelism "
            "step by themselves, or divide layers, so no device sees the norm of a record's gradient)"
        )
    if strategy._start_method != "popen":
        raise MisconfigurationException(
            f"strategy with start_method={strategy._start_method!r} (ddp_spawn, ddp_fork, ddp_notebook): its processes "
            "would take copies of the account along, which is spent once: expected 'ddp', which starts the script anew"
        )
    if strategy._ddp_comm_hook is not None or strategy._model_averaging_period is not None:
        raise MisconfigurationException(
            "DDPStrategy(ddp_comm_hook=..., model_averaging_period=...): gradients are summed with their noise by the "
            "private optimizer, and DDP's own reduction is off: leave these out"
        )


def _ray_strategy() -> type | None:
    """Return the class of Ray Train's strategy; None where a program has not imported it, and so cannot have one."""
    return getattr(sys.modules.get("ray.train.lightning"), "RayDDPStrategy", None)


def shards_modules(trainer: pl.Trainer) -> bool:
    """Return True if the strategy of a Trainer leaves a part of each parameter with each rank."""
    return isinstance(trainer.strategy, classes("strategies.ModelParallelStrategy"))


def follow_leniently(trainer: pl.Trainer, bought: Collection[str]) -> list[Any]:
    """Return each `EarlyStopping` that would end a fit with an error where the module does not log its number.

    That error comes at the end, when all steps are paid for, so `end_leniently` warns in its place.

    Args:
        bought: the names of the public numbers that the plan buys.
    """
    trainer_: Any = trainer
    lenient = [
        callback
        for callback in trainer_.callbacks
        if isinstance(callback, classes("callbacks.EarlyStopping")) and callback.monitor not in bought and callback.strict
    ]
    for callback in lenient:
        callback.strict = False
    return lenient


def end_leniently(trainer: pl.Trainer, lenient: list[Any]) -> None:
    """Give back what `follow_leniently` returned, and warn of a number that nothing has logged."""
    for callback in lenient:
        callback.strict = True
        if callback.monitor not in trainer.callback_metrics:
            warnings.warn(
                f"{type(callback).__name__}(monitor={callback.monitor!r}) has stopped nothing: the plan buys no number of "
                "this name, and nothing has logged one of public data",
                stacklevel=2,
            )


def check_sharded(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Refuse a network that is sharded in a way that is not covered, or not sharded where its strategy says so.

    Raises:
        MisconfigurationException: saying what to change.
    """
    by_strategy = shards_modules(trainer)
    if by_strategy != has_shards(module):
        raise MisconfigurationException(
            "ModelParallelStrategy without a sharded layer: call fully_shard on layers and on the network in "
            "configure_model, or leave the strategy out"
            if by_strategy
            else f"fully_shard with strategy={type(trainer.strategy).__name__}: expected ModelParallelStrategy("
            "data_parallel_size=<all ranks>, tensor_parallel_size=1)"
        )
    try:
        check_policies(module)
    except ValueError as error:
        raise MisconfigurationException(str(error)) from None

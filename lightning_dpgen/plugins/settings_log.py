"""The beginning of the logs of a private fit: its settings, and the arrangement of its numbers in TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.plugins.lot_log import PRIVATE, PUBLIC
from lightning_dpgen.plugins.namespaces import classes, pl
from lightning_dpgen.privacy.account import Account

# The numbers that TensorBoard shows beside the settings of a run.
_SHOWN = (f"{PUBLIC}epsilon", f"{PUBLIC}bound")
# The charts of its page of custom scalars, each with patterns of names.
_CHARTS = {
    "training": {
        "loss": ["Multiline", [f"(?:{PRIVATE}|{PUBLIC})loss.*"]],
        "norms and bounds": ["Multiline", [f"{PRIVATE}norm.*", f"{PUBLIC}bound.*"]],
        "share clipped": ["Multiline", [f"{PRIVATE}share_clipped.*"]],
        "learning rate": ["Multiline", [f"{PUBLIC}learning_rate.*"]],
    },
    "budget": {"epsilon": ["Multiline", [f"{PUBLIC}epsilon"]]},
    "machine": {
        "steps per second": ["Multiline", [f"{PRIVATE}steps_per_second"]],
        "memory, GiB": ["Multiline", [f"{PRIVATE}(?:gpu_)?memory_gib"]],
    },
}


def log_settings(trainer: pl.Trainer, module: pl.LightningModule, account: Account, stage: str) -> list[Any]:
    """Log the settings of a fit, all of them public, before the Trainer logs the hyperparameters of its module.

    TensorBoard keeps the first hyperparameters of a run, so it gets those of the module with them; and epsilon and the
    bound in place of Lightning's ``hp_metric``.

    Returns:
        The loggers that leave ``hp_metric`` out from now on.
    """
    settings, changed = _settings(trainer, account, stage), []
    for logger in trainer.loggers if trainer.is_global_zero else ():
        if not isinstance(logger, classes("loggers.TensorBoardLogger")):
            logger.log_hyperparams(settings)
            continue
        # It is installed where a logger of its kind is made.
        from torch.utils.tensorboard.summary import custom_scalars, hparams

        if logger._default_hp_metric:
            logger._default_hp_metric = False
            changed.append(logger)
        logger.hparams.update(settings)
        given = dict(logger.hparams) | dict(module.hparams_initial if module._log_hyperparams else {})
        for part in (*hparams(dict(_plain(given)), dict.fromkeys(_SHOWN, 0.0)), custom_scalars(_CHARTS)):
            logger.experiment._get_file_writer().add_summary(part)
    return changed


def _settings(trainer: pl.Trainer, account: Account, stage: str) -> dict[str, Any]:
    plan, planned = account.plan, account.plan.stage(stage)
    private = (optimizer for optimizer in trainer.optimizers if isinstance(optimizer, PrivateOptimizer))
    values = {
        "epsilon": plan.target_epsilon,
        "delta": plan.delta,
        "n": plan.n,
        "max_rows": plan.max_rows,
        "sample_rate": planned.access.sample_rate,
        "steps": planned.count,
        "noise_multiplier": planned.access.multiplier,
        "clipping": ", ".join(repr(rule) for rule in next(private).clipping),
    }
    return {f"privacy/{name}": value for name, value in values.items()}


def _plain(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    """Yield values by their names, those of a mapping behind its own."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _plain(value, f"{before}{name}/")
        else:
            yield f"{before}{name}", value if isinstance(value, bool | int | float | str) else str(value)

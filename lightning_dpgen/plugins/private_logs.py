"""Private numbers in the logs of a Trainer: services are told none, and files that hold some are their owner's alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger

from lightning_dpgen.plugins.events import PublicEvents
from lightning_dpgen.plugins.lot_log import PRIVATE
from lightning_dpgen.privacy.folders import FILE, restrict

# Those that write to a disk of the curator's own.
_FILES = (CSVLogger, TensorBoardLogger)
_LOCAL = (*_FILES, PublicEvents)
# The files that they write, and the folder in which a Trainer puts its checkpoints beside these.
_WRITTEN = ("events.out.tfevents*", "metrics.csv", "hparams.yaml", "checkpoints")


def withhold_private_logs(loggers: Iterable[Logger]) -> None:
    """Let loggers of services (Weights & Biases, MLflow) have all but numbers under ``private/``, until `restore_logs`.

    Such a number is an exact function of a few records. Loggers that write files (CSV, TensorBoard) get it.

    Example:
        >>> class Service(Logger):
        ...     name = version = "service"
        ...     def log_hyperparams(self, params): ...
        ...     def log_metrics(self, metrics, step=None):
        ...         print(metrics)
        >>> service = Service()
        >>> withhold_private_logs([service])
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     service.log_metrics({"public/epsilon": 1.0, "private/loss": 0.1})
        {'public/epsilon': 1.0}
        >>> restore_logs([service])
    """
    for logger in loggers:
        if not isinstance(logger, _LOCAL):
            vars(logger)["log_metrics"] = _public_only(logger)


def close_logs(loggers: Iterable[Logger], *, ended: bool = False) -> None:
    """Take the rights of others off what loggers write to files: the folder of a run, or its logs in a folder of more.

    Numbers under ``private/`` in them are exact functions of a few records. Call it before the first of these, when
    `changes_of_logs` differ, and after the last.

    Args:
        ended: after a fit, what is not on disk yet is written first.
    """
    loggers = list(loggers)
    if ended:
        for logger in loggers:
            if isinstance(logger, _FILES):
                logger.save()
    for folder in _folders(loggers):
        written = [path for path in folder.iterdir() if any(fnmatch(path.name, name) for name in _WRITTEN)]
        if len(written) == len(list(folder.iterdir())):
            restrict(folder)
        else:
            for path in written:
                if path.is_file() and not path.is_symlink():
                    path.chmod(FILE)


def changes_of_logs(loggers: Iterable[Logger]) -> list[int]:
    """Return when the folders of loggers have last got another file, in nanoseconds, for those that write files."""
    return [folder.stat().st_mtime_ns for folder in _folders(loggers)]


def _folders(loggers: Iterable[Logger]) -> Iterator[Path]:
    for logger in loggers:
        # A logger without a folder of its own writes into the working directory, which is not closed.
        if isinstance(logger, _FILES) and logger.log_dir and (folder := Path(logger.log_dir)).is_dir():
            yield folder


def restore_logs(loggers: Iterable[Logger]) -> None:
    """Let loggers have all numbers again."""
    for logger in loggers:
        vars(logger).pop("log_metrics", None)


def _public_only(logger: Logger) -> Any:
    write = logger.log_metrics
    said: list[bool] = []

    def log_metrics(metrics: dict[str, Any], step: int | None = None) -> None:
        public = {name: value for name, value in metrics.items() if not name.startswith(PRIVATE)}
        if len(public) < len(metrics) and not said:
            said.append(True)
            warnings.warn(
                f"{type(logger).__name__} is told no number under {PRIVATE}, which may leave this machine with it: use a "
                "CSVLogger or TensorBoardLogger, or allow it with share_private_logs=True",
                stacklevel=2,
            )
        if public:
            write(public, step)

    return log_metrics

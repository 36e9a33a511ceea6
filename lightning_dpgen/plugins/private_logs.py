"""Private numbers in the logs of a Trainer: services are told none, and files that hold some are their owner's alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from lightning_dpgen.common.folders import FILE, restrict
from lightning_dpgen.plugins.events import PublicEvents
from lightning_dpgen.plugins.lot_log import ERROR, PRIVATE, PUBLIC
from lightning_dpgen.plugins.namespaces import classes, pl

# Those that write to a disk of the curator's own.
_FILES = ("loggers.CSVLogger", "loggers.TensorBoardLogger")
# The beginnings of the names that a service is told: the last is that of a LearningRateMonitor.
_PUBLIC = (PUBLIC, "lr-")
# The files that they write, and the folder in which a Trainer puts its checkpoints beside these.
_WRITTEN = ("events.out.tfevents*", "metrics.csv", "hparams.yaml", "checkpoints")


class PrivateLogs:
    """The split of public and private numbers while a Trainer fits, validates, tests or predicts: until `end`.

    What module and callbacks log is private, unless its name begins with ``public/``: it goes on under ``private/``, and is
    an exact function of a few records. Loggers that write files on this machine (CSV, TensorBoard) get all of it. Those of
    services (Weights & Biases, MLflow) get numbers under ``public/``, learning rates and the epoch alone. Services upload
    what a program prints, too: beside one of them bars show no private number, and the Trainer prints no table of results.

    Args:
        trainer: a Trainer at the setup of one of its entry points.
        share: whether services get private numbers, too.
        bought: the names of the public numbers that the plan buys. What is logged by one of them is private, too: callbacks
            that follow the bought number would find the other in its place.
    """

    def __init__(self, trainer: pl.Trainer, *, share: bool = False, bought: Collection[str] = ()) -> None:
        self._bought = {name + behind for name in bought for behind in ("", ERROR)}
        self._has_warned = False
        self._services = [] if share else [logger for logger in trainer.loggers if not is_local(logger)]
        for logger in self._services:
            vars(logger)["log_metrics"] = self._public_only(logger)
        if self._services:
            trainer.validate_loop.verbose = trainer.test_loop.verbose = False
        # Where all that modules and callbacks log arrives, whichever of their functions they call: `log` of an instance is
        # passed by where a class calls that of another, and callbacks were given theirs before.
        epochs = trainer.fit_loop.epoch_loop
        loops: list[Any] = [epochs, epochs.val_loop, trainer.validate_loop, trainer.test_loop]
        self._results = [loop._results for loop in loops]
        for results in self._results:
            vars(results)["log"] = self._named(results.log)

    def end(self) -> None:
        """Let loggers have all numbers again, and the Trainer keep them under the names that they are logged by."""
        for logger in self._services:
            vars(logger).pop("log_metrics", None)
        for results in self._results:
            vars(results).pop("log", None)

    def _named(self, keep: Callable[..., None]) -> Callable[..., None]:
        def log(hook: str, name: str, value: Any, prog_bar: bool = False, **options: Any) -> None:
            # A number that a user computes from public data says so in its name.
            if name in self._bought:
                warnings.warn(
                    f"self.log({name!r}, ...): the plan buys the number of this name, and what is logged is another one, "
                    f"which stands under {PRIVATE}{name}: log it by another name",
                    stacklevel=2,
                )
            public = name.startswith(PUBLIC) and name not in self._bought
            name = name if public or name.startswith(PRIVATE) else PRIVATE + name
            if self._services and prog_bar and name.startswith(PRIVATE):
                self._warn(self._services[0])
                prog_bar = False
            keep(hook, name, value, prog_bar=prog_bar, **options)

        return log

    def _public_only(self, logger: Any) -> Callable[..., None]:
        write = logger.log_metrics

        def log_metrics(metrics: Mapping[str, Any], step: int | None = None) -> None:
            public = {name: value for name, value in metrics.items() if name == "epoch" or name.startswith(_PUBLIC)}
            if len(public) < len(metrics):
                self._warn(logger)
            if public.keys() - {"epoch"}:
                write(public, step)

        return log_metrics

    def _warn(self, logger: Any) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{type(logger).__name__} is told no number under {PRIVATE}, which may leave this machine with it: numbers "
                f"under {PUBLIC}, learning rates and the epoch alone; bars and tables leave out what is private, too. Use "
                "a CSVLogger or TensorBoardLogger in its place, or allow it with share_private_logs=True",
                stacklevel=3,
            )


def close_logs(loggers: Iterable[Any], *, ended: bool = False) -> None:
    """Take the rights of others off what loggers write to files: the folder of a run, or its logs in a folder of more.

    Numbers under ``private/`` in them are exact functions of a few records. Call it before the first of these, when
    `changes_of_logs` differ, and after the last.

    Args:
        ended: after a fit, what is not on disk yet is written first.
    """
    loggers = list(loggers)
    if ended:
        for logger in loggers:
            if _writes_files(logger):
                logger.save()
    for folder in _folders(loggers):
        written = [path for path in folder.iterdir() if any(fnmatch(path.name, name) for name in _WRITTEN)]
        if len(written) == len(list(folder.iterdir())):
            restrict(folder)
        else:
            for path in written:
                if path.is_file() and not path.is_symlink():
                    path.chmod(FILE)


def changes_of_logs(loggers: Iterable[Any]) -> list[int]:
    """Return when the folders of loggers have last got another file, in nanoseconds, for those that write files."""
    return [folder.stat().st_mtime_ns for folder in _folders(loggers)]


def _folders(loggers: Iterable[Any]) -> Iterator[Path]:
    for logger in loggers:
        # A logger without a folder of its own writes into the working directory, which is not closed.
        if _writes_files(logger) and logger.log_dir and (folder := Path(logger.log_dir)).is_dir():
            yield folder


def _writes_files(logger: Any) -> bool:
    return any(isinstance(logger, classes(name)) for name in _FILES)


def is_local(logger: Any) -> bool:
    """Return whether a logger writes to this machine alone."""
    # A TensorBoardLogger writes to a bucket, too, and a Trainer has a DummyLogger in a dry run, which writes nothing.
    return type(logger) in classes("loggers.logger.DummyLogger") or (
        (_writes_files(logger) or isinstance(logger, PublicEvents)) and "://" not in str(logger.save_dir or "")
    )

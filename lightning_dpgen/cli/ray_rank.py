"""The part of one Ray worker in a training: it is a rank, and tells the command at a desk what it has to say."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_dpgen.cli.guarded import guarded
from lightning_dpgen.cli.real_records import checked_source
from lightning_dpgen.common import pace
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.runs.folder import RunFolder
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.reporter import TerminalReporter
from lightning_dpgen.runs.run import train
from lightning_dpgen.specs.run import read_run
from lightning_dpgen.specs.usage_error import FAULT, INTERRUPTED, OK, RANK_LOST, UsageError

# Seconds between two questions whether the user wants to stop.
_ASKED_EVERY = 1.0


class Desk:
    """An actor between the command and its workers, which keeps what they say in memory, and writes it nowhere."""

    def __init__(self) -> None:
        self._said: list[tuple[str, str]] = []
        self._ends: dict[int, End] = {}
        self._stopped = False

    def say(self, stream: str, text: str) -> None:
        """Take down a line for the ``stdout`` or ``stderr`` of the command."""
        self._said.append((stream, text))

    def said(self) -> list[tuple[str, str]]:
        """Return the lines since the last call."""
        said, self._said = self._said, []
        return said

    def end(self, rank: int, end: End) -> None:
        """Take down how a rank has ended."""
        self._ends[rank] = end

    def ends(self) -> dict[int, End]:
        """Return how ranks have ended, those that have."""
        return self._ends

    def stop(self) -> None:
        """Ask the workers to stop at the next safe place."""
        self._stopped = True

    def stopped(self) -> bool:
        """Return True where the workers are to stop."""
        return self._stopped


@dataclass(frozen=True)
class End:
    """The end of a rank.

    Args:
        status: an exit status.
        certificate: of the release, from rank 0.
        error: the exception that ended it, pickled. Private, since its message may be about a record.
    """

    status: int
    certificate: dict[str, Any] | None = None
    error: bytes | None = None

    def raise_error(self) -> None:
        """Raise the error that ended the rank, if one did."""
        if self.error is not None:
            raise pickle.loads(self.error)


class _Stopped(Exception):
    """Ends the group of workers. Ray writes it to a log, so it says nothing."""


def take_part(desk: Any, argv: Sequence[str], root: Path, work_dir: str) -> None:
    """Do what this worker has to do in the training of a folder. Whatever it says goes to the desk, and to no log.

    Args:
        desk: the handle of a `Desk`.
        argv: the words of the command, with its run_dir.
        root: the folder of the run.
        work_dir: the working directory of the command, from which relative paths are read.
    """
    import ray
    import ray.train

    rank = ray.train.get_context().get_world_rank()
    with contextlib.redirect_stdout(_Lines(desk, "stdout")), contextlib.redirect_stderr(_Lines(desk, "stderr")):
        end = _end(lambda: _do_part(desk, argv, root, work_dir))
    # Lines arrive in their order, so all of them are there by then.
    ray.get(desk.end.remote(rank, end))
    if end.status not in (OK, RANK_LOST, INTERRUPTED):
        # Others wait for this rank, and their connection to it stays.
        raise _Stopped("a rank has ended early; the command that started it says why")


def _do_part(desk: Any, argv: Sequence[str], root: Path, work_dir: str) -> End:
    os.chdir(work_dir)
    spec = read_run(argv)
    source, folder, ranks = checked_source(spec.data), RunFolder(root), Ranks.joined()
    if not ranks.leads:
        from lightning_dpgen.runs.worker import run_worker

        return End(run_worker(spec, source, folder, ranks))

    def work(interrupts: Interrupts) -> dict[str, Any]:
        with _listening(desk, interrupts), pace.shown(sys.stderr):
            return train(spec, source, folder, interrupts, TerminalReporter(), ranks, on_ray=True)

    return End(OK, guarded("train", argv, folder, work))


def _end(work: Callable[[], End]) -> End:
    """Return the end of the work, with its error as a value: Ray would write one that is raised to a log."""
    try:
        return work()
    except BaseException as error:  # raised again by the command
        if isinstance(error, UsageError):
            status = error.status
        else:
            status = FAULT
            error.add_note(f"In a Ray worker:\n{traceback.format_exc()}")
        return End(status, error=_pickled(error))


def _pickled(error: BaseException) -> bytes:
    """Return an error that can be read where its class, or what it holds, is not known."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
        return data
    except Exception:  # whatever a class of the user's raises
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))


@contextlib.contextmanager
def _listening(desk: Any, interrupts: Interrupts) -> Iterator[None]:
    """Ask, in a thread beside the work, whether the user wants to stop."""
    import ray

    over = threading.Event()

    def listen() -> None:
        while not over.wait(_ASKED_EVERY):
            if ray.get(desk.stopped.remote()):
                interrupts.asked = True
                return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _Lines:
    """A stream of text that goes to the desk, line by line."""

    def __init__(self, desk: Any, name: str) -> None:
        self._desk, self._name, self._begun = desk, name, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._desk.say.remote(self._name, line)
        return len(text)

    def flush(self) -> None:
        """Leave what is begun until its line is whole."""

    def isatty(self) -> bool:
        return False

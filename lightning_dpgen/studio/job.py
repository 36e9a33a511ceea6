"""A job: commands of `dpgen` that run one after the other in a process of their own, which outlives the server.

A job is a folder of its owner alone. It holds what was asked for, a log of all that the commands print, a lock that is held
as long as they run, and the exit status once they have ended. So a page, a server that is started anew and a second server
see the same, and none of them is needed for the job to go on.

python -m lightning_dpgen.studio.job FOLDER    runs what the folder asks for
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import filelock

from lightning_dpgen.common.folders import FILE, make_private, owner_only, read_plain, write_whole
from lightning_dpgen.common.passwords import without_passwords
from lightning_dpgen.specs.usage_error import UsageError

_ASKED, _LOG, _LOCK, _PROCESS, _STATUS = "commands.json", "log.txt", "lock", "process", "status"
# Bytes of a log that a page shows, the last ones; the file has all.
_SHOWN = 200_000
# Seconds until a started process has taken its lock, on a machine that has much else to do.
_PATIENCE = 30.0
# Without -P a file of the folder where the studio was started might stand for a module of ours.
_PYTHON = (sys.executable, "-P", "-m")
# A line by which `common/pace.py` tells how far a stage is.
_PACE = re.compile(r"  (?P<stage>[^:]+): (?:(?P<percent>\d+)% )?after (?P<after>[\d:]+)(?:, about (?P<left>[\d:]+) left)?")


@dataclass(frozen=True)
class Progress:
    """The name of a stage, the percentage that is done where it is known, and the times as `dpgen` writes them."""

    stage: str
    percent: int | None
    after: str
    left: str | None


@dataclass(frozen=True)
class Job:
    """The job that a folder holds.

    Args:
        folder: it may be missing, and then there is no job yet.
    """

    folder: Path

    @property
    def exists(self) -> bool:
        return (self.folder / _ASKED).is_file()

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command, without `dpgen`."""
        return json.loads(read_plain(self.folder / _ASKED, 2**20))

    @property
    def running(self) -> bool:
        """True while a process of the job lives."""
        try:
            with open(self.folder / _LOCK, "rb") as lock:
                # Those who look share it, so that none of them takes another for the job.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def status(self) -> int | None:
        """The exit status of the last command that ran; None while the job runs, or where it was killed."""
        try:
            return int(read_plain(self.folder / _STATUS, 100))
        except (OSError, ValueError):
            return None

    @property
    def ended(self) -> float:
        """When the last command has ended, in seconds since 1970."""
        return (self.folder / _STATUS).stat().st_mtime

    @property
    def lines(self) -> list[str]:
        """The last lines of the log, without those about the pace."""
        return [line for line in self._log() if not _PACE.match(line)]

    @property
    def progress(self) -> Progress | None:
        """The stage that was seen last; None where nothing lasts for a second."""
        for line in reversed(self._log()):
            if found := _PACE.match(line):
                percent = found["percent"]
                return Progress(found["stage"], None if percent is None else int(percent), found["after"], found["left"])
            if line.strip():
                return None
        return None

    def _log(self) -> list[str]:
        try:
            with open(self.folder / _LOG, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _SHOWN))
                return file.read().decode(errors="replace").splitlines()
        except OSError:
            return []

    def stop(self) -> None:
        """Ask the commands for a clean stop, as Ctrl-C does."""
        with suppress(OSError, ValueError):
            # The number is that of the processes which hold the lock, since a job writes it once it has that.
            if self.running:
                os.killpg(int(read_plain(self.folder / _PROCESS, 100)), signal.SIGTERM)


def spell(words: Sequence[str]) -> str:
    """Return the command as a person would type it, without the password of a database or a sign that moves a cursor.

    Example:
        >>> spell(["train", "data=table", "data.path=my file.csv"])
        "dpgen train data=table 'data.path=my file.csv'"
    """
    text = without_passwords(shlex.join(["dpgen", *words]))
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)


def start_job(folder: Path, commands: Sequence[Sequence[str]]) -> Job:
    """Start commands in a process of their own, and return their job.

    The output of an earlier job in the folder is replaced.

    Raises:
        UsageError: if a job is running there.
        OSError: if the folder cannot be written, or no process can be started.
    """
    make_private(folder.parent)
    make_private(folder, _ASKED)
    with filelock.FileLock(folder / "starting", timeout=_PATIENCE, mode=FILE):
        job = Job(folder)
        if job.running:
            raise UsageError("this is running already: wait until it is done, or stop it")
        write_whole(folder / _ASKED, json.dumps([list(words) for words in commands], ensure_ascii=False))
        for name in (_PROCESS, _STATUS):
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            # The terminal may be gone.
            print(*map(spell, commands), sep="\n", flush=True)
        with open(folder / _LOG, "wb", opener=owner_only) as log:
            command = [*_PYTHON, "lightning_dpgen.studio.job", str(folder)]
            quiet = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            process = subprocess.Popen(command, start_new_session=True, **quiet)
        # Without a wait for its end it would stay behind as a zombie.
        threading.Thread(target=process.wait, daemon=True).start()
        deadline = time.monotonic() + _PATIENCE
        while not (folder / _PROCESS).exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return job


def _run(folder: Path) -> int:
    """Run the commands until one fails; gives the last exit status."""
    status = 0
    with open(folder / _LOCK, "wb", opener=owner_only) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # A stop is for the command, whose end is still to be written down.
        signal.signal(signal.SIGTERM, lambda *_: None)
        write_whole(folder / _PROCESS, str(os.getpid()))
        for words in Job(folder).commands:
            print(f"$ {spell(words)}", flush=True)
            # The command holds the lock, too: where this process is killed, the command goes on, and so does the job.
            command = [*_PYTHON, "lightning_dpgen.cli.main", *words]
            status = subprocess.run(command, check=False, pass_fds=[lock.fileno()]).returncode
            if status:
                break
        write_whole(folder / _STATUS, str(status))
    return status


if __name__ == "__main__":
    sys.exit(_run(Path(sys.argv[1])))

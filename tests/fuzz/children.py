"""Inputs run in forked children, so that a crash of one is a finding and not the end of the suite.

Limits are of processor time (a timer of the process, which sleeping and waiting do not move) and of memory.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .targets import Target

# A folder in memory, where fsync reaches no disk.
_MEMORY = Path("/dev/shm")
# Seconds of the clock: a child that has not answered for so long is blocked for good.
_BLOCKED = 900.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of one input.

    Args:
        kind: ``read``, ``refused`` or ``finding``.
        told: the text of a finding: the last lines of a traceback, or the signal that ended the child.
        seconds: seconds of processor time.
        megabytes: megabytes by which the child's memory grew at its peak.
    """

    kind: str
    told: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0

    @property
    def signature(self) -> str:
        """The mark of findings with one cause: the kind of the error, and the last place in our code."""
        lines = [line.strip() for line in self.told.splitlines() if line.strip()]
        places = [line for line in lines if line.startswith("File ")]
        ours = [line for line in places if "/lightning_dpgen/" in line] or places
        return " ".join([*(lines[-1:] or [""])[0].partition(":")[0:1], *ours[-1:]])[:200]


def run_inputs(target: Target, inputs: Sequence[tuple[str, bytes]]) -> list[Outcome]:
    """Return the outcome of each input (name and content), in order."""
    outcomes: list[Outcome] = []
    while len(outcomes) < len(inputs):
        outcomes += _of_one_child(target, inputs[len(outcomes) :])
    return outcomes


def scratch() -> Path:
    """Make a new folder for inputs, in memory where that is possible."""
    return Path(tempfile.mkdtemp(prefix="fuzz-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))


def _of_one_child(target: Target, inputs: Sequence[tuple[str, bytes]]) -> list[Outcome]:
    """Return outcomes of the first inputs: of all, or up to the one at which the child died."""
    reading, writing = os.pipe()
    folder = scratch()
    with open(folder / "stderr", "wb") as errors:
        process = os.fork()
        if process == 0:
            os.close(reading)
            try:
                os.dup2(errors.fileno(), 2)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                _work(target, inputs, folder, writing)
            finally:
                os._exit(0)
    os.close(writing)
    try:
        lines, blocked = _lines(reading), False
        if lines is None:
            blocked, lines = True, []
            os.kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
        outcomes = [Outcome(**json.loads(line)) for line in lines]
        ended = len(outcomes) == len(inputs) or (outcomes and outcomes[-1].kind == "finding")
        if not ended:
            said = (folder / "stderr").read_text(errors="replace")[-3000:]
            how = "blocked" if blocked else _how(status, target)
            outcomes.append(Outcome("finding", f"{said}\n{how}"))
        return outcomes
    finally:
        os.close(reading)
        shutil.rmtree(folder, ignore_errors=True)


def _how(status: int, target: Target) -> str:
    if not os.WIFSIGNALED(status):
        return f"the child left with status {status}"
    number = os.WTERMSIG(status)
    if number == signal.SIGPROF:
        return f"more than {target.seconds:g} seconds of the processor"
    return f"killed by {signal.Signals(number).name}"


def _lines(reading: int) -> list[bytes] | None:
    """Return the lines that the child writes until it ends, or None if it has been still for too long."""
    parts, moved = [], time.monotonic()
    while True:
        if select.select([reading], [], [], 10.0)[0]:
            part = os.read(reading, 1 << 16)
            if not part:
                return b"".join(parts).splitlines()
            parts.append(part)
            moved = time.monotonic()
        elif time.monotonic() - moved > _BLOCKED:
            return None


def _work(target: Target, inputs: Sequence[tuple[str, bytes]], folder: Path, writing: int) -> None:
    # On this signal the traceback is written first; then the signal ends the process as usual.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    faulthandler.enable(all_threads=False)
    faulthandler.register(signal.SIGPROF, all_threads=False, chain=True)
    allowed = target.megabytes << 20
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + 2 * allowed,) * 2)
    for name, content in inputs:
        place = folder / "input"
        place.mkdir()
        path = place / name
        path.write_bytes(content)
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        signal.setitimer(signal.ITIMER_PROF, target.seconds)
        kind, told = "finding", ""
        try:
            kind = target.check(path)
        except BaseException as error:
            with contextlib.suppress(RecursionError, MemoryError):
                told = "".join(traceback.format_exception(error, limit=-12))[-3000:]
            told = told or f"{type(error).__name__}"
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        seconds = time.process_time() - started
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        if kind != "finding" and grown > target.megabytes:
            kind, told = "finding", f"more than {target.megabytes} MB of memory: {grown:.0f}"
        line = {"kind": kind, "told": told, "seconds": round(seconds, 4), "megabytes": round(grown, 1)}
        os.write(writing, json.dumps(line).encode() + b"\n")
        shutil.rmtree(place, ignore_errors=True)
        # A finding may leave traces, which no other input may see.
        if kind == "finding":
            return


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 1 << 20
    return pages * resource.getpagesize()

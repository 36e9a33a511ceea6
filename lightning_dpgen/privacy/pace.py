"""The pace of long work: a stage says its name, how far it is, and about how much time is left.

Work tells of itself wherever it is done (`stage`), and a program decides once where that is seen (`shown`): as a bar on a
terminal, and elsewhere as plain lines. Where no program has decided, nothing is seen. A thread looks at the stages, so that
one which takes long between two steps is not silent, and a step costs an addition.

How far a stage is and how long it takes may tell of private records: it is for the curator's eyes, as `dpgen -v` is, and no
release holds any of it.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from typing import Any, TextIO, TypeVar, cast

T = TypeVar("T")

# Seconds that a stage takes before it is shown, between two looks at it, and between two pictures of a bar.
_FIRST, _LOOK, _BAR = 1.0, 0.25, 0.5
# Seconds between two lines; in long stages this part of what they have taken, so that a log of hours stays short.
_LINE, _PART = 1.5, 0.01
# The variable of tqdm that leaves bars out, which other programs obey, too.
_OFF = "TQDM_DISABLE"


class Stage:
    """A piece of work that is under way.

    Args:
        name: in a few words.
        total: its steps; None where they are not known.
        done: those that were done before.

    Attributes:
        done: the steps that are done.
        note: a few words to show behind them.
    """

    def __init__(self, name: str, total: float | None = None, done: float = 0) -> None:
        self.name, self.total, self.done, self.note = name, total, done, ""
        self._first, self._begin, self._told = done, 0.0, False

    def advance(self, steps: float = 1) -> None:
        """Count steps as done."""
        self.done += steps


class Display:
    """Shows stages on a stream.

    Args:
        stream: None to show nothing.
        bar: whether it is seen moving; else it gets plain lines.
        clock: gives the time in seconds.
    """

    def __init__(self, stream: TextIO | None, *, bar: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream, self.bar, self._clock = stream, bar, clock
        self._stages: list[Stage] = []
        # Letters that are to be erased, whether a line of text is begun, and when there was something to see last.
        self._drawn, self._amid, self._seen = 0, False, clock()
        self._lock = threading.RLock()

    @contextmanager
    def showing(self, stage: Stage) -> Iterator[Stage]:
        """Show a stage while it lasts; the innermost that has lasted for a second is seen."""
        with self._lock:
            stage._begin = self._clock()
            self._stages.append(stage)
        try:
            yield stage
        finally:
            with self._lock:
                self.look()
                if stage._told and not self.bar and stage.total is not None:
                    self._seen = self._clock()
                    self._write(f"{self._line(stage, self._seen)}\n")
                self._erase()
                # Generators may end in another order than they began in.
                self._stages.remove(stage)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Show nothing meanwhile."""
        with self._lock:
            self._erase()
            stream, self.stream = self.stream, None
        try:
            yield
        finally:
            self.stream = stream

    def look(self) -> None:
        """Show how far the work is, where it is time to."""
        with self._lock:
            now = self._clock()
            stage = next((stage for stage in reversed(self._stages) if now - stage._begin >= _FIRST), None)
            if stage is None or self._amid:
                return
            pause = _BAR if self.bar else max(_LINE, _PART * (now - stage._begin))
            if now - self._seen < pause:
                return
            stage._told, self._seen = True, now
            if self.bar:
                self._draw(self._picture(stage, now))
            else:
                self._write(f"{self._line(stage, now)}\n")

    def write_above(self, stream: TextIO, text: str) -> int:
        """Write text to a stream that the bar is seen on, too."""
        with self._lock:
            self._erase()
            self._amid, self._seen = self._amid if not text else not text.endswith("\n"), self._clock()
            return stream.write(text)

    def _draw(self, picture: str) -> None:
        # A longer picture is blanked out.
        self._write("\r" + picture.ljust(self._drawn))
        self._drawn = len(picture)

    def _erase(self) -> None:
        if self._drawn:
            self._write("\r" + " " * self._drawn + "\r")
            self._drawn = 0

    def _write(self, text: str) -> None:
        if self.stream is None:
            return
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            # The work goes on without a reader.
            self.stream = None

    def _line(self, stage: Stage, now: float) -> str:
        how_far = "" if stage.total is None else f" {_percent(stage)}%"
        note = f" ({stage.note})" if stage.note else ""
        return f"  {stage.name}:{how_far} after {_minutes(now - stage._begin)}{_left(stage, now)}{note}"

    def _picture(self, stage: Stage, now: float) -> str:
        took, note = _minutes(now - stage._begin) + _left(stage, now), f" {stage.note}" if stage.note else ""
        most = max(shutil.get_terminal_size().columns - 1, 1)
        if stage.total is None:
            return f"{stage.name} {took}{note}"[:most]
        before, after = f"{stage.name} {_percent(stage):3}% |", f"| {took}{note}"
        width = max(min(most - len(before) - len(after), 40), 0)
        full = round(width * _share(stage))
        return (before + ("#" * full).ljust(width) + after)[:most]


def _share(stage: Stage) -> float:
    return min(stage.done / max(cast(float, stage.total), 1e-9), 1.0)


def _percent(stage: Stage) -> int:
    return int(100 * _share(stage))


def _left(stage: Stage, now: float) -> str:
    """Return in words how much time is left, at the pace so far; nothing where that is not known."""
    took, made = now - stage._begin, stage.done - stage._first
    if stage.total is None or made <= 0 or took < _FIRST or stage.done >= stage.total:
        return ""
    return f", about {_minutes(took * (stage.total - stage.done) / made)} left"


def _minutes(seconds: float) -> str:
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


class _Above:
    """A terminal whose text is written above the bar."""

    def __init__(self, stream: TextIO, display: Display) -> None:
        self._stream, self._display = stream, display

    def write(self, text: str) -> int:
        return self._display.write_above(self._stream, text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_display: ContextVar[Display | None] = ContextVar("display", default=None)


@contextmanager
def watched(stream: TextIO | None, *, bar: bool) -> Iterator[Display]:
    """Give a display that a thread looks at every quarter of a second."""
    if os.environ.get(_OFF, "0") not in ("", "0"):
        stream = None
    display, end = Display(stream, bar=bar), threading.Event()
    if stream is None:
        yield display
        return

    def watch() -> None:
        while not end.wait(_LOOK):
            display.look()

    thread = threading.Thread(target=watch, name="dpgen-pace", daemon=True)
    thread.start()
    try:
        yield display
    finally:
        end.set()
        thread.join()


@contextmanager
def shown(stream: TextIO | None, *, bar: bool | None = None) -> Iterator[None]:
    """Show the stages of all that is done meanwhile in this thread, where no program around it does so already.

    Args:
        stream: such as standard error; None to show nothing.
        bar: whether a bar is seen moving there; None where it is a terminal.

    Example:
        >>> with shown(sys.stderr), stage("counting", total=3) as counting:
        ...     for _ in range(3):
        ...         counting.advance()
    """
    if _display.get() is not None:
        yield
        return
    bar = stream is not None and stream.isatty() if bar is None else bar
    with ExitStack() as exits:
        display = exits.enter_context(watched(stream, bar=bar))
        if bar and display.stream is not None:
            # Text would stand behind the bar.
            for out, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
                if out is not None and out.isatty():
                    exits.enter_context(redirect(cast(TextIO, _Above(out, display))))
        token = _display.set(display)
        exits.callback(_display.reset, token)
        yield


def is_seen_moving() -> bool:
    """Return whether stages are shown as a bar, so that a note which takes a while to compute is worth it."""
    display = _display.get()
    return display is not None and display.stream is not None and display.bar


@contextmanager
def hidden() -> Iterator[None]:
    """Show no stage meanwhile: other processes show theirs on the same stream."""
    display = _display.get()
    with nullcontext() if display is None else display.paused():
        yield


def counted(name: str, items: Collection[T]) -> Iterator[T]:
    """Yield the items of a loop, each of which is a step of a stage.

    Example:
        >>> sum(counted("adding", range(4)))
        6
    """
    with stage(name, len(items)) as own:
        for item in items:
            yield item
            own.advance()


@contextmanager
def stage(name: str, total: float | None = None, *, done: float = 0, alone: bool = False) -> Iterator[Stage]:
    """Tell of a stage while it lasts, wherever `shown` shows it.

    Args:
        name: in a few words, none of which is private.
        total: its steps, whose number is seen as a percentage alone; None where they are not known.
        done: those that were done before.
        alone: whether it is to be seen on a terminal where nothing is `shown`, as of a call in Python.
    """
    with ExitStack() as exits:
        display = _display.get()
        if display is None and alone and sys.stderr is not None and sys.stderr.isatty():
            display = exits.enter_context(watched(sys.stderr, bar=True))
        own = Stage(name, total, done)
        if display is not None:
            exits.enter_context(display.showing(own))
        yield own

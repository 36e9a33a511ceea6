"""The pace of long work: a stage says its name, how far it is, and about how much time is left.

Work tells of itself wherever it is done (`stage`), and a program decides once where that is seen (`show_progress`): on a
terminal as a bar of tqdm, and elsewhere as plain lines. Where no program has decided, nothing is seen. A thread looks at
the stages, so that one which takes long between two steps is not silent, and a step costs an addition.

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
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from typing import Any, TextIO, TypeVar, cast

T = TypeVar("T")

# Seconds that a stage takes before it is shown, and between two looks at it, each of which draws a bar.
_FIRST, _LOOK = 1.0, 0.25
# Seconds between two lines; in long stages this part of what they have taken, so that a log of hours stays short.
_LINE, _PART = 1.0, 0.01


class Stage:
    """A piece of work that is under way.

    Attributes:
        total: its steps; they may turn out to be more or fewer meanwhile.
        done: the steps that are done.
        note: a few words to show behind them; one that takes a while to compute is for a stage that is seen `moving`.
    """

    def __init__(self, name: str, total: float | None = None, done: float = 0) -> None:
        self.name, self.total, self.done, self.note, self.moving = name, total, done, "", False
        self._before, self._begin = done, 0.0
        self._share, self._at = 0.0, 0.0

    def advance(self, steps: float = 1) -> None:
        """Count steps as done."""
        self.done += steps

    @property
    def share(self) -> float:
        """The share of all steps that are done, of a stage that knows its total.

        What is done is done: where the total changes, the share stays, and the steps that are left share the rest.
        """
        if self.total and self.done > self._at:
            rest = max(self.total - self._at, self.done - self._at)
            self._share += (1.0 - self._share) * (self.done - self._at) / rest
            self._at = self.done
        return self._share


class Display:
    """Shows the innermost stage that has lasted for a second, if there is a stream to show it on.

    Where that has no steps, its name alone says little, so a younger stage within it is shown in its place.

    Args:
        bar: whether it is seen moving, as on every terminal; else it gets plain lines.
    """

    def __init__(self, stream: TextIO | None, *, bar: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream, self.bar, self._clock = stream, stream is not None and (bar or stream.isatty()), clock
        self._stages: list[Stage] = []
        # The drawer of the bar that is on the screen, whether a line of text is begun, and when something was seen last.
        self._draw: Callable[[str], None] | None = None
        self._amid, self._seen = False, clock()
        self.lock = threading.RLock()

    @contextmanager
    def showing(self, stage: Stage) -> Iterator[Stage]:
        """Show a stage while it lasts."""
        with self.lock:
            stage._begin, stage.moving = self._clock(), self.bar
            self._stages.append(stage)
        try:
            yield stage
        finally:
            with self.lock:
                self.look()
                self.erase()
                # Generators may end in another order than they began in.
                self._stages.remove(stage)

    def look(self) -> None:
        """Show how far the work is, where it is time to."""
        with self.lock:
            now = self._clock()
            lasting = [place for place, stage in enumerate(self._stages) if now - stage._begin >= _FIRST]
            if not lasting or self.stream is None or self._amid:
                return
            stage, *younger = self._stages[lasting[-1] :]
            if stage.total is None and younger:
                stage = younger[0]
            took = now - stage._begin
            if not self.bar and now - self._seen < max(_LINE, _PART * took):
                return
            self._seen = now
            try:
                self._show(stage, took, self.stream)
            except (OSError, ValueError):
                # The work goes on without a reader.
                self.stream = None

    def _show(self, stage: Stage, took: float, stream: TextIO) -> None:
        # A command that ends within a second does not wait for it.
        from tqdm import tqdm

        bar, total, done = "{desc} " if self.bar else "  {desc}: ", stage.total, stage.done
        if total:
            bar += "{percentage:3.0f}% |{bar}| " if self.bar else "{percentage:.0f}% "
        rest = ""
        if total and stage._before < done < total:
            seconds = took * (total - done) / (done - stage._before)
            rest = f", about {tqdm.format_interval(seconds)} left"
        width = min(shutil.get_terminal_size().columns - 1, 120) if self.bar else None
        form = {"prefix": stage.name, "postfix": stage.note, "bar_format": bar + "after {elapsed}" + rest + "{postfix}"}
        text = tqdm.format_meter(stage.share, 1.0 if total else None, took, width, ascii=True, **form)
        if self.bar:
            self._draw = self._draw or tqdm.status_printer(stream)
            self._draw(text)
        else:
            stream.write(f"{text}\n")
            stream.flush()

    def erase(self) -> None:
        """Take the bar off the screen."""
        if self._draw is not None and self.stream is not None:
            with suppress(OSError, ValueError):
                self._draw("")
                self.stream.write("\r")
            self._draw = None

    def write_above(self, stream: TextIO, text: str) -> int:
        """Write text to a terminal that the bar is seen on, too."""
        with self.lock:
            self.erase()
            self._amid, self._seen = not text.endswith("\n") if text else self._amid, self._clock()
            return stream.write(text)


class _Above:
    """A terminal whose text is written above the bar."""

    def __init__(self, stream: TextIO, display: Display) -> None:
        self._stream, self._display = stream, display

    def write(self, text: str) -> int:
        return self._display.write_above(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_display: ContextVar[Display | None] = ContextVar("display", default=None)


@contextmanager
def _watched(stream: TextIO | None, *, bar: bool = False) -> Iterator[Display]:
    """Give a display that a thread looks at, unless the variable of tqdm that leaves bars out says not to."""
    if os.environ.get("TQDM_DISABLE", "0") not in ("", "0"):
        stream = None
    display, end = Display(stream, bar=bar), threading.Event()

    def watch() -> None:
        while not end.wait(_LOOK):
            display.look()

    if stream is None:
        yield display
        return
    thread = threading.Thread(target=watch, name="dpgen-pace", daemon=True)
    thread.start()
    try:
        yield display
    finally:
        end.set()
        thread.join()


@contextmanager
def show_progress(stream: TextIO | None, *, bar: bool = False) -> Iterator[None]:
    """Show the stages of all that is done meanwhile in this thread, where no program around it does so already.

    Args:
        stream: such as standard error; None to show nothing.
        bar: whether a bar is seen there though it is no terminal, as in a notebook.

    Example:
        >>> with show_progress(sys.stderr), stage("counting", total=3) as counting:
        ...     for _ in range(3):
        ...         counting.advance()
    """
    if _display.get() is not None:
        yield
        return
    with ExitStack() as exits:
        display = exits.enter_context(_watched(stream, bar=bar))
        # Text would stand behind the bar.
        for out, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            if display.bar and out is not None and out.isatty():
                exits.enter_context(redirect(cast(TextIO, _Above(out, display))))
        exits.callback(_display.reset, _display.set(display))
        yield


@contextmanager
def hide_progress() -> Iterator[None]:
    """Show no stage meanwhile: other processes show theirs on the same stream."""
    display = _display.get() or Display(None)
    with display.lock:
        display.erase()
        stream, display.stream = display.stream, None
    try:
        yield
    finally:
        display.stream = stream


def counted(name: str, items: Collection[T]) -> Iterator[T]:
    """Yield the items of a loop, each of which is a step of a stage.

    Example:
        >>> sum(counted("adding", range(4)))
        6
    """
    with stage(name, len(items)) as progress:
        for item in items:
            yield item
            progress.advance()


@contextmanager
def stage(name: str, total: float | None = None, *, done: float = 0, alone: bool = False) -> Iterator[Stage]:
    """Tell of a stage while it lasts, wherever `show_progress` shows it.

    Args:
        name: in a few words, none of which is private.
        total: its steps, whose number is seen as a percentage alone; None where they are not known.
        done: those that were done before.
        alone: whether it is to be seen on a terminal where no `show_progress` is around it, as of a call in Python.
    """
    with ExitStack() as exits:
        display = _display.get()
        if display is None and alone and sys.stderr is not None and sys.stderr.isatty():
            display = exits.enter_context(_watched(sys.stderr))
        new_stage = Stage(name, total, done)
        if display is not None:
            exits.enter_context(display.showing(new_stage))
        yield new_stage

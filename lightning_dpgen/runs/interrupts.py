"""Ctrl-C and SIGTERM: the first asks for a clean stop, the second stops at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from lightning_dpgen.specs.usage_error import INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def leaving_at_once() -> AbstractContextManager[None]:
    """Let a signal end the program there and then: for imports, some of which swallow a KeyboardInterrupt."""

    def leave(*_) -> None:
        os.write(sys.__stderr__.fileno(), b"dpgen: interrupted; nothing was released\n")
        os._exit(INTERRUPTED)

    return _handled_by(leave)


@contextmanager
def _handled_by(handler: Callable[..., None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {which: signal.signal(which, handler) for which in _SIGNALS}
    try:
        yield
    finally:
        for which, handler_before in before.items():
            signal.signal(which, handler_before)


class Interrupts:
    """The requests of the user, or of a cluster that wants its machine back.

    Attributes:
        asked: whether a signal has come.
    """

    def __init__(self) -> None:
        self.asked = False
        self._patient = False

    @contextmanager
    def caught(self) -> Iterator[Interrupts]:
        """Let a signal become a KeyboardInterrupt, at once or (see `patient`) at the next safe place."""
        with _handled_by(self._receive):
            yield self

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Let the first signal only set `asked`; the work asks for it where nothing would be lost."""
        self._patient = True
        try:
            yield
        finally:
            self._patient = False

    def stop_here(self) -> None:
        """Raise KeyboardInterrupt if a signal has come."""
        if self.asked:
            raise KeyboardInterrupt

    def _receive(self, *_) -> None:
        again, self.asked = self.asked, True
        if again or not self._patient:
            raise KeyboardInterrupt

"""Ctrl-C and SIGTERM: the first asks for a clean stop, the second stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """What the user, or a cluster that wants its machine back, has asked for.

    Attributes:
        asked: whether a signal has come.
    """

    def __init__(self) -> None:
        self.asked = False
        self._patient = False

    @contextmanager
    def caught(self) -> Iterator[Interrupts]:
        """Within it, a signal becomes a KeyboardInterrupt, at once or (see `patient`) at the next safe place."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {which: signal.signal(which, self._receive) for which in _SIGNALS}
        try:
            yield self
        finally:
            for which, handler in before.items():
                signal.signal(which, handler)

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Within it, the first signal only sets `asked`: whoever works asks for it where nothing would be lost."""
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

"""Changes to functions of the process that last while any thread computes a loss."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ProcessChange:
    """A change that the first thread to enter makes, and the last one to leave takes back.

    Threads leave in another order than they entered. If each put back what it had found, the last could put back the
    change of another, for good.

    Args:
        make: makes the change, and returns a function that takes it back.

    Example:
        >>> said = ProcessChange(lambda: print("made") or (lambda: print("taken back")))
        >>> with said.inside():
        ...     with said.inside():
        ...         said.is_inside
        made
        True
        taken back
    """

    def __init__(self, make: Callable[[], Callable[[], None]]) -> None:
        self._make: Callable[[], Callable[[], None]] = make
        self._take_back: Callable[[], None] = lambda: None
        self._changing, self._entered, self._own = threading.Lock(), 0, threading.local()

    @property
    def is_inside(self) -> bool:
        """True for a thread that has entered."""
        return getattr(self._own, "depth", 0) > 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Let the change last at least as long as this context."""
        with self._changing:
            if not self._entered:
                self._take_back = self._make()
            self._entered += 1
        self._own.depth = getattr(self._own, "depth", 0) + 1
        try:
            yield
        finally:
            self._own.depth -= 1
            with self._changing:
                self._entered -= 1
                if not self._entered:
                    self._take_back()

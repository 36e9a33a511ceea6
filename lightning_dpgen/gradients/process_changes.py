"""Changes to functions of the process that last while any thread computes a loss."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType


class ProcessChange:
    """A change that the first thread to enter makes, and the last one to leave takes back.

    Threads leave in another order than they entered. If each put back what it had found, the last could put back the
    change of another, for good.

    It is a context itself, since each step of a training enters several.

    Args:
        make: makes the change, and returns a function that takes it back.

    Example:
        >>> said = ProcessChange(lambda: print("made") or (lambda: print("taken back")))
        >>> with said:
        ...     with said:
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

    def __enter__(self) -> None:
        with self._changing:
            if not self._entered:
                self._take_back = self._make()
            self._entered += 1
        self._own.depth = getattr(self._own, "depth", 0) + 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._own.depth -= 1
        with self._changing:
            self._entered -= 1
            if not self._entered:
                self._take_back()

"""Errors in a notebook: a message for a person is one line, without the frames of code that is not theirs."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_PACKAGE = __name__.partition(".")[0]


def short_in_notebooks(function: Callable[P, R]) -> Callable[P, R]:
    """Let IPython show an error of a function's arguments, files or budget as one line; elsewhere nothing changes.

    Which errors these are follows from where they are raised: in this package, of a kind that callers may meet
    (ValueError, OSError and the package's own). An error of another library keeps all its frames, and so does a fault.

    Example:
        >>> @short_in_notebooks
        ... def square(x):
        ...     return x * x
        >>> square(3)
        9
    """

    @functools.wraps(function)
    def call(*args: P.args, **given: P.kwargs) -> R:
        try:
            return function(*args, **given)
        except Exception as error:
            if _is_message(error):
                lines = [f"{type(error).__name__}: {error}"]
                # IPython asks an error by this name how to show it.
                error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
            raise

    return call


def _is_message(error: Exception) -> bool:
    """Tell whether an error is a message of this package's for the person who called."""
    kind = type(error)
    if not (issubclass(kind, ValueError | OSError) or kind.__module__.startswith(f"{_PACKAGE}.")):
        return False
    innermost = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    return str(innermost.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE

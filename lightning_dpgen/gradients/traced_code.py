"""An answer to code that asks whether it is traced: traced code looks at no values, and a loss must not."""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_TORCH = str(Path(torch.__file__).parent)
_ORIGINAL = torch.jit.is_tracing
# The threads inside, and how often each has entered.
_LOCK, _INSIDE = threading.Lock(), Counter[int]()


@contextmanager
def answer_as_traced() -> Iterator[None]:
    """Answer yes to ``torch.jit.is_tracing()`` inside this context, but to torch itself and to other threads.

    Models look at values to take a shortcut: those of transformers make no attention mask where a lot has no padding. They
    take none while they are traced. What they compute is the same.

    Example:
        >>> with answer_as_traced():
        ...     print(torch.jit.is_tracing())
        True
        >>> torch.jit.is_tracing()
        False
    """
    own = threading.get_ident()
    with _LOCK:
        if not _INSIDE:
            torch.jit.is_tracing = _is_tracing
        _INSIDE[own] += 1
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE[own] -= 1
            if not _INSIDE[own]:
                del _INSIDE[own]
            # Threads leave in another order than they came.
            if not _INSIDE:
                torch.jit.is_tracing = _ORIGINAL


@functools.wraps(_ORIGINAL)
def _is_tracing() -> bool:
    asked_by = sys._getframe(1).f_code.co_filename
    return _ORIGINAL() or (threading.get_ident() in _INSIDE and not asked_by.startswith(_TORCH))

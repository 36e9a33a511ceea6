"""An answer to code that asks whether it is traced: traced code looks at no values, and a loss must not."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_TORCH = str(Path(torch.__file__).parent)


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
    own, original = threading.get_ident(), torch.jit.is_tracing

    @functools.wraps(original)
    def is_tracing() -> bool:
        asked_by = sys._getframe(1).f_code.co_filename
        return original() or (threading.get_ident() == own and not asked_by.startswith(_TORCH))

    torch.jit.is_tracing = is_tracing
    try:
        yield
    finally:
        torch.jit.is_tracing = original

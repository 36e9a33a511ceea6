"""An answer to code that asks whether it is traced: traced code looks at no values, and a loss must not."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from lightning_dpgen.gradients.process_changes import ProcessChange

_TORCH = str(Path(torch.__file__).parent)
_ORIGINAL = torch.jit.is_tracing


def answer_as_traced() -> ProcessChange:
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
    return _ANSWER


@functools.wraps(_ORIGINAL)
def _is_tracing() -> bool:
    asked_by = sys._getframe(1).f_code.co_filename
    return _ORIGINAL() or (_ANSWER.is_inside and not asked_by.startswith(_TORCH))


def _put(function: Callable[[], bool]) -> None:
    torch.jit.is_tracing = function


def _answer() -> Callable[[], None]:
    _put(_is_tracing)
    return functools.partial(_put, _ORIGINAL)


_ANSWER = ProcessChange(_answer)

"""Code that no mode of torch sees, and that is handed the numbers of all records: it is refused while a loss is called."""

from __future__ import annotations

import _thread
import concurrent.futures
import functools
import multiprocessing.pool
import multiprocessing.process
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import _functorch

_THREADS = (
    "hands work to another thread or process (threading, concurrent.futures, multiprocessing, os.fork), where torch hides "
    "no record: compute it in the loss, or outside training"
)
_SCRIPTS = (
    "calls TorchScript (torch.jit), whose code is handed all records and may keep them: call the module or function of "
    "Python that it was made from"
)
_TEXT = "turns a value of a record into text (repr, str, print, logging): print shapes, or nothing"


@contextmanager
def refuse_unwatched() -> Iterator[None]:
    """Make threads, processes, TorchScript and text of hidden values an error, for the thread that calls the loss.

    The text of a hidden value is an error in every thread.
    """
    own = threading.get_ident()

    def refusing(original: Callable, reason: str) -> Callable:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == own:
                raise ValueError(f"the loss {reason}")
            return original(*args, **kwargs)

        return call

    def text(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> str:
        if _functorch.is_functorch_wrapped_tensor(tensor):
            raise ValueError(f"the loss {_TEXT}")
        return written(tensor, *args, **kwargs)

    written, undo = torch._tensor_str._str, []
    try:
        torch._tensor_str._str = text
        for owner, name, reason in _DOORS:
            original = getattr(owner, name)
            undo.append((owner, name, original))
            setattr(owner, name, refusing(original, reason))
        yield
    finally:
        torch._tensor_str._str = written
        for owner, name, original in undo:
            setattr(owner, name, original)


_DOORS = (
    (threading.Thread, "start", _THREADS),
    (concurrent.futures.ThreadPoolExecutor, "submit", _THREADS),
    (concurrent.futures.ProcessPoolExecutor, "submit", _THREADS),
    # Every way to give a pool work first checks that it is running.
    (multiprocessing.pool.Pool, "_check_running", _THREADS),
    (multiprocessing.process.BaseProcess, "start", _THREADS),
    (_thread, "start_new_thread", _THREADS),
    (threading, "_start_new_thread", _THREADS),
    *((os, name, _THREADS) for name in ("fork", "forkpty") if hasattr(os, name)),
    (torch._C.ScriptFunction, "__call__", _SCRIPTS),
    (torch._C.ScriptMethod, "__call__", _SCRIPTS),
    (torch.jit, "fork", _SCRIPTS),
)

"""Full precision for computations on which a bound on norms rests, whatever is set for the rest of a program."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Switch off autocast and what settings of torch ask for instead of float32 (`whole_products`).

    In their eleven or eight bits a clipped sum would be longer than its bound by up to a hundredth, norms would be too
    small by as much, and sums that count as exact would be rounded.
    """
    with whole_products():
        if not torch.is_autocast_enabled(device.type):
            yield
            return
        with torch.autocast(device.type, enabled=False):
            yield


@contextmanager
def whole_products() -> Iterator[None]:
    """Multiply float32 numbers in all of their bits: not in TF32 or bfloat16, whatever is set; autocast stays as it is.

    On a GPU torch computes convolutions and recurrent networks in TF32, of eleven bits, unless it is told otherwise, and
    matrix products where ``torch.set_float32_matmul_precision`` asks for less.
    """
    with _CHANGING:
        if not _kept.entered:
            _kept.asked = [torch._C._get_fp32_precision_getter(*backend) for backend in _BACKENDS]
            _set(_WHOLE)
        _kept.entered += 1
    try:
        yield
    finally:
        with _CHANGING:
            _kept.entered -= 1
            if not _kept.entered:
                _set(_kept.asked)


@dataclass
class _Kept:
    """Settings of torch, of the whole process, from the first of its threads that enters to the last that leaves."""

    entered: int = 0
    asked: list[str] = field(default_factory=list)


_CHANGING, _kept = threading.Lock(), _Kept()


# The settings behind ``torch.backends.*.fp32_precision``: their attributes there take five times as long.
_BACKENDS = [(backend, kind) for backend in ("cuda", "mkldnn") for kind in ("matmul", "conv", "rnn")]
_WHOLE = ["ieee"] * len(_BACKENDS)


def _set(precisions: list[str]) -> None:
    for (backend, kind), precision in zip(_BACKENDS, precisions, strict=True):
        torch._C._set_fp32_precision_setter(backend, kind, precision)

"""Full precision for computations on which a bound on norms rests, whatever is set for the rest of a program."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Switch off autocast and what settings of torch ask for instead of float32 (`whole_products`).

    In their eleven or eight bits a clipped sum would be longer than its bound by up to a hundredth, norms would be too
    small by as much, and sums that count as exact would be rounded.
    """
    with whole_products(), torch.autocast(device.type, enabled=False):
        yield


@contextmanager
def whole_products() -> Iterator[None]:
    """Multiply float32 numbers in all of their bits: not in TF32 or bfloat16, whatever is set; autocast stays as it is.

    On a GPU torch computes convolutions and recurrent networks in TF32, of eleven bits, unless it is told otherwise, and
    matrix products where ``torch.set_float32_matmul_precision`` asks for less.
    """
    with _CHANGING:
        if not _kept.entered:
            _kept.asked = [backend.fp32_precision for backend in _backends()]
            _set(["ieee"] * len(_kept.asked))
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


def _backends() -> tuple[Any, ...]:
    # Their attributes are made at run time, so no type checker knows them.
    mkldnn: Any = torch.backends.mkldnn
    cudnn: Any = torch.backends.cudnn
    return torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn


def _set(precisions: list[str]) -> None:
    for backend, precision in zip(_backends(), precisions, strict=True):
        backend.fp32_precision = precision

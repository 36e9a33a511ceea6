"""Full precision for computations on which a bound on norms rests, whatever is set for the rest of a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Switch off autocast and what ``torch.set_float32_matmul_precision`` asks for.

    In their eleven or eight bits a clipped sum would be longer than its bound by up to a hundredth, norms would be too
    small by as much, and sums that count as exact would be rounded.
    """
    # Their attributes are made at run time, so no type checker knows them.
    mkldnn: Any = torch.backends.mkldnn
    backends = torch.backends.cuda.matmul, mkldnn.matmul
    asked = [backend.fp32_precision for backend in backends]
    _set(backends, ["ieee"] * len(backends))
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        _set(backends, asked)


def _set(backends: Iterable[Any], precisions: list[str]) -> None:
    for backend, precision in zip(backends, precisions, strict=True):
        backend.fp32_precision = precision

"""Kernels in Triton are compiled and run by these functions, where there is Triton.

It comes with the CUDA builds of torch. Its interpreter (``TRITON_INTERPRET=1``, set before Triton is imported) runs kernels
on a processor, which is how they are tested without a GPU.
"""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

try:
    import triton

    AVAILABLE = True
except ImportError:
    AVAILABLE = False

Sizes = dict[str, int]
# Numbers of made-up records that a measurement takes, and the most records.
_MEASURED_NUMBERS, _MEASURED_RECORDS = 1 << 26, 64
# The quickest sizes of kernels by device and shape.
_quickest: dict[tuple, Sizes] = {}
# Triton reads it when it is imported.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def kernel(*changing: str) -> Callable:
    """Return a decorator that compiles a function; a new value of an argument in `changing` compiles nothing anew."""
    return triton.jit(do_not_specialize=list(changing)) if AVAILABLE else lambda function: function


def launch(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
    """Run a kernel on the device of its first argument."""
    # Triton's default for fusing products with sums differs by version, and the last bit follows from it.
    with torch.cuda.device_of(arguments[0]):
        kernel[(programs,)](*arguments, enable_fp_fusion=True, **options)


def serves(x: Tensor, probe: Callable[[torch.device], object]) -> bool:
    """Return True if kernels take a tensor: on a device of CUDA for which Triton compiles, or where it interprets.

    Args:
        probe: runs a kernel of the kind on a device.
    """
    return AVAILABLE and (_compiles(x.device, probe) if x.is_cuda else INTERPRETED)


@functools.cache
def _compiles(device: torch.device, probe: Callable[[torch.device], object]) -> bool:
    """Return True if kernels of a kind serve a device; a warning says once why they do not, as without a C compiler."""
    try:
        probe(device)
    except Exception as error:
        warnings.warn(
            f"kernels in Triton do not serve {device} ({type(error).__name__}: {str(error)[:200]}): private steps take "
            "torch's own operations, which are slower",
            stacklevel=2,
        )
        return False
    return True


def quickest(shape: tuple, candidates: Sequence[Sizes], x: Tensor, run: Callable[[int, Sizes], object]) -> Sizes:
    """Return the quickest of some sizes of a kernel for a shape, which is measured once.

    It is the first where nothing is measured: on a processor, for ``torch.use_deterministic_algorithms``, and within the
    capture of a graph, before which shapes are met.

    Args:
        shape: all that the time of a record follows from; public.
        x: a factor, of which device and size of a record are looked at.
        run: runs the kernel with such sizes, on so many made-up records.
    """
    key = (x.device, *shape)
    if torch.are_deterministic_algorithms_enabled():
        return candidates[0]
    if key not in _quickest:
        if not _measures(x):
            return candidates[0]
        records = max(1, min(_MEASURED_RECORDS, _MEASURED_NUMBERS // max(1, math.prod(x.shape[1:]))))
        with torch.cuda.device_of(x):
            _quickest[key] = min(candidates, key=lambda sizes: _milliseconds(functools.partial(run, records, sizes)))
    return _quickest[key]


def _measures(x: Tensor) -> bool:
    with torch.cuda.device_of(x):
        return x.is_cuda and not torch.cuda.is_current_stream_capturing()


def _milliseconds(run: Callable[[], object]) -> float:
    """Return the time of a kernel on a device; infinite for sizes that the device has no room for."""
    times = []
    try:
        for _ in range(5):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
    except Exception:
        return math.inf
    return min(times)

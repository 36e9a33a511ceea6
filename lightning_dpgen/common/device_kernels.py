"""Kernels in Triton are compiled and run by these functions, where there is Triton.

It comes with the CUDA builds of torch. Its interpreter (``TRITON_INTERPRET=1``, set before Triton is imported) runs kernels
on a processor, which is how they are tested without a GPU.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:
    import triton

    AVAILABLE = True
except ImportError:
    AVAILABLE = False

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
    """Return True if Triton compiles for a device; a warning says once why it does not, as without a C compiler."""
    try:
        probe(device)
    except Exception as error:
        warnings.warn(
            f"Triton compiles nothing for {device} ({type(error).__name__}: {str(error)[:200]}): private steps take "
            "torch's own operations, which are slower",
            stacklevel=2,
        )
        return False
    return True

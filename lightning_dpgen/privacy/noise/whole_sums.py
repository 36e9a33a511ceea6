"""Limits of sums in whole numbers, and of the noise that is added to them."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_dpgen.privacy.noise.rounded_normal import LARGEST_SIGMA

# Sums stay below this, so that neither they nor the noise reach the end of int64.
LARGEST_SUM = 2**62


def check_multiples(name: str, multiples: Tensor, parts: int = 1) -> None:
    """Check that sums in whole numbers leave room for noise, and for those of so many parts in all.

    Raises:
        TypeError: unless they are int64, on the CPU.
        ValueError: if they are not contiguous, or one is 2^62 or more in size. The message does not tell it.
    """
    if multiples.dtype != torch.int64 or multiples.device.type != "cpu":
        raise TypeError(f"multiples of {name!r} are {multiples.dtype} on {multiples.device}: expected int64 on the CPU")
    if not multiples.is_contiguous():
        raise ValueError(f"multiples of {name!r} are not contiguous: expected multiples.contiguous()")
    most = LARGEST_SUM // parts
    if multiples.numel() and not -most < int(multiples.min()) <= int(multiples.max()) < most:
        raise ValueError(f"multiples of {name!r} reach 2^62: expected fewer records, or a larger unit")


def check_steps(name: str, steps: float) -> None:
    """Check that the standard deviation of noise, in units, is one for which whole numbers are drawn.

    Raises:
        ValueError: naming the noise.
    """
    if not steps <= LARGEST_SIGMA / 2.0:
        raise ValueError(
            f"noise {name!r} has a standard deviation of {steps:.1e} units, expected at most 2^44: it would outweigh all "
            "records; raise epsilon, or the share of it, or let a person have fewer records"
        )


def check_unit(name: str, unit: float) -> None:
    """Check that a unit is a positive number.

    Raises:
        ValueError: naming the noise.
    """
    if not 2.0**-1000 < unit < 2.0**1000:
        raise ValueError(f"unit={unit} of {name!r}: expected a positive number, best a power of two")

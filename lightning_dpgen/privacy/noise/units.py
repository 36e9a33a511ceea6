"""Limits of sums in whole numbers, and of their noise; and the grid on which noisy sums of real numbers lie.

Noise in floating point is not on all numbers alike: some that are possible beside one data set are impossible beside its
neighbour (docs/guarantees/noise.md, "Floating point"). A noisy sum of real numbers is therefore rounded to multiples of a
power of two that follows from the standard deviation of the noise alone. Rounding is a function of the noisy sum, so it
costs no privacy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_dpgen.privacy.noise.rounded_normal import LARGEST_SIGMA

# Sums stay below this, so that neither they nor the noise reach the end of int64.
LARGEST_SUM = 2**62
# A step is between 2^-9 and 2^-8 of the standard deviation: the square that rounding adds, g^2 / 12, is below 1.3e-6 of the
# noise's own, and float32 has 2^15 numbers from one multiple to the next at one deviation.
_STEPS = 8
# A step is above the first and up to the second of these powers of two, in standard deviations.
GRID_POWERS = (-_STEPS - 1, -_STEPS)
# Noise is added in float64 where the last place of float32 would be above 2^-4 of a step.
_LAST_PLACES = 4
# Numbers rounded at a time: few enough to stay in the processor's cache, many enough to hide the cost of a call.
_AT_ONCE = 1 << 17


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


def grid_step(deviation: float) -> float:
    """Return the step of the grid for noise of a standard deviation: the largest power of two up to 2^-8 of it.

    Example:
        >>> grid_step(1.0), grid_step(0.99)
        (0.00390625, 0.001953125)
    """
    return math.ldexp(1.0, math.frexp(deviation)[1] - 1 - _STEPS)


def round_to_grid_(noisy: Tensor, deviation: float) -> Tensor:
    """Round the numbers of a noisy, contiguous tensor to the grid of its noise, in place.

    Args:
        noisy: float32 or float64. A number that has no digits below a step keeps its value: in float32 one of 2^23 steps or
            more. One of 2^127 steps or more may become infinite. Either follows from the noisy number alone.
        deviation: the standard deviation (the scale, for other noise) that was added, public and positive.

    Example:
        >>> round_to_grid_(torch.tensor([0.0, 0.003, -2.5001]), 1.0).tolist()
        [0.0, 0.00390625, -2.5]
    """
    step = grid_step(deviation)
    flat = noisy.view(-1)
    for part in flat.split(_AT_ONCE) if noisy.device.type == "cpu" else (flat,):
        # Products with powers of two are exact.
        part.mul_(1.0 / step).round_().mul_(step)
    return noisy


def needs_float64(values: Tensor, largest: float, deviation: float) -> bool:
    """Return whether noise should be added to float32 values in float64, by public numbers alone.

    Args:
        values: the values, of which type and device are looked at. A device of Apple (mps) has no float64.
        largest: the size that one of the values may reach, public.
        deviation: the standard deviation of the noise.

    Example:
        >>> [needs_float64(torch.zeros(1), lot, deviation=1.0) for lot in (600.0, 16384.0)]
        [False, True]
    """
    last_place = largest * torch.finfo(torch.float32).eps
    coarse = last_place > grid_step(deviation) * 2.0**-_LAST_PLACES
    return values.dtype == torch.float32 and values.device.type != "mps" and coarse

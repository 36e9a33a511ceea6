"""Schedules of noise and of sampling rate within a stage: pieces of equal steps, fixed before the first one."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lightning_dpgen.privacy.number_arguments import check_number, read_whole, show

# The most segments: an account of more would take its reader minutes.
_MOST = 40
# Pairs of a number of steps and the value that they have.
Pieces: TypeAlias = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Segment:
    """So many equal accesses in a row.

    Args:
        count: the number of accesses.
        sample_rate: the Poisson rate of each.
        noise: its noise relative to that of the other segments: one factor on all of them is solved for.

    Raises:
        ValueError: for a count that is no whole number, 1 or more, a rate outside (0, 1], or noise that is not positive.
    """

    count: int
    sample_rate: float
    noise: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", read_whole("segment: count", self.count))
        check_number("segment: sample_rate", self.sample_rate, _is_rate, "above 0, up to 1")
        check_number("segment: noise", self.noise, _is_positive, "above 0, finite")


def is_schedule(value: object) -> bool:
    """Return whether an argument is meant as a schedule, good or bad, and not as one number for all steps.

    Example:
        >>> is_schedule(0.1), is_schedule([(10, 0.1)])
        (False, True)
    """
    return callable(value) or (isinstance(value, Iterable) and not isinstance(value, str))


def read_rate(sample_rate: object) -> float:
    """Return the one rate of all steps, checked.

    Raises:
        ValueError: for what is no number above 0, up to 1.
    """
    check_number("sample_rate", sample_rate, _is_rate, "above 0, up to 1")
    assert isinstance(sample_rate, numbers.Real), "check_number takes no other"
    return float(sample_rate)


def read_segments(sample_rate: float | Pieces, noise_schedule: Pieces | None, steps: int | None) -> tuple[Segment, ...]:
    """Return the segments that a schedule of rates and one of relative noises make together.

    Args:
        sample_rate: one rate, or pairs of a number of steps and their rate.
        noise_schedule: pairs of a number of steps and their relative noise; None for the same noise in all steps.
        steps: the number of steps; both schedules have as many.

    Raises:
        ValueError: for a schedule that is none, does not have so many steps, is not fixed before the first of them, or has
            too many pieces.

    Example:
        >>> [one.count for one in read_segments([(100, 0.01), (200, 0.02)], [(150, 2.0), (150, 1.0)], 300)]
        [100, 50, 150]
    """
    if steps is None:
        raise ValueError("steps=None: a schedule says what each step is, so their number is given and not solved for")
    rates = _read("sample_rate", sample_rate, steps) if is_schedule(sample_rate) else [(steps, read_rate(sample_rate))]
    noises = [(steps, 1.0)] if noise_schedule is None else _read("noise_schedule", noise_schedule, steps)
    segments: list[Segment] = []
    (rate_left, rate), (noise_left, noise) = rates.pop(0), noises.pop(0)
    while True:
        count = min(rate_left, noise_left)
        if segments and (segments[-1].sample_rate, segments[-1].noise) == (rate, noise):
            segments[-1] = Segment(segments[-1].count + count, rate, noise)
        else:
            segments.append(Segment(count, rate, noise))
        rate_left, noise_left = rate_left - count, noise_left - count
        # Both have as many steps, so the last pieces end together.
        if not (rate_left or rates):
            break
        if not rate_left:
            rate_left, rate = rates.pop(0)
        if not noise_left:
            noise_left, noise = noises.pop(0)
    if len(segments) > _MOST:
        raise ValueError(
            f"the schedule has {len(segments)} segments of equal steps: expected {_MOST} at most, since each has a loss "
            "distribution of its own; take coarser pieces"
        )
    return tuple(segments)


def _read(name: str, given: Any, steps: int) -> list[tuple[int, float]]:
    """Return the pieces of a schedule, checked."""
    pairs = isinstance(given, Sequence) and not isinstance(given, str) and len(given) > 0
    if not pairs or not all(isinstance(piece, Sequence) and len(piece) == 2 for piece in given):
        raise ValueError(
            f"{name}={show(given)}: expected pairs of a number of steps and their value, as in "
            f"{name}=[(100, 0.5), (200, 1.0)]: public and fixed before the first step, so no function of what was seen"
        )
    fits, expected = (_is_rate, "above 0, up to 1") if name == "sample_rate" else (_is_positive, "above 0, finite")
    pieces = []
    for count, value in given:
        check_number(name, value, fits, expected)
        pieces.append((read_whole(f"{name}: steps", count), float(value)))
    if (total := sum(count for count, _ in pieces)) != steps:
        raise ValueError(f"{name}={show(given)}: has {total} steps, and steps={steps}: expected the same number")
    return pieces


def _is_rate(value: float) -> bool:
    return 0.0 < value <= 1.0


def _is_positive(value: float) -> bool:
    return 0.0 < value < math.inf

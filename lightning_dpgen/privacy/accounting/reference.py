"""One Gaussian that stands in an account for accesses that are planned later, and the check that these stay below it.

A plan that is made from what an access has released is adaptive: its events may not be composed as if they had been
fixed. So a reference is fixed before that access, and it must dominate everything that is planned afterwards, at every
epsilon and in both directions. Then the access and the reference together dominate the run (docs/guarantees/accounting.md,
"Plans made from what was bought").
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import dp_accounting
import numpy as np
from scipy.special import log_ndtr

from lightning_dpgen.privacy.accounting.accountant import compute_epsilon, intervals_for, profile
from lightning_dpgen.privacy.accounting.event_parts import (
    EpsilonDeltaDpEvent,
    gaussian_shift,
    hashable,
    leaves_of,
    shift_of_full_passes,
)
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE
from lightning_dpgen.privacy.accounting.renyi import compute_epsilon_by_rdp

# Pieces of a profile. With so many, tangents and chords differ by a part in 1e4 at most.
_PIECES = 160
# A finer discretisation has to lower a shift by more than this part of it to be worth another halving.
_SETTLED = 1e-3
# The largest part by which a shift is raised, to make up for the difference of tangents and chords.
_MOST_RAISED = 1e-2


@dataclass(frozen=True)
class Shift:
    """The shift of a Gaussian (1 over its multiplier), and how it was computed.

    Args:
        shift: ``inf`` if no Gaussian was found.
        interval: the discretisation interval with which it was found; 0 where none was needed.
    """

    shift: float
    interval: float


@dataclass(frozen=True)
class Reference:
    """A Gaussian that stands for all accesses after the first stages of a plan.

    Args:
        multiplier: the multiplier of the Gaussian, under add-or-remove-one.
        failure: a probability beside it, which the plan's delta pays for; 0 where only full passes with Gaussian noise
            can follow, which need none.
        after: the number of stages that come before; their accesses are fixed.
        replaceable: whether it also dominates, with twice its shift and twice its failure, when a record is replaced.

    Raises:
        ValueError: for a multiplier, a failure or a number of stages out of range.

    Example:
        >>> reference = Reference(1.0, 1e-6, after=1)
        >>> steps = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))
        >>> [reference.dominates(dp_accounting.SelfComposedDpEvent(steps, count)) for count in (10, 100)]
        [True, False]
    """

    multiplier: float
    failure: float
    after: int
    replaceable: bool = False

    def __post_init__(self) -> None:
        if not 1e-12 < self.multiplier < 1e12 or not 0.0 <= self.failure < 1.0:
            raise ValueError(
                f"multiplier={self.multiplier}, failure={self.failure}: expected a positive number and a probability"
            )
        if type(self.after) is not int or self.after < 1:
            raise ValueError(f"after={self.after!r}: expected a whole number, 1 or more")

    @property
    def event(self) -> dp_accounting.DpEvent:
        """The event that an accountant takes in the place of the accesses."""
        gaussian = dp_accounting.GaussianDpEvent(self.multiplier)
        if not self.failure:
            return gaussian
        return dp_accounting.ComposedDpEvent([gaussian, EpsilonDeltaDpEvent(0.0, self.failure)])

    def dominates(self, event: dp_accounting.DpEvent) -> bool:
        """Return whether the reference dominates an event, under each relation that it is for."""
        return all(self.relative_shift(event, relation).shift <= 1.0 for relation in self.relations)

    @property
    def relations(self) -> Sequence[str]:
        return (ADD_OR_REMOVE_ONE, REPLACE_ONE) if self.replaceable else (ADD_OR_REMOVE_ONE,)

    def relative_shift(
        self, event: dp_accounting.DpEvent, relation: str = ADD_OR_REMOVE_ONE, interval: float | None = None
    ) -> Shift:
        """Return the `dominating_shift` of an event over that of the reference: 1 where the reference is just used up."""
        times = 2.0 if relation == REPLACE_ONE else 1.0
        shift = dominating_shift(event, times * self.failure, relation, interval)
        return replace(shift, shift=shift.shift * self.multiplier / times)

    def as_json(self) -> dict[str, Any]:
        """Return the reference as it stands in a ledger."""
        return {
            "multiplier": self.multiplier, "failure": self.failure, "after": self.after, "replaceable": self.replaceable,
        }  # fmt: skip


def read_reference(event: dp_accounting.DpEvent, after: int, *, replaceable: bool) -> Reference:
    """Return the reference whose `event` this is.

    Raises:
        ValueError: if it is the event of no reference.

    Example:
        >>> read_reference(Reference(2.0, 1e-7, 1).event, 1, replaceable=False)
        Reference(multiplier=2.0, failure=1e-07, after=1, replaceable=False)
    """
    parts = event.events if isinstance(event, dp_accounting.ComposedDpEvent) else [event]
    gaussian, *failures = parts
    if not isinstance(gaussian, dp_accounting.GaussianDpEvent) or len(failures) > 1:
        raise ValueError("expected one Gaussian, and a failure at most")
    if failures and not isinstance(failures[0], EpsilonDeltaDpEvent):
        raise ValueError("expected nothing but a failure beside the Gaussian")
    return Reference(gaussian.noise_multiplier, failures[0].delta if failures else 0.0, after, replaceable)


def dominating_shift(
    event: dp_accounting.DpEvent, failure: float, relation: str = ADD_OR_REMOVE_ONE, interval: float | None = None
) -> Shift:
    """Return the shift of a Gaussian that dominates an event beside a failure: a little above the smallest such shift.

    With H the profile, ``H(event) <= failure + (1 - failure) H(Gaussian)`` holds at every epsilon and in both directions.
    Unsampled Gaussians are one Gaussian, exactly. Otherwise profiles are compared piece by piece. As a function of
    ``alpha = e^epsilon`` a profile is convex: that of the event lies below its chord, and upper bounds of it at both ends
    bound it in between; that of the Gaussian lies above its tangent. So a tangent that is above the chord at both ends of a
    piece proves domination on the piece. Beyond the last piece the event's profile is below the failure.

    Args:
        failure: the probability of failing, in [0, 1).
        relation: ``add_or_remove_one`` or ``replace_one``.
        interval: the only discretisation interval to use, for quick looks; None halves it until the shift settles.

    Returns:
        The shift; none is found for an event that fails itself, is not private, or, with ``failure=0``, is sampled.

    Raises:
        Unaccountable: if no sound account is known under this relation.

    Example:
        >>> dominating_shift(dp_accounting.GaussianDpEvent(4.0), 0.0).shift
        0.25
        >>> round(dominating_shift(dp_accounting.LaplaceDpEvent(4.0), 0.0).shift, 3)
        0.296
    """
    return _dominating_shift(hashable(event), failure, relation, interval)


# The solver of noise, the extension of a plan and its certificate ask for the same.
@functools.lru_cache(maxsize=256)
def _dominating_shift(event: dp_accounting.DpEvent, failure: float, relation: str, interval: float | None) -> Shift:
    # No profile is known of Laplace noise when a record is replaced.
    exact = gaussian_shift(event) if failure and relation != REPLACE_ONE else shift_of_full_passes(event)
    if exact is not None:
        return Shift(exact * (2.0 if relation == REPLACE_ONE else 1.0), 0.0)
    if not failure or any(isinstance(leaf, EpsilonDeltaDpEvent) for leaf, _ in leaves_of(event, 1)):
        return Shift(math.inf, 0.0)
    if interval is not None:
        return Shift(_shift_at(event, failure, relation, interval), interval)
    best = Shift(math.inf, 0.0)
    for finer in intervals_for(event, compute_epsilon_by_rdp(event, failure / 2)):
        shift = Shift(_shift_at(event, failure, relation, finer), finer)
        settled = shift.shift >= best.shift * (1.0 - _SETTLED)
        best = best if shift.shift >= best.shift else shift
        if settled:
            break
    return best


def _shift_at(event: dp_accounting.DpEvent, failure: float, relation: str, interval: float) -> float:
    # From here on the event's profile is below the failure.
    end = compute_epsilon(event, failure / 2, relation=relation, interval=interval).epsilon
    if not math.isfinite(end):
        return math.inf
    epsilons = np.linspace(0.0, max(end, interval), _PIECES + 1)
    deltas = profile(event, epsilons, failure / 2, interval, relation)
    if deltas[-1] > failure:
        return math.inf
    shift, raised = _smallest_shift(epsilons, (deltas - failure) / (1.0 - failure)), 1e-6
    while raised < _MOST_RAISED:
        if _is_above(shift * (1.0 + raised), failure, epsilons, deltas):
            return shift * (1.0 + raised)
        raised *= 2.0
    return math.inf


def _smallest_shift(epsilons: np.ndarray, deltas: np.ndarray) -> float:
    """Return the shift of the Gaussian whose profile is as large as some deltas at the points themselves."""
    low, high = np.full(len(epsilons), math.log(1e-9)), np.full(len(epsilons), math.log(1e3))
    for _ in range(50):
        middle = (low + high) / 2
        below = _gaussian_profile(epsilons, np.exp(middle)) < deltas
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return float(np.exp(high.max()))


def _is_above(shift: float, failure: float, epsilons: np.ndarray, deltas: np.ndarray) -> bool:
    """Return whether tangents of the Gaussian's profile, each at the middle of a piece, are above the chords."""
    middle = (epsilons[:-1] + epsilons[1:]) / 2
    value = _gaussian_profile(middle, shift)
    # This is minus alpha times the slope in alpha, the probability of a greater loss.
    fall = np.exp(middle + log_ndtr(-middle / shift - shift / 2))
    for ends, bounds in ((epsilons[:-1], deltas[:-1]), (epsilons[1:], deltas[1:])):
        tangent = value - fall * np.expm1(ends - middle)
        if (bounds > failure + (1.0 - failure) * tangent).any():
            return False
    return True


def _gaussian_profile(epsilons: np.ndarray, shift: np.ndarray | float) -> np.ndarray:
    """Return delta at each epsilon of a Gaussian (Balle and Wang 2018, Theorem 8)."""
    first = log_ndtr(shift / 2 - epsilons / shift)
    ratio = epsilons + log_ndtr(-shift / 2 - epsilons / shift) - first
    return np.exp(first) * -np.expm1(np.minimum(ratio, 0.0))

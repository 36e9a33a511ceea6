"""Every mechanism at its worst neighbours: drawn many times with a record and without it, and told apart."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import beta

from lightning_dpgen.audit.bound import Finding, gaussian_bound, pure_epsilon
from lightning_dpgen.privacy.access import GAUSSIAN, Access, OpenAccess
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_epsilon
from lightning_dpgen.privacy.drawn_noise import (
    NOISY_MAX,
    REAL_GAUSSIAN,
    ROUNDED_GAUSSIAN,
    ROUNDED_LAPLACE,
    ROUNDED_SPHERICAL,
    Mechanism,
)
from lightning_dpgen.privacy.mechanisms import (
    gaussian,
    noisy_histogram,
    report_noisy_max,
    rounded_laplace,
    rounded_spherical,
    select_keys,
)
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage

_STAGE, _NOISE = "audit", "noise"
_MULTIPLIER, _DELTA = 1.0, 1e-5
# A delta of keys that is large enough to be counted, and noise beside which it matters little that thresholds are rounded.
_RARE, _KEY_MULTIPLIER = 0.05, 8.0
# Candidates of a noisy maximum. With more, the loss of one comes nearer to epsilon, but it is seen less often.
_CANDIDATES = 10
# A step of the grid of whole numbers.
_UNIT = 2.0**-13
# Words of two streams that are compared.
_WORDS = 64


@dataclass(frozen=True)
class _Case:
    """A mechanism at its worst neighbours.

    Args:
        draw: function that draws one number, larger if the record is present.
    """

    mechanism: Mechanism
    draw: Callable[[OpenAccess, bool], float]


def _vector(dtype: torch.dtype, mechanism: Callable, sensitivity: float = 3.0) -> Callable[[OpenAccess, bool], float]:
    # The record is in one coordinate alone, beside others of any size.
    def draw(access: OpenAccess, present: bool) -> float:
        values = torch.tensor([sensitivity * present, 5.0], dtype=dtype)
        return float(mechanism(access, _NOISE, values, sensitivity=sensitivity)[0])

    return draw


def _whole_vector(mechanism: Callable, sensitivity: float = 3.0) -> Callable[[OpenAccess, bool], float]:
    def draw(access: OpenAccess, present: bool) -> float:
        multiples = torch.tensor([int(sensitivity / _UNIT) * present, int(5.0 / _UNIT)])
        return float(mechanism(access, _NOISE, multiples, unit=_UNIT, sensitivity=sensitivity)[0])

    return draw


def _histogram(access: OpenAccess, present: bool) -> float:
    return float(noisy_histogram(access, _NOISE, torch.tensor([1, 2] + [0] * present), 3)[0])


def _maximum(access: OpenAccess, present: bool) -> float:
    # The record is for the first, and against all others.
    scores = torch.full((_CANDIDATES,), -int(present))
    scores[0] = int(present)
    return float(report_noisy_max(access, _NOISE, scores, sensitivity=1.0) == 0)


CASES = {
    "Gaussian noise, float32": _Case(REAL_GAUSSIAN, _vector(torch.float32, gaussian)),
    "Gaussian noise, float64": _Case(REAL_GAUSSIAN, _vector(torch.float64, gaussian)),
    "Gaussian noise on a histogram": _Case(ROUNDED_GAUSSIAN, _histogram),
    "Laplace noise": _Case(ROUNDED_LAPLACE, _whole_vector(rounded_laplace)),
    "spherical noise": _Case(ROUNDED_SPHERICAL, _whole_vector(rounded_spherical)),
    "noisy maximum": _Case(NOISY_MAX, _maximum),
}


def audit_mechanism(name: str, draws: int, confidence: float) -> Finding:
    """Bound the epsilon of a mechanism from below, by `draws` runs with a record and as many without it.

    Args:
        name: a key of `CASES`.
    """
    case = CASES[name]
    access = Access(_STAGE, {_NOISE: _MULTIPLIER}, kinds={_NOISE: case.mechanism.kind})
    plan = Plan((Stage(access, 2 * draws, 1.0),), math.inf, _DELTA)
    account, outputs = Account(plan), np.empty((2, draws))
    for i in range(draws):
        for present in (False, True):
            with account.open(_STAGE) as opened:
                outputs[int(present), i] = case.draw(opened, present)
    how = f"{draws:,} draws with a record, and without"
    if case.mechanism.kind == GAUSSIAN:
        bound = gaussian_bound(*outputs, confidence, _DELTA)
        return Finding(name, gaussian_epsilon(1.0 / _MULTIPLIER, _DELTA), bound, _DELTA, how)
    return Finding(name, 1.0 / _MULTIPLIER, pure_epsilon(*outputs, confidence), 0.0, how)


def audit_keys(draws: int, confidence: float) -> Finding:
    """Bound from below how often a key that one record alone holds is seen, by `draws` selections, against its delta."""
    access = Access(_STAGE, {_NOISE: _KEY_MULTIPLIER}, deltas={_NOISE: _RARE})
    account, seen = Account(Plan((Stage(access, draws, 1.0),), math.inf, 2.0 * _RARE)), 0
    for _ in range(draws):
        with account.open(_STAGE) as opened:
            seen += len(select_keys(opened, _NOISE, np.array(["own"]), np.array([1]))[0])
    bound = float(beta.ppf(1.0 - confidence, seen, draws - seen + 1)) if seen else 0.0
    return Finding("how often a key of one record is seen (its delta)", _RARE, bound, 0.0, f"{draws:,} selections")


def audit_randomness() -> Finding:
    """Check that two streams made after the same public seeds draw other numbers; else noise could be removed."""
    drawn = []
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        stream = PrivateStream()
        drawn.append((stream.words(_WORDS), stream.normal((_WORDS,)).numpy(), stream.poisson_sample(1000, 0.5)))
    # By chance any word or normal agrees with probability below 1e-5, and all samples agree with 2^-1000.
    same = any((one == other).any() for one, other in zip(drawn[0][:2], drawn[1][:2], strict=True))
    same = same or np.array_equal(drawn[0][2], drawn[1][2])
    return Finding("noise and samples after the same public seeds", 0.0, math.inf if same else 0.0, 0.0, "two streams")

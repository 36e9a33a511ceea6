"""The one door to noise, watched: exact values as mechanisms draw on them, and answers that are the same for two data sets.

Laws that are written with it hold of whatever code lies between records and release, for they see only what passes the
door and what comes out at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_dpgen.privacy.access import GAUSSIAN, LAPLACE, PURE
from lightning_dpgen.privacy.noise import PrivateStream
from lightning_dpgen.privacy.open_access import OpenAccess


@dataclass(frozen=True)
class Noised:
    """Values to which one mechanism added noise.

    Args:
        access: from which the noise was taken, and under which name.
        exact: the values before, over the standard deviation (of other noise, the scale) that was drawn.
        chosen: whether they are the scores among which the exponential mechanism chooses.
    """

    access: OpenAccess
    name: str
    exact: Tensor
    chosen: bool = False


class Gumbels:
    """Stands in for standard Gumbel numbers: tells with which scale they are multiplied, and which scores they meet."""

    # So that an array that meets it asks it, and not each of its numbers.
    __array_ufunc__ = None

    def __init__(self, answer: Callable[[np.ndarray, float], np.ndarray], scale: float = 1.0) -> None:
        self._answer, self._scale = answer, scale

    def __rmul__(self, scale: float) -> Gumbels:
        return Gumbels(self._answer, scale * self._scale)

    def __radd__(self, scores: np.ndarray) -> np.ndarray:
        return self._answer(scores, self._scale)


class Door:
    """While it is entered, Gaussian, Laplace and Gumbel noise is drawn through it, by any mechanism of any account.

    It keeps the exact values, and gives the n-th values of each walk the same noisy answer. So how many numbers are noised,
    and with how much, has to be the same in each walk, too. The exponential mechanism chooses the place in the middle.
    Randomness of records and of lots is drawn as ever.
    """

    def __init__(self) -> None:
        self._answers: list[tuple[Tensor, float]] = []
        self.walk: list[Noised] = []
        # A noise that was taken from its access, and is still to be drawn.
        self._due: tuple[OpenAccess, str] | None = None

    def __enter__(self) -> Door:
        self._patch = pytest.MonkeyPatch()
        take, add = OpenAccess.consume, PrivateStream.add_normal_

        def taken(access: OpenAccess, name: str, *kind: str) -> float:
            self._check_drawn()
            multiplier = take(access, name, *kind)
            self._due = (access, name) if multiplier and access.access.kind(name) in (GAUSSIAN, LAPLACE, PURE) else None
            return multiplier

        self._patch.setattr(OpenAccess, "consume", taken)
        self._patch.setattr(PrivateStream, "add_normal_", lambda _, values, deviation: self._answer(values, deviation))
        self._patch.setattr(PrivateStream, "add_laplace_", lambda _, values, scale: self._answer(values, scale))
        self._patch.setattr(PrivateStream, "normal_", lambda stream, out: add(stream, out.zero_(), 1.0))
        self._patch.setattr(PrivateStream, "gumbel", lambda _, size: Gumbels(self._choose))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def _noised(self) -> tuple[OpenAccess, str]:
        """The noise that is drawn now."""
        assert self._due is not None, "noise that was taken from no access"
        due, self._due = self._due, None
        return due

    def _choose(self, scores: np.ndarray, scale: float) -> np.ndarray:
        place = len(self.walk)
        self.walk.append(Noised(*self._noised(), torch.from_numpy(scores / scale), chosen=True))
        if place == len(self._answers):
            self._answers.append((torch.arange(len(scores)) == len(scores) // 2, scale))
        answer, planned = self._answers[place]
        assert (len(answer), planned) == (len(scores), scale), "of other records others are chosen, or by other noise"
        return answer.numpy()

    def _answer(self, values: Tensor, deviation: float) -> Tensor:
        access, name = self._noised()
        place, exact = len(self.walk), values.double().flatten()
        self.walk.append(Noised(access, name, exact / deviation))
        if place == len(self._answers):
            noise = torch.randn(exact.shape, generator=torch.Generator().manual_seed(place), dtype=torch.float64)
            self._answers.append(((exact + deviation * noise).to(values.dtype), deviation))
        answer, planned = self._answers[place]
        assert (len(answer), planned) == (len(exact), deviation), f"other records have other noise {name!r}"
        return values.copy_(answer.view_as(values))

    def walked(self, run: Callable[[Any], Any], data: Any) -> tuple[list[Noised], Any]:
        """What `run` noises of these data, and what it gives."""
        self.walk = []
        result = run(data)
        self._check_drawn()
        return self.walk, result

    def _check_drawn(self) -> None:
        assert self._due is None, f"noise {self._due[1]!r} was taken from its access, and never drawn"


def overspent(run: Callable[[Any], Any], first: Any, *others: Any) -> list[float]:
    """How far other data sets lie from the first, in units of what was paid for: above 1 is more.

    A number for each of the others and each access: of all Gaussians of the access together, by its merged multiplier, or
    of one noise by its own, whichever is more; to 12 digits, as exact as the arithmetic of this test. A choice costs as
    much as its scores move apart, in units of the noise.
    """
    with Door() as door:
        own, *walks = [door.walked(run, data)[0] for data in (first, *others)]
    found: list[float] = []
    for walk in walks:
        together: dict[OpenAccess, float] = {}
        alone: dict[OpenAccess, float] = {}
        for one, other in zip(own, walk, strict=True):
            access, kind, moved = one.access, one.access.access.kind(one.name), one.exact - other.exact
            if one.chosen:
                shift = float(moved.max() - moved.min())
            else:
                shift = float(torch.linalg.vector_norm(moved, ord=1 if kind == LAPLACE else 2))
            alone[access] = max(alone.get(access, 0.0), shift * access.access.multipliers[one.name])
            together[access] = together.get(access, 0.0) + (shift**2 if kind == GAUSSIAN else 0.0)
        for opened, square in together.items():
            merged = math.sqrt(square) * opened.access.multiplier if square else 0.0
            found.append(round(max(merged, alone[opened]), 12))
    return found


def parts_add_up(run: Callable[[Any], Any], both: Any, first: Any, second: Any) -> None:
    """Given the answers so far, what is noised is a sum over records: that of two parts adds up to that of both."""
    with Door() as door:
        together, one, other = (door.walked(run, data)[0] for data in (both, first, second))
    for whole, a, b in zip(together, one, other, strict=True):
        if whole.chosen:
            continue  # scores need be no sums
        torch.testing.assert_close(whole.exact, a.exact + b.exact, rtol=1e-5, atol=1e-5)


def given_the_answers(run: Callable[[Any], Any], *data: Any) -> list[Any]:
    """What `run` gives for each of some data sets, where mechanisms answer all of them as they answer the first."""
    with Door() as door:
        return [door.walked(run, own)[1] for own in data]

"""The one door to noise, watched: the exact values that mechanisms noise, and equal answers for two data sets.

Laws written with it hold for any code between records and release: they see only what passes the door and what comes out
at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_dpgen.measure.crossings import CROSSINGS, EVIDENCE_STAGE
from lightning_dpgen.privacy.access import GAUSSIAN, LAPLACE, PURE, OpenAccess
from lightning_dpgen.privacy.noise.stream import PrivateStream


@dataclass(frozen=True)
class Noised:
    """Values to which one mechanism added noise.

    Args:
        access: the access from which the noise was taken, and the noise's name there.
        exact: the values before noise, over the standard deviation (or, for other noise, the scale) that was drawn.
        chosen: true for the scores among which the exponential mechanism chooses.
        in_units: the standard deviation, or scale, of noise on whole numbers; None for other noise.
    """

    access: OpenAccess
    name: str
    exact: Tensor
    chosen: bool = False
    in_units: float | None = None


class Door:
    """A context in which every mechanism of every account draws its Gaussian, Laplace and Gumbel noise through one place.

    It keeps the exact values, and gives the n-th values of each walk the same noisy answer. So the number of noised values
    and the size of the noise must also be the same in each walk. The exponential mechanism chooses the place in the middle.
    Randomness of records and of lots is drawn as usual.
    """

    def __init__(self) -> None:
        self._answers: list[tuple[Tensor, float]] = []
        self.walk: list[Noised] = []
        # A noise that was taken from its access and is not drawn yet.
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
        self._patch.setattr(PrivateStream, "add_rounded_normal_", lambda _, values, sigma: self._answer(values, sigma))
        self._patch.setattr(PrivateStream, "add_rounded_spherical_", lambda _, values, scale: self._answer(values, scale))
        self._patch.setattr(PrivateStream, "normal_", lambda stream, out: add(stream, out.zero_(), 1.0))
        self._patch.setattr(PrivateStream, "noisy_maximum", lambda _, scores, scale: self._choose(scores, scale))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def _noised(self) -> tuple[OpenAccess, str]:
        """Return the noise that is drawn now."""
        assert self._due is not None, "noise that was taken from no access"
        due, self._due = self._due, None
        return due

    def _choose(self, scores: Tensor, scale: float) -> int:
        # See `_answer`.
        place, scale = len(self.walk), float(f"{scale:.13g}")
        self.walk.append(Noised(*self._noised(), scores.double() / scale, chosen=True))
        if place == len(self._answers):
            self._answers.append((torch.arange(len(scores)) == len(scores) // 2, scale))
        answer, planned = self._answers[place]
        assert (len(answer), planned) == (len(scores), scale), "of other records others are chosen, or by other noise"
        return int(answer.nonzero())

    def _answer(self, values: Tensor, deviation: float) -> Tensor:
        access, name = self._noised()
        # A deviation in whole numbers is raised by a part of 2^-48, for which no law has to allow.
        deviation = float(f"{deviation:.13g}")
        place, exact = len(self.walk), values.double().flatten()
        whole = None if values.is_floating_point() else deviation
        self.walk.append(Noised(access, name, exact / deviation, in_units=whole))
        if place == len(self._answers):
            noise = torch.randn(exact.shape, generator=torch.Generator().manual_seed(place), dtype=torch.float64)
            noisy = exact + deviation * noise
            self._answers.append(((noisy if values.is_floating_point() else noisy.round()).to(values.dtype), deviation))
        answer, planned = self._answers[place]
        assert (len(answer), planned) == (len(exact), deviation), f"other records have other noise {name!r}"
        return values.copy_(answer.view_as(values))

    def walked(self, run: Callable[[Any], Any], data: Any) -> tuple[list[Noised], Any]:
        """Return what `run` noises on these data, and its result."""
        self.walk = []
        result = run(data)
        self._check_drawn()
        return self.walk, result

    def _check_drawn(self) -> None:
        assert self._due is None, f"noise {self._due[1]!r} was taken from its access, and never drawn"


def overspent(run: Callable[[Any], Any], first: Any, *others: Any) -> list[float]:
    """Return how far other data sets lie from the first, in units of what was paid for: above 1 is overspent.

    There is one number for each other data set and each access: the move of all Gaussians of the access together, against
    its merged multiplier, or the move of a single noise against its own, whichever is larger. It has 12 digits, as the
    arithmetic of this test does. A choice costs as much as its scores move apart, in units of the noise. Data sets behind
    one that is overspent are left out.
    """
    found: list[float] = []
    with Door() as door:
        own, _ = door.walked(run, first)
        for data in others:
            found += _moves(own, door.walked(run, data)[0])
            if max(found, default=0.0) > 1.0 + 1e-9:
                break
    return found


def _moves(own: list[Noised], walk: list[Noised]) -> list[float]:
    """Return how far two walks lie apart, a number an access."""
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
    merged = {
        opened: math.sqrt(square) * opened.access.multiplier if square else 0.0 for opened, square in together.items()
    }
    return [round(max(merged[opened], alone[opened]), 12) for opened in together]


def parts_add_up(run: Callable[[Any], Any], both: Any, first: Any, second: Any) -> None:
    """Check that, given the answers so far, noised values are sums over records: two parts add up to the whole.

    Scores of crossings are lengths of such sums, so that of the whole is that of both parts at most.
    """
    with Door() as door:
        together, one, other = (door.walked(run, data)[0] for data in (both, first, second))
    for whole, a, b in zip(together, one, other, strict=True):
        if whole.access.access.stage in (CROSSINGS, EVIDENCE_STAGE):
            assert (whole.exact <= a.exact + b.exact + 1e-9).all()
            continue
        if whole.chosen:
            continue  # scores need be no sums
        torch.testing.assert_close(whole.exact, a.exact + b.exact, rtol=1e-5, atol=1e-5)


def given_the_answers(run: Callable[[Any], Any], *data: Any) -> list[Any]:
    """Return the result of `run` for each data set, while mechanisms answer all of them as they answer the first."""
    with Door() as door:
        return [door.walked(run, own)[1] for own in data]


def others_learn_the_same(run, first, second) -> None:
    """Check that the result of a run follows from the answers alone: it is the same for two data sets."""
    for a, b in zip(*given_the_answers(run, first, second), strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))

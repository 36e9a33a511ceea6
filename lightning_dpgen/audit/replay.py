"""A run made again on other records, with the noisy values that it has released: all that it would have measured, exactly.

The noise of a run is drawn by its stream, and each query follows from what was released before. So a stream that hands out
the noisy values of an earlier run leads any code along that run's way, whatever lies between two accesses, and sees the
exact values on its own records. Both together are the likelihood of the released values under two data sets.
Fits between two accesses are made once, and held for all of thousands of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.records import Records
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.measure.workload import State, Workload
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.privacy.access import GAUSSIAN, PURE, OpenAccess
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan

# From this deviation on, in whole numbers, the probability of one is the density at it, but for a part of 1e-7.
_FINE = 1000.0
# The seed of words, beyond those of any noise.
_APART = 2**48


class OtherWay(RuntimeError):
    """A replayed run that asks for other noises than the run before it: its queries follow from more than was released."""


@dataclass(frozen=True)
class Noised:
    """Values that were released with Gaussian noise, or a choice by the exponential mechanism.

    Args:
        stage: the stage of the access, and `name` that of the noise.
        multiplier: that of the plan.
        deviation: the standard deviation of the noise, or the scale of a choice, as the mechanism has asked for it.
        exact: the values without noise, or the scores, on the records of this run. Private.
        noisy: the values as they were released, or the place that was chosen.
        chosen: whether it is a choice.
    """

    stage: str
    name: str
    multiplier: float
    deviation: float
    exact: Tensor
    noisy: Tensor
    chosen: bool = False


class WatchedStream(PrivateStream):
    """A stream that keeps what is noised, or hands out the noisy values of an earlier run.

    Args:
        seed: the seed of its noise, so that two runs can share it.
        replayed: a stream whose noisy values are handed out; None to draw.
    """

    def __init__(self, seed: int, replayed: WatchedStream | None = None) -> None:
        super().__init__(seed)
        # Two runs that draw other numbers of words share their noise still.
        self._of_words = PrivateStream(seed + _APART)
        self.noised: list[Noised] = []
        self._words_drawn: list[np.ndarray] = []
        self._replayed = replayed
        self._due: tuple[str, str, float] | None = None

    def due(self, stage: str, name: str, multiplier: float) -> None:
        """Say which noise is drawn next."""
        self._due = stage, name, multiplier

    def add_normal_(self, out: Tensor, deviation: float) -> Tensor:
        return self._noise(super().add_normal_, out, deviation)

    def add_rounded_normal_(self, out: Tensor, sigma: float) -> Tensor:
        return self._noise(super().add_rounded_normal_, out, sigma)

    def noisy_maximum(self, scores: Tensor, scale: float) -> int:
        due, place = self._taken(), torch.zeros(1, dtype=torch.int64)
        place[0] = super().noisy_maximum(scores, scale) if self._replayed is None else self._next_noisy(due, place, scale)
        self.noised.append(Noised(*due, scale, scores.clone(), place, chosen=True))
        return int(place)

    def _noise(self, add: Callable[[Tensor, float], Tensor], out: Tensor, deviation: float) -> Tensor:
        due, exact = self._taken(), out.clone()
        if self._replayed is None:
            add(out, deviation)
        else:
            out.copy_(self._next_noisy(due, out, deviation))
        self.noised.append(Noised(*due, deviation, exact, out.clone()))
        return out

    def _taken(self) -> tuple[str, str, float]:
        if self._due is None:
            raise OtherWay("noise was drawn outside of an access")
        due, self._due = self._due, None
        return due

    def words(self, size: int) -> np.ndarray:
        """Draw words; in a replay, those that the earlier run drew, and more where there are more records."""
        drawn = self._of_words.words(size)
        if self._replayed is not None and len(self._words_drawn) < len(self._replayed._words_drawn):
            earlier = self._replayed._words_drawn[len(self._words_drawn)][:size]
            drawn = np.concatenate([earlier, drawn[len(earlier) :]])
        self._words_drawn.append(drawn)
        return drawn

    def _next_noisy(self, due: tuple[str, str, float], values: Tensor, deviation: float) -> Tensor:
        place = len(self.noised)
        earlier = self._replayed.noised[place] if place < len(self._replayed.noised) else None
        if earlier is None or (earlier.stage, earlier.name) != due[:2] or earlier.noisy.shape != values.shape:
            raise OtherWay(f"stage {due[0]!r}, noise {due[1]!r}: the run on other records measures something else here")
        if earlier.deviation != deviation:
            raise OtherWay(f"stage {due[0]!r}, noise {due[1]!r}: the size of the noise depends on the records")
        return earlier.noisy


class WatchedAccount(Account):
    """An account in memory whose stream is told the name of each noise.

    Args:
        plan: the plan of the run.
        stream: see `WatchedStream`.
    """

    def __init__(self, plan: Plan, stream: WatchedStream) -> None:
        super().__init__(plan, stream=stream)

    @contextmanager
    def open(self, stage: str, **keywords) -> Iterator[OpenAccess]:
        with super().open(stage, **keywords) as opened:
            consume = opened.consume

            def told(name: str, kind: str = GAUSSIAN) -> float:
                multiplier = consume(name, kind)
                self.stream.due(stage, name, multiplier)
                return multiplier

            opened.consume = told
            yield opened


def check_replayable(plan: Plan) -> None:
    """Raise ValueError for a plan whose accesses cannot be replayed: lots, and noise but Gaussian noise and choices."""
    for stage in plan.stages:
        if stage.access.sample_rate < 1.0:
            raise ValueError(f"stage {stage.name!r}: a lot holds records by chance; expected passes over all records")
        kinds = {*stage.access.kinds.values()}
        if kinds and (kinds != {PURE} or len(stage.access.kinds) < len(stage.access.multipliers)):
            raise ValueError(f"stage {stage.name!r}: has noise that is not Gaussian, and no choice: {stage.access.kinds}")


def compare_noised(first: Noised, other: Noised) -> tuple[float, float, float]:
    """Compare noised values of a run with those of its replay on other records.

    Returns:
        The logarithm of how much likelier the values are on the other records than on their own; the square of the mu that
        endless runs would show of it; and how far apart the exact values are, in deviations of the noise. Scores of a
        choice are as far apart as its epsilon at most.
    """
    if first.chosen:
        return _compared_choices(first, other)
    difference = (other.exact - first.exact).double().flatten()
    noise = (first.noisy - first.exact).double().flatten()
    square = float(difference @ difference)
    likelier = (float(difference @ noise) - 0.5 * square) / first.deviation**2
    if not first.exact.is_floating_point() and first.deviation < _FINE:
        moved = difference != 0.0
        both = torch.stack([noise - difference, noise])[:, moved].abs() / first.deviation
        of_other, of_own = _log_probabilities(both, 0.5 / first.deviation)
        likelier = float((of_other - of_own).sum())
    return likelier, square / first.deviation**2, square**0.5 / first.deviation


def _compared_choices(first: Noised, other: Noised) -> tuple[float, float, float]:
    """Compare choices by their probabilities, in closed form; the sum of both divergences stands for the squared mu."""
    of_own, of_other = (torch.log_softmax(one.exact.double() / first.deviation, dim=0) for one in (first, other))
    likelier = of_other - of_own
    square = float(((of_other.exp() - of_own.exp()) * likelier).sum())
    moved = float((other.exact - first.exact).abs().max())
    return float(likelier[int(first.noisy)]), square, 2.0 * moved / first.deviation


def _log_probabilities(sizes: Tensor, half: float) -> Tensor:
    """Return the logarithms of the probabilities that a standard normal number is within `half` of sizes, 0 or more."""
    near, far = torch.special.log_ndtr(half - sizes), torch.special.log_ndtr(-half - sizes)
    return near + torch.log(-torch.expm1(far - near))


class HeldRecipe(Recipe):
    """A recipe whose stages after a fit are held: they start from the outcome of one run.

    Such a fit is post-processing, and a bound has to hold for any of its results, so those accesses are as private as they
    were; a stage's own rounds still follow from each other.

    Args:
        recipe: the recipe.
        state: the measurements of one run.
        held: the stages from the first that follows from a fit.
    """

    def __init__(self, recipe: Recipe, state: State, held: frozenset[str]) -> None:
        self._recipe, self._state, self.held = recipe, state, held
        self.k, self.n = recipe.k, recipe.n

    @classmethod
    def of(cls, recipe: Recipe, records: Records, component: torch.Tensor, plan: Plan) -> HeldRecipe:
        """Make one run, and hold the stages from the first that follows from a fit, since later ones use the same one.

        Args:
            records, component: made-up records, and the component of each.
            plan: the plan of a run, which holds the stages of the recipe.
        """
        stages = {workload.stage for workload in recipe.workloads}
        stages_of_recipe = tuple(stage for stage in plan.stages if stage.name in stages)
        # Its records are made up: an audit that is made again starts from the same run.
        stream = PrivateStream(seed=0)
        account = Account(Plan(stages_of_recipe, plan.target_epsilon, plan.delta, max_rows=plan.max_rows), stream=stream)
        state, late_stages = {}, set()
        for workload in recipe.workloads:
            statistics = recipe.statistics(workload.stage, state)
            if late_stages or workload.stage in recipe.from_fits:
                late_stages.add(workload.stage)
            while account.remaining(workload.stage):
                found = workload.measure(statistics, records, component, account)
                state = {**state, workload.stage: (*state.get(workload.stage, ()), found)}
                statistics = recipe.statistics(workload.stage, state)
        return cls(recipe, state, frozenset(late_stages))

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The workloads of the recipe."""
        return self._recipe.workloads

    def statistics(self, stage: str, state: State) -> Mapping[str, Statistic]:
        """Return the statistics of a stage."""
        if stage in self.held:
            state = {**state, **{own: made for own, made in self._state.items() if own != stage}}
        return self._recipe.statistics(stage, state)

    def warnings(self, plan: Plan) -> list[str]:
        """Return none: the recipe itself warns of its plan."""
        return []

    def _mixture(self, state: State) -> Mixture:
        return self._recipe.fit(state)

"""A range of numbers as choices: bins, which a density may cut, and special values that are choices of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

Transform = Literal["linear", "log", "sqrt"]
TRANSFORMS = get_args(Transform)
# A bin of real numbers holds at least as many as this, so that a value can be drawn that is not a special one.
_CROWD = 4096
# A single number with more than this part of the mass of a bin has a bin of its own, if it is beyond the noise.
_ATOM_SHARE, _ATOM_SIGMAS = 0.25, 4.0
# The least width of a bin of real numbers, in steps of float64.
_LEAST_STEPS = 2.0**14
# A bin begins behind the widest gap that is at most this part of its mass away.
_REACH = 0.5
# The part of the bins that numbers without one of their own keep at least.
_LEAST_KEPT_SHARE = 0.7


@dataclass(frozen=True, eq=False)
class Density:
    """Pieces of the numbers between two bounds, in each of which numbers are spread evenly. Public.

    Args:
        starts: (p,) the least number of each piece, increasing; the first is the lower bound.
        masses: (p,) their counts, or shares, 0 and more.
        high: the upper bound, included.
        whole: whether numbers are whole.

    Example:
        >>> density = Density(np.array([0, 1, 50]), np.array([80.0, 15.0, 5.0]), 99, True)
        >>> density.cut(4).tolist()
        [0, 1, 23, 45]
    """

    starts: np.ndarray
    masses: np.ndarray
    high: int | float
    whole: bool

    @property
    def ends(self) -> np.ndarray:
        """Where each piece ends: the next one's start, or behind the upper bound."""
        return np.append(self.starts[1:], self.high + self.whole)

    def cut(self, bins: int, noise: float = 0.0) -> np.ndarray:
        """Return the starts of about this many bins: single numbers of much mass alone, all others in bins of like mass.

        Where there are gaps, as between the hours of clock times that are written 1359 and 1400, bins end at them, so that
        none mixes what lies on both sides.

        Args:
            bins: their number, but for those of single numbers.
            noise: the standard deviation of a mass.
        """
        total = float(self.masses.sum())
        if total <= 0.0:
            return self.starts[:1]
        atom = self.masses > max(_ATOM_SHARE * total / bins, _ATOM_SIGMAS * noise)
        atom &= (self.ends - self.starts == 1) if self.whole else np.zeros(len(atom), bool)
        rest = np.where(atom, 0.0, self.masses)
        below = np.concatenate([[0.0], rest.cumsum()])
        cuts = np.empty(0)
        if below[-1] > 0.0:
            count = int(np.clip(round(below[-1] / total * bins), max(round(_LEAST_KEPT_SHARE * bins), 1), bins))
            wanted = np.arange(1, count) / count * below[-1]
            piece = np.clip(np.searchsorted(below, wanted, side="right") - 1, 0, len(rest) - 1)
            share = (wanted - below[piece]) / np.maximum(rest[piece], 1e-300)
            cuts = self.starts[piece] + np.clip(share, 0.0, 1.0) * (self.ends - self.starts)[piece]
            cuts = self._behind_gaps(cuts, wanted, below[:-1], _REACH * below[-1] / count)
        if self.whole:
            cuts = np.rint(cuts).astype(self.starts.dtype)
        starts = np.unique(np.concatenate([self.starts[:1], cuts, self.starts[atom], self.ends[atom]]))
        if self.whole:
            return self._with_mass(starts[starts <= self.high])
        # Real numbers of a bin must be told apart.
        room = _LEAST_STEPS * np.spacing(max(abs(float(self.starts[0])), abs(float(self.high))))
        kept = [starts[0]]
        for start in starts[1:]:
            if start - kept[-1] >= room and self.high - start >= room:
                kept.append(start)
        return self._with_mass(np.array(kept))

    def _behind_gaps(self, cuts: np.ndarray, wanted: np.ndarray, below: np.ndarray, reach: float) -> np.ndarray:
        """Move cuts (c,) behind the widest piece without mass that has about as much mass below as they have (c,)."""
        gaps = np.flatnonzero((self.masses <= 0.0) & (self.starts > self.starts[0]) & (self.ends <= self.high))
        widths, moved = (self.ends - self.starts)[gaps], cuts.astype(np.float64)
        firsts = np.searchsorted(below[gaps], wanted - reach)
        for place, (first, after) in enumerate(zip(firsts, np.searchsorted(below[gaps], wanted + reach), strict=True)):
            if first < after:
                moved[place] = self.ends[gaps[first + int(widths[first:after].argmax())]]
        return moved

    def _with_mass(self, starts: np.ndarray) -> np.ndarray:
        """Return the starts of bins without those of no mass, which belong to the bin before, or to the second one.

        A wide bin without mass would be filled by the noise of the tables in which it is measured.
        """
        there = self.between(starts, np.append(starts[1:], self.ends[-1])) > 0.0
        first = int(np.argmax(there))
        # A table of one bin has nothing to learn, and what was bought shall not be lost.
        if there.sum() < 2:
            return starts
        return np.concatenate([starts[:1], starts[first + 1 :][there[first + 1 :]]])

    def between(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the mass of the numbers from each start, below each end."""
        edges = np.append(self.starts, self.ends[-1]).astype(np.float64)
        below = np.concatenate([[0.0], self.masses.cumsum()])
        return np.interp(ends.astype(np.float64), edges, below) - np.interp(starts.astype(np.float64), edges, below)


@dataclass(frozen=True, eq=False)
class Bins:
    """Numbers from `low` to `high` cut into bins, the first choices, and special values, the last ones.

    A special value belongs to no bin. A bin of whole numbers that holds nothing else is left out.

    Args:
        starts: (bins,) the least number of each bin, increasing.
        special: (special,) increasing, anywhere.
        density: by which the numbers of a bin are drawn; None for evenly.

    Example:
        >>> bins = Bins.cut(0, 9, True, 3, "linear", 1, np.array([0, 99]))
        >>> bins.starts.tolist(), bins.count
        ([1, 4, 7], 5)
        >>> bins.encode(np.array([1, 9, 99, 0])).tolist()
        [0, 2, 4, 3]
    """

    low: int | float
    high: int | float
    whole: bool
    starts: np.ndarray
    special: np.ndarray
    density: Density | None = None

    def __post_init__(self) -> None:
        if self.whole:
            # Numbers of a bin that is left out would go to the one before it, but all of them are special.
            object.__setattr__(self, "starts", self.starts[self._free(self.starts) > 0])
            return
        ends = np.append(self.starts[1:], self.high)
        if len(self.starts) > 1 or self.low < self.high:
            crowd = _CROWD * np.spacing(np.maximum(np.abs(self.starts), np.abs(ends)))
            if (ends - self.starts < crowd).any():
                raise ValueError("bins too narrow for float64 to tell numbers apart: expected fewer, or a wider range")
        elif self.low in self.special:
            object.__setattr__(self, "starts", self.starts[:0])

    @classmethod
    def cut(
        cls, low: int | float, high: int | float, whole: bool, bins: int, transform: str, unit: int, special: np.ndarray
    ) -> Bins:
        """Cut at most this many bins, of equal width after a transformation of the distance from `low`.

        Where there are no more whole numbers than bins, each has its own.

        Args:
            transform: ``linear``, ``log`` (log1p) or ``sqrt``.
            unit: the number that counts as 1 in the transformation.
        """
        first, last = low, high
        if whole:
            # Special values at the ends take no part.
            inside = set(special.tolist())
            while first in inside and first <= last:
                first += 1
            while last in inside and first <= last:
                last -= 1
            taken = np.count_nonzero((special >= first) & (special <= last))
            if last - first + 1 - taken <= bins:
                return cls(low, high, True, np.arange(first, last + 1), special)
        width = (last - first + whole) / unit
        parts = np.arange(bins) / bins
        if transform == "log":
            points = np.expm1(parts * np.log1p(width))
        else:
            points = width * (parts if transform == "linear" else parts**2)
        points = first + points * unit
        starts = np.unique(np.rint(points).astype(np.int64)) if whole else points[: bins if low < high else 1]
        return cls(low, high, whole, starts, special)

    @property
    def count(self) -> int:
        """The number of choices."""
        return len(self.starts) + len(self.special)

    @property
    def ranges(self) -> list[tuple[int, int] | tuple[float, float]]:
        """The first and the last number of each bin; of real numbers, where the next begins."""
        ends = np.append(self.starts[1:] - self.whole, self.high).tolist() if len(self.starts) else []
        return list(zip(self.starts.tolist(), ends, strict=True))

    def alone(self, code: int) -> bool:
        """Tell whether a choice stands for one number only."""
        if code >= len(self.starts):
            return True
        return bool(self._free(self.starts)[code] == 1) if self.whole else self.low == self.high

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """Return the choice (n,) of numbers, each in the range or special."""
        codes = np.searchsorted(self.starts, numbers, side="right") - 1
        if len(self.special):
            place = np.minimum(np.searchsorted(self.special, numbers), len(self.special) - 1)
            codes = np.where(self.special[place] == numbers, len(self.starts) + place, codes)
        return codes

    def decode(self, codes: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Draw numbers (n,) from their bins, evenly or by the density; special ones stay as they are."""
        binned = codes < len(self.starts)
        numbers = np.empty(len(codes), np.int64 if self.whole else np.float64)
        numbers[~binned] = self.special[codes[~binned] - len(self.starts)]
        numbers[binned] = self._drawn(codes[binned], random)
        return numbers

    def shares(self, intervals: Sequence[tuple[int | float, int | float]]) -> np.ndarray:
        """Return for each choice (count,) the share of its numbers, as they are drawn, that belong to closed intervals.

        Args:
            intervals: of numbers, apart from each other.

        Example:
            >>> Bins.cut(0, 9, True, 2, "linear", 1, np.array([8])).shares([(0, 3), (8, 9)]).tolist()
            [0.8, 0.25, 1.0]
        """
        shares = np.zeros(self.count)
        firsts, lasts = (np.array(ends) for ends in zip(*intervals, strict=True)) if intervals else (np.zeros(0),) * 2
        if len(self.starts):
            ends = np.append(self.starts[1:], self.high + self.whole)
            whole = self._mass_below(self.starts), self._mass_below(ends)
            for first, last in zip(firsts, lasts + self.whole, strict=True):
                begin, end = (np.clip(edge, self.starts, ends) for edge in (first, last))
                shares[: len(self.starts)] += self._mass_below(end) - self._mass_below(begin)
            shares[: len(self.starts)] /= whole[1] - whole[0]
        inside = (firsts <= self.special[:, None]) & (self.special[:, None] <= lasts)
        shares[len(self.starts) :] = inside.any(axis=1)
        return shares

    def _mass_below(self, numbers: np.ndarray) -> np.ndarray:
        """Return how much of all that bins may draw lies below numbers (n,) of the range."""
        if self.density is None:
            starts, below = self.starts, np.arange(len(self.starts) + 1.0)
        else:
            starts, _, below = self._parts
        ends = np.append(starts[1:], self.high + self.whole)
        part = np.maximum(np.searchsorted(starts, numbers, side="right") - 1, 0)
        widths, into = ends[part] - starts[part], np.clip(numbers - starts[part], 0, None)
        if self.whole:
            inside = self._inside()
            special = np.searchsorted(inside, np.stack([starts[part], np.minimum(numbers, ends[part]), ends[part]]))
            widths, into = widths - (special[2] - special[0]), into - (special[1] - special[0])
        return below[part] + np.minimum(into / np.where(widths > 0, widths, 1), 1.0) * (below[part + 1] - below[part])

    def _drawn(self, codes: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Draw numbers (n,) of bins."""
        # Where all numbers are special, there is no bin.
        if self.density is None or not len(self.starts):
            if self.whole:
                return self._draw_whole(self.starts, codes, random)
            return self._draw_real(self.starts, np.append(self.starts[1:], self.high), codes, random)
        starts, first, below = self._parts
        begin, end = first[codes], first[codes + 1]
        drawn = below[begin] + random.random(len(codes)) * (below[end] - below[begin])
        # Rounding may lead to the next bin's first part.
        parts = np.clip(np.searchsorted(below, drawn, side="right") - 1, begin, end - 1)
        if self.whole:
            return self._draw_whole(starts, parts, random)
        return self._draw_real(starts, np.append(starts[1:], self.high), parts, random)

    @cached_property
    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts of parts of bins of one density each, the first part (bins + 1,) of bins, the mass (parts + 1,) below.

        A part holds a number that is not special.
        """
        assert self.density is not None
        inside = self.density.starts[self.density.starts >= self.starts[0]]
        starts = np.union1d(self.starts, inside.astype(self.starts.dtype))
        if self.whole:
            starts = starts[self._free(starts) > 0]
        ends = np.append(starts[1:], self.high + self.whole)
        mass = self.density.between(starts, ends)
        # A bin whose noisy mass is 0 is spread evenly.
        bin_of = np.searchsorted(self.starts, starts, side="right") - 1
        empty = np.bincount(bin_of, mass, len(self.starts))[bin_of] <= 0.0
        mass = np.where(empty, ends - starts, mass)
        first = np.append(np.searchsorted(starts, self.starts), len(starts))
        return starts, first, np.concatenate([[0.0], mass.cumsum()])

    def _inside(self) -> np.ndarray:
        """Return the special values of the range."""
        return self.special[(self.special >= self.low) & (self.special <= self.high)]

    def _free(self, starts: np.ndarray) -> np.ndarray:
        """Count the whole numbers of each bin that are not special, before bins without any are left out."""
        inside = self._inside()
        ends = np.append(starts[1:], self.high + 1)
        return ends - starts - (np.searchsorted(inside, ends) - np.searchsorted(inside, starts))

    def _draw_whole(self, starts: np.ndarray, codes: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Draw a whole number that is not special from the range of each code, up to the next range's start."""
        inside = self._inside()
        # Numbers are drawn by their rank among those that are not special.
        ranks = starts - self.low - np.searchsorted(inside, starts)
        drawn = ranks[codes] + random.integers(0, self._free(starts)[codes])
        skipped = np.searchsorted(inside - self.low - np.arange(len(inside)), drawn, side="right")
        return self.low + drawn + skipped

    def _draw_real(
        self, starts: np.ndarray, ends: np.ndarray, codes: np.ndarray, random: np.random.Generator
    ) -> np.ndarray:
        """Draw a real number that is not special from the range of each code."""
        # Rounding may reach the end of a range: the last number that still belongs to it is taken.
        lasts = np.append(np.nextafter(ends[:-1], -np.inf), ends[-1:])
        numbers = np.empty(len(codes))
        todo = np.arange(len(codes))
        while len(todo):
            chosen = codes[todo]
            drawn = starts[chosen] + random.random(len(todo)) * (ends[chosen] - starts[chosen])
            numbers[todo] = np.minimum(drawn, lasts[chosen])
            todo = todo[np.isin(numbers[todo], self.special)]
        return numbers

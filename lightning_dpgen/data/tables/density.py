"""The density of a column's numbers, from pieces of known mass: bins are cut by it, and numbers of a bin drawn by it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# A single number with more than this part of the mass of a bin has a bin of its own, if it is beyond the noise.
_ATOM, _CERTAIN = 0.25, 4.0
# The least width of a bin of real numbers, in steps of float64.
_ROOM = 2.0**14
# A bin begins behind the widest gap that is at most this part of its mass away.
_REACH = 0.5
# The part of the bins that numbers without one of their own keep at least.
_KEPT = 0.7


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
        atom = self.masses > max(_ATOM * total / bins, _CERTAIN * noise)
        atom &= (self.ends - self.starts == 1) if self.whole else np.zeros(len(atom), bool)
        rest = np.where(atom, 0.0, self.masses)
        below = np.concatenate([[0.0], rest.cumsum()])
        cuts = np.empty(0)
        if below[-1] > 0.0:
            count = int(np.clip(round(below[-1] / total * bins), max(round(_KEPT * bins), 1), bins))
            wanted = np.arange(1, count) / count * below[-1]
            piece = np.clip(np.searchsorted(below, wanted, side="right") - 1, 0, len(rest) - 1)
            share = (wanted - below[piece]) / np.maximum(rest[piece], 1e-300)
            cuts = self.starts[piece] + np.clip(share, 0.0, 1.0) * (self.ends - self.starts)[piece]
            cuts = self._behind_gaps(cuts, wanted, below[:-1], _REACH * below[-1] / count)
        if self.whole:
            cuts = np.rint(cuts).astype(self.starts.dtype)
        found = np.unique(np.concatenate([self.starts[:1], cuts, self.starts[atom], self.ends[atom]]))
        if self.whole:
            return self._with_mass(found[found <= self.high])
        # Real numbers of a bin must be told apart.
        room = _ROOM * np.spacing(max(abs(float(self.starts[0])), abs(float(self.high))))
        kept = [found[0]]
        for start in found[1:]:
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

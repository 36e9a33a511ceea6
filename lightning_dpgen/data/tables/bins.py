"""A range of numbers as choices: bins, and special values that are choices of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TRANSFORMS = ("linear", "log", "sqrt")
# A bin of real numbers holds at least as many as this, so that a value can be drawn that is not a special one.
_CROWD = 4096


@dataclass(frozen=True, eq=False)
class Bins:
    """Numbers from `low` to `high` cut into bins, the first choices, and special values, the last ones.

    A special value belongs to no bin. A bin of whole numbers that holds nothing else is left out.

    Args:
        starts: (bins,) the least number of each bin, increasing.
        special: (special,) increasing, anywhere.

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
        """Draw numbers (n,) uniformly from their bins; special ones stay as they are."""
        binned = codes < len(self.starts)
        numbers = np.empty(len(codes), np.int64 if self.whole else np.float64)
        numbers[~binned] = self.special[codes[~binned] - len(self.starts)]
        numbers[binned] = (self._draw_whole if self.whole else self._draw_real)(codes[binned], random)
        return numbers

    def _inside(self) -> np.ndarray:
        """Return the special values of the range."""
        return self.special[(self.special >= self.low) & (self.special <= self.high)]

    def _free(self, starts: np.ndarray) -> np.ndarray:
        """Count the whole numbers of each bin that are not special, before bins without any are left out."""
        inside = self._inside()
        ends = np.append(starts[1:], self.high + 1)
        return ends - starts - (np.searchsorted(inside, ends) - np.searchsorted(inside, starts))

    def _draw_whole(self, codes: np.ndarray, random: np.random.Generator) -> np.ndarray:
        inside = self._inside()
        # Numbers are drawn by their rank among those that are not special.
        ranks = self.starts - self.low - np.searchsorted(inside, self.starts)
        drawn = ranks[codes] + random.integers(0, self._free(self.starts)[codes])
        skipped = np.searchsorted(inside - self.low - np.arange(len(inside)), drawn, side="right")
        return self.low + drawn + skipped

    def _draw_real(self, codes: np.ndarray, random: np.random.Generator) -> np.ndarray:
        ends = np.append(self.starts[1:], self.high)
        # Rounding may reach the end of a bin: the last number that still belongs to it is taken.
        lasts = np.append(np.nextafter(ends[:-1], -np.inf), ends[-1:])
        numbers = np.empty(len(codes))
        todo = np.arange(len(codes))
        while len(todo):
            starts = self.starts[codes[todo]]
            drawn = starts + random.random(len(todo)) * (ends[codes[todo]] - starts)
            numbers[todo] = np.minimum(drawn, lasts[codes[todo]])
            todo = todo[np.isin(numbers[todo], self.special)]
        return numbers

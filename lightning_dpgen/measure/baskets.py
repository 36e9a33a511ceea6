"""Statistics of baskets, normalised by their size, so that no basket has to be cut; and counts of baskets by size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import scipy.sparse
import torch
from scipy.stats import norm
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.measure.workload import Measured
from lightning_dpgen.sampling.csr import mark_entries

# Bits of the bound. The sums of 2^32 baskets stay below the end of int64.
_BITS = 30
# Baskets that are taken at a time. Only their entries take memory, and a table of all pairs is made for each such part.
_AT_ONCE = 1 << 14


class _BySize(Statistic):
    """A statistic of baskets in strata of their sizes: each basket is one whole number, as many times as it has entries.

    Args:
        layout: the baskets' layout, whose last group is the bin of their number of items (`Layout.sizes`).
        strata: the stratum of each bin.
    """

    bound, unit, at_once = 1.0, 2.0**-_BITS, _AT_ONCE

    def __init__(self, layout: Layout, strata: Sequence[int]) -> None:
        if not layout.sizes:
            raise ValueError("records without sizes: expected baskets, whose last group says how many items they hold")
        if len(strata) != len(layout.sizes) or sorted(set(strata)) != list(range(max(strata) + 1)):
            raise ValueError(f"strata={strata}: expected the stratum, from 0, of each of {len(layout.sizes)} bins of sizes")
        self.layout, self._strata, self.strata = layout, np.asarray(strata), max(strata) + 1


class ItemsBySize(_BySize):
    """Sums of items over the root of the basket's size, by stratum: a basket of s items is s numbers of 1 / sqrt(s).

    Where there is a label, strata are those of its first value, then those of the next.
    """

    def __init__(self, layout: Layout, strata: Sequence[int]) -> None:
        super().__init__(layout, strata)
        self._label = layout.label
        self.shape = (self.strata * (1 if layout.label is None else layout.groups[layout.label]), layout.units)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        stratum = self._strata[records.codes[:, -1]].astype(np.int64)
        if self._label is not None:
            stratum = stratum + self.strata * records.codes[:, self._label].astype(np.int64)
        units = _sets(records)
        weights = _inverse_roots(units.sum(axis=1))
        gathered = scipy.sparse.coo_array((weights, (stratum, np.arange(len(weights)))), (self.shape[0], len(weights)))
        return torch.from_numpy((gathered.tocsr() @ units).toarray())


class PairsBySize(_BySize):
    """Sums of pairs of items over the root of how many pairs the basket holds, by stratum.

    A basket of s items is s (s - 1) / 2 numbers of the inverse root of that; pairs of other items than `items` are left
    out. Pairs (i, j) with i below j are in the order of ``torch.triu_indices(len(items), len(items), 1)``.

    Args:
        layout, strata: see `ItemsBySize`.
        items: the items that are paired, public; None for all.
    """

    def __init__(self, layout: Layout, strata: Sequence[int], items: Sequence[int] | None = None) -> None:
        super().__init__(layout, strata)
        self.of = np.arange(layout.units) if items is None else np.asarray(items)
        distinct = np.unique(self.of)
        if len(self.of) < 2 or len(distinct) < len(self.of) or not np.isin(distinct, np.arange(layout.units)).all():
            raise ValueError(f"items: expected 2 or more different ones, from 0 to {layout.units - 1}")
        self.shape = (self.strata, len(self.of) * (len(self.of) - 1) // 2)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        rows = []
        stratum, units = self._strata[records.codes[:, -1]], _sets(records)
        for own in range(self.strata):
            baskets = units[stratum == own]
            sizes = baskets.sum(axis=1)
            weights = _inverse_roots(sizes * (sizes - 1) // 2)
            some = baskets[:, self.of]
            pairs = (some.T @ (scipy.sparse.diags_array(weights, dtype=np.int64) @ some)).toarray()
            rows.append(np.concatenate([row[place:] for place, row in enumerate(pairs, start=1)]))
        return torch.from_numpy(np.stack(rows))


def _sets(records: Encoded) -> scipy.sparse.csr_array:
    """Return baskets as 0 and 1, int64, whatever their units hold: weights follow from the numbers that they multiply."""
    return mark_entries(scipy.sparse.csr_array(records.units)).astype(np.int64)


def _inverse_roots(entries: np.ndarray) -> np.ndarray:
    """Return the largest whole numbers of which so many, squared and added up, are at most the squared bound."""
    distinct, places = np.unique(np.maximum(entries, 1), return_inverse=True)
    return np.array([math.isqrt(4**_BITS // number) for number in distinct.tolist()], dtype=np.int64)[places]


# The sizes of a stratum are at most so many times its smallest.
_WIDER = 1.6
# Pairs of baskets in strata that begin at this size or below are summed apart from those of larger baskets.
_SMALL = 8
# A count that is above so many deviations of its noise stands for itself.
CLEAR = 2.5
# With this probability noise alone would let one of all counts stand out for sure.
_CHANCE = 0.01
# Other counts are there where they lower the squared error, in deviations of the noise, by so much (Akaike).
_GAIN = 2.0
# Baskets of a bin are not of all its sizes alike, so that totals are right within this part.
_WITHIN = 0.03


def strata(layout: Layout) -> list[int]:
    """Return the stratum of each bin of sizes: empty baskets, those of one item, then wider and wider strata.

    Example:
        >>> strata(Layout(9, levels=1, groups=(10,), most=9, sizes=tuple(range(10))))
        [0, 1, 2, 2, 3, 3, 3, 4, 4, 4]
    """
    numbers, first = [], -1.0
    for size in layout.sizes:
        if size > _WIDER * first or size < 2:
            numbers.append(len(set(numbers)))
            first = size
        else:
            numbers.append(numbers[-1])
    return numbers


def halves(layout: Layout) -> list[int]:
    """Return for each bin 0 if its stratum begins at a small size, else 1."""
    first: dict[int, int] = {}
    for size, stratum in zip(layout.sizes, strata(layout), strict=True):
        first.setdefault(stratum, size)
    return [int(first[stratum] > _SMALL) for stratum in strata(layout)]


@dataclass(frozen=True)
class BasketSizes:
    """Counts of baskets by size, as noise leaves them.

    Args:
        counts: (labels, bins) 0 or more.
        stratum: (bins,) the stratum of each bin.
        half: (strata,) the half of the pairs that each stratum belongs to.
        size: (strata,) mean size.
        roots: (labels, strata) sums over baskets of the root of their size.
        pair_roots: (labels, strata) sums over baskets of the root of how many pairs they hold.
    """

    counts: Tensor
    stratum: Tensor
    half: Tensor
    size: Tensor
    roots: Tensor
    pair_roots: Tensor

    @property
    def live(self) -> Tensor:
        """Return which strata have baskets (strata,)."""
        return self.roots.sum(dim=0) > 0.0

    @classmethod
    def of(cls, layout: Layout, sizes: Measured, items: Measured, pairs: Measured | None) -> BasketSizes:
        """Find the counts that agree with what was measured. Post-processing.

        Args:
            sizes: counts by label and bin.
            items: sums of `ItemsBySize`.
            pairs: sums of `PairsBySize` of all items; None where some items are not paired.
        """
        bins = _Bins(layout)
        counts = torch.from_numpy(_counted(bins, sizes, items, pairs))
        mean, root, pair_root = (torch.from_numpy(own) for own in (bins.mean, bins.root, bins.pair_root))
        stratum = torch.from_numpy(bins.stratum)
        member = torch.nn.functional.one_hot(stratum).double()
        of_all = counts.sum(dim=0)
        # Any size is fine for a stratum without baskets.
        size = ((of_all * mean) @ member + 1e-9 * (mean @ member) / member.sum(dim=0)) / (of_all @ member + 1e-9)
        half = torch.zeros(len(size), dtype=torch.int64).scatter_(0, stratum, torch.from_numpy(bins.half))
        return cls(counts, stratum, half, size, (counts * root) @ member, (counts * pair_root) @ member)


class _Bins:
    """Bins of sizes: their widths, strata and halves, and means over their sizes."""

    def __init__(self, layout: Layout) -> None:
        ends = [*layout.sizes[1:], layout.most + 1]
        sizes = [np.arange(a, b, dtype=np.float64) for a, b in zip(layout.sizes, ends, strict=True)]
        self.width = np.array([float(len(bin_sizes)) for bin_sizes in sizes])
        self.mean = np.array([bin_sizes.mean() for bin_sizes in sizes])
        self.root = np.array([np.sqrt(bin_sizes).mean() for bin_sizes in sizes])
        self.pair_root = np.array([np.sqrt(bin_sizes * (bin_sizes - 1.0) / 2.0).mean() for bin_sizes in sizes])
        self.stratum, self.half = np.array(strata(layout)), np.array(halves(layout))


def _counted(bins: _Bins, sizes: Measured, items: Measured, pairs: Measured | None) -> np.ndarray:
    """Return the counts (labels, bins) whose sums are nearest to noisy ones, none below 0.

    A few of the largest baskets hold more pairs than all others, and their counts are mostly noise, so neither the noisy
    counts nor 0 will do. The sum over all items of what a stratum adds tells of large baskets, and that over all pairs of
    a half more so. Counts that do not stand out of their noise are thought of as runs, each of which begins after one that
    does. Baskets there get fewer with each size: such a run is a sum of uniform distributions from its beginning, which
    join as long as they lower the squared error by more than chance would.
    """
    noisy = sizes.sums.view(-1, len(bins.width)).numpy()
    if not sizes.deviation:
        return noisy.clip(min=0.0)
    labels = len(noisy)
    # Rows of numbers that were measured, in deviations of their noise, columns of counts.
    rows, target = [np.eye(noisy.size) / sizes.deviation], [noisy.ravel() / sizes.deviation]
    by_stratum = np.eye(bins.stratum.max() + 1)[:, bins.stratum] * bins.root
    totals = [(np.kron(np.eye(labels), by_stratum), items, items.sums)]
    if pairs is not None:
        by_half = np.eye(len(pairs.sums))[:, bins.half] * bins.pair_root
        totals.append((np.tile(by_half, labels), pairs, pairs.sums))
    for row, measured, sums in totals:
        total = sums.sum(dim=1).numpy()
        deviation = np.hypot(measured.deviation * sums.shape[1] ** 0.5, _WITHIN * total)
        rows.append(row / deviation[:, None])
        target.append(total / deviation)
    clear, rest = _columns(noisy > CLEAR * sizes.deviation, bins.width)
    # One of many counts is beyond its noise by chance.
    if (noisy > norm.isf(_CHANCE / noisy.size) * sizes.deviation).any():
        return _joined(np.concatenate(rows), np.concatenate(target), clear, rest).reshape(noisy.shape)
    return _decreasing(np.concatenate(rows), np.concatenate(target), noisy.shape, bins)


def _decreasing(rows: np.ndarray, target: np.ndarray, shape: tuple[int, int], bins: _Bins) -> np.ndarray:
    """Fit counts (labels, bins) that get fewer with each size, where none stands out.

    One of them alone would be the size of all baskets. Empty ones are left out, and where the fit leaves nothing all sizes
    are alike.
    """
    few = np.zeros(shape, bool)
    few[:, 0] = bins.mean[0] == 0.0 and shape[1] > 1
    columns = np.stack(_columns(few, bins.width)[1], axis=1)
    many, _ = scipy.optimize.nnls(rows @ columns, target)
    found = columns @ (many if many.any() else np.ones_like(many))
    return found.reshape(shape)


def _columns(clear: np.ndarray, width: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the distributions over counts (labels, bins) that are clear, and uniform ones from the start of each run."""
    alone, uniform = [], []
    for place in np.ndindex(clear.shape):
        label, last = place
        first = last
        while not clear[place] and first > 0 and not clear[label, first - 1]:
            first -= 1
        column = np.zeros(clear.shape)
        column[label, first : last + 1] = width[first : last + 1] / width[first : last + 1].sum()
        (alone if clear[place] else uniform).append(column.ravel())
    return alone, uniform


def _joined(rows: np.ndarray, target: np.ndarray, chosen: list[np.ndarray], rest: list[np.ndarray]) -> np.ndarray:
    """Fit sums of columns, none below 0, to a target: those chosen, and each of the rest that lowers the error enough."""

    def fitted(columns: list[np.ndarray]) -> tuple[float, np.ndarray]:
        many, error = scipy.optimize.nnls(rows @ np.stack(columns, axis=1), target)
        return error**2, np.stack(columns, axis=1) @ many

    rest = list(rest)
    error, fit = fitted(chosen)
    while rest:
        # The column that would lower the error most if all others stayed as they are.
        made = rows @ np.stack(rest, axis=1)
        chosen = [*chosen, rest.pop(int(((target - rows @ fit) @ made / np.linalg.norm(made, axis=0)).argmax()))]
        lower, joined = fitted(chosen)
        if error - lower < _GAIN:
            break
        error, fit = lower, joined
    return fit

"""Columns that tell of the label together: chosen privately among all twos and threes, by the exponential mechanism."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.measure.workload import Workload
from lightning_dpgen.models.labelled import Crossing, takes_label

# The stages of the accesses that choose, and of the one that tells how much each of what was chosen explains.
CROSSINGS, EVIDENCE_STAGE = "crossings", "evidence"
# So many are chosen, one by an access, among so many at most, of columns whose choices are joined to so many parts.
MOST_CHOSEN_CROSSINGS, _MOST, _PARTS = 3, 20_000, 4
# The most counts of labels in cells of crossings, of which there are fewer where there are many labels; and the bytes for
# each: what is known of it, twice, and the counts of all records, of some, and of some in parts.
_MOST_COUNTS, _BYTES_OF_COUNT = 1 << 24, 50
# The shares of what a recipe may spend, which are spent where a crossing that explains the labels of so many records more
# is surely found with them; and less than that is explained by what columns tell by themselves, when that is better known.
CHOICE_SHARE, EVIDENCE_SHARE, EFFECT = 0.03, 0.005, 0.2
# Choosing wrongly has the chance of e to minus this.
_SURE = 6.0
# Whole multiples of a share.
_BITS = 16


class CrossingCounts(Statistic):
    """Counts of records by label in the cells of each crossing, and the scores that they make.

    A score is how far the counts of labels are from those that a public model gives to the cells:
    ``sum of |n(cell, label) - n(cell) q(label | cell)|``. A record added moves it by ``1 - q`` in the cell of its own label
    and by ``q`` in those of all others: by 2 at most.

    Args:
        layout: with a label.
        crossings: the candidates.
        shares: for each of them (cells, labels) the shares q.
        choice: whether one of them is chosen; else all scores are released, whose bound is that of them together.

    Raises:
        ValueError: for shares that do not add up to 1 in a cell.

    Example:
        >>> layout, both = Layout(0, groups=(2, 2, 2), label=2), Crossing((0, 1), ((0, 1), (0, 1)))
        >>> counts = CrossingCounts(layout, [both], [torch.full((4, 2), 0.5)])
        >>> xor = Encoded(np.zeros((4, 0)), np.array([[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]]))
        >>> (counts.scores(counts.sums(xor, torch.zeros(4, dtype=torch.int64))) * counts.unit).tolist()
        [4.0]
    """

    unit, at_once = 2.0**-_BITS, 1 << 16

    def __init__(
        self, layout: Layout, crossings: Sequence[Crossing], shares: Sequence[Tensor], *, choice: bool = True
    ) -> None:
        self.layout, self._labels = layout, layout.groups[layout.label]
        # Columns are joined once, and not for each candidate.
        places: dict[tuple[int, tuple[int, ...]], int] = {}
        self._members = [
            [places.setdefault(column, len(places)) for column in zip(crossing.groups, crossing.parts, strict=True)]
            for crossing in crossings
        ]
        self._columns = [(group, np.asarray(parts)) for group, parts in places]
        self._cells = [crossing.cells for crossing in crossings]
        self.shape = (sum(self._cells) * self._labels,)
        self._shares = [_whole(own) for own in shares]
        self.bound = 2.0 if choice else 2.0 * math.sqrt(len(crossings))
        self.released = (1,) if choice else (len(crossings),)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        # Candidates that begin with the same columns follow each other, and share the cells of these.
        first = records.codes[:, self.layout.label].astype(np.intp)
        joined = [parts[records.codes[:, group]] * self._labels for group, parts in self._columns]
        sizes = [int(parts.max()) + 1 for _, parts in self._columns]
        beginning: dict[int, tuple[list[int], np.ndarray, int]] = {}
        counts = []
        for members, cells in zip(self._members, self._cells, strict=True):
            place, step = first, 1
            for length in range(1, len(members) + 1):
                if (kept := beginning.get(length)) is None or kept[0] != members[:length]:
                    column = members[length - 1]
                    kept = (members[:length], place + joined[column] * step, step * sizes[column])
                    beginning[length] = kept
                _, place, step = kept
            counts.append(np.bincount(place, minlength=cells * self._labels))
        return torch.from_numpy(np.concatenate(counts))

    def scores(self, sums: Tensor) -> Tensor:
        """Return the score of each crossing, int64, as multiples of the unit."""
        scores, start = [], 0
        for cells, shares in zip(self._cells, self._shares, strict=True):
            counts = sums[start : start + cells * self._labels].view(cells, self._labels)
            start += counts.numel()
            expected = counts.sum(dim=1, keepdim=True) * shares
            scores.append((counts * 2**_BITS - expected).abs().sum())
        return torch.stack(scores)


def _whole(shares: Tensor) -> Tensor:
    """Return shares (cells, labels) as whole multiples of the unit that add up to 1 exactly."""
    whole = (shares.double() * 2**_BITS).floor().to(torch.int64)
    missing = 2**_BITS - whole.sum(dim=1)
    # With any other numbers a record would move a score by more than the bound.
    if not ((shares >= 0.0) & (shares <= 1.0)).all() or (missing < 0).any():
        raise ValueError("shares: expected shares of the labels in each cell, from 0, that add up to 1")
    whole[:, 0] += missing
    return whole


def can_cross(layout: Layout) -> bool:
    """Return whether there are two columns to choose from beside a label."""
    return takes_label(layout) and not layout.units and count_crossings(layout) > 0


def buys_crossings(layout: Layout, n: int, strength: float) -> bool:
    """Return whether crossings are worth to be looked for: one that tells of the label is surely found then.

    Args:
        n: the declared number of records.
        strength: that in units of the noise that the budget buys.

    Example:
        >>> layout = Layout(0, groups=(2, 2, 2, 2), label=3)
        >>> buys_crossings(layout, 20_000, 5_000.0), buys_crossings(layout, 100, 10.0)
        (True, False)
    """
    if not can_cross(layout):
        return False
    # By zero-concentrated privacy a choice costs epsilon^2 / 8, and the budget is mu^2 / 2.
    epsilon = 2.0 * math.sqrt(CHOICE_SHARE / MOST_CHOSEN_CROSSINGS) * strength / n
    return epsilon * EFFECT * n / 4.0 > math.log(count_crossings(layout)) + _SURE


def crossing_workloads(layout: Layout, n: int) -> tuple[Workload, ...]:
    """Return the accesses that choose crossings, where there are more than are chosen, and the one that tells of them."""
    choice = Workload(CROSSINGS, {"choice": 1.0}, n, CHOICE_SHARE, MOST_CHOSEN_CROSSINGS, chooses=True)
    evidence = Workload(EVIDENCE_STAGE, {"scores": 1.0}, n, EVIDENCE_SHARE)
    return (choice, evidence) if count_crossings(layout) > MOST_CHOSEN_CROSSINGS else (evidence,)


def count_crossings(layout: Layout) -> int:
    """Return the number of twos and threes of columns among which crossings are chosen."""
    return sum(1 for _ in _candidates(layout))


def bytes_of_crossings(layout: Layout) -> int:
    """Return about how many bytes it takes at most to count records in the cells of all twos and threes."""
    cells = sum(math.prod(min(layout.groups[group], _PARTS) for group in own) for own in _candidates(layout))
    return _BYTES_OF_COUNT * cells * layout.groups[layout.label]


def _candidates(layout: Layout) -> Iterator[tuple[int, ...]]:
    """Yield twos and threes of groups; of very many columns those with the fewest choices."""
    groups = [group for group in range(len(layout.groups)) if group != layout.label and layout.groups[group] > 1]
    groups.sort(key=lambda group: (layout.groups[group], group))
    labels = 1 if layout.label is None else layout.groups[layout.label]
    most = min(_MOST, _MOST_COUNTS // (_PARTS**3 * labels))
    while len(groups) > 3 and math.comb(len(groups), 3) > most:
        groups.pop()
    for size in (2, 3):
        yield from itertools.combinations(sorted(groups), size)


def possible_crossings(schema: Schema, samples: Encoded) -> list[Crossing]:
    """Return the crossings to choose among; choices of many are joined so that parts hold about as many made-up records.

    Args:
        samples: made-up records; public.
    """
    layout = schema.layout
    parts: dict[int, tuple[int, ...]] = {}
    for group, choices in enumerate(layout.groups):
        counts = np.bincount(samples.codes[:, group], minlength=choices)
        parts[group] = _joined(counts, ordered=isinstance(schema.modelled[group], Numeric))
    return [Crossing(own, tuple(parts[group] for group in own)) for own in _candidates(layout)]


def _joined(counts: np.ndarray, *, ordered: bool) -> tuple[int, ...]:
    """Return the part of each choice: neighbours of numbers together, or the most frequent ones by themselves."""
    if len(counts) <= _PARTS:
        return tuple(range(len(counts)))
    if ordered:
        middle = np.cumsum(counts) - counts / 2
        place = np.minimum(middle / max(counts.sum(), 1) * _PARTS, _PARTS - 1).astype(int)
    else:
        place = np.full(len(counts), _PARTS - 1)
        place[np.argsort(-counts, kind="stable")[: _PARTS - 1]] = np.arange(_PARTS - 1)
    return tuple(np.unique(place, return_inverse=True)[1].tolist())


def label_shares(crossings: Sequence[Crossing], samples: Encoded, shares: Tensor) -> list[Tensor]:
    """Return the shares (cells, labels) that a model gives to labels in the cells of each crossing.

    Args:
        samples: made-up records; public.
        shares: (N, labels) of their labels.
    """
    mean, shares = shares.mean(dim=0, keepdim=True).double(), shares.double()
    shares_by_crossing = []
    for crossing in crossings:
        cells = torch.from_numpy(crossing.cells_of(samples.codes))
        sums = mean.repeat(crossing.cells, 1).index_add_(0, cells, shares)
        shares_by_crossing.append(sums / sums.sum(dim=1, keepdim=True))
    return shares_by_crossing


def explained_by_chance(crossing: Crossing, samples: Encoded, shares: Tensor, n: float) -> float:
    """Return of how many labels, as a part of n, a crossing seems to tell if it tells nothing, since records are a sample.

    It is much where cells and labels are many beside the records: the mean deviation of a binomial count, which is that of
    a normal one, and no more than twice the variance.

    Args:
        samples: made-up records; public.
        shares: (cells, labels) that the model gives to labels in the cells.
        n: the number of records, about.
    """
    sizes = torch.from_numpy(np.bincount(crossing.cells_of(samples.codes), minlength=crossing.cells) * (n / len(samples)))
    variance = sizes[:, None] * shares * (1.0 - shares)
    return float(torch.minimum((2.0 / math.pi * variance).sqrt(), 2.0 * variance).sum()) / n

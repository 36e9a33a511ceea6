"""The distribution of a column of numbers, found privately by a tree that looks more closely where there are many."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from lightning_dpgen.data.number_counts import NumberCounts
from lightning_dpgen.data.value_grid import Leaves, ValueGrid, values_of
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.mechanisms import rounded_gaussian
from lightning_dpgen.privacy.open_access import OpenAccess
from lightning_dpgen.privacy.pld import REPLACE_ONE

# The most nodes of a level that are looked at more closely have so many children together, or there are a few.
_MOST_CHILDREN, _FEW = 2**14, 8
# The most pieces of a distribution: a schema holds twice as many.
MOST_PIECES = 5_000
# A node is looked at more closely if it holds more than this many deviations of the noise.
CERTAIN = 4.0
# By the rank of a level: from how many deviations of the noise a count is beyond doubt, and from how many of the noise of
# all others together these are.
_SURE = (3.5, 4.0), (3.0, 1.75), (4.0, 1.0)
# Siblings differ beyond noise where the sum of the squares of their differences, in units of its variance, is this many
# deviations of a chi-square distribution above its mean, or where one of them is so many deviations above.
_APART, _ALONE = 3.0, 4.0

# A function of the first leaves of nodes, the width of their children and how many each has: (nodes, children) int64.
CountChildren: TypeAlias = Callable[[Sequence[int], int, int], np.ndarray]


def find_values(
    access: OpenAccess,
    column: str,
    numbers: np.ndarray,
    grid: ValueGrid,
    *,
    reference: int = 0,
    owners: np.ndarray | None = None,
    most: int = 1,
    salts: np.ndarray | None = None,
) -> dict[str, Any]:
    """Find how a column of numbers is distributed; see `find_values_in`.

    Args:
        access, column, grid: as for `find_values_in`.
        numbers: (N,) private; NaN where there is none. Those beyond the bounds count as these.
        reference: added to the numbers, which are read from it.
        owners: (N,) whole numbers, the owner of each row where the unit is a person; None where it is a record.
        most: the number of rows of a person that count; others of theirs are left out as if at random.
        salts: (N,) as for `key_owners.held_at_most`; None to draw them.

    Raises:
        LedgerError: as `find_values_in`.
        ValueError: if shapes are impossible.
    """
    numbers = np.asarray(numbers, dtype=np.float64)
    if numbers.ndim != 1 or (owners is not None and np.shape(owners) != numbers.shape):
        raise ValueError(f"numbers {numbers.shape}, owners {np.shape(owners)}: expected (N,) and an owner for each")
    owners = None if owners is None else np.asarray(owners)
    counted = NumberCounts.of(numbers, owners, most if access.private else None, salts, access.stream)
    count = functools.partial(counted.in_children, Leaves(grid, reference))
    return find_values_in(access, column, count, grid, most=1 if owners is None else most)


def find_values_in(
    access: OpenAccess, column: str, count: CountChildren, grid: ValueGrid, *, most: int = 1
) -> dict[str, Any]:
    """Find how a column of numbers is distributed, from one noisy histogram for each level of a tree.

    Nodes of more than 4 deviations of the noise are divided among their children, whose noisy counts are moved as little as
    makes them positive with the sum of their parent; all others are spread evenly over their numbers. So is a node whose
    children differ by no more than noise. Wide nodes that noise explains beside others are empty (`_likely`).

    Args:
        access, column: as for `mechanisms.gaussian`; the access lists the noise `values_of` the column at each level.
        count: counts the rows in the children of nodes, as `NumberCounts.in_children` does. The caller has made sure that
            a record counts once, and a person `most` times.
        grid: the leaves of the tree; public.
        most: the number of rows of a person that count; 1 where the unit is a record.

    Returns:
        ``{"pieces": [[start, count], ...], "noise": sigma}``, public: the noisy count of the numbers from each start to the
        next, and the standard deviation of the noise of one number. Python numbers, as JSON holds them. Of a grid of one
        level by declaration, such as that of categories: ``{"counts": [count, ...], "noise": sigma}``, each as it is.

    Guarantee:
        A record is in one node of each level, so each level is a Gaussian mechanism of sensitivity 1 for a record (`most`
        for a person), also where earlier levels have decided which nodes are counted.

    Raises:
        LedgerError: as for `mechanisms.gaussian`; or in a plan under replace-one.
    """
    if access.relation == REPLACE_ONE:
        raise LedgerError(f"column {column!r}: the sensitivity of a histogram is stated here for a record added or removed")
    if grid.depth == 1:
        (counts,) = _children(access, values_of(column, 1), count, [0], 1, grid.branching)
        sigma = access.access.multipliers.get(values_of(column, 1), 0.0) * most
        return {"counts": counts[: grid.span].round(1).tolist(), "noise": round(sigma, 4)}
    width, found = grid.branching**grid.levels, [(0, grid.span, math.inf)]
    sigma, done, rank = 0.0, [], 0
    for level in range(1, grid.levels + 1):
        name, width = values_of(column, level), width // grid.branching
        counts = _children(access, name, count, [first for first, _, _ in found], width, grid.branching)
        sigma = access.access.multipliers.get(name, 0.0) * most
        nodes = [
            (first + place * width, min(first + (place + 1) * width, grid.span), float(count))
            for (first, end, mass), row in zip(found, counts, strict=True)
            for place, count in enumerate(
                _likely(row[: -(-(end - first) // width)], mass, sigma, rank, _widths(end - first, width))
            )
        ]
        close = sorted((node for node in nodes if node[2] > CERTAIN * sigma), key=lambda node: -node[2])
        chosen = set(close[: max(_MOST_CHILDREN // grid.branching, _FEW)]) if level < grid.levels else set()
        found = [node for node in nodes if node in chosen]
        done += [node for node in nodes if node not in chosen]
        # Nodes stay wide beside the records as long as one of them holds all that stands out.
        rank = max(rank, 1) + (len(found) > 1)
    return {"pieces": _pieces(_merged(sorted(done), sigma), grid), "noise": round(sigma, 4)}


def _children(
    access: OpenAccess, name: str, count: CountChildren, firsts: list[int], width: int, branching: int
) -> np.ndarray:
    """Return the noisy counts (nodes, branching) of the children of nodes that begin at `firsts`, rising."""
    # Each noise is drawn once, also where nothing is left to be counted.
    exact = count(firsts, width, branching) if firsts else np.zeros((1, branching), np.int64)
    noisy = rounded_gaussian(access, name, torch.from_numpy(exact.reshape(-1)), sensitivity=1.0).numpy()
    return noisy.reshape(-1, branching)[: len(firsts)]


def _widths(whole: int, width: int) -> np.ndarray:
    """Return how many leaves each child has of a node of so many, the last of which may have fewer.

    Example:
        >>> _widths(70, 32).tolist()
        [32, 32, 6]
    """
    widths = np.full(-(-whole // width), width)
    widths[-1] = whole - width * (len(widths) - 1)
    return widths


def _likely(counts: np.ndarray, total: float, sigma: float, rank: int, widths: np.ndarray) -> np.ndarray:
    """Return counts of siblings from 0, with the sum of their parent, or their own where that is infinite.

    Far from all records noise makes a few of the many empty nodes positive, and one of them moves the mean of a column
    with wide bounds by more than all records do. So counts that noise explains become 0 beside others that it does not,
    unless they are too many together. Where nodes are wide beside the records, a count is beyond doubt sooner.

    The largest count of siblings without a record stands out, too. It would gather the records of their parent at a value
    that none has. So a parent is spread evenly over its leaves where siblings differ from that by no more than noise, all
    together and each by itself.

    Args:
        rank: 0 for the first level, 1 for the next ones as long as one node holds all that stands out, and 2, 3, ... for
            those after it.
        widths: how many leaves each has.
    """
    first = math.isinf(total)
    total = max(float(counts.sum()), 0.0) if first else total
    if sigma:
        above, together = _SURE[min(rank, len(_SURE) - 1)]
        sure = counts > above * sigma
        others = int((~sure).sum())
        if others < len(counts) and total - float(counts[sure].sum()) < together * sigma * math.sqrt(others):
            kept = np.where(sure, counts, 0.0)
            return kept * (total / kept.sum())
    if sigma and not first and len(counts) > 1:
        even = total * (widths / widths.sum())
        apart = (counts - even) / sigma
        if apart.max() < _ALONE and float(apart @ apart) < len(counts) + _APART * math.sqrt(2 * len(counts)):
            return even
    return _with_sum(counts, total)


def _with_sum(counts: np.ndarray, total: float) -> np.ndarray:
    """Return the nearest counts from 0 with this sum."""
    if total <= 0.0:
        return np.zeros(len(counts))
    falling = np.sort(counts)[::-1]
    above = (falling.cumsum() - total) / np.arange(1, len(falling) + 1)
    # A sum that rounding loses beside the largest count still leaves one.
    last = int(np.flatnonzero(falling > above).max(initial=0))
    return np.maximum(counts - above[last], 0.0)


def _merged(nodes: list[tuple[int, int, float]], sigma: float) -> list[tuple[int, int, float]]:
    """Merge neighbours whose densities differ least beside their chance errors, until there are not too many."""
    apart = 1.0
    while len(nodes) > MOST_PIECES:
        found = [(*nodes[0], 1)]
        for first, end, mass in nodes[1:]:
            before, start, sum_of, count = found[-1]
            widths = start - before, end - first
            errors = (sum_of + count * sigma**2) / widths[0] ** 2 + (mass + sigma**2) / widths[1] ** 2
            if abs(sum_of / widths[0] - mass / widths[1]) <= apart * math.sqrt(errors):
                found[-1] = (before, end, sum_of + mass, count + 1)
            else:
                found.append((first, end, mass, 1))
        nodes, apart = [node[:3] for node in found], 2.0 * apart
    return nodes


def _pieces(nodes: list[tuple[int, int, float]], grid: ValueGrid) -> list[list[float]]:
    """Return the start and the count of each node, neighbours of one density together."""
    pieces: list[list[float]] = []
    before = None
    for first, end, mass in nodes:
        density = mass / (end - first)
        if before == density:
            pieces[-1][1] = round(pieces[-1][1] + mass, 4)
        else:
            pieces.append([grid.number(first), round(mass, 4)])
        before = density
    return pieces

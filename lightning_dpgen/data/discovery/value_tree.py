"""The distribution of a column of numbers, found privately by a tree that looks more closely where there are many."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from lightning_dpgen.data.discovery.counts import NumberCounts
from lightning_dpgen.data.discovery.value_grid import Leaves, ValueGrid, values_of
from lightning_dpgen.privacy.access import OpenAccess
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.mechanisms import rounded_gaussian

# The most nodes of a level that are looked at more closely have so many children together, or there are a few.
_MOST_CHILDREN, _LEAST_NODES = 2**14, 8
# The most pieces of a distribution: a schema holds twice as many.
MOST_PIECES = 5_000
# A node is looked at more closely if it holds more than this many deviations of the noise.
CERTAIN_SIGMAS = 4.0
# By the rank of a level: a half of siblings is empty where its count is below so many deviations of the noise.
_PRESENT_SIGMAS = 3.5, 3.5, 2.0
# The rest beside counts of more than `_OUTLIER_SIGMAS` is nothing below so many deviations of its noise.
_REST_SIGMAS = 1.5
# Siblings differ beyond noise where the sum of the squares of their differences, in units of its variance, is this many
# deviations of a chi-square distribution above its mean, or where one of them, or the first of them together, is so many
# deviations from an even spread.
_UNEVEN_SIGMAS, _OUTLIER_SIGMAS = 3.0, 4.0

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
        salts: (N,) as for `counts.held_at_most`; None to draw them.

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

    Nodes of more than 4 deviations of the noise are divided among their children, by halves whose noisy counts are moved to
    the sum of their parent; all others are spread evenly over their numbers. So is a node whose children differ by no more
    than noise. Halves that noise explains beside others are empty (`_likely`).

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
    width, open_nodes = grid.branching**grid.levels, [(0, grid.span, math.inf)]
    sigma, done, rank = 0.0, [], 0
    for level in range(1, grid.levels + 1):
        name, width = values_of(column, level), width // grid.branching
        counts = _children(access, name, count, [first for first, _, _ in open_nodes], width, grid.branching)
        sigma = access.access.multipliers.get(name, 0.0) * most
        rooms = [_widths(end - first, width, grid.branching) for first, end, _ in open_nodes]
        widths = np.array(rooms).reshape(-1, grid.branching)
        masses = _likely(counts, np.array([mass for _, _, mass in open_nodes]), sigma, rank, widths)
        nodes = [
            (first + place * width, first + place * width + int(room), float(count))
            for (first, _, _), row, own in zip(open_nodes, masses, rooms, strict=True)
            for place, (count, room) in enumerate(zip(row, own, strict=True))
            if room
        ]
        close = sorted((node for node in nodes if node[2] > CERTAIN_SIGMAS * sigma), key=lambda node: -node[2])
        chosen = set(close[: max(_MOST_CHILDREN // grid.branching, _LEAST_NODES)]) if level < grid.levels else set()
        open_nodes = [node for node in nodes if node in chosen]
        done += [node for node in nodes if node not in chosen]
        # Nodes stay wide beside the records as long as one of them holds all that stands out.
        rank = max(rank, 1) + (len(open_nodes) > 1)
    return {"pieces": _pieces(_merged(sorted(done), sigma), grid), "noise": round(sigma, 4)}


def _children(
    access: OpenAccess, name: str, count: CountChildren, firsts: list[int], width: int, branching: int
) -> np.ndarray:
    """Return the noisy counts (nodes, branching) of the children of nodes that begin at `firsts`, rising."""
    # Each noise is drawn once, also where nothing is left to be counted.
    exact = count(firsts, width, branching) if firsts else np.zeros((1, branching), np.int64)
    noisy = rounded_gaussian(access, name, torch.from_numpy(exact.reshape(-1)), sensitivity=1.0).numpy()
    return noisy.reshape(-1, branching)[: len(firsts)]


def _widths(whole: int, width: int, branching: int) -> np.ndarray:
    """Return how many leaves each child has of a node of so many, the last of which may have fewer or none.

    Example:
        >>> _widths(70, 32, 4).tolist()
        [32, 32, 6, 0]
    """
    return np.clip(whole - width * np.arange(branching), 0, width)


def _likely(counts: np.ndarray, totals: np.ndarray, sigma: float, rank: int, widths: np.ndarray) -> np.ndarray:
    """Return counts (nodes, children) from 0, with the sums of their parents, or their own where these are infinite.

    A few large counts have all beside siblings that are no more than noise together. The largest count of siblings without
    a record stands out, too, and would gather the records of their parent at a value that none has. So a parent is spread
    evenly over its leaves where siblings differ from that by no more than noise, all together, each by itself, and the
    first of them together. All others are halved again and again (`_halved`).

    Args:
        totals: (nodes,).
        rank: 0 for the first level, 1 for the next ones as long as one node holds all that stands out, and 2, 3, ... for
            those after it.
        widths: (nodes, children) how many leaves each has; those after the last child have none.
    """
    there, unknown = widths > 0, np.isinf(totals)
    counts, number = np.where(there, counts, 0.0), there.sum(axis=1)
    totals = np.where(unknown, np.maximum(counts.sum(axis=1), 0.0), totals)
    certain = _PRESENT_SIGMAS[min(rank, len(_PRESENT_SIGMAS) - 1)]
    halved = _halved(counts, totals, widths, sigma, certain, np.where(unknown, np.inf, number))
    if not sigma:
        return halved
    # The rest beside large counts, by the parent's count and by the counts of the others.
    large = np.where(counts > _OUTLIER_SIGMAS * sigma, counts, 0.0)
    many = (large > 0.0).sum(axis=1)
    variances = np.where(unknown, np.inf, 1.0 + many), np.maximum(number - many, 1e-9)
    left = (totals - large.sum(axis=1)) / variances[0] + (counts - large).sum(axis=1) / variances[1]
    trust = 1.0 / variances[0] + 1.0 / variances[1]
    some = (many > 0) & (left < _REST_SIGMAS * sigma * np.sqrt(trust))
    parted = np.where(some[:, None], large * (totals / np.maximum(large.sum(axis=1), sigma))[:, None], halved)
    even = totals[:, None] * widths / widths.sum(axis=1, keepdims=True)
    apart = np.where(there, counts - even, 0.0) / sigma
    # Those of all siblings together are what their parent's noise is.
    first = (apart - there * (apart.sum(axis=1) / number)[:, None]).cumsum(axis=1)
    before = there.cumsum(axis=1)
    deviation = np.sqrt(np.maximum(before * (1.0 - before / number[:, None]), 0.5))
    flat = (apart.max(axis=1) < _OUTLIER_SIGMAS) & ((np.abs(first) / deviation).max(axis=1) < _OUTLIER_SIGMAS) & ~unknown
    flat &= np.square(apart).sum(axis=1) < number + _UNEVEN_SIGMAS * np.sqrt(2.0 * number)
    return np.where(flat[:, None], even, parted)


def _halved(
    counts: np.ndarray, totals: np.ndarray, widths: np.ndarray, sigma: float, certain: float, siblings: np.ndarray
) -> np.ndarray:
    """Share totals (nodes,) out among neighbours, from their noisy counts (nodes, neighbours), by halves.

    Each half gets what least squares say, so that what is certain of it stays in it, whatever noise hides of its children.
    Far from all records noise makes a few of the many empty nodes positive, and one of them moves the mean of a column with
    wide bounds by more than all records do. So a half that noise explains beside the other one is empty.

    Args:
        sigma, certain: the noise of a count, and from how many deviations it is one.
        siblings: (nodes,) how many share the total of their parent, infinite where their own counts are all that is known.
    """
    half = counts.shape[1] // 2
    if not half:
        return totals[:, None]
    sides = slice(half), slice(half, None)
    (left, right), (leaves, others), (one, other) = (
        [part[:, side].sum(axis=1) for side in sides] for part in (counts, widths, widths > 0)
    )
    parted = left + (totals - left - right) * one / np.maximum(one + other, 1)
    # A sum that is known tells of halves; one that is that of all counts would bring in the noise of others.
    halves = np.where(np.isinf(siblings), [left, right], [parted, totals - parted])
    less = halves[0] < halves[1]
    alone = [counts[:, side].max(axis=1) > _OUTLIER_SIGMAS * sigma for side in sides]
    fewer = np.where(less, one, other)
    noise = sigma * np.sqrt(fewer * (1.0 - fewer / siblings))
    both = (halves.min(axis=0) > certain * noise) | np.where(less, *alone)
    even = totals * leaves / np.maximum(leaves + others, 1)
    apart = ((np.abs(halves[0] - even) > noise) | ((alone[0] | alone[1]) & (halves.min(axis=0) < noise))) & (others > 0)
    left = np.where(both, np.clip(parted, 0.0, totals), np.where(apart, np.where(less, 0.0, totals), even))
    parts = [(counts[:, side], mass, widths[:, side]) for side, mass in zip(sides, (left, totals - left), strict=True)]
    return np.concatenate([_halved(*part, sigma, certain, siblings) for part in parts], axis=1)


def _merged(nodes: list[tuple[int, int, float]], sigma: float) -> list[tuple[int, int, float]]:
    """Merge neighbours whose densities differ least beside their chance errors, until there are not too many."""
    apart = 1.0
    while len(nodes) > MOST_PIECES:
        merged = [(*nodes[0], 1)]
        for first, end, mass in nodes[1:]:
            before, start, sum_of, count = merged[-1]
            widths = start - before, end - first
            errors = (sum_of + count * sigma**2) / widths[0] ** 2 + (mass + sigma**2) / widths[1] ** 2
            if abs(sum_of / widths[0] - mass / widths[1]) <= apart * math.sqrt(errors):
                merged[-1] = (before, end, sum_of + mass, count + 1)
            else:
                merged.append((first, end, mass, 1))
        nodes, apart = [node[:3] for node in merged], 2.0 * apart
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

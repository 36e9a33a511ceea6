"""Distances of the columns of a table by their values, in all of its rows and in groups of them. Private."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.stats import wasserstein_distance
from torch import Tensor

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Modelled
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.marginals import mean_and_worst
from lightning_dpgen.metrics.measure import COLUMNS, TABLE, Need, Plot, Result, average_and_worst, register
from lightning_dpgen.metrics.sides import Collected, TableSides
from lightning_dpgen.metrics.summaries import QuantileBins, binned, ordinary, summaries

# Groups of a column that are compared, at most, and the records of a side that one needs.
GROUPS, FEW = 12, 30
ONE_MEAN, ONE_WORST = "one column, mean", "one column, worst"


class NumericDistance(Collected):
    """Kolmogorov-Smirnov and Wasserstein distances of columns of numbers, and differences of their missing shares.

    The Kolmogorov-Smirnov distance is the largest difference of two distribution functions, 0 for equal columns and 1 for
    disjoint ones. A missing value counts as larger than all others, so the distance is at least the difference of the
    shares of missing values. The Wasserstein-1 distance is of the values that are there, as a share of the range. Where a
    side has no value it is 1, and 0 where neither has one.

    Args:
        ranges: (columns,) positive numbers, the public range of each column; None for ranges of 1.
        width: number of columns, where no ranges are given.

    Example:
        >>> metric = NumericDistance(torch.tensor([10.0]))
        >>> metric.update(torch.tensor([[0.0], [0.0], [0.0], [4.0]]), real=True)
        >>> metric.update(torch.tensor([[0.0], [2.0], [4.0], [6.0]]), real=False)
        >>> {name: round(float(value), 3) for name, value in metric.compute().items() if name.endswith("mean")}
        {'kolmogorov_smirnov_mean': 0.5, 'wasserstein_mean': 0.2, 'missing_mean': 0.0}
    """

    higher_is_better = False

    _missing = True

    def __init__(self, ranges: Tensor | None = None, *, width: int | None = None, **kwargs) -> None:
        if ranges is None:
            if type(width) is not int or width < 1:
                raise ValueError(f"width={width!r}: expected a whole number, 1 or more, or ranges")
            ranges = torch.ones(width, dtype=torch.float64)
        valid = isinstance(ranges, Tensor) and ranges.ndim == 1 and len(ranges) and torch.isfinite(ranges).all()
        if not valid or not (ranges > 0).all():
            raise ValueError("ranges: expected a tensor (columns,) of positive numbers")
        super().__init__(len(ranges), **kwargs)
        self._ranges = ranges.double().cpu().numpy()

    def distances(self) -> dict[str, Tensor]:
        """Return ``kolmogorov_smirnov``, ``wasserstein`` and ``missing``, each (columns,).

        Raises:
            ValueError: where one side has no record.
        """
        real, synthetic = (side.cpu().numpy() for side in self._sides())
        distances = {
            "kolmogorov_smirnov": largest_differences(real, synthetic),
            "wasserstein": moved_numbers(real, synthetic, self._ranges),
            "missing": np.abs(np.isnan(real).mean(axis=0) - np.isnan(synthetic).mean(axis=0)),
        }
        return {name: torch.from_numpy(values) for name, values in distances.items()}

    def compute(self) -> dict[str, Tensor]:
        """Return the mean and the worst of `distances`, as ``<name>_mean`` and ``<name>_worst``."""
        return mean_and_worst(self.distances())


def largest_differences(real: np.ndarray, synthetic: np.ndarray) -> np.ndarray:
    """Return the Kolmogorov-Smirnov distances (columns,) of numbers (n, columns) and (m, columns), NaN where missing."""
    return np.array([_largest_difference(*pair) for pair in zip(real.T, synthetic.T, strict=True)])


def moved_numbers(real: np.ndarray, synthetic: np.ndarray, ranges: np.ndarray) -> np.ndarray:
    """Return the Wasserstein-1 distances (columns,) of the numbers that are there, as shares of ranges (columns,)."""
    return np.array([_moved(*pair) for pair in zip(real.T, synthetic.T, ranges, strict=True)])


def _largest_difference(one: np.ndarray, other: np.ndarray) -> float:
    points = np.unique(np.concatenate([one[~np.isnan(one)], other[~np.isnan(other)]]))
    # NaN is sorted to the end.
    shares = [np.searchsorted(np.sort(side), points, "right") / len(side) for side in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max(initial=0.0))


def _moved(one: np.ndarray, other: np.ndarray, width: float) -> float:
    one, other = (side[~np.isnan(side)] for side in (one, other))
    if not len(one) or not len(other):
        return 0.0 if len(one) == len(other) else 1.0
    found = wasserstein_distance(one, other) / width
    return found if math.isfinite(found) else 1.0


_KS, _MOVED = "numbers, Kolmogorov-Smirnov", "numbers, Wasserstein in ranges of 98 % of the real values, 1 at most"


def column_distances(real: TableValues, other: TableValues, lengths: np.ndarray) -> dict[str, float]:
    """Return the distance of each column, in [0, 1]: total variation for categories, the larger of two for numbers.

    These are Kolmogorov-Smirnov and Wasserstein in units of `lengths`. The second is the larger one only where values lie
    beyond that range: few of them, far away, make another mean.

    Args:
        lengths: (columns of numbers,) as `spreads` returns them.
    """
    of_name = dict(zip((column.name for column in real.of_numbers), lengths.tolist(), strict=True))
    both = ((column, real.column(column.name), other.column(column.name)) for column in real.schema.recorded)
    return {column.name: column_distance(column, *sides, of_name.get(column.name)) for column, *sides in both}


def column_distance(column: Modelled, real: np.ndarray, other: np.ndarray, length: float | None) -> float:
    """Return the distance of one column, as `column_distances` does, of its values (n,) and (m,)."""
    if isinstance(column, Category):
        size = len(column.values) + 1
        shares = [np.bincount(side, minlength=size) / len(side) for side in (real, other)]
        return float(0.5 * np.abs(shares[0] - shares[1]).sum())
    ordinary_values = (np.where(np.isin(side, column.special_ticks), np.nan, side) for side in (real, other))
    return max(_largest_difference(real, other), min(1.0, _moved(*ordinary_values, length)))


def compared_distances(sides: TableSides) -> list[dict[str, float]]:
    """Return the distances of the columns of synthetic records, and of the real ones in their place if there are any."""
    return [column_distances(sides.real, other, sides.spreads) for other in sides.compared]


def _distance_of_form(column: Modelled, real: TableValues, length: float | None, seed: int) -> float:
    """Return how far a column is from itself as a model without any error would learn and draw it.

    Numbers are put into the schema's bins, and rare values of categories into its groups, and drawn from these again. It is
    0 of a column that is computed from others or learned by its distance from another one.
    """
    rules = real.schema.rules
    if column.name in rules.unlearned or column.name in rules.relatives:
        return 0.0
    learned, found = rules.learned.get(column.name, column), real.column(column.name)
    absent = np.isnan(found) if isinstance(column, Numeric) else found >= column.present
    there = np.where(absent, column.grid.low, found)
    array = column.restored(there.astype(np.int64) if column.grid.whole else there, absent)
    drawn = learned.decode(*learned.encode(array, True, Counter()), np.random.default_rng(seed))
    numbers, lost = column.numbers(drawn, True, Counter())
    again = np.where(lost, np.nan if isinstance(column, Numeric) else column.present, numbers)
    return column_distance(column, found, again.astype(found.dtype), length)


def _numeric(real: TableValues, other: TableValues, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """Return both distances of columns of numbers, each (columns of numbers,) in [0, 1].

    Special and missing values are shares of the first, and no lengths of the second.
    """
    shifted = largest_differences(real.numbers, other.numbers)
    moved = moved_numbers(ordinary(real), ordinary(other), lengths)
    return {_KS: shifted, _MOVED: moved.clip(max=1.0)}


def _missing(real: TableValues, other: TableValues) -> float:
    differences = [0.0]
    for column in real.schema.recorded:
        if column.missing:
            sides = [side.column(column.name) for side in (real, other)]
            absent = [np.isnan(s) if isinstance(column, Numeric) else s == len(column.values) for s in sides]
            differences.append(abs(float(absent[0].mean() - absent[1].mean())))
    return max(differences)


@register(
    TABLE, section=COLUMNS, place=20, better="lower",
    says="Values as a file holds them, in no bins. Numbers: the largest difference of two distribution functions "
    "(Kolmogorov-Smirnov; missing values count as the largest), and how far values have to be moved (Wasserstein, special "
    "values left out) in units of the range from the 1 % to the 99 % quantile of the real ones. A column counts with the "
    "larger of the two. Categories: total variation. 0 equal, 1 disjoint.",
    glance={ONE_MEAN: "mean distance of a column"},
)  # fmt: skip
def _compare_columns(sides: TableSides) -> Result:
    """Compare single columns: numbers by their distribution functions and how far they lie, categories by shares."""
    results, found = [], compared_distances(sides)
    for other, apart in zip(sides.compared, found, strict=True):
        scores = average_and_worst("one column", list(apart.values()))
        if sides.real.of_numbers:
            for words, far in _numeric(sides.real, other, sides.spreads).items():
                scores |= {f"{words}, mean": float(far.mean()), f"{words}, worst": float(far.max())}
        if sides.real.of_codes:
            scores |= average_and_worst("categories, total variation", [apart[c.name] for c in sides.real.of_codes])
        scores["missing values, largest difference of shares"] = _missing(sides.real, other)
        results.append(scores)
    figures, plots = column_shares(sides, found), []
    columns = {column.name: column for column in sides.real.schema.recorded}
    lengths = dict(zip((column.name for column in sides.real.of_numbers), sides.spreads.tolist(), strict=True))
    for figure in figures[:FORMED]:
        column = columns[figure["name"]]
        figure["of_form"] = _distance_of_form(column, sides.real, lengths.get(column.name), sides.seed)
    for name in [figure["name"] for figure in figures if figure["name"] in lengths][:_DRAWN]:
        column, sided = columns[name], {side: getattr(sides, side).column(name) for side in ("real", "synthetic")}
        there = {side: own[~(np.isnan(own) | np.isin(own, column.special_ticks))] for side, own in sided.items()}
        if all(map(len, there.values())):
            content = there | {"column": column, "alt": f"{name}, real and synthetic"}
            plots.append(Plot("Histograms and quantiles of numbers", name, "numbers", content, _NOTES))
    return Result(*results, figures={"columns": figures}, plots=plots)


# Columns whose form is held against them, and columns of numbers that are drawn: those that differ most.
FORMED, _DRAWN = 6, 12
_NOTES = (
    "Left: shares of real values (grey) and of synthetic ones (the line) from the 0.5 % to the 99.5 % quantile, without "
    "special and missing ones. Right: each hundredth quantile, real across, synthetic up; equal columns follow the line.",
)


def column_shares(
    sides: TableSides, found: Sequence[dict[str, float]], prefix: str = "", before: int = 0
) -> list[dict[str, Any]]:
    """Return each column with the shares of its values, numbers in bins in their order; the worst column first.

    Args:
        found: the distances of the columns, as of `compared_distances`.
        prefix: of the names that are shown.
        before: the number of columns of other tables that stand before these.
    """
    (synthetic, layout), (real, _) = (binned(side, sides.bins) for side in (sides.synthetic, sides.real))
    summary, columns = summaries(sides.learned, sides.first_synthetic), []
    for place, (column, size) in enumerate(zip(sides.real.schema.recorded, layout.groups, strict=True)):
        shown = f"{prefix}{column.name}"
        shares = [np.bincount(side.codes[:, place], minlength=size) / len(side) for side in (synthetic, real)]
        names = column.choice_names if isinstance(column, Category) else []
        if isinstance(column, Numeric):
            bins = sides.bins[column.name]
            order = [bin for bin in bins.order() if shares[0][bin] > 0 or shares[1][bin] > 0]
            names = [bins.names(column)[bin] for bin in order]
            shares = [side[order] for side in shares]
        figures = summary.get(column.name)
        columns.append(
            {"name": shown, "column": before + place, "distance": found[0][column.name], "choices": names,
             "synthetic": shares[0], "real": shares[1], "summary": figures and replace(figures, name=shown),
             "expected": found[-1][column.name] if len(found) > 1 else None}
        )  # fmt: skip
    return sorted(columns, key=lambda column: -column["distance"])


@register(
    TABLE, section="groups", place=50, better="lower",
    says="The same distances of columns within the groups of one column, as many records of each side.",
    needs=(
        Need(lambda sides: sides.by is not None,
             "left out, as the table has no label; --by COLUMN names the column whose groups are compared"),
    ),
)  # fmt: skip
def _compare_groups(sides: TableSides) -> Result:
    """Compare the groups of a declared column, each by its share and by the distances of the other columns in it.

    The sides of a group have as many records.
    """
    columns = {column.name: column for column in sides.real.schema.recorded}
    column = columns[sides.by]
    codes = [_group_of(side, column, sides.bins) for side in (sides.real, *sides.compared)]
    size = int(max(part.max(initial=0) for part in codes)) + 1
    counts = np.stack([np.bincount(part, minlength=size) for part in codes])
    names = column.choice_names if isinstance(column, Category) else sides.bins[column.name].names(column)
    names = [*names, "missing"]
    chosen = np.argsort(-counts[0], kind="stable")[:GROUPS]
    results, few = [{} for _ in sides.compared], []
    for group in sorted(chosen[counts[0][chosen] > 0].tolist()):
        title = f"{column.name} {names[group]}"
        for scores, count, side in zip(results, counts[1:, group], sides.compared, strict=True):
            scores[f"{title}: difference of shares"] = float(abs(count / len(side) - counts[0, group] / len(sides.real)))
        least = int(counts[:, group].min())
        if least < FEW:
            few.append(str(names[group]))
            continue
        rows = [np.flatnonzero(part == group)[:least] for part in codes]
        real = sides.real[rows[0]]
        for scores, other, own in zip(results, sides.compared, rows[1:], strict=True):
            distances = column_distances(real, other[own], sides.spreads)
            del distances[column.name]
            if distances:
                scores |= average_and_worst(f"{title}: one column", list(distances.values()))
    note = f"groups with fewer than {FEW} records of a side have their shares alone ({listed(few)})" if few else None
    return Result(*results, note=note)


def _group_of(values: TableValues, column: Modelled, bins: dict[str, QuantileBins]) -> np.ndarray:
    found = values.column(column.name)
    return found if isinstance(column, Category) else bins[column.name].codes(found)

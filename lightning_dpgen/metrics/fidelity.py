"""A public figure of the closeness of synthetic records: measured on real ones with noise, from a share of the budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from lightning_dpgen.clustering.fixed_point import Grid, Highest
from lightning_dpgen.clustering.means import clipped_sums
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.quantile_bins import QuantileBins, binned, quantile_bins
from lightning_dpgen.metrics.train_on_synthetic import ROWS, label_classifier
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.mechanisms import rounded_gaussian
from lightning_dpgen.privacy.stage_spec import StageSpec
from lightning_dpgen.privacy.whole_sums import check_steps

FIDELITY = "fidelity"
_ACCURACY, _DISTANCE = "accuracy on real records, trained on synthetic", "distance of a column, mean"
# Shares of the count of right answers, and of the number of records, in the inverse squared noise of the access; the sums
# get the rest.
_ANSWERS, _RECORDS = 0.2, 0.1
# Records that a classifier answers for at a time, as multiples of 2^-12 where they are not in bytes.
_AT_ONCE, _GRID = 1 << 11, Grid(2.0**-12, bits=12)


def fidelity_stage(layout: Layout, n: int, share: float) -> StageSpec:
    """Plan the access that buys the figure: one look at `n` declared records, for a share of the budget's mu^2."""
    answers = {} if layout.label is None else {"answers": _ANSWERS}
    weights = {"records": _RECORDS, **answers}
    return StageSpec(FIDELITY, weights | {"means": 1.0 - sum(weights.values())}, 1, max_noise=n, share=share)


def measure_fidelity(account: Account, real: Records, synthetic: Encoded, *, radius: float) -> dict[str, float]:
    """Measure how close the synthetic records are to the real ones, and how much of that is noise.

    Args:
        account: the account whose plan holds `fidelity_stage`.
        real: the private records.
        synthetic: records of the released model, public.
        radius: the length to which a record's numbers are shortened, on both sides.

    Returns:
        ``records, with noise``: how many took part, by which all sums are divided; ``distance of a column, mean`` (total
        variation between shares of values; for units, mean absolute difference of means) and what noise alone would make
        of it on average; and with a label ``accuracy on real records, trained on synthetic`` of a logistic regression, and
        the standard deviation of its noise. All of it public.

    Guarantee:
        One record added or removed moves the sums by `radius` in L2 at most, and the counts of records and of right answers
        by 1; a person by as many times that as they have records. What a record adds is an exact function of that record
        and of public numbers (`clustering/fixed_point.py`). All sums are of whole numbers, and so is their noise.
    """
    layout, synthetic = real.schema.layout, synthetic[:ROWS]
    made, unit = _sums(Records(real.schema, synthetic), radius)
    expected = made[0].double() * unit / max(len(synthetic), 1)
    # Slow work is done before the access, which an interrupt would lose.
    (sums, unit), right = _sums(real, radius), None if layout.label is None else _right_answers(real, synthetic, layout)
    total, steps = torch.tensor([len(real)]), {"means": radius / unit}
    for name, multiplier in account.plan.stage(FIDELITY).access.multipliers.items():
        check_steps(name, multiplier * steps.get(name, 1.0) * account.plan.max_rows)
    with account.open(FIDELITY) as access:
        n = max(1.0, float(rounded_gaussian(access, "records", total, sensitivity=1.0)))
        noisy = rounded_gaussian(access, "means", sums, unit=unit, sensitivity=radius)[0]
        if right is not None:
            answers = float(rounded_gaussian(access, "answers", right, sensitivity=1.0))
            share = min(max(answers / n, 0.0), 1.0)
    of_one = {name: multiplier * access.max_rows / n for name, multiplier in access.access.multipliers.items()}
    # Impossible shares are noise. The noise of n counts in proportion to what is divided by it.
    differences = ((noisy / n).clamp(0.0, 1.0) - expected).abs()
    by_noise = torch.hypot(torch.full_like(expected, of_one["means"] * radius), expected * of_one["records"])
    found = {
        "records, with noise": round(n),
        _DISTANCE: _mean_distance(differences, layout),
        "distance of a column that noise alone makes": _mean_distance(by_noise * math.sqrt(2.0 / math.pi), layout),
    }
    if right is not None:
        found[_ACCURACY] = share
        found["standard deviation of that accuracy by noise"] = math.hypot(of_one["answers"], share * of_one["records"])
    return {name: value if type(value) is int else float(f"{value:.4g}") for name, value in found.items()}


def measure_table_fidelity(account: Account, real: TableValues, synthetic: TableValues) -> dict[str, float]:
    """Measure how close a synthetic table is to the real one by values, as `measure_fidelity` does.

    Columns of numbers are cut at tenths of the synthetic column, and a value that a tenth of the synthetic records have is
    a bin of its own; the label keeps a choice for each value. So a bin of the model that hides a bad column hides nothing
    here. The bins follow from public records alone, and never from quantiles of real ones.

    Args:
        account: the account whose plan holds `fidelity_stage`.
        real: the private records.
        synthetic: records of the released model, public.

    Guarantee:
        That of `measure_fidelity`, with the root of the number of columns as radius: a record is one 1 for each column, in
        the bin of its own value, which is found by comparisons with public numbers and depends on no other record. So one
        record added or removed moves the sums by the radius in L2 at most, and the counts by 1.
    """
    bins, label = quantile_bins(synthetic), real.schema.label
    if label in bins:
        (column,) = (column for column in real.of_numbers if column.name == label)
        every = np.union1d(np.arange(column.grid.low, column.grid.high + 1), column.special_ticks)
        bins[label] = QuantileBins(every.astype(np.float64), np.nan, np.empty(0))
    (encoded, layout), (made, _) = binned(real, bins), binned(synthetic, bins)
    if label is not None:
        names = [column.name for column in real.schema.recorded]
        layout = replace(layout, label=names.index(label))
    return measure_fidelity(account, Records(_Binned(layout), encoded), made, radius=math.sqrt(len(layout.groups)))


@dataclass(frozen=True)
class _Binned:
    """The description of records in public bins, of which the figure needs the layout alone."""

    layout: Layout


def merit(figure: dict[str, float]) -> float:
    """Rate a release by the figure of `measure_fidelity`: the accuracy if there is a label, else the closeness.

    Example:
        >>> merit({"distance of a column, mean": 0.25})
        -0.25
    """
    return figure[_ACCURACY] if _ACCURACY in figure else -figure[_DISTANCE]


def _mean_distance(differences: torch.Tensor, layout: Layout) -> float:
    parts = [differences[: layout.units]] + [0.5 * differences[span].sum()[None] for span in layout.spans]
    return float(torch.cat(parts).mean())


def _sums(records: Records, radius: float) -> tuple[torch.Tensor, float]:
    """Sum all records, each shortened to the radius: (1, width) multiples of a unit, and the unit."""
    return clipped_sums(records, radius, torch.zeros(len(records), dtype=torch.int64), 1)


def _right_answers(real: Records, synthetic: Encoded, layout: Layout) -> torch.Tensor:
    """Count (1,) the real records whose label is told by a classifier that has seen synthetic ones alone.

    A record is a row of whole numbers, and its answer is an exact function of these. A product in floating point rounds a
    row by how many rows there are, so one more record could change the answers for all that lie between two labels.
    """
    classifier, grid = label_classifier(synthetic, layout), Grid.of(real, _GRID)
    highest, right = Highest(classifier.weights, classifier.offsets / grid.unit), 0
    for start in range(0, len(real), _AT_ONCE):
        rows = slice(start, min(start + _AT_ONCE, len(real)))
        told = classifier.labels[highest.exact(grid(real.stretch(rows)))]
        right += int((told == torch.from_numpy(real.encoded.codes[rows, layout.label])).sum())
    return torch.tensor([right])

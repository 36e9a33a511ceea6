"""A public figure of the closeness of synthetic records: measured on real ones with noise, from a share of the budget."""

from __future__ import annotations

import hashlib
import math
import pickle
from dataclasses import dataclass, replace

import numpy as np
import torch

from lightning_dpgen.clustering.block_sums import clipped_sums
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.classifiers import ROWS, LinearClassifier, label_classifier
from lightning_dpgen.metrics.summaries import QuantileBins, binned, quantile_bins
from lightning_dpgen.passes.reduce import InBlocks
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.mechanisms import rounded_gaussian
from lightning_dpgen.privacy.noise.units import check_steps
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.sampling.fixed_point import Grid, Highest

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


def measure_fidelity(
    account: Account, real: Records | InBlocks, synthetic: Encoded, *, radius: float, bins: TableBins | None = None
) -> dict[str, float]:
    """Measure how close the synthetic records are to the real ones, and how much of that is noise.

    Args:
        account: the account whose plan holds `fidelity_stage`.
        real: the private records, in memory or in blocks.
        synthetic: records of the released model, public.
        radius: the length to which a record's numbers are shortened, on both sides.
        bins: public bins in which `synthetic` is given, and the values of `real` are seen; None for both as they are
            encoded.

    Returns:
        ``records, with noise``: how many took part, by which all sums are divided; ``distance of a column, mean`` (total
        variation between shares of values; for units, mean absolute difference of means) and what noise alone would make
        of it on average; and with a label ``accuracy on real records, trained on synthetic`` of a logistic regression, and
        the standard deviation of its noise. All of it public.

    Guarantee:
        One record added or removed moves the sums by `radius` in L2 at most, and the counts of records and of right answers
        by 1; a person by as many times that as they have records. What a record adds is an exact function of that record
        and of public numbers (`sampling/fixed_point.py`). All sums are of whole numbers, and so is their noise. Records
        in blocks give the same sums, to the last bit.
    """
    schema = real.schema if bins is None else bins
    layout, synthetic = schema.layout, synthetic[:ROWS]
    made, unit = _sums(Records(schema, synthetic), radius)
    expected = made[0].double() * unit / max(len(synthetic), 1)
    if isinstance(real, Records) and bins is None:
        # Numbers of real records may be given as other multiples than synthetic ones.
        unit = _sums(Records(schema, real.encoded[:0]), radius)[1]
    classifier = None if layout.label is None else label_classifier(synthetic, layout)
    # Slow work is done before the access, which an interrupt would lose.
    found = _sum_all(real, FigureSums(layout, classifier, radius, unit, bins))
    sums, right = found["means"], found.get("answers")
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
    figure = {
        "records, with noise": round(n),
        _DISTANCE: _mean_distance(differences, layout),
        "distance of a column that noise alone makes": _mean_distance(by_noise * math.sqrt(2.0 / math.pi), layout),
    }
    if right is not None:
        figure[_ACCURACY] = share
        figure["standard deviation of that accuracy by noise"] = math.hypot(of_one["answers"], share * of_one["records"])
    return {name: value if type(value) is int else float(f"{value:.4g}") for name, value in figure.items()}


def measure_table_fidelity(account: Account, real: Records | InBlocks, synthetic: TableValues) -> dict[str, float]:
    """Measure how close a synthetic table is to the real one by values, as `measure_fidelity` does.

    Columns of numbers are cut at tenths of the synthetic column, and a value that a tenth of the synthetic records have is
    a bin of its own; the label keeps a choice for each value. So a bin of the model that hides a bad column hides nothing
    here. The bins follow from public records alone, and never from quantiles of real ones.

    Args:
        account: the account whose plan holds `fidelity_stage`.
        real: the private records, in memory or in blocks, with their values.
        synthetic: records of the released model, public.

    Guarantee:
        That of `measure_fidelity`, with the root of the number of columns as radius: a record is one 1 for each column, in
        the bin of its own value, which is found by comparisons with public numbers and depends on no other record. So one
        record added or removed moves the sums by the radius in L2 at most, and the counts by 1.
    """
    bins, schema = quantile_bins(synthetic), synthetic.schema
    if schema.label in bins:
        (column,) = (column for column in synthetic.of_numbers if column.name == schema.label)
        every = np.union1d(np.arange(column.grid.low, column.grid.high + 1), column.special_ticks)
        bins[schema.label] = QuantileBins(every.astype(np.float64), np.nan, np.empty(0))
    drawn, layout = binned(synthetic, bins)
    if schema.label is not None:
        layout = replace(layout, label=[column.name for column in schema.recorded].index(schema.label))
    radius = math.sqrt(len(layout.groups))
    return measure_fidelity(account, real, drawn, radius=radius, bins=TableBins(layout, bins))


@dataclass(frozen=True, eq=False)
class TableBins:
    """Public bins in which the figure sees the values of a table, and the description of records in them.

    Args:
        layout: a group for each column.
        bins: those of the columns of numbers, by name.
    """

    layout: Layout
    bins: dict[str, QuantileBins]

    def records(self, values: TableValues) -> Records:
        """Return records by their bins, each a function of its own values."""
        return Records(self, binned(values, self.bins)[0])


class FigureSums:
    """The sums of the figure over the records of a block (`passes.reduce.BlockSums`): their numbers, and right answers.

    Args:
        layout: of records as the figure sees them.
        classifier: of the label, public; None without one.
        radius: as for `measure_fidelity`.
        unit: the number that a multiple of 1 in the sum of numbers stands for.
        bins: as for `measure_fidelity`.

    Raises:
        ValueError: when it is called, for records whose sums are of another unit.
    """

    def __init__(
        self, layout: Layout, classifier: LinearClassifier | None, radius: float, unit: float, bins: TableBins | None
    ) -> None:
        self._layout, self._classifier, self._radius, self._unit, self._bins = layout, classifier, radius, unit, bins
        self.shapes: dict[str, tuple[int, ...]] = {"means": (1, layout.width)} | (
            {} if classifier is None else {"answers": (1,)}
        )

    def __call__(self, records: Records) -> dict[str, torch.Tensor]:
        if self._bins is not None:
            assert records.values is not None
            records = self._bins.records(records.values)
        sums, unit = _sums(records, self._radius)
        if unit != self._unit:
            raise ValueError(f"sums of records are multiples of {unit}: expected {self._unit}, as of all others")
        figures = {"means": sums}
        if self._classifier is not None:
            figures["answers"] = _right_answers(records, self._classifier, self._layout)
        return figures


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


def _sum_all(real: Records | InBlocks, function: FigureSums) -> dict[str, torch.Tensor]:
    if isinstance(real, Records):
        return function(real)
    # Sums that were kept are those of the same release.
    return real.reduce(function, of=hashlib.blake2b(pickle.dumps(function), digest_size=16).hexdigest())


def _sums(records: Records, radius: float) -> tuple[torch.Tensor, float]:
    """Sum all records, each shortened to the radius: (1, width) multiples of a unit, and the unit."""
    return clipped_sums(records, radius, torch.zeros(len(records), dtype=torch.int64), 1)


def _right_answers(real: Records, classifier: LinearClassifier, layout: Layout) -> torch.Tensor:
    """Count (1,) the real records whose label is told by a classifier that has seen synthetic ones alone.

    A record is a row of whole numbers, and its answer is an exact function of these. A product in floating point rounds a
    row by how many rows there are, so one more record could change the answers for all that lie between two labels.
    """
    grid = Grid.of(real, _GRID)
    highest, right = Highest(classifier.weights, classifier.offsets / grid.unit), 0
    for start in range(0, len(real), _AT_ONCE):
        rows = slice(start, min(start + _AT_ONCE, len(real)))
        told = classifier.labels[highest.exact(grid(real.stretch(rows)))]
        right += int((told == torch.from_numpy(real.encoded.codes[rows, layout.label])).sum())
    return torch.tensor([right])

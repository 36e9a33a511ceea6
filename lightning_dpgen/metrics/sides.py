"""The records that an evaluation compares, and the bases of metrics of real and of synthetic records. Private."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics.measure import TABLE
from lightning_dpgen.metrics.summaries import QuantileBins, quantile_bins, spreads
from lightning_dpgen.metrics.table_rows import Dependency, find_dependencies

# The most records of each side that are compared.
ROWS = 50_000
_PARTS = ("real", "synthetic", "other", "learned", "first_synthetic", "held_out")


# The answers of a release's classifier for records that nothing was learned from, (n, labels), and their labels (n,); the
# reason in words why there are none; None of a release without a classifier.
Answers = tuple[Tensor, Tensor] | str | None


@dataclass(eq=False, kw_only=True)
class Sides:
    """The records that are compared, and what all measures know of them.

    Args:
        real, synthetic: at least one record each.
        other: real records in the place of synthetic ones; None without any.
        learned: all records that were learned from; None for `real`.
        first_synthetic: the first synthetic records, more of them than are compared at a time; None for `synthetic`.
        held_out: real records that nothing was learned from; None without any.
        seed: of all draws.
        seconds: the time that is left; None without a limit.
        answers: see `Answers`.
    """

    real: Any
    synthetic: Any
    other: Any = None
    learned: Any = None
    first_synthetic: Any = None
    held_out: Any = None
    seed: int = 0
    seconds: float | None = None
    answers: Answers = None

    def __post_init__(self) -> None:
        self.learned = self.real if self.learned is None else self.learned
        self.first_synthetic = self.synthetic if self.first_synthetic is None else self.first_synthetic

    @property
    def compared(self) -> list[Any]:
        """The synthetic records, and the real ones in their place if there are any."""
        return [self.synthetic] + ([] if self.other is None else [self.other])

    @property
    def test(self) -> Any:
        """The records on which classifiers are tested."""
        return self.other if self.held_out is None else self.held_out


@dataclass(eq=False, kw_only=True)
class EncodedSides(Sides):
    """Encoded records: pictures, baskets, series, or a table by its values as units and groups.

    Args:
        names: of the groups.
        channels: of series: how many readings there are at each time, side by side.
        bounds: of series: the values (units,) that units of 0 and of 1 stand for.
        shape: height and width of grey pictures, whose pixels are the units; None of others.
        choices: for each group, the names of its choices; None for numbers.
    """

    kind: str
    layout: Layout
    names: tuple[str, ...] = ()
    channels: int = 1
    bounds: tuple[np.ndarray, np.ndarray] | None = None
    shape: tuple[int, int] | None = None
    choices: Any = None

    @property
    def encoded(self) -> EncodedSides:
        """The same records, which a table has as units and groups."""
        return self

    @property
    def alike(self) -> bool:
        """True where units are of one kind, so that their sum has a meaning: a basket's size, a picture's ink, a load."""
        return self.kind != TABLE

    def of_units(self, which: np.ndarray) -> EncodedSides:
        """Return the same with some of the units alone."""
        layout = Layout(units=len(which), levels=self.layout.levels, groups=self.layout.groups)
        parts = {name: getattr(self, name) for name in _PARTS}
        # A part that stands for another one is cut once.
        done = {id(part): Encoded(part.units[:, which], part.codes) for part in parts.values() if part is not None}
        return replace(self, layout=layout, **{name: done.get(id(part)) for name, part in parts.items()})

    def readings(self, encoded: Encoded) -> np.ndarray:
        """Return units as numbers in [0, 1], whatever their levels: (n, units)."""
        return np.asarray(encoded.units, dtype=np.float64) / (self.layout.levels or 1)

    def scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the values (units,) of units of 0, and those of 1 less these."""
        low, high = (np.zeros(self.layout.units), np.ones(self.layout.units)) if self.bounds is None else self.bounds
        return low, high - low


@dataclass(eq=False, kw_only=True)
class TableSides(Sides):
    """The values of a table.

    Args:
        by: the column whose groups are compared; None for none.
        broken: the share of records that break each declared constraint, of synthetic ones and of real ones, by its name.
        sdmetrics: whether SDMetrics' report is asked for.
    """

    kind: str = TABLE
    by: str | None = None
    broken: dict[str, tuple[float, float]]
    sdmetrics: bool = False

    @cached_property
    def bins(self) -> dict[str, QuantileBins]:
        """Bins at quantiles of all real records."""
        return quantile_bins(self.learned)

    @cached_property
    def dependencies(self) -> list[Dependency]:
        """Columns that another one determines in real records, those that synthetic ones break most often first."""
        return find_dependencies(self.learned, self.first_synthetic, self.seed)

    @cached_property
    def spreads(self) -> np.ndarray:
        """The range of nearly all real values of each column of numbers (columns of numbers,)."""
        return spreads(self.learned)

    @cached_property
    def encoded(self) -> EncodedSides:
        """The same records as units and groups."""
        parts = {name: getattr(self, name) for name in _PARTS}
        scaled = {name: None if part is None else part.scaled()[0] for name, part in parts.items()}
        return EncodedSides(kind=TABLE, layout=self.layout, seed=self.seed, **scaled)

    @cached_property
    def layout(self) -> Layout:
        """The layout of `encoded`."""
        return self.real.scaled()[1]


class TwoSided(Metric):
    """Sums over the records of each side, as states whose first axis is the side: synthetic, then real.

    Args:
        sums: the shape of each sum, by its name.
        dtype: int64 for counts, float64 for other sums.
    """

    full_state_update = False
    higher_is_better = False

    def __init__(self, sums: dict[str, tuple[int, ...]], dtype: torch.dtype = torch.int64, **kwargs) -> None:
        super().__init__(**kwargs)
        self.add_state("records", torch.zeros(2, dtype=torch.int64), dist_reduce_fx="sum")
        for name, shape in sums.items():
            self.add_state(name, torch.zeros(2, *shape, dtype=dtype), dist_reduce_fx="sum")

    def _add(self, real: bool, count: int, **sums: np.ndarray | Tensor) -> None:
        """Add sums over so many records of one side."""
        self.records[int(real)] += count
        for name, found in sums.items():
            state = getattr(self, name)
            state[int(real)] += torch.as_tensor(found).to(state)

    def _counts(self) -> Tensor:
        """Return the numbers of records (2, 1).

        Raises:
            ValueError: where one side has no record.
        """
        if not self.records.all():
            raise ValueError(f"{type(self).__name__} of no records: expected at least one real and one synthetic record")
        return self.records[:, None]


class Collected(Metric):
    """Records of each side, kept until a distance of all of them is computed.

    Args:
        width: the number of numbers of a record.
        dtype: of the numbers that are kept.
    """

    full_state_update = False
    # The word for records in messages, and whether a number may be missing (NaN).
    _named, _missing = "records", False
    real: list[Tensor]
    synthetic: list[Tensor]

    def __init__(self, width: int, dtype: torch.dtype = torch.float64, **kwargs) -> None:
        super().__init__(**kwargs)
        self.width, self._kept = width, dtype
        for side in ("real", "synthetic"):
            self.add_state(side, [], dist_reduce_fx="cat")

    def update(self, records: Tensor, *, real: bool) -> None:
        """Take in records (n, width) of one side.

        Raises:
            ValueError: for no tensor of finite numbers, or another width.
        """
        check_records(self._named, records, self.width, missing=self._missing)
        (self.real if real else self.synthetic).append(records.to(self._kept))

    def _sides(self) -> tuple[Tensor, Tensor]:
        """Return all real records, and all synthetic ones.

        Raises:
            ValueError: where one side has no record.
        """
        sides = [dim_zero_cat(side) if len(side) else () for side in (self.real, self.synthetic)]
        if not all(map(len, sides)):
            raise ValueError(f"{type(self).__name__} of no records: expected at least one on each side")
        return sides[0], sides[1]


def compare(
    metric: Metric, sides: EncodedSides, of: Callable[[Encoded], Any] = lambda encoded: encoded, at_once: int | None = None
) -> list[Metric]:
    """Compare real with synthetic records, and with those in their place if there are any, by the numbers `of` them.

    Args:
        metric: one that has met no record.
        at_once: records whose numbers are taken in at a time; None for all.
    """

    def update(metric: Metric, encoded: Encoded, real: bool) -> None:
        step = at_once or max(1, len(encoded))
        for start in range(0, len(encoded), step):
            metric.update(of(encoded[start : start + step]), real=real)

    update(metric, sides.real, True)
    metrics = [metric, copy.deepcopy(metric)][: len(sides.compared)]
    for beside, other in zip(metrics, sides.compared, strict=True):
        update(beside, other, False)
    return metrics


def named_scores(metrics: list[Metric], words: dict[str, str]) -> list[dict[str, float]]:
    """Return the values of metrics under other names; those without one are left out."""
    return [{words[name]: float(value) for name, value in metric.compute().items() if name in words} for metric in metrics]


def curves_of_both(pair: Tensor) -> dict[str, np.ndarray]:
    """Name the sides of a pair (2, ...), synthetic first."""
    return {"synthetic": pair[0].numpy(), "real": pair[1].numpy()}


def check_records(
    name: str, records: Any, width: int | None = None, device: torch.device | None = None, *, missing: bool = False
) -> None:
    """Raise ValueError, naming them, unless records are a tensor (n, width) of finite numbers on a device.

    None takes any width, or any device; NaN is a number that is `missing`, where there may be one.

    Example:
        >>> check_records("records", torch.zeros(3), 2)
        Traceback (most recent call last):
        ValueError: records of shape (3,): expected (n, 2)
    """
    _check(name, records, "(n, width)" if width is None else f"(n, {width})")
    if records.ndim != 2 or width not in (None, records.shape[1]):
        expected = "width" if width is None else width
        raise ValueError(f"{name} of shape {tuple(records.shape)}: expected (n, {expected})")
    if device not in (None, records.device):
        raise ValueError(f"{name} on {records.device}: expected {device}, where the others are")
    _check_finite(name, records.nan_to_num(0.0, math.inf, -math.inf) if missing else records)


def check_scores(name: str, scores: Any) -> None:
    """Raise ValueError, naming them, unless scores are a tensor (n,) of finite numbers, one a record."""
    _check(name, scores, "(n,), a number for each record")
    if scores.ndim != 1:
        raise ValueError(f"{name} of shape {tuple(scores.shape)}: expected (n,), one for each record")
    _check_finite(name, scores)


def check_seconds(seconds: Any) -> None:
    """Raise ValueError unless a limit of time is a positive number, or None."""
    number = isinstance(seconds, int | float) and type(seconds) is not bool
    if seconds is not None and not (number and 0.0 < seconds < math.inf):
        raise ValueError(f"seconds={seconds!r}: expected a positive number, or None for no limit")


def _check(name: str, values: Any, expected: str) -> None:
    if not isinstance(values, Tensor):
        raise ValueError(f"{name}: found {type(values).__name__}, expected a tensor {expected}")
    if values.is_complex():
        raise ValueError(f"{name} of {values.dtype}: expected real numbers")


def _check_finite(name: str, values: Tensor) -> None:
    if not torch.isfinite(values).all():
        raise ValueError(f"{name} hold NaN or infinite numbers: expected finite ones")

"""The records that an evaluation compares: synthetic and real ones, and others in the place of synthetic ones. Private."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics.measure import TABLE
from lightning_dpgen.metrics.numeric_summaries import spreads
from lightning_dpgen.metrics.quantile_bins import QuantileBins, quantile_bins
from lightning_dpgen.metrics.table_rows import Dependency, find_dependencies

# The most records of each side that are compared.
ROWS = 50_000
_PARTS = ("real", "synthetic", "other", "learned", "made", "held_out")


# The answers of a release's classifier for records that nothing was learned from, (n, labels), and their labels (n,); the
# reason in words why there are none; None of a release without a classifier.
Answers = tuple[Tensor, Tensor] | str | None


@dataclass(eq=False, kw_only=True)
class Sides:
    """The records that are compared, and what all measures know of them.

    Args:
        real, synthetic: at least one record each.
        other: real records in the place of synthetic ones; None without any.
        learned, made: all records that were learned from, and all synthetic ones; None for `real` and `synthetic`.
        held_out: real records that nothing was learned from; None without any.
        seed: of all draws.
        seconds: the time that is left; None without a limit.
        answers: see `Answers`.
    """

    real: Any
    synthetic: Any
    other: Any = None
    learned: Any = None
    made: Any = None
    held_out: Any = None
    seed: int = 0
    seconds: float | None = None
    answers: Answers = None

    def __post_init__(self) -> None:
        self.learned = self.real if self.learned is None else self.learned
        self.made = self.synthetic if self.made is None else self.made

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
        cut = {id(part): Encoded(part.units[:, which], part.codes) for part in parts.values() if part is not None}
        return replace(self, layout=layout, **{name: cut.get(id(part)) for name, part in parts.items()})

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
        return find_dependencies(self.learned, self.made, self.seed)

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

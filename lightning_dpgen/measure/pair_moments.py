"""Moments of contrasts of groups: a few numbers of each that tell, with little noise, how two of them go together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.measure.pair_estimates import Contrasts, contrasts
from lightning_dpgen.measure.pair_tables import NoisyMoments
from lightning_dpgen.measure.statistics import SecondMoments
from lightning_dpgen.measure.workload import Measured
from lightning_dpgen.models.bases import Basis

# Squared lengths of records are about the number d of contrasts, give or take its root; records are shortened to a squared
# length of d and so many times that root. By that so much of all may be lost in a number, beyond what the trace tells.
_REACH, _LOST = 1.5, 0.03


class GroupContrasts(Basis):
    """The tested contrasts of each group of a record: ranks of numbers and their squares, and few choices by themselves.

    A contrast is looked up, so coordinates follow from the record alone, bit for bit. One that a rare choice makes large is
    0 for all.

    Args:
        layout: of the records.
        shares: for each group the shares of its choices; public.

    Attributes:
        tables: for each group (choices, contrasts).
        varying: the number of contrasts that are not 0 for all.
    """

    def __init__(self, layout: Layout, shares: Sequence[np.ndarray]) -> None:
        self.layout = layout
        ordered = layout.ordered or (0,) * len(layout.groups)
        of_groups = [contrasts(own, count) for own, count in zip(shares, ordered, strict=True)]
        self.tables = [_values(own, size) for own, size in zip(of_groups, layout.groups, strict=True)]
        self.varying = sum(int(table.any(axis=0).sum()) for table in self.tables)
        # Without any there is one that is 0.
        self.size = max(sum(table.shape[1] for table in self.tables), 1)

    def coordinates(self, records: Encoded) -> Tensor:
        """Return the contrasts (B, size) of records, in float64."""
        columns = [table[records.codes[:, group]] for group, table in enumerate(self.tables)]
        found = np.concatenate(columns, axis=1)
        return torch.from_numpy(found if found.shape[1] else np.zeros((len(found), 1)))

    @property
    def radius(self) -> float:
        """The length to which records are shortened: a contrast has a mean square of 1."""
        count = max(self.varying, 1)
        return math.sqrt(count + _REACH * math.sqrt(count))


def _values(of_group: Contrasts | None, choices: int) -> np.ndarray:
    if of_group is None:
        return np.zeros((choices, 0))
    return of_group.values[:, : of_group.tested] * of_group.measured


def contrast_moments(layout: Layout, shares: Sequence[np.ndarray]) -> SecondMoments:
    """Return the statistic of sums of products of contrasts, which one record moves by the squared radius at most."""
    basis = GroupContrasts(layout, shares)
    return SecondMoments(basis, basis.radius)


def noisy_moments(layout: Layout, shares: Sequence[np.ndarray], measured: Measured, total: float) -> NoisyMoments:
    """Return measured moments as sums over records that were not shortened.

    Shortening takes a part off all of a record; the trace, of which the noise is small, tells how much.
    """
    basis = GroupContrasts(layout, shares)
    sums = 0.5 * (measured.sums + measured.sums.T).numpy()
    longer = min(max(total * basis.varying / max(float(sums.trace()), 1e-9), 1.0), 2.0)
    # A number beside the diagonal is the mean of two draws.
    deviation = math.hypot(longer * measured.deviation / math.sqrt(2.0), _LOST * total)
    return NoisyMoments(longer * sums, deviation, basis.tables)

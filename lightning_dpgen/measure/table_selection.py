"""Selection: which of many tables are measured, by how far the records are from what is known already."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.records import Records
from lightning_dpgen.measure.statistics import Marginals, Statistic
from lightning_dpgen.measure.workload import Measured, Workload
from lightning_dpgen.privacy.access import PURE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.mechanisms import report_noisy_max
from lightning_dpgen.privacy.stage_spec import StageSpec


class Distances(Statistic):
    """How far each of some tables is from what is expected of it: the sum of absolute differences, less an allowance.

    One record changes one cell of each table by 1, and what is expected is public, so each distance changes by 1 at most.
    They are not a sum over records: they are looked at through `TableSelection` alone, which releases no distance.

    Args:
        tables: the candidates.
        expected: of each table, in its shape; public.
        allowances: of each, what it has to be further away to be worth measuring; public.
        count: how many are chosen.
    """

    bound = 1.0

    def __init__(self, tables: Marginals, expected: Sequence[Tensor], allowances: Sequence[float], count: int) -> None:
        shapes = [tuple(cells.shape) for cells in expected]
        if shapes != tables.sizes or not all(cells.isfinite().all() for cells in expected):
            raise ValueError(f"expected: of shapes {shapes}, expected finite numbers of the tables' {tables.sizes}")
        if len(allowances) != len(tables.tables) or not 1 <= count <= len(tables.tables):
            raise ValueError(
                f"count={count}, {len(allowances)} allowances: expected an allowance for each of {len(tables.tables)} "
                "tables, and at most as many to choose"
            )
        self.layout, self._tables, self._expected, self._allowances = tables.layout, tables, expected, allowances
        self.shape = (count,)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        return self._distances(self._tables.sums(records, component))

    def of_all(self, records: Records, component: Tensor) -> Tensor:
        return self._distances(self._tables.of_all(records, component))

    def _distances(self, sums: Tensor) -> Tensor:
        found = zip(self._tables.tables_of(sums), self._expected, self._allowances, strict=True)
        return torch.stack([(table - expected).abs().sum() - allowance for table, expected, allowance in found])


@dataclass(frozen=True)
class TableSelection(Workload):
    """An access that chooses some of several candidates by the exponential mechanism, one after the other.

    Args:
        count: how many.
    """

    count: int = 1

    def spec(self, share: float) -> StageSpec:
        names = dict.fromkeys(self._names, 1.0)
        kinds = dict.fromkeys(names, PURE)
        return StageSpec(self.stage, names, self.rounds, max_noise=self.max_noise, share=share * self.share, kinds=kinds)

    @property
    def _names(self) -> list[str]:
        return [f"choice {i + 1}" for i in range(self.count)]

    def measure(
        self, statistics: Mapping[str, Statistic], records: Records, component: Tensor, account: Account
    ) -> Mapping[str, Measured]:
        """The places of those that were chosen, the first one first.

        Args:
            statistics: one, whose numbers over all records are scores of the candidates.
            records, component, account: as of `Workload.measure`.

        Guarantee:
            Each choice is as private as `report_noisy_max` makes it at the statistic's bound.

        Raises:
            ValueError, BadRecords, LedgerError: as `Workload.measure`.
        """
        self.check(statistics, records, component, account)
        ((name, statistic),) = statistics.items()
        scores = statistic.of_all(records, component).numpy()
        if scores.ndim != 1 or len(scores) < self.count or not np.isfinite(scores).all():
            raise ValueError(f"scores of shape {scores.shape}: expected {self.count} finite numbers or more")
        chosen: list[int] = []
        with account.open(self.stage, of=records) as access:
            for noise in self._names:
                left = np.setdiff1d(np.arange(len(scores)), chosen)
                chosen.append(int(left[report_noisy_max(access, noise, scores[left], sensitivity=statistic.bound)]))
        return {name: Measured(torch.tensor(chosen, dtype=torch.float64), 0.0, account.ledger.run)}


def independent(tables: Marginals, singles: Mapping[int, Tensor], label: int | None, total: float) -> list[Tensor]:
    """What is expected of tables of two groups, by the label where there is one, if they are independent given it.

    Args:
        tables: each of two groups, after the label.
        singles: by group, (labels, choices) counts, one row without a label; made to be 0 or more.
        label: the label's group.
        total: how many records there are.
    """
    shares = {group: counts.clamp(min=0.0) + 1e-9 for group, counts in singles.items()}
    of_labels = torch.stack([counts.sum(dim=1) / counts.sum() for counts in shares.values()]).mean(dim=0)
    given = {group: counts / counts.sum(dim=1, keepdim=True) for group, counts in shares.items()}
    found = []
    for table, size in zip(tables.tables, tables.sizes, strict=True):
        first, second = (group for group in table if group != label)
        cells = total * of_labels[:, None, None] * given[first][:, :, None] * given[second][:, None, :]
        found.append(cells.reshape(size))
    return found


def pairs_of(groups: Sequence[int], label: int | None) -> list[tuple[int, ...]]:
    """All tables of two of these groups, by the label."""
    before = () if label is None else (label,)
    return [(*before, *pair) for pair in itertools.combinations(groups, 2)]

"""Does it pay to measure only the tables of two columns that tell most, chosen by the exponential mechanism?

    python -m experiments.league.table_selection FOLDER [--rows 15000] [--epsilon 0.3] [--pairs 13 30 78] [--runs 1]

Rows of Adult, the mixture of `model=measured` with its defaults but for the label, which is left to the mixture: test
accuracy of a random forest and of gradient boosting that learn from as many synthetic records. Tables are chosen by how
far the records are from what tables of single columns let expect. What has been computed is kept in FOLDER.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.common.arguments import read_count, read_positive
from experiments.common.kept import Kept
from experiments.league.classifiers import DELTA, scores, tables
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.records import Records
from lightning_dpgen.measure.pair_tables import total_of
from lightning_dpgen.measure.statistics import Marginals, Statistic
from lightning_dpgen.measure.tables import TABLES, TableRecipe
from lightning_dpgen.measure.workload import Measured, State, Workload
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.privacy.access import PURE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.mechanisms import report_noisy_max
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.planning.calibration import StageSpec, make_plan
from lightning_dpgen.specs.defaults import Defaults

COLUMNS, CHOSEN = "columns", "choice"
# The part of what tables are measured with that chooses some of them.
_CHOOSING = 0.1
# The unit of expected counts, allowances and distances: they are whole multiples, so noise on distances is exact.
_UNIT = 2.0**-10


class Distances(Statistic):
    """Distances of some tables from what is expected of them: the sum of absolute differences, less an allowance.

    One record changes one cell of each table by 1, and what is expected is public, so each distance changes by 1 at most.
    All are whole multiples of the unit, to which what is expected, and allowances, are rounded. They are not a sum over
    records: they are looked at through `TableSelection` alone, which releases no distance.

    Args:
        tables: the candidates.
        expected: the expected counts of each table, in its shape; public.
        allowances: by how much more each has to be away to be worth measuring; public.
        count: the number of tables that are chosen.
    """

    bound, unit = 1.0, _UNIT

    def __init__(self, tables: Marginals, expected: Sequence[Tensor], allowances: Sequence[float], count: int) -> None:
        shapes = [tuple(cells.shape) for cells in expected]
        if shapes != tables.sizes or not all(cells.isfinite().all() for cells in expected):
            raise ValueError(f"expected: of shapes {shapes}, expected finite numbers of the tables' {tables.sizes}")
        if len(allowances) != len(tables.tables) or not 1 <= count <= len(tables.tables):
            raise ValueError(
                f"count={count}, {len(allowances)} allowances: expected an allowance for each of {len(tables.tables)} "
                "tables, and at most as many to choose"
            )
        self.layout, self._tables = tables.layout, tables
        self._expected = [_round_to_multiples(cells) for cells in expected]
        self._allowances = _round_to_multiples(torch.tensor(allowances, dtype=torch.float64))
        self.shape = (count,)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        return self._distances(self._tables.sums(records, component))

    def of_all(self, records: Records, component: Tensor) -> Tensor:
        return self._distances(self._tables.of_all(records, component))

    def _distances(self, sums: Tensor) -> Tensor:
        found = zip(self._tables.tables_of(sums), self._expected, self._allowances, strict=True)
        return torch.stack([(table * round(1.0 / _UNIT) - expected).abs().sum() - less for table, expected, less in found])


def _round_to_multiples(values: Tensor) -> Tensor:
    """Return float64 numbers in units, int64; where they are too large to be counts, they are cut."""
    return (values.double() / _UNIT).round().clamp(-(2.0**52), 2.0**52).to(torch.int64)


@dataclass(frozen=True)
class TableSelection(Workload):
    """An access that chooses some of several candidates by the exponential mechanism, one after the other.

    Args:
        count: the number of choices.
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
        """Choose candidates and return their places, the first choice first.

        Args:
            statistics: one, whose numbers over all records are scores of the candidates.
            records, component, account: see `Workload.measure`.

        Guarantee:
            Each choice is as private as `report_noisy_max` makes it at the statistic's bound.

        Raises:
            ValueError, BadRecords, LedgerError: as `Workload.measure`.
        """
        self.check(statistics, records, component, account)
        ((name, statistic),) = statistics.items()
        scores = statistic.of_all(records, component)
        if scores.ndim != 1 or len(scores) < self.count:
            raise ValueError(f"scores of shape {tuple(scores.shape)}: expected {self.count} numbers or more")
        chosen: list[int] = []
        with account.open(self.stage, of=records) as access:
            for noise in self._names:
                left = np.setdiff1d(np.arange(len(scores)), chosen)
                place = report_noisy_max(access, noise, scores[left], unit=statistic.unit, sensitivity=statistic.bound)
                chosen.append(int(left[place]))
        return {name: Measured(torch.tensor(chosen, dtype=torch.float64), 0.0, account.ledger.run)}


def independent(tables: Marginals, singles: Mapping[int, Tensor], label: int | None, total: float) -> list[Tensor]:
    """Return the counts that tables of two groups would have if the groups were independent given the label.

    Args:
        tables: each of two groups, after the label.
        singles: by group, (labels, choices) counts, one row without a label; made to be 0 or more.
        label: the label's group; None without one.
        total: the number of records.
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


@dataclass(frozen=True)
class SelectedProducts(TableRecipe):
    """A `TableRecipe` of three accesses: single columns, a choice of tables of two, and these tables.

    Args:
        pairs: the number of tables of two that are measured; None, or as many as there are, for all.

    Raises:
        ValueError: for pairs below 1.
    """

    pairs: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs is not None:
            check_sizes(pairs=self.pairs)

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The accesses, with those of the label at the end."""
        every, *label = super().workloads
        if not self._chooses:
            return every, *label
        choosing, pairs = _CHOOSING * every.share, (1.0 - _CHOOSING) * self.pairs_share * every.share
        return (
            Workload(COLUMNS, {"singles": 1.0}, self.n, every.share - choosing - pairs),
            TableSelection(CHOSEN, {"distances": 1.0}, self.n, choosing, count=self.pairs),
            Workload(TABLES, {"pairs": 1.0}, self.n, pairs),
            *label,
        )

    def statistics(self, stage: str, state: State | None = None) -> Mapping[str, Statistic]:
        """Return the statistics of a stage: one record changes one cell of a table, and each distance by 1 at most."""
        if self._chooses and stage == COLUMNS:
            return {"singles": self.tables["singles"]}
        if self._chooses and stage == CHOSEN:
            return {"distances": self._distances(state[COLUMNS][0]["singles"])}
        if self._chooses and stage == TABLES:
            return {"pairs": self._chosen(state)}
        return super().statistics(stage, state)

    def warnings(self, plan: Plan) -> list[str]:
        """Return none where tables are chosen, whose noise is what is asked about."""
        return [] if self._chooses else super().warnings(plan)

    @property
    def _chooses(self) -> bool:
        return self.pairs is not None and self.pairs < len(self.tables["pairs"].tables)

    def _distances(self, singles: Measured) -> Distances:
        label, tables = self.schema.layout.label if self.by_label else None, self.tables
        counts = zip(tables["singles"].tables, tables["singles"].tables_of(singles.sums), strict=True)
        by_group = {table[-1]: cells.reshape(-1, cells.shape[-1]) for table, cells in counts}
        total = total_of({"singles": tables["singles"]}, {"singles": singles})
        expected = independent(tables["pairs"], by_group, label, total)
        # Measuring a table adds noise of sqrt(2 / pi) deviations a cell on average.
        noise = (1.0 - self.pairs_share) / self.pairs_share * self.pairs / len(by_group)
        deviation = singles.deviation * math.sqrt(noise)
        allowances = [math.sqrt(2.0 / math.pi) * deviation * math.prod(size) for size in tables["pairs"].sizes]
        return Distances(tables["pairs"], expected, allowances, self.pairs)

    def _chosen(self, state: State) -> Marginals:
        pairs, places = self.tables["pairs"], state[CHOSEN][0]["distances"].sums.long().tolist()
        return Marginals(self.schema.layout, [pairs.tables[place] for place in places])

    def _measured(self, state: State) -> tuple[dict[str, Marginals], dict[str, Measured]]:
        if not self._chooses:
            return super()._measured(state)
        found = {**state[COLUMNS][0], **state[TABLES][0]}
        return self.tables | {"pairs": self._chosen(state)}, found


def compared(rows: int, epsilon: float, pairs: int, seed: int) -> list[float]:
    """Return the scores (see `tables_classifiers.scores`) of a mixture fitted to so many tables of two."""
    train, test = tables("adult", epsilon, seed)
    some = np.sort(np.random.default_rng(seed).permutation(len(train))[:rows])
    train = Records(train.schema, train.encoded[some])
    components = Defaults(rows, train.schema.layout, epsilon, DELTA).components
    recipe = SelectedProducts(train.schema, components, rows, seed=seed, by_label=True, pairs=pairs)
    account = Account(make_plan(recipe.specs(1.0), epsilon=epsilon, delta=DELTA))
    mixture = recipe.measure(train, torch.zeros(rows, dtype=torch.int64), account)
    made = mixture.sample(rows, torch.Generator().manual_seed(seed))
    return scores(made, test.encoded, train.schema.layout.label, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=read_count, default=15_000)
    parser.add_argument("--epsilon", type=read_positive, default=0.3)
    parser.add_argument("--pairs", nargs="+", type=read_count, default=[13, 30, 78])
    parser.add_argument("--runs", type=read_count, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(asked.folder / "table_selection.json")
    for pairs in asked.pairs:
        found = []
        for seed in range(asked.runs):
            about = {"rows": asked.rows, "epsilon": asked.epsilon, "pairs": pairs, "seed": seed}
            found.append(kept.get(about, lambda about=about: compared(**about)))
        forest, boosting = np.mean(found, axis=0)[:2]
        print(f"{pairs} tables: forest {forest:.3f}, boosting {boosting:.3f}", flush=True)


if __name__ == "__main__":
    main()

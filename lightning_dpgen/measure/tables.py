"""The recipe of tables: noisy counts of each column and of each two, a mixture of forests fitted to them, and its label."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.common import pace
from lightning_dpgen.common.plain_text import listed, say_count
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.measure.crossings import (
    CROSSINGS,
    EFFECT,
    EVIDENCE_STAGE,
    MOST_CHOSEN_CROSSINGS,
    CrossingCounts,
    bytes_of_crossings,
    count_crossings,
    crossing_workloads,
    explained_by_chance,
    label_shares,
    possible_crossings,
)
from lightning_dpgen.measure.first_draw import put_shares_right
from lightning_dpgen.measure.forest_edges import MOST_CELLS, Forest
from lightning_dpgen.measure.forest_errors import MOST_IN_SET
from lightning_dpgen.measure.forest_fit import fit_forest
from lightning_dpgen.measure.labels import (
    LabelRegression,
    MadeUp,
    check_sharpness,
    label_workload,
    made_up_by_forests,
)
from lightning_dpgen.measure.pair_estimates import records_to_show
from lightning_dpgen.measure.pair_moments import noisy_moments
from lightning_dpgen.measure.pair_tables import (
    NoisyTables,
    broken_pairs,
    find_rules,
    lost_columns,
    total_of,
    what_to_leave_out,
    with_rules,
)
from lightning_dpgen.measure.recipe import LEARNING, Recipe
from lightning_dpgen.measure.statistics import Marginals, Statistic
from lightning_dpgen.measure.workload import Measured, State, Workload, check_share, split_noise
from lightning_dpgen.models.forests import StackedForests
from lightning_dpgen.models.labelled import Crossing, takes_label
from lightning_dpgen.models.mixture import Margins, Mixture
from lightning_dpgen.models.networks import check_seed
from lightning_dpgen.privacy.plan import LABELS, Plan

TABLES = "tables"
# The name of the counts of sets of columns that a user asks for, and their share of the access.
ASKED, WORKLOAD_SHARE = "workload", 1 / 3
# The name of moments of contrasts, where an access after that of the tables has measured them.
MOMENTS = "moments"
# The ridge of the label's regression: so many times the variance of a noisy share, and the least.
_RIDGE, _LEAST = 140.0, 2e-4
# Counts are by the label where a cell holds so many records more than its noise has deviations, for two labels: each gets
# the fewer components the more there are. And there are at most so many cells, since each step of a fit takes them all.
_WORTH, _MOST_BY_LABEL = 0.25, 4_000_000
# The weight of components is chosen by noise that is split off, so many of its deviations.
_PART = 0.7
# Bytes of a fit, as measured: in any case, for each cell of the tables, which are there several times while their noise is
# split, and at most for each component and cell of neighbours in trees, and of sets of three groups or more.
_BYTES_ANYWAY, _BYTES_OF_CELL, _BYTES_IN_TREES, _BYTES_IN_SETS = 200 << 20, 60, 8, 16


@dataclass(frozen=True)
class TableRecipe(Recipe):
    """One access: counts of the choices of each group, and of each two; and a mixture of forests fitted to them.

    With a share for the label a few accesses follow, after which it is drawn given all other choices (`LabelRegression`).

    Args:
        schema: the schema of records that are choices alone, such as tables; public.
        k: number of components.
        n: the declared number of records.
        pairs_share: share of the access's inverse squared noise; the tables of single groups get the rest.
        seed: seed of the fit; public.
        label_share: share of what may be spent; 0 leaves the label to the mixture.
        by_label: whether counts are by the label, too: that tells how it goes with two groups, and has as many times the
            noise as there are labels.
        crossed: whether a few columns are chosen that tell of the label together (`measure.crossings`), where it has a
            share.
        label_sharpness: factor of the differences between the logits of labels. At 1 labels are drawn as real ones are;
            more helps classifiers that learn from the table, and takes the doubt out of doubtful rows.
        asked: sets of groups whose tables of counts are measured beside the others, in the same access: they get
            `WORKLOAD_SHARE` of it, and `pairs_share` is a share of the rest.

    Raises:
        ValueError: for records of other kinds, a share outside (0, 1), or one for a label that no other choice tells of.
    """

    schema: Schema
    k: int
    n: int
    pairs_share: float = 0.8
    seed: int = 0
    label_share: float = 0.0
    label_sharpness: float = 1.0
    by_label: bool = False
    crossed: bool = False
    asked: tuple[tuple[int, ...], ...] = ()
    # The last fit and its measurements: a fit takes seconds, and each access of the label asks for it.
    _last: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        layout = self.schema.layout
        if layout.units or not layout.groups:
            raise ValueError(
                f"schema: records of {layout.units} numbers and {len(layout.groups)} choices: expected choices alone, as "
                "of tables whose numeric columns are in bins"
            )
        check_share("pairs_share", self.pairs_share)
        check_seed(self.seed)
        check_sharpness("label_sharpness", self.label_sharpness)
        check_share("label_share", self.label_share, none=True)
        if self.label_share and not takes_label(self.schema.layout):
            raise ValueError(f"label_share={self.label_share}: expected 0 where there is no label, or nothing besides it")
        if self.by_label and not takes_label(self.schema.layout):
            raise ValueError(f"by_label={self.by_label}: expected False where there is no label, or nothing besides it")

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The tables, and the accesses of the label."""
        share = 1.0 - self.label_share
        rest = 1.0 - (WORKLOAD_SHARE if self.asked else 0.0)
        weights = {"singles": rest * (1.0 - self.pairs_share), "pairs": rest * self.pairs_share, ASKED: WORKLOAD_SHARE}
        crossings = crossing_workloads(self.schema.layout, self.n) if self.crossed and self.label_share else ()
        share -= sum(one.share for one in crossings)
        tables = Workload(TABLES, {name: weights[name] for name in self.tables}, self.n, share)
        labels = [label_workload(self.n, self.label_share, agreement=True)] if self.label_share else []
        return (tables, *crossings, *labels)

    @property
    def crossings_line(self) -> str | None:
        """In words what is chosen of columns that tell of the label together, or how to ask for more than pairs."""
        layout = self.schema.layout
        if layout.label is None and len(layout.groups) > 2 and not any(len(own) > 2 for own in self.asked):
            return "what only three columns tell together is looked for where their counts are asked for: there is no label"
        if not (self.crossed and self.label_share):
            return None
        count, label = count_crossings(layout), list(self.schema.choices)[layout.label]
        return (
            f"{CROSSINGS}, {EVIDENCE_STAGE}: {min(MOST_CHOSEN_CROSSINGS, count)} of {count:,} twos and threes of "
            f"columns, which tell of {label} together, and how much they tell of it"
        )

    @property
    def from_fits(self) -> frozenset[str]:
        """The label, given what the mixture says of it."""
        return frozenset({CROSSINGS, EVIDENCE_STAGE, LABELS})

    @property
    def dispensable(self) -> Mapping[str, str]:
        """The scores of crossings: without them no crossing is taken."""
        return {EVIDENCE_STAGE: "the label follows from single columns, and from no two or three of them together"}

    def statistics(self, stage: str, state: State | None = None) -> Mapping[str, Statistic]:
        """Return the statistics of a stage.

        Tables are `singles`, `pairs` if there are two groups besides the label, and `workload` for sets that are asked
        for: one record changes one cell of each by 1. The label has `gradient` and `agreement`, at the weights that have
        been reached.
        """
        if stage == CROSSINGS:
            return {"choice": self._counts(state, self._left(state)[1])}
        if stage == EVIDENCE_STAGE:
            return {"scores": self._counts(state, self._left(state)[0], choice=False)}
        if stage == LABELS:
            return self._regression(state, self._crossings(state)).statistics(state.get(LABELS, ()))
        return self.tables

    def warnings(self, plan: Plan) -> list[str]:
        """Return what noise hides: what goes together, whole columns, and tables that are asked for."""
        told = (self._warning_of_pairs(plan), self._warning_of_columns(plan), self._warning_of_asked(plan))
        return [own for own in told if own is not None]

    @property
    def cells_asked(self) -> list[int]:
        """The number of cells of each table that is asked for."""
        return [math.prod(self.schema.layout.groups[group] for group in own) for own in self.asked]

    def deviation_of_asked(self, plan: Plan) -> float:
        """Return the standard deviation of the noise of a count of the sets that are asked for."""
        return self._deviation(plan, ASKED)

    def errors_of_counts(self, plan: Plan) -> list[tuple[list[str], int, float]]:
        """Return the smallest and the largest table of one column, and of two, with the noise of their counts.

        Returns:
            The names of the columns, the number of cells, and the standard deviation of the noise of a count, that of all
            labels together.
        """
        names, found = list(self.schema.choices), []
        for name in ("singles", "pairs"):
            if name not in self.tables:
                continue
            # A table that is measured for each label has the label in front, which adds its noise up and no choice.
            own = {groups[-1:] if name == "singles" else groups[-2:] for groups in self.tables[name].tables}
            cells = {groups: math.prod(self.schema.layout.groups[group] for group in groups) for groups in sorted(own)}
            deviation = math.sqrt(self._labels) * self._deviation(plan, name)
            for groups in dict.fromkeys((min(cells, key=cells.__getitem__), max(cells, key=cells.__getitem__))):
                found.append(([names[group] for group in groups], cells[groups], deviation))
        return found

    def _warning_of_asked(self, plan: Plan) -> str | None:
        deviation = self.deviation_of_asked(plan) if self.asked else 0.0
        counted, names = zip(self.asked, self.cells_asked, strict=True), list(self.schema.choices)
        noisy = {groups: cells for groups, cells in counted if cells * deviation > self.n}
        if not noisy:
            return None
        largest = max(noisy, key=noisy.__getitem__)
        return (
            f"{len(noisy):,} of {say_count(len(self.asked), 'table')} asked for would be mostly noise: that of "
            f"{listed(names[group] for group in largest)} has {noisy[largest]:,} cells, with "
            f"{self.n / noisy[largest]:.2g} records in a cell on average and noise of standard deviation {deviation:,.1f}; "
            "ask for fewer columns or fewer tables, or raise epsilon"
        )

    @property
    def _labels(self) -> int:
        """The number of tables that add up to one of all records."""
        layout = self.schema.layout
        return layout.groups[layout.label] if self.by_label and layout.label is not None else 1

    def _deviation(self, plan: Plan, tables: str) -> float:
        """Return the standard deviation of the noise of a count of these tables."""
        return plan.stage(TABLES).access.multipliers[tables] * self.tables[tables].bound * plan.max_rows

    def _warning_of_columns(self, plan: Plan) -> str | None:
        """Return which columns are nothing but noise: a value has fewer records on average than all its counts tell of."""
        layout, tables, root = self.schema.layout, self.tables, math.sqrt(self._labels)
        deviations = {name: max(root * self._deviation(plan, name), 1e-9) for name in tables if name != ASKED}
        trust = dict.fromkeys(range(len(layout.groups)), deviations["singles"] ** -2)
        for groups in tables["pairs"].tables if "pairs" in tables else ():
            for group, other in (groups[-2:], groups[:-3:-1]):
                trust[group] += deviations["pairs"] ** -2 / layout.groups[other]
        noise = {group: own**-0.5 for group, own in trust.items() if group != layout.label}
        return lost_columns(self.schema, noise, self.n)

    def _warning_of_pairs(self, plan: Plan) -> str | None:
        tables = self.tables.get("pairs")
        if tables is None:
            return None
        deviation = self._deviation(plan, "pairs")
        of_all = deviation * math.sqrt(self._labels)
        needed = [records_to_show(sizes[-2:], of_all, self.n) for sizes in tables.sizes]
        hidden = sum(number > self.n for number in needed)
        if 2 * hidden > len(needed):
            times = math.ceil(statistics.median(needed) / self.n)
            return (
                f"correlations cannot be found with {say_count(self.n, 'record')}, "
                f"{len(self.schema.layout.groups):,} columns and epsilon {plan.epsilon:.3g}: in {hidden:,} of "
                f"{say_count(len(needed), 'table')} of two columns noise of "
                f"standard deviation {of_all:,.1f} hides even that one determines the other; take some {times:,} times "
                f"the records or epsilon; or {what_to_leave_out(self.schema)}"
            )
        mean = self.n * len(tables.tables) / sum(map(math.prod, tables.sizes))
        if deviation <= mean:
            return None
        return (
            f"of the tables of two columns a cell holds {mean:,.1f} records on average, and noise of standard deviation "
            f"{deviation:,.1f}: what goes together is found only where it is plain; {what_to_leave_out(self.schema)}; or "
            "raise epsilon"
        )

    def _mixture(self, state: State) -> Mixture:
        mixture = self._fitted(state)[0]
        if not self.label_share:
            return mixture
        return self._regression(state, self._crossings(state)).labelled(mixture, state[LABELS], self.label_sharpness)

    @property
    def tables(self) -> dict[str, Marginals]:
        """All tables: `singles`, `pairs` if there are two groups, each by the label if any is, and what is asked for."""
        layout = self.schema.layout
        label = (layout.label,) if self.by_label else ()
        groups = [group for group in range(len(layout.groups)) if group not in label]
        tables = {"singles": Marginals(layout, [(*label, group) for group in groups])}
        pairs = [(*label, *pair) for pair in itertools.combinations(groups, 2)]
        tables |= {"pairs": Marginals(layout, pairs)} if pairs else {}
        return tables | ({ASKED: Marginals(layout, self.asked)} if self.asked else {})

    def answers(self, state: State) -> tuple[list[Tensor], float]:
        """Return the noisy tables of the sets that were asked for, and the standard deviation of each count's noise."""
        measured = state[TABLES][0][ASKED]
        return self.tables[ASKED].tables_of(measured.sums), measured.deviation

    @property
    def fit_bytes(self) -> int:
        """About how many bytes a fit takes: for cells of all tables, what trees make of each component, and crossings."""
        cells = sum(tables.shape[0] for tables in self.tables.values())
        sizes = self.schema.layout.groups
        in_trees = min(sum(sizes) * max(sizes), MOST_CELLS * len(sizes) // 4)
        crossed = bytes_of_crossings(self.schema.layout) if self.crossed and self.label_share else 0
        of_sets = _BYTES_IN_SETS * self.k * sum(own for own in self.cells_asked if own <= MOST_IN_SET)
        return _BYTES_ANYWAY + _BYTES_OF_CELL * cells + _BYTES_IN_TREES * self.k * in_trees + of_sets + crossed

    def _measured(self, state: State) -> tuple[dict[str, Marginals], Mapping[str, Measured]]:
        """Return the tables that were measured, and what was found."""
        return self.tables, state[TABLES][0]

    def shares(self, state: State) -> list[np.ndarray]:
        """Return the shares of the choices of each group, as the tables say."""
        return self._noisy(*self._measured(state)).shares()

    def total(self, state: State) -> float:
        """Return the number of records, as the tables say."""
        return total_of(*self._measured(state))

    def _noisy(
        self,
        tables: Mapping[str, Marginals],
        measured: Mapping[str, Measured],
        shares: Sequence[np.ndarray] | None = None,
    ) -> NoisyTables:
        """Return what was found of each group, and of each two.

        Args:
            shares: of the choices of each group, by which moments were measured; None for those of these tables.
        """
        by_label, counts = int(self.by_label), {"singles": {}, "pairs": {}}
        for name, measurement in measured.items():
            if name in (ASKED, MOMENTS):
                continue
            for groups, table in zip(tables[name].tables, tables[name].tables_of(measurement.sums), strict=True):
                counts[name][groups[by_label:]] = table.numpy() if by_label else table.numpy()[None]
        noisy = NoisyTables(
            singles={group: table for (group,), table in counts["singles"].items()},
            pairs=counts["pairs"],
            single_deviation=measured["singles"].deviation,
            pair_deviation=measured.get("pairs", measured["singles"]).deviation,
            total=total_of(tables, measured),
            label=self.schema.layout.label if by_label else None,
            ordered=self.schema.layout.ordered,
        )
        if self.asked:
            measurement = measured[ASKED]
            asked = dict(
                zip(self.asked, (table.numpy() for table in tables[ASKED].tables_of(measurement.sums)), strict=True)
            )
            for groups, table in asked.items():
                noisy = noisy.sharpened(groups, table, measurement.deviation)
            # A label that is drawn last follows from its regression.
            last = self.schema.layout.label if self.label_share else None
            sets = {groups: table for groups, table in asked.items() if len(groups) > 2 and last not in groups}
            noisy = replace(noisy, sets=sets, set_deviation=measurement.deviation)
        if (moments := measured.get(MOMENTS)) is not None:
            shares = noisy.shares() if shares is None else shares
            noisy = replace(noisy, moments=noisy_moments(self.schema.layout, shares, moments, noisy.total))
        return noisy

    def _fitted(self, state: State) -> tuple[Mixture, MadeUp | None]:
        tables, measured = self._measured(state)
        if self._last.get("to") != [id(one) for one in measured.values()]:
            with pace.stage(LEARNING):
                mixture, samples = self._fit(tables, measured)
            # The measurements are kept beside the fit, so that no others can get their ids.
            self._last.clear()
            self._last.update(to=[id(one) for one in measured.values()], kept=measured, fitted=(mixture, samples))
        return self._last["fitted"]

    def _possible(self, state: State) -> list[Crossing]:
        """Return all crossings among which some are chosen."""
        samples = self._fitted(state)[1]
        if "possible" not in self._last:
            self._last["possible"] = possible_crossings(self.schema, samples.records)
        return self._last["possible"]

    def _left(self, state: State) -> tuple[list[int], list[int]]:
        """Return the places, among all crossings, of those that have been chosen, and of the others."""
        others = list(range(len(self._possible(state))))
        if len(others) <= MOST_CHOSEN_CROSSINGS:
            return others, []
        return [others.pop(int(access["choice"].sums)) for access in state.get(CROSSINGS, ())], others

    def _counts(self, state: State, places: Sequence[int], *, choice: bool = True) -> CrossingCounts:
        """Return the counts of the crossings at some places, beside what is known of the label already."""
        some = ([own[place] for place in places] for own in (self._possible(state), self._known(state)))
        return CrossingCounts(self.schema.layout, *some, choice=choice)

    def _known(self, state: State) -> list[Tensor]:
        """Return the shares of labels in the cells of all crossings, as columns tell them by themselves."""
        if "known" not in self._last:
            shares = self._regression(state, []).shares
            self._last["known"] = label_shares(self._possible(state), self._fitted(state)[1].records, shares)
        return self._last["known"]

    def _crossings(self, state: State) -> list[Crossing]:
        """Return the crossings that have been chosen and explain enough."""
        if not state.get(EVIDENCE_STAGE):
            return []
        possible, known, samples = self._possible(state), self._known(state), self._fitted(state)[1].records
        total, chosen = total_of(*self._measured(state)), []
        for place, score in zip(self._left(state)[0], state[EVIDENCE_STAGE][0]["scores"].sums.tolist(), strict=True):
            chance = explained_by_chance(possible[place], samples, known[place], total)
            if score / total > EFFECT + chance:
                chosen.append(possible[place])
        return chosen

    def _regression(self, state: State, crossings: Sequence[Crossing]) -> LabelRegression:
        """Return the regression of the label, with these crossings."""
        _, samples = self._fitted(state)
        if self._last.get("crossings") != crossings:
            tables, measured = self._measured(state)
            total = total_of(tables, measured)
            ridge = max(_RIDGE * (measured["singles"].deviation / total) ** 2, _LEAST)
            regression = LabelRegression(self.schema.layout, samples, total, ridge, crossings)
            self._last.update(crossings=crossings, regression=regression)
        return self._last["regression"]

    def _fit(self, tables: Mapping[str, Marginals], measured: Mapping[str, Measured]) -> tuple[Mixture, MadeUp | None]:
        """Fit the mixture to tables that were measured, and make up records for the regression of its label."""
        layout, noisy = self.schema.layout, self._noisy(tables, measured)
        by = noisy.shares()
        rules = find_rules(layout, noisy)
        broken = broken_pairs(self.schema, rules)
        # From a label that is drawn last, given all other groups, none of them follows.
        leaf = layout.label if self.label_share else None
        forest = Forest.of(layout, noisy, self.seed, leaf, broken if broken.any() else None)

        def split(chance: bool) -> tuple[NoisyTables, NoisyTables]:
            # Records are a sample of those that might have been: a count has about the variance of a binomial one.
            shares = {name: (own.sums / noisy.total).clamp(0.0, 1.0) for name, own in measured.items()}
            variances = {name: noisy.total * share * (1.0 - share) for name, share in shares.items()}
            # A product of two contrasts has a variance of about 1.
            variances |= {name: torch.full_like(shares[name], noisy.total) for name in shares if name == MOMENTS}
            seen, held_out = split_noise(measured, _PART, self.seed, variances if chance else None)
            return tuple(replace(self._noisy(tables, part, by), total=noisy.total) for part in (seen, held_out))

        fit = fit_forest(forest, noisy, split, self.k, self.seed, free={layout.label})
        network = StackedForests(with_rules(self.schema, rules), self.k, fit.parents)
        network.tilts.copy_(fit.tilts)
        for table, shares in zip(network.tables, fit.tables, strict=True):
            table.copy_(shares)
        margins = Margins(torch.from_numpy(np.concatenate(by)).float(), noisy.single_deviation / noisy.total)
        mixture, samples = Mixture(network, fit.weights, margins=margins), None
        put_shares_right(mixture, forest.shares, {layout.label} if self.label_share else ())
        if self.label_share:
            with pace.stage("looking at the label in made-up records"):
                samples = made_up_by_forests(mixture, self.seed)
        return mixture, samples


def pays_by_label(layout: Layout, strength: float) -> bool:
    """Return whether counts of two groups are worth to be told apart by the label: where its cells outweigh their noise.

    With P pairs and L labels a cell holds n P / (L cells) records on average, and its noise is about the root of P over mu.

    Args:
        strength: the declared number of records in units of the noise that the budget buys.

    Example:
        >>> layout = Layout(0, groups=(5, 5, 5, 2), label=3)
        >>> pays_by_label(layout, 10.0), pays_by_label(layout, 500.0)
        (False, True)
    """
    if not takes_label(layout):
        return False
    others = [choices for group, choices in enumerate(layout.groups) if group != layout.label]
    pairs = [one * other for one, other in itertools.combinations(others, 2)]
    labels = layout.groups[layout.label]
    if labels * sum(pairs) > _MOST_BY_LABEL:
        return False
    return strength * math.sqrt(len(pairs)) > _WORTH * labels**1.5 * sum(pairs)

"""A mixture of product distributions, fitted to noisy tables of counts, and its label."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.measure.found_rules import broken_pairs, find_rules, with_rules
from lightning_dpgen.measure.labels import LABELS, LabelRegression, MadeUp, check_sharpness, label_workload, made_up
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.splitting import split_noise
from lightning_dpgen.measure.statistics import Marginals, Statistic
from lightning_dpgen.measure.whole_shares import mixed_shares, whole_shares
from lightning_dpgen.measure.workload import Measured, State, Workload, check_share
from lightning_dpgen.models.labelled import LEAST, added_up, log_shares, takes_label
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.networks import check_seed
from lightning_dpgen.models.outputs import means
from lightning_dpgen.models.products import StackedProducts
from lightning_dpgen.privacy.plain_text import listed
from lightning_dpgen.privacy.plan import Plan

TABLES = "tables"
# The ridge of the label's regression: so many times the variance of a noisy share, and the least.
_RIDGE, _LEAST = 140.0, 2e-4
# Columns determine the label where they leave so little of the doubt about it, as the mixture says.
_DOUBT = 0.1
# Steps of the fit, and the largest step.
_STEPS, _LR = 1000, 0.1
# Weights of the relative entropy that holds columns of components to what all have in common, from which noise would
# take them, beside squared errors in deviations of the noise: from tables with hardly any noise, of which the chance of
# sampling is not to be repeated, to columns that follow from each other in much noise; and the one to begin with.
_TOGETHER, _USUAL = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0), 10.0
# One of them is chosen by fits of so many of all steps, to tables with so many deviations more.
_TRIAL, _PART = 0.4, 0.7
# The weight of the share of records that have a pair of choices that there is not, in records and deviations of the
# noise. At ten times as much nothing else would be fitted, at a tenth other columns would move when they are left out.
_HELD = 100.0


@dataclass(frozen=True)
class ProductRecipe(Recipe):
    """One access: tables of each choice, and of each two, by the label if there is one; and a mixture fitted to them.

    With a share for the label a few accesses follow, after which it is drawn given all other choices (`LabelRegression`).

    Args:
        schema: the schema of records that are choices alone, such as tables; public.
        k: number of components.
        n: the declared number of records.
        pairs_share: share of the access's inverse squared noise; the tables of single groups get the rest.
        seed: seed of the fit; public.
        label_share: share of what may be spent; 0 leaves the label to the mixture.
        label_sharpness: factor of the differences between the logits of labels. At 1 labels are drawn as real ones are;
            more helps classifiers that learn from the table, and takes the doubt out of doubtful rows.

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

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The tables, and the accesses of the label."""
        share = 1.0 - self.label_share
        weights = {"singles": 1.0 - self.pairs_share, "pairs": self.pairs_share}
        tables = Workload(TABLES, {name: weights[name] for name in self.tables}, self.n, share)
        return (tables, label_workload(self.n, self.label_share, agreement=True)) if self.label_share else (tables,)

    @property
    def from_fits(self) -> frozenset[str]:
        """The label, given what the mixture says of it."""
        return frozenset({LABELS})

    def statistics(self, stage: str, state: State | None = None) -> Mapping[str, Statistic]:
        """Return the statistics of a stage.

        Tables are `singles`, and `pairs` if there are two groups besides the label: one record changes one cell of each by
        1. The label has `gradient` and `agreement`, at the weights that have been reached.
        """
        if stage == LABELS:
            return self._fitted(state)[1].statistics(state.get(LABELS, ()))
        return self.tables

    def warning(self, plan: Plan) -> str | None:
        """Return how noisy a cell of the tables of two columns is where the noise outweighs its records, else None."""
        tables = self.tables.get("pairs")
        if tables is None:
            return None
        deviation = plan.stage(TABLES).access.multipliers["pairs"] * tables.bound * plan.max_rows
        mean = self.n * len(tables.tables) / sum(map(math.prod, tables.sizes))
        if deviation <= mean:
            return None
        return (
            f"of the tables of two columns a cell holds {mean:,.1f} records on average, and noise of standard deviation "
            f"{deviation:,.1f}: what goes together is found only where it is plain; {what_to_leave_out(self.schema)}; or "
            "raise epsilon"
        )

    def _mixture(self, state: State) -> Mixture:
        """Fit the mixture to these tables, with the label that follows from its accesses."""
        mixture, regression = self._fitted(state)
        return mixture if regression is None else regression.labelled(mixture, state[LABELS], self.label_sharpness)

    @property
    def tables(self) -> dict[str, Marginals]:
        """All tables: `singles`, and `pairs` if there are two groups besides the label."""
        layout = self.schema.layout
        label = () if layout.label is None else (layout.label,)
        others = [group for group in range(len(layout.groups)) if group != layout.label]
        pairs = [(*label, *pair) for pair in itertools.combinations(others, 2)]
        singles = [(*label, group) for group in others] or [label]
        found = {"singles": Marginals(layout, singles)}
        return found | ({"pairs": Marginals(layout, pairs)} if pairs else {})

    def _measured(self, state: State) -> tuple[dict[str, Marginals], Mapping[str, Measured]]:
        """Return the tables that were measured, and what was found."""
        return self.tables, state[TABLES][0]

    def _fitted(self, state: State) -> tuple[Mixture, LabelRegression | None]:
        tables, measured = self._measured(state)
        if self._last.get("to") != [id(own) for own in measured.values()]:
            layout = self.schema.layout
            rules = find_rules(layout, tables, measured, total_of(tables, measured))
            pairs = broken_pairs(self.schema, rules)
            broken = pairs if pairs.any() and "pairs" in tables else None
            weights, shares = fit_products(layout, tables, measured, self.k, self.seed, broken=broken)
            network = StackedProducts(with_rules(self.schema, rules), self.k)
            network.means.copy_(shares)
            mixture, regression = Mixture(network, weights), None
            if self.label_share:
                n = total_of(tables, measured)
                ridge = max(_RIDGE * (measured["singles"].deviation / n) ** 2, _LEAST)
                regression = LabelRegression(self.schema.layout, _made_up(mixture, self.seed), n, ridge)
            # The measurements are kept beside the fit, so that no others can get their ids.
            self._last.update(to=[id(own) for own in measured.values()], kept=measured, fitted=(mixture, regression))
        return self._last["fitted"]


def what_to_leave_out(schema: Schema) -> str:
    """Advise a user whose table has too many cells, naming the columns of most values."""
    named_groups = enumerate(zip(schema.choices, schema.layout.groups, strict=True))
    sizes = {name: size for group, (name, size) in named_groups if group != schema.layout.label}
    named = listed(f"{name} ({sizes[name]})" for name in sorted(sizes, key=lambda name: -sizes[name])[:3])
    return (
        f"cut numbers into fewer bins, or leave out columns of little use (type: drop), first those of most values: {named}"
    )


def _made_up(mixture: Mixture, seed: int) -> MadeUp:
    """Let a mixture of products make up records, whose labels follow components besides their columns.

    The shares of labels given the other columns are known, and so are those of all records. Where the columns determine
    the label, what the mixture says of it is kept: a regression could not say it.
    """
    layout, weights = mixture.network.schema.layout, mixture.weights.double()
    means, made = mixture.network.means.double(), made_up(mixture, seed, follow=True)
    level = weights.clamp(min=1e-30).log()
    before = _OfColumns(layout, means.clamp(min=1e-9).log().T, level, means[:, layout.labels])
    found, shares = before.shares(made.records), weights @ log_shares(means, layout).exp()
    determined = _doubt(found) <= _DOUBT * _doubt(shares[None])
    return replace(made, given=found, shares=shares, before=before if determined else None)


@dataclass(frozen=True, eq=False)
class _OfColumns:
    """The shares of labels that a mixture gives to records by their other columns; it goes to other processes.

    Args:
        layout: the records' layout.
        rows: (features, k) logarithms of the shares of choices in components.
        level: (k,) logarithms of the components' weights.
        labels: (k, labels) the shares of labels in components.
    """

    layout: Layout
    rows: Tensor
    level: Tensor
    labels: Tensor

    def shares(self, records: Encoded) -> Tensor:
        """Return the shares (B, labels) of records."""
        return mixed_shares(whole_shares(added_up(records, self.layout, self.rows) + self.level), self.labels)

    def __call__(self, records: Encoded) -> Tensor:
        """Return the same, none of them 0."""
        return self.shares(records).clamp(min=LEAST)


def _doubt(shares: Tensor) -> float:
    """Return how often two draws from the same shares (N, labels) differ."""
    return 1.0 - float(shares.square().sum(dim=1).mean())


def fit_products(
    layout: Layout,
    statistics: Mapping[str, Marginals],
    measured: Mapping[str, Measured],
    k: int,
    seed: int,
    steps: int = _STEPS,
    *,
    broken: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Fit weights (k,) and shares (k, width) of the mixture whose tables are nearest to noisy ones. Post-processing.

    Least squares over all cells, each divided by the deviation of its noise, by Adam from shares near those of single
    groups; a cell says as much as its noise lets it. Where tables are by label, the label is one more group. How closely
    components are held together is chosen by short fits to a part of noise and chance, judged by the rest
    (`split_noise`).

    Args:
        broken: pairs of choices (width, width) that no record has, 1 there and else 0: their share is held down, so that
            leaving such records out moves little else.
    """
    total = total_of(statistics, measured)
    held_down = None if broken is None else _HELD * total / max(measured["pairs"].deviation, 1.0) / 2.0 * broken

    def cells_of(part: Mapping[str, Measured]) -> _Cells:
        return _Cells.of(layout, statistics, part, total)

    # Records are a sample of those that might have been: a count has about the variance of a binomial one.
    shares = {name: (own.sums / total).clamp(0.0, 1.0) for name, own in measured.items()}
    chance = {name: total * share * (1.0 - share) for name, share in shares.items()}

    def distances(beside: Mapping[str, Tensor] | None) -> Callable[[float], float]:
        """Return how far fits to one part are from the other, by their weight; parts of noise and of what is beside it."""
        seen, held_out = map(cells_of, split_noise(measured, _PART, seed, beside))

        @functools.cache
        def distance(together: float) -> float:
            made = _descended(seen, k, seed, max(round(_TRIAL * steps), 1), together, held_down)
            return float(held_out.distance(*made))

        return distance

    # Columns that follow from each other share their chance, which is split in each cell alone: where components may be
    # told apart more, noise alone is judged.
    together = _lowest(distances(chance), _TOGETHER[_TOGETHER.index(_USUAL) :: -1])
    if together == _USUAL and all(own.deviation for own in measured.values()):
        together = _lowest(distances(None), _TOGETHER[_TOGETHER.index(_USUAL) :])
    return _descended(cells_of(measured), k, seed, steps, together, held_down)


def _lowest(distance: Callable[[float], float], weights: Sequence[float]) -> float:
    """Return the weight before the first from which the distance grows."""
    for weight, after in itertools.pairwise(weights):
        if not distance(after) < distance(weight):
            return weight
    return weights[-1]


@dataclass(frozen=True)
class _Cells:
    """The share of records that have both of two numbers, by label, as noisy tables say, and how sure each is.

    Args:
        layout: the layout of records.
        label: the label's group; None where tables are not by label.
        target, weight: (labels, width, width), singles on the diagonal; 0 where nothing was measured.
    """

    layout: Layout
    label: int | None
    target: Tensor
    weight: Tensor

    @classmethod
    def of(
        cls,
        layout: Layout,
        statistics: Mapping[str, Marginals],
        measured: Mapping[str, Measured],
        total: float,
    ) -> _Cells:
        # A label alone is a choice like any other.
        label = layout.label if len(layout.groups) > 1 else None
        classes = 1 if label is None else layout.groups[label]
        target = torch.zeros(classes, layout.width, layout.width)
        weight = torch.zeros(classes, layout.width, layout.width)
        for name, tables in statistics.items():
            # Without noise all tables weigh alike.
            precision = total / max(measured[name].deviation, 1.0)
            for table, counts in zip(tables.tables, tables.tables_of(measured[name].sums), strict=True):
                groups = [group for group in table if group != label]
                cells = (counts / total).float().view(classes, *[layout.groups[group] for group in groups])
                first, last = layout.spans[groups[0]], layout.spans[groups[-1]]
                if len(groups) == 1:
                    index = torch.arange(first.start, first.stop)
                    target[:, index, index], weight[:, index, index] = cells, precision
                else:
                    target[:, first, last], weight[:, first, last] = cells, precision
        return cls(layout, label, target, weight)

    def made_by(self, weights: Tensor, shares: Tensor) -> Tensor:
        """Return the cells (labels, width, width) of a mixture."""
        by_label = weights[None] if self.label is None else (weights[:, None] * shares[:, self.layout.labels]).T
        # The same by einsum: looking for the order of its products takes longer than they do.
        made = (by_label[:, :, None] * shares).transpose(1, 2) @ shares
        diagonal = torch.eye(self.layout.width, dtype=torch.bool)
        return torch.where(diagonal, (by_label @ shares)[:, :, None], made)

    def squared_errors(self, made: Tensor) -> Tensor:
        """Return the sum of squared errors of cells, in deviations of the noise."""
        return ((made - self.target) * self.weight).square().sum()

    def distance(self, weights: Tensor, shares: Tensor) -> Tensor:
        """Return the sum of squared errors of a mixture."""
        return self.squared_errors(self.made_by(weights, shares))


def _descended(
    cells: _Cells, k: int, seed: int, steps: int, together: float, held_down: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return weights and shares of a mixture that is near to cells, with components held together by a weight."""
    layout, generator = cells.layout, torch.Generator().manual_seed(seed)
    common = means(_common(cells.target, layout, cells.label), layout).log()
    logits = (common + torch.randn(k, layout.width, generator=generator)).requires_grad_()
    mixing = torch.zeros(k, requires_grad=True)
    optimizer = torch.optim.Adam([logits, mixing], lr=_LR, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=_LR / 50)
    # Labels are not held: components are there to tell them apart.
    held = torch.ones(layout.width)
    held[layout.labels] = 0.0
    for _ in range(steps):
        optimizer.zero_grad()
        shares, weights = means(logits, layout), torch.softmax(mixing, dim=0)
        made = cells.made_by(weights, shares)
        divergence = (held * shares * (shares.clamp(min=1e-12).log() - common)).sum()
        loss = cells.squared_errors(made) + together * divergence
        if held_down is not None:
            loss = loss + (made.sum(dim=0) * held_down).sum()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return torch.softmax(mixing, dim=0), means(logits, layout)


def total_of(statistics: Mapping[str, Marginals], measured: Mapping[str, Measured]) -> float:
    """Estimate the number of records from all tables, weighted by their inverse variance."""
    said, trust = 0.0, 0.0
    for name, tables in statistics.items():
        variance = max(measured[name].deviation, 1e-9) ** 2
        for counts in tables.tables_of(measured[name].sums):
            said += float(counts.sum()) / (variance * counts.numel())
            trust += 1.0 / (variance * counts.numel())
    return max(said / trust, 1.0)


def _common(target: Tensor, layout: Layout, label: int | None) -> Tensor:
    """Return logits (width,) of the shares of each group; those of labels are equal."""
    single = torch.diagonal(target, dim1=1, dim2=2).sum(dim=0)
    logits = torch.zeros(layout.width)
    for group, span in enumerate(layout.spans):
        shares = single[span] if group != label else torch.ones(span.stop - span.start)
        shares = shares.clamp(min=1e-4 * float(shares.abs().sum().clamp(min=1e-4)))
        logits[span] = torch.log(shares / shares.sum())
    return logits

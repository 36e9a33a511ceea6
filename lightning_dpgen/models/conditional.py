"""Records of which some choices are given: drawn from mixtures of products and of forests by the rule of Bayes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, smallest_integer
from lightning_dpgen.models.forests import StackedForests, StackedProducts, forest_order
from lightning_dpgen.models.labelled import LEAST, LabelledNetwork, added_up, without_label
from lightning_dpgen.models.mixture import Diverged, GenerativeNetwork
from lightning_dpgen.models.outputs import chosen

# A choice that never follows counts as so likely: what is given may be what the model never makes.
_LEAST = 1e-30
# Numbers of messages that are held at a time.
_NUMBERS = 1 << 22
# Records that are tried for each that has a given label, before the best of them is taken.
TRIES = 200


def is_conditional(network: GenerativeNetwork) -> bool:
    """Return whether `ConditionalSampler` knows a network: products and forests of choices, perhaps with a label on top."""
    return isinstance(without_label(network), StackedForests | StackedProducts) and not network.schema.layout.units


class ConditionalSampler:
    """Draws records of a mixture, each of a set of choices that may differ from record to record.

    A component is drawn by how probably it has made what is given, which messages from the leaves of each tree to its root
    tell, and then each choice by its parent and the messages from below. So records have exactly the mixture's conditional
    distribution. A label that is drawn last (`LabelledNetwork`) may be given, too: records are drawn and kept as often as
    they have that label, which is exact. Where `TRIES` of them are not enough, one is taken from among them by their
    weights (importance resampling), which is nearly so.

    Args:
        network: one that `is_conditional`.
        weights: (k,) mixture weights.

    Raises:
        Diverged: in a draw from a network with numbers that are not finite, or so large that they have no shares.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> schema = parse_schema("columns: {smoker: {type: boolean}, ill: {type: boolean}}")
        >>> network = StackedForests(schema, k=3, parents=[-1, 0])
        >>> _ = network.table_1.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        >>> sampler = ConditionalSampler(network, torch.ones(3))
        >>> ill = torch.tensor([[1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0]])
        >>> sampler.draw(ill, torch.tensor([0, 1, 1]), torch.Generator().manual_seed(0)).codes.tolist()
        [[1, 1], [0, 0], [0, 0]]
    """

    def __init__(self, network: GenerativeNetwork, weights: Tensor) -> None:
        plain: Any = without_label(network)
        self._labels: LabelledNetwork | None = network if isinstance(network, LabelledNetwork) else None
        self._layout, self._network = network.schema.layout, plain
        groups = self._layout.groups
        forest = isinstance(plain, StackedForests)
        self._parents = plain.parents if forest else (-1,) * len(groups)
        self._order = forest_order(self._parents, len(groups))
        tables = plain.tables if forest else [torch.ones(1, choices) for choices in groups]
        self._tables = [table.double().clamp(min=_LEAST) for table in tables]
        self._factors = (plain.tilts if forest else plain.means).double().clamp(min=_LEAST)
        spans = self._layout.spans
        self._sums = [self._factors[:, span] @ table.T for span, table in zip(spans, self._tables, strict=True)]
        self._likely = torch.nonzero(weights > 0.0).flatten()
        self._weights = weights.double()[self._likely].log()
        self._alone = [group not in self._parents and self._parents[group] < 0 for group in range(len(groups))]
        if self._labels is not None:
            self._crossed = self._labels.crossed
            self._followed = self._labels.label_closeness.double() * plain.label_table.clamp(min=LEAST).log()

    @torch.no_grad()
    def log_chances(self, allowed: Tensor) -> Tensor:
        """Return the logarithms (rows,) of the probability that a record has the allowed choices, but for a label on top.

        Args:
            allowed: (rows, width) for each choice 1 if a record may have it, else 0.
        """
        return self._log_evidence(self._below_label(allowed.double())).logsumexp(dim=1)

    @torch.no_grad()
    def draw(self, allowed: Tensor, rows: Tensor, generator: torch.Generator) -> Encoded:
        """Draw records, each with choices that it may have.

        Args:
            allowed: (conditions, width) for each choice 1 where a record may have it, else 0.
            rows: (n,) the condition of each record, int64.
        """
        allowed = allowed.double()
        free = self._below_label(allowed)
        evidence = self._log_evidence(free)
        component = self._component(evidence[rows], generator)
        codes = self._draw(free[rows], component, generator)
        if self._labels is not None:
            self._add_labels(codes, component, allowed, free, evidence, rows, generator)
        return self._encoded(codes)

    def _add_labels(
        self,
        codes: Tensor,
        component: Tensor,
        allowed: Tensor,
        free: Tensor,
        evidence: Tensor,
        rows: Tensor,
        generator: torch.Generator,
    ) -> None:
        """Draw labels, and in place other records where these have none that is allowed."""
        may = allowed[rows][:, self._layout.labels]
        shares = torch.softmax(self._label_logits(codes, component), dim=1)
        kept = self._uniform(len(rows), generator) < (shares * may).sum(dim=1)
        codes[:, self._layout.label] = chosen(shares * may, self._uniform(len(rows), generator))
        waiting = torch.nonzero(~kept).flatten()
        if len(waiting):
            # The most probable label of what was not kept is the one to compare with.
            others = (shares - may)[waiting].argmax(dim=1)
            every = torch.stack([rows[waiting], others], dim=1)
            cases, which = torch.unique(every, dim=0, return_inverse=True)
            condition = cases[:, 0]
            own = allowed[condition][:, self._layout.labels]
            codes[waiting] = self._tried(free[condition], evidence[condition], own, cases[:, 1], which, generator)

    def _tried(
        self, free: Tensor, evidence: Tensor, may: Tensor, others: Tensor, rows: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draw records (n, groups) of allowed labels until all are kept, or have been tried often enough.

        Records of one label y are drawn by their chance times ``(share of y / share of another label) ** power``, for the
        power of 0, 1/2 and 1 for which most are kept: the share of y is at most ``bound`` times that. The power 0 draws
        labels that are probable, and the power 1 those that are rare.

        Args:
            free, evidence, may, others: of conditions: what all other columns may be, its logarithms by component, the
                labels (conditions, labels) that are allowed, and one to compare with.
            rows: (n,) the condition of each record.
        """
        labels, single = may.argmax(dim=1), torch.nonzero(may.sum(dim=1) == 1.0).flatten()
        power, log_cost = torch.zeros(len(may), dtype=torch.float64), evidence.logsumexp(dim=1)
        bound = torch.ones_like(power)
        for tried, least in ((0.5, 0.5), (1.0, 1.0)):
            ratio = _Ratio(self, labels[single], others[single], torch.full((len(single),), tried, dtype=torch.float64))
            tilted = self._log_evidence(ratio.tilted(free[single]), ratio)
            # Crossings tilt no choice by itself: their largest factor is a part of the bound.
            most = least * ratio.most()
            cost = tilted.logsumexp(dim=1) + most.log()
            better = cost < log_cost[single]
            cases = single[better]
            power[cases], bound[cases], log_cost[cases] = tried, most[better], cost[better]
            evidence = evidence.index_copy(0, cases, tilted[better])
        codes = torch.zeros(len(rows), len(self._layout.groups), dtype=torch.int64)
        totals, waiting = torch.zeros(len(rows), dtype=torch.float64), torch.arange(len(rows))
        for _ in range(TRIES):
            cases = rows[waiting]
            ratio = _Ratio(self, labels[cases], others[cases], power[cases])
            component = self._component(evidence[cases], generator)
            tries = self._draw(ratio.tilted(free[cases]), component, generator, ratio)
            logits = self._label_logits(tries, component)
            shares = torch.softmax(logits, dim=1) * may[cases]
            chance = shares.sum(dim=1) / ratio.of(logits - self._crossed_logits(tries)) / bound[cases]
            tries[:, self._layout.label] = chosen(shares, self._uniform(len(waiting), generator))
            # Records that are not kept were drawn less often by their chance, which their weight makes good.
            weight = chance / (1.0 - chance).clamp(min=1e-9)
            totals[waiting] += weight
            kept = self._uniform(len(waiting), generator) < chance
            taken = kept | (self._uniform(len(waiting), generator) * totals[waiting] < weight)
            codes[waiting[taken]] = tries[taken]
            waiting = waiting[~kept]
            if not len(waiting):
                break
        return codes

    def _below_label(self, allowed: Tensor) -> Tensor:
        """Return what is allowed of all that the wrapped network draws."""
        if self._labels is None:
            return allowed
        free = allowed.clone()
        free[:, self._layout.labels] = 1.0
        return free

    def _label_logits(self, codes: Tensor, component: Tensor) -> Tensor:
        """Return the logits (n, labels) of labels given all other choices and the component."""
        records = self._crossed(self._encoded(codes))
        logits = self._labels.label_level.double() + added_up(
            records, self._crossed.wide, self._labels.label_weights.double()
        )
        return logits + self._followed[self._network.label_rows(records), component]

    def _crossed_logits(self, codes: Tensor) -> Tensor:
        """Return the part (n, labels) of `_label_logits` that is of crossings."""
        cells, start = self._crossed(self._encoded(codes)).codes[:, codes.shape[1] :], self._layout.width
        logits = torch.zeros(len(codes), self._labels.label_weights.shape[1], dtype=torch.float64)
        for own, crossing in zip(cells.T, self._crossed.crossings, strict=True):
            rows = self._labels.label_weights[start : start + crossing.cells].double()
            logits, start = logits + rows[torch.from_numpy(own.astype(np.int64))], start + crossing.cells
        return logits

    def _component(self, evidence: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a component (n,) by logarithms (n, likely components)."""
        return self._likely[chosen(torch.softmax(evidence, dim=1), self._uniform(len(evidence), generator))]

    def _log_evidence(self, allowed: Tensor, ratio: _Ratio | None = None) -> Tensor:
        """Return the logarithms (rows, likely components) of each one's weight and of its chance of what is allowed."""
        evidence = self._weights.repeat(len(allowed), 1)
        spans, trees = self._layout.spans, allowed.clone()
        for group, span in enumerate(spans):
            if self._alone[group] and not (ratio is not None and group == self._layout.label):
                shares = self._factors[self._likely, span] * self._tables[group] / self._sums[group][self._likely]
                evidence += (allowed[:, span] @ shares.T).log()
                trees[:, span] = 1.0
        step = max(1, _NUMBERS // (len(self._weights) * max(self._layout.groups)))
        for start in range(0, len(allowed), step):
            rows = slice(start, start + step)
            evidence[rows] += self._upward(trees[rows], None, None if ratio is None else ratio[rows])[1]
        if not evidence.isfinite().all():
            raise Diverged("mixture: holds numbers that are not finite, or too large: it has no shares of choices")
        return evidence

    def _upward(self, allowed: Tensor, component: Tensor | None, ratio: _Ratio | None) -> tuple[dict[int, Tensor], Tensor]:
        """Send messages from leaves to roots, for each record's component (n,), or (None) for all likely ones.

        Returns:
            For each group of which something is known what its own choices and the groups below it say of each choice,
            (rows, choices), and the logarithm (rows,) of the chance of all that is allowed. For all components both have
            these after the rows, (rows, likely, choices).
        """
        every = component is None
        some, total = (self._likely if every else component), torch.zeros(1, dtype=torch.float64)
        known: dict[int, Tensor] = {}
        for group, span in enumerate(self._layout.spans):
            if not (allowed[:, span] == 1.0).all():
                known[group] = allowed[:, None, span] if every else allowed[:, span]
        for group in reversed(self._order):
            if ratio is not None and group == self._layout.label:
                message = ratio.message(component)
            elif group in known:
                factors = self._factors[some, self._layout.spans[group]]
                message = (known[group] * factors) @ self._tables[group].T / self._sums[group][some]
            else:
                continue
            parent = self._parents[group]
            if parent in known:
                message = message * known[parent]
            # No product of many messages becomes too small for a number.
            peak = message.amax(dim=-1, keepdim=True)
            total = total + peak[..., 0].log()
            if parent >= 0:
                known[parent] = message / peak
        return known, total

    def _draw(self, allowed: Tensor, component: Tensor, generator: torch.Generator, ratio: _Ratio | None = None) -> Tensor:
        """Draw the choices (n, groups) of records of these components (n,), each after its parent."""
        n, spans = len(component), self._layout.spans
        known, _ = self._upward(allowed, component, ratio)
        codes = torch.zeros(n, len(spans), dtype=torch.int64)
        for group in self._order:
            if self._labels is not None and group == self._layout.label:
                continue
            parent = self._parents[group]
            rows = codes[:, parent] if parent >= 0 else torch.zeros(n, dtype=torch.int64)
            shares = self._tables[group][rows] * self._factors[component, spans[group]]
            if group in known:
                shares = shares * known[group]
            codes[:, group] = chosen(shares, self._uniform(n, generator))
        return codes

    def _uniform(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.rand(n, generator=generator, dtype=torch.float64)

    def _encoded(self, codes: Tensor) -> Encoded:
        kind = smallest_integer(max(self._layout.groups))
        return Encoded(np.zeros((len(codes), 0), np.float32), codes.numpy().astype(kind))


class _Ratio:
    """The share of one label by that of another, to a power: a factor for each choice, and one for the component.

    Args:
        own, others: (n,) the two labels.
        power: (n,).
    """

    def __init__(self, sampler: ConditionalSampler, own: Tensor, others: Tensor, power: Tensor) -> None:
        self._sampler, self._own, self._others, self._power = sampler, own, others, power

    def __getitem__(self, rows: slice) -> _Ratio:
        return _Ratio(self._sampler, self._own[rows], self._others[rows], self._power[rows])

    def tilted(self, allowed: Tensor) -> Tensor:
        """Return what is allowed (n, width) times the factors of choices."""
        layout = self._sampler._layout
        weights, label = self._sampler._labels.label_weights[: layout.width].double(), layout.labels
        found = self._power[:, None] * (weights[:, self._own] - weights[:, self._others]).T
        found[:, label] = 0.0
        return allowed * found.exp()

    def most(self) -> Tensor:
        """Return the largest factor (n,) that crossings give."""
        weights, start = self._sampler._labels.label_weights.double(), self._sampler._layout.width
        exponents = torch.zeros(len(self._own), dtype=torch.float64)
        for crossing in self._sampler._crossed.crossings:
            rows, start = weights[start : start + crossing.cells], start + crossing.cells
            exponents += (rows[:, self._own] - rows[:, self._others]).amax(dim=0)
        return (self._power * exponents).exp()

    def message(self, component: Tensor | None) -> Tensor:
        """Return the factor of labels for each choice of the label's parent, (n, choices), or (n, likely, choices)."""
        sampler = self._sampler
        level = sampler._labels.label_level.double()
        if component is None:
            followed = (sampler._followed[:, sampler._likely] + level).permute(2, 1, 0)
            difference = followed[self._own] - followed[self._others]
            return (self._power[:, None, None] * difference).exp()
        followed = (sampler._followed[:, component] + level).permute(1, 2, 0)
        every = torch.arange(len(component))
        return (self._power[:, None] * (followed[every, self._own] - followed[every, self._others])).exp()

    def of(self, logits: Tensor) -> Tensor:
        """Return the whole ratio (n,) by the logits (n, labels)."""
        every = torch.arange(len(self._own))
        return (self._power * (logits[every, self._own] - logits[every, self._others])).exp()

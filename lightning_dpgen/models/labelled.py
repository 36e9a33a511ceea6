"""The label of a record given its other columns, drawn on top of any network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.models.crossings import Crossed, Crossing
from lightning_dpgen.models.forests import StackedForests
from lightning_dpgen.models.mixture import Diverged, GenerativeNetwork
from lightning_dpgen.models.outputs import chosen, draw
from lightning_dpgen.models.products import StackedProducts

# A unit is described by its places between so many numbers, evenly spaced from 0 to 1.
KNOTS = 5
# A share of a label counts as this at least.
LEAST = 1e-4


class LabelledNetwork(nn.Module):
    """A network whose label is drawn last, given all other numbers of the record.

    The wrapped network draws these, and gives shares q to the labels. The label is then drawn from ``softmax(sum of the
    weights of the record's features + closeness log q + level)``: the weights hold what is known of the label from real
    records, and q what the network knows besides the columns. Where closeness is 0, the columns alone count.

    Args:
        network: a stack of generative networks of records with a label and something besides it, without units or with
            units that are real numbers: tables.
        crossings: of other groups, whose cells are features, too.

    Raises:
        ValueError: for other records, or crossings.

    Example:
        >>> from lightning_dpgen.data.tables.descriptions import column_of
        >>> from lightning_dpgen.data.tables.schema import TableSchema
        >>> from lightning_dpgen.models.products import StackedProducts
        >>> columns = [column_of(name, {"type": "boolean"}) for name in ("smoker", "ill")]
        >>> network = LabelledNetwork(StackedProducts(TableSchema(tuple(columns), label="ill"), k=3))
        >>> network.generate((0, 2, 2, 5), torch.Generator()).shape
        torch.Size([5, 4])
    """

    def __init__(self, network: GenerativeNetwork, crossings: Sequence[Crossing] = ()) -> None:
        crossed = Crossed(network.schema.layout, tuple(crossings))
        features = self._features_of(network.schema) + sum(crossing.cells for crossing in crossings)
        if isinstance(network, StackedForests) and network.schema.layout.label in network.parents:
            raise ValueError("parents: expected a label from which no other group follows, since it is drawn last")
        super().__init__()
        self.network: Any = network
        self.crossed = crossed
        self.kind, self.schema, self.k = network.kind, network.schema, network.k
        labels = self.schema.layout.groups[self.schema.layout.label]
        self.register_buffer("label_weights", torch.zeros(features, labels))
        self.register_buffer("label_closeness", torch.zeros(1))
        self.register_buffer("label_level", torch.zeros(labels))

    @classmethod
    def _features_of(cls, schema: Schema) -> int:
        """Return the number of features of a record; refuse records that take no label."""
        if not takes_label(schema.layout):
            raise ValueError(
                f"records of kind {schema.kind}: expected a label, something besides it, and no units but real numbers"
            )
        return feature_count(schema.layout)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the wrapped network."""
        return self.network.settings

    @torch.no_grad()
    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate records (n, width) sorted by component: units and choices as they are drawn, and shares of labels."""
        made, layout = self.network.generate(offsets, generator).clone(), self.schema.layout
        # Numbers that are not finite are left for the reader of a release to find.
        if not made.isfinite().all():
            return made
        drawn = draw(made, layout, generator)
        codes = torch.from_numpy(drawn.codes.astype(np.int64))
        logits = self.label_level + self.label_closeness * log_shares(made, layout)
        logits = logits + added_up(self.crossed(drawn), self.crossed.wide, self.label_weights)
        for group, span in enumerate(layout.spans):
            if group != layout.label:
                made[:, span] = F.one_hot(codes[:, group], layout.groups[group]).to(made.dtype)
        made[:, layout.labels] = torch.softmax(logits, dim=1)
        return made

    @property
    def draw(self) -> Callable[[Tensor, torch.Generator], Tensor] | None:
        """The function that draws the choices of records, where the network has one (`StackedForests.draw`)."""
        return self._draw if isinstance(self.network, StackedForests) else None

    def _draw(self, component: Tensor, generator: torch.Generator) -> Tensor:
        codes, layout = self.network.draw(component, generator), self.schema.layout
        records = Encoded(np.zeros((len(codes), 0), np.float32), codes.numpy())
        logits = self.label_level + added_up(self.crossed(records), self.crossed.wide, self.label_weights)
        followed = self.network.label_table.clamp(min=LEAST).log()[self.network.label_rows(records), component]
        logits = logits.double() + self.label_closeness.double() * followed
        if not logits.isfinite().all():
            raise Diverged("mixture: holds numbers that are not finite, or too large: it has no shares of labels")
        codes[:, layout.label] = chosen(torch.softmax(logits, dim=1), torch.rand(len(codes), generator=generator))
        return codes

    @torch.no_grad()
    def label_shares(self, records: Encoded, weights: Tensor) -> Tensor:
        """Return the probabilities (B, labels) of labels given all other numbers of records, as they are drawn.

        Where labels follow what the network says besides the columns, as those of products do, that is averaged over
        components by how probably each has made the record.

        Args:
            records: the records; their own labels are not looked at.
            weights: (k,) mixture weights.
        """
        layout, closeness = self.schema.layout, self.label_closeness.double()
        logits = added_up(self.crossed(records), self.crossed.wide, self.label_weights.double()) + self.label_level.double()
        if not closeness or not isinstance(self.network, StackedProducts | StackedForests):
            return torch.softmax(logits, dim=1)
        likely = added_up(records, layout, self.network.log_evidence) + weights.double().clamp(min=1e-30).log()
        own = closeness * self.network.label_table.clamp(min=LEAST).log()
        rows = self.network.label_rows(records)
        shares = torch.zeros_like(logits)
        for probable, followed in zip(torch.softmax(likely, dim=1).T, own.transpose(0, 1), strict=True):
            shares += probable[:, None] * torch.softmax(logits + followed[rows], dim=1)
        return shares


def without_label(network: GenerativeNetwork) -> GenerativeNetwork:
    """Return the network on top of which a label is drawn; another one as it is."""
    return network.network if isinstance(network, LabelledNetwork) else network


def takes_label(layout: Layout) -> bool:
    """Return whether records have a label, something that may tell of it, and no units but real numbers."""
    return layout.label is not None and layout.units + len(layout.groups) > 1 and not (layout.units and layout.levels)


def log_shares(made: Tensor, layout: Layout) -> Tensor:
    """Return the logarithms (n, labels) of the shares of labels that a network has generated, (n, width)."""
    return made[:, layout.labels].clamp(min=LEAST).log()


def feature_count(layout: Layout) -> int:
    """Return the number of features of a record: `KNOTS` for each unit, and its choices."""
    return layout.units * KNOTS + sum(layout.groups)


def feature_spans(layout: Layout) -> list[slice]:
    """Return the places of the choices of each group among the features."""
    before = layout.units * (KNOTS - 1)
    return [slice(span.start + before, span.stop + before) for span in layout.spans]


def added_up(records: Encoded, layout: Layout, rows: Tensor) -> Tensor:
    """Sum the rows (features, d) of each record's features, but for the label: (B, d), of that record alone.

    A choice is a feature of 1. A unit has two features that add up to 1, by how near it is to the knots beside it: the sum
    is a continuous function of the unit, linear between knots.

    Example:
        >>> layout = Layout(units=1, groups=(2, 3), label=1)
        >>> records = Encoded(np.array([[0.5], [0.625]], np.float32), np.array([[0, 2], [1, 2]]))
        >>> added_up(records, layout, torch.tensor([0.0, 1, 2, 4, 8, 10, 20, 0, 0, 0])[:, None]).flatten()
        tensor([12., 23.])
    """
    total = torch.zeros(len(records), rows.shape[1], dtype=rows.dtype)
    if layout.units:
        firsts, parts = _knots(records, rows.dtype)
        for first, part in zip(firsts.T, parts.T, strict=True):
            total += (1.0 - part[:, None]) * rows[first] + part[:, None] * rows[first + 1]
    for group, span in enumerate(feature_spans(layout)):
        if group != layout.label:
            total += rows[span].index_select(0, torch.from_numpy(records.codes[:, group].astype(np.int64)))
    return total


def _knots(records: Encoded, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the feature (B, units) of the knot below each unit, and how near the unit is to the next one."""
    places = torch.from_numpy(records.units).to(dtype).nan_to_num(0.0).clamp_(0.0, 1.0) * (KNOTS - 1)
    below = places.long().clamp(max=KNOTS - 2)
    return torch.arange(records.units.shape[1]) * KNOTS + below, places - below


def written_out(records: Encoded, layout: Layout) -> scipy.sparse.csr_array:
    """Return each record's features, but for the label, (B, features) in float64: what `added_up` multiplies rows by."""
    columns, values = [], []
    if layout.units:
        firsts, parts = _knots(records, torch.float64)
        columns += [firsts.numpy(), firsts.numpy() + 1]
        values += [1.0 - parts.numpy(), parts.numpy()]
    others = [group for group in range(len(layout.groups)) if group != layout.label]
    starts = np.array([feature_spans(layout)[group].start for group in others], np.int64)
    columns.append(records.codes[:, others].astype(np.int64) + starts)
    values.append(np.ones(columns[-1].shape))
    indices, data = np.concatenate(columns, axis=1), np.concatenate(values, axis=1)
    ends = np.arange(len(records) + 1) * indices.shape[1]
    return scipy.sparse.csr_array((data.ravel(), indices.ravel(), ends), shape=(len(records), feature_count(layout)))

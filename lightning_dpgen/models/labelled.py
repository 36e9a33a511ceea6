"""The label of a record given the rest of it, drawn on top of any network, and classifiers of pictures and series."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.models.bases import Scattering
from lightning_dpgen.models.forests import StackedForests, StackedProducts
from lightning_dpgen.models.mixture import Diverged, GenerativeNetwork
from lightning_dpgen.models.outputs import chosen, draw

# Crossings of a network, and cells of one: a release that names more asks for memory alone.
MOST_CROSSINGS, MOST_CELLS = 64, 4096


@dataclass(frozen=True)
class Crossing:
    """A few groups, whose choices are joined to parts and crossed.

    Args:
        groups: two or more, in their order.
        parts: for each of them the part, from 0, to which each of its choices belongs.

    Example:
        >>> both = Crossing((0, 2), ((0, 1), (0, 0, 1)))
        >>> both.cells, both.cells_of(np.array([[1, 5, 0], [1, 5, 2]])).tolist()
        (4, [1, 3])
    """

    groups: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of parts of each group."""
        return tuple(max(own) + 1 for own in self.parts)

    @property
    def cells(self) -> int:
        """The number of all combinations of parts."""
        return math.prod(self.sizes)

    def cells_of(self, codes: np.ndarray) -> np.ndarray:
        """Return the cell (B,) of each record, by its codes (B, groups); the parts of the first group come first."""
        place, step = np.zeros(len(codes), np.intp), 1
        for group, own, size in zip(self.groups, self.parts, self.sizes, strict=True):
            place += step * np.asarray(own)[codes[:, group]]
            step *= size
        return place


@dataclass(frozen=True)
class Crossed:
    """Adds the cells of crossings to records, each as one more group.

    Args:
        layout: the records' layout.
        crossings: of its groups, but for the label.

    Raises:
        ValueError: for a crossing of other groups, of other choices than these have, of too many cells, or that is there
            twice; and for too many.
    """

    layout: Layout
    crossings: tuple[Crossing, ...] = ()

    def __post_init__(self) -> None:
        groups = self.layout.groups
        if len(self.crossings) > MOST_CROSSINGS:
            raise ValueError(f"{len(self.crossings):,} crossings: expected {MOST_CROSSINGS} or fewer")
        if len({crossing.groups for crossing in self.crossings}) < len(self.crossings):
            raise ValueError("crossings: the same groups are crossed twice")
        for crossing in self.crossings:
            crossed = crossing.groups
            if len(crossed) < 2 or list(crossed) != sorted({*crossed} & {*range(len(groups))} - {self.layout.label}):
                raise ValueError(f"crossing of groups {crossed}: expected two or more in their order, and not the label")
            if [len(parts) for parts in crossing.parts] != [groups[group] for group in crossed]:
                raise ValueError(f"crossing of groups {crossed}: expected a part for each of their choices")
            if any({*parts} != {*range(len({*parts}))} for parts in crossing.parts):
                raise ValueError(f"crossing of groups {crossed}: expected parts from 0 on, none of them empty")
            if crossing.cells > MOST_CELLS:
                raise ValueError(
                    f"crossing of groups {crossed}: {crossing.cells:,} cells, expected {MOST_CELLS:,} or fewer"
                )

    @cached_property
    def wide(self) -> Layout:
        """The layout of records with their cells."""
        return replace(self.layout, groups=(*self.layout.groups, *(crossing.cells for crossing in self.crossings)))

    def __call__(self, records: Encoded) -> Encoded:
        """Return records with their cells."""
        if not self.crossings:
            return records
        cells = [crossing.cells_of(records.codes) for crossing in self.crossings]
        codes = np.column_stack([records.codes, *cells]).astype(smallest_integer(max(self.wide.groups)))
        return Encoded(records.units, codes)


def described_crossings(crossings: Sequence[Crossing]) -> list[dict[str, list[object]]]:
    """Return crossings as a release describes them."""
    return [{"groups": list(one.groups), "parts": [list(parts) for parts in one.parts]} for one in crossings]


def read_crossings(described: object) -> tuple[Crossing, ...]:
    """Read what `described_crossings` returns.

    Raises:
        ValueError: for anything else.
    """
    expected = ValueError("crossings: expected a list of groups and the parts of their choices")
    if not isinstance(described, list):
        raise expected
    crossings = []
    for one in described:
        if not isinstance(one, dict) or set(one) != {"groups", "parts"}:
            raise expected
        rows = [one["groups"], *one["parts"]] if isinstance(one["parts"], list) else [None]
        if not all(isinstance(row, list) and row and all(type(x) is int and x >= 0 for x in row) for row in rows):
            raise expected
        crossings.append(Crossing(tuple(one["groups"]), tuple(map(tuple, one["parts"]))))
    return tuple(crossings)


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
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> from lightning_dpgen.data.tables.schema import TableSchema
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
        record, layout = self.network.generate(offsets, generator).clone(), self.schema.layout
        # Numbers that are not finite are left for the reader of a release to find.
        if not record.isfinite().all():
            return record
        drawn = draw(record, layout, generator)
        codes = torch.from_numpy(drawn.codes.astype(np.int64))
        logits = self.label_level + self.label_closeness * log_shares(record, layout)
        logits = logits + added_up(self.crossed(drawn), self.crossed.wide, self.label_weights)
        for group, span in enumerate(layout.spans):
            if group != layout.label:
                record[:, span] = F.one_hot(codes[:, group], layout.groups[group]).to(record.dtype)
        record[:, layout.labels] = torch.softmax(logits, dim=1)
        return record

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
        evidence = closeness * self.network.label_table.clamp(min=LEAST).log()
        rows = self.network.label_rows(records)
        shares = torch.zeros_like(logits)
        for probable, followed in zip(torch.softmax(likely, dim=1).T, evidence.transpose(0, 1), strict=True):
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


class ClassifiedNetwork(LabelledNetwork):
    """A network of pictures or series, and a classifier of their label by its own softmax regression.

    Records are drawn as the wrapped network draws them. The label of a record that is given is told by ``softmax(features @
    weights + level)``, with features by `Scattering`.

    Args:
        network: a stack of generative networks of pictures or series with a label.

    Raises:
        ValueError: for other records.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> network = ClassifiedNetwork(StackedProducts(ImageSchema(4, 4, levels=1, classes=2), k=3))
        >>> pictures = Encoded(np.zeros((2, 16), np.uint8), np.zeros((2, 1), np.uint8))
        >>> network.label_shares(pictures, torch.ones(3)).tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """

    @classmethod
    def _features_of(cls, schema: Schema) -> int:
        if not is_classified(schema):
            raise ValueError(f"records of kind {schema.kind}: expected pictures or series with a label")
        return Scattering(schema.layout, schema.axes).count

    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate means of units and shares of choices, as the wrapped network does."""
        return self.network.generate(offsets, generator)

    @torch.no_grad()
    def label_shares(self, records: Encoded, weights: Tensor) -> Tensor:
        """Return the probabilities (B, labels) of the labels of records; of each record by itself, in float64."""
        return torch.softmax(self._scattering(records) @ self.label_weights.double() + self.label_level.double(), dim=1)

    @cached_property
    def _scattering(self) -> Scattering:
        return Scattering(self.schema.layout, self.schema.axes)


def is_classified(schema: Schema) -> bool:
    """Return whether records are pictures or series with a label, which a classifier tells."""
    return schema.dimensions > 0 and schema.layout.label is not None


def can_label(schema: Schema) -> bool:
    """Return whether the label of records can be learned given all their other numbers."""
    return is_classified(schema) or (schema.label_given_rest and takes_label(schema.layout))


def with_label(network: GenerativeNetwork, crossings: Sequence[Crossing] = ()) -> LabelledNetwork:
    """Return the network with a label given all other numbers: drawn last in tables, told beside it of pictures and series.

    Args:
        crossings: of a table, whose cells are features, too.

    Raises:
        ValueError: for records that take no label, or not these crossings.
    """
    if not is_classified(network.schema):
        return LabelledNetwork(network, crossings)
    if crossings:
        raise ValueError(f"crossings: expected none for records of kind {network.schema.kind}")
    return ClassifiedNetwork(network)

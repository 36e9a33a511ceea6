"""A private classifier of pictures or series beside a measured model: public features, noisy gradients of all records."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.measure.label_gradients import (
    GRADIENT_UNITS,
    feature_unit,
    gradient_unit,
    labels_of,
    summed_gradients,
    whole_features,
    whole_shares,
)
from lightning_dpgen.measure.labels import fit_softmax
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.statistics import Statistic, check_radius
from lightning_dpgen.measure.workload import Measured, State, Workload, check_share
from lightning_dpgen.models.bases import Scattering
from lightning_dpgen.models.labelled import ClassifiedNetwork
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.networks import check_seed, check_sizes
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.plan import LABELS, Plan
from lightning_dpgen.sampling.fixed_point import DOUBLE, product, unit_of, whole_rows

# The stage of the access that measures how far records spread in each direction.
SPREADS = "spreads"
# Its part of what the classifier may spend.
_SPREADS_SHARE = 0.04
# Records that the measured model makes up: they say in which directions records differ, and where weights begin.
_MADE = 8000
# Records whose features are computed at a time, and numbers of records that are kept from one access to the next (1 GiB).
_AT_ONCE, _MOST_KEPT = 1000, 1 << 27
# The variance of a direction counts as its own plus this part of the mean one, so that the least are not blown up.
_FLOOR = 0.03
# The bound of squares: so many times what nine of ten made-up records have.
_ROOM = 3.0
# The bound of a gradient, in units of the root of the number of directions, which is about how long a record is.
_BOUND = 0.4
# Weights have so many bits that products with features of up to 2^30 units are exact.
_WEIGHT_BITS = 22
# The step of the descent with so many gradients or more, and its momentum; steps of the second half fall to 0.
_STEP, _GRADIENTS, _MOMENTUM = 6.0, 25, 0.8
# Draws the first weights to 0.
_RIDGE = 1e-2


def classifier_sizes(strength: float) -> tuple[int, int]:
    """Return the numbers of directions and of gradients: noise grows with both, and less of it carries more.

    Args:
        strength: the number of records in units of the noise that the classifier's share of the budget buys.

    Example:
        >>> classifier_sizes(600), classifier_sizes(4400), classifier_sizes(23_000), classifier_sizes(90_000)
        ((50, 5), (176, 12), (920, 27), (1200, 40))
    """
    gradients = _GRADIENTS * math.sqrt(strength / 20_000)
    return round(min(max(strength / 25.0, 50.0), 1200.0)), round(min(max(gradients, 5.0), 40.0))


class Directions:
    """Public directions in the space of features, and the coordinates of records there.

    Features and directions are whole numbers, whose products are exact, so coordinates are an exact function of a record.

    Args:
        layout: the layout of the records.
        features: the features of records that are looked at.
        centre: (f,) the point that coordinates are seen from; public.
        vectors: (f, d) the directions; public. They are rounded to 2^-26 of the longest, or nearly.
    """

    def __init__(self, layout: Layout, features: Scattering, centre: Tensor, vectors: Tensor) -> None:
        self.layout, self.centre, self.vectors, self.size = layout, centre, vectors, vectors.shape[1]
        self._features = features
        # Features are at most 2 in size.
        longest = 2.0 / features.unit * math.sqrt(len(vectors))
        bits = DOUBLE - 2 - math.ceil(math.log2(longest))
        unit = unit_of(max(float(vectors.norm(dim=0).max()), 1e-100), bits)
        self._whole, self._unit = (vectors / unit).round_(), unit * features.unit
        self._offset = (centre / features.unit).round_() @ self._whole
        # Private: coordinates of the parts of records, which go with them, and what was made of these for a gradient.
        self._kept: weakref.WeakKeyDictionary[Encoded, Tensor] = weakref.WeakKeyDictionary()
        self._scaled: weakref.WeakKeyDictionary[Encoded, Tensor] = weakref.WeakKeyDictionary()
        self._scaled_by: Tensor | None = None

    def coordinates(self, records: Encoded) -> Tensor:
        """Return the coordinates (B, d) of records, in float64: those of each are an exact function of it alone."""
        return (product(self._features(records) / self._features.unit, self._whole) - self._offset) * self._unit

    def parts(self, records: Records) -> Iterator[tuple[slice, Tensor]]:
        """Yield the coordinates of all records, a few at a time, with their rows; up to 1 GiB are kept. Private."""
        for rows, encoded in records.parts(_AT_ONCE):
            coordinates = self._kept.get(encoded)
            if coordinates is None:
                coordinates = self.coordinates(encoded)
                if rows.stop * self.size <= _MOST_KEPT:
                    self._kept[encoded] = coordinates
            yield rows, coordinates

    def scaled_parts(self, records: Records, scale: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield `scaled` of all records, a few at a time; it is kept in place of the coordinates. Private."""
        if self._scaled_by is not scale:
            self._scaled.clear()
            self._scaled_by = scale
        for rows, encoded in records.parts(_AT_ONCE):
            features = self._scaled.get(encoded)
            if features is None:
                coordinates = self._kept.pop(encoded, None)
                features = scaled(self.coordinates(encoded) if coordinates is None else coordinates, scale)
                if rows.stop * self.size <= _MOST_KEPT:
                    self._scaled[encoded] = features
            yield rows, features


def scaled(coordinates: Tensor, scale: Tensor) -> Tensor:
    """Return coordinates (B, d) times a scale, and a 1, as whole features (B, d + 1) of usual length sqrt(d), int32."""
    return whole_features(_with_one(coordinates * scale), math.sqrt(len(scale)))


class Spreads(Statistic):
    """Sums of the squares of records' coordinates, in units of expected ones, each record's vector shortened to a bound.

    Args:
        expected: (d,) the squares that are expected on average, above 0; public.
        bound: the length to which the squares of a record are shortened.
    """

    def __init__(self, directions: Directions, expected: Tensor, bound: float) -> None:
        check_radius(bound, "bound")
        self.layout, self.bound, self.unit, self._directions = directions.layout, bound, unit_of(bound), directions
        self._expected, self.shape = expected, (directions.size,)

    def _summed(self, coordinates: Tensor) -> Tensor:
        return whole_rows(coordinates.square() / self._expected, self.bound, self.unit).sum(dim=0)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        return self._summed(self._directions.coordinates(records))

    def of_all(self, records: Records, component: Tensor) -> Tensor:
        total = torch.zeros(self.shape, dtype=torch.int64)
        for _, coordinates in self._directions.parts(records):
            total += self._summed(coordinates)
        return total


class DescribedGradient(Statistic):
    """Sums of gradients of the softmax regression loss, each shortened to a bound (`label_gradients.summed_gradients`).

    The features of a record are its coordinates times a scale, and a 1.

    Args:
        scale: (d,), public.
        weights: (d + 1, labels), public.
        bound: the length to which gradients are shortened.
    """

    def __init__(self, directions: Directions, scale: Tensor, weights: Tensor, bound: float) -> None:
        check_radius(bound, "bound")
        self.layout, self.bound, self.unit, self._directions = directions.layout, bound, gradient_unit(bound), directions
        self._scale, self._length, self.shape = scale, math.sqrt(len(scale)), tuple(weights.shape)
        # No column of so many weights of at most this size is longer than 2^22.
        unit = unit_of(max(float(weights.abs().max()), 1e-100), _WEIGHT_BITS - 1 - math.ceil(math.log2(len(weights)) / 2))
        self._whole, self._unit = (weights / unit).round_().nan_to_num_(0.0, 0.0, 0.0), unit * feature_unit(self._length)

    def _summed(self, described: Tensor, labels: Tensor) -> Tensor:
        logits = product(described.to(torch.float64), self._whole) * self._unit
        return summed_gradients(described, whole_shares(logits), labels, self.bound, self._length)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        described = scaled(self._directions.coordinates(records), self._scale)
        return self._summed(described, labels_of(records, self.layout))

    def of_all(self, records: Records, component: Tensor) -> Tensor:
        total = torch.zeros(self.shape, dtype=torch.int64)
        for rows, described in self._directions.scaled_parts(records, self._scale):
            total += self._summed(described, labels_of(records.encoded[rows], self.layout))
        return total


@dataclass(frozen=True)
class ClassifierRecipe(Recipe):
    """The accesses of a measured model, then those of a classifier of its label, which stands beside it.

    The classifier is softmax regression on public features (`models.Scattering`). Records that the measured model makes up
    say in which directions features differ and where weights begin. One access measures how far real records spread in
    each of these directions, and a few noisy gradients of all records move the weights: gradient descent with momentum.
    Nothing else looks at a record.

    Args:
        generator: the recipe of the measured model, of pictures or series with a label.
        schema: its schema; public.
        share: the classifier's share of what may be spent.
        directions: number of directions in which a record is described.
        gradients: number of gradients.
        seed: seed of the records that the model makes up; public.

    Guarantee:
        See `Recipe.measure`: squares and gradients of a record are shortened to bounds that follow from what was released
        before.

    Raises:
        ValueError: for a share outside (0, 1), numbers below 1, or records without a label.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> from lightning_dpgen.measure.gaussians import GaussianRecipe
        >>> schema = ImageSchema(8, 8, levels=16, classes=10)
        >>> recipe = ClassifierRecipe(GaussianRecipe(schema, 10, 1797, 30, 4.0, 2.5), schema, 0.75, 50, 5)
        >>> [(spec.stage, spec.count, round(spec.share, 4)) for spec in recipe.specs(1.0)]
        [('means', 1, 0.0375), ('squares', 1, 0.2125), ('spreads', 1, 0.03), ('labels', 5, 0.72)]
    """

    generator: Recipe
    schema: Schema
    share: float
    directions: int
    gradients: int
    seed: int = 0
    # The last start and the measurements that it was made from: it takes half a minute, and each access asks for it.
    _last: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("share", self.share)
        check_sizes(directions=self.directions, gradients=self.gradients)
        check_seed(self.seed)
        if self.schema.layout.label is None:
            raise ValueError("schema: records without a label: expected one, which the classifier learns")

    @property
    def k(self) -> int:
        """The number of components of the measured model."""
        return self.generator.k

    @property
    def n(self) -> int:
        """The declared number of records."""
        return self.generator.n

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The accesses of the measured model, and of the classifier."""
        theirs = [replace(workload, share=workload.share * (1.0 - self.share)) for workload in self.generator.workloads]
        spreads = Workload(SPREADS, {"squares": 1.0}, self.n, self.share * _SPREADS_SHARE)
        share = self.share * (1.0 - _SPREADS_SHARE)
        return (*theirs, spreads, Workload(LABELS, {"gradient": 1.0}, self.n, share, self.gradients, units=GRADIENT_UNITS))

    @property
    def from_fits(self) -> frozenset[str]:
        """Those of the measured model, and all that follows from its samples."""
        return self.generator.from_fits | {SPREADS, LABELS}

    def statistics(self, stage: str, state: State) -> Mapping[str, Statistic]:
        """Return the statistics of a stage: those of the measured model, `squares`, or `gradient`."""
        if stage not in (SPREADS, LABELS):
            return self.generator.statistics(stage, state)
        start = self._started(state)
        if stage == SPREADS:
            return {"squares": Spreads(start.directions, start.expected, start.room)}
        scale, weights = self._reached(start, state)
        bound = _BOUND * math.sqrt(start.directions.size)
        return {"gradient": DescribedGradient(start.directions, scale, weights, bound)}

    def warnings(self, plan: Plan) -> list[str]:
        """Return what the measured model warns of."""
        return self.generator.warnings(plan)

    def measure(
        self,
        records: Records,
        component: Tensor,
        account: Account | None,
        *,
        state: State | None = None,
        save: Callable[[State], None] = lambda _: None,
        reserve: Callable[[State], None] = lambda _: None,
    ) -> Mixture:
        """Measure what is not in the state yet, and fit the mixture; see `Recipe.measure`."""
        try:
            return super().measure(records, component, account, state=state, save=save, reserve=reserve)
        finally:
            # With it goes what was kept of the records.
            self._last.clear()

    def _mixture(self, state: State) -> Mixture:
        start = self._started(state)
        scale, weights = self._reached(start, state)
        of_features = (start.directions.vectors * scale) @ weights[:-1]
        network = ClassifiedNetwork(start.mixture.network)
        network.label_weights.copy_(of_features)
        network.label_level.copy_(weights[-1] - start.directions.centre @ of_features)
        return Mixture(network, start.mixture.weights)

    def _started(self, state: State) -> _Start:
        """Return what follows from the measured model."""
        measured_by_stage = {workload.stage: state[workload.stage] for workload in self.generator.workloads}
        made_of = [measured for rounds in measured_by_stage.values() for access in rounds for measured in access.values()]
        if self._last.get("ids") != list(map(id, made_of)):
            self._last.clear()
            # The measurements are kept beside what was made of them, so that no others can get their ids.
            self._last.update(
                ids=list(map(id, made_of)), made_of=made_of, start=self._start(self.generator._mixture(measured_by_stage))
            )
        return self._last["start"]

    def _start(self, mixture: Mixture) -> _Start:
        layout = self.schema.layout
        samples = mixture.sample(_MADE, torch.Generator().manual_seed(self.seed))
        scattering = Scattering(layout, self.schema.axes)
        features = scattering(samples)
        centre = features.mean(dim=0)
        features -= centre
        variances, vectors = torch.linalg.eigh(features.T @ features / len(features))
        size = min(self.directions, scattering.count)
        variances, vectors = variances.flip(0)[:size].clamp(min=0.0), vectors.flip(1)[:, :size]
        # A run that goes on finds the same directions though vectors may have other signs then.
        largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
        vectors = vectors * torch.where(largest < 0.0, -1.0, 1.0)
        floor = max(_FLOOR * float(variances.mean()), 1e-12)
        expected = variances + floor
        coordinates = features @ vectors
        lengths = torch.linalg.vector_norm(coordinates.square() / expected, dim=1)
        room = max(_ROOM * float(torch.quantile(lengths, 0.9)), 1.0)
        directions = Directions(layout, scattering, centre, vectors.contiguous())
        return _Start(mixture, directions, expected, floor, room, coordinates, labels_of(samples, layout))

    def _reached(self, start: _Start, state: State) -> tuple[Tensor, Tensor]:
        """Return the scale (d,) of coordinates and the weights (d + 1, labels) that the gradients so far have reached."""
        measured = state[SPREADS][0]["squares"]
        if self._last.get("scaled") is not measured:
            # The ratio of real to expected squares, drawn to 1 by as much as noise explains.
            noise = measured.deviation / self.n
            ratio = 1.0 + (measured.sums / self.n - 1.0) / (1.0 + noise**2)
            scale = (start.expected * ratio.clamp(0.1, 100.0) + start.floor).rsqrt()
            shares = F.one_hot(start.labels, self.schema.layout.groups[self.schema.layout.label]).double()
            first = fit_softmax(_with_one(start.coordinates * scale).numpy(), shares, _RIDGE)
            self._last.update(scaled=measured, scale=scale, first=first)
        return self._last["scale"], self._descended(self._last["first"], state.get(LABELS, ()))

    def _descended(self, weights: Tensor, rounds: Sequence[Mapping[str, Measured]]) -> Tensor:
        velocity, step = torch.zeros_like(weights), _STEP * math.sqrt(min(1.0, self.gradients / _GRADIENTS))
        for i, measured in enumerate(rounds):
            gradient = measured["gradient"].sums / self.n
            # Only differences between labels matter; the part that all have in common is noise.
            velocity = _MOMENTUM * velocity + (1.0 - _MOMENTUM) * (gradient - gradient.mean(dim=1, keepdim=True))
            weights = weights - step * min(1.0, 2.0 * (1.0 - i / self.gradients)) * velocity
        return weights


@dataclass(frozen=True, eq=False)
class _Start:
    """The directions, units and made-up records that a measured model gives; public, but for what `directions` keep.

    Args:
        mixture: the model.
        directions: those in which the records that it makes up differ most.
        expected: (d,) the squares of coordinates that are expected on average.
        floor: the variance that each direction has at least, for its scale.
        room: the bound of the squares of a record, in units of these.
        coordinates, labels: those of the made-up records.
    """

    mixture: Mixture
    directions: Directions
    expected: Tensor
    floor: float
    room: float
    coordinates: Tensor
    labels: Tensor


def _with_one(coordinates: Tensor) -> Tensor:
    return torch.cat([coordinates, coordinates.new_ones(len(coordinates), 1)], dim=1)

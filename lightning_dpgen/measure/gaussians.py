"""A Gaussian for each component, of means measured first and second moments about them measured second."""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.statistics import Counts, Histogram, Means, Squares, Statistic, check_radius
from lightning_dpgen.measure.workload import State, Workload, check_share
from lightning_dpgen.models.bases import Basis, cosines, unit_values
from lightning_dpgen.models.gaussians import StackedGaussians
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.models.symmetries import Symmetries, upright
from lightning_dpgen.privacy.plan import Plan

MEANS, SQUARES = "means", "squares"
# Of the access that measures means, the parts of the inverse squared noise for counts and for how values are spread.
_COUNTS, _VALUES = 0.02, 0.05
# Pieces of the curve of values, where there are values between its ends.
_PIECES = 16
# Numbers that are drawn to fit it, of so many records; and how many deviations apart shares are beyond doubt.
_NUMBERS, _FEWEST, _MOST, _CERTAIN = 4_000_000, 200, 4000, 2.5
# Of a fit to moments of what is cut: draws, turns, and the part of what is missing that is made up for in each.
_DRAWS, _ROUNDS, _PART = 2000, 25, 0.7


class _Upright(Basis):
    """Coordinates of pictures without their slant, which is a function of each picture alone."""

    def __init__(self, layout: Layout, vectors: Tensor, axes: tuple[int, ...]) -> None:
        super().__init__(layout, vectors)
        self._axes = axes

    def coordinates(self, records: Encoded) -> Tensor:
        units = unit_values(records, self.layout)
        return upright(units.view(-1, *self._axes)).reshape(units.shape) @ self.vectors.T


@dataclass(frozen=True)
class GaussianRecipe(Recipe):
    """Two accesses, and a mixture of Gaussians that is fitted to them without another look at a record.

    Counts and means of the components come first, and of pictures how the values of units are spread. About these means,
    public by then, second moments are small, and so is the radius to which differences are shortened; their noise is that
    of the radius squared.

    Args:
        schema: of pictures or series; public.
        k: number of components.
        n: the declared number of records.
        size: number of slowest waves in which records are described.
        radius, spread: to which records and their differences from the mean are shortened.
        means_share: of the mu^2 of both accesses; second moments get the rest.
        symmetries: of pictures; declared, so they are public.

    Raises:
        ValueError: for a share outside (0, 1), a radius that is none, or components that labels do not share evenly.
    """

    schema: Schema
    k: int
    n: int
    size: int
    radius: float
    spread: float
    means_share: float = 0.15
    symmetries: Symmetries | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("means_share", self.means_share)
        check_radius(self.radius)
        check_radius(self.spread, "spread")
        check_sizes(size=self.size)
        if self.size > self.schema.layout.units:
            raise ValueError(f"size={self.size}: expected a whole number from 1 to {self.schema.layout.units}, the units")
        label = self.schema.layout.label
        classes = 1 if label is None else self.schema.layout.groups[label]
        if not isinstance(self.symmetries, Symmetries | None):
            raise ValueError(f"symmetries={self.symmetries!r}: expected Symmetries (as in models.symmetries.SETS) or None")
        if self.k % classes:
            raise ValueError(f"k={self.k}: expected as many components for each of the {classes} values of the label")

    @property
    def workloads(self) -> tuple[Workload, Workload]:
        """Counts, values and means; second moments."""
        largest, share = self.n / self.k, self.means_share
        weights = {"counts": _COUNTS} | ({} if self._values is None else {"values": _VALUES})
        first = Workload(MEANS, weights | {"means": 1.0 - sum(weights.values())}, largest, share)
        return first, Workload(SQUARES, {"squares": 1.0}, largest, 1.0 - share)

    def statistics(self, stage: str, state: State) -> dict[str, Statistic]:
        """One record changes one count by 1, shares of values by 1 a channel, one sum of records by a vector of the radius,
        one sum of outer products by a matrix of Frobenius norm spread^2."""
        if stage == MEANS:
            found = {"counts": Counts(self.k), "means": Means(self._basis, self.k, self.radius)}
            return found if self._values is None else found | {"values": self._values}
        return {"squares": Squares(self._basis, _counts_and_means(state)[1], self.spread)}

    def doubt(self, plan: Plan) -> str | None:
        """How far noise has the mean of a component off, where that is more than records differ by."""
        deviation = plan.stage(MEANS).access.multipliers["means"] * self.radius * plan.max_rows
        off = deviation * math.sqrt(self.size) * self.k / self.n
        # Units are numbers from 0 to 1.
        longest = min(self.spread, math.sqrt(self.schema.layout.units))
        if off <= longest:
            return None
        return (
            f"the mean of a component is off by {off:,.2g} for the noise, and records differ by {longest:,.2g} at most: "
            "hardly anything is found; take fewer components (split.k), fewer model.waves, a smaller "
            "model.radius, or raise privacy.epsilon"
        )

    def _mixture(self, state: State) -> Mixture:
        """The Gaussians of these moments."""
        counts, means, noise = _counts_and_means(state)
        squares = state[SQUARES][0]["squares"]
        noise = torch.stack([noise, squares.deviation / math.sqrt(2.0) / counts], dim=1)
        network = self._network(means, factors_of(squares.sums, counts, squares.deviation), noise)
        if self._values is not None:
            values = state[MEANS][0]["values"]
            network.knots.copy_(curve(self._values, values.sums, values.deviation, float(counts.sum()), network, counts))
        return Mixture(network, (counts / counts.sum()).float())

    @functools.cached_property
    def _basis(self) -> Basis:
        """Slow waves of a record; or of what it is without its slant, a function of the record alone."""
        layout, axes = self.schema.layout, self.schema.axes
        waves = cosines(layout, axes, self.size)
        if self.symmetries is None or not self.symmetries.upright:
            return waves
        return _Upright(layout, waves.vectors, axes)

    @property
    def _values(self) -> Histogram | None:
        """Of pictures, whose values keep to a few places. In series one curve for all readings bends what moments hold."""
        if not isinstance(self.schema, ImageSchema):
            return None
        levels = self.schema.levels
        # Between a few levels there is nothing to tell.
        return Histogram(self.schema.layout, self.schema.channels, _PIECES if levels >= 2 * _PIECES else 1)

    def _network(self, means: Tensor, factors: Tensor, noise: Tensor) -> StackedGaussians:
        layout = self.schema.layout
        declared = None if self.symmetries is None else asdict(self.symmetries)
        pieces = 1 if self._values is None else self._values.shape[1] - 2
        sizes = {"size": self.size, "rank": factors.shape[1], "pieces": pieces}
        network = StackedGaussians(self.schema, self.k, **sizes, symmetries=declared)
        for c in range(self.k):
            centre, factor = through_clipping(means[c], factors[c], self._basis.vectors, *noise[c].tolist())
            network.centres[c], network.factors[c] = centre, factor
        if layout.label is not None:
            # Components are those of the first label, then those of the next.
            classes = layout.groups[layout.label]
            network.shares.copy_(torch.eye(classes).repeat_interleave(self.k // classes, dim=0))
        return network


def _counts_and_means(state: State) -> tuple[Tensor, Tensor, Tensor]:
    first = state[MEANS][0]
    counts = likely_counts(first["counts"].sums, first["counts"].deviation)
    means, noise = likely_means(first["means"].sums, counts, first["means"].deviation)
    return counts, means, noise


def likely_counts(sums: Tensor, deviation: float) -> Tensor:
    """(k,) counts, 1 or more, drawn to their mean by the share of noise in their differences (the linear Bayes estimate).

    Post-processing. What is measured of a component is divided by its count, and a count that is small by chance makes all
    of that large.

    Args:
        sums: (k,) noisy counts.
        deviation: standard deviation of the noise of each.

    Example:
        >>> likely_counts(torch.tensor([90.0, 110.0], dtype=torch.float64), deviation=50.0)
        tensor([100., 100.], dtype=torch.float64)
    """
    mean = sums.mean()
    differences = sums - mean
    spread = float(differences.square().sum()) / max(len(sums) - 1, 1)
    own = max(0.0, 1.0 - deviation**2 / spread) if spread else 0.0
    return (mean + own * differences).clamp(min=1.0)


def likely_means(sums: Tensor, counts: Tensor, deviation: float) -> tuple[Tensor, Tensor]:
    """(k, d) means, drawn to their common mean by the share of noise in differences; and (k,) about what noise is left.

    Post-processing: the linear Bayes estimate, in each direction by how far components differ in it. One of hardly any
    records is the common mean.

    Args:
        sums: (k, d) noisy sums.
        counts: (k,) counts, 1 or more.
        deviation: standard deviation of the noise of each number of the sums.

    Returns:
        The means, and the standard deviation of the noise of a coordinate of each, the root of its mean square.
    """
    k, means = len(sums), sums / counts[:, None]
    noise = (deviation / counts).square()[:, None].expand_as(means)
    if k == 1 or not deviation:
        return means, noise.mean(dim=1).sqrt()
    common = (means / noise).sum(dim=0) / (1.0 / noise).sum(dim=0)
    differences, weight = means - common, 1.0 / noise.square()
    spread = ((differences.square() * k / (k - 1) - noise) * weight).sum(dim=0) / weight.sum(dim=0)
    own = spread.clamp(min=0.0) / (spread.clamp(min=0.0) + noise)
    return common + own * differences, (own * noise).mean(dim=1).sqrt()


def factors_of(sums: Tensor, counts: Tensor, deviation: float) -> Tensor:
    """(k, r, d) factors F of what is best believed of noisy second moments: a component's covariance is ``F^T F``.

    Post-processing. A component has its own moments in the directions in which they are beyond what noise makes
    (`_beyond_noise`), and the covariance of `_in_common` in all others; or that in all, as far as components do not differ
    by more than their noise.

    Args:
        sums: (k, d, d) noisy sums of outer products.
        counts: (k,) noisy counts, 1 or more.
        deviation: standard deviation of the noise of each number of the sums.
    """
    moments = 0.5 * (sums + sums.transpose(1, 2))
    # Of a number beside the diagonal, which was drawn twice.
    noise = deviation / math.sqrt(2.0)
    covariances, differ = _in_common(moments, counts, noise)
    for c, count in enumerate(counts.tolist()):
        variances, directions = _beyond_noise(moments[c] / count, noise / count)
        others = torch.eye(sums.shape[1], dtype=sums.dtype) - directions @ directions.T
        own = (directions * variances) @ directions.T + others @ covariances[c] @ others
        covariances[c] += differ[c] * (own - covariances[c])
    values, directions = torch.linalg.eigh(covariances)
    # Rounding is no direction.
    kept = (values > 1e-12 * values.max()).any(dim=0)
    if not kept.any():
        return torch.zeros(len(sums), 1, sums.shape[1], dtype=sums.dtype)
    return values[:, kept, None].clamp(min=0.0).sqrt() * directions.transpose(1, 2)[:, kept]


def _beyond_noise(moments: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Variances v (r,) and directions (d, r) of symmetric (d, d) moments with noise of deviation s beside the diagonal.

    Of the directions whose variance l is beyond what noise alone makes, ``2 s sqrt(d)`` (the edge of Wigner's semicircle),
    less what noise adds to a true variance: ``l = v + d s^2 / v``.
    """
    edge = 2.0 * noise * math.sqrt(len(moments))
    found, directions = torch.linalg.eigh(moments)
    kept = found > max(edge, 1e-12)
    found = found[kept]
    return 0.5 * (found + (found.square() - edge**2).sqrt()), directions[:, kept]


def _in_common(moments: Tensor, counts: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """(k, d, d) covariances in the directions of all components together, of which there is the least noise; and (k,) how
    far components differ, from 0, where it is noise alone, to 1.

    In these directions, each in units of its own deviation, a component's moments differ from 1 by its own shape and its
    noise, and are drawn to 1 by the share of noise in both (the linear Bayes estimate). A direction is given no more
    variance than is likely: one deviation less of what is left in doubt. Records that are too much alike do less harm than
    those of other components.
    """
    total = float(counts.sum())
    variances, directions = _beyond_noise(moments.sum(dim=0) / total, noise * math.sqrt(len(counts)) / total)
    if not len(variances):
        return torch.zeros_like(moments), torch.zeros_like(counts)
    scale = variances.sqrt()
    whitened = directions / scale
    one = torch.eye(len(scale), dtype=moments.dtype)
    differences = whitened.T @ (moments / counts[:, None, None]) @ whitened - one
    doubt = (noise / counts[:, None, None] / torch.outer(scale, scale)).square() * (1.0 + one)
    own = _own_shares(differences, doubt, one.bool())
    shapes = one + own * differences
    likely = 1.0 - ((own * doubt).sqrt() / shapes.clamp(min=1e-12)).diagonal(dim1=1, dim2=2)
    likely = likely.clamp(min=0.0).sqrt()
    values, turned = torch.linalg.eigh(likely[:, :, None] * shapes * likely[:, None, :])
    factors = (values.clamp(min=0.0).sqrt()[:, :, None] * turned.transpose(1, 2)) @ (scale[:, None] * directions.T)
    return factors.transpose(1, 2) @ factors, own.diagonal(dim1=1, dim2=2) @ variances / variances.sum()


def through_clipping(
    centre: Tensor, factor: Tensor, vectors: Tensor, noise_of_mean: float = 0.0, noise_of_moments: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Centre and factor of a Gaussian that has these moments once its units are cut to what lies between 0 and 1.

    Post-processing. Most pixels of a picture are at one of the two ends, where a Gaussian is cut, loses variance and moves
    its mean. What is measured are moments of records, so those of what is generated are brought there: by turns of
    generating from fixed draws, cutting, and adding most of what is missing to mean and covariance, for as long as that
    brings them nearer. Cutting also takes away noise, of which nothing is to be put back: what is missing is asked for as
    far as it is more than that.

    Args:
        centre: (d,) coordinates of the mean.
        factor: (r, d) F of the covariance ``F^T F``.
        vectors: (d, units), orthonormal rows.
        noise_of_mean, noise_of_moments: standard deviation of that of a coordinate, and of a number of second moments.

    Example:
        >>> vectors, factor = torch.eye(1, dtype=torch.float64), torch.tensor([[0.5]], dtype=torch.float64)
        >>> centre, wider = through_clipping(torch.tensor([0.5], dtype=torch.float64), factor, vectors)
        >>> bool(wider.abs() > 1.0)
        True
    """
    rank = len(factor)
    z = torch.randn(max(_DRAWS, 20 * rank), rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = torch.linalg.qr(z - z.mean(dim=0))[0] * len(z) ** 0.5
    # The directions in which it varies at all.
    lengths, directions = torch.linalg.svd(factor, full_matrices=False)[1:]
    varies = lengths > 1e-6 * lengths.max().clamp(min=1e-12)
    if not varies.any():
        return centre, factor
    lengths, directions, z = lengths[varies], directions[varies], z[:, varies]
    own, root, covariance = centre.clone(), torch.diag(lengths), torch.diag(lengths.square())
    best = (math.inf, own, root)
    # Units are many: in half of the digits they take half of the time, and the draws are fewer than would tell.
    units = vectors.float()
    for turn in range(_ROUNDS):
        values = (own + z @ root @ directions).float() @ units
        if not turn:
            left = (units * ((values > 0.0) & (values < 1.0)).float().mean(dim=0) @ units.T).double()
        made = (values.clamp_(0.0, 1.0) @ units.T).double()
        mean = made.mean(dim=0)
        around = (made - mean) @ directions.T
        found = around.T @ around / len(z)
        if not turn:
            lost = _lost(left, directions)
            asked = (
                mean + _beyond(centre - mean, noise_of_mean**2 * lost[0]),
                found + _beyond(covariance - found, noise_of_moments**2 * lost[1]),
            )
        missing = asked[0] - mean, asked[1] - found
        far = float(missing[0].square().sum() / lengths.square().sum() + missing[1].square().sum() / lengths.pow(4).sum())
        # Noisy moments may be none that there can be; then what is added to reach them only does harm.
        if not far < best[0]:
            break
        best = (far, own, root)
        # Where more than there is would be taken, as where what is cut in wide directions comes out in narrow ones, there
        # is nothing left.
        variances, turned = torch.linalg.eigh(covariance + _PART * missing[1])
        variances = variances.clamp(min=0.0)
        covariance, root = (turned * variances) @ turned.T, (turned * variances.sqrt()) @ turned.T
        own = own + _PART * missing[0]
    _, own, root = best
    out = torch.zeros_like(factor)
    out[: len(lengths)] = root @ directions
    return own, out


def _lost(left: Tensor, directions: Tensor) -> tuple[float, float]:
    """Of white noise of variance 1 on mean and moments, the expected squared length of what cutting takes away.

    Args:
        left: (d, d) J, what cutting leaves of a small change of the mean; of a small change E of the covariance it leaves
            about ``J E J``.
        directions: (r, d) in which the covariance is.
    """
    of_mean = torch.eye(len(left), dtype=left.dtype) - left
    left = directions @ left @ directions.T
    of_moments = len(left) ** 2 - 2.0 * left.trace().square() + left.square().sum().square()
    return float(of_mean.square().sum()), float(of_moments)


def _beyond(missing: Tensor, noise: float) -> Tensor:
    """What is believed of numbers that may as well be 0, with noise of this expected squared length: they are shortened by
    its share in their own (James and Stein 1961, positive part)."""
    length = float(missing.square().sum())
    return missing * max(0.0, 1.0 - noise / length) if length else missing


def curve(
    histogram: Histogram, sums: Tensor, deviation: float, total: float, network: StackedGaussians, weights: Tensor
) -> Tensor:
    """(channels, pieces + 1) knots with which the values that a network makes are spread as those of records are.

    Post-processing. What noise takes from fine waves leaves edges soft, and Gaussians that are cut at both ends are not
    what is between them. From fixed draws of the network, knots are the quantiles of its values at the shares of records
    that lie below. A share that may differ for the noise alone is taken to be the network's own.

    Args:
        histogram: with as many bins as the network's curve has pieces.
        sums: what was measured of it.
        deviation: standard deviation of the noise of each number.
        total: how many records there are; public or noisy.
        network: whose knots do not matter.
        weights: (k,) of its components.
    """
    draws = min(max(_NUMBERS // network.schema.layout.units, _FEWEST), _MOST)
    offsets = (weights / weights.sum()).cumsum(dim=0).mul(draws).round().long().tolist()
    values = network.before_curve((0, *offsets), torch.Generator().manual_seed(0)).double()
    own = histogram.of_values(values) / len(values)
    # All units of a record may be alike.
    doubt = (deviation / total) ** 2 + own * (1.0 - own) * (1.0 / draws + 1.0 / total)
    shares = torch.where((sums / total - own).square() > _CERTAIN**2 * doubt, sums / total, own).clamp(min=0.0)
    shares = shares / shares.sum(dim=1, keepdim=True).clamp(min=1e-12)
    below, own_below = (part.cumsum(dim=1)[:, :-1].clamp(max=1.0) for part in (shares, own))
    edges = torch.linspace(0.0, 1.0, below.shape[1], dtype=torch.float64)
    channels = values.view(-1, len(below)).sort(dim=0).values
    places = below.mul(len(channels) - 1).round().long()
    knots = torch.where((below - own_below).abs() < 1e-9, edges, channels.T.gather(1, places))
    return knots.cummax(dim=1).values


def _own_shares(differences: Tensor, doubt: Tensor, diagonal: Tensor) -> Tensor:
    """Of the variance of differences, on the diagonal and beside it, the share that is not the noise's own, `doubt`."""
    shares = torch.zeros_like(differences)
    for part in (diagonal, ~diagonal):
        own, noise = differences[:, part], doubt[:, part]
        if not own.numel():
            continue
        # Each says as much as its noise lets it; without noise all say the same.
        weight = 1.0 / (noise + noise.mean() * 1e-9 + 1e-30).square()
        spread = float(((own.square() - noise) * weight).sum() / weight.sum())
        shares[:, part] = max(spread, 0.0) / (max(spread, 0.0) + noise).clamp(min=1e-30)
    return shares


def label_components(records: Records, clusters: Tensor, k: int) -> Tensor:
    """(N,) the component of each record: one for each label and each of k clusters. Private.

    Args:
        records: private.
        clusters: (N,) from 0 to k - 1; private.
    """
    label = records.schema.layout.label
    if label is None:
        return clusters
    return torch.from_numpy(records.encoded.codes[:, label].astype("int64")) * k + clusters

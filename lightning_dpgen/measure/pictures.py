"""Pictures described without their slant or their place, and the curve that spreads the values of generated ones."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.measure.moments import likely_counts
from lightning_dpgen.measure.statistics import SQUARE_LENGTH, Counts, Histogram, KeptParts, Means, Statistic, check_radius
from lightning_dpgen.measure.workload import Measured
from lightning_dpgen.models.bases import STEPS, Basis, unit_values
from lightning_dpgen.models.gaussians import StackedGaussians
from lightning_dpgen.models.poses import POSE, find_poses, longest_pose, remove_poses, upright

# The weights of what `trial` measures, by which the inverse squared noise is divided.
TRIAL = {"counts": 0.05, "plain": 0.45, "posed": 0.45, "lengths": 0.05}
# Steps between 0 and 1 of pictures whose slant is taken away.
_STEPS = 2.0**12
# Coordinates of a slant of 1, and of a move by a whole side, as parts of the radius: about what they change in a picture.
_SLANT, _SIDE = 0.24, 1.5
# Bytes of values, and of coordinates, that are kept between accesses.
_MOST_KEPT = 1 << 29
# The part of the variance within labels by which means have to gain, and by how many deviations of the noise more.
_WORTH, _CERTAIN = 0.1, 1.5


class Upright(Basis):
    """A basis of pictures without their slant, which is a function of each picture alone."""

    def __init__(self, waves: Basis, axes: tuple[int, ...]) -> None:
        super().__init__(waves.layout, waves.vectors)
        self._axes, self.steps = axes, STEPS

    def multiples(self, records: Encoded) -> Tensor:
        pictures = _on_grid(records, self.layout, self._axes)
        return upright(pictures).flatten(1).double().mul_(STEPS).round_()


class Posed(Basis):
    """Coordinates of pictures without their pose, and three for the pose.

    Args:
        waves: orthonormal vectors for the former.
        axes: height, width and channels.
        radius: the length of most records, in which the pose is measured.
    """

    def __init__(self, waves: Basis, axes: tuple[int, ...], radius: float) -> None:
        super().__init__(waves.layout, waves.vectors)
        self._axes, self.waves, self.size, self.steps = axes, waves.size, waves.size + POSE, STEPS
        self._most = torch.tensor(longest_pose(*axes[:2]), dtype=torch.float64)
        side = max(axes[:2])
        self._multiples, self._coordinates = KeptParts(_MOST_KEPT), KeptParts(_MOST_KEPT)
        self.weights = radius * torch.tensor([_SLANT, _SIDE / side, _SIDE / side], dtype=torch.float64)

    @property
    def matrix(self) -> Tensor:
        return torch.block_diag(self.vectors, (2.0 * self._most * self.weights).diag())

    @property
    def offset(self) -> Tensor:
        return torch.cat([torch.zeros(self.waves, dtype=torch.float64), -self._most * self.weights])

    def coordinates(self, records: Encoded) -> Tensor:
        """Return the coordinates (B, size) of records: asked for again, those that were kept."""
        return self._coordinates.get(records, lambda: Basis.coordinates(self, records))

    def multiples(self, records: Encoded) -> Tensor:
        """Return the multiples (B, units) of the picture without its pose, and of the pose (B, 3): asked for again, those
        that were kept."""
        return self._multiples.get(records, lambda: self._found(records)).double()

    def _found(self, records: Encoded) -> Tensor:
        """Return the multiples in float32, which holds whole numbers so small."""
        pictures = _on_grid(records, self.layout, self._axes)
        poses = find_poses(pictures)
        # A side of two pixels or fewer leaves nowhere to move.
        pose = (0.5 + 0.5 * poses.double() / self._most.clamp(min=1.0)).float()
        return torch.cat([remove_poses(pictures, poses).flatten(1), pose], dim=1).mul_(STEPS).round_()


class Lengths(Statistic):
    """The sum over records of their squared length in a basis, cut to the squared radius, which is the bound."""

    def __init__(self, basis: Basis, radius: float) -> None:
        check_radius(radius)
        self._basis, self._radius, self.layout, self.shape = basis, radius, basis.layout, (1,)
        self.bound, self.unit = radius**2, (radius / SQUARE_LENGTH) ** 2

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        # One number twice as long as the radius is enough.
        most = 2.0 * SQUARE_LENGTH
        rows = self._basis.coordinates(records).mul(SQUARE_LENGTH / self._radius).clamp_(-most, most).round_()
        squares = rows.square_().sum(dim=1).clamp_(max=SQUARE_LENGTH**2).nan_to_num_(0.0)
        return squares.to(torch.int64).sum(dim=0, keepdim=True)


def trial(plain: Basis, posed: Posed, k: int, radius: float) -> dict[str, Statistic]:
    """Return the statistics from which it follows whether poses pay off, by the names of `TRIAL`."""
    means = {name: Means(basis, k, radius) for name, basis in (("plain", plain), ("posed", posed))}
    return {"counts": Counts(k), **means, "lengths": Lengths(plain, radius)}


def pays_off(measured: Mapping[str, Measured]) -> bool:
    """Return whether the means of components are clearly sharper without poses. Post-processing.

    A mean is longer, the more its pictures are alike: squared, by what their variance is smaller. Interpolation makes
    pictures alike, too, and shorter, so that means do not gain by it. Together they have to gain a tenth of the
    variance within components, and somewhat more in more noise. Handwritten digits gain .18 of it, letters of many
    fonts .46, filled shapes .30; clothes .03; photographs, noise, and digits of eight pixels a side lose.

    Args:
        measured: what was measured of `trial`.
    """
    counts, squares, variance = likely_counts(measured["counts"].sums, measured["counts"].deviation), {}, 0.0
    waves = measured["plain"].sums.shape[1]
    for name in ("plain", "posed"):
        sums, noise = measured[name].sums[:, :waves], measured[name].deviation ** 2
        of_means = sums.square().sum(dim=1) / counts
        # Noise makes a sum longer by an amount that is known.
        squares[name] = float((of_means - waves * noise / counts).sum())
        variance += float((4.0 * noise * of_means / counts + 2.0 * waves * noise**2 / counts.square()).sum())
    within = max(float(measured["lengths"].sums) - squares["plain"], 0.0)
    return squares["posed"] - squares["plain"] - _CERTAIN * math.sqrt(variance) > _WORTH * within


def _on_grid(records: Encoded, layout: Layout, axes: tuple[int, ...]) -> Tensor:
    """Return pictures (B, height, width, channels) as multiples of a power of two: no sum of theirs depends on others.

    They need no more than float32, in which poses are found and removed in half the time.
    """
    units = records.units
    if not (isinstance(units, np.ndarray) and units.dtype == np.uint8):
        return _rounded(unit_values(records, layout)).view(-1, *axes)
    # A number of 8 bits has few values, which are rounded once.
    values = _rounded(torch.arange(256, dtype=torch.float64).div_(layout.levels or 1).clamp_(max=1.0))
    return torch.from_numpy(values.numpy()[units]).view(-1, *axes)


def _rounded(values: Tensor) -> Tensor:
    return values.mul_(_STEPS).round_().div_(_STEPS).float()


# Numbers drawn to fit the curve, the fewest and the most records among them, and how many deviations apart shares are
# beyond doubt.
_NUMBERS, _FEWEST, _MOST, _SURE_SIGMAS = 4_000_000, 200, 4000, 2.5


def curve(
    histogram: Histogram, sums: Tensor, deviation: float, total: float, network: StackedGaussians, weights: Tensor
) -> Tensor:
    """Return knots (channels, pieces + 1) with which a network's values are spread as those of records are.

    Post-processing. Noise in fine waves leaves edges soft, and Gaussians that are cut at both ends have the wrong spread
    between them. The knots are quantiles of the network's values, over fixed draws, at the shares of records that lie
    below. Where noise alone may explain how a share differs, the network's own share is used.

    Args:
        histogram: one with as many bins as the network's curve has pieces.
        sums: its noisy sums.
        deviation: standard deviation of the noise of each number.
        total: the number of records; public or noisy.
        network: the network; its knots are not used.
        weights: (k,) the weights of its components.
    """
    draws = min(max(_NUMBERS // network.schema.layout.units, _FEWEST), _MOST)
    offsets = (weights / weights.sum()).cumsum(dim=0).mul(draws).round().long().tolist()
    values = network.before_curve((0, *offsets), torch.Generator().manual_seed(0))
    network_shares = histogram.of_values(values).double() * histogram.unit / len(values)
    # All units of a record may be alike.
    doubt = (deviation / total) ** 2 + network_shares * (1.0 - network_shares) * (1.0 / draws + 1.0 / total)
    shares = torch.where(
        (sums / total - network_shares).square() > _SURE_SIGMAS**2 * doubt, sums / total, network_shares
    ).clamp(min=0.0)
    shares = shares / shares.sum(dim=1, keepdim=True).clamp(min=1e-12)
    below, network_below = (part.cumsum(dim=1)[:, :-1].clamp(max=1.0) for part in (shares, network_shares))
    edges = torch.linspace(0.0, 1.0, below.shape[1], dtype=torch.float64)
    # NumPy sorts a channel of them in a twentieth of torch's time.
    channels = torch.from_numpy(np.sort(values.view(-1, len(below)).T.numpy(), axis=1)).double()
    places = below.mul(channels.shape[1] - 1).round().long()
    knots = torch.where((below - network_below).abs() < 1e-9, edges, channels.gather(1, places))
    return knots.cummax(dim=1).values

"""The curve that spreads the values of generated pictures as those of records are spread."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.measure.statistics import Histogram
from lightning_dpgen.models.gaussians import StackedGaussians

# Numbers drawn to fit the curve, the fewest and the most records among them, and how many deviations apart shares are
# beyond doubt.
_NUMBERS, _FEWEST, _MOST, _CERTAIN = 4_000_000, 200, 4000, 2.5


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
    own = histogram.of_values(values).double() * histogram.unit / len(values)
    # All units of a record may be alike.
    doubt = (deviation / total) ** 2 + own * (1.0 - own) * (1.0 / draws + 1.0 / total)
    shares = torch.where((sums / total - own).square() > _CERTAIN**2 * doubt, sums / total, own).clamp(min=0.0)
    shares = shares / shares.sum(dim=1, keepdim=True).clamp(min=1e-12)
    below, own_below = (part.cumsum(dim=1)[:, :-1].clamp(max=1.0) for part in (shares, own))
    edges = torch.linspace(0.0, 1.0, below.shape[1], dtype=torch.float64)
    # NumPy sorts a channel of them in a twentieth of torch's time.
    channels = torch.from_numpy(np.sort(values.view(-1, len(below)).T.numpy(), axis=1)).double()
    places = below.mul(channels.shape[1] - 1).round().long()
    knots = torch.where((below - own_below).abs() < 1e-9, edges, channels.gather(1, places))
    return knots.cummax(dim=1).values

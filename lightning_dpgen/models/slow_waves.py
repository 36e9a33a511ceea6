"""Waves of a series over public sizes, in which networks see readings, generate them and are off by what they miss."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.models.bases import cosines

# Loads of days fall about so fast, so that networks and noise are as large beside each of their waves.
SMOOTHNESS = 1.5
# A matrix of as many rows and columns is held in memory.
MOST_UNITS = 2048


class SlowWaves:
    """The cosines of a series, each over a size that falls like (1 + t)^-1.5 with the number t of its half turns.

    Readings of a day are smooth: most of what they differ by is in slow waves. Numbers that are alike for all waves, such
    as random weights and the noise in their gradients, are a smooth series then, and jagged where each reading has its own.
    The sizes are public. The slowest is the deviation of series that are constant and uniform in [0, 1].

    Args:
        schema: series of up to 2,048 numbers.

    Attributes:
        sizes: (units,) of the waves.
        into: (units, units) the matrix that takes readings to waves.
        back: (units, units) its inverse.
        log_volume: the sum of the logarithms of the sizes.

    Raises:
        ValueError: for other records, or longer ones.

    Example:
        >>> from lightning_dpgen.data.series.schema import SeriesSchema
        >>> waves = SlowWaves(SeriesSchema(3, low=0.0, high=1.0))
        >>> waves.of(torch.full((1, 3), 12.0**-0.5)).abs().round(decimals=3)
        tensor([[1., 0., 0.]])
        >>> bool((waves.series(waves.of(torch.eye(3))) - torch.eye(3)).abs().max() < 1e-6)
        True
    """

    def __init__(self, schema: Schema) -> None:
        if schema.dimensions != 1:
            raise ValueError(
                f"records of kind {schema.kind}: network='waves' needs series; network='dense' takes any records"
            )
        units = schema.layout.units
        if units > MOST_UNITS:
            raise ValueError(f"series of {units:,} numbers: network='waves' takes {MOST_UNITS:,} at most")
        length, channels = schema.axes
        # A reader of a release makes networks without memory, and waves are no part of its weights.
        with torch.device("cpu"):
            vectors = cosines(schema.layout, (length, channels), units).vectors
            turns = torch.arange(units, dtype=torch.float64).div(channels, rounding_mode="floor")
        sizes = math.sqrt(length / 12.0) * (1.0 + turns) ** -SMOOTHNESS
        self.sizes, self.into, self.back = sizes, vectors.T / sizes, sizes[:, None] * vectors
        self.log_volume = float(sizes.log().sum())

    def of(self, readings: Tensor) -> Tensor:
        """Return the waves (B, units) of readings (B, units)."""
        return readings @ self.into.to(readings)

    def likely(self, means: Tensor, noise: Tensor) -> Tensor:
        """Return the means (k, units) of readings that are likely, where noisy ones were released.

        Linear Bayes, where each wave is expected to be as large as its size.

        Args:
            means: (k, units) released.
            noise: (k,) standard deviation of the noise of each number.
        """
        kept = 1.0 / (1.0 + (noise[:, None] / self.sizes.to(noise)).square())
        return 0.5 + self.series(kept * self.of(means - 0.5))

    def series(self, waves: Tensor) -> Tensor:
        """Return the readings (B, units) of waves (B, units)."""
        return waves @ self.back.to(waves)

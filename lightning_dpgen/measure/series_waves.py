"""Waves of a series in whole numbers, of its readings or of their normal scores, about a released centre and scale."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.measure.reading_scores import ReadingScores
from lightning_dpgen.models.bases import Basis, unit_values

# Readings are within a half of the middle of their range, and scores are no larger than 4. As multiples both have 30 bits.
_HALF, _LARGEST_SCORE, _LARGEST_MULTIPLE = 0.5, 4.0, 2.0**30


class SeriesWaves(Basis):
    """Waves of series, each less a centre and over a scale, which are public.

    A wave, and the bin that it falls into, follows from its own record alone, bit for bit. Waves of readings are about the
    middle of their bounds.

    Args:
        basis: the slowest waves, as `cosines` gives them.
        scores: what takes the place of readings; None for these themselves.
        centre, scale: (size,) of each wave; None for 0 and 1.

    Example:
        >>> from lightning_dpgen.data.layout import Layout
        >>> from lightning_dpgen.models.bases import cosines
        >>> import numpy as np
        >>> layout = Layout(units=3)
        >>> waves = SeriesWaves(cosines(layout, (3, 1), 3), scale=torch.tensor([1.0, 0.5, 0.1]))
        >>> waves.coordinates(Encoded(np.full((1, 3), 0.5), np.zeros((1, 0), np.uint8))).abs().sum() < 1e-12
        tensor(True)
    """

    def __init__(
        self,
        basis: Basis,
        scores: ReadingScores | None = None,
        centre: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> None:
        super().__init__(basis.layout, basis.vectors)
        self.scores, self.largest = scores, _HALF if scores is None else _LARGEST_SCORE
        self.steps = _LARGEST_MULTIPLE / self.largest
        self.centre = torch.zeros(self.size, dtype=torch.float64) if centre is None else centre.double()
        self.scale = torch.ones(self.size, dtype=torch.float64) if scale is None else scale.double()

    def coordinates(self, records: Encoded) -> Tensor:
        return super().coordinates(records).sub_(self.centre).div_(self.scale)

    def multiples(self, records: Encoded) -> Tensor:
        units = unit_values(records, self.layout)
        values = units - 0.5 if self.scores is None else self.scores(units)
        return values.clamp(-self.largest, self.largest).mul_(self.steps).round_()

    def scaled(self, centre: Tensor, scale: Tensor) -> SeriesWaves:
        """Return these waves, about another centre and over another scale."""
        return SeriesWaves(self, self.scores, centre, scale)

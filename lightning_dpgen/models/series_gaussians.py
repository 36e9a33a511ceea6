"""A mixture of Gaussians of series: few directions of its own shape, all others in common, and a curve for each reading."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.stacked_ops import components
from lightning_dpgen.models.bases import cosines
from lightning_dpgen.models.networks import check_sizes


class SeriesGaussians(nn.Module):
    """k Gaussians in the slowest waves of a series; a record is ``c + (z F) D + z' G`` with z and z' from N(0, I).

    Each component has a centre c and a factor F in the leading directions D, which are the same for all, as is the factor G
    of all that is left. A reading follows from the value at its place by a curve of its own, of straight pieces between
    public heights. Groups, such as the label, are drawn by each component's shares.

    Args:
        schema: the public description of a record.
        size: number of waves.
        lead: number of leading directions.
        pieces: number of pieces of each curve; at first they clamp values to 0 to 1.

    Raises:
        ValueError: for records that are no series, a size below 1 or above the units of a record, more leading directions
            than waves, or no piece.

    Example:
        >>> from lightning_dpgen.data.series.schema import SeriesSchema
        >>> network = SeriesGaussians(SeriesSchema(6, low=0.0, high=1.0), k=3, size=4, lead=2)
        >>> network.generate((0, 2, 2, 5), torch.Generator().manual_seed(0)).shape
        torch.Size([5, 6])
    """

    kind = "series_mixture"

    def __init__(self, schema: Schema, k: int, *, size: int, lead: int, pieces: int = 1) -> None:
        check_sizes(k=k, size=size, lead=lead, pieces=pieces)
        super().__init__()
        if schema.dimensions != 1:
            raise ValueError(f"records of kind {schema.kind}: expected series")
        layout = schema.layout
        if not lead <= size <= layout.units:
            raise ValueError(f"lead={lead}, size={size}: expected at most the size, and at most {layout.units}")
        self.schema, self.k, self.size, self.lead, self.pieces = schema, k, size, lead, pieces
        self.register_buffer("centres", torch.zeros(k, size))
        self.register_buffer("factors", torch.zeros(k, lead, lead))
        self.register_buffer("directions", torch.zeros(lead, size))
        self.register_buffer("common", torch.zeros(size, size))
        self.register_buffer("heights", torch.linspace(0.0, 1.0, pieces + 1))
        self.register_buffer("knots", torch.linspace(0.0, 1.0, pieces + 1).repeat(layout.units, 1))
        self.register_buffer("shares", torch.zeros(k, layout.width - layout.units))

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `__init__`, without schema and k."""
        return {"size": self.size, "lead": self.lead, "pieces": self.pieces}

    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate units and shares of choices (n, width), for records sorted by component.

        Args:
            offsets: (k + 1,) the beginnings of each component's records, and the end.
            generator: generator of z and z'.
        """
        z = torch.randn(offsets[-1], self.lead, generator=generator)
        coordinates = torch.randn(offsets[-1], self.size, generator=generator) @ self.common
        for c, own in enumerate(itertools.starmap(slice, itertools.pairwise(offsets))):
            coordinates[own] += self.centres[c] + z[own] @ self.factors[c] @ self.directions
        values = coordinates @ cosines(self.schema.layout, self.schema.axes, self.size).vectors.float()
        shares = self.shares[components(offsets, self.shares.device)]
        return torch.cat([self._through_curves(values), shares], dim=1)

    def _through_curves(self, values: Tensor) -> Tensor:
        by_reading = values.T.contiguous()
        after = torch.searchsorted(self.knots, by_reading, right=True).clamp_(1, self.pieces)
        low, high = self.knots.gather(1, after - 1), self.knots.gather(1, after)
        # A piece without width is a step.
        part = ((by_reading - low) / (high - low).clamp(min=torch.finfo(values.dtype).tiny)).clamp_(0.0, 1.0)
        return torch.lerp(self.heights[after - 1], self.heights[after], part).clamp_(0.0, 1.0).T

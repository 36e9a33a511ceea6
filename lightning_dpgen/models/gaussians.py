"""Gaussians of units in a public basis, one a component: what measured means and second moments describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.models.bases import cosines
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.models.symmetries import Symmetries


class StackedGaussians(nn.Module):
    """k Gaussians; a record is ``c + F^T z`` with z from N(0, I), in the slowest waves of a picture or a series.

    Units are what that gives, cut to 0 to 1; groups, such as the label, are drawn by each component's shares.

    Args:
        schema: the public description of a record.
        k: number of components.
        size: number of waves.
        rank: length of z, at most the size.
        symmetries: numbers of `Symmetries`, by which pictures are changed at the end, each in its own way.

    Raises:
        ValueError: for a size below 1 or above the units of a record, a rank above the size, or symmetries of anything but
            pictures.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> network = StackedGaussians(ImageSchema(2, 2, levels=1), k=3, size=4, rank=2)
        >>> network.generate((0, 2, 2, 5), torch.Generator().manual_seed(0)).shape
        torch.Size([5, 4])
    """

    kind = "gaussian_mixture"

    def __init__(
        self, schema: Schema, k: int, *, size: int, rank: int, symmetries: Mapping[str, Any] | None = None
    ) -> None:
        check_sizes(k=k, size=size, rank=rank)
        super().__init__()
        layout = schema.layout
        if not rank <= size <= layout.units:
            raise ValueError(f"rank={rank}, size={size}: expected at most the size, and at most {layout.units}")
        if symmetries is not None and not isinstance(schema, ImageSchema):
            raise ValueError(f"symmetries of records of kind {schema.kind}: expected none, they are of pictures")
        self.schema, self.k, self.size, self.rank = schema, k, size, rank
        self.symmetries = None if symmetries is None else Symmetries(**symmetries)
        self.register_buffer("centres", torch.zeros(k, size))
        self.register_buffer("factors", torch.zeros(k, rank, size))
        self.register_buffer("shares", torch.zeros(k, layout.width - layout.units))

    @property
    def settings(self) -> dict[str, Any]:
        """What `__init__` was asked for, besides schema and k."""
        declared = {} if self.symmetries is None else {"symmetries": asdict(self.symmetries)}
        return {"size": self.size, "rank": self.rank, **declared}

    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """(n, width) units and shares of choices, for records sorted by component.

        Args:
            offsets: (k + 1,) where each component's records begin, and the end.
            generator: of z and of symmetries.
        """
        z = torch.randn(offsets[-1], self.rank, generator=generator)
        component = torch.repeat_interleave(torch.arange(self.k), torch.tensor(offsets).diff())
        coordinates = self.centres[component]
        for c in component.unique().tolist():
            own = slice(offsets[c], offsets[c + 1])
            coordinates[own] += z[own] @ self.factors[c]
        units = coordinates @ cosines(self.schema.layout, self.schema.axes, self.size).vectors.float()
        units.clamp_(0.0, 1.0)
        if self.symmetries is not None:
            pictures = units.view(-1, *self.schema.axes)
            units = self.symmetries.applied(pictures, generator).reshape(units.shape)
        return torch.cat([units, self.shares[component]], dim=1)

"""Gaussians of units in a public basis, one a component, as measured means and second moments describe them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.stacked_ops import components
from lightning_dpgen.models.bases import cosines
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.models.poses import POSE, apply_poses
from lightning_dpgen.models.symmetries import Symmetries

# Values that become units at a time: all of them are slower, since they leave the caches of the processor.
_AT_ONCE = 1 << 20


class StackedGaussians(nn.Module):
    """k Gaussians; a record is ``c + F^T z`` with z from N(0, I), in the slowest waves of a picture or a series.

    A unit follows from the value at its place by a curve of straight pieces, one curve for each channel. The curve rises
    from 0 at its first knot to 1 at its last, by equal amounts from knot to knot. Groups, such as the label, are drawn by
    each component's shares.

    With poses, waves are those of a picture without its pose (`models/poses.py`), which is drawn with them and put back
    after the curve.

    Args:
        schema: the public description of a record.
        size: number of waves.
        rank: length of z, at most the size.
        pieces: number of pieces of the curve; at first it clamps values to 0 to 1.
        symmetries: numbers of `Symmetries`, by which pictures are changed before the curve, each in its own way.
        poses: whether ``c + F^T z`` has three numbers more, the pose of a picture.

    Raises:
        ValueError: for a size below 1 or above the units of a record, a rank above the length of c, no piece, or symmetries
            or poses of anything but pictures.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> network = StackedGaussians(ImageSchema(2, 2, levels=1), k=3, size=4, rank=2)
        >>> network.generate((0, 2, 2, 5), torch.Generator().manual_seed(0)).shape
        torch.Size([5, 4])
    """

    kind = "gaussian_mixture"

    def __init__(
        self,
        schema: Schema,
        k: int,
        *,
        size: int,
        rank: int,
        pieces: int = 1,
        symmetries: Mapping[str, Any] | None = None,
        poses: bool = False,
    ) -> None:
        check_sizes(k=k, size=size, rank=rank, pieces=pieces)
        super().__init__()
        layout = schema.layout
        if type(poses) is not bool:
            raise ValueError(f"poses={poses!r}: expected true or false")
        length = size + POSE * poses
        if not (rank <= length and size <= layout.units):
            raise ValueError(f"rank={rank}, size={size}: expected at most {length}, and at most {layout.units}")
        if (symmetries is not None or poses) and schema.dimensions != 2:
            raise ValueError(f"symmetries or poses of records of kind {schema.kind}: expected none, they are of pictures")
        self.schema, self.k, self.size, self.rank, self.pieces, self.poses = schema, k, size, rank, pieces, poses
        self.symmetries = None if symmetries is None else Symmetries(**symmetries)
        self.register_buffer("centres", torch.zeros(k, length))
        self.register_buffer("factors", torch.zeros(k, rank, length))
        self.register_buffer("knots", torch.linspace(0.0, 1.0, pieces + 1).repeat(schema.axes[-1], 1))
        self.register_buffer("shares", torch.zeros(k, layout.width - layout.units))

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `__init__`, without schema and k."""
        more = {} if self.symmetries is None else {"symmetries": asdict(self.symmetries)}
        more |= {"poses": True} if self.poses else {}
        return {"size": self.size, "rank": self.rank, "pieces": self.pieces, **more}

    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate units and shares of choices (n, width), for records sorted by component.

        Args:
            offsets: (k + 1,) the beginnings of each component's records, and the end.
            generator: generator of z and of symmetries.
        """
        shares, coordinates = self.shares[components(offsets, self.shares.device)], self._coordinates(offsets, generator)
        values, step = self._values(coordinates, generator), max(1, _AT_ONCE // self.schema.layout.units)
        units = map(self._units, values.split(step), coordinates[:, self.size :].split(step))
        return torch.cat([torch.cat(list(units)), shares], dim=1)

    def before_curve(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Draw values (n, units) of any size, from which units follow; arguments as of `generate`."""
        return self._values(self._coordinates(offsets, generator), generator)

    def _coordinates(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        z = torch.randn(offsets[-1], self.rank, generator=generator)
        coordinates = torch.empty(offsets[-1], self.centres.shape[1])
        for c, own in enumerate(itertools.starmap(slice, itertools.pairwise(offsets))):
            coordinates[own] = self.centres[c] + z[own] @ self.factors[c]
        return coordinates

    def _values(self, coordinates: Tensor, generator: torch.Generator) -> Tensor:
        values = coordinates[:, : self.size] @ cosines(self.schema.layout, self.schema.axes, self.size).vectors.float()
        if self.symmetries is None:
            return values
        # Symmetries move ink between pixels, and ink is never below none or above all.
        pictures = values.clamp_(0.0, 1.0).view(-1, *self.schema.axes)
        return self.symmetries.applied(pictures, generator).reshape(values.shape)

    def _units(self, values: Tensor, poses: Tensor) -> Tensor:
        units = self._through_curve(values)
        if not self.poses:
            return units
        return apply_poses(units.view(-1, *self.schema.axes), poses).reshape(units.shape)

    def _through_curve(self, values: Tensor) -> Tensor:
        units = torch.empty_like(values)
        for c, knots in enumerate(self.knots):
            own = values.view(-1, len(self.knots))[:, c].contiguous()
            above = own > knots[-1]
            made = above.to(own.dtype)
            # Most values of most pictures are beyond the ends. NaN is not, and stays.
            between = (~(above | (own < knots[0]))).nonzero().squeeze(1)
            inside = own[between]
            after = torch.searchsorted(knots, inside, right=True).clamp_(1, self.pieces)
            low, high = knots[after - 1], knots[after]
            # A piece without width is a step.
            part = ((inside - low) / (high - low).clamp(min=torch.finfo(own.dtype).tiny)).clamp_(0.0, 1.0)
            made[between] = part.add_(after - 1).div_(self.pieces)
            units.view(-1, len(self.knots))[:, c] = made
        return units

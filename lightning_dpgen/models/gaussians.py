"""Gaussians in a public basis: of units, one a component; of series, with common directions; copulas of columns."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.gradients.stacked_ops import components
from lightning_dpgen.models.bases import cosines
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.models.poses import POSE, Symmetries, apply_poses

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
        more = {} if self.symmetries is None else {"symmetries": asdict(self.symmetries)}
        more |= {"poses": True} if self.poses else {}
        return {"size": self.size, "rank": self.rank, "pieces": self.pieces, **more}

    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate units and shares of choices (n, width), for records sorted by component."""
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
            channel = values.view(-1, len(self.knots))[:, c].contiguous()
            above = channel > knots[-1]
            heights = above.to(channel.dtype)
            # Most values of most pictures are beyond the ends. NaN is not, and stays.
            between = (~(above | (channel < knots[0]))).nonzero().squeeze(1)
            inside = channel[between]
            after = torch.searchsorted(knots, inside, right=True).clamp_(1, self.pieces)
            low, high = knots[after - 1], knots[after]
            # A piece without width is a step.
            part = ((inside - low) / (high - low).clamp(min=torch.finfo(channel.dtype).tiny)).clamp_(0.0, 1.0)
            heights[between] = part.add_(after - 1).div_(self.pieces)
            units.view(-1, len(self.knots))[:, c] = heights
        return units


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
        return {"size": self.size, "lead": self.lead, "pieces": self.pieces}

    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate units and shares of choices (n, width), for records sorted by component."""
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


def ordered_choices(schema: Schema) -> dict[int, int]:
    """Return the groups of a table whose first choices have an order, and how many these are.

    Bins of numbers have one, and so have two categories. Special values and missing ones are the choices after them.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> columns = "a: {type: integer, low: 0, high: 9, bins: 5, special: [-1]}, b: {type: boolean, missing: true}"
        >>> ordered_choices(parse_schema(f"columns: {{{columns}, c: {{type: category, values: [x, y, z]}}}}"))
        {0: 5, 1: 2}
    """
    counts = {}
    columns = [column for column in schema.modelled if column.choices]
    for group, column in enumerate(columns):
        count = column.present - len(column.special) if isinstance(column, Numeric) else column.present
        if count > 1 and (isinstance(column, Numeric) or count == 2):
            counts[group] = count
    return counts


class StackedCopula(nn.Module):
    """A table whose ordered columns follow from a few normal numbers that they share, and all others by themselves.

    A record has ``x = L z + e`` with z from N(0, I) and e independent, such that each x is standard normal. A column has
    the choice in whose part of its shares the normal quantile x lies; so it has exactly its shares. Whether a value is
    missing, or a special one, is drawn independently, and so are columns of three categories or more.

    Args:
        schema: the public description of a table.
        k: 1.
        rank: the length of z.

    Attributes:
        loadings: (ordered columns, rank) L, whose rows are no longer than 1.
        shares: (width,) the shares of each column's choices.

    Raises:
        ValueError: for several components, records that are no table of choices, or a rank above the ordered columns.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> number = "{type: integer, low: 0, high: 9, bins: 2}"
        >>> network = StackedCopula(parse_schema(f"columns: {{a: {number}, b: {number}}}"), k=1, rank=1)
        >>> _ = network.loadings.copy_(torch.tensor([[1.0], [-1.0]])), network.shares.fill_(0.5)
        >>> drawn = network.generate((0, 100), torch.Generator().manual_seed(0))
        >>> torch.equal(drawn[:, 0], drawn[:, 3])
        True
    """

    kind = "copula"

    def __init__(self, schema: Schema, k: int, *, rank: int) -> None:
        check_sizes(k=k, rank=rank)
        super().__init__()
        layout, ordered = schema.layout, ordered_choices(schema)
        if k != 1 or layout.units or rank > len(ordered):
            raise ValueError(
                f"k={k}, rank={rank}, {layout.units} units: expected one component of choices alone, and at most a rank of "
                f"{len(ordered)}, the columns with an order"
            )
        self.schema, self.k, self.rank = schema, k, rank
        self.register_buffer("loadings", torch.zeros(len(ordered), rank))
        self.register_buffer("shares", torch.zeros(layout.width))

    @property
    def settings(self) -> dict[str, Any]:
        return {"rank": self.rank}

    @functools.cached_property
    def _ordered(self) -> tuple[Tensor, Tensor]:
        """The places of all choices that have an order, and the ordered column of each."""
        spans, ordered = self.schema.layout.spans, ordered_choices(self.schema)
        places = [torch.arange(count) + spans[group].start for group, count in ordered.items()]
        return torch.cat(places), torch.repeat_interleave(torch.tensor(list(ordered.values())))

    def _ends(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return between which quantiles each ordered choice lies, and the share of all ordered ones of its column."""
        places, owner = self._ordered
        shares = self.shares.double()[places]
        sums = torch.zeros(len(self.loadings), dtype=torch.float64).index_add_(0, owner, shares)
        below = (shares.cumsum(dim=0) - (sums.cumsum(dim=0) - sums)[owner]) / sums[owner].clamp(min=1e-30)
        last = torch.ones(len(owner), dtype=torch.bool)
        last[:-1] = owner[1:] != owner[:-1]
        high = torch.special.ndtri(below.clamp(0.0, 1.0)).masked_fill_(last, torch.inf)
        low = high.roll(1).masked_fill_(last.roll(1), -torch.inf)
        return low.float(), high.float(), sums[owner].float()

    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate shares of choices (n, width), for records of the one component; ordered columns are drawn."""
        (places, owner), (low, high, sums) = self._ordered, self._ends()
        z = torch.randn(offsets[-1], self.rank, generator=generator)
        alone = (1.0 - self.loadings.square().sum(dim=1)).clamp(min=0.0).sqrt()
        x = z @ self.loadings.T + alone * torch.randn(offsets[-1], len(self.loadings), generator=generator)
        made, own = self.shares.repeat(offsets[-1], 1), x[:, owner]
        made[:, places] = ((own > low) & (own <= high)) * sums
        return made

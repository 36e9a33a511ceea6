"""A Gaussian copula of low rank: columns whose choices have an order follow from a few normal numbers that they share."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.models.networks import check_sizes


def ordered_choices(schema: Schema) -> dict[int, int]:
    """Return the groups of a table whose first choices have an order, and how many these are.

    Bins of numbers have one, and so have two categories. Special values and missing ones are the choices after them.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> columns = "a: {type: integer, low: 0, high: 9, bins: 5, special: [-1]}, b: {type: boolean, missing: true}"
        >>> ordered_choices(parse_schema(f"columns: {{{columns}, c: {{type: category, values: [x, y, z]}}}}"))
        {0: 5, 1: 2}
    """
    found = {}
    columns = [column for column in schema.modelled if column.choices]
    for group, column in enumerate(columns):
        count = column.present - len(column.special) if isinstance(column, Numeric) else column.present
        if count > 1 and (isinstance(column, Numeric) or count == 2):
            found[group] = count
    return found


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
        """The arguments of `__init__`, without schema and k."""
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

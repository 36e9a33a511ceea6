"""Mixtures of product distributions: what measured tables of counts describe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.models.networks import check_sizes


class StackedProducts(nn.Module):
    """k components, in each of which all numbers of a record are independent.

    Args:
        schema: the public description of a record.
        k: number of components.

    Raises:
        ValueError: for k below 1.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> network = StackedProducts(ImageSchema(1, 2, levels=1), k=3)
        >>> network.generate((0, 2, 2, 5), torch.Generator()).shape
        torch.Size([5, 2])
    """

    kind = "product_mixture"

    def __init__(self, schema: Schema, k: int) -> None:
        check_sizes(k=k)
        super().__init__()
        self.schema, self.k = schema, k
        self.register_buffer("means", torch.zeros(k, schema.layout.width))

    @property
    def settings(self) -> dict[str, Any]:
        """What `__init__` was asked for, besides schema and k: nothing."""
        return {}

    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """(n, width) means of units and shares of choices, for records sorted by component; nothing is drawn."""
        return self.means.repeat_interleave(torch.tensor(offsets).diff(), dim=0)

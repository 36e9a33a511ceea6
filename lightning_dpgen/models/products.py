"""Mixtures of product distributions, as measured tables of counts describe them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.stacked_ops import components
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
        """The arguments of `__init__`, without schema and k: none."""
        return {}

    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate means of units and shares of choices (n, width), for records sorted by component."""
        return self.means[components(offsets, self.means.device)]

    @property
    def log_evidence(self) -> Tensor:
        """Return rows (width, k), float64, the logarithms of shares of choices: see `StackedForests.log_evidence`."""
        return self.means.double().clamp(min=1e-9).log().T

    @property
    def label_table(self) -> Tensor:
        """Return the shares (1, k, labels) of labels, in float64."""
        return self.means[None, :, self.schema.layout.labels].double()

    def label_rows(self, records: Encoded) -> Tensor:
        """Return 0 (B,) for each record, int64: components alone tell of its label."""
        return torch.zeros(len(records), dtype=torch.int64)

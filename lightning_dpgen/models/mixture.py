"""A mixture as released: components, weights, and how records are drawn from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_dpgen.data.image_schema import ImageSchema


class GenerativeNetwork(Protocol):
    """A stack of k generative networks.

    Attributes:
        kind: the name of its class in a release.
        schema, k: what it generates, and of how many components.
        settings: the other arguments of `__init__`, public.
    """

    kind: str
    schema: ImageSchema
    k: int
    settings: dict[str, Any]

    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """(n, width) means of pixels and shares of labels, for records sorted by component."""
        ...


class Mixture:
    """Mixture weights and a stacked network; samples synthetic records.

    Args:
        network: one generative network a component.
        weights: (k,) probabilities, public.
    """

    def __init__(self, network: GenerativeNetwork, weights: Tensor) -> None:
        self.network, self.weights = network, weights

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n synthetic records as whole numbers (n, pixels [+ 1 label]): pixels 0..out_levels, then the label.

        A component is drawn by its weight, then what its network draws, then the label from its distribution; binary
        pixels are drawn, grey ones are the network's mean.
        """
        component = torch.multinomial(self.weights, n, replacement=True, generator=generator) if n else (
            torch.zeros(0, dtype=torch.long)
        )
        return self.sample_components(component, generator)

    @torch.no_grad()
    def sample_components(self, component: Tensor, generator: torch.Generator) -> Tensor:
        """One record for each entry of `component` (n,), in that order."""
        order = torch.argsort(component, stable=True)
        counts = torch.bincount(component, minlength=self.network.k)
        schema = self.network.schema
        made = self.network.generate((0, *counts.cumsum(0).tolist()), generator)
        mean, share = made[:, : schema.pixels], made[:, schema.pixels :]
        if schema.binary:
            pixels = (torch.rand(mean.shape, generator=generator) < mean).to(torch.int64)
        else:
            pixels = torch.round(mean * schema.out_levels).to(torch.int64)
        columns = [pixels]
        if schema.classes:
            columns.append(torch.multinomial(share, 1, generator=generator) if len(share) else pixels[:, :1])
        drawn = torch.cat(columns, dim=1)
        out = torch.empty_like(drawn)
        out[order] = drawn
        return out

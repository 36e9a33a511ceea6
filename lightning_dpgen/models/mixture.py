"""A mixture as released: components, weights, and how records are drawn from them."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_dpgen.models.vae import StackedVAE


class Mixture:
    """Mixture weights and a stacked network; samples synthetic records.

    Args:
        network: one decoder a component.
        weights: (k,) probabilities, public.
    """

    def __init__(self, network: StackedVAE, weights: Tensor) -> None:
        self.network, self.weights = network, weights

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n synthetic records as whole numbers (n, pixels [+ 1 label]): pixels 0..out_levels, then the label.

        A component is drawn by its weight, a code from the standard normal, then the label from its distribution;
        binary pixels are drawn, grey ones are the decoder's mean.
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
        offsets = (0, *counts.cumsum(0).tolist())
        z = torch.randn(len(component), self.network.latent, generator=generator)
        logits = self.network.decode(z, offsets)
        schema = self.network.schema
        mean = torch.sigmoid(logits[:, : schema.pixels])
        if schema.binary:
            pixels = (torch.rand(mean.shape, generator=generator) < mean).to(torch.int64)
        else:
            pixels = torch.round(mean * schema.out_levels).to(torch.int64)
        columns = [pixels]
        if schema.classes:
            share = torch.softmax(logits[:, schema.pixels :], dim=1)
            columns.append(torch.multinomial(share, 1, generator=generator) if len(share) else pixels[:, :1])
        drawn = torch.cat(columns, dim=1)
        out = torch.empty_like(drawn)
        out[order] = drawn
        return out

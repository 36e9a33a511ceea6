"""A variational autoencoder for each component of a mixture, stacked so that all of them step together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_dpgen.data.lots import Lot
from lightning_dpgen.data.schema import ImageSchema
from lightning_dpgen.gradients.forms import Form
from lightning_dpgen.gradients.segments import segmented_product
from lightning_dpgen.gradients.stacked import StackedLinear, layer_forms
from lightning_dpgen.gradients.terms import PerRecord


class StackedVAE(nn.Module):
    """k autoencoders with one hidden layer on each side (DPGM, TKDE, section 6.1; Kingma and Welling 2014).

    The record holds its label as one-hot, so the label is generated like a pixel. Pixels are Bernoulli (or mean grey
    values), the label is categorical.

    Args:
        schema: the public description of a record.
        k: number of components.
        hidden: units of each hidden layer.
        latent: dimensions of the code z.
        fixed_bias: keep the output bias of the decoder out of training, at values that were released before (noisy
            cluster means); otherwise it is trained like any other parameter.
        generator: public generator of the initial weights.

    Example:
        >>> network = StackedVAE(ImageSchema(2, 2, levels=1), k=3, hidden=4, latent=2)
        >>> network.decode(torch.zeros(5, 2), (0, 2, 2, 5)).shape
        torch.Size([5, 4])
    """

    def __init__(
        self,
        schema: ImageSchema,
        k: int,
        *,
        hidden: int = 200,
        latent: int = 2,
        fixed_bias: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.schema, self.k, self.hidden, self.latent, self.fixed_bias = schema, k, hidden, latent, fixed_bias
        width = schema.encoded_width
        self.encoder = StackedLinear(k, width, hidden, generator=generator)
        self.posterior = StackedLinear(k, hidden, 2 * latent, generator=generator)
        self.decoder = StackedLinear(k, latent, hidden, generator=generator)
        self.output = StackedLinear(k, hidden, width, bias=not fixed_bias, generator=generator)
        if fixed_bias:
            self.register_buffer("output_bias", torch.zeros(k, width))

    def start_at(self, means: Tensor) -> None:
        """Set the output bias so that each component first generates its cluster's mean.

        Args:
            means: (k, width) already released means of the records of each cluster; clamped to [0.005, 0.995].
        """
        pixels = self.schema.pixels
        grey = torch.logit(means[:, :pixels].clamp(0.005, 0.995))
        label = torch.log(means[:, pixels:].clamp(0.005, 1.0))
        bias = self.output_bias if self.fixed_bias else self.output.bias
        with torch.no_grad():
            bias.copy_(torch.cat([grey, label], dim=1))

    def encode(self, x: Tensor, offsets: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Mean and log variance (B, latent) of the code of each record."""
        hidden = F.relu(self.encoder(x, offsets))
        return self.posterior(hidden, offsets).chunk(2, dim=1)

    def decode(self, z: Tensor, offsets: Sequence[int]) -> Tensor:
        """Logits (B, width) of pixels and label."""
        return self._with_fixed_bias(self.output(F.relu(self.decoder(z, offsets)), offsets), offsets)

    def _with_fixed_bias(self, logits: Tensor, offsets: Sequence[int]) -> Tensor:
        if not self.fixed_bias:
            return logits
        sizes = [end - start for start, end in itertools.pairwise(offsets)]
        component = torch.repeat_interleave(torch.tensor(sizes, device=logits.device), output_size=len(logits))
        return logits + self.output_bias[component]

    def negative_elbo(self, lot: Lot, noise: Tensor) -> Tensor:
        """(B,) negative evidence lower bound of each record, in nats; `noise` is its own (B, latent) normals."""
        mean, log_variance = self.encode(lot.records, lot.offsets)
        z = mean + torch.exp(0.5 * log_variance) * noise
        return self._losses(lot.records, self.decode(z, lot.offsets), mean, log_variance)

    def _losses(self, x: Tensor, logits: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
        pixels = self.schema.pixels
        loss = F.binary_cross_entropy_with_logits(
            logits[:, :pixels], x[:, :pixels], reduction="none"
        ).sum(dim=1)
        if self.schema.classes:
            loss = loss - (x[:, pixels:] * F.log_softmax(logits[:, pixels:], dim=1)).sum(dim=1)
        kl = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(dim=1)
        return loss + kl

    @torch.no_grad()
    def closed_forms(self, lot: Lot, noise: Tensor) -> tuple[dict[nn.Parameter, Form], Callable[[], Tensor]]:
        """The gradients of `negative_elbo`, by a forward and a backward pass written out."""
        x, offsets, pixels = lot.records, lot.offsets, self.schema.pixels

        def through(layer: StackedLinear, rows: Tensor) -> Tensor:
            return segmented_product(rows, layer.weight, layer.bias, offsets)

        def back(layer: StackedLinear, rows: Tensor) -> Tensor:
            return segmented_product(rows, layer.weight.mT, None, offsets)

        encoded = through(self.encoder, x).relu_()
        mean, log_variance = through(self.posterior, encoded).chunk(2, dim=1)
        deviation = torch.exp(0.5 * log_variance)
        z = torch.addcmul(mean, deviation, noise)
        decoded = through(self.decoder, z).relu_()
        logits = self._with_fixed_bias(through(self.output, decoded), offsets)

        d_logits = torch.sigmoid(logits)
        if self.schema.classes:
            label = x[:, pixels:]
            d_logits[:, pixels:] = torch.softmax(logits[:, pixels:], dim=1) * label.sum(dim=1, keepdim=True)
        d_logits -= x
        d_decoded = back(self.output, d_logits).mul_(decoded > 0)
        d_z = back(self.decoder, d_decoded)
        d_log_variance = 0.5 * (d_z * noise * deviation + deviation.square() - 1.0)
        d_posterior = torch.cat([d_z + mean, d_log_variance], dim=1)
        d_encoded = back(self.posterior, d_posterior).mul_(encoded > 0)

        forms: dict[nn.Parameter, Form] = {}
        for layer, gradient, inputs in (
            (self.encoder, d_encoded, x),
            (self.posterior, d_posterior, encoded),
            (self.decoder, d_decoded, z),
            (self.output, d_logits, decoded),
        ):
            forms |= layer_forms(layer, gradient, inputs, offsets)
        return forms, lambda: self._losses(x, logits, mean, log_variance)

    @property
    def term(self) -> PerRecord:
        return PerRecord(self.negative_elbo, noise=self.latent, forms=self.closed_forms)

"""A variational autoencoder for each component of a mixture, stacked so that all of them step together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.component_factors import OneComponent
from lightning_dpgen.gradients.factors import Dense, GradientFactors
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.segments import components
from lightning_dpgen.gradients.terms import PerGroup, PerRecord
from lightning_dpgen.models.divergences import CodeEmbedding, mmd, mmd_and_gradient
from lightning_dpgen.models.likelihoods import UnitLikelihood
from lightning_dpgen.models.marginals import held_bias
from lightning_dpgen.models.networks import ConvEncoder, PictureDecoder, StackedMLP, check_layers, check_sizes
from lightning_dpgen.models.outputs import choice_entropy, cross_entropy_gradient, logits, means
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.multi_hot import to_dense

# Means and log variances of the codes of a batch, and the inputs of each layer of the encoder.
Encoded = tuple[Tensor, list[Tensor]]


class StackedVAE(nn.Module):
    """k autoencoders (DPGM, TKDE, section 6.1; Kingma and Welling 2014).

    The record holds its label as one-hot, so the label is generated with the rest. Groups are categorical; units have a
    likelihood of their own (`UnitLikelihood`).

    Args:
        schema: the public description of a record.
        network: ``dense`` (hidden layers on each side) or ``conv`` (two convolutions on each side).
        hidden: units of each hidden layer of a dense network.
        layers: hidden layers on each side of a dense network; DPGM has 1, and 2 in its Appendix A.
        trunk: share the layers next to the records of a dense network among the components, which then differ in the layers
            next to the code, and in the output bias: fewer parameters, so less noise.
        latent: dimensions of the code z.
        likelihood: of units: ``bernoulli`` (or mean values), ``gaussian`` or ``laplace``.
        scale: of a Gaussian or Laplace likelihood, public; None learns it.
        floor: the least scale.
        fixed_bias: keep the output bias of the decoder out of training, at values that were released before (noisy
            cluster means); otherwise it is trained like any other parameter.
        generator: public generator of the initial weights.

    Raises:
        ValueError: for a size below 1, more than `networks.MOST_LAYERS` layers, another network, or pictures that the
            network does not take.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> network = StackedVAE(ImageSchema(2, 2, levels=1), k=3, hidden=4, latent=2)
        >>> network.decode(torch.zeros(5, 2), (0, 2, 2, 5)).shape
        torch.Size([5, 4])
    """

    kind = "vae_mixture"

    def __init__(
        self,
        schema: Schema,
        k: int,
        *,
        network: str = "dense",
        hidden: int = 200,
        layers: int = 1,
        trunk: bool = False,
        latent: int = 2,
        likelihood: str = "bernoulli",
        scale: float | None = None,
        floor: float = 0.01,
        fixed_bias: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        check_sizes(k=k, hidden=hidden, layers=layers, latent=latent)
        check_layers(layers)
        super().__init__()
        self.schema, self.k, self.network, self.hidden, self.latent = schema, k, network, hidden, latent
        self.layers, self.trunk, self.fixed_bias = layers, trunk, fixed_bias
        width = schema.layout.width
        self.likelihood = UnitLikelihood(k, schema.layout.units, likelihood, scale=scale, floor=floor)
        if network == "dense":
            inner, shared = [hidden] * layers, [trunk] * layers
            self.encoder = StackedMLP(k, (width, *inner, 2 * latent), shared=[*shared, False], generator=generator)
            self.decoder = StackedMLP(
                k, (latent, *inner, width), last_bias=False, shared=[False, *shared], generator=generator
            )
        elif network == "conv":
            self.encoder = ConvEncoder(schema, k, 2 * latent, generator=generator)
            self.decoder = PictureDecoder(schema, k, latent, generator=generator)
        else:
            raise ValueError(f"network={network!r}: expected dense or conv")
        if fixed_bias:
            self.register_buffer("output_bias", torch.zeros(k, width))
        else:
            self.output_bias = nn.Parameter(torch.zeros(k, width))

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `__init__`, without schema and k."""
        names = ("network", "hidden", "layers", "trunk", "latent", "fixed_bias")
        return {name: getattr(self, name) for name in names} | self.likelihood.settings

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set the output bias so that each component first generates its cluster's mean.

        Args:
            means: (k, width) already released means of the records of each cluster; clamped to [0.005, 0.995].
        """
        self.output_bias.copy_(logits(means, self.schema.layout))

    @torch.no_grad()
    def hold_at(self, means: Tensor, noise: Tensor) -> None:
        """Set the output bias so that each component generates the best estimate of its cluster's mean on average
        (`held_bias`).

        Args:
            means: (k, width) already released means of the records of each cluster.
            noise: (k,) standard deviation of the noise in the means.
        """
        bias = held_bias(self.decoder, self.output_bias, means, noise, self.latent, self.schema.layout)
        self.output_bias.copy_(bias)

    def encode(self, x: Tensor, offsets: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return mean and log variance (B, latent) of the code of each record."""
        return self.encoder(to_dense(x, self.schema.layout.width, self.output_bias.dtype), offsets).chunk(2, dim=1)

    def _draw_codes(self, lot: Lot, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the code of each record, and return it with its mean and log variance, (B, latent) each."""
        mean, log_variance = self.encode(lot.records, lot.offsets)
        return mean + torch.exp(0.5 * log_variance) * noise, mean, log_variance

    def decode(self, z: Tensor, offsets: Sequence[int]) -> Tensor:
        """Map codes (B, latent) to numbers (B, width) for `outputs.means`."""
        return self.decoder(z, offsets) + self.output_bias[components(offsets, z.device)]

    def negative_elbo(self, lot: Lot, noise: Tensor) -> Tensor:
        """Return the negative evidence lower bound (B,) of each record, in nats; `noise` is its own (B, latent) normals."""
        z, mean, log_variance = self._draw_codes(lot, noise)
        return self._losses(lot, self.decode(z, lot.offsets), mean, log_variance)

    def _losses(self, lot: Lot, logits: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
        layout = self.schema.layout
        x, units = to_dense(lot.records, layout.width, logits.dtype), layout.units
        loss = self.likelihood.loss(logits[:, :units], x[:, :units], lot.offsets) + choice_entropy(logits, x, layout)
        kl = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(dim=1)
        return loss + kl

    @torch.no_grad()
    def closed_forms(
        self, lot: Lot, noise: Tensor, encoded: Encoded | None = None
    ) -> tuple[dict[nn.Parameter, GradientFactors], Callable[[], Tensor]]:
        """Compute the gradients of `negative_elbo` for dense networks, by a forward and a backward pass written out.

        Records may be the places of their ones, (B, ones) int64; their losses are then those of the parameters at the time
        when the losses are asked for.
        """
        x, offsets = lot.records, lot.offsets
        code, kept = encoded or self.encoder.run(x, offsets)
        mean, log_variance = code.chunk(2, dim=1)
        deviation = torch.exp(0.5 * log_variance)
        z = torch.addcmul(mean, deviation, noise)
        logits, decoded = self.decoder.run(z, offsets, self.output_bias)

        of_scale: dict[nn.Parameter, GradientFactors] = {}
        d_logits = cross_entropy_gradient(logits, x, self.schema.layout)
        if self.likelihood.kind != "bernoulli":
            units = slice(self.schema.layout.units)
            d_logits[:, units], of_scale = self.likelihood.gradient(logits[:, units], x[:, units], offsets)
        factors, d_z = self.decoder.back(d_logits, decoded, offsets, to_input=True)
        d_log_variance = 0.5 * (d_z * noise * deviation + deviation.square() - 1.0)
        factors |= self.encoder.back(torch.cat([d_z + mean, d_log_variance], dim=1), kept, offsets, to_input=False)[0]
        factors |= of_scale
        if not self.fixed_bias:
            factors[self.output_bias] = OneComponent(Dense(d_logits), offsets)
        if x.is_floating_point():
            return factors, lambda: self._losses(lot, logits, mean, log_variance)
        return factors, lambda: self._losses(lot, self.decode(z, offsets), mean, log_variance).detach()

    @property
    def term(self) -> PerRecord:
        """The negative evidence lower bound of each record."""
        return self._record_term(None)

    def terms(self, lot: Lot, groups: int, weight: float, places: int) -> tuple[PerRecord, PerGroup]:
        """Return `term` and `group_term` for this very lot, whose records are encoded once for both."""
        with torch.no_grad():
            encoded = self.encoder.run(lot.records, lot.offsets) if self.network == "dense" else None
        return self._record_term(encoded), self.group_term(groups, weight, places, encoded)

    def _record_term(self, encoded: Encoded | None) -> PerRecord:
        closed = functools.partial(self.closed_forms, encoded=encoded) if self.network == "dense" else None
        return PerRecord(self.negative_elbo, noise=self.latent, forms=closed)

    def group_term(self, groups: int, weight: float, places: int, encoded: Encoded | None = None) -> PerGroup:
        """Make the divergence of a group's codes from the prior (PriVAE, "batch-wise" terms; Zhao et al. 2019, MMD).

        Args:
            groups: m, the number of groups that a lot is divided into.
            weight: weight of the divergence, beside the loss of a record.
            places: the number of records that a group has room for, see `PerGroup`.
            encoded: the result of the encoder's `run` for the lot that the term is for, if it ran already.
        """

        def loss(lot: Lot, noise: Tensor, partition: Groups) -> Tensor:
            own, prior = noise.chunk(2, dim=1)
            z, _, _ = self._draw_codes(lot, own)
            return weight * mmd(partition.gather(z), partition.gather(prior), partition.mask)

        @torch.no_grad()
        def forms(lot: Lot, noise: Tensor, partition: Groups):
            own, prior = noise.chunk(2, dim=1)
            code, kept = encoded or self.encoder.run(lot.records, lot.offsets)
            mean, log_variance = code.chunk(2, dim=1)
            deviation = torch.exp(0.5 * log_variance)
            z = torch.addcmul(mean, deviation, own)
            losses, d_z = mmd_and_gradient(partition.gather(z), partition.gather(prior), partition.mask)
            d_z = weight * partition.scatter(d_z)
            d_code = torch.cat([d_z, 0.5 * d_z * deviation * own], dim=1)
            return self.encoder.back(d_code, kept, lot.offsets, to_input=False)[0], lambda: weight * losses

        closed = forms if self.network == "dense" else None
        return PerGroup(loss, groups, noise=2 * self.latent, forms=closed, places=places)

    @torch.no_grad()
    def embedded(self, lot: Lot, noise: Tensor, embedding: CodeEmbedding) -> Tensor:
        """Embed the codes that `embedded_term` uses, to (B, d)."""
        return embedding(self._draw_codes(lot, noise)[0])

    def embedded_term(self, embedding: CodeEmbedding, weight: float, mean_embedding: Tensor) -> PerRecord:
        """Make the negative evidence lower bound plus the record's part of the divergence of all codes from the prior.

        Args:
            embedding: the embedding of codes.
            weight: weight of the divergence ``|m - mu|^2``.
            mean_embedding: m (d,), the lot's noisy mean embedding; released, a constant here.
        """
        towards = 2.0 * weight * (mean_embedding - embedding.of_prior)

        def loss(lot: Lot, noise: Tensor) -> Tensor:
            z, mean, log_variance = self._draw_codes(lot, noise)
            elbo = self._losses(lot, self.decode(z, lot.offsets), mean, log_variance)
            return elbo + (embedding(z) * towards).sum(dim=1)

        return PerRecord(loss, noise=self.latent)

    @torch.no_grad()
    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate units, or their means, and shares of choices (n, width) from the prior, sorted by component."""
        z = torch.randn(offsets[-1], self.latent, generator=generator)
        made, units = means(self.decode(z, offsets), self.schema.layout), slice(self.schema.layout.units)
        made[:, units] = self.likelihood.draw(made[:, units], offsets, generator)
        return made

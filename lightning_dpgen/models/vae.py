"""A variational autoencoder for each component of a mixture, stacked so that all of them step together."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.component_factors import OneComponent
from lightning_dpgen.gradients.factors import Dense, GradientFactors
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.stacked_ops import components
from lightning_dpgen.gradients.terms import PerGroup, PerRecord
from lightning_dpgen.models.divergences import CodeEmbedding, GroupCodes, Pull
from lightning_dpgen.models.networks import (
    ConvEncoder,
    DeepConvDecoder,
    DeepConvEncoder,
    PictureDecoder,
    StackedMLP,
    check_layers,
    check_sizes,
)
from lightning_dpgen.models.outputs import UnitLikelihood, choice_entropy, cross_entropy_gradient, held_bias, logits, means
from lightning_dpgen.models.priors import NormalPrior, Prior, make_prior
from lightning_dpgen.models.slow_waves import SlowWaves
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.multi_hot import to_dense

# Means and log variances of the codes of a batch, and the inputs of each layer of the encoder.
Encoded = tuple[Tensor, list[Tensor]]
# A function of the codes of m groups.
OfGroups = Callable[[GroupCodes], Tensor]
# The losses (m,) of groups by means and log variances of codes, normal numbers, and the partition.
OfCode = Callable[[Sequence[Tensor], Tensor, Groups], Tensor]

# A logit moves by so much for a mean in the middle of its range.
_SLOPE = 4.0


class StackedVAE(nn.Module):
    """k autoencoders (DPGM, TKDE, section 6.1; Kingma and Welling 2014).

    The record holds its label as one-hot, so the label is generated with the rest. Groups are categorical; units have a
    likelihood of their own (`UnitLikelihood`).

    Args:
        schema: the public description of a record.
        network: ``dense`` (hidden layers on each side), ``waves`` (the same between waves of series, see `SlowWaves`),
            ``conv`` (two convolutions on each side) or ``deep_conv`` (three, of pictures).
        hidden: units of each hidden layer of a dense network.
        layers: hidden layers on each side of a dense network; DPGM has 1, and 2 in its Appendix A.
        trunk: share the layers next to the records of a dense network among the components, which then differ in the layers
            next to the code, and in the output bias: fewer parameters, so less noise.
        filters: channels of the first of three convolutions; each next one has twice as many.
        centred: the encoder of a dense network sees a unit x as sqrt(12) (x - 1/2), of deviation 1 where units are
            uniform, so that codes of numbers in the middle of their range differ from the start.
        latent: dimensions of the code z.
        prior: of the code, as `priors.make_prior` takes it; None for the standard normal distribution.
        beta: the weight of the divergence of a record's code from the prior (Higgins et al. 2017).
        samples: L, the draws of a code over which the loss of a record is averaged (PriVAE, section 3.3).
        likelihood: of units: ``bernoulli`` (or mean values), ``gaussian``, ``laplace`` or ``censored``.
        scale: of another likelihood than a Bernoulli, public; None learns it.
        floor: the least scale.
        fixed_bias: keep the output bias of the decoder out of training, at values that were released before (noisy
            cluster means); otherwise it is trained like any other parameter.
        generator: public generator of the initial weights.

    Raises:
        ValueError: for a size below 1, more than `networks.MOST_LAYERS` layers, another network, pictures that the network
            does not take or that are centred, a prior that is none or of other dimensions, or a beta below 0.

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
        filters: int = 32,
        centred: bool = False,
        latent: int = 2,
        prior: Mapping[str, Any] | None = None,
        beta: float = 1.0,
        samples: int = 1,
        likelihood: str = "bernoulli",
        scale: float | None = None,
        floor: float = 0.01,
        fixed_bias: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        check_sizes(k=k, hidden=hidden, layers=layers, latent=latent, samples=samples, filters=filters)
        if type(beta) not in (int, float) or not 0.0 <= beta <= 1e6:
            raise ValueError(f"beta={beta!r}: expected a number from 0 to 1e6")
        if type(centred) is not bool or (centred and network != "dense"):
            raise ValueError(f"centred={centred!r} with network={network!r}: expected False, or True with network='dense'")
        check_layers(layers)
        super().__init__()
        self.schema, self.k, self.network, self.hidden, self.latent = schema, k, network, hidden, latent
        self.filters, self.centred = filters, centred
        self.layers, self.trunk, self.fixed_bias, self.beta, self.samples = layers, trunk, fixed_bias, beta, samples
        self.prior: Prior = make_prior(latent, {"kind": "normal"} if prior is None else prior)
        width = schema.layout.width
        self.waves = SlowWaves(schema) if network == "waves" else None
        self.dense = network in ("dense", "waves")
        self.likelihood = UnitLikelihood(
            k,
            schema.layout.units,
            likelihood,
            scale=scale,
            floor=floor,
            waves=None if likelihood == "censored" else self.waves,
        )
        if self.dense:
            inner, shared = [hidden] * layers, [trunk] * layers
            self.encoder = StackedMLP(k, (width, *inner, 2 * latent), shared=[*shared, False], generator=generator)
            self.decoder = StackedMLP(
                k, (latent, *inner, width), last_bias=False, shared=[False, *shared], generator=generator
            )
        elif network == "conv":
            self.encoder = ConvEncoder(schema, k, 2 * latent, generator=generator)
            self.decoder = PictureDecoder(schema, k, latent, generator=generator)
        elif network == "deep_conv":
            self.encoder = DeepConvEncoder(schema, k, 2 * latent, filters=filters, generator=generator)
            self.decoder = DeepConvDecoder(schema, k, latent, filters=filters, generator=generator)
        else:
            raise ValueError(f"network={network!r}: expected dense, waves, conv or deep_conv")
        last = self.encoder.layers[-1] if self.dense else self.encoder.last
        with torch.no_grad():
            # Codes are first as wide as a part of the prior.
            last.bias[:, latent:] += 2.0 * math.log(self.prior.width)
        if fixed_bias:
            self.register_buffer("output_bias", torch.zeros(k, width))
        else:
            self.output_bias = nn.Parameter(torch.zeros(k, width))

    @property
    def settings(self) -> dict[str, Any]:
        names = ("network", "hidden", "layers", "trunk", "latent", "fixed_bias")
        settings = {name: getattr(self, name) for name in names} | self.likelihood.settings
        if self.network == "deep_conv":
            settings["filters"] = self.filters
        # A release without them stays readable by software that knows neither.
        if self.centred:
            settings["centred"] = True
        return settings if isinstance(self.prior, NormalPrior) else settings | {"prior": self.prior.settings}

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set the output bias so that each component first generates its cluster's mean.

        Args:
            means: (k, width) already released means of the records of each cluster; clamped to [0.005, 0.995].
        """
        self.output_bias.copy_(self._numbers(logits(means, self.schema.layout)))

    @torch.no_grad()
    def likely(self, means: Tensor, noise: Tensor) -> Tensor:
        """Return what released means (k, width), with noise (k,), most likely are: those of waves smooth."""
        units = self.schema.layout.units
        if self.waves is None:
            return means
        return torch.cat([self.waves.likely(means[:, :units], noise), means[:, units:]], dim=1)

    @torch.no_grad()
    def hold_at(self, means: Tensor, noise: Tensor) -> None:
        """Set the output bias so that each component's average is the best estimate of its cluster's mean (`held_bias`).

        Args:
            means: (k, width) already released means of the records of each cluster.
            noise: (k,) standard deviation of the noise in the means.

        Averages of censored units do not follow from a bias, which stays as it is.
        """
        if self.likelihood.kind == "censored":
            return

        def decode(numbers: Tensor, offsets: Sequence[int]) -> Tensor:
            return self._logits(self.decoder(self.prior.draw(numbers), offsets))

        bias = held_bias(decode, self._logits(self.output_bias), means, noise, self.prior.noise, self.schema.layout)
        self.output_bias.copy_(self._numbers(bias))

    def encode(self, x: Tensor, offsets: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return mean and log variance (B, latent) of the code of each record."""
        dense = to_dense(x, self.schema.layout.width, self.output_bias.dtype)
        return self.encoder(self._seen(dense), offsets).chunk(2, dim=1)

    def _seen(self, x: Tensor) -> Tensor:
        """Return records (B, width) as the encoder sees them."""
        if self.waves is None and not self.centred:
            return x
        units = self.schema.layout.units
        middle = x[:, :units] - 0.5
        seen = math.sqrt(12.0) * middle if self.waves is None else self.waves.of(middle)
        return torch.cat([seen, x[:, units:]], dim=1)

    def _logits(self, numbers: Tensor) -> Tensor:
        """Return the logits of what the decoder gives, (B, width): of readings, where it gives waves."""
        if self.waves is None:
            return numbers
        units = self.schema.layout.units
        return torch.cat([_SLOPE * self.waves.series(numbers[:, :units]), numbers[:, units:]], dim=1)

    def _numbers(self, logits: Tensor) -> Tensor:
        """Invert `_logits`."""
        if self.waves is None:
            return logits
        units = self.schema.layout.units
        return torch.cat([self.waves.of(logits[:, :units]) / _SLOPE, logits[:, units:]], dim=1)

    def _draw_codes(self, lot: Lot, noise: Tensor) -> Tensor:
        """Draw the code (B, latent) of each record."""
        mean, log_variance = self.encode(lot.records, lot.offsets)
        return mean + torch.exp(0.5 * log_variance) * noise

    def decode(self, z: Tensor, offsets: Sequence[int]) -> Tensor:
        """Map codes (B, latent) to numbers (B, width) for `outputs.means`."""
        return self._logits(self.decoder(z, offsets) + self.output_bias[components(offsets, z.device)])

    def negative_elbo(self, lot: Lot, noise: Tensor) -> Tensor:
        """Return the negative evidence lower bound (B,) of each record, in nats, with beta times its divergence.

        Args:
            noise: (B, samples latent) normal numbers, a record's own.
        """
        reconstruction, divergence = self.elbo_parts(lot, noise)
        return reconstruction + self.beta * divergence

    def elbo_parts(self, lot: Lot, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the negative log likelihood (B,) of each record, and the divergence (B,) of its code from the prior."""
        mean, log_variance = self.encode(lot.records, lot.offsets)
        deviation, parts = torch.exp(0.5 * log_variance), []
        for normal in noise.split(self.latent, dim=1):
            z = mean + deviation * normal
            reconstruction = self._reconstruction(lot, self.decode(z, lot.offsets))
            parts.append((reconstruction, self._divergence(z, normal, mean, log_variance)))
        if len(parts) == 1:
            return parts[0]
        reconstructions, divergences = (torch.stack(part).mean(dim=0) for part in zip(*parts, strict=True))
        return reconstructions, divergences

    def _reconstruction(self, lot: Lot, logits: Tensor) -> Tensor:
        """Return the negative log likelihood (B,) of each record."""
        layout = self.schema.layout
        x, units = to_dense(lot.records, layout.width, logits.dtype), layout.units
        return self.likelihood.loss(logits[:, :units], x[:, :units], lot.offsets) + choice_entropy(logits, x, layout)

    def _divergence(self, z: Tensor, noise: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
        """Return KL(q(z|x) || p(z)) of each record (B,): its value, or log q - log p at a draw, whose mean it is."""
        if isinstance(self.prior, NormalPrior):
            return 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(dim=1)
        entropy = 0.5 * (noise.square() + log_variance + math.log(2.0 * math.pi)).sum(dim=1)
        return -entropy - self.prior.log_density(z)

    @torch.no_grad()
    def closed_forms(
        self, lot: Lot, noise: Tensor, encoded: Encoded | None = None, pull: Pull | None = None
    ) -> tuple[dict[nn.Parameter, GradientFactors], Callable[[], Tensor]]:
        """Compute the gradients of `negative_elbo` for dense networks, by a forward and a backward pass written out.

        Args:
            encoded: the result of the encoder's `run` for this lot, if it ran already.
            pull: a further loss of the first draw of each code.

        Records may be the places of their ones, (B, ones) int64; their losses are then those of the parameters at the time
        when the losses are asked for.
        """
        x, offsets, draws = lot.records, lot.offsets, self.samples
        code, kept = encoded or self.encoder.run(self._seen(x), offsets)
        mean, log_variance = code.chunk(2, dim=1)
        deviation = torch.exp(0.5 * log_variance)
        # Draws of a record stand one below the other.
        normal_numbers, draw_offsets = noise.reshape(-1, self.latent), tuple(draws * offset for offset in offsets)
        z = torch.addcmul(_repeated(mean, draws), _repeated(deviation, draws), normal_numbers)
        numbers, decoded = self.decoder.run(z, draw_offsets, self.output_bias)
        logits = self._logits(numbers)

        of_others: dict[nn.Parameter, GradientFactors] = {}
        d_logits = cross_entropy_gradient(logits, _repeated(x, draws), self.schema.layout)
        if self.likelihood.kind != "bernoulli":
            units = slice(self.schema.layout.units)
            d_logits[:, units], of_others = self.likelihood.gradient(logits[:, units], x[:, units], offsets)
        if draws > 1:
            d_logits /= draws
        if self.waves is not None:
            in_waves = _SLOPE * d_logits[:, : self.schema.layout.units] @ self.waves.back.to(d_logits).T
            d_logits = torch.cat([in_waves, d_logits[:, self.schema.layout.units :]], dim=1)
        factors, d_z = self.decoder.back(d_logits, decoded, draw_offsets, to_input=True, draws=draws)
        is_normal = isinstance(self.prior, NormalPrior)
        if not is_normal:
            d_z = d_z - self.beta / draws * self.prior.score(z)
            of_others |= {p: Dense(_summed(g, draws) * (-self.beta / draws)) for p, g in self.prior.gradients(z).items()}
        if pull is not None:
            d_z.unflatten(0, (-1, draws))[:, 0].add_(pull.gradient(z[::draws]))
        d_mean, d_log_variance = _summed(d_z, draws), _summed(d_z * normal_numbers, draws) * deviation
        if is_normal:
            d_mean = d_mean + self.beta * mean
            d_log_variance = d_log_variance + self.beta * deviation.square()
        d_code = torch.cat([d_mean, 0.5 * (d_log_variance - self.beta)], dim=1)
        factors |= self.encoder.back(d_code, kept, offsets, to_input=False)[0] | of_others
        if not self.fixed_bias:
            factors[self.output_bias] = OneComponent(Dense(_summed(d_logits, draws)), offsets)
        if draws == 1 and x.is_floating_point():

            def losses() -> Tensor:
                divergence = self._divergence(z, normal_numbers, mean, log_variance)
                loss = self._reconstruction(lot, logits) + self.beta * divergence
                return loss if pull is None else loss + pull.loss(z)

            return factors, losses
        return factors, lambda: self._pulled_elbo(lot, noise, pull).detach()

    def _pulled_elbo(self, lot: Lot, noise: Tensor, pull: Pull | None) -> Tensor:
        """Return `negative_elbo` and the further loss of the first draw of each code, (B,)."""
        loss = self.negative_elbo(lot, noise)
        return loss if pull is None else loss + pull.loss(self._draw_codes(lot, noise[:, : self.latent]))

    @property
    def term(self) -> PerRecord:
        """The negative evidence lower bound of each record."""
        return self._record_term(None)

    def terms(
        self, lot: Lot, divergence: OfGroups, groups: int, places: int, gradient: OfGroups | None = None
    ) -> tuple[PerRecord, PerGroup]:
        """Return `term` and `group_term` for this very lot, whose records are encoded once for both."""
        encoded = self.encoded(lot)
        return self._record_term(encoded), self.group_term(divergence, groups, places, gradient, encoded)

    @torch.no_grad()
    def encoded(self, lot: Lot) -> Encoded | None:
        """Return what the encoder of a dense network keeps of a lot, so that terms share one pass; None for another."""
        return self.encoder.run(self._seen(lot.records), lot.offsets) if self.dense else None

    def _record_term(self, encoded: Encoded | None, pull: Pull | None = None) -> PerRecord:
        # The gradient of a scale is written out for one draw.
        closed = self.dense and (self.samples == 1 or self.likelihood.kind == "bernoulli")
        forms = functools.partial(self.closed_forms, encoded=encoded, pull=pull) if closed else None
        loss = functools.partial(self._pulled_elbo, pull=pull)
        return PerRecord(loss, noise=self.samples * self.latent, forms=forms)

    def group_term(
        self,
        divergence: OfGroups,
        groups: int,
        places: int,
        gradient: OfGroups | None = None,
        encoded: Encoded | None = None,
    ) -> PerGroup:
        """Make a divergence of the codes of each group of records (PriVAE, "batch-wise" terms).

        Args:
            divergence: of the codes of m groups, (m,), with its weight beside the loss of a record.
            groups: m, the number of groups that a lot is divided into.
            places: the number of records that a group has room for, see `PerGroup`.
            gradient: of `divergence` with respect to draws of codes (m, r, latent), where it depends on these alone and
                knows it in closed form.
            encoded: the result of the encoder's `run` for the lot that the term is for, if it ran already.
        """

        def codes_of(code: Sequence[Tensor], noise: Tensor, partition: Groups) -> GroupCodes:
            mean, log_variance = code
            z = mean + torch.exp(0.5 * log_variance) * noise
            gathered = partition.gather(torch.cat([z, mean, log_variance], dim=1)).chunk(3, dim=2)
            return GroupCodes(*gathered, partition.mask)

        def of_code(code: Sequence[Tensor], noise: Tensor, partition: Groups) -> Tensor:
            return divergence(codes_of(code, noise, partition))

        def loss(lot: Lot, noise: Tensor, partition: Groups) -> Tensor:
            return of_code(self.encode(lot.records, lot.offsets), noise, partition)

        def forms(lot: Lot, noise: Tensor, partition: Groups):
            # Shapes are public, so that rounding in one group does not depend on the size of another.
            partition = Groups(partition.index, partition.count, places)
            with torch.no_grad():
                code, kept = encoded or self.encoder.run(self._seen(lot.records), lot.offsets)
                if gradient is not None:
                    codes = codes_of(code.chunk(2, dim=1), noise, partition)
                    d_z = partition.scatter(gradient(codes))
                    d_code = torch.cat([d_z, 0.5 * d_z * noise * torch.exp(0.5 * code[:, self.latent :])], dim=1)
                    losses: Callable[[], Tensor] = functools.partial(divergence, codes)
            with torch.enable_grad():
                if gradient is None:
                    # Codes are few numbers, and groups do not meet: one gradient of all of them is that of each.
                    leaf = code.detach().requires_grad_()
                    found = of_code(leaf.chunk(2, dim=1), noise, partition)
                    (d_code,) = torch.autograd.grad(found.sum(), leaf)
                    losses = found.detach
                of_prior = self._gradients_of_prior(of_code, code, noise, partition)
            with torch.no_grad():
                factors = self.encoder.back(d_code, kept, lot.offsets, to_input=False)[0]
            return factors | of_prior, losses

        return PerGroup(loss, groups, noise=self.latent, forms=forms if self.dense else None, places=places)

    def _gradients_of_prior(
        self, of_code: OfCode, code: Tensor, noise: Tensor, partition: Groups
    ) -> dict[nn.Parameter, GradientFactors]:
        """Return the gradients of the losses of groups with respect to centres that are learned.

        The loss of each group is computed by itself. In a graph of all groups, infinite numbers of one would come back as
        NaN in the gradient of every other, through the draws that they share, and one record would move them all.

        The gradient of a group is the sum of those of its records, so it stands with the first of them.
        """
        parameters = list(self.prior.parameters())
        rows = [code.new_zeros(len(partition.index), *p.shape) for p in parameters]
        for group in range(partition.count if parameters else 0):
            members = (partition.index == group).nonzero()[:, 0]
            if not len(members):
                continue
            own = code[members].detach().requires_grad_()
            alone = Groups(torch.zeros_like(members), 1)
            loss = of_code(own.chunk(2, dim=1), noise[members], alone)
            # Total correlation knows of no prior.
            found = torch.autograd.grad(loss.sum(), parameters, allow_unused=True, materialize_grads=True)
            for row, gradient in zip(rows, found, strict=True):
                row[members[0]] = gradient
        return {p: Dense(row) for p, row in zip(parameters, rows, strict=True)}

    @torch.no_grad()
    def embedded(self, lot: Lot, noise: Tensor, embedding: CodeEmbedding, encoded: Encoded | None = None) -> Tensor:
        """Embed the codes that `embedded_term` uses, to (B, d); `encoded` is of this lot."""
        if encoded is None:
            return embedding(self._draw_codes(lot, noise[:, : self.latent]))
        mean, log_variance = encoded[0].chunk(2, dim=1)
        return embedding(mean + torch.exp(0.5 * log_variance) * noise[:, : self.latent])

    def embedded_term(
        self, embedding: CodeEmbedding, weight: float, mean_embedding: Tensor, encoded: Encoded | None = None
    ) -> PerRecord:
        """Make the negative evidence lower bound plus the record's part of the divergence of all codes from the prior.

        Args:
            embedding: the embedding of codes.
            weight: weight of the discrepancy, ``at_zero |m - mu|^2``.
            mean_embedding: m (d,), the lot's noisy mean embedding; released, a constant here.
            encoded: of the lot that the term is for, from `encoded`.
        """
        towards = 2.0 * weight * embedding.at_zero * (mean_embedding - embedding.of_prior)
        return self._record_term(encoded, Pull(embedding, towards))

    @torch.no_grad()
    def nearest_components(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return for records (B, width) the component that most probably made each (B,), and the code that it gives.

        That is the one with the largest weight times evidence lower bound, taken at the mean of the code. It is a function
        of released numbers and of the record.

        Args:
            weights: (k,) of the mixture, released.

        Returns:
            components (B,), means and log variances (B, latent).
        """
        bounds, codes = [], []
        for c in range(self.k):
            offsets = [0] * (c + 1) + [len(x)] * (self.k - c)
            mean, log_variance = self.encode(x, offsets)
            # The mean code stands for a draw, whose noise has squares of 1 on average.
            divergence = self._divergence(mean, torch.ones_like(mean), mean, log_variance)
            loss = self._reconstruction(Lot(x, tuple(offsets)), self.decode(mean, offsets)) + divergence
            bounds.append(weights[c].log() - loss)
            codes.append(torch.stack([mean, log_variance]))
        best = torch.stack(bounds).argmax(dim=0)
        mean, log_variance = torch.stack(codes)[best, :, torch.arange(len(x))].unbind(dim=1)
        return best, mean, log_variance

    @torch.no_grad()
    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate units, or their means, and shares of choices (n, width) from the prior, sorted by component."""
        z = self.prior.draw(torch.randn(offsets[-1], self.prior.noise, generator=generator))
        made, units = means(self.decode(z, offsets), self.schema.layout), slice(self.schema.layout.units)
        made[:, units] = self.likelihood.draw(made[:, units], offsets, generator)
        return made


def _repeated(x: Tensor, times: int) -> Tensor:
    """Repeat each row of (B, ...) in place, to (B times, ...)."""
    return x if times == 1 else x.repeat_interleave(times, dim=0)


def _summed(x: Tensor, times: int) -> Tensor:
    """Add up the rows of each record, (B times, ...) to (B, ...)."""
    return x if times == 1 else x.unflatten(0, (-1, times)).sum(dim=1)

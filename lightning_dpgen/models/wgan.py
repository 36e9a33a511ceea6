"""Wasserstein generative adversarial networks with gradient penalty, one for each component of a mixture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.component_factors import OneComponent
from lightning_dpgen.gradients.factors import Dense, GradientFactors, outer
from lightning_dpgen.gradients.segments import components, segmented_product
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.models.marginals import held_bias
from lightning_dpgen.models.networks import PictureDecoder, PictureEncoder, StackedMLP, check_sizes, signs
from lightning_dpgen.models.outputs import logits, means
from lightning_dpgen.sampling.lots import Lot

# The slope of the leaky rectifiers, and a summand that keeps the root of a squared length differentiable at 0.
_SLOPE, _TINY = 0.2, 1e-24


class StackedGenerator(nn.Module):
    """k generators: a standard normal code to the mean of each unit, and the shares of the choices of each group.

    Args:
        schema: the public description of a record.
        network: ``dense`` (two hidden layers) or ``conv`` (two transposed convolutions).
        hidden: units of each hidden layer of a dense network.
        latent: dimensions of the code z.
        generator: public generator of the initial weights.

    Raises:
        ValueError: for another network, or pictures that the network does not take.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> network = StackedGenerator(ImageSchema(2, 2, levels=1, classes=3), k=2, hidden=4, latent=2)
        >>> network(torch.zeros(3, 2), (0, 1, 3)).shape
        torch.Size([3, 7])
    """

    kind = "wgan_mixture"

    def __init__(
        self,
        schema: Schema,
        k: int,
        *,
        network: str = "dense",
        hidden: int = 128,
        latent: int = 16,
        generator: torch.Generator | None = None,
    ) -> None:
        check_sizes(k=k, hidden=hidden, latent=latent)
        super().__init__()
        self.schema, self.k, self.network, self.hidden, self.latent = schema, k, network, hidden, latent
        if network == "dense":
            widths = (latent, hidden, hidden, schema.layout.width)
            self.layers = StackedMLP(k, widths, slope=_SLOPE, last_bias=False, generator=generator)
        elif network == "conv":
            self.layers = PictureDecoder(schema, k, latent, slope=_SLOPE, generator=generator)
        else:
            raise ValueError(f"network={network!r}: expected dense or conv")
        self.output_bias = nn.Parameter(torch.zeros(k, schema.layout.width))

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `__init__`, without schema and k."""
        return {name: getattr(self, name) for name in ("network", "hidden", "latent")}

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set the output bias so that each component first generates its cluster's mean; see `StackedVAE.start_at`."""
        self.output_bias.copy_(logits(means, self.schema.layout))

    @torch.no_grad()
    def hold_at(self, means: Tensor, noise: Tensor) -> None:
        """Set the output bias so that each component generates its cluster's mean; see `StackedVAE.hold_at`."""
        bias = held_bias(self.layers, self.output_bias, means, noise, self.latent, self.schema.layout)
        self.output_bias.copy_(bias)

    def forward(self, z: Tensor, offsets: Sequence[int]) -> Tensor:
        """Map codes (B, latent), sorted by component, to (B, width) in [0, 1]."""
        return means(self.layers(z, offsets) + self.output_bias[components(offsets, z.device)], self.schema.layout)

    @torch.no_grad()
    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate means of units and shares of choices (n, width), for records sorted by component."""
        return self(torch.randn(offsets[-1], self.latent, generator=generator), offsets)


class StackedCritic(nn.Module):
    """k critics with leaky rectifiers: piecewise linear, so that the gradient of their penalty has a closed form.

    Args:
        made_by: the generator of the records that real ones are compared with; not trained by the critic's loss.
        hidden: units of each hidden layer, where the generator is dense; otherwise the critic has convolutions too.
        depth: hidden layers of a dense critic.
        penalty: lambda, the weight of the gradient penalty.
        generator: public generator of the initial weights.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> schema = ImageSchema(2, 2, levels=1)
        >>> critic = StackedCritic(StackedGenerator(schema, k=1, hidden=4, latent=2), hidden=4)
        >>> critic(torch.zeros(5, 4), (0, 5)).shape
        torch.Size([5])
    """

    def __init__(
        self,
        made_by: StackedGenerator,
        *,
        hidden: int = 128,
        depth: int = 2,
        penalty: float = 10.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        # The list keeps the generator from being a part of this network.
        self._made_by, self.penalty, self.dense = [made_by], penalty, made_by.network == "dense"
        self.noise = made_by.latent + 1
        if self.dense:
            widths = (made_by.schema.layout.width, *[hidden] * depth, 1)
            self.score = StackedMLP(made_by.k, widths, slope=_SLOPE, generator=generator)
        else:
            self.score = PictureEncoder(made_by.schema, made_by.k, 1, slope=_SLOPE, generator=generator)

    def forward(self, x: Tensor, offsets: Sequence[int]) -> Tensor:
        """Score records (B, width), sorted by component, to (B,)."""
        return self.score(x, offsets)[:, 0]

    def _beside(self, lot: Lot, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Generate a record beside each real one, and draw a point between the two; all from the record's own noise."""
        with torch.no_grad():
            made = self._made_by[0](noise[:, 1:].contiguous(), lot.offsets)
            # The distribution function turns a normal number into a uniform one.
            share = torch.special.ndtr(noise[:, :1])
            return made, torch.lerp(made, lot.records, share)

    def loss(self, lot: Lot, noise: Tensor) -> Tensor:
        """Return ``D(made) - D(x) + lambda (|grad D| - 1)^2`` (B,), the gradient taken between (Gulrajani et al. 2017)."""
        made, between = self._beside(lot, noise)
        lengths = self.score.slope_of(between, lot.offsets).square().sum(dim=1).add(_TINY).sqrt()
        return self(made, lot.offsets) - self(lot.records, lot.offsets) + self.penalty * (lengths - 1.0).square()

    @torch.no_grad()
    def closed_forms(self, lot: Lot, noise: Tensor) -> tuple[dict[nn.Parameter, GradientFactors], Callable[[], Tensor]]:
        """Return the gradients of `loss` for dense networks, three outer products a layer: generated, real and penalty.

        Between its kinks the score is linear in each layer, so the penalty's gradient at layer l is ``v_l t_{l-1}^T``: v
        leads back from the score, t forward from the gradient of the penalty with respect to the slope. The penalty adds
        nothing to the gradients of biases.
        """
        made, between = self._beside(lot, noise)
        size, offsets = len(lot), tuple(3 * o for o in lot.offsets)
        x = torch.stack([made, lot.records, between], dim=1).flatten(0, 1)
        layers, inputs, kept = self.score.layers, [x], []
        for layer in layers[:-1]:
            x = segmented_product(x, layer.weight, layer.bias, offsets)
            kept.append(signs(x, _SLOPE))
            x = x * kept[-1]
            inputs.append(x)

        v = x.new_tensor([1.0, -1.0, 1.0]).repeat(size)[:, None]
        gradients = [v]
        for layer, sign in zip(reversed(layers[1:]), reversed(kept), strict=True):
            v = segmented_product(v, layer.weight.mT, None, offsets) * sign
            gradients.append(v)
        gradients.reverse()

        slope = segmented_product(v[2::3], layers[0].weight.mT, None, lot.offsets)
        lengths = slope.square().sum(dim=1, keepdim=True).add_(_TINY).sqrt_()
        tangent = slope * (2.0 * self.penalty * (1.0 - 1.0 / lengths))
        factors: dict[nn.Parameter, GradientFactors] = {}
        for i, layer in enumerate(layers):
            left, right = gradients[i].view(size, 3, -1), inputs[i].view(size, 3, -1)
            right[:, 2] = tangent
            shape = tuple(layer.weight.shape[1:])
            factors[layer.weight] = OneComponent(outer([(left, right)], shape, shape), lot.offsets)
            factors[layer.bias] = OneComponent(Dense(left[:, 0] + left[:, 1]), lot.offsets)
            if i < len(kept):
                tangent = segmented_product(tangent, layer.weight, None, lot.offsets) * kept[i][2::3]
        return factors, lambda: self.loss(lot, noise).detach()

    @property
    def term(self) -> PerRecord:
        return PerRecord(self.loss, noise=self.noise, forms=self.closed_forms if self.dense else None)

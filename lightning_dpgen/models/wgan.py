"""Wasserstein generative adversarial networks with gradient penalty, one for each component of a mixture."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_dpgen.data.lots import Lot
from lightning_dpgen.data.schema import ImageSchema
from lightning_dpgen.gradients.forms import Form, Segmented, Whole, outer
from lightning_dpgen.gradients.segments import segmented_linear, segmented_product
from lightning_dpgen.gradients.stacked import StackedLinear
from lightning_dpgen.gradients.terms import PerRecord

# Of the leaky rectifiers; and what keeps the root of a squared length differentiable at 0.
_SLOPE, _TINY = 0.2, 1e-24


class StackedGenerator(nn.Module):
    """k generators with two hidden layers: a standard normal code to the mean of each pixel, and the shares of the labels.

    Args:
        schema: the public description of a record.
        k: number of components.
        hidden: units of each hidden layer.
        latent: dimensions of the code z.
        generator: public generator of the initial weights.

    Example:
        >>> network = StackedGenerator(ImageSchema(2, 2, levels=1, classes=3), k=2, hidden=4, latent=2)
        >>> network(torch.zeros(3, 2), (0, 1, 3)).shape
        torch.Size([3, 7])
    """

    kind = "wgan_mixture"

    def __init__(
        self,
        schema: ImageSchema,
        k: int,
        *,
        hidden: int = 128,
        latent: int = 16,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.schema, self.k, self.hidden, self.latent = schema, k, hidden, latent
        widths = (latent, hidden, hidden, schema.encoded_width)
        self.layers = nn.ModuleList(
            StackedLinear(k, n, o, generator=generator) for n, o in zip(widths[:-1], widths[1:], strict=True)
        )

    @property
    def settings(self) -> dict[str, int]:
        """What `__init__` was asked for, besides schema and k."""
        return {"hidden": self.hidden, "latent": self.latent}

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set output biases so that each component first generates its cluster's mean; see `StackedVAE.start_at`."""
        pixels = self.schema.pixels
        grey = torch.logit(means[:, :pixels].clamp(0.005, 0.995))
        self.layers[-1].bias.copy_(torch.cat([grey, torch.log(means[:, pixels:].clamp(0.005, 1.0))], dim=1))

    def forward(self, z: Tensor, offsets: Sequence[int]) -> Tensor:
        """(B, width) in [0, 1], for codes (B, latent) sorted by component."""
        x = z
        for layer in self.layers[:-1]:
            x = F.leaky_relu(layer(x, offsets), _SLOPE)
        x = self.layers[-1](x, offsets)
        pixels = self.schema.pixels
        parts = [torch.sigmoid(x[:, :pixels])]
        if self.schema.classes:
            parts.append(torch.softmax(x[:, pixels:], dim=1))
        return torch.cat(parts, dim=1)

    @torch.no_grad()
    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """(n, width) means of pixels and shares of labels, for records sorted by component."""
        return self(torch.randn(offsets[-1], self.latent, generator=generator), offsets)


class StackedCritic(nn.Module):
    """k critics with two hidden layers and leaky rectifiers: piecewise linear, so that their penalty has a closed form.

    Args:
        made_by: makes the records that real ones are compared with; not trained by the critic's loss.
        hidden: units of each hidden layer.
        penalty: lambda, the weight of the gradient penalty.
        generator: public generator of the initial weights.

    Example:
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
        penalty: float = 10.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        # In a list, so that it is not a part of this network.
        self._made_by, self.penalty = [made_by], penalty
        self.noise = made_by.latent + 1
        widths = (made_by.schema.encoded_width, hidden, hidden, 1)
        self.layers = nn.ModuleList(
            StackedLinear(made_by.k, n, o, generator=generator) for n, o in zip(widths[:-1], widths[1:], strict=True)
        )

    def forward(self, x: Tensor, offsets: Sequence[int]) -> Tensor:
        """(B,) scores."""
        for layer in self.layers[:-1]:
            x = F.leaky_relu(layer(x, offsets), _SLOPE)
        return self.layers[-1](x, offsets)[:, 0]

    def _beside(self, lot: Lot, noise: Tensor) -> tuple[Tensor, Tensor]:
        """A made record for each real one, and a place between the two; all from the record's own noise."""
        with torch.no_grad():
            made = self._made_by[0](noise[:, 1:].contiguous(), lot.offsets)
            # A uniform number from a normal one.
            share = torch.special.ndtr(noise[:, :1])
            return made, torch.lerp(made, lot.records, share)

    def _slope(self, x: Tensor, offsets: Sequence[int]) -> Tensor:
        """(B, n) the gradient of the score with respect to the record, as a function of the parameters."""
        signs = []
        for layer in self.layers[:-1]:
            x = layer(x, offsets)
            signs.append(_signs(x.detach()))
            x = F.leaky_relu(x, _SLOPE)
        v = segmented_linear(x.new_ones(len(x), 1), self.layers[-1].weight.mT, None, offsets)
        for layer, sign in zip(reversed(self.layers[:-1]), reversed(signs), strict=True):
            v = segmented_linear(v * sign, layer.weight.mT, None, offsets)
        return v

    def loss(self, lot: Lot, noise: Tensor) -> Tensor:
        """(B,) ``D(made) - D(x) + lambda (|grad D| - 1)^2``, the gradient taken between the two (Gulrajani et al. 2017)."""
        made, between = self._beside(lot, noise)
        lengths = self._slope(between, lot.offsets).square().sum(dim=1).add(_TINY).sqrt()
        return self(made, lot.offsets) - self(lot.records, lot.offsets) + self.penalty * (lengths - 1.0).square()

    @torch.no_grad()
    def closed_forms(self, lot: Lot, noise: Tensor) -> tuple[dict[nn.Parameter, Form], Callable[[], Tensor]]:
        """The gradients of `loss`: three outer products a layer, of the made record, the real one and the penalty.

        Between its kinks the score is linear in each layer, so the penalty's gradient at layer l is ``v_l t_{l-1}^T``: v
        leads back from the score, t forward from the gradient of the penalty with respect to the slope. It has no part in
        the biases.
        """
        made, between = self._beside(lot, noise)
        size, offsets = len(lot), tuple(3 * o for o in lot.offsets)
        x = torch.stack([made, lot.records, between], dim=1).flatten(0, 1)
        inputs, signs = [x], []
        for layer in self.layers[:-1]:
            x = segmented_product(x, layer.weight, layer.bias, offsets)
            signs.append(_signs(x))
            x = x * signs[-1]
            inputs.append(x)

        v = x.new_tensor([1.0, -1.0, 1.0]).repeat(size)[:, None]
        gradients = [v]
        for layer, sign in zip(reversed(self.layers[1:]), reversed(signs), strict=True):
            v = segmented_product(v, layer.weight.mT, None, offsets) * sign
            gradients.append(v)
        gradients.reverse()

        slope = segmented_product(v[2::3], self.layers[0].weight.mT, None, lot.offsets)
        lengths = slope.square().sum(dim=1, keepdim=True).add_(_TINY).sqrt_()
        tangent = slope * (2.0 * self.penalty * (1.0 - 1.0 / lengths))
        forms: dict[nn.Parameter, Form] = {}
        for i, layer in enumerate(self.layers):
            left, right = gradients[i].view(size, 3, -1), inputs[i].view(size, 3, -1)
            right[:, 2] = tangent
            shape = tuple(layer.weight.shape[1:])
            forms[layer.weight] = Segmented(outer([(left, right)], shape, shape), lot.offsets)
            forms[layer.bias] = Segmented(Whole(left[:, 0] + left[:, 1]), lot.offsets)
            if i < len(signs):
                tangent = segmented_product(tangent, layer.weight, None, lot.offsets) * signs[i][2::3]
        return forms, lambda: self.loss(lot, noise).detach()

    @property
    def term(self) -> PerRecord:
        return PerRecord(self.loss, noise=self.noise, forms=self.closed_forms)


def _signs(x: Tensor) -> Tensor:
    """The slope of the leaky rectifier at each number."""
    return torch.where(x > 0, x.new_ones(()), x.new_full((), _SLOPE))

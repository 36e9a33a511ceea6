"""Critics of adversarial networks, one for each component: their private loss of one record, and that of generators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_dpgen.gradients.component_factors import OneComponent
from lightning_dpgen.gradients.factors import Dense, GradientFactors, outer
from lightning_dpgen.gradients.stacked_ops import segmented_product
from lightning_dpgen.gradients.terms import DataFree, PerRecord
from lightning_dpgen.models.generators import SLOPE, StackedGenerator
from lightning_dpgen.models.networks import ConvEncoder, StackedMLP, check_layers, check_sizes
from lightning_dpgen.sampling.lots import Lot

LOSSES = ("wgan_gp", "wgan_clip", "vanilla")
# The place of generated records in a private step: beside each real one, or in a term without noise.
GENERATED = ("record", "data_free")
# A summand that keeps the root of a squared length differentiable at 0.
_TINY = 1e-24


class StackedCritic(nn.Module):
    """k critics with leaky rectifiers: piecewise linear, so that the gradient of their penalty has a closed form.

    A record x is compared with one that is generated beside it, g, from numbers of its own. Losses of a record are

    - ``wgan_gp``: ``D(g) - D(x) + lambda (|grad D| - 1)^2``, the gradient taken at a point between x and g (Gulrajani et
      al. 2017; dp-GAN, section 4);
    - ``wgan_clip``: ``D(g) - D(x)``, with weights held within a bound (`clamp_weights`; Arjovsky et al. 2017);
    - ``vanilla``: ``log(1 + exp D(g)) + log(1 + exp -D(x))`` (Goodfellow et al. 2014).

    Args:
        made_by: the generator; not trained by the critic's loss.
        network: ``dense``, or ``conv`` (two convolutions) for pictures and series.
        hidden: units of each hidden layer of a dense critic.
        layers: hidden layers of a dense critic.
        loss: one of `LOSSES`.
        penalty: lambda, the weight of the gradient penalty.
        generated: ``record`` compares each record with one beside it, within its clipped gradient; with ``data_free`` the
            generated part of the loss is a term of its own, which sees no record and is neither clipped nor noised
            (dp-GAN, Algorithm 1).
        generator: public generator of the initial weights.

    Raises:
        ValueError: for another loss or network, or records that the network does not take.

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
        network: str = "dense",
        hidden: int = 128,
        layers: int = 2,
        loss: str = "wgan_gp",
        penalty: float = 10.0,
        generated: str = "record",
        generator: torch.Generator | None = None,
    ) -> None:
        check_sizes(hidden=hidden, layers=layers)
        check_layers(layers)
        if loss not in LOSSES:
            raise ValueError(f"loss={loss!r}: expected one of {', '.join(LOSSES)}")
        if generated not in GENERATED:
            raise ValueError(f"generated={generated!r}: expected one of {', '.join(GENERATED)}")
        super().__init__()
        # The list keeps the generator from being a part of this network.
        self._made_by, self.kind, self.penalty, self.dense = [made_by], loss, penalty, network == "dense"
        self.k = made_by.k
        self.beside = generated == "record"
        self.noise = made_by.code + 1 if self.beside or loss == "wgan_gp" else 0
        if network == "dense":
            widths = (made_by.schema.layout.width, *[hidden] * layers, 1)
            self.score = StackedMLP(made_by.k, widths, slope=SLOPE, generator=generator)
        elif network == "conv":
            self.score = ConvEncoder(made_by.schema, made_by.k, 1, slope=SLOPE, generator=generator)
        else:
            raise ValueError(f"network={network!r}: expected dense or conv")

    @property
    def width(self) -> int:
        """The length of a record."""
        return self._made_by[0].schema.layout.width

    def forward(self, x: Tensor, offsets: Sequence[int]) -> Tensor:
        """Score records (B, width), sorted by component, to (B,)."""
        return self.score(x, offsets)[:, 0]

    def _made(self, lot: Lot, noise: Tensor) -> Tensor:
        """Generate a record beside each real one, of the same label where the generator is conditional."""
        made_by = self._made_by[0]
        labels = lot.records[:, made_by.schema.layout.labels] if made_by.conditional else None
        with torch.no_grad():
            return made_by(noise[:, 1:].contiguous(), lot.offsets, labels)

    @staticmethod
    def _between(generated: Tensor, lot: Lot, noise: Tensor) -> Tensor:
        """Draw a point between each record and the one that was generated beside it."""
        # The distribution function turns a normal number into a uniform one.
        return torch.lerp(generated, lot.records, torch.special.ndtr(noise[:, :1]))

    def loss(self, lot: Lot, noise: Tensor) -> Tensor:
        """Return the loss (B,) of each record; `noise` is its own (B, noise) normal numbers."""
        first, *others = self.loss_parts(lot, noise).values()
        return sum(others, first)

    def loss_parts(self, lot: Lot, noise: Tensor) -> dict[str, Tensor]:
        """Return the summands (B,) of the loss of each record by name: of real and generated records, and the penalty."""
        parts = {"real": self._of_real(self(lot.records, lot.offsets))}
        if not self.noise:
            return parts
        generated = self._made(lot, noise)
        if self.beside:
            parts["generated"] = self._of_made(self(generated, lot.offsets))
        if self.kind == "wgan_gp":
            slopes = self.score.slope_of(self._between(generated, lot, noise), lot.offsets)
            parts["penalty"] = self.penalty * (slopes.square().sum(dim=1).add(_TINY).sqrt() - 1.0).square()
        return parts

    def _of_real(self, scores: Tensor) -> Tensor:
        return F.softplus(-scores) if self.kind == "vanilla" else -scores

    def _of_made(self, scores: Tensor) -> Tensor:
        return F.softplus(scores) if self.kind == "vanilla" else scores

    @torch.no_grad()
    def closed_forms(self, lot: Lot, noise: Tensor) -> tuple[dict[nn.Parameter, GradientFactors], Callable[[], Tensor]]:
        """Return the gradients of `loss` for dense networks: outer products a layer for generated, real and penalty.

        Between its kinks the score is linear in each layer, so the penalty's gradient at layer l is ``v_l t_{l-1}^T``: v
        leads back from the score, t forward from the gradient of the penalty with respect to the slope. The penalty adds
        nothing to the gradients of biases.
        """
        penalised = self.kind == "wgan_gp"
        rows = [lot.records]
        if self.noise:
            made = self._made(lot, noise)
            rows = [made] * self.beside + rows + [self._between(made, lot, noise)] * penalised
        size, count, scored = len(lot), len(rows), 1 + self.beside
        offsets = tuple(count * o for o in lot.offsets)
        x = torch.stack(rows, dim=1).flatten(0, 1)
        layers, inputs = self.score.layers, [x]
        for layer in layers[:-1]:
            x = F.leaky_relu_(segmented_product(x, layer.weight, layer.bias, offsets), SLOPE)
            inputs.append(x)

        v = self._slopes(x, offsets, size, count)
        gradients = [v]
        for layer, reached in zip(reversed(layers[1:]), reversed(inputs[1:]), strict=True):
            v = _rectified(segmented_product(v, layer.weight.mT, None, offsets), reached)
            gradients.append(v)
        gradients.reverse()

        tangent = None
        if penalised:
            slope = segmented_product(v[count - 1 :: count], layers[0].weight.mT, None, lot.offsets)
            lengths = slope.square().sum(dim=1, keepdim=True).add_(_TINY).sqrt_()
            tangent = slope * (2.0 * self.penalty * (1.0 - 1.0 / lengths))
        factors: dict[nn.Parameter, GradientFactors] = {}
        for i, layer in enumerate(layers):
            into, out_of = gradients[i].view(size, count, -1), inputs[i].view(size, count, -1)
            if tangent is not None:
                out_of[:, -1] = tangent
            shape = tuple(layer.weight.shape[1:])
            factors[layer.weight] = OneComponent(outer([(into, out_of)], shape, shape), lot.offsets)
            factors[layer.bias] = OneComponent(Dense(into[:, :scored].sum(dim=1)), lot.offsets)
            if tangent is not None and i < len(layers) - 1:
                tangent = segmented_product(tangent, layer.weight, None, lot.offsets)
                tangent = _rectified(tangent, inputs[i + 1][count - 1 :: count])
        return factors, lambda: self.loss(lot, noise).detach()

    def _slopes(self, hidden: Tensor, offsets: Sequence[int], size: int, count: int) -> Tensor:
        """Return the gradient (B count, 1) of the loss with respect to each score; of the score itself for the penalty."""
        signs_of = [1.0] * self.beside + [-1.0] + [1.0] * (self.kind == "wgan_gp")
        v = hidden.new_tensor(signs_of).repeat(size)[:, None]
        if self.kind != "vanilla":
            return v
        last = self.score.layers[-1]
        scores = segmented_product(hidden, last.weight, last.bias, offsets)
        return v * torch.sigmoid(v * scores)

    @property
    def term(self) -> PerRecord:
        """The private term: the loss of each record."""
        return PerRecord(self.loss, noise=self.noise, forms=self.closed_forms if self.dense else None)

    def public_terms(self, codes: Tensor, offsets: Sequence[int], weights: Tensor) -> tuple[DataFree, ...]:
        """Return the part of the loss that sees no record, where it is a term of its own.

        Args:
            codes: (B, code) public normal numbers, as many for each component.
            weights: (k,) released weights of the components, as records have them.
        """
        if self.beside:
            return ()

        def loss() -> Tensor:
            with torch.no_grad():
                made = self._made_by[0](codes, offsets)
            each = self._of_made(self(made, offsets)).view(len(weights), -1)
            return (each.mean(dim=1) * weights).sum()

        return (DataFree(loss),)

    def generator_loss(self, codes: Tensor, offsets: Sequence[int]) -> Tensor:
        """Return the loss of the generators, one number: no record has a part in it."""
        scores = self(self._made_by[0](codes, offsets), offsets)
        # Each component has a generator of its own, so a sum over components has the gradients of each.
        return self._of_real(scores).view(len(offsets) - 1, -1).mean(dim=1).sum()

    @torch.no_grad()
    def clamp_weights(self, bound: float) -> None:
        """Hold all parameters within a bound, after their noisy step (Arjovsky et al. 2017, Algorithm 1)."""
        for parameter in self.parameters():
            parameter.clamp_(-bound, bound)


def _rectified(v: Tensor, reached: Tensor) -> Tensor:
    """Multiply by the slope of a leaky rectifier, known from its results: 1 where these are above 0."""
    return torch.ops.aten.leaky_relu_backward(v, reached, SLOPE, True)

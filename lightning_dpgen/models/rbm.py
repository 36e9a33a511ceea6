"""A restricted Boltzmann machine for each component of a mixture, with persistent chains."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.component_factors import OneComponent, OneComponentMixed
from lightning_dpgen.gradients.factors import CentredRankOne, Dense, GradientFactors, RankOne
from lightning_dpgen.gradients.stacked_ops import (
    components,
    segmented_linear,
    segmented_product,
    segments,
    select_component,
)
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.models.outputs import draw_groups, means
from lightning_dpgen.sampling.lots import Lot

_HALF = torch.tensor(0.5)


class StackedRBM(nn.Module):
    """k machines of binary visible and hidden units (DPGM, TKDE, section 5.2), trained by persistent contrastive divergence
    (Tieleman 2008).

    The energy of ``(v, h)`` is ``-b v - c h - h W v``. A record's loss is its free energy less the mean free energy of all
    chains of its component: the chains are functions of released parameters, and their mean is taken from each record's
    gradient before it is clipped. Pairing the i-th record with the i-th chain has no bounded sensitivity, and clipping the
    data phase alone would bias it (docs/PRIVACY.md). Units between 0 and 1 count as
    probabilities; each group is one softmax unit.

    Args:
        schema: the public description of a record.
        chains: persistent chains of each component.
        generator: public generator of initial weights and chains.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> machine = StackedRBM(ImageSchema(2, 2, levels=1), k=3, hidden=5, chains=4)
        >>> machine.free_energy(torch.zeros(2, 4), (0, 1, 1, 2)).shape
        torch.Size([2])
    """

    kind = "rbm_mixture"

    def __init__(
        self, schema: Schema, k: int, *, hidden: int = 200, chains: int = 20, generator: torch.Generator | None = None
    ) -> None:
        check_sizes(k=k, hidden=hidden, chains=chains)
        super().__init__()
        self.schema, self.k, self.hidden = schema, k, hidden
        width = schema.layout.width
        self.weight = nn.Parameter(0.01 * torch.randn(k, hidden, width, generator=generator))
        self.visible_bias = nn.Parameter(torch.zeros(k, width))
        self.hidden_bias = nn.Parameter(torch.zeros(k, hidden))
        self.register_buffer("chains", (torch.rand(k, chains, width, generator=generator) < 0.5).float())

    @property
    def settings(self) -> dict[str, int]:
        return {"hidden": self.hidden, "chains": self.chains.shape[1]}

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set visible biases and chains so that each component begins at its cluster's mean.

        Args:
            means: (k, width) already released means of the records of each cluster; clamped to [0.01, 0.99].
        """
        means = means.clamp(0.01, 0.99)
        self.visible_bias.copy_(torch.logit(means))
        self.chains.copy_(means[:, None].expand_as(self.chains))

    def free_energy(self, v: Tensor, offsets: Sequence[int]) -> Tensor:
        """Return ``-b v - sum of softplus(W v + c)`` (B,), for records sorted by component."""
        # A layer of one unit gives b v for each component.
        linear = segmented_linear(v, self.visible_bias[:, None], None, offsets)[:, 0]
        hidden = segmented_linear(v, self.weight, self.hidden_bias, offsets)
        return -linear - F.softplus(hidden).sum(dim=1)

    def loss(self, lot: Lot, noise: Tensor) -> Tensor:
        """Return free energies (B,) less the mean free energy of the chains of each record's component."""
        count = self.chains.shape[1]
        ends = tuple(count * c for c in range(self.k + 1))
        of_chains = self.free_energy(self.chains.flatten(0, 1), ends).view(self.k, count).mean(dim=1)
        return self.free_energy(lot.records, lot.offsets) - of_chains[components(lot.offsets, of_chains.device)]

    @torch.no_grad()
    def closed_forms(self, lot: Lot, noise: Tensor) -> tuple[dict[nn.Parameter, GradientFactors], Callable[[], Tensor]]:
        """Return the gradients of `loss`: for the weights ``M - h v^T`` with ``h = sigmoid(W v + c)``, M of the chains."""
        v, offsets = lot.records, lot.offsets
        h = torch.sigmoid_(segmented_product(v, self.weight, self.hidden_bias, offsets))
        chain_h = self._hidden_means(self.chains, self.weight, self.hidden_bias)
        shape, h = tuple(self.weight.shape[1:]), h.neg_()
        sizes = [end - start for start, end in itertools.pairwise(offsets)]
        # M is a mean over chains, so each chain adds its share.
        parts = zip(h.split(sizes), v.split(sizes), chain_h * (-1.0 / self.chains.shape[1]), self.chains, strict=True)
        free_h, free_v = chain_h.mean(dim=1), self.chains.mean(dim=1)
        factors: dict[nn.Parameter, GradientFactors] = {
            self.weight: OneComponentMixed(
                [CentredRankOne(RankOne(a, x, shape), *chains) for a, x, *chains in parts], sizes
            ),
            self.hidden_bias: OneComponent(Dense(h + select_component(free_h, offsets)), offsets),
            self.visible_bias: OneComponent(Dense(select_component(free_v, offsets) - v), offsets),
        }
        return factors, lambda: self.loss(lot, noise).detach()

    @torch.no_grad()
    def sweep(self, generator: torch.Generator) -> None:
        """Run one Gibbs sweep of all chains, from public random numbers: a function of released parameters alone."""
        means = self._hidden_means(self.chains, self.weight, self.hidden_bias)
        self.chains.copy_(self._visible(means, self.weight, self.visible_bias, generator)[1])

    def _hidden_means(self, v: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return probabilities (k, m, hidden) of hidden units, given states (k, m, width) of visible units."""
        return torch.baddbmm(bias[:, None], v, weight.mT).sigmoid_()

    def _visible(self, hidden_means, weight, bias, generator) -> tuple[Tensor, Tensor]:
        """Return means and drawn states (k, m, width) of visible units, given hidden ones that are drawn first."""
        logits = torch.baddbmm(bias[:, None], _drawn(hidden_means, generator), weight)
        layout = self.schema.layout
        mean = means(logits, layout)
        if not layout.groups:
            return mean, _drawn(mean, generator)
        state = torch.zeros_like(mean)
        state[..., : layout.units] = _drawn(mean[..., : layout.units], generator)
        begins = torch.tensor([span.start for span in layout.spans], device=mean.device)
        state.scatter_(-1, draw_groups(mean, layout, generator) + begins, 1.0)
        return mean, state

    @torch.no_grad()
    def generate(self, offsets: Sequence[int], generator: torch.Generator, sweeps: int = 20) -> Tensor:
        """Generate means of visible units (n, width), for records sorted by component, by chains from the saved ones."""
        generated = []
        for c, start, end in segments(offsets):
            begin = torch.randint(self.chains.shape[1], (end - start,), generator=generator)
            v = self.chains[c : c + 1, begin]
            weight, hidden, visible = (p[c : c + 1] for p in (self.weight, self.hidden_bias, self.visible_bias))
            for _ in range(sweeps):
                mean, v = self._visible(self._hidden_means(v, weight, hidden), weight, visible, generator)
            generated.append(mean[0])
        return torch.cat(generated) if generated else self.chains.new_zeros(0, self.schema.layout.width)

    @property
    def term(self) -> PerRecord:
        return PerRecord(self.loss, forms=self.closed_forms)


def _drawn(mean: Tensor, generator: torch.Generator) -> Tensor:
    """Draw Bernoulli numbers; the generator is the processor's, wherever the numbers are needed."""
    # Each draw takes half a word of 64 bits, in half the time of `torch.rand`.
    count = mean.numel()
    words = torch.empty((count + 1) // 2, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    numbers = words.view(torch.int32)[:count].view(mean.shape).to(mean.dtype)
    # 1/2 + 2^-32 x, in one pass.
    numbers = torch.add(_HALF.to(mean.dtype), numbers, alpha=2.0**-32, out=numbers).to(mean.device)
    return torch.lt(numbers, mean, out=numbers)

"""The two aggregations that PriVAE compares its own with, at their true sensitivities (`model=own`).

Let g_i be the gradient of the loss of record i, c that of the divergence of the whole lot, and L the expected lot.

* Batch: the mean of the losses and the divergence are one loss, and its gradient ``mean_i g_i + c`` is clipped at C.
* Micro: ``1/L sum_i clip_C(g_i + c)``, equation (9), and this mean is clipped once more at C.

Batch moves by 2 C, from -C u to C u, as a group does. Micro without its last clip moves its sum by (2 B - 1) C, in lots of
at most B records: one record more turns c round, so that each of the B - 1 others moves by 2 C, and adds a gradient of its
own. The paper says B C. Poisson lots have no largest B, and the B of a lot is private. A mean that is clipped at C is a
vector within C with the record as without it, so that it moves by 2 C whatever the lot is. For lots of at most L the last
clip changes nothing, and (2 B - 1) C / L is all but 2 C: hardly any noise is wasted. No delta is lost, as it is where lots
are cut. So micro aggregation pays what batch aggregation pays, and both are released as one group
(docs/guarantees/records.md, "Groups and several terms").
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.factors import Dense
from lightning_dpgen.gradients.layers import checked_layers
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients, weighted_sums
from lightning_dpgen.models.divergences import GroupCodes, make_kernel, mmd_gradient
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.plugins.vae import VAE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.sampling.lots import Lot

DRAWS = 64
AGGREGATIONS = ("batch", "micro")


class WholeLotNetwork(StackedVAE):
    """The network of `WholeLotVAE`, by a name of its own, as a release of `model=own` has it."""

    kind = "experiments.privae.aggregations:WholeLotNetwork"


class WholeLotVAE(VAE):
    """An autoencoder with a sparse prior, whose gradient of a lot is one vector that is clipped at C.

    Args:
        aggregation: ``batch`` or ``micro``.
        weight: beside the loss of a record, of the discrepancy of the lot.
        prior_scale: of the prior's part near 0.

    Raises:
        ValueError: for another aggregation.
    """

    def __init__(
        self, schema: Schema, account: Account, clipping: ClippingRule, *, aggregation: str, weight: float,
        prior_scale: float, **given: Any,
    ) -> None:  # fmt: skip
        if aggregation not in AGGREGATIONS:
            raise ValueError(f"aggregation={aggregation!r}: expected batch or micro")
        super().__init__(schema, account, clipping, prior={"kind": "sparse", "scale": prior_scale}, **given)
        self.network.__class__ = WholeLotNetwork
        self.aggregation, self.weight, self.rule = aggregation, weight, clipping

    def gradients(self, lot: Lot) -> tuple:
        network, stream = self.network, self.account.stream
        noise = stream.normal((len(lot), network.latent), dtype=self.dtype, device=self.device)
        own = term_gradients(network, network.term, lot, stream, noise=noise)
        common = self.divergence_gradient(lot, noise)
        if self.aggregation == "batch":
            weights = torch.full((len(lot),), 1.0 / max(len(lot), 1))
            of_common = 1.0
        else:
            weights = clip_factors(own, common, self.rule) / self.expected_batch_size
            of_common = float(weights.sum())
        whole = {p: of_common * g for p, g in common.items()}
        weighted_sums([(own, weights.to(noise.dtype))], whole, add=True)
        # Rows are groups, of which there is one: the mechanism clips it, and adds noise for a vector that turns round.
        rows = {p: Dense(g[None]) for p, g in whole.items()}
        return (PerSampleGradients(rows, checked_layers(network), 1, lot.draw, groups=1),)

    def divergence_gradient(self, lot: Lot, noise: Tensor) -> dict[torch.nn.Parameter, Tensor]:
        """Return the gradient for each parameter of the weighted discrepancy of a lot's codes from the prior."""
        network: StackedVAE = self.network
        draws = network.prior.draw(torch.randn(DRAWS, network.prior.noise, generator=self._public))
        parameters = list(network.parameters())
        if len(lot) < 2:
            return {p: torch.zeros_like(p) for p in parameters}
        with torch.enable_grad():
            mean, log_variance = network.encode(lot.records, lot.offsets)
            z = mean + torch.exp(0.5 * log_variance) * noise
            codes = GroupCodes(z[None], mean[None], log_variance[None], torch.ones(1, len(lot), dtype=torch.bool))
            slopes = self.weight * mmd_gradient(codes, draws, make_kernel("cauchy", network.latent))[0]
            found = torch.autograd.grad(z, parameters, slopes, materialize_grads=True)
        return dict(zip(parameters, found, strict=True))


def clip_factors(own: PerSampleGradients, common: dict[torch.nn.Parameter, Tensor], rule: ClippingRule) -> Tensor:
    """Return the factors (B,) that clip the sum of each record's own gradient and a common one, by a fixed bound."""
    length = sum(g.double().square().sum() for g in common.values())
    squares = own.norms().double().square() + 2.0 * own.products(common) + length
    return rule.factors(squares.clamp(min=0.0).sqrt(), rule.known(0))

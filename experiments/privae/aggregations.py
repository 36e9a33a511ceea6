"""The two aggregations that PriVAE compares its own with, at their true sensitivities.

Batch: the loss of the whole lot is one group, whose gradient one record turns round, 2 C. Micro: each record's gradient is
that of its own loss and of the divergence of the whole lot, clipped; a record moves the gradients of all others, so that
(2 B + 1) C is the sensitivity of a lot of B, which has no bound where lots are Poisson. Micro is trained without noise, to
be seen beside the others, and its result may not be released.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.terms import PerGroup
from lightning_dpgen.models.divergences import GroupCodes, make_kernel, mmd
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.plugins.vae import VAE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.sampling.lots import Lot

DRAWS = 64


class BatchNetwork(StackedVAE):
    """The network of `BatchVAE`, by a name of its own, as a release of `model=own` has it."""

    kind = "experiments.privae.aggregations:BatchNetwork"


class BatchVAE(VAE):
    """An autoencoder with a sparse prior whose loss and discrepancy of a lot are one group (`model=own`)."""

    def __init__(
        self, schema: Schema, account: Account, clipping: ClippingRule, *, weight: float, prior_scale: float, **given: Any
    ) -> None:
        super().__init__(schema, account, clipping, prior={"kind": "sparse", "scale": prior_scale}, **given)
        self.network.__class__ = BatchNetwork
        self.weight = weight

    def gradients(self, lot: Lot) -> tuple:
        network: StackedVAE = self.network
        prior, latent = network.prior, network.latent
        kernel = make_kernel("cauchy", latent)
        draws = prior.draw(torch.randn(DRAWS, prior.noise, generator=self._public))

        def loss(lot: Lot, noise: Tensor, groups: Groups) -> Tensor:
            mean, log_variance = network.encode(lot.records, lot.offsets)
            z = mean + torch.exp(0.5 * log_variance) * noise
            own = network.negative_elbo(lot, noise)[:, None]
            gathered = groups.gather(torch.cat([own, z, mean, log_variance], dim=1))
            codes = GroupCodes(*gathered[:, :, 1:].chunk(3, dim=2), groups.mask)
            return gathered[:, :, 0].sum(dim=1) / codes.sizes + self.weight * mmd(codes, draws, kernel)

        term = PerGroup(loss, 1, noise=latent, places=PerGroup.slots(self.expected_batch_size, 1))
        return (term_gradients(network, term, lot, self.account.stream),)


def train_micro(
    network: StackedVAE, records: Tensor, *, batch: int, steps: int, bound: float, rate: float, weight: float, seed: int
) -> None:
    """Train one component by micro aggregation with SGD, without noise and so without privacy.

    Args:
        records: (n, width); batches of so many are drawn with replacement.
        bound: C.
        rate: the learning rate.
        weight: beside the loss of a record, of the discrepancy of the batch.
    """
    generator = torch.Generator().manual_seed(seed)
    prior, latent, kernel = network.prior, network.latent, make_kernel("cauchy", network.latent)
    parameters: list[nn.Parameter] = list(network.parameters())
    for _ in range(steps):
        x = records[torch.randint(len(records), (batch,), generator=generator)]
        noise = torch.randn(batch, latent, generator=generator)
        draws = prior.draw(torch.randn(DRAWS, prior.noise, generator=generator))
        mean, log_variance = network.encode(x, (0, batch))
        codes = GroupCodes(
            (mean + torch.exp(0.5 * log_variance) * noise)[None], mean[None], log_variance[None],
            torch.ones(1, batch, dtype=torch.bool),
        )  # fmt: skip
        common = torch.autograd.grad(weight * mmd(codes, draws, kernel).sum(), parameters, materialize_grads=True)
        sums = [torch.zeros_like(p) for p in parameters]
        for i in range(batch):
            loss = network.negative_elbo(Lot(x[i : i + 1], (0, 1)), noise[i : i + 1]).sum()
            own = torch.autograd.grad(loss, parameters)
            rows = [a + b for a, b in zip(own, common, strict=True)]
            norm = torch.sqrt(torch.stack([row.square().sum() for row in rows]).sum())
            for total, row in zip(sums, rows, strict=True):
                total.add_(row, alpha=float((bound / norm).clamp(max=1.0)))
        with torch.no_grad():
            for p, total in zip(parameters, sums, strict=True):
                p.sub_(total, alpha=rate / batch)

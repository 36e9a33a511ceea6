"""The LightningModule of a mixture of restricted Boltzmann machines."""

from __future__ import annotations

import torch

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.gradients.micro_batches import MicroBatch
from lightning_dpgen.models.rbm import StackedRBM
from lightning_dpgen.plugins.mixture import PrivateMixture
from lightning_dpgen.privacy.account import Account


class RBM(PrivateMixture):
    """k machines trained together by private persistent contrastive divergence; see `PrivateMixture` and `StackedRBM`.

    Args:
        schema, account, clipping, n, k, lr, optimizer, momentum, micro_batch, bias, seed: as for `VAE`;
            ``learned`` and ``means`` are the same here, since visible biases are always trained.
        chains: persistent chains of each component, swept once a step.
    """

    def __init__(
        self,
        schema: Schema,
        account: Account,
        clipping: ClippingRule,
        *,
        n: int | None = None,
        k: int = 10,
        hidden: int = 100,
        chains: int = 20,
        lr: float = 1e-2,
        optimizer: str = "adam",
        momentum: float = 0.0,
        micro_batch: MicroBatch = None,
        bias: str = "means",
        seed: int = 0,
    ) -> None:
        public = torch.Generator().manual_seed(seed)
        machine = StackedRBM(schema, k, hidden=hidden, chains=chains, generator=public)
        super().__init__(
            machine,
            account,
            clipping,
            n=n,
            lr=lr,
            bias=bias,
            optimizer=optimizer,
            momentum=momentum,
            micro_batch=micro_batch,
        )
        self._public = public

    def after_step(self, step: int) -> None:
        super().after_step(step)
        self.network.sweep(self._public)

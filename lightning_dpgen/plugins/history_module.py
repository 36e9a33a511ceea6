"""The LightningModule of an autoregressive network of histories."""

from __future__ import annotations

import torch

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.gradients.micro_batches import MicroBatch
from lightning_dpgen.models.history_network import HistoryNetwork
from lightning_dpgen.plugins.mixture import PrivateMixture
from lightning_dpgen.privacy.account import Account


class HistoryModule(PrivateMixture):
    """A network of histories, trained by the gradients of persons; see `PrivateMixture` and `HistoryNetwork`.

    A record is a person with all rows, so a bound on a record's gradient is one on a person's.

    Args:
        schema, account, clipping, n, k, lr, optimizer, momentum, averaging, micro_batch, bias, seed: as for
            `VAE`; k is 1.
        hidden: see `HistoryNetwork`.
    """

    def __init__(
        self,
        schema: Schema,
        account: Account,
        clipping: ClippingRule,
        *,
        n: int | None = None,
        k: int = 1,
        hidden: int = 16,
        lr: float = 2e-2,
        optimizer: str = "adam",
        momentum: float = 0.0,
        averaging: float = 0.0,
        micro_batch: MicroBatch = None,
        bias: str = "means",
        seed: int = 0,
    ) -> None:
        public = torch.Generator().manual_seed(seed)
        super().__init__(
            HistoryNetwork(schema, k, hidden=hidden, fixed_bias=bias == "means", generator=public),
            account,
            clipping,
            n=n,
            lr=lr,
            bias=bias,
            optimizer=optimizer,
            momentum=momentum,
            averaging=averaging,
            micro_batch=micro_batch,
        )

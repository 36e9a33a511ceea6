"""The LightningModule of a mixture of variational autoencoders."""

from __future__ import annotations

import copy

import pytorch_lightning as pl
import torch

from lightning_dpgen.data.schema import ImageSchema
from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.privacy.account import Account


class VAE(pl.LightningModule):
    """k autoencoders trained together by DP-SGD, one Poisson lot a step for all of them.

    Fits with a `PrivateSplitDataModule` and a `MomentsAccountant` on the same account. What it logs under
    ``private/`` are exact functions of private lots and stay on the machine.

    Args:
        schema: the public description of a record.
        account: plan, ledger and private stream.
        clipping: chooses the bound of each lot.
        n: the declared number of records; rate times n is the divisor of every sum.
        k: number of components, as in the split.
        hidden: units of a hidden layer.
        latent: dimensions of a code.
        lr: learning rate of Adam.
        bias: ``means`` keeps the output bias at the split's noisy cluster means, ``learned`` starts there and trains it,
            ``zero`` starts at zero and trains it (the papers).
        seed: initial weights; public.
        log_every: steps between two private log lines.
    """

    def __init__(
        self,
        schema: ImageSchema,
        account: Account,
        clipping: ClippingRule,
        *,
        n: int,
        k: int = 10,
        hidden: int = 200,
        latent: int = 2,
        lr: float = 1e-3,
        bias: str = "means",
        seed: int = 0,
        log_every: int = 50,
    ) -> None:
        super().__init__()
        if bias not in ("means", "learned", "zero"):
            raise ValueError(f"model.bias={bias}: expected means, learned or zero")
        self.automatic_optimization = False
        self.account, self.clipping, self.n, self.lr = account, clipping, n, lr
        self.k, self.bias, self.log_every = k, bias, log_every
        self.network = StackedVAE(
            schema,
            k,
            hidden=hidden,
            latent=latent,
            fixed_bias=bias == "means",
            generator=torch.Generator().manual_seed(seed),
        )
        self.register_buffer("weights", torch.zeros(k))
        self._restored = False

    @property
    def steps_taken(self) -> int:
        """Steps that have left their mark on the network."""
        return self.account.done.get("training", 0)

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        self._restored = True

    def on_train_start(self) -> None:
        split = self.trainer.datamodule.split
        self.weights.copy_(split.weights)
        # Not in a fit that goes on: there the bias has been trained already.
        if self.bias != "zero" and not self._restored:
            self.network.start_at(split.means)

    def configure_optimizers(self) -> PrivateOptimizer:
        rate = self.account.plan.stage("training").access.rate
        return PrivateOptimizer(
            torch.optim.Adam(self.network.parameters(), lr=self.lr, fused=True),
            account=self.account,
            clipping=self.clipping,
            expected_lot=rate * self.n,
        )

    def training_step(self, block, _) -> None:
        wrapped = self.optimizers()
        # Lightning's wrapper loses what is written to it; the real optimizer is below.
        optimizer = wrapped.optimizer
        for i, lot in enumerate(block, start=1):
            lot = lot.to(self.device, self.dtype)
            gradients = term_gradients(self.network, self.network.term, lot, self.account.stream)
            optimizer.take(gradients)
            # The last step of a block goes through the wrapper, so that Lightning counts blocks.
            (wrapped if i == len(block) else optimizer).step()
            if self.steps_taken % self.log_every == 0:
                self._log_private(optimizer, gradients.losses, len(lot))

    def _log_private(self, optimizer: PrivateOptimizer, losses: torch.Tensor, size: int) -> None:
        if self.logger is None:
            return
        values = {"private/lot_size": float(size), "bound": optimizer.last_bound}
        if size:
            values["private/negative_elbo"] = float(losses.mean())
        self.logger.log_metrics(values, step=self.steps_taken)

    def mixture(self) -> Mixture:
        """The mixture as it is now, a copy on the CPU, ready to sample: only public parts."""
        return Mixture(copy.deepcopy(self.network).cpu().eval(), self.weights.cpu())

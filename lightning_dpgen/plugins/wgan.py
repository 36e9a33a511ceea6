"""The LightningModule of a mixture of Wasserstein generative adversarial networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.gradients.micro_batches import MicroBatch
from lightning_dpgen.gradients.terms import DataFree
from lightning_dpgen.models.critics import StackedCritic
from lightning_dpgen.models.generators import StackedGenerator
from lightning_dpgen.plugins.mixture import PrivateMixture
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.sampling.lots import Lot

# Means of gradients and squares that Adam keeps, shorter than its own, since the two networks chase each other.
_BETAS = (0.5, 0.9)


class WGAN(PrivateMixture):
    """k generators and critics (dp-GAN): critics take private steps, and after every few of these generators a public one.

    Only the critics see records; the generators are trained against released critics, which costs nothing.

    Args:
        schema, account, clipping, n, k, optimizer, momentum, micro_batch, bias, seed: as for `VAE`; ``learned``
            and ``means`` are the same here, since output biases are always trained.
        network, hidden, layers, latent, conditional, sampling: of the generators, see `StackedGenerator`.
        critic: the critics' network, ``dense`` or ``conv``; None for that of the generators, ``dense`` beside ``lstm``.
        loss, penalty, generated: of the critics, see `StackedCritic`; dense ones have the generators' hidden layers.
        lr: learning rate of the critics.
        generator_lr: learning rate of the generators' Adam; None for that of the critics.
        weight_bound: with ``wgan_clip``, the bound of the critics' parameters.
        critic_steps: private steps for each step of the generators.
        made: the number of records of each component that are generated in a public step.
        averaging: the part of the generators' average that stays in each step, from 0, below 1; the average is released. 0
            releases the generators themselves.

    Raises:
        ValueError: for an averaging or a bound out of range; as `StackedGenerator` and `StackedCritic`; for conditional
            generators with ``bias="zero"``, since shares of labels come with the split's means.
    """

    def __init__(
        self,
        schema: Schema,
        account: Account,
        clipping: ClippingRule,
        *,
        n: int | None = None,
        k: int = 10,
        network: str = "dense",
        hidden: int = 128,
        layers: int = 2,
        latent: int = 16,
        conditional: bool = False,
        sampling: str = "softmax",
        critic: str | None = None,
        loss: str = "wgan_gp",
        penalty: float = 10.0,
        generated: str = "record",
        weight_bound: float = 0.01,
        lr: float = 2e-3,
        generator_lr: float | None = None,
        critic_steps: int = 2,
        made: int = 64,
        averaging: float = 0.0,
        optimizer: str = "adam",
        momentum: float = 0.0,
        micro_batch: MicroBatch = None,
        bias: str = "means",
        seed: int = 0,
    ) -> None:
        if not 0.0 < weight_bound <= 1.0:
            raise ValueError(f"weight_bound={weight_bound!r}: expected a number above 0, up to 1")
        if conditional and bias == "zero":
            raise ValueError(
                "conditional=True with bias='zero': labels are drawn by their noisy shares, which come with the means of "
                "the split; take bias='means'"
            )
        public = torch.Generator().manual_seed(seed)
        generator_network = StackedGenerator(
            schema,
            k,
            network=network,
            hidden=hidden,
            layers=layers,
            latent=latent,
            conditional=conditional,
            sampling=sampling,
            generator=public,
        )
        if critic is None:
            critic = "conv" if network == "conv" else "dense"
        critic_network = StackedCritic(
            generator_network,
            network=critic,
            hidden=hidden,
            layers=layers,
            loss=loss,
            penalty=penalty,
            generated=generated,
            generator=public,
        )
        super().__init__(
            generator_network,
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
        self.critic, self.critic_steps, self.made, self._public = critic_network, critic_steps, made, public
        self.generator_lr = lr if generator_lr is None else generator_lr
        self.weight_bound = weight_bound

    @property
    def trained_network(self) -> StackedCritic:
        return self.critic

    def configure_optimizers(self) -> Any:
        critic = self.private_optimizer(self.inner_optimizer(self.trained_network.parameters(), betas=_BETAS))
        return critic, torch.optim.Adam(self.network.parameters(), lr=self.generator_lr, betas=_BETAS)

    def on_train_start(self) -> None:
        super().on_train_start()
        if not self._restored:
            self._clamp()

    @property
    def term_names(self) -> tuple[str, ...]:
        return ("critic",)

    @property
    def optimizer_names(self) -> tuple[str, ...]:
        return "critic", "generator"

    def loss_parts(self, lot: Lot) -> Mapping[str, Tensor]:
        return self.critic.loss_parts(lot, self._noise_of_log(lot, self.critic.noise))

    def data_free(self) -> tuple[DataFree, ...]:
        if self.critic.beside:
            return ()
        return self.critic.public_terms(*self._codes(), self.weights)

    def _codes(self) -> tuple[Tensor, tuple[int, ...]]:
        """Draw public codes, as many for each component, and the places where the components begin."""
        dtype: Any = self.dtype
        codes = torch.randn(self.k * self.made, self.network.code, generator=self._public).to(self.device, dtype)
        return codes, tuple(self.made * c for c in range(self.k + 1))

    def after_step(self, step: int) -> None:
        self._clamp()
        if step % self.critic_steps:
            return
        wrapped: Any = self.optimizers()
        optimizer = wrapped[1].optimizer
        loss = self.critic.generator_loss(*self._codes())
        self._public_losses = {"generator": loss.detach() / self.k}
        parameters = list(self.network.parameters())
        # Written to these alone: the gradients of the critic belong to the private optimizer.
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.grad = gradient
        optimizer.step()
        self.keep_average()

    def _clamp(self) -> None:
        if self.critic.kind == "wgan_clip":
            self.critic.clamp_weights(self.weight_bound)

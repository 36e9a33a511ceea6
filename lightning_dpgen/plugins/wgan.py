"""The LightningModule of a mixture of Wasserstein generative adversarial networks."""

from __future__ import annotations

from typing import Any

import torch

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.models.wgan import StackedCritic, StackedGenerator
from lightning_dpgen.plugins.mixture import PrivateMixture
from lightning_dpgen.privacy.account import Account

# Means of gradients and squares that Adam keeps, shorter than its own, since the two networks chase each other.
_BETAS = (0.5, 0.9)
# Generated records of each component in a step of the generators.
_MADE = 64


class WGAN(PrivateMixture):
    """k generators and critics (dp-GAN): critics take private steps, and after every few of these generators a public one.

    Only the critics see records; the generators are trained against released critics, which costs nothing.

    Args:
        schema, account, clipping, n, k, network, latent, optimizer, momentum, bias, seed, log_every: as for `VAE`;
            ``learned`` and ``means`` are the same here, since output biases are always trained.
        hidden: units of the hidden layers of generators and critics.
        lr: learning rate of the critics.
        generator_lr: learning rate of the generators' Adam; None for that of the critics.
        penalty: weight of the gradient penalty.
        critic_steps: private steps for each step of the generators.
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
        latent: int = 16,
        lr: float = 1e-3,
        generator_lr: float | None = None,
        penalty: float = 10.0,
        critic_steps: int = 3,
        optimizer: str = "adam",
        momentum: float = 0.0,
        bias: str = "means",
        seed: int = 0,
        log_every: int = 50,
    ) -> None:
        public = torch.Generator().manual_seed(seed)
        made_by = StackedGenerator(schema, k, network=network, hidden=hidden, latent=latent, generator=public)
        critic = StackedCritic(made_by, hidden=hidden, penalty=penalty, generator=public)
        super().__init__(
            made_by, account, clipping, n=n, lr=lr, bias=bias, log_every=log_every, optimizer=optimizer, momentum=momentum
        )
        self.critic, self.critic_steps, self._public = critic, critic_steps, public
        self.generator_lr = lr if generator_lr is None else generator_lr

    @property
    def trained(self) -> StackedCritic:
        return self.critic

    def configure_optimizers(self) -> Any:
        critic = self.inner_optimizer(self.trained.parameters(), betas=_BETAS)
        return self.private_optimizer(critic), torch.optim.Adam(
            self.network.parameters(), lr=self.generator_lr, betas=_BETAS
        )

    def after_step(self, step: int) -> None:
        if step % self.critic_steps:
            return
        wrapped: Any = self.optimizers()
        optimizer = wrapped[1].optimizer
        z = torch.randn(self.k * _MADE, self.network.latent, generator=self._public).to(self.device)
        offsets = tuple(_MADE * c for c in range(self.k + 1))
        loss = -self.trained(self.network(z, offsets), offsets).sum() / _MADE
        parameters = list(self.network.parameters())
        # Written to these alone: the gradients of the critic belong to the private optimizer.
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.grad = gradient
        optimizer.step()

"""The LightningModule of a mixture of variational autoencoders."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.gradients.terms import PerGroup
from lightning_dpgen.models.divergences import CodeEmbedding
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.plugins.mixture import PrivateMixture
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.sampling.lots import Lot


@dataclasses.dataclass(frozen=True)
class Divergence:
    """A divergence of the codes of many records from the prior, beside the loss of each record (PriVAE).

    Args:
        kind: ``group`` for each of `groups` random groups of a lot, clipped by a rule of its own; or ``embedding`` for the
            lot's noisy mean embedding, where each record's part is clipped with the rest of its gradient.
        groups: the number of groups of a lot.
        features: the length of an embedding.
    """

    kind: str
    weight: float = 10.0
    groups: int = 16
    features: int = 64

    def __post_init__(self) -> None:
        if self.kind not in ("group", "embedding"):
            raise ValueError(f"kind={self.kind!r}: expected group or embedding")


class VAE(PrivateMixture):
    """k autoencoders trained together by DP-SGD, one Poisson lot a step for all of them; see `PrivateMixture`.

    Args:
        schema: the public description of a record.
        account: the plan, ledger and private stream.
        clipping: the rule that chooses the bound of each lot; two rules with a divergence of groups.
        n: the declared number of records; None takes it from the plan. Rate times n is the divisor of every sum.
        k: number of components, as in the split.
        network: ``dense`` or ``conv``.
        hidden, layers, trunk: the sizes of a dense network, see `StackedVAE`.
        latent: dimensions of a code.
        likelihood, scale, floor: of units, see `UnitLikelihood`.
        lr: learning rate.
        optimizer, momentum: of private steps, see `make_optimizer`.
        bias: ``means`` keeps the output bias at the split's noisy cluster means, ``learned`` starts there and trains it,
            ``zero`` starts at zero and trains it (the papers).
        divergence: a further, batch-wise term; None for none.
        seed: the public seed of the initial weights.
        log_every: steps between two private log lines.
    """

    def __init__(
        self,
        schema: Schema,
        account: Account,
        clipping: ClippingRule | Sequence[ClippingRule],
        *,
        n: int | None = None,
        k: int = 10,
        network: str = "dense",
        hidden: int = 200,
        layers: int = 1,
        trunk: bool = False,
        latent: int = 2,
        likelihood: str = "bernoulli",
        scale: float | None = None,
        floor: float = 0.01,
        lr: float = 1e-3,
        optimizer: str = "adam",
        momentum: float = 0.0,
        bias: str = "means",
        divergence: Divergence | None = None,
        seed: int = 0,
        log_every: int = 50,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        stacked = StackedVAE(
            schema,
            k,
            network=network,
            hidden=hidden,
            layers=layers,
            trunk=trunk,
            latent=latent,
            likelihood=likelihood,
            scale=scale,
            floor=floor,
            fixed_bias=bias == "means",
            generator=generator,
        )
        embedded = divergence if divergence is not None and divergence.kind == "embedding" else None
        super().__init__(
            stacked,
            account,
            clipping,
            n=n,
            lr=lr,
            bias=bias,
            log_every=log_every,
            optimizer=optimizer,
            momentum=momentum,
            embeddings=[] if embedded is None else ["embedding"],
        )
        self.divergence = divergence
        self._embedding = None if embedded is None else CodeEmbedding(latent, embedded.features, generator)

    def setup(self, stage: str) -> None:
        """Refuse groups that the devices of a fit cannot share, before anything is spent.

        Raises:
            MisconfigurationException: naming the numbers that would do.
        """
        ranks, divergence = self.trainer.world_size, self.divergence
        if stage == "fit" and divergence is not None and divergence.kind == "group" and divergence.groups % ranks:
            raise MisconfigurationException(
                f"groups={divergence.groups}: {ranks} devices share them; expected a multiple of {ranks}"
            )

    @property
    def takes_multi_hot(self) -> bool:
        bernoulli = self.network.likelihood.kind == "bernoulli"
        return self.network.network == "dense" and bernoulli and self.divergence is None

    def gradients(self, lot: Lot) -> tuple:
        if self.divergence is None:
            return super().gradients(lot)
        weight, stream = self.divergence.weight, self.account.stream
        if self._embedding is None:
            places = PerGroup.slots(self.expected_batch_size, self.divergence.groups)
            terms = self.network.terms(lot, self.divergence.groups, weight, places)
            return tuple(term_gradients(self.network, term, lot, stream) for term in terms)
        embedding = self._embedding.to(self.device)
        dtype: Any = self.dtype
        noise = stream.normal((len(lot), self.network.latent), dtype=dtype, device=self.device)

        def then(mean: torch.Tensor) -> RecordGradients:
            term = self.network.embedded_term(embedding, weight, mean)
            return term_gradients(self.network, term, lot, stream, noise=noise)

        rows = self.network.embedded(lot, noise, embedding)
        return (EmbeddingGradients(rows, then, list(self.network.parameters()), lot.draw),)

"""The LightningModule of a mixture of variational autoencoders."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.isolation.padded_products import rows_apart
from lightning_dpgen.gradients.micro_batches import MicroBatch, MicroBatches
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.gradients.terms import PerGroup
from lightning_dpgen.models.divergences import DIVERGENCES, GRADIENTS_OF_GROUPS, OF_GROUPS, CodeEmbedding, make_kernel
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.models.vae import OfGroups, StackedVAE
from lightning_dpgen.plugins.mixture import PrivateMixture
from lightning_dpgen.plugins.namespaces import MisconfigurationException
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.sampling.lots import Lot

RELEASES = ("group", "embedding")


@dataclasses.dataclass(frozen=True)
class Divergence:
    """A divergence of the codes of many records from the prior, beside the loss of each record (PriVAE).

    Args:
        kind: ``mmd``, ``kl`` (of the prior from the codes) or ``tc`` (total correlation).
        release: the way in which it becomes public: ``group`` for each of `groups` random groups of a lot, clipped by a
            rule of its own; or ``embedding`` (mmd alone) for the lot's noisy mean embedding, where each record's part is
            clipped with the rest of its gradient. None for ``embedding`` where there is one.
        kernel, width: of mmd, one of `divergences.KERNELS`, and what differences of codes are divided by in it.
        weight: beside the loss of a record.
        groups: the number of groups of a lot.
        draws: of the prior, public, with which each group is compared.
        features: the length of an embedding; None for 64, or one pair for each dimension and scale of the Cauchy kernel.
        averaging: the part of the average of earlier embeddings that stays in a step, from 0, below 1. They are public, so
            an average of them costs nothing, and has less noise.

    Raises:
        ValueError: for another kind, release or kernel, numbers out of range, or an embedding of what has none.

    Example:
        >>> Divergence("mmd", kernel="cauchy").released_as, Divergence("kl").released_as
        ('embedding', 'group')
    """

    kind: str = "mmd"
    release: str | None = None
    kernel: str = "gaussian"
    width: float = 1.0
    weight: float = 10.0
    groups: int = 16
    draws: int = 64
    features: int | None = None
    averaging: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in DIVERGENCES:
            raise ValueError(f"kind={self.kind!r}: expected one of {', '.join(DIVERGENCES)}")
        if self.release not in (None, *RELEASES):
            raise ValueError(f"release={self.release!r}: expected one of {', '.join(RELEASES)}")
        if self.release == "embedding" and self.kind != "mmd":
            raise ValueError(f"release='embedding' with kind={self.kind!r}: expected kind='mmd', which alone has one")
        make_kernel(self.kernel, 1, self.width)
        check_sizes(groups=self.groups)
        if type(self.draws) is not int or not 2 <= self.draws <= 2**16:
            raise ValueError(f"draws={self.draws!r}: expected a whole number from 2 to 65,536, for pairs of them")
        if type(self.weight) not in (int, float) or not 1e-6 <= self.weight <= 1e6:
            raise ValueError(f"weight={self.weight!r}: expected a number from 1e-6 to 1e6")
        if self.features is not None and (type(self.features) is not int or self.features < 2 or self.features % 2):
            raise ValueError(f"features={self.features!r}: expected None or an even number, pairs of a cosine and a sine")
        if type(self.averaging) not in (int, float) or not 0.0 <= self.averaging < 1.0:
            raise ValueError(f"averaging={self.averaging!r}: expected a number from 0, below 1")
        if self.released_as == "group" and (self.features is not None or self.averaging):
            raise ValueError(
                f"features={self.features!r}, averaging={self.averaging!r}: apply only to release='embedding', and this "
                "is 'group'"
            )

    @property
    def released_as(self) -> str:
        """The way in which it becomes public, also where it was left open."""
        return self.release or ("embedding" if self.kind == "mmd" else "group")


class VAE(PrivateMixture):
    """k autoencoders trained together by DP-SGD, one Poisson lot a step for all of them; see `PrivateMixture`.

    Args:
        schema: the public description of a record.
        account: the plan, ledger and private stream.
        clipping: the rule that chooses the bound of each lot; two rules with a divergence of groups.
        n: the declared number of records; None takes it from the plan. Rate times n is the divisor of every sum.
        k: number of components, as in the split.
        network: ``dense``, ``waves``, ``conv`` or ``deep_conv``.
        hidden, layers, trunk, filters, centred: of a network, see `StackedVAE`.
        latent: dimensions of a code.
        prior, beta, samples: of codes, see `StackedVAE`.
        likelihood, scale, floor: of units, see `UnitLikelihood`.
        lr: learning rate.
        optimizer, momentum: of private steps, see `make_optimizer`.
        averaging, micro_batch: see `PrivateMixture`; a divergence of groups takes lots in one piece.
        bias: ``means`` keeps the output bias at the split's noisy cluster means, ``learned`` starts there and trains it,
            ``zero`` starts at zero and trains it (the papers).
        divergence: a further, batch-wise term; None for none.
        seed: the public seed of the initial weights.
    """

    released_embedding: Tensor
    released_weight: Tensor

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
        filters: int = 32,
        centred: bool = False,
        latent: int = 2,
        prior: Mapping[str, Any] | None = None,
        beta: float = 1.0,
        samples: int = 1,
        likelihood: str = "bernoulli",
        scale: float | None = None,
        floor: float = 0.01,
        lr: float = 1e-3,
        optimizer: str = "adam",
        momentum: float = 0.0,
        averaging: float = 0.0,
        micro_batch: MicroBatch = None,
        bias: str = "means",
        divergence: Divergence | None = None,
        seed: int = 0,
    ) -> None:
        if divergence is not None and not isinstance(divergence, Divergence):
            raise ValueError(
                f"divergence={divergence!r}: expected a lightning_dpgen.plugins.Divergence, as in Divergence('mmd')"
            )
        grouped = divergence is not None and divergence.released_as == "group"
        rules = 1 if isinstance(clipping, ClippingRule) else len(clipping)
        if rules != 1 + grouped:
            raise ValueError(f"clipping: {rules} rules: expected {1 + grouped}, one for each term that is clipped")
        generator = torch.Generator().manual_seed(seed)
        stacked = StackedVAE(
            schema,
            k,
            network=network,
            hidden=hidden,
            layers=layers,
            trunk=trunk,
            filters=filters,
            centred=centred,
            latent=latent,
            prior=prior,
            beta=beta,
            samples=samples,
            likelihood=likelihood,
            scale=scale,
            floor=floor,
            fixed_bias=bias == "means",
            generator=generator,
        )
        embedding = None
        if divergence is not None:
            kernel = make_kernel(divergence.kernel, latent, divergence.width)
            if divergence.kind == "tc" and latent == 1:
                raise ValueError("divergence='tc' with latent=1: one dimension has no total correlation; take 2 or more")
            if not stacked.dense and any(True for _ in stacked.prior.parameters()):
                raise ValueError(
                    f"network={network!r} with learned centres and a divergence of groups: expected network='dense', which "
                    "knows their gradients"
                )
            if divergence.released_as == "embedding":
                features = divergence.features or (64 if kernel.blocks == 1 else 2 * kernel.blocks)
                embedding = CodeEmbedding(kernel, stacked.prior, features, generator)
        super().__init__(
            stacked,
            account,
            clipping,
            n=n,
            lr=lr,
            bias=bias,
            optimizer=optimizer,
            momentum=momentum,
            averaging=averaging,
            micro_batch=micro_batch,
            embeddings=[] if embedding is None else ["embedding"],
        )
        if divergence is not None and grouped and divergence.groups > self.expected_batch_size:
            raise ValueError(
                f"groups={divergence.groups}: expected {int(self.expected_batch_size)} or fewer, as many as a lot has "
                "records on average"
            )
        self.divergence, self._embedding, self._public = divergence, embedding, generator
        if embedding is not None:
            # The weighted sum of released embeddings, and of their weights.
            self.register_buffer("released_embedding", torch.zeros_like(embedding.of_prior))
            self.register_buffer("released_weight", torch.zeros(()))

    def setup(self, stage: str) -> None:
        """Refuse groups that the devices of a fit cannot share, before anything is spent.

        Raises:
            MisconfigurationException: naming the numbers that would do.
        """
        super().setup(stage)
        ranks, divergence = self.trainer.world_size, self.divergence
        if stage == "fit" and divergence is not None and divergence.released_as == "group" and divergence.groups % ranks:
            raise MisconfigurationException(
                f"groups={divergence.groups}: {ranks} devices share them; expected a multiple of {ranks}"
            )

    @property
    def term_names(self) -> tuple[str, ...]:
        divergence = self.divergence
        return () if divergence is None or divergence.released_as == "embedding" else ("negative_elbo", divergence.kind)

    def loss_parts(self, lot: Lot) -> Mapping[str, Tensor]:
        noise = self._noise_of_log(lot, self.network.samples * self.network.latent)
        return dict(zip(("reconstruction", "kl"), self.network.elbo_parts(lot, noise), strict=True))

    @property
    def whole_lots(self) -> str | None:
        if type(self).gradients is not VAE.gradients:
            return super().whole_lots
        grouped = self.divergence is not None and self.divergence.released_as == "group"
        return "a divergence that is released by group reaches over all parts of a lot" if grouped else None

    @property
    def without_slots(self) -> str | None:
        return super().without_slots if self.divergence is None else "a divergence encodes a lot as it is"

    @property
    def takes_multi_hot(self) -> bool:
        plain = self.network.likelihood.kind == "bernoulli" and not self.network.centred
        return self.network.network == "dense" and plain and self.divergence is None

    def gradients(self, lot: Lot) -> tuple:
        divergence = self.divergence
        if divergence is None:
            return super().gradients(lot)
        stream = self.account.stream
        if self._embedding is None:
            places = PerGroup.slots(self.expected_batch_size, divergence.groups)
            loss, gradient = self._of_groups(divergence)
            terms = self.network.terms(lot, loss, divergence.groups, places, gradient)
            return tuple(term_gradients(self.network, term, lot, stream) for term in terms)
        embedding = self._embedding.to(self.device)
        dtype: Any = self.dtype
        noise = stream.normal((len(lot), self.network.samples * self.network.latent), dtype=dtype, device=self.device)

        # Records are encoded once for both, unless that is more than memory holds.
        rows: list[Tensor] = []
        numbers: list[Tensor] = []
        with rows_apart(self.device):
            encoded = self.network.encoded(lot) if self._parts.count == 1 else None
            for part in lot.divide(self._parts.count):
                before = sum(map(len, numbers))
                numbers.append(noise[before : before + len(part)])
                rows.append(self.network.embedded(part, numbers[-1], embedding, encoded))

        def then(mean: Tensor) -> PerSampleGradients | MicroBatches:
            averaged = self._averaged(mean, divergence.averaging)
            term = self.network.embedded_term(embedding, divergence.weight, averaged, encoded)
            return self._parts.gradients(
                lot, lambda part, i: term_gradients(self.network, term, part, stream, noise=numbers[i])
            )

        return (EmbeddingGradients(torch.cat(rows), then, list(self.network.parameters()), lot.draw),)

    def _of_groups(self, divergence: Divergence) -> tuple[OfGroups, OfGroups | None]:
        """Return the divergence of groups, by fresh public draws of the prior, and its gradient where it has one."""
        prior, dtype, weight = self.network.prior, cast(Any, self.dtype), divergence.weight
        kernel, kind = make_kernel(divergence.kernel, prior.latent, divergence.width), divergence.kind
        numbers = torch.randn(divergence.draws, prior.noise, generator=self._public).to(self.device, dtype)

        def weighted(function: Callable[..., Tensor]) -> OfGroups:
            return lambda codes: weight * function(codes, prior.draw(numbers), prior, kernel)

        known = GRADIENTS_OF_GROUPS.get(kind)
        return weighted(OF_GROUPS[kind]), None if known is None else weighted(known)

    def _averaged(self, mean: Tensor, kept: float) -> Tensor:
        """Return the average of the released mean embeddings, of which the latest is this."""
        if not kept:
            return mean
        self.released_embedding.mul_(kept).add_(mean, alpha=1.0 - kept)
        self.released_weight.mul_(kept).add_(1.0 - kept)
        return self.released_embedding / self.released_weight

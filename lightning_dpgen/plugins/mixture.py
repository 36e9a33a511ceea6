"""What the LightningModules of all mixtures have in common: one Poisson lot a step for all components."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import pytorch_lightning as pl
import torch

from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.gradients.terms import DataFree
from lightning_dpgen.models.mixture import GenerativeNetwork, Mixture
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.plugins.lot_log import PRIVATE, lot_numbers
from lightning_dpgen.plugins.synthetic_batches import SyntheticBatches
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.declared import declared_records
from lightning_dpgen.sampling.lots import Lot, LotBlock

# How the parameters of a component may begin (model.bias).
STARTS = ("means", "learned", "zero")


class PrivateMixture(pl.LightningModule):
    """k networks trained together by DP-SGD.

    Fits with a `PrivateSplitDataModule` and a `MomentsAccountant` on the same account. What it logs under
    ``private/`` are exact functions of private lots, and times, and stay on the machine; what it logs under ``public/`` is
    covered by the ledger.

    Args:
        network: what is released.
        account: plan, ledger and private stream.
        clipping: chooses the bounds of each lot, one rule for each term.
        n: the declared number of records; None takes it from the plan. Rate times n is the divisor of every sum.
        lr: learning rate of Adam.
        bias: how components begin: ``zero``, or at the split's noisy cluster means.
        log_every: steps between two lines of the log.
        embeddings: noises that the terms draw besides.
    """

    def __init__(
        self,
        network: GenerativeNetwork,
        account: Account,
        clipping: ClippingRule | Sequence[ClippingRule],
        *,
        n: int | None = None,
        lr: float,
        bias: str,
        log_every: int,
        embeddings: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if bias not in STARTS:
            raise ValueError(f"model.bias={bias}: expected {', '.join(STARTS)}")
        self.automatic_optimization = False
        self.account, self.clipping, self.n, self.lr = account, clipping, declared_records(account.plan, n), lr
        self.network, self.k = network, network.k
        self.bias, self.log_every, self._embeddings = bias, log_every, tuple(embeddings)
        self.register_buffer("weights", torch.zeros(network.k))
        self.register_buffer("means", torch.zeros(network.k, network.schema.layout.width))
        self.register_buffer("noise", torch.zeros(network.k))
        self._restored = False
        # When the last line of the log was written, and after how many steps.
        self._logged: tuple[float, int] | None = None
        self._made: SyntheticBatches | None = None
        self._made_steps, self._made_weight = 0, 0.0

    def learn_from(self, made: SyntheticBatches, *, steps: int, weight: float) -> None:
        """Learn from what a released model makes, too: first from it alone, then beside private records.

        Args:
            made: of the same schema and number of components.
            steps: before the first private one, at the same learning rate.
            weight: of its loss in each private step, beside that of the records; 0 for none.

        Raises:
            ValueError: where another account has paid for what that model knows.
        """
        if made.run not in ("", self.account.ledger.run):
            raise ValueError(
                "made: of a mixture that another account has paid for, of which this one's certificate would not speak; "
                "measure it on this one, or release it first and hand over what load_release reads"
            )
        self._made, self._made_steps, self._made_weight = made, steps, weight

    @property
    def trained(self) -> torch.nn.Module:
        """What the private optimizer trains: the network itself, unless another one sees the records."""
        return self.network

    @property
    def takes_multi_hot(self) -> bool:
        """Whether lots may hold wide records as the places of their ones."""
        return False

    @property
    def steps_taken(self) -> int:
        """Steps that have left their mark on the network."""
        return self.account.done.get("training", 0)

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        self._restored = True

    def on_train_start(self) -> None:
        split = self.trainer.datamodule.split
        self.weights.copy_(split.weights)
        if self.bias != "zero":
            self.means.copy_(split.means)
            self.noise.copy_(split.noise)
        # In a fit that goes on the network has been trained already.
        if self._restored:
            return
        if self.bias != "zero":
            self.network.start_at(self.means)
        if self._made is not None:
            self._learn_alone(self._made)

    def _learn_alone(self, made: SyntheticBatches) -> None:
        parameters = list(self.trained.parameters())
        optimizer = torch.optim.Adam(parameters, lr=self.lr)
        for step in range(1, self._made_steps + 1):
            # Into these alone: of what a loss uses besides, others take care.
            gradients = torch.autograd.grad(made.loss(self.trained.term, parameters[0]), parameters, allow_unused=True)
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient
            optimizer.step()
            self.after_step(step)
        for p in parameters:
            p.grad = None

    @property
    def expected_batch_size(self) -> float:
        """The rate of lots times the declared number of records."""
        return self.account.plan.stage("training").access.sample_rate * self.n

    def private_optimizer(self, inner: torch.optim.Optimizer) -> PrivateOptimizer:
        """The optimizer of `trained`, made private."""
        return PrivateOptimizer(
            inner,
            account=self.account,
            clipping=self.clipping,
            expected_batch_size=self.expected_batch_size,
            embeddings=self._embeddings,
        )

    def configure_optimizers(self):
        return self.private_optimizer(torch.optim.Adam(self.trained.parameters(), lr=self.lr, fused=True))

    def gradients(self, lot: Lot) -> tuple[RecordGradients | EmbeddingGradients, ...]:
        """Of each term, in the order of the clipping rules."""
        return (term_gradients(self.trained, self.trained.term, lot, self.account.stream),)

    def after_step(self, step: int) -> None:
        """What follows the step of this number, from 1, and sees no record."""

    def training_step(self, block: LotBlock, _) -> None:
        wrapped = self.optimizers()
        wrapped = wrapped[0] if isinstance(wrapped, list) else wrapped
        # Lightning's wrapper loses what is written to it; the real optimizer is below.
        optimizer = wrapped.optimizer
        for i, lot in enumerate(block, start=1):
            gradients = self.gradients(lot.to(self.device, self.dtype))
            optimizer.set_gradients(*gradients, data_free=self._data_free())
            # The last step of a block goes through the wrapper, so that Lightning counts blocks.
            (wrapped if i == len(block) else optimizer).step()
            self.after_step(self.steps_taken)
            if self.steps_taken % self.log_every == 0:
                self._log(optimizer, gradients, len(lot))

    def _data_free(self) -> list[DataFree]:
        if self._made is None or not self._made_weight:
            return []
        return [self._made.data_free(self.trained.term, next(self.trained.parameters()), self._made_weight)]

    def _log(self, optimizer: PrivateOptimizer, gradients, size: int) -> None:
        if not self.loggers:
            return
        values = lot_numbers(gradients, optimizer.last_bound, size, self.account.ranks)
        now = time.monotonic()
        if self._logged is not None:
            before, steps = self._logged
            values[f"{PRIVATE}steps_per_second"] = (self.steps_taken - steps) / max(now - before, 1e-9)
        self._logged = now, self.steps_taken
        for logger in self.loggers:
            logger.log_metrics(values, step=self.steps_taken)

    def mixture(self) -> Mixture:
        """The mixture as it is now, a copy on the CPU in 32 bits, ready to sample: only public parts.

        With ``bias="means"`` a network that can (`hold_at`) generates its clusters' means on average, as far as known.
        """
        network = copy.deepcopy(self.network).cpu().float().eval()
        weights, means, noise = (part.cpu().float() for part in (self.weights, self.means, self.noise))
        if self.bias == "means" and self.steps_taken and hasattr(network, "hold_at"):
            network.hold_at(means, noise)
        return Mixture(network, weights, self.account.ledger.run)

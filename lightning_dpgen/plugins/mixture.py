"""The common base of the LightningModules of all mixtures: one Poisson lot a step for all components."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from lightning_dpgen.common.plain_text import check_legible, say_steps
from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.engines import ENGINES, term_gradients
from lightning_dpgen.gradients.micro_batches import LotParts, MicroBatch, MicroBatches, check_micro_batch, takes_slots
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.gradients.probes import probe_lot
from lightning_dpgen.gradients.terms import DataFree
from lightning_dpgen.models.initial import check_initial, copy_components, match_components
from lightning_dpgen.models.labelled import without_label
from lightning_dpgen.models.mixture import Diverged, GenerativeNetwork, Margins, Mixture
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.optim.stages import check_noises
from lightning_dpgen.plugins.component_log import log_components
from lightning_dpgen.plugins.lot_log import LotLog
from lightning_dpgen.plugins.namespaces import MisconfigurationException, pl
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.plan import TRAINING
from lightning_dpgen.privacy.planning.stage_spec import declared_records
from lightning_dpgen.release.drawing.model_files import weights_digest
from lightning_dpgen.sampling.lots import Lot, LotBatch

# The ways in which the parameters of a component may begin (`bias`).
STARTS = ("means", "learned", "zero")
# The key of a checkpoint under which the declaration of a public start stands.
_INIT = "lightning_dpgen_init"
OPTIMIZERS = ("adam", "sgd")


class PrivateMixture(pl.LightningModule):
    """k networks trained together by DP-SGD.

    It fits with a `PrivateSplitDataModule` and a `MomentsAccountant` on the same account. Its logs under ``private/`` are
    exact functions of private lots, and times, and stay on the machine; those under ``public/`` are covered by the ledger.

    Args:
        network: the network that is released.
        account: the plan, ledger and private stream.
        clipping: the rule that chooses the bounds of each lot, one for each term.
        n: the declared number of records; None takes it from the plan. Rate times n is the divisor of every sum.
        lr: learning rate.
        optimizer, momentum: see `make_optimizer`.
        bias: the start of the components: ``zero``, or the split's noisy cluster means (``means``, ``learned``).
        embeddings: names of the further noises of the terms.
        averaging: the part of the average of the network's parameters that stays in a step, from 0, below 1. The average is
            released; 0 releases the parameters themselves. Both are functions of noisy sums (De et al. 2022).
        micro_batch: about how many records' gradients are computed at a time, so that larger lots fit into memory: each lot
            is divided into as many parts as one of the expected size has. ``auto`` takes as many records as half of what is
            free holds when training starts. None takes a lot in one piece. The attribute may be changed until then.

    Raises:
        ValueError: for another bias or optimizer, or an averaging or a micro_batch out of range.
    """

    # Lots are laid out in a fixed number of rows if it is true (`StepOptions`); it may be changed until a fit.
    slots: bool | None

    # For type checkers, to which each attribute of a module is a tensor or a module. The network is a `GenerativeNetwork`
    # that is a module, too, with methods of its family.
    network: Any
    weights: torch.Tensor
    means: torch.Tensor
    noise: torch.Tensor
    averaged: torch.Tensor

    def __init__(
        self,
        network: GenerativeNetwork,
        account: Account,
        clipping: ClippingRule | Sequence[ClippingRule],
        *,
        n: int | None = None,
        lr: float,
        bias: str,
        optimizer: str = "adam",
        momentum: float = 0.0,
        embeddings: Sequence[str] = (),
        averaging: float = 0.0,
        micro_batch: MicroBatch = None,
    ) -> None:
        super().__init__()
        check_micro_batch(micro_batch)
        if not (isinstance(averaging, int | float) and 0.0 <= averaging < 1.0):
            raise ValueError(f"averaging={averaging!r}: expected a number from 0, below 1")
        if bias not in STARTS:
            raise ValueError(f"bias={bias!r}: expected {', '.join(STARTS)}")
        # The plan of a first pass, which buys n, has no training yet.
        if any(stage.name == TRAINING for stage in account.plan.stages):
            rules = (clipping,) if isinstance(clipping, ClippingRule) else clipping
            check_noises(account.plan, TRAINING, rules, embeddings)
        self.automatic_optimization = False
        self.account, self.clipping, self.n, self.lr = account, clipping, declared_records(account.plan, n), lr
        self.network, self.k, self.averaging = network, network.k, averaging
        self.average = copy.deepcopy(self.network).requires_grad_(False) if averaging else None
        if averaging:
            # The sum of the weights of the parameters in their average; the first ones have none.
            self.register_buffer("averaged", torch.zeros(()))
        self._optimizer, self._momentum = optimizer, momentum
        # Names are checked before anything is spent.
        self.inner_optimizer([torch.nn.Parameter(torch.zeros(1))])
        self.bias, self._embeddings = bias, tuple(embeddings)
        self.register_buffer("weights", torch.zeros(network.k))
        self.register_buffer("means", torch.zeros(network.k, network.schema.layout.width))
        self.register_buffer("noise", torch.zeros(network.k))
        self.micro_batch, self.slots, self._parts = micro_batch, None, LotParts(None, 1.0)
        # The optimizer that was made last, which captures what it steps on.
        self._stepped: PrivateOptimizer | None = None
        self._restored = False
        self._initial: Mixture | None = None
        self._declared: Mapping[str, str] | None = None
        # The losses of the last step that saw no record, by name.
        self._public_losses: dict[str, torch.Tensor] = {}

    @property
    def trained_network(self) -> Any:
        """The module that the private optimizer trains: the network itself, unless another one sees the records."""
        return self.network

    @property
    def released_network(self) -> Any:
        """The network of the release: the trained one, or a public function of it."""
        return self.network if self.average is None else self.average

    @property
    def takes_multi_hot(self) -> bool:
        """True if lots may hold wide records as the places of their ones."""
        return False

    @property
    def without_slots(self) -> str | None:
        """The reason why lots are never laid out in a fixed number of rows; None where they may be."""
        return None if self.k == 1 else f"a mixture of k={self.k} has no fixed number of rows a component"

    @property
    def whole_lots(self) -> str | None:
        """The reason why lots have to be taken in one piece; None where `gradients` takes them in parts."""
        is_overridden = type(self).gradients is not PrivateMixture.gradients
        return f"{type(self).__name__} computes the gradients of a lot in its own way" if is_overridden else None

    @property
    def steps_taken(self) -> int:
        """The number of steps that have changed the network."""
        return self.account.done.get(TRAINING, 0)

    def init_from(self, initial: Mixture, *, public: str | None = None) -> None:
        """Let the next fit start from the network of a mixture, in place of random weights.

        That must be paid for by the account of this module (`Mixture.run`), or learned from data that are declared to be
        public, by name. The declaration goes with `mixture` into the certificate. Nothing else is allowed: a release of
        private data has a cost that this account does not state, also where both runs are of one study.

        With one component every component starts from it. With k, components go to the clusters whose noisy means are most
        like them (`match_components`); with ``bias="zero"`` there are no means, and they keep their order. Unless ``bias``
        is ``zero``, the output bias is then set as at the end of a training with ``means``, so that each component first
        generates its cluster's mean on average; a machine without `hold_at` (RBM) keeps its biases and chains. An
        adversarial network starts from its generators, beside new critics. A fit that goes on from a checkpoint does not
        start again.

        Args:
            initial: a mixture of the same kind and sizes, of records with the same description, with one component or k; as
                from `mixture`, or ``load_release(path).mixture``.
            public: the name of the public data, in words that stand in the certificate; None for a mixture of this account.

        Raises:
            ValueError: for a mixture of another account without a name, one of this account with a name, or a network from
                which this one cannot start; for a module that has taken steps; Diverged for a mixture that is not finite.
        """
        if not isinstance(initial, Mixture):
            raise ValueError(
                f"initial: a {type(initial).__name__}: expected a Mixture, as load_release(path).mixture is one"
            )
        is_ours = bool(initial.run) and initial.run == self.account.ledger.run
        if is_ours and public is not None:
            raise ValueError(
                f"public={public!r}: the mixture was learned on this account, from private records: leave it out"
            )
        if not is_ours and public is None:
            raise ValueError(
                "public=None: the mixture was learned on another account than this one, or on an unknown one, and the "
                "certificate would not state its cost: name the public data that it was learned from, if it was"
            )
        if public is not None:
            check_legible("public", public)
        if self.steps_taken:
            rate = self.account.plan.stage(TRAINING).access.sample_rate
            raise ValueError(
                f"this module has taken {say_steps(self.steps_taken, rate)}: its declaration is that of the network which "
                "it started from; start a new module, on a new account"
            )
        initial.check_finite()
        # A label on top of a network has no part in its training.
        network = without_label(initial.network)
        check_initial(self.network, network)
        # Within a mixture, which is no module, it is no part of this one.
        self._initial = Mixture(network, initial.weights)
        self._declared = initial.init if public is None else {"public": public, "weights": weights_digest(initial.network)}

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        if self._declared is not None:
            checkpoint[_INIT] = dict(self._declared)

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        self._restored, self._declared = True, checkpoint.get(_INIT)

    def setup(self, stage: str) -> None:
        """Refuse a fit in parts of lots that must be taken in one piece, before anything is spent.

        Raises:
            MisconfigurationException: naming the setting.
        """
        if stage == "fit" and self.micro_batch is not None and self.whole_lots is not None:
            raise MisconfigurationException(
                f"micro_batch={self.micro_batch!r}: {self.whole_lots}: expected None, a lot in one piece"
            )

    def on_train_start(self) -> None:
        trainer: Any = self.trainer
        self.divide_lots(trainer.train_dataloader.empty)
        split = trainer.datamodule.split
        self.weights.copy_(split.weights)
        if self.k > 1 and trainer.is_global_zero:
            log_components(self.loggers, split.clusters, split.weights, self.steps_taken)
        if self.bias != "zero":
            likely = getattr(self.network, "likely", None)
            self.means.copy_(split.means if likely is None else likely(split.means, split.noise))
            self.noise.copy_(split.noise)
        # A fit that goes on has a trained network.
        if self._restored:
            return
        if self._initial is not None:
            self._begin(self._initial.network)
        elif self.bias != "zero":
            self.network.start_at(self.means)
        if self.average is not None:
            self.average.load_state_dict(self.network.state_dict())

    def _begin(self, initial: GenerativeNetwork) -> None:
        # On the CPU, where averages over codes are the same on all devices.
        network = copy.deepcopy(self.network).cpu().float()
        means, noise = self.means.cpu().float(), self.noise.cpu().float()
        order = [min(c, initial.k - 1) for c in range(self.k)]
        if self.bias != "zero":
            order = match_components(initial, means)
        copy_components(network, initial, order)
        if self.bias != "zero" and hasattr(network, "hold_at"):
            network.hold_at(means, noise)
        self.network.load_state_dict(network.state_dict())

    @property
    def expected_batch_size(self) -> float:
        """The rate of the next lot times the declared number of records."""
        return self.account.plan.stage(TRAINING).access.sample_rate * self.n

    def private_optimizer(self, inner: torch.optim.Optimizer) -> PrivateOptimizer:
        """Return the private form of an optimizer of `trained`."""
        self._stepped = PrivateOptimizer(
            inner,
            account=self.account,
            clipping=self.clipping,
            expected_batch_size=self.expected_batch_size,
            embeddings=self._embeddings,
        )
        return self._stepped

    def inner_optimizer(
        self, parameters: Iterable[torch.nn.Parameter], betas: tuple[float, float] = (0.9, 0.999)
    ) -> torch.optim.Optimizer:
        """Return the torch optimizer that private steps are made with; betas are Adam's."""
        return make_optimizer(self._optimizer, parameters, lr=self.lr, momentum=self._momentum, betas=betas)

    def configure_optimizers(self) -> Any:
        return self.private_optimizer(self.inner_optimizer(self.trained_network.parameters()))

    def divide_lots(self, empty: Any) -> None:
        """Choose the number of parts in which `gradients` takes a lot, by `micro_batch`; a fit does it as training starts.

        Args:
            empty: the records of an empty lot, whose shapes and types are public.
        """
        in_slots = self.without_slots is None and takes_slots(self.slots, self.device)
        expected, plan = self.expected_batch_size / self.account.ranks.size, self.account.plan
        self._parts = LotParts.of_stage(self.micro_batch, expected, plan, TRAINING, in_slots=in_slots)
        if self.micro_batch != "auto":
            return
        some, term = next(self.trained_network.parameters()), self.trained_network.term

        def compute(count: int) -> Iterator[PerSampleGradients]:
            lot, noise, _ = probe_lot(Lot(empty, (0,) * (self.k + 1)), some.new_zeros(0, term.noise), count)
            yield ENGINES["ghost"](self.trained_network, term, lot, noise)

        self._parts.fit_memory(compute, some.device)

    def gradients(self, lot: Lot) -> tuple[PerSampleGradients | MicroBatches | EmbeddingGradients, ...]:
        """Return the per-record gradients of each term, in the order of the clipping rules."""
        network, stream, stepped = self.trained_network, self.account.stream, self._stepped

        def of_part(part: Lot, _: int) -> PerSampleGradients:
            if stepped is None:
                return term_gradients(network, network.term, part, stream)
            return stepped.compute_gradients(network, network.term, part)

        return (self._parts.gradients(lot, of_part, stream),)

    def data_free(self) -> tuple[DataFree, ...]:
        """Return the terms of the next step that see no record."""
        return ()

    def after_step(self, step: int) -> None:
        """Do what follows the step of this number, from 1, and sees no record."""
        self.keep_average()

    def keep_average(self) -> None:
        """Move the average of the network's parameters towards them, if there is one.

        Those before the first step have no part in it, as in the means of Adam (Kingma and Ba 2015, section 3).
        """
        if self.average is not None:
            self.averaged.mul_(self.averaging).add_(1.0 - self.averaging)
            weight = (1.0 - self.averaging) / float(self.averaged)
            for average, p in zip(self.average.parameters(), self.network.parameters(), strict=True):
                average.data.lerp_(p.data, weight)

    def training_step(self, batch: LotBatch, _: int) -> None:
        given: Any = self.optimizers()
        wrapped = given[0] if isinstance(given, list) else given
        # Lightning's wrapper loses attributes that are written to it; the real optimizer is below.
        optimizer = wrapped.optimizer
        dtype: Any = self.dtype
        log: LotLog | None = optimizer.watcher
        for i, lot in enumerate(batch, start=1):
            lot = lot.to(self.device, dtype)
            parts = None
            if log is not None and log.wanted:
                parts, log.terms = self._sums_of_parts(lot), self.term_names
                log.optimizers = list(self.optimizer_names) or log.optimizers
            optimizer.set_gradients(*self.gradients(lot), data_free=self.data_free())
            # The last step of a batch goes through the wrapper, so that Lightning counts batches.
            (wrapped if i == len(batch) else optimizer).step()
            self.after_step(self.steps_taken)
            if log is not None and parts is not None:
                log.add_means(parts, len(lot))
                log.add_public({name: float(loss) for name, loss in self._public_losses.items()})
        self._refuse_diverged()

    @property
    def term_names(self) -> tuple[str, ...]:
        """The names of the terms in a log, in the order of the clipping rules; none for one that needs no name."""
        return ()

    @property
    def optimizer_names(self) -> tuple[str, ...]:
        """The names of the optimizers in a log; none for one."""
        return ()

    def loss_parts(self, lot: Lot) -> Mapping[str, torch.Tensor]:
        """Return the parts (B,) of the loss of each record by name, for a log; private. There are none of a loss in one."""
        return {}

    def _noise_of_log(self, lot: Lot, numbers: int) -> torch.Tensor:
        """Return normal numbers (B, numbers) for the losses of a log, the same ones each time.

        They are of no stream of the training, which so does not follow from how often there is a log.
        """
        dtype: Any = self.dtype
        return torch.randn(len(lot), numbers, generator=torch.Generator().manual_seed(0)).to(self.device, dtype)

    @torch.no_grad()
    def _sums_of_parts(self, lot: Lot) -> dict[str, float]:
        """Return the sums of `loss_parts` over a lot."""
        sums: dict[str, float] = {}
        for part in lot.divide(self._parts.count):
            for name, values in self.loss_parts(part.fetch()).items():
                sums[name] = sums.get(name, 0.0) + float(values.double().sum())
        return sums

    def _refuse_diverged(self) -> None:
        """Stop a training of which nothing could be released, before more is drawn for it."""
        if not all(p.isfinite().all() for network in {self.trained_network, self.network} for p in network.parameters()):
            rate = self.account.plan.stage(TRAINING).access.sample_rate
            raise Diverged(
                f"the training has diverged: after {say_steps(self.steps_taken, rate)} parameters are not finite, and "
                f"there is nothing to release; a learning rate below {self.lr:g} may help"
            )

    def mixture(self) -> Mixture:
        """Return the mixture as it is now, ready to sample: a copy of its public parts, on the CPU in 32 bits.

        With ``bias="means"`` a network that has `hold_at` generates its clusters' means on average, within their noise.

        Raises:
            ValueError: before a fit, which makes the split that the weights of the mixture come from.
        """
        if not self.weights.any():
            raise ValueError("this module has no mixture before a fit, whose split weighs its components: fit it first")
        network = copy.deepcopy(self.released_network).cpu().float().eval()
        weights, means, noise = (part.cpu().float() for part in (self.weights, self.means, self.noise))
        if self.bias == "means" and self.steps_taken and hasattr(network, "hold_at"):
            network.hold_at(means, noise)
        margins = None if self.bias == "zero" else Margins(weights @ means, float((weights * noise).norm()))
        return Mixture(network, weights, self.account.ledger.run, self._declared, margins)


def make_optimizer(
    name: str,
    parameters: Iterable[torch.nn.Parameter],
    *,
    lr: float,
    momentum: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
) -> torch.optim.Optimizer:
    """Return a torch optimizer.

    Adam divides a gradient by a mean of its size, so the bound of clipping leaves the length of a step as it is; the step
    of SGD is in proportion to the bound.

    Args:
        name: one of `OPTIMIZERS`.
        momentum: of SGD, from 0, below 1.
        betas: of Adam.

    Raises:
        ValueError: for another name, or a momentum of Adam.

    Example:
        >>> make_optimizer("sgd", [torch.nn.Parameter(torch.zeros(2))], lr=0.1, momentum=0.9).defaults["momentum"]
        0.9
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer={name!r}: expected one of {', '.join(OPTIMIZERS)}")
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum)
    if momentum:
        raise ValueError(f"momentum={momentum!r} with optimizer='adam': expected 0, since it is of SGD")
    return torch.optim.Adam(parameters, lr=lr, betas=betas, fused=True)

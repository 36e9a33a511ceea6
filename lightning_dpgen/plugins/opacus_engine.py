"""A form of Opacus' PrivacyEngine in which every step is an access of an account."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from opacus import PrivacyEngine
from opacus.accountants.accountant import IAccountant
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from lightning_dpgen.gradients.clipping import Fixed
from lightning_dpgen.gradients.layers import checked_layers
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.plugins.opacus_ghost import GhostCriterion, GhostModule
from lightning_dpgen.plugins.opacus_loader import AccountDataLoader
from lightning_dpgen.plugins.training_ledger import go_on_from, record_of
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.epsilon_range import check_accountant
from lightning_dpgen.privacy.plan import TRAINING
from lightning_dpgen.privacy.ranks import Ranks

# The modes that leave the gradient of each record in ``grad_sample``.
_MODES = ("hooks", "functorch", "ew")
# The mode in which none is materialised.
_GHOST = "ghost"
# The ways to what two arguments of Opacus choose.
_INSTEAD = {
    "grad_sample_mode": "Sharded parameters (FSDP2) are those of PrivateTraining",
    "criterion": "It is for grad_sample_mode='ghost'; in other modes the loss of the loop is used as it is",
    **dict.fromkeys(("batch_first", "wrap_model"), "In grad_sample_mode='ghost' records are called for one by one"),
    "clipping": (
        "Bounds are chosen by a rule: pass PrivateOptimizer(..., clipping=PerLayer(Fixed(...))) for each layer, or "
        "Quantile(...) for bounds that follow the norms, and make the plan with the same rule"
    ),
}


class AccountEngine(PrivacyEngine):
    """The replacement of `opacus.PrivacyEngine` in a training loop that is written for Opacus.

    Noise, rate and number of steps are the plan's. Lots come from the account's sampler, and every step is written to its
    ledger. The gradients are those of Opacus' `GradSampleModule`. Opacus claims of its layers that a row is the gradient of
    one record and depends on no other; this needs a loss that is a mean (or sum, see `loss_reduction`) of one number a
    record. `BatchMemoryManager` works on the loader (without workers), gradient accumulation does not.

    Args:
        account: the plan, ledger and private stream.
        stage: the plan's stage that the steps belong to.
        accountant: None, or the plan's (``make_plan(..., accountant="rdp")``), as a `PrivacyEngine` is given one.

    Raises:
        ValueError: if the plan has no such stage or another accountant.

    Attributes:
        accountant: an Opacus accountant that answers from plan and ledger.

    Example:
        >>> import warnings
        >>> warnings.filterwarnings("ignore", "Full backward hook")  # Opacus' hooks, on a layer whose inputs are records
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from lightning_dpgen import Account, StageSpec, make_plan
        >>> from lightning_dpgen.privacy import Poisson
        >>> stage = StageSpec("training", {"gradient": 1.0}, 20, max_noise=50, sampler=Poisson(0.5))
        >>> plan = make_plan([stage], epsilon=2.0, delta=1e-5)
        >>> account, network = Account(plan), torch.nn.Linear(3, 1)
        >>> engine = AccountEngine(account)
        >>> network, optimizer, loader = engine.make_private(
        ...     module=network, optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        ...     data_loader=DataLoader(TensorDataset(torch.rand(100, 3))), max_grad_norm=1.0, expected_batch_size=50)
        >>> for epoch in range(10):
        ...     for (rows,) in loader:
        ...         optimizer.zero_grad()
        ...         network(rows).square().mean().backward()
        ...         optimizer.step()
        >>> account.verify_complete()
        >>> engine.get_epsilon(1e-5) <= 2.0
        True
    """

    def __init__(self, account: Account, *, stage: str = TRAINING, accountant: str | None = None) -> None:
        if accountant is not None:
            check_accountant(accountant)
            if accountant != account.plan.accountant:
                raise ValueError(
                    f"accountant={accountant!r}: the account's plan says {account.plan.accountant!r}: leave it out, or "
                    f"make the plan with make_plan(..., accountant={accountant!r})"
                )
        # The __init__ of PrivacyEngine makes an accountant, and warns of a generator of noise that is not used here.
        self.account, self.stage = account, account.plan.stage(stage).name
        if account.plan.stage(stage).access.sampler.in_turn:
            raise ValueError(
                f"stage {stage!r} has a strategy, which no accountant of Opacus knows: expected independent noise and "
                "Poisson sampling, or PrivateTraining, or PrivateOptimizer with PoissonLots"
            )
        self.accountant = LedgerAccountant(account)
        self.secure_mode, self.secure_rng, self.dataset = account.stream.secure, None, None

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader,
        max_grad_norm: float | None = None,
        expected_batch_size: float | None = None,
        persons: np.ndarray | None = None,
        noise_multiplier: float | None = None,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: torch.Generator | None = None,
        grad_sample_mode: str = "hooks",
        criterion: Callable[..., Tensor] | None = None,
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        **others: Any,
    ) -> tuple[Any, ...]:
        """Return what a loop trains with: module, optimizer and loader, as from Opacus; before the loader the criterion,
        where ``grad_sample_mode="ghost"``.

        Args:
            module: the network; refused by Opacus' validator if a layer mixes records.
            optimizer: a `PrivateOptimizer` of this account and stage, which is kept; or a torch optimizer, which becomes
                one.
            data_loader: a loader of the records; `AccountDataLoader` says which of its settings are used.
            max_grad_norm: the bound of a record's gradient, for a torch optimizer; a `PrivateOptimizer` has clipping rules.
            expected_batch_size: the public divisor, rate times the declared number of records, for a torch optimizer; None
                takes it from the plan.
            persons: (N,) the person of each record, where one person has several.
            noise_multiplier: None, or the plan's.
            batch_first: True if records are counted by the first dimension of inputs, False if by the second.
            loss_reduction: ``mean`` or ``sum``: the way in which the loop's loss is made of those of the records. If it is
                wrong, a gradient depends on the number of others. The sum of a lot is divided by `expected_batch_size` in
                either case.
            poisson_sampling, clipping, noise_generator, rand_on_empty: their defaults, and nothing else.
            grad_sample_mode: ``hooks``, ``functorch`` or ``ew``; or ``ghost``, for gradients by the engine of this package
                (`GhostCriterion`), which are never materialised, of any layer that it takes and of one record at a time.
            criterion: for ``ghost``, a function of what the module returns and of targets; None takes
                `nn.CrossEntropyLoss`.
            wrap_model: as for Opacus: False gives hooks in place of a module.

        In each of several processes (``torchrun``) it is called with DPDDP(network), as in Opacus. Rank 0 writes the
        ledger, each rank takes its part of every lot, and the sum of their noisy parts is the gradient.

        Raises:
            ValueError: for an argument that contradicts the plan, saying what to do; nothing has been changed then.
            RanksDiffer: if processes have other plans, or other records.
            opacus.validators.errors.UnsupportedModuleError: for a module that Opacus refuses.
            NoiseMissing: if noise of the planned size does not reach each parameter.
        """
        of_mode: dict[str, tuple] = {"criterion": (criterion, None)}
        if grad_sample_mode == _GHOST:
            of_mode = {"batch_first": (batch_first, True), "wrap_model": (wrap_model, True)}
        self._refuse(
            noise_multiplier=(noise_multiplier, None, self.account.plan.stage(self.stage).access.multiplier),
            poisson_sampling=(poisson_sampling, True),
            clipping=(clipping, "flat"),
            noise_generator=(noise_generator, None),
            rand_on_empty=(rand_on_empty, False),
            grad_sample_mode=(grad_sample_mode, *_MODES, _GHOST),
            **of_mode,
            **{name: (value,) for name, value in others.items()},
        )
        self._join(module)
        if grad_sample_mode == _GHOST:
            checked_layers(module)
        optimizer = self._private(optimizer, max_grad_norm, expected_batch_size)
        strangers = {id(p) for p in optimizer.params} - {id(p) for p in module.parameters()}
        if strangers:
            raise ValueError(f"optimizer: {len(strangers)} of its parameters are not of the module")
        loader = AccountDataLoader(data_loader, optimizer, persons=persons, batch_first=batch_first)
        optimizer.rehearse()
        if grad_sample_mode == _GHOST:
            ghost = GhostModule(module)
            return ghost, optimizer, GhostCriterion(ghost, optimizer, criterion or nn.CrossEntropyLoss()), loader
        prepared = self._prepare_model(
            module,
            batch_first=batch_first,
            loss_reduction=loss_reduction,
            grad_sample_mode=grad_sample_mode,
            wrap_model=wrap_model,
        )
        prepared.forbid_grad_accumulation()
        return prepared, optimizer, loader

    def make_private_with_epsilon(self, **_: Any) -> None:
        """Raise a ValueError, since the noise for an epsilon is in the plan.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "epsilon, delta and steps are those of the account's plan: make_plan([training_stage(...)], epsilon=..., "
            "delta=...), and then make_private"
        )

    def get_epsilon(self, delta: float) -> float:
        """Return epsilon of the whole plan at `delta`, or of the ledger if that is larger; infinite without privacy.

        An epsilon of the steps so far would be smaller, and does not hold for a loop that looks at it, or at anything
        else, and stops.
        """
        return self.accountant.get_epsilon(delta)

    def _join(self, module: nn.Module) -> None:
        """Share the account with the other processes of torch's default group, where there are any."""
        distributed = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        alike = isinstance(module, DifferentiallyPrivateDistributedDataParallel)
        if isinstance(module, DistributedDataParallel | FSDPModule) or (distributed and not alike):
            raise ValueError(
                f"module is a {type(module).__name__}: expected DPDDP(network) in each of several processes, and the "
                "network itself in one; DDP would average what is neither clipped nor noised, and FSDP2 takes a Trainer "
                "with MomentsAccountant and poisson_loader"
            )
        if distributed and self.account.ranks.size == 1:
            self.account.join(Ranks.join())

    def _private(
        self, optimizer: torch.optim.Optimizer, max_grad_norm: float | None, expected_batch_size: float | None
    ) -> PrivateOptimizer:
        """Return the private form of an optimizer, or the optimizer itself if it is one of this account and stage."""
        if isinstance(optimizer, PrivateOptimizer):
            if optimizer.account is not self.account or optimizer.stage != self.stage:
                raise ValueError(
                    "optimizer: a PrivateOptimizer of another account or stage than this engine: pass the same Account "
                    "and stage to both"
                )
            if (max_grad_norm, expected_batch_size) != (None, None):
                raise ValueError(
                    f"max_grad_norm={max_grad_norm}, expected_batch_size={expected_batch_size}: this PrivateOptimizer has "
                    "clipping rules and a divisor; leave both out, or pass a torch optimizer"
                )
            return optimizer
        if max_grad_norm is None:
            raise ValueError("max_grad_norm=None: expected the bound of a record's gradient")
        return PrivateOptimizer(
            optimizer,
            account=self.account,
            clipping=Fixed(max_grad_norm),
            expected_batch_size=expected_batch_size,
            stage=self.stage,
        )

    def _refuse(self, **given: tuple) -> None:
        """Refuse arguments that contradict the plan; each is given with its value and all values that it may have."""
        for name, (value, *allowed) in given.items():
            if not any(value is one or value == one for one in allowed):
                expected = f"expected {' or '.join(map(str, allowed))}" if allowed else "no argument of AccountEngine"
                why = _INSTEAD.get(
                    name,
                    f"Rate, noise and steps of stage {self.stage!r} are in the account's plan, and noise comes from its "
                    "private stream",
                )
                raise ValueError(f"{name}={value!r}: {expected}. {why}")


class LedgerAccountant(IAccountant):
    """An accountant of Opacus that adds nothing up: it answers from the account's plan and ledger."""

    def __init__(self, account: Account) -> None:
        self._account = account

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """The noise multiplier, rate and count of all accesses in the ledger."""
        return [(access.multiplier, access.sample_rate, count) for access, count in self._account.accesses]

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Do nothing: a step stands in the ledger before its noise is drawn."""

    def get_epsilon(self, delta: float, **_: Any) -> float:
        """Return epsilon as `AccountEngine.get_epsilon` does."""
        account, plan = self._account, self._account.plan
        if not account.private:
            return math.inf
        events = [plan.event, account.event] if account.ledger.accesses else [plan.event]
        return max(plan.cost_of(event, delta=delta).epsilon for event in events)

    def __len__(self) -> int:
        return sum(count for *_, count in self.history)

    @classmethod
    def mechanism(cls) -> str:
        return "ledger"

    def state_dict(self, destination: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the record of the ledger for a checkpoint (`record_of`)."""
        destination = {} if destination is None else destination
        destination.update(record_of(self._account) | {"mechanism": self.mechanism()})
        return destination

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, on an account from `Account.resume`.

        Raises:
            LedgerError: for a checkpoint of another run, or an account that was not resumed.
        """
        go_on_from(self._account, state_dict if "head" in state_dict else None)

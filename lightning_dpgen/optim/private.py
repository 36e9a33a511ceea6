"""A DPOptimizer whose every step is an access of an account."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from opacus.optimizers import DPOptimizer

from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.gradients.privatize import GradientBuffer, privatize
from lightning_dpgen.gradients.records import Materialised, RecordGradients
from lightning_dpgen.gradients.terms import DataFree
from lightning_dpgen.privacy.account import Account


class PrivateOptimizer(DPOptimizer):
    """Makes any torch optimizer private: clip by a rule, add the plan's noise, divide by the expected lot, step.

    Gradients arrive in one of two ways: handed over with `take` (an engine's factors, never materialised), or as
    ``p.grad_sample``, as stock Opacus modules leave them. Each step opens one access of `stage`; the noise multiplier
    comes from the account's plan. Works with a bare training loop, and inside Lightning (call `take` on the real
    optimizer: ``self.optimizers().optimizer``).

    Args:
        optimizer: the torch optimizer of the parameters.
        account: plan, ledger and private stream.
        clipping: the rule that chooses the bound of each lot.
        expected_lot: the public divisor, sampling rate times declared N; never the size of what was drawn.
        stage: the plan's stage that the steps belong to.
        data_free: terms that see no record; their plain gradient is added after the noise.

    Attributes:
        noise_multiplier: the merged multiplier of a step, which a stock Opacus accountant may charge.
        last_bound: the public bound C of the last step.

    Raises:
        KeyError: if the plan has no such stage.
        RuntimeError: from `step`, if there is no gradient, or not of exactly these parameters; nothing is charged then.
        LedgerError: from `step`, if the lot was used by an earlier step; nothing is charged then.

    Example:
        >>> from lightning_dpgen import Account, Draft, Fixed, make_plan
        >>> plan = make_plan([Draft("training", {"gradient": 1.0}, 1, largest=50, rate=0.5)], epsilon=2.0, delta=1e-5)
        >>> weight = torch.nn.Parameter(torch.zeros(3))
        >>> optimizer = PrivateOptimizer(torch.optim.SGD([weight], lr=1.0), account=Account(plan),
        ...                              clipping=Fixed(1.0), expected_lot=50)
        >>> weight.grad_sample = torch.zeros(0, 3)   # an empty lot takes a noisy step like any other
        >>> optimizer.step()
        >>> bool((weight != 0).all())
        True
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        account: Account,
        clipping: ClippingRule,
        expected_lot: float,
        stage: str = "training",
        data_free: Sequence[DataFree] = (),
    ) -> None:
        if not expected_lot > 0:
            raise ValueError(f"expected_lot={expected_lot}: expected a positive number")
        super().__init__(
            optimizer,
            noise_multiplier=account.plan.stage(stage).access.multiplier,
            max_grad_norm=None,
            expected_batch_size=expected_lot,
        )
        self._account, self._clipping, self._stage = account, clipping, stage
        self._data_free = tuple(data_free)
        self._buffer = GradientBuffer(self.params)
        # Lightning's wrapper keeps what is assigned on itself, so whatever changes lives in this one object.
        self._state_of_step: dict[str, object] = {"bound": None}

    @property
    def last_bound(self) -> float | None:
        return self._state_of_step["bound"]

    def state_dict(self) -> dict:
        """That of the torch optimizer, and the last bound, which rules may go on from."""
        return super().state_dict() | {"last_bound": self.last_bound}

    def load_state_dict(self, state_dict: dict) -> None:
        self._state_of_step["bound"] = state_dict.get("last_bound")
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "last_bound"})

    def take(self, gradients: RecordGradients) -> None:
        """Hand over the per-record gradients of the lot that the next `step` is for."""
        self._state_of_step["gradients"] = gradients

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Drop what was computed for a step: gradients that were handed over, ``grad_sample`` and ``grad``."""
        self._state_of_step.pop("gradients", None)
        super().zero_grad(set_to_none)

    @property
    def accumulated_iterations(self) -> int:
        """Always 1: a lot is one access, however its gradients were computed."""
        return 1

    def pre_step(self, closure=None) -> bool:
        """Turn the lot's gradients into ``p.grad``; called by `step`."""
        if self._step_skip_queue:
            raise RuntimeError(
                "a lot in parts (BatchMemoryManager) is not supported by PrivateOptimizer: hand over whole lots"
            )
        # Taken away first: whatever goes wrong from here on, the next step needs a lot of its own.
        gradients = self._state_of_step.pop("gradients", None)
        if gradients is None:
            gradients = self._from_grad_sample()
        self._check_parameters(gradients)
        self._account.claim(gradients.draw, self._stage)
        with self._account.open(self._stage) as access:
            bound = privatize(
                gradients, access, self._clipping, self.expected_batch_size, self._buffer, self.last_bound
            )
        self._state_of_step["bound"] = bound
        for p in self.params:
            p.grad = self._buffer.views[p]
            p.grad_sample = None
        self._add_data_free()
        if self.step_hook:
            self.step_hook(self)
        return True

    def _from_grad_sample(self) -> RecordGradients:
        held = [getattr(p, "grad_sample", None) for p in self.params]
        missing = [i for i, gradient in enumerate(held) if gradient is None]
        if missing:
            raise RuntimeError(
                f"parameters {missing[:5]} (of {len(self.params)}) have no per-record gradient: call take(...) with an "
                "engine's gradients, or let Opacus fill grad_sample, before step()"
            )
        if any(isinstance(gradient, list) and len(gradient) > 1 for gradient in held):
            raise RuntimeError(
                "grad_sample holds several backward passes; each would be clipped by itself, as if its records were "
                "others. Call backward once a step, on the sum of the losses"
            )
        return Materialised({p: self._get_flat_grad_sample(p) for p in self.params})

    def _check_parameters(self, gradients: RecordGradients) -> None:
        """What is not written would keep an old gradient, or one that was never clipped."""
        mine = self._buffer.views.keys()
        if mine != set(self.params):
            raise RuntimeError(
                "parameters were frozen, thawed or added since this optimizer was made: make a new PrivateOptimizer on the "
                "same account"
            )
        if mine != gradients.parameters:
            raise RuntimeError(
                f"the gradients are of {len(gradients.parameters)} parameters, and {len(mine & gradients.parameters)} of "
                f"them are among the {len(mine)} of this optimizer: hand over the gradients of exactly its parameters"
            )

    def _add_data_free(self) -> None:
        for term in self._data_free:
            gradients = torch.autograd.grad(term.loss(), self.params, allow_unused=True)
            for p, gradient in zip(self.params, gradients, strict=True):
                if gradient is not None:
                    p.grad.add_(gradient)

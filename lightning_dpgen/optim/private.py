"""A DPOptimizer whose every step is an access of an account."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import torch
from opacus.optimizers import DPOptimizer
from scipy.stats import chi2
from torch import Tensor, nn

from lightning_dpgen.gradients.captured import CapturedGradients, Captures
from lightning_dpgen.gradients.clipping import ClippingRule, Fixed
from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.micro_batches import MicroBatches
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients, materialised
from lightning_dpgen.gradients.privatize import Bounds, GradientBuffer, add_clipped, privatize
from lightning_dpgen.gradients.scopes import Components, Flat
from lightning_dpgen.gradients.shards import check_shards
from lightning_dpgen.gradients.terms import DataFree, PerGroup, PerRecord
from lightning_dpgen.optim.captured_update import CapturedUpdate
from lightning_dpgen.optim.flat import FlatGroups
from lightning_dpgen.optim.stages import METRICS, check_noises
from lightning_dpgen.privacy.access import Access, LotId, OpenAccess
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError, NoiseMissing
from lightning_dpgen.privacy.noise.units import GRID_POWERS
from lightning_dpgen.privacy.plan import TRAINING, Plan, Stage
from lightning_dpgen.privacy.planning.stage_spec import expected_lot_size
from lightning_dpgen.sampling.device_copies import StepsAhead
from lightning_dpgen.sampling.lots import Lot

# The probability that a rehearsal refuses sound noise, on either side and for each parameter.
_FALSE_ALARM = 1e-11
# Half of the widest step of the grid on which noise lies, in deviations of the noise.
_HALF_A_STEP = 2.0 ** (GRID_POWERS[1] - 1)
Gradients = PerSampleGradients | MicroBatches | EmbeddingGradients


def _of_torch_optimizer(name: str) -> property:
    """Return a property that reads and writes an attribute of the torch optimizer."""

    def read(self: PrivateOptimizer) -> Any:
        return getattr(self._torch_optimizer, name)

    def write(self: PrivateOptimizer, value: Any) -> None:
        setattr(self._torch_optimizer, name, value)

    return property(read, write)


@dataclass
class _Step:
    """One step: what was handed over for it."""

    gradients: tuple[Gradients, ...] | None = None
    data_free: tuple[DataFree, ...] = ()
    metrics: Callable[[OpenAccess], object] | None = None
    # The lot that `expect` has named, and the pass over a loader that handed it out.
    expected: tuple[LotId, object | None] | None = None
    # The lot of which parts were passed, and how many of its records each term has seen.
    begun: tuple[LotId, list[int]] | None = None
    # One entry for each part that was announced: are more of the lot to come after it? The last is this step's.
    announced: Sequence[bool] = ()
    more: bool = False
    from_engine: bool = False


@dataclass
class _BetweenSteps:
    """All that changes, in one object: Lightning's wrapper keeps attributes that are assigned on itself."""

    bounds: list[Bounds] | None = None
    next: _Step = field(default_factory=_Step)


class Watcher(Protocol):
    """A log that is told of steps; all that is not a bound is private."""

    @property
    def wanted(self) -> bool:
        """True if it is to be told of the next step."""
        ...

    def begin(self, gradients: Sequence[Gradients], rules: Sequence[ClippingRule]) -> tuple[Gradients, ...]:
        """Take the gradients of the step, and return them; those that are yet to be made may be watched."""
        ...

    def take(self, bounds: Sequence[Bounds]) -> None:
        """Take the bounds of the step, which was taken."""
        ...


class PrivateOptimizer(DPOptimizer):
    """A private form of any torch optimizer: it clips by a rule, adds the plan's noise, divides by the expected lot.

    Gradients arrive in one of two ways: through `set_gradients` (an engine's factors, never materialised), or as
    ``p.grad_sample``, where stock Opacus modules leave them. Each step opens one access of `stage` against the draw of its
    lot. The account must have issued that draw for the stage (`PoissonLots`, `poisson_loader`), and no step may have spent
    it. The noise multiplier comes from the account's plan. Gradients from an engine carry their draw; `expect` names the
    draw of ``grad_sample``, and the loader of `AccountEngine.make_private` calls it for each batch. The optimizer works in
    a bare training loop and inside Lightning (call `set_gradients` on the real one: ``self.optimizers().optimizer``). A lot
    that is larger than memory is handed over as `MicroBatches`. Where Opacus' BatchMemoryManager cuts a lot, the bound must
    not depend on the lot, and the loader must have no workers.

    The torch optimizer itself is out of reach (`original_optimizer`): a stock ``PrivacyEngine.make_private`` would take it
    from there, and train with noise that stands in no ledger.

    Args:
        optimizer: the torch optimizer of the parameters.
        account: plan, ledger and private stream.
        clipping: the rule that chooses the bounds of each lot; one for each term, where a lot has several.
        expected_batch_size: the public divisor, sampling rate times declared N, never the size of what was drawn; None
            takes it from the plan.
        stage: the plan's stage that the steps belong to.
        data_free: terms that see no record; their plain gradient is added after the noise.
        embeddings: names of the further noises that `EmbeddingGradients` draw.

    Attributes:
        noise_multiplier: the merged multiplier of the next step, from the plan; a stock Opacus accountant may charge it,
            unless noise is correlated, where it is that of all steps together.
        last_bound: the public bound C of the last step; a tuple where there are several.
        watcher: a log that is told of the lots of the steps that it wants; None without one.

    Raises:
        ValueError: for an optimizer of Opacus, or one that needs several evaluations a step; if the plan has no such stage,
            or one with other noises than those of the rules; for an `expected_batch_size` that is not the plan's; or for
            parameters that noise cannot be added to.
        RuntimeError: from `step`, if there is no gradient, or it is not of exactly these parameters, or of more records
            than the lot has (for ``grad_sample``: of another number); nothing is charged then.
        LedgerError: from `step`, if an earlier step used the lot, or the account has not drawn it for this stage; nothing
            is charged then.

    Example:
        >>> from lightning_dpgen import Account, StageSpec, Fixed, PerRecord, PoissonLots, make_plan, term_gradients
        >>> from lightning_dpgen.privacy import Poisson
        >>> stage = StageSpec("training", {"gradient": 1.0}, 1, max_noise=50, sampler=Poisson(0.5))
        >>> plan = make_plan([stage], epsilon=2.0, delta=1e-5)
        >>> account, network = Account(plan), torch.nn.Linear(3, 1)
        >>> optimizer = PrivateOptimizer(torch.optim.SGD(network.parameters(), lr=1.0), account=account,
        ...                              clipping=Fixed(1.0), expected_batch_size=50)
        >>> lot = PoissonLots(torch.rand(100, 3), account).draw()
        >>> term = PerRecord(lambda lot, noise: network(lot.records).square().sum(dim=1))
        >>> optimizer.set_gradients(term_gradients(network, term, lot, account.stream))
        >>> optimizer.step()
        >>> account.verify_complete()
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        account: Account,
        clipping: ClippingRule | Sequence[ClippingRule],
        expected_batch_size: float | None = None,
        stage: str = TRAINING,
        data_free: Sequence[DataFree] = (),
        embeddings: Sequence[str] = (),
    ) -> None:
        if isinstance(optimizer, DPOptimizer):
            raise ValueError(
                f"optimizer: a {type(optimizer).__name__} draws noise that is in no ledger: pass the torch optimizer"
            )
        self._account, self._stage = account, stage
        access = account.plan.stage(stage).access
        divisor = expected_lot_size(account.plan, stage, expected_batch_size)
        super().__init__(optimizer, noise_multiplier=access.multiplier, max_grad_norm=None, expected_batch_size=divisor)
        self._rules = (clipping,) if isinstance(clipping, ClippingRule) else tuple(clipping)
        check_noises(account.plan, stage, self._rules, embeddings)
        if len(self._rules) > 1 and any(isinstance(rule.scope, Components) for rule in self._rules):
            raise ValueError(
                "a bound for each component (PerComponent) stands alone: the noise of a component is its own, and what "
                "another term does to several of them is not covered"
            )
        self._data_free = tuple(data_free)
        kinds = {p.dtype for p in self.params}
        if len(kinds) != 1 or not kinds <= {torch.float32, torch.float64}:
            raise ValueError(
                f"parameters are {', '.join(sorted(map(str, kinds)))}: expected all in float32, or all in float64, in "
                "which noise is added; precision='bf16-mixed' computes in less and keeps them so; hold complex ones as "
                "real ones (..., 2), joined by torch.view_as_complex"
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError("LBFGS evaluates the loss several times a step, and each would be an access: use Adam or SGD")
        self._buffer = GradientBuffer(self.params)
        if self._buffer.sharded:
            self._check_sharded(embeddings)
        self._flat = FlatGroups(optimizer, self._buffer) if FlatGroups.possible(optimizer) else None
        self._update = None if self._flat is None else CapturedUpdate(optimizer, self._flat)
        self._between_steps = _BetweenSteps()
        self._ahead = StepsAhead()
        self._captures = Captures(self._buffer.flat, self._buffer.views)
        self.watcher: Watcher | None = None

    def _check_sharded(self, embeddings: Sequence[str]) -> None:
        """Refuse what needs whole parameters."""
        parts = {
            "clipping=PerComponent(...)": any(isinstance(rule.scope, Components) for rule in self._rules),
            "embeddings": bool(embeddings),
            "data_free": bool(self._data_free),
        }
        if used := [name for name, is_used in parts.items() if is_used]:
            raise ValueError(f"{used[0]} with sharded parameters: is made for whole ones; leave it out")
        check_shards(self.params, self._account.ranks)

    @property
    def account(self) -> Account:
        """The plan, ledger and private stream."""
        return self._account

    @property
    def clipping(self) -> tuple[ClippingRule, ...]:
        """The rules that choose the bounds, one for each term."""
        return self._rules

    @property
    def stage(self) -> str:
        """The plan's stage that the steps belong to."""
        return self._stage

    @property
    def original_optimizer(self) -> torch.optim.Optimizer:
        """The torch optimizer, which is out of reach: its steps are not private.

        Raises:
            AttributeError: always.
        """
        raise AttributeError(
            "the torch optimizer of a PrivateOptimizer is not handed out, since its steps would bypass plan and ledger "
            "(PrivacyEngine.make_private would wrap it in noise of its own): use "
            "AccountEngine(account).make_private(module=..., optimizer=..., data_loader=...), on a module that no other "
            "engine has wrapped; rates and state are in param_groups and state_dict() of this optimizer"
        )

    @original_optimizer.setter
    def original_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._torch_optimizer = optimizer

    # The base class reads them from `original_optimizer`.
    param_groups = _of_torch_optimizer("param_groups")
    state = _of_torch_optimizer("state")
    defaults = _of_torch_optimizer("defaults")

    def __repr__(self) -> str:
        return f"PrivateOptimizer({self._torch_optimizer!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a PrivateOptimizer is never saved or copied, since its account would be spent twice: keep its state_dict(), "
            "and make a new one on the same account"
        )

    @property
    def noise_multiplier(self) -> float:
        """The merged multiplier of the next step, from the plan."""
        return self._account.plan.stage(self._stage).access.multiplier

    @noise_multiplier.setter
    def noise_multiplier(self, value: float) -> None:
        if value != self.noise_multiplier:
            raise ValueError(
                f"noise_multiplier={value}: the plan says {self.noise_multiplier:g} for the next step of stage "
                f"{self._stage!r}; make the plan with other noise"
            )

    def _refuse_hook(self, hook: object) -> NoReturn:
        raise ValueError(
            f"hook={hook!r}: would be handed the torch optimizer, whose steps are not private: expected attach_step_hook, "
            "which calls a function of this optimizer when the noise is added"
        )

    register_step_pre_hook = register_step_post_hook = _refuse_hook

    @property
    def max_grad_norm(self) -> NoReturn:
        """The bound of a stock optimizer, which schedulers of Opacus change: here the clipping rule has it.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "max_grad_norm: the clipping rule of a PrivateOptimizer chooses the bound, and last_bound says it; for one "
            "that changes (ExponentialGradClip, StepGradClip, LambdaGradClip) expected clipping=Decay(...), or another "
            "rule of lightning_dpgen.clipping"
        )

    @max_grad_norm.setter
    def max_grad_norm(self, value: None) -> None:
        # The base class has none to set.
        if value is not None:
            self.max_grad_norm  # noqa: B018

    def rehearse(self) -> None:
        """Draw the noise of one step on a throw-away account, and check that each parameter gets its share.

        Raises:
            NoiseMissing: if the noise of a parameter is not of the planned size; a false alarm has probability 2e-11.
        """
        stage = self._account.plan.stage(self._stage)
        if not stage.access.private:
            return
        multiplier = stage.access.multipliers["gradient"]
        alone = Stage(Access(self._stage, {"gradient": multiplier}), 1, 1.0)
        scratch = self._account.scratch_account(Plan((alone,), self._account.plan.target_epsilon, 1e-5))
        no_records = materialised({p: torch.zeros(0, *p.shape, dtype=p.dtype, device=p.device) for p in self.params})
        with scratch.open(self._stage) as access:
            privatize([(no_records, Fixed(1.0))], access, self.expected_batch_size, self._buffer)
        deviation, views = multiplier / self.expected_batch_size, self._buffer.views
        for p in self.params:
            # A rank may have no part of a small parameter.
            if not (size := views[p].numel()):
                continue
            ratio = float((views[p].double() / deviation).square().mean())
            low, high = chi2.ppf([_FALSE_ALARM, 1.0 - _FALSE_ALARM], size) / size
            # Rounding to the grid moves a number by half a step at most: the noise of a single one may be 0.
            low = max(0.0, math.sqrt(low) - _HALF_A_STEP) ** 2
            if not (low <= ratio <= high):
                raise NoiseMissing(
                    f"noise of {math.sqrt(ratio):.3g} times the planned size reached a parameter of shape "
                    f"{tuple(p.shape)}: this fit would not be private; its optimizer or private stream is not ours"
                )
        self._buffer.flat.zero_()

    @property
    def last_bound(self) -> float | tuple | None:
        """The bound C of the last step, or one for each column of norms, or a tuple of these with one for each term."""
        if self._between_steps.bounds is None:
            return None
        bounds = tuple(b[0] if len(b) == 1 else b for b in self._between_steps.bounds)
        return bounds[0] if len(bounds) == 1 else bounds

    @property
    def last_bounds(self) -> list[Bounds] | None:
        """The bounds of the last step, those of each term, from which rules may go on."""
        return self._between_steps.bounds

    @last_bounds.setter
    def last_bounds(self, bounds: list[Bounds] | None) -> None:
        self._between_steps.bounds = bounds

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the torch optimizer, and the last bounds, from which rules may go on.

        The torch optimizer, or one of Opacus, takes it up as its own.
        """
        with self._stepping():
            state = self._torch_optimizer.state_dict()
        state = state if self._flat is None else self._flat.split_state(state)
        return state | {"last_bounds": self._between_steps.bounds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what `state_dict` gave, here or of the torch optimizer.

        Raises:
            ValueError: for the state of other parameters.
        """
        state = {name: value for name, value in state_dict.items() if name != "last_bounds"}
        state = state if self._flat is None else self._flat.join_states(state)
        with self._stepping():
            self._torch_optimizer.load_state_dict(state)
        self._between_steps.bounds = state_dict.get("last_bounds")

    def begin_state(self) -> None:
        """Give the torch optimizer a state, into which a checkpoint of shards can be loaded (torch's own way needs a step).

        Parameters stay as they are: torch's optimizer steps once by nothing.
        """
        # Loaded here, since few programs need it.
        from torch.distributed.checkpoint.state_dict import _init_optim_state

        _init_optim_state(self._torch_optimizer)
        for p in self.params:
            # An optimizer without a state is known by its gradients.
            p.grad = torch.zeros_like(p)

    def _stepping(self) -> AbstractContextManager:
        """Return a context in which the torch optimizer holds the parameters that it steps and keeps state for."""
        return nullcontext() if self._flat is None else self._flat.in_their_place()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make the gradient of the lot private, and step; as in Opacus, a closure is called and its value dropped."""
        self._opt_called = True
        if closure is not None:
            with torch.enable_grad():
                closure()
        handed_over = self._between_steps.next
        watcher = self.watcher if self.watcher is not None and self.watcher.wanted else None
        if watcher is not None:
            # Those of ``grad_sample`` are not shown.
            handed_over.gradients = watcher.begin(handed_over.gradients or (), self._rules) or None
        gradients = handed_over.gradients
        if not self.pre_step():
            return None
        if self._update is not None and gradients is not None and isinstance(gradients[0], CapturedGradients):
            self._update()
        else:
            with self._stepping():
                self._torch_optimizer.step()
        self._ahead.end_step(self._buffer.flat.device)
        if watcher is not None and self._between_steps.bounds is not None:
            watcher.take(self._between_steps.bounds)
        return None

    # A schedule of torch would put a function of its own in the place of `step`, to see whether it was called.
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def expect(self, draw: LotId, source: object | None = None) -> None:
        """Name the lot whose gradients Opacus will leave in ``grad_sample`` for the next step.

        Parts of a lot that was begun and not finished are dropped.

        Args:
            draw: the identity of the lot (`Lot.draw`).
            source: the pass over a loader that hands out the lot; None for a single lot.

        Raises:
            RuntimeError: if the same pass handed out a lot before, and no step was taken with it.

        Example:
            >>> optimizer.expect(lot.draw)                           # doctest: +SKIP
            >>> grad_sample_module(lot.records).sum().backward()     # doctest: +SKIP
            >>> optimizer.step()                                     # doctest: +SKIP
        """
        handed_over = self._between_steps.next
        before, handed_over.expected, handed_over.begun = handed_over.expected, None, None
        self._step_skip_queue.clear()
        if before is not None and source is not None and before[1] is source:
            raise RuntimeError(
                "the batch before this one was left without a step. Every batch takes one, also an empty one: otherwise "
                "the records would decide which lots are left out. Begin the loop over the loader anew; nothing was charged"
            )
        handed_over.expected = (draw, source)

    def set_gradients(
        self,
        *gradients: Gradients,
        data_free: Sequence[DataFree] = (),
        metrics: Callable[[OpenAccess], object] | None = None,
    ) -> None:
        """Take the gradients of the lot for the next `step`, one for each term, in the order of the rules.

        Args:
            gradients: the gradients of the terms that see records.
            data_free: further terms of this step, which see none.
            metrics: where the plan has a noise named ``metrics`` (`training_stage`), draws it: it is called with the open
                access of the step, when all parts of the lot have been computed.
        """
        step = self._between_steps.next
        step.gradients, step.data_free, step.metrics = gradients, tuple(data_free), metrics

    def set_expected_gradients(self, compute: Callable[[LotId], PerSampleGradients]) -> None:
        """Take the gradients of the lot that `expect` has named, or of a part of it, for the next `step`.

        Args:
            compute: computes them for the draw of that lot.

        Raises:
            LedgerError: if no lot was named since the last step.
            RuntimeError: for a second backward pass before a step.
        """
        step = self._between_steps.next
        if step.expected is None:
            raise LedgerError(
                "no lot was drawn for this batch since the last step: take the loader of "
                "AccountEngine(account).make_private(...), which draws one for each step. Nothing was charged"
            )
        if step.gradients is not None:
            raise RuntimeError(
                "a second backward pass before a step: a batch has one loss, and one step; call zero_grad() to begin it "
                "anew. Nothing was charged"
            )
        self.set_gradients(compute(step.expected[0]))

    def compute_gradients(
        self,
        network: nn.Module,
        term: PerRecord | PerGroup,
        lot: Lot,
        engine: str = "ghost",
        logged: dict[str, Any] | None = None,
        capture: bool = True,
    ) -> PerSampleGradients:
        """Compute the gradients of a term for `set_gradients`; see `term_gradients`.

        Lots of the same number of slots are captured from the second one on, where the Python of the loss does the same in
        each step (`gradients/captured.py`): `captured` says so, or why not. Captured gradients hold until the next ones are
        computed: take the step, or add a part, before.

        Args:
            logged: a dict into which the loss writes values by name, the same names each time; a captured step does it in
                its place.
            capture: whether lots in slots may be captured.
        """
        stream = self._account.stream
        if not capture:
            return term_gradients(network, term, lot, stream, engine=engine)
        logged = {} if logged is None else logged
        return self._captures.gradients(network, term, lot, stream, engine, logged, self._unfit_for_capture())

    def _unfit_for_capture(self) -> str | None:
        """Return why steps are never captured, in words: a captured one gives one norm a record, over all parameters."""
        rule = self._rules[0]
        if self._buffer.sharded:
            return "parameters are sharded"
        if len(self._rules) > 1:
            return "a step has several terms"
        if type(rule.scope) is not Flat:
            return f"there are several bounds in a step ({type(rule).__name__})"
        return "the gradients of a person are summed before they are clipped (PerPerson)" if rule.by_person else None

    @property
    def slots(self) -> int | None:
        """The number of rows in which the last lot, or its last part, was laid out; None for as many as it has records."""
        return self._captures.slots

    @property
    def captured(self) -> str | None:
        """In words, if steps are captured or why not; None before the second lot in slots."""
        return self._captures.in_words

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Drop all that was computed for a step: gradients that were handed over, ``grad_sample`` and ``grad``."""
        step = self._between_steps.next
        step.gradients, step.data_free, step.metrics = None, (), None
        # The begun lot stays: BatchMemoryManager's loop comes here between two of its parts.
        for p in self.params:
            p.grad_sample = None
        self._torch_optimizer.zero_grad(set_to_none)

    @property
    def accumulated_iterations(self) -> int:
        """The number 1, always: a lot is one access, however its gradients were computed."""
        return 1

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Turn the lot's gradients into ``p.grad``, for `step`; return False if more parts of the lot are to come."""
        params = self.params
        step = self._take_handed_over(params)
        gradients = self._check_step(step, params)
        draw, begun = gradients[0].draw, step.begun
        rows = self._rows(gradients, draw, begun and begun[1], all_of_it=not (step.from_engine or step.more))
        # A part of a lot that Opacus' BatchMemoryManager has cut.
        if step.more:
            self._account.check_draw(self._stage, draw)
            self._add_part(gradients, begun is not None)
            self._between_steps.next.begun, self._between_steps.next.expected = (draw, rows), step.expected
            self._is_last_step_skipped = True
            return False
        try:
            with self._account.open(self._stage, draw=draw) as access:
                bounds = privatize(
                    list(zip(gradients, self._rules, strict=True)),
                    access,
                    self.expected_batch_size,
                    self._buffer,
                    self._between_steps.bounds,
                    add=begun is not None,
                )
                if step.metrics is not None:
                    step.metrics(access)
        except BaseException:
            # The buffer holds sums without noise.
            self._buffer.flat.zero_()
            raise
        self._between_steps.bounds = bounds
        noisy = self._buffer.gradients()
        for p, gradient in noisy.items():
            p.grad = gradient
        if step.data_free:
            self._add_data_free(step.data_free)
        if self.step_hook:
            self.step_hook(self)
            for p, gradient in noisy.items():
                # A gradient that the hook has put in its place is not in the optimizer's flat tensor.
                if p.grad is not None and p.grad is not gradient:
                    gradient.copy_(p.grad)
        self._is_last_step_skipped = False
        return True

    def _take_handed_over(self, params: Sequence[Any]) -> _Step:
        """Take what was handed over for a step: if anything fails from here on, the next one needs a lot of its own."""
        step, self._between_steps.next = self._between_steps.next, _Step()
        # BatchMemoryManager announces before each part of a lot whether more of them are to come.
        step.announced, self._step_skip_queue[:] = self._step_skip_queue[:], []
        step.more = bool(step.announced) and step.announced[-1]
        samples = []
        for p in params:
            samples.append(getattr(p, "grad_sample", None))
            # p.grad of the step before is the buffer, to which a backward pass for a later part would add unclipped ones.
            p.grad = p.grad_sample = None
        step.from_engine = step.gradients is not None
        if not step.from_engine:
            step.gradients = (self._from_grad_sample(samples, step.expected and step.expected[0]),)
            if step.expected is None:
                raise LedgerError(
                    "grad_sample does not say which records it belongs to, and no lot was drawn for it since the last "
                    "step: take the loader of AccountEngine(account).make_private(...), which draws one for each step, or "
                    "a lot of PoissonLots and expect(lot.draw); under BatchMemoryManager the loader has num_workers=0. "
                    "Nothing was charged"
                )
        step.data_free = self._data_free + step.data_free
        return step

    def _check_step(self, step: _Step, params: Sequence[nn.Parameter]) -> Sequence[Gradients]:
        """Return the gradients of a step; refuse those of other parameters, or of another lot than the parts before."""
        assert step.gradients is not None, "those of an engine, or of grad_sample"
        if not step.more and (METRICS in self._account.plan.stage(self._stage).access.multipliers) != bool(step.metrics):
            raise RuntimeError(
                f"stage {self._stage!r} of the plan {'lists no' if step.metrics else 'lists the'} noise {METRICS!r}: a "
                "plan with it needs set_gradients(..., metrics=...), and no other takes that. Nothing was charged"
            )
        self._check(step.gradients, params)
        if self._buffer.sharded:
            check_shards(params, self._account.ranks)
            if step.data_free or not step.from_engine:
                raise RuntimeError(
                    "parameters are sharded: expected set_gradients(term_gradients(...)), of terms that see records (no "
                    "grad_sample, and no DataFree term). Nothing was charged"
                )
        if self._flat is not None:
            self._flat.attach()
        if len(step.announced) > 1 and (step.begun is not None or any(step.announced)):
            raise RuntimeError(
                f"{len(step.announced)} parts were announced, and one is passed: another has failed, or the loader works "
                "ahead (use num_workers=0), so it is not known which part this is. Begin the loop anew. The begun lot is "
                "dropped; nothing was charged"
            )
        if step.begun is not None and step.begun[0] is not step.gradients[0].draw:
            raise RuntimeError(
                "these gradients are of another lot than the parts that were passed before: parts of one lot share its "
                "draw (Lot.map keeps it), or come from one pass over a loader. The begun lot is dropped; nothing was "
                "charged"
            )
        return step.gradients

    @staticmethod
    def _rows(gradients: Sequence[Gradients], draw: LotId, before: Sequence[int] | None, *, all_of_it: bool) -> list[int]:
        """Count the records that each term has seen of a lot, with those of the parts before; refuse more than were drawn.

        `MicroBatches` count their own records, and groups are no records. `all_of_it` refuses fewer, too: for
        ``grad_sample`` nothing else is known.
        """
        rows = list(before or [0] * len(gradients))
        for i, of_term in enumerate(gradients):
            if of_term.groups is None and not isinstance(of_term, MicroBatches):
                rows[i] += len(of_term.rows if isinstance(of_term, EmbeddingGradients) else of_term)
        # Their number is private, so no message says it. A draw without a size was not issued, and opens no access.
        if draw.size is not None and max(rows) > draw.size:
            raise RuntimeError(
                "these gradients are of more records than their lot has: each record counts once. Nothing was charged"
            )
        if all_of_it and rows != [draw.size]:
            raise RuntimeError(
                "grad_sample has fewer rows than the lot that was drawn for this step has records: it is of another batch, "
                "or records were left out. Compute it of each batch as the loader gives it, and step before the next one. "
                "Nothing was charged"
            )
        return rows

    def _add_part(self, gradients: Sequence[Any], begun: bool) -> None:
        """Add the clipped gradients of one part of a lot to the buffer."""
        number = self._account.step_of(self._stage)
        for of_term, rule in zip(gradients, self._rules, strict=True):
            if rule.by_person:
                of_term = of_term.of_persons(self._account.plan.max_rows)
            norms = rule.scope.norms(of_term)
            bounds = rule.ahead(number, norms) if self._account.plan.private else (math.inf,) * len(norms.columns)
            if bounds is None:
                raise RuntimeError(
                    f"{type(rule).__name__} chooses its bound from the whole lot, and BatchMemoryManager passes parts: "
                    "call set_gradients(MicroBatches(...)), which goes through them twice, or choose a rule whose bound "
                    "is known before"
                )
            add_clipped(of_term, rule, bounds, self.expected_batch_size, self._buffer, add=begun)
            begun = True

    def _from_grad_sample(self, samples: Sequence[Tensor | list[Tensor] | None], draw: LotId | None) -> PerSampleGradients:
        """Return the gradients that Opacus has left in ``grad_sample``."""
        missing = [i for i, gradient in enumerate(samples) if gradient is None]
        if missing:
            raise RuntimeError(
                f"parameters {missing[:5]} (of {len(self.params)}) have no per-record gradient: call set_gradients(...) "
                "with an engine's gradients, or let Opacus fill grad_sample, before step()"
            )
        if any(isinstance(gradient, list) and len(gradient) > 1 for gradient in samples):
            raise RuntimeError(
                "grad_sample holds several backward passes; each would be clipped by itself, as if its records were "
                "others. Call backward once a step, on the sum of the losses"
            )
        gradients = {
            p: g[0] if isinstance(g, list) else g for p, g in zip(self.params, samples, strict=True) if g is not None
        }
        # It is not known whose the rows are that are but a part of the lot.
        persons = None if draw is None or len(next(iter(gradients.values()))) != draw.size else draw.persons
        return materialised(gradients, draw, persons=None if persons is None else torch.from_numpy(persons))

    def _check(self, gradients: Sequence[Gradients], params: Sequence[nn.Parameter]) -> None:
        """Refuse gradients that are not of all parameters; any other would keep an old gradient, or one never clipped."""
        if len(gradients) != len(self._rules):
            raise RuntimeError(
                f"gradients of {len(gradients)} terms were passed, for {len(self._rules)} clipping rules: expected one "
                "rule for each term"
            )
        mine = set(map(id, params))
        if mine != set(map(id, self._buffer.views)):
            raise RuntimeError(
                "parameters were frozen, thawed or added since this optimizer was made: make a new PrivateOptimizer on the "
                "same account"
            )
        for of_term, rule in zip(gradients, self._rules, strict=True):
            if of_term.draw is not gradients[0].draw:
                raise RuntimeError("the terms of a step must be of one lot: these gradients are of several draws")
            first = of_term.first() if isinstance(of_term, MicroBatches) else of_term
            theirs = set(map(id, first.parameters))
            if mine != theirs:
                raise RuntimeError(
                    f"the gradients are of {len(theirs)} parameters, and {len(mine & theirs)} of them are among the "
                    f"{len(mine)} of this optimizer: pass the gradients of exactly its parameters"
                )
            if isinstance(first, PerSampleGradients):
                rule.scope.check(first)
                if rule.by_person:
                    first.of_persons(self._account.plan.max_rows)

    def _add_data_free(self, terms: Sequence[DataFree]) -> None:
        """Add the plain gradients of terms that see no record."""
        for term in terms:
            gradients = torch.autograd.grad(term.loss(), self.params, allow_unused=True)
            for p, gradient in zip(self.params, gradients, strict=True):
                if gradient is not None:
                    p.grad.add_(gradient)

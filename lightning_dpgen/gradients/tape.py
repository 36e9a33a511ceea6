"""Traced parameters, which take the place of a network's own, and the tape that sees every use of one.

While the loss of a lot is computed, each trainable parameter is replaced by a traced one. A function of torch that meets
one asks the tape: a rule (`tape_rules`) computes the result with the parameter out of the graph, and notes how each
record's gradient follows from the gradient of the result, once that is known. So it makes no difference which layer holds a
parameter, how often it is used, or whether a layer holds it at all. A tensor that is computed from parameters alone (a
transpose, a masked or normalised weight) is traced, too, and gradients are carried back to the parameters at the end.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch

from lightning_dpgen.gradients.component_factors import sum_factors
from lightning_dpgen.gradients.factors import Dense, GradientFactors, masked
from lightning_dpgen.gradients.isolation.hidden import SelfRuledTensor, is_hidden
from lightning_dpgen.gradients.isolation.isolation import Isolation
from lightning_dpgen.gradients.isolation.unknown_functions import NO_NUMBERS
from lightning_dpgen.gradients.shards import FrozenParameter, GatheredParameters, is_sharded
from lightning_dpgen.sampling.randomness import generator_states
from lightning_dpgen.sampling.trees import leaves_of, map_tree

# A note turns the gradient of an output, one row a record, into gradients with respect to some sources. (A recurrent layer
# hands it the gradients of its gates.)
Note = Callable[[Any], Iterable[tuple[Tensor, GradientFactors]]]
# A rule takes the tape and the function's arguments, and returns the result, or NotImplemented.
Rule = Callable[..., Any]

# Functions that give a parameter's own memory, and the one that replaces it.
_APART, _SET_DATA = (Tensor.data.__get__, Tensor.detach), Tensor.data.__set__
# Functions that multiply one tensor by another, number by number.
_PRODUCTS = {torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__}
_WRITTEN = (
    "the loss writes into a parameter (under no_grad, or its .data): that would carry what it has seen of records past the "
    "noise. Initialise parameters from public numbers, before training"
)


def _refuse_second(gradient: Any) -> Iterable[tuple[Tensor, GradientFactors]]:
    raise RuntimeError("a result of the loss receives a second gradient: take the gradients of a loss once")


class _Noted(torch.autograd.Function):
    """A function that passes a result on and tells the tape its gradient, also if the result is later changed in place."""

    @staticmethod
    def forward(ctx, output, seed, receive):
        ctx.receive = receive
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx, gradient):
        ctx.receive(gradient)
        # The seed is asked for so that the backward pass comes here; it needs no gradient.
        return gradient, None, None


class TracedParameter(SelfRuledTensor):
    """A tensor in the place of a parameter, or of what was computed from parameters alone.

    Attributes:
        tape: the tape, which is told of each use.
        source: the plain tensor with respect to which gradients are noted.
        transpose_of: the source of the traced matrix that this one is the transpose of; None for any other tensor.
    """

    tape: Tape
    source: Tensor
    transpose_of: Tensor | None

    @staticmethod
    def of(source: Tensor, tape: Tape, transpose_of: Tensor | None = None) -> TracedParameter:
        """Trace a plain tensor on a tape."""
        # It requires a gradient, so that the graph shows code that goes round the functions of torch.
        self = Tensor._make_subclass(TracedParameter, source, True)
        self.tape, self.source, self.transpose_of = tape, source, transpose_of
        return self

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for x in (*args, *kwargs.values()):
            if isinstance(x, TracedParameter):
                return x.tape.use(function, args, kwargs)
        inside = next(x for x in leaves_of((args, kwargs)) if isinstance(x, TracedParameter))
        return inside.tape.use(function, args, kwargs)


class Tape:
    """The uses of parameters in one forward pass of a lot.

    Args:
        isolation: the isolation that the loss is called in, so that it sees a lot of one record.
        rules: the rule of each function of torch; None for one that is handed a copy of each parameter for each record.
        say: is told the names of functions without an entry, which are handed such copies, too.
    """

    def __init__(self, isolation: Isolation, rules: Mapping[Callable, Rule | None], say: Callable[[str], None]) -> None:
        self.isolation = isolation
        self._rules, self._say = rules, say
        # All noted results lead to the seed, so gradients are taken with respect to it.
        self._seed = torch.zeros((), requires_grad=True)
        self._notes: list[Note] = []
        self._received: dict[int, Any] | None = None
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._leaves: dict[nn.Parameter, TracedParameter] = {}
        # By the identity of a product of a traced tensor and constants: the product, the traced one's source, these.
        self._masks: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        # Tensors that share a parameter's memory or are copies of one, and their versions then.
        self._handed: list[tuple[Tensor, int]] = []
        # None where no parameter is sharded.
        self._gathered: GatheredParameters | None = None

    def frozen(self, parameter: nn.Parameter) -> FrozenParameter:
        """Return what takes the place of a frozen parameter that is divided over ranks."""
        self._gathered = self._gathered or GatheredParameters(self.isolation)
        return self._gathered.frozen(parameter)

    def trace(self, layers: Iterable[Iterable[nn.Parameter]], in_ranks: bool = False) -> Mapping[nn.Parameter, Tensor]:
        """Trace the parameters of some layers; return the traced one in the place of each.

        Args:
            in_ranks: whether some may be divided over ranks.
        """
        for layer in layers:
            for parameter in layer:
                if in_ranks and is_sharded(parameter):
                    self._gathered = self._gathered or GatheredParameters(self.isolation)
                    source = self._gathered.stand_in(parameter)
                else:
                    source = parameter.detach().requires_grad_()
                self._leaves[parameter] = TracedParameter.of(source, self)
                self._handed.append((parameter, parameter._version))
        return self._leaves

    def rows(self, x: Any) -> Tensor | None:
        """Return the records (B, ...) behind what the loss sees as one; None for a tensor that holds no record."""
        return self.isolation.rows(x)

    def note(self, compute: Callable[[], Tensor], note: Note, seen: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Compute a result for all records, and return the one that the loss is to see.

        Args:
            compute: returns the result.
            note: is called with the gradient of the result.
            seen: reshapes the result to (B, ...), where it has another shape.
        """
        with self.isolation.outside():
            output = _Noted.apply(compute(), *self.expect(note))
            output = output if seen is None else seen(output)
        return self.isolation.hide(output)

    def expect(self, note: Note) -> tuple[Tensor, Callable[[Any], None]]:
        """Return the seed that a function of autograd is to take, and what it is to call with a gradient for `note`."""
        self._notes.append(note)
        return self._seed, functools.partial(self._receive, len(self._notes) - 1)

    def _receive(self, place: int, gradient: Any) -> None:
        """Take the gradient of a noted result; the backward pass calls this."""
        if self._received is None:
            raise RuntimeError(
                "this loss takes a gradient by itself (autograd.grad, backward), and how that depends on the parameters is "
                "not seen: use engine='func' for torch.autograd.grad, or write that gradient out"
            )
        # It is not kept, nor are the layer's inputs: those of all layers together would be most of a step's memory.
        self._received[place], self._notes[place] = list(self._notes[place](gradient)), _refuse_second

    def use(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Replace a call of `function` that has traced parameters among its arguments."""
        is_complex, is_other = False, self._received is not None
        for x in (*args, *kwargs.values()):
            if isinstance(x, TracedParameter):
                is_complex, is_other = is_complex or x.source.is_complex(), is_other or x.tape is not self
        if is_other:
            raise RuntimeError(
                "something computed from a parameter was kept from an earlier lot, so its gradient is lost: compute it "
                "anew in each call"
            )
        if not self.isolation.is_innermost:
            raise ValueError(
                "a parameter is used inside of a transform of torch.func, where its gradients by record cannot be seen: "
                "use engine='func'"
            )
        if function == _SET_DATA:
            raise RuntimeError(_WRITTEN)
        if self._gathered is None or function in NO_NUMBERS:
            return self._use(function, args, kwargs, is_complex)
        sources = [x.source for x in leaves_of((args, kwargs)) if isinstance(x, TracedParameter)]
        with self._gathered.present(self._gathered.among(sources)), self._gathered.packing():
            return self._use(function, args, kwargs, is_complex)

    def _use(self, function: Callable, args: tuple, kwargs: dict[str, Any], is_complex: bool) -> Any:
        if function in _APART or not torch.is_grad_enabled():
            # A loss that wrote into a parameter would leave there what it made of records, so it gets copies.
            args, kwargs = map_tree(lambda x: self._copy(x) if isinstance(x, TracedParameter) else x, (args, kwargs))
            return args[0] if function in _APART else self.isolation.call(function, args, kwargs)
        # Rules are those of real numbers.
        rule = None if is_complex else self._rules.get(function)
        fits = rule is not None and (not kwargs or _takes(rule, kwargs))
        result = rule(self, *args, **kwargs) if fits else NotImplemented
        if result is not NotImplemented:
            return result
        if any(map(is_hidden, args)) or any(map(is_hidden, leaves_of((args, kwargs)))):
            if function not in self._rules:
                self._say(getattr(function, "__name__", str(function)))
            return self._with_copies(function, args, kwargs)
        return self._of_parameters(function, args, kwargs)

    def _with_copies(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call a function with a copy of each parameter for each record."""
        copies = map_tree(lambda x: self.copied(x) if isinstance(x, TracedParameter) else x, (args, kwargs))
        return self.isolation.call(function, *copies)

    def _of_parameters(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call a function of parameters alone once for all records; one that draws (their dropout) once for each record."""
        sources = [x.source for x in leaves_of((args, kwargs)) if isinstance(x, TracedParameter)]
        versions, states = [x._version for x in sources], generator_states()
        plain = map_tree(lambda x: x.source if isinstance(x, TracedParameter) else x, (args, kwargs))
        with self.isolation.outside():
            result = function(*plain[0], **plain[1])
            if generator_states() == states:
                self._remember_mask(function, args, result)
                return map_tree(
                    lambda x: TracedParameter.of(x, self) if isinstance(x, Tensor) and x.requires_grad else x, result
                )
        if [x._version for x in sources] != versions:
            raise ValueError(
                f"the loss calls {getattr(function, '__name__', function)}, which writes random numbers into what was "
                "computed from parameters, which all records would share: leave inplace out"
            )
        return self._with_copies(function, args, kwargs)

    def _remember_mask(self, function: Callable, args: tuple, result: Any) -> None:
        """Remember a product of a traced tensor and constants: its gradients are carried back without being written out."""
        if function not in _PRODUCTS or len(args) != 2:
            return
        traced, other = args if isinstance(args[0], TracedParameter) else args[::-1]
        constant = isinstance(other, int | float) or (isinstance(other, Tensor) and not other.requires_grad)
        if constant and result.shape == traced.source.shape and result.is_floating_point():
            mask = torch.as_tensor(other, device=result.device)
            # A mask that the loss changes later has been used as it was.
            self._masks[id(result)] = (result, traced.source, mask.to(result.dtype, copy=True).expand(result.shape))

    def copied(self, parameter: TracedParameter) -> Tensor:
        """Give each record a copy of a parameter, without memory of its own: a copy's gradient is that of its record."""
        source = parameter.source
        with self.isolation.outside():
            copy = source.detach().expand(self.isolation.size, *source.shape).requires_grad_()
            self._copies.append((copy, source))
            # The loss may write into what it holds, so it gets a view.
            seen = copy.view_as(copy)
        return self.isolation.hide(seen)

    def _copy(self, x: TracedParameter) -> Tensor:
        copy = x.source.detach().clone()
        # Under inference_mode torch counts no versions, and a copy is of no use afterwards.
        if not copy.is_inference():
            self._handed.append((copy, copy._version))
        return copy

    def check_unwritten(self) -> None:
        """Check that nothing was written into a parameter.

        Raises:
            RuntimeError: if the loss has written into one.
        """
        for x, version in self._handed:
            if x._version != version:
                raise RuntimeError(_WRITTEN)

    @property
    def used(self) -> bool:
        """True if records and parameters have met."""
        return bool(self._notes or self._copies)

    def gradients(self, losses: Tensor) -> dict[nn.Parameter, GradientFactors]:
        """Return the gradients of the losses (B,) with respect to the parameters that they depend on.

        Raises:
            RuntimeError: if a parameter was used where its use cannot be traced.
        """
        self.check_unwritten()
        with self.isolation.backward():
            return self._gradients(losses)

    def _gradients(self, losses: Tensor) -> dict[nn.Parameter, GradientFactors]:
        inputs = [self._seed]
        for copy, _ in self._copies:
            inputs.append(copy)
        for p, traced in self._leaves.items():
            inputs += p, traced, traced.source
        self._received = {}
        with torch._C.DisableTorchFunctionSubclass():
            of_copies = torch.autograd.grad(losses.sum(), inputs, allow_unused=True)[1:]
        for gradient in of_copies[len(self._copies) :]:
            if gradient is not None:
                raise RuntimeError(
                    "a parameter is used where its gradients by record cannot be seen (an autograd.Function, an extension, "
                    "written into another tensor): use engine='func', or torch's functions without writing in place"
                )
        by_source: dict[int, tuple[Tensor, list[GradientFactors]]] = {}
        for _, noted in sorted(self._received.items()):
            for source, factors in noted:
                by_source.setdefault(id(source), (source, []))[1].append(factors)
        for (_, source), gradient in zip(self._copies, of_copies, strict=False):
            if gradient is not None:
                by_source.setdefault(id(source), (source, []))[1].append(Dense(gradient))
        return self._carried_back(by_source)

    def close(self) -> None:
        """Let go of all tensors: notes lead through the graph back to this tape, a cycle that no collector sees."""
        self._received = {}
        for held in (self._notes, self._copies, self._leaves, self._masks, self._handed):
            held.clear()
        if self._gathered is not None:
            self._gathered.clear()

    def _carried_back(
        self, by_source: Mapping[int, tuple[Tensor, list[GradientFactors]]]
    ) -> dict[nn.Parameter, GradientFactors]:
        """Carry gradients from sources back to parameters, through what was computed from parameters alone."""
        leaves = {}
        for p, traced in self._leaves.items():
            leaves[id(traced.source)] = p, traced.source
        gradients: dict[nn.Parameter, list[GradientFactors]] = {}
        for source, uses in by_source.values():
            total = uses[0] if len(uses) == 1 else sum_factors(uses)
            while id(source) in self._masks:
                _, source, mask = self._masks[id(source)]
                total = masked(total, mask)
            if id(source) in leaves:
                gradients.setdefault(leaves[id(source)][0], []).append(total)
                continue
            of_leaves = torch.autograd.grad(
                source,
                [leaf for _, leaf in leaves.values()],
                total.materialise(),
                is_grads_batched=True,
                allow_unused=True,
                retain_graph=True,
            )
            for (parameter, _), gradient in zip(leaves.values(), of_leaves, strict=True):
                if gradient is not None:
                    gradients.setdefault(parameter, []).append(Dense(gradient))
        sums = {}
        for parameter, uses in gradients.items():
            sums[parameter] = uses[0] if len(uses) == 1 else sum_factors(uses)
        return sums


def _takes(rule: Rule, keywords: Mapping[str, Any]) -> bool:
    """Return True if a rule knows these keywords; a call with another is treated as one of a function without a rule."""
    names, any_name = _keywords(rule)
    return any_name or all(name in names for name in keywords)


@functools.cache
def _keywords(rule: Rule) -> tuple[frozenset[str], bool]:
    parameters = inspect.signature(rule).parameters
    return frozenset(parameters), any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def value_of(x):
    """Return the plain tensor behind a traced parameter, without a gradient; anything else as it is."""
    return x.source.detach() if isinstance(x, TracedParameter) else x


def records_behind(tape: Tape, x, least: int, *parameters) -> Tensor | None:
    """Return the records (B, ...) behind an input, or None where no rule is right.

    Args:
        least: the fewest dimensions of a record; with fewer, that of the lot would be taken for one of them.
        parameters: the other arguments; a rule knows only traced parameters and public tensors among them.
    """
    rows = tape.isolation.rows(x)
    if rows is None or rows.dim() <= least:
        return None
    # `is_hidden`, written out: each layer comes here.
    for p in parameters:
        if isinstance(p, Tensor) and _functorch.is_functorch_wrapped_tensor(p):
            return None
    return rows


def factor_dtype(gradient: Tensor, parameter: TracedParameter) -> torch.dtype:
    """Return the type in which factors are held: bfloat16, if the output is (`products`), or that of the parameter."""
    return gradient.dtype if gradient.dtype == torch.bfloat16 else parameter.source.dtype


def sum_by_channel(gradient: Tensor, size: int, like: Tensor) -> Dense:
    """Return the gradient (B, channels) of one number for each channel, from that of the result (B q, channels, ...)."""
    by_channel = gradient.reshape(size, -1, *gradient.shape[1:2], gradient[0, 0].numel())
    return Dense(by_channel.sum(dim=(1, 3), dtype=like.dtype))

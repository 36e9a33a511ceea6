"""Stand-ins for the parameters of a network, through which every use of a parameter is seen.

While the loss of a lot is computed, each trainable parameter is replaced by a stand-in. A function of torch that meets
one asks the tape: a rule (`rules.py`) computes the result with the parameter out of the graph, and notes what each
record's gradient follows from, once the gradient of the result is known. So it makes no difference which layer holds a
parameter, how often it is used, or whether a layer holds it at all. What is computed of parameters alone (a transpose, a
masked or normalised weight) is a stand-in again, and gradients are carried back to the parameters at the end.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from lightning_dpgen.gradients.factors import Dense, GradientFactors, sum_factors
from lightning_dpgen.gradients.hidden import is_hidden
from lightning_dpgen.gradients.isolation import Isolation

# From the gradient of an output, one row a record, to gradients with respect to some sources.
Note = Callable[[Tensor], Iterable[tuple[Tensor, GradientFactors]]]
# Called as the function is, after the tape; gives its result, or NotImplemented.
Rule = Callable[..., Any]

# What gives a parameter's own memory, and what takes it away.
_APART, _SET_DATA = (Tensor.data.__get__, Tensor.detach), Tensor.data.__set__
_WRITTEN = (
    "the loss writes into a parameter (under no_grad, or its .data): that would carry what it has seen of records past the "
    "noise. Initialise parameters from public numbers, before training"
)


class _Noted(torch.autograd.Function):
    """Passes a result on, and tells the tape its gradient: also where whoever has it changes it in place afterwards."""

    @staticmethod
    def forward(ctx, output, seed, tape, place):
        ctx.tape, ctx.place = tape, place
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx, gradient):
        ctx.tape.receive(ctx.place, gradient)
        return gradient, gradient.new_zeros(()), None, None


class TracedParameter(Tensor):
    """In place of a parameter, or of what was computed of parameters alone.

    Attributes:
        tape: is told of each use.
        source: the plain tensor with respect to which gradients are noted.
        turned: where this is the transpose of another stand-in's matrix, that one's source.
    """

    tape: Tape
    source: Tensor
    turned: Tensor | None

    @staticmethod
    def of(source: Tensor, tape: Tape, turned: Tensor | None = None) -> TracedParameter:
        with torch._C.DisableTorchFunctionSubclass():
            # Requires a gradient so that whoever goes round the functions of torch is found out in the graph.
            self = source.detach().as_subclass(TracedParameter).requires_grad_()
        self.tape, self.source, self.turned = tape, source, turned
        return self

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inside = next((x for x in (*args, *kwargs.values()) if isinstance(x, TracedParameter)), None)
        if inside is None:
            inside = next(x for x in tree_leaves((args, kwargs)) if isinstance(x, TracedParameter))
        return inside.tape.use(function, args, kwargs)


class Tape:
    """What parameters were used for in one forward pass of a lot.

    Args:
        isolation: in which the loss is called, so that it sees a lot of one record.
        rules: how functions of torch are taped; None for those that are handed a copy of each parameter for each record.
        say: is told the names of functions that are not among them, and are handed such copies too.
    """

    def __init__(self, isolation: Isolation, rules: Mapping[Callable, Rule | None], say: Callable[[str], None]) -> None:
        self.isolation = isolation
        self._rules, self._say = rules, say
        # Gradients are asked of it: all results that are noted lead there.
        self._seed = torch.zeros((), requires_grad=True)
        self._notes: list[Note] = []
        self._received: dict[int, Tensor] | None = None
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._leaves: dict[nn.Parameter, TracedParameter] = {}
        # What shares a parameter's memory or is a copy of it, and its version then.
        self._handed: list[tuple[Tensor, int]] = []

    def stand_in(self, parameter: nn.Parameter) -> TracedParameter:
        """The one stand-in of a parameter."""
        if parameter not in self._leaves:
            self._leaves[parameter] = TracedParameter.of(parameter.detach().requires_grad_(), self)
            self._handed.append((parameter, parameter._version))
        return self._leaves[parameter]

    def rows(self, x: Any) -> Tensor | None:
        """(B, ...), the records that are behind what the loss sees as one; None for what holds no record."""
        return self.isolation.rows(x)

    def note(self, compute: Callable[[], Tensor], note: Note, seen: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Compute a result for all records, and give the part of it that the loss is to see.

        Args:
            compute: gives the result.
            note: is called with its gradient.
            seen: turns the result into (B, ...), where it has another shape.
        """
        with self.isolation.outside():
            self._notes.append(note)
            output = _Noted.apply(compute(), self._seed, self, len(self._notes) - 1)
            output = output if seen is None else seen(output)
        return self.isolation.hide(output)

    def receive(self, place: int, gradient: Tensor) -> None:
        """Called in the backward pass."""
        if self._received is None:
            raise RuntimeError(
                "this loss takes a gradient by itself (autograd.grad, backward), and how that depends on the parameters is "
                "not seen: write that gradient out, or use torch.func.grad for it and engine='func'"
            )
        self._received[place] = gradient

    def use(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """In place of a call of `function` that stand-ins take part in."""
        if self._received is not None or any(isinstance(x, TracedParameter) and x.tape is not self for x in args):
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
        if function in _APART or not torch.is_grad_enabled():
            # Copies: a loss that writes into a parameter would leave there what it made of records.
            args, kwargs = tree_map(lambda x: self._copy(x) if isinstance(x, TracedParameter) else x, (args, kwargs))
            return args[0] if function in _APART else function(*args, **kwargs)
        rule = self._rules.get(function)
        fits = rule is not None and (not kwargs or _takes(rule, kwargs))
        result = rule(self, *args, **kwargs) if fits else NotImplemented
        if result is not NotImplemented:
            return result
        if any(map(is_hidden, args)) or any(map(is_hidden, tree_leaves((args, kwargs)))):
            if function not in self._rules:
                self._say(getattr(function, "__name__", str(function)))
            copies = tree_map(lambda x: self.copied(x) if isinstance(x, TracedParameter) else x, (args, kwargs))
            return self.isolation.call(function, *copies)
        args, kwargs = tree_map(lambda x: x.source if isinstance(x, TracedParameter) else x, (args, kwargs))
        with self.isolation.outside():
            result = function(*args, **kwargs)
            return tree_map(
                lambda x: TracedParameter.of(x, self) if isinstance(x, Tensor) and x.requires_grad else x, result
            )

    def copied(self, parameter: TracedParameter) -> Tensor:
        """A copy of a parameter for each record, without memory of its own: the gradient of a copy is a record's."""
        source = parameter.source
        with self.isolation.outside():
            copy = source.detach().expand(self.isolation.size, *source.shape).requires_grad_()
            self._copies.append((copy, source))
            # A view of it: the loss may write into what it holds.
            seen = copy.view_as(copy)
        return self.isolation.hide(seen)

    def _copy(self, x: TracedParameter) -> Tensor:
        copy = x.source.detach().clone()
        # Under inference_mode torch counts no versions, and a copy is of no use afterwards.
        if not copy.is_inference():
            self._handed.append((copy, copy._version))
        return copy

    def check_unwritten(self) -> None:
        """See that nobody has written into a parameter.

        Raises:
            RuntimeError: if somebody has.
        """
        if any(x._version != before for x, before in self._handed):
            raise RuntimeError(_WRITTEN)

    @property
    def used(self) -> bool:
        """Whether records and parameters have met."""
        return bool(self._notes or self._copies)

    def gradients(self, losses: Tensor) -> dict[nn.Parameter, GradientFactors]:
        """The gradients of (B,) losses, of those parameters that the losses depend on.

        Raises:
            RuntimeError: if a parameter was used where stand-ins do not see it.
        """
        self.check_unwritten()
        with self.isolation.backward():
            return self._gradients(losses)

    def _gradients(self, losses: Tensor) -> dict[nn.Parameter, GradientFactors]:
        copies = [copy for copy, _ in self._copies]
        unseen = [x for p, stand_in in self._leaves.items() for x in (p, stand_in, stand_in.source)]
        self._received = {}
        with torch._C.DisableTorchFunctionSubclass():
            found = torch.autograd.grad(losses.sum(), [self._seed, *copies, *unseen], allow_unused=True)[1:]
        if any(gradient is not None for gradient in found[len(copies) :]):
            raise RuntimeError(
                "a parameter is used where its gradients by record cannot be seen (an autograd.Function, an extension, "
                "written into another tensor): use engine='func', or torch's functions without writing in place"
            )
        forms: dict[int, tuple[Tensor, list[GradientFactors]]] = {}
        for place, gradient in sorted(self._received.items()):
            for source, form in self._notes[place](gradient):
                forms.setdefault(id(source), (source, []))[1].append(form)
        for (_, source), gradient in zip(self._copies, found, strict=False):
            if gradient is not None:
                forms.setdefault(id(source), (source, []))[1].append(Dense(gradient))
        return self._carried_back(list(forms.values()))

    def close(self) -> None:
        """Let go of all tensors. What notes hold leads through the graph to this tape, round which no collector sees."""
        self._received = {}
        for held in (self._notes, self._copies, self._leaves, self._handed):
            held.clear()

    def _carried_back(self, found: list[tuple[Tensor, list[GradientFactors]]]) -> dict[nn.Parameter, GradientFactors]:
        """From sources to parameters: through what was computed of parameters alone."""
        leaves = {id(stand_in.source): (p, stand_in.source) for p, stand_in in self._leaves.items()}
        gradients: dict[nn.Parameter, list[GradientFactors]] = {}
        for source, forms in found:
            if id(source) in leaves:
                gradients.setdefault(leaves[id(source)][0], []).append(sum_factors(forms))
                continue
            each = torch.autograd.grad(
                source,
                [leaf for _, leaf in leaves.values()],
                sum_factors(forms).materialise(),
                is_grads_batched=True,
                allow_unused=True,
                retain_graph=True,
            )
            for (parameter, _), gradient in zip(leaves.values(), each, strict=True):
                if gradient is not None:
                    gradients.setdefault(parameter, []).append(Dense(gradient))
        return {parameter: sum_factors(forms) for parameter, forms in gradients.items()}


def _takes(rule: Rule, keywords: Mapping[str, Any]) -> bool:
    """Whether a rule knows these keywords; what it does not know goes the way of functions without one."""
    names, any_name = _keywords(rule)
    return any_name or all(name in names for name in keywords)


@functools.cache
def _keywords(rule: Rule) -> tuple[frozenset[str], bool]:
    parameters = inspect.signature(rule).parameters
    return frozenset(parameters), any(p.kind is p.VAR_KEYWORD for p in parameters.values())

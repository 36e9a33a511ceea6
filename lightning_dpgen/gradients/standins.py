"""Stand-ins for the parameters of a network, through which every use of a parameter is seen.

While the loss of a lot is computed, each trainable parameter is replaced by a stand-in. A function of torch that meets
one asks the tape: a rule (`rules.py`) computes the result with the parameter out of the graph, and notes what each
record's gradient follows from, once the gradient of the result is known. So it makes no difference which layer holds a
parameter, how often it is used, or whether a layer holds it at all. What is computed of parameters alone (a transpose, a
masked or normalised weight) is a stand-in again, and gradients are carried back to the parameters at the end.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from lightning_dpgen.gradients.forms import Form, Whole, combined

# From the gradient of an output, one row a record, to gradients with respect to some sources.
Note = Callable[[Tensor], Iterable[tuple[Tensor, Form]]]
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


class _Marked(torch.autograd.Function):
    """Passes records on, so that what is computed from them is known by its place in the graph."""

    @staticmethod
    def forward(ctx, records, seed):
        ctx.mark_dirty(records)
        return records

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient.new_zeros(())


class AmbiguousSize(ValueError):
    """A dimension that is not that of the records is as large as the lot: by chance, or by how the loss is made."""


class StandIn(Tensor):
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
    def of(source: Tensor, tape: Tape, turned: Tensor | None = None) -> StandIn:
        with torch._C.DisableTorchFunctionSubclass():
            # Requires a gradient so that whoever goes round the functions of torch is found out in the graph.
            self = source.detach().as_subclass(StandIn).requires_grad_()
        self.tape, self.source, self.turned = tape, source, turned
        return self

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inside = next((x for x in (*args, *kwargs.values()) if isinstance(x, StandIn)), None)
        if inside is None:
            inside = next(x for x in tree_leaves((args, kwargs)) if isinstance(x, StandIn))
        return inside.tape.use(function, args, kwargs)


class Tape:
    """What parameters were used for in one forward pass of a lot.

    Args:
        size: number of records, unlike any other size that tensors have here: a dimension of that size is that of records.
        rules: how functions of torch are taped.
        say: is told the names of functions that have no rule.

    Attributes:
        constants: sizes that tensors without records had; the size of a lot must be none of them.
        shapes: of what records and parameters gave, without the dimension of records: these must be public.
    """

    def __init__(self, size: int, rules: Mapping[Callable, Rule], say: Callable[[str], None]) -> None:
        self.size, self.constants = size, set()
        self._rules, self._say = rules, say
        # What gradients are asked of: all results that are noted lead to the first, records to the second alone.
        self._seed, self._of_records = torch.zeros((), requires_grad=True), torch.zeros((), requires_grad=True)
        self.shapes: list[tuple[int, ...]] = []
        self._notes: list[Note] = []
        self._received: dict[int, Tensor] | None = None
        self._copies: list[tuple[Tensor, Note]] = []
        self._leaves: dict[nn.Parameter, StandIn] = {}
        # What shares a parameter's memory or is a copy of it, and its version then.
        self._handed: list[tuple[Tensor, int]] = []

    def stand_in(self, parameter: nn.Parameter) -> StandIn:
        """The one stand-in of a parameter."""
        if parameter not in self._leaves:
            self._leaves[parameter] = StandIn.of(parameter.detach().requires_grad_(), self)
            self._handed.append((parameter, parameter._version))
        return self._leaves[parameter]

    def mark(self, x: Tensor) -> Tensor:
        """The same records, from which whatever is computed can be told."""
        return _Marked.apply(x.detach(), self._of_records) if x.is_floating_point() else x

    def note(self, output: Tensor, note: Note) -> Tensor:
        """Have `note` called with the gradient of `output`, (B, ...); gives what is to be used in its place."""
        self._notes.append(note)
        at = output.shape.index(self.size) if self.size in output.shape else len(output.shape)
        self.shapes.append((*output.shape[:at], *output.shape[at + 1 :]))
        return _Noted.apply(output, self._seed, self, len(self._notes) - 1)

    def note_copy(self, copy: Tensor, note: Note) -> Tensor:
        """As `note`, for a copy of a parameter for each record that nobody but the caller will hold."""
        self._copies.append((copy.requires_grad_(), note))
        return copy

    def receive(self, place: int, gradient: Tensor) -> None:
        """Called in the backward pass."""
        if self._received is None:
            raise RuntimeError(
                "this loss takes a gradient by itself (autograd.grad, backward), and how that depends on the parameters is "
                "not seen: write that gradient out, or use torch.func.grad for it and engine='func'"
            )
        self._received[place] = gradient

    def records_at(self, x: Any) -> int | None:
        """Which dimension of a tensor is that of records; None if it holds no record.

        Raises:
            ValueError: if it depends on records, and none of its dimensions is theirs.
        """
        if not isinstance(x, Tensor) or isinstance(x, StandIn):
            return None
        places = [i for i, n in enumerate(x.shape) if n == self.size]
        if len(places) == 1:
            return places[0]
        if places:
            raise AmbiguousSize(
                f"a tensor of shape {tuple(x.shape)} sets the {self.size} records of a lot against each other, and meets a "
                "parameter: the loss of a record may depend on that record alone"
            )
        if x.requires_grad and not x.is_leaf:
            raise ValueError(
                f"a tensor of shape {tuple(x.shape)} depends on the records of a lot, meets a parameter, and none of its "
                f"dimensions is that of the {self.size} records: keep them as a dimension of their own (x.flatten(1), not "
                "x.flatten(0, 1)), or use engine='func', which takes records one by one"
            )
        self.constants.update(x.shape)
        return None

    def use(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """In place of a call of `function` that stand-ins take part in."""
        if self._received is not None or any(isinstance(x, StandIn) and x.tape is not self for x in args):
            raise RuntimeError(
                "something computed from a parameter was kept from an earlier lot, so its gradient is lost: compute it "
                "anew in each call"
            )
        if function == _SET_DATA:
            raise RuntimeError(_WRITTEN)
        if function in _APART or not torch.is_grad_enabled():
            # Copies: a loss that writes into a parameter would leave there what it made of records.
            args, kwargs = tree_map(lambda x: self._copy(x) if isinstance(x, StandIn) else x, (args, kwargs))
            return args[0] if function in _APART else function(*args, **kwargs)
        rule = self._rules.get(function)
        fits = rule is not None and (not kwargs or _takes(rule, kwargs))
        result = rule(self, *args, **kwargs) if fits else NotImplemented
        if result is not NotImplemented:
            return result
        flat, spec = tree_flatten((args, kwargs))
        places = [self.records_at(x) for x in flat]
        if any(place is not None for place in places):
            return self._by_func(function, flat, places, spec)
        args, kwargs = tree_unflatten([x.source if isinstance(x, StandIn) else x for x in flat], spec)
        result = function(*args, **kwargs)
        return tree_map(lambda x: self._derived(x) if isinstance(x, Tensor) and x.requires_grad else x, result)

    def _copy(self, x: StandIn) -> Tensor:
        copy = x.source.detach().clone()
        self._handed.append((copy, copy._version))
        return copy

    def check_unwritten(self) -> None:
        """See that nobody has written into a parameter.

        Raises:
            RuntimeError: if somebody has.
        """
        if any(x._version != before for x, before in self._handed):
            raise RuntimeError(_WRITTEN)

    def _derived(self, x: Tensor) -> StandIn:
        if self.size in x.shape:
            raise AmbiguousSize(
                f"a parameter became a tensor of shape {tuple(x.shape)}, which has a dimension of the {self.size} records "
                "and is no function of theirs: broadcast it or use expand; keep records as a dimension of their own "
                "(x.flatten(1), not x.flatten(0, 1)), or use engine='func'"
            )
        return StandIn.of(x, self)

    def _by_func(self, function: Callable, flat: list, places: list[int | None], spec) -> Any:
        """The way for a function without a rule: each record's gradient by `torch.func`, for this function alone."""
        name = getattr(function, "__name__", str(function))
        sources = {i: x.source for i, x in enumerate(flat) if isinstance(x, StandIn)}
        # Copies: a function that writes in place must not change what its gradient is taken at.
        records = {i: x.detach().clone() for i, x in enumerate(flat) if places[i] is not None}

        def call(given: Mapping[int, Any]) -> list:
            args, kwargs = tree_unflatten([given.get(i, x) for i, x in enumerate(flat)], spec)
            result = function(*args, **kwargs)
            return list(result) if isinstance(result, tuple) else [result]

        outputs = call({i: source.detach() for i, source in sources.items()})
        self._say(name)

        def noted(j: int, output: Any) -> Any:
            if not isinstance(output, Tensor) or not output.is_floating_point():
                return output
            at = self.records_at(output)
            if at is None:
                raise ValueError(
                    f"{name} was handed records and parameters, and its result has no dimension of records: use "
                    "engine='func'"
                )

            def loss(values: tuple[Tensor, ...], gradient: Tensor, *alone: Tensor) -> Tensor:
                own = {i: x.unsqueeze(places[i]) for i, x in zip(records, alone, strict=True)}
                result = call(dict(zip(sources, values, strict=True)) | own)[j]
                if result.shape != gradient.unsqueeze(at).shape:
                    raise ValueError(f"{name} does not treat records one by one: use engine='func'")
                return (result * gradient.unsqueeze(at)).sum()

            def note(gradient: Tensor):
                dimensions = (None, at, *(places[i] for i in records))
                each = torch.func.vmap(torch.func.grad(loss), in_dims=dimensions)
                values = tuple(source.detach() for source in sources.values())
                whole = each(values, gradient, *records.values())
                return [(source, Whole(g)) for source, g in zip(sources.values(), whole, strict=True)]

            return self.note(output, note)

        found = [noted(j, output) for j, output in enumerate(outputs)]
        return found[0] if len(found) == 1 else tuple(found)

    @property
    def used(self) -> bool:
        """Whether records and parameters have met."""
        return bool(self._notes or self._copies)

    def gradients(self, losses: Tensor) -> dict[nn.Parameter, Form]:
        """The gradients of (B,) losses, of those parameters that the losses depend on.

        Raises:
            RuntimeError: if a parameter was used where stand-ins do not see it.
        """
        self.check_unwritten()
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
        forms: dict[int, tuple[Tensor, list[Form]]] = {}
        received = [(self._notes[place], gradient) for place, gradient in sorted(self._received.items())]
        received += [(note, g) for (_, note), g in zip(self._copies, found, strict=False) if g is not None]
        for note, gradient in received:
            for source, form in note(gradient):
                forms.setdefault(id(source), (source, []))[1].append(form)
        return self._carried_back(list(forms.values()))

    def close(self) -> None:
        """Let go of all tensors. What notes hold leads through the graph to this tape, round which no collector sees."""
        self._received = {}
        for held in (self._notes, self._copies, self._leaves, self._handed):
            held.clear()

    def _carried_back(self, found: list[tuple[Tensor, list[Form]]]) -> dict[nn.Parameter, Form]:
        """From sources to parameters: through what was computed of parameters alone."""
        leaves = {id(stand_in.source): (p, stand_in.source) for p, stand_in in self._leaves.items()}
        gradients: dict[nn.Parameter, list[Form]] = {}
        for source, forms in found:
            if id(source) in leaves:
                gradients.setdefault(leaves[id(source)][0], []).append(combined(forms))
                continue
            each = torch.autograd.grad(
                source,
                [leaf for _, leaf in leaves.values()],
                combined(forms).whole(),
                is_grads_batched=True,
                allow_unused=True,
                retain_graph=True,
            )
            for (parameter, _), gradient in zip(leaves.values(), each, strict=True):
                if gradient is not None:
                    gradients.setdefault(parameter, []).append(Whole(gradient))
        return {parameter: combined(forms) for parameter, forms in gradients.items()}


def _takes(rule: Rule, keywords: Mapping[str, Any]) -> bool:
    """Whether a rule knows these keywords; what it does not know goes the way of functions without one."""
    parameters = inspect.signature(rule).parameters
    return all(name in parameters for name in keywords) or any(p.kind is p.VAR_KEYWORD for p in parameters.values())

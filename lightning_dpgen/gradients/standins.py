"""Stand-ins for the parameters of a network, through which every use of a parameter is seen.

While the loss of a lot is computed, each trainable parameter is replaced by a stand-in. A function of torch that meets
one asks the tape: a rule (`rules.py`) computes the result with the parameter out of the graph, and notes what each
record's gradient follows from, once the gradient of the result is known. So it makes no difference which layer holds a
parameter, how often it is used, or whether a layer holds it at all. What is computed of parameters alone (a transpose, a
masked or normalised weight) is a stand-in again, and gradients are carried back to the parameters at the end.
"""

from __future__ import annotations

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


class AmbiguousSize(ValueError):
    """Two dimensions of a tensor are as large as a lot: by chance, or since it compares records with each other."""


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
    """

    def __init__(self, size: int, rules: Mapping[Callable, Rule], say: Callable[[str], None]) -> None:
        self.size, self.constants = size, set()
        self._rules, self._say = rules, say
        self._noted: list[tuple[Tensor, Note]] = []
        self._leaves: dict[nn.Parameter, StandIn] = {}

    def stand_in(self, parameter: nn.Parameter) -> StandIn:
        """The one stand-in of a parameter."""
        if parameter not in self._leaves:
            self._leaves[parameter] = StandIn.of(parameter.detach().requires_grad_(), self)
        return self._leaves[parameter]

    def note(self, output: Tensor, note: Note) -> Tensor:
        """Have `note` called with the gradient of `output`, (B, ...)."""
        self._noted.append((output if output.requires_grad else output.requires_grad_(), note))
        return output

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
        if not torch.is_grad_enabled():
            args, kwargs = tree_map(lambda x: x.source.detach() if isinstance(x, StandIn) else x, (args, kwargs))
            return function(*args, **kwargs)
        rule = self._rules.get(function)
        result = NotImplemented if rule is None else rule(self, *args, **kwargs)
        if result is not NotImplemented:
            return result
        flat, spec = tree_flatten((args, kwargs))
        places = [self.records_at(x) for x in flat]
        if any(place is not None for place in places):
            return self._by_func(function, flat, places, spec)
        args, kwargs = tree_unflatten([x.source if isinstance(x, StandIn) else x for x in flat], spec)
        result = function(*args, **kwargs)
        return tree_map(lambda x: StandIn.of(x, self) if isinstance(x, Tensor) and x.requires_grad else x, result)

    def _by_func(self, function: Callable, flat: list, places: list[int | None], spec) -> Tensor:
        """The way for a function without a rule: each record's gradient by `torch.func`, for this function alone."""
        name = getattr(function, "__name__", str(function))
        sources = {i: x.source for i, x in enumerate(flat) if isinstance(x, StandIn)}
        records = {i: x.detach() for i, x in enumerate(flat) if places[i] is not None}

        def call(given: Mapping[int, Any]) -> Tensor:
            args, kwargs = tree_unflatten([given.get(i, x) for i, x in enumerate(flat)], spec)
            return function(*args, **kwargs)

        output = call({i: source.detach() for i, source in sources.items()})
        output, *rest = output if isinstance(output, tuple) else (output,)
        at = self.records_at(output) if isinstance(output, Tensor) else None
        if at is None or any(isinstance(x, Tensor) and x.requires_grad for x in rest):
            raise ValueError(
                f"{name} was handed records and parameters, and its result has no dimension of records: use engine='func'"
            )
        self._say(name)

        def loss(values: tuple[Tensor, ...], gradient: Tensor, *alone: Tensor) -> Tensor:
            own = {i: x.unsqueeze(places[i]) for i, x in zip(records, alone, strict=True)}
            result = call(dict(zip(sources, values, strict=True)) | own)
            return ((result[0] if isinstance(result, tuple) else result) * gradient.unsqueeze(at)).sum()

        def note(gradient: Tensor):
            dimensions = (None, at, *(places[i] for i in records))
            each = torch.func.vmap(torch.func.grad(loss), in_dims=dimensions)
            values = tuple(source.detach() for source in sources.values())
            whole = each(values, gradient, *records.values())
            return [(source, Whole(g)) for source, g in zip(sources.values(), whole, strict=True)]

        return (self.note(output, note), *rest) if rest else self.note(output, note)

    def gradients(self, losses: Tensor) -> dict[nn.Parameter, Form]:
        """The gradients of (B,) losses, of those parameters that the losses depend on.

        Raises:
            RuntimeError: if a parameter was used where stand-ins do not see it.
        """
        outputs = [output for output, _ in self._noted]
        unseen = [x for pair in self._leaves.items() for x in pair]
        with torch._C.DisableTorchFunctionSubclass():
            found = torch.autograd.grad(losses.sum(), [*outputs, *unseen], allow_unused=True)
        if any(gradient is not None for gradient in found[len(outputs) :]):
            raise RuntimeError(
                "a parameter is used by code that goes round torch's functions (nn.LSTM and other fused layers, "
                "autograd.Function, an extension): use engine='func', or a layer written with torch's functions"
            )
        forms: dict[int, tuple[Tensor, list[Form]]] = {}
        for (_, note), gradient in zip(self._noted, found, strict=False):
            if gradient is not None:
                for source, form in note(gradient):
                    forms.setdefault(id(source), (source, []))[1].append(form)
        return self._carried_back(list(forms.values()))

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

"""The operations of torch that gradients of records are computed by, recorded on two lots and put together to one function.

None of them depends on the values of records, which a loss never sees (`gradients/isolation`), so they are the same for all
lots, but for the numbers that follow from the number of records. A number in which the recordings of two lots of different
sizes differ must be a multiple of the size; recordings that differ in anything else make no function.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from lightning_dpgen.common.precision import full_precision


class NotRepeatable(Exception):
    """Two recordings differ in more than the number of records; the message says in what."""


class Recorder(TorchDispatchMode):
    """A mode that takes down each operation that reaches torch, below autograd and vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, Any]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        # All tensors stay alive meanwhile, so that each keeps its identity.
        self.calls.append((function, args, kwargs or {}, result))
        return result


@dataclass(frozen=True)
class _Place:
    """A tensor that an operation gives, or that is given to the list."""

    number: int


@dataclass(frozen=True)
class _Multiple:
    """A whole number that is so many times the number of records."""

    factor: int


@dataclass
class Recording:
    """The operations of one recording, with places in the place of tensors that it has computed or was given."""

    size: int
    functions: list[Any] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    output: Any = None


def number_tensors(recorder: Recorder, inputs: Sequence[Tensor], output: Any, size: int) -> Recording:
    """Return a recording in which each tensor is the place where it was computed, or itself where it was there before."""
    places: dict[int, _Place] = {}
    # torch wraps a tensor anew where autograd keeps it: what has the same memory in the same order is the same.
    by_memory: dict[tuple, _Place] = {}

    def placed(x: Any) -> Any:
        if isinstance(x, Tensor):
            return places.get(id(x)) or by_memory.get(_memory(x), x)
        if isinstance(x, list | tuple):
            return type(x)(placed(one) for one in x)
        return x

    def add(x: Any) -> None:
        if isinstance(x, Tensor) and id(x) not in places:
            places[id(x)] = by_memory[_memory(x)] = _Place(len(places))

    for x in inputs:
        add(x)
    tape = Recording(size)
    for function, args, kwargs, result in recorder.calls:
        tape.functions.append(function)
        tape.arguments.append((placed(args), {name: placed(x) for name, x in kwargs.items()}))
        for x in tree_flatten(result)[0]:
            add(x)
        tape.results.append(placed(result))
    tape.output = map_fields(placed, output)
    return tape


def _memory(x: Tensor) -> tuple:
    return x.untyped_storage()._cdata, x.storage_offset(), x.shape, x.stride(), x.dtype


def map_fields(change: Callable[[Any], Any], x: Any) -> Any:
    """Apply `change` to all values within dicts, lists and dataclasses."""
    if isinstance(x, dict):
        return {key: map_fields(change, one) for key, one in x.items()}
    if isinstance(x, list | tuple):
        return type(x)(map_fields(change, one) for one in x)
    if dataclasses.is_dataclass(x) and not isinstance(x, type | _Place | _Multiple):
        fields = {one.name: map_fields(change, getattr(x, one.name)) for one in dataclasses.fields(x)}
        return Built(type(x), fields)
    return change(x)


@dataclass(frozen=True)
class Built:
    """A dataclass that is made anew from its fields."""

    kind: type
    fields: Mapping[str, Any]


def _merged(first: Any, second: Any, sizes: tuple[int, int], what: str) -> Any:
    """Return what two recordings have in common, with multiples of the number of records.

    Raises:
        NotRepeatable: where they differ in anything else.
    """
    if type(first) is not type(second):
        raise NotRepeatable(f"{what} is a {type(first).__name__}, and then a {type(second).__name__}")
    if isinstance(first, list | tuple):
        if len(first) != len(second):
            raise NotRepeatable(f"{what} has {len(first)} values, and then {len(second)}")
        return type(first)(_merged(a, b, sizes, what) for a, b in zip(first, second, strict=True))
    if isinstance(first, dict):
        if not same_keys(first, second):
            raise NotRepeatable(f"{what} has other keys")
        return {key: _merged(first[key], second[key], sizes, what) for key in first}
    if isinstance(first, Built):
        if first.kind is not second.kind:
            raise NotRepeatable(f"{what} is a {first.kind.__name__}, and then a {second.kind.__name__}")
        return Built(first.kind, _merged(dict(first.fields), dict(second.fields), sizes, what))
    if isinstance(first, Tensor):
        same = first is second or (
            first.shape == second.shape and first.dtype == second.dtype and torch.equal(first, second)
        )
        if not same:
            raise NotRepeatable(
                f"{what} uses a tensor that was computed where nothing sees it, and is another one each time"
            )
        return first
    if type(first) is int and first != second:
        if first % sizes[0] == 0 and first // sizes[0] * sizes[1] == second:
            return _Multiple(first // sizes[0])
        raise NotRepeatable(f"{what} has the number {first}, and then {second}")
    if first is not second and first != second and not _both_nan(first, second):
        raise NotRepeatable(f"{what} has {str(first)[:40]}, and then {str(second)[:40]}")
    return first


def same_keys(a: dict, b: dict) -> bool:
    """Return whether two dicts have the same keys in the same order; parameters among them are compared by identity."""
    return len(a) == len(b) and all(x is y or (isinstance(x, str) and x == y) for x, y in zip(a, b, strict=True))


def _both_nan(first: Any, second: Any) -> bool:
    return isinstance(first, float) and isinstance(second, float) and math.isnan(first) and math.isnan(second)


class Program:
    """The operations that two recordings have in common, as one function of records, noise and their number.

    Its text calls torch's operators one after the other, and makes the output; a tensor is let go after its last use.

    Args:
        first, second: the recordings, of lots of different sizes.
        given: the number of tensors that it is given.

    Attributes:
        draws: whether it draws from torch's generators.

    Raises:
        NotRepeatable: if the recordings differ in more than the number of records, or the operations do more than to
            compute the output.
    """

    def __init__(self, first: Recording, second: Recording, given: int) -> None:
        sizes = first.size, second.size
        if first.functions != second.functions:
            raise NotRepeatable("it calls other functions of torch for one lot than for another")
        if looking := _LOOKING.intersection(second.functions):
            raise NotRepeatable(f"its code looks at a number ({looking.pop()})")
        self.draws = any(torch.Tag.nondeterministic_seeded in function.tags for function in second.functions)
        # Where tensors of which views were taken had their memory.
        self._bases: list[Tensor] = []
        self._places: list[int] = []
        # The values of places: names of variables, tensors that were there before, or why nothing is known.
        self._values: dict[_Place, Any] = {_Place(i): f"given_{i}" for i in range(given)}
        self._names: dict[str, Any] = {}
        self._named: dict[int, str] = {}
        calls: list[tuple[list[str], str, Any]] = []
        for number, function in enumerate(second.functions):
            results = _merged(first.results[number], second.results[number], sizes, str(function))
            try:
                args, kwargs = _merged(first.arguments[number], second.arguments[number], sizes, str(function))
            except NotRepeatable as error:
                if function is not _DETACH:
                    raise
                # States of generators are only looked at.
                self._values[results] = error
                continue
            if function is _DETACH:
                self._values[results] = self._values[args[0]] if isinstance(args[0], _Place) else args[0]
            elif (view := self._view_of_constant(function, args, kwargs)) is not None:
                places = [results] if isinstance(results, _Place) else results
                self._values |= dict(zip(places, [view] if isinstance(results, _Place) else view, strict=True))
            else:
                self._check_written(function, args, kwargs)
                words = [self._text(x) for x in args] + [f"{name}={self._text(x)}" for name, x in kwargs.items()]
                calls.append((self._targets(results), f"{self._name(function._op)}({', '.join(words)})", function))
        output = self._text(_merged(first.output, second.output, sizes, "its gradients"))
        text = self._written(calls, output, [f"given_{i}" for i in range(given)])
        exec(compile(text, "<operations of a loss>", "exec"), self._names)
        self._run = self._names["run"]

    @staticmethod
    def _written(calls: list[tuple[list[str], str, Any]], output: str, given: list[str]) -> str:
        """Return the text of the function, without calls whose results nothing uses."""
        used, lines = set(_VARIABLE.findall(output)), []
        for targets, call, function in reversed(calls):
            if not function._schema.is_mutable and used.isdisjoint(targets):
                continue
            last = sorted(set(_VARIABLE.findall(call)) - used)
            used.update(last)
            if last:
                lines.append(f"    {' = '.join(last)} = None")
            # A list of one result is unpacked, too.
            comma = "," * (len(targets) == 1 and isinstance(function._schema.returns[0].type, torch.ListType))
            lines.append(f"    {', '.join(targets)}{comma}{' = ' * bool(targets)}{call}")
        return "\n".join([f"def run({', '.join(given)}, size):", *reversed(lines), f"    return {output}"])

    def _targets(self, results: Any) -> list[str]:
        """Return the names of the variables that take the results of a call."""
        places = [results] if isinstance(results, _Place) else list(results or ())
        names = [f"v{place.number}" if isinstance(place, _Place) else "_" for place in places]
        for place, name in zip(places, names, strict=True):
            if isinstance(place, _Place):
                self._values.setdefault(place, name)
        return names

    def _text(self, x: Any) -> str:
        """Return the expression of a value."""
        if isinstance(x, _Place):
            x = self._values[x]
            if isinstance(x, str):
                return x
        if isinstance(x, NotRepeatable):
            raise x
        if isinstance(x, _Multiple):
            return f"{x.factor} * size" if x.factor != 1 else "size"
        if isinstance(x, Built):
            fields = ", ".join(f"{name}={self._text(one)}" for name, one in x.fields.items())
            return f"{self._name(x.kind)}({fields})"
        if isinstance(x, dict):
            return f"{{{', '.join(f'{self._text(key)}: {self._text(one)}' for key, one in x.items())}}}"
        if type(x) in (list, tuple):
            inner = ", ".join(self._text(one) for one in x)
            return f"[{inner}]" if isinstance(x, list) else f"({inner}{',' * bool(inner)})"
        return repr(x) if type(x) in (int, bool, str, type(None)) else self._name(x)

    def _name(self, x: Any) -> str:
        """Return the name of a constant."""
        if id(x) not in self._named:
            self._named[id(x)] = f"constant_{len(self._named)}"
            self._names[self._named[id(x)]] = x
        return self._named[id(x)]

    def _view_of_constant(self, function: Any, args: tuple, kwargs: dict) -> Any:
        """Return a view of a tensor that was there before, which is made once; None for anything else."""
        first = args[0] if args else None
        first = self._values.get(first) if isinstance(first, _Place) else first
        if not isinstance(first, Tensor) or function._schema.is_mutable or kwargs:
            return None
        if any(isinstance(x, _Multiple | _Place | Tensor) for x in tree_flatten(args[1:])[0]):
            return None
        if not any(argument.alias_info for argument in function._schema.returns):
            return None
        self._bases.append(first)
        self._places.append(first.data_ptr())
        return function(first, *args[1:])

    def _check_written(self, function: Any, args: tuple, kwargs: dict) -> None:
        """Raise NotRepeatable for an operation that writes into a tensor which was there before."""
        for place, argument in enumerate(function._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                x = args[place] if place < len(args) else kwargs.get(argument.name)
                if isinstance(self._values.get(x) if isinstance(x, _Place) else x, Tensor):
                    raise NotRepeatable(f"{function} writes into a tensor that is kept from lot to lot")

    def fits(self) -> bool:
        """Return whether what it holds has the memory that it had."""
        return [x.data_ptr() for x in self._bases] == self._places

    def __call__(self, given: Sequence[Tensor], size: int) -> Any:
        """Return the output for records and noise, so many."""
        with full_precision(given[0].device), torch._C._AutoDispatchBelowAutograd():
            return self._run(*given, size)


_DETACH = torch.ops.aten.detach.default
# Operations whose result code of Python has looked at.
_LOOKING = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default, torch.ops.aten.is_nonzero.default}
_VARIABLE = re.compile(r"\b(?:v|given_)\d+\b")

"""Computations of fixed shapes that are made again without their Python: as a CUDA graph, or as a list of operations.

A computation is called once while its operations are recorded, and replayed after that: on the same tensors, in the same
order, with whatever numbers these hold by then. Everything that is no operation of torch happens once: `steady_code` says
for which losses that is right.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_dpgen.common.precision import bfloat16_products, multiplies_bfloat16, without_autocast

# Calls before a capture, in which torch chooses kernels and libraries make their workspaces.
_WARMUP = 3


class Replay(Protocol):
    """A computation that was recorded; each call makes it again, and writes its result anew.

    Attributes:
        draws: whether it may draw from torch's generators.
    """

    draws: bool

    def __call__(self) -> list[Tensor]:
        """Compute, and return the tensors that the computation returned when it was recorded."""
        ...


def record(computations: Sequence[Callable[[], list[Tensor]]], device: torch.device) -> list[Replay]:
    """Call computations, the later ones of which may use what the earlier ones made, and return each as a replay.

    Replays are called in that order; any but the first may be left out. What they do to tensors that were there before is
    done again.

    Args:
        computations: operations of torch alone may follow from their tensors: no shape, and no number in Python.
        device: where they compute.

    Raises:
        RuntimeError: if a computation looks at a number, or does something else that cannot be recorded.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            return _Graph.record(computations)
    return _Operations.record(computations)


def record_once(compute: Callable[[], list[Tensor]], device: torch.device) -> Replay:
    """Make a computation, once in all, while it is recorded; see `record`. It chooses no kernels by trying them."""
    if device.type != "cuda":
        return _Operations.record([compute])[0]
    with torch.cuda.device(device):
        replay = _Graph.capture(compute, torch.cuda.Stream(device), None)
        replay()
    return replay


class _Graph:
    """A CUDA graph, with the tensors that it writes."""

    # The operations of a graph are not seen.
    draws = True

    def __init__(self, graph: torch.cuda.CUDAGraph, result: list[Tensor]) -> None:
        self._graph, self._result = graph, result

    @classmethod
    def record(cls, computations: Sequence[Callable[[], list[Tensor]]]) -> list[Replay]:
        stream, mode = torch.cuda.Stream(), torch.cuda.get_sync_debug_mode()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for i in range(_WARMUP):
                try:
                    # A wait within a capture would leave torch unable to give memory back, so it is met before.
                    torch.cuda.set_sync_debug_mode("error" if i == _WARMUP - 1 else mode)
                    for compute in computations:
                        compute()
                finally:
                    torch.cuda.set_sync_debug_mode(mode)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        pool = torch.cuda.graph_pool_handle()
        return [cls.capture(compute, stream, pool) for compute in computations]

    @classmethod
    def capture(cls, compute: Callable[[], list[Tensor]], stream: torch.cuda.Stream, pool: Any) -> _Graph:
        """Capture a computation on a stream of the current device."""
        graph = torch.cuda.CUDAGraph()
        # Torch leaves the stream of a capture that fails the current one. Other threads may use the device meanwhile.
        with (
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            result = compute()
        return cls(graph, result)

    def __call__(self) -> list[Tensor]:
        self._graph.replay()
        return self._result


class _Recorder(TorchDispatchMode):
    """A mode that writes down each operation that reaches torch, below autograd and vmap, and lets its tensors go."""

    def __init__(self, text: _Text) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.draws = False
        self._text = text

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in _LOOKING:
            raise RuntimeError(f"{function} looks at a number, from which Python may go on in another way")
        call = self._text.call(function._op, args, kwargs or {})
        result = function(*args, **(kwargs or {}))
        self.lines.append(self._text.assignment(result, call))
        self.draws = self.draws or _SEEDED in function.tags
        return result


class _Operations:
    """A list of operations, as one function of Python that calls one after the other."""

    def __init__(self, run: Callable[[], Any], draws: bool) -> None:
        self._run, self.draws = run, draws

    @classmethod
    def record(cls, computations: Sequence[Callable[[], list[Tensor]]]) -> list[Replay]:
        text, found = _Text(), []
        for i, compute in enumerate(computations):
            with _Recorder(text) as recorder:
                result = compute()
            text.add(f"run_{i}", recorder.lines, result)
            found.append((f"run_{i}", recorder.draws))
        names = text.compiled()
        return [cls(names[name], draws) for name, draws in found]

    def __call__(self) -> list[Tensor]:
        # Conversions of autocast are operations, too.
        with without_autocast(torch.device("cpu")), torch._C._AutoDispatchBelowAutograd():
            return self._run()


class _Text:
    """The text of functions, in which each tensor that an operation made is a global variable, and all else a constant."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {}
        self._functions: list[tuple[str, list[str], str]] = []
        self._count = 0
        self._made_first: set[str] = set()
        # Variables by their memory and their part of it: torch wraps tensors anew where autograd keeps them.
        self._in_memory: dict[int, dict[tuple, str]] = {}
        # The memory of tensors that were there before.
        self._before: set[int] = set()

    def call(self, operator: Any, args: tuple, kwargs: dict[str, Any]) -> str:
        """Return the text of a call."""
        words = [self._word(x) for x in args] + [f"{key}={self._word(x)}" for key, x in kwargs.items()]
        text = f"{self._constant(operator)}({', '.join(words)})"
        return f"{self._constant(_multiply_bfloat16)}(lambda: {text})" if multiplies_bfloat16() else text

    def assignment(self, made: Any, call: str) -> str:
        """Return the line that keeps what a call made in variables."""
        targets = [] if made is None else list(map(self._target, made if isinstance(made, list | tuple) else [made]))
        comma = "," * (isinstance(made, list | tuple) and len(made) == 1)
        return f"{', '.join(targets)}{comma} = {call}" if targets else call

    def add(self, name: str, lines: list[str], result: Sequence[Tensor]) -> None:
        """End a function."""
        self._functions.append((name, lines, f"[{', '.join(self._word(x) for x in result)}]"))
        if len(self._functions) == 1:
            self._made_first = {f"v{i}" for i in range(1, self._count + 1)}
            return
        # Any but the first may be left out, so no other uses what it makes.
        for variables in self._in_memory.values():
            for part, variable in list(variables.items()):
                if variable not in self._made_first:
                    variables[part] = _LEFT_OUT

    def compiled(self) -> dict[str, Any]:
        """Return the functions by name.

        A tensor is let go after its last use; one that a later function uses, when the first of them is called again.
        """
        text, of_others = [], set()
        for i, (name, lines, result) in reversed(list(enumerate(self._functions))):
            kept = of_others | set(_VARIABLE.findall(result))
            body, seen = [f"    return {result}"], set(kept)
            for line in reversed(lines):
                words = set(_VARIABLE.findall(line))
                if last := sorted(words - seen - self._made_first) if i else sorted(words - seen):
                    body.append(f"    {' = '.join(last)} = None")
                body.append(f"    {line}")
                seen |= words
            if not i and kept:
                body.append(f"    {' = '.join(sorted(kept))} = None")
            if seen:
                body.append(f"    global {', '.join(sorted(seen))}")
            text.append([f"def {name}():", *reversed(body)])
            of_others |= seen & self._made_first
        exec(compile("\n".join(line for part in text for line in part), "<operations of a loss>", "exec"), self._names)
        return self._names

    def _target(self, x: Any) -> str:
        """Return the variable for a result; a new one, but for a tensor that was written in place."""
        if not isinstance(x, Tensor):
            return "_"
        storage, part = x.untyped_storage(), _part(x)
        if storage._cdata not in self._in_memory:
            self._in_memory[storage._cdata] = {}
            # Another tensor may get the memory afterwards.
            weakref.finalize(storage, self._in_memory.pop, storage._cdata, None)
        variables = self._in_memory[storage._cdata]
        if variables.get(part, _LEFT_OUT) == _LEFT_OUT:
            if self._is_constant(x):
                return "_"
            self._count += 1
            variables[part] = f"v{self._count}"
        return variables[part]

    def _word(self, x: Any) -> str:
        if isinstance(x, Tensor):
            variable = self._in_memory.get(x.untyped_storage()._cdata, {}).get(_part(x))
            if variable == _LEFT_OUT:
                if x.untyped_storage()._cdata in self._before:
                    return self._constant(x)
                raise RuntimeError(
                    "a computation uses what one before it made, which may be left out: compute it in the first"
                )
            return variable or self._constant(x)
        if type(x) in (list, tuple):
            inner = ", ".join(map(self._word, x))
            return f"[{inner}]" if isinstance(x, list) else f"({inner}{',' * (len(x) == 1)})"
        return repr(x) if type(x) in (int, bool, str, type(None)) else self._constant(x)

    def _is_constant(self, x: Any) -> bool:
        return f"c{id(x)}" in self._names

    def _constant(self, x: Any) -> str:
        # It is kept, so no other object gets its identity.
        self._names[f"c{id(x)}"] = x
        if isinstance(x, Tensor):
            self._before.add(x.untyped_storage()._cdata)
        return f"c{id(x)}"


@bfloat16_products()
def _multiply_bfloat16(call: Callable[[], Any]) -> Any:
    return call()


def _part(x: Tensor) -> tuple:
    return x.storage_offset(), x.shape, x.stride(), x.dtype


# The variable of a tensor that a computation made which may be left out.
_LEFT_OUT = "left out"
_SEEDED = torch.Tag.nondeterministic_seeded
_VARIABLE = re.compile(r"\bv\d+\b")
_LOOKING = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default, torch.ops.aten.is_nonzero.default}

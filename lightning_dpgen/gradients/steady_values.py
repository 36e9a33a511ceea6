"""The values that the Python of a loss reads, and whether any has changed since; none is kept alive.

Values are told apart by their identities, which costs a few dozen nanoseconds each, since this is asked before each step.
"""

from __future__ import annotations

import enum
import functools
import itertools
import re
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from operator import attrgetter, call, getitem, itemgetter
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

# Types whose values never change.
ATOMS = {
    type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, torch.dtype,
    torch.device, torch.Size, torch.layout, torch.memory_format,
}  # fmt: skip
DICTS = {dict, OrderedDict}
MEMBERS = "_parameters", "_buffers", "_modules"
HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
_GLOBAL_HOOKS = [
    value for name, value in vars(torch_module).items() if re.fullmatch(r"_global_(for|back)ward_.*hooks", name)
]
# Functions that are looked up on the class of a module when it is called.
_CALLED = attrgetter("forward", "__call__", "_call_impl", "__getattr__")
# The address of an object, as `id` has it, which is ten times as slow where a program audits itself (sys.addaudithook).
_identity = object.__hash__
_PARTS = attrgetter("__code__", "__defaults__", "__kwdefaults__")


def _content(x: Any) -> Any:
    """Return what tells whether a container, or anything in it, is another one."""
    kind = type(x)
    if isinstance(x, tuple) or kind is list:
        return kind, *map(_content, x)
    if kind in DICTS:
        return kind, *map(_identity, x), *map(_content, x.values())
    if kind is functools.partial:
        return kind, _content(x.func), _content(x.args), _content(x.keywords)
    return _identity(x)


def _is_plain(x: Any) -> bool:
    return type(x) in ATOMS or type(x) is slice or (type(x) in (tuple, frozenset) and all(map(_is_plain, x)))


class WatchedValues:
    """All that code reads, by the identities of values, none of which is kept alive but numbers and text.

    Attributes:
        names: the names that code uses.
        unsure: why one call of a loss does not show what a second would do; None where it does.
        owners: by identity an object, its name, and the names of those of its attributes that are read.
        growing: the identities of modules of Lightning, which get other attributes during a fit.
        globals: by identity the globals of a module, and the names that are read in it and that it lacks.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.unsure: str | None = None
        self.owners: dict[int, tuple[Any, str, dict[str, None]]] = {}
        self.modules: dict[int, nn.Module] = {}
        self.growing: set[int] = set()
        self.functions: dict[int, FunctionType] = {}
        self.classes: dict[int, type] = {}
        self.globals: dict[int, tuple[dict[str, Any], dict[str, None], set[str]]] = {}
        self.tensors: dict[int, Tensor] = {}
        self.partials: list[functools.partial] = []

    def close(self) -> None:
        """Note how everything is, and let go of it."""
        # An identity may be that of another object once that object has died.
        self._died: list = []
        self._kept: list = []
        self._contents: list[tuple[Callable[[], Any], Any, str]] = []
        modules = sorted(self.modules.values(), key=lambda module: id(module) not in self.growing)
        owners = [self.owners.pop(id(module)) for module in modules] + list(self.owners.values())
        functions = list(self.functions.values())
        self._owners = self._references(x for x, _, _ in owners)
        self._functions = self._references(functions)
        self._closures = self._references(f for f in functions if f.__closure__)
        self._classes = self._references(self.classes.values())
        self._tensors = self._references(self.tensors.values())
        spaces = list(self.globals.values())
        self._spaces = [space for space, _, _ in spaces]
        self._growing = len(self.growing)
        self._absent = [self.names - vars(x).keys() for x in modules[: self._growing]] + [lacks for _, _, lacks in spaces]
        # Those that hold nothing are held, and have to stay so.
        self._empty = [d for x in modules for name in (*MEMBERS, *HOOKS) if not (d := vars(x)[name])] + _GLOBAL_HOOKS
        held = [(i, name) for i, x in enumerate(modules) for name in MEMBERS if vars(x)[name]]
        self._holders, self._held = [i for i, _ in held], [name for _, name in held]
        read = [(label, list(names)) for _, label, names in owners] + [("", list(found)) for _, found, _ in spaces]
        self._getters = [itemgetter(*names, *names[: len(names) == 1]) if names else _nothing for _, names in read]
        self._labels = [f"the class of {label}" for _, label, _ in owners]
        self._labels += [
            f"{label}.{name}".strip(".") for label, names in read for name in (*names, *names[: len(names) == 1])
        ]
        for i, members in held:
            self._labels += [f"{owners[i][1]}.{name}" for name in vars(modules[i])[members]]
        self._labels += [
            f"{f.__qualname__}.{part}" for f in functions for part in ("__code__", "__defaults__", "__kwdefaults__")
        ]
        self._labels += [name for f in functions if f.__closure__ for name in f.__code__.co_freevars]
        self._labels += [f"{kind.__name__}.forward" for kind in self.classes.values() for _ in range(4)]
        values = self._values()[0]
        for x in values:
            self._keep(x)
        for reference, (label, names) in zip([*self._owners, *(_Held(space) for space in self._spaces)], read, strict=True):
            for name in names:
                self._hold(lambda reference=reference, name=name: _space(reference())[name], f"{label}.{name}".strip("."))
        for f, reference in zip(functions, self._functions, strict=True):
            for part in ("__defaults__", "__kwdefaults__"):
                self._hold(lambda reference=reference, part=part: getattr(reference(), part), f"{f.__qualname__}.{part}")
            for i, name in enumerate(f.__code__.co_freevars):
                self._hold(lambda reference=reference, i=i: reference().__closure__[i].cell_contents, name)
        for partial, reference in zip(self.partials, self._references(self.partials), strict=True):
            self._keep(partial)
            self._hold(reference, "the partial")
        self._then = self._now()
        for name in ("owners", "modules", "functions", "classes", "globals", "tensors", "partials"):
            getattr(self, name).clear()

    def _references(self, values: Iterable[Any]) -> list[weakref.ref]:
        return [weakref.ref(x, self._died.append) for x in values]

    def _keep(self, x: Any) -> None:
        """Learn of the end of a value, or keep it where it is a number, text or a descriptor."""
        kind = type(x)
        if _is_plain(x) or isinstance(x, CodeType | property | staticmethod | classmethod | enum.Enum):
            self._kept.append(x)
        elif isinstance(x, tuple | frozenset) or kind is list:
            for part in x:
                self._keep(part)
        elif kind in DICTS:
            for part in (*x, *x.values()):
                self._keep(part)
        else:
            if kind is functools.partial:
                self._keep((x.func, x.args, x.keywords))
            try:
                self._kept.append(weakref.ref(x, self._died.append))
            except TypeError:
                self._kept.append(x)

    def _hold(self, fetch: Callable[[], Any], label: str) -> None:
        """Watch the parts of what a path leads to, if it is a container that may change in place or dies unseen."""
        x = fetch()
        if not _is_plain(x) and (isinstance(x, tuple | functools.partial) or type(x) is list or type(x) in DICTS):
            self._contents.append((fetch, _content(x), label))

    def _values(self) -> tuple[list, list, list]:
        """Return all values that are watched, with the modules' members and all attributes that objects have."""
        owners = list(map(call, self._owners))
        spaces = [*map(vars, owners), *self._spaces]
        members = list(map(getitem, map(spaces.__getitem__, self._holders), self._held))
        values = list(map(type, owners))
        values += itertools.chain.from_iterable(map(call, self._getters, spaces))
        values += itertools.chain.from_iterable(map(dict.values, members))
        functions, closures = map(call, self._functions), map(call, self._closures)
        values += itertools.chain.from_iterable(map(_PARTS, functions))
        values += map(_CELL, itertools.chain.from_iterable(map(_CLOSURE, closures)))
        values += itertools.chain.from_iterable(map(_CALLED, map(call, self._classes)))
        return values, members, spaces

    def _now(self) -> tuple:
        values, members, spaces = self._values()
        tensors = list(map(call, self._tensors))
        lacking = [*spaces[: self._growing], *self._spaces]
        return (
            list(map(_identity, values)),
            list(itertools.chain.from_iterable(members)),
            list(map(list, spaces[self._growing : len(self._owners)])),
            all(space.keys().isdisjoint(names) for space, names in zip(lacking, self._absent, strict=True)),
            list(map(Tensor.data_ptr, tensors)),
            list(map(_FORM, tensors)),
            list(map(Tensor.stride, tensors)),
            list(map(_TRAINED, tensors)),
            list(map(len, map(vars, tensors))),
            any(self._empty),
            _torch_state(),
        )

    def changed(self) -> str | None:
        """Return what has changed, or None."""
        if self._died:
            return "an object that the loss reads is gone"
        try:
            now = self._now()
            if now == self._then:
                for fetch, content, label in self._contents:
                    if _content(fetch()) != content:
                        return f"{label} has changed"
                return None
        except Exception:  # Any fault in code of others only ends the capture: the step runs as it is written.
            return "an attribute that the loss reads is gone"
        for what, one, other in zip(_KINDS, now, self._then, strict=True):
            if one != other and what is not None:
                return what
        for i, (one, other) in enumerate(zip(now[0], self._then[0], strict=False)):
            if one != other and i < len(self._labels):
                return f"{self._labels[i]} has changed"
        return "a parameter, buffer or module was added or taken away"


# Sentences for the parts of what is compared, in the order of `_now`; None for one with a sentence for each value.
_KINDS = (
    None, "a parameter, buffer or module was added or taken away", "an attribute was added or taken away",
    "a name that the loss looks up was added", "a tensor has other memory", "a tensor has another shape or type",
    "a tensor has other strides", "requires_grad of a tensor has changed", "an attribute of a tensor was added",
    "a hook, parameter, buffer or module was added",
    "the state of torch has changed (gradients, autocast, default types or modes)",
)  # fmt: skip
_CELL, _CLOSURE, _TRAINED = attrgetter("cell_contents"), attrgetter("__closure__"), attrgetter("requires_grad")
_FORM = attrgetter("shape", "dtype")


class _Held:
    """A holder of the globals of a module, which is called like a weak reference."""

    def __init__(self, space: dict[str, Any]) -> None:
        self.space = space

    def __call__(self) -> dict[str, Any]:
        return self.space


def _space(x: Any) -> Any:
    return x if type(x) is dict else vars(x)


def _nothing(_: Any) -> tuple:
    return ()


def _torch_state() -> tuple:
    """Return the settings of torch that decide what its functions do."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch._C._len_torch_function_stack(),
        torch._C._is_any_autocast_enabled(),
        torch.get_autocast_dtype("cpu"),
        torch.get_autocast_dtype("cuda"),
        torch._C._get_deterministic_algorithms(),
        torch.get_float32_matmul_precision(),
        torch.get_default_device(),
    )

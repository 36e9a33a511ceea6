"""The reach of code: all values that it can lay its hands on, looked at one by one, and watched."""

from __future__ import annotations

import builtins
import enum
import functools
import itertools
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_dpgen.gradients.layers import modules_of
from lightning_dpgen.gradients.steady_rules import (
    CHANGING,
    CLASSES,
    FIELDS,
    FUNCTIONS,
    LAYERS,
    LIBRARY,
    LIGHTNING,
    METACLASSES,
    MOST,
    OF_LIGHTNING,
    PLAIN_BASES,
    PURE,
    QUESTIONS,
    STAND_IN,
    TRUSTED,
    UnsteadyCode,
    check_code,
    instructions_of,
    last_name,
    package_of,
    place_of,
)
from lightning_dpgen.gradients.steady_values import ATOMS, DICTS, HOOKS, WatchedValues

# Attributes that modules have for their own book-keeping; those of recurrent layers follow from the parameters.
OWN_NAMES = vars(nn.Module()).keys() - {"training"} | {"_flat_weights", "_flat_weight_refs"}


class Reach:
    """All values that code can lay its hands on, by any attribute that it names, from the loss, its modules and globals.

    Args:
        codes: the code of others that ran.
        of_torch: the code of torch that ran.
        fresh: the identities of objects that were made meanwhile.
        lots: whether the code was handed a lot.
    """

    def __init__(
        self, codes: dict[CodeType, None], of_torch: dict[CodeType, None], fresh: set[int], lots: bool = False
    ) -> None:
        self._codes, self._fresh, self._lots = codes, fresh, lots
        self._names = {name for code in codes for name in code.co_names}
        self._of_torch = {name for code in of_torch for name in code.co_names} | {"training", "forward"}
        self._covered: set[CodeType] = set()
        self._seen: dict[tuple[int, bool], Any] = {}
        # The first list or dict that lives on, and the first line that may write into one.
        self._mutable = self._mutator = ""
        self._defaults: dict[CodeType, dict[str, Any]] = {}
        # The identities of arguments that a partial hands to the loss.
        self._bound: set[int] = set()
        self._watched = WatchedValues()

    def watch(self, network: nn.Module, losses: tuple[Callable, ...], entries: list) -> WatchedValues:
        """Look at everything, and watch it.

        Raises:
            UnsteadyCode: for what cannot be left out.
        """
        if any(map(_is_lightning, modules_of(network))) and (read := sorted(OF_LIGHTNING & self._names)):
            self._refuse(
                read[0], f"uses {read[0]} of the LightningModule", "leave it out, or keep a number as an attribute"
            )
        for code in self._codes:
            writes, names = check_code(code)
            self._mutator = self._mutator or writes
            self._names |= names
        self._watched.names = self._names | self._of_torch
        if self._lots and "draw" in self._names:
            self._refuse("draw", "reads draw, the identity of a lot, which is another one in each step", "leave it out")
        self._device = next((x.device for x in network.parameters()), torch.device("cpu"))
        self._tree(network, type(network).__name__)
        for loss in losses:
            self._value(loss, getattr(loss, "__name__", type(loss).__name__))
            if isinstance(loss, functools.partial):
                self._watched.partials.append(loss)
                self._bound |= set(map(id, (*loss.args, *loss.keywords.values())))
        for code, name, given in entries:
            self._entry(code, name, given)
        for code in self._codes:
            if code not in self._covered:
                raise UnsteadyCode(
                    f"{place_of(code)} runs, and belongs to nothing that the loss leads to: pass it as a loss"
                )
        own = set(map(id, modules_of(network)))
        for module in self._watched.modules.values():
            if id(module) not in own and (read := sorted(CHANGING & self._names)):
                self._refuse(
                    read[0], f"calls {read[0]}, and may change a {type(module).__name__} beside it", "do it before"
                )
        if self._mutable and self._mutator:
            self._watched.unsure = (
                f"{self._mutator} may write into a list or dict, and {self._mutable} lives on: make that a tuple, or build "
                "the other one without writing into it"
            )
        if not self._fresh.isdisjoint(self._watched.owners):
            raise UnsteadyCode("the loss calls __init__ of an object that it keeps: make that before")
        self._watched.close()
        return self._watched

    def _refuse(self, name: str, what: str, instead: str) -> None:
        """Refuse a name, with the first line that has it."""
        for code in self._codes:
            for line, x in instructions_of(code):
                if last_name(x) == name:
                    raise UnsteadyCode(f"{place_of(code, line)} {what}: {instead}")
        raise UnsteadyCode(f"the loss {what}: {instead}")

    def _entry(self, code: CodeType, name: str, given: Any) -> None:
        """Look at an argument that the caller of the loss hands to it."""
        if type(given) is weakref.ref and given() is not None:
            self._value(given(), name)
        elif id(given) in self._bound:
            self._value(given, name)
        elif type(given) is int or name not in self._defaults.get(code, {}) or self._defaults[code][name] is not given:
            raise UnsteadyCode(
                f"{place_of(code)} reads {name}, which is another one in each step (the number of a batch): leave it out"
            )

    def _value(self, x: Any, label: str, lenient: bool = False) -> None:
        kind, name = type(x), label.rpartition(".")[2].partition("[")[0]
        if kind in ATOMS or (id(x), lenient) in self._seen:
            return
        self._seen[id(x), lenient] = x
        if isinstance(x, tuple) or kind in (list, frozenset) or kind in DICTS:
            self._container(x, label, name, lenient)
        elif isinstance(x, Tensor):
            if kind not in (Tensor, nn.Parameter, nn.Buffer) or not self._names.isdisjoint(vars(x)):
                self._refuse(name, f"reads {label}, a tensor of a kind of its own ({kind.__name__})", "use a plain one")
            if x.device != self._device:
                # A captured kernel keeps the number of a tensor on the processor.
                self._refuse(name, f"reads {label}, which is on {x.device}", f"move it to {self._device}")
            self._watched.tensors[id(x)] = x
        elif isinstance(x, nn.Module):
            self._tree(x, label)
        elif kind is FunctionType:
            self._function(x, label, name)
        elif kind is MethodType and type(x.__self__).__module__ == STAND_IN:
            for f in x.__self__.of_user:
                self._value(f, getattr(f, "__name__", type(f).__name__))
        elif kind is MethodType:
            self._value(x.__func__, label)
            self._value(x.__self__, label.rpartition(".")[0] or label)
        elif kind is slice:
            if not all(type(part) in ATOMS for part in (x.start, x.stop, x.step)):
                self._refuse(name, f"reads {label}, a slice of objects", "use numbers")
        elif kind is functools.partial:
            self._read(x, [own for own in vars(x) if own in self._names], label)
            for part in (x.func, *x.args, *x.keywords.values()):
                self._value(part, label, lenient)
        elif kind in (staticmethod, classmethod, property):
            self._value(x.fget if kind is property else x.__func__, label)
        elif isinstance(x, FIELDS) or (isinstance(x, weakref.ref) and lenient):
            pass
        elif isinstance(x, type):
            self._class(x, label, name)
        elif isinstance(x, ModuleType):
            for name in sorted(self._names):
                self._value(self._member(x, label, name), f"{label}.{name}")
        elif callable(x) and kind.__module__ == "builtins":
            if x is getattr or x is hasattr:
                self._refuse(name, f"uses {label}, by which code reads any attribute", "call getattr by its own name")
            if x not in FUNCTIONS and getattr(x, "__objclass__", None) not in (Tensor, torch._C.TensorBase):
                self._refuse(name, f"uses {label}, which may return something else in the next step", "leave it out")
        elif not lenient:
            self._object(x, label, name)

    def _container(self, x: Any, label: str, name: str, lenient: bool) -> None:
        if len(x) > MOST:
            self._refuse(name, f"reads {label}, which has {len(x)} parts", f"use a tensor, or at most {MOST} parts")
        if isinstance(x, tuple) and type(x) is not tuple:
            if hasattr(x, "__dict__"):
                self._refuse(name, f"reads {label}, a tuple that may have attributes", "use a plain one, or a named tuple")
            self._class(type(x), label, name)
        if type(x) is frozenset or type(x) in DICTS:
            for key in x:
                if type(key) not in ATOMS:
                    self._refuse(name, f"reads {label}, which holds a {type(key).__name__}", "use text or numbers")
        if type(x) in DICTS or type(x) is list:
            self._mutable = self._mutable or ("" if lenient else label)
        for i, part in x.items() if type(x) in DICTS else enumerate(x):
            self._value(part, f"{label}[{i}]", lenient)

    def _tree(self, root: nn.Module, label: str) -> None:
        for module in modules_of(root):
            if id(module) in self._watched.modules:
                continue
            kind, space = type(module), vars(module)
            label = label if module is root else kind.__name__
            self._watched.modules[id(module)] = module
            if any(space[name] for name in HOOKS):
                raise UnsteadyCode(f"{label} has a hook, whose Python would be left out: write what it does into forward")
            for base in kind.__mro__:
                if package_of(base.__module__) == "torch" and not LAYERS.fullmatch(base.__module__):
                    raise UnsteadyCode(f"{label} ({base.__module__}) runs code that is not seen: use the module within it")
            self._class(kind, kind.__name__, kind.__name__)
            read = [name for name in self._names_read(module) if name not in OWN_NAMES]
            self._watched.growing |= {id(module)} if _is_lightning(module) else set()
            self._read(module, read, label)
            for x in (*space["_parameters"].values(), *space["_buffers"].values()):
                if x is not None:
                    self._value(x, f"a parameter or buffer of {label}")

    def _names_read(self, x: Any) -> list[str]:
        """Return the attributes of an object that code reads: all, where code of this package may, or a container."""
        whole = any(package_of(kind.__module__) == "lightning_dpgen" for kind in type(x).__mro__)
        # They look their entries up among their attributes.
        whole = whole or isinstance(x, nn.ParameterDict | nn.ParameterList)
        return [name for name in vars(x) if whole or name in self._names or name in self._of_torch]

    def _read(self, owner: Any, names: list[str], label: str) -> None:
        """Watch attributes of an object."""
        self._watched.owners.setdefault(id(owner), (owner, label, {}))[2].update(dict.fromkeys(names))
        for name in names:
            self._value(vars(owner)[name], f"{label}.{name}", name not in self._names)

    def _class(self, kind: type, label: str, name: str) -> None:
        if ("class", kind) in self._seen:
            return
        self._seen["class", kind] = kind
        trusted = package_of(kind.__module__) in TRUSTED | {"builtins"}
        if kind.__module__ == "builtins" and kind not in FUNCTIONS and not issubclass(kind, BaseException):
            self._refuse(name, f"uses {label}, which may return something else in the next step", "leave it out")
        if not trusted and issubclass(kind, torch.autograd.Function | Tensor | TorchFunctionMode | TorchDispatchMode):
            self._refuse(name, f"uses {label}, whose Python runs within torch", "write it with torch's own functions")
        if not trusted and type(kind) not in METACLASSES:
            self._refuse(name, f"uses {label}, a class with a class of its own", "use a plain class")
        if kind.__module__.partition(".")[0] == "torch" and not issubclass(kind, CLASSES):
            self._refuse(name, f"uses {label}, which is not known to follow from its arguments", "leave it out")
        if issubclass(kind, nn.Module):
            self._watched.classes[id(kind)] = kind
        for c in kind.__mro__:
            package = package_of(c.__module__)
            if package in TRUSTED | LIBRARY | {"builtins"}:
                continue
            # A class of C has no flag of the heap, or no dictionary.
            bare = not c.__flags__ & 1 << 9 or (c.__bases__ == (object,) and "__dict__" not in vars(c))
            if package in sys.stdlib_module_names or bare or vars(c).get("__slots__"):
                self._refuse(name, f"uses {label}, whose state is not seen ({c.__name__})", "use a plain class of Python")
            used = self._names | self._of_torch
            self._read(c, [n for n, x in vars(c).items() if n in used or _code_of(x) in self._codes], c.__name__)

    def _object(self, x: Any, label: str, name: str) -> None:
        kind = type(x)
        package = package_of(kind.__module__)
        if not hasattr(x, "__dict__") or package in TRUSTED - {"lightning_dpgen"} | LIBRARY | LIGHTNING | {"builtins"}:
            self._refuse(
                name, f"reads {label}, a {kind.__name__}, which may change", "keep what it gives as a number or a buffer"
            )
        if not isinstance(x, enum.Enum) and any(
            package_of(c.__module__) in LIBRARY | {"builtins"} and c not in PLAIN_BASES for c in kind.__mro__
        ):
            self._refuse(
                name, f"reads {label}, a {kind.__name__}, which may change", "keep it as a tuple, or as attributes"
            )
        self._class(kind, label, name)
        self._read(x, self._names_read(x), label)

    def _member(self, x: ModuleType, label: str, name: str) -> Any:
        """Return what a module of Python has by a name, and watch it, unless it is a function of one that is known."""
        space, package = vars(x), package_of(x.__name__)
        if type(x) is not ModuleType or (name not in space and "__getattr__" in space):
            raise UnsteadyCode(f"the loss reads {label}.{name}, which its module looks up by code: import it by its name")
        value = space.get(name)
        if package not in TRUSTED | sys.stdlib_module_names or not (callable(value) or isinstance(value, ModuleType)):
            self._place(space, name)
        return value

    def _place(self, space: dict[str, Any], name: str) -> None:
        """Watch a name among the globals of a module."""
        _, found, absent = self._watched.globals.setdefault(id(space), (space, {}, set()))
        if name in space:
            found[name] = None
        else:
            absent.add(name)

    def _global(self, space: dict[str, Any], name: str, attributes: list[str]) -> None:
        """Look at a global, of which code reads a chain of attributes, and watch it."""
        self._place(space, name)
        if name not in space:
            space = vars(builtins)
            self._place(space, name)
        label, x = name, space.get(name)
        if (x is getattr or x is hasattr) and name == x.__name__:
            # `check_code` has looked at what they read.
            return
        for attribute in attributes:
            if not isinstance(x, ModuleType):
                break
            label, x = f"{label}.{attribute}", self._member(x, label, attribute)
        self._value(x, label)

    def _function(self, f: FunctionType, label: str, name: str) -> None:
        package, code = package_of(f.__globals__), f.__code__
        if package not in TRUSTED | LIBRARY or _is_wrapper(f):
            self._read(f, [x for x in vars(f) if x in self._names], label)
        if package == "importlib":
            self._refuse(name, f"uses {label}", "import it at the top of the file")
        if package in TRUSTED or package in LIBRARY:
            # Decorators of theirs wrap functions of users.
            cells = [cell.cell_contents for cell in f.__closure__ or ()]
            for x in cells:
                if isinstance(x, nn.Module | functools.partial) or _code_of(x) in self._codes or _is_wrapper(x):
                    self._value(x, label)
            wraps = _is_wrapper(f)
            known = f in FUNCTIONS or PURE.fullmatch(f.__module__ or "") or f.__name__ in QUESTIONS or wraps
            if package == "torch" and not known:
                self._refuse(name, f"uses {label}, which is not known to follow from its arguments", "leave it out")
            if cells and wraps:
                self._watched.functions[id(f)] = f
            return
        if code not in self._codes:
            return
        self._watched.functions[id(f)] = f
        inner, waiting = [], [code]
        while waiting:
            inner.append(waiting.pop())
            waiting += [x for x in inner[-1].co_consts if isinstance(x, CodeType) and x in self._codes]
        self._covered.update(inner)
        defaults = f.__defaults__ or ()
        arguments = code.co_varnames[: code.co_argcount]
        named = dict(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)) | (f.__kwdefaults__ or {})
        self._defaults.setdefault(code, named)
        for key, x in named.items():
            self._value(x, key)
        for key, cell in zip(code.co_freevars, f.__closure__ or (), strict=True):
            try:
                self._value(cell.cell_contents, key)
            except ValueError:
                self._refuse(key, f"reads {key}, which has no value yet", "set it before")
        for part in inner:
            instructions = [x for _, x in instructions_of(part)]
            for i, x in enumerate(instructions):
                if x.opname == "LOAD_GLOBAL":
                    read = itertools.takewhile(lambda x: x.opname in ("LOAD_ATTR", "LOAD_METHOD"), instructions[i + 1 :])
                    self._global(f.__globals__, x.argval, [x.argval for x in read])


def _is_lightning(module: nn.Module) -> bool:
    return any(package_of(kind.__module__) in LIGHTNING for kind in type(module).__mro__)


def _is_wrapper(x: Any) -> bool:
    """Return whether a decorator of torch or of the standard library has made a function around another one of a user."""
    x = getattr(x, "__func__", x)
    return hasattr(x, "__wrapped__") and (x.__module__ or "torch").partition(".")[0] not in TRUSTED | LIBRARY


def _code_of(x: Any) -> CodeType | None:
    """Return the code of a function, of a method or of a property."""
    x = getattr(x, "fget", None) or getattr(x, "__func__", None) or x
    return x.__code__ if isinstance(x, FunctionType) else None

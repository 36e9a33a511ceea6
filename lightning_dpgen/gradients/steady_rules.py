"""The rules for code that may be left out of later steps: what it may do, call and name."""

from __future__ import annotations

import abc
import builtins
import dis
import enum
import functools
import inspect
import math
import re
import sys
import types
import typing
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

# Packages whose code is trusted, and the property of Lightning that looks up a device.
_DEVICE_OF_LIGHTNING = {f"{fabric}.utilities.device_dtype_mixin" for fabric in ("lightning_fabric", "lightning.fabric")}
TRUSTED = {"torch", "functorch", "lightning_dpgen"} | _DEVICE_OF_LIGHTNING
# Modules of Python that keep nothing themselves.
LIBRARY = {"contextlib", "functools", "collections", "_collections_abc", "abc", "enum", "types", "typing", "itertools"}
# Code that is as trusted as what calls it.
HELPERS = sys.stdlib_module_names | {"numpy", "sympy", "typing_extensions"}
LIGHTNING = {"pytorch_lightning", "lightning", "lightning_fabric"}
# A module whose functions take the place of a training step, and of its log, whose calls are seen.
STAND_IN = "lightning_dpgen.plugins.automatic_module"
_STDLIB = str(Path(inspect.__file__).parent)

_BUILTINS = (
    "abs", "all", "any", "bool", "bytes", "callable", "complex", "dict", "divmod", "enumerate", "filter", "float",
    "getattr", "hasattr", "int", "isinstance", "issubclass", "iter", "len", "list", "map", "max", "min", "next", "object",
    "pow", "range", "reversed", "round", "slice", "sorted", "str", "sum", "super", "tuple", "type", "zip",
)  # fmt: skip
_SPACES = (torch._C._VariableFunctions, torch._C._nn, torch._C._linalg, torch._C._fft, torch._C._special)
# Functions that follow from their arguments, and from what torch draws.
FUNCTIONS = {f for space in _SPACES for name in dir(space) if callable(f := getattr(space, name))}
FUNCTIONS -= {torch.from_file, torch.from_numpy, torch.frombuffer, torch.asarray, torch._C._VariableFunctions._from_blob}
FUNCTIONS |= {torch.is_grad_enabled, torch.get_default_dtype, torch.is_tensor, torch._assert, functools.reduce}
FUNCTIONS |= {f for f in vars(math).values() if callable(f)} | {getattr(builtins, name) for name in _BUILTINS}
FUNCTIONS |= {tuple.__new__, object.__new__}
# Modules of torch whose functions in Python do so, too, and questions that are answered alike in each step.
PURE = re.compile(
    r"torch\.(functional|nn\.functional|_jit_internal|nn\.utils\.rnn|utils\.checkpoint|distributions\..*|_tensor)"
)
QUESTIONS = {"is_tracing", "is_scripting", "is_compiling", "is_exporting"}
CLASSES = (
    nn.Module, Tensor, torch.distributions.Distribution, torch.distributions.Transform, torch.no_grad, torch.enable_grad,
    torch.inference_mode, torch.autocast, torch.Size, torch.dtype, torch.device, torch.finfo, torch.iinfo,
)  # fmt: skip
# Modules of torch whose layers keep nothing in Python, and start no thread.
LAYERS = re.compile(r"torch\.nn\.(modules\..*|utils\.parametriz.*|utils\.weight_norm|utils\.spectral_norm)|torch\.nn")
METACLASSES = {type, abc.ABCMeta, enum.EnumMeta, type(typing.Protocol)}
# Bases of classes that hold no state.
PLAIN_BASES = {object, abc.ABC, typing.Generic, typing.Protocol}
# Parts of classes, beside functions and values, that never change.
FIELDS = types.DynamicClassAttribute, type(inspect.Attribute.name), types.GetSetDescriptorType
# Parts of a list or a dict that are looked at before each step.
MOST = 64

# Methods that change a module: of the network itself this is seen.
CHANGING = {
    "train", "register_buffer", "register_parameter", "register_module", "add_module", "load_state_dict", "half", "double",
    "to_empty",
}  # fmt: skip
OF_LIGHTNING = {
    "trainer", "current_epoch", "global_step", "logger", "loggers", "optimizers", "lr_schedulers", "fabric", "hparams",
    "hparams_initial", "toggle_optimizer", "untoggle_optimizer", "manual_backward",
}  # fmt: skip
_DUNDERS = {
    "__init__", "__class__", "__name__", "__call__", "__enter__", "__exit__", "__post_init__", "__version__", "__new__",
    "__len__",
}  # fmt: skip
_MUTATORS = {
    "append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "popitem", "remove", "clear", "update",
    "setdefault", "add", "discard", "sort", "reverse", "rotate", "move_to_end", "subtract", "difference_update",
    "intersection_update", "symmetric_difference_update",
}  # fmt: skip
# Attributes of tensors and modules that lead out of torch, or to what a step leaves behind; text may read attributes.
_LEADING_OUT = {
    "item", "tolist", "numpy", "data_ptr", "untyped_storage", "storage", "grad", "grad_fn", "_grad", "_version", "backward",
    "register_hook", "register_post_accumulate_grad_hook", "apply_", "map_", "map2_", "set_", "share_memory_", "format",
    "format_map", "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
    "register_full_backward_pre_hook",
}  # fmt: skip
_OPCODES = re.compile(
    r"(BINARY|BUILD|CALL|CHECK|COMPARE|CONTAINS|CONVERT|COPY|DICT|END|FORMAT|FOR|GET_(ITER|LEN)|IS|JUMP|LIST|LOAD|MAKE|MAP|"
    r"POP|PUSH|RAISE|RETURN|STORE|UNARY|UNPACK|DELETE_(FAST|SUBSCR)|NOP|RESUME|KW_NAMES|RERAISE|SWAP|TO_BOOL|YIELD|"
    r"BEFORE_WITH|WITH|NOT_TAKEN|SET_FUNCTION_ATTRIBUTE)(_|$)"
)
_REFUSED = re.compile(r"STORE_(GLOBAL|NAME)|LOAD_(NAME|LOCALS|BUILD_CLASS|FROM_DICT.*)|BUILD_(SET|TEMPLATE|INTERPOLATION)")
_ATTRIBUTES = "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"
_ANOTHER = "may be something else in the next step"


class UnsteadyCode(Exception):
    """Code that may do something else in the next step; its text is the reason."""


def package_of(space: dict[str, Any] | str) -> str:
    """Return the package of a module, by its globals or its name.

    A user's file that is named like a module of Python has the package "".

    Example:
        >>> package_of("torch.nn.functional"), package_of(globals())
        ('torch', 'lightning_dpgen')
    """
    if isinstance(space, str):
        space = vars(sys.modules[space]) if space in sys.modules else {"__name__": space}
    name, file = space.get("__name__"), space.get("__file__")
    name = name if isinstance(name, str) else ""
    package = name if name in TRUSTED else name.partition(".")[0]
    if package in sys.stdlib_module_names and isinstance(file, str):
        return package if file.startswith(_STDLIB) and "site-packages" not in file else ""
    return package


def instructions_of(code: CodeType) -> list[tuple[int, dis.Instruction]]:
    """Return the instructions of a function with their lines, less those that only prepare others."""
    line, found = code.co_firstlineno, []
    for x in dis.get_instructions(code):
        # From Python 3.13 on `starts_line` says whether one does.
        at = getattr(x, "line_number", None) if isinstance(x.starts_line, bool) else x.starts_line
        line = at or line
        if x.opname not in ("CACHE", "PUSH_NULL", "EXTENDED_ARG", "PRECALL"):
            found.append((line, x))
    return found


def place_of(code: CodeType, line: int | None = None) -> str:
    """Return the file and line of code, and the name of its function."""
    return f"{Path(code.co_filename).name}:{line or code.co_firstlineno} ({code.co_name})"


def last_name(instruction: dis.Instruction) -> Any:
    """Return the name that an instruction is about; of two, the last."""
    return instruction.argval[-1] if isinstance(instruction.argval, tuple) else instruction.argval


@functools.lru_cache(maxsize=1024)
def read_arguments(code: CodeType) -> list[str]:
    """Return the arguments of a function that it reads, or hands to functions inside it."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    read: set[Any] = set()
    for _, x in instructions_of(code):
        if (x.opname.startswith("LOAD") and x.opname != "LOAD_CONST") or "LOAD_FAST" in x.opname or x.opname == "MAKE_CELL":
            read.update(x.argval if isinstance(x.argval, tuple) else [x.argval])
    return [name for name in code.co_varnames[:count] if name in read]


def check_code(code: CodeType) -> tuple[str, set[str]]:
    """Check that code writes nothing but locals, and takes attributes by names that are known.

    Returns:
        The first place that may write into a list or dict, or "", and names of attributes that are given as text.

    Raises:
        UnsteadyCode: naming the line.
    """
    writes, names, found = "", set(), instructions_of(code)
    for i, (line, x) in enumerate(found):
        where, name, op = place_of(code, line), x.argval, x.opname
        last = found[i - 1][1]
        # An object that is made may be filled; `Reach` looks whether it lives on.
        own = code.co_name == "__init__" and "LOAD_FAST" in last.opname and last_name(last) == code.co_varnames[0]
        if op == "STORE_ATTR" and not own:
            raise UnsteadyCode(f"{where} writes {name}, an attribute, which a captured step leaves out: write it in a hook")
        if op in ("STORE_DEREF", "DELETE_DEREF") and name in code.co_freevars:
            raise UnsteadyCode(f"{where} writes {name} of the function around it: return it")
        if not _OPCODES.match(op) or _REFUSED.fullmatch(op):
            instead = "import it at the top of the file" if op.startswith("IMPORT") else "write it otherwise"
            raise UnsteadyCode(f"{where} has {op} {x.argrepr}, which may leave something behind: {instead}")
        if op in _ATTRIBUTES and (name in _LEADING_OUT or (name.startswith("__") and name not in _DUNDERS)):
            raise UnsteadyCode(f"{where} reads .{name}, which {_ANOTHER}: leave it out")
        # A small number is one object, wherever it comes from.
        plain = last.opname == "LOAD_CONST" and (last.argval is None or last.argval is ... or type(last.argval) is bool)
        if op == "IS_OP" and not plain and not (last.opname == "LOAD_GLOBAL" and last_name(last) in _BUILTINS):
            raise UnsteadyCode(f"{where} compares by is, which may tell the number of a step: write ==, or is None")
        into = op in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE") or (op == "BINARY_OP" and x.argrepr.endswith("="))
        if into or (op in _ATTRIBUTES and name in _MUTATORS):
            writes = writes or where
        if op == "LOAD_GLOBAL" and name in ("getattr", "hasattr"):
            rest = [x for _, x in found[i + 1 :]]
            after = next((j for j, y in enumerate(rest[1:], 1) if y.opname not in _ATTRIBUTES), 0)
            given = rest[after].argval if after and rest[after].opname == "LOAD_CONST" else None
            if type(given) is not str or given.startswith("__") or not rest[0].opname.startswith("LOAD"):
                raise UnsteadyCode(f"{where} calls {name} with a name that {_ANOTHER}: write the attribute out")
            names.add(given)
    return writes, names

"""Whether the Python of a loss does the same in every step, so that a captured step may leave it out.

The Python that runs while a loss is called is collected. Code of torch and of this package is trusted to follow from its
arguments and from what modules hold. Other code is accepted if it writes nothing that outlives the call, calls nothing but
torch and a few harmless functions, and if all that it can read is watched: each value that a path leads to, from the loss,
its modules and its globals, by any attributes that the code names, is of a kind whose change is seen. What ran once then
runs again until something changes. Anything that is not known is refused, since a wrong yes would train another loss
without a word.
"""

from __future__ import annotations

import abc
import builtins
import contextlib
import dis
import enum
import functools
import inspect
import itertools
import math
import re
import sys
import types
import typing
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter, call, getitem, itemgetter
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_dpgen.gradients.layers import modules_of
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.trees import leaves_of

# Packages whose code is trusted; of Lightning, the property that looks up a device; of the standard library, modules that
# keep nothing themselves.
_TRUSTED = {"torch", "functorch", "lightning_dpgen", "lightning_fabric.utilities.device_dtype_mixin"}
_LIBRARY = {"contextlib", "functools", "collections", "_collections_abc", "abc", "enum", "types", "typing", "itertools"}
_STDLIB = str(Path(inspect.__file__).parent)
# What trusted code calls is as trusted as it is.
# What takes the place of a training step and of its log; a call of the latter is seen.
_STAND_IN = "lightning_dpgen.plugins.automatic_module"
_HELPERS = sys.stdlib_module_names | {"numpy", "sympy", "typing_extensions"}
_LIGHTNING = {"pytorch_lightning", "lightning", "lightning_fabric"}
_ATOMS = {
    type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, slice, torch.dtype,
    torch.device, torch.Size, torch.layout, torch.memory_format,
}  # fmt: skip
_DICTS = {dict, OrderedDict}
_MEMBERS = "_parameters", "_buffers", "_modules"
_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
# Attributes that modules have for their own book-keeping; those of recurrent layers follow from the parameters.
_OWN = vars(nn.Module()).keys() - {"training"} | {"_flat_weights", "_flat_weight_refs"}
_GLOBAL_HOOKS = [
    value for name, value in vars(torch_module).items() if re.fullmatch(r"_global_(for|back)ward_.*hooks", name)
]
_BUILTINS = set(
    "abs all any bool bytes callable complex dict divmod enumerate filter float getattr hasattr int isinstance issubclass "
    "iter len list map max min next object pow range reversed round slice sorted str sum super tuple type zip".split()
)
_SPACES = (torch._C._VariableFunctions, torch._C._nn, torch._C._linalg, torch._C._fft, torch._C._special)
_FUNCTIONS = {f for space in _SPACES for name in dir(space) if callable(f := getattr(space, name))}
_FUNCTIONS -= {torch.from_file, torch.from_numpy, torch.frombuffer, torch.asarray}
_FUNCTIONS |= {torch.is_grad_enabled, torch.get_default_dtype, torch.is_tensor, torch._assert, functools.reduce}
_FUNCTIONS |= {f for f in vars(math).values() if callable(f)} | {getattr(builtins, name) for name in _BUILTINS}
_FUNCTIONS |= {tuple.__new__, object.__new__}
_CLASSES = (
    nn.Module, Tensor, torch.distributions.Distribution, torch.distributions.Transform, torch.no_grad, torch.enable_grad,
    torch.inference_mode, torch.autocast, torch.Size, torch.dtype, torch.device, torch.finfo, torch.iinfo,
)  # fmt: skip
# Modules of torch whose functions in Python follow from their arguments.
_PYTHON = re.compile(
    r"torch\.(functional|nn\.functional|_jit_internal|nn\.utils\.rnn|utils\.checkpoint|autograd|distributions\..*|_tensor)"
)
_TRACED = {"is_tracing", "is_scripting", "is_compiling", "is_exporting"}
_DUNDERS = set("__init__ __class__ __name__ __call__ __enter__ __exit__ __post_init__ __version__ __new__ __len__".split())
_MUTATORS = set(
    "append appendleft extend extendleft insert pop popleft popitem remove clear update setdefault add discard sort "
    "reverse rotate move_to_end subtract difference_update intersection_update symmetric_difference_update".split()
)
# Attributes of tensors and modules that lead out of torch, or to what a step leaves behind.
_OUT = set(
    "item tolist numpy data_ptr untyped_storage storage grad grad_fn _grad _version backward register_hook apply_ map_ map2_ "
    "register_post_accumulate_grad_hook set_ share_memory_ register_forward_hook register_forward_pre_hook "
    "register_full_backward_hook register_full_backward_pre_hook".split()
)
_OF_LIGHTNING = set(
    "trainer current_epoch global_step logger loggers optimizers lr_schedulers fabric hparams "
    "hparams_initial toggle_optimizer untoggle_optimizer manual_backward".split()
)
_OF_LOT = {"draw", "slots", "persons", "units", "fetch", "cut", "divide", "in_slots"}
# Methods that change a module; changes of the network itself are seen.
_CHANGES = set(
    "train register_buffer register_parameter register_module add_module load_state_dict half double to_empty".split()
)
_OPCODES = re.compile(
    r"(BINARY|BUILD|CALL|CHECK|COMPARE|CONTAINS|CONVERT|COPY|DICT|END|FORMAT|FOR|GET_(ITER|LEN)|IS|JUMP|LIST|LOAD|MAKE|MAP|"
    r"POP|PUSH|RAISE|RETURN|STORE|UNARY|UNPACK|DELETE_(FAST|SUBSCR)|NOP|RESUME|PRECALL|KW_NAMES|RERAISE|SWAP|TO_BOOL|YIELD|"
    r"BEFORE_WITH|WITH|EXTENDED_ARG|CACHE|NOT_TAKEN|SET_FUNCTION_ATTRIBUTE)(_|$)"
)
_REFUSED = re.compile(r"STORE_(GLOBAL|NAME)|LOAD_(NAME|LOCALS|BUILD_CLASS|FROM_DICT.*)|BUILD_(SET|TEMPLATE|INTERPOLATION)")
_METACLASSES = {type, abc.ABCMeta, enum.EnumMeta, type(typing.Protocol)}
# What classes of Python hold beside functions: nothing that changes.
_FIELDS = types.DynamicClassAttribute, type(inspect.Attribute.name), types.GetSetDescriptorType
_PLAIN = {object, abc.ABC, typing.Generic, typing.Protocol}
# What is looked up on the class of a module when it is called.
_CALLED = attrgetter("forward", "__call__", "_call_impl", "__getattr__")
_PARTS = attrgetter("__code__", "__defaults__", "__kwdefaults__")
_FEW = 64


class _Unsteady(Exception):
    """A reason for which Python cannot be left out."""


class SteadyCode:
    """Decides whether the Python of a loss may be left out of later steps, and sees when it no longer may.

    It keeps no module, tensor or record alive, and no number of a record.

    Args:
        network: the network that the loss is of.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> steady = SteadyCode(layer)
        >>> with steady.watching(layer):
        ...     _ = layer(torch.zeros(1, 2))
        >>> steady.reason(), steady.changed()
        (None, None)
        >>> _ = layer.eval()
        >>> steady.changed()
        'Linear.training has changed'
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = weakref.ref(network)
        # The code of others that ran, the names in torch's code that ran, and what was seen to be wrong.
        self._codes: dict[CodeType, None] = {}
        self._of_torch: dict[CodeType, None] = {}
        self._fault: str | None = None
        self._watched: _Watched | None = None
        self._lots = False
        # Why one call does not suffice.
        self._unsure: str | None = None

    @contextlib.contextmanager
    def watching(self, *losses: Callable) -> Iterator[None]:
        """Return a context in which the loss is called; all Python that runs in it, in this thread, is collected.

        A loss that may write into a list or a dict has to be watched twice: it is accepted if the second call leaves all as
        the first has left it, since each further one then does the same.

        Args:
            losses: the functions that are called (``term.loss``), where they are no methods of the network.
        """
        network, before = self._network(), sys.getprofile()
        # What is on the stack already is no part of the loss. The frames are held, so that no other is taken for one.
        below, frame = set(), sys._getframe()
        while frame is not None:
            below.add(frame)
            frame = frame.f_back
        state, entries, fresh = _tree_state(network), [], set()
        earlier, known = self._watched, len(self._codes)
        again = earlier is not None and earlier.changed() is None

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call":
                self._see(frame, below, entries, fresh)
            elif event == "c_call" and _is_user(frame, below) and not _is_harmless(argument):
                name = getattr(argument, "__qualname__", type(argument).__name__)
                self._blame(f"{_line(frame)} calls {name}, which may return something else in the next step: leave it out")

        tell = functools.partial(self._blame_line, below)
        with _NewTensors(tell), _Operations(network, tell):
            sys.setprofile(profile)
            try:
                yield
            finally:
                if sys.getprofile() is not profile:
                    self._blame("a profiler runs beside the loss, so what that calls is not seen: train without it")
                sys.setprofile(before if callable(before) else None)
        if _tree_state(network) != state:
            self._blame("the loss changes the network that it is called with (a mode, a buffer, a hook): leave that out")
        try:
            reach = _Reach(self._codes, self._of_torch, fresh, self._lots)
            self._watched = reach.watch(network, losses, entries)
            again = again and earlier.changed() is None and len(self._codes) == known
            self._unsure = None if again else self._watched.unsure
        except _Unsteady as reason:
            # It says more than what was seen on the way.
            self._fault = str(reason)

    def reason(self) -> str | None:
        """Return None if the Python that ran can be left out from now on, or else one line that says why not."""
        if self._fault is None and self._watched is None:
            return "no loss was watched"
        return self._fault or self._unsure

    def changed(self) -> str | None:
        """Return None if nothing has changed that the Python follows from, or else what has; call it before each replay.

        Autocast, and the mode of gradients, have to be as they were around `watching`.
        """
        return self.reason() or self._watched.changed()

    def _blame(self, reason: str) -> None:
        self._fault = self._fault or reason

    def _blame_line(self, below: set[FrameType], what: str) -> None:
        """Blame what the innermost line of a user does, if one runs."""
        for frame in _frames(sys._getframe(1), below):
            if _is_user(frame, below):
                self._blame(f"{_line(frame)} {what}")
                return

    def _see(self, frame: FrameType, below: set[FrameType], entries: list, fresh: set[int]) -> None:
        code = frame.f_code
        if not _is_user(frame, below):
            if _package(frame.f_globals) != "lightning_dpgen":
                self._of_torch[code] = None
            elif frame.f_globals.get("__name__") == _STAND_IN and _is_user(frame.f_back, below):
                self._blame(
                    f"{_line(frame.f_back)} logs a value, which a captured step leaves out: log it in a hook, such as "
                    "on_train_batch_end, or in validation_step"
                )
            return
        outer = list(_frames(frame, below))
        # What an import runs is no part of the loss, and code that imports is refused.
        if any(_package(x.f_globals) == "importlib" for x in outer):
            return
        self._codes[code] = None
        if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            self._blame(f"{_line(frame)} is a coroutine (async): write a function")
        if code.co_name == "__init__":
            fresh.add(id(frame.f_locals.get(code.co_varnames[0])))
        if any(_is_user(x, below) for x in outer[1:]):
            return
        # Its arguments are from this package: records, or the number of the lot.
        for name in _read_arguments(code):
            given = frame.f_locals.get(name)
            if isinstance(given, Lot):
                self._lots = True
            elif not _is_record(given):
                with contextlib.suppress(TypeError):
                    given = weakref.ref(given)
                entries.append((code, name, given))


def _frames(frame: FrameType | None, below: set[FrameType]) -> Iterator[FrameType]:
    """Yield a frame and those that it was called from, up to what was on the stack before."""
    while frame is not None and frame not in below:
        yield frame
        frame = frame.f_back


def _package(space: dict[str, Any] | str | None) -> str:
    """Return the package of a module, by its globals or its name; text of length 0 for one that hides one of Python's."""
    if not isinstance(space, dict):
        space = vars(sys.modules[space]) if space in sys.modules else {"__name__": space}
    name, file = space.get("__name__"), space.get("__file__")
    name = name if isinstance(name, str) else ""
    package = name if name in _TRUSTED else name.partition(".")[0]
    if package in sys.stdlib_module_names and file is not None:
        return package if file.startswith(_STDLIB) and "site-packages" not in file else ""
    return package


def _is_user(frame: FrameType, below: set[FrameType]) -> bool:
    """Return whether the code of a frame is to be looked at: that of the standard library is, where such code calls it."""
    for x in _frames(frame, below):
        package = _package(x.f_globals)
        if package not in _HELPERS:
            return package not in _TRUSTED
        if package in _LIBRARY:
            return False
    return False


def _is_record(given: Any) -> bool:
    """Return whether an argument is made of tensors alone, or a lot of these."""
    if type(given) in (tuple, list):
        return all(map(_is_record, given))
    if type(given) in _DICTS:
        return all(map(_is_record, given.values()))
    package = type(given).__module__.partition(".")[0]
    return given is None or isinstance(given, Tensor) or (package == "lightning_dpgen" and not isinstance(given, nn.Module))


def _is_harmless(function: Any) -> bool:
    """Return whether a compiled function that code of others calls follows from its arguments."""
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, ModuleType | type):
        known = isinstance(owner, type) and (
            owner in _ATOMS | _DICTS | {list, tuple, object} or issubclass(owner, _CLASSES)
        )
        return known or (function.__hash__ is not None and function in _FUNCTIONS)
    kind = type(owner)
    if kind in _ATOMS or isinstance(owner, Tensor | tuple | list | dict | frozenset | torch.finfo):
        return True
    return kind.__module__.partition(".")[0] in {"torch", "itertools", "collections"} or kind in _ITERATORS


_ITERATORS = {type(iter(x)) for x in ((), [], {}, {}.items(), {}.values(), "", range(1), reversed([]))} | {
    types.GeneratorType, zip, map, filter, enumerate, reversed, type({}.keys()), type({}.items()), type({}.values()), super
}  # fmt: skip


def _line(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} ({frame.f_code.co_name})"


def _instructions(code: CodeType) -> list[dis.Instruction]:
    """Return the instructions of a function, less those that only prepare others."""
    return [x for x in dis.get_instructions(code) if x.opname not in ("CACHE", "PUSH_NULL", "EXTENDED_ARG", "PRECALL")]


def _last_name(instruction: dis.Instruction) -> Any:
    return instruction.argval[-1] if isinstance(instruction.argval, tuple) else instruction.argval


@functools.lru_cache(maxsize=1024)
def _read_arguments(code: CodeType) -> list[str]:
    """Return the arguments of a function that it loads, or hands to functions inside it."""
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    read: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith("LOAD") or "LOAD_FAST" in instruction.opname or instruction.opname == "MAKE_CELL":
            read.update(instruction.argval if isinstance(instruction.argval, tuple) else [instruction.argval])
    return [name for name in code.co_varnames[:count] if name in read]


_READS = (
    "reads the value of a tensor as a number of Python (if, float, an index, a mask), which would stay what it is now: use "
    "torch.where, torch.stack, or the tensor itself"
)


class _NewTensors(TorchFunctionMode):
    """A mode that tells of tensors that are made of the numbers of others, which no operation shows."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def __torch_function__(self, function, types, args=(), kwargs=None):
        made_of = {torch.tensor: 0, torch.as_tensor: 0, torch.asarray: 0, Tensor.new_tensor: 1, Tensor.new: 1}.get(function)
        if made_of is not None and any(isinstance(x, Tensor) for x in leaves_of((args[made_of:], kwargs or {}))):
            self._tell(_READS)
        return function(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    """A mode that tells of operations that read a value as a number of Python, or write into what the network holds."""

    def __init__(self, network: nn.Module, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell
        tensors = (*network.parameters(), *network.buffers())
        self._held = {x.untyped_storage().data_ptr() for x in tensors} - {0}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.index.Tensor:
            reads = any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
        else:
            reads = not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}.isdisjoint(function.tags)
        if reads:
            self._tell(_READS)
        if function._schema.is_mutable:
            names = [x.name for x in function._schema.arguments if x.alias_info is not None and x.alias_info.is_write]
            given = dict(zip([x.name for x in function._schema.arguments], args, strict=False)) | (kwargs or {})
            for x in map(given.get, names):
                if isinstance(x, Tensor) and x.untyped_storage().data_ptr() in self._held:
                    self._tell(
                        "writes into a tensor that the network holds: write it in a hook, such as on_train_batch_end"
                    )
        return function(*args, **(kwargs or {}))


def _tree_state(network: nn.Module) -> list:
    """Return what tells whether a loss has changed the network."""
    state: list = []
    for module in modules_of(network):
        space = vars(module)
        state += [id(module), type(module), list(space), [id(x) for name, x in space.items() if name not in _OWN]]
        for name in (*_MEMBERS, *_HOOKS):
            state += [list(space[name]), list(map(id, space[name].values()))]
    return state


class _Reach:
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
        self._watched = _Watched(self._names | self._of_torch)

    def watch(self, network: nn.Module, losses: tuple[Callable, ...], entries: list) -> _Watched:
        """Look at everything, and watch it.

        Raises:
            _Unsteady: for what cannot be left out.
        """
        if any(map(_is_lightning, modules_of(network))) and (read := sorted(_OF_LIGHTNING & self._names)):
            self._refuse(
                read[0], f"uses {read[0]} of the LightningModule", "leave it out, or keep a number as an attribute"
            )
        for code in self._codes:
            self._check_code(code)
        if self._lots and (read := sorted(_OF_LOT & self._names)):
            self._refuse(read[0], f"uses {read[0]} of a lot", "use its records and offsets alone")
        self._device = next((x.device for x in network.parameters()), torch.device("cpu"))
        self._tree(network, type(network).__name__)
        for loss in losses:
            self._value(loss, getattr(loss, "__name__", type(loss).__name__))
        for code, name, given in entries:
            self._entry(code, name, given)
        for code in self._codes:
            if code not in self._covered:
                where = f"{Path(code.co_filename).name}:{code.co_firstlineno} ({code.co_name})"
                raise _Unsteady(f"{where} runs, and belongs to nothing that the loss leads to: pass it as a loss")
        own = set(map(id, modules_of(network)))
        for module in self._watched.modules.values():
            if id(module) not in own and (read := sorted(_CHANGES & self._names)):
                self._refuse(
                    read[0], f"calls {read[0]}, and may change a {type(module).__name__} beside it", "do it before"
                )
        if self._mutable and self._mutator:
            self._watched.unsure = (
                f"{self._mutator} may write into a list or dict, and {self._mutable} lives on: make that a tuple, or build "
                "the other one without writing into it"
            )
        if not self._fresh.isdisjoint(self._watched.owners):
            raise _Unsteady("the loss calls __init__ of an object that it keeps: make that before")
        self._watched.close()
        return self._watched

    def _refuse(self, name: str, what: str, instead: str) -> None:
        """Refuse a name, with the first line that has it."""
        for code in self._codes:
            line = code.co_firstlineno
            for instruction in dis.get_instructions(code):
                line = instruction.starts_line if type(instruction.starts_line) is int else line
                line = getattr(instruction, "line_number", None) or line
                if _last_name(instruction) == name:
                    raise _Unsteady(f"{Path(code.co_filename).name}:{line} ({code.co_name}) {what}: {instead}")
        raise _Unsteady(f"the loss {what}: {instead}")

    def _check_code(self, code: CodeType) -> None:
        """Check that code writes nothing but locals, and takes attributes by names that are known."""
        instructions = _instructions(code)
        line = code.co_firstlineno
        for i, x in enumerate(instructions):
            line = (x.starts_line if type(x.starts_line) is int else None) or getattr(x, "line_number", None) or line
            where, name, op = f"{Path(code.co_filename).name}:{line} ({code.co_name})", x.argval, x.opname
            last = instructions[i - 1]
            own = code.co_name == "__init__" and "LOAD_FAST" in last.opname and _last_name(last) == code.co_varnames[0]
            if op == "STORE_ATTR" and not own:
                raise _Unsteady(
                    f"{where} writes {name}, an attribute, which a captured step leaves out: write it in a hook"
                )
            if op in ("STORE_DEREF", "DELETE_DEREF") and name in code.co_freevars:
                raise _Unsteady(f"{where} writes {name} of the function around it: return it")
            if not _OPCODES.match(op) or _REFUSED.fullmatch(op):
                instead = "import it at the top of the file" if op.startswith("IMPORT") else "write it otherwise"
                raise _Unsteady(f"{where} has {op} {x.argrepr}, which may leave something behind: {instead}")
            if op in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
                if name in _OUT or (name.startswith("__") and name not in _DUNDERS):
                    raise _Unsteady(f"{where} reads .{name}, which may be something else in the next step: leave it out")
                if name in _MUTATORS:
                    self._mutator = self._mutator or where
            if op in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE") or (op == "BINARY_OP" and x.argrepr.endswith("=")):
                self._mutator = self._mutator or where
            if op in ("LOAD_GLOBAL", "LOAD_NAME") and name in ("getattr", "hasattr"):
                rest = instructions[i + 1 :]
                after = next((j for j, y in enumerate(rest[1:], 1) if y.opname not in ("LOAD_ATTR", "LOAD_METHOD")), 0)
                known = after and rest[0].opname.startswith("LOAD") and rest[after].opname == "LOAD_CONST"
                if not known or type(rest[after].argval) is not str or rest[after].argval.startswith("__"):
                    raise _Unsteady(f"{where} calls {name} with a name that may be another one: write the attribute out")
                self._names.add(rest[after].argval)

    def _entry(self, code: CodeType, name: str, given: Any) -> None:
        """Look at an argument that the caller of the loss hands to it."""
        if type(given) is weakref.ref and given() is not None:
            self._value(given(), name)
        elif type(given) is int or name not in self._defaults.get(code, {}) or self._defaults[code][name] is not given:
            where = f"{Path(code.co_filename).name}:{code.co_firstlineno} ({code.co_name})"
            raise _Unsteady(
                f"{where} reads {name}, which is another one in each step (the number of a batch): leave it out"
            )

    def _value(self, x: Any, label: str, lenient: bool = False) -> None:
        kind, name = type(x), label.rpartition(".")[2].partition("[")[0]
        if kind in _ATOMS or (id(x), lenient) in self._seen:
            return
        self._seen[id(x), lenient] = x
        if isinstance(x, tuple) or kind in (list, frozenset) or kind in _DICTS:
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
        elif kind is MethodType and type(x.__self__).__module__ == _STAND_IN:
            pass
        elif kind is MethodType:
            self._value(x.__func__, label)
            self._value(x.__self__, label.rpartition(".")[0] or label)
        elif kind is functools.partial:
            for part in (x.func, *x.args, *x.keywords.values()):
                self._value(part, label, lenient)
        elif kind in (staticmethod, classmethod, property):
            self._value(x.fget if kind is property else x.__func__, label)
        elif isinstance(x, _FIELDS) or (isinstance(x, weakref.ref) and lenient):
            pass
        elif isinstance(x, type):
            self._class(x, label, name)
        elif isinstance(x, ModuleType):
            for name in sorted(self._names):
                self._value(self._member(x, label, name), f"{label}.{name}")
        elif callable(x) and kind.__module__ == "builtins":
            if x not in _FUNCTIONS and getattr(x, "__objclass__", None) not in (Tensor, torch._C.TensorBase):
                self._refuse(name, f"uses {label}, which may return something else in the next step", "leave it out")
        elif not lenient:
            self._object(x, label, name)

    def _container(self, x: Any, label: str, name: str, lenient: bool) -> None:
        if len(x) > _FEW:
            self._refuse(name, f"reads {label}, which has {len(x)} parts", f"use a tensor, or at most {_FEW} parts")
        if isinstance(x, tuple) and type(x) is not tuple:
            if getattr(x, "__dict__", None):
                self._refuse(name, f"reads {label}, a tuple with attributes", "use a plain one")
            self._class(type(x), label, name)
        if type(x) is frozenset or type(x) in _DICTS:
            for key in x:
                if type(key) not in _ATOMS:
                    self._refuse(name, f"reads {label}, which holds a {type(key).__name__}", "use text or numbers")
        if type(x) in _DICTS or type(x) is list:
            self._mutable = self._mutable or ("" if lenient else label)
        for i, part in x.items() if type(x) in _DICTS else enumerate(x):
            self._value(part, f"{label}[{i}]", lenient)

    def _tree(self, root: nn.Module, label: str) -> None:
        for module in modules_of(root):
            if id(module) in self._watched.modules:
                continue
            kind, space = type(module), vars(module)
            label = label if module is root else kind.__name__
            self._watched.modules[id(module)] = module
            if any(space[name] for name in _HOOKS):
                raise _Unsteady(f"{label} has a hook, whose Python would be left out: write what it does into forward")
            if isinstance(module, torch.jit.ScriptModule) or kind.__name__ == "OptimizedModule":
                raise _Unsteady(f"{label} is compiled: call the module that it was made from")
            ours = _package(kind.__module__) == "lightning_dpgen"
            self._class(kind, kind.__name__, kind.__name__)
            read = [name for name in space if name not in _OWN and (ours or name in self._names or name in self._of_torch)]
            self._watched.growing |= {id(module)} if _is_lightning(module) else set()
            self._read(module, read, label)
            for x in (*space["_parameters"].values(), *space["_buffers"].values()):
                if x is not None:
                    self._value(x, f"a parameter or buffer of {label}")

    def _read(self, owner: Any, names: list[str], label: str) -> None:
        """Watch attributes of an object."""
        self._watched.owners.setdefault(id(owner), (owner, label, {}))[2].update(dict.fromkeys(names))
        for name in names:
            self._value(vars(owner)[name], f"{label}.{name}", name not in self._names)

    def _class(self, kind: type, label: str, name: str) -> None:
        if ("class", kind) in self._seen:
            return
        self._seen["class", kind] = kind
        trusted = _package(kind.__module__) in _TRUSTED | {"builtins"}
        if kind.__module__ == "builtins" and kind not in _FUNCTIONS and not issubclass(kind, BaseException):
            self._refuse(name, f"uses {label}, which may return something else in the next step", "leave it out")
        if not trusted and issubclass(kind, torch.autograd.Function | Tensor | TorchFunctionMode | TorchDispatchMode):
            self._refuse(name, f"uses {label}, whose Python runs within torch", "write it with torch's own functions")
        if not trusted and type(kind) not in _METACLASSES:
            self._refuse(name, f"uses {label}, a class with a class of its own", "use a plain class")
        if kind.__module__.partition(".")[0] == "torch" and not issubclass(kind, _CLASSES):
            self._refuse(name, f"uses {label}, which is not known to follow from its arguments", "leave it out")
        if issubclass(kind, nn.Module):
            self._watched.classes[id(kind)] = kind
        for c in kind.__mro__:
            package = _package(c.__module__)
            if package in _TRUSTED | _LIBRARY | {"builtins"}:
                continue
            # A class of C has no flag of the heap, or no dictionary.
            bare = not c.__flags__ & 1 << 9 or (c.__bases__ == (object,) and "__dict__" not in vars(c))
            if package in sys.stdlib_module_names or bare or vars(c).get("__slots__"):
                self._refuse(name, f"uses {label}, whose state is not seen ({c.__name__})", "use a plain class of Python")
            used = self._names | self._of_torch
            self._read(c, [n for n, x in vars(c).items() if n in used or _code_of(x) in self._codes], c.__name__)

    def _object(self, x: Any, label: str, name: str) -> None:
        kind = type(x)
        package = _package(kind.__module__)
        if not hasattr(x, "__dict__") or package in _TRUSTED - {"lightning_dpgen"} | _LIBRARY | _LIGHTNING | {"builtins"}:
            self._refuse(
                name, f"reads {label}, a {kind.__name__}, which may change", "keep what it gives as a number or a buffer"
            )
        if not isinstance(x, enum.Enum) and any(
            _package(c.__module__) in _LIBRARY | {"builtins"} and c not in _PLAIN for c in kind.__mro__
        ):
            self._refuse(
                name, f"reads {label}, a {kind.__name__}, which may change", "keep it as a tuple, or as attributes"
            )
        self._class(kind, label, name)
        space = vars(x)
        self._read(x, [n for n in space if n in self._names or package == "lightning_dpgen"], label)

    def _member(self, x: ModuleType, label: str, name: str) -> Any:
        """Return what a module of Python has by a name, watched where it is a user's module, or a number."""
        space, package = vars(x), _package(x.__name__)
        if type(x) is not ModuleType or (name not in space and "__getattr__" in space):
            raise _Unsteady(f"the loss reads {label}.{name}, which its module looks up by code: import it by its name")
        if package not in _TRUSTED | sys.stdlib_module_names or type(space.get(name)) in _ATOMS:
            self._place(space, name)
        return space.get(name)

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
        for attribute in attributes:
            if not isinstance(x, ModuleType):
                break
            label, x = f"{label}.{attribute}", self._member(x, label, attribute)
        self._value(x, label)

    def _function(self, f: FunctionType, label: str, name: str) -> None:
        package, code = _package(f.__globals__), f.__code__
        if package not in _TRUSTED | _LIBRARY and (attributes := [x for x in vars(f) if x in self._names]):
            self._read(f, attributes, label)
        if package in _TRUSTED or package in _LIBRARY:
            # What a decorator of theirs has wrapped is looked at.
            cells = [cell.cell_contents for cell in f.__closure__ or ()]
            for x in cells:
                if isinstance(x, nn.Module | functools.partial) or _code_of(x) in self._codes or _is_wrapper(x):
                    self._value(x, label)
            wraps = _is_wrapper(f)
            known = f in _FUNCTIONS or _PYTHON.fullmatch(f.__module__ or "") or f.__name__ in _TRACED or wraps
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
            instructions = _instructions(part)
            for i, x in enumerate(instructions):
                if x.opname == "LOAD_GLOBAL":
                    read = itertools.takewhile(lambda x: x.opname in ("LOAD_ATTR", "LOAD_METHOD"), instructions[i + 1 :])
                    self._global(f.__globals__, x.argval, [x.argval for x in read])


def _is_lightning(module: nn.Module) -> bool:
    return any(_package(kind.__module__) in _LIGHTNING for kind in type(module).__mro__)


def _is_wrapper(x: Any) -> bool:
    """Return whether a decorator of torch or of the standard library has made a function around another one of a user."""
    x = getattr(x, "__func__", x)
    return isinstance(x, FunctionType) and (x.__module__ or "").partition(".")[0] not in _TRUSTED | _LIBRARY


def _code_of(x: Any) -> CodeType | None:
    """Return the code of a function, of a method or of a property."""
    x = getattr(x, "fget", None) or getattr(x, "__func__", None) or x
    return x.__code__ if isinstance(x, FunctionType) else None


def _content(x: Any) -> Any:
    """Return what tells whether a container, or anything in it, is another one."""
    kind = type(x)
    if isinstance(x, tuple) or kind is list:
        return kind, *map(_content, x)
    if kind in _DICTS:
        return kind, *map(id, x), *map(_content, x.values())
    if kind is functools.partial:
        return kind, _content(x.func), _content(x.args), _content(x.keywords)
    return id(x)


def _is_plain(x: Any) -> bool:
    return type(x) in _ATOMS or (type(x) in (tuple, frozenset) and all(map(_is_plain, x)))


class _Watched:
    """All that code reads, by the identities of values, none of which is kept alive but numbers and text.

    Args:
        names: the names that code uses.

    Attributes:
        owners: by identity an object, its name, and the names of those of its attributes that are read.
        growing: the identities of modules of Lightning, which get other attributes during a fit.
        globals: by identity the globals of a module, and the names that are read in it and that it lacks.
    """

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self.unsure: str | None = None
        self.owners: dict[int, tuple[Any, str, dict[str, None]]] = {}
        self.modules: dict[int, nn.Module] = {}
        self.growing: set[int] = set()
        self.functions: dict[int, FunctionType] = {}
        self.classes: dict[int, type] = {}
        self.globals: dict[int, tuple[dict[str, Any], dict[str, None], set[str]]] = {}
        self.tensors: dict[int, Tensor] = {}

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
        self._absent = [self._names - vars(x).keys() for x in modules[: self._growing]] + [lacks for _, _, lacks in spaces]
        # Those that hold nothing are held, and have to stay so.
        self._empty = [d for x in modules for name in (*_MEMBERS, *_HOOKS) if not (d := vars(x)[name])] + _GLOBAL_HOOKS
        held = [(i, name) for i, x in enumerate(modules) for name in _MEMBERS if vars(x)[name]]
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
        self._then = self._now()
        for name in ("owners", "modules", "functions", "classes", "globals", "tensors"):
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
        elif kind in _DICTS:
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
        if not _is_plain(x) and (isinstance(x, tuple | functools.partial) or type(x) is list or type(x) in _DICTS):
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
            list(map(id, values)),
            list(itertools.chain.from_iterable(members)),
            list(map(len, spaces[self._growing : len(self._owners)])),
            all(space.keys().isdisjoint(names) for space, names in zip(lacking, self._absent, strict=True)),
            list(map(Tensor.data_ptr, tensors)),
            list(map(_TRAINED, tensors)),
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
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
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
    "a name that the loss looks up was added", "a tensor has other memory", "requires_grad of a tensor has changed",
    "a hook, parameter, buffer or module was added", "the state of torch has changed (gradients, autocast, default types or modes)",
)  # fmt: skip
_CELL, _CLOSURE, _TRAINED = attrgetter("cell_contents"), attrgetter("__closure__"), attrgetter("requires_grad")


class _Held:
    """What holds the globals of a module, and looks like a reference to it."""

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
        torch.utils._device.CURRENT_DEVICE,
    )

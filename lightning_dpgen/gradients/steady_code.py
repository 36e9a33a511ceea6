"""A decision: whether the Python of a loss does the same in every step, so that a captured step may leave it out.

The Python that runs while a loss is called is collected. Code of torch and of this package is trusted to follow from its
arguments and from what modules hold. Other code is accepted if it writes nothing that outlives the call, calls nothing but
torch and a few harmless functions, and if all that it can read is watched: each value that a path leads to, from the loss,
its modules and its globals, by any attributes that the code names, is of a kind whose change is seen. What ran once then
runs again until something changes. Anything that is not known is refused, since a wrong yes would train another loss
without a word.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_dpgen.gradients.isolation.loss_call import invalidate_escaped_tensors
from lightning_dpgen.gradients.layers import modules_of
from lightning_dpgen.gradients.steady_reach import OWN_NAMES, Reach
from lightning_dpgen.gradients.steady_rules import (
    CLASSES,
    FUNCTIONS,
    HELPERS,
    LIBRARY,
    TRUSTED,
    UnsteadyCode,
    package_of,
    place_of,
    read_arguments,
)
from lightning_dpgen.gradients.steady_values import ATOMS, DICTS, HOOKS, MEMBERS, WatchedValues
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.trees import leaves_of


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
        self._watched: WatchedValues | None = None
        self._lots = False
        # Why one call does not suffice.
        self._unsure: str | None = None

    @contextlib.contextmanager
    def watching(self, *losses: Callable) -> Iterator[None]:
        """Return a context in which the loss is called; all Python that runs in it, in this thread, is collected.

        A loss that may write into a list or a dict has to be watched twice: it is accepted if the second call leaves all as
        the first has left it, since each further one then does the same.

        Args:
            losses: the functions that are called (``term.loss``), where they are no methods of the network. They have to
                live on: a lambda that each step makes anew is gone in the next.
        """
        network, before = self._network(), sys.getprofile()
        # The frames on the stack are no part of the loss. They are held, so that no other is taken for one of them.
        below, frame = set(), sys._getframe()
        while frame is not None:
            below.add(frame)
            frame = frame.f_back
        state, entries, fresh = _tree_state(network), [], set()
        earlier, known = self._watched, len(self._codes)
        again = earlier is not None and earlier.changed() is None

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call":
                try:
                    self._see(frame, below, entries, fresh)
                # The loss stays as it is, whatever its code does to those who look at it: no error may reach it from here.
                except Exception as error:
                    self._blame(f"{_line(frame)} cannot be followed ({type(error).__name__}: {error})")
            elif event == "c_call" and _is_user(frame, below) and not _is_harmless(argument):
                name = getattr(argument, "__qualname__", type(argument).__name__)
                self._blame(f"{_line(frame)} calls {name}, which may return something else in the next step: leave it out")

        tell = functools.partial(self._blame_line, below)
        # Finalisers of other objects are no part of the loss.
        collects = gc.isenabled()
        gc.collect()
        gc.disable()
        with _NewTensors(tell), _Operations(network, tell):
            sys.setprofile(profile)
            try:
                yield
            finally:
                if sys.getprofile() is not profile:
                    self._blame("a profiler runs beside the loss, so what that calls is not seen: train without it")
                sys.setprofile(before if callable(before) else None)
                below.clear()
                if collects:
                    gc.enable()
        if _tree_state(network) != state:
            self._blame("the loss changes the network that it is called with (a mode, a buffer, a hook): leave that out")
        try:
            reach = Reach(self._codes, self._of_torch, fresh, self._lots)
            self._watched = reach.watch(network, losses, entries)
            again = again and earlier.changed() is None and len(self._codes) == known
            self._unsure = None if again else self._watched.unsure
        except UnsteadyCode as reason:
            # It says more than what was seen on the way.
            self._fault = str(reason)
        # As above: what cannot be followed runs in each step.
        except Exception as error:
            self._blame(f"the code of the loss cannot be followed ({type(error).__name__}: {error})")

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
            if package_of(frame.f_globals) != "lightning_dpgen":
                self._of_torch[code] = None
            return
        self._codes[code] = None
        if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            self._blame(f"{_line(frame)} is a coroutine (async): write a function")
        if code.co_name == "__init__":
            fresh.add(id(frame.f_locals.get(code.co_varnames[0])))
        if any(_is_user(x, below) for x in _frames(frame.f_back, below)):
            return
        # Its arguments are from this package: records, or the number of the lot.
        for name in read_arguments(code):
            given = frame.f_locals.get(name)
            if isinstance(given, Lot):
                self._lots = True
            elif not _is_record(given):
                with contextlib.suppress(TypeError):
                    given = weakref.ref(given)
                entries.append((code, name, given))


# It collects garbage before a lot.
_COLLECTION = invalidate_escaped_tensors.__enter__.__code__


def _frames(frame: FrameType | None, below: set[FrameType]) -> Iterator[FrameType]:
    """Yield a frame and those that it was called from, up to what was on the stack before."""
    while frame is not None and frame not in below:
        yield frame
        frame = frame.f_back


def _is_user(frame: FrameType, below: set[FrameType]) -> bool:
    """Return whether the code of a frame is to be looked at: that of the standard library is, where such code calls it."""
    if frame.f_globals.get("__name__", "").startswith("namedtuple_"):
        # The constructor of a named tuple, in a namespace of its own.
        return False
    for x in _frames(frame, below):
        package = package_of(x.f_globals)
        if package not in HELPERS:
            # An import is no part of the loss, and code that imports is refused; nor are callbacks of a collection.
            return package not in TRUSTED and not any(
                package_of(y.f_globals) == "importlib" or y.f_code is _COLLECTION for y in _frames(x, below)
            )
        if (package in LIBRARY and x is frame) or package == "importlib":
            return False
    return False


def _is_record(given: Any) -> bool:
    """Return whether an argument is made of tensors alone, or a lot of these."""
    if type(given) in (tuple, list):
        return all(map(_is_record, given))
    if type(given) in DICTS:
        return all(map(_is_record, given.values()))
    package = type(given).__module__.partition(".")[0]
    return given is None or isinstance(given, Tensor) or (package == "lightning_dpgen" and not isinstance(given, nn.Module))


def _is_harmless(function: Any) -> bool:
    """Return whether a compiled function that code of others calls follows from its arguments."""
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, ModuleType | type):
        known = isinstance(owner, type) and (owner in ATOMS | DICTS | {list, tuple, object} or issubclass(owner, CLASSES))
        return known or (function.__hash__ is not None and function in FUNCTIONS)
    kind = type(owner)
    if kind in ATOMS or isinstance(owner, Tensor | tuple | list | dict | frozenset | torch.finfo):
        return True
    return kind.__module__.partition(".")[0] in {"torch", "itertools", "collections"} or kind in _ITERATORS


_ITERATORS = {type(iter(x)) for x in ((), [], {}, {}.items(), {}.values(), "", range(1), reversed([]))} | {
    types.GeneratorType, zip, map, filter, enumerate, reversed, type({}.keys()), type({}.items()), type({}.values()), super
}  # fmt: skip


def _line(frame: FrameType) -> str:
    return place_of(frame.f_code, frame.f_lineno)


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
        self._device = next((x.device for x in tensors), torch.device("cpu"))
        self._held = {x.untyped_storage().data_ptr() for x in tensors} - {0}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.index.Tensor:
            indices = args[1] if len(args) > 1 else (kwargs or {})["indices"]
            reads = any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indices)
        else:
            reads = not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}.isdisjoint(function.tags)
        if reads:
            self._tell(_READS)
        if function._schema.is_mutable:
            given = dict(zip([x.name for x in function._schema.arguments], args, strict=False)) | (kwargs or {})
            for argument in function._schema.arguments:
                x = given.get(argument.name)
                if argument.alias_info is not None and argument.alias_info.is_write and self._is_held(x):
                    self._tell("writes into a tensor that the network holds: write it in a hook (on_train_batch_end)")
        result = function(*args, **(kwargs or {}))
        if self._device.type != "cpu":
            tensors = [x for x in leaves_of((args, kwargs or {}, result)) if isinstance(x, Tensor)]
            # A number on the processor is a constant of what is captured, where it was not drawn.
            copies = function in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
            draws = torch.Tag.nondeterministic_seeded in function.tags and tensors[-1].device != self._device
            if draws or len({x.device for x in tensors if copies or x.dim()}) > 1:
                self._tell(f"computes on the processor, which a captured step leaves out: make tensors on {self._device}")
        return result

    def _is_held(self, x: Any) -> bool:
        return isinstance(x, Tensor) and x.untyped_storage().data_ptr() in self._held


def _tree_state(network: nn.Module) -> list:
    """Return what tells whether a loss has changed the network."""
    state: list = []
    for module in modules_of(network):
        space = vars(module)
        state += [id(module), type(module), list(space), [id(x) for name, x in space.items() if name not in OWN_NAMES]]
        for name in (*MEMBERS, *HOOKS):
            state += [list(space[name]), list(map(id, space[name].values()))]
    return state

"""The guard of a loss: it sees each function of torch that is called, and refuses those that could show other records."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch._functorch.autograd_function import custom_function_call
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.autograd import Function
from torch.nn.modules import module
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from lightning_dpgen.gradients.isolation import unknown_functions
from lightning_dpgen.gradients.isolation.hidden import SelfRuledTensor, is_hidden
from lightning_dpgen.gradients.isolation.own_gradients import OWN_GRADIENTS
from lightning_dpgen.gradients.isolation.vmap_functions import OF_PLAIN, SPECIAL, any_hidden, call_decomposed
from lightning_dpgen.gradients.isolation.vmap_overrides import COMPUTING, override_for
from lightning_dpgen.sampling.randomness import generator_states, torch_generators
from lightning_dpgen.sampling.trees import leaves_of

if TYPE_CHECKING:
    from lightning_dpgen.gradients.isolation.isolation import Isolation

# Folders of functions that take part in torch's overrides and are known.
_KNOWN = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}")
_COMPILED = (
    BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType, OpOverload, OpOverloadPacket,
    HigherOrderOperator,
)  # fmt: skip
# Namespaces of torch's own operators.
_NAMESPACES = {"aten", "prims", "prim", "profiler"}
_SET_GRAD = Tensor.grad.__set__
# Functions that are handed a function, and are refused or watched in a way of their own.
_TAKE_FUNCTIONS = {
    custom_function_call, Tensor.register_hook, Tensor.register_post_accumulate_grad_hook, Tensor.as_subclass,
    Tensor.__setattr__,
}  # fmt: skip


# Types of Python that torch takes for those of tensors (``dtype=bool``).
_NUMBERS = (bool, int, float, complex)
# Functions that make a tensor of no record, and draw nothing.
_FACTORIES = {
    torch.zeros, torch.ones, torch.full, torch.eye, torch.arange, torch.linspace, torch.logspace, torch.zeros_like,
    torch.ones_like, torch.full_like, torch.tensor, Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_tensor,
    Tensor.clone, torch.clone, Tensor.repeat, Tensor.float, Tensor.double, Tensor.to,
}  # fmt: skip
_RANDOM = {
    getattr(Tensor, name)
    for name in ("normal_", "uniform_", "bernoulli_", "exponential_", "random_", "cauchy_", "log_normal_", "geometric_")
}
_WRITING = {getattr(Tensor, name) for name in dir(Tensor) if name.endswith("_") and name.strip("_") and name[0] != "_"}
_WRITING |= {
    getattr(Tensor, f"__{name}__")
    for name in ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor")
    if hasattr(Tensor, f"__{name}__")
}


class LossGuard(TorchFunctionMode):
    """A mode that sees each function of torch that a loss calls, and refuses those that could show it other records.

    Functions for which vmap has no rule, a slow one or a wrong one are computed in another way.

    Args:
        isolation: hides the records; None in code of an `autograd.Function`, from which torch itself hides them.

    Attributes:
        error: the first error of a function that the loss has called.
        has_own_backward: True if a backward pass will call code of the loss.
    """

    def __init__(self, isolation: Isolation | None = None) -> None:
        super().__init__()
        self.isolation = isolation
        self.error: Exception | None = None
        self.has_own_backward = False
        # Tensors without a record that the loss has made itself: it may write into these.
        self._new: dict[int, Tensor] = {}
        # The generators that a loss draws from.
        self._generators = torch_generators()
        self._seeds = list(map(torch.Generator.initial_seed, self._generators))
        # Modes of the caller are allowed, since it sees all records anyway.
        self._dispatch_modes = torch._C._len_torch_dispatch_stack()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if kwargs.get("generator") is not None:
            raise ValueError(
                f"{_name_of(function)}(generator=...) in the loss: numbers of a public generator go to records by their "
                "position, so that one record would change what the others draw. Leave generator out: torch's default one "
                "is private while the loss is computed"
            )
        # Written out, and not `check_state` alone, since each function that a loss calls comes here.
        if (
            list(map(torch.Generator.initial_seed, self._generators)) != self._seeds
            or torch._C._len_torch_dispatch_stack() > self._dispatch_modes
            or module._global_backward_hooks
            or module._global_backward_pre_hooks
        ):
            self.check_state()
        if (refusal := _refusal(function)) is not None:
            raise ValueError(refusal)
        for x in (*args, *kwargs.values()):
            if callable(x) and function not in _TAKE_FUNCTIONS and x not in _NUMBERS:
                raise ValueError(
                    f"the loss hands a function of its own to {_name_of(function)}, which would call it where nothing sees "
                    "what it does: write out what that computes"
                )
        if function in _BY_ARGUMENTS:
            _check_arguments(function, args)
        try:
            return self.call(function, args, kwargs)
        except Exception as error:
            # An error may follow from the values of any record, so a loss that catches it has seen them all.
            self.error = self.error or error
            raise

    def call(self, function: Callable, args: tuple, kwargs: dict[str, Any], *, draws_seen: bool = False) -> Any:
        """Call a function that was not refused, or what takes its place.

        Args:
            draws_seen: whether the caller looks at what the function draws for all records.
        """
        # `any_hidden`, written out: a record is nearly always among the arguments themselves.
        hidden = traced = False
        for x in args:
            if isinstance(x, Tensor):
                hidden = hidden or _functorch.is_functorch_wrapped_tensor(x)
                traced = traced or isinstance(x, SelfRuledTensor)
        hidden = hidden or any_hidden(args, kwargs)
        # Factories draw nothing, and to compare states would take ten times as long as they do.
        if not (
            hidden
            or draws_seen
            or self.isolation is None
            or function in _FACTORIES
            or isinstance(function, MethodWrapperType)
        ):
            return self._call_without_record(function, args, kwargs)
        if hidden and function in OWN_GRADIENTS and (own := self.isolation) and own.takes_gradients and own.is_innermost:
            return OWN_GRADIENTS[function](own, *args, **kwargs)
        if hidden and function not in unknown_functions.KEEPS_RECORDS_APART:
            return self._call_unknown(function, args, kwargs)
        result = NotImplemented
        if (instead := override_for(function)) is not None:
            result = instead(self, function, *args, **kwargs)
        if result is NotImplemented and self.isolation is not None:
            instead = None if traced else OF_PLAIN.get(function)
            if (instead := instead or _SPECIAL.get(function)) is not None:
                result = instead(self, function, *args, **kwargs)
        if result is not NotImplemented:
            return result
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            if self.isolation is None or "Batching rule not implemented" not in str(error):
                raise
        return call_decomposed(function, args, kwargs)

    def _call_without_record(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call a function without a record among its arguments (attention among learned queries).

        If it has drawn, it has done so once for all records, and is called again with something of each record's own.
        """
        writes = (
            getattr(function, "__name__", "").endswith("_") or bool(kwargs.get("inplace")) or kwargs.get("out") is not None
        )
        before = generator_states()
        try:
            result = self.call(function, args, kwargs, draws_seen=True)
        except RuntimeError as error:
            if writes or "randomness" not in str(error):
                raise
        else:
            if generator_states() == before or any_hidden(result):
                return result
        return self.call(function, *self._with_own_first_tensor(function, args, kwargs, writes))

    def _call_unknown(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Compute, for each record alone, a function that is not known to keep records apart."""
        if isinstance(function, MethodWrapperType) and function == Tensor.data.__set__ and _is_plain(args[0]):
            # Torch would let it be in silence, and the tensor would keep what the first example left in it.
            raise RuntimeError("mutating directly")
        if function in _WRITING:
            self.write(function, *args, **kwargs)
        if any(isinstance(x, SelfRuledTensor) for x in leaves_of((args, kwargs))) or _is_ours(function):
            return function(*args, **kwargs)
        instead = override_for(function)
        if instead is not None and instead not in COMPUTING:
            result = instead(self, function, *args, **kwargs)
            if result is not NotImplemented:
                return result
        return unknown_functions.loop_over_records(self.isolation, function, args, kwargs)

    def remember(self, function: Callable, *args: Any, **kwargs: Any) -> Tensor:
        """Make a new tensor, and remember it if it holds no record."""
        tensor = function(*args, **kwargs)
        if not is_hidden(tensor) and kwargs.get("out") is None and all(tensor is not x for x in args):
            self._new[id(tensor)] = tensor
        return tensor

    def write(self, function: Callable, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Give each record a tensor of its own, once numbers of a record are written into one that has none yet."""
        if self._new.get(id(x)) is x and (function in _RANDOM or any_hidden(args, kwargs)):
            del self._new[id(x)]
            # A tensor that shares its memory would become another one for its sharers.
            if x._base is None and torch._C._storage_Use_Count(x.untyped_storage()._cdata) <= 2:
                torch.utils.swap_tensors(x, self.expand_to_records(x))
        return NotImplemented

    def expand_to_records(self, x: Tensor) -> Tensor:
        """Turn a tensor without a record into one of each record's own.

        Raises:
            ValueError: inside another transform of torch.func.
        """
        if self.isolation is None or not self.isolation.is_innermost:
            raise ValueError(
                "a function meets records inside another transform of torch.func: write it out, or leave it out"
            )
        with self.isolation.outside():
            copies = x.expand(self.isolation.size, *x.shape).clone()
        return self.isolation.hide(copies)

    def _with_own_first_tensor(
        self, function: Callable, args: tuple, kwargs: dict[str, Any], writes: bool
    ) -> tuple[tuple, dict[str, Any]]:
        """Give each record its own of the first tensor among the arguments, so that each draws its own numbers.

        Raises:
            ValueError: for a function that is handed no tensor, or writes into one.
        """
        leaves, structure = tree_flatten((args, kwargs))
        first = next((i for i, x in enumerate(leaves) if isinstance(x, Tensor)), None)
        if first is None or writes:
            raise ValueError(
                f"the loss calls {_name_of(function)}, which draws the same random numbers for all records of a lot: use "
                "torch.rand, torch.randn or torch.randint, which draw for each record"
            )
        leaves[first] = self.expand_to_records(leaves[first])
        return tree_unflatten(leaves, structure)

    def check_state(self) -> None:
        """Check that torch's generators are private still, and that neither modes nor hooks are handed all records.

        Raises:
            ValueError: naming what the loss does.
        """
        if list(map(torch.Generator.initial_seed, self._generators)) != self._seeds:
            raise ValueError(
                "torch was seeded while a loss was computed (manual_seed, seed_everything, set_rng_state): its numbers "
                "would go to records by their position, so that one record would change what the others draw. Seed before "
                "training"
            )
        if torch._C._len_torch_dispatch_stack() > self._dispatch_modes:
            raise ValueError(
                "the loss is inside a TorchDispatchMode of its own (such as FlopCounterMode), which receives all "
                "records: leave it out, or measure outside of training"
            )
        if module._global_backward_hooks or module._global_backward_pre_hooks:
            raise ValueError(
                "there are backward hooks of all modules (register_module_full_backward_hook), which are never called "
                "here: remove them, and change the loss"
            )

    def check_end(self) -> None:
        """Check at the end of a call that it did not go on after an error, and leaves torch's generators private.

        Raises:
            ValueError: naming what the loss does.
        """
        # The backward pass may draw from the generators, too.
        self.check_state()
        if self.error is not None:
            raise ValueError(
                "the loss goes on after an error of a function of torch (try, except), which may follow from "
                "any record: let it pass, or use a function that returns a number (torch.linalg.cholesky_ex)"
            ) from self.error


def _guard_code(guard: LossGuard, function: Callable, code: type[Function], *args: Any) -> Any:
    """Call an `autograd.Function` with a guard of its own: torch runs its code where no mode sees the calls in it."""
    guard.has_own_backward = True
    return function(_guarded(code), *args)


@functools.lru_cache(maxsize=64)
def _guarded(code: type[Function]) -> type[Function]:
    """Make a subclass whose forward and backward passes run in a `LossGuard`."""

    def guarded(method: Callable) -> staticmethod:
        @functools.wraps(method)
        def call(*args: Any) -> Any:
            with LossGuard() as guard:
                result = method(*args)
                guard.check_end()
            return result

        return staticmethod(call)

    names = ("forward", "setup_context", "backward", "jvp")
    return type(code.__name__, (code,), {name: guarded(getattr(code, name)) for name in names})


_SPECIAL: dict[Callable, Callable] = {
    **dict.fromkeys(_FACTORIES, LossGuard.remember),
    **dict.fromkeys(_WRITING, LossGuard.write),
    custom_function_call: _guard_code,
    **SPECIAL,
}
# Functions that are refused by their arguments.
_BY_ARGUMENTS = {Tensor.__repr__, _SET_GRAD, custom_function_call}


def _check_arguments(function: Callable, args: tuple) -> None:
    if function is Tensor.__repr__ and is_hidden(args[0]):
        raise ValueError("the loss turns a value of a record into text (repr, str, print): print only shapes")
    if function == _SET_GRAD and is_hidden(args[1]):
        raise ValueError("the loss keeps what it computed from a record in the .grad of a tensor: compute it anew")
    if function is custom_function_call and not args[0].generate_vmap_rule:
        raise ValueError(
            f"the loss calls {args[0].__name__}, an autograd.Function with a vmap rule of its own, which receives all "
            "records: set generate_vmap_rule = True in the class, and leave vmap out"
        )


def _name_of(function: Callable) -> str:
    return getattr(function, "__name__", str(function))


@functools.lru_cache(maxsize=4096)
def _refusal(function: Callable) -> str | None:
    """Return why a function is refused whatever its arguments, or None."""
    name = _name_of(function)
    if isinstance(function, HigherOrderOperator) and function is not custom_function_call:
        return f"the loss calls {function}, a function of functions: write it with torch.where"
    if not _is_known(function):
        return (
            f"the loss calls {name}, a function of its own that takes part in torch's overrides (wrap_torch_function, "
            "handle_torch_function), where nothing sees what it calls: call it as a plain function"
        )
    if isinstance(function, OpOverload | OpOverloadPacket) and str(function).split(".")[0] not in _NAMESPACES:
        return (
            f"the loss calls {function}, an operator of an extension (torch.library), whose code is handed all records: "
            "compute it with torch's own functions"
        )
    if getattr(function, "__module__", None) == "torch.distributed.distributed_c10d":
        return (
            f"the loss calls {name}, which joins processes: ranks hold other records, and sum gradients after the loss. "
            "Leave it out"
        )
    return None


def _is_plain(x: Tensor) -> bool:
    return not (is_hidden(x) or isinstance(x, SelfRuledTensor))


def _is_ours(function: Callable) -> bool:
    """Return True for a function of this package, which is handed records in a way of its own."""
    return isinstance(function, FunctionType) and function.__code__.co_filename.startswith(_KNOWN[1])


def _is_known(function: Callable) -> bool:
    """Return True for a function of torch or of this package, through all that it wraps."""
    while not isinstance(function, _COMPILED) and function not in (torch.device, torch.Size, torch.Generator):
        if isinstance(function, MethodWrapperType):
            # The getter or setter of an attribute.
            function = function.__self__
        elif isinstance(function, property):
            function = function.fget
        elif isinstance(function, MethodType):
            function = function.__func__
        elif not isinstance(function, FunctionType) or not function.__code__.co_filename.startswith(_KNOWN):
            return False
        elif not hasattr(function, "__wrapped__"):
            return True
        else:
            function = function.__wrapped__
    return True

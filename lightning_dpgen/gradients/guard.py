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
from torch._functorch.autograd_function import custom_function_call
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.nn.modules import module
from torch.overrides import TorchFunctionMode

from lightning_dpgen.gradients import apart
from lightning_dpgen.gradients.corrected import COMPUTING, correction
from lightning_dpgen.gradients.hidden import Ruled, is_hidden
from lightning_dpgen.sampling.own_randomness import torch_generators
from lightning_dpgen.sampling.trees import leaves_of

if TYPE_CHECKING:
    from lightning_dpgen.gradients.isolation import Isolation

# Folders of functions that take part in torch's overrides and are known.
_KNOWN = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parent}{os.sep}")
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


class Guard(TorchFunctionMode):
    """A mode that sees each function of torch that a loss calls, and refuses those that could show it other records."""

    # The isolation that hides the records; None in code of an `autograd.Function`, from which torch hides them.
    isolation: Isolation | None = None

    def __init__(self) -> None:
        super().__init__()
        # The first error of a function that the loss has called.
        self.error: Exception | None = None
        # The generators that a loss draws from.
        self._generators = torch_generators()
        self._seeds = list(map(torch.Generator.initial_seed, self._generators))
        # Modes of the caller are allowed, since it sees all records anyway.
        self._dispatch_modes = torch._C._len_torch_dispatch_stack()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self._check(function, args, kwargs)
        try:
            return self.call(function, args, kwargs)
        except Exception as error:
            # An error may follow from the values of any record, so a loss that catches it has seen them all.
            self.error = self.error or error
            raise

    def call(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call a function that was not refused, or its correction."""
        if function not in apart.APART and any(map(is_hidden, leaves_of((args, kwargs)))):
            return self.alone(function, args, kwargs)
        result = self.corrected(function, args, kwargs)
        return function(*args, **kwargs) if result is NotImplemented else result

    def alone(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Compute, for each record alone, a function that is not known to keep records apart."""
        if any(isinstance(x, Ruled) for x in leaves_of((args, kwargs))) or _is_ours(function):
            return function(*args, **kwargs)
        instead = correction(function)
        if instead is not None and instead not in COMPUTING:
            result = instead(self, function, *args, **kwargs)
            if result is not NotImplemented:
                return result
        return apart.compute_alone(self.isolation, function, args, kwargs)

    def corrected(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Compute a function whose own rule for vmap is wrong; return NotImplemented for all others."""
        instead = correction(function)
        return NotImplemented if instead is None else instead(self, function, *args, **kwargs)

    def remember(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """Call a function that makes a tensor."""
        return function(*args, **kwargs)

    def write(self, function: Callable, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Leave a tensor without a record as it is."""
        return NotImplemented

    def _check(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> None:
        if kwargs.get("generator") is not None:
            raise ValueError(
                f"{getattr(function, '__name__', function)}(generator=...) in the loss: numbers of a public generator go "
                "to records by their position, so that one record would change what the others draw. Leave generator "
                "out: torch's default one is private while the loss is computed"
            )
        self._check_seeds()
        self._check_modes()
        if (refusal := _refusal(function)) is not None:
            raise ValueError(refusal)
        if function not in _TAKE_FUNCTIONS:
            for x in (*args, *kwargs.values()):
                if callable(x) and x not in _NUMBERS:
                    raise ValueError(
                        f"the loss hands a function of its own to {getattr(function, '__name__', function)}, which would "
                        "call it where nothing sees what it does: write out what that computes"
                    )
        if isinstance(function, HigherOrderOperator):
            self._check_higher_order(function, args)
        if function is Tensor.__repr__ and is_hidden(args[0]):
            raise ValueError("the loss turns a value of a record into text (repr, str, print): print only shapes")
        if function == _SET_GRAD and is_hidden(args[1]):
            raise ValueError("the loss keeps what it computed from a record in the .grad of a tensor: compute it anew")

    def _check_modes(self) -> None:
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

    def _check_higher_order(self, function: HigherOrderOperator, args: tuple) -> None:
        if function is not custom_function_call:
            raise ValueError(f"the loss calls {function}, a function of functions: write it with torch.where")
        if not args[0].generate_vmap_rule:
            raise ValueError(
                f"the loss calls {args[0].__name__}, an autograd.Function with a vmap rule of its own, which receives all "
                "records: set generate_vmap_rule = True in the class, and leave vmap out"
            )

    def _check_seeds(self) -> None:
        if list(map(torch.Generator.initial_seed, self._generators)) != self._seeds:
            raise ValueError(
                "torch was seeded while a loss was computed (manual_seed, seed_everything, set_rng_state): its numbers "
                "would go to records by their position, so that one record would change what the others draw. Seed before "
                "training"
            )

    def check_end(self) -> None:
        """Check at the end of a call that it did not go on after an error, and leaves torch's generators private.

        Raises:
            ValueError: naming what the loss does.
        """
        # The backward pass may draw from the generators, too.
        self._check_seeds()
        self._check_modes()
        if self.error is not None:
            raise ValueError(
                "the loss goes on after an error of a function of torch (try, except), which may follow from "
                "any record: let it pass, or use a function that returns a number (torch.linalg.cholesky_ex)"
            ) from self.error


@functools.lru_cache(maxsize=4096)
def _refusal(function: Callable) -> str | None:
    """Return why a function is refused whatever its arguments, or None."""
    name = getattr(function, "__name__", function)
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

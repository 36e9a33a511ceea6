"""Functions of torch for which `torch.vmap` has no rule or a slow one, as a loss calls them where each record is alone."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
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
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import _functorch
from torch._functorch.autograd_function import custom_function_call
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.autograd import Function
from torch.nn.modules import module
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from lightning_dpgen.gradients.corrected import check_embedding, correction
from lightning_dpgen.gradients.hidden import is_hidden

if TYPE_CHECKING:
    from lightning_dpgen.gradients.isolation import Isolation


class Guard(TorchFunctionMode):
    """Sees each function of torch that a loss calls, and refuses those that could show it other records."""

    # Where records are hidden; None in code of an `autograd.Function`, which torch hides them from.
    isolation: Isolation | None = None

    def __init__(self) -> None:
        super().__init__()
        # The first error of a function that the loss has called.
        self.error: Exception | None = None
        # A loss draws from these.
        on_devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        self._generators = (torch.default_generator, *on_devices)
        self._seeds = [generator.initial_seed() for generator in self._generators]
        # Modes and profilers of the caller, who sees all records anyway.
        self._dispatch_modes = torch._C._len_torch_dispatch_stack()
        self._profiled = torch.autograd._profiler_enabled()

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
        """Call a function that was not refused, or what corrects it."""
        result = self.corrected(function, args, kwargs)
        return function(*args, **kwargs) if result is NotImplemented else result

    def corrected(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of a function whose own rule for vmap is wrong; NotImplemented for all others."""
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
        if function not in _TAKE_FUNCTIONS and any(map(callable, (*args, *kwargs.values()))):
            raise ValueError(
                f"the loss hands a function of its own to {getattr(function, '__name__', function)}, which would call it "
                "where nothing sees what it does: write out what that computes"
            )
        if isinstance(function, OpOverload | OpOverloadPacket) and str(function).split(".")[0] not in _NAMESPACES:
            raise ValueError(
                f"the loss calls {function}, an operator of an extension (torch.library), whose code is handed all "
                "records: compute it of torch's own functions"
            )
        if isinstance(function, HigherOrderOperator):
            self._check_higher_order(function, args)
        if function is Tensor.__repr__ and is_hidden(args[0]):
            raise ValueError("the loss turns a value of a record into text (repr, str, print): print shapes, or nothing")
        if function == Tensor.grad.__set__ and is_hidden(args[1]):
            raise ValueError("the loss keeps what it made of a record in the .grad of a tensor: compute it anew each time")

    def _check_modes(self) -> None:
        if torch._C._len_torch_dispatch_stack() > self._dispatch_modes:
            raise ValueError(
                "the loss is inside a TorchDispatchMode of its own (such as FlopCounterMode), which is handed all records: "
                "leave it out, or measure outside of training"
            )
        if torch.autograd._profiler_enabled() and not self._profiled:
            raise ValueError(
                "the loss runs a profiler of its own, which is told the size of the lot: leave it out, or profile the "
                "training from outside"
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
                f"the loss calls {args[0].__name__}, an autograd.Function with a vmap rule of its own, which is handed all "
                "records: set generate_vmap_rule = True in the class, and leave vmap out"
            )

    def _check_seeds(self) -> None:
        if [generator.initial_seed() for generator in self._generators] != self._seeds:
            raise ValueError(
                "torch was seeded while a loss was computed (manual_seed, seed_everything, set_rng_state): its numbers "
                "would go to records by their position, so that one record would change what the others draw. Seed before "
                "training"
            )

    def check_end(self) -> None:
        """Check, at the end of a call, that it did not go on after an error and leaves torch's generators private.

        Raises:
            ValueError: naming what the loss does.
        """
        # The backward pass may draw from them, too.
        self._check_seeds()
        self._check_modes()
        if self.error is not None:
            raise ValueError(
                "the loss goes on after an error of a function of torch (try, except), which may follow from "
                "any record: let it pass, or use a function that gives a number (torch.linalg.cholesky_ex)"
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
    if getattr(function, "__module__", None) == "torch.distributed.distributed_c10d":
        return (
            f"the loss calls {name}, which joins processes: ranks hold other records, and sum gradients after the loss. "
            "Leave it out"
        )
    return None


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


class Watch(Guard):
    """A guard that also computes in another way those functions for which vmap has no rule, or a slow one.

    Args:
        isolation: in which the loss is called.
    """

    def __init__(self, isolation: Isolation) -> None:
        super().__init__()
        self.isolation = isolation
        # Tensors without a record that the loss has made itself: it may write into these.
        self._made: dict[int, Tensor] = {}
        # Whether a backward pass will call code of the loss.
        self.has_own_backward = False

    def call(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        result = self.corrected(function, args, kwargs)
        if result is NotImplemented and (special := _SPECIAL.get(function)) is not None:
            result = special(self, function, *args, **kwargs)
        return call(function, args, kwargs) if result is NotImplemented else result

    def remember(self, function: Callable, *args: Any, **kwargs: Any) -> Tensor:
        """A new tensor without a record."""
        made = function(*args, **kwargs)
        if not is_hidden(made) and kwargs.get("out") is None and all(made is not x for x in args):
            self._made[id(made)] = made
        return made

    def write(self, function: Callable, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Numbers of a record in a tensor that has none yet: from then on each record has a tensor of its own."""
        if self._made.get(id(x)) is x and (
            function in _RANDOM or any(is_hidden(leaf) for leaf in tree_leaves((args, kwargs)))
        ):
            del self._made[id(x)]
            # One whose memory others share would be another tensor for them.
            if x._base is None and torch._C._storage_Use_Count(x.untyped_storage()._cdata) <= 2:
                with self.isolation.outside():
                    each = x.expand(self.isolation.size, *x.shape).clone()
                torch.utils.swap_tensors(x, self.isolation.hide(each))
        return NotImplemented

    def for_each(self, x: Tensor) -> Tensor:
        """A tensor without a record, as one of each record's own.

        Raises:
            ValueError: inside another transform of torch.func.
        """
        if not self.isolation.is_innermost:
            raise ValueError(
                "a function meets records inside another transform of torch.func: write it out, or leave it out"
            )
        with self.isolation.outside():
            each = x.expand(self.isolation.size, *x.shape).clone()
        return self.isolation.hide(each)


def call(function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The function of what is hidden, taken apart into simpler ones where vmap has no rule for it (as for an LSTM)."""
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:
        if "Batching rule not implemented" not in str(error):
            raise
    # A level of autograd takes composite functions apart.
    level = _functorch._grad_increment_nesting()
    try:
        args, kwargs = tree_map_only(Tensor, lambda x: _functorch._wrap_for_grad(x, level), (args, kwargs))
        return tree_map_only(Tensor, lambda x: _functorch._unwrap_for_grad(x, level), function(*args, **kwargs))
    finally:
        _functorch._grad_decrement_nesting()


def _cross_entropy(
    watch, _, input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
    label_smoothing=0.0,
):  # fmt: skip
    """`F.cross_entropy` of classes; vmap's rule goes through the records one by one."""
    if target.is_floating_point() or label_smoothing or not _plain(input, weight, size_average, reduce):
        return NotImplemented
    return _nll(input.log_softmax(dim=min(1, input.dim() - 1)), target, ignore_index, reduction)


def _nll_loss(watch, _, input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"):
    """`F.nll_loss`, alike."""
    return _nll(input, target, ignore_index, reduction) if _plain(input, weight, size_average, reduce) else NotImplemented


def _plain(input: Tensor, *options: Any) -> bool:
    return type(input) is Tensor and all(option is None for option in options)


def _nll(log_shares: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    dim, counted = min(1, log_shares.dim() - 1), target != ignore_index
    found = log_shares.gather(dim, torch.where(counted, target, 0).unsqueeze(dim)).squeeze(dim)
    losses = torch.where(counted, -found, 0.0)
    if reduction == "none":
        return losses
    return losses.sum() / (counted.sum() if reduction == "mean" else 1)


def _aligned(watch: Watch, tensors: Sequence[Any]) -> list[Any] | None:
    """Behind tensors that are broadcast together, their records, with the records in front; None where there are none."""
    if not watch.isolation.is_innermost or any(isinstance(x, Tensor) and type(x) is not Tensor for x in tensors):
        return None
    if not all(watch.isolation.is_record(x) for x in tensors if is_hidden(x)):
        return None
    rows = [watch.isolation.rows(x) for x in tensors]
    if all(row is None for row in rows):
        return None
    most = max(x.dim() for x in tensors if isinstance(x, Tensor))
    return [
        x if row is None else row.reshape(len(row), *(1,) * (most - x.dim()), *x.shape)
        for x, row in zip(tensors, rows, strict=True)
    ]


def _pointwise(watch: Watch, function: Callable, *tensors: Any, **options: Any) -> Any:
    """A function of each number by itself, of all records at once: vmap has no rule for it, or takes it apart."""
    if any(map(is_hidden, options.values())) or (rows := _aligned(watch, tensors)) is None:
        return NotImplemented
    with watch.isolation.outside():
        result = function(*rows, **options)
    return watch.isolation.hide(result)


def _losses(watch: Watch, function: Callable, input, target, *rest: Any, reduction: str = "mean", **options: Any) -> Any:
    """A loss of each number by itself."""
    plain = reduction == "none" and not rest and all(option is None for option in options.values())
    if not plain or input.shape != target.shape:
        return NotImplemented
    if (rows := _aligned(watch, (input, target))) is None:
        return NotImplemented
    with watch.isolation.outside():
        losses = function(*torch.broadcast_tensors(*rows), reduction="none")
    return watch.isolation.hide(losses)


def _attention(watch: Watch, function: Callable, query, key, value, attn_mask=None, dropout_p=0.0, *rest, **options) -> Any:
    """`F.scaled_dot_product_attention` of all records at once, as of a larger batch; each draws a dropout of its own."""
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    if query.dim() != 4 or (rows := _aligned(watch, tensors)) is None:
        return NotImplemented
    shape = (watch.isolation.size, len(query))
    with watch.isolation.outside():
        # Kernels are quick in four dimensions alone.
        query, key, value, *mask = (x if x.dim() < 4 else x.expand(*shape, *x.shape[-3:]).flatten(0, 1) for x in rows)
        result = function(query, key, value, mask[0] if mask else None, dropout_p, *rest, **options).unflatten(0, shape)
    return watch.isolation.hide(result)


def _embedding_bag(
    watch, function, input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, mode="mean",
    sparse=False, per_sample_weights=None, **options,
):  # fmt: skip
    """`F.embedding_bag` of the bags of all records, where each is a row of indices and the weight is one for all."""
    check_embedding(max_norm, scale_grad_by_freq)
    index = watch.isolation.rows(input) if watch.isolation.is_innermost and watch.isolation.is_record(input) else None
    if index is None or index.dim() != 3 or offsets is not None or type(weight) is not nn.Parameter:
        return NotImplemented
    weights = watch.isolation.rows(per_sample_weights)
    with watch.isolation.outside():
        own = None if weights is None else weights.flatten(0, 1)
        bags = function(index.flatten(0, 1), weight, mode=mode, per_sample_weights=own, **options)
        result = bags.unflatten(0, index.shape[:2])
    return watch.isolation.hide(result)


def _own_function(watch: Watch, function: Callable, own: type[Function], *args: Any) -> Any:
    """Call an `autograd.Function` with a guard of its own: torch runs its code where no mode sees what it calls."""
    watch.has_own_backward = True
    return function(_guarded(own), *args)


@functools.lru_cache(maxsize=64)
def _guarded(own: type[Function]) -> type[Function]:
    """Make a subclass whose forward and backward passes run in a `Guard`."""

    def guarded(method: Callable) -> staticmethod:
        @functools.wraps(method)
        def call(*args: Any) -> Any:
            with Guard() as guard:
                result = method(*args)
                guard.check_end()
            return result

        return staticmethod(call)

    names = ("forward", "setup_context", "backward", "jvp")
    return type(own.__name__, (own,), {name: guarded(getattr(own, name)) for name in names})


def _recurrent(watch, function, input, hidden, *rest, **options):
    """A recurrent network or cell whose first state is one for all records, into which vmap would have to write."""
    states = tree_leaves(hidden)
    # A first state that is learned is the tape's, which gives each record a copy.
    if not is_hidden(input) or not all(type(x) is Tensor for x in states) or any(map(is_hidden, states)):
        return NotImplemented
    each = [watch.for_each(state) for state in states]
    return call(function, (input, each[0] if isinstance(hidden, Tensor) else tuple(each), *rest), options)


def _apart(watch, _, x):
    """``x.data``, which vmap refuses."""
    return x.detach() if is_hidden(x) and type(x) is Tensor else NotImplemented


# Folders of functions that take part in torch's overrides and are known.
_KNOWN = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parent}{os.sep}")
_COMPILED = (
    BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType, OpOverload, OpOverloadPacket,
    HigherOrderOperator,
)  # fmt: skip
# Namespaces of torch's own operators.
_NAMESPACES = {"aten", "prims", "prim", "profiler"}
# What is handed a function, and is refused or watched in a way of its own.
_TAKE_FUNCTIONS = {
    custom_function_call, Tensor.register_hook, Tensor.register_post_accumulate_grad_hook, Tensor.as_subclass,
    Tensor.__setattr__,
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
_FACTORIES = (
    torch.zeros, torch.ones, torch.full, torch.eye, torch.arange, torch.linspace, torch.logspace, torch.zeros_like,
    torch.ones_like, torch.full_like, torch.tensor, Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_tensor,
    Tensor.clone, torch.clone, Tensor.repeat, Tensor.float, Tensor.double, Tensor.to,
)  # fmt: skip
_SPECIAL: dict[Callable, Callable] = {
    **dict.fromkeys(_FACTORIES, Watch.remember),
    **dict.fromkeys(_WRITING - {Tensor.requires_grad_}, Watch.write),
    **dict.fromkeys((F.logsigmoid, F.softplus, F.gelu, F.silu, F.elu, Tensor.clamp_, Tensor.clamp_min_), _pointwise),
    F.binary_cross_entropy_with_logits: _losses,
    F.binary_cross_entropy: _losses,
    F.scaled_dot_product_attention: _attention,
    F.embedding_bag: _embedding_bag,
    F.cross_entropy: _cross_entropy,
    F.nll_loss: _nll_loss,
    Tensor.data.__get__: _apart,
    custom_function_call: _own_function,
    **dict.fromkeys(
        (
            torch.lstm,
            torch.lstm_cell,
            torch.gru,
            torch.gru_cell,
            torch.rnn_tanh,
            torch.rnn_relu,
            torch.rnn_tanh_cell,
            torch.rnn_relu_cell,
        ),
        _recurrent,
    ),
}

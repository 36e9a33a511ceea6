"""Parameters that FSDP2 (`torch.distributed.fsdp.fully_shard`) has divided over ranks: each holds a shard of every one.

A network is trained on such shards as on whole parameters. Each rank has records of its own and gathers the parameters of a
layer while it is computed, so it sees the whole gradient of each of its records. Sums over records are divided up again: a
rank keeps the sum over all ranks for its own shard.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightning_dpgen.gradients.isolation.hidden import SelfRuledTensor
from lightning_dpgen.gradients.isolation.isolation import Isolation
from lightning_dpgen.gradients.isolation.unknown_functions import NO_NUMBERS
from lightning_dpgen.gradients.layers import modules_of
from lightning_dpgen.privacy.ranks import Ranks, all_needed
from lightning_dpgen.sampling.trees import leaves_of, map_tree

# Before torch 2.13 they had other names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def is_sharded(x: Any) -> bool:
    """Return True for a tensor that is divided over ranks."""
    # Importing them takes two seconds, and where nothing has imported them there is none.
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(x, tensors.DTensor)


def is_fsdp_module(module: nn.Module) -> bool:
    """Return True for a module that `fully_shard` was applied to."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def has_shards(network: nn.Module) -> bool:
    """Return True if `fully_shard` was applied to a network, or to a part of it."""
    # It needs ranks; without any, a small network is looked at quicker.
    return dist.is_available() and dist.is_initialized() and any(map(is_fsdp_module, modules_of(network)))


def unsharded_class(network: nn.Module) -> type:
    """Return the class of a network, which `fully_shard` has replaced by one of its own."""
    own = type(network)
    return own.__bases__[1] if is_fsdp_module(network) else own


def own_part(x: Tensor) -> Tensor:
    """Return the numbers that this rank holds: those of its shard, or all of a plain tensor; in the same memory."""
    # With gradients it would be a function of autograd.
    with torch.no_grad():
        return x.to_local() if is_sharded(x) else x.detach()


def like_own_part(parameter: Tensor, part: Tensor) -> Tensor:
    """Return a tensor that is divided as a parameter is, with `part` as this rank's shard, in the same memory."""
    if not is_sharded(parameter):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )


def gathered(x: Tensor) -> Tensor:
    """Gather the whole of a sharded tensor, in memory of its own; return a plain tensor as it is. All ranks call it.

    Raises:
        RankLost: if another rank is gone.
    """
    if not is_sharded(x):
        return x.detach()
    part, rows = own_part(x), _rows(x)
    whole = part.new_empty(rows * x.device_mesh.size(), *x.shape[1:])
    with all_needed():
        _all_gather(whole, _padded(part, rows), group=x.device_mesh.get_group())
    return whole[: len(x)]


def bytes_of(x: Tensor) -> bytes:
    """Return the numbers of a tensor as bytes, the same on any device; a sharded one is gathered, so all ranks call it."""
    return gathered(x).cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def room_for_sum(parameter: Tensor) -> Tensor:
    """Return zeros of a sharded parameter's whole shape, for `summed_shard`."""
    return own_part(parameter).new_zeros(_rows(parameter) * parameter.device_mesh.size(), *parameter.shape[1:])[
        : len(parameter)
    ]


def summed_shard(whole: Tensor, parameter: Tensor) -> Tensor:
    """Sum a tensor of a sharded parameter's whole shape over all ranks, and return this rank's shard of the sum.

    Args:
        whole: this rank's summand, from `room_for_sum`.

    Raises:
        RankLost: if another rank is gone.
    """
    rows, mesh = _rows(parameter), parameter.device_mesh
    # The rows of padding lie behind it in the same memory.
    padded = whole.as_strided((rows * mesh.size(), *whole.shape[1:]), whole.stride())
    shard = whole.new_empty(rows, *whole.shape[1:])
    with all_needed():
        _reduce_scatter(shard, padded, group=mesh.get_group())
    return shard[: len(own_part(parameter))]


def _rows(parameter: Tensor) -> int:
    """Return the number of rows of the largest shard: rows are divided as `torch.chunk` does."""
    return -(-len(parameter) // parameter.device_mesh.size())


def _padded(part: Tensor, rows: int) -> Tensor:
    if len(part) == rows:
        return part.contiguous()
    padded = part.new_zeros(rows, *part.shape[1:])
    padded[: len(part)] = part
    return padded


def check_shards(parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
    """Check that trainable parameters are all divided over the very ranks that share the accesses, or none of them is.

    Raises:
        ValueError: saying what to change.
    """
    parameters = list(parameters)
    sharded = [p for p in parameters if is_sharded(p)]
    if not sharded:
        return
    if len(sharded) < len(parameters):
        raise ValueError(
            f"{len(parameters) - len(sharded)} of {len(parameters)} trainable parameters are not sharded: call fully_shard "
            "on the whole network, too, after its layers"
        )
    for p in sharded:
        _check_placement(p)
        if p.device_mesh.mesh.tolist() != list(range(ranks.size)):
            raise ValueError(
                f"parameters are divided over ranks {p.device_mesh.mesh.tolist()}, and {ranks.size} ranks share the "
                "account: expected the same ranks, all of them, joined to the account as MomentsAccountant does in a fit"
            )


def _check_placement(p: Any) -> None:
    from torch.distributed.tensor import Shard

    if p.device_mesh.ndim != 1 or tuple(p.placements) != (Shard(0),):
        raise ValueError(
            f"a parameter is placed as {tuple(p.placements)} on a mesh of {p.device_mesh.ndim} dimensions: expected "
            "fully_shard by the first dimension on a mesh of one dimension (no tensor parallelism, no replicas of shards)"
        )


def check_policies(network: nn.Module) -> None:
    """Check that a network is sharded in one way that is covered, without offload and in one precision.

    Raises:
        ValueError: saying what to change.
    """
    for p in network.parameters():
        if is_sharded(p):
            _check_placement(p)
    for state in _states(network):
        policy = state._mp_policy
        kinds = {policy.param_dtype, policy.reduce_dtype, policy.output_dtype} - {None}
        types = {p.sharded_param.dtype for group in _groups(state) for p in group.fsdp_params}
        if kinds - types:
            raise ValueError(
                f"MixedPrecisionPolicy with {', '.join(sorted(map(str, kinds - types)))}: norms and sums are those of "
                "parameters in full precision: leave mp_policy out; precision='bf16-mixed' computes layers in less"
            )
        for group in _groups(state):
            if type(group.offload_policy).__name__ != "OffloadPolicy":
                raise ValueError(
                    f"fully_shard(offload_policy={type(group.offload_policy).__name__}(...)): shards stay on the device "
                    "that computes: leave offload_policy out"
                )


def reshard(network: nn.Module) -> None:
    """Divide parameters over ranks again that a forward pass has left whole.

    FSDP2 leaves those of the outermost module whole after a forward pass without a backward one. Until they are divided,
    the network holds other parameters than its optimizer, and their memory is freed once they are.
    """
    if has_shards(network):
        for module in modules_of(network):
            if is_fsdp_module(module):
                module.reshard()


@contextmanager
def without_own_hooks(network: nn.Module) -> Iterator[None]:
    """Leave out the hooks of `fully_shard` inside this context, with all parameters as shards.

    They would gather parameters around each forward pass of a layer, and reduce gradients that are neither clipped nor
    noised.
    """
    kept: list[tuple[dict, dict]] = []
    reshard(network)
    try:
        for module in modules_of(network):
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                of_fsdp = [key for key, hook in hooks.items() if _is_of_fsdp(hook)]
                if of_fsdp:
                    kept.append((hooks, dict(hooks)))
                    for key in of_fsdp:
                        del hooks[key]
        yield
    finally:
        for hooks, before in kept:
            hooks.clear()
            hooks.update(before)


def _states(network: nn.Module) -> list[Any]:
    modules: list[Any] = [module for module in modules_of(network) if is_fsdp_module(module)]
    return [module._get_fsdp_state() for module in modules]


def _groups(state: Any) -> list[Any]:
    """Return the parameters that FSDP2 moves together; torch 2.9 has one such group at most for a module.

    Raises:
        ValueError: for a version of torch that keeps them elsewhere.
    """
    if hasattr(state, "_fsdp_param_groups"):
        return state._fsdp_param_groups
    if not hasattr(state, "_fsdp_param_group"):
        raise ValueError(
            f"fully_shard of torch {torch.__version__} is not known: train without it, or with a torch that was searched"
        )
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def _is_of_fsdp(hook: Any) -> bool:
    """Return True for a hook that `fully_shard` has registered, for one module or for a list of them."""
    while not hasattr(hook, "__self__") and hasattr(hook, "__wrapped__"):
        hook = hook.__wrapped__
    return type(getattr(hook, "__self__", None)).__name__ == "FSDPState"


_CHANGED = (
    "the loss writes into a tensor that an earlier function has kept for its gradient (x += 1, relu_): write x = x + 1"
)


@dataclass(frozen=True)
class _Packed:
    """A view of a whole parameter that a function has kept for its backward pass."""

    parameter: nn.Parameter
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class FrozenParameter(SelfRuledTensor):
    """A stand-in for a frozen sharded parameter, whose numbers are there for each function that is called with it.

    Attributes:
        gathered: the parameters of one forward pass.
        source: the stand-in as a plain tensor.
    """

    gathered: GatheredParameters
    source: Tensor

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        frozen = [x for x in leaves_of((args, kwargs)) if isinstance(x, FrozenParameter)]
        gathered_parameters = frozen[0].gathered

        def plain(x: Any) -> Any:
            return x.source.detach() if isinstance(x, FrozenParameter) else x

        if function in NO_NUMBERS:
            args, kwargs = map_tree(plain, (args, kwargs))
            return function(*args, **kwargs)
        with gathered_parameters.present([x.source for x in frozen]), gathered_parameters.packing():
            args, kwargs = map_tree(plain, (args, kwargs))
            # As the loss would call it with a plain parameter.
            return gathered_parameters.isolation.call(function, args, kwargs)


class GatheredParameters:
    """Stand-ins for sharded parameters, whose numbers are there while a function uses them.

    A stand-in has the shape of the whole parameter and one number in memory, NaN, so what is read outside of `present`
    is no number. Whole values of the parameters that were used last are kept until others are used. What functions keep for
    their backward pass within `packing` is gathered again there; what else they keep of a whole parameter stays in memory.

    All ranks must use the same parameters in the same order. They do, since they call the same loss as often as each other,
    and no loss can see the size of its lot.

    Args:
        isolation: the isolation that the loss is called in.
    """

    def __init__(self, isolation: Isolation) -> None:
        self.isolation = isolation
        self._stands_for: dict[int, tuple[Tensor, nn.Parameter]] = {}
        self._latest: dict[nn.Parameter, Tensor] = {}

    def stand_in(self, parameter: nn.Parameter) -> Tensor:
        """Return a tensor in the place of a sharded parameter; a leaf that requires a gradient, if that does."""
        stand_in = torch.full((), torch.nan, dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)
        stand_in = stand_in.detach().requires_grad_(parameter.requires_grad)
        self._stands_for[id(stand_in)] = stand_in, parameter
        return stand_in

    def frozen(self, parameter: nn.Parameter) -> FrozenParameter:
        """Return what takes the place of a frozen sharded parameter in a network."""
        source = self.stand_in(parameter)
        made = source.as_subclass(FrozenParameter)
        made.gathered, made.source = self, source
        return made

    def among(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Return the stand-ins among some tensors."""
        return [x for x in tensors if id(x) in self._stands_for]

    @contextmanager
    def present(self, stand_ins: Iterable[Tensor]) -> Iterator[None]:
        """Let stand-ins have the numbers of their parameters inside this context."""
        before = [(x, self._stands_for[id(x)][1], x.data) for x in stand_ins]
        for other in [p for p in self._latest if all(p is not own for _, own, _ in before)]:
            del self._latest[other]
        try:
            for x, parameter, _ in before:
                x.data = self._whole(parameter)
            yield
        finally:
            for x, _, nothing in before:
                x.data = nothing

    def _whole(self, parameter: nn.Parameter) -> Tensor:
        if parameter not in self._latest:
            # A loss is inside of vmap, which knows no exchange between ranks, and of a guard, which refuses it.
            with torch._C._DisableFuncTorch(), torch._C.DisableTorchFunction():
                self._latest[parameter] = gathered(parameter)
        return self._latest[parameter]

    @contextmanager
    def packing(self) -> Iterator[None]:
        """Let functions keep no whole parameter for their backward passes inside this context, within `present`."""
        autograd: Any = torch._C._autograd
        # An isolation switches these hooks off for the code of a loss.
        refusal = autograd._saved_tensors_hooks_get_disabled_error_message()
        if refusal is not None:
            autograd._saved_tensors_hooks_enable()
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            if refusal is not None:
                autograd._saved_tensors_hooks_disable(refusal)

    def _pack(self, x: Tensor) -> _Packed | tuple[Tensor, int]:
        place = x.untyped_storage().data_ptr()
        for parameter, whole in self._latest.items():
            if whole.untyped_storage().data_ptr() == place:
                return _Packed(parameter, x.size(), x.stride(), x.storage_offset())
        # Detached, since a result that leads to its own function would be a cycle.
        return x.detach(), x._version

    def _unpack(self, packed: _Packed | tuple[Tensor, int]) -> Tensor:
        if not isinstance(packed, _Packed):
            # torch compares versions only of what it keeps without hooks.
            x, version = packed
            if x._version != version:
                raise RuntimeError(_CHANGED)
            return x
        if packed.parameter not in self._latest:
            self._latest.clear()
        return self._whole(packed.parameter).as_strided(packed.size, packed.stride, packed.offset)

    def clear(self) -> None:
        """Let go of all tensors."""
        self._stands_for.clear()
        self._latest.clear()

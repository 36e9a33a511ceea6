"""Parameters that FSDP2 (`torch.distributed.fsdp.fully_shard`) has divided over ranks: each holds a shard of every one.

A network is trained on such shards as on whole parameters. Each rank has records of its own and gathers the parameters of a
layer while it is computed, so it sees the whole gradient of each of its records. Sums over records are divided up again: a
rank keeps the sum over all ranks for its own shard.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightning_dpgen.gradients.layers import modules_of
from lightning_dpgen.privacy.ranks import Ranks, all_needed

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
        own = {p.sharded_param.dtype for group in _groups(state) for p in group.fsdp_params}
        if kinds - own:
            raise ValueError(
                f"MixedPrecisionPolicy with {', '.join(sorted(map(str, kinds - own)))}: norms and sums are those of "
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
                own = [key for key, hook in hooks.items() if _is_of_fsdp(hook)]
                if own:
                    kept.append((hooks, dict(hooks)))
                    for key in own:
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

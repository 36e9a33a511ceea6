"""Checks that a module is the same in all processes of a fit; nothing else keeps it so once DDP's reducer is off."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_dpgen.gradients.shards import is_sharded
from lightning_dpgen.privacy.ranks import Ranks

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def broadcast_start(module: nn.Module, ranks: Ranks) -> None:
    """Give all ranks the parameters and buffers of rank 0, and the state of its torch generators.

    torch's own generators are public here; private draws come from the account's stream.
    """
    ranks.broadcast_([tensor.data for tensor in _in_all(module)])
    torch.set_rng_state(ranks.broadcast_object(torch.get_rng_state()))
    device = next(module.parameters()).device
    if device.type == "cuda":
        torch.cuda.set_rng_state(ranks.broadcast_object(torch.cuda.get_rng_state(device)), device)


def check_ranks_agree(module: nn.Module, ranks: Ranks) -> None:
    """Compare the sizes of all noise, and parameters and buffers, by the sums of their bits and of the squares of these.

    Raises:
        RanksDiffer: naming a rank that differs from rank 0.
    """
    ranks.compare()
    ranks.assert_equal("network after equal steps", [_digest(tensor) for tensor in _in_all(module)])


def _in_all(module: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers that each rank has: each number of a sharded one is on one rank alone."""
    return [tensor for tensor in (*module.parameters(), *module.buffers()) if not is_sharded(tensor)]


def _digest(tensor: Tensor) -> tuple[int, int]:
    bits = tensor.detach().contiguous().view(_WHOLE[tensor.element_size()]).to(torch.int64)
    return int(bits.sum()), int((bits * bits).sum())

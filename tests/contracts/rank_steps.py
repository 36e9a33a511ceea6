"""Noisy steps that several ranks make together, at parameters that stay where they are.

    python tests/contracts/rank_steps.py RANK SIZE FOLDER

makes them in one of SIZE processes, which find each other through a file in FOLDER; rank 0 writes the steps there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lightning_dpgen.gradients.clipping import DPNorm, Fixed
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.factors import Dense
from lightning_dpgen.gradients.terms import PerGroup, PerRecord
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.sampling.lots import PoissonLots

STEPS, N, RATE, GROUPS = 800, 24, 0.4, 4
RECORDS = torch.randn(N, 4, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.3, 3.0, N)[:, None] + 0.5


def account_of(ranks, multipliers, *, count=STEPS, rate=RATE, seed=5, max_rows=1):
    """Return an account that these ranks share, of equal accesses; its noise is repeatable."""
    plan = Plan((Stage(Access("training", multipliers, Poisson(rate)), count, 1.0),), 1.0, 1e-5, max_rows=max_rows)
    account = Account(plan, stream=PrivateStream(seed=seed))
    account.join(ranks)
    return account


def _terms(weight, bias):
    """Return a quadratic loss a record and the sine of a sum a group; in closed form, since many steps are made."""

    def whole(lot, slope):
        return {weight: Dense(slope[:, None] * lot.records), bias: Dense(slope[:, None])}, lambda: slope

    def of_records(lot, noise):
        return whole(lot, 2.0 * (lot.records @ weight.detach() + bias.detach()))

    def of_groups(lot, noise, groups):
        sums = groups.gather((lot.records @ weight.detach() + bias.detach())[:, None]).sum(dim=(1, 2))
        return whole(lot, groups.shared(sums.cos()))

    return PerRecord(None, forms=of_records), PerGroup(None, GROUPS, forms=of_groups)


def steps_of(ranks: Ranks, seed: int = 5, steps: int = STEPS) -> torch.Tensor:
    """Return (steps, 5) noisy gradients, a row a step, at parameters that stay where they are; the same in all ranks."""
    network = nn.Module()
    network.weight, network.bias = nn.Parameter(torch.tensor([0.3, -0.2, 0.1, 0.4])), nn.Parameter(torch.tensor([0.2]))
    account = account_of(ranks, {"gradient": 0.5, "norms": 0.5}, count=steps, seed=seed)
    optimizer = PrivateOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.0),
        account=account,
        clipping=(DPNorm(4.0, bins=8), Fixed(2.0)),
        expected_batch_size=RATE * N,
    )
    terms, found = _terms(network.weight, network.bias), []
    for _ in range(steps):
        # New each time, so that records are assigned to ranks anew: the law of a step covers that draw, too.
        lot = PoissonLots(RECORDS, account).draw()
        optimizer.set_gradients(*[term_gradients(network, term, lot, account.stream) for term in terms])
        optimizer.step()
        found.append(torch.cat([p.grad.flatten() for p in network.parameters()]).clone())
    return torch.stack(found)


def main(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size)
    found = steps_of(Ranks.join(), seed=7)
    np.save(folder / f"rank{rank}.npy", found.numpy())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

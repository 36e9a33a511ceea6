"""One of two processes in a loop written for Opacus' DPDDP.

    python tests/plugins/opacus_ranks.py RANK FOLDER MODE [split]

makes the steps; rank 0 writes a release to FOLDER, and each rank its parameters. With ``split`` each divides its records
anew.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from lightning_dpgen import Account, AccountEngine, Fixed, make_plan, release_weights, training_stage

N, STEPS, WIDTH, LR = 200, 20, 400, 0.1


def main(rank: int, folder: Path, mode: str, split: bool) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(rank)
    # All gradients are 0, so what moves parameters is noise.
    records = TensorDataset(torch.zeros(N, WIDTH), torch.zeros(N, 1))
    if split:
        records, _ = random_split(records, [N - 20, 20])
    network = DPDDP(nn.Linear(WIDTH, 1, bias=False))
    start = network.module.weight.detach().clone()
    stage = training_stage(Fixed(1.0), n=N, sample_rate=0.1, steps=STEPS)
    # As a launcher says it: the account of rank 1 is in memory.
    account = Account(make_plan([stage], epsilon=4.0, delta=1e-4), None if rank else folder / "ledger")
    made = AccountEngine(account).make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=LR),
        data_loader=DataLoader(records),
        max_grad_norm=1.0,
        grad_sample_mode=mode,
        **({"criterion": nn.MSELoss()} if mode == "ghost" else {}),
    )
    private, optimizer, loader = made[0], made[1], made[-1]
    criterion = made[2] if mode == "ghost" else nn.MSELoss()
    seen = 0
    for _ in range(2):
        for x, y in loader:
            seen += len(x)
            optimizer.zero_grad()
            criterion(private(x), y).backward()
            optimizer.step()
    account.verify_complete()
    release_weights(network.module, account, folder / "release", data="rows")
    moved = (network.module.weight.detach() - start).numpy()
    np.savez(folder / f"rank{rank}.npz", moved=moved, seen=seen, noise=account.plan.stage("training").access.multiplier)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], "split" in sys.argv[4:])

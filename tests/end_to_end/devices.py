"""Someone else's module on several devices, started by any of Lightning's launchers.

    python tests/end_to_end/devices.py DEVICES STRATEGY FOLDER [NUM_NODES]

Each rank that reaches the end writes its results into FOLDER. `ODD=RANK` gives that rank another plan, `PRECISION` is the
Trainer's, and `LIGHTNING` the namespace of both.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import torch

from lightning_dpgen import Account, DPNorm, MomentsAccountant, PrivateOptimizer, make_plan, poisson_loader, training_stage
from lightning_dpgen.release.weights import release_weights

pl = importlib.import_module(os.environ.get("LIGHTNING", "pytorch_lightning"))
N, RATE, STEPS, RULE = 600, 0.2, 60, DPNorm(c_max=8.0)


class Stranger(pl.LightningModule):
    def __init__(self, account: Account) -> None:
        super().__init__()
        self.account = account
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return (self.net(x)[:, 0] - y).square()

    def configure_optimizers(self):
        inner = torch.optim.Adam(self.parameters(), lr=0.05)
        return PrivateOptimizer(inner, account=self.account, clipping=RULE, expected_batch_size=RATE * N)


def main(devices: str, strategy: str, folder: str, num_nodes: str = "1") -> None:
    root, rank = Path(folder), int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))
    steps = STEPS + (os.environ.get("ODD") == str(rank))
    plan = make_plan([training_stage(RULE, n=N, sample_rate=RATE, steps=steps)], epsilon=8.0, delta=1e-5)
    account = Account(plan, root / "ledger.jsonl")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 8, generator=generator)
    module = Stranger(account)
    trainer = pl.Trainer(
        accelerator=os.environ.get("ACCELERATOR", "cpu"),
        devices=int(devices),
        num_nodes=int(num_nodes),
        strategy=strategy,
        precision=os.environ.get("PRECISION", "32-true"),
        max_epochs=1,
        callbacks=[MomentsAccountant(account)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, poisson_loader((x, x.sum(dim=1)), account))
    weights = [p.flatten().tolist() for p in module.parameters()]
    made = sum(count for _, count in account.accesses)
    (root / f"rank{trainer.global_rank}.json").write_text(json.dumps({"weights": weights, "accesses": made}))
    if trainer.global_rank == 0:
        release_weights(module, account, root / "release", data="made-up numbers", n=N)


if __name__ == "__main__":
    main(*sys.argv[1:])

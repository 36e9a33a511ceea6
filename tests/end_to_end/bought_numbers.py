"""A fit on two processes that buys means of its lots and of validation records, and follows them.

    python tests/end_to_end/bought_numbers.py EPSILON FOLDER

Each rank writes what it was shown into FOLDER, beside the exact means of the network that it was left with.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint

from lightning_dpgen import Fixed, PrivateTraining
from lightning_dpgen.plugins import NoisyMetrics, PrivateValidation

ROWS = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
OTHERS = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))


class Network(pl.LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.lr = torch.nn.Linear(3, 3), lr

    def training_step(self, batch, batch_idx):
        return (self.net(batch) - batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", (self.net(batch) - batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def main(epsilon: str, folder: str) -> None:
    root, bounds = Path(folder), (0.0, 2.0)
    private = PrivateTraining(
        ROWS, n=80, epsilon=float(epsilon), delta=1e-5, sample_rate=1.0, steps=6, clipping=Fixed(1.0),
        ledger=root / "ledger.jsonl", metrics=NoisyMetrics({"loss": bounds}, every=2),
        validation=PrivateValidation(OTHERS, {"val_loss": bounds}, n=50, every=4),
    )  # fmt: skip
    followers = EarlyStopping("public/loss", patience=9), ModelCheckpoint(root / "checkpoints", monitor="public/val_loss")
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", callbacks=[private.callback(), *followers], logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module := Network(0.0 if float(epsilon) == math.inf else 0.5), private.loader())
    exact = {
        name: (module.net(x) - x).square().mean(1).clamp(*bounds).mean().item()
        for name, x in (("public/loss", ROWS), ("public/val_loss", OTHERS))
    }
    shown = {name: float(value) for name, value in trainer.callback_metrics.items()}
    (root / f"rank{trainer.global_rank}.json").write_text(json.dumps({"shown": shown, "exact": exact}))
    if trainer.global_rank == 0 and float(epsilon) < math.inf:
        private.release(module, root / "release")


if __name__ == "__main__":
    main(*sys.argv[1:])

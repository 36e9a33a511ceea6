"""A plain module whose parameters FSDP2 divides over two ranks, started by Lightning's launcher of scripts.

    python tests/end_to_end/sharded.py FOLDER [begin | go-on]

`begin` ends after half of the steps, with a checkpoint; `go-on` makes the others and releases the weights. Without either,
all is done at once. Each rank writes what it holds at the end of the first half, where it goes on, and at the end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard

from lightning_dpgen import DPNorm, PrivateTraining
from lightning_dpgen.plugins import NoisyMetrics
from lightning_dpgen.plugins.training_ledger import digest_of

N, STEPS = 600, 12


class Plain(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        # The outermost module alone holds the norm.
        self.net = nn.Sequential(nn.Linear(8, 9), nn.LayerNorm(9), nn.Linear(9, 1))

    def configure_model(self):
        if self.device_mesh is not None:
            mesh = self.device_mesh["data_parallel"]
            for layer in (self.net[0], self.net[2]):
                fully_shard(layer, mesh=mesh)
            fully_shard(self.net, mesh=mesh)

    def training_step(self, batch):
        loss = (self.net(batch[0])[:, 0] - batch[1]).square()
        self.log("loss", loss.mean())
        return loss

    def validation_step(self, batch):
        self.log("public/loss", (self.net(batch[0])[:, 0] - batch[1]).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


def records() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(N, 8, generator=torch.Generator().manual_seed(0))
    return x, x.sum(dim=1)


def held(model: pl.LightningModule, trainer: pl.Trainer) -> dict:
    """Return the digest of all parameters, this rank's shards, and the state of its optimizer."""
    optimizer = trainer.optimizers[0]
    state = [
        [float(x.to_local().double().sum()) if x.dim() else float(x) for x in s.values()] for s in optimizer.state.values()
    ]
    shards = [p.to_local().flatten().tolist() for p in model.parameters()]
    return {"digest": digest_of(model), "shards": shards, "state": state, "bounds": optimizer.last_bounds}


class Look(pl.Callback):
    """Keeps what a rank holds before the first step."""

    held: dict | None = None

    def on_train_start(self, trainer, model):
        self.held = held(model, trainer)


def main(folder: str, part: str = "all") -> None:
    root = Path(folder)
    pl.seed_everything(1, verbose=False)
    model = Plain()
    private = PrivateTraining(
        records(), n=N, epsilon=8.0, delta=1e-5, sample_rate=0.2, steps=STEPS, clipping=DPNorm(c_max=8.0),
        ledger=root / "ledger.jsonl", metrics=NoisyMetrics({"loss": (0.0, 40.0)}, every=4),
    )  # fmt: skip
    look = Look()
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
        max_epochs=1, max_steps=STEPS // 2 if part == "begin" else -1, callbacks=[private.callback(), look], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, val_check_interval=3,
    )  # fmt: skip
    public = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*(x[:20] for x in records())), batch_size=10)
    trainer.fit(model, private.loader(), public, ckpt_path=root / "half" if part == "go-on" else None)
    if part == "begin":
        trainer.save_checkpoint(root / "half")
    epsilon = None if part == "begin" else private.release(model, root / "release")["epsilon"]
    shown = {name: float(value) for name, value in trainer.callback_metrics.items() if name.endswith("error")}
    found = {"start": look.held, "end": held(model, trainer), "epsilon": epsilon, "shown": shown}
    (root / f"{part}{trainer.global_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

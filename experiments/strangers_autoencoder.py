"""The README's convolutional autoencoder made private by this package, and the same module under stock Opacus.

    python experiments/strangers_autoencoder.py

Bundled digits, epsilon 8 at delta 1e-5, 200 steps of Poisson lots at rate 0.2, Adam. Opacus is given each of several
bounds, since its bound is a setting; the best one is seen on the private records, which a curator would have to pay for.
The error is that of held-out pictures, squared and summed over pixels.
"""

from __future__ import annotations

import statistics
import time
import warnings

import pytorch_lightning as pl
import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_dpgen import (
    Account,
    DPNorm,
    MomentsAccountant,
    PrivateOptimizer,
    make_plan,
    poisson_loader,
    training_stage,
)

EPSILON, DELTA, RATE, STEPS, SEEDS, HELD_OUT = 8.0, 1e-5, 0.2, 200, 5, 297
BOUNDS = (0.3, 1.0, 3.0, 10.0)
ADAPTIVE = DPNorm(c_max=10.0)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 6),
        nn.Linear(6, 128), nn.ReLU(), nn.Unflatten(1, (8, 4, 4)), nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
    )  # fmt: skip


def errors(made: Tensor, x: Tensor) -> Tensor:
    """Return (B,) squared errors."""
    return (made - x).square().flatten(1).sum(dim=1)


class Autoencoder(pl.LightningModule):
    """A module that knows nothing of this package but its optimizer."""

    def __init__(self, wrap) -> None:
        super().__init__()
        self.wrap, self.network = wrap, network()

    def training_step(self, batch, _):
        return errors(self.network(batch), batch)

    def configure_optimizers(self):
        return self.wrap(torch.optim.Adam(self.parameters(), lr=3e-3))


class Criterion(nn.Module):
    """The same errors, as Opacus wants them: with a reduction that it can take away."""

    reduction = "mean"

    def forward(self, made: Tensor, x: Tensor) -> Tensor:
        each = errors(made, x)
        return each if self.reduction == "none" else each.mean()


def ours(train: Tensor) -> nn.Module:
    n = len(train)
    spec = training_stage(ADAPTIVE, n=n, sample_rate=RATE, steps=STEPS)
    account = Account(make_plan([spec], epsilon=EPSILON, delta=DELTA))
    module = Autoencoder(lambda inner: PrivateOptimizer(inner, account=account, clipping=ADAPTIVE))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[MomentsAccountant(account)], **quiet)
    trainer.fit(module, poisson_loader(train, account))
    return module.network


def opacus(train: Tensor, bound: float, mode: str) -> nn.Module:
    model = network()
    loader = DataLoader(TensorDataset(train), batch_size=round(RATE * len(train)))
    criterion = Criterion()
    found = PrivacyEngine(accountant="prv").make_private_with_epsilon(
        module=model, optimizer=torch.optim.Adam(model.parameters(), lr=3e-3), data_loader=loader, target_epsilon=EPSILON,
        target_delta=DELTA, epochs=round(STEPS * RATE), max_grad_norm=bound, grad_sample_mode=mode, criterion=criterion,
    )  # fmt: skip
    private, optimizer = found[:2]
    criterion, loader = (found[2], found[3]) if mode == "ghost" else (criterion, found[2])
    done = 0
    while done < STEPS:
        for (x,) in loader:
            optimizer.zero_grad()
            criterion(private(x), x).backward()
            optimizer.step()
            done += 1
            if done == STEPS:
                break
    return model


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    images = torch.tensor(load_digits().images[:, None] / 16, dtype=torch.float32)
    train, test = images[:-HELD_OUT], images[-HELD_OUT:]
    ways = {"this package, adaptive bound": lambda: ours(train)}
    for mode in ("hooks", "ghost"):
        for bound in BOUNDS:
            ways[f"Opacus, {mode}, C = {bound:g}"] = lambda bound=bound, mode=mode: opacus(train, bound, mode)
    print(f"mean picture alone: {float(errors(train.mean(dim=0), test).mean()):.2f}")
    for name, way in ways.items():
        found, taken = [], []
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            start = time.thread_time()
            model = way()
            taken.append(time.thread_time() - start)
            with torch.no_grad():
                found.append(float(errors(model(test), test).mean()))
        error, spread = statistics.mean(found), statistics.stdev(found)
        print(f"{name:30s} error {error:.2f} +- {spread:.2f}, {min(taken):.1f} s", flush=True)


if __name__ == "__main__":
    main()

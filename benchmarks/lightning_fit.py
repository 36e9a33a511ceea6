"""Cost of a Trainer beside a private step: a fit with one lot or fifty a batch, beside the same steps in a bare loop.

    python benchmarks/lightning_fit.py             a few minutes
    python benchmarks/lightning_fit.py --quick     that it runs

A fit is timed from the end of its first batch to the end of its last, so a Trainer's work before and after is left out.
All train the VAE of `steps.py` at lot 100, without logger, progress bar and checkpoints.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable

import peers
import pytorch_lightning as pl
import torch
from interleaved import Line, Ratio, parser, start, table
from steps import ADAPTIVE, Taped
from torch import Tensor

from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.optim.stages import training_stage
from lightning_dpgen.plugins.accountant import MomentsAccountant
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.sampling.lots import PoissonLots, poisson_loader

LOT = 100


def parts(records: Tensor, steps: int) -> tuple[Account, Callable[[torch.nn.Module], PrivateOptimizer]]:
    """Return an account of so many steps, and a function that wraps the optimizer of a network."""
    access = training_stage(ADAPTIVE, n=len(records), sample_rate=LOT / len(records), steps=steps).access(1.0)
    account = Account(Plan((Stage(access, steps, 1.0),), 8.0, 1e-6))

    def wrapped(network: torch.nn.Module) -> PrivateOptimizer:
        inner = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
        return PrivateOptimizer(inner, account=account, clipping=ADAPTIVE, expected_batch_size=LOT)

    return account, wrapped


class Module(pl.LightningModule):
    """A module as anyone would write it: one loss a record."""

    def __init__(self, wrapped: Callable[[torch.nn.Module], PrivateOptimizer]) -> None:
        super().__init__()
        self.model, self.wrapped = peers.linear_vae(), wrapped

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        logits, _, mean, log_variance = self.model(batch, torch.randn(len(batch), 2))
        return peers.negative_elbo(batch, logits, mean, log_variance)

    def configure_optimizers(self) -> PrivateOptimizer:
        return self.wrapped(self)


class Clock(pl.Callback):
    """Processor time at the end of each batch."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_end(self, *_) -> None:
        self.times.append(time.thread_time())


def fit(records: Tensor, steps: int, block: int) -> float:
    """Return seconds a step under a Trainer."""
    account, wrapped = parts(records, steps)
    clock = Clock()
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    callbacks = [MomentsAccountant(account), clock]
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=callbacks, **options)
    trainer.fit(Module(wrapped), poisson_loader(records, account, block=block))
    return (clock.times[-1] - clock.times[0]) / ((len(clock.times) - 1) * block)


def loop(records: Tensor, steps: int) -> float:
    """Return seconds a step in a bare loop."""
    account, wrapped = parts(records, steps)
    network = Taped(peers.linear_vae(), 2)
    optimizer, lots = wrapped(network), PoissonLots(records, account)
    begun = None
    for i in range(steps):
        optimizer.set_gradients(term_gradients(network, network.term, lots.draw(), account.stream))
        optimizer.step()
        if i == 0:
            begun = time.thread_time()
    return (time.thread_time() - begun) / (steps - 1)


def measured(records: Tensor, quick: bool) -> dict[str, Ratio]:
    """Return the median, least and largest ratio of each to the loop beside it."""
    steps = 100 if quick else 400
    found: dict[str, list[float]] = {"one lot a batch": [], "fifty": []}
    for _ in range(1 if quick else 11):
        base = loop(records, steps)
        found["fifty"].append(fit(records, steps, 50) / base)
        found["one lot a batch"].append(fit(records, steps, 1) / base)
    return {name: Ratio(statistics.median(values), min(values), max(values)) for name, values in found.items()}


def main() -> None:
    arguments = parser(__doc__.splitlines()[0]).parse_args()
    start(arguments)
    warnings.filterwarnings("ignore")
    found = measured(peers.pictures(2_000 if arguments.quick else 60_000), arguments.quick)
    print(table([
        Line.of("Lightning / loop, fifty lots a batch", found["fifty"], 1.1, 1.04),
        Line.of("Lightning / loop, one lot a batch", found["one lot a batch"], 1.2, None),
    ]))  # fmt: skip


if __name__ == "__main__":
    main()

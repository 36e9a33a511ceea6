"""Steps of two ranks beside those of one, each with one thread, over the same records and lots.

    python benchmarks/devices.py             a minute; two cores, nothing else running
    python benchmarks/devices.py --quick     that it runs

In each round rank 0 makes some steps alone while the other waits, and then both make as many together: lots have the same
expected size, each rank has its part of them, and a step has one sum over gloo (and one of the histogram where a bound is
chosen from the lot). The wall clock is read, since a rank that waits for another takes no processor time.
"""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from interleaved import Line, Ratio, parser, start, table
from steps import ADAPTIVE, FIXED, vae
from torch import nn

from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.optim.stages import training_stage
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.sampling.lots import PoissonLots

RECORDS, LOT, RANKS = 60_000, 2048, 2
FAMILIES = {
    "VAE": (lambda: vae(), ADAPTIVE),
    "VAE, fixed bound": (lambda: vae(), FIXED),
    "mixture, k = 10": (lambda: vae(10), ADAPTIVE),
    "convolutional VAE": (lambda: vae(network="conv", latent=8), ADAPTIVE),
}


class Fit:
    """Steps of a network by the given ranks."""

    def __init__(self, network: nn.Module, rule: ClippingRule, ranks: Ranks, ledger: Path, steps: int) -> None:
        records = torch.bernoulli(torch.full((RECORDS, 784), 0.13), generator=torch.Generator().manual_seed(0))
        access = training_stage(rule, n=RECORDS, sample_rate=LOT / RECORDS, steps=steps).access(1.0)
        self.account = Account(Plan((Stage(access, steps, 1.0),), 8.0, 1e-6), ledger)
        self.account.join(ranks)
        inner = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
        self._optimizer = PrivateOptimizer(inner, account=self.account, clipping=rule, expected_batch_size=LOT)
        k = network.k
        clusters = None if k == 1 else torch.arange(RECORDS) % k
        self._lots, self._network = PoissonLots(records, self.account, clusters=clusters, k=k), network

    def seconds(self, steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            lot = self._lots.draw()
            self._optimizer.set_gradients(term_gradients(self._network, self._network.term, lot, self.account.stream))
            self._optimizer.step()
        return time.perf_counter() - begin


def rank(number: int, port: int, folder: str, rounds: int, warmup: int, steps: int, results: mp.SimpleQueue) -> None:
    """Run one process; rank 0 reports the seconds of each round, alone and together."""
    # Each rank has a core of its own where there are enough.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=RANKS)
    ranks, total = Ranks.join(), (rounds + warmup) * steps
    for name, (make, rule) in FAMILIES.items():
        torch.manual_seed(0)
        together = Fit(make(), rule, ranks, Path(folder) / f"{name} {number}.jsonl", total)
        alone = Fit(make(), rule, Ranks(), Path(folder) / f"{name} alone {number}.jsonl", total) if number == 0 else None
        times = []
        for i in range(warmup + rounds):
            one = alone.seconds(steps) if number == 0 else 0.0
            dist.barrier()
            two = together.seconds(steps)
            if i >= warmup:
                times.append((one / steps, two / steps))
        if number == 0:
            results.put((name, times))
    dist.destroy_process_group()


def main() -> None:
    size = start(parser(__doc__).parse_args())
    with socket.socket() as taken, tempfile.TemporaryDirectory() as folder:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.close()
        results = mp.get_context("spawn").SimpleQueue()
        mp.spawn(rank, (port, folder, size.rounds, size.warmup, size.steps, results), nprocs=RANKS)
        lines = []
        for _ in FAMILIES:
            name, times = results.get()
            each = [two / one for one, two in times]
            low, median, high = statistics.quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
            milliseconds = statistics.median(one for one, _ in times) * 1e3
            must, aim = (1 / 1.5, 1 / 1.75) if name == "VAE" else (None, None)
            quantity = f"{name}, lot {LOT}: two ranks / one ({milliseconds:.0f} ms)"
            lines.append(Line.of(quantity, Ratio(median, low, high), must, aim))
    print(table(lines))


if __name__ == "__main__":
    main()

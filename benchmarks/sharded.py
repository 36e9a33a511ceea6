"""Peak memory and time of steps of two ranks with sharded parameters, beside the same steps with whole ones.

    python benchmarks/sharded.py             a minute; two cores, nothing else running
    python benchmarks/sharded.py --quick     that it runs

Each of the two ways has processes of its own, one thread a rank, over gloo. Memory is what a rank's process had at most
(VmHWM), less what it had before the network was made, in bytes a parameter of the network: from its making to the end of
the first step, and from there to the last. The allocator gives memory back at once: glibc otherwise keeps several layers
that were whole for a moment. The first step of whole parameters has a comparison with plain autograd, which is left out for
shards.
"""

from __future__ import annotations

import gc
import math
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from interleaved import parser
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lightning_dpgen.gradients.clipping import Fixed
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.optim.stages import training_stage
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.sampling.lots import PoissonLots

RANKS, RECORDS, LOT = 2, 1000, 32


def network(width: int, depth: int, sharded: bool) -> nn.Module:
    """Make a deep network, which is never whole in a process if it is sharded."""
    torch.manual_seed(0)
    mesh, layers = init_device_mesh("cpu", (RANKS,)), []
    for _ in range(depth):
        layer = nn.Linear(width, width)
        layers += [fully_shard(layer, mesh=mesh) if sharded else layer, nn.Tanh()]
    made = nn.Sequential(*layers)
    return fully_shard(made, mesh=mesh) if sharded else made


def rank(number: int, port: int, sharded: bool, width: int, depth: int, steps: int, results: mp.SimpleQueue) -> None:
    """Run one process; each reports its peak and the seconds of a step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=RANKS)
    ranks = Ranks.join()
    # Code that a first call loads belongs to neither way.
    fit(network(8, 2, sharded), 8, ranks, 1)
    gc.collect()
    before = _reset_peak()
    made = network(width, depth, sharded)
    size = sum(p.numel() for p in made.parameters())
    peaks: list[float] = []

    def look() -> None:
        peaks.append((_status("VmHWM") - before) / size)
        _reset_peak()

    seconds = fit(made, width, ranks, steps, look)
    results.put((number, peaks[0], max(peaks[1:], default=peaks[0]), seconds))
    dist.destroy_process_group()


def fit(made: nn.Module, width: int, ranks: Ranks, steps: int, look: Callable[[], None] = lambda: None) -> float:
    """Make steps, look after each, and return the least seconds of one of them."""
    access = training_stage(Fixed(1.0), n=RECORDS, sample_rate=LOT / RECORDS, steps=steps).access(1.0)
    account = Account(Plan((Stage(access, steps, 1.0),), 8.0, 1e-6))
    account.join(ranks)
    lots = PoissonLots(torch.randn(RECORDS, width), account)
    inner = torch.optim.Adam(made.parameters(), lr=1e-3, fused=True)
    optimizer = PrivateOptimizer(inner, account=account, clipping=Fixed(1.0), expected_batch_size=LOT)
    term = PerRecord(lambda lot, noise: made(lot.records).square().sum(dim=1))
    least = math.inf
    for _ in range(steps):
        begin = time.perf_counter()
        lot = lots.draw()
        optimizer.set_gradients(term_gradients(made, term, lot, account.stream))
        optimizer.step()
        least = min(least, time.perf_counter() - begin)
        look()
    return least


def _status(name: str) -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def _reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def main() -> None:
    options = parser(__doc__).parse_args()
    width, depth, steps = (64, 4, 1) if options.quick else (1024, 16, 3)
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    print(f"{depth} layers of {width} x {width}, {RANKS} ranks, lot {LOT}, Adam")
    for sharded in (False, True):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        results = mp.get_context("spawn").SimpleQueue()
        mp.spawn(rank, (port, sharded, width, depth, steps, results), nprocs=RANKS)
        for number, first, later, seconds in sorted(results.get() for _ in range(RANKS)):
            print(
                f"{'sharded' if sharded else 'whole'}, rank {number}: bytes a parameter {first:.1f} in the first step, "
                f"{later:.1f} in later ones; {1000 * seconds:.0f} ms a step"
            )


if __name__ == "__main__":
    main()

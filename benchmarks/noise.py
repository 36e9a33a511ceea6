"""Cost of a normal, and reach of its tail: torch's own, the standard private stream, the secure one, and whole numbers.

    python benchmarks/noise.py                 ns per value (the same number is ms per million values)
    python benchmarks/noise.py --tail 1e9      draws beyond 3, 4, 5, ... sigma against the exact expectation

One thread is timed by its processor time. The rounds of all are interleaved, so that other work of the machine affects
all alike; medians are compared. Whole numbers are exact roundings of sigma Z (`rounded_normals`), and are converted here.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from scipy import stats
from torch import Tensor

from lightning_dpgen.privacy.noise.rounded_normal import rounded_normals
from lightning_dpgen.privacy.noise.stream import PrivateStream

SIGMAS = (3.0, 4.0, 5.0, 5.77, 6.0, 6.5)
# The standard deviation of whole numbers, in units of their grid.
_SIGMA = 2.0**20
# Pieces of the tail check: large enough to hide the cost of a call, small enough to be counted from the cache.
_PIECE = 1 << 20


def sources() -> dict[str, Callable[[Tensor], Tensor]]:
    """Return functions that fill a tensor with standard normals, by name."""
    standard, secure = PrivateStream(), PrivateStream(secure=True)

    def fill_rounded(out: Tensor) -> Tensor:
        return out.copy_(torch.from_numpy(rounded_normals(standard.words, out.numel(), _SIGMA))).mul_(1.0 / _SIGMA)

    normals = {"torch.Tensor.normal_": Tensor.normal_, "standard": standard.normal_, "secure": secure.normal_}
    return {**normals, "rounded": fill_rounded}


def price(size: int, rounds: int, dtype: torch.dtype) -> None:
    """Print ns per value of each source, and ratios of medians to torch's bare draw."""
    out = torch.empty(size, dtype=dtype)
    fills = sources()
    taken: dict[str, list[float]] = {name: [] for name in fills}
    for fill in fills.values():
        fill(out)
    for _ in range(rounds):
        for name, fill in fills.items():
            start = time.thread_time()
            fill(out)
            taken[name].append((time.thread_time() - start) * 1e9 / size)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    bare, standard = medians["torch.Tensor.normal_"], medians["standard"]
    print(f"{size:,} values of {dtype}, {rounds} rounds, one thread")
    print(f"  {'source':<22}{'ns a value':>11}{'quickest':>10}{'to torch':>10}{'to standard':>13}")
    for name, median in medians.items():
        quickest = min(taken[name])
        print(f"  {name:<22}{median:>11.2f}{quickest:>10.2f}{median / bare:>10.2f}{median / standard:>13.2f}")


def tail(draws: int) -> None:
    """Print how many of so many float32 normals lie beyond each sigma, the exact expectation, a z-score and a p-value."""
    out = torch.empty(_PIECE)
    for name, fill in sources().items():
        seen, largest, start = [0] * len(SIGMAS), 0.0, time.perf_counter()
        for done in range(0, draws, _PIECE):
            size = fill(out[: min(_PIECE, draws - done)]).abs_()
            far = size[size > SIGMAS[0]]
            seen = [count + int((far > sigma).sum()) for count, sigma in zip(seen, SIGMAS, strict=True)]
            largest = max(largest, float(size.amax()))
        print(f"{name}: {draws:.3g} draws in {time.perf_counter() - start:.0f} s, largest {largest:.3f}")
        print(f"  {'beyond':>8}{'seen':>12}{'exact':>14}{'z':>8}{'p':>10}")
        for sigma, count in zip(SIGMAS, seen, strict=True):
            expected = draws * 2.0 * stats.norm.sf(sigma)
            # The exact two-sided p-value: for a few draws a z-score says little.
            p = min(1.0, 2.0 * min(stats.poisson.cdf(count, expected), stats.poisson.sf(count - 1, expected)))
            print(f"  {sigma:>8}{count:>12,}{expected:>14.2f}{(count - expected) / math.sqrt(expected):>8.2f}{p:>10.2g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tail", type=float, nargs="?", const=1e9, metavar="N", help="check the tail in N draws (1e9)")
    parser.add_argument("--size", type=int, default=1_000_000, help="values a draw")
    parser.add_argument("--rounds", type=int, default=51)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.tail is not None:
        tail(int(arguments.tail))
        return
    for dtype in (torch.float32, torch.float64):
        price(arguments.size, arguments.rounds, dtype)


if __name__ == "__main__":
    main()

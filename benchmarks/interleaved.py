"""Steps timed beside each other in one process, the memory that one takes, and a table of ratios and their limits.

    from interleaved import Line, peak_memory, ratios, table

    result = ratios({"plain": plain, "private": private}, rounds=101, warmup=10)
    print(table([Line.of("private / plain", result.ratio("private", "plain"), must=1.4, aim=1.2)]))

Milliseconds say little on a shared machine. A ratio of two steps of the same round says a lot, since other work there
affects both. The median of those ratios is reported, with its quartiles. A step is timed by the processor time of its
thread, so that waiting for a core is not counted; with one thread and a quiet machine the wall clock agrees
(`Result.disagreement` says how well).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

# The parameters of glibc's mallopt, and a size that nothing here exceeds.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_NEVER = 1 << 30


@dataclass(frozen=True)
class Size:
    """The length of a benchmark: `warmup` rounds that are not counted, then `rounds` of `steps` calls each."""

    rounds: int
    warmup: int
    steps: int


FULL, QUICK = Size(rounds=41, warmup=3, steps=5), Size(rounds=3, warmup=1, steps=1)


@dataclass(frozen=True)
class Ratio:
    """Median and quartiles of the ratios of the rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Result:
    """Seconds of each contender in each round, by both clocks.

    Args:
        processor: processor time of the thread.
        wall: the wall clock.
        elsewhere: processor time that other threads of the process took, as a share of this thread's. It is counted for
            no contender, so a benchmark whose share is not near zero has a contender that hides work in a thread.
    """

    processor: dict[str, list[float]]
    wall: dict[str, list[float]]
    elsewhere: float

    def milliseconds(self, name: str, clock: str = "processor") -> float:
        """Return the median over rounds of the time of one call."""
        return 1e3 * statistics.median(getattr(self, clock)[name])

    def ratio(self, name: str, base: str, clock: str = "processor") -> Ratio:
        """Return the time of `name` over that of `base`, taken round by round, so that both saw the same machine."""
        times = getattr(self, clock)
        each = [mine / its for mine, its in zip(times[name], times[base], strict=True)]
        # One round has no quartiles.
        low, median, high = statistics.quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
        return Ratio(median, low, high)

    def disagreement(self) -> float:
        """Return the largest median of wall over processor time, less 1: a busy machine, or a contender that waits."""
        return max(
            statistics.median(w / p for w, p in zip(self.wall[name], self.processor[name], strict=True)) - 1.0
            for name in self.wall
        )


def ratios(contenders: Mapping[str, Callable[[], object]], rounds: int, warmup: int, steps: int = 1) -> Result:
    """Time each contender once a round, all of them every round, in an order that changes.

    Args:
        contenders: name to a call that does one step, or the same number of them as every other call.
        rounds: rounds that are counted.
        warmup: rounds before those: first calls allocate, and choose their kernels.
        steps: calls that are timed together. With one, a step finds the caches full of its neighbours' weights, unlike a
            step of a training.

    Example:
        >>> result = ratios({"one": lambda: sum(range(20_000)), "two": lambda: sum(range(40_000))}, rounds=9, warmup=1)
        >>> 1.5 < result.ratio("two", "one").median < 2.5
        True
    """
    names = list(contenders)
    processor: dict[str, list[float]] = {name: [] for name in names}
    wall: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(warmup):
        for step in contenders.values():
            step()
    process_start, thread_start = time.process_time(), time.thread_time()
    for i in range(rounds):
        first = i % len(names)
        order = names[first:] + names[:first]
        # Rotation alone would leave each contender with the same predecessor, and with the caches as that one left them.
        for name in order if i // len(names) % 2 == 0 else reversed(order):
            step = contenders[name]
            wall_start, start = time.perf_counter(), time.thread_time()
            for _ in range(steps):
                step()
            processor[name].append((time.thread_time() - start) / steps)
            wall[name].append((time.perf_counter() - wall_start) / steps)
    thread = time.thread_time() - thread_start
    return Result(processor, wall, max(0.0, time.process_time() - process_start - thread) / thread)


def peak_memory(run: Callable[[], object]) -> int:
    """Return most bytes of tensors that were live at once during `run`, beyond those live before it.

    They are counted from the events of torch's allocator, as its profiler records them: to the byte and the same every
    time. The resident size of the process is neither (the allocator keeps pages, and a first touch comes late), and a mode
    that watches dispatched operations misses the memory that a kernel allocates for itself. Memory that does not come from
    torch's allocator (numpy, a BLAS's own workspace) is not seen.

    State that a model keeps between steps (moments, buffers) belongs to its cost: build it inside `run` and take steps.

    Example:
        >>> peak_memory(lambda: torch.zeros(1000).add(1.0).sum()) // 1000
        8
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    events = [event for event in events if event.get("name") == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event["args"]["Ev Idx"]):
        live += event["args"]["Bytes"]
        peak = max(peak, live)
    return peak


def keep_memory() -> bool:
    """Keep glibc's allocator from returning memory to the system for the rest of this process; False without glibc.

    By default a block above 32 MiB is mapped anew each time, and each of its pages faults at its first touch. For gradients
    of a hundred records at once that is half of a step; for steps that keep no such block it is nothing. The environment
    variables MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_ and MALLOC_TOP_PAD_ set the same before a start.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = (_MMAP_THRESHOLD, _NEVER), (_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, 1 << 26)
    return mallopt is not None and all(mallopt(*setting) == 1 for setting in settings)


@dataclass(frozen=True)
class Line:
    """One line of a table: a measured number, and the most that it must and should be (None: only reported)."""

    quantity: str
    measured: float
    must: float | None = None
    aim: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, quantity: str, ratio: Ratio, must: float | None = None, aim: float | None = None) -> Line:
        """Return the line of a ratio, with its quartiles."""
        return cls(quantity, ratio.median, must, aim, ratio.low, ratio.high)

    @property
    def met(self) -> bool | None:
        """True if it is as small as it must be, None if nothing is asked; NaN meets nothing."""
        return None if self.must is None else self.measured <= self.must


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    # Two decimals, and more where those would hide the number.
    decimals = 2 if not math.isfinite(value) or abs(value) >= 0.1 or value == 0 else 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{decimals}f}"


def table(lines: Sequence[Line]) -> str:
    """Write plain text, a line each: quantity, measured (quartiles), must, aim, and whether must is met.

    Example:
        >>> print(table([Line("private / plain, lot 100", 1.31, must=1.4, aim=1.2), Line("secure", 2.0, aim=2.0)]))
        quantity                  measured  quartiles  must   aim  met
        private / plain, lot 100      1.31          -  1.40  1.20  yes
        secure                        2.00          -     -  2.00  -
    """
    heads = ("quantity", "measured", "quartiles", "must", "aim", "met")
    mark = {None: "-", True: "yes", False: "NO"}
    cells = [
        (
            line.quantity,
            _short(line.measured),
            "-" if line.low is None else f"{_short(line.low)} to {_short(line.high)}",
            _short(line.must),
            _short(line.aim),
            mark[line.met],
        )
        for line in lines
    ]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]

    def row(values: Sequence[str]) -> str:
        middle = "  ".join(value.rjust(width) for value, width in zip(values[1:-1], widths[1:-1], strict=True))
        return f"{values[0].ljust(widths[0])}  {middle}  {values[-1]}"

    return "\n".join(row(values) for values in (heads, *cells))


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that every benchmark takes; `start` reads them."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--quick", action="store_true", help="a few rounds, to see that it runs: its numbers say nothing")
    options.add_argument("--keep-memory", action="store_true", help="keep the allocator from returning memory")
    return options


def start(arguments: argparse.Namespace) -> Size:
    """Set the process up as its options say, with one thread, and return the number of rounds."""
    # Threads that share two cores with other jobs wait for each other, ten times longer than they work.
    torch.set_num_threads(1)
    # A weight whose gradient is exactly zero (a constant pixel, a dead unit) has moments that decay to denormal numbers in
    # about 800 steps of Adam. After that a plain step takes a quarter longer and a noisy one does not: the longer the run,
    # the better privacy would look.
    torch.set_flush_denormal(True)
    if arguments.keep_memory and not keep_memory():
        raise SystemExit("--keep-memory: this system's allocator is not glibc's")
    return QUICK if arguments.quick else FULL

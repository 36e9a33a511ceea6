"""Private steps on a GPU, beside plain ones of the same network and precision, the plain CUDA graph, and Opacus.

    python benchmarks/gpu.py                        three minutes; a GPU that nothing else uses
    python benchmarks/gpu.py --only ViT             the rows whose name contains the word
    python benchmarks/gpu.py --precision bf16       every network in these precisions, in place of those of the table
    python benchmarks/gpu.py --profile FILE         no times: what the steps consist of
    python benchmarks/gpu.py --device cpu --quick   that it runs

A private step is that of `dpgen train`, as in steps.py, with a fixed bound: a Poisson lot drawn from records in the
processor's memory and copied, gradients, the access written to a ledger on disk, clipped sum, noise with its whole tail,
the optimizer. Plain steps and Opacus draw a batch of fixed size from records that are on the device already. All run in one
process, in rounds in which every contender takes its turn, by the wall clock once the device has finished; on a processor,
where there is no CUDA graph, by the processor time of the thread.

Columns: "MiB" is the most that a contender's state and three steps take, beyond the records: a private one has the largest
of three Poisson lots. "over plain" beside it is over the plain step. "operations" are those of torch that a step calls, and
"waits" the times that it waits for the device (on a processor: numbers of tensors that it reads, among them the counters of
fused Adam). "lot; slots" are the mean number of records and the number of rows that a step has room for. "shrunk, %" says
which part of a record's norm is room for rounding, median and largest of four records of a lot, with random weights.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from gpu_steps import GRAPH, OPACUS, PLAIN, Contender, Row, contenders, workloads
from interleaved import Result, parser, peak_memory, ratios, start
from steps import Private, Step
from torch import nn
from torch.profiler import ProfilerActivity, profile

from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.per_sample_gradients import shares_of_slack
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

# Seconds of a run; fewest and most rounds of a row.
_SECONDS, _FEWEST, _MOST = 170.0, 3, 41
# Steps that a contender makes before it is timed, in which its memory is measured.
_FIRST_STEPS = 3
# Records whose norms are compared with their contributions.
_COMPARED = 4
# Steps that are counted, steps of a profile, and lines of its tables.
_COUNTED_STEPS, _PROFILED_STEPS, _LINES = 2, 5, 25
_WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize")
_COUNTED = (
    "cudaGraphLaunch", "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync",
    "cudaMemsetAsync", "cudaHostAlloc", "cudaMalloc", *_WAITS, "cudaDeviceSynchronize", "Memcpy HtoD (Pinned -> Device)",
    "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)", "Memcpy DtoD (Device -> Device)", "aten::item",
    "aten::_local_scalar_dense", "aten::nonzero", "aten::_to_copy", "aten::copy_", "aten::pin_memory",
)  # fmt: skip
_HEAD = (
    "network, lot, precision", "step", "ms", "over plain graph", "over plain", "MiB", "over plain", "operations", "waits",
    "lot; slots", "shrunk, %",
)  # fmt: skip


def finished(step: Step, device: torch.device) -> Step:
    """Return the step with a wait for the device behind it."""

    def call() -> None:
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return call


def free_memory(device: torch.device) -> None:
    """Give the memory of contenders that are gone back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def built(make: Callable[[], Step], device: torch.device, until: float) -> tuple[Step, int]:
    """Build a step, make some, and return it with the most bytes that it took meanwhile.

    Raises:
        TimeoutError: if a step is to begin after a time of the monotonic clock.
    """
    made: list[Step] = []

    def run() -> None:
        made.append(finished(make(), device))
        for _ in range(_FIRST_STEPS):
            if time.monotonic() > until:
                raise TimeoutError
            made[0]()

    free_memory(device)
    if device.type != "cuda":
        peak = peak_memory(run)
        return made[0], peak
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return made[0], torch.cuda.max_memory_allocated() - before


class StepFailedError(Exception):
    """A contender failed in the rounds, though its first steps did not."""


def _named(name: str, step: Step) -> Step:
    """Return the step with its name on its errors."""

    def call() -> None:
        try:
            step()
        except Exception as error:
            raise StepFailedError(name, type(error).__name__) from None

    return call


def timed(steps: dict[str, Step], notes: dict[str, str], seconds: float, clock: str, *, quick: bool) -> Result | None:
    """Time steps, in as many rounds as fit into some seconds; one that fails, or Opacus if late, leaves with a note."""
    while steps:
        try:
            once = {}
            for name, step in steps.items():
                begin = time.perf_counter()
                _named(name, step)()
                once[name] = time.perf_counter() - begin
            while _FEWEST * sum(once.values()) > seconds and (others := [x for x in once if x.startswith(OPACUS)]):
                slowest = max(others, key=once.__getitem__)
                notes[slowest] = f"late: {once.pop(slowest):.1f} s a step"
                del steps[slowest]
            rounds = 2 if quick else max(_FEWEST, min(_MOST, int(seconds / sum(once.values()))))
            return ratios({name: _named(name, step) for name, step in steps.items()}, rounds, warmup=0)
        except StepFailedError as failed:
            name, error = failed.args
            notes[name] = error
            del steps[name]
    return None


def seen(step: Step, device: torch.device, steps: int) -> profile:
    """Make some steps under the profiler of torch."""
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with profile(activities=kinds, acc_events=True) as found:
        for _ in range(steps):
            step()
    return found


def counted(step: Step, device: torch.device) -> tuple[str, str]:
    """Return the operations of a step, and its waits for the device; "-" where the profiler does not see them."""
    try:
        events = seen(step, device, _COUNTED_STEPS).key_averages()
    except RuntimeError:
        return "-", "-"
    counts = {event.key: event.count / _COUNTED_STEPS for event in events}
    operations = sum(count for name, count in counts.items() if name.startswith("aten::"))
    if device.type != "cuda":
        return f"{operations:.0f}", f"{counts.get('aten::_local_scalar_dense', 0.0):.0f}"
    if not any(name.startswith("cuda") for name in counts):
        return f"{operations:.0f}", "-"
    return f"{operations:.0f}", f"{sum(counts.get(name, 0.0) for name in _WAITS):.0f}"


def slack(row: Row, network: nn.Module) -> list[float]:
    """Return which part of the norms of some records of a lot is room for rounding."""
    lot = Lot(row.store, (0, len(row.records[0]))).map(lambda x: x[: row.lot], (0, row.lot)).to(row.device)
    with row.autocast():
        gradients = term_gradients(network, row.term(network), lot, PrivateStream())
    return shares_of_slack(gradients, _COMPARED)


def shrunk(row: Row, contender: Contender) -> str:
    """Write the room for rounding in norms, in percent: median and largest."""
    if contender.network is None:
        return "-"
    try:
        percent = [100.0 * x for x in slack(row, contender.network())]
    except Exception as error:
        return type(error).__name__
    return f"{statistics.median(percent):.3f}; {max(percent):.3f}"


def lines(row: Row, title: str, private: Private, until: float, *, quick: bool) -> list[str]:
    """Measure the contenders of a row until a time of the monotonic clock, and write a line of the table for each."""
    row.set_precision()
    all_of_row, now = contenders(row, private), time.monotonic()
    # Half of the time is for first steps and memory, and never less than a quarter for the rounds.
    half, least = (now + until) / 2, (until - now) / 4
    steps: dict[str, Step] = {}
    peaks: dict[str, int] = {}
    notes: dict[str, str] = {}
    for name, contender in all_of_row.items():
        try:
            last = half if name.startswith(OPACUS) else math.inf
            steps[name], peaks[name] = built(contender.make, row.device, last)
        except TimeoutError:
            notes[name] = "late"
        except Exception as error:
            notes[name] = type(error).__name__
    clock = "wall" if row.device.type == "cuda" else "processor"
    result = timed(steps, notes, max(0.8 * (until - time.monotonic()), least), clock, quick=quick)

    def over(name: str, base: str) -> str:
        if name == base or base not in steps:
            return "-"
        ratio = result.ratio(name, base, clock)
        return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"

    written = []
    for name, contender in all_of_row.items():
        cells = [title, name, notes.get(name, ""), *["-"] * 6]
        if name in steps:
            more = f"{peaks[name] / peaks[PLAIN]:.2f}" if PLAIN in steps and name != PLAIN else "-"
            cells[2:] = [
                f"{result.milliseconds(name, clock):.2f}",
                over(name, GRAPH),
                over(name, PLAIN),
                f"{peaks[name] / 2**20:.0f}",
                more,
                *counted(steps[name], row.device),
            ]
        cells.append(f"{row.lot}; {contender.slots or 'any'}")
        written.append(cells)
    steps.clear()
    free_memory(row.device)
    return [
        f"| {' | '.join(cells)} | {shrunk(row, contender)} |"
        for cells, contender in zip(written, all_of_row.values(), strict=True)
    ]


def write_profiles(path: Path, rows: Mapping[str, Callable[[], Row]], private: Private) -> None:
    """Write tables of the operations of some steps of each contender, by their own time on device and processor."""
    with path.open("w") as file:
        for title, make in rows.items():
            row = make()
            row.set_precision()
            for name, contender in contenders(row, private).items():
                try:
                    text = profiled(contender.make, row.device)
                except Exception as error:
                    text = type(error).__name__
                file.write(f"== {title}, {name}: {text}\n")
                file.flush()
                free_memory(row.device)


def profiled(make: Callable[[], Step], device: torch.device) -> str:
    """Return the time of a step without the profiler, what it counts, and its tables."""
    step = finished(make(), device)
    for _ in range(_FIRST_STEPS):
        step()
    begin = time.perf_counter()
    for _ in range(_PROFILED_STEPS):
        step()
    milliseconds = 1e3 * (time.perf_counter() - begin) / _PROFILED_STEPS
    events = seen(step, device, _PROFILED_STEPS).key_averages()
    counts = {event.key: event.count / _PROFILED_STEPS for event in events}
    found = [f"{milliseconds:.2f} ms a step without the profiler; tables of {_PROFILED_STEPS} steps"]
    found.append(", ".join(f"{name} {counts[name]:g}" for name in _COUNTED if name in counts) + " a step")
    for order in ["self_device_time_total"] * (device.type == "cuda") + ["self_cpu_time_total"]:
        found.append(events.table(sort_by=order, row_limit=_LINES, max_name_column_width=70))
    return "\n".join(found)


def chosen_rows(arguments: argparse.Namespace, device: torch.device) -> dict[str, Callable[[], Row]]:
    """Return the makers of the rows that a command asks for, by their titles."""
    size = arguments.size or ("tiny" if arguments.quick else "full")
    found: dict[str, Callable[[], Row]] = {}
    for name, workload in workloads(size).items():
        lot = "" if "lot" in name else f", lot {workload.lot}"
        for precision in arguments.precision or workload.precisions:
            title = f"{name}{lot}, {precision}"
            if arguments.only in title:
                found[title] = lambda workload=workload, precision=precision: Row(workload, precision, device)
    return found


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--device", default="cuda", help="cuda, or cpu to see that it runs")
    options.add_argument("--size", choices=("full", "middle", "tiny"), help="of the networks; tiny with --quick, else full")
    options.add_argument("--only", default="", help="rows whose name contains this")
    options.add_argument("--precision", nargs="+", choices=("bf16", "tf32", "float32"), help="in place of the table's")
    options.add_argument("--seconds", type=float, default=_SECONDS, help="after these, all that is left is late")
    options.add_argument("--profile", type=Path, help="write what steps consist of to this file, instead of timing them")
    arguments = options.parse_args()
    start(arguments)
    warnings.filterwarnings("ignore")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no GPU; --device cpu --quick shows that the benchmark runs")
    device = torch.device(arguments.device, 0) if arguments.device == "cuda" else torch.device("cpu")
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else "a processor, one thread, where tf32 is float32"
    print(f"{kind}, torch {torch.__version__}\n", flush=True)
    begin, rows = time.monotonic(), chosen_rows(arguments, device)
    with tempfile.TemporaryDirectory() as folder:
        private = Private(Path(folder))
        if arguments.profile:
            write_profiles(arguments.profile, rows, private)
            return
        print(f"| {' | '.join(_HEAD)} |\n|{' --- |' * len(_HEAD)}", flush=True)
        for i, (title, make) in enumerate(rows.items()):
            now = time.monotonic()
            left = begin + arguments.seconds - now
            if left < 0:
                print(f"| {title} | late |{' - |' * (len(_HEAD) - 2)}", flush=True)
                continue
            print("\n".join(lines(make(), title, private, now + left / (len(rows) - i), quick=arguments.quick)), flush=True)


if __name__ == "__main__":
    main()

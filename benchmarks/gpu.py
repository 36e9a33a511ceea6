"""Private steps on a GPU, beside the plain step of the same model and Opacus: time, and peak memory.

    python benchmarks/gpu.py                        two minutes at most; a GPU that nothing else uses
    python benchmarks/gpu.py --profile FILE         no times: what a private step and a plain one consist of
    python benchmarks/gpu.py --device cpu --quick   that it runs

A private step is that of `dpgen train`, as in steps.py: a Poisson lot drawn from records in the processor's memory and
copied, gradients, the access written to a ledger on disk, bound, clipped sum, noise with its whole tail, the optimizer.
Plain steps and Opacus draw a batch of fixed size from records that are on the device already, with a fixed bound and one
normal a number. All run in one process, in rounds in which every contender takes its turn; the wall clock is read once the
device has finished. Memory is the most that a contender's state and three steps take, beyond the records.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import peers
import torch
import torch.nn.functional as F
from interleaved import Ratio, Result, parser, peak_memory, ratios, start
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from steps import FIXED, Private, Step, Taped, vae
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.terms import PerRecord

# The families whose steps are profiled, and the contenders.
_PROFILED, _BESIDE = ("VAE 784-200-2, lot 8192", "ResNet-18, 3 x 32 x 32, lot 64"), ("plain", "private", "Opacus hooks")
# Steps of a profile, lines of a table, and what is counted beside the tables: waits, copies and launches.
_STEPS, _LINES = 5, 25
_COUNTED = (
    "cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize",
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaHostAlloc", "cudaMalloc", "Memcpy HtoD (Pinned -> Device)",
    "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)", "Memcpy DtoD (Device -> Device)",
    "aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::_to_copy", "aten::copy_", "aten::pin_memory",
)  # fmt: skip
# The families that are begun after so many seconds are left out.
_ENOUGH = 85.0
_WARMUP, _ROUNDS, _SECONDS = 3, 41, 6.0


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(16, outputs), nn.GroupNorm(16, outputs)])
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(hidden)) + self.skip(x))


def resnet18(width: int = 64) -> nn.Sequential:
    """Build ResNet-18 for pictures of 32 by 32 with group normalisation, as private training takes it (De et al. 2022)."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.GroupNorm(16, width), nn.ReLU()]
    inputs = width
    for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
        layers += [_Block(inputs, outputs, stride), _Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def _losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels, reduction="none")


def plain_classifier(model: nn.Module, pictures: Tensor, labels: Tensor, lot: int) -> Step:
    """Return a plain step of fused Adam on the mean cross entropy."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        chosen = torch.randint(len(pictures), (lot,), device=pictures.device)
        optimizer.zero_grad()
        _losses(model(pictures[chosen]), labels[chosen]).mean().backward()
        optimizer.step()

    return step


def opacus_classifier(model: nn.Module, pictures: Tensor, labels: Tensor, lot: int, *, ghost: bool) -> Step:
    """Return the same step under Opacus, by ghost clipping or by its default, gradients of each record."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": lot}
    if ghost:
        wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0)
        private = DPOptimizerFastGradientClipping(optimizer, **settings)
        loss_of = DPLossFastGradientClipping(wrapped, private, _losses)
    else:
        wrapped, private = GradSampleModule(model), DPOptimizer(optimizer, **settings)

        def loss_of(outputs: Tensor, labels: Tensor) -> Tensor:
            return _losses(outputs, labels).mean()

    def step() -> None:
        chosen = torch.randint(len(pictures), (lot,), device=pictures.device)
        loss = loss_of(wrapped(pictures[chosen]), labels[chosen])
        private.zero_grad(set_to_none=True)
        loss.backward()
        private.step()

    return step


def private_classifier(private: Private, model: nn.Module, records: tuple[Tensor, Tensor], lot: int) -> Step:
    """Return a private step on the cross entropy of each record."""
    term = PerRecord(lambda lot, _: _losses(model(lot.records[0]), lot.records[1]))
    return private.step(
        model, records, lot, FIXED, gradients=lambda lot, stream: (term_gradients(model, term, lot, stream),)
    )


def families(
    device: torch.device, private: Private, secure: Private, *, quick: bool
) -> dict[str, dict[str, Callable[[], Step]]]:
    """Return the makers of each family's contenders; the first of each is the base of its ratios."""
    size = 2_000 if quick else 60_000
    pictures = peers.pictures(size)
    there = pictures.to(device)

    def model() -> peers.VAE:
        return peers.linear_vae().to(device)

    found: dict[str, dict[str, Callable[[], Step]]] = {}
    for lot in (64,) if quick else (256, 1024, 8192):
        contenders: dict[str, Callable[[], Step]] = {
            "plain": lambda lot=lot: peers.vae_step(model(), there, lot),
            "private": lambda lot=lot: private.step(vae().to(device), pictures, lot),
            "private, fixed bound": lambda lot=lot: private.step(vae().to(device), pictures, lot, FIXED),
            "private, ledger in memory": lambda lot=lot: Private(None).step(vae().to(device), pictures, lot),
            "private, secure": lambda lot=lot: secure.step(vae().to(device), pictures, lot),
            "private, taped": lambda lot=lot: private.step(Taped(model(), 2), pictures, lot, FIXED),
            "Opacus ghost": lambda lot=lot: peers.opacus_step(model(), there, lot),
            "Opacus hooks": lambda lot=lot: peers.opacus_step(model(), there, lot, ghost=False),
        }
        found[f"VAE 784-200-2, lot {lot}"] = contenders
    generator = torch.Generator().manual_seed(0)
    width, count = (16, 64) if quick else (64, 5_000)
    colours = torch.rand(count, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (count,), generator=generator)
    on_device = colours.to(device), labels.to(device)

    def network() -> nn.Sequential:
        return resnet18(width).to(device)

    for lot in (4,) if quick else (64, 256):
        found[f"ResNet-18, 3 x 32 x 32, lot {lot}"] = {
            "plain": lambda lot=lot: plain_classifier(network(), *on_device, lot),
            "private": lambda lot=lot: private_classifier(private, network(), (colours, labels), lot),
            "Opacus ghost": lambda lot=lot: opacus_classifier(network(), *on_device, lot, ghost=True),
            "Opacus hooks": lambda lot=lot: opacus_classifier(network(), *on_device, lot, ghost=False),
        }
    return found


def memory(make: Callable[[], Step], device: torch.device) -> int:
    """Return the most bytes that a contender takes on a device, with its state, in three steps."""

    def run() -> None:
        step = make()
        for _ in range(3):
            step()

    if device.type != "cuda":
        return peak_memory(run)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _finished(step: Step, device: torch.device) -> Step:
    """Return the step with a wait for the device behind it."""

    def call() -> None:
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return call


def timed(makers: Mapping[str, Callable[[], Step]], device: torch.device, *, quick: bool) -> Result:
    """Time the contenders of a family, in as many rounds as fit into some seconds."""
    contenders = {name: _finished(make(), device) for name, make in makers.items()}
    for step in contenders.values():
        step()
    begin = time.perf_counter()
    for step in contenders.values():
        step()
    a_round = time.perf_counter() - begin
    rounds = 2 if quick else max(5, min(_ROUNDS, int(_SECONDS / a_round)))
    return ratios(contenders, rounds, 1 if quick else _WARMUP)


def profiled(make: Callable[[], Step], device: torch.device, title: str) -> str:
    """Return tables of the operations of a few steps, by their own time on the device and on the processor."""
    step, on_device = _finished(make(), device), device.type == "cuda"
    for _ in range(_WARMUP):
        step()
    begin = time.perf_counter()
    for _ in range(_STEPS):
        step()
    milliseconds = 1e3 * (time.perf_counter() - begin) / _STEPS
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_device
    with profile(activities=kinds, acc_events=True) as seen:
        for _ in range(_STEPS):
            step()
    events = seen.key_averages()
    counts = {event.key: event.count / _STEPS for event in events}
    operations = sum(count for name, count in counts.items() if name.startswith("aten::"))
    lines = [
        f"== {title}: {milliseconds:.2f} ms a step without the profiler; of {_STEPS} steps",
        f"aten operations a step: {operations:g}",
    ]
    lines += [f"{name} a step: {counts[name]:g}" for name in _COUNTED if name in counts]
    for order in ["self_device_time_total"] * on_device + ["self_cpu_time_total"]:
        lines.append(events.table(sort_by=order, row_limit=_LINES, max_name_column_width=70))
    return "\n".join(lines)


def write_profiles(path: Path, device: torch.device, *, quick: bool) -> None:
    """Write the tables of the families that are profiled to a file, one after the other."""
    with path.open("w") as file, tempfile.TemporaryDirectory() as folder:
        for family, makers in families(device, Private(Path(folder)), Private(None), quick=quick).items():
            if family in _PROFILED or quick:
                for name in _BESIDE:
                    file.write(f"{profiled(makers[name], device, f'{family}, {name}')}\n")
                    file.flush()


def row(family: str, name: str, base: str, result: Result, peak: int) -> str:
    """Write one line of the table."""
    ratio: Ratio = result.ratio(name, base, "wall")
    quartiles = "-" if name == base else f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
    milliseconds = 1e3 * statistics.median(result.wall[name])
    return f"| {family} | {name} | {milliseconds:.2f} | {quartiles} | {peak / 2**20:.0f} |"


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--device", default="cuda", help="cuda, or cpu to see that it runs")
    options.add_argument("--only", default="", help="families whose name contains this")
    options.add_argument("--profile", type=Path, help="write what steps consist of to this file, instead of timing them")
    arguments = options.parse_args()
    start(arguments)
    warnings.filterwarnings("ignore")
    device, begin = (
        torch.device(arguments.device, 0) if arguments.device == "cuda" else torch.device("cpu"),
        time.monotonic(),
    )
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else "a processor, one thread"
    print(f"{kind}, torch {torch.__version__}\n")
    if arguments.profile:
        write_profiles(arguments.profile, device, quick=arguments.quick)
        return
    print("| family | step | ms | over plain (quartiles) | peak memory, MiB |\n| --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "secure").mkdir()
        private, secure = Private(Path(folder)), Private(Path(folder) / "secure", secure=True)
        for family, makers in families(device, private, secure, quick=arguments.quick).items():
            if arguments.only not in family:
                continue
            if time.monotonic() - begin > _ENOUGH:
                print(f"| {family} | left out: it is late | | | |")
                continue
            peaks = {name: memory(make, device) for name, make in makers.items()}
            result = timed(makers, device, quick=arguments.quick)
            for name in makers:
                print(row(family, name, "plain", result, peaks[name]), flush=True)


if __name__ == "__main__":
    main()

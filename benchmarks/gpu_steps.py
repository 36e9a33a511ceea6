"""The contenders of the benchmark of a GPU: plain steps, the same as a CUDA graph, private steps, and those of Opacus."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import peers
import torch
from networks import GPT2, Classifier, Elbo, ViT, resnet18
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from steps import Private, Step, vae
from torch import Tensor, nn

from lightning_dpgen.gradients.clipping import Fixed
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.slots import enough_slots

PLAIN, GRAPH, OPACUS = "plain", "plain, graph", "Opacus"
# Steps before a capture.
_FIRST_STEPS = 3


@dataclass(frozen=True)
class Workload:
    """A network with its records.

    Args:
        make: builds a module that takes the tensors of a lot, and returns losses (B,).
        records: draws the records, on the processor.
        lot: the number of records of a step.
        precisions: those of the table: "bf16" (autocast), "tf32" or "float32".
        closed: builds the same network of this package, whose term has gradients in closed form; None for no such network.
    """

    make: Callable[[], nn.Module]
    records: Callable[[], tuple[Tensor, ...]]
    lot: int
    precisions: tuple[str, ...]
    closed: Callable[[], nn.Module] | None = None


def _texts(count: int, words: int, length: int) -> Callable[[], tuple[Tensor]]:
    return lambda: (torch.randint(words, (count, length + 1)),)


def _pictures(count: int, side: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.rand(count, 3, side, side), torch.randint(10, (count,)))


def workloads(size: str) -> dict[str, Workload]:
    """Return the networks of a size: "full" for a GPU, "middle" for a processor, "tiny" to see that all runs."""
    # Texts of 80 words at the middle size: gradients of the same layers are multiplied out as at the full one.
    texts = {"full": (32, 256), "middle": (16, 80), "tiny": (4, 12)}[size]
    words = {
        "full": {},
        "middle": {"words": 8192, "length": 80, "width": 256, "layers": 4, "heads": 4},
        "tiny": {"words": 97, "length": 12, "width": 32, "layers": 2, "heads": 2},
    }[size]
    lot, side, count = {"full": (64, 224, 512), "middle": (16, 64, 256), "tiny": (4, 16, 32)}[size]
    patches = {
        "full": {},
        "middle": {"side": 64, "patch": 8, "width": 192, "layers": 4, "heads": 3},
        "tiny": {"side": 16, "patch": 8, "width": 32, "layers": 2, "heads": 2},
    }[size]
    width, lot_of_resnet = {"full": (64, 256), "middle": (16, 32), "tiny": (16, 4)}[size]
    lots = {"full": (256, 8192), "middle": (256, 2048), "tiny": (16, 64)}[size]
    rows = 2_000 if size == "tiny" else 60_000
    found = {
        "GPT-2": Workload(
            lambda: GPT2(**words), _texts(8 * texts[0], words.get("words", 50_257), texts[1]), texts[0], ("bf16",)
        ),
        "ViT": Workload(lambda: Classifier(ViT(**patches)), _pictures(count, side), lot, ("bf16",)),
        "ResNet-18": Workload(
            lambda: Classifier(resnet18(width)), _pictures(16 * lot_of_resnet, 32), lot_of_resnet, ("tf32", "bf16")
        ),
    }
    for lot in lots:
        found[f"VAE 784-200-2, lot {lot}"] = Workload(
            lambda: Elbo(peers.linear_vae()), lambda: (peers.pictures(rows),), lot, ("float32",), vae
        )
    return found


class Row:
    """A workload in a precision on a device: what all contenders of a row have in common.

    Args:
        workload: the network, whose records are drawn.
        precision: as in `Workload`.
        device: where the steps are made.
    """

    def __init__(self, workload: Workload, precision: str, device: torch.device) -> None:
        self.lot, self.precision, self.device = workload.lot, precision, device
        self._workload = workload
        torch.manual_seed(0)
        self.records = workload.records()
        self.on_device = tuple(x.to(device) for x in self.records)

    def set_precision(self) -> None:
        """Set how torch multiplies float32 numbers on a GPU, in this process."""
        kind = "tf32" if self.precision == "tf32" else "ieee"
        torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision = kind

    def network(self, *, closed: bool = False) -> nn.Module:
        """Build the network on the device, always with the same weights."""
        torch.manual_seed(0)
        if closed:
            return self._workload.closed().to(self.device)
        with self.device:
            return self._workload.make()

    @property
    def has_closed_form(self) -> bool:
        """True if there is the same network with gradients in closed form."""
        return self._workload.closed is not None

    def batch(self, out: tuple[Tensor, ...] | None = None) -> tuple[Tensor, ...]:
        """Draw a batch of fixed size on the device, into `out` where that is given."""
        chosen = torch.randint(len(self.on_device[0]), (self.lot,), device=self.device)
        if out is None:
            return tuple(x.index_select(0, chosen) for x in self.on_device)
        return tuple(torch.index_select(x, 0, chosen, out=y) for x, y in zip(self.on_device, out, strict=True))

    def autocast(self) -> torch.autocast:
        """Return the context in which losses are computed."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def losses(self, network: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """Return the losses (B,) of a batch, in the precision of the row."""
        with self.autocast():
            return network(*batch)

    @property
    def store(self) -> tuple[Tensor, ...] | Tensor:
        """All records, as a private step takes them."""
        return self.records if len(self.records) > 1 else self.records[0]

    def term(self, network: nn.Module) -> PerRecord:
        """Return the loss of each record."""
        return getattr(network, "term", None) or PerRecord(functools.partial(_losses_of, network))

    def compute(self, network: nn.Module) -> Callable[[PrivateOptimizer, Lot], PerSampleGradients]:
        """Return a call for the gradients of a lot of records, in the precision of the row."""
        term = self.term(network)

        def of(optimizer: PrivateOptimizer, lot: Lot) -> PerSampleGradients:
            with self.autocast():
                return optimizer.compute_gradients(network, term, lot)

        return of


def _losses_of(network: nn.Module, lot: Lot, _: Tensor) -> Tensor:
    return network(*lot.tensors)


def plain_step(row: Row) -> Step:
    """Return a plain step of fused Adam on the mean loss."""
    network = row.network()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        row.losses(network, row.batch()).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class CapturedStep:
    """A plain step as a CUDA graph, from a batch that is copied into the same memory each time."""

    def __init__(self, row: Row) -> None:
        # The graph reads and writes the memory of all of these, so they live as long as it does.
        self._row, self._network, self._batch = row, row.network(), row.batch()
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=1e-3, fused=True, capturable=True)
        # A capture must not meet the first calls of libraries, nor the optimizer without its state.
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(_FIRST_STEPS):
                self._step()
        torch.cuda.current_stream().wait_stream(beside)
        self._optimizer.zero_grad()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._step()

    def _step(self) -> None:
        self._optimizer.zero_grad()
        self._row.losses(self._network, self._batch).mean().backward()
        self._optimizer.step()

    def __call__(self) -> None:
        self._row.batch(self._batch)
        self._graph.replay()


def opacus_step(row: Row, *, ghost: bool) -> Step:
    """Return the step under Opacus, by ghost clipping or by its default, gradients of each record."""
    network = row.network()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": row.lot}
    if ghost:
        wrapped = GradSampleModuleFastGradientClipping(network, max_grad_norm=1.0)
        private = DPOptimizerFastGradientClipping(optimizer, **settings)
        loss_of = DPLossFastGradientClipping(wrapped, private, lambda losses, _: losses)
    else:
        wrapped, private = GradSampleModule(network), DPOptimizer(optimizer, **settings)

        def loss_of(losses: Tensor, _: None) -> Tensor:
            return losses.mean()

    def step() -> None:
        loss_of(row.losses(wrapped, row.batch()), None).backward()
        private.step()
        private.zero_grad(set_to_none=True)

    return step


@dataclass(frozen=True)
class Contender:
    """A step of a row.

    Args:
        make: builds it, with all of its state.
        network: builds the network whose norms are compared with contributions; None for a step that is not ours.
        slots: the number of records that a step has room for; None for any number.
    """

    make: Callable[[], Step]
    network: Callable[[], nn.Module] | None = None
    slots: int | None = None


def contenders(row: Row, private: Private) -> dict[str, Contender]:
    """Return the contenders of a row; the plain ones, to which the others are compared, come first."""
    found = {PLAIN: Contender(lambda: plain_step(row), slots=row.lot)}
    if row.device.type == "cuda":
        found[GRAPH] = Contender(lambda: CapturedStep(row), slots=row.lot)

    def ours(*, closed: bool = False, slots: int | None = None, full: bool = False) -> Contender:
        def make() -> Step:
            network = row.network(closed=closed)
            given = {"compute": row.compute(network), "slots": slots, "full": full}
            return private.step(network, row.store, row.lot, Fixed(1.0), **given)

        return Contender(make, lambda: row.network(closed=closed), slots)

    if row.has_closed_form:
        found["private, closed form"] = ours(closed=True)
    found["private"] = ours()
    found["private, full slots"] = ours(slots=row.lot, full=True)
    found["private, Poisson slots"] = ours(slots=enough_slots(row.lot))
    for name, ghost in {f"{OPACUS} ghost": True, f"{OPACUS} hooks": False}.items():
        found[name] = Contender(lambda ghost=ghost: opacus_step(row, ghost=ghost), slots=row.lot)
    return found

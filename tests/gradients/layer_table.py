"""The table of layers (docs/reference/layers.md): each is run against plain autograd of single records, and against Opacus.

python tests/gradients/layer_table.py > docs/reference/layers.md
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import opacus
import torch
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.sampling.lots import Lot

RECORDS, WORDS = 5, 6
_HEAD = f"""# Layers

This page lists each layer of `torch.nn` that holds parameters, some layers that hold none, and some common uses of
parameters. It compares the gradients of single records that `engine="ghost"` finds, and those of Opacus'
`GradSampleModule` for the same module, with plain autograd of single records (torch {torch.__version__.split("+")[0]},
Opacus {opacus.__version__}).

| word | meaning |
| --- | --- |
| rule | the gradients are right, and are found for all records at once, as products of small factors if these are cheaper |
| copies | the gradients are right; each record gets a copy of the layer's parameters, and a warning says so |
| yes | Opacus' gradients are right |
| refused | an error, with its reason or its class |
| wrong | the gradients are wrong by more than a thousandth of their length, without a warning |

`engine="func"` accepts the layers marked "rule" and "copies", and always uses copies. A lazy layer behaves like the layer
that it becomes. Opacus has layers of its own for attention and recurrent networks (`DPMultiheadAttention`, `DPLSTM`),
which are not those of `torch.nn`. `python tests/gradients/layer_table.py` generates this page.
"""


@dataclass(frozen=True)
class Row:
    """A layer with the shape of a record, of real numbers or of words, and the way in which the layer is called."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    words: bool = False
    call: Callable[[nn.Module, Tensor], Tensor] = lambda layer, x: layer(x)


class Called(nn.Module):
    """A network of one layer that is called in a way of its own."""

    def __init__(self, layer: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layer, x)


class Held(nn.Module):
    """Parameters that no layer holds."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.held = nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in shapes])


def _of(kind: Callable[..., nn.Module], *args, **options) -> Callable[[], nn.Module]:
    return lambda: kind(*args, **options)


def _on_linear(layer: nn.Module, width: int) -> Callable[[], nn.Module]:
    """Put a layer without parameters on top of a linear one."""
    return lambda: nn.Sequential(nn.Linear(width, width), layer)


def _attends(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x, x, x)[0]


def _first(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)[0]


def _to_itself(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x, x.flip(1))


def _cell(layer: nn.Module, x: Tensor) -> Tensor:
    state = layer(x)
    return state[0] if isinstance(state, tuple) else state


BATCHED = {"batch_first": True, "dropout": 0.0}
ROWS: dict[str, Row] = {
    "Linear": Row(_of(nn.Linear, 4, 3), (4,)),
    "Linear, over positions": Row(_of(nn.Linear, 4, 3), (2, 4)),
    "Bilinear": Row(_of(nn.Bilinear, 4, 4, 3), (4,), call=lambda layer, x: layer(x, x.tanh())),
    "Conv1d": Row(_of(nn.Conv1d, 2, 3, 3, padding=1), (2, 6)),
    "Conv2d": Row(_of(nn.Conv2d, 2, 3, 3, stride=2, padding=1), (2, 5, 4)),
    "Conv2d, in groups and dilated": Row(_of(nn.Conv2d, 4, 6, 2, dilation=2, groups=2), (4, 5, 5)),
    **{
        f'Conv2d, `padding_mode="{mode}"`': Row(_of(nn.Conv2d, 2, 3, 3, padding=1, padding_mode=mode), (2, 5, 4))
        for mode in ("reflect", "replicate", "circular")
    },
    "Conv3d": Row(_of(nn.Conv3d, 2, 3, 2), (2, 3, 3, 2)),
    "ConvTranspose1d": Row(_of(nn.ConvTranspose1d, 2, 3, 3, stride=2), (2, 4)),
    "ConvTranspose2d": Row(_of(nn.ConvTranspose2d, 2, 3, 3, stride=2, output_padding=1), (2, 3, 3)),
    "ConvTranspose3d": Row(_of(nn.ConvTranspose3d, 2, 3, 2, stride=2), (2, 2, 2, 3)),
    "Embedding": Row(_of(nn.Embedding, WORDS, 3), (4,), words=True),
    "Embedding, `padding_idx`": Row(_of(nn.Embedding, WORDS, 3, padding_idx=2), (4,), words=True),
    "Embedding, `sparse=True`": Row(_of(nn.Embedding, WORDS, 3, sparse=True), (4,), words=True),
    "Embedding, `max_norm`": Row(_of(nn.Embedding, WORDS, 3, max_norm=0.5), (4,), words=True),
    "Embedding, `scale_grad_by_freq`": Row(_of(nn.Embedding, WORDS, 3, scale_grad_by_freq=True), (4,), words=True),
    "EmbeddingBag": Row(_of(nn.EmbeddingBag, WORDS, 3), (4,), words=True),
    "LayerNorm": Row(_of(nn.LayerNorm, 4), (3, 4)),
    "RMSNorm": Row(_of(nn.RMSNorm, 4), (3, 4)),
    "GroupNorm": Row(_of(nn.GroupNorm, 2, 4), (4, 3)),
    "InstanceNorm1d, affine": Row(_of(nn.InstanceNorm1d, 2, affine=True), (2, 5)),
    "InstanceNorm2d, affine": Row(_of(nn.InstanceNorm2d, 2, affine=True), (2, 3, 3)),
    "InstanceNorm3d, affine": Row(_of(nn.InstanceNorm3d, 2, affine=True), (2, 3, 2, 2)),
    "InstanceNorm2d, `track_running_stats`": Row(
        _of(nn.InstanceNorm2d, 2, affine=True, track_running_stats=True), (2, 3, 3)
    ),
    "BatchNorm1d": Row(_of(nn.BatchNorm1d, 4), (4,)),
    "BatchNorm2d": Row(_of(nn.BatchNorm2d, 2), (2, 3, 3)),
    "BatchNorm3d": Row(_of(nn.BatchNorm3d, 2), (2, 2, 2, 2)),
    "SyncBatchNorm": Row(_of(nn.SyncBatchNorm, 2), (2, 3)),
    "BatchNorm1d, in eval mode": Row(lambda: nn.BatchNorm1d(4).eval(), (4,)),
    "BatchNorm2d, in eval mode": Row(lambda: nn.BatchNorm2d(2).eval(), (2, 3, 3)),
    "BatchNorm3d, in eval mode": Row(lambda: nn.BatchNorm3d(2).eval(), (2, 2, 2, 2)),
    "SyncBatchNorm, in eval mode": Row(lambda: nn.SyncBatchNorm(2).eval(), (2, 3)),
    "BatchNorm2d, in eval mode and frozen": Row(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2).eval().requires_grad_(False), nn.Tanh()), (1, 3, 3)
    ),
    "PReLU": Row(_of(nn.PReLU), (4,)),
    "PReLU, by channel": Row(_of(nn.PReLU, 3), (3, 4)),
    "RNN": Row(_of(nn.RNN, 2, 3, batch_first=True), (4, 2), call=_first),
    "LSTM": Row(_of(nn.LSTM, 2, 3, batch_first=True), (4, 2), call=_first),
    "GRU": Row(_of(nn.GRU, 2, 3, batch_first=True), (4, 2), call=_first),
    "LSTM, two layers both ways": Row(
        _of(nn.LSTM, 2, 3, num_layers=2, bidirectional=True, batch_first=True), (4, 2), call=_first
    ),
    "RNNCell": Row(_of(nn.RNNCell, 2, 3), (2,), call=_cell),
    "LSTMCell": Row(_of(nn.LSTMCell, 2, 3), (2,), call=_cell),
    "GRUCell": Row(_of(nn.GRUCell, 2, 3), (2,), call=_cell),
    "MultiheadAttention": Row(_of(nn.MultiheadAttention, 4, 2, batch_first=True), (3, 4), call=_attends),
    "MultiheadAttention, `add_bias_kv`": Row(
        _of(nn.MultiheadAttention, 4, 2, add_bias_kv=True, batch_first=True), (3, 4), call=_attends
    ),
    "TransformerEncoderLayer": Row(_of(nn.TransformerEncoderLayer, 4, 2, 5, **BATCHED), (3, 4)),
    "TransformerDecoderLayer": Row(_of(nn.TransformerDecoderLayer, 4, 2, 5, **BATCHED), (3, 4), call=_to_itself),
    "TransformerEncoder": Row(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 5, **BATCHED), 2, enable_nested_tensor=False), (3, 4)
    ),
    "TransformerDecoder": Row(
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 5, **BATCHED), 1), (3, 4), call=_to_itself
    ),
    "Transformer": Row(_of(nn.Transformer, 4, 2, 1, 1, 5, **BATCHED), (3, 4), call=_to_itself),
    "AdaptiveLogSoftmaxWithLoss": Row(
        _of(nn.AdaptiveLogSoftmaxWithLoss, 16, 8, [2, 4]), (16,), call=lambda layer, x: layer.log_prob(x)
    ),
    **{
        name: Row(_on_linear(layer, shape[-1]), shape)
        for name, layer, shape in (
            ("ReLU, in place", nn.ReLU(inplace=True), (4,)),
            ("GELU, SiLU, Softplus", nn.Sequential(nn.GELU(), nn.SiLU(), nn.Softplus()), (4,)),
            ("Softmax, LogSigmoid", nn.Sequential(nn.Softmax(-1), nn.LogSigmoid()), (4,)),
            ("Dropout, in eval mode", nn.Dropout(0.5).eval(), (4,)),
            ("MaxPool2d", nn.MaxPool2d(2), (2, 4, 4)),
            ("AvgPool2d, AdaptiveAvgPool2d", nn.Sequential(nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)), (2, 4, 4)),
            ("LocalResponseNorm", nn.LocalResponseNorm(2), (3, 4)),
            ("Upsample, bilinear", nn.Upsample(scale_factor=2, mode="bilinear"), (2, 3, 3)),
            ("PixelShuffle, Flatten", nn.Sequential(nn.PixelShuffle(2), nn.Flatten()), (4, 2, 2)),
            ("Unfold", nn.Unfold(2), (2, 3, 3)),
        )
    },
    "a parameter of no layer": Row(_of(Held, (4, 3)), (4,), call=lambda layer, x: torch.tanh(x @ layer.held[0])),
    "a learned scale and shift": Row(
        _of(Held, (4,), (4,)), (4,), call=lambda layer, x: torch.tanh(x) * layer.held[0] + layer.held[1]
    ),
    "a layer that is called twice": Row(_of(nn.Linear, 4, 4), (4,), call=lambda layer, x: layer(layer(x).tanh())),
    "an output layer tied to an embedding (`h @ embedding.weight.t()`)": Row(
        _of(nn.Embedding, WORDS, 3), (4,), words=True, call=lambda layer, x: layer(x).tanh() @ layer.weight.t()
    ),
    "weight_norm": Row(lambda: parametrizations.weight_norm(nn.Linear(4, 3)), (4,)),
    "a low rank beside a frozen layer (LoRA)": Row(
        lambda: nn.ModuleList([nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2, bias=False), nn.Linear(2, 4)]),
        (4,),
        call=lambda layers, x: layers[0](x) + layers[2](layers[1](x)),
    ),
}


def _made(row: Row) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layer = row.make()
    for name, buffer in layer.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.uniform_(0.5, 1.5)
    network = Called(layer.double(), row.call)
    size = (RECORDS, *row.shape)
    return network, torch.randint(WORDS, size) if row.words else torch.randn(size, dtype=torch.float64)


def _losses(network: nn.Module, x: Tensor) -> Tensor:
    y = network(x)
    return (y.square() + y).flatten(1).sum(dim=1)


def _one_by_one(network: nn.Module, x: Tensor) -> Tensor:
    """Compute the gradients (B, P) by plain autograd."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    rows = []
    for i in range(len(x)):
        found = torch.autograd.grad(
            _losses(network, x[i : i + 1]).sum(), parameters, allow_unused=True, materialize_grads=True
        )
        rows.append(torch.cat([g.to_dense().flatten() for g in found]))
    return torch.stack(rows)


def _judged(found: Tensor, row: Row) -> str | None:
    """Return None for right gradients, and else by how much of their length they are wrong."""
    expected = _one_by_one(*_made(row))
    error = float((found - expected).norm() / expected.norm())
    return None if error < 1e-3 else f"wrong by {error:.2f}"


@functools.cache
def ours(row: Row, engine: str = "ghost") -> str:
    """Return the word for the gradients that an engine of the package finds."""
    network, x = _made(row)
    term = PerRecord(lambda lot, _: _losses(network, lot.records))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            gradients = ENGINES[engine](network, term, Lot(x, (0, len(x))), x.new_zeros(len(x), 0, dtype=torch.float64))
        except ValueError as error:
            return f"refused: {_reason(str(error))}"
    parameters, rows = [p for p in network.parameters() if p.requires_grad], []
    for weights in torch.eye(len(x), dtype=torch.float64):
        out = {p: torch.zeros_like(p) for p in parameters}
        gradients.weighted_sum(weights, out)
        rows.append(torch.cat([out[p].flatten() for p in parameters]))
    copied = any(str(w.message).startswith("no rule for") for w in said)
    return _judged(torch.stack(rows), row) or ("copies" if copied else "rule")


def _reason(words: str) -> str:
    """Cut the message of a refusal to its reason."""
    words = re.sub(r"^(layer \S+ \(\w+\)|the loss) ", "", words)
    return re.split(r"[:,.;] ", words)[0]


def theirs(row: Row) -> str:
    """Return the word for the gradients that Opacus finds."""
    network, x = _made(row)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wrapped = GradSampleModule(network, loss_reduction="sum")
            _losses(wrapped, x).sum().backward()
            samples = [p.grad_sample for p in network.parameters() if p.requires_grad]
            # Its optimizer refuses these.
            if any(sample is None for sample in samples):
                return "refused (no gradient)"
            return _judged(torch.cat([sample.flatten(1) for sample in samples], dim=1), row) or "yes"
        except Exception as error:
            return f"refused ({type(error).__name__})"


def table() -> str:
    """Return the page."""
    lines = ["| layer | ours | Opacus |", "| --- | --- | --- |"]
    lines += [f"| {name} | {ours(row)} | {theirs(row)} |" for name, row in ROWS.items()]
    return _HEAD + "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")

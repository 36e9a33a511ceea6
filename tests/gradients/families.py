"""Small networks, one or more for each function that the book-keeping engine has a rule for, with a loss of each record."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from marks import only
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from lightning_dpgen.data.histories.row_table import RowOrder, RowTable
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.gradients.stacked import StackedConv2d, StackedConvTranspose2d, StackedLinear
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.models.critics import StackedCritic
from lightning_dpgen.models.divergences import CodeEmbedding, make_kernel
from lightning_dpgen.models.generators import StackedGenerator
from lightning_dpgen.models.history_network import HistoryNetwork
from lightning_dpgen.models.rbm import StackedRBM
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.sampling.lots import Lot

# Records of a family are real numbers, or indices below this number of entries.
ENTRIES = 6


class Case:
    """A network, its term, the shape and kind of a record (numbers, or indices), and the number of components."""

    def __init__(self, network: nn.Module, loss: Callable[[Lot, Tensor], Tensor], shape, *, indices=False, k=1, noise=0):
        self.network, self.term = network.double(), PerRecord(loss, noise=noise)
        self.shape, self.indices, self.k = shape, indices, k
        # The rounding of a norm, by itself. Outer products that nearly cancel leave more: slack is of their own lengths.
        self.rounding = 2e-5
        self.beside: nn.Module | None = None  # a network that the loss calls and does not train
        self.term_on: Callable[[str], PerRecord] | None = None  # a term with tensors of its own, on a device

    def float(self) -> None:
        self.network.float()
        if self.beside is not None:
            self.beside.float()

    def to(self, device: str) -> Case:
        """Move everything that the term needs to a device."""
        self.network.to(device)
        if self.beside is not None:
            self.beside.to(device)
        if self.term_on is not None:
            moved = self.term_on(device)
            self.term = moved if self.term.forms is not None else dataclasses.replace(moved, forms=None)
        return self

    def lot(self, offsets: tuple[int, ...], seed: int = 5) -> Lot:
        generator = torch.Generator().manual_seed(seed)
        size = (offsets[-1], *self.shape)
        if self.indices:
            records = torch.randint(ENTRIES, size, generator=generator)
        else:
            records = torch.rand(size, generator=generator, dtype=torch.float64)
        return Lot(records, offsets if self.k > 1 else (0, offsets[-1]))

    def noise(self, size: int) -> Tensor:
        return torch.randn(size, self.term.noise, generator=torch.Generator().manual_seed(6), dtype=torch.float64)


def _of(network: nn.Module, shape, *, indices: bool = False) -> Case:
    """Make a case whose loss has randomness of each record's own."""

    def loss(lot: Lot, noise: Tensor) -> Tensor:
        y = network(lot.records)
        return ((y.square() + y).flatten(1) * (1.0 + noise[:, :1])).sum(dim=1)

    return Case(network, loss, shape, indices=indices, noise=1)


def _chain(*layers: nn.Module, freeze: tuple[str, ...] = (), first_twice: bool = False) -> nn.Sequential:
    network = nn.Sequential(*layers)
    if first_twice:
        network = nn.Sequential(layers[0], nn.Tanh(), layers[0], *layers[1:])
    for name, p in network.named_parameters():
        p.requires_grad_(name not in freeze)
    return network


class Custom(nn.Module):
    """A layer of a user's own, from a function of its parameters and records."""

    def __init__(self, run: Callable[..., Tensor], *shapes: tuple[int, ...]):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.held = nn.ParameterList([nn.Parameter(torch.randn(s, generator=generator)) for s in shapes])
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, *self.held)


class Masked(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight.tril(), self.bias)


def _affine(norm: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in norm.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return norm


def _frozen(norm: nn.Module, *, affine: bool = False) -> nn.Module:
    """Set a batch norm to public statistics of its own, in eval mode, with trainable scales or frozen ones."""
    generator = torch.Generator().manual_seed(2)
    norm.running_mean.normal_(generator=generator)
    norm.running_var.uniform_(0.5, 2.0, generator=generator)
    return _affine(norm.eval()).requires_grad_(affine)


def _tied_linear() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


class TiedLanguageModel(nn.Module):
    """A model of tokens, with positions that no record holds, and an output layer that shares the embedding's matrix."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(ENTRIES, 4), nn.Embedding(5, 4)
        self.out = nn.Linear(4, ENTRIES, bias=False)
        self.out.weight = self.tokens.weight

    def forward(self, x):
        hidden = torch.tanh(self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device)))
        return F.cross_entropy(self.out(hidden).transpose(1, 2), x, reduction="none")


class Attention(nn.Module):
    """A transformer layer with a learned token in front of each record's, as vision transformers have."""

    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.randn(1, 1, 4, generator=torch.Generator().manual_seed(3)))
        self.layer = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(torch.cat([self.start.expand(len(x), -1, -1), x], dim=1))


class Conv1D(nn.Module):
    """The linear layer of GPT-2, which makes one long list of the tokens of all records."""

    def __init__(self, n: int, m: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(n, m)), nn.Parameter(torch.randn(m))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class Gpt2Block(nn.Module):
    """A block of GPT-2, with its dropouts."""

    def __init__(self, width: int = 4, dropout: float = 0.0):
        super().__init__()
        self.first, self.second = _affine(nn.LayerNorm(width)), _affine(nn.LayerNorm(width))
        self.gates, self.out = Conv1D(width, 3 * width), Conv1D(width, width)
        self.up, self.down, self.dropout = Conv1D(width, 6), Conv1D(6, width), dropout

    def forward(self, x):
        heads = (each.view(*each.shape[:2], 2, -1).transpose(1, 2) for each in self.gates(self.first(x)).chunk(3, dim=-1))
        drop = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(*heads, dropout_p=drop, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + F.dropout(self.out(y), drop)
        return x + F.dropout(self.down(F.gelu(self.up(self.second(x)), approximate="tanh")), drop)


class BertBlock(nn.Module):
    """A block of BERT, with its dropouts, whose attention is written out."""

    def __init__(self, width: int = 4, dropout: float = 0.0):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down, self.dropout = nn.Linear(width, 6), nn.Linear(6, width), nn.Dropout(dropout)
        self.first, self.second = _affine(nn.LayerNorm(width)), _affine(nn.LayerNorm(width))

    def bias(self, scores):
        return scores

    def attend(self, x):
        query, key, value = (f(x).view(*x.shape[:2], 2, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        shares = self.dropout(self.bias(query @ key.transpose(-1, -2) / 2**0.5).softmax(dim=-1))
        return self.dropout(self.out((shares @ value).permute(0, 2, 1, 3).contiguous().view(*x.shape)))

    def forward(self, x):
        x = self.first(x + self.attend(x))
        return self.second(x + self.dropout(self.down(F.gelu(self.up(x)))))


class T5Block(BertBlock):
    """A block of T5: biases of distances, which no record holds, norms without a mean, and dropouts."""

    def __init__(self, width: int = 4, dropout: float = 0.0):
        super().__init__(width, dropout)
        self.first, self.second = (nn.RMSNorm(width) for _ in range(2))
        self.distances = nn.Embedding(9, 2)

    def bias(self, scores):
        places = torch.arange(scores.shape[-1], device=scores.device)
        return scores + self.distances(places[None] - places[:, None] + 4).permute(2, 0, 1)[None]

    def forward(self, x):
        x = x + self.attend(self.first(x))
        return x + self.dropout(self.down(self.dropout(self.up(self.second(x)).relu())))


class SwinBlock(BertBlock):
    """A block of Swin: attention within windows of a picture, which become as many records, shifted before and after."""

    def __init__(self, width: int = 4, dropout: float = 0.0):
        super().__init__(width, dropout)
        self.table = nn.Parameter(torch.randn(9, 2))
        rows, columns = torch.arange(4) // 2, torch.arange(4) % 2
        index = (rows[:, None] - rows[None] + 1) * 3 + columns[:, None] - columns[None] + 1
        self.register_buffer("index", index)

    def bias(self, scores):
        return scores + self.table[self.index.view(-1)].view(4, 4, 2).permute(2, 0, 1).unsqueeze(0)

    def forward(self, x):
        size, height, breadth, width = x.shape
        y = self.first(x).roll((-1, -1), (1, 2)).view(size, height // 2, 2, breadth // 2, 2, width)
        y = self.attend(y.permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, width)).view(-1, height // 2, breadth // 2, 2, 2, width)
        x = x + y.permute(0, 1, 3, 2, 4, 5).reshape(x.shape).roll((1, 1), (1, 2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Frames(nn.Module):
    """Convolutions of the frames of a record, which become as many records, or of its pictures in two lights."""

    def __init__(self, view: Callable[[Tensor], Tensor]):
        super().__init__()
        self.view = view
        self.layers = _chain(nn.Conv2d(1, 4, 2), _affine(nn.GroupNorm(2, 4)), nn.Tanh(), nn.Conv2d(4, 2, 2))

    def forward(self, x):
        y = self.layers(self.view(x))
        return y.view(len(x), -1, *y.shape[1:])


def _patched(layer: nn.Module) -> nn.Module:
    def run(x: Tensor) -> Tensor:
        size, channels, height, width = x.shape
        patches = x.reshape(size, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
        return torch.tanh(layer(patches.reshape(size, -1, channels * 4)))

    return _Around(layer, run)


class _Around(nn.Module):
    """A layer that is called by a function."""

    def __init__(self, layer: nn.Module, run: Callable[[Tensor], Tensor]):
        super().__init__()
        self.layer, self.run = layer, run

    def forward(self, x):
        return self.run(x)


def _on_tokens(layer: nn.Module, flat: Callable[[Tensor], Tensor]) -> nn.Module:
    """Call a layer on the tokens of all records in one list."""
    return _Around(layer, lambda x: torch.tanh(layer(flat(x)).view(*x.shape[:2], -1)))


class Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, w):
        return x @ w.T

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient @ w, gradient.mT @ x


class _Attended(nn.Module):
    """Attention of a record to its own numbers, cut to the sizes of keys and values, with its results in one tensor."""

    def __init__(self, layer, *, whole=False, turned=False, masked=False):
        super().__init__()
        self.layer, self.whole, self.turned, self.masked = layer, whole, turned, masked

    def forward(self, x):
        x = x if self.layer.batch_first else x.transpose(0, 1)
        keys, values = (
            x.flip(int(self.layer.batch_first)) if self.turned else x[..., : self.layer.kdim],
            x[..., : self.layer.vdim],
        )
        keys, values = (x, x) if self.layer.kdim == self.layer.vdim == x.shape[-1] and not self.turned else (keys, values)
        padded = {"key_padding_mask": x[..., 0].T > 0.5, "need_weights": False} if self.masked else {}
        found, weights = self.layer(x, keys, values, **padded)
        found = found if self.layer.batch_first else found.transpose(0, 1)
        return torch.cat([found, weights], dim=-1) if self.whole else found


class _Decoder(nn.Module):
    """A decoder layer, whose own positions see none behind them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(4, 2, 5, dropout=0.0, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)
        return self.layer(x, x.flip(1), tgt_mask=mask, tgt_is_causal=True)


class _Outputs(nn.Module):
    """The outputs of a recurrent layer, with the records in either dimension."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0] if self.layer.batch_first else self.layer(x.transpose(0, 1))[0].transpose(0, 1)


class _Cell(nn.Module):
    """The outputs of a recurrent cell that goes through a record."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        state, outputs = None, []
        for each in x.unbind(1):
            state = self.cell(each, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, dim=1)


class _Last(nn.Module):
    """All results of an LSTM: outputs, and last states. Its first state is learned."""

    def __init__(self):
        super().__init__()
        self.layer, self.first = nn.LSTM(2, 3, batch_first=True), nn.Parameter(torch.full((2, 1, 1, 3), 0.3))

    def forward(self, x):
        outputs, (hidden, cell) = self.layer(x, tuple(self.first.expand(-1, -1, len(x), -1)))
        return outputs[:, 0].exp() * hidden[0] + cell[0]


class _Rows(nn.Module):
    """A GRU that reads each row of a picture by itself, and an Elman layer over each record without a dimension of lots."""

    def __init__(self):
        super().__init__()
        self.rows, self.layer = nn.GRU(2, 3), nn.RNN(3, 2, nonlinearity="relu")
        # No rectifier is closed at all times.
        nn.init.constant_(self.layer.bias_ih_l0, 2.0)

    def forward(self, x):
        each = self.rows(x.flatten(0, 1).transpose(0, 1))[1][0].unflatten(0, x.shape[:2])
        return torch.stack([self.layer(one)[0] for one in each])


class _Frozen(nn.Module):
    """A recurrent network over embeddings, in which some parameters are frozen, one is shared and one is computed."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(ENTRIES, 3)
        self.layer, self.other = nn.LSTM(3, 3, batch_first=True), nn.RNN(3, 3, batch_first=True)
        self.layer.weight_ih_l0.requires_grad_(False)
        self.layer.bias_hh_l0.requires_grad_(False)
        self.other.weight_hh_l0 = self.other.weight_ih_l0
        parametrizations.weight_norm(self.other, "weight_ih_l0")

    def forward(self, x):
        return self.other(self.layer(self.tokens(x))[0].tanh_())[0].softmax(dim=-1)


def _described(classes: int) -> SimpleNamespace:
    """Describe a record as the networks of a mixture need it: units, and two groups if there are classes."""
    return SimpleNamespace(
        layout=Layout(units=6, levels=1, groups=(classes, 3), label=1) if classes else Layout(6, levels=1)
    )


CENTRES = {"kind": "mixture", "centres": [[1.0, 0.0], [-1.0, 0.5], [0.0, -1.0]], "scale": 0.4}


def _vae(k: int, classes: int, fixed_bias: bool, schema: Any = None, **given) -> Case:
    generator = torch.Generator().manual_seed(k)
    schema, given = schema or _described(classes), given | {"fixed_bias": fixed_bias}
    network = StackedVAE(schema, k, hidden=4, latent=2, **given, generator=generator)
    network.start_at(torch.rand(k, schema.layout.width, generator=generator))
    case = Case(network, network.negative_elbo, (schema.layout.width,), k=k, noise=2 * network.samples)
    # This term has a closed form; the family has it without one as "taped".
    case.term = network.term
    return case


def _embedded_vae(k: int, **given) -> Case:
    """Make an autoencoder whose codes are drawn in a released direction."""
    case = _vae(k, 2, False, **given)
    network, generator = case.network, torch.Generator().manual_seed(k)
    embedding = CodeEmbedding(make_kernel("imq", 2), network.prior, 6, generator)
    direction = torch.randn(6, generator=generator)

    def term_on(device: str) -> PerRecord:
        return network.embedded_term(embedding.to(torch.device(device)), 3.0, direction.to(device))

    case.term, case.term_on = term_on("cpu"), term_on
    return case


def _rbm(k: int, classes: int) -> Case:
    generator = torch.Generator().manual_seed(k)
    schema = _described(classes)
    network = StackedRBM(schema, k, hidden=5, chains=4, generator=generator)
    network.start_at(torch.rand(k, schema.layout.width, generator=generator))
    network.sweep(generator)
    with torch.no_grad():
        network.weight.copy_(torch.randn(network.weight.shape, generator=generator))
    case = Case(network, network.loss, (schema.layout.width,), k=k)
    case.term = network.term
    return case


def _critic(k: int, loss: str = "wgan_gp", generated: str = "record", **given) -> Case:
    generator = torch.Generator().manual_seed(k)
    made_by = StackedGenerator(_described(2), k, hidden=5, latent=3, **given, generator=generator).double()
    network = StackedCritic(made_by, hidden=7, loss=loss, generated=generated, generator=generator)
    for layer in network.score.layers:
        layer.bias.data.normal_(generator=generator)
    case = Case(network, network.loss, (11,), k=k, noise=network.noise)
    case.term, case.beside = network.term, made_by
    if loss == "wgan_clip":
        case.rounding = 1e-4
    return case


PICTURES = ImageSchema(4, 8, levels=1, classes=2, channels=2)
SERIES = SeriesSchema(7, 0.0, 1.0, channels=("in", "out"), classes=("a", "b", "c"))


def _conv_vae(k: int, network: str = "conv", **given) -> Case:
    network = StackedVAE(PICTURES, k, network=network, latent=3, generator=torch.Generator().manual_seed(k), **given)
    return Case(network, network.negative_elbo, (66,), k=k, noise=3)


def _conv_critic(k: int, schema: Any, network: str) -> Case:
    generator = torch.Generator().manual_seed(k)
    made_by = StackedGenerator(schema, k, network=network, hidden=3, latent=3, generator=generator).double()
    critic = StackedCritic(made_by, network="conv", generator=generator)
    case = Case(critic, critic.loss, (schema.layout.width,), k=k, noise=critic.noise)
    case.beside = made_by
    return case


def _history_network() -> Case:
    """Make a network of histories of two tables, one in an order."""
    persons, rows = (parse_schema(f"columns: {{{own}: {{type: category, values: [a, b, c]}}}}") for own in ("sex", "ward"))
    days = RowOrder.of("day", {"type": "integer", "low": 0, "high": 9, "bins": 3}, {"high": 9, "bins": 2})
    schema = HistorySchema(persons, (RowTable("visits", rows, 2, days), RowTable("orders", rows, 3)))
    network = HistoryNetwork(schema, hidden=3, generator=torch.Generator().manual_seed(1))
    return Case(network, network.loss, (schema.layout.width,))


def _taped(make: Callable[[], Case]) -> Case:
    """Make the same case without its closed form."""
    case = make()
    case.term = dataclasses.replace(case.term, forms=None)
    return case


# Models with gradients in closed form.
CLOSED: dict[str, Callable[[], Case]] = {
    **{
        f"vae k={k} classes={classes} fixed_bias={fixed}": lambda k=k, c=classes, f=fixed: _vae(k, c, f)
        for k in (1, 3)
        for classes in (0, 3)
        for fixed in (False, True)
    },
    **{
        f"vae k=3 layers={layers} trunk={trunk}": lambda layers=layers, trunk=trunk: _vae(
            3, 2, True, layers=layers, trunk=trunk
        )
        for layers, trunk in ((2, False), (1, True), (3, True))
    },
    **{
        f"vae k={k} {kind} scale={scale}": lambda k=k, kind=kind, s=scale: _vae(k, 2, False, likelihood=kind, scale=s)
        for k, kind, scale in ((1, "gaussian", None), (3, "gaussian", 0.2), (3, "laplace", None), (3, "censored", None))
    },
    **{
        f"vae of waves k={k} {kind}": lambda k=k, kind=kind: _vae(
            k, 0, False, schema=SERIES, network="waves", likelihood=kind
        )
        for k, kind in ((1, "gaussian"), (3, "gaussian"), (3, "bernoulli"), (3, "censored"))
    },
    **{
        f"vae k={k} {name}": lambda k=k, given=given: _vae(k, 2, False, **given)
        for k, name, given in (
            (1, "sparse prior", {"prior": {"kind": "sparse", "off": 0.6, "scale": 0.3}}),
            (3, "mixture, learned", {"prior": {**CENTRES, "learned": True}, "beta": 2.0}),
            (3, "three samples", {"samples": 3}),
            (1, "mixture, four samples, beta of 0", {"prior": CENTRES, "samples": 4, "beta": 0.0}),
            (3, "sparse prior, two samples", {"prior": {"kind": "sparse", "scale": 0.2}, "samples": 2}),
            (3, "centred", {"centred": True, "trunk": True}),
        )
    },
    **{
        f"vae k={k} embedded, samples={samples}": lambda k=k, samples=samples: _embedded_vae(k, samples=samples)
        for k, samples in ((1, 1), (3, 2))
    },
    **{f"rbm k={k} classes={classes}": lambda k=k, c=classes: _rbm(k, c) for k in (1, 3) for classes in (0, 2)},
    **{f"critic k={k}": lambda k=k: _critic(k) for k in (1, 3)},
    **{
        f"critic k={k} {loss} {generated} {given}": lambda k=k, a=(loss, generated), given=given: _critic(k, *a, **given)
        for k, loss, generated, given in (
            (1, "wgan_gp", "data_free", {}),
            (3, "wgan_clip", "record", {"layers": 1}),
            (1, "wgan_clip", "data_free", {}),
            (3, "vanilla", "record", {"sampling": "straight_through"}),
            (1, "vanilla", "data_free", {}),
            (3, "wgan_gp", "record", {"conditional": True}),
        )
    },
}


class StackedPicture(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = StackedConv2d(3, 1, 2, 3, stride=2, padding=1)
        self.up = StackedConvTranspose2d(3, 2, 1, 4, stride=2, padding=1)
        self.last = StackedLinear(3, 16, 3)

    def loss(self, lot, _):
        hidden = torch.tanh(self.down(lot.records, lot.offsets))
        return self.last(self.up(hidden, lot.offsets).flatten(1), lot.offsets).square().sum(dim=1)


def _stacked_picture() -> Case:
    network = StackedPicture()
    return Case(network, network.loss, (1, 4, 4), k=3)


def _stacked_twice() -> Case:
    layer = StackedLinear(3, 4, 4)
    return Case(
        layer, lambda lot, _: layer(torch.tanh(layer(lot.records, lot.offsets)), lot.offsets).square().sum(dim=1), (4,), k=3
    )


# Rules alone serve every one of these.
RULED: dict[str, Callable[[], Case]] = {
    **CLOSED,
    **{f"convolutional vae k={k}": lambda k=k: _conv_vae(k) for k in (1, 3)},
    **{f"deep convolutional vae k={k}": lambda k=k: _conv_vae(k, "deep_conv", filters=2) for k in (1, 3)},
    **{f"convolutional critic k={k}": lambda k=k: _conv_critic(k, PICTURES, "conv") for k in (1, 3)},
    **{f"convolutional critic of series k={k}": lambda k=k: _conv_critic(k, SERIES, "lstm") for k in (1, 3)},
    "histories": _history_network,
    **{f"{name}, taped": lambda make=make: _taped(make) for name, make in CLOSED.items()},
    "stacked convolutions": _stacked_picture,
    "stacked, called twice": _stacked_twice,
    "one linear": lambda: _of(nn.Linear(5, 2), (5,)),
    "no bias": lambda: _of(_chain(nn.Linear(5, 3, bias=False), nn.ReLU(), nn.Linear(3, 2)), (5,)),
    "frozen weight": lambda: _of(_chain(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2), freeze=("0.weight",)), (5,)),
    "frozen bias": lambda: _of(_chain(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2), freeze=("2.bias",)), (5,)),
    "frozen layer": lambda: _of(_chain(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2), freeze=("0.weight", "0.bias")), (5,)),
    "called twice": lambda: _of(_chain(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2), first_twice=True), (4,)),
    "positions": lambda: _of(_chain(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), (3, 4)),
    "positions twice": lambda: _of(_chain(nn.Linear(4, 4), nn.Tanh(), first_twice=True), (3, 4)),
    "two kinds of position": lambda: _of(nn.Linear(4, 2), (2, 3, 4)),
    "wide layer, few positions": lambda: _of(_chain(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 30)), (2, 30)),
    "wide layer, many positions": lambda: _of(_chain(nn.Linear(30, 40), nn.Tanh()), (7, 30)),
    "a matrix that two layers share": lambda: _of(_tied_linear(), (4,)),
    "convolution": lambda: _of(_chain(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 2)), (2, 5, 6)),
    "convolution, few positions": lambda: _of(nn.Conv2d(8, 7, 3), (8, 4, 3)),
    "convolution, dilated": lambda: _of(nn.Conv2d(2, 3, 2, dilation=2, padding=(1, 0), bias=False), (2, 5, 5)),
    "convolution, same": lambda: _of(nn.Conv2d(2, 3, (2, 3), padding="same"), (2, 4, 5)),
    "convolution, reflecting": lambda: _of(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 4, 5)),
    "convolution in groups": lambda: _of(nn.Conv2d(4, 6, 3, groups=2, padding=1), (4, 4, 4)),
    "convolution by channel": lambda: _of(nn.Conv2d(4, 4, 3, groups=4), (4, 4, 4)),
    "convolution of series": lambda: _of(
        _chain(nn.Conv1d(2, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Conv1d(3, 2, 2)), (2, 7)
    ),
    "convolution of series, same": lambda: _of(nn.Conv1d(2, 3, 4, padding="same"), (2, 7)),
    "convolution of volumes": lambda: _of(
        _chain(nn.Conv3d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(2, 2)), (1, 2, 2, 2)
    ),
    "convolution of volumes, dilated": lambda: _of(
        nn.Conv3d(2, 3, (1, 2, 3), stride=(1, 2, 1), dilation=(1, 1, 2), padding=(0, 1, 2)), (2, 2, 3, 3)
    ),
    "convolution of volumes in groups, same": lambda: _of(nn.Conv3d(2, 4, 2, groups=2, padding="same"), (2, 2, 3, 2)),
    **{
        f"convolution of {len(shape) - 1} dimensions, {mode}": lambda kind=kind, shape=shape, mode=mode: _of(
            kind(2, 3, 3, stride=2, padding=1, padding_mode=mode), shape
        )
        for kind, shape in ((nn.Conv1d, (2, 5)), (nn.Conv2d, (2, 4, 3)), (nn.Conv3d, (2, 3, 2, 3)))
        for mode in ("reflect", "replicate", "circular")
    },
    "transposed": lambda: _of(nn.ConvTranspose2d(3, 2, 4, stride=2, padding=1), (3, 3, 2)),
    "transposed, output padding": lambda: _of(
        nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1, dilation=2), (2, 3, 3)
    ),
    "transposed in groups": lambda: _of(nn.ConvTranspose2d(4, 6, 3, groups=2), (4, 3, 3)),
    "transposed of series": lambda: _of(nn.ConvTranspose1d(3, 2, 4, stride=2, padding=1), (3, 4)),
    "transposed of volumes": lambda: _of(
        nn.ConvTranspose3d(2, 4, (2, 3, 2), stride=(1, 2, 2), padding=(0, 1, 1), output_padding=(0, 1, 0), groups=2),
        (2, 2, 2, 2),
    ),
    "embedding": lambda: _of(_chain(nn.Embedding(ENTRIES, 4), nn.Tanh(), nn.Linear(4, 2)), (3,), indices=True),
    "embedding, one index": lambda: _of(nn.Embedding(ENTRIES, 4), (), indices=True),
    "embedding with padding": lambda: _of(nn.Embedding(ENTRIES, 4, padding_idx=2), (5,), indices=True),
    "embedding, sparse": lambda: _of(_chain(nn.Embedding(ENTRIES, 4, sparse=True), nn.Tanh()), (3,), indices=True),
    "embedding bag, sparse": lambda: _of(nn.EmbeddingBag(ENTRIES, 4, sparse=True, mode="sum"), (5,), indices=True),
    "embedding bag": lambda: _of(nn.EmbeddingBag(ENTRIES, 4, mode="sum"), (5,), indices=True),
    "embedding bag, mean": lambda: _of(nn.EmbeddingBag(ENTRIES, 4, padding_idx=1), (5,), indices=True),
    "rows at indices": lambda: _of(Custom(lambda x, a: torch.tanh(a[x - 1]), (ENTRIES, 2, 3)), (3,), indices=True),
    "language model": lambda: _of(TiedLanguageModel(), (5,), indices=True),
    "group norm": lambda: _of(_chain(nn.Conv2d(1, 4, 2), _affine(nn.GroupNorm(2, 4)), nn.Tanh()), (1, 3, 3)),
    "layer norm": lambda: _of(_chain(nn.Linear(4, 5), _affine(nn.LayerNorm(5)), nn.Tanh()), (4,)),
    "layer norm, positions": lambda: _of(_chain(nn.Linear(4, 5), _affine(nn.LayerNorm(5)), nn.Tanh()), (3, 4)),
    "layer norm over pictures": lambda: _of(_chain(nn.Conv2d(1, 2, 2), _affine(nn.LayerNorm((2, 2, 2)))), (1, 3, 3)),
    "layers above that are frozen": lambda: _of(
        _chain(
            nn.Linear(4, 5),
            _affine(nn.LayerNorm(5)),
            nn.Linear(5, 3),
            nn.Linear(3, 3),
            freeze=("1.weight", "1.bias", "2.weight", "2.bias", "3.weight"),
        ),
        (3, 4),
    ),
    "rms norm": lambda: _of(_chain(nn.Linear(4, 5), _affine(nn.RMSNorm(5)), nn.Tanh()), (4,)),
    "instance norm": lambda: _of(_chain(nn.Conv2d(1, 2, 2), _affine(nn.InstanceNorm2d(2, affine=True))), (1, 3, 4)),
    **{
        f"batch norm of public statistics, {'trained' if affine else 'frozen'} in {len(shape) - 1} dimensions": (
            lambda norm=norm, shape=shape, affine=affine: _of(
                nn.Sequential(Custom(lambda x, a: a * x, shape), _frozen(norm(2), affine=affine), nn.Tanh()), shape
            )
        )
        for norm, shape in (
            (nn.BatchNorm1d, (2,)),
            (nn.BatchNorm1d, (2, 3)),
            (nn.BatchNorm2d, (2, 3, 2)),
            (nn.BatchNorm3d, (2, 2, 1, 3)),
        )
        for affine in (False, True)
    },
    "synchronised batch norm of public statistics": lambda: _of(
        _chain(nn.Conv2d(1, 2, 2), _frozen(nn.SyncBatchNorm(2), affine=True), nn.Tanh()), (1, 3, 3)
    ),
    "a scale and a shift": lambda: _of(Custom(lambda x, a, b: a * torch.tanh(x) - b, (4,), (1, 4)), (4,)),
    "a scale of one number": lambda: _of(Custom(lambda x, a: torch.tanh(x / a), ()), (3, 4)),
    "a place for each position": lambda: _of(Custom(lambda x, a: torch.tanh(x + a), (1, 3, 4)), (3, 4)),
    "a matrix": lambda: _of(Custom(lambda x, a: torch.tanh(x @ a), (4, 3)), (4,)),
    "a matrix over positions": lambda: _of(Custom(lambda x, a: torch.tanh(torch.matmul(x, a)), (4, 3)), (3, 4)),
    "a vector": lambda: _of(Custom(lambda x, a: (x @ a)[:, None], (4,)), (4,)),
    "a matrix from the left": lambda: _of(Custom(lambda x, a: torch.tanh(a @ x), (5, 3)), (3, 4)),
    "a matrix, turned": lambda: _of(Custom(lambda x, a: torch.tanh(x @ a.T) @ a, (3, 4)), (4,)),
    "a matrix and a shift": lambda: _of(Custom(lambda x, a, b: torch.addmm(b, x, a), (4, 3), (3,)), (4,)),
    "complex numbers of real parameters": lambda: _of(
        Custom(lambda x, a: (torch.complex(x, -x) @ torch.view_as_complex(a)).abs(), (4, 3, 2)), (4,)
    ),
    "a function of its own, of parameters alone": lambda: _of(
        Custom(lambda x, a, b: x @ Product.apply(a, b), (4, 2), (3, 2)), (4,)
    ),
    "of a mask": lambda: _of(Custom(lambda x, a: F.linear(x, a * torch.ones(3, 4, device=x.device).tril()), (3, 4)), (4,)),
    "a subclass": lambda: _of(Masked(3, 3), (3,)),
    "weight norm": lambda: _of(parametrizations.weight_norm(nn.Linear(4, 3)), (4,)),
    "lstm": lambda: _of(_Outputs(nn.LSTM(2, 3, batch_first=True)), (4, 2)),
    "lstm, last states": lambda: _of(_Last(), (4, 2)),
    "rows of a picture, one by one": lambda: _of(_Rows(), (3, 4, 2)),
    "tokens, recurrent, partly frozen": lambda: _of(_Frozen(), (4,), indices=True),
    "lstm, projected, both ways": lambda: _of(
        _Outputs(nn.LSTM(2, 3, num_layers=2, bidirectional=True, proj_size=2)), (3, 2)
    ),
    "gru": lambda: _of(_Outputs(nn.GRU(2, 3)), (4, 2)),
    "gru of two layers": lambda: _of(_Outputs(nn.GRU(2, 3, num_layers=2, batch_first=True)), (3, 2)),
    "lstm without biases": lambda: _of(_Outputs(nn.LSTM(2, 3, bias=False, batch_first=True)), (3, 2)),
    "gru without biases, both ways": lambda: _of(_Outputs(nn.GRU(2, 3, bias=False, bidirectional=True)), (3, 2)),
    "elman, two layers": lambda: _of(_Outputs(nn.RNN(2, 3, num_layers=2, batch_first=True)), (3, 2)),
    "lstm cell": lambda: _of(_Cell(nn.LSTMCell(2, 3)), (4, 2)),
    "gru cell": lambda: _of(_Cell(nn.GRUCell(2, 3)), (4, 2)),
    "elman cell": lambda: _of(_Cell(nn.RNNCell(2, 3, bias=False)), (4, 2)),
    "a block of GPT-2": lambda: _of(Gpt2Block(), (3, 4)),
    "a block of BERT": lambda: _of(BertBlock(), (3, 4)),
    "a block of T5": lambda: _of(T5Block(), (3, 4)),
    "a block of Swin": lambda: _of(SwinBlock(), (4, 2, 4)),
    "patches": lambda: _of(_patched(nn.Linear(8, 3)), (2, 4, 2)),
    "tokens in one list": lambda: _of(
        _on_tokens(nn.Sequential(nn.Linear(4, 3), _affine(nn.LayerNorm(3))), lambda x: x.flatten(0, 1)), (3, 4)
    ),
    "words in one list": lambda: _of(_on_tokens(nn.Embedding(ENTRIES, 3), lambda x: x.reshape(-1)), (3,), indices=True),
    "frames": lambda: _of(Frames(lambda x: x.view(-1, 1, 4, 3)), (3, 4, 3)),
    "two views of a picture": lambda: _of(
        Frames(lambda x: torch.stack([x, x.flip(-1) * 0.5], dim=1).flatten(0, 1)), (1, 4, 3)
    ),
    "attention with a bias": lambda: _of(Custom(lambda x, a: (x @ x.mT + a).softmax(dim=-1) @ x.exp(), (3, 3)), (3, 4)),
    "attention with a bias, by its kernel": lambda: _of(
        Custom(lambda x, a: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], a), (3, 3)), (3, 4)
    ),
    "attention": lambda: _of(Attention(), (3, 4)),
    "attention, its weights": lambda: _of(_Attended(nn.MultiheadAttention(4, 2, bias=False), whole=True), (3, 4)),
    "attention to other sizes": lambda: _of(_Attended(nn.MultiheadAttention(4, 2, kdim=3, vdim=2)), (3, 4)),
    "attention to itself, turned": lambda: _of(
        _Attended(nn.MultiheadAttention(4, 2, batch_first=True), turned=True), (3, 4)
    ),
    "attention with a mask, and zeros": lambda: _of(
        _Attended(nn.MultiheadAttention(4, 2, add_zero_attn=True), masked=True), (3, 4)
    ),
    "attention that is frozen": lambda: _of(
        nn.Sequential(nn.TransformerEncoderLayer(4, 2, 5, batch_first=True).eval().requires_grad_(False), nn.Linear(4, 2)),
        (3, 4),
    ),
    "a decoder": lambda: _of(_Decoder(), (3, 4)),
    "a token in front": lambda: _of(
        Custom(lambda x, a: torch.tanh(torch.cat([a.expand(len(x), -1, -1), x], dim=1)), (1, 1, 4)), (3, 4)
    ),
}
# Some of these have functions without a rule.
BY_FUNC: dict[str, tuple[Callable[[], Case], str]] = {
    "prelu": (lambda: _of(_chain(nn.Linear(3, 4), nn.PReLU(4), nn.Linear(4, 1)), (3,)), "prelu"),
    "bilinear": (lambda: _of(Custom(lambda x, a: F.bilinear(x, x, a), (2, 4, 4)), (4,)), "bilinear"),
    "a function of its own": (lambda: _of(Custom(Product.apply, (3, 4)), (4,)), "custom_function_call"),
    "einsum": (lambda: _of(Custom(lambda x, a: torch.einsum("bi,ij->bj", x, a), (4, 3)), (4,)), "einsum"),
}
FAMILY = RULED | {name: make for name, (make, _) in BY_FUNC.items()}
# Lots in slots are of one component.
IN_SLOTS = {name: make for name, make in FAMILY.items() if make().k == 1}
# A function of its own takes no numbers of two types. The default suite has every third, in float32.
IN_TWO_TYPES = only(
    {f"{name}-{dtype}": (name, mixed) for name in IN_SLOTS for dtype, mixed in (("float32", False), ("bfloat16", True))
     if not (mixed and "of its own" in name)},
    *(f"{name}-float32" for name in list(IN_SLOTS)[::3]),
)  # fmt: skip

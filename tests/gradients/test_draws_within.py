"""Functions that draw within them: each record has a draw of its own, and the gradient that follows from it.

A dropout of one half keeps any set of four numbers. Plain autograd gives the gradient for each of the sixteen sets, and
that of a record must be one of them: so the sets that records drew are known, and are compared with independent coins.
"""

import itertools

import pytest
import torch
import torch.nn.functional as F
from gradients.families import BertBlock, Gpt2Block, T5Block
from marks import only
from torch import nn

from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.isolation import isolation
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

RECORDS = 96
# Counts of coins may lie so many deviations from their mean: the chance that one of 200 correct counts does not is 1e-4.
DEVIATIONS = 5.0
SETS = [torch.tensor(bits, dtype=torch.float64).view(2, 2) for bits in itertools.product((0, 1), repeat=4)]


class Net(nn.Module):
    """A network of records (B, 2, 2), computed with kernels that draw, or with a given set of numbers that stay."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        torch.manual_seed(1)
        self.linear, self.layer, self.weight = nn.Linear(2, 2), layer, nn.Parameter(torch.randn(2, 2))
        for p in layer.parameters():
            nn.init.normal_(p)
        self.double()

    def loss(self, lot, _):
        y = self.draw(lot.records)
        return (y.square() + y).flatten(1).sum(dim=1)


def _attend(x, kept):
    return ((x @ x.mT / 2**0.5).softmax(dim=-1) * kept * 2.0) @ x


class Attends(Net):
    def draw(self, x):
        x = self.linear(x)
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    def with_set(self, x, kept):
        return _attend(self.linear(x), kept)


class AttendsInHeads(Attends):
    def draw(self, x):
        x = self.linear(x)[:, None]
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)[:, 0]


class Layer(Net):
    """`nn.MultiheadAttention`, which calls other kernels when it is asked for weights."""

    def __init__(self, weights: bool):
        super().__init__(nn.MultiheadAttention(2, 1, dropout=0.5, batch_first=True))
        self.weights = weights

    def draw(self, x):
        return self.layer(x, x, x, need_weights=self.weights)[0]

    def with_set(self, x, kept):
        query, key, value = F.linear(x, self.layer.in_proj_weight, self.layer.in_proj_bias).chunk(3, dim=-1)
        return self.layer.out_proj(((query @ key.mT / 2**0.5).softmax(dim=-1) * kept * 2.0) @ value)


class Recurrent(Net):
    """Two layers with a dropout between them."""

    def draw(self, x):
        return self.layer(x)[0]

    def with_set(self, x, kept):
        function = getattr(torch, {"RNN": "rnn_tanh"}.get(type(self.layer).__name__, type(self.layer).__name__.lower()))
        state = x.new_zeros(1, len(x), 2)
        state = (state, state) if function is torch.lstm else state
        for weights in (self.layer._flat_weights[:4], self.layer._flat_weights[4:]):
            x = function(x, state, weights, True, 1, 0.0, True, False, True)[0]
            x, kept = x * kept * 2.0, 0.5
        return x


class OfAParameter(Net):
    """A dropout of weights, which no record has met."""

    def draw(self, x):
        return x @ F.dropout(self.weight, 0.5)

    def with_set(self, x, kept):
        return x @ (self.weight * kept * 2.0)


class AmongQueries(Net):
    """Attention among learned queries, which no record has met."""

    def draw(self, x):
        return x * F.scaled_dot_product_attention(*[self.weight[None]] * 3, dropout_p=0.5)

    def with_set(self, x, kept):
        return x * _attend(self.weight, kept)


class OfAConstant(Net):
    """Attention among constants, which no record has met, nor a parameter."""

    def draw(self, x):
        return self.linear(x) * F.scaled_dot_product_attention(*[torch.eye(2).double()[None]] * 3, dropout_p=0.5)

    def with_set(self, x, kept):
        return self.linear(x) * _attend(torch.eye(2).double(), kept)


CASES = {
    "attention": lambda: Attends(nn.Identity()),
    "attention in heads": lambda: AttendsInHeads(nn.Identity()),
    "a layer of attention": lambda: Layer(weights=False),
    "a layer of attention, with its weights": lambda: Layer(weights=True),
    **{
        f"two layers of {kind.__name__}": lambda kind=kind: Recurrent(kind(2, 2, 2, dropout=0.5, batch_first=True))
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
    },
    "a parameter": lambda: OfAParameter(nn.Identity()),
    "learned queries": lambda: AmongQueries(nn.Identity()),
    "a constant": lambda: OfAConstant(nn.Identity()),
}
both_engines = pytest.mark.parametrize("engine", ["ghost", "func"])


def _gradients(net, x, engine="ghost", seed=3):
    """Return the gradients (B, P) of records."""
    found = term_gradients(net, PerRecord(net.loss), Lot(x, (0, len(x))), PrivateStream(seed), engine=engine)
    buffer, rows = GradientBuffer(net.parameters()), []
    for weights in torch.eye(len(x), dtype=torch.float64):
        found.weighted_sum(weights, buffer.views)
        rows.append(buffer.flat.clone())
    return torch.stack(rows)


def _drawn(net, engine) -> torch.Tensor:
    """Return the coins (records, 4) that the records of a lot drew, all with the same numbers."""
    x = torch.rand(1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    alone = []
    for kept in SETS:
        y = net.with_set(x, kept)
        found = torch.autograd.grad(
            (y.square() + y).sum(), list(net.parameters()), allow_unused=True, materialize_grads=True
        )
        alone.append(torch.cat([g.flatten() for g in found]))
    alone = torch.stack(alone)
    assert (torch.cdist(alone, alone) + torch.eye(len(alone))).min() > 1e-6, "sets tell themselves apart"
    distances = torch.cdist(_gradients(net, x.expand(RECORDS, 2, 2).clone(), engine), alone)
    assert distances.amin(dim=1).max() < 1e-6 * alone.norm(dim=1).max()
    return torch.stack(SETS).flatten(1)[distances.argmin(dim=1)]


def _check_coins(coins: torch.Tensor) -> None:
    """Check that coins are fair, and independent of those of the record before and of each other."""
    agree = [(a == b).double() for a, b in [(coins[1:], coins[:-1]), (coins, coins.roll(1, dims=1))]]
    for each in (coins, *agree):
        assert ((each.mean(dim=0) - 0.5).abs() < DEVIATIONS * 0.5 / len(each) ** 0.5).all()


@pytest.mark.filterwarnings("ignore:no rule for")
@both_engines
@pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())
def test_each_record_has_the_gradient_of_a_dropout_of_its_own(make, engine):
    coins = _drawn(make(), engine)
    _check_coins(coins)
    for wrong in (coins[:1].expand_as(coins), coins.sort(dim=0)[0], torch.ones_like(coins)):
        with pytest.raises(AssertionError):
            _check_coins(wrong)


@pytest.mark.filterwarnings("ignore:no rule for")
def test_one_draw_for_all_records_is_found(monkeypatch):
    real = isolation._functorch._vmap_increment_nesting
    monkeypatch.setattr(isolation._functorch, "_vmap_increment_nesting", lambda size, _: real(size, "same"))
    with pytest.raises(AssertionError):
        _check_coins(_drawn(Layer(weights=True), "func"))


class Shown(nn.Module):
    """A function that draws, of a linear map, and a parameter whose gradient is its result."""

    def __init__(self, draw):
        super().__init__()
        torch.manual_seed(1)
        self.linear, self.seen, self.draw = nn.Linear(2, 3).double(), nn.Parameter(torch.ones(3).double()), draw

    def loss(self, lot, _):
        y = self.draw(self.linear(lot.records))
        return y.square().sum(dim=1) + (self.seen * y.detach()).sum(dim=1)


def _leak_again(before, seen):
    """Compute a randomised rectifier with the slopes that were drawn, and check their law."""
    slopes = (seen / before)[:, before[0] < 0].detach()
    assert (slopes.mean() - 0.4).abs() < DEVIATIONS * 0.4 / (12 * slopes.numel()) ** 0.5
    assert slopes.min() >= 0.2 and slopes.max() <= 0.6 and len(slopes.unique()) == slopes.numel()
    return torch.where(before > 0, before, before * (seen / before).detach())


def _choose_again(before, seen):
    """Compute a smooth choice with the noise that was drawn, and check how often the first is chosen."""
    share = before.softmax(dim=1)[0, 0].detach()
    first = (seen.argmax(dim=1) == 0).double().mean()
    assert (first - share).abs() < DEVIATIONS * (share * (1 - share) / RECORDS).sqrt()
    assert len(seen.unique(dim=0)) == RECORDS
    return ((before + (0.7 * seen.log() - before).detach()) / 0.7).softmax(dim=1)


SHOWN = {
    "rrelu": (lambda x: F.rrelu(x, 0.2, 0.6, training=True), _leak_again),
    "rrelu in place": (lambda x: torch.rrelu_(x * 1.0, 0.2, 0.6, True), _leak_again),
    "gumbel_softmax": (lambda x: F.gumbel_softmax(x, tau=0.7), _choose_again),
}


@both_engines
@pytest.mark.parametrize(("draw", "draw_again"), SHOWN.values(), ids=SHOWN.keys())
def test_the_gradient_is_that_of_the_numbers_that_were_drawn(draw, draw_again, engine):
    net, x = Shown(draw), torch.tensor([[-1.0, 0.5]], dtype=torch.float64)
    rows = _gradients(net, x.expand(RECORDS, 2).clone(), engine)
    again = draw_again(net.linear(x), rows[:, :3])
    for i in (0, 1, RECORDS - 1):
        found = torch.autograd.grad(again[i].square().sum(), list(net.linear.parameters()), retain_graph=True)
        torch.testing.assert_close(rows[i, 3:], torch.cat([g.flatten() for g in found]), rtol=1e-8, atol=1e-10)


@both_engines
def test_one_entry_is_chosen_by_each_record(engine):
    net, x = Shown(lambda x: F.gumbel_softmax(x, hard=True)), torch.tensor([[-1.0, 0.5]], dtype=torch.float64)
    seen = _gradients(net, x.expand(RECORDS, 2).clone(), engine)[:, :3]
    share = net.linear(x).softmax(dim=1)[0].detach()
    torch.testing.assert_close(seen, F.one_hot(seen.argmax(dim=1), 3).double())
    assert ((seen.mean(dim=0) - share).abs() < DEVIATIONS * (share * (1 - share) / RECORDS).sqrt()).all()
    assert (seen.sum(dim=0) > 0).all(), "all alike would be one draw for all"


# Networks as torch makes them, with their own dropouts, of records (B, 5, 8).
DEFAULTS = {
    "transformer": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
    "lstm": lambda: nn.LSTM(8, 8, 2, dropout=0.2, batch_first=True),
    "gpt-2": lambda: nn.Sequential(Gpt2Block(8, 0.1), Gpt2Block(8, 0.1)),
    "bert": lambda: nn.Sequential(BertBlock(8, 0.1), BertBlock(8, 0.1)),
    "t5": lambda: nn.Sequential(T5Block(8, 0.1), T5Block(8, 0.1)),
    "gru, both ways": lambda: nn.GRU(8, 8, 2, dropout=0.2, batch_first=True, bidirectional=True),
}


@pytest.mark.filterwarnings("ignore:no rule for")
@both_engines
@pytest.mark.parametrize("make", only(DEFAULTS, *list(DEFAULTS)[::2]))
def test_what_others_hold_changes_no_draw(make, engine):
    torch.manual_seed(0)
    net = make().double().train()
    net.draw = lambda x: y[0] if isinstance(y := net(x), tuple) else y
    net.loss = lambda lot, _: net.draw(lot.records).square().flatten(1).sum(dim=1)
    x = torch.rand(4, 5, 8, dtype=torch.float64)
    x[2] = x[1]
    others = torch.cat([x[:1] + 1.0, x[1:2], x[2:] * 0.3])
    rows, beside = _gradients(net, x, engine), _gradients(net, others, engine)
    torch.testing.assert_close(rows[1], beside[1], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(rows[1], rows[2]), "alike in their numbers, and not in their draws"


@pytest.mark.filterwarnings("ignore:no rule for")
def test_a_draw_in_place_of_what_parameters_share_is_refused():
    net = Net(nn.Identity())
    net.draw = lambda x: x @ F.dropout(net.weight * 1.0, 0.5, inplace=True)
    with pytest.raises(ValueError, match=r"^the loss calls dropout.*leave inplace out"):
        _gradients(net, torch.rand(3, 2, 2, dtype=torch.float64))


INTO_A_BUFFER = {
    "normal_": lambda b: b.normal_(),
    "out": lambda b: torch.rand(2, 2, out=b),
    "init": nn.init.uniform_,
    "operator": lambda b: torch.ops.aten.uniform.out(b, out=b),
    "dropout": lambda b: F.dropout(b, inplace=True),
}


@both_engines
@pytest.mark.parametrize("fill", INTO_A_BUFFER.values(), ids=INTO_A_BUFFER.keys())
def test_a_draw_into_a_buffer_is_refused(fill, engine):
    net, buffer = Net(nn.Identity()), torch.ones(2, 2)

    def draw(x):
        fill(buffer)
        return net.linear(x) * buffer

    net.draw = draw
    with pytest.raises(ValueError, match=r"fills a tensor|writes a value|same random numbers"):
        _gradients(net, torch.rand(3, 2, 2, dtype=torch.float64), engine)

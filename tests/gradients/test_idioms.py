"""Idioms of PyTorch: the gradients by record are those of a loop over single records, or the loss is refused.

Several of these once gave wrong gradients without a word. Lots of 1 to 12 records: sizes that the networks have themselves.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_dpgen.gradients.engines import ghost_gradients, term_gradients
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot


class Net(nn.Module):
    """A module from a function of parameters, layers and records."""

    def __init__(self, run: Callable[..., Tensor], *layers: nn.Module, shapes=(), buffers=()):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(layers)
        self.held = nn.ParameterList([nn.Parameter(torch.randn(s)) for s in shapes])
        for i, b in enumerate(buffers):
            self.register_buffer(f"b{i}", b)
        self.run, self.kept = run, None
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def _inplace_slice(net, x):
    y = net.layers[0](x)
    y[:, :2].sigmoid_()
    return net.layers[1](y)


def _times(net, x):
    y = net.layers[0](x)
    y *= 3
    return net.layers[1](y).tanh_()


def _angle(net, x):
    y = net.layers[0](x)
    y *= net.held[0]
    y.atan2_(net.held[0])
    return net.layers[1](y)


def _cached_constant(net, x):
    if net.kept is None:
        net.kept = torch.arange(5.0, dtype=torch.float64)
    return net.layers[0](x + net.kept)


def _masked(net, x):
    there = x > 0.2
    if not torch.jit.is_tracing() and there.all():
        return net.layers[1](net.layers[0](x))
    return net.layers[1](net.layers[0](torch.where(there, x, 0.0)))


def _changed_mask(net, x):
    mask = torch.ones(4, 5, dtype=torch.float64).tril()
    hidden = F.linear(x, net.layers[0].weight * mask.clone()).tanh()
    mask.zero_()
    return net.layers[1](hidden)


def _mlp():
    return nn.Linear(5, 4), nn.Linear(4, 3)


# Right, whatever the size of the lot.
EXACT = {
    "rectifiers in place": lambda: Net(
        lambda n, x: n.layers[0](x),
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)),
    ),
    "a part in place": lambda: Net(_inplace_slice, *_mlp()),
    "times in place": lambda: Net(_times, *_mlp()),
    "with a parameter in place, by a rule and without": lambda: Net(_angle, *_mlp(), shapes=[(4,)]),
    "repeated once a record": lambda: Net(
        lambda n, x: n.layers[0](x[:, None] + n.held[0].repeat(len(x), 1, 1)).flatten(1),
        nn.Linear(5, 4), shapes=[(1, 3, 5)],
    ),
    "expanded": lambda: Net(lambda n, x: n.layers[0](x + n.held[0].expand(len(x), -1)), nn.Linear(5, 4), shapes=[(1, 5)]),
    "a table of positions": lambda: Net(
        lambda n, x: (x[:, :4, None] + n.held[0][n.b0].view(4, 4)).tanh(), shapes=[(7,)], buffers=[torch.arange(16) % 7]
    ),
    "positions that are embedded": lambda: Net(
        lambda n, x: n.layers[1](n.layers[0](x[:, None]).mT + n.layers[2](torch.arange(5))),
        nn.Conv1d(1, 3, 3, padding=1), nn.Linear(3, 2), nn.Embedding(9, 3),
    ),
    "six of a parameter": lambda: Net(
        lambda n, x: x.sum(1, keepdim=True) * n.held[0][torch.tensor([0, 1, 1, 2, 0, 2])], shapes=[(3,)]
    ),
    "a constant kept": lambda: Net(_cached_constant, nn.Linear(5, 4)),
    "keywords": lambda: Net(lambda n, x: torch.matmul(input=x, other=n.held[0]), shapes=[(5, 3)]),
    "turned by keywords": lambda: Net(lambda n, x: x @ n.held[0].transpose(dim0=0, dim1=1), shapes=[(3, 5)]),
    "clamped by a parameter": lambda: Net(lambda n, x: torch.clamp(x, max=n.held[0]), shapes=[(5,)]),
    "transposed, wide output padding": lambda: Net(
        lambda n, x: n.layers[0](x[:, None, :, None]), nn.ConvTranspose2d(1, 2, 3, stride=1, dilation=2, output_padding=1)
    ),
    "detached": lambda: Net(lambda n, x: n.layers[1](n.layers[0](x).tanh()) * n.layers[0](x).detach()[:, :3], *_mlp()),
    "stacked once a record": lambda: Net(
        lambda n, x: n.layers[0](x + torch.stack([n.held[0]] * len(x))), nn.Linear(5, 4), shapes=[(5,)]
    ),
    "flattened records": lambda: Net(
        lambda n, x: x.square().sum(1, keepdim=True) + n.layers[0](x.reshape(-1, 1)).view(len(x), -1).tanh(),
        nn.Linear(1, 2),
    ),
    "sorted and put back": lambda: Net(
        lambda n, x: n.layers[1](torch.tanh(n.layers[0](x[x[:, 0].argsort()]))[x[:, 0].argsort().argsort()]), *_mlp()
    ),
    "a matrix of the record's own": lambda: Net(
        lambda n, x: torch.stack([F.linear(row, n.layers[0](row).view(3, 5), n.held[0]) for row in x]),
        nn.Linear(5, 15), shapes=[(3,)],
    ),
    "a normal of the record's own": lambda: Net(
        lambda n, x: torch.stack([F.layer_norm(row, (5,), row.exp(), n.held[0]) for row in x]), shapes=[(5,)]
    ),
    "a shortcut that traced code does not take": lambda: Net(_masked, *_mlp()),
    "a call with other parameters": lambda: Net(
        lambda n, x: torch.func.functional_call(n.layers[0], {"bias": n.held[0]}, (x,)), nn.Linear(5, 4), shapes=[(4,)]
    ),
    "a weight under a mask": lambda: Net(
        lambda n, x: n.layers[1](F.linear(x, n.layers[0].weight * n.b0, n.layers[0].bias).tanh()),
        *_mlp(), buffers=[torch.ones(4, 5).tril()],
    ),
    "weights times numbers": lambda: Net(
        lambda n, x: F.linear(F.linear(x, 0.5 * n.layers[0].weight * 3).tanh(), n.layers[1].weight.t().mul(2).t()), *_mlp()
    ),
    "one weight under two masks, and without": lambda: Net(
        lambda n, x: torch.cat([F.linear(x, w, n.held[0]) for w in (n.b0 * n.held[1], n.held[1] * n.b1, n.held[1])], dim=1),
        shapes=[(4,), (4, 5)], buffers=[torch.ones(4, 5).tril(), torch.rand(5)],
    ),
    "a mask that is changed after its use": lambda: Net(_changed_mask, *_mlp()),
    "a kernel under a mask": lambda: Net(
        lambda n, x: F.conv1d(x[:, None], n.held[0] * n.b0, padding=1),
        shapes=[(3, 1, 3)], buffers=[torch.tensor([1.0, 1.0, 0.0])],
    ),
    "a first state that is learned": lambda: Net(
        lambda n, x: n.layers[0](x[None], n.held[0].expand(1, len(x), 3).contiguous())[0][0], nn.GRU(5, 3), shapes=[(3,)]
    ),
}  # fmt: skip
# Refused, at the first lot.
REFUSED = {
    "a mean over flattened records": lambda: Net(
        lambda n, x: x.square() + n.layers[0](x.reshape(-1, 1)).square().mean(), nn.Linear(1, 2)
    ),
    "a mean over the lot": lambda: Net(lambda n, x: n.layers[0](x - x.mean(dim=0)).tanh(), nn.Linear(5, 4)),
    "divided by the size of the lot": lambda: Net(lambda n, x: n.layers[0](x) / len(x), nn.Linear(5, 4)),
    "written into a tensor": lambda: Net(
        lambda n, x: n.layers[0](x * torch.zeros(5, dtype=torch.float64).index_put((torch.arange(2),), n.held[0]))
        + _written(n, x), nn.Linear(5, 4), shapes=[(2,)],
    ),
    "a gradient of its own": lambda: Net(_penalty, nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))),
}  # fmt: skip


def _written(net, x):
    w = torch.zeros(4, dtype=torch.float64)
    w[:2] = net.held[0]
    return x[:, :4] * w


def _penalty(net, x):
    z = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(net.layers[0](z).sum(), z, create_graph=True)
    return (slope.norm(dim=1, keepdim=True) - 1).square()


def _term(net):
    return PerRecord(lambda lot, _: (net(lot.records).square() + net(lot.records)).flatten(1).sum(dim=1))


def _lot(size, seed=3):
    records = torch.randn(size, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Lot(records, (0, size))


def _single(net, lot, i):
    loss = _term(net).loss(Lot(lot.records[i : i + 1], (0, 1)), None).sum()
    found = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([g.to_dense().flatten() for g in found])


@pytest.mark.filterwarnings("ignore:no rule for")
@pytest.mark.parametrize("make", EXACT.values(), ids=EXACT.keys())
@pytest.mark.parametrize("first", [5, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 4, 6, 16))])
def test_equals_single_records_whatever_the_first_lot(make, first):
    """Norms one by one, and a sum with weights that no two records share."""
    torch.manual_seed(0)
    net, whole = make(), _lot(16)
    single = torch.stack([_single(net, whole, i) for i in range(16)])
    weights = torch.rand(16, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    buffer = GradientBuffer(net.parameters())
    for size in (first, *range(1, 13)):
        gradients = term_gradients(net, _term(net), Lot(whole.records[:size], (0, size)), PrivateStream(1))
        gradients.weighted_sum(weights[:size], buffer.views)
        torch.testing.assert_close(buffer.flat, weights[:size] @ single[:size], rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(gradients.norms(), single[:size].norm(dim=1), rtol=1e-5, atol=1e-9)


@pytest.mark.filterwarnings("ignore:no rule for")
@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("size", [3, 6, 12])
def test_is_refused(make, size):
    net = make()
    with pytest.raises((ValueError, RuntimeError)):
        term_gradients(net, _term(net), _lot(size), PrivateStream(1))


# A parameter has the size of the lot, which torch takes for a dimension of the record.
SIZE = 4
TOO_FEW = {
    "linear": ((SIZE, SIZE), lambda x, w: F.linear(x.sum(), w)),
    "matrix, from the left": ((SIZE, SIZE), lambda x, w: w @ x.sum()),
    "matrix, from the right": ((SIZE, SIZE), lambda x, w: x.sum() @ w),
    "vector": ((SIZE,), lambda x, w: x.sum() @ w),
    "convolution": ((2, SIZE, 1), lambda x, w: F.conv1d(x, w)),
    "convolution of pictures": ((2, SIZE, 1, 1), lambda x, w: F.conv2d(x[None], w)),
    "transposed": ((SIZE, 2, 1), lambda x, w: F.conv_transpose1d(x, w)),
    "layer norm": ((SIZE, 5), lambda x, w: F.layer_norm(x, (SIZE, 5), w)),
    "RMS norm": ((SIZE, 5), lambda x, w: F.rms_norm(x, (SIZE, 5), w)),
}


@pytest.mark.filterwarnings("ignore:no rule for")
@pytest.mark.parametrize(("shape", "function"), TOO_FEW.values(), ids=TOO_FEW.keys())
def test_no_rule_takes_the_lot_for_a_dimension_of_a_record(shape, function):
    """Call the engine alone, since the first check of a loss would refuse some of these."""
    net = Net(lambda n, x: function(x[0], n.held[0]).sum()[None], shapes=[shape])
    term = PerRecord(lambda lot, _: net(lot.records))
    with pytest.raises((ValueError, RuntimeError)):
        ghost_gradients(net, term, _lot(SIZE), torch.zeros(SIZE, 0))


def test_each_loss_of_a_network_has_a_first_lot():
    net = Net(lambda n, x: n.layers[0](x), nn.Linear(5, 4))
    term_gradients(net, _term(net), _lot(6), PrivateStream(1))
    mixing = PerRecord(lambda lot, _: (net(lot.records) - net(lot.records).mean(dim=0)).square().sum(dim=1))
    for _ in range(2):  # nor is it taken the second time
        with pytest.raises(ValueError, match="beside it"):
            term_gradients(net, mixing, _lot(6), PrivateStream(1))


def test_what_is_kept_of_a_parameter_is_refused_at_the_next_lot():
    def run(net, x):
        if net.kept is None:
            net.kept = net.held[0].exp()
        return F.linear(x, net.kept)

    net = Net(run, shapes=[(4, 5)])
    with pytest.raises(RuntimeError, match="earlier lot"):
        term_gradients(net, _term(net), _lot(4), PrivateStream(1))


@pytest.mark.parametrize("engine", ["ghost", "func"])
def test_recurrent_layers_do_not_lay_out_what_stands_for_their_parameters(monkeypatch, engine):
    """On a GPU a layer lays parameters out for cuDNN, by their places in memory, when it finds others than before."""
    laid_out = []

    def flatten(layer):
        laid_out.append([p.data_ptr() for p in layer._flat_weights])

    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", flatten)
    network = Net(
        lambda n, x: n.layers[1](n.layers[0](x[..., None])[0][:, -1]), nn.GRU(1, 3, batch_first=True), nn.Linear(3, 1)
    )
    term = PerRecord(lambda lot, _: network(lot.records).square().sum(dim=1))
    lot = Lot(torch.rand(4, 5, dtype=torch.float64), (0, 4))
    before = len(laid_out)
    assert len(term_gradients(network, term, lot, PrivateStream(seed=0), engine=engine).norms()) == 4
    # The check of the engine calls the layer with its own parameters again.
    assert len(laid_out) == before + 1
    network(lot.records)
    assert "flatten_parameters" not in vars(network.layers[0])

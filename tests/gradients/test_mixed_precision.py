"""Autocast where each record is alone: losses of mixed precision have nearly the gradients of full precision."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lightning_dpgen.gradients import engine_check
from lightning_dpgen.gradients.engines import ENGINES, term_gradients
from lightning_dpgen.gradients.isolation.isolation import Isolation
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

X = torch.rand(5, 2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
W = {n: torch.rand(3, 3, *[3] * n, generator=torch.Generator().manual_seed(n)) for n in (1, 2, 3)}
BIAS = torch.tensor([0.5, 1.0, -1.0])
torch.manual_seed(0)
ATTENTION = nn.MultiheadAttention(4, 2, batch_first=True)
# Functions that torch.vmap takes apart before autocast sees them, and those that it has rules for.
FUNCTIONS = {
    "conv1d": lambda x: F.conv1d(x[..., 0], W[1], BIAS),
    "conv2d": lambda x: F.conv2d(x, W[2], BIAS),
    "conv2d by a word": lambda x: F.conv2d(x, weight=W[2], padding="same"),
    "conv3d": lambda x: F.conv3d(x[..., None, :].expand(-1, -1, -1, 3, -1), W[3], BIAS),
    "conv_transpose1d": lambda x: F.conv_transpose1d(x[..., 0], W[1], bias=BIAS),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, W[2], BIAS),
    "conv_transpose3d": lambda x: F.conv_transpose3d(x[..., None], W[3], BIAS),
    "linear": lambda x: F.linear(x.movedim(1, -1), W[1][..., 0], BIAS),
    "linear of shapes alone": lambda x: x.new_ones(
        F.linear(torch.empty(2, 3, device="meta"), W[1][..., 0].to("meta")).shape
    ),
    "prelu": lambda x: F.prelu(x - 0.5, BIAS),
    "attention of a layer": lambda x: ATTENTION(*[x.flatten(1, 2)[..., :4]] * 3, need_weights=False)[0],
    "attention": lambda x: F.scaled_dot_product_attention(*[x[0]] * 3),
    "attention in four dimensions": lambda x: F.scaled_dot_product_attention(*[x] * 3, is_causal=True),
    "matmul": lambda x: x.movedim(1, -1) @ W[1][..., 0],
    "batch_norm by public statistics": lambda x: F.batch_norm(x, BIAS, BIAS.square(), BIAS, BIAS),
    "layer_norm": lambda x: F.layer_norm(x.movedim(1, -1), (3,), BIAS),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_function_of_one_record_is_cast_as_any_other(function, kind):
    x = X.to(kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = torch.stack([function(each) for each in x])
        found = Isolation(len(x)).run(function, x)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    with torch.autocast("cpu", enabled=False):
        assert Isolation(len(x)).run(function, x.float()).dtype == torch.float32


@pytest.mark.parametrize("engine", ENGINES)
def test_convolutions_behind_others_take_mixed_precision(engine):
    """The second convolution is handed the bfloat16 numbers of the first, beside weights and a bias of float32."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 5, 3, stride=2), nn.Tanh(), nn.ConvTranspose2d(5, 2, 3), nn.Flatten(1),
        nn.Linear(32, 3),
    )  # fmt: skip
    term = PerRecord(lambda lot, _: network(lot.records).float().square().sum(dim=1))
    lot = Lot(X[:, 0], (0, len(X)))

    def norms(mixed):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            return term_gradients(network, term, lot, PrivateStream(seed=0), engine=engine).norms()

    torch.testing.assert_close(norms(True), norms(False), rtol=0.05, atol=0.0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("options", [{"need_weights": False}, {"need_weights": True}, {"key_padding_mask": True}])
def test_attention_takes_mixed_precision(engine, options):
    torch.manual_seed(0)
    first, layer, last = nn.Linear(3, 4), nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)
    network = nn.ModuleList([first, layer, last])

    def loss(lot, _):
        x = lot.records.flatten(2).mT
        given = options | ({"key_padding_mask": x[..., 0] > 0.6} if "key_padding_mask" in options else {})
        return last(layer(*[first(x)] * 3, **given)[0]).float().square().sum(dim=(1, 2))

    lot = Lot(X[:, 0], (0, len(X)))

    def norms(mixed):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            return term_gradients(network, PerRecord(loss), lot, PrivateStream(seed=0), engine=engine).norms()

    torch.testing.assert_close(norms(True), norms(False), rtol=0.05, atol=0.0)


def test_weights_that_autocast_keeps_are_those_of_the_network():
    """The check of a loss moves weights for a while; autocast keeps what it has converted until its context ends."""
    network = nn.ParameterList([torch.rand(8, 4)])
    term = PerRecord(lambda lot, _: (lot.records @ network[0]).float().square().sum(dim=1))

    def mixed(*then):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for call in then:
                call()
            return X[:, 0, 0, 0] @ network[0]

    lot = Lot(X[:, 0, 0, 0], (0, len(X)))
    assert torch.equal(mixed(), mixed(lambda: term_gradients(network, term, lot, PrivateStream(seed=0))))


@pytest.mark.parametrize("wrong", [False, True])
def test_a_refusal_in_eight_bits_is_looked_at_in_float32(wrong, monkeypatch):
    """There gradients that nearly cancel may differ by more than any tolerance."""
    network, precisions = nn.Linear(3, 1), []

    def refuse(*_):
        precisions.append(torch.is_autocast_enabled("cpu"))
        if wrong or precisions[-1]:
            raise ValueError(f"refused {len(precisions)}")

    monkeypatch.setattr(engine_check, "_check", refuse)
    term = PerRecord(lambda lot, _: network(lot.records).float().square().sum(dim=1))
    with torch.autocast("cpu", dtype=torch.bfloat16), contextlib.ExitStack() as stack:
        if wrong:
            stack.enter_context(pytest.raises(ValueError, match="refused 1"))
        term_gradients(network, term, Lot(torch.rand(4, 3), (0, 4)), PrivateStream(seed=0))
    assert precisions == [True, False]


def test_a_loss_that_mixes_records_is_refused_under_autocast():
    network = nn.Linear(3, 3)

    def loss(lot, _):
        return (network(lot.records) - network(lot.records).mean(dim=0)).float().square().sum(dim=1)

    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ValueError, match="second record is beside"):
        term_gradients(network, PerRecord(loss), Lot(torch.rand(4, 3), (0, 4)), PrivateStream(seed=0))

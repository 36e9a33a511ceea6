"""A loss draws from no public generator, and its draws are no reason to refuse it."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lightning_dpgen.gradients.engine_check import check_exact
from lightning_dpgen.gradients.engines import ghost_gradients, term_gradients
from lightning_dpgen.gradients.probes import ConstantDraws
from lightning_dpgen.gradients.terms import PerGroup, PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

CONSTANT = torch.arange(1.0, 5.0)[None, :, None]
ATTENTION = nn.MultiheadAttention(2, 1, dropout=0.5, batch_first=True).requires_grad_(False)
RECURRENT = nn.GRU(1, 3, 2, dropout=0.5, batch_first=True).requires_grad_(False)
# Functions of positive numbers (B, 4) that depend on records and parameters.
DRAWN = {
    "rand": lambda x: x * torch.rand(len(x), 4),
    "rand of a tuple": lambda x: x * torch.rand((len(x), 4)),
    "rand by keyword": lambda x: x * torch.rand(size=(len(x), 4)),
    "randn": lambda x: x * torch.randn(len(x), 1),
    "randn of a shape": lambda x: x * torch.randn(x.shape),
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn_like": lambda x: x * torch.randn_like(x),
    "normal": lambda x: x * torch.normal(torch.zeros(len(x), 4), torch.ones(len(x), 4)),
    "normal of a size": lambda x: x * torch.normal(0.0, 1.0, size=(len(x), 4)),
    "normal of two numbers": lambda x: x * torch.normal(0.0, 1.0, (len(x), 4)),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full((len(x), 4), 0.7)),
    "bernoulli of a number": lambda x: x * torch.bernoulli(torch.zeros(len(x), 4), 0.7),
    "normal_": lambda x: x * torch.empty(len(x), 4).normal_(),
    "uniform_": lambda x: x * torch.empty(len(x), 4).uniform_(),
    "bernoulli_": lambda x: x * torch.empty(len(x), 4).bernoulli_(0.5),
    "exponential_": lambda x: x * torch.empty(len(x), 4).exponential_(),
    "multinomial": lambda x: x * torch.multinomial(torch.ones(len(x), 3), 1),
    "randint": lambda x: x * torch.randint(3, (len(x), 1)),
    "randint from": lambda x: x * torch.randint(1, 3, (len(x), 1)),
    "randint by keyword": lambda x: x * torch.randint(3, size=(len(x), 1)),
    "poisson": lambda x: x * torch.poisson(torch.ones(len(x), 1)),
    "dropout": lambda x: F.dropout(x),
    "a layer of it": lambda x: nn.Dropout(0.3)(x),
    "dropout of channels": lambda x: F.dropout1d(x[:, :, None]),
    "of pictures": lambda x: F.dropout2d(x[:, :, None, None]),
    "of volumes": lambda x: F.dropout3d(x[:, :, None, None, None]),
    "alpha dropout": lambda x: F.alpha_dropout(x, training=True),
    "alpha dropout of channels": lambda x: F.feature_alpha_dropout(x[:, :, None], training=True),
    "dropout by its operator": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "attention": lambda x: F.scaled_dot_product_attention(*[x[:, None, :, None]] * 3, dropout_p=0.5),
    "attention without a record": lambda x: x[..., None] * F.scaled_dot_product_attention(*[CONSTANT] * 3, dropout_p=0.5),
    "a layer of attention": lambda x: ATTENTION(*[x[..., None].expand(-1, -1, 2)] * 3)[0],
    "two recurrent layers": lambda x: RECURRENT(x[..., None])[0],
    "two recurrent layers without a record": lambda x: x[..., None] * RECURRENT(CONSTANT)[0],
    "a choice with noise": lambda x: F.gumbel_softmax(x, hard=True) * x,
    "a choice with noise without a record": lambda x: x * F.gumbel_softmax(CONSTANT[..., 0]),
    "a random slope": lambda x: F.rrelu(-x, training=True),
    "a random slope without a record": lambda x: x * F.rrelu(-CONSTANT[..., 0], training=True),
    "numbers by an operator without a record": lambda x: x * torch.ops.aten.uniform(CONSTANT[..., 0]),
    "places of a pool": lambda x: F.fractional_max_pool2d(x[:, None, None].repeat(1, 1, 2, 6), (1, 2), output_size=(1, 7)),
    "directions": lambda x: torch.svd_lowrank(x[..., None] * CONSTANT.mT, 1, niter=0)[1],
    "a normal code": lambda x: torch.distributions.Normal(x, x).rsample(),
    "a choice": lambda x: x * torch.distributions.Categorical(torch.ones(len(x), 3)).sample()[:, None],
}


def _net():
    torch.manual_seed(0)
    return nn.Linear(3, 4)


# Operators of aten are in no list.
@pytest.mark.filterwarnings("ignore:the loss calls .*, which was not seen")
@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN.keys())
def test_a_loss_that_draws_depends_on_no_other_record(draw):
    """Random numbers are held still while records are compared; afterwards they are each record's own, and private."""
    net = _net()
    term = PerRecord(lambda lot, _: draw(net(lot.records).exp()).flatten(1).sum(dim=1))
    check_exact(ghost_gradients, net, term, Lot(torch.rand(3, 3), (0, 3)), torch.zeros(3, 0))
    losses = [term_gradients(net, term, Lot(torch.ones(40, 3), (0, 40)), PrivateStream(seed)).losses for seed in (1, 1, 2)]
    assert torch.equal(losses[0], losses[1]) and not torch.equal(losses[0], losses[2])
    assert len(losses[0].unique()) > 1


def _state():
    return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()


@pytest.mark.parametrize("kind", ["records", "groups", "one by one"])
def test_no_public_seed_decides_what_a_loss_draws(kind):
    """The public generators are not consumed either, not even by the comparison at the first lot."""
    net, drawn = _net(), []

    def loss(lot, _, *groups):
        drawn.extend([float(np.random.rand()), random.random()])
        y = net(lot.records) * 0.0 + torch.rand(len(lot), 1)
        return groups[0].gather(y).sum(dim=(1, 2)) if groups else y.sum(dim=1)

    term = PerGroup(loss, 2, places=4) if kind == "groups" else PerRecord(loss)
    with torch.random.fork_rng():
        for _ in range(2):
            torch.manual_seed(0)
            np.random.seed(0)
            random.seed(0)
            before = _state()
            engine = "func" if kind == "one by one" else "ghost"
            gradients = term_gradients(net, term, Lot(torch.ones(4, 3), (0, 4)), PrivateStream(), engine=engine)
            drawn.append(float(gradients.losses.sum()))
            assert _state() == before
    assert len(set(drawn)) == len(drawn) >= 4


@pytest.mark.parametrize("draw", [torch.rand, torch.randn, lambda size, **k: torch.randint(3, size, **k)])
def test_constants_are_where_the_numbers_would_be(draw):
    with ConstantDraws():
        constant = draw((2, 3), device="meta", dtype=torch.float64)
    assert (constant.device.type, constant.shape, constant.dtype) == ("meta", (2, 3), torch.float64)

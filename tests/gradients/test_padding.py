"""Copies of a record that fill up a lot: a loss takes them where it would not take zeros, and they add nothing."""

import pytest
import torch
import torch.nn.functional as F
from gradients.families import BY_FUNC, RULED
from torch import nn

from lightning_dpgen.data.lots import Lot
from lightning_dpgen.gradients.clipping import clip_weights
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.ghost import ghost_gradients
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.gradients.terms import PerGroup, PerRecord
from lightning_dpgen.privacy.noise import PrivateStream

# Of records of positive numbers; some of these are an error for a row of zeros, the others give no number there.
CHOOSY = {
    "a logarithm": lambda net, x: net(x.log()),
    "a quotient": lambda net, x: net(x / x.sum(dim=1, keepdim=True)),
    "a length of one": lambda net, x: net(x / x.norm(dim=1, keepdim=True)),
    "an inverse": lambda net, x: net(torch.linalg.inv(x.diag_embed()).sum(dim=1)),
    "a distribution": lambda net, x: -torch.distributions.Exponential(x[:, :2]).log_prob(F.softplus(net(x))),
}


def _per_group(loss, noise=0):
    return PerGroup(lambda lot, noise, groups: groups.gather(loss(lot, noise)[:, None]).sum(dim=(1, 2)), 2, noise)


@pytest.mark.parametrize("grouped", [False, True], ids=["records", "groups"])
@pytest.mark.parametrize("run", CHOOSY.values(), ids=CHOOSY.keys())
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_loss_that_zeros_would_not_suit(run, size, grouped):
    """Sizes that the network has itself, so that a lot is always filled up."""
    torch.manual_seed(0)
    net = nn.Linear(5, 2).double()
    lot = Lot(0.1 + torch.rand(size, 5, dtype=torch.float64), (0, size))

    def loss(lot, noise):
        return run(net, lot.records).square().sum(dim=1)

    gradients = term_gradients(net, _per_group(loss) if grouped else PerRecord(loss), lot, PrivateStream(1))
    buffer = GradientBuffer(net.parameters())
    gradients.weighted_sum(torch.ones(2 if grouped else size, dtype=torch.float64), buffer.views)
    alone = torch.autograd.grad(loss(lot, None).sum(), list(net.parameters()))
    torch.testing.assert_close(buffer.flat, torch.cat([g.flatten() for g in alone]), rtol=1e-9, atol=1e-12)


FAMILY = {name: make for name, make in RULED.items() if not name.startswith(("vae", "rbm", "critic")) or "taped" in name}
FAMILY |= {name: make for name, (make, _) in BY_FUNC.items()}


def _clipped_sum(case, lot, noise, index, weights):
    """Padded to 13; of groups, if an index is given."""
    term, groups = (case.term, None) if index is None else (_per_group(case.term.loss, case.term.noise), Groups(index, 2))
    gradients = ghost_gradients(case.network, term, lot, noise, groups, at_least=13)
    buffer = GradientBuffer([p for p in case.network.parameters() if p.requires_grad])
    gradients.weighted_sum(clip_weights(gradients.norms(), 1.0) * weights, buffer.views)
    return buffer.flat


@pytest.mark.filterwarnings("ignore:no rule for")
@pytest.mark.parametrize("grouped", [False, True], ids=["records", "groups"])
@pytest.mark.parametrize("value", [0.5, float("nan")])
@pytest.mark.parametrize("make", FAMILY.values(), ids=FAMILY.keys())
def test_copies_add_nothing_whatever_they_hold(make, value, grouped):
    """The first of four records, which is copied, weighs nothing itself; among groups it has one of its own."""
    case = make()
    lot, noise = case.lot((0, 2, 2, 4)), case.noise(4)
    if not case.indices:
        lot.records[0] = value
    rest = lot.mapped(lambda x: x[1:], tuple(max(0, end - 1) for end in lot.offsets))
    index, weights = (torch.tensor([0, 1, 1, 1]), [0.0, 1.0]) if grouped else (None, [0.0, 1.0, 1.0, 1.0])
    weights = torch.tensor(weights, dtype=torch.float64)
    found = _clipped_sum(case, lot, noise, index, weights)
    alone = _clipped_sum(case, rest, noise[1:], index if index is None else index[1:], weights if grouped else weights[1:])
    torch.testing.assert_close(found, alone, rtol=1e-6, atol=1e-9)

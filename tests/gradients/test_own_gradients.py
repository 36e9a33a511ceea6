"""Gradients that a loss takes by itself: those of each record alone, with `engine="func"`."""

import pytest
import torch
from torch import nn

from lightning_dpgen.gradients.engines import functional_gradients, ghost_gradients
from lightning_dpgen.gradients.isolation.isolation import Isolation
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.sampling.lots import Lot

pytestmark = pytest.mark.filterwarnings("ignore")

RECORDS = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))


def _critic():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def _of_records(critic, x):
    x = x * 1.5
    x.requires_grad_(True)
    score = critic(x)
    (slope,) = torch.autograd.grad(score, x, grad_outputs=torch.ones_like(score), create_graph=True, retain_graph=True)
    return (slope.norm(2, dim=1) - 1).square() + score[:, 0]


def _of_mixtures(critic, x):
    mixed = torch.lerp(x, 0.5 * torch.ones_like(x), 0.3).detach()
    mixed.requires_grad = True
    slope = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    return slope.square().sum(dim=1)


def _twice(critic, x):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(critic(x).square().sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.square().sum(), x, create_graph=True)
    return bend.square().sum(dim=1)


def _by_layers(critic, x):
    hidden = critic[0](x)
    slope, nothing = torch.autograd.grad(
        critic[2](hidden.tanh()).sum(), [hidden, x.clone().requires_grad_()], create_graph=True, allow_unused=True
    )
    assert nothing is None
    return slope.square().sum(dim=1)


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


def _by_a_function_of_its_own(critic, x):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(Cube.apply(critic(x)).sum(), x, create_graph=True)
    return slope.square().sum(dim=1)


LOSSES = [_of_records, _of_mixtures, _twice, _by_layers, _by_a_function_of_its_own]


def _gradients(loss, records, engine=functional_gradients):
    critic = _critic()
    term = PerRecord(lambda lot, noise: loss(critic, lot.records))
    gradients = engine(critic, term, Lot(records, (0, len(records))), torch.empty(len(records), 0))
    rows = []
    for weights in torch.eye(len(records)):
        views = {p: torch.zeros_like(p) for p in critic.parameters()}
        gradients.weighted_sum(weights, views)
        rows.append(torch.cat([views[p].flatten() for p in critic.parameters()]))
    return torch.stack(rows)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__.strip("_"))
def test_a_gradient_is_that_of_plain_autograd_for_a_record_alone(loss):
    for i, row in enumerate(_gradients(loss, RECORDS)):
        critic = _critic()
        loss(critic, RECORDS[i : i + 1]).sum().backward()
        alone = torch.cat(
            [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in critic.parameters()]
        )
        torch.testing.assert_close(row, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__.strip("_"))
def test_a_record_in_front_changes_no_other(loss):
    more = torch.cat([torch.full((1, 3), 9.0), RECORDS])
    torch.testing.assert_close(_gradients(loss, more)[1:], _gradients(loss, RECORDS), rtol=1e-5, atol=1e-7)


def test_records_stay_as_they_are():
    _gradients(_of_records, RECORDS)
    assert not RECORDS.requires_grad and RECORDS.grad is None


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__.strip("_"))
def test_book_keeping_names_the_engine_that_takes_it(loss):
    with pytest.raises(ValueError, match=r"takes a gradient by itself.*use engine='func'"):
        _gradients(loss, RECORDS, ghost_gradients)


def _by_what_all_share(x):
    shared = torch.ones(3, requires_grad=True)
    return torch.autograd.grad((x * shared).sum(), shared)[0]


def _of_what_all_share(x):
    shared = torch.ones(3, requires_grad=True)
    return torch.autograd.grad(shared.sum(), [shared, x.clone().requires_grad_()], allow_unused=True)[0] + x


def _batched(x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(x * 2, x, torch.eye(3)[:, None], is_grads_batched=True)[0]


def _of_several_numbers(x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(x * 2, x)[0]


REFUSED = {
    "by what all share": (_by_what_all_share, "by, a tensor of no record"),
    "of what all share": (_of_what_all_share, "of, or by, a tensor of no record"),
    "several at once": (_batched, "is_grads_batched"),
    "of several numbers": (_of_several_numbers, "give grad_outputs"),
}


@pytest.mark.parametrize(("function", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_gradient_that_would_be_of_all_records_is_refused(function, words):
    with pytest.raises(ValueError, match=words):
        Isolation(5).run(function, RECORDS[:, None])

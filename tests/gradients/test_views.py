"""Views of a record: its gradient is the mean over them, clipped after that, and each view is the record's own."""

import pytest
import torch
from torch import nn

from lightning_dpgen import PerRecord, term_gradients
from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.gradients.terms import Views, of_views
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

COUNT = 5


def _network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(27, 2))


def _records(n=6):
    generator = torch.Generator().manual_seed(1)
    return torch.rand(n, 1, 4, 4, generator=generator), torch.arange(n) % 2


def _rolled(batch):
    """Move each view by another number of pixels, which its place among the views says."""
    x, y = batch
    moved = [x[i : i + 1].roll(i % COUNT, dims=-1) for i in range(len(x))]
    return torch.cat(moved), y


def _loss(network, reduction="none"):
    return lambda batch: nn.functional.cross_entropy(network(batch[0]), batch[1], reduction=reduction)


def _term(network, views, reduction="none"):
    return of_views(PerRecord(lambda lot, _: _loss(network, reduction)(lot.records)), views)


def _rows(found, network):
    parameters = list(network.parameters())
    views, rows = {p: torch.zeros_like(p) for p in parameters}, []
    for weights in torch.eye(len(found)):
        found.weighted_sum(weights, views)
        rows.append(torch.cat([views[p].flatten() for p in parameters]))
    return torch.stack(rows)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_is_the_mean_of_those_of_views(engine, reduction):
    network, (x, y) = _network(), _records()
    term = _term(network, Views(_rolled, COUNT), reduction)
    found = term_gradients(network, term, Lot((x, y), (0, len(x))), PrivateStream(seed=0), engine=engine)
    each = []
    for i in range(len(x)):
        views = torch.cat([x[i : i + 1].roll(j, dims=-1) for j in range(COUNT)])
        loss = _loss(network)((views, y[i].repeat(COUNT))).mean()
        each.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))]))
    expected = torch.stack(each)
    torch.testing.assert_close(_rows(found, network), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.norms(), expected.norm(dim=1).double(), rtol=1e-4, atol=1e-6)
    # Clipped view by view, it would be another one.
    assert not torch.allclose(found.norms().float(), _rows(found, network).norm(dim=1) * COUNT)


def test_each_view_draws_its_own_numbers():
    """All numbers of a lot are different: two records with the same views would tell of each other."""
    network, (x, y), seen = nn.Linear(1, 1), _records(), []

    def told(batch):
        x, y = batch
        return 0.0 * x.flatten(1)[:, :1] + torch.rand(len(x), 1), y

    def loss(batch):
        return (network(batch[0]) - batch[0]).square().sum(dim=1)

    with torch.no_grad():
        network.weight.fill_(0.0)
        network.bias.fill_(0.0)
    term = of_views(PerRecord(lambda lot, _: loss(lot.records)), Views(told, 1))
    for _ in range(2):
        found = term_gradients(network, term, Lot((x, y), (0, len(x))), PrivateStream(seed=3))
        seen += found.losses.sqrt().tolist()
    assert len({round(u, 5) for u in seen[:6]}) == 6 and all(0.0 < u < 1.0 for u in seen)


def test_noise_of_a_term_is_drawn_for_each_view():
    network, x = nn.Linear(2, 1, bias=False), torch.rand(4, 2)
    term = of_views(
        PerRecord(lambda lot, noise: (network(lot.records + noise)).square().sum(dim=1), noise=2), Views(lambda x: x, 3)
    )
    noise = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    found = term_gradients(network, term, Lot(x, (0, 4)), PrivateStream(seed=0), noise=noise)
    expected = network(x[:, None] + noise.view(4, 3, 2)).square().mean(dim=(1, 2))
    torch.testing.assert_close(found.losses, expected)


def test_an_augmentation_that_mixes_is_refused():
    """Mixup takes others of its batch: here they are copies of the record itself, which is not meant."""
    network, records = _network(), _records()

    def mixup(batch):
        return 0.5 * (batch[0] + batch[0].flip(0)), batch[1]

    with pytest.raises(ValueError, match="is another when a second record is beside it"):
        term_gradients(network, _term(network, Views(mixup, COUNT)), Lot(records, (0, 6)), PrivateStream(seed=0))


def test_a_loss_of_parameters_alone_is_said_so():
    network = nn.Linear(2, 1)
    term = of_views(PerRecord(lambda lot, _: network(lot.records).sum(dim=1)), Views(lambda x: torch.ones(len(x), 2), 2))
    with pytest.raises(ValueError, match="does not depend on both the records and the parameters"):
        term_gradients(network, term, Lot(torch.rand(4, 2), (0, 4)), PrivateStream(seed=0))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Views("flip", 2), "augment='flip': expected a function"),
        (lambda: Views(lambda x: x, 0), "multiplicity=0: expected a whole number"),
        (lambda: Views(lambda x: x, 2.0), r"multiplicity=2\.0: expected"),
        (
            lambda: Views(lambda x: x[:1], 2).losses(lambda x: x.sum(dim=1), torch.ones(3, 2)),
            "augment returned batches of 1",
        ),
        (lambda: Views(lambda x: [], 2).losses(lambda x: x, torch.ones(3, 2)), "batches of nothing: expected 6 views"),
        (lambda: Views(lambda x: (x, 1), 2).losses(lambda x: x, torch.ones(3, 2)), "no tensor"),
        (
            lambda: Views(lambda x: x, 2).losses(lambda x: x, torch.ones(3, 2)),
            r"6 views is \(6, 2\): expected their mean",
        ),
        (lambda: of_views(PerRecord(None, forms=lambda lot, noise: None), Views(lambda x: x, 2)), "closed form"),
        (
            lambda: _term(_network(), Views(lambda x: x, 2)).losses(Lot(_records(), (0, 3, 6)), torch.zeros(6, 0)),
            "views of a mixture",
        ),
    ],
)
def test_what_are_no_views_is_said(make, said):
    with pytest.raises(ValueError, match=said):
        make()

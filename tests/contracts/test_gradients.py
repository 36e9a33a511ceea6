"""Every engine gives the same per-record gradients, and without noise and bound a private step is a plain one."""

import pytest
import torch
from contracts.drawn import draw_of, drawn, handed
from contracts.laws.gradients import a_record_that_is_not_finite_adds_exact_zeros
from torch import nn

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.gradients.clipping import DPNorm, Fixed
from lightning_dpgen.gradients.engines import ENGINES, functional_gradients, ghost_gradients
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.gradients.terms import DataFree, PerRecord
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.sampling.lots import Lot


def _vae(k, classes, fixed_bias):
    generator = torch.Generator().manual_seed(1)
    network = StackedVAE(
        ImageSchema(3, 3, levels=1, classes=classes), k, hidden=5, latent=2, fixed_bias=fixed_bias, generator=generator
    ).double()
    if fixed_bias:
        network.output_bias.normal_(generator=generator)
    return network, network.term


class _Twice(nn.Module):
    """A layer that is called twice, on records of several positions, beside a frozen one."""

    def __init__(self):
        super().__init__()
        self.shared, self.frozen, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1, bias=False)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        x = x.view(len(x), 3, 3)
        return self.head(torch.tanh(self.shared(torch.tanh(self.frozen(self.shared(x)))))).sum(dim=(1, 2))


def _plain(make):
    torch.manual_seed(0)
    network = make().double()
    return network, PerRecord(lambda lot, noise: network(lot.records).reshape(len(lot)).square() + noise.sum(dim=1), 1)


NETWORKS = {
    "vae": lambda: _vae(1, 0, False),
    "mixture": lambda: _vae(3, 2, False),
    "fixed bias": lambda: _vae(3, 2, True),
    "mlp": lambda: _plain(lambda: nn.Sequential(nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 1))),
    "shared layer": lambda: _plain(_Twice),
}
OFFSETS = {"even": (0, 2, 4, 6), "empty components": (0, 0, 6, 6), "one record": (0, 0, 0, 1), "no record": (0, 0, 0, 0)}


def _lot(network, offsets):
    k = getattr(network, "k", 1)
    width = network.schema.layout.width if hasattr(network, "schema") else 9
    if k == 1:
        offsets = (0, offsets[-1])
    records = torch.rand(offsets[-1], width, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return Lot(records, offsets)


def _noise(lot, term):
    return torch.randn(len(lot), term.noise, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("offsets", OFFSETS.values(), ids=OFFSETS.keys())
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())
def test_ghost_equals_functional_and_plain_autograd(make, offsets):
    network, term = make()
    lot = _lot(network, offsets)
    noise = _noise(lot, term)
    parameters = [p for p in network.parameters() if p.requires_grad]
    ghost = ghost_gradients(network, term, lot, noise)
    losses = ghost.losses
    oracle = functional_gradients(network, term, lot, noise)
    oracle_losses = oracle.losses
    torch.testing.assert_close(losses, oracle_losses, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ghost.norms(), oracle.norms(), rtol=1e-5, atol=1e-7)
    weights = torch.rand(len(lot), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    sums = []
    for gradients in (ghost, oracle):
        buffer = GradientBuffer(parameters)
        buffer.flat.fill_(7.0)
        gradients.weighted_sum(weights, buffer.views)
        sums.append(buffer.flat)
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-10, atol=1e-12)
    if len(lot):
        plain = torch.autograd.grad((weights * term.loss(lot, noise)).sum(), parameters, allow_unused=True)
        plain = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, plain, strict=True)]
        torch.testing.assert_close(sums[0], torch.cat([g.flatten() for g in plain]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())
def test_without_noise_and_bound_it_is_gradient_descent(make, account_of):
    network, term = make()
    other, other_term = make()
    account = account_of({"norms": 0.0, "gradient": 0.0}, count=3)
    private = PrivateOptimizer(
        torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.1),
        account=account, clipping=DPNorm(c_max=1.0), expected_batch_size=5.0,
    )  # fmt: skip
    plain = torch.optim.SGD([p for p in other.parameters() if p.requires_grad], lr=0.1)
    lot = _lot(network, OFFSETS["even"])
    for _ in range(3):
        lot = drawn(account, lot.records, lot.offsets)
        noise = _noise(lot, term)
        private.set_gradients(ghost_gradients(network, term, lot, noise))
        private.step()
        plain.zero_grad()
        (other_term.loss(lot, noise).sum() / 5.0).backward()
        plain.step()
    for a, b in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("engine", [ghost_gradients, functional_gradients])
@pytest.mark.parametrize("make", [NETWORKS["mixture"], NETWORKS["mlp"]], ids=["mixture", "mlp"])
def test_a_record_put_in_front_changes_no_other_contribution(make, engine):
    """Bit for bit, one record at a time (a product over more rows may be blocked, and so rounded, differently);
    and to 1e-12 for the lot as a whole."""
    network, term = make()
    k = getattr(network, "k", 1)
    lot = _lot(network, OFFSETS["even"])
    front = Lot(torch.cat([torch.ones_like(lot.records[:1]), lot.records]), (0, *(o + 1 for o in lot.offsets[1:])))
    noise = _noise(lot, term)
    own = torch.cat([torch.full_like(noise[:1], 9.0), noise])
    norms = engine(network, term, lot, noise).norms()
    torch.testing.assert_close(engine(network, term, front, own).norms()[1:], norms, rtol=1e-6, atol=0)
    for i in range(len(lot)):
        c = next(c for c in range(k) if lot.offsets[c] <= i < lot.offsets[c + 1])
        alone = tuple(int(j > c) for j in range(k + 1))
        first = engine(network, term, Lot(lot.records[i : i + 1], alone), noise[i : i + 1]).norms()
        again = engine(network, term, Lot(front.records[i + 1 : i + 2], alone), own[i + 1 : i + 2]).norms()
        assert torch.equal(first, again)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_record_that_is_not_finite_adds_exact_zeros(engine, bad):
    a_record_that_is_not_finite_adds_exact_zeros(engine, bad)


def test_a_wrong_loss_is_named():
    lot = Lot(torch.rand(2, 1, 5), (0, 2))
    line = nn.Linear(5, 1)
    with pytest.raises(ValueError, match="one value for each record"):
        ghost_gradients(line, PerRecord(lambda lot, _: line(lot.records)), lot, torch.empty(2, 0))


def _one_step(account, clipping, gradients=None, **kwargs):
    weight = nn.Parameter(torch.zeros(4))
    optimizer = PrivateOptimizer(
        torch.optim.SGD([weight], lr=1.0), account=account, clipping=clipping, expected_batch_size=2.0, **kwargs
    )
    if gradients is not None:
        optimizer.expect(draw_of(account, len(gradients)))
        weight.grad_sample = gradients
    optimizer.step()
    return weight.detach(), optimizer


def test_grad_sample_of_opacus_is_taken_and_clipped(account_of):
    gradients = torch.tensor([[3.0, 0, 0, 0], [0, 0.5, 0, 0]])
    account = account_of({"gradient": 1e-6})  # almost no noise
    weight, optimizer = _one_step(account, Fixed(1.0), gradients)
    assert optimizer.last_bound == 1.0
    torch.testing.assert_close(weight, torch.tensor([-0.5, -0.25, 0, 0]), atol=1e-4, rtol=0)
    assert optimizer.noise_multiplier == account.plan.stages[0].access.multiplier


def test_empty_lot_is_noised_and_missing_gradients_are_named(account_of):
    weight, _ = _one_step(account_of({"gradient": 1.0}), Fixed(1.0), torch.zeros(0, 4))
    assert (weight != 0).all()
    with pytest.raises(RuntimeError, match="no per-record gradient"):
        _one_step(account_of({"gradient": 1.0}), Fixed(1.0))


def test_data_free_terms_are_neither_clipped_nor_noised(account_of):
    weight = nn.Parameter(torch.ones(4))
    term = DataFree(lambda: 50.0 * weight.square().sum())
    account = account_of({"gradient": 0.0})
    optimizer = PrivateOptimizer(
        torch.optim.SGD([weight], lr=1.0), account=account, clipping=Fixed(1.0), expected_batch_size=2.0, data_free=[term],
    )  # fmt: skip
    optimizer.set_gradients(handed(account, {weight: torch.zeros(0, 4)}))
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((4,), -99.0))

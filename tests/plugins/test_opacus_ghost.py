"""A loop written for Opacus' ghost clipping under an account, with the engine of this package."""

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_dpgen import Account, AccountEngine, Fixed, make_plan, release_weights, training_stage, verify
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import Poisson

N, STEPS = 80, 8
RECORDS = torch.randn(N, 6, generator=torch.Generator().manual_seed(1)), torch.arange(N) % 3


class Shared(nn.Module):
    """A layer that is used twice, whose norm is that of the sum of both uses, and dropout."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.drop, self.head = nn.Linear(6, 6), nn.Dropout(0.2), nn.Linear(6, 3)

    def forward(self, x, scale=1.0):
        return self.head(self.drop(self.inner(torch.tanh(self.inner(scale * x)))))


def _account():
    stage = training_stage(Fixed(1.0), n=N, sample_rate=0.25, steps=STEPS)
    return Account(make_plan([stage], epsilon=8.0, delta=1e-4))


def _made(account, network=None, **more):
    network = network or Shared()
    given = {"data_loader": DataLoader(TensorDataset(*RECORDS)), "max_grad_norm": 1.0, "grad_sample_mode": "ghost"}
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    return AccountEngine(account).make_private(module=network, optimizer=optimizer, **given | more)


def _loop(network, optimizer, criterion, loader):
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(network(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_loop_for_ghost_clipping_trains_and_is_released(tmp_path):
    account = _account()
    made = _made(account)
    losses = [loss for _ in range(2) for loss in _loop(*made)]
    assert len(losses) == STEPS
    account.verify_complete()
    release_weights(made[0].to_standard_module(), account, tmp_path / "release", data="rows")
    assert verify(tmp_path / "release").good
    assert next(iter(made[0].state_dict())) == "_module.inner.weight", "as Opacus' wrapper names it"


def test_gradients_are_those_of_each_record_alone():
    """With next to no noise, all records in the lot and no dropout: a layer used twice is clipped by its whole gradient."""
    torch.manual_seed(0)
    network = Shared()
    network.drop.p = 0.0
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    stage = Stage(Access("training", {"gradient": 1e-7}, Poisson(1.0)), 1, 1.0)
    account = Account(Plan((stage,), 1e3, 1e-5, n=N))
    expected = {name: torch.zeros_like(p) for name, p in before.items()}
    for x, y in zip(*RECORDS, strict=True):
        loss = nn.functional.cross_entropy(network(x[None]), y[None])
        gradient = torch.autograd.grad(loss, list(network.parameters()))
        factor = min(1.0, 0.5 / float(torch.cat([g.flatten() for g in gradient]).norm()))
        for name, g in zip(expected, gradient, strict=True):
            expected[name] += factor * g / N
    made = _made(account, network, max_grad_norm=0.5)
    _loop(*made)
    for name, p in network.named_parameters():
        torch.testing.assert_close((before[name] - p.detach()) / 0.1, expected[name], rtol=1e-3, atol=1e-4)


def test_parts_of_a_lot_are_one_step():
    whole, parts = _account(), _account()
    _loop(*_made(whole))
    made = _made(parts)
    with BatchMemoryManager(data_loader=made[3], max_physical_batch_size=5, optimizer=made[1]) as loader:
        _loop(*made[:3], loader)
    assert parts.ledger.count("training") == whole.ledger.count("training") == 4


def test_public_generators_stay_where_they_are():
    """A draw for each record would tell how many there were."""
    states = []
    for dropped in (0.0, 0.2):
        made = _made(_account())
        made[0].to_standard_module().drop.p = dropped
        torch.manual_seed(0)
        _loop(*made)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_a_module_in_eval_mode_is_called_as_it_is():
    network, *_ = _made(_account())
    network.eval()
    assert network(RECORDS[0]).requires_grad and network.last is None


def test_a_criterion_may_be_a_function_and_a_module_may_take_constants():
    account = _account()
    network, optimizer, criterion, loader = _made(
        account, criterion=lambda output, target: (output.softmax(dim=1)[:, 0] - target).square().mean()
    )
    for x, y in loader:
        optimizer.zero_grad()
        criterion(network(x, scale=2.0), y).backward()
        optimizer.step()
    assert account.ledger.count("training") == 4


def _first(made):
    return next(iter(made[3]))


def test_what_is_no_loss_of_the_batch_is_refused_before_it_is_charged():
    account = _account()
    network, _, criterion, _ = made = _made(account)
    x, y = _first(made)
    with pytest.raises(ValueError, match="criterion: expected what the module returned for this batch in training"):
        criterion(network(x).log_softmax(dim=1), y)
    with pytest.raises(ValueError, match="tensors of several lengths: expected one row for each record"):
        made = _made(account, criterion=lambda output, target, weight: (weight * output).sum())
        x, y = _first(made)
        made[2](made[0](x), y, torch.ones(3)).backward()
    assert not account.ledger.accesses


def test_one_backward_pass_pays_for_one_step():
    account = _account()
    network, optimizer, criterion, _ = made = _made(account)
    x, y = _first(made)
    loss = criterion(network(x), y)
    loss.backward()
    with pytest.raises(RuntimeError, match="a second backward pass before a step"):
        loss.backward()
    optimizer.step()
    with pytest.raises(LedgerError, match="no lot was drawn for this batch since the last step"):
        criterion(network(x), y).backward()
    assert account.ledger.count("training") == 1


def test_more_records_than_the_lot_has_are_refused():
    account = _account()
    network, _, criterion, _ = made = _made(account)
    x, y = _first(made)
    with pytest.raises(ValueError, match="more records than were drawn"):
        criterion(network(torch.cat([x, x])), torch.cat([y, y])).backward()
    assert not account.ledger.accesses


def test_a_loss_that_compares_records_is_refused():
    def contrast(output, target):
        codes = output @ output.T
        return nn.functional.cross_entropy(codes, torch.arange(len(codes)))

    account = _account()
    network, _, criterion, _ = made = _made(account, criterion=contrast)
    x, y = _first(made)
    with pytest.raises(ValueError, match="another when a second record is beside it"):
        criterion(network(x), y).backward()
    assert not account.ledger.accesses


def test_layers_that_mix_records_are_refused():
    with pytest.raises(ValueError, match=r"BatchNorm1d.* mixes the records of a lot"):
        _made(_account(), nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))

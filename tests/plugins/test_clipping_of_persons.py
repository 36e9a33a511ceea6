"""Persons whose gradients are clipped once, in a fit of anybody's module and in a loop written for Opacus."""

import json
import math

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from contracts.threads import together
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_dpgen import (
    Account,
    AccountEngine,
    DPNorm,
    Fixed,
    PerGroup,
    PerRecord,
    PoissonLots,
    PrivateOptimizer,
    PrivateTraining,
    term_gradients,
    verify,
)
from lightning_dpgen.clipping import PerPerson
from lightning_dpgen.gradients.factors import Dense, RankOne
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.release.files import CERTIFICATE

pytestmark = pytest.mark.filterwarnings("ignore")

N, STEPS, MOST = 120, 6, 3
RECORDS = torch.rand(N, 4, generator=torch.Generator().manual_seed(0))
PERSONS = np.arange(N) % (N // MOST)
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class Plain(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4))

    def training_step(self, batch, batch_idx):
        return (self.net(batch) - batch).square().sum(dim=1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class InGroups(Plain):
    def training_step(self, batch, batch_idx):
        loss = lambda lot, _, groups: groups.gather(self.net(lot.records)).sum(dim=(1, 2))  # noqa: E731
        return [PerRecord(lambda lot, _: self.net(lot.records).square().sum(dim=1)), PerGroup(loss, 4, places=N)]


def _fitted(kind=Plain, **changes):
    given = {"n": N, "epsilon": 8.0, "delta": 1e-4, "sample_rate": 0.4, "steps": STEPS, "stream": PrivateStream(seed=1)}
    private = PrivateTraining(RECORDS, **given | {"persons": PERSONS, "max_rows": MOST} | changes)
    model = kind()
    trainer = pl.Trainer(callbacks=[private.callback()], accelerator="cpu", **QUIET)
    trainer.fit(model, private.loader())
    return private, model


def _numbers(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (Plain, {"clipping": PerPerson(DPNorm(c_max=8.0)), "micro_batch": 7}),
        (Plain, {"clipping": PerPerson(Fixed(1.0)), "engine": "func"}),
        (Plain, {"clipping": PerPerson(Fixed(1.0)), "augment": lambda x: x + torch.rand_like(x), "multiplicity": 2}),
        (InGroups, {"clipping": [PerPerson(Fixed(1.0)), Fixed(1.0)]}),
        (InGroups, {"clipping": [Fixed(1.0), PerPerson(Fixed(1.0))]}),
    ],
    ids=["in parts", "func", "views", "groups", "groups of persons"],
)
def test_a_module_is_fitted(kind, changes):
    private, model = _fitted(kind, **changes)
    assert private.account.finished and torch.isfinite(_numbers(model)).all()


def test_the_release_is_about_persons(tmp_path):
    private, model = _fitted(clipping=PerPerson(Fixed(1.0)), stream=None)
    private.release(model, tmp_path / "release")
    certificate = json.loads((tmp_path / "release" / CERTIFICATE).read_text())
    assert certificate["unit"] == "one person" and certificate["declared"]["max_rows"] == MOST
    assert verify(tmp_path / "release").good
    assert private.plan == _fitted(clipping=Fixed(1.0))[0].plan


def test_parts_of_a_lot_are_the_lot():
    given = {"epsilon": math.inf, "sample_rate": 1.0, "clipping": PerPerson(DPNorm(c_max=0.5))}
    whole, parts = (_numbers(_fitted(**given, micro_batch=size)[1]) for size in (None, 7))
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)


def _account(rate=0.5, noise=1e-9):
    stage = Stage(Access("training", {"gradient": noise}, Poisson(rate)), STEPS, 1.0)
    return Account(Plan((stage,), 1e3, 1e-5, max_rows=MOST), stream=PrivateStream(seed=2))


def _linear():
    network = nn.Linear(4, 2)
    with torch.no_grad():
        network.weight.copy_(torch.linspace(-1.0, 1.0, 8).view(2, 4))
        network.bias.fill_(0.3)
    return network


def _optimizer(network, account):
    return PrivateOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1),
        account=account,
        clipping=PerPerson(Fixed(0.5)),
        expected_batch_size=9,
    )


def _stepped(account):
    """Return the weights after all steps, with lots of `PoissonLots` and gradients in closed form."""
    network = _linear()
    optimizer, lots = _optimizer(network, account), PoissonLots(RECORDS, account, persons=PERSONS)

    optimizer.rehearse()

    def forms(lot, noise):
        slopes = 2.0 * network(lot.records).detach()
        return {network.weight: RankOne(slopes, lot.records, (2, 4)), network.bias: Dense(slopes)}, lambda: None

    for _ in range(STEPS):
        lot = lots.draw()
        term = PerRecord(None, forms=forms)
        # The term draws nothing, and the private stream has to stay where it is.
        optimizer.set_gradients(term_gradients(network, term, lot, PrivateStream(seed=0), noise=torch.empty(len(lot), 0)))
        optimizer.step()
    return _numbers(network)


@pytest.mark.parametrize("size", [None, 8], ids=["whole lots", "BatchMemoryManager"])
def test_a_loop_of_opacus_clips_persons(size):
    account, network = _account(), _linear()
    module, optimizer, loader = AccountEngine(account).make_private(
        module=network,
        optimizer=_optimizer(network, account),
        data_loader=DataLoader(TensorDataset(RECORDS), batch_size=8),
        persons=PERSONS,
    )

    def loop(batches):
        while account.remaining("training"):
            for (rows,) in batches:
                optimizer.zero_grad()
                module(rows).square().sum(dim=1).mean().backward()
                optimizer.step()

    if size is None:
        loop(loader)
        torch.testing.assert_close(_numbers(network), _stepped(_account()), rtol=1e-4, atol=1e-5)
        return
    with (
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=size, optimizer=optimizer) as parts,
        pytest.raises(ValueError, match="persons of these are not known"),
    ):
        loop(parts)
    assert not account.ledger.accesses


def test_ranks_step_as_one_does():
    """Each person is in one rank, so the sum over ranks is that of one."""

    def work(ranks):
        account = _account(rate=1.0)
        account.join(ranks)
        return _stepped(account)

    (alone,), both = together(1, work), together(2, work)
    torch.testing.assert_close(both[0], alone, rtol=1e-4, atol=1e-5)
    assert torch.equal(*both)


def test_lots_that_workers_fetch_know_their_persons():
    alone, fetched = (list(PoissonLots(RECORDS, _account(), persons=PERSONS).draws(3, workers)) for workers in (0, 1))
    for one, other in zip(alone, fetched, strict=True):
        assert torch.equal(one.records, other.records) and torch.equal(one.persons, other.persons)

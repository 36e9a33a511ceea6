"""The number of records, the rate and the stage are said once, in the plan: all other parts take them from there."""

import json
from dataclasses import replace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_dpgen import (
    VAE,
    Account,
    AccountEngine,
    Fixed,
    ImageSchema,
    MomentsAccountant,
    PerRecord,
    PoissonLots,
    PrivateOptimizer,
    PrivateSplitDataModule,
    SplitSettings,
    StageSpec,
    encode_images,
    make_plan,
    poisson_loader,
    release_mixture,
    release_weights,
    term_gradients,
    training_stage,
)
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.plugins import PrivateProgress
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.planning.stage_spec import declared_records
from lightning_dpgen.privacy.sampling.samplers import Poisson

pytestmark = pytest.mark.filterwarnings("ignore")

N, RATE, STEPS = 100, 0.3, 4
RECORDS = torch.rand(N, 3, generator=torch.Generator().manual_seed(0))
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def _account(*stages):
    stages = stages or ("training",)
    share, own = None if len(stages) == 1 else 1.0 / len(stages), {"n": N, "sample_rate": RATE, "steps": STEPS}
    specs = [training_stage(Fixed(1.0), **own, share=share, stage=stage) for stage in stages]
    return Account(make_plan(specs, epsilon=8.0, delta=1e-5))


def _without_a_number():
    """Return an account whose plan was made by hand, with no number of records."""
    spec = StageSpec("training", {"gradient": 1.0}, STEPS, max_noise=RATE * N, sampler=Poisson(RATE))
    return Account(make_plan([spec], epsilon=8.0, delta=1e-5))


def _optimizer(account, **options):
    return PrivateOptimizer(
        torch.optim.SGD(nn.Linear(3, 1).parameters(), lr=0.1), account=account, clipping=Fixed(1.0), **options
    )


def test_the_divisor_is_the_plans():
    assert _optimizer(_account()).expected_batch_size == RATE * N
    assert _optimizer(_account(), expected_batch_size=30.000001).expected_batch_size == 30.000001, "rounding"
    assert _optimizer(_without_a_number(), expected_batch_size=7.0).expected_batch_size == 7.0


@pytest.mark.parametrize("size", [29.0, 31.0, RATE * (N + 1), 3000.0])
def test_another_divisor_is_refused(size):
    with pytest.raises(ValueError, match=r"the plan says sample_rate \* n = 0\.3 \* 100 = 30: leave it out"):
        _optimizer(_account(), expected_batch_size=size)


@pytest.mark.parametrize("size", [0.0, -1.0, float("nan"), float("inf")])
def test_a_divisor_is_a_positive_number(size):
    with pytest.raises(ValueError, match=r"^expected_batch_size=.*: expected a number above 0"):
        _optimizer(_without_a_number(), expected_batch_size=size)


def test_a_plan_without_a_number_needs_it_from_elsewhere(tmp_path):
    account, network = _without_a_number(), nn.Linear(3, 1)
    with pytest.raises(ValueError, match="expected_batch_size=None: the plan has no number of records"):
        _optimizer(account)
    with pytest.raises(ValueError, match="n=None: the plan has no number of records"):
        release_weights(network, account, tmp_path / "release", data="rows")


def test_two_trainings_share_a_plan():
    account = _account("first", "second")
    for stage in ("first", "second"):
        network = nn.Linear(3, 1)
        optimizer = PrivateOptimizer(
            torch.optim.SGD(network.parameters(), lr=0.1), account=account, clipping=Fixed(1.0), stage=stage
        )
        lots, before = PoissonLots(RECORDS, account, stage=stage), network.weight.detach().clone()
        term = PerRecord(lambda lot, _, network=network: network(lot.records).square().sum(dim=1))
        for _ in range(STEPS):
            optimizer.set_gradients(term_gradients(network, term, lots.draw(), account.stream))
            optimizer.step()
        assert (network.weight != before).all()
    account.verify_complete()


NUMBERS = [np.int64(N), np.uint8(N), torch.tensor(N), N]


@pytest.mark.parametrize("n", NUMBERS, ids=lambda n: type(n).__name__)
def test_a_number_of_records_is_any_integer(n):
    """A length of numpy's is one, and the plan holds it as an int, which a ledger can write."""
    spec = training_stage(Fixed(1.0), n=n, sample_rate=RATE, steps=np.int32(STEPS))
    plan = make_plan([spec], epsilon=8.0, delta=1e-5, max_rows=np.int64(1))
    assert [type(number) for number in (plan.n, plan.max_rows, plan.stages[0].count)] == [int] * 3
    assert plan == _account().plan and json.dumps(plan.as_json())
    assert type(declared_records(plan, n)) is type(declared_records(_without_a_number().plan, n)) is int


@pytest.mark.parametrize("n", [True, np.bool_(True), 100.0, "100", 0, -1, [100]], ids=repr)
def test_anything_else_is_no_number_of_records(n):
    plan = _account().plan
    for take in (
        lambda: training_stage(Fixed(1.0), n=n, sample_rate=RATE, steps=STEPS),
        lambda: declared_records(plan, n),
        lambda: declared_records(_without_a_number().plan, n),
        lambda: replace(plan, n=n),
    ):
        with pytest.raises(ValueError, match=r"n=.*: expected a whole number of records, 1 or more"):
            take()


def test_an_opacus_loop_asks_the_plan():
    def made(**options):
        network = nn.Linear(3, 1)
        return AccountEngine(_account()).make_private(
            module=network,
            optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(RECORDS)),
            **options,
        )

    assert made(max_grad_norm=1.0)[1].expected_batch_size == RATE * N
    with pytest.raises(ValueError, match="the plan says sample_rate"):
        made(max_grad_norm=1.0, expected_batch_size=50)
    with pytest.raises(ValueError, match="max_grad_norm=None: expected the bound"):
        made()


def test_other_numbers_of_records_are_refused(tmp_path):
    schema, split = ImageSchema(2, 2, levels=1), SplitSettings(k=2, iterations=1, features=4)
    training = training_stage(Fixed(1.0), n=60, sample_rate=0.5, steps=STEPS)
    account = Account(make_plan([*split.specs(60), training], epsilon=20.0, delta=1e-5))
    records = encode_images(torch.zeros(60, 2, 2).numpy(), None, schema)
    model = VAE(schema, account, Fixed(1.0), k=2, hidden=3, latent=1)
    assert model.n == PrivateSplitDataModule(records, split, account).n == 60
    assert model.configure_optimizers().expected_batch_size == 30.0
    for wrong in (
        lambda: VAE(schema, account, Fixed(1.0), n=61, k=2, hidden=3, latent=1),
        lambda: PrivateSplitDataModule(records, split, account, n=61),
        lambda: release_weights(nn.Linear(3, 1), account, tmp_path / "release", data="rows", n=61),
        lambda: release_mixture(
            Mixture(model.network, torch.ones(2) / 2, account.ledger.run), account, tmp_path / "release", data="rows", n=61
        ),
    ):
        with pytest.raises(ValueError, match="n=61: the plan was made for n=60 records: leave n out"):
            wrong()
    assert not account.ledger.accesses and not (tmp_path / "release").exists()


class Two(pl.LightningModule):
    """A module that is trained in two stages."""

    def __init__(self, account, stage):
        super().__init__()
        self.account, self.stage, self.layer = account, stage, nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().sum(dim=1)

    def configure_optimizers(self):
        inner = torch.optim.SGD(self.parameters(), lr=0.1)
        return PrivateOptimizer(inner, account=self.account, clipping=Fixed(1.0), stage=self.stage)


def _trainer(account, stage, *more):
    return pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[MomentsAccountant(account, stage=stage), *more], **QUIET)


def test_a_plan_may_have_two_stages_of_training():
    account = _account("first", "second")
    for stage in ("first", "second"):
        trainer = _trainer(account, stage)
        trainer.callbacks.append(PrivateProgress(trainer.callbacks[0]))
        trainer.fit(Two(account, stage), poisson_loader(RECORDS, account, stage=stage))
        assert trainer.callbacks[0].complete and account.remaining(stage) == 0
    assert account.finished


def test_parts_of_different_stages_are_refused():
    account = _account("first", "second")
    with pytest.raises(MisconfigurationException, match="steps for stage='second', and the MomentsAccountant"):
        _trainer(account, "first").fit(Two(account, "second"), poisson_loader(RECORDS, account, stage="second"))
    with pytest.raises(LedgerError, match="were drawn for stage 'second'"):
        _trainer(account, "first").fit(Two(account, "first"), poisson_loader(RECORDS, account, stage="second"))
    assert not account.ledger.accesses


STAGED = {
    "optimizer": lambda account: _optimizer(account, stage="tuning"),
    "loader": lambda account: poisson_loader(RECORDS, account, stage="tuning"),
    "engine": lambda account: AccountEngine(account, stage="tuning"),
    "callback": lambda account: MomentsAccountant(account, stage="tuning"),
}


@pytest.mark.parametrize("part", STAGED.values(), ids=STAGED.keys())
def test_a_stage_that_the_plan_does_not_have_is_refused_and_told_which_it_has(part):
    with pytest.raises(ValueError, match=r"^stage='tuning': the plan has the stages \['first', 'second'\]$"):
        part(_account("first", "second"))

"""A fit that would break its promise is refused, and nothing has been spent by then."""

import functools
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from opacus.optimizers import DPOptimizer
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn

from lightning_dpgen import (
    RBM,
    VAE,
    Account,
    DPNorm,
    Fixed,
    ImageSchema,
    MomentsAccountant,
    PrivateSplitDataModule,
    SplitSettings,
    StageSpec,
    encode_images,
    make_plan,
    poisson_loader,
)
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.sampling.errors import BadRecords

pytestmark = pytest.mark.filterwarnings("ignore")

SCHEMA = ImageSchema(2, 2, levels=1)
SPLIT, N = SplitSettings(k=2, iterations=1, features=4), 60


@functools.cache
def _plan():
    training = StageSpec("training", DPNorm(5.0).noise_shares | {"gradient": 0.95}, 4, max_noise=N, sampler=Poisson(0.5))
    return make_plan([*SPLIT.specs(N), training], epsilon=20.0, delta=1e-5)


def _account():
    return Account(_plan())


def _parts(account, *, k=2, rule=None, **options):
    records = encode_images(torch.arange(N * 4).view(N, 2, 2).remainder(2).numpy(), None, SCHEMA)
    module = VAE(SCHEMA, account, rule or DPNorm(5.0), n=N, k=k, hidden=3, latent=1)
    trainer = pl.Trainer(
        **{"callbacks": [MomentsAccountant(account)], "accelerator": "cpu", "max_epochs": 1} | options,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return trainer, module, PrivateSplitDataModule(records, SPLIT, account, n=N)


REFUSED = {
    "no accountant": ({"callbacks": []}, "MomentsAccountant"),
    "another precision": ({"precision": "bf16-true"}, "precision='bf16-true'"),
    "accumulation": ({"accumulate_grad_batches": 2}, "accumulate_grad_batches=2"),
    "clipping of sums": ({"gradient_clip_val": 1.0}, "gradient_clip_val=1.0"),
    "the same batch again": ({"overfit_batches": 1}, "overfit_batches"),
}


@pytest.mark.parametrize(("options", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_breaks_the_promise_costs_nothing(options, words):
    account = _account()
    trainer, module, data = _parts(account, **options)
    with pytest.raises(MisconfigurationException, match=words):
        trainer.fit(module, data)
    assert account.ledger.accesses == []


def test_parts_must_share_one_account():
    account = _account()
    trainer, module, data = _parts(account, callbacks=[MomentsAccountant(_account())])
    with pytest.raises(MisconfigurationException, match="different accounts"):
        trainer.fit(module, data)
    assert account.ledger.accesses == []


def test_as_many_components_as_clusters():
    account = _account()
    trainer, module, data = _parts(account, k=3)
    with pytest.raises(MisconfigurationException, match="k=3 components and the split k=2"):
        trainer.fit(module, data)
    assert account.ledger.accesses == []


LAYERS = {
    "batch norm": (nn.BatchNorm1d(3), "GroupNorm"),
    "batch norm without weights": (nn.BatchNorm1d(3, affine=False), "GroupNorm"),
    "batch norm, and what leaves it": (nn.BatchNorm1d(3), r"eval\(\) and requires_grad_\(False\)"),
    "batch norm without statistics": (nn.BatchNorm1d(3, track_running_stats=False).eval(), "in either mode"),
    "running statistics": (nn.InstanceNorm1d(3, track_running_stats=True), "track_running_stats=False"),
}


@pytest.mark.parametrize(("layer", "words"), LAYERS.values(), ids=LAYERS.keys())
def test_layers_that_mix_records(layer, words):
    account = _account()
    trainer, module, data = _parts(account)
    module.extra = layer
    with pytest.raises(MisconfigurationException, match=words):
        trainer.fit(module, data)
    assert account.ledger.accesses == []


def test_a_checkpoint_does_not_bring_its_spending_along(tmp_path):
    first, module, data = _parts(_account())
    first.fit(module, data)
    first.save_checkpoint(tmp_path / "x.ckpt")
    account = _account()
    trainer, module, data = _parts(account, max_epochs=3)
    with pytest.raises(MisconfigurationException, match="not of the run"):
        trainer.fit(module, data, ckpt_path=tmp_path / "x.ckpt")
    assert account.ledger.accesses == []


def test_a_finished_plan_fits_no_second_time():
    account = _account()
    trainer, module, data = _parts(account)
    trainer.fit(module, data)
    assert account.remaining("training") == 0
    trainer, module, data = _parts(account)
    with pytest.raises(MisconfigurationException, match="have been made"):
        trainer.fit(module, data)


FAMILIES = {
    "dense": lambda *given, **named: VAE(*given, **named, latent=1),
    "trunk": lambda *given, **named: VAE(*given, **named, latent=1, trunk=True),
    "rbm": RBM,
}


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_precision_that_is_allowed_ends_in_a_mixture(family, precision):
    account = _account()
    trainer, _, data = _parts(account, precision=precision)
    module = FAMILIES[family](SCHEMA, account, DPNorm(5.0), n=N, k=2, hidden=3)
    trainer.fit(module, data)
    assert account.remaining("training") == 0
    assert len(module.mixture().sample(7, torch.Generator().manual_seed(0))) == 7


def test_a_datamodule_that_could_not_be_used_costs_nothing(tmp_path):
    account = _account()
    records = encode_images(torch.zeros(N, 2, 2).numpy(), None, SCHEMA)
    for wrong, words in (
        ({"n": 0}, "n=0: expected"),
        ({"n": float("nan")}, "n=nan: expected"),
        ({"block": -1}, "block=-1: expected"),
        ({"block": 2.0}, "block=2.0: expected"),
        ({"keep": tmp_path / "nowhere" / "split.pt"}, "there is no folder"),
    ):
        with pytest.raises(ValueError, match=words):
            PrivateSplitDataModule(records, SPLIT, account, **{"n": N} | wrong)
    with pytest.raises(LedgerError, match="holds 1 accesses 'clustering', and these settings of the split need 2"):
        PrivateSplitDataModule(records, replace(SPLIT, iterations=2), account, n=N)
    with pytest.raises(LedgerError, match="holds 0 accesses 'feature moments'"):
        PrivateSplitDataModule(records, SPLIT, Account(make_plan([_plan_spec()], epsilon=1.0, delta=1e-5)), n=N)
    assert not account.ledger.accesses
    PrivateSplitDataModule(records, SPLIT, account, n=np.int64(N))


def _plan_spec():
    return StageSpec("training", {"gradient": 1.0}, 4, max_noise=N, sampler=Poisson(0.5))


def test_more_clusters_than_the_budget_carries_are_spoken_of():
    specs = [*SPLIT.specs(N), _plan_spec()]
    for epsilon, said in ((1.0, True), (float("inf"), False)):
        account = Account(make_plan(specs, epsilon=epsilon, delta=1e-5))
        trainer, _, data = _parts(account, rule=Fixed(1.0))
        data.trainer = trainer
        trainer.strategy._lightning_module = VAE(SCHEMA, account, Fixed(1.0), n=N, k=2, hidden=3, latent=1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            data.setup("fit")
        assert any("expect clusters by chance" in str(each.message) for each in caught) == said


def test_a_fit_that_was_interrupted_goes_on_with_what_is_left():
    class Stop(pl.Callback):
        def on_train_batch_end(self, *_):
            raise RuntimeError("stop")

    account = _account()
    trainer, module, data = _parts(account, callbacks=[MomentsAccountant(account), Stop()])
    data.block = 3
    with pytest.raises(RuntimeError, match="stop"):
        trainer.fit(module, data)
    bias = module.network.output_bias.clone()
    trainer, *_ = _parts(account)
    trainer.fit(module, data)
    assert account.remaining("training") == 0 and trainer.callbacks[0].complete
    assert torch.equal(bias, module.network.output_bias)


NONE = np.zeros((5, 0), np.uint8)


@pytest.mark.parametrize("value", [3e38, -0.1, float("nan"), float("inf")])
def test_records_outside_their_range_are_refused_before_the_split(value):
    units = np.zeros((5, 4), np.float32)
    units[2, 1] = value
    real = SimpleNamespace(layout=Layout(units=4))
    with pytest.raises(BadRecords, match=r"outside \[0, 1\]"):
        Records(real, Encoded(units, NONE))
    with pytest.raises(BadRecords, match="whole numbers with them"):
        Records(SCHEMA, Encoded(units, NONE))
    with pytest.raises(BadRecords, match=r"expected \(N, 4\) and \(N, 0\)"):
        Records(SCHEMA, Encoded(np.zeros((5, 3), np.uint8), NONE))
    chosen = SimpleNamespace(layout=Layout(units=0, groups=(3,)))
    with pytest.raises(BadRecords, match="number of choices"):
        Records(chosen, Encoded(np.zeros((1, 0), np.float32), np.array([[3]])))


def test_an_optimizer_with_noise_of_its_own_is_refused():
    """No account could state the epsilon of noise that is in no ledger."""
    spec = StageSpec("training", {"gradient": 1.0}, 2, max_noise=50, sampler=Poisson(0.5), n=N)
    account = Account(make_plan([spec], epsilon=4.0, delta=1e-5))

    class Noisy(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 1)

        def training_step(self, batch, batch_idx):
            return self.net(batch).mean()

        def configure_optimizers(self):
            inner = torch.optim.SGD(self.parameters(), lr=0.1)
            return DPOptimizer(inner, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=30)

    trainer = pl.Trainer(callbacks=[MomentsAccountant(account)], logger=False, enable_checkpointing=False)
    with pytest.raises(MisconfigurationException, match="DPOptimizer of Opacus, whose noise stands in no ledger"):
        trainer.fit(Noisy(), poisson_loader(torch.rand(N, 3), account))
    assert not account.ledger.accesses


def test_a_split_alone_knows_its_number_of_records():
    """The plan of a split is made for it, so the datamodule is not told a second time."""
    account = Account(make_plan(SPLIT.specs(N), epsilon=4.0, delta=1e-5))
    assert account.plan.n == N
    records = encode_images(np.zeros((N, 2, 2), int), None, SCHEMA)
    datamodule = PrivateSplitDataModule(records, SPLIT, account)
    datamodule.setup("fit")
    assert datamodule.split is None and not account.ledger.accesses
    assert datamodule.make_split() is datamodule.split and datamodule.split.means.shape == (2, 4)
    account.verify_complete()

"""Figures of PriVAE: every variant has a plan within its budget, and the other aggregations train as they say."""

from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from experiments.privae import fashion as privae_fashion
from experiments.privae import pinwheel
from experiments.privae.aggregations import BatchVAE, train_micro
from lightning_dpgen import (
    Account,
    Fixed,
    MomentsAccountant,
    PrivateSplitDataModule,
    SplitSettings,
    encode_images,
    make_plan,
    training_stage,
)
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.specs.settings import load_complete_settings

SCHEMA, N, STEPS, BOUND = ImageSchema(2, 2, levels=255), 60, 3, 0.5


@pytest.mark.parametrize("name", pinwheel.VARIANTS)
def test_a_variant_of_the_pinwheel_spends_its_budget(name):
    plan = load_complete_settings(pinwheel.VARIANTS[name]).plan()
    assert plan.private is ("not private" not in name)
    assert not plan.private or (2.8 < plan.epsilon <= 2.87 and plan.delta == 1e-4)


@pytest.mark.parametrize("name", [*privae_fashion.PRIVATE, *privae_fashion.TWINS])
def test_a_variant_of_the_pictures_spends_its_budget(name):
    if name in privae_fashion.TWINS:
        assert not load_complete_settings(privae_fashion.TWINS[name]).plan().private
        return
    asked = load_complete_settings([*privae_fashion.PRIVATE[name], "privacy.epsilon=4"])
    plan = asked.plan()
    assert 3.9 < plan.epsilon <= 4.0 and plan.delta == 1e-5 and asked.spec.data.classes == 0


def test_points_without_a_term_are_trained_as_with_it_but_for_that():
    for with_it, without in (("faithful, KL", "faithful, without"), ("best, mmd", "best, without")):
        pair = [load_complete_settings(pinwheel.VARIANTS[name]).spec.model for name in (with_it, without)]
        differ = {key for key in type(pair[0]).model_fields if getattr(pair[0], key) != getattr(pair[1], key)}
        assert "divergence" in differ and differ <= {
            *(name for names in pinwheel.TERM.values() for name in names), "beta", "noise", "divergence_averaging",
        }  # fmt: skip


def test_a_lot_as_one_group_is_noised_for_twice_its_bound(monkeypatch):
    declared, gaussian = [], mechanisms.gaussian

    def noted(access, name, values, *, sensitivity, **given):
        declared.append((name, sensitivity))
        return gaussian(access, name, values, sensitivity=sensitivity, **given)

    monkeypatch.setattr("lightning_dpgen.gradients.privatize.gaussian", noted)
    stage = training_stage(Fixed(BOUND), n=N, sample_rate=0.5, steps=STEPS)
    split = SplitSettings(k=1)
    account = Account(
        make_plan([*split.specs(N, means=False), stage], epsilon=20.0, delta=1e-5), stream=PrivateStream(seed=0)
    )
    module = BatchVAE(SCHEMA, account, Fixed(BOUND), n=N, k=1, hidden=3, latent=2, bias="zero", weight=5.0, prior_scale=0.1)
    trainer = pl.Trainer(
        callbacks=[MomentsAccountant(account)], accelerator="cpu", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    records = encode_images(torch.arange(N * 4).view(N, 2, 2).remainder(256).numpy(), None, SCHEMA)
    trainer.fit(module, PrivateSplitDataModule(records, split, account, n=N, block=4))
    account.verify_complete()
    # A rehearsal before the fit, without records, is first.
    assert declared[1:] == [("gradient", 2.0 * BOUND)] * STEPS


def test_micro_aggregation_moves_no_further_than_its_bound():
    network = StackedVAE(SCHEMA, 1, hidden=3, latent=2, generator=torch.Generator().manual_seed(0))
    first = torch.nn.utils.parameters_to_vector(network.parameters()).detach().clone()
    records = torch.rand(20, 4, generator=torch.Generator().manual_seed(1))
    train_micro(network, records, batch=5, steps=4, bound=0.01, rate=0.1, weight=10.0, seed=0)
    moved = torch.nn.utils.parameters_to_vector(network.parameters()).detach() - first
    assert 0.5 * 4 * 0.1 * 0.01 < float(moved.norm()) <= 4 * 0.1 * 0.01 * (1.0 + 1e-5)


def test_batch_aggregation_is_trained_by_the_program_and_read_again(monkeypatch, tmp_path):
    """One lot of digits in place of 2,350 of pictures."""
    monkeypatch.syspath_prepend(str(Path(privae_fashion.__file__).parent))
    short = ["data=digits", "data.classes=0", "data.n=1500", "model.steps=1", "rows=5", "trainer.accelerator=cpu"]
    monkeypatch.setitem(privae_fashion.PRIVATE, "batch aggregation", [*privae_fashion._BATCH, *short])
    network = privae_fashion.trained(tmp_path, "batch aggregation", 4.0, 0)
    assert isinstance(network, StackedVAE) and network.latent == 50

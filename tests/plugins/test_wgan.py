"""The module of adversarial networks: public steps of generators, their average, bounded weights, terms without noise."""

import math

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from marks import only

from lightning_dpgen import (
    WGAN,
    Account,
    Fixed,
    MomentsAccountant,
    PrivateSplitDataModule,
    SplitSettings,
    encode_images,
    make_plan,
    training_stage,
)
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.privacy.noise.stream import PrivateStream

pytestmark = pytest.mark.filterwarnings("ignore")

SCHEMA, N, STEPS = ImageSchema(2, 2, levels=1, classes=2), 80, 12
SERIES = SeriesSchema(7, 0.0, 1.0)
SPLIT = SplitSettings(k=2, iterations=1, features=4, dimensions=2)


def _pictures():
    pixels = torch.arange(N * 4).view(N, 2, 2).remainder(3).clamp(max=1).numpy()
    return encode_images(pixels, torch.arange(N).remainder(2).numpy(), SCHEMA)


def _series():
    readings = torch.rand(N, 7, generator=torch.Generator().manual_seed(0)).numpy()
    return Records(SERIES, Encoded(readings, np.zeros((N, 0), np.uint8)))


def _fitted(epsilon=20.0, schema=SCHEMA, **given):
    stage = training_stage(Fixed(1.0), n=N, sample_rate=0.5, steps=STEPS)
    account = Account(make_plan([*SPLIT.specs(N), stage], epsilon=epsilon, delta=1e-5), stream=PrivateStream(seed=0))
    records = _pictures() if schema is SCHEMA else _series()
    module = WGAN(schema, account, Fixed(1.0), n=N, k=2, hidden=4, latent=2, critic_steps=3, made=8, **given)
    trainer = pl.Trainer(
        callbacks=[MomentsAccountant(account)], accelerator="cpu", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, PrivateSplitDataModule(records, SPLIT, account, n=N, block=4))
    return module


FORMS = {
    "default": {},
    "clip": {"loss": "wgan_clip", "weight_bound": 0.02},
    "vanilla": {"loss": "vanilla"},
    "data free": {"generated": "data_free"},
    "data free clip": {"generated": "data_free", "loss": "wgan_clip"},
    "sgd": {"optimizer": "sgd", "momentum": 0.5},
    "average": {"averaging": 0.9},
    "conditional": {"conditional": True},
    "drawn": {"sampling": "straight_through", "layers": 1},
    "recurrent, beside convolutions": {"schema": SERIES, "network": "lstm", "critic": "conv"},
}


@pytest.mark.parametrize("given", only(FORMS, "default", "data free clip", "conditional", "drawn"))
def test_every_form_trains_both_networks_and_spends_its_plan(given):
    module = _fitted(**given)
    assert module.account.finished
    made = module.mixture().sample(50, torch.Generator().manual_seed(0))
    assert len(made) == 50
    assert all(torch.isfinite(p).all() for p in module.parameters())
    if given.get("loss") == "wgan_clip":
        bound = given.get("weight_bound", 0.01)
        assert max(float(p.abs().max()) for p in module.critic.parameters()) <= bound + 1e-9


def test_a_term_without_noise_is_weighed_as_the_records_are():
    """Without privacy and clipping, the two forms of a Wasserstein loss without penalty have one gradient on average."""
    module = _fitted(epsilon=math.inf, generated="data_free", loss="wgan_clip")
    critic, k = module.critic, 2
    codes = torch.randn(k * 4000, module.network.code, generator=torch.Generator().manual_seed(0))
    offsets, weights = (0, 4000, 8000), torch.tensor([0.25, 0.75])
    (term,) = critic.public_terms(codes, offsets, weights)
    made = module.network(codes, offsets).detach()
    scores = critic(made, offsets)
    expected = 0.25 * scores[:4000].mean() + 0.75 * scores[4000:].mean()
    torch.testing.assert_close(term.loss(), expected)


BAD = {
    "averaging": ({"averaging": 1.0}, "averaging=1.0: expected a number from 0, below 1"),
    "weight_bound": ({"weight_bound": 0.0}, "weight_bound=0.0: expected a number above 0"),
    "labels": ({"conditional": True, "bias": "zero"}, "conditional=True with bias='zero'"),
    "critic": ({"critic": "conv"}, "pictures of 2 by 2: network='conv' needs multiples of 4"),
    "loss": ({"loss": "hinge"}, "loss='hinge': expected one of wgan_gp, wgan_clip, vanilla"),
    "generated": ({"generated": "lot"}, "generated='lot': expected one of record, data_free"),
    "optimizer": ({"optimizer": "lbfgs"}, "optimizer='lbfgs': expected one of adam, sgd"),
    "momentum": ({"momentum": 0.9}, "momentum=0.9 with optimizer='adam'"),
}


@pytest.mark.parametrize(("given", "words"), BAD.values(), ids=BAD.keys())
def test_what_makes_no_sense_is_refused_before_anything_is_spent(given, words):
    with pytest.raises(ValueError, match=words):
        _fitted(**given)

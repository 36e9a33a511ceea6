"""An averaging releases the average of the parameters after each step that moves them."""

import pytest
import pytorch_lightning as pl
import torch

from lightning_dpgen import (
    VAE,
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
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.privacy.noise.stream import PrivateStream

pytestmark = pytest.mark.filterwarnings("ignore")

SCHEMA, N, STEPS, KEPT = ImageSchema(2, 2, levels=1, classes=2), 80, 6, 0.7
SPLIT = SplitSettings(k=2, iterations=1, features=4, dimensions=2)
FAMILIES = {
    "vae": (VAE, {"hidden": 4, "latent": 2, "lr": 0.1}, 1),
    "wgan": (WGAN, {"hidden": 4, "latent": 2, "critic_steps": 3, "made": 8, "generator_lr": 0.1, "bias": "learned"}, 3),
}


def _fitted(kind, given, averaging):
    stage = training_stage(Fixed(1.0), n=N, sample_rate=0.5, steps=STEPS)
    account = Account(make_plan([*SPLIT.specs(N), stage], epsilon=20.0, delta=1e-5), stream=PrivateStream(seed=0))
    module = kind(SCHEMA, account, Fixed(1.0), n=N, k=2, averaging=averaging, **given)
    seen = []

    def seen_after(does):
        def then(*given):
            does(*given)
            seen.append([p.detach().clone() for p in module.network.parameters()])

        return then

    module.on_train_start, module.after_step = seen_after(module.on_train_start), seen_after(module.after_step)
    records = encode_images(
        torch.arange(N * 4).view(N, 2, 2).remainder(3).clamp(max=1).numpy(), torch.arange(N).remainder(2).numpy(), SCHEMA
    )
    trainer = pl.Trainer(
        callbacks=[MomentsAccountant(account)], accelerator="cpu", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, PrivateSplitDataModule(records, SPLIT, account, n=N, block=4))
    return module, seen


@pytest.mark.parametrize(("kind", "given", "every"), FAMILIES.values(), ids=FAMILIES)
def test_the_average_is_released_and_training_sees_none(kind, given, every):
    plain, seen = _fitted(kind, given, 0.0)
    averaged, _ = _fitted(kind, given, KEPT)
    for own, other in zip(plain.network.parameters(), averaged.network.parameters(), strict=True):
        assert torch.equal(own, other)
    assert len(seen) == STEPS + 1
    # The parameters before the first step have no part in it.
    after = seen[every::every]
    weights = [KEPT ** (len(after) - 1 - i) for i in range(len(after))]
    wanted = [sum(w * step[i] for w, step in zip(weights, after, strict=True)) / sum(weights) for i in range(len(after[0]))]
    released = list(averaged.mixture().network.parameters())
    for own, right in zip(released, wanted, strict=True):
        assert torch.allclose(own, right, atol=1e-6)
    assert max(float((own - last).abs().max()) for own, last in zip(released, seen[-1], strict=True)) > 0.01


def test_a_fit_that_goes_on_keeps_its_average():
    kind, given, _ = FAMILIES["vae"]
    module, _ = _fitted(kind, given, KEPT)
    for p in module.average.parameters():
        p.data.add_(1.0)
    kept = [p.clone() for p in module.average.parameters()]
    module.on_load_checkpoint({})
    module.on_train_start()
    assert all(torch.equal(a, b) for a, b in zip(kept, module.average.parameters(), strict=True))
    assert "averaged" in module.state_dict() and any(name.startswith("average.") for name in module.state_dict())


@pytest.mark.parametrize("averaging", [1.0, -0.1, "x", None])
def test_a_part_out_of_range_is_refused_before_anything(averaging):
    for kind, given, _ in FAMILIES.values():
        with pytest.raises(ValueError, match="expected a number from 0, below 1"):
            _fitted(kind, given, averaging)

"""Autoencoders with a divergence of many codes train and spend their plan; what makes no sense is refused."""

import pytest
import pytorch_lightning as pl
import torch

from lightning_dpgen import (
    VAE,
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
from lightning_dpgen.models.divergences import GroupCodes
from lightning_dpgen.plugins.vae import Divergence
from lightning_dpgen.privacy.noise.stream import PrivateStream

pytestmark = pytest.mark.filterwarnings("ignore")

SCHEMA, N, STEPS = ImageSchema(2, 2, levels=1, classes=2), 80, 6
SPLIT = SplitSettings(k=2, iterations=1, features=4, dimensions=2)
CENTRES = {"kind": "mixture", "centres": [[1.0, 0.0], [-1.0, 0.5]], "scale": 0.4}
FORMS = {
    "mmd": (Divergence("mmd", kernel="cauchy"), {}),
    "mmd, averaged": (Divergence("mmd", averaging=0.7), {"prior": {"kind": "sparse"}, "samples": 2}),
    "mmd by group": (Divergence("mmd", "group", kernel="imq", groups=4), {"prior": CENTRES}),
    "kl": (Divergence("kl", groups=4), {"prior": CENTRES, "beta": 0.0}),
    "kl, learned": (Divergence("kl", groups=2), {"prior": {**CENTRES, "learned": True}}),
    "tc": (Divergence("tc", groups=4), {"beta": 2.0}),
    "tc, learned": (Divergence("tc", groups=2), {"prior": {**CENTRES, "learned": True}}),
}


def _module(divergence, given):
    rules = [Fixed(1.0)] * (2 if divergence.released_as == "group" else 1)
    embeddings = {"embedding": 0.1} if divergence.released_as == "embedding" else None
    stage = training_stage(rules, n=N, sample_rate=0.5, steps=STEPS, embeddings=embeddings)
    account = Account(make_plan([*SPLIT.specs(N), stage], epsilon=20.0, delta=1e-5), stream=PrivateStream(seed=0))
    clipping = rules if len(rules) > 1 else rules[0]
    return VAE(SCHEMA, account, clipping, n=N, k=2, hidden=4, latent=2, divergence=divergence, **given)


def _fit(module):
    records = encode_images(
        torch.arange(N * 4).view(N, 2, 2).remainder(3).clamp(max=1).numpy(), torch.arange(N).remainder(2).numpy(), SCHEMA
    )
    trainer = pl.Trainer(
        callbacks=[MomentsAccountant(module.account)], accelerator="cpu", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, PrivateSplitDataModule(records, SPLIT, module.account, n=N, block=4))


@pytest.mark.parametrize(("divergence", "given"), FORMS.values(), ids=FORMS)
def test_every_form_trains_and_spends_its_plan(divergence, given):
    module = _module(divergence, given)
    before = {name: tensor.clone() for name, tensor in module.network.named_parameters()}
    _fit(module)
    assert module.account.finished
    assert all(torch.isfinite(p).all() for p in module.parameters())
    moved = [name for name, tensor in module.network.named_parameters() if not torch.equal(tensor, before[name])]
    assert len(moved) == len(before), "also centres, where they are learned"
    assert len(module.mixture().sample(50, torch.Generator().manual_seed(0))) == 50


def test_an_average_of_embeddings_begins_with_the_first():
    module = _module(Divergence("mmd", averaging=0.75), {})
    first, second = torch.rand(2, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(module._averaged(first, 0.75), first)
    torch.testing.assert_close(module._averaged(second, 0.75), (0.75 * first + second) / 1.75)


def test_gradients_follow_from_the_average_of_released_embeddings(monkeypatch):
    module, seen = _module(Divergence("mmd", averaging=0.75, weight=7.0), {}), []
    term = module.network.embedded_term

    def noted(embedding, weight, mean, encoded=None):
        seen.append((weight, mean.clone(), module.released_embedding / module.released_weight))
        return term(embedding, weight, mean, encoded)

    monkeypatch.setattr(module.network, "embedded_term", noted, raising=False)
    _fit(module)
    assert len(seen) >= STEPS
    for weight, mean, averaged in seen[-STEPS:]:
        assert weight == 7.0
        torch.testing.assert_close(mean, averaged)


@pytest.mark.parametrize("kind", ["mmd", "kl", "tc"])
def test_a_divergence_of_groups_has_its_weight(kind):
    codes, found = GroupCodes(*torch.randn(3, 4, 5, 2), torch.ones(4, 5, dtype=torch.bool)), []
    for weight in (1.0, 7.0):
        divergence = Divergence(kind, "group", weight=weight, groups=4)
        loss, gradient = _module(divergence, {})._of_groups(divergence)
        found.append((loss(codes), loss(codes) if gradient is None else gradient(codes)))
    for small, large in zip(*found, strict=True):
        torch.testing.assert_close(large, 7.0 * small)


def test_rules_and_groups_that_do_not_fit_are_refused_before_anything_is_spent():
    stage = training_stage(Fixed(1.0), n=N, sample_rate=0.5, steps=STEPS)
    account = Account(make_plan([*SPLIT.specs(N), stage], epsilon=20.0, delta=1e-5), stream=PrivateStream(seed=0))
    for divergence, rules, words in (
        (Divergence("kl", groups=4), Fixed(1.0), "clipping: 1 rules: expected 2"),
        (None, [Fixed(1.0), Fixed(1.0)], "clipping: 2 rules: expected 1"),
        (Divergence("kl", groups=1000), [Fixed(1.0), Fixed(1.0)], "groups=1000: expected 40 or fewer"),
        ("mmd", Fixed(1.0), "divergence='mmd': expected a lightning_dpgen.plugins.Divergence"),
        (Divergence("mmd"), Fixed(1.0), r"terms draw \['embedding', 'gradient'\]: make the plan"),
    ):
        with pytest.raises(ValueError, match=words):
            VAE(SCHEMA, account, rules, n=N, k=2, hidden=4, latent=2, divergence=divergence)
    with pytest.raises(ValueError, match="divergence='tc' with latent=1"):
        VAE(SCHEMA, account, [Fixed(1.0)] * 2, n=N, k=2, hidden=4, latent=1, divergence=Divergence("tc", groups=4))


BAD = {
    "no such divergence": ({"kind": "js"}, "kind='js': expected one of mmd, kl, tc"),
    "kl by embedding": ({"kind": "kl", "release": "embedding"}, "expected kind='mmd', which alone has one"),
    "another release": ({"release": "two_noise"}, "release='two_noise': expected one of group, embedding"),
    "a kernel without a bound": ({"kernel": "linear"}, "which are bounded"),
    "no group": ({"groups": 0}, "groups=0: expected a whole number, 1 or more"),
    "one draw": ({"draws": 1}, "draws=1: expected a whole number from 2"),
    "nothing averaged": ({"averaging": 1.0}, "averaging=1.0"),
    "a width of 0": ({"width": 0.0}, "width=0.0"),
    "no weight": ({"weight": float("nan")}, "weight=nan: expected a number from 1e-6 to 1e6"),
    "an odd number of features": ({"features": 3}, "features=3: expected None or an even number"),
    "no features": ({"features": 0}, "features=0"),
    "a word for an average": ({"averaging": "x"}, "averaging='x'"),
}


@pytest.mark.parametrize(("given", "words"), BAD.values(), ids=BAD)
def test_what_makes_no_sense_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        Divergence(**given)


def test_an_embedding_needs_fixed_centres_and_whole_blocks():
    with pytest.raises(ValueError, match="has learned centres"):
        _module(Divergence("mmd"), {"prior": {**CENTRES, "learned": True}})
    with pytest.raises(ValueError, match="features=30: expected a multiple of 24"):
        _module(Divergence("mmd", kernel="cauchy", features=30), {})

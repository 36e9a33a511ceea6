"""A module starts from a network that its own account has paid for, or whose data are declared public; nothing else."""

import json

import pytest
import pytorch_lightning as pl
import torch
from marks import only

from lightning_dpgen import (
    RBM,
    VAE,
    WGAN,
    Account,
    Fixed,
    MomentsAccountant,
    PrivateSplitDataModule,
    SplitSettings,
    encode_images,
    load_release,
    make_plan,
    release_mixture,
    training_stage,
    verify,
)
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.release.drawing.model_files import weights_digest
from lightning_dpgen.release.drawing.release import Release

pytestmark = pytest.mark.filterwarnings("ignore")

SCHEMA, N, STEPS, K = ImageSchema(2, 2, levels=1, classes=2), 80, 6, 2
SPLIT = SplitSettings(k=K, iterations=1, features=4, dimensions=2)
RECORDS = encode_images(
    torch.arange(N * 4).view(N, 2, 2).remainder(3).clamp(max=1).numpy(), torch.arange(N).remainder(2).numpy(), SCHEMA
)
MODULES = {
    "vae": (VAE, {"hidden": 4, "latent": 2}),
    "vae average": (VAE, {"hidden": 4, "latent": 2, "averaging": 0.5}),
    "rbm": (RBM, {"hidden": 4, "chains": 3}),
    "wgan": (WGAN, {"hidden": 4, "latent": 2, "critic_steps": 3, "made": 8}),
    "wgan conditional": (WGAN, {"hidden": 4, "latent": 2, "critic_steps": 3, "made": 8, "conditional": True}),
    "wgan average": (WGAN, {"hidden": 4, "latent": 2, "critic_steps": 3, "made": 8, "averaging": 0.5}),
}


def _plan(bias="means"):
    stage = training_stage(Fixed(1.0), n=N, sample_rate=0.5, steps=STEPS)
    return make_plan([*SPLIT.specs(N, means=bias != "zero"), stage], epsilon=20.0, delta=1e-5)


class _AtStart(pl.Callback):
    """Keep the released network as it is before the first step."""

    def on_train_batch_start(self, trainer, module, *_):
        if not hasattr(self, "state"):
            self.state = {name: tensor.clone() for name, tensor in module.released_network.state_dict().items()}


def _module(name, account, bias="means", k=K):
    kind, given = MODULES[name]
    return kind(SCHEMA, account, Fixed(1.0), n=N, k=k, bias=bias, **given)


def _fit(module, checkpoint=None, stop=None):
    account, watch = module.account, _AtStart()
    trainer = pl.Trainer(
        callbacks=[MomentsAccountant(account), watch], accelerator="cpu", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, limit_train_batches=stop or 1.0,
    )  # fmt: skip
    data = PrivateSplitDataModule(RECORDS, SPLIT, account, n=N, block=2)
    trainer.fit(module, data, ckpt_path=checkpoint)
    return trainer, watch.state


def _random(name, k, seed=3):
    """Return a network of that kind whose parameters are all random, and which no account has paid for."""
    network = _module(name, Account(_plan()), k=k).network
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor.copy_(torch.rand(tensor.shape, generator=generator))
    return Mixture(network.eval(), torch.ones(k) / k)


@pytest.mark.parametrize("k", [1, K])
@pytest.mark.parametrize("bias", only(("means", "learned", "zero"), "means"))
@pytest.mark.parametrize("name", MODULES)
def test_a_training_starts_from_the_network_that_was_handed_over(name, bias, k):
    """All but the biases that hold noisy means are those of the network, component by component."""
    if name == "wgan conditional" and bias == "zero":
        pytest.skip("labels are drawn by noisy shares")
    start = _random(name, k)
    account = Account(_plan(bias), stream=PrivateStream(seed=0))
    module = _module(name, account, bias)
    module.init_from(start, public="a sample of 1990")
    _, state = _fit(module)
    held = {"output_bias", "label_shares"} if bias != "zero" and name != "rbm" else set()
    theirs = start.network.state_dict()
    orders = [[0, 0]] if k == 1 else [[0, 1]] if bias == "zero" else [[0, 1], [1, 0]]
    same = [all(torch.equal(state[key], theirs[key][order]) for key in state.keys() - held) for order in orders]
    assert sum(same) == 1, "and in one order"
    if held:
        network = module.mixture().network
        network.load_state_dict(state)
        noise, means = module.noise.max(), module.means
        if "label_shares" in state:
            shares = means[:, SCHEMA.layout.labels].clamp(min=1e-4)
            torch.testing.assert_close(state["label_shares"], shares / shares.sum(dim=1, keepdim=True))
        for c in range(K):
            offsets = [0] * (c + 1) + [4000] * (K - c)
            made = network.generate(offsets, torch.Generator().manual_seed(1)).mean(dim=0)
            # A linear Bayes estimate lies between the network's own average and the mean, beyond neither.
            own = start.network.generate(
                [0] * (orders[same.index(True)][c] + 1) + [4000] * (k - orders[same.index(True)][c]),
                torch.Generator().manual_seed(1),
            ).mean(dim=0)
            assert (made - means[c]).norm() < (own - means[c]).norm() + noise


def test_weights_and_means_are_those_of_the_records():
    """A start brings parameters alone: the weights of a mixture are the noisy counts of the split."""
    alike = []
    for start in (None, _random("vae", K)):
        module = _module("vae", Account(_plan(), stream=PrivateStream(seed=0)))
        if start is not None:
            module.init_from(start, public="census")
        _fit(module)
        alike.append((module.weights, module.means))
    assert all(map(torch.equal, *alike))


def test_the_declaration_goes_into_the_certificate(tmp_path):
    start, module = _random("vae", 1), _module("vae", Account(_plan()))
    module.init_from(start, public="a sample of 1990, by the office")
    _fit(module)
    certificate = release_mixture(module.mixture(), module.account, tmp_path / "release", data="made up")
    declared = {"public": "a sample of 1990, by the office", "weights": weights_digest(start.network)}
    assert certificate["declared"]["init"] == declared
    assert "declared to be public: 'a sample of 1990, by the office'" in certificate["statement"]
    found = verify(tmp_path / "release")
    assert found.good and any("a sample of 1990" in note for note in found.notes)
    assert "a sample of 1990" in (tmp_path / "release/report.html").read_text()
    # And the certificate of that release is where the digest of its weights is found again.
    loaded = load_release(tmp_path / "release").mixture.network
    assert weights_digest(loaded) == certificate["files"]["model.safetensors"]


def test_a_declaration_cannot_be_taken_out_of_a_certificate(tmp_path):
    module = _module("vae", Account(_plan()))
    module.init_from(_random("vae", 1), public="census")
    _fit(module)
    with pytest.raises(ValueError, match=r"declared: holds \['init'\]"):
        release_mixture(module.mixture(), module.account, tmp_path / "no", data="made up", declared={"init": None})
    release_mixture(module.mixture(), module.account, tmp_path / "release", data="made up")
    path = tmp_path / "release/privacy.json"
    certificate = json.loads(path.read_text())
    for spoilt in ({"public": " ", "weights": "0" * 64}, {"public": "census"}, "census", None):
        path.write_text(json.dumps(certificate | {"declared": certificate["declared"] | {"init": spoilt}}))
        assert any("init" in problem or "public" in problem for problem in verify(tmp_path / "release").problems), spoilt
    del certificate["declared"]["init"]
    path.write_text(json.dumps(certificate))
    assert "the statement does not say what the fields say" in verify(tmp_path / "release").problems


def test_a_mixture_of_the_same_account_needs_no_declaration(tmp_path):
    """As one that was learned from records that a measured mixture made."""
    account = Account(_plan())
    module, random = _module("vae", account), _random("vae", K)
    module.init_from(Mixture(random.network, random.weights, run=account.ledger.run))
    _fit(module)
    assert "init" not in release_mixture(module.mixture(), account, tmp_path / "release", data="made up")["declared"]


def test_what_a_mixture_of_the_account_started_from_is_declared_with_it():
    account = Account(_plan())
    module, random, declared = _module("vae", account), _random("vae", K), {"public": "census", "weights": "0" * 64}
    module.init_from(Mixture(random.network, random.weights, account.ledger.run, declared))
    _fit(module)
    assert module.mixture().init == declared


def test_a_checkpoint_wins_and_keeps_the_declaration(tmp_path):
    """A fit that goes on does not start again, and its certificate says what it started from, handed over again or not."""
    path, start = tmp_path / "ledger", _random("vae", K)
    module = _module("vae", Account(_plan(), path))
    module.init_from(start, public="census")
    trainer, _ = _fit(module, stop=2)
    trainer.save_checkpoint(tmp_path / "kept.ckpt")
    kept = {name: tensor.clone() for name, tensor in module.network.state_dict().items()}
    module.account.ledger.close()
    again = _module("vae", Account.resume(path))
    _, state = _fit(again, tmp_path / "kept.ckpt")
    assert all(torch.equal(state[name], kept[name]) for name in kept)
    assert again.account.finished and again.mixture().init == {
        "public": "census",
        "weights": weights_digest(start.network),
    }


REFUSED = {
    "another account's": (
        lambda own: Mixture(_random("vae", K).network, torch.ones(K), "another run"),
        None,
        "public=None",
    ),
    "an unknown one's": (lambda own: _random("vae", K), None, "public=None"),
    "its own as public": (lambda own: Mixture(_random("vae", K).network, torch.ones(K), own), "census", "leave it out"),
    "a name of nothing": (lambda own: _random("vae", K), "  ", "expected a name"),
    "true": (lambda own: _random("vae", K), True, "expected a name"),
    "two lines": (lambda own: _random("vae", K), "census\nprivate", "on one line"),
    "another kind": (lambda own: _random("rbm", K), "census", "expected 'vae_mixture'"),
}


@pytest.mark.parametrize(("start", "public", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_anything_else_is_refused_before_anything_is_spent(start, public, words):
    account = Account(_plan())
    with pytest.raises(ValueError, match=words):
        _module("vae", account).init_from(start(account.ledger.run), public=public)
    assert not account.ledger.accesses


def test_a_module_that_has_taken_steps_keeps_its_declaration():
    module = _module("vae", Account(_plan(), stream=PrivateStream(seed=0)))
    module.init_from(_random("vae", 1), public="a sample of 1990")
    _fit(module)
    before = module.mixture().init
    own = Mixture(_random("vae", 1).network, torch.ones(1), module.account.ledger.run)
    for start, public in ((own, None), (_random("vae", 1), "another sample")):
        with pytest.raises(ValueError, match="this module has taken 6 steps"):
            module.init_from(start, public=public)
    assert module.mixture().init == before and before["public"] == "a sample of 1990"


def test_a_mixture_is_there_after_a_fit_and_nothing_else_stands_for_it():
    module = _module("vae", Account(_plan()))
    with pytest.raises(ValueError, match="no mixture before a fit"):
        module.mixture()
    with pytest.raises(
        ValueError, match=r"initial: a Release: expected a Mixture, as load_release\(path\)\.mixture is one"
    ):
        module.init_from(Release(_random("vae", 1)), public="census")


def test_weights_of_which_no_record_can_be_made_are_refused():
    start = _random("vae", 1)
    with torch.no_grad():
        for parameter in start.network.parameters():
            parameter.fill_(1e38)
    with pytest.raises(ValueError, match="numbers that are not finite: expected trained weights"):
        _module("vae", Account(_plan())).init_from(start, public="census")


def test_a_start_that_is_not_finite_is_refused_before_anything_is_spent():
    account, start = Account(_plan()), _random("vae", 1)
    with torch.no_grad():
        next(iter(start.network.parameters())).fill_(float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        _module("vae", account).init_from(start, public="a sample of 1990")
    assert not account.done

"""A module with several optimizers: private ones take turns at the lots, public ones step on what sees no record."""

import json
import math

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.nn.functional import softplus

from lightning_dpgen import (
    Account,
    DataFree,
    Fixed,
    MomentsAccountant,
    PerRecord,
    PrivateOptimizer,
    PrivateTraining,
    make_plan,
    poisson_loader,
    training_stage,
    verify,
)
from lightning_dpgen.privacy.noise.stream import PrivateStream

pytestmark = pytest.mark.filterwarnings("ignore")

N, STEPS = 60, 6
RECORDS = torch.rand(N, 3, generator=torch.Generator().manual_seed(0))
CODES = torch.randn(5, 2, generator=torch.Generator().manual_seed(1))
SETTINGS = {"n": N, "epsilon": 8.0, "delta": 1e-4, "sample_rate": 0.2, "steps": STEPS, "clipping": Fixed(1.0)}
# Without noise, bound and sampling a private step is a plain one on all records.
PLAIN = {"epsilon": math.inf, "sample_rate": 1.0}
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class GAN(pl.LightningModule):
    """Its losses draw nothing, so that a plain loop can repeat them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.generator = nn.Linear(2, 3)

    def of_records(self, x):
        return (softplus(-self.critic(x)) + softplus(self.critic(self.generator(CODES[:1]))))[:, 0]

    def critic_loss(self, lot, noise):
        return self.of_records(lot.records)

    def generator_loss(self):
        return softplus(-self.critic(self.generator(CODES))).mean()

    def training_step(self, batch, batch_idx):
        return PerRecord(self.critic_loss), DataFree(self.generator_loss) if batch_idx % 2 == 0 else None

    def configure_optimizers(self):
        return torch.optim.Adam(self.critic.parameters(), lr=0.1), torch.optim.SGD(self.generator.parameters(), lr=1.0)


def _fitted(model, records=RECORDS, **changes):
    private = PrivateTraining(records, **SETTINGS | changes)
    pl.Trainer(callbacks=[private.callback()], accelerator="cpu", **QUIET).fit(model, private.loader())
    return private


def _assert_alike(model, expected):
    for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6, msg=name)


def test_without_noise_the_steps_are_those_of_a_plain_loop():
    _fitted(model := GAN(), **PLAIN)
    expected = GAN()
    critic, generator = expected.configure_optimizers()
    for number in range(STEPS):
        critic.zero_grad()
        expected.of_records(RECORDS).mean().backward()
        critic.step()
        if number % 2 == 0:
            generator.zero_grad()
            expected.generator_loss().backward()
            generator.step()
    _assert_alike(model, expected)


def test_each_lot_is_one_access_and_the_release_verifies(tmp_path):
    before, private = [p.clone() for p in GAN().parameters()], _fitted(model := GAN())
    assert private.account.ledger.count("training") == STEPS and private.account.finished
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    private.release(model, tmp_path / "release")
    assert verify(tmp_path / "release").good
    assert len(json.loads((tmp_path / "release" / "model.json").read_text())["tensors"]) == 6
    assert model.automatic_optimization and all(p.requires_grad for p in model.parameters())


class Recording(GAN):
    """Writes down who steps, and with which records a term and the training step are handed."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.lines, self.batches = [], []

    def training_step(self, batch, batch_idx):
        self.batches.append(batch)
        return PerRecord(self.critic_loss), DataFree(self.generator_loss), PerRecord(self.encoder_loss)

    def encoder_loss(self, lot, noise):
        return (self.encoder(lot.records) - lot.records).square().sum(dim=1)

    def configure_optimizers(self):
        optimizers = [*super().configure_optimizers(), torch.optim.SGD(self.encoder.parameters(), lr=0.1)]
        for name, optimizer in zip(["critic", "generator", "encoder"], optimizers, strict=True):
            optimizer.register_step_post_hook(lambda *_, name=name: self.lines.append(name))
        return optimizers


def test_private_ones_take_turns_and_a_training_step_sees_no_record():
    private = _fitted(model := Recording(), 5.0 + RECORDS)
    assert model.lines == ["critic", "generator", "generator", "encoder"] * (STEPS // 2)
    assert private.account.ledger.count("training") == STEPS
    assert all(float(batch.max()) < 5.0 for batch in model.batches)


def test_explicit_parts_do_the_same():
    class Wrapped(GAN):
        def configure_optimizers(self):
            critic, generator = super().configure_optimizers()
            return PrivateOptimizer(critic, account=account, clipping=SETTINGS["clipping"]), generator

    _fitted(model := GAN(), stream=PrivateStream(seed=3))
    stage = training_stage(SETTINGS["clipping"], n=N, sample_rate=0.2, steps=STEPS)
    account = Account(make_plan([stage], epsilon=8.0, delta=1e-4), stream=PrivateStream(seed=3))
    trainer = pl.Trainer(callbacks=[MomentsAccountant(account)], accelerator="cpu", **QUIET)
    trainer.fit(explicit := Wrapped(), poisson_loader(RECORDS, account))
    assert trainer.global_step == STEPS
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), explicit.parameters(), strict=True))


def test_what_a_private_term_keeps_is_of_no_use_to_a_public_one():
    class Keeping(GAN):
        kept = 0.0

        def critic_loss(self, lot, noise):
            self.kept = lot.records.sum()
            return super().critic_loss(lot, noise)

        def generator_loss(self):
            return super().generator_loss() * (1.0 + self.kept)

    before = GAN().generator.weight.clone()
    with pytest.raises(ValueError, match="receives a value computed from a record in an earlier call"):
        _fitted(model := Keeping())
    assert torch.equal(before, model.generator.weight)


@pytest.mark.parametrize("changes", [{"micro_batch": 4}, {"micro_batch": "auto"}, {"averaging": 0.5}], ids=str)
def test_options_of_steps_hold_for_each(changes):
    assert _fitted(GAN(), **changes).account.finished


def test_a_fit_goes_on_with_the_turns(tmp_path):
    first = PrivateTraining(RECORDS, ledger=tmp_path / "ledger", **SETTINGS)
    trainer = pl.Trainer(callbacks=[first.callback()], accelerator="cpu", max_steps=3, **QUIET)
    trainer.fit(Recording(), first.loader())
    trainer.save_checkpoint(tmp_path / "three.ckpt")
    first.account.ledger.close()
    second = PrivateTraining(RECORDS, ledger=tmp_path / "ledger", **SETTINGS)
    trainer = pl.Trainer(callbacks=[second.callback()], accelerator="cpu", **QUIET)
    trainer.fit(model := Recording(), second.loader(), ckpt_path=tmp_path / "three.ckpt")
    assert model.lines == ["generator", "encoder", "critic", "generator", "generator", "encoder"]
    second.account.ledger.close()


def _changed(step, **methods):
    return type("Changed", (GAN,), {"training_step": step} | methods)


def _losses(self, batch, batch_idx):
    return self.of_records(batch)


def _closed_over_the_batch(self, batch, batch_idx):
    return DataFree(lambda: self.critic(batch).sum()), DataFree(self.generator_loss)


def _late(self, batch, batch_idx):
    return PerRecord(self.critic_loss), PerRecord(self.critic_loss) if batch_idx == 2 else None


def _once(self, batch, batch_idx):
    return None if batch_idx else PerRecord(self.critic_loss), DataFree(self.generator_loss)


def _looking(self, batch, batch_idx):
    return PerRecord(self.critic_loss) if batch[:, 9] else None, None


def _with_second(second):
    return lambda self, batch, batch_idx: (PerRecord(self.critic_loss), second(self))


REFUSED = {
    "losses": (_losses, 0, "training_step returned Tensor for 2 optimizers"),
    "three entries": (lambda self, *_: [None] * 3, 0, "returned 3 entries for 2 optimizers"),
    "bare losses": (_with_second(lambda self: self.generator_loss()), 0, "returned tuple for 2 optimizers"),
    "no record": (_closed_over_the_batch, 0, "returned DataFree terms alone"),
    "several numbers": (_with_second(lambda self: DataFree(lambda: self.generator(CODES))), 0, r"one number.*\(5, 3\)"),
    "of another's": (_with_second(lambda self: DataFree(lambda: self.critic(RECORDS).sum())), 0, "no parameter that is"),
    "a record later": (_late, 2, "optimizer 1, which is public"),
    "none for a lot": (_once, 1, "optimizer 0, which is private"),
    "looking": (_looking, 0, "could not be tried on made-up records"),
}


@pytest.mark.parametrize(("step", "spent", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_told_apart_is_refused(step, spent, words):
    private = PrivateTraining(RECORDS, **SETTINGS)
    trainer = pl.Trainer(callbacks=[private.callback()], accelerator="cpu", **QUIET)
    with pytest.raises((ValueError, MisconfigurationException), match=words) as found:
        trainer.fit(model := _changed(step)(), private.loader())
    assert "\n" not in str(found.value)
    assert private.account.ledger.count("training") == spent
    assert all(p.requires_grad for p in model.parameters())


def _overlapping(self):
    return torch.optim.SGD(self.parameters(), lr=1.0), torch.optim.SGD(self.generator.parameters(), lr=1.0)


def _partial(self):
    return torch.optim.SGD(self.critic[0].parameters(), lr=1.0), torch.optim.SGD(self.generator.parameters(), lr=1.0)


@pytest.mark.parametrize(
    ("optimizers", "words"),
    [(_overlapping, "a parameter in common"), (_partial, "2 optimizers have 4 of the module's 6")],
    ids=["overlapping", "partial"],
)
def test_each_parameter_belongs_to_one_optimizer(optimizers, words):
    with pytest.raises(MisconfigurationException, match=words):
        _fitted(_changed(GAN.training_step, configure_optimizers=optimizers)())


class Groups(GAN):
    """One optimizer with a group of parameters for each part, as many fine-tunings have them."""

    def training_step(self, batch, batch_idx):
        return self.of_records(batch) + self.generator(batch[:, :2]).square().sum(dim=1)

    def configure_optimizers(self):
        groups = [
            {"params": self.critic.parameters(), "lr": 0.1, "weight_decay": 0.0},
            {"params": self.generator.parameters(), "lr": 0.01, "weight_decay": 0.5},
        ]
        return torch.optim.AdamW(groups)


def test_groups_of_parameters_have_their_own_rate_and_decay():
    _fitted(model := Groups(), **PLAIN)
    expected = Groups()
    optimizer = expected.configure_optimizers()
    for _ in range(STEPS):
        optimizer.zero_grad()
        expected.training_step(RECORDS, 0).mean().backward()
        optimizer.step()
    _assert_alike(model, expected)


class Quasi(GAN):
    def configure_optimizers(self):
        return super().configure_optimizers()[0], torch.optim.LBFGS(self.generator.parameters(), max_iter=3)


def test_a_public_optimizer_may_evaluate_its_loss_several_times():
    before = GAN().generator.weight.clone()
    _fitted(model := Quasi())
    assert not torch.equal(before, model.generator.weight) and model.generator.weight.isfinite().all()

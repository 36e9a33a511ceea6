"""A module with manual optimization trains as it stands: as Lightning trains it, and as terms do."""

import math
import textwrap

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader

from lightning_dpgen import DataFree, Fixed, PerRecord, PrivateTraining, verify
from lightning_dpgen.gradients.isolation.hidden import is_hidden
from lightning_dpgen.plugins.noisy_metrics import NoisyMetrics
from lightning_dpgen.plugins.record_trace import RecordTrace
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
    """Its losses draw nothing, so that a plain fit can repeat them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.generator = nn.Linear(2, 3)

    def configure_optimizers(self):
        return torch.optim.Adam(self.critic.parameters(), lr=0.1), torch.optim.SGD(self.generator.parameters(), lr=1.0)

    def real_loss(self, x):
        return softplus(-self.critic(x)).mean()

    def fake_loss(self, sign=1.0):
        return softplus(sign * self.critic(self.generator(CODES))).mean()

    def step_of(self, optimizer, *losses):
        optimizer.zero_grad()
        for loss in losses:
            self.manual_backward(loss)
        optimizer.step()


class ZeroBefore(GAN):
    """As the documentation of Lightning writes a GAN."""

    def training_step(self, batch, batch_idx):
        critic, generator = self.optimizers()
        loss = self.real_loss(batch) + self.fake_loss()
        self.step_of(critic, loss)
        self.step_of(generator, self.fake_loss(-1.0))
        self.log_dict({"critic": loss})


class Toggled(GAN):
    """As Lightning's example of a GAN: the generator first, toggled, and gradients dropped behind each step."""

    def training_step(self, batch):
        critic, generator = self.optimizers()
        for optimizer, loss in (generator, lambda: self.fake_loss(-1.0)), (critic, lambda: self.real_loss(batch)):
            self.toggle_optimizer(optimizer)
            self.manual_backward(loss())
            optimizer.step()
            optimizer.zero_grad()
            self.untoggle_optimizer(optimizer)


class CriticLoop(GAN):
    per_lot = 2

    def training_step(self, batch, batch_idx):
        critic, generator = self.optimizers()
        for _ in range(2):
            self.step_of(critic, self.real_loss(batch) + self.fake_loss())
        with generator.toggle_model():
            self.step_of(generator, self.fake_loss(-1.0))


class EveryThird(GAN):
    """As the WGAN with bounded weights is written: the critic is frozen where the generator steps."""

    def training_step(self, batch, batch_idx):
        critic, generator = self.optimizers()
        self.step_of(critic, self.real_loss(batch) + self.fake_loss())
        if batch_idx % 3 == 0:
            for p in self.critic.parameters():
                p.requires_grad = False
            self.step_of(generator, self.fake_loss(-1.0))
            for p in self.critic.parameters():
                p.requires_grad = True


class SeveralBackwards(GAN):
    def training_step(self, batch, batch_idx):
        critic, generator = self.optimizers()
        self.step_of(critic, self.real_loss(batch), self.fake_loss())
        self.step_of(generator, self.fake_loss(-1.0))


class Scheduled(GAN):
    def configure_optimizers(self):
        optimizers = super().configure_optimizers()
        return list(optimizers), [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in optimizers]

    def training_step(self, batch, batch_idx):
        (critic, generator), schedules = self.optimizers(), self.lr_schedulers()
        self.step_of(critic, self.real_loss(batch) + self.fake_loss())
        schedules[0].step()
        self.step_of(generator, self.fake_loss(-1.0))
        schedules[1].step()


class ClippedGenerator(GAN):
    def training_step(self, batch, batch_idx):
        critic, generator = self.optimizers()
        self.step_of(critic, self.real_loss(batch) + self.fake_loss())
        generator.zero_grad()
        self.manual_backward(self.fake_loss(-1.0))
        self.clip_gradients(generator, gradient_clip_val=0.01, gradient_clip_algorithm="norm")
        generator.step()


class OneOptimizer(GAN):
    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2)}

    def training_step(self, batch, batch_idx):
        self.step_of(self.optimizers(), (self.generator(batch[:, :2]) - batch).square().mean() + self.real_loss(batch))
        self.lr_schedulers().step()


class OneLossOfTwo(GAN):
    """Both optimizers see records, by one loss; a lot is for one of them."""

    per_lot = 2

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        self.step_of(first, self.loss(batch))
        self.step_of(second, self.loss(batch))

    def loss(self, batch):
        return (self.critic(batch) - self.generator(batch[:, :2])).square().mean()


class GradientPenalty(GAN):
    """A WGAN-GP, whose mixtures lie halfway, so that it draws nothing."""

    engine = "func"

    def training_step(self, batch, batch_idx):
        critic, generator = self.optimizers()
        fake = self.generator(CODES[:1]).detach()
        loss = self.critic(fake).mean() - self.critic(batch).mean() + 10 * self.penalty(batch, fake.expand(len(batch), -1))
        self.step_of(critic, loss)
        if (batch_idx + 1) % 2 == 0:
            self.step_of(generator, -self.critic(self.generator(CODES)).mean())

    def penalty(self, real, fake):
        mixed = (0.5 * real + 0.5 * fake).requires_grad_(True)
        score = self.critic(mixed)
        (slope,) = torch.autograd.grad(score, mixed, grad_outputs=torch.ones_like(score), create_graph=True)
        return ((slope.view(len(slope), -1).norm(2, dim=1) - 1) ** 2).mean()


SHAPES = [
    ZeroBefore, Toggled, CriticLoop, EveryThird, SeveralBackwards, Scheduled, ClippedGenerator, OneOptimizer, OneLossOfTwo,
    GradientPenalty,
]  # fmt: skip


def _fitted(model, records=RECORDS, trainer=None, **changes):
    private = PrivateTraining(records, **SETTINGS | changes)
    trainer = pl.Trainer(callbacks=[private.callback()], accelerator="cpu", **QUIET | (trainer or {}))
    trainer.fit(model, private.loader())
    return private


def _assert_alike(model, expected, **tolerance):
    for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name, **{"rtol": 1e-4, "atol": 1e-6} | tolerance)


@pytest.mark.parametrize("kind", SHAPES, ids=lambda kind: kind.__name__)
def test_without_noise_a_fit_is_lightnings_own(kind):
    private = _fitted(model := kind(), engine=getattr(kind, "engine", "ghost"), **PLAIN)
    calls = STEPS // getattr(kind, "per_lot", 1)
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", **QUIET)
    trainer.fit(expected := kind(), DataLoader([RECORDS] * calls, batch_size=None))
    assert private.account.step_of("training") == STEPS
    _assert_alike(model, expected)
    assert not model.automatic_optimization and not vars(model).keys() & {"optimizers", "manual_backward", "training_step"}
    assert all(p.requires_grad for p in model.parameters())


class InTerms(ZeroBefore):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = True

    def training_step(self, batch, batch_idx):
        return PerRecord(self.of_records), DataFree(lambda: self.fake_loss(-1.0))

    def of_records(self, lot, noise):
        return self.real_loss(lot.records) + self.fake_loss()


@pytest.mark.parametrize("engine", ["ghost", "func"])
def test_with_noise_a_fit_is_that_of_terms(engine):
    """The draws are the same, so clipping, noise and public steps are."""
    models = ZeroBefore(), InTerms()
    for model in models:
        _fitted(model, engine=engine, stream=PrivateStream(seed=3))
    _assert_alike(*models, rtol=1e-5, atol=1e-6)


def test_with_noise_a_step_is_the_clipped_sum_over_the_expected_lot():
    """Hand-written: one step of plain descent, whose noise is what is left."""
    records, stream = RECORDS[:1].repeat(N, 1), PrivateStream(seed=3)

    class Slow(Toggled):
        def configure_optimizers(self):
            return [torch.optim.SGD(p.parameters(), lr=1.0) for p in (self.critic, self.generator)]

    before = Slow()
    changes = {"epsilon": 1000.0, "steps": 1, "sample_rate": 1.0, "clipping": Fixed(0.01)}
    private = _fitted(model := Slow(), records, stream=stream, **changes)
    before.fake_loss(-1.0).backward()
    with torch.no_grad():
        for p in before.generator.parameters():
            p -= p.grad
    before.zero_grad()
    before.real_loss(records).backward()
    gradient = torch.cat([p.grad.flatten() for p in before.critic.parameters()])
    moved = [a - b for a, b in zip(before.critic.parameters(), model.critic.parameters(), strict=True)]
    noise = torch.cat([x.flatten() for x in moved]) - 0.01 * gradient / gradient.norm()
    deviation = private.plan.stage("training").access.multipliers["gradient"] * 0.01 / N
    assert gradient.norm() > 0.01 and float(noise.detach().norm()) < 3 * deviation * math.sqrt(len(noise))
    _assert_alike(model.generator, before.generator)


def test_a_public_step_has_as_many_made_up_records_as_a_lot_is_expected_to_have():
    sizes = set()

    class Sized(Toggled):
        def training_step(self, batch):
            if not is_hidden(batch):
                sizes.add(len(batch))
            return super().training_step(batch)

    _fitted(Sized())
    assert sizes == {1, 12}


class Drawing(ZeroBefore):
    def fake_loss(self, sign=1.0):
        return softplus(sign * self.critic(self.generator(torch.randn(8, 2)))).mean()


def test_codes_may_be_drawn_and_the_release_verifies(tmp_path):
    before, private = [p.clone() for p in Drawing().parameters()], _fitted(model := Drawing())
    assert private.account.ledger.count("training") == STEPS and private.account.finished
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    private.release(model, tmp_path / "release")
    assert verify(tmp_path / "release").good


class Kept(Toggled):
    """Keeps what it has generated, and another step would use it."""

    kept = 0.0

    def real_loss(self, x):
        self.kept = x.sum()
        return super().real_loss(x)

    def fake_loss(self, sign=1.0):
        return super().fake_loss(sign) * (1.0 + self.kept)


def test_what_a_private_step_keeps_is_of_no_use_to_a_public_one():
    before = Kept().generator.weight.clone()
    with pytest.raises(
        ValueError, match=r"receives a value computed from a record in an earlier call|depends on the batch"
    ):
        _fitted(model := Kept())
    assert torch.equal(before, model.generator.weight)


@pytest.mark.parametrize(
    "changes", [{"micro_batch": 4}, {"micro_batch": "auto"}, {"averaging": 0.5}, {"slots": True}], ids=str
)
def test_options_of_steps_hold(changes):
    assert _fitted(CriticLoop(), **changes).account.finished


@pytest.mark.parametrize("kind", [Toggled, CriticLoop, EveryThird], ids=lambda kind: kind.__name__)
def test_a_fit_goes_on_where_it_was(kind, tmp_path):
    class Recorded(kind):
        def __init__(self):
            super().__init__()
            self.lines = []

        def configure_optimizers(self):
            optimizers = super().configure_optimizers()
            for name, optimizer in zip(["critic", "generator"], optimizers, strict=True):
                optimizer.register_step_post_hook(lambda *_, name=name: self.lines.append(name))
            return optimizers

    _fitted(whole := Recorded())
    first = PrivateTraining(RECORDS, ledger=tmp_path / "ledger", **SETTINGS)
    trainer = pl.Trainer(callbacks=[first.callback()], accelerator="cpu", max_steps=3, **QUIET)
    trainer.fit(one := Recorded(), first.loader())
    trainer.save_checkpoint(tmp_path / "three.ckpt")
    first.account.ledger.close()
    second = PrivateTraining(RECORDS, ledger=tmp_path / "ledger", **SETTINGS)
    trainer = pl.Trainer(callbacks=[second.callback()], accelerator="cpu", **QUIET)
    trainer.fit(other := Recorded(), second.loader(), ckpt_path=tmp_path / "three.ckpt")
    assert one.lines + other.lines == whole.lines and whole.lines.count("critic") == STEPS
    second.account.ledger.close()


def test_what_is_logged_behind_a_step_is_there_and_what_made_up_records_gave_is_not(tmp_path):
    class Logging(ZeroBefore):
        def training_step(self, batch, batch_idx):
            super().training_step(batch, batch_idx)
            self.log("mean", batch.mean())

    logger = pl.loggers.CSVLogger(tmp_path)
    _fitted(Logging(), 5.0 + RECORDS, {"logger": logger, "log_every_n_steps": 1}, **PLAIN)
    names, *lines = [
        line.split(",") for line in (tmp_path / "lightning_logs/version_0/metrics.csv").read_text().splitlines()
    ]
    means = [float(line[names.index("private/mean")]) for line in lines]
    assert means == pytest.approx([float(5.0 + RECORDS.mean())] * STEPS, rel=1e-4)
    # Without privacy what sees no record follows from records, too.
    assert "private/loss/generator_loss" in names


def test_a_number_that_is_logged_behind_a_step_can_be_bought():
    private = PrivateTraining(RECORDS, metrics=NoisyMetrics({"critic": (0.0, 5.0)}, share=0.2, every=3), **SETTINGS)
    trainer = pl.Trainer(callbacks=[private.callback()], accelerator="cpu", **QUIET)
    trainer.fit(ZeroBefore(), private.loader())
    assert private.account.finished
    assert 0.0 < float(trainer.callback_metrics["public/critic_error"]) < math.inf


def test_the_loss_of_one_of_several_steps_cannot_be_bought():
    with pytest.raises(ValueError, match=r"bounds\['loss'\]: training_step logs nothing by that name"):
        _fitted(ZeroBefore(), metrics=NoisyMetrics({"loss": (0.0, 5.0)}))


def _changed(step, **methods):
    return type("Changed", (GAN,), {"training_step": step} | methods)


def _counts(self, batch, batch_idx):
    self.calls = getattr(self, "calls", 0) + 1
    ZeroBefore.training_step(self, batch, batch_idx)


def _accumulates(self, batch, batch_idx):
    critic, generator = self.optimizers()
    self.manual_backward(self.real_loss(batch))
    if batch_idx % 2:
        critic.step()
        critic.zero_grad()
    self.step_of(generator, self.fake_loss(-1.0))


def _bare_backward(self, batch, batch_idx):
    critic, _ = self.optimizers()
    critic.zero_grad()
    self.real_loss(batch).backward()
    critic.step()


def _clips(self, batch, batch_idx):
    critic, _ = self.optimizers()
    self.manual_backward(self.real_loss(batch))
    self.clip_gradients(critic, gradient_clip_val=1.0)


def _never(self, batch, batch_idx):
    self.step_of(self.optimizers()[0], self.real_loss(batch))


def _looks(self, batch, batch_idx):
    if batch.sum() > 0:
        ZeroBefore.training_step(self, batch, batch_idx)


def _several_numbers(self, batch, batch_idx):
    self.step_of(self.optimizers()[0], self.generator(batch[:, :2]))


def _later(self, batch, batch_idx):
    critic, generator = self.optimizers()
    self.step_of(critic, self.real_loss(batch))
    self.step_of(generator, self.fake_loss(-1.0) + (self.real_loss(self.generator(batch[:, :2])) if batch_idx == 3 else 0))


def _decays(self, batch, batch_idx):
    ZeroBefore.training_step(self, batch, batch_idx)
    self.optimizers()[0].param_groups[0]["lr"] *= 0.9


def _without_records(self, batch, batch_idx):
    for optimizer, sign in zip(self.optimizers(), (1.0, -1.0), strict=True):
        self.step_of(optimizer, self.fake_loss(sign))


def _real_and_fake_apart(self, batch, batch_idx):
    critic, generator = self.optimizers()
    self.step_of(critic, self.real_loss(batch))
    self.step_of(critic, self.fake_loss())
    self.step_of(generator, self.fake_loss(-1.0))


REFUSED = {
    "real and fake apart": (_real_and_fake_apart, 0, "a step of optimizer 0 depends on no record, and others of its do"),
    "counts": (_counts, 0, "changes self.calls, and is called once for each of its steps"),
    "decays": (_decays, 0, "changes the learning rate of optimizer 0"),
    "accumulates": (_accumulates, 0, "steps optimizer 0 with gradients that an earlier step has left"),
    "bare backward": (_bare_backward, 0, "steps optimizer 0 behind no backward pass.*and not loss.backward"),
    "clips sums": (_clips, 0, "clip_gradients of optimizer 0, which is private|makes no step"),
    "never": (_never, 0, "makes no step of optimizer 1 in its first 1000 calls"),
    "looks": (_looks, 0, r"looks at a value computed from a record"),
    "several numbers": (_several_numbers, 0, r"manual_backward receives a tensor of shape \(1, 3\)"),
    "sees records later": (_later, 3, "with batch_idx=3 a step of optimizer 1 depends on the batch"),
    "no records": (_without_records, 0, "see no record"),
}


@pytest.mark.parametrize(("step", "spent", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_made_step_by_step_is_refused(step, spent, words):
    private = PrivateTraining(RECORDS, **SETTINGS)
    trainer = pl.Trainer(callbacks=[private.callback()], accelerator="cpu", **QUIET)
    with pytest.raises((ValueError, MisconfigurationException), match=words) as found:
        trainer.fit(model := _changed(step)(), private.loader())
    assert "\n" not in str(found.value)
    assert private.account.ledger.count("training") == spent
    assert all(p.requires_grad for p in model.parameters()) and "optimizers" not in vars(model)


def test_a_moving_average_within_the_step_is_refused():
    class Averaging(ZeroBefore):
        def __init__(self):
            super().__init__()
            self.mean = nn.Linear(2, 3).requires_grad_(False)

        def training_step(self, batch, batch_idx):
            super().training_step(batch, batch_idx)
            for p, q in zip(self.mean.parameters(), self.generator.parameters(), strict=True):
                p.data.mul_(0.9).add_(q.data, alpha=0.1)

    with pytest.raises(ValueError, match=r"writes into mean\.weight, and is called once for each of its steps"):
        _fitted(Averaging(), public=["mean.weight", "mean.bias"])


WRITES = {
    "into data": lambda p: p.data.clamp_(-0.05, 0.05),
    "under no_grad": torch.no_grad()(lambda p: p.clamp_(-0.05, 0.05)),
    "by an operator": torch.no_grad()(lambda p: p.__imul__(0.9)),
    "in place of its data": lambda p: setattr(p, "data", p.data.clamp(-0.05, 0.05)),
    "by out": torch.no_grad()(lambda p: torch.clamp(p, -0.05, 0.05, out=p)),
    "all at once": torch.no_grad()(lambda p: torch._foreach_mul_([p], 0.9)),
}


@pytest.mark.parametrize("part", ["critic", "generator"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_into_trained_parameters_within_the_step_is_refused_by_their_name(write, part):
    class Writing(ZeroBefore):
        def training_step(self, batch, batch_idx):
            super().training_step(batch, batch_idx)
            write(next(getattr(self, part).parameters()))

    private = PrivateTraining(RECORDS, **SETTINGS)
    trainer = pl.Trainer(callbacks=[private.callback()], accelerator="cpu", **QUIET)
    with pytest.raises(ValueError, match=rf"writes into {part}\.(0\.)?weight, and .* write in on_train_batch_end"):
        trainer.fit(Writing(), private.loader())
    assert not private.account.ledger.accesses


def test_weights_are_clamped_in_on_train_batch_end_behind_each_step_that_sees_records():
    class Clamped(CriticLoop):
        calls = 0

        def on_train_batch_end(self, *_):
            self.calls += 1
            for p in self.critic.parameters():
                p.data.clamp_(-0.05, 0.05)

    _fitted(model := Clamped())
    assert model.calls == STEPS and max(float(p.abs().max()) for p in model.critic.parameters()) <= 0.05 + 1e-7


def test_reading_and_freezing_parameters_is_no_write():
    class Reading(Toggled):
        def __init__(self):
            super().__init__()
            self.register_buffer("codes", CODES)

        def training_step(self, batch):
            for p in self.critic.parameters():
                p.requires_grad = False
                p.requires_grad = True
            self.log("weight", (1.0 - self.critic[0].weight[0]).sum() + self.codes[0].sum() / self.codes.sum())
            super().training_step(batch)

    assert _fitted(Reading(), public=["codes"]).account.finished


UNKNOWN = "...,  # PerRecord(self.{0}) if this loss depends on the batch, else DataFree(self.{0})\n"
NOTES = {
    "gradients of two batches": (
        "accumulates", [UNKNOWN.format("generator_loss"), "PerRecord(self.critic_loss),\n"], ["DataFree(self.critic_loss)"]
    ),
    "plain backward": ("bare backward", [UNKNOWN.format("critic_loss"), UNKNOWN.format("generator_loss")], []),
    "real and fake": (
        "real and fake apart", ["return PerRecord(self.critic_loss), DataFree(self.generator_loss)\n"], ["..., "]
    ),
    "later": ("sees records later", ["return PerRecord(self.critic_loss), PerRecord(self.generator_loss)\n"], ["..., "]),
}  # fmt: skip


@pytest.mark.parametrize(("refused", "there", "not_there"), NOTES.values(), ids=NOTES)
def test_the_class_that_a_refusal_shows_claims_what_the_trace_has_found_and_no_more(refused, there, not_there):
    step, *_ = REFUSED[refused]
    with pytest.raises(ValueError) as found:
        _fitted(_changed(step)())
    (note,) = found.value.__notes__
    assert all(words in note for words in there) and not any(words in note for words in not_there)


def test_a_refusal_shows_the_class_that_gives_terms_and_this_trains_once_it_is_filled_in():
    with pytest.raises(ValueError, match=r"changes self\.calls") as found:
        _fitted(_changed(_counts)())
    (note,) = found.value.__notes__
    # The first call has shown that the critic's loss depends on the batch, and not that no loss of the generator does.
    assert "PerRecord(self.critic_loss),\n" in note and UNKNOWN.format("generator_loss") in note
    filled = note.replace("class Changed(...)", "class Changed(GAN)")
    filled = filled.replace("...,  # PerRecord", "DataFree(self.generator_loss),  # PerRecord")
    filled = filled.replace("def generator_loss(self, lot, noise)", "def generator_loss(self)")
    for loss in ("self.real_loss(lot.records) + self.fake_loss()", "self.fake_loss(-1.0)"):
        filled = filled.replace("loss = ...", f"loss = {loss}", 1)
    names = {"GAN": GAN, "PerRecord": PerRecord, "DataFree": DataFree}
    exec(textwrap.dedent(filled), names)
    model = names["Changed"]()
    model.automatic_optimization = True
    assert _fitted(model).account.finished


TRACES = {
    "its shape": (lambda x, y: torch.zeros(len(x), x.size(1), device=x.device) + y, False),
    "its type": (lambda x, y: y.type_as(x) + torch.ones_like(x), False),
    "a sum": (lambda x, y: x + y, True),
    "a view": (lambda x, y: x[:, 0], True),
    "written into another": (lambda x, y: _write(y.clone(), x), True),
    "written into a part": (lambda x, y: _write_part(y.clone(), x), True),
    "a number": (lambda x, y: y * float(x.sum()), True),
    "in numpy": (lambda x, y: torch.from_numpy(x.numpy() + 1), True),
    "by an argument's name": (lambda x, y: torch.add(input=y, other=x), True),
    "a function of torch.func": (lambda x, y: torch.func.grad(lambda z: (z * x).sum())(y), True),
}


def _write(y, x):
    y.copy_(x)
    return y


def _write_part(y, x):
    y[0] = x[0]
    return y.sum()


@pytest.mark.parametrize(("function", "follows"), TRACES.values(), ids=TRACES.keys())
def test_a_trace_tells_what_follows_from_records(function, follows):
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    with RecordTrace(x) as trace:
        result = function(x, y)
    assert trace.follows(result) == follows

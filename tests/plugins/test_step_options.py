"""Lots in parts, views and averages of anybody's module: the same steps, in less memory or with better weights."""

import contextlib
import json
import math

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from safetensors.torch import load_file
from torch import nn

from lightning_dpgen import DPNorm, Fixed, PerGroup, PerRecord, PrivateTraining, verify
from lightning_dpgen.clipping import PerLayer
from lightning_dpgen.gradients import captured, micro_batches
from lightning_dpgen.gradients import micro_batches as lot_memory
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.plugins import accountant
from lightning_dpgen.privacy.errors import PlanMismatch
from lightning_dpgen.privacy.noise.stream import PrivateStream

pytestmark = pytest.mark.filterwarnings("ignore")

N, STEPS = 200, 8
SETTINGS = {"n": N, "epsilon": 8.0, "delta": 1e-5, "sample_rate": 0.2, "steps": STEPS}
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
RECORDS = torch.rand(N, 4, generator=torch.Generator().manual_seed(0))


class Plain(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4))
        self.seen = []

    def training_step(self, batch, batch_idx):
        losses = (self.net(batch) - batch).square().sum(dim=1)
        self.log("loss", losses.mean())
        return losses

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class Logs(pl.loggers.logger.DummyLogger):
    """The logger of a service."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def log_metrics(self, metrics, step=None):
        self.lines.append(metrics)


def _private(**changes):
    return PrivateTraining(RECORDS, **SETTINGS | {"clipping": DPNorm(c_max=8.0), "stream": PrivateStream(seed=1)} | changes)


def _fitted(private, model=None, **options):
    model = model or Plain()
    trainer = pl.Trainer(callbacks=[private.callback()], accelerator="cpu", log_every_n_steps=1, **QUIET | options)
    trainer.fit(model, private.loader())
    return model


def _numbers(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("rule", [Fixed(1.0), DPNorm(c_max=8.0)], ids=["one pass", "two passes"])
def test_lots_are_taken_in_parts(rule, monkeypatch):
    sizes = []

    def counted(module, term, lot, *others, **options):
        sizes.append(len(lot))
        return term_gradients(module, term, lot, *others, **options)

    monkeypatch.setattr(captured, "term_gradients", counted)
    private = _private(clipping=rule, micro_batch=7)
    _fitted(private)
    assert private.account.finished and max(sizes) < 15 and sum(sizes) > 0.15 * N * STEPS
    # Lots differ in size, and each takes as many calls: a training step that counts them learns nothing.
    assert len(sizes) >= 6 * STEPS and len(sizes) % STEPS == 0


def test_parts_of_a_lot_are_the_lot():
    """Without privacy and sampling, since parts draw more from the private stream, so that all after them is another."""
    logs = Logs(), Logs()
    whole, parts = (
        _numbers(
            _fitted(_private(epsilon=math.inf, sample_rate=1.0, micro_batch=size, share_private_logs=True), logger=log)
        )
        for size, log in zip((None, 7), logs, strict=True)
    )
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
    one, other = ([line["private/loss"] for line in log.lines if "private/loss" in line] for log in logs)
    assert len(one) == STEPS and one == pytest.approx(other, rel=1e-4)


def test_memory_says_how_many_records_are_taken_at_a_time(monkeypatch):
    monkeypatch.setattr(lot_memory, "free_memory", lambda device: 20_000)
    given = {"epsilon": math.inf, "sample_rate": 1.0, "micro_batch": "auto"}
    few = _numbers(_fitted(_private(**given)))
    asked = []
    monkeypatch.setattr(micro_batches, "records_that_fit", lambda compute, device: asked.append(1) or 10**6)
    torch.testing.assert_close(few, _numbers(_fitted(_private(**given))), rtol=1e-4, atol=1e-5)
    assert asked == [1]


def test_memory_grows_with_records_and_shrinks_with_what_is_free(monkeypatch):
    def compute(n):
        x = torch.ones(n, 1000)
        for _ in range(3):
            x = x * 2.0  # two of them are held at a time
        return x

    for free, expected in ((8_000_000, 500), (16_000_000, 1000), (100, 1)):
        monkeypatch.setattr(lot_memory, "free_memory", lambda device, free=free: free)
        assert lot_memory.records_that_fit(compute, torch.device("cpu")) == pytest.approx(expected, abs=3)
    assert lot_memory.free_memory.__name__ == "<lambda>"


class Odd(Plain):
    """Takes no made-up record."""

    def training_step(self, batch, batch_idx):
        if batch.shape[-1] != 5:
            raise RuntimeError("five columns")
        return super().training_step(batch, batch_idx)


class InGroups(Plain):
    def training_step(self, batch, batch_idx):
        return PerGroup(lambda lot, _, groups: groups.gather(self.net(lot.records)).sum(dim=(1, 2)), 4, places=N)


class InTerms(Plain):
    def training_step(self, batch, batch_idx):
        return PerRecord(lambda lot, _: self.net(lot.records).sum(dim=1))


BAD = {
    "no number": ({"micro_batch": "many"}, Plain, ValueError, "micro_batch='many': expected a whole number"),
    "no record": ({"micro_batch": 0}, Plain, ValueError, "micro_batch=0"),
    "average": ({"averaging": 1.0}, Plain, ValueError, r"averaging=1\.0: expected a number from 0, below 1"),
    "views of nothing": ({"multiplicity": 4}, Plain, ValueError, "multiplicity=4: several views need augment"),
    "no views": ({"augment": lambda x: x, "multiplicity": 0}, Plain, ValueError, "multiplicity=0"),
    "memory unknown": ({"micro_batch": "auto"}, Odd, ValueError, "could not be tried on made-up records"),
    "groups in parts": ({"micro_batch": 9}, InGroups, ValueError, "reaches over all parts"),
    "views of terms": ({"augment": lambda x: x}, InTerms, ValueError, "returns terms, which receive records as they are"),
    "views that are too few": ({"augment": lambda x: x[:1], "multiplicity": 2}, Plain, ValueError, "expected 2 views"),
}


@pytest.mark.parametrize(("changes", "kind", "error", "said"), BAD.values(), ids=BAD.keys())
def test_what_does_not_fit_is_refused_before_anything_is_spent(changes, kind, error, said, tmp_path):
    ledger = tmp_path / "ledger"
    with pytest.raises(error, match=said):
        private = _private(**{"clipping": Fixed(1.0), "ledger": ledger} | changes)
        with contextlib.closing(private.account.ledger):
            _fitted(private, kind())
    assert not ledger.exists() or '"access"' not in ledger.read_text()


def test_views_train_and_are_those_of_the_record():
    def moved(x):
        return x + 0.1 * torch.randn_like(x)

    private = _private(augment=moved, multiplicity=3, micro_batch=16)
    model = _fitted(private)
    assert private.account.finished and torch.isfinite(_numbers(model)).all()
    same = [_numbers(_fitted(_private(augment=lambda x: x, multiplicity=count))) for count in (1, 3)]
    torch.testing.assert_close(*same, rtol=1e-4, atol=1e-5)


KEPT = 0.6


class Seen(Plain):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        optimizer.register_step_post_hook(lambda *_: self.seen.append(_numbers(self)))
        return optimizer


def _expected(seen):
    weights = torch.tensor([KEPT ** (len(seen) - 1 - i) for i in range(len(seen))])
    return (weights[:, None] * torch.stack(seen)).sum(dim=0) / weights.sum()


def test_the_average_of_steps_is_released(tmp_path):
    private = _private(averaging=KEPT, stream=None)
    model = _fitted(private, Seen())
    last = _numbers(model)
    assert len(model.seen) == STEPS and torch.equal(model.seen[-1], last)
    with private.use_average():
        torch.testing.assert_close(_numbers(model), _expected(model.seen))
    assert torch.equal(_numbers(model), last)
    private.release(model, tmp_path / "release")
    tensors = load_file(tmp_path / "release/model.safetensors")
    released = torch.cat([tensors[name].flatten() for name, _ in model.named_parameters()])
    torch.testing.assert_close(released, _expected(model.seen))
    assert verify(tmp_path / "release").good and torch.equal(_numbers(model), last)
    assert json.loads((tmp_path / "release/privacy.json").read_text())["declared"]["averaging"] == KEPT


def _crashed(private, folder):
    """Return a module that was trained half of its steps, of which a checkpoint is kept."""

    class Stopping(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            if private.account.remaining("training") == STEPS // 2:
                trainer.save_checkpoint(folder / "half.ckpt")
                raise RuntimeError("a crash")

    model = Seen()
    trainer = pl.Trainer(callbacks=[private.callback(), Stopping()], accelerator="cpu", **QUIET)
    with pytest.raises(RuntimeError, match="a crash"):
        trainer.fit(model, private.loader(block=1))
    private.account.ledger.close()
    return model


def _gone_on(private, folder):
    model = Seen()
    trainer = pl.Trainer(callbacks=[private.callback()], accelerator="cpu", **QUIET)
    trainer.fit(model, private.loader(), ckpt_path=folder / "half.ckpt")
    return model


def test_an_average_goes_on_with_its_run(tmp_path):
    given = {"averaging": KEPT, "ledger": tmp_path / "ledger"}
    first = _crashed(_private(**given), tmp_path)
    private = _private(**given)
    second = _gone_on(private, tmp_path)
    private.account.ledger.close()
    with private.use_average():
        torch.testing.assert_close(_numbers(second), _expected([*first.seen, *second.seen]))


def test_a_run_without_an_average_does_not_go_on_with_one(tmp_path):
    private = _private(ledger=tmp_path / "ledger")
    with pytest.raises(ValueError, match="averaging=0 keeps no average"):
        private.use_average()
    _crashed(private, tmp_path)
    again = _private(ledger=tmp_path / "ledger", averaging=KEPT)
    with pytest.raises(MisconfigurationException, match="the checkpoint holds no average"):
        _gone_on(again, tmp_path)
    again.account.ledger.close()


def test_a_service_is_told_no_private_number_unless_that_is_allowed(tmp_path):
    service, file = Logs(), pl.loggers.CSVLogger(tmp_path)
    with pytest.warns(UserWarning, match="Logs is told no number under private/.*share_private_logs=True"):
        _fitted(_private(), logger=[service, file])
    assert not any(name.startswith("private/") for line in service.lines for name in line)
    assert "private/loss" in (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()
    # It is given back as it was.
    service.log_metrics({"private/x": 1.0})
    assert service.lines[-1] == {"private/x": 1.0}


class Counting(Plain):
    """Writes down what Lightning says at each step."""

    def on_train_batch_start(self, batch, batch_idx):
        assert batch is None
        self.seen.append(("start", batch_idx, self.global_step))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        assert outputs is None and batch is None
        self.seen.append(("end", batch_idx, self.global_step))

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def test_lightning_counts_steps(tmp_path):
    """Checkpoints, hooks and schedules come when they say; an epoch is five lots at a rate of a fifth."""
    private, model = _private(), Counting()
    checkpoints = pl.callbacks.ModelCheckpoint(dirpath=tmp_path, save_top_k=-1, every_n_train_steps=3, filename="{step}")
    trainer = pl.Trainer(
        callbacks=[private.callback(), checkpoints], accelerator="cpu", **QUIET | {"enable_checkpointing": True}
    )
    trainer.fit(model, private.loader())
    assert trainer.global_step == STEPS
    assert model.seen == [each for i in range(STEPS) for each in (("start", i, i), ("end", i, i + 1))]
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["step=3.ckpt", "step=6.ckpt"]
    assert trainer.optimizers[0].param_groups[0]["lr"] == 1e-2 * 0.5 ** (STEPS // 5)


@pytest.mark.parametrize("block", [1, 3])
def test_a_fit_ends_where_the_trainer_says(block, tmp_path):
    private, model = _private(), Counting()
    trainer = pl.Trainer(callbacks=[private.callback()], accelerator="cpu", max_steps=5, **QUIET)
    trainer.fit(model, private.loader(block))
    assert trainer.global_step == 5 and private.account.remaining("training") == STEPS - 5
    assert len(model.seen) == 10
    with pytest.raises(PlanMismatch, match=r"5 of 8 steps \(\S+ epochs?\) were made"):
        private.release(model, tmp_path / "release")


def test_a_fit_that_goes_on_counts_on(tmp_path):
    given = {"ledger": tmp_path / "ledger"}
    _crashed(_private(**given), tmp_path)
    private, model = _private(**given), Counting()
    trainer = pl.Trainer(callbacks=[private.callback()], accelerator="cpu", max_steps=STEPS - 1, **QUIET)
    trainer.fit(model, private.loader(), ckpt_path=tmp_path / "half.ckpt")
    private.account.ledger.close()
    assert model.seen[0] == ("start", STEPS // 2, STEPS // 2) and trainer.global_step == STEPS - 1
    assert private.account.remaining("training") == 1


class Skipping(Plain):
    def on_train_batch_start(self, batch, batch_idx):
        return -1


def test_a_hook_that_ends_an_epoch_is_refused():
    private = _private()
    with pytest.raises(MisconfigurationException, match="on_train_batch_start returned -1"):
        _fitted(private, Skipping())
    assert not private.account.ledger.accesses


@pytest.mark.parametrize("micro_batch", [None, 16])
def test_a_fit_in_slots_makes_the_same_steps(micro_batch):
    """Without visible noise, and with a fixed bound, the weights are those of lots without slots, but for rounding."""
    quiet = {"epsilon": math.inf, "clipping": Fixed(0.5), "micro_batch": micro_batch}
    fits = []
    for slots in (False, True):
        private = _private(**quiet, slots=slots, stream=Repeated(seed=1))
        fits.append(_numbers(_fitted(private)))
        assert private.account.finished
    torch.testing.assert_close(*fits, rtol=1e-4, atol=1e-5)
    assert not torch.equal(fits[0], _numbers(Plain()))


class Repeated(PrivateStream):
    """A stream whose slots are others than its lots, so that these stay the same."""

    def words(self, size):
        return PrivateStream(seed=5).words(size)


def test_parts_of_persons_have_no_slots():
    with pytest.raises(ValueError, match=r"slots=True with max_rows=2 and micro_batch=8"):
        _private(slots=True, micro_batch=8, persons=np.arange(N) // 2, max_rows=2)


def test_slots_are_asked_for_by_yes_or_no():
    with pytest.raises(ValueError, match="slots=64: expected True, False, or None"):
        _private(slots=64)


def test_logs_of_lots_in_slots_are_means_over_records_alone():
    """The first step of both begins at the same weights, and an empty slot holds a made-up record."""
    logs = Logs(), Logs()
    for slots, log in zip((False, True), logs, strict=True):
        private = _private(sample_rate=1.0, clipping=Fixed(0.5), slots=slots, share_private_logs=True)
        _fitted(private, logger=log)
    first = [next(line["private/loss"] for line in log.lines if "private/loss" in line) for log in logs]
    assert first[0] == pytest.approx(first[1], rel=1e-5)


class ByStep(Plain):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1.0 + 0.1 * self.global_step)


@pytest.mark.parametrize(("model", "words"), [(Plain, "captured"), (ByStep, "not captured: ")])
def test_a_fit_in_slots_says_once_if_it_is_captured(model, words, monkeypatch):
    lines = []
    monkeypatch.setattr(accountant, "rank_zero_info", lines.append)
    _fitted(_private(slots=True), model())
    (line,) = lines
    assert line.startswith(f"Private steps in 32-true, lots in 83 slots: {words}")
    assert line.endswith(words) if model is Plain else "global_step" in line


class Loud(Plain):
    """Logs a value of each record, several of one, one of the network, and a number."""

    def training_step(self, batch, batch_idx):
        out = self.net(batch)
        self.log_dict({"out": out, "size": self.net[0].weight.detach().norm(), "seven": 7.0}, prog_bar=True)
        return super().training_step(batch, 0)


@pytest.mark.parametrize("micro_batch", [None, 16])
def test_a_captured_step_logs_what_an_eager_one_does(micro_batch, monkeypatch):
    logs = Logs(), Logs()
    for replays, log in zip((True, False), logs, strict=True):
        if not replays:
            monkeypatch.setattr(captured.Captures, "_captured", lambda *_: None)
        # Both draw the same lots, in the same slots, and no draw follows from a capture.
        private = _private(clipping=Fixed(0.5), slots=True, share_private_logs=True, micro_batch=micro_batch,
                           epsilon=math.inf, stream=Repeated(seed=1))  # fmt: skip
        model = _fitted(private, Loud(), logger=log)
        assert (model.trainer.optimizers[0].captured == "captured") == replays
    lines = [[line for line in log.lines if "private/out" in line] for log in logs]
    assert len(lines[0]) > 3 and {"private/loss", "private/size", "private/seven"} < lines[0][-1].keys()
    for own, expected in zip(*lines, strict=True):
        for name in ("private/steps_per_second", "private/memory_gib"):
            assert all(line.pop(name, 1.0) > 0.0 for line in (own, expected))
        assert 0.0 < own["private/share_of_slack"] < 1e-3
        assert own == pytest.approx(expected, rel=1e-5) and own["private/seven"] == 7.0
    assert len({line["private/out"] for line in lines[0]}) == len(lines[0])


class HandingOn(Plain):
    """Hands the number of a batch on, and uses it where it is told to."""

    uses = None

    def training_step(self, batch, batch_idx):
        return self.shared(batch, batch_idx, "train")

    def shared(self, batch, batch_idx, name):
        if not isinstance(batch_idx, int) or batch_idx is None:
            raise TypeError("expected a number")
        scale = 1.0 if self.uses is None else type(self).uses(batch_idx)
        return scale * super().training_step(batch, batch_idx)


THREE = (3,)
USES = {
    "adds": lambda i: 1.0 + 0.1 * i,
    "compares": lambda i: 2.0 if i == 3 else 1.0,
    "asks": lambda i: 2.0 if i else 1.0,
    "is it": lambda i: 2.0 if i is THREE[0] else 1.0,
    "writes": lambda i: float(str(i)) + 1.0,
    "counts": lambda i: 1.0 + len(range(i)),
    "attribute": lambda i: 1.0 + i.bit_length(),
    "part": lambda i: 1.0 + bool(i.real),
    "formats": lambda i: 1.0 + len(f"{i}"),
    "looks up": lambda i: {1: 3.0}.get(i, 1.0),
    "catches": lambda i: _caught(i),
    "torch": lambda i: 1.0 + torch.tensor(i),
}


def _caught(i):
    try:
        return 1.0 + i
    except Exception:
        return 1.0


@pytest.mark.parametrize("use", [None, *USES])
def test_the_number_of_a_batch_may_be_handed_on_and_not_used(use, monkeypatch):
    monkeypatch.setattr(HandingOn, "uses", USES.get(use) and staticmethod(USES[use]))
    fits = []
    for capture in (True, False):
        private = _private(clipping=Fixed(1e3), slots=True, capture=capture, epsilon=math.inf, stream=Repeated(seed=1))
        fits.append(_fitted(private, HandingOn()))
    assert (fits[0].trainer.optimizers[0].captured == "captured") == (use is None)
    assert fits[1].trainer.optimizers[0].captured is None
    torch.testing.assert_close(*map(_numbers, fits), rtol=1e-5, atol=1e-6)


def test_views_are_captured():
    model = _fitted(_private(augment=lambda x: x + torch.rand_like(x), multiplicity=2, slots=True))
    assert model.trainer.optimizers[0].captured == "captured"


class Twice(Plain):
    def training_step(self, batch, batch_idx):
        return [PerRecord(lambda lot, _: self.net(lot.records).square().sum(dim=1))] * 2


@pytest.mark.parametrize(
    ("model", "clipping", "words"),
    [
        (Twice, [Fixed(1.0)] * 2, "a step has several terms"),
        (Plain, PerLayer(Fixed(1.0)), "several bounds in a step"),
    ],
    ids=["terms", "layers"],
)
def test_a_fit_says_why_its_steps_are_never_captured(model, clipping, words, monkeypatch):
    lines = []
    monkeypatch.setattr(accountant, "rank_zero_info", lines.append)
    _fitted(_private(slots=True, clipping=clipping), model())
    (line,) = lines
    assert "not captured: " in line and words in line


def test_capture_is_asked_for_by_yes_or_no():
    with pytest.raises(ValueError, match="capture='no': expected True or False"):
        _private(capture="no")

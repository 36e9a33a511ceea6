"""Lots in parts, views and averages of anybody's module: the same steps, in less memory or with better weights."""

import contextlib
import json
import math

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from safetensors.torch import load_file
from torch import nn

from lightning_dpgen import DPNorm, Fixed, PerGroup, PerRecord, PrivateTraining, verify
from lightning_dpgen.gradients import lot_memory
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.plugins import automatic_module
from lightning_dpgen.privacy.noise import PrivateStream

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

    monkeypatch.setattr(automatic_module, "term_gradients", counted)
    private = _private(clipping=rule, micro_batch=7)
    _fitted(private)
    assert private.account.finished and max(sizes) < 15 and sum(sizes) > 0.15 * N * STEPS
    # Lots differ in size, and each takes as many calls: a training step that counts them learns nothing.
    assert len(sizes) >= 6 * STEPS and len(sizes) % STEPS == 0


def test_parts_of_a_lot_are_the_lot():
    """Without privacy and sampling, since parts draw more from the private stream, so that all after them is another."""
    logs = Logs(), Logs()
    whole, parts = (
        _numbers(_fitted(_private(epsilon=math.inf, sample_rate=1.0, micro_batch=size), logger=log))
        for size, log in zip((None, 7), logs, strict=True)
    )
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
    one, other = ([line["private/loss"] for line in log.lines if "private/loss" in line] for log in logs)
    assert len(one) == STEPS and one == pytest.approx(other, rel=1e-4)


def test_memory_says_how_many_records_are_taken_at_a_time(monkeypatch):
    monkeypatch.setattr(lot_memory, "_free", lambda device: 20_000)
    given = {"epsilon": math.inf, "sample_rate": 1.0, "micro_batch": "auto"}
    few = _numbers(_fitted(_private(**given)))
    asked = []
    monkeypatch.setattr(automatic_module, "records_that_fit", lambda compute, device: asked.append(1) or 10**6)
    torch.testing.assert_close(few, _numbers(_fitted(_private(**given))), rtol=1e-4, atol=1e-5)
    assert asked == [1]


def test_memory_grows_with_records_and_shrinks_with_what_is_free(monkeypatch):
    def compute(n):
        x = torch.ones(n, 1000)
        for _ in range(3):
            x = x * 2.0  # two of them are held at a time
        return x

    for free, expected in ((8_000_000, 500), (16_000_000, 1000), (100, 1)):
        monkeypatch.setattr(lot_memory, "_free", lambda device, free=free: free)
        assert lot_memory.records_that_fit(compute, torch.device("cpu")) == pytest.approx(expected, abs=3)
    assert lot_memory._free.__name__ == "<lambda>"


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
    "views of terms": ({"augment": lambda x: x}, InTerms, ValueError, "gives terms, which are handed records as they are"),
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
    with private.averaged():
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
    with private.averaged():
        torch.testing.assert_close(_numbers(second), _expected([*first.seen, *second.seen]))


def test_a_run_without_an_average_does_not_go_on_with_one(tmp_path):
    private = _private(ledger=tmp_path / "ledger")
    with pytest.raises(ValueError, match="averaging=0 keeps no average"):
        private.averaged()
    _crashed(private, tmp_path)
    again = _private(ledger=tmp_path / "ledger", averaging=KEPT)
    with pytest.raises(MisconfigurationException, match="the checkpoint holds no average"):
        _gone_on(again, tmp_path)
    again.account.ledger.close()

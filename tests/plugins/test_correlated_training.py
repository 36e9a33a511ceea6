"""A plain module is trained with correlated noise in three lines; release, crash and certificate follow."""

import json
import math
import re
import stat
from types import SimpleNamespace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from contracts.sealed import rewrite
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import Dataset

from lightning_dpgen import AccountEngine, DPNorm, Fixed, PrivateOptimizer, PrivateTraining, verify
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.sampling.correlated_noise import CorrelatedNoise
from lightning_dpgen.sampling.errors import BadRecords

pytestmark = pytest.mark.filterwarnings("ignore")

N, STEPS = 200, 20
SETTINGS = {"n": N, "epsilon": 8.0, "delta": 1e-5, "sample_rate": 0.1, "steps": STEPS, "clipping": Fixed(1.0)}
RECORDS = torch.rand(N, 4, generator=torch.Generator().manual_seed(0))
CYCLIC = {"sampler": "cyclic", "bands": 4}


class Plain(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 4)

    def training_step(self, batch, batch_idx):
        return (self.net(batch) - batch).square().sum(dim=1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)


class Stop(pl.Callback):
    """Leaves the fit after so many steps, as a crash would."""

    def __init__(self, after):
        self.left = after

    def on_train_batch_end(self, *_):
        self.left -= 1
        if not self.left:
            raise RuntimeError("crash")


def _private(**changes):
    return PrivateTraining(RECORDS, **SETTINGS | changes)


def _fit(private, *callbacks, **options):
    model = Plain()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = pl.Trainer(callbacks=[private.callback(), *callbacks], enable_checkpointing=bool(callbacks), **quiet)
    trainer.fit(model, private.loader(), **options)
    return model


def test_its_release_verifies_and_says_what_was_drawn(tmp_path):
    private = _private(**CYCLIC)
    certificate = private.release(_fit(private), tmp_path / "release")
    verdict = verify(tmp_path / "release")
    assert verdict.good, verdict.problems
    assert certificate["relation"] == "add_or_remove_one" and 7.9 < certificate["epsilon"] <= 8.0
    access = private.plan.stages[0].access
    sensitivity = access.sampler.strategy.sensitivity
    assert any(f"moves by at most {sensitivity:.6g}" in check for check in verdict.checks)
    assert any(f"{access.multiplier * sensitivity:.6g} times the bound" in check for check in verdict.checks)
    assert "one of 4 groups in its turn" in (tmp_path / "release" / "report.html").read_text()


class Rows(Dataset):
    """The records, where one may be out of place: one that is not finite adds exact zeros."""

    def __init__(self, out):
        self.rows = RECORDS.clone()
        # Far away, so that its gradient is always clipped.
        self.rows[7] = math.nan if out else 9.0

    def __len__(self):
        return N

    def __getitem__(self, place):
        return self.rows[place]


def _exact_sums(monkeypatch, out):
    """Return the sums of a fit before noise, (steps, d), in units of a record's bound; all fits get the same answers."""
    sums = []

    def answer(noise, values, step, multiplier, scale):
        sums.append((values / scale).double().numpy().copy())
        return values.copy_(torch.sin(torch.arange(len(values)) + step))

    with monkeypatch.context() as patch:
        patch.setattr(CorrelatedNoise, "add_", answer)
        patch.setattr(PrivateOptimizer, "rehearse", lambda _: None)
        private = PrivateTraining(Rows(out), **SETTINGS | CYCLIC, stream=PrivateStream(seed=1))
        _fit(private)
    return np.stack(sums), private.plan.stages[0].access.sampler.strategy


def test_over_a_whole_fit_no_record_reaches_farther_than_the_sensitivity(monkeypatch):
    with_it, strategy = _exact_sums(monkeypatch, False)
    without, _ = _exact_sums(monkeypatch, True)
    moved = with_it - without
    turns = np.flatnonzero(np.linalg.norm(moved, axis=1) > 1e-9)
    assert len(turns) and (np.diff(turns) % strategy.period == 0).all(), "it takes part in its turns alone"
    matrix = sum(np.diag(np.full(STEPS - i, value), -i) for i, value in enumerate(strategy.coefficients))
    lengths = [np.linalg.norm(block) for block in np.split(matrix @ moved, range(turns[0] % 4, STEPS, 4))]
    assert 0.9 * strategy.sensitivity < max(lengths) <= strategy.sensitivity * (1 + 1e-5)


def _relate(relation):
    return lambda c: c.__setitem__("relation", relation)


def _event(change):
    def apply(c):
        change(c["event"])
        change(c["stages"][0]["event"])

    return apply


FORGED = {
    "a record replaced": (_relate("replace_one"), "correlated noise is proved|projected rows"),
    "a smaller sensitivity": (_event(lambda e: e.update(sensitivity=1.0)), "moves this strategy"),
    "another strategy": (_event(lambda e: e["strategy"].update(coefficients=[1.0, 0.1])), "moves this strategy"),
    "rising coefficients": (_event(lambda e: e["strategy"].update(coefficients=[1.0, 0.1, 0.2])), "never rise"),
    "too few groups": (_event(lambda e: e["strategy"].update(period=2)), "as many bands as groups"),
    "another sampler": (_event(lambda e: e["strategy"].update(sampler="fixed_order")), "strategy of correlated noise"),
    "fewer groups at a time": (_event(lambda e: e.update(sampling_probability=0.1)), "event tree costs"),
    "less noise": (_event(lambda e: e.update(noise_multiplier=e["noise_multiplier"] / 2)), "the event tree costs"),
    "persons": (lambda c: c["declared"].update(max_rows=3), "correlated noise is proved"),
    "a bare Gaussian": (
        lambda c: [place.update(event={"type": "GaussianDpEvent", "noise_multiplier": c["event"]["noise_multiplier"]})
                   for place in (c["stages"][0], c)],
        "event tree costs|event has not",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def cyclic(tmp_path_factory):
    private = _private(**CYCLIC)
    folder = tmp_path_factory.mktemp("cyclic") / "release"
    private.release(_fit(private), folder)
    return folder


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_certificate_is_refused(cyclic, name):
    change, message = FORGED[name]
    before = (cyclic / "privacy.json").read_text()
    try:
        rewrite(cyclic, change)
        problems = verify(cyclic).problems
        assert problems and re.search(message, "\n".join(problems)), problems
    finally:
        (cyclic / "privacy.json").write_text(before)


def test_a_fit_goes_on_after_a_crash_at_the_planned_cost(tmp_path):
    ledger, memory = tmp_path / "ledger.jsonl", tmp_path / "ledger.jsonl.noise"
    private = _private(ledger=ledger, **CYCLIC)
    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=6, filename="state", enable_version_counter=False)
    with pytest.raises(RuntimeError, match="crash"):
        # Two steps are made after the state was saved, and are lost.
        _fit(private, saving, Stop(8))
    assert stat.S_IMODE(memory.stat().st_mode) == 0o600
    held = torch.load(memory, weights_only=True)["stages"]["training"]
    assert held["noise"]["step"] == 6 and held["groups"] is not None
    checkpoint = torch.load(tmp_path / "saved" / "state.ckpt", weights_only=False)
    secret = held["noise"]["memory"].flatten()
    assert not any(
        torch.isin(secret, tensor.flatten().to(secret)).any()
        for tensor in _tensors(checkpoint)
    ), "the memory is in no checkpoint"  # fmt: skip

    again = _private(ledger=ledger, **CYCLIC)
    model = _fit(again, ckpt_path=tmp_path / "saved" / "state.ckpt")
    assert again.account.plan == private.plan and not again.account.remaining("training")
    assert again.account.done == {"training": STEPS - 2}, "steps that were lost are not made again"
    certificate = again.release(model, tmp_path / "release")
    assert certificate["event"] == json.loads(json.dumps(certificate["event"])) and verify(tmp_path / "release").good
    assert not memory.exists()


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _tensors(part)


def test_the_twin_without_noise_is_not_private():
    private = _private(epsilon=math.inf, **CYCLIC)
    _fit(private)
    assert not private.plan.private and private.account.done == {"training": STEPS}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bands": 2}, "sampler='poisson' with bands=2"),
        ({"sampler": "shuffle"}, "shuffled order can cost more"),
        ({"sampler": "cyclic", "clipping": DPNorm(c_max=1.0)}, "draws no noise"),
        ({"sampler": "cyclic", "persons": np.arange(N)}, "expected no persons"),
        ({"sampler": "cyclic", "persons": np.arange(N) // 2, "max_rows": 2}, "a unit of one record"),
    ],
)
def test_what_is_not_proved_is_refused_in_one_line_before_anything_is_spent(changes, message):
    with pytest.raises((ValueError, BadRecords), match=message) as found:
        _private(**changes)
    assert "\n" not in str(found.value)


def test_several_processes_and_opacus_loops_are_refused():
    account = _private(**CYCLIC).account

    with pytest.raises(LedgerError, match="drawn by one alone"):
        account.join(SimpleNamespace(size=2))
    with pytest.raises(ValueError, match="no accountant of Opacus knows"):
        AccountEngine(account)

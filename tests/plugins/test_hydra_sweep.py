"""A Hydra sweep over `PrivateTraining` learns what its trainings tell together, without being asked to."""

import logging
import re
import subprocess
import sys
from pathlib import Path

import dp_accounting
import pytest
import pytorch_lightning as pl
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from lightning_dpgen import Fixed, PrivateTraining
from lightning_dpgen.plugins.hydra_callback import JointEpsilon
from lightning_dpgen.plugins.hydra_sweep import SweepList
from lightning_dpgen.privacy import Study
from lightning_dpgen.privacy.accounting.joint import say_together
from lightning_dpgen.privacy.errors import LedgerError

APP = """
import sys, warnings
import hydra, torch
import pytorch_lightning as pl
from lightning_dpgen import Fixed, PrivateTraining

class Net(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.net, self.lr = torch.nn.Linear(3, 1), lr

    def training_step(self, batch, number):
        return (self.net(batch) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)

class Stop(pl.Callback):
    def on_train_batch_end(self, *given):
        raise RuntimeError("a fault of this job")

@hydra.main(config_path=".", config_name="app", version_base="1.3")
def main(config):
    private = PrivateTraining(torch.rand(200, 3), n=200, epsilon=config.epsilon, delta=1e-4, sample_rate=0.2, steps=3,
                              clipping=Fixed(1.0))
    callbacks = [private.callback(), *([Stop()] if config.fails else [])]
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, callbacks=callbacks, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)
    try:
        trainer.fit(Net(config.lr), private.loader())
    except RuntimeError as fault:
        print(fault)

main()
"""


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 1)

    def training_step(self, batch, number):
        return (self.net(batch) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Stand in for a job of a sweep."""
    settings = {"hydra": {"mode": RunMode.MULTIRUN, "runtime": {"cwd": str(tmp_path)}, "sweep": {"dir": "swept"}}}
    monkeypatch.setattr(HydraConfig.instance(), "cfg", OmegaConf.create(settings))
    return SweepList(tmp_path / "swept")


def _fit(epsilon=4.0, **more):
    private = PrivateTraining(
        torch.rand(200, 3), n=200, epsilon=epsilon, delta=1e-4, sample_rate=0.2, steps=3, clipping=Fixed(1.0), **more
    )
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    pl.Trainer(accelerator="cpu", max_epochs=1, callbacks=[private.callback()], **quiet).fit(Net(), private.loader())
    return private


pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def told(monkeypatch):
    lines = []
    monkeypatch.setattr(logging.getLogger("lightning_dpgen.sweep"), "warning", lines.append)
    return lines


def test_each_training_of_a_sweep_but_the_first_says_what_all_tell_together(job, told):
    trainings = [_fit(epsilon) for epsilon in (2.0, 2.0, 4.0)]
    assert len(told) == 2
    for count, line in zip((2, 3), told, strict=True):
        events = [training.plan.event for training in trainings[:count]]
        assert line.startswith(say_together(events, 1e-4, "trainings of this sweep")) and line.count("\n") == 0
    assert float(re.search(r"epsilon ([\d.]+)", told[1])[1]) > 4.0
    assert not job._path.stat().st_mode & 0o077 and not job._path.parent.stat().st_mode & 0o077
    JointEpsilon().on_multirun_end(OmegaConf.create({"hydra": HydraConfig.get()}))
    assert told[2] == told[1]


def test_a_training_outside_of_a_sweep_a_study_and_one_without_privacy_say_nothing(job, told, tmp_path, monkeypatch):
    study = Study(tmp_path / "study.jsonl", epsilon=100.0, delta=1e-4)
    _fit(study=study)
    _fit(study=study)
    _fit(float("inf"))
    HydraConfig.instance().cfg.hydra.mode = RunMode.RUN
    _fit()
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
    _fit()
    monkeypatch.delitem(sys.modules, "hydra.core.hydra_config")
    _fit()
    assert not told and not job._path.exists()


def test_a_training_that_goes_on_is_entered_once(job):
    private = _fit()
    job.enter(private.account)
    assert job.describe() is None and len(job._read()) == 1


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"trainings": [{"run": 1}]}'])
def test_a_damaged_list_is_told(job, content):
    job._path.parent.mkdir(parents=True)
    job._path.write_bytes(content)
    with pytest.raises(LedgerError, match="is damaged"):
        job.describe()


def test_equal_runs_compose_as_one_of_more_noise():
    line = say_together([dp_accounting.GaussianDpEvent(4.0)] * 4, 1e-5)
    alone = say_together([dp_accounting.GaussianDpEvent(2.0)], 1e-5)
    assert line.partition("epsilon")[2] == alone.partition("epsilon")[2]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_an_own_program_learns_its_joint_epsilon(tmp_path, launcher):
    """One of its jobs fails after its first step, and counts; joblib's jobs are processes."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "app.yaml").write_text(
        "lr: 0.1\nepsilon: 2\nfails: false\n"
        "hydra:\n  callbacks:\n    dpgen: {_target_: lightning_dpgen.plugins.hydra_callback.JointEpsilon}\n"
    )
    words = ["-m", "lr=0.1,0.2", "fails=true,false", "hydra.sweep.dir=swept", f"hydra/launcher={launcher}"]
    words += ["hydra.launcher.n_jobs=2"] if launcher == "joblib" else []
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "app.py", *words], cwd=tmp_path, capture_output=True, text=True, timeout=500
    )
    out = done.stdout + done.stderr
    assert done.returncode == 0, out[-3000:]
    lines = [line for line in out.splitlines() if "trainings of this sweep" in line]
    assert "the 4 trainings of this sweep tell together: epsilon" in lines[-1]
    assert out.count("a fault of this job") == 2
    assert (tmp_path / "swept" / ".lightning_dpgen" / "trainings.json").stat().st_mode & 0o077 == 0
    assert Path(tmp_path, "swept", "0", ".hydra").is_dir()

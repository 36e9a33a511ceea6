"""A fit with `lightning` is that with `pytorch_lightning`: bits, logs, checkpoints and refusals; either works alone."""

import importlib.util
import math
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from absent import HEAD
from marks import only
from torch import nn

from lightning_dpgen import Fixed, MomentsAccountant, PrivateTraining
from lightning_dpgen.plugins import namespaces
from lightning_dpgen.plugins.events import PublicEvents
from lightning_dpgen.privacy.noise.stream import PrivateStream

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    # Nothing imports it while tests are collected: they see one Lightning.
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs the package lightning"),
]

NAMES = namespaces.PLAIN, namespaces.JOINT
N, STEPS = 60, 6
RECORDS = torch.rand(N, 3, generator=torch.Generator().manual_seed(0))
QUIET = {"max_epochs": 1, "enable_progress_bar": False, "enable_model_summary": False}


@pytest.fixture(scope="module", autouse=True)
def spaces():
    """Import both, and forget `lightning` for the tests of other files, which see one."""
    before = set(sys.modules)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield {name: importlib.import_module(name) for name in NAMES}
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "lightning":
            del sys.modules[name]


def _module(space, **hooks):
    class Network(space.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 3)
            self.net.load_state_dict({"weight": torch.eye(3), "bias": torch.zeros(3)})

        def training_step(self, batch, batch_idx):
            loss = (self.net(batch) - batch).square().mean()
            self.log("loss", loss, prog_bar=True)
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val", batch.mean(), prog_bar=True)
            self.log("public/bias", self.net.bias.detach().mean())

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]

    return type("Network", (Network,), hooks)()


def _service(space):
    class Service(space.loggers.Logger):
        """Stands for Weights & Biases or MLflow: keeps what would leave the machine."""

        name = version = "service"

        def __init__(self):
            super().__init__()
            self.lines = []

        def log_hyperparams(self, params, *_, **__): ...

        def log_metrics(self, metrics, step=None):
            self.lines.append((step, dict(metrics)))

    return Service()


def _private(ledger=None, **changes):
    words = {"epsilon": 6, "delta": 1e-3, "sample_rate": 0.2, "steps": STEPS, "clipping": Fixed(0.5)}
    return PrivateTraining(RECORDS, n=N, ledger=ledger, stream=PrivateStream(seed=0), **words | changes)


def _numbers(lines):
    """Return logs without what a clock says."""
    return [(step, {k: v for k, v in line.items() if "second" not in k and "time" not in k}) for step, line in lines]


def _story(space, folder):
    """Return what a fit leaves: one that is stopped, goes on from a checkpoint, and is released."""
    private, service = _private(folder / "ledger.jsonl"), _service(space)
    files = [space.loggers.CSVLogger(folder, "csv"), space.loggers.TensorBoardLogger(folder, "board")]
    kept = space.callbacks.ModelCheckpoint(folder / "kept", monitor="public/bias", every_n_train_steps=1, save_top_k=-1)
    halt = space.callbacks.EarlyStopping("public/bias", patience=50, check_on_train_epoch_end=False)
    public = torch.utils.data.DataLoader(RECORDS, batch_size=10)
    options = QUIET | {"logger": [service, *files], "val_check_interval": 1, "log_every_n_steps": 1}
    first = space.Trainer(**options, max_steps=2, callbacks=[kept, private.callback(), halt])
    first.fit(_module(space), private.loader(), public)
    metrics = sorted(first.callback_metrics)
    path = max((folder / "kept").glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    again, module = _private(folder / "ledger.jsonl"), _module(space)
    second = space.Trainer(**options, callbacks=[kept, again.callback(), halt])
    second.fit(module, again.loader(), public, ckpt_path=path)
    certificate = again.release(module, folder / "release", data="made up")
    return {
        "weights": [p.tolist() for p in module.parameters()],
        "service": _numbers(service.lines),
        "metrics": metrics + sorted(second.callback_metrics),
        "checkpoints": sorted(path.name for path in (folder / "kept").iterdir()),
        "steps": (first.global_step, second.global_step),
        "epsilon": certificate["epsilon"],
        "files": {p.name.split(".17")[0]: p.stat().st_mode & 0o077 for p in folder.glob("*/version_0/*")},
        "named": [name for name in ("pytorch-lightning", "lightning") if name in certificate["versions"]],
    }


def test_a_fit_is_the_same_in_both_namespaces(spaces, tmp_path):
    stories = []
    for name, space in spaces.items():
        (tmp_path / name).mkdir()
        stories.append(_story(space, tmp_path / name))
    assert stories[0] == stories[1]
    told = {name for _, line in stories[0]["service"] for name in line}
    assert told == {"public/bias", "public/bound", "public/learning_rate", "epoch"}, "the stream is seeded: no epsilon"
    assert len(stories[0]["files"]) >= 3 and not any(stories[0]["files"].values())
    assert {"private/val", "public/bias"} <= set(stories[0]["metrics"])


def _with_plateau(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), "monitor": "public/bias"},
    }


REFUSED = {
    "a monitor": (lambda s: {"callbacks": [s.callbacks.EarlyStopping("val")]}, {}),
    "a best model": (lambda s: {"callbacks": [s.callbacks.ModelCheckpoint(monitor="private/val")]}, {}),
    "a name of a file": (lambda s: {"callbacks": [s.callbacks.ModelCheckpoint(filename="{val:.2f}")]}, {}),
    "an average": (lambda s: {"callbacks": [s.callbacks.StochasticWeightAveraging(0.1)]}, {}),
    "several lots": (lambda s: {"accumulate_grad_batches": 2}, {}),
    "sums": (lambda s: {"gradient_clip_val": 1.0}, {}),
    "a hook of DDP": (lambda s: {"strategy": s.strategies.DDPStrategy(ddp_comm_hook=print)}, {}),
    "FSDP": (lambda s: {"strategy": type("FSDPStrategy", (s.strategies.SingleDeviceStrategy,), {})("cpu")}, {}),
    "parts of layers": (
        lambda s: {"strategy": s.strategies.ModelParallelStrategy(1, 1)},
        {"configure_model": lambda self: None},
    ),
    "a hook": (lambda s: {}, {"on_after_backward": lambda self: None}),
    "a plateau": (lambda s: {}, {"configure_optimizers": _with_plateau}),
    "own steps": (lambda s: {}, {"automatic_optimization": False}),
}


@pytest.fixture
def alone_again():
    """Take back what Lightning has set up for several processes before it is refused: a group, and their variables."""
    before = dict(os.environ)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("alone_again")
@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_the_same_in_both_namespaces(spaces, case):
    options, hooks = REFUSED[case]
    said = []
    for space in spaces.values():
        private, more = _private(), options(space)
        callbacks = [*more.pop("callbacks", []), private.callback()]
        checkpoints = any(isinstance(callback, space.callbacks.Checkpoint) for callback in callbacks)
        more |= {"logger": False, "enable_checkpointing": checkpoints, "accelerator": "cpu", "devices": 1}
        trainer = space.Trainer(**QUIET | more, callbacks=callbacks)
        with pytest.raises(space.utilities.exceptions.MisconfigurationException) as refused:
            trainer.fit(_module(space, **hooks), private.loader())
        assert private.account.remaining("training") == STEPS and not private.account.accesses
        said.append(str(refused.value))
    assert said[0] == said[1] and "\n" not in said[0]


def _by_hand(self, batch, batch_idx):
    optimizer = self.optimizers()
    with optimizer.toggle_model():
        optimizer.zero_grad()
        self.manual_backward((self.net(batch) - batch - 1.0).square().mean())
        optimizer.step()


def test_manual_optimization_trains_alike(spaces):
    weights = []
    for space in spaces.values():
        private = _private(epsilon=math.inf, sample_rate=1.0)
        trainer = space.Trainer(**QUIET, logger=False, enable_checkpointing=False, callbacks=[private.callback()])
        trainer.fit(module := _module(space, automatic_optimization=False, training_step=_by_hand), private.loader())
        assert private.account.finished and not module.automatic_optimization
        weights.append(module.net.weight)
    assert torch.equal(*weights) and not torch.equal(weights[0], torch.eye(3))


def test_a_plain_loader_and_lots_without_the_callback_are_refused_alike(spaces):
    for space in spaces.values():
        private = _private()
        trainer = space.Trainer(**QUIET, logger=False, enable_checkpointing=False, callbacks=[private.callback()])
        with pytest.raises(space.utilities.exceptions.MisconfigurationException, match=r"expected the loader\(\)"):
            trainer.fit(_module(space), torch.utils.data.DataLoader(RECORDS))
        trainer = space.Trainer(**QUIET, logger=False, enable_checkpointing=False)
        with pytest.raises(space.utilities.exceptions.MisconfigurationException, match="for a fit with its callback"):
            trainer.fit(_module(space), _private().loader())


@pytest.mark.parametrize(("of_module", "of_trainer"), [NAMES, NAMES[::-1]])
def test_lightning_refuses_a_module_of_the_other_namespace_before_anything_is_spent(spaces, of_module, of_trainer):
    private = _private()
    trainer = spaces[of_trainer].Trainer(**QUIET, logger=False, enable_checkpointing=False, callbacks=[private.callback()])
    with pytest.raises(TypeError, match="must be a `LightningModule`"):
        trainer.fit(_module(spaces[of_module]), private.loader())
    assert not private.account.accesses


def test_loggers_of_the_other_namespace_are_known(spaces, tmp_path):
    """A Trainer takes them, and files are closed to others whichever they are of."""
    for space, other in (spaces.values(), reversed(spaces.values())):
        private, folder = _private(), tmp_path / space.__name__
        loggers = [other.loggers.CSVLogger(folder), _service(other), PublicEvents(folder / "public")]
        trainer = space.Trainer(**QUIET, log_every_n_steps=1, logger=loggers, callbacks=[private.callback()])
        trainer.fit(_module(space), private.loader())
        (written,) = folder.rglob("metrics.csv")
        assert "private/loss" in written.read_text() and not written.stat().st_mode & 0o077
        assert not any(name.startswith("private") for _, line in loggers[1].lines for name in line)


def test_a_refusal_is_caught_by_both_classes_and_can_be_pickled(spaces):
    refusal = namespaces.MisconfigurationException("no")
    kinds = [space.utilities.exceptions.MisconfigurationException for space in spaces.values()]
    assert all(isinstance(refusal, kind) for kind in kinds) and len(set(kinds)) == 2
    again = pickle.loads(pickle.dumps(refusal))
    assert str(again) == "no" and type(again) is type(refusal)


def test_parts_are_of_the_namespace_that_is_imported_first(spaces):
    assert issubclass(MomentsAccountant, spaces[namespaces.PLAIN].Callback), "this process has imported both"


# A program in which a namespace cannot be imported (HIDDEN), or is imported before this package (FIRST).
PROGRAM = """
import importlib, sys, warnings
from pathlib import Path

warnings.simplefilter("ignore")
for name in FIRST:
    importlib.import_module(name)
import torch
from lightning_dpgen import VAE, Account, DPNorm, MomentsAccountant, PrivateSplitDataModule, SplitSettings
from lightning_dpgen.plugins import Checkpoints, DurableCheckpointIO, Previews, PrivateProgress, namespaces
"""
OWN_MODULES = """
from lightning_dpgen import ImageSchema, encode_images, make_plan, training_stage
pictures = torch.randint(0, 5, (80, 16), generator=torch.Generator().manual_seed(0)).numpy()
records = encode_images(pictures, None, ImageSchema(4, 4, levels=4))
split, rule = SplitSettings(k=2), (DPNorm(c_max=5.0),)
plan = make_plan([*split.specs(80), training_stage(rule, n=80, sample_rate=0.2, steps=4)], epsilon=8.0, delta=1e-4)
account = Account(plan)
module = VAE(records.schema, account, rule, k=2, hidden=8, latent=2, lr=0.01)
accountant = MomentsAccountant(account)
callbacks = [accountant, PrivateProgress(accountant), Previews(2), Checkpoints(Path("state.ckpt"), 2)]
pl, quiet = importlib.import_module(SPACE), {"logger": False, "enable_checkpointing": False}
trainer = pl.Trainer(max_epochs=1, callbacks=callbacks, plugins=[DurableCheckpointIO()], **quiet)
trainer.fit(module, datamodule=PrivateSplitDataModule(records, split, account))
assert account.finished and namespaces.pl is pl and OTHER not in sys.modules, sorted(sys.modules)
"""
COMMAND = """
from lightning_dpgen.cli.main import main
words = "model=vae split.k=1 data.n=1797 model.hidden=8 model.steps=5 rows=20 run_dir=run".split()
assert main(["train", *words]) == 0 and main(["verify", "run"]) == 0
assert namespaces.pl.__name__ == SPACE and OTHER not in sys.modules
"""


ALONE = {
    namespaces.PLAIN: (namespaces.PLAIN, ["lightning"]),
    namespaces.JOINT: (namespaces.JOINT, ["pytorch_lightning", "lightning_fabric"]),
}


def _run(tmp_path: Path, program: str, space: str, *, blocked=(), first=()) -> subprocess.CompletedProcess:
    names = {"HIDDEN": list(blocked), "FIRST": first, "SPACE": space, "OTHER": NAMES[1 - NAMES.index(space)]}
    text = "".join(f"{name} = {value!r}\n" for name, value in names.items()) + HEAD + PROGRAM + program
    return subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True)


def test_modules_of_ours_fit_in_the_namespace_that_is_imported_before(tmp_path):
    ended = _run(tmp_path, OWN_MODULES, namespaces.JOINT, first=["lightning"])
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(("space", "absent"), only(ALONE, namespaces.JOINT))
def test_either_works_alone(space, absent, tmp_path):
    ended = _run(tmp_path, OWN_MODULES + COMMAND, space, blocked=absent)
    assert ended.returncode == 0, ended.stderr

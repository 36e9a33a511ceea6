"""The lines of a fit in its logs: their names for each family of modules, their steps, and that logging changes nothing."""

import math
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from contracts.threads import together
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_lots_in_parts import RECORDS, SCHEMA, K, N
from torch import nn
from torch.nn.functional import softplus

from lightning_dpgen import (
    RBM,
    VAE,
    WGAN,
    Account,
    DataFree,
    DPNorm,
    Fixed,
    MomentsAccountant,
    PerRecord,
    PrivateSplitDataModule,
    PrivateTraining,
    SplitSettings,
    encode_images,
    make_plan,
    training_stage,
)
from lightning_dpgen.clipping import PerLayer, PerPerson
from lightning_dpgen.gradients.per_sample_gradients import materialised
from lightning_dpgen.plugins import Divergence
from lightning_dpgen.plugins.events import PublicEvents
from lightning_dpgen.plugins.lot_log import LotLog
from lightning_dpgen.privacy.noise.stream import PrivateStream

pytestmark = pytest.mark.filterwarnings("ignore")

QUIET = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
RULE = Fixed(1.0)
SETTINGS = {"n": N, "epsilon": 8.0, "delta": 1e-4, "sample_rate": 0.3, "steps": 7, "clipping": RULE}
# The names in each line of a fit with one optimizer and one term.
PRIVATE = {"lot_size", "loss", "norm", "share_clipped", "share_of_slack", "steps_per_second", "memory_gib"}
PUBLIC = {"bound", "epsilon", "learning_rate"}


class Service(pl.loggers.Logger):
    """Keeps what would leave the machine."""

    name = version = "service"

    def __init__(self):
        super().__init__()
        self.lines, self.settings = [], {}

    def log_hyperparams(self, params, *_, **__):
        self.settings |= params

    def log_metrics(self, metrics, step=None):
        self.lines.append((step, metrics))


class Plain(pl.LightningModule):
    def __init__(self, width=3):
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(RECORDS.shape[1], width), nn.Tanh(), nn.Linear(width, 1))

    def training_step(self, batch, batch_idx):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Terms(Plain):
    def reconstruction(self, lot, noise):
        return self.net(lot.records).square()[:, 0]

    def penalty(self):
        return self.net[0].weight.square().sum()

    def training_step(self, batch, batch_idx):
        return [PerRecord(self.reconstruction), DataFree(self.penalty)]


class GAN(Plain):
    def __init__(self):
        super().__init__()
        self.generator = nn.Linear(2, RECORDS.shape[1])

    def critic(self, lot, noise):
        return softplus(-self.net(lot.records))[:, 0]

    def generated(self):
        return softplus(self.net(self.generator(torch.ones(5, 2)))).mean()

    def training_step(self, batch, batch_idx):
        return PerRecord(self.critic), DataFree(self.generated)

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net, self.generator)]


class Twins(GAN):
    """Two private optimizers take turns."""

    def twin(self, lot, noise):
        return softplus(self.generator(torch.ones(1, 2)) - lot.records).mean(dim=1)

    def training_step(self, batch, batch_idx):
        return PerRecord(self.critic), PerRecord(self.twin)


def _scalars(folder):
    (path,) = folder.rglob("*tfevents*")
    events = EventAccumulator(str(path)).Reload()
    return {name: {e.step: e.value for e in events.Scalars(name)} for name in events.Tags()["scalars"]}, events


def _fit(folder, module, logger=True, every=3, **changes):
    private, service = PrivateTraining(RECORDS, **SETTINGS | changes), Service()
    loggers = [TensorBoardLogger(folder, name=""), service] if logger else False
    options = QUIET | {"max_epochs": 1, "log_every_n_steps": every, "logger": loggers}
    pl.Trainer(callbacks=[private.callback()], **options).fit(module, private.loader())
    return private, service


def _mixture(folder, kind, rules=RULE, **given):
    split = SplitSettings(k=K, iterations=1, features=4, dimensions=2)
    embedded = {"embedding": 0.2} if given.get("divergence") == Divergence("mmd") else None
    stage = training_stage(rules, n=N, sample_rate=0.5, steps=5, embeddings=embedded)
    account = Account(make_plan([*split.specs(N), stage], epsilon=20.0, delta=1e-5))
    labels = torch.arange(N).remainder(2).numpy()
    records = encode_images(RECORDS[:, :16].view(N, 4, 4).numpy().astype(int), labels, SCHEMA)
    loggers = [TensorBoardLogger(folder, name=""), PublicEvents(folder / "public")]
    options = QUIET | {"max_epochs": 1, "log_every_n_steps": 2, "logger": loggers}
    trainer = pl.Trainer(callbacks=[MomentsAccountant(account)], **options)
    trainer.fit(kind(SCHEMA, account, rules, k=K, hidden=4, **given), PrivateSplitDataModule(records, split, account))
    return account


CRITIC = {"loss/critic", "norm/critic", "share_clipped/critic", "loss/real", "loss/generated", "loss/penalty"}
TC = {f"{what}/{name}" for what in ("loss", "norm", "share_clipped") for name in ("negative_elbo", "tc")}
PARTS, ONE = {"loss/reconstruction", "loss/kl"}, {"loss", "norm", "share_clipped"}
FAMILIES = {
    "vae": ((VAE,), {}, PRIVATE | PARTS, PUBLIC),
    "vae in parts": ((VAE,), {"micro_batch": 8}, PRIVATE | PARTS, PUBLIC),
    "vae, two passes": ((VAE, DPNorm(c_max=5.0)), {"micro_batch": 8}, PRIVATE | PARTS, PUBLIC),
    "vae by mean embedding": ((VAE,), {"divergence": Divergence("mmd")}, PRIVATE | PARTS, PUBLIC),
    "vae by groups": (
        (VAE, [Fixed(1.0), Fixed(1.0)]),
        {"divergence": Divergence("tc", groups=4)},
        PRIVATE - ONE | PARTS | TC,
        PUBLIC - {"bound"} | {"bound/negative_elbo", "bound/tc"},
    ),
    "rbm": ((RBM,), {}, PRIVATE, PUBLIC),
    "wgan": (
        (WGAN,),
        {"latent": 2},
        PRIVATE - ONE | CRITIC,
        {"bound/critic", "epsilon", "learning_rate/critic", "learning_rate/generator", "loss/generator"},
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_of_mixtures_has_its_curves(name, tmp_path):
    made, given, private, public = FAMILIES[name]
    account = _mixture(tmp_path / "all", *made, **given)
    scalars, events = _scalars(tmp_path / "all/version_0")
    assert scalars.keys() == {f"private/{x}" for x in private} | {f"public/{x}" for x in public}
    shown, beside = _scalars(tmp_path / "all/public")
    assert shown.keys() == {f"public/{x}" for x in public}, "nothing private"
    assert events.Tags()["histograms"] == ["private/sizes_of_components", "public/weights_of_components"]
    assert beside.Tags()["histograms"] == ["public/weights_of_components"]
    # The first step, each second, and the last.
    curve = account.plan.curve("training")
    assert scalars["public/epsilon"] == {step: pytest.approx(curve.at(step), rel=1e-6) for step in (1, 2, 4, 5)}
    assert scalars["private/lot_size"].keys() == {1, 2, 4, 5} and all(
        map(math.isfinite, scalars["private/lot_size"].values())
    )


@pytest.mark.parametrize(
    "kind, private, public",
    [
        (Plain, PRIVATE, PUBLIC),
        (
            Terms,
            PRIVATE - ONE | {f"{x}/reconstruction" for x in ONE},
            PUBLIC - {"bound"} | {"bound/reconstruction", "loss/penalty"},
        ),
        (
            GAN,
            PRIVATE - ONE | {f"{x}/critic" for x in ONE},
            {"bound/critic", "epsilon", "learning_rate/critic", "learning_rate/generated", "loss/generated"},
        ),
    ],
)
def test_each_kind_of_a_module_of_ones_own_has_its_curves(kind, private, public, tmp_path):
    training, service = _fit(tmp_path, kind())
    scalars, _ = _scalars(tmp_path)
    assert scalars.keys() == {f"private/{x}" for x in private} | {f"public/{x}" for x in public}
    assert {name for _, line in service.lines for name in line} == {f"public/{x}" for x in public}, "a service"
    curve = training.plan.curve("training")
    # As Lightning counts: steps 1, 3, 6 and 7.
    assert scalars["public/epsilon"] == {at: pytest.approx(curve.at(at + 1), rel=1e-6) for at in (0, 2, 5, 6)}
    assert scalars["public/epsilon"][6] == pytest.approx(training.plan.epsilon, rel=1e-3)


def test_a_line_of_each_optimizer_that_takes_turns_is_written(tmp_path):
    _fit(tmp_path, Twins(), every=4)
    scalars, _ = _scalars(tmp_path)
    steps = {name: list(scalars[f"private/norm/{name}"]) for name in ("critic", "twin")}
    assert steps == {"critic": [0, 4, 6], "twin": [1, 3, 5]}, "steps 1 and 2, 4 and 5, 6 and 7, by turns"
    assert list(scalars["public/epsilon"]) == [0, 1, 3, 4, 5, 6]


@pytest.mark.parametrize("every, steps", [(1, [0, 1, 2, 3, 4, 5, 6]), (4, [0, 3, 6]), (50, [0, 6])])
def test_a_line_is_written_as_often_as_the_trainer_says(every, steps, tmp_path):
    _fit(tmp_path, Plain(), every=every)
    assert list(_scalars(tmp_path)[0]["private/loss"]) == steps


def test_a_fit_that_stops_early_has_its_last_step():
    private, service = PrivateTraining(RECORDS, **SETTINGS), Service()
    trainer = pl.Trainer(max_steps=4, callbacks=[private.callback()], logger=service, **QUIET)
    trainer.fit(Plain(), private.loader())
    assert [step for step, _ in service.lines] == [0, 3]


@pytest.mark.parametrize(
    "given", [{}, {"micro_batch": 5}, {"slots": True}, {"clipping": DPNorm(c_max=5.0), "micro_batch": 5}]
)
def test_a_log_changes_nothing_of_a_fit(given, tmp_path):

    ends = []
    for logger in (False, True):
        module = Plain()
        _fit(tmp_path, module, logger, every=1, stream=PrivateStream(seed=1), **given)
        ends.append([p.detach().clone() for p in module.parameters()])
    assert all(map(torch.equal, *ends))


def test_settings_are_among_the_hyperparameters(tmp_path):
    _, service = _fit(tmp_path, Plain(width=5))
    metadata = _scalars(tmp_path)[1].summary_metadata
    (written,) = [metadata[name].plugin_data.content for name in metadata if name == "_hparams_/session_start_info"]
    for name in (b"width", b"privacy/epsilon", b"privacy/noise_multiplier", b"privacy/clipping", b"Fixed(c=1.0)"):
        assert name in written
    assert b"public/epsilon" in metadata["_hparams_/experiment"].plugin_data.content
    assert "custom_scalars__config__" in metadata, "a page that arranges the curves"
    assert service.settings["privacy/sample_rate"] == 0.3 and service.settings["width"] == 5


def test_a_logger_is_given_back_with_its_own_metric(tmp_path):
    private, logger = PrivateTraining(RECORDS, **SETTINGS), TensorBoardLogger(tmp_path)
    pl.Trainer(callbacks=[private.callback()], max_epochs=1, logger=logger, **QUIET).fit(Plain(), private.loader())
    assert logger._default_hp_metric


def test_persons_are_clipped_as_one(tmp_path):
    """The norms are those of persons, whose gradients are summed."""
    alike = RECORDS[:1].repeat(N, 1)
    persons = torch.arange(N).div(2, rounding_mode="floor").numpy()
    seen = []
    for rule in (Fixed(1.0), PerPerson(Fixed(1.0))):
        private = PrivateTraining(alike, **SETTINGS | {"clipping": rule}, persons=persons, max_rows=2)
        logger = CSVLogger(tmp_path / str(len(seen)))
        options = QUIET | {"max_epochs": 1, "log_every_n_steps": 1, "logger": logger}
        pl.Trainer(callbacks=[private.callback()], **options).fit(Plain(), private.loader())
        lines = (tmp_path / str(len(seen)) / "lightning_logs/version_0/metrics.csv").read_text().splitlines()
        seen.append(float(dict(zip(lines[0].split(","), lines[1].split(","), strict=True))["private/norm"]))
    assert seen[1] == pytest.approx(2.0 * seen[0], rel=1e-3)


def test_many_bounds_are_shown_by_the_smallest_and_the_largest():
    class Deep(Plain):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(*(nn.Linear(RECORDS.shape[1], RECORDS.shape[1]) for _ in range(13)))

    for module, names in ((Plain(), {"bound/0", "bound/1"}), (Deep(), {"bound/smallest", "bound/largest"})):
        private, service = PrivateTraining(RECORDS, **SETTINGS | {"clipping": PerLayer(Fixed(1.0))}), Service()
        trainer = pl.Trainer(callbacks=[private.callback()], max_epochs=1, logger=service, **QUIET)
        trainer.fit(module, private.loader())
        assert {f"public/{name}" for name in names | {"epsilon", "learning_rate"}} == service.lines[0][1].keys()


def test_numbers_are_those_of_the_whole_lot():
    """Divided among ranks, they are the same."""
    weight, rows = nn.Parameter(torch.zeros(2)), torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.6, 0.8], [float("nan"), 0.0]])
    plan = make_plan([training_stage(Fixed(1.5), n=8, sample_rate=0.5, steps=9)], epsilon=4.0, delta=1e-3)

    def numbers(ranks):
        mine = rows[ranks.rank :: ranks.size]
        account = SimpleNamespace(plan=plan, ranks=ranks, private=True, step_of=lambda _: 1, remaining=lambda _: 8)
        trainer = SimpleNamespace(optimizers=[], loggers=[], max_steps=-1, log_every_n_steps=1)
        log = LotLog(trainer, account, "training")
        gradients = materialised({weight: mine})
        vars(gradients)["draw"] = SimpleNamespace(size=len(mine))
        log.begin([gradients], [Fixed(1.5)])
        return log.numbers_of_lot([""], [(1.5,)])

    (alone,) = together(1, numbers)
    assert alone == {
        "private/lot_size": 4.0,
        "private/norm": pytest.approx((5 + 1 + 1) / 3),
        "private/share_clipped": pytest.approx(1 / 3),
    }
    assert all(found == pytest.approx(alone) for found in together(2, numbers))

"""The families take a lot in parts, and step as on the whole of it."""

import weakref
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from lightning_dpgen import (
    RBM,
    VAE,
    WGAN,
    Account,
    DPNorm,
    Fixed,
    MomentsAccountant,
    PerRecord,
    PoissonLots,
    PrivateOptimizer,
    PrivateSplitDataModule,
    SplitSettings,
    encode_images,
    make_plan,
    term_gradients,
    training_stage,
)
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.gradients import micro_batches as lot_memory
from lightning_dpgen.gradients.micro_batches import MicroBatches
from lightning_dpgen.models import networks
from lightning_dpgen.plugins.vae import Divergence
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage

pytestmark = pytest.mark.filterwarnings("ignore")

SCHEMA, N, K = ImageSchema(4, 4, levels=1, classes=2), 40, 2
RECORDS = torch.bernoulli(torch.full((N, 18), 0.4), generator=torch.Generator().manual_seed(0))
CLUSTERS = torch.arange(N).remainder(3).clamp(max=1)
EMBEDDED = {"embedding": 0.1}
FAMILIES = {
    "vae": (VAE, {"hidden": 4}, None),
    "vae, several draws": (VAE, {"hidden": 4, "samples": 2}, None),
    "vae, convolutions": (VAE, {"network": "conv"}, None),
    "vae, embedding": (VAE, {"hidden": 4, "divergence": Divergence("mmd", averaging=0.5)}, EMBEDDED),
    "vae, embedding of convolutions": (VAE, {"network": "conv", "divergence": Divergence("mmd")}, EMBEDDED),
    "rbm": (RBM, {"hidden": 4, "chains": 3}, None),
    "wgan": (WGAN, {"hidden": 4, "made": 4}, None),
    "wgan, convolutions": (WGAN, {"critic": "conv", "hidden": 4, "made": 4}, None),
}
RULES = {"one pass": Fixed(0.5), "two passes": DPNorm(c_max=8.0)}
# One family of each way to its gradients shows that both passes see the same records.
CASES = [*((name, "one pass") for name in FAMILIES), *((name, "two passes") for name in ("vae", "vae, embedding", "rbm"))]


@pytest.fixture(autouse=True)
def _few_channels(monkeypatch):
    monkeypatch.setattr(networks, "_CHANNELS", (4, 8))


class Still(PrivateStream):
    """A stream from which each record draws the same numbers in each pass."""

    def normal(self, shape, **options):
        return torch.full(shape, 0.3, **options)


def _step(kind, given, embeddings, rule, micro_batch, k=K, slots=None):
    """Make a step without visible noise on the lot of all records, and return its gradient and the number of parts."""
    access = training_stage(rule, n=N, sample_rate=1.0, steps=1, embeddings=embeddings).access(1e-9)
    account = Account(Plan((Stage(access, 1, 1.0),), 8.0, 1e-6), stream=Still(seed=1))
    module = kind(SCHEMA, account, rule, n=N, k=k, bias="learned", micro_batch=micro_batch, **given)
    lots, module.slots = PoissonLots(RECORDS, account, clusters=CLUSTERS if k > 1 else None, k=k), slots
    module.divide_lots(lots.empty)
    optimizer = module.private_optimizer(torch.optim.SGD(module.trained_network.parameters(), lr=1.0))
    own = module.gradients(lots.draw())
    optimizer.set_gradients(*own, data_free=module.data_free())
    optimizer.step()
    return torch.cat([p.grad.flatten() for p in optimizer.params]), optimizer.last_bound, own


@pytest.mark.parametrize(("family", "passes"), CASES)
def test_parts_of_a_lot_are_the_lot(family, passes):
    kind, given, embeddings = FAMILIES[family]
    whole, bound, _ = _step(kind, given, embeddings, RULES[passes], None)
    parts, same, own = _step(kind, given, embeddings, RULES[passes], 12)
    assert bound == same and whole.norm() > 1e-3
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5 * float(whole.norm()))
    if embeddings is None:
        assert len(list(own[0].parts())) == 4


@pytest.mark.parametrize(
    ("family", "micro_batch"),
    # Convolutions in the slots of whole lots are a further case of those in parts.
    [pytest.param(family, size, marks=pytest.mark.slow if size is None and "convolutions" in family else ())
     for family in FAMILIES for size in (None, 12)],
)  # fmt: skip
def test_a_lot_in_slots_is_the_lot(family, micro_batch):
    kind, given, embeddings = FAMILIES[family]
    whole, bound, _ = _step(kind, given, embeddings, RULES["two passes"], micro_batch, k=1)
    in_slots, same, (own,) = _step(kind, given, embeddings, RULES["two passes"], micro_batch, k=1, slots=True)
    assert bound == same and whole.norm() > 1e-3
    torch.testing.assert_close(in_slots, whole, rtol=1e-4, atol=1e-5 * float(whole.norm()))
    if embeddings is None:
        # A lot of 40 expected records has more than 83 once in 10^9 times.
        rows = [len(part._all_norms) for part in own.parts()]
        assert rows == ([21] * 4 if micro_batch else [83])


def test_a_mixture_has_no_slots():
    kind, given, embeddings = FAMILIES["vae"]
    *_, (own,) = _step(kind, given, embeddings, RULES["one pass"], None, slots=True)
    assert own._places is None


@pytest.mark.parametrize(("free", "parts"), [(10**9, 1), (100, N)])
def test_memory_says_how_many_records_are_taken_at_a_time(free, parts, monkeypatch):
    monkeypatch.setattr(lot_memory, "free_memory", lambda device: free)
    for name in ("vae", "rbm"):
        *_, (own,) = _step(*FAMILIES[name], RULES["one pass"], "auto")
        assert isinstance(own, MicroBatches) == (parts > 1) and len(list(own.parts())) == parts


def test_each_part_is_made_once_and_held_alone(tmp_path):
    account = Account(
        Plan((Stage(training_stage(RULES["one pass"], n=N, sample_rate=1.0, steps=1).access(1.0), 1, 1.0),), 8.0, 1e-6)
    )
    network, lot, made = torch.nn.Linear(18, 1), PoissonLots(RECORDS, account).draw(), []
    term = PerRecord(lambda lot, _: network(lot.records).square().sum(dim=1))

    def gradients(part):
        assert not any(part() for part in made)
        own = term_gradients(network, term, part, account.stream)
        made.append(weakref.ref(own))
        return own

    inner = torch.optim.SGD(network.parameters(), lr=1.0)
    optimizer = PrivateOptimizer(inner, account=account, clipping=RULES["one pass"], expected_batch_size=N)
    optimizer.set_gradients(MicroBatches(lambda: map(gradients, lot.cut(10)), lot.draw))
    optimizer.step()
    assert len(made) == 4


def _fitted(folder, kind=VAE, **given):
    split, divergence = SplitSettings(k=K, iterations=1, features=4, dimensions=2), given.get("divergence")
    rules = [Fixed(1.0)] * 2 if divergence else Fixed(1.0)
    stage = training_stage(rules, n=N, sample_rate=0.5, steps=3)
    account = Account(make_plan([*split.specs(N), stage], epsilon=20.0, delta=1e-5))
    records = encode_images(
        (RECORDS[:, :16].view(N, 4, 4)).numpy().astype(int), torch.arange(N).remainder(2).numpy(), SCHEMA
    )
    module = kind(SCHEMA, account, rules, n=N, k=K, hidden=4, **given)
    trainer = pl.Trainer(
        callbacks=[MomentsAccountant(account)], accelerator="cpu", max_epochs=1, logger=pl.loggers.CSVLogger(folder),
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    try:
        trainer.fit(module, PrivateSplitDataModule(records, split, account, n=N))
    except MisconfigurationException:
        assert not account.ledger.accesses
        raise
    assert account.finished
    return set((Path(trainer.logger.log_dir) / "metrics.csv").read_text().partition("\n")[0].split(","))


def test_a_fit_logs_of_parts_what_it_logs_of_whole_lots(tmp_path):
    assert "private/loss" in _fitted(tmp_path) == _fitted(tmp_path, micro_batch=6)


class OwnWay(VAE):
    def gradients(self, lot):
        return super().gradients(lot)


def test_lots_that_must_be_whole_are_refused_before_anything_is_spent(tmp_path):
    with pytest.raises(MisconfigurationException, match=r"micro_batch=6: a divergence that is released by group reaches"):
        _fitted(tmp_path, micro_batch=6, divergence=Divergence("kl", groups=2))
    with pytest.raises(MisconfigurationException, match=r"micro_batch='auto': OwnWay computes the gradients of a lot in"):
        _fitted(tmp_path, OwnWay, micro_batch="auto")
    with pytest.raises(ValueError, match="micro_batch=0: expected a whole number"):
        _fitted(tmp_path, micro_batch=0)

"""A fit goes on from a checkpoint with the ledger that it belongs to, and never without."""

import functools

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from lightning_dpgen import (
    VAE,
    Account,
    Fixed,
    ImageSchema,
    MomentsAccountant,
    PrivateSplitDataModule,
    SplitSettings,
    StageSpec,
    encode_images,
    make_plan,
)
from lightning_dpgen.plugins.accountant import LEDGER
from lightning_dpgen.plugins.checkpoints import Checkpoints
from lightning_dpgen.privacy.sampling.samplers import Poisson

pytestmark = pytest.mark.filterwarnings("ignore")

SCHEMA = ImageSchema(2, 2, levels=1)
SPLIT, N, STEPS = SplitSettings(k=2, iterations=2, features=4, dimensions=2), 60, 30


@functools.cache
def _plan():
    training = StageSpec("training", {"gradient": 1.0}, STEPS, max_noise=N, sampler=Poisson(0.5))
    return make_plan([*SPLIT.specs(N), training], epsilon=20.0, delta=1e-5)


class Stop(pl.Callback):
    """Leaves the fit after so many blocks, as a crash would."""

    def __init__(self, after):
        self.left = after

    def on_train_batch_end(self, *_):
        self.left -= 1
        if not self.left:
            raise RuntimeError("crash")


def _parts(account, *callbacks):
    records = encode_images(torch.arange(N * 4).view(N, 2, 2).remainder(2).numpy(), None, SCHEMA)
    module = VAE(SCHEMA, account, Fixed(1.0), n=N, k=2, hidden=3, latent=1)
    trainer = pl.Trainer(
        callbacks=[MomentsAccountant(account), *callbacks],
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return trainer, module, PrivateSplitDataModule(records, SPLIT, account, n=N, block=5)


@pytest.fixture
def crashed(tmp_path):
    """Leave a run that died after its fourth block of five, with checkpoints after two blocks and, weights alone, three."""
    account = Account(_plan(), tmp_path / "ledger")

    class Save(pl.Callback):
        def on_train_batch_end(self, trainer, module, *_):
            if module.steps_taken == 10:
                trainer.save_checkpoint(tmp_path / "ten.ckpt")
            if module.steps_taken == 15:
                trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)

    trainer, module, data = _parts(account, Save(), Stop(4))
    with pytest.raises(RuntimeError, match="crash"):
        trainer.fit(module, data)
    account.ledger._file.close()
    account.ledger._witness.close()
    account.ledger._lock.release()
    return tmp_path


def test_it_goes_on_with_what_is_left(crashed):
    account = Account.resume(crashed / "ledger")
    trainer, module, data = _parts(account)
    before = torch.load(crashed / "ten.ckpt", weights_only=True)
    trainer.fit(module, data, ckpt_path=crashed / "ten.ckpt")
    assert account.ledger.count("training") == STEPS and module.steps_taken == STEPS - 10
    assert account.ledger.count("clustering") == 2, "the split is not made again"
    assert torch.equal(data.split.counts, before["PrivateSplitDataModule"]["counts"])
    state = trainer.optimizers[0].state_dict()["state"][0]
    assert int(state["step"]) == STEPS - 10, "Adam went on too"
    assert account.certify()[1].epsilon == _plan().epsilon


def test_both_kinds_of_checkpoint_say_what_was_spent(crashed):
    for name, steps in (("ten.ckpt", 10), ("weights.ckpt", 15)):
        record = torch.load(crashed / name, weights_only=True)[LEDGER]
        assert record["done"]["training"] == steps
        assert [access["count"] for access in record["spent"]] == [1, 2, 1, steps]


def test_an_older_checkpoint_does_not_hide_what_was_spent_after_it(crashed):
    account = Account.resume(crashed / "ledger")
    trainer, module, data = _parts(account)
    trainer.fit(module, data, ckpt_path=crashed / "ten.ckpt")
    assert account.ledger.count("training") == 20 + 10, "twenty before the crash, ten that were left"


@pytest.mark.parametrize("broken", ["another run", "no ledger in it", "an older ledger"])
def test_a_checkpoint_without_its_ledger_is_refused(crashed, broken):
    path = crashed / "ten.ckpt"
    if broken == "another run":
        account = Account(_plan(), crashed / "new")
    elif broken == "an older ledger":
        # Put back from a copy, with what vouches for its length.
        lines = (crashed / "ledger").read_bytes().splitlines(keepends=True)
        (crashed / "ledger").write_bytes(b"".join(lines[:8]))
        heads = (crashed / "ledger.heads").read_bytes().split()
        (crashed / "ledger.heads").write_bytes(heads[0] + b"\n")
        account = Account.resume(crashed / "ledger")
    else:
        account = Account.resume(crashed / "ledger")
        checkpoint = torch.load(path, weights_only=True)
        del checkpoint[LEDGER]
        torch.save(checkpoint, path)
    spent = account.ledger.accesses
    trainer, module, data = _parts(account)
    with pytest.raises(MisconfigurationException, match="not of the run"):
        trainer.fit(module, data, ckpt_path=path)
    assert account.ledger.accesses == spent
    account.ledger.close()


def test_asked_to_stop_it_leaves_a_fresh_checkpoint(tmp_path):
    account = Account(_plan(), tmp_path / "ledger")
    asked = iter([False, False, True])
    trainer, module, data = _parts(account, Checkpoints(tmp_path / "c.ckpt", 1000, lambda: next(asked)))
    with pytest.raises(SystemExit):
        trainer.fit(module, data)
    account.ledger.close()
    account = Account.resume(tmp_path / "ledger")
    trainer, module, data = _parts(account)
    trainer.fit(module, data, ckpt_path=tmp_path / "c.ckpt")
    assert module.steps_taken == STEPS == account.ledger.count("training"), "a clean stop loses nothing"

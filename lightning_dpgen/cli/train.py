"""`dpgen train`: private records to a release, in one command."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import TensorBoardLogger

from lightning_dpgen.cli import run_folder
from lightning_dpgen.cli.settings import Settings, delta_warning, read_settings
from lightning_dpgen.cli.table import budget_table
from lightning_dpgen.cli.warn import warn
from lightning_dpgen.data.sources import find, load
from lightning_dpgen.plugins.accountant import MomentsAccountant
from lightning_dpgen.plugins.previews import Previews
from lightning_dpgen.plugins.progress import PrivateProgress
from lightning_dpgen.plugins.split import PrivateSplitDataModule
from lightning_dpgen.plugins.vae import VAE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise import PrivateStream
from lightning_dpgen.release.bundle import write_release

HELP = """usage: dpgen train [NAME=VALUE ...]

Learns a generative model from private records and writes a release with a privacy certificate.
With nothing else: the digits that come with scikit-learn, into runs/<time>.

  dpgen train data=mnist privacy.epsilon=1.74       MNIST from $DPGEN_DATA/mnist
  dpgen train experiment=dpgm_mnist                 the setting of the DPGM paper
  dpgen train data=images data.path=F.npz data.n=5000 data.height=16 data.width=16
  dpgen train privacy=off                           the same without privacy, for comparison

Settings: data=digits|mnist|fashion_mnist|images, privacy.epsilon, privacy.delta, split.k, model.hidden, model.latent,
model.steps, model.rate, clipping=dpnorm|fixed, run_dir, rows, seed, trainer.accelerator; all are listed in conf/."""


def run(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in argv):
        print(HELP)
        return 0
    settings = read_settings(argv)
    folder = run_folder.choose(settings.conf.run_dir)
    warn(delta_warning(settings.conf))
    data = settings.conf.data
    find(data.source, path=data.path)
    plan = settings.plan()
    print(budget_table(plan), flush=True)
    records = load(data.source, settings.schema, path=data.path)
    run_folder.take(folder)
    account = Account(plan, folder.ledger, PrivateStream(settings.conf.debug.private_seed))
    try:
        certificate = _train(settings, records, account, folder)
    finally:
        account.ledger.close()
    _tell(certificate, folder)
    return 0


def _train(settings: Settings, records, account: Account, folder: run_folder.RunFolder) -> dict:
    conf = settings.conf
    if conf.trainer.threads is not None:
        torch.set_num_threads(conf.trainer.threads)
    data = PrivateSplitDataModule(records, settings.split, account, n=conf.data.n, seed=conf.seed)
    module = VAE(
        settings.schema,
        account,
        settings.clipping,
        n=conf.data.n,
        k=conf.split.k,
        hidden=conf.model.hidden,
        latent=conf.model.latent,
        lr=conf.model.lr,
        bias=conf.model.bias,
        seed=conf.seed,
        log_every=conf.trainer.log_every,
    )
    accountant = MomentsAccountant(account)
    callbacks = [accountant, PrivateProgress(accountant)]
    if conf.trainer.previews_every:
        callbacks.append(Previews(conf.trainer.previews_every))
    _quiet_lightning()
    trainer = pl.Trainer(
        accelerator=conf.trainer.accelerator,
        devices=1,
        max_epochs=1,
        logger=TensorBoardLogger(folder.private, name="", version="tensorboard"),
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    try:
        trainer.fit(module, datamodule=data)
    except SystemExit:
        # Lightning turns Ctrl-C into an exit of its own.
        raise KeyboardInterrupt from None
    return write_release(
        folder.release,
        folder.staging,
        module.mixture(),
        account,
        rows=settings.rows,
        unit=conf.privacy.unit,
        declared=settings.declared(),
        seed=conf.seed,
    )


def _quiet_lightning() -> None:
    """Silence Lightning's banner and its advice on dataloaders and logging, none of which concerns this program."""
    for name in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    warnings.filterwarnings("ignore", module="lightning_fabric")


def _tell(certificate: dict, folder: run_folder.RunFolder) -> None:
    print()
    if certificate["private"]:
        print(f"done: epsilon {certificate['epsilon']:g} at delta {certificate['delta']:g}, one record added or removed")
    else:
        print(f"done, but NOT A PRIVATE RELEASE: {certificate['statement'].split('. ')[1]}.")
    print(f"  release (may be published{'' if certificate['private'] else ': NO'}):  {folder.release}")
    print(f"  private (must not leave this machine):  {folder.private}")
    print("next:")
    print(f"  dpgen verify {folder.release}")
    print(f"  dpgen sample {folder.release} -n 1000 -o more.parquet")
    print(f"  open {folder.release / 'report.html'} in a browser; tensorboard --logdir {folder.private}")

"""What a run learns from its records and will release, whatever the model: read, learned, measured how close it came."""

from __future__ import annotations

import torch

from lightning_dpgen.data.records import Records
from lightning_dpgen.metrics.fidelity import FIDELITY, measure_fidelity
from lightning_dpgen.metrics.train_on_synthetic import ROWS
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.release.sampler import Release
from lightning_dpgen.release.synthetic import SyntheticContent
from lightning_dpgen.runs import resume
from lightning_dpgen.runs.folder import RunFolder
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.measure import measured_mixture
from lightning_dpgen.runs.reporter import Reporter
from lightning_dpgen.runs.train import trained_mixture
from lightning_dpgen.runs.worker import nothing_to_follow
from lightning_dpgen.specs import sources as kinds
from lightning_dpgen.specs.families import FAMILIES
from lightning_dpgen.specs.settings import Settings

# A declared number that is so many times the true one, or one in so many, is worth a word.
_FAR = 1.5


def read_records(settings: Settings, telling: Reporter) -> Records:
    """The private records of a run.

    Raises:
        BadRecords: if they are not what was declared; nothing has been spent.
    """
    records, counted = kinds.records_of(settings.conf.data, settings.schema)
    n, part = settings.conf.data.n, f"{len(records):,} record{'s take' if len(records) > 1 else ' takes'} part"
    telling.say(f"reading (private, stays here): {part}; data.n={n:,}")
    if not n / _FAR <= len(records) <= n * _FAR:
        telling.warn(
            f"data.n={n:,} is far from the number of records (private, stays here: {part}): sums are divided by data.n, so "
            "less is learned; it must be a public number, not one that is read off the data"
        )
    for what, count in counted.items():
        telling.say(f"reading (private, stays here): {what}: {count:,}")
    return records


def learned(
    settings: Settings,
    records: Records,
    account: Account,
    folder: RunFolder,
    interrupts: Interrupts,
    telling: Reporter,
    ranks: Ranks | None,
) -> SyntheticContent:
    """Learn from the records, or go on with that, in the folder of the run; nothing is released yet."""
    conf, ranks = settings.conf, ranks or Ranks()
    if conf.trainer.threads is not None:
        torch.set_num_threads(conf.trainer.threads)
    if FAMILIES[conf.model.name].trained:
        mixture = trained_mixture(settings, records, account, folder, interrupts, telling, ranks)
    else:
        if ranks.size > 1:
            telling.warn(f"model={conf.model.name} makes no steps that {ranks.size} devices could share: one does it all")
        nothing_to_follow(ranks)
        mixture = measured_mixture(settings, records, account, folder, interrupts, telling)
    figure = _fidelity(settings, mixture, records, account, folder, telling)
    return SyntheticContent(mixture, settings.rows, conf.seed, figure)


def _fidelity(
    settings: Settings,
    mixture: Mixture,
    records: Records,
    account: Account,
    folder: RunFolder,
    telling: Reporter,
) -> dict[str, float] | None:
    """The public figure that a share of the budget buys; None if nobody asked for one, or it was bought and lost."""
    if settings.conf.privacy.fidelity_share is None:
        return None
    if not account.remaining(FIDELITY):
        figure = resume.fidelity(account, folder)
        if figure is None:
            telling.warn("the figure that privacy.fidelity_share has bought was lost in an interrupt: released without it")
        return figure
    synthetic = Release(mixture).encoded(min(settings.conf.data.n, ROWS), settings.conf.seed)
    figure = measure_fidelity(account, records, synthetic, radius=settings.split.radius)
    durable.save(folder.fidelity, {"head": account.ledger.head, "figure": figure})
    account.verify_complete()
    return figure

"""What ranks other than 0 do in a training on several devices: they wait for rank 0, and take their part of each lot."""

from __future__ import annotations

import torch

from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import RankLost
from lightning_dpgen.privacy.noise import PrivateStream
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.runs import resume, run_identity
from lightning_dpgen.runs.folder import RunFolder
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.measure import split_module
from lightning_dpgen.runs.train import Begun, fit, quiet_lightning
from lightning_dpgen.specs import sources as kinds
from lightning_dpgen.specs.configuration import Conf
from lightning_dpgen.specs.families import make_module
from lightning_dpgen.specs.settings import read_as
from lightning_dpgen.specs.usage_error import INTERRUPTED, OK, RANK_LOST


def follow(conf: Conf, folder: RunFolder, ranks: Ranks) -> int:
    """Do this rank's part; gives the exit status. What there is to say is said by rank 0.

    Raises:
        UsageError: if this rank has other settings or records than rank 0.
    """
    interrupts = Interrupts()
    try:
        with interrupts.caught():
            begun: Begun | None = ranks.broadcast_object()
            if begun is not None:
                _train(conf, begun, folder, interrupts, ranks)
    except KeyboardInterrupt:
        return INTERRUPTED
    except RankLost:
        return RANK_LOST
    return OK


def nothing_to_follow(ranks: Ranks) -> None:
    """Called by rank 0, where no network is trained: lets the others go."""
    ranks.broadcast_object(None)


def _train(conf: Conf, begun: Begun, folder: RunFolder, interrupts: Interrupts, ranks: Ranks) -> None:
    kinds.check(conf.data)
    kinds.KINDS[conf.data.source].find(conf.data, False)
    run_identity.check_rank(begun.about, kinds.contents(conf.data), read_as(conf), ranks.rank)
    settings = resume.settings_of(conf, begun.about)
    run_identity.check_rank_settings(begun.about, settings.asked(), ranks.rank)
    if conf.trainer.threads is not None:
        torch.set_num_threads(conf.trainer.threads)
    records, _ = kinds.records_of(settings.conf.data, settings.schema)
    stream = PrivateStream(conf.debug.private_seed, secure=conf.privacy.noise == "secure")
    account = Account(Plan.from_json(begun.promise), stream=stream)
    with interrupts.patient(), quiet_lightning():
        data = split_module(settings, records, account, None, interrupts)
        module = make_module(settings.conf, settings.schema, settings.clipping, account)
        fit(settings, module, data, account, folder, interrupts, ranks, bar=False)

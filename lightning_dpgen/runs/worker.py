"""The part of ranks other than 0 in a training on several devices: they wait for rank 0, and share each lot."""

from __future__ import annotations

import torch

from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import RankLost
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.runs import identity
from lightning_dpgen.runs.context import Context, private_stream
from lightning_dpgen.runs.discover import settings_of
from lightning_dpgen.runs.initial import with_kept_initial
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.runs.train import Begun, fit, quiet_lightning
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.settings import read_as
from lightning_dpgen.specs.source import Source
from lightning_dpgen.specs.usage_error import INTERRUPTED, OK, RANK_LOST, UsageError


def run_worker(spec: RunSpec, source: Source, folder: RunFolder, ranks: Ranks) -> int:
    """Do this rank's part, and return the exit status. What there is to say is said by rank 0.

    Raises:
        UsageError: if this rank has other settings or records than rank 0.
    """
    interrupts = Interrupts()
    try:
        with interrupts.caught():
            begun: Begun | None = ranks.broadcast_object()
            if begun is not None:
                _train(spec, source, begun, folder, interrupts, ranks)
    except KeyboardInterrupt:
        return INTERRUPTED
    except RankLost:
        return RANK_LOST
    return OK


def _train(spec: RunSpec, source: Source, begun: Begun, folder: RunFolder, interrupts: Interrupts, ranks: Ranks) -> None:
    source.check()
    source.files()
    identity.check_rank(begun.about, source.contents(), read_as(spec, source), ranks.rank)
    settings = settings_of(with_kept_initial(spec, folder), source, begun.about)
    identity.check_rank_settings(begun.about, settings.asked(), ranks.rank)
    if spec.trainer.threads is not None:
        torch.set_num_threads(spec.trainer.threads)
    records = begun.kept
    if records is None:
        records, _ = source.records(settings.schema)
    elif not records.is_there():
        raise UsageError(
            f"rank {ranks.rank}: does not see the records that rank 0 has encoded into {folder.blocks}: expected the "
            "folder of the run in one place for all nodes; share it, or raise data.memory_gib where machines have room"
        )
    account = Account(Plan.from_json(begun.promise), stream=private_stream(spec))
    run = Context(settings, account, folder, interrupts, ranks=ranks, keeps=False)
    with interrupts.patient(), quiet_lightning():
        fit(run, settings.module(account), run.split_module(records))

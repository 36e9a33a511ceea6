"""Learning from records, whatever the model: they are read, learned from, and how close the model is may be measured."""

from __future__ import annotations

import json

import torch

from lightning_dpgen.common import pace
from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.data.public_sets import NO_PEOPLE, is_simulated
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import kind_of
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.classifiers import ROWS
from lightning_dpgen.metrics.fidelity import FIDELITY, measure_fidelity, measure_table_fidelity
from lightning_dpgen.models.mixture import Diverged, Mixture
from lightning_dpgen.passes.reduce import InBlocks
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.durable import make_room
from lightning_dpgen.privacy.planning.stage_spec import declared_warning
from lightning_dpgen.release.drawing.release import Release
from lightning_dpgen.release.synthetic import SyntheticContent
from lightning_dpgen.runs import context
from lightning_dpgen.runs.context import Context
from lightning_dpgen.runs.in_blocks import check_memory, read_in_blocks, remove_unused
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.measure import labelled_mixture, measured_mixture
from lightning_dpgen.runs.moved import check_moved, moved_lines
from lightning_dpgen.runs.paths import remove_blocks
from lightning_dpgen.runs.reporter import Reporter
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.runs.warnings import plan_limits
from lightning_dpgen.specs.settings import Settings
from lightning_dpgen.specs.source import Source
from lightning_dpgen.specs.usage_error import UsageError


def read_records(
    settings: Settings,
    source: Source,
    reporter: Reporter,
    folder: RunFolder,
    interrupts: Interrupts,
    *,
    spent: bool = True,
) -> Records | InBlocks:
    """Return the private records of a run, in blocks where they are larger than memory.

    Args:
        spent: whether the run has spent something, so that it no longer stops for what is moved.

    Raises:
        UsageError: for a run that takes no records in blocks.
        BadRecords: if they are not what was declared, or more is moved than may be; nothing has been spent.
    """
    records, counted = open_records(settings, source, folder, interrupts)
    if not spent:
        check_moved(source, counted, len(records))
    # The name is public, and so is what stands behind it.
    what = f", {NO_PEOPLE}," if is_simulated(source.spec.source) else ""
    n, part = settings.n, f"{say_count(len(records), _word(settings))}{what} take{'' if len(records) > 1 else 's'} part"
    reporter.say(f"reading (private, stays here): {part}; data.n={n:,}")
    reporter.warn(_declared_warning(settings, records))
    for line in moved_lines(counted, len(records)):
        reporter.say(line)
    return records


def open_records(
    settings: Settings, source: Source, folder: RunFolder, interrupts: Interrupts
) -> tuple[Records | InBlocks, dict[str, int]]:
    """Return the private records as `read_records` does, and the counts of what was changed; nothing is said of them."""
    check_memory(settings, source)
    # The public figure of a table is of its values, and they are read before anything is spent.
    by_values = kind_of(settings.schema).tabular and settings.spec.privacy.fidelity_share is not None
    if source.in_blocks:
        return read_in_blocks(settings, source, folder, interrupts, values=by_values)
    remove_unused(folder)
    with pace.stage("reading and checking the records"):
        return source.records(settings.schema, values=by_values)


def keep_warnings(folder: RunFolder, settings: Settings, records: Records | InBlocks) -> None:
    """Keep what records give reason to warn of, for the private report alone."""
    if folder.private.is_dir() and (text := _declared_warning(settings, records)) is not None:
        durable.write(folder.warnings, json.dumps([text]).encode())


def _declared_warning(settings: Settings, records: Records | InBlocks) -> str | None:
    return declared_warning(settings.n, len(records), setting="data.n", word=_word(settings), shown=True)


def _word(settings: Settings) -> str:
    word = kind_of(settings.schema).word
    return word if word == "person" else "record"


def learn(run: Context, records: Records | InBlocks | None) -> SyntheticContent:
    """Learn from the records, or go on with that, in the folder of the run; nothing is released yet.

    Args:
        records: None where the run goes on and has measured all that it measures.

    Raises:
        UsageError: if the training diverges; what was drawn until then is spent.
    """
    settings, spec, answers = run.settings, run.settings.spec, None
    if records is not None:
        keep_warnings(run.folder, settings, records)
    if spec.trainer.threads is not None:
        torch.set_num_threads(spec.trainer.threads)
    if settings.trains_network:
        # It imports Lightning and Opacus, seconds that a run which trains nothing does not wait for.
        from lightning_dpgen.runs.train import trained_mixture

        try:
            mixture = trained_mixture(run, records)
            if spec.model.label_share:
                mixture = labelled_mixture(run, records, mixture)
        except Diverged as error:
            # Encoded records would stay there for good.
            remove_blocks(run.folder.root)
            raise UsageError(
                f"model.lr={spec.model.lr:g}: {error}. What was drawn is spent; a run in another run_dir adds to it"
            ) from None
    else:
        if run.ranks.size > 1:
            run.reporter.warn(
                f"model={spec.model.name} makes no steps that {run.ranks.size} devices could share: one does it all"
            )
        # Nothing to follow for the others.
        run.ranks.broadcast_object(None)
        mixture, answers = measured_mixture(run, records)
    limits = plan_limits(settings, run.account.plan)
    content = SyntheticContent(mixture, settings.rows, spec.seed, _fidelity(run, mixture, records), limits, answers)
    with pace.stage("looking at a first draw"):
        drawn, warned = content.first_draw, content.warnings
    if drawn is not None:
        run.reporter.say(drawn.said)
    for warning in warned:
        run.reporter.warn(warning)
    return content


def _fidelity(run: Context, mixture: Mixture, records: Records | InBlocks | None) -> dict[str, float] | None:
    """Return the public figure that a share of the budget buys; None if none was asked for, or it was bought and lost."""
    settings, account = run.settings, run.account
    if settings.spec.privacy.fidelity_share is None:
        return None
    if not account.remaining(FIDELITY):
        figure = context.fidelity(account, run.folder)
        if figure is None:
            run.reporter.warn(
                "the figure that privacy.fidelity_share has bought was lost in an interruption: the release has no such "
                "figure"
            )
        return figure
    assert records is not None, "a run with a figure left to measure has read them"
    # A figure is a few numbers, which the room that is spare holds.
    make_room(run.folder.fidelity, {"head": account.ledger.head, "figure": {}}, account, "the figure of fidelity")
    release, n, seed = Release(mixture), min(settings.n, ROWS), settings.spec.seed
    # Those in blocks are kept by their values; a table that comes encoded has none.
    if isinstance(records, InBlocks) or records.values is not None:
        chunks = (TableValues.of(chunk, settings.schema) for chunk in release.sample_blocks(n, seed))
        figure = measure_table_fidelity(account, records, TableValues.joined(list(chunks)))
    else:
        figure = measure_fidelity(account, records, release.sample_encoded(n, seed), radius=settings.split.radius)
    durable.save(run.folder.fidelity, {"head": account.ledger.head, "figure": figure})
    account.verify_complete()
    return figure

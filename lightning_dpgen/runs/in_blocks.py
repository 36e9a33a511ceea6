"""Records that are larger than memory: which runs take them in blocks, and how they are read into a run's folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import filelock

from lightning_dpgen.data.files.kinds import needs
from lightning_dpgen.data.records import Records
from lightning_dpgen.passes.column_counts import ColumnCounts
from lightning_dpgen.passes.encoded_blocks import SUMS, EncodedBlockStore
from lightning_dpgen.passes.kept_records import KeptRecords
from lightning_dpgen.passes.reduce import InBlocks
from lightning_dpgen.privacy.chain import hold
from lightning_dpgen.runs import run_folder
from lightning_dpgen.runs.context import training_executor
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.paths import remove_blocks
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.groups import RaySpec, make_executor
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.settings import Settings, make_schema
from lightning_dpgen.specs.source import Source
from lightning_dpgen.specs.usage_error import INTERRUPTED, UsageError, describe_os_error


def check_memory(settings: Settings, source: Source) -> None:
    """Refuse what needs all records in memory where they are read in blocks.

    Args:
        settings: complete, with the model that was chosen.

    Raises:
        UsageError: naming the setting; nothing has been read.
        BadRecords: for a library that is not installed.
    """
    spec = settings.spec
    if not source.in_blocks:
        if isinstance(spec.compute, RaySpec) and not settings.trains_network:
            raise UsageError(
                "compute=ray: trains networks, and makes passes over records in blocks, and these are read into memory; "
                "leave it out, or put a table in files into blocks with data.memory_gib=0"
            )
        return
    if isinstance(spec.compute, RaySpec):
        needs("ray", "ray", "compute=ray")


def look_in_blocks(spec: RunSpec, source: Source, folder: RunFolder, *, trained: bool) -> ColumnCounts:
    """Return what a first pass sees of records in blocks, counted in the folder; no other run uses it until it is closed.

    Args:
        trained: whether a network is learned, whose workers hold cores of a cluster.

    Raises:
        UsageError, BadRecords, MissingData: in one line, which says how to go on; blocks that were counted stay.
    """
    run_folder.take(folder)
    counts = source.first_look(make_schema(spec, source), folder.blocks, private=spec.privacy.private)
    with ExitStack() as undo:
        undo.callback(counts.close)
        with _reading(folder, counts):
            counts.fill(training_executor(spec) if trained else make_executor(spec.compute))
        _check_some(source, counts.n)
        undo.pop_all()
    return counts


def read_in_blocks(
    settings: Settings, source: Source, folder: RunFolder, interrupts: Interrupts, *, values: bool = False
) -> tuple[InBlocks, dict[str, int]]:
    """Return the records in blocks, each of which is encoded into the folder, and the counts of what was changed.

    No other run uses the blocks until the records are closed.

    Args:
        values: whether records are kept by their values, too.

    Raises:
        UsageError, BadRecords, MissingData: in one line, which says how to go on; blocks that were encoded stay.
    """
    executor = training_executor(settings.spec) if settings.trains_network else make_executor(settings.spec.compute)
    run_folder.take(folder)
    blocks = source.blocks(settings.schema, folder.blocks, values=values, by_rows=settings.trains_network)
    with ExitStack() as undo:
        undo.callback(blocks.close)
        with _reading(folder, blocks):
            blocks.fill(executor)
        _check_some(source, len(blocks))
        undo.pop_all()
    sums = folder.blocks / f"{SUMS}.pt"
    return InBlocks(blocks, executor, keep=sums, after_block=interrupts.stop_here, close=blocks.close), blocks.counted


@contextmanager
def _reading(folder: RunFolder, kept: EncodedBlockStore | ColumnCounts) -> Iterator[None]:
    """Hold the place of blocks while they are read into it, and say in errors how to go on."""
    fresh = not folder.unfinished
    on = f"the blocks that were read are kept, and run_dir={folder.root} goes on with them"
    on += "; nothing was spent" if fresh else ""
    try:
        kept.hold()
        # Another run may have begun here, or ended, since this one looked.
        if folder.finished or (fresh and folder.unfinished):
            raise UsageError(f"run_dir={folder.root}: another run has just taken it; choose another run_dir")
        yield
    except BadRecords as error:
        raise BadRecords(f"{error}; {on}") from None
    except KeyboardInterrupt:
        raise UsageError(f"interrupted; {on}", INTERRUPTED) from None
    except filelock.Timeout:
        raise UsageError(f"run_dir={folder.root}: another run is reading its records into it; one at a time") from None
    except OSError as error:
        raise UsageError(f"{describe_os_error(error)}; {on}") from None


def _check_some(source: Source, n: int) -> None:
    if not n:
        raise BadRecords(
            f"data={source.spec.source}: there are no records: expected at least one; see what data.path holds"
        )


def remove_unused(folder: RunFolder) -> None:
    """Remove the encoded records of a run that goes on in memory, unless another command uses them."""
    if folder.blocks.is_dir():
        with suppress(filelock.Timeout), hold(folder.blocks):
            remove_blocks(folder.root)


def store_of(records: Records | InBlocks) -> Records | KeptRecords:
    """Return the records that `read_in_blocks` has read, or those in memory, as the store that lots are drawn from."""
    if isinstance(records, Records):
        return records
    assert isinstance(records.blocks, EncodedBlockStore)
    return records.blocks.store()

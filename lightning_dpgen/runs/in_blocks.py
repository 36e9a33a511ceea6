"""Records that are larger than memory: which runs take them in blocks, and how they are read into a run's folder."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import filelock

from lightning_dpgen.data.files.extras import needs
from lightning_dpgen.data.records import Records
from lightning_dpgen.passes.kept_blocks import SUMS, KeptBlocks
from lightning_dpgen.passes.kept_records import KeptRecords
from lightning_dpgen.passes.reduce import InBlocks
from lightning_dpgen.privacy.chain import hold
from lightning_dpgen.runs import folder as run_folder
from lightning_dpgen.runs.folder import RunFolder
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.run_dir import remove_blocks
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.compute import RaySpec, make_executor
from lightning_dpgen.specs.settings import Settings
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
        if isinstance(spec.compute, RaySpec) and not settings.trained:
            raise UsageError(
                "compute=ray: trains networks, and makes passes over records in blocks, and these are read into memory; "
                "leave it out, or put a table in files into blocks with data.memory_gib=0"
            )
        return
    if isinstance(spec.compute, RaySpec):
        needs("ray", "ray", "compute=ray")
    large = f"records in memory, and data.path is larger than data.memory_gib={spec.data.memory_gib:g}"
    raise_it = "or raise data.memory_gib where the machine has the memory"
    if opened := list(source.open_parts):
        also = "" if spec.data.share_of_values is None else "; data.bins_share=0 cuts bins of equal width"
        raise UsageError(f"{opened[0]} is to be found privately, which takes {large}: declare it{also}, {raise_it}")


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
    fresh = not folder.unfinished
    run_folder.take(folder)
    executor = make_executor(settings.spec.compute)
    kept = source.blocks(settings.schema, folder.blocks, values=values, by_rows=settings.trained)
    on = f"the blocks that were read are kept, and run_dir={folder.root} goes on with them"
    on += "; nothing was spent" if fresh else ""
    with ExitStack() as undo:
        undo.callback(kept.close)
        try:
            kept.hold()
            # Another run may have begun here, or ended, since this one looked.
            if folder.finished or (fresh and folder.unfinished):
                raise UsageError(f"run_dir={folder.root}: another run has just taken it; choose another run_dir")
            kept.fill(executor)
        except BadRecords as error:
            raise BadRecords(f"{error}; {on}") from None
        except KeyboardInterrupt:
            raise UsageError(f"interrupted; {on}", INTERRUPTED) from None
        except filelock.Timeout:
            raise UsageError(f"run_dir={folder.root}: another run is reading its records into it; one at a time") from None
        except OSError as error:
            raise UsageError(f"{describe_os_error(error)}; {on}") from None
        if not len(kept):
            raise BadRecords(
                f"data={source.spec.source}: there are no records: expected at least one; see what data.path holds"
            )
        undo.pop_all()
    sums = folder.blocks / f"{SUMS}.pt"
    return InBlocks(kept, executor, keep=sums, after_block=interrupts.stop_here, close=kept.close), kept.counted


def remove_unused(folder: RunFolder) -> None:
    """Remove the encoded records of a run that goes on in memory, unless another command uses them."""
    if folder.blocks.is_dir():
        with suppress(filelock.Timeout), hold(folder.blocks):
            remove_blocks(folder.root)


def store_of(records: Records | InBlocks) -> Records | KeptRecords:
    """Return the records that `read_in_blocks` has read, or those in memory, as the store that lots are drawn from."""
    if isinstance(records, Records):
        return records
    assert isinstance(records.blocks, KeptBlocks)
    return records.blocks.store()

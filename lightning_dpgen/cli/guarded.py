"""Work in a run's folder that may be interrupted, or run out of disk: it ends in one line that says how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.measure.tables import LostColumns
from lightning_dpgen.privacy.errors import RankLost
from lightning_dpgen.runs.folder import RunFolder
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.memory import ADVICE, LATE_ADVICE, is_out_of_memory
from lightning_dpgen.specs.compose import replaced
from lightning_dpgen.specs.usage_error import INTERRUPTED, RANK_LOST, UsageError, describe_os_error


def how_to_go_on(command: str, argv: Sequence[str], folder: RunFolder) -> str:
    """Return the line that says how to go on with the run of that folder."""
    words = replaced(argv, "run_dir", folder.root)
    return f"To go on from where it stopped: {shlex.join(['dpgen', command, *words])}"


def what_came_of(command: str, argv: Sequence[str], folder: RunFolder) -> str:
    """Return the end of a line that says why a run was stopped."""
    if folder.release.exists():
        return f", after the release was complete: {folder.release}"
    if folder.unfinished:
        on = how_to_go_on(command, argv, folder)
        return f"; nothing was released, and the ledger holds all that was drawn. {on}"
    on = f". {how_to_go_on(command, argv, folder)}" if folder.blocks.is_dir() else ""
    return f"; nothing was released, and nothing was spent{on}"


def tell_release(certificate: dict[str, Any], folder: RunFolder, unit: str, *more: str, warned: Sequence[str] = ()) -> None:
    """Print what a release promises about its unit, what was warned of, where it is, and what can be done with it."""
    private = certificate["private"]
    lost = next((text.names for text in warned if isinstance(text, LostColumns)), [])
    if private and lost:
        told = "1 column is" if len(lost) == 1 else f"{len(lost):,} columns are"
        print(
            f"\ndone, but {told} NOTHING BUT NOISE: {listed(lost)}. Epsilon {certificate['epsilon']:g} at delta "
            f"{certificate['delta']:g}, {unit}, is spent"
        )
    elif private:
        print(f"\ndone: epsilon {certificate['epsilon']:g} at delta {certificate['delta']:g}, {unit}")
    else:
        print(f"\ndone, but NOT A PRIVATE RELEASE: {certificate['statement'].split('. ')[1]}.")
    for text in (text for text in warned if not isinstance(text, LostColumns)):
        # Advice was given before anything was spent.
        print(f"  warned: {text.partition('; ')[0]}")
    print(f"  release (may be published{'' if private else ': NO'}):  {folder.release}")
    print(f"  private (must not leave this machine):  {folder.private}")
    print("next:")
    for line in (shlex.join(["dpgen", "verify", str(folder.release)]), *more):
        print(f"  {line}")


def guarded(
    command: str, argv: Sequence[str], folder: RunFolder, work: Callable[[Interrupts], dict[str, Any]]
) -> dict[str, Any]:
    """Return what `work` returns.

    Args:
        command: of dpgen, with its arguments `argv`, for the line that says how to go on.
        work: is handed what the user has asked for by signals.

    Raises:
        UsageError: on an interrupt, an error of the system, or memory that there is not.
    """
    interrupts = Interrupts()
    with interrupts.caught():
        try:
            return work(interrupts)
        except KeyboardInterrupt:
            raise UsageError(f"interrupted{what_came_of(command, argv, folder)}", INTERRUPTED) from None
        except RankLost as error:
            raise UsageError(f"{error}{what_came_of(command, argv, folder)}", RANK_LOST) from None
        except OSError as error:
            # Records that were encoded in blocks are worth going on with, too.
            goes_on = folder.unfinished or folder.blocks.is_dir()
            hint = f"; {how_to_go_on(command, argv, folder)}" if goes_on else ""
            raise UsageError(f"{describe_os_error(error)}{hint}") from None
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if folder.unfinished:
                raise UsageError(f"{LATE_ADVICE}. {how_to_go_on(command, argv, folder)}") from None
            raise UsageError(f"{ADVICE}. Nothing was spent, and run_dir={folder.root} can be begun anew") from None

"""A run's folder: `release/` may be published, `private/` may not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lightning_dpgen.cli.mistake import Mistake


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps its files.

    Args:
        root: the run's folder.
    """

    root: Path

    @property
    def release(self) -> Path:
        return self.root / "release"

    @property
    def private(self) -> Path:
        return self.root / "private"

    @property
    def ledger(self) -> Path:
        return self.private / "ledger.jsonl"

    @property
    def staging(self) -> Path:
        return self.private / "release-in-progress"


def choose(run_dir: str | None) -> RunFolder:
    """The folder that was asked for, or ``runs/<date>_<time>``; nothing is created.

    Raises:
        Mistake: if it holds a release or an unfinished run already.
    """
    root = Path(run_dir) if run_dir else Path("runs") / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = RunFolder(root)
    if folder.release.exists():
        raise Mistake(f"run_dir={root}: holds a finished release already; choose another run_dir")
    if folder.private.exists():
        raise Mistake(
            f"run_dir={root}: holds a run that was not finished, or one that is still going; what it spent stays spent, "
            "and resuming is not possible yet: choose another run_dir"
        )
    if root.exists() and not root.is_dir():
        raise Mistake(f"run_dir={root}: is a file; expected a folder to be created")
    return folder


def take(folder: RunFolder) -> None:
    """Create the folder; of two runs that try, one succeeds.

    Raises:
        Mistake: if another run was quicker, or the place cannot be written.
    """
    try:
        folder.root.mkdir(parents=True, exist_ok=True)
        folder.private.mkdir(mode=0o700)
    except FileExistsError:
        raise Mistake(f"run_dir={folder.root}: another run has just taken it; choose another run_dir") from None
    except OSError as error:
        raise Mistake(f"run_dir={folder.root}: cannot be created ({error.strerror})") from None

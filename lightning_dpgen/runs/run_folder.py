"""A run's folder: `release/` may be published, `private/` may not."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import filelock

from lightning_dpgen.common.folders import make_folder, make_private, place_of, sync_folder
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.chain import heads_file, hold
from lightning_dpgen.privacy.errors import LedgerError, OtherNoise
from lightning_dpgen.privacy.ledger import FILE_NAME, Ledger
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.studies.study import Study
from lightning_dpgen.release.files import CERTIFICATE, RELEASE, WARNINGS
from lightning_dpgen.runs.paths import BLOCKS, JOBS, check_no_sweep, check_run_dir, kind_of_place
from lightning_dpgen.specs.usage_error import UsageError, describe_os_error


def _under(*names: str) -> Any:
    """Return a property: the path of these names in a run's folder."""
    return property(lambda folder: folder.root.joinpath(*names))


@dataclass
class RunFolder:
    """Where a run keeps its files.

    Args:
        root: the folder.
        default: its name where no person has chosen one, until `take` creates it: what is there is another run's.
    """

    root: Path
    default: Path | None = None

    release = _under(RELEASE)
    private = _under("private")
    # For those who may watch a private run: it holds what the ledger covers.
    public = _under("public")
    ledger = _under("private", FILE_NAME)
    split = _under("private", "split.pt")
    checkpoint = _under("private", "checkpoint.ckpt")
    measured = _under("private", "measured.pt")
    bought = _under("private", "bought.pt")
    fidelity = _under("private", "fidelity.pt")
    projected = _under("private", "projected.pt")
    selection = _under("private", "selection.pt")
    trials = _under("private", "trials")
    initial = _under("private", "initial")
    warnings = _under("private", WARNINGS)
    # All that was asked for, a configuration by which another run begins (--config-name settings).
    settings = _under("private", "settings.yaml")
    tensorboard = _under("private", "tensorboard")
    # Encoded records of tables that are read in blocks; it is removed when the run has ended.
    blocks = _under("private", BLOCKS)
    staging = _under("private", "release-in-progress")

    @property
    def states(self) -> tuple[Path, ...]:
        """The files that a run keeps to go on from."""
        return (
            self.split, self.checkpoint, self.measured, self.projected, self.bought, self.fidelity, self.selection
        )  # fmt: skip

    @property
    def finished(self) -> bool:
        """True where there is a release; it may have been moved, and a link left."""
        return self.default is None and (self.release / CERTIFICATE).is_file()

    @property
    def begun(self) -> bool:
        """True where there is a ledger and no release."""
        return self.default is None and self.ledger.exists() and not self.release.exists()

    @property
    def unfinished(self) -> bool:
        """True where a run has drawn, or may have, and has not released; without an access in its ledger, nothing was."""
        return self.begun and (self._may_have_drawn or any(state.exists() for state in (*self.states, self.trials)))

    @property
    def _may_have_drawn(self) -> bool:
        """False for a whole ledger without an access alone."""
        if self.ledger.is_symlink() or not self.ledger.is_file():
            return True
        try:
            return b'"id"' in self.ledger.read_bytes() or bool(Ledger.read(self.ledger).accesses)
        except (LedgerError, OSError):
            # Damage is reported when it is reopened.
            return True


def choose(run_dir: str | Path | None) -> RunFolder:
    """Return the folder that was asked for, or ``runs/<date>_<time>``; nothing is created.

    Raises:
        UsageError: if it holds a sweep, a release already or something in its place, or cannot be a folder.
    """
    folder = choose_sweep(run_dir)
    check_no_sweep(folder.root)
    return folder


def choose_sweep(run_dir: str | Path | None) -> RunFolder:
    """Return the folder that was asked for, for a sweep, which may be there already; see `choose`."""
    if run_dir:
        folder = RunFolder(place_of(run_dir))
    else:
        default = place_of(Path("runs") / datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
        folder = RunFolder(next(path for path in _beside(default) if not path.exists()), default)
    check_run_dir(folder.root)
    return folder


def _beside(default: Path) -> Iterator[Path]:
    """Yield a default name and others, for runs of the same second."""
    yield default
    yield from (default.with_name(f"{default.name}_{number}") for number in itertools.count(2))


def _claim(folder: RunFolder) -> None:
    """Create a folder of a default name that no other run has; it gets the next name where one was quicker."""
    assert folder.default is not None
    make_folder(folder.default.parent)
    for path in _beside(folder.default):
        with suppress(FileExistsError):
            path.mkdir()
            sync_folder(path.parent)
            folder.root, folder.default = path, None
            return


def take(folder: RunFolder) -> None:
    """Create the folder, of which its owner alone may read the private part. Of two runs that try, one creates the ledger.

    A default name that another run has taken since it was chosen is left to that run, and `folder.root` is another one.

    Raises:
        UsageError: if the place cannot be written, or its private part is a link, or open to others and another user's; if
            something stands where the run writes later, when it has spent.
    """
    try:
        if folder.default is not None:
            _claim(folder)
        make_folder(folder.root)
        make_private(folder.private, FILE_NAME, JOBS)
    except OSError as error:
        raise UsageError(f"run_dir={folder.root}: {describe_os_error(error)}") from None
    _check_free(folder)


def _check_free(folder: RunFolder) -> None:
    """Check that all names which a run gives to its files and folders are free, or its own kind of thing."""
    parts = (folder.ledger.with_suffix(".part"), *map(durable.partial_path, folder.states))
    files = (folder.ledger, heads_file(folder.ledger), *folder.states, *parts)
    for path in (*files, folder.staging, folder.trials, folder.tensorboard, folder.initial, folder.blocks):
        name, what = path.relative_to(folder.root), "file" if path in files else "folder"
        if path.is_symlink():
            raise UsageError(
                f"run_dir={folder.root}: {name} is a symbolic link, and a run follows none: put the {what} itself in its "
                "place if it is the run's, or choose another run_dir"
            )
        if os.path.lexists(path) and not (path.is_file() if what == "file" else path.is_dir()):
            raise _in_the_way(folder, path, f"where the run makes a {what}")
    if os.path.lexists(folder.public) and not folder.public.is_dir():
        raise _in_the_way(folder, folder.public, "where the run makes a folder")
    # A run that goes on clears it away.
    if folder.staging.exists() and not folder.ledger.exists():
        raise _in_the_way(folder, folder.staging, "of a run whose ledger is not there")


def _in_the_way(folder: RunFolder, path: Path, why: str) -> UsageError:
    name = path.relative_to(folder.root)
    return UsageError(
        f"run_dir={folder.root}: {name} is {kind_of_place(path)}, {why}: remove it, or choose another run_dir"
    )


def reopen_account(folder: RunFolder, stream: PrivateStream, study: Study | None = None, *, exact: bool = False) -> Account:
    """Return the account of a run that did not end, from its ledger; see `Account.resume`.

    Raises:
        UsageError: as `take`.
        LedgerError: as `Account.resume`.
    """
    take(folder)
    try:
        return Account.resume(folder.ledger, stream, study=study, exact=exact)
    except OtherNoise as error:
        raise UsageError(f"{error} (privacy.noise and debug.private_seed)") from None


def open_account(
    plan: Plan, folder: RunFolder, stream: PrivateStream, about: dict[str, Any], study: Study | None = None
) -> Account:
    """Return the account of a new run; the ledger of one that ended before its first access makes room.

    Raises:
        UsageError: if another run has taken the folder, or was here and its ledger is gone.
        LedgerError: if another run is taking it.
    """
    for state in (*folder.states, folder.trials):
        if state.exists() and not folder.ledger.exists():
            raise UsageError(
                f"run_dir={folder.root}: holds {state.name} of a run whose ledger is missing, so what it has spent is not "
                "known; choose another run_dir, and add what that run may have cost"
            )
    _clear_unused(folder)
    try:
        return Account(plan, folder.ledger, stream, about=about, study=study)
    except FileExistsError:
        raise UsageError(f"run_dir={folder.root}: another run has just taken it; choose another run_dir") from None


def _clear_unused(folder: RunFolder) -> None:
    """Remove a ledger without an access, unless a run holds it that may be about to draw."""
    if not folder.begun:
        return
    try:
        with hold(folder.ledger):
            if not folder.unfinished:
                folder.ledger.unlink()
                heads_file(folder.ledger).unlink(missing_ok=True)
    except filelock.Timeout:
        raise LedgerError(f"{folder.ledger}: another run is writing this ledger; one at a time") from None

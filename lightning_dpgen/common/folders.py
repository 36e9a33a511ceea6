"""Names on disk that last, and files and folders that their owner alone may read, whatever the umask is."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

FILE, FOLDER = 0o600, 0o700


def place_of(path: str | Path) -> Path:
    """Return the absolute path that a person has named; `~` is their home, here and nowhere else.

    Other software reads `~`, or a scheme before a colon, in a path again; in one that begins at the root it finds neither.

    Example:
        >>> place_of("~/runs") == Path.home() / "runs", place_of("runs") == Path.cwd() / "runs"
        (True, True)
    """
    return Path(os.path.expanduser(path)).absolute()


def owner_only(path: str, flags: int) -> int:
    """Open a file as its owner's alone, for ``open(..., opener=owner_only)``; one that exists is made so.

    Raises:
        OSError: if it is a symbolic link, or belongs to another user and is open to others.
    """
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0), FILE)
    try:
        if os.name == "posix" and stat.S_IMODE(os.fstat(descriptor).st_mode) & ~FILE:
            os.fchmod(descriptor, FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_plain(path: Path, most: int) -> bytes:
    """Return the content of a plain file that may be anybody's: it is opened to be read, and nothing about it changes.

    Args:
        most: the most bytes that it may have.

    Raises:
        OSError: if it is a symbolic link or no plain file, is larger, or cannot be read.
    """
    # Opening a pipe would block.
    flags = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY"))
    if path.is_symlink():
        raise OSError(errno.ELOOP, "is a symbolic link; expected the file itself", str(path))
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most:
            raise OSError(errno.EINVAL, f"expected a plain file of at most {most:,} bytes", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


def write_whole(path: Path, text: str) -> None:
    """Write a file that its owner alone may read, whole or not at all.

    Raises:
        OSError: if it cannot be written; what was there stays.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "w", encoding="utf-8", opener=owner_only) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder durable; a system that cannot open folders does so by itself."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_files(folder: Path) -> None:
    """Make the files of a folder durable, and their names."""
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and its parents, each durable; one that is there is left as it is.

    Raises:
        OSError: if it cannot be made, or is a file.
    """
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(mode=mode if folder == missing[0] else 0o777, exist_ok=True)
        sync_folder(folder.parent)


def make_private(folder: Path, *ours: str) -> None:
    """Make a folder that its owner alone may read.

    The rights of a folder that is there already and open to others are taken back, with those of all that it holds, if it
    is empty or holds one of the files `ours`, which show that it is ours. Other files are left alone.

    Raises:
        OSError: if it cannot be made, is a symbolic link or a file, belongs to another user, or is open to others and holds
            something else.
    """
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "is a symbolic link, and what is private stays in the folder itself", str(folder))
    make_folder(folder, FOLDER)
    if os.name != "posix":
        return
    if any((folder / name).exists() for name in ours):
        restrict(folder)
    elif _is_open(folder):
        if any(folder.iterdir()):
            raise OSError(
                errno.EPERM,
                "others may read this folder, and it holds files of another program; chmod 700 it, or choose another",
                str(folder),
            )
        folder.chmod(FOLDER)


def restrict(folder: Path) -> None:
    """Take the rights of others off a folder and all that it holds; links are left as they are."""
    for path in (folder, *folder.rglob("*")):
        if os.name == "posix" and not path.is_symlink() and _is_open(path):
            path.chmod(FOLDER if path.is_dir() else FILE)


def publish(staging: Path, folder: Path) -> None:
    """Give a folder its final name in one durable move, and the rights that any new folder has.

    Args:
        staging: a folder that is its owner's alone until now, on the same file system.
        folder: its final path, which must not exist.

    Raises:
        OSError: if it cannot be moved; then nothing stands under the final name.
    """
    probe = staging / ".rights"
    probe.mkdir()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.rmdir()
    staging.chmod(mode)
    os.rename(staging, folder)
    sync_folder(folder.parent)
    sync_folder(staging.parent)


def _is_open(path: Path) -> bool:
    """Return whether others than its owner have any right to a path."""
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)

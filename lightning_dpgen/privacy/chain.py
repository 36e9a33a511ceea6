"""Files of JSON lines in which a line that is changed, removed, added or lost is noticed.

Each line ends with a checksum of itself and of the one before, so it vouches for all lines before it. A second file beside
it (``.heads``) holds the checksum of the last line of each block that was written, so lost last lines are noticed, too.
There is no key, so both guard against accidents and not against the owner of the machine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

import filelock

from lightning_dpgen.common.folders import FILE, owner_only, sync_folder
from lightning_dpgen.common.strict_json import parse_json
from lightning_dpgen.privacy.errors import LedgerError

# Ends a line that a crash cut short. It was never fsynced, so no noise was drawn on it.
TORN = b"#torn\n"
LENGTH = 16


def check(before: str, line: Mapping[str, Any]) -> str:
    """Return the checksum of a line that follows on the checksum `before`."""
    text = before + json.dumps(line, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def seal_lines(head: str, lines: Iterable[Mapping[str, Any]]) -> tuple[list[str], bytes]:
    """Return the checksums of lines that follow on the checksum `head`, and the lines as they stand in a file.

    Raises:
        ValueError: for a number that JSON does not have.
    """
    heads, texts = [], []
    for line in lines:
        head = check(head, line)
        heads.append(head)
        texts.append(json.dumps({**line, "check": head}, allow_nan=False) + "\n")
    return heads, "".join(texts).encode()


def now() -> str:
    """Return the time for a line, in UTC and whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def heads_file(path: str | Path) -> Path:
    """Return the path of the file that says how far another one reached."""
    return Path(f"{path}.heads")


def hold(path: str | Path, patience: float = 0.0) -> filelock.FileLock:
    """Make the lock of a file, which is not held yet and ends with the process at the latest."""
    return filelock.FileLock(f"{path}.lock", timeout=patience, mode=FILE)


def create(path: Path, text: bytes, head: str) -> tuple[FileIO, FileIO]:
    """Make a file with its first lines, and the one of its heads; return both, open.

    Under its own name the file is there with these lines or not at all.

    Raises:
        LedgerError: if the heads say that it was there before.
        OSError: if it cannot be written.
    """
    known = heads_file(path)
    if known.exists() and len(_whole_heads(known.read_bytes())) > 1:
        raise LedgerError(
            f"{path}: is missing, and {known} names lines that it held: what they have spent is not known. Begin a new "
            "run in another place, and add what this one may have cost"
        )
    part = path.with_suffix(".part")
    file = open(part, "wb", buffering=0, opener=owner_only)  # noqa: SIM115
    heads = open(known, "wb", buffering=0, opener=owner_only)  # noqa: SIM115
    append(file, heads, text, head)
    os.replace(part, path)
    sync_folder(path.parent)
    return file, heads


def reopen(path: Path) -> tuple[FileIO, FileIO]:
    """Open a file and the one of its heads, to read them and then append.

    Raises:
        LedgerError: if there are no heads.
        FileNotFoundError: if there is no such file.
    """
    file = open(path, "r+b", buffering=0, opener=owner_only)  # noqa: SIM115
    try:
        return file, open(heads_file(path), "r+b", buffering=0, opener=owner_only)
    except BaseException as error:
        file.close()
        if isinstance(error, FileNotFoundError):
            raise LedgerError(
                f"{heads_file(path)}: is missing, so it is not known whether lines were lost at the end of {path}"
            ) from None
        raise


def append(file: FileIO, heads: FileIO, text: bytes, head: str) -> None:
    """Write lines and then the checksum of the last one, and wait until both are on disk."""
    _write(file, text)
    # The first line break ends a head that a crash may have cut short.
    _write(heads, f"\n{head}\n".encode())


class Lines:
    """The lines of a file, each checked when it is reached; the last one is followed by a check that none is missing.

    Args:
        heads: the content of the file of its heads.
        kind, version: the kind and version of the file; its first line says ``{kind: version}``.
        of: the owner of the cost that the file holds, a run or a study, for errors.

    Attributes:
        first, head: the checksum of the first line, and of the last one that was reached.
        heads: all checksums so far.
        ending: the bytes that must be appended to the content before another line.

    Raises:
        LedgerError: on iteration, naming file and line, for a line that is not as it was written.
    """

    def __init__(self, path: Path, content: bytes, heads: bytes, *, kind: str, version: int, of: str) -> None:
        # A last line that lacks nothing but its end may have reached the disk in time: it counts.
        end = b"\n" if _follows(content[content.rfind(b"\n") + 1 :], _last_check(content)) else b""
        *self._whole, tail = (content + end).split(b"\n")
        self.ending = end + (TORN if tail else b"")
        self._path, self._known, self._kind, self._version, self._of = path, _whole_heads(heads), kind, version, of
        self.first, self.head, self.heads = "", "", set[str]()

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, raw in enumerate(self._whole, start=1):
            if raw.endswith(TORN.strip()):
                if _follows(raw.removesuffix(TORN.strip()), self.head):
                    raise self.damage_error(number, "is whole, and marked as if a crash had cut it short")
                continue
            line = _parsed(raw)
            if line is None:
                raise self.damage_error(number, f"is not a line of a {self._kind}")
            stated = line.pop("check")
            if not self.head and line.get(self._kind) != self._version:
                raise LedgerError(
                    f"{self._path}: is a {self._kind} of format {json.dumps(line.get(self._kind))[:20]}; this version of "
                    f"the software reads format {self._version}"
                )
            if stated != check(self.head, line):
                raise self.damage_error(
                    number, "does not follow from the lines before it: one was changed, removed or added"
                )
            self.first, self.head = self.first or stated, stated
            self.heads.add(stated)
            yield number, line
        if not self.head:
            raise LedgerError(f"{self._path}: holds no complete line, and did not begin empty: its content is lost")
        # The first head was there before the file had its name.
        if not self._known or not self.heads.issuperset(self._known):
            raise LedgerError(f"{self._path}: lines are missing at its end. {self._unknown}")

    def damage_error(self, number: int, what: str) -> LedgerError:
        """Return the error for line `number`, with what is wrong with it."""
        return LedgerError(f"{self._path}, line {number}: {what}. {self._unknown}")

    @property
    def _unknown(self) -> str:
        return f"What the {self._of} has spent is not known for certain, so it cannot go on; the file is left as it is"


def _parsed(raw: bytes) -> dict[str, Any] | None:
    """Return the object of a line that bears a checksum, or None."""
    try:
        line = parse_json(raw, lone_surrogates=True)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("check"), str) else None


def _follows(raw: bytes, before: str) -> bool:
    """Return whether this is a whole line that follows on `before`, and not what a crash has left of one."""
    line = _parsed(raw)
    return line is not None and line.pop("check") == check(before, line)


def _last_check(content: bytes) -> str:
    """Return the checksum of the last line that ends in a line break and was not cut short; empty if there is none."""
    for raw in reversed(content[: content.rfind(b"\n") + 1].splitlines()):
        if not raw.endswith(TORN.strip()):
            return (_parsed(raw) or {"check": ""})["check"]
    return ""


def _whole_heads(content: bytes) -> list[str]:
    return [head for head in content.decode(errors="replace").split() if len(head) == LENGTH]


def _write(file: FileIO, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
    os.fsync(file.fileno())

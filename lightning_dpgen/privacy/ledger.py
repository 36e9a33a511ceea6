"""The ledger: an append-only file of every access, written before the noise of the access is drawn."""

from __future__ import annotations

import copy
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from io import FileIO
from itertools import groupby
from pathlib import Path
from typing import Any

import filelock

from lightning_dpgen.privacy import chain
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.durable import sync_folder
from lightning_dpgen.privacy.errors import LedgerError

FORMAT_VERSION = 4
_STATE = ("run", "promise", "plan", "about", "noise", "head", "_heads", "_ahead", "_drawn")


class Ledger:
    """What was drawn from the records, as JSON lines with random ids.

    The first line says what the run is about and what it promises; then one line an access. Lines are written and fsynced
    in blocks ahead of the draws, so a crash over-counts and never under-counts; a clean `close` names the lines that were
    written ahead and never drawn. Each line ends with a checksum of itself and of all lines before it, so a line that was
    changed or lost is noticed when the file is opened again; a second file beside it (``.heads``) holds the checksum of the
    last line of each block, so that lines lost at the end are noticed too. One process at a time holds the files.

    Args:
        path: a file that must not exist yet; None keeps the ledger in memory (tests, notebooks).
        plan: the plan of the run, as JSON.
        about: what the run must be asked for again when it goes on (settings, a fingerprint of the records), as JSON.
        noise: where the run's noise comes from, in the words of the certificate; a run goes on with no other.

    Attributes:
        promise, about, noise: as given, or as they were read.
        plan: the promise, or the plan that took its place when the run was resumed.
        head: checksum of the last line, which stands for all lines up to it.

    Raises:
        FileExistsError: if there is a ledger already.

    Example:
        >>> ledger = Ledger()
        >>> ledger.write(Access("mean", {"sum": 2.0}))
        >>> ledger.accesses
        [(Access(stage='mean', ...), 1)]
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        plan: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
        noise: str | None = None,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.promise, self.plan, self.noise, self.head = plan, plan, noise, ""
        # As it will be read again: of JSON, keys are text.
        self.about = json.loads(json.dumps(dict(about or {})))
        self._heads: set[str] = set()
        self._broken = False
        self._ahead: list[tuple[str, Access]] = []
        self._drawn: list[tuple[Access, int]] = []
        self._closed, self._process = False, os.getpid()
        self.run = secrets.token_hex(8)
        header = {"ledger": FORMAT_VERSION, "run": self.run, "opened": _now()}
        header |= {"noise": noise, "plan": plan, "about": self.about}
        if self.path is None:
            self._file = self._witness = self._lock = None
            self._append([header])
            return
        self._lock = _hold(self.path)
        if self.path.exists():
            self._lock.release()
            raise FileExistsError(f"{self.path}: there is a ledger already; Account.resume goes on with it")
        if len(_heads(self.path)) > 1:
            self._lock.release()
            raise LedgerError(
                f"{self.path}: is missing, and {_witness(self.path)} names lines that it held: what they have spent is not "
                "known. Begin elsewhere, and add what this run may have cost"
            )
        # Under its own name the file appears with its first line, or not at all.
        part = self.path.with_suffix(".part")
        self._file = open(part, "wb", buffering=0)  # noqa: SIM115
        self._witness = open(_witness(self.path), "wb", buffering=0)  # noqa: SIM115
        self._append([header])
        os.replace(part, self.path)
        sync_folder(self.path.parent)

    @classmethod
    def reopen(cls, path: str | Path) -> Ledger:
        """Go on with the ledger of a run that did not end; every access that may have been drawn is in `accesses`.

        Raises:
            LedgerError: if another process holds it, it is of another version, or a line was changed or is missing.
            FileNotFoundError: if there is none.
        """
        ledger = cls.__new__(cls)
        ledger.path, ledger._closed, ledger._ahead = Path(path), False, []
        ledger._broken, ledger._process = False, os.getpid()
        with ExitStack() as held:
            ledger._file = held.enter_context(open(path, "r+b", buffering=0))
            ledger._lock = _hold(ledger.path)
            held.callback(ledger._lock.release)
            try:
                ledger._witness = held.enter_context(open(_witness(ledger.path), "r+b", buffering=0))
            except FileNotFoundError:
                raise LedgerError(
                    f"{_witness(path)}: is missing, so nobody can tell whether lines were lost at the end of {path}"
                ) from None
            ledger._file.write(ledger._read(ledger._file.read(), ledger._witness.read()))
            ledger._append([{"resumed": _now()}])
            held.pop_all()
        return ledger

    @classmethod
    def read(cls, path: str | Path) -> Ledger:
        """What stands in the ledger of a run, in memory: for ranks beside the one that holds the file.

        Raises:
            LedgerError, FileNotFoundError: as `reopen`, but for being held.
        """
        ledger = cls()
        ledger.path = Path(path)
        # First, since rank 0 may be writing: lines behind the last head that is known are no damage.
        heads = _witness(path).read_bytes()
        ledger._read(ledger.path.read_bytes(), heads)
        ledger.path = None
        return ledger

    @property
    def accesses(self) -> list[tuple[Access, int]]:
        """What was drawn so far, run-length encoded, in order."""
        return list(self._drawn)

    def count(self, stage: str) -> int:
        """How many accesses of a stage were drawn."""
        return sum(count for access, count in self._drawn if access.stage == stage)

    def knows(self, head: str) -> bool:
        """Whether a checksum that was once the `head` is that of a line of this ledger."""
        return head in self._heads

    def write(self, access: Access, ahead: int = 1) -> None:
        """Record one access; noise may be drawn once this returns.

        Args:
            access: what is about to be drawn.
            ahead: if no line is waiting, write this many equal ones at once (a block), for the accesses to come.

        Raises:
            LedgerError: if the ledger is closed: its last line says that nothing else was drawn.
        """
        if self._closed:
            raise LedgerError(f"stage {access.stage!r}: the ledger is closed, so nothing more may be drawn in this run")
        if not self._ahead:
            lines = [(secrets.token_hex(8), access) for _ in range(ahead)]
            self._append([{"id": identity, **line.as_json()} for identity, line in lines])
            self._ahead = lines[::-1]
        elif self._ahead[-1][1] != access:
            identity = secrets.token_hex(8)
            self._append([{"id": identity, **access.as_json()}])
            self._ahead.append((identity, access))
        self._ahead.pop()
        if self._drawn and self._drawn[-1][0] == access:
            self._drawn[-1] = (access, self._drawn[-1][1] + 1)
        else:
            self._drawn.append((access, 1))

    def waits(self, access: Access) -> bool:
        """Whether a line for this access was written ahead."""
        return bool(self._ahead) and self._ahead[-1][1] == access

    @property
    def state(self) -> dict[str, Any]:
        """All that another rank must know to count as this ledger does; see `follow`."""
        return {name: getattr(self, name) for name in _STATE}

    def follow(self, state: Mapping[str, Any]) -> None:
        """Count from here on as the ledger of rank 0; this one is in memory."""
        for name in _STATE:
            setattr(self, name, copy.copy(state[name]))

    def extend(self, promise: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Record the promise of the whole run, made from what its first accesses gave."""
        self.promise = self.plan = promise
        self.about |= about
        self._append([{"promise": promise, "about": dict(about)}])

    def rewrite(self, plan: Mapping[str, Any]) -> None:
        """Record the plan that a resumed run follows instead of what was promised."""
        self.plan = plan
        self._append([{"plan": plan}])

    def hand_over(self) -> None:
        """Leave the files to another process, which reopens them; entries that nothing was drawn on are named."""
        if self._file is not None and not self._closed:
            self._append([{"handed_over": _now(), "never_drawn": [identity for identity, _ in self._ahead]}])
            self._closed = True
            self._file.close()
            self._witness.close()
            self._lock.release()

    def close(self) -> None:
        """Write the last line, with the ids of entries that nothing was drawn on; nothing can be written after it."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        if self._file is None:
            return
        drawn = sum(count for _, count in self._drawn)
        try:
            if not self._broken:
                self._append([{"closed": drawn, "never_drawn": [identity for identity, _ in self._ahead]}])
        finally:
            self._file.close()
            self._witness.close()
            self._lock.release()

    def _append(self, lines: list[dict[str, Any]]) -> None:
        if self._broken:
            raise LedgerError(f"{self.path}: a line could not be written, so nothing more may be drawn in this process")
        if os.getpid() != self._process:
            raise LedgerError(f"{self.path}: is written by process {self._process}; a forked child may not draw from it")
        head, heads, texts = self.head, [], []
        for line in lines:
            head = chain.check(head, line)
            heads.append(head)
            texts.append(json.dumps(line | {"check": head}) + "\n")
        if self._file is not None:
            # Until all of it is on disk nobody knows what is there: whoever opens the file again will see.
            self._broken = True
            _write(self._file, "".join(texts))
            # The end of a line that a crash may have cut short, a head, and its end.
            _write(self._witness, f"\n{head}\n")
        # Last, so that an interrupt in between leaves a broken ledger and not one that goes on from a wrong line.
        self.head = head
        self._heads.update(heads)
        self._broken = False

    def _read(self, content: bytes, witness: bytes) -> bytes:
        """Take over what stands in the files; gives what is to be written behind it, before another line."""
        # Of a last line that lacks nothing but its end, nobody can tell whether it reached the disk in time: it counts.
        end = b"\n" if chain.follows(content[content.rfind(b"\n") + 1 :], chain.last_check(content)) else b""
        *whole, tail = (content + end).split(b"\n")
        entries: dict[str, Access] = {}
        self.head, self._heads, header = "", set(), None
        for number, line in self._checked(whole):
            if header is None:
                header = line
                self.promise, self.plan, self.about = line["plan"], line["plan"], line["about"]
                self.noise, self.run = line.get("noise"), line["run"]
            elif "id" in line:
                entries[line["id"]] = self._access(number, line)
            elif "promise" in line:
                self.promise = self.plan = line["promise"]
                self.about |= line["about"]
            elif "plan" in line:
                self.plan = line["plan"]
            for identity in line.get("never_drawn", []):
                if entries.pop(identity, None) is None:
                    raise self._damaged(number, f"names an entry {identity!r} that is not there")
        if header is None:
            raise LedgerError(f"{self.path}: holds no whole line, and was not made so: its content is lost")
        heads = _whole_heads(witness)
        # The first one was there before the ledger had its name.
        for head in heads or [""]:
            if not self.knows(head):
                raise LedgerError(
                    f"{self.path}: lines are missing at its end that were there once. What the run has spent is not known "
                    "for certain, so it cannot go on; the file is left as it is"
                )
        self._drawn = [(access, len(list(equal))) for access, equal in groupby(entries.values())]
        return end + (chain.TORN if tail else b"")

    def _checked(self, whole: list[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, raw in enumerate(whole, start=1):
            if raw.endswith(chain.TORN.strip()):
                if chain.follows(raw.removesuffix(chain.TORN.strip()), self.head):
                    raise self._damaged(number, "is whole, and marked as if a crash had cut it short")
                continue
            try:
                line = json.loads(raw)
                check = line.pop("check")
            except (ValueError, KeyError, AttributeError, TypeError):
                raise self._damaged(number, "is not a line of a ledger") from None
            if not self.head:
                self._check_version(line)
            if check != chain.check(self.head, line):
                raise self._damaged(number, "does not follow from the lines before it: one was changed, removed or added")
            self.head = check
            self._heads.add(check)
            yield number, line

    def _check_version(self, line: dict[str, Any]) -> None:
        if line.get("ledger") != FORMAT_VERSION:
            raise LedgerError(
                f"{self.path}: is a ledger of format {line.get('ledger')!r}; this version of the software reads format "
                f"{FORMAT_VERSION}"
            )

    def _access(self, number: int, line: dict[str, Any]) -> Access:
        try:
            return Access.from_json(line)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise self._damaged(number, f"is not an access ({error})") from None

    def _damaged(self, number: int, what: str) -> LedgerError:
        return LedgerError(
            f"{self.path}, line {number}: {what}. What the run has spent is not known for certain, so it cannot go on; the "
            "file is left as it is"
        )


def _witness(path: str | Path) -> Path:
    """The file that knows how far a ledger reached."""
    return Path(f"{path}.heads")


def _whole_heads(witness: bytes) -> list[str]:
    return [head for head in witness.decode(errors="replace").split() if len(head) == chain.LENGTH]


def _heads(path: Path) -> list[str]:
    try:
        return _whole_heads(_witness(path).read_bytes())
    except FileNotFoundError:
        return []


def _write(file: FileIO, text: str) -> None:
    rest = memoryview(text.encode())
    while rest:
        rest = rest[file.write(rest) :]
    os.fsync(file.fileno())


def _hold(path: Path) -> filelock.BaseFileLock:
    """The lock of a ledger, which ends with the process if nothing else ends it."""
    lock = filelock.FileLock(f"{path}.lock", timeout=0)
    try:
        return lock.acquire().lock
    except filelock.Timeout:
        raise LedgerError(f"{path}: another run is writing this ledger; one at a time") from None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""The ledger: an append-only file of every access, written before the noise of the access is drawn."""

from __future__ import annotations

import copy
import errno
import json
import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from io import FileIO
from itertools import groupby
from pathlib import Path
from typing import Any

import filelock

from lightning_dpgen.common.strict_json import check_shape, parse_json, shape
from lightning_dpgen.privacy import chain
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.drawn_noise import DrawnNoise
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.sampling.strategy import Strategy

FORMAT_VERSION = 6
# The name of the file in the private folder of a run.
FILE_NAME = "ledger.jsonl"
_TEXT, _OBJECT = {"type": "string"}, {"type": "object"}
_IDS = {"type": "array", "items": _TEXT}
# The shape of each kind of line, by the key that tells the kind. A line with a promise also holds what it is about.
_SHAPES = {
    "ledger": shape(
        ledger={}, run=_TEXT, noise={"type": ["string", "null"]}, plan={"type": ["object", "null"]}, about=_OBJECT
    ),
    "id": shape(id=_TEXT),
    "mechanism": shape(mechanism=_TEXT),
    "promise": shape(promise=_OBJECT, about=_OBJECT),
    "plan": shape(plan=_OBJECT),
    "resumed": shape(),
    "trained": shape(trained=_TEXT),
    "closed": shape(closed={"type": "integer", "minimum": 0}, never_drawn=_IDS),
    "study": shape(study=_TEXT, file=_TEXT),
    "stopped": shape(stopped={"type": "integer", "minimum": 0}, never_drawn=_IDS),
}
_STATE = (
    "run", "promise", "plan", "about", "noise", "trained", "study", "in_study_first", "stopped", "head", "noises", "_heads",
    "_ahead", "_drawn", "_counts",
)  # fmt: skip


class Ledger:
    """The accesses that were drawn from the records, as JSON lines with random ids.

    The first line says what the run is about and what it promises; then follows one line an access, and one for each way in
    which a noise was drawn. Lines of accesses are written and fsynced in blocks ahead of the draws, so a crash over-counts
    and never under-counts; a clean `close` names the lines that were written ahead and never drawn, and so does `stop`,
    after which the run never goes on. Each line ends with a checksum of itself and of all lines before it, so a line that
    was changed or lost is noticed when the file is opened again; a second file beside it (``.heads``) holds the checksum of
    the last line of each block, so that lines lost at the end are noticed too. One process at a time holds the files.

    Args:
        path: a file that must not exist yet; None keeps the ledger in memory (tests, notebooks).
        plan: the plan of the run, as JSON.
        about: what must be asked for again when the run goes on (settings, a fingerprint of the records), as JSON.
        noise: the source of the run's noise, in the words of the certificate; a run goes on with no other.
        study: identity and file of the study that the run belongs to.

    Attributes:
        promise, about, noise: as given, or as they were read.
        plan: the promise, or the plan that took its place when the run was resumed.
        trained: the digest of the parameters that the last step left (`record_trained`); None where none was recorded.
        noises: how noises were drawn (`record_noises`), each kind once, in order; the values say nothing.
        study: identity and file of the study that the run was entered in; None outside of studies.
        in_study_first: True if the study is named in the first lines, which the file had before it had its name: so there
            is no copy of it that does not know the study.
        stopped: True once the run was stopped for good.
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
        study: tuple[str, str] | None = None,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.promise, self.plan, self.noise, self.head = plan, plan, noise, ""
        self.trained: str | None = None
        self.study, self.in_study_first = study, study is not None
        self.stopped = False
        # Kept as it will be read again: the keys of JSON are text.
        self.about = parse_json(json.dumps(dict(about or {})).encode(), lone_surrogates=True)
        self._heads: set[str] = set()
        self.noises: dict[DrawnNoise, None] = {}
        self._broken = False
        self._ahead: list[tuple[str, Access]] = []
        self._drawn: list[tuple[Access, int]] = []
        # By stage, since interleaved stages leave many entries.
        self._counts: Counter[str] = Counter()
        self._closed, self._process = False, os.getpid()
        self.run = secrets.token_hex(8)
        header = {"ledger": FORMAT_VERSION, "run": self.run, "opened": chain.now()}
        header |= {"noise": noise, "plan": plan, "about": self.about}
        first = [header] if study is None else [header, _study_line(study)]
        if self.path is None:
            self._file: FileIO | None = None
            self._witness: FileIO | None = None
            self._lock: filelock.BaseFileLock | None = None
            self._advance(chain.seal_lines("", first)[0])
            return
        self._lock = _hold(self.path)
        try:
            if self.path.exists():
                raise FileExistsError(f"{self.path}: there is a ledger already; Account.resume goes on with it")
            heads, text = chain.seal_lines("", first)
            self._file, self._witness = chain.create(self.path, text, heads[-1])
        except BaseException:
            self._lock.release()
            raise
        self._advance(heads)

    @classmethod
    def reopen(cls, path: str | Path) -> Ledger:
        """Go on with the ledger of a run that did not end; every access that may have been drawn is in `accesses`.

        Raises:
            LedgerError: if another process holds it, it is of another version, a line was changed or is missing, or the run
                was stopped for good.
            FileNotFoundError: if there is none.
        """
        ledger = cls.__new__(cls)
        ledger.path, ledger._closed, ledger._ahead = Path(path), False, []
        ledger._broken, ledger._process, ledger.trained, ledger.noises = False, os.getpid(), None, {}
        ledger.study, ledger.in_study_first, ledger.stopped = None, False, False
        if not ledger.path.exists():
            raise FileNotFoundError(errno.ENOENT, "there is no such ledger", str(path))
        with ExitStack() as resources:
            ledger._lock = _hold(ledger.path)
            resources.callback(ledger._lock.release)
            ledger._file, ledger._witness = map(resources.enter_context, chain.reopen(ledger.path))
            ending = ledger._read(ledger._file.read(), ledger._witness.read())
            if ledger.stopped:
                raise LedgerError(
                    f"{path}: this run was stopped for good, and others may spend what it had not drawn: begin a new run"
                )
            ledger._file.write(ending)
            ledger._append([{"resumed": chain.now()}])
            resources.pop_all()
        return ledger

    @classmethod
    def read(cls, path: str | Path) -> Ledger:
        """Read the ledger of a run into memory, for ranks beside the one that holds the file.

        Raises:
            LedgerError, FileNotFoundError: as `reopen`; but the ledger may be held.
        """
        ledger = cls()
        ledger.path = Path(path)
        # Heads are read first, since rank 0 may be writing: lines behind the last known head are no damage.
        heads = chain.heads_file(path).read_bytes()
        ledger._read(ledger.path.read_bytes(), heads)
        ledger.path = None
        return ledger

    @property
    def accesses(self) -> list[tuple[Access, int]]:
        """The accesses that were drawn so far, run-length encoded, in order."""
        return list(self._drawn)

    def count(self, stage: str) -> int:
        """Return how many accesses of a stage were drawn."""
        return self._counts[stage]

    def knows(self, head: str) -> bool:
        """Return whether a checksum that was once the `head` is that of a line of this ledger."""
        return head in self._heads

    def write(self, access: Access, ahead: int = 1) -> None:
        """Record one access; noise may be drawn once this returns.

        Args:
            ahead: if no line is waiting, write this many equal ones at once (a block), for the accesses to come.

        Raises:
            LedgerError: if the ledger is closed: its last line says that nothing else was drawn.
        """
        if self._closed:
            raise LedgerError(f"stage {access.stage!r}: the ledger is closed, so nothing more may be drawn in this run")
        if not self._ahead:
            lines = [(secrets.token_hex(8), access) for _ in range(ahead)]
            self._append([{"id": identity, **line.as_line()} for identity, line in lines])
            self._ahead = lines[::-1]
        elif self._ahead[-1][1] != access:
            identity = secrets.token_hex(8)
            self._append([{"id": identity, **access.as_line()}])
            self._ahead.append((identity, access))
        self._ahead.pop()
        self._counts[access.stage] += 1
        if self._drawn and self._drawn[-1][0] == access:
            self._drawn[-1] = (access, self._drawn[-1][1] + 1)
        else:
            self._drawn.append((access, 1))

    def waits(self, access: Access) -> bool:
        """Return whether a line for this access was written ahead."""
        return bool(self._ahead) and self._ahead[-1][1] == access

    @property
    def state(self) -> dict[str, Any]:
        """The fields that another rank must know to count as this ledger does; see `follow`."""
        return {name: getattr(self, name) for name in _STATE}

    def follow(self, state: Mapping[str, Any]) -> None:
        """Count from here on as the ledger of rank 0 does; this one is in memory."""
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

    def record_noises(self, noises: Sequence[DrawnNoise]) -> None:
        """Record how noises were drawn that no line tells of yet: mechanism, and for sums their unit and bound."""
        self._append([noise.as_json() for noise in noises])
        self.noises |= dict.fromkeys(noises)

    def record_trained(self, digest: str) -> None:
        """Record which parameters the accesses have led to, so that a release of others is noticed."""
        self.trained = digest
        self._append([{"trained": digest}])

    def record_study(self, study: tuple[str, str]) -> None:
        """Record the study that the run is entered in next, so that it goes on with no other and not without it."""
        self._append([_study_line(study)])
        self.study = study

    def close(self) -> None:
        """Write the last line, with the ids of entries that nothing was drawn on; only `reopen` goes on after it."""
        if self._closed or os.getpid() != self._process:
            return
        self._end({} if self._broken else {"closed": self._total})

    def stop(self) -> None:
        """Write the last line of a run that never goes on, as `close` does; a second call does nothing.

        Raises:
            LedgerError: if it could not be written, or another process holds the ledger.
        """
        if os.getpid() != self._process:
            raise LedgerError(f"{self.path}: is written by process {self._process}; a forked child does not stop its run")
        if self._closed and self.path is not None and not self.stopped:
            # Another holder of the file writes what follows a clean end, and knows what others have written there since.
            reopened = Ledger.reopen(self.path)
            reopened.stop()
            self._take_over(reopened)
        elif not self._closed:
            self._end({"stopped": self._total})
        self.stopped = True

    def read_on(self) -> bool:
        """Count what another holder has written since this ledger was closed; return whether there is any.

        Raises:
            LedgerError: if the file is damaged or missing, or another run's.
        """
        if not self._closed or self.path is None:
            return False
        try:
            unchanged = chain.heads_file(self.path).read_bytes().rstrip().endswith(self.head.encode())
            if not unchanged:
                self._take_over(Ledger.read(self.path))
        except FileNotFoundError as error:
            raise LedgerError(
                f"{self.path}: the ledger was here, and {error.filename} is missing, so it is not known whether the run "
                "has gone on: put the private folder back"
            ) from None
        return not unchanged

    def _take_over(self, later: Ledger) -> None:
        if later.run != self.run or not later.knows(self.head):
            raise LedgerError(f"{self.path}: holds another run than it did when this ledger was closed, or an older copy")
        self.follow(later.state)

    @property
    def _total(self) -> int:
        return sum(count for _, count in self._drawn)

    def _end(self, line: dict[str, Any]) -> None:
        """Write the last line, if there is one, and let go of the files."""
        self._closed = True
        if self._file is None:
            return
        try:
            if line:
                self._append([{**line, "never_drawn": [identity for identity, _ in self._ahead]}])
        finally:
            for file in (self._file, self._witness):
                if file is not None:
                    file.close()
            if self._lock is not None:
                self._lock.release()

    def _append(self, lines: list[dict[str, Any]]) -> None:
        if self._broken:
            raise LedgerError(f"{self.path}: a line could not be written, so nothing more may be drawn in this process")
        if os.getpid() != self._process:
            raise LedgerError(f"{self.path}: is written by process {self._process}; a forked child may not draw from it")
        heads, text = chain.seal_lines(self.head, lines)
        if self._file is not None and self._witness is not None:
            # Until all of it is on disk it is not known what is there; the next reader of the file will see.
            self._broken = True
            chain.append(self._file, self._witness, text, heads[-1])
        self._advance(heads)

    def _advance(self, heads: list[str]) -> None:
        # `_broken` is cleared last, so that an interrupt leaves a broken ledger and not one that goes on from a wrong line.
        self.head = heads[-1]
        self._heads.update(heads)
        self._broken = False

    def _read(self, content: bytes, witness: bytes) -> bytes:
        """Take over the content of the files; return what must be appended to it before another line."""
        assert self.path is not None, "only files are read"
        lines = chain.Lines(self.path, content, witness, kind="ledger", version=FORMAT_VERSION, of="run")
        entries: dict[str, Access] = {}
        before: tuple[dict[str, Any], Access] | None = None
        for number, line in lines:
            try:
                if self.stopped:
                    raise ValueError("follows the last line of a run that was stopped")
                kind = _kind(line, first=number == 1)
                check_shape(line, _SHAPES[kind])
                if kind == "ledger":
                    self.promise, self.plan, self.about = _plan(line["plan"]), line["plan"], line["about"]
                    self.noise, self.run = line["noise"], line["run"]
                elif kind == "id":
                    identity = line.pop("id")
                    if identity in entries:
                        raise ValueError(f"id={identity[:40]!r} appears twice")
                    # Lines of a block are equal, and so are most blocks of a stage.
                    if before is None or line != before[0]:
                        before = line, Access.from_json(_with_strategy(line, self.plan))
                    entries[identity] = before[1]
                elif kind == "mechanism":
                    self.noises[DrawnNoise.from_json(line)] = None
                elif kind == "promise":
                    self.promise = self.plan = _plan(line["promise"])
                    self.about |= line["about"]
                elif kind == "plan":
                    self.plan = _plan(line["plan"])
                elif kind == "trained":
                    self.trained = line["trained"]
                elif kind == "study":
                    self.study, self.in_study_first = (line["study"], line["file"]), self.in_study_first or number == 2
                elif kind in ("closed", "stopped"):
                    for identity in line["never_drawn"]:
                        if entries.pop(identity, None) is None:
                            raise ValueError(f"names an entry {identity[:40]!r} that is not there")
                    if line[kind] > len(entries):
                        raise ValueError(f"{kind}={line[kind]}: {len(entries)} entries stand before it")
                    self.stopped = kind == "stopped"
            except ValueError as error:
                raise lines.damage_error(number, str(error)) from None
        self.head, self._heads = lines.head, lines.heads
        self._drawn = [(access, len(list(equal))) for access, equal in groupby(entries.values())]
        self._counts = Counter(access.stage for access in entries.values())
        return lines.ending


def _study_line(study: tuple[str, str]) -> dict[str, Any]:
    return {"study": study[0], "file": study[1]}


def _kind(line: Mapping[str, Any], first: bool) -> str:
    """Return the key by which a line is told from others; the first one alone says what the file is."""
    kinds = [kind for kind in _SHAPES if kind in line and (kind == "ledger") == first]
    if not kinds:
        raise ValueError(f"is not a line of a ledger: it has {', '.join(line)[:80]}")
    return kinds[0]


def _plan(fields: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Check that the fields of a line, if there are any, are those of a plan; return them."""
    if fields is not None:
        Plan.from_json(fields)
    return fields


def _with_strategy(line: Mapping[str, Any], plan: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a line with the strategy of its plan in the place of the digest that names it (`Sampler.as_line`)."""
    if "strategy" not in line:
        return line
    for stage in (plan or {}).get("stages", ()):
        if "strategy" in stage and Strategy.from_json(stage["strategy"]).digest == line["strategy"]:
            return {**line, "strategy": stage["strategy"]}
    raise ValueError("names a strategy that its plan has not")


def _hold(path: Path) -> filelock.BaseFileLock:
    try:
        return chain.hold(path).acquire().lock
    except filelock.Timeout:
        raise LedgerError(
            f"{path}: another run, or an earlier account of this program, is writing this ledger: wait for its end, "
            "or close it (account.ledger.close())"
        ) from None

"""A study: runs on the records of one population, added up against a total that was declared first."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import dp_accounting
import filelock

from lightning_dpgen.common.folders import read_plain
from lightning_dpgen.common.strict_json import check_shape, shape
from lightning_dpgen.privacy import chain, durable
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import check_delta, check_epsilon, round_up
from lightning_dpgen.privacy.accounting.events import decode, encode
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE, Unaccountable
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.studies.study_total import Total, compose_runs

FORMAT_VERSION = 2
# Seconds that a run waits for others to write their line.
_PATIENCE = 60.0
# The relations whose runs are composed.
_RELATIONS = (ADD_OR_REMOVE_ONE, REPLACE_ONE)
# For a file that is read only to see whether it is a study or a key.
_LARGEST_FILE = 2**26
_TEXT, _EPSILON = {"type": "string"}, {"type": "number", "minimum": 0}
_DELTA = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
_HEADER = shape(study={}, epsilon=_EPSILON | {"exclusiveMinimum": 0}, delta=_DELTA | {"exclusiveMinimum": 0})
_PAIR = {"type": ["array", "null"], "prefixItems": [_EPSILON, _DELTA], "minItems": 2, "maxItems": 2}
_ENTRY = shape(
    run=_TEXT,
    relation={"enum": list(_RELATIONS)},
    event={"type": ["object", "null"]},
    pair=_PAIR,
    moments={"type": "boolean"},
    replaced=_PAIR,
    records_=_TEXT,
    stopped_={"type": "boolean"},
)
KEY = "fingerprint.key"
_KEY_BYTES = 16


class Study:
    """Runs on one population under one name, in an append-only file, against a total.

    Each run is paid for: before a run draws anything, its event is entered, and a run that would pass the total is
    refused. Budgets of later runs may follow from the results of earlier ones. The first run decides how they are composed
    (docs/guarantees/several_releases.md, "Studies"):

    * by Renyi moments, where it has them and is under add-or-remove-one. A pair (epsilon, delta) has the moments of
      randomised response, but for a failure of probability delta. Each order has a part of the total's delta, and failures
      have a half of it, fixed with the total.
    * else by pairs, whose epsilons and deltas add up. Under replace-one a run of add-or-remove-one enters with what it
      costs there: as it was accounted for, or, for a pair (e, d), as (2 e, (1 + exp e) d).

    A study that began under add-or-remove-one takes no run under replace-one.

    A run that is stopped for good (`Account.stop`) counts from then on with what it has drawn, if runs are composed by
    moments. It never enters again.

    Each line follows from the one before by a checksum, is fsynced, and is written under a lock, so that runs at the same
    time lose nothing. A second file beside it (``.heads``) names the last line, so that lines lost at the end are noticed.
    The file holds at most a keyed fingerprint of records; its owner alone may read it.

    Args:
        path: the file; it is made with its total, or must have been made with the same.
        epsilon, delta: the total; None takes that of the file.

    Attributes:
        records: a keyed fingerprint of the records of this run, which is written beside its entry, if known; private.
        identity: the checksum of the first line, by which a ledger knows the study of its run.

    Raises:
        LedgerError: if the file is damaged, of another version, or has another total; if there is none and no total.
        ValueError: for a total that is no budget.

    Example:
        >>> import tempfile
        >>> study = Study(Path(tempfile.mkdtemp()) / "census.jsonl", epsilon=3.0, delta=1e-6)
        >>> study.enter("first run", dp_accounting.GaussianDpEvent(4.0)).epsilon < 1.5
        True
        >>> study.total.runs
        1
    """

    def __init__(self, path: str | Path, *, epsilon: float | None = None, delta: float | None = None) -> None:
        self.path, self.records = Path(path), None
        # The file itself, whatever name it goes by here.
        self._file = self.path.resolve()
        self._lock = chain.hold(self._file, _PATIENCE)
        if (epsilon is None) != (delta is None):
            raise ValueError(f"epsilon={epsilon}, delta={delta}: a total has both; expected both, or neither")
        if epsilon is not None and delta is not None:
            check_epsilon(epsilon)
            check_delta(delta)
        with self._acquire():
            if not self.path.exists():
                if epsilon is None:
                    raise LedgerError(f"{self.path}: there is no such study; give its total (epsilon, delta) to begin it")
                header = {"study": FORMAT_VERSION, "epsilon": epsilon, "delta": delta, "opened": chain.now()}
                header |= {"id": secrets.token_hex(8)}
                heads, text = chain.seal_lines("", [header])
                for file in chain.create(self._file, text, heads[-1]):
                    file.close()
            stated, _, lines = self._read()
        self.identity = lines.first
        self.epsilon: float = stated["epsilon"]
        self.delta: float = stated["delta"]
        if epsilon is not None and (epsilon, delta) != (self.epsilon, self.delta):
            raise LedgerError(
                f"{self.path}: was begun with a total of epsilon {self.epsilon:g} at delta {self.delta:g}, which is fixed; "
                f"epsilon {epsilon:g} at delta {delta:g} is another study"
            )

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.path.stem

    @property
    def total(self) -> Total:
        """The cost of all entered runs together.

        Raises:
            LedgerError: if the file is damaged.
        """
        with self._acquire():
            try:
                return self._composed(self._read()[1])
            except Unaccountable as error:
                raise LedgerError(f"{self.path}: {error}; the file is left as it is") from None

    def enter(
        self,
        run: str,
        event: dp_accounting.DpEvent,
        *,
        relation: str = ADD_OR_REMOVE_ONE,
        pair: tuple[float, float] | None = None,
        moments: bool | None = None,
        replaced: tuple[float, float] | None = None,
    ) -> Total:
        """Charge a run before it draws; where a run enters again (resumed, extended), its last event counts.

        Args:
            run: its identity, that of its ledger.
            event: the event of all that it will draw.
            pair: its (epsilon, delta), by which it enters a study of pairs.
            moments: whether the Renyi moments of its event bound it, under add-or-remove-one and at a delta above 0; None
                is True where no pair is given.
            replaced: the cost of a run under add-or-remove-one as a pair under replace-one, if that is known.

        Returns:
            The total of the study with this run.

        Raises:
            BudgetTooSmall: if that passes the total; nothing has been written then.
            LedgerError: if the file is damaged, no pair is given where one is needed, or a run under replace-one would
                enter a study that began under add-or-remove-one.
            ValueError: for a pair or a relation out of range, or moments under replace-one.
        """
        return self._with(run, event, relation, pair, moments, replaced, write=True)

    def stop(self, run: str, drawn: dp_accounting.DpEvent | None, late: bool = False) -> tuple[Total, Total, bool] | None:
        """Count a run that never draws again with what it has drawn, where runs are composed by moments.

        Where they are composed by pairs, or this run has entered with a pair alone, it stays whole: a pair that is read
        off a run at a chosen time under-reports (docs/guarantees/several_releases.md, "Stopped runs"). A run that has drawn
        nothing counts nothing. If a run is stopped again after other accesses, as two copies of one ledger may be, it
        counts whole.

        Args:
            run: its identity, that of its ledger, whose last line says already that the run was stopped.
            drawn: the event of all that it may have drawn; None for nothing.
            late: whether the run began before it was entered: then it counts whole, however much it has drawn.

        Returns:
            The total of the study before and after, and whether the run still counts whole; None if it was never entered.

        Raises:
            LedgerError: if the file is damaged.
        """
        with self._acquire():
            _, entries, lines = self._read()
            ours = [entry for entry in entries if entry["run"] == run]
            if not ours:
                return None
            before, first = self._composed(entries), not ours[-1].get("stopped")
            whole = next((entry for entry in reversed(ours) if not entry.get("stopped")), ours[-1])
            by_moments = entries[0]["moments"] and whole["moments"]
            event = None if drawn is None else encode(drawn) if by_moments else whole["event"]
            if late or (not first and event != ours[-1]["event"]):
                event = whole["event"]
            line = whole | {"event": event, "at": chain.now(), "stopped": True}
            if first or event != ours[-1]["event"]:
                self._append(lines, json.loads(json.dumps(line)))
                entries = [*entries, line]
            return before, self._composed(entries), event == whole["event"]

    def check_going(self, run: str) -> None:
        """Raise LedgerError if a run was stopped for good."""
        with self._acquire():
            self._refuse_stopped(self._read()[1], run)

    def _refuse_stopped(self, entries: Sequence[Mapping[str, Any]], run: str) -> None:
        if any(entry["run"] == run and entry.get("stopped") for entry in entries):
            raise LedgerError(
                f"study {self.name}: run {run!r} was stopped for good, and what it had not drawn may be spent by others: "
                "begin a new run"
            )

    def check(
        self,
        event: dp_accounting.DpEvent,
        *,
        run: str = "",
        relation: str = ADD_OR_REMOVE_ONE,
        pair: tuple[float, float] | None = None,
        moments: bool | None = None,
        replaced: tuple[float, float] | None = None,
    ) -> Total:
        """Compute what `enter` would return, and write nothing; without an identity, for a run that is not begun."""
        return self._with(run, event, relation, pair, moments, replaced, write=False)

    def holds(self, run: str) -> bool:
        """Return whether a run of this identity was entered."""
        with self._acquire():
            return any(entry["run"] == run for entry in self._read()[1])

    def knows(self, records: str) -> bool:
        """Return whether a run on the records of this fingerprint was entered."""
        with self._acquire():
            return any(entry.get("records") == records for entry in self._read()[1])

    def _with(
        self,
        run: str,
        event: dp_accounting.DpEvent,
        relation: str,
        pair: tuple[float, float] | None,
        moments: bool | None,
        replaced: tuple[float, float] | None,
        *,
        write: bool,
    ) -> Total:
        if relation not in _RELATIONS:
            raise ValueError(f"relation={relation!r}: expected {' or '.join(_RELATIONS)}")
        for name, given in (("pair", pair), ("replaced", replaced)):
            if given is not None and not (len(given) == 2 and 0.0 <= given[0] < math.inf and 0.0 <= given[1] < 1.0):
                raise ValueError(
                    f"{name}={given}: expected (epsilon, delta), of which neither is negative, and delta is below 1"
                )
        moments = (pair is None and relation == ADD_OR_REMOVE_ONE) if moments is None else moments
        if moments and relation != ADD_OR_REMOVE_ONE:
            raise ValueError(f"moments={moments} of a run under {relation}: expected False, since none are known there")
        line = {"run": run, "relation": relation, "event": encode(event), "moments": moments, "pair": pair}
        line |= {"replaced": replaced, "at": chain.now()}
        line |= {} if self.records is None else {"records": self.records}
        line = json.loads(json.dumps(line))
        with self._acquire():
            _, entries, lines = self._read()
            self._refuse_stopped(entries, run)
            try:
                total = self._composed([*entries, line])
            except Unaccountable as error:
                raise LedgerError(f"{self.path}: run {run!r} cannot enter: {error}") from None
            if not total.epsilon <= self.epsilon:
                raise BudgetTooSmall(
                    f"study {self.name}: {self._compared(self._composed(entries), total)}: ask for less; a larger total "
                    "would be another study, whose cost adds to this one's"
                )
            if write:
                self._append(lines, line)
        return total

    def _compared(self, before: Total, after: Total) -> str:
        """Return in words what had been spent, and why a run does not fit."""
        runs = f"{before.runs} run{'s have' if before.runs != 1 else ' has'} spent epsilon {round_up(before.epsilon):g}"
        so_far = f"{runs} of {self.epsilon:g} at delta {self.delta:g}"
        if math.isfinite(after.epsilon):
            return f"{so_far}, and with this one it would be {round_up(after.epsilon):g}"
        return f"{so_far}, and with this one no epsilon holds at that delta: a run with a smaller delta leaves more of it"

    def _composed(self, entries: Sequence[Mapping[str, Any]]) -> Total:
        return compose_runs(entries, self.epsilon, self.delta)

    def _acquire(self) -> AbstractContextManager[Any]:
        if not self.path.parent.is_dir():
            raise LedgerError(f"{self.path}: there is no folder {self.path.parent}; make it first")
        try:
            return self._lock.acquire()
        except filelock.Timeout:
            raise LedgerError(f"{self.path}: other runs have held it for {_PATIENCE:.0f} seconds; try again") from None

    def _append(self, lines: chain.Lines, line: dict[str, Any]) -> None:
        """Write one line behind those that were just read."""
        heads, text = chain.seal_lines(lines.head, [line])
        file, known = chain.reopen(self._file)
        with file, known:
            file.seek(0, os.SEEK_END)
            known.seek(0, os.SEEK_END)
            chain.append(file, known, lines.ending + text, heads[-1])

    def _read(self) -> tuple[dict[str, Any], list[dict[str, Any]], chain.Lines]:
        """Return the first line, the entries, and all lines with their end."""
        file, known = chain.reopen(self._file)
        with file, known:
            lines = chain.Lines(self.path, file.read(), known.read(), kind="study", version=FORMAT_VERSION, of="study")
        read = _read_entries(lines)
        return read[0], read[1:], lines


def known_fingerprints(path: Path) -> frozenset[str]:
    """Return the fingerprints of all records that a study knows; none where a file is no sound study.

    The file may be anybody's: nothing is made, locked or changed.
    """
    try:
        # A run that is entered at the same time writes its line before its head.
        heads = read_plain(chain.heads_file(path), _LARGEST_FILE)
        content = read_plain(path, _LARGEST_FILE)
        entries = _read_entries(chain.Lines(path, content, heads, kind="study", version=FORMAT_VERSION, of="study"))[1:]
    except (LedgerError, OSError):
        return frozenset()
    return frozenset(entry["records"] for entry in entries if "records" in entry)


def _read_entries(lines: chain.Lines) -> list[dict[str, Any]]:
    """Return the first line and the entries; raise LedgerError if one of them is damaged."""
    read: list[dict[str, Any]] = []
    for number, line in lines:
        try:
            check_shape(line, _ENTRY if read else _HEADER)
            if read and line["event"] is not None:
                decode(line["event"])
            elif read and not line.get("stopped"):
                raise ValueError("event: null is that of a stopped run alone")
        except ValueError as error:
            raise lines.damage_error(number, str(error)) from None
        read.append(line)
    return read


def study_entry(plan: Plan) -> dict[str, Any]:
    """Return how a plan enters a study: its pair, whether its event has moments, and what it costs under replace-one."""
    entry: dict[str, Any] = {"relation": plan.relation}
    if not plan.private or math.isinf(plan.epsilon):
        return entry
    moments = plan.relation == ADD_OR_REMOVE_ONE and plan.delta > 0.0
    entry |= {"pair": (plan.epsilon, plan.delta), "moments": moments}
    if moments and (plan.reference is None or plan.reference.replaceable):
        with suppress(Unaccountable):
            replaced = compute_epsilon(plan.event, plan.delta, relation=REPLACE_ONE).epsilon
            entry |= {"replaced": (replaced, plan.delta)} if math.isfinite(replaced) else {}
    return entry


def fingerprint_key(folder: Path) -> str:
    """Return the key of the fingerprints in all studies of a folder, made if there is none; it stays on the machine.

    Raises:
        LedgerError: if it is damaged.
        OSError: if it is no plain file, or cannot be read.
    """
    path = folder / KEY
    with chain.hold(path, _PATIENCE):
        if not os.path.lexists(path):
            durable.write(path, secrets.token_hex(_KEY_BYTES).encode())
        key = _read_key(path)
    if key is None:
        raise LedgerError(f"{path}: is not a key of fingerprints, or only a part of one; delete it, and another is made")
    return key


def known_key(folder: Path) -> str | None:
    """Return the same key, where a study has made one; nothing in the folder is made, locked or changed."""
    try:
        return _read_key(folder / KEY)
    except OSError:
        return None


def _read_key(path: Path) -> str | None:
    key = read_plain(path, _LARGEST_FILE)
    return key.decode() if re.fullmatch(rb"[0-9a-f]{%d}" % (2 * _KEY_BYTES), key) else None

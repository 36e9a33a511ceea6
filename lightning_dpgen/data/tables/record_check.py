"""A check of records against their schema, before anything is spent: all that would be refused or moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.data.files.blocks import Block
from lightning_dpgen.data.reading import REFUSE, check_outside
from lightning_dpgen.data.tables.arrays import BadValue, Misfit, is_empty, plain, quote_cell
from lightning_dpgen.data.tables.categories import NOT_LISTED, Category
from lightning_dpgen.data.tables.column import Beyond, Modelled, shortened
from lightning_dpgen.data.tables.constraints import Constraint
from lightning_dpgen.data.tables.numeric import ABOVE, BELOW
from lightning_dpgen.data.tables.reading import COMMENTED, Table, check_rows, with_person
from lightning_dpgen.data.tables.schema import TableSchema, listed
from lightning_dpgen.data.tables.schema_file import schema_of
from lightning_dpgen.data.tables.sources import read_in_form, written_source

# The largest share of a column that may be moved, by default.
MAX_MOVED = 0.05
# Faults of values, those that can be moved and others.
MOVES = (NOT_LISTED, BELOW, ABOVE)
MISSING, UNREADABLE, OWNERLESS, BREAKS = "missing", "cannot be read", "names no person", "breaks it"
# Different values that are counted, and values and places that are shown.
_MOST_COUNTED, _SHOWN = 1000, 3
# Findings that are printed.
_MOST_PRINTED = 100
# Different values of a block of which each is looked for that cannot be read.
_MOST_MISFITS = 100


@dataclass(frozen=True)
class Finding:
    """One fault of values of a column, or of records that break a constraint, with its consequence. Private.

    Attributes:
        column: its name, or the constraint.
        what: the fault in words.
        count: how many records have it.
        share: the same as a share of all records.
        becomes: what each is moved to, in words; None where it is refused.
        examples: the most frequent of these values.
        places: where the first of these records stand.
        cure: what can be done, in words.
    """

    column: str
    what: str
    count: int
    share: float
    becomes: str | None
    examples: tuple[str, ...]
    places: tuple[str, ...]
    cure: str


@dataclass(frozen=True, repr=False)
class TableCheck:
    """The findings about the records of a table. Private: for the curator alone.

    Attributes:
        rows: the number of records.
        findings: in the order of the columns, constraints last.
        max_moved: the largest share of a column that may be moved.
        unknown: the columns that are only read, since what they are clamped to is found privately.
        commented: the number of lines that are left out, since they begin as a comment of the schema.
    """

    rows: int
    findings: tuple[Finding, ...]
    max_moved: float = MAX_MOVED
    unknown: tuple[str, ...] = ()
    commented: int = 0

    @property
    def passes(self) -> bool:
        """True where there are records, none is refused, and no more is moved than may be."""
        return self.rows > 0 and not self.refused and not self.above

    @property
    def refused(self) -> list[Finding]:
        """The findings that end a run before anything is spent."""
        return [one for one in self.findings if one.becomes is None]

    @property
    def above(self) -> list[tuple[str, float]]:
        """The columns and constraints of which more is moved than may be, and the share."""
        moved: dict[str, float] = {}
        for one in self.findings:
            if one.becomes is not None:
                moved[one.column] = moved.get(one.column, 0.0) + one.share
        return [(name, share) for name, share in moved.items() if share > self.max_moved]

    def __str__(self) -> str:
        lines = [f"{say_count(self.rows, 'record')} (private, stays here)"]
        lines += [f"{COMMENTED}: {self.commented:,}"] * bool(self.commented)
        for one in self.findings[:_MOST_PRINTED]:
            to = "refused" if one.becomes is None else one.becomes if one.becomes == one.what else f"becomes {one.becomes}"
            held = ", ".join(one.examples or one.places)
            lines.append(f"{shortened(one.column)}: {one.what}: {one.count:,} ({one.share:.1%}), {to}: {held}")
            lines.append(f"    {one.places[0] + ': ' if one.becomes is None else ''}{one.cure}")
        lines += [
            f"{shortened(name)}: {share:.1%} would be moved, more than {self.max_moved:.1%}"
            for name, share in self.above[:_MOST_PRINTED]
        ]
        if len(self.findings) > _MOST_PRINTED:
            columns = len({one.column for one in self.findings})
            rest = len(self.findings) - _MOST_PRINTED
            lines.append(f"and {say_count(rest, 'finding')} more; {columns:,} columns and constraints have one")
        lines += [f"found privately, so what is moved is not known yet: {listed(list(self.unknown))}"] * bool(self.unknown)
        nothing = "nothing would be refused or moved" if self.rows else "a training would be refused: it needs a record"
        return "\n".join(lines + [nothing] * (not self.findings))

    __repr__ = __str__


def check_table(
    source: Table,
    schema: TableSchema | Mapping[str, Any] | str | Path,
    *,
    outside: str = REFUSE,
    person: str | None = None,
    max_moved: float = MAX_MOVED,
) -> TableCheck:
    """Return all that a schema would refuse or move of the records of a table. Private; nothing is spent or written.

    Args:
        source, schema, outside, person: as for `fit`. Columns of which something is found privately are only read:
            what they are clamped to is not known yet.
        max_moved: the largest share of a column, or of a constraint's records, that may be moved.

    Raises:
        MissingData: if there is no such file.
        BadRecords: if it is no such table: it is damaged, or has other columns.
        ValueError: for another `outside`, or a schema that makes no sense.

    Example:
        >>> import pandas as pd
        >>> city = {"type": "category", "values": ["Oslo", "Rome"], "missing": True, "outside": "clamp"}
        >>> found = check_table(pd.DataFrame({"city": ["Oslo", "ROME", "ROME", "Bonn"]}), {"columns": {"city": city}})
        >>> print(found)
        4 records (private, stays here)
        'city': not listed: 3 (75.0%), becomes missing: 'ROME' (2), 'Bonn' (1)
            declare ignore_case: true if 'ROME' is 'Rome'; or list them in values, or declare other
        'city': 75.0% would be moved, more than 5.0%
        >>> found.passes
        False
    """
    check_outside(outside)
    schema = schema_of(schema)
    rows = written_source(source, schema)
    check_rows(rows, schema, person)
    look = _Look(schema, person)
    with closing(rows.blocks(with_person([column.name for column in schema.recorded], person))) as blocks:
        for block in blocks:
            look.add(block)
    unknown = tuple(column.name for column in schema.open)
    return TableCheck(look.rows, tuple(look.findings(outside)), max_moved, unknown, rows.commented())


@dataclass(eq=False)
class _Fault:
    """One fault of a column or a constraint over all blocks.

    Attributes:
        becomes: what each value could be moved to; None where there is nothing.
        rows: how many records have it.
        values: the most frequent values, each with its number.
        places: of the first records.
    """

    becomes: str | None
    rows: int = 0
    values: Counter[Any] = field(default_factory=Counter)
    places: list[str] = field(default_factory=list)

    def add(self, rows: np.ndarray, block: Block, values: pa.Array | None) -> None:
        """Count the records (n,) of a block, and note what they hold."""
        self.rows += int(rows.sum())
        self.places += [block.place(row) for row in np.flatnonzero(rows)[: _SHOWN - len(self.places)].tolist()]
        if values is not None:
            counts = values.filter(pa.array(rows)).value_counts()
            different = counts.field("values")
            for place, count in enumerate(counts.field("counts").to_pylist()):
                text = pa.types.is_string(different.type)
                self.values[different[place].as_py() if text else quote_cell(different, place)] += count
            self.values = Counter(dict(self.values.most_common(_MOST_COUNTED)))


class _Look:
    """The faults of a table, one block of its records after the other."""

    def __init__(self, schema: TableSchema, person: str | None) -> None:
        self.schema, self.person, self.rows = schema, person, 0
        self._faults: dict[tuple[str, str, str], _Fault] = {}
        self._constraints: dict[str, Constraint] = {}

    def add(self, block: Block) -> None:
        n = block.rows.num_rows
        self.rows += n
        read, whole = {}, np.ones(n, bool)
        unknown = {column.name for column in self.schema.open}
        for column in self.schema.recorded:
            values, refused = self._of_column(column, block, known=column.name not in unknown)
            whole &= ~refused
            read[column.name] = values
        if self.person is not None:
            try:
                owners = plain(block.column(self.person))
            except Misfit as misfit:
                raise BadValue.of(self.person, misfit) from None
            self._note((self.person, OWNERLESS, "expected the person of each record"), is_empty(owners), block)
        if (self.schema.constraints or self.schema.rules.relatives) and whole.any():
            self._of_rules({name: values.filter(pa.array(whole)) for name, values in read.items()}, whole, block)

    def findings(self, outside: str) -> list[Finding]:
        """Return the faults that were noted, each refused or moved as its column says, or by the default `outside`."""
        columns, rules = {column.name: column for column in self.schema.recorded}, self.schema.rules
        findings = []
        for (name, what, advice), fault in self._faults.items():
            becomes, cure = fault.becomes, advice
            if constraint := self._constraints.get(name):
                if (what == BREAKS) == rules.repairs(constraint, outside):
                    continue
                cure = "correct the records or the constraint" + "; outside: clamp repairs them" * (what == BREAKS)
            elif what in MOVES:
                becomes = fault.becomes if columns[name].clamps(outside) else None
                cure = _cure(columns[name], what, fault, becomes)
            examples = [f"{shortened(value) if isinstance(value, str) else value} ({n:,})" for value, n in
                        fault.values.most_common(_SHOWN)]  # fmt: skip
            share = fault.rows / self.rows
            findings.append(Finding(name, what, fault.rows, share, becomes, tuple(examples), tuple(fault.places), cure))
        order = {name: place for place, name in enumerate(columns)}
        return sorted(findings, key=lambda one: order.get(one.column, len(order)))

    def _of_column(self, column: Modelled, block: Block, *, known: bool) -> tuple[pa.Array, np.ndarray]:
        """Note the faults of a column; return its values as programs write them, and which are refused in any case (n,).

        Args:
            known: whether its bounds and values are.
        """
        n, form = block.rows.num_rows, self.schema.forms.get(column.name)
        missing = column.missing_values if column.missing else ()

        def read(values: pa.Array) -> tuple[pa.Array, list[Beyond]]:
            values = column.readable(values if form is None else read_in_form(values, form, missing))
            rows = np.flatnonzero(~column.is_missing(values))
            try:
                # Where all are missing, their type is unknown.
                return values, column.beyond(values.take(pa.array(rows))) if len(rows) else []
            except Misfit as misfit:
                raise misfit.moved(rows) from None
            except pa.ArrowException as error:
                raise Misfit(None, f"is {values.type}", f"convert it ({' '.join(str(error).split())[:100]})") from None

        try:
            written = plain(block.column(column.name))
        except Misfit as misfit:
            self._note((column.name, UNREADABLE, f"{misfit.problem}; {misfit.advice}"), np.ones(n, bool), block)
            return pa.nulls(n, pa.string()), np.ones(n, bool)
        distinct = written.dictionary_encode()
        codes, refused = distinct.indices.fill_null(-1).to_numpy(zero_copy_only=False), np.zeros(n, bool)
        for refusal, places in _misfits(distinct.dictionary, read):
            rows = np.isin(codes, places)
            refused |= rows
            self._note((column.name, UNREADABLE, refusal.advice), rows, block, written)
        values, outside = read(pc.if_else(pa.array(refused), pa.scalar(None, written.type), written))
        absent = column.is_missing(values)
        if not column.missing:
            self._note((column.name, MISSING, "fill it in, or declare missing: true"), absent & ~refused, block)
        there = np.flatnonzero(~absent)
        refused = refused | (absent & (not column.missing))
        for one in outside if known else ():
            rows = _spread(one.rows, there, n)
            self._note((column.name, one.what, ""), rows, block, written, one.becomes)
            if one.becomes is None:
                refused = refused | rows
        return values, refused

    def _of_rules(self, batch: Mapping[str, pa.Array], whole: np.ndarray, block: Block) -> None:
        """Note the constraints that records break, of those (n,) of which no value is refused in any case."""
        rules, at = self.schema.rules, np.flatnonzero(whole)
        rows = rules.places(batch)
        broken = rules.broken_by(rows)
        for constraint, breaks in broken:
            self._constraints[constraint.text] = constraint
            self._note((constraint.text, BREAKS, ""), _spread(breaks, at, len(whole)), block)
        for constraint, what, changed in rules.repair(broken, rows)[0]:
            self._note((constraint.text, what, ""), _spread(changed, at, len(whole)), block, becomes=what)

    def _note(
        self, key: tuple[str, str, str], rows: np.ndarray, block: Block, values: pa.Array | None = None,
        becomes: str | None = None,
    ) -> None:  # fmt: skip
        if rows.any():
            self._faults.setdefault(key, _Fault(becomes)).add(rows, block, values)


def _misfits(values: pa.Array, read: Callable[[pa.Array], Any]) -> Iterator[tuple[Misfit, list[int]]]:
    """Yield the refusals of different values that cannot be read, and their places; the last one may be of many."""
    parts, count = [(0, len(values))], 0
    while parts:
        start, end = parts.pop()
        try:
            read(values.slice(start, end - start))
        except Misfit as misfit:
            count += 1
            if misfit.row is None or count > _MOST_MISFITS:
                # Among so many, those that could be read are not looked for.
                yield misfit, list(range(start, end))
                continue
            row = start + misfit.row
            yield misfit, [row]
            parts += [part for part in ((start, row), (row + 1, end)) if part[0] < part[1]]


def _spread(rows: np.ndarray, at: np.ndarray, n: int) -> np.ndarray:
    """Return which of n records are marked, where the marks are those of some of them."""
    found = np.zeros(n, bool)
    found[at] = rows
    return found


def _cure(column: Modelled, what: str, fault: _Fault, becomes: str | None) -> str:
    """Return what can be done about values outside of what a column declares, in words."""
    clamp = "" if becomes is not None or fault.becomes is None else f"; outside: clamp turns them to {fault.becomes}"
    if not isinstance(column, Category):
        return f"correct them, or change the bound in the schema{clamp}"
    likely = [cure for value in fault.values for cure in column.likely_cures(value)][:1]
    return "; or ".join([*likely, f"list them in values{', or declare other' * (column.other is None)}"]) + clamp

"""The base of all descriptions of records, the registry of their kinds, and the comparison of two descriptions.

The objects of kinds stand in `lightning_dpgen.kinds`, above the rooms that ask for them, and are imported when a kind is
first asked for. No room but theirs names the class of a kind's schema.
"""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.conditions import EQUAL, UNEQUAL, Clause, Condition
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.names import LABEL, Name, one_of, positions, quote


class Schema(ABC):
    """Public knowledge of a record, and the one way in which it is written as numbers and back.

    Each kind of records has a class of its own, beside the readers of its files. Everything in it is declared. What tables,
    series or pictures alone have is empty here, so that the code that learns and draws asks for a property, never for a
    class; what else differs between kinds is in `kinds.kind.Kind`.

    Attributes:
        kind: its name in `as_json`.
        axes: the lengths of the axes along which neighbours are alike, and last the number of channels, as units fill them;
            None where no two numbers are neighbours.
        label_given_rest: whether a label of generated records can be drawn anew given all their other choices.
        modelled, recorded, open: the columns of a table, as `TableSchema` has them.
        sheet: the name of the table in files that hold several.
        restricts: whether some decoded records are no records, since they break a constraint.
    """

    kind: ClassVar[str]
    label_given_rest: ClassVar[bool] = False

    axes: tuple[int, ...] | None = None
    modelled: Sequence[Any] = ()
    recorded: Sequence[Any] = ()
    open: Sequence[Any] = ()
    restricts: bool = False
    sheet: str | None = None

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The layout of a record as numbers."""

    @property
    @abstractmethod
    def arrow(self) -> pa.Schema:
        """The columns of a table of synthetic records."""

    @abstractmethod
    def decode(self, encoded: Encoded, random: np.random.Generator, before: int = 0) -> pa.RecordBatch:
        """Return records as a table of `arrow`, after `before` others; what was merged is told apart at random."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """Return all that it declares, `kind` too, for a release."""

    @classmethod
    @abstractmethod
    def from_json(cls, fields: Any) -> Self:
        """Return the schema that `as_json` described. Safe to call on what strangers have written.

        Raises:
            ValueError: for anything else.
        """

    @property
    def condition_columns(self) -> Sequence[str]:
        """The names of what conditions may be set on."""
        return self.arrow.names

    def condition(self, clause: Clause) -> Condition:
        """Return a condition on one of `condition_columns`.

        Raises:
            ValueError: for one that no record can fulfil, or that makes no sense of the column.
        """
        raise ValueError(f"column {clause.column!r}: records of kind {self.kind} take no conditions")

    def check_together(self, conditions: Sequence[Clause]) -> None:  # noqa: B027
        """Refuse conditions where it is sure that no record fulfils them all.

        Raises:
            ValueError: naming the column, or the constraint.
        """

    @property
    def dimensions(self) -> int:
        """The number of axes along which neighbours are alike: 2 of pictures, 1 of series, 0 of other records."""
        return 0 if self.axes is None else len(self.axes) - 1

    @property
    def choices(self) -> dict[str, list[str]]:
        """The column of each group of the layout, in order, and the names of its choices; numbers where it has none."""
        return {f"group {i}": [str(choice) for choice in range(n)] for i, n in enumerate(self.layout.groups)}

    @property
    def label_values(self) -> tuple[str, list[Any]]:
        """The name of the label, and its values in the order of their choices; none without a label."""
        return "label", []

    @property
    def relatives(self) -> Mapping[str, Any]:
        """The columns that are learned by their distance from another one."""
        return {}

    @property
    def made_up(self) -> Sequence[str]:
        """The names of columns that are made up anew in each synthetic record."""
        return ()

    @property
    def ungrouped(self) -> Mapping[str, Sequence[str]]:
        """The constraints that tell more values of a column apart than groups of its rare ones do, by its name."""
        return {}

    @property
    def constraint_texts(self) -> tuple[Sequence[str], Sequence[str]]:
        """The constraints that synthetic records keep, in words: declared ones, and those that noisy tables show."""
        return (), ()

    @property
    def record_bytes(self) -> int:
        """The bytes that a synthetic record takes in a file at most, but for long texts."""
        return 8 * (self.layout.units + len(self.layout.groups))

    @property
    def declared_alone(self) -> Self:
        """The same without what was found in released numbers: all of it was declared."""
        return self

    def impossible_pairs(self) -> list[tuple[int, int, np.ndarray]]:
        """Return two groups of the layout, and the pairs (a, b) of their choices that no record can have, bool."""
        return []

    def unlabelled(self) -> Schema | None:
        """Return the schema of the same records without their label; None where they cannot be read without it."""
        return None


class LabelledSchema(Schema):
    """Records whose numbers have no names of their own, and which may have a label."""

    classes: Any

    @property
    def class_names(self) -> tuple[Name, ...]:
        """The values of the label, names or whole numbers; none without one."""
        return self.classes

    def condition(self, clause: Clause) -> Condition:
        """Return a condition on the label.

        Raises:
            ValueError: for another column, a value that is no class, or an order.
        """
        classes = self.class_names
        if not classes:
            raise ValueError(f"column {quote(clause.column)}: the records have no label, so no condition can be set on one")
        if clause.column != LABEL:
            raise ValueError(f"column {quote(clause.column)}: a condition can be set on the column {LABEL!r} alone")
        if clause.operator not in (EQUAL, UNEQUAL):
            raise ValueError(f"column {LABEL!r}: {clause.operator} has no meaning here: expected = or !=")
        chosen = frozenset(_place(classes, value) for value in clause.values)
        if clause.operator == UNEQUAL:
            chosen = frozenset(range(len(classes))) - chosen
        return Condition(0, chosen, chosen)

    @property
    def choices(self) -> dict[str, list[str]]:
        return {LABEL: list(map(str, self.class_names))} if self.class_names else {}

    @property
    def label_values(self) -> tuple[str, list[Any]]:
        return LABEL, list(self.class_names)


def _place(classes: tuple[Name, ...], value: Any) -> int:
    try:
        place = int(positions(classes, pa.array([value]))[0])
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        place = -1
    if place < 0:
        raise ValueError(f"column {LABEL!r}: {quote(value)}: expected {one_of(classes)}")
    return place


# A `kinds.kind.Kind`, whose module is above this one.
Kind = Any
_OURS = ("tables", "baskets", "series", "pictures", "histories")
# The group of entry points of packages that bring a kind: each names a `Kind`.
ENTRY_POINTS = "lightning_dpgen.kinds"


class KindMissing(ValueError):
    """No kind has a name, or the installed package that brings it cannot be used."""


@cache
def _ours() -> dict[str, Kind]:
    return {kind.name: kind for kind in (importlib.import_module(f"lightning_dpgen.kinds.{name}").KIND for name in _OURS)}


# Kinds that were registered, and those of packages that were loaded.
_others: dict[str, Kind] = {}


@cache
def _entries() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=ENTRY_POINTS))


@cache
def _load_all() -> None:
    for name in {entry.name for entry in _entries()}:
        # `kind_named` says what is wrong with one.
        with suppress(KindMissing):
            kind_named(name)


def kinds() -> dict[str, Kind]:
    """Return all kinds by their names: ours, and those of installed packages that can be used."""
    _load_all()
    # A name of ours stays ours.
    return _others | _ours()


def register_kind(kind: Kind) -> None:
    """Add a kind of records, by which its records are learned and its releases read in this process from then on.

    A package names its kinds by entry points (`ENTRY_POINTS`), each by the name of its kind; the program knows them then.

    Raises:
        ValueError: for what is no kind, or a name that another kind has.
    """
    _check_kind(kind)
    other = (_others | _ours()).get(kind.name, kind)
    if type(other) is not type(kind):
        raise ValueError(f"kind {kind.name!r}: is there already, as {type(other).__name__}: take another name")
    _others[kind.name] = kind


def _check_kind(kind: Any) -> None:
    """Raise ValueError for anything but a `Kind` that has the name of its schemas."""
    interface = importlib.import_module("lightning_dpgen.kinds.kind").Kind
    if not isinstance(kind, interface):
        raise ValueError(f"kind={quote(kind)}: expected an object of a class that derives from Kind")
    name, schema = getattr(kind, "name", None), getattr(kind, "schema", None)
    if not (isinstance(schema, type) and issubclass(schema, Schema) and isinstance(name, str) and schema.kind == name):
        raise ValueError(f"{type(kind).__name__}: name={quote(name)}: expected text, the `kind` of its class of schemas")


def _load(name: str) -> Kind:
    """Return the kind that an installed package brings by an entry point of this name.

    Raises:
        KindMissing: if none does, several do, or it cannot be used.
    """
    found = [entry for entry in _entries() if entry.name == name]
    whose = " and ".join(sorted(entry.dist.name if entry.dist is not None else entry.value for entry in found))
    if len(found) != 1:
        known = ", ".join(sorted(_others | _ours()))
        raise KindMissing(
            f"kind {quote(name)} is brought by several packages ({whose}): remove all but one"
            if found
            else f"schema of kind {quote(name)}: expected one of {known}, or the kind of an installed package: install the "
            "package that brings it"
        )
    try:
        kind = found[0].load()
        _check_kind(kind)
        if kind.name != name:
            raise ValueError(f"its name is {kind.name!r}")
    # A package that ends the program as it is imported breaks no other command.
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise KindMissing(
            f"kind {name!r}: the package {whose}, which brings it by the entry point {found[0].value!r}, cannot be used "
            f"({why}): install it again, or remove it"
        ) from error
    return kind


def kind_named(name: Any) -> Kind:
    """Return a kind by its name; a package that brings one is loaded when it is asked for.

    Raises:
        KindMissing: for an unknown one, or one whose package cannot be used.

    Example:
        >>> kind_named("series").word
        'series'
    """
    known = _ours().get(name) or _others.get(name) if isinstance(name, str) else None
    if known is None:
        known = _load(name if isinstance(name, str) else str(name))
        _others[known.name] = known
    return known


def kind_of(schema: Schema) -> Kind:
    """Return the kind of the records that a schema describes."""
    return kind_named(schema.kind)


def first_difference(expected: Schema, other: Schema) -> str | None:
    """Say the first part in which two descriptions differ, in words; return None if they are of the same records.

    Notes on columns, how files have the records, and the types in which frames have them, make no difference.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> first_difference(ImageSchema(2, 2, levels=1), ImageSchema(2, 3, levels=1))
        'width is 3 there and 2 here'
    """
    ours, theirs = _parts(expected), _parts(other)
    for name in ours | theirs:
        here, there = (quote(parts[name]) if name in parts else "not described" for parts in (ours, theirs))
        if ours.get(name) != theirs.get(name):
            return f"{name} is {there} there and {here} here"
    return None


def _parts(schema: Schema) -> dict[str, Any]:
    """Return a description by parts, as JSON gives them back; those of each column of a table have names of their own."""
    parts = json.loads(json.dumps(schema.as_json()))
    parts.pop("written", None)
    parts.pop("types", None)
    columns = parts.pop("columns", None)
    if columns is None:
        return parts
    # The order of columns is that of the numbers of a record.
    parts["the order of columns"] = [column["name"] for column in columns]
    for column in columns:
        name = quote(column.pop("name"))
        parts |= {f"{key} of column {name}": value for key, value in column.items() if key != "description"}
    return parts

"""A column of a table: its public declaration, and the way of a value to one choice, or one unit, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.numbers import are_numbers, floats_of
from lightning_dpgen.data.reading import CLAMP, OUTSIDE
from lightning_dpgen.data.tables.arrays import Misfit, plain

# The longest name of a column, and the longest key that a message quotes.
_LONGEST_NAME, _LONGEST_KEY = 1000, 100


class BadSchema(ValueError):
    """A description of a table that makes no sense: of a column or (None) the whole table, by key, and file and line."""

    def __init__(self, problem: str, column: str | None = None, key: str | None = None, place: str | None = None) -> None:
        self.problem, self.column, self.key = problem, column, key
        named = None if column is None else f"column {shortened(column)}"
        told = key if key is None or len(key) <= _LONGEST_KEY else shortened(key)
        super().__init__(": ".join(part for part in (place, named, told, problem) if part is not None))


class BadParts(BadSchema):
    """Parts of a list or a mapping that make no sense, as the message says of the first.

    Attributes:
        whole: the key of the schema that they are declared under.
        parts: what is wrong with each, by its place in a list or its key in a mapping.
    """

    def __init__(self, parts: dict[Any, str], key: str) -> None:
        super().__init__(next(iter(parts.values())), key=key)
        self.whole, self.parts = key, parts


@dataclass(frozen=True, kw_only=True)
class Column(ABC):
    """A column, and all that may be declared of any; BadSchema is raised if that makes no sense."""

    name: str
    description: str = ""

    def __post_init__(self) -> None:
        if not is_text(self.name) or not 0 < len(self.name) <= _LONGEST_NAME:
            raise BadSchema(f"expected text of 1 to {_LONGEST_NAME} characters", self.name, "name")
        if not is_text(self.description):
            self.refuse("description", self.description, "text")

    @property
    @abstractmethod
    def arrow(self) -> pa.DataType | None:
        """The type in a synthetic table; None if it is not in there."""

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Return all that is declared beside the name, as JSON and YAML hold it."""

    def refuse(self, key: str, value: Any, expected: str) -> None:
        """Raise BadSchema for what is declared under a key."""
        raise BadSchema(f"{shortened(value)}: expected {expected}", self.name, key)

    def refuse_twice(self, key: str, values: Iterable[Any]) -> None:
        """Raise BadSchema for the first of the values under a key that is there twice."""
        for value, count in Counter(values).items():
            if count > 1:
                self.refuse(key, value, f"each value once, and it is there {'twice' if count == 2 else f'{count} times'}")


@dataclass(frozen=True, eq=False)
class Beyond:
    """Values of a column that lie outside of what is declared.

    Args:
        what: in words, such as ``above high``.
        rows: (n,) bool, where they are.
        becomes: the value that each is moved to, in words; None where there is none.
    """

    what: str
    rows: np.ndarray
    becomes: str | None


@dataclass(frozen=True, kw_only=True)
class Modelled(Column):
    """A column that is learned: a group of `choices`, a unit if it is `scaled`, or both.

    Args:
        missing: whether values may be missing, which is a choice of its own, the last one.
        missing_values: texts that say so in a file of text, and in columns of text.
        outside: ``refuse`` or ``clamp`` values outside of what is declared; None where the reader says it.
    """

    missing: bool = False
    missing_values: tuple[str, ...] = ("",)
    outside: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.missing) is not bool:
            self.refuse("missing", self.missing, "true or false")
        texts = self.missing_values
        if isinstance(texts, list | tuple):
            # Most people write a code such as -9 without quotes.
            texts = tuple(str(text) if type(text) is int else text for text in texts)
        if not isinstance(texts, tuple) or not all(map(is_text, texts)) or not texts:
            self.refuse("missing_values", self.missing_values, "a list of different texts, such as ['', '?']")
        self.refuse_twice("missing_values", texts)
        object.__setattr__(self, "missing_values", texts)
        if texts != ("",) and not self.missing:
            raise BadSchema("has a meaning only with missing: true", self.name, "missing_values")
        if self.outside is not None and self.outside not in OUTSIDE:
            self.refuse("outside", self.outside, f"one of {', '.join(OUTSIDE)}")

    def clamps(self, outside: str) -> bool:
        """Tell whether values outside of what is declared are moved, where a reader refuses or clamps by default."""
        return (self.outside or outside) == CLAMP

    @property
    @abstractmethod
    def present(self) -> int:
        """The number of choices for values that are not missing; 1 for a scaled column."""

    @property
    def scaled(self) -> bool:
        """True for a unit."""
        return False

    @property
    def ordered(self) -> int:
        """The number of its first choices that are in the order of numbers."""
        return 0

    @property
    def choices(self) -> int:
        """The number of choices of its group; 0 where there is nothing to choose, and no group."""
        count = self.present + self.missing
        return count if count > 1 else 0

    @abstractmethod
    def encode_present(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> tuple[np.ndarray, np.ndarray | None]:
        """Encode values as `encode` does, where none of them is missing."""

    @abstractmethod
    def beyond(self, values: pa.Array) -> list[Beyond]:
        """Return which of the values (n,), none of them missing, are outside of what is declared; none stands twice.

        Raises:
            Misfit: naming the first value that cannot be read.
        """

    @abstractmethod
    def decode(self, codes: np.ndarray, units: np.ndarray | None, random: np.random.Generator) -> pa.Array:
        """Return the values of choices (n,), zeros where the column has no group, and of units (n,) where it is scaled."""

    @abstractmethod
    def alone(self, code: int) -> bool:
        """Tell whether a choice stands for one value only."""

    def encode(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the choice of each value (n,), and the units (n,) float32 of a scaled column.

        Args:
            values: (n,), of any type that can be understood.
            clamp: whether values outside of what is declared are moved into it, and counted.
            counted: what was moved; private.

        Raises:
            Misfit: naming the first value that does not fit.
        """
        values = self.readable(values)
        absent = self._absent(values)
        if not absent.any():
            return self.encode_present(values, clamp, counted)
        rows = np.flatnonzero(~absent)
        # Where all are missing, their type is unknown.
        present = values.filter(pa.array(~absent)) if len(rows) else pa.array([], pa.string())
        try:
            found, scaled = self.encode_present(present, clamp, counted)
        except Misfit as misfit:
            raise misfit.moved(rows) from None
        codes = np.full(len(values), self.present, np.int64)
        codes[rows] = found
        if scaled is None:
            return codes, None
        units = np.zeros(len(values), np.float32)
        units[rows] = scaled
        return codes, units

    def numbers(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the place (n,) of each value on the column's scale, 0 where it is missing, and where that is (n,).

        No two values have the same place: ticks of numbers, and the choices of categories. Arguments and errors are
        those of `encode`.
        """
        values = self.readable(values)
        absent = self._absent(values)
        rows = np.flatnonzero(~absent)
        present = values.filter(pa.array(~absent)) if len(rows) else pa.array([], pa.string())
        try:
            found = self.places(present, clamp, counted)
        except Misfit as misfit:
            raise misfit.moved(rows) from None
        numbers = np.zeros(len(values), found.dtype)
        numbers[rows] = found
        # Clamped values may have become missing.
        lost = self.lost(numbers) & ~absent
        return np.where(lost, 0, numbers), absent | lost

    def readable(self, values: pa.Array) -> pa.Array:
        """Return values in the type in which the column reads them."""
        return plain(values)

    def asked(self, value: Any) -> Any:
        """Return the value that a condition asks for, as `numbers` reads it."""
        return value

    @abstractmethod
    def places(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> np.ndarray:
        """Return `numbers` of values none of which is missing."""

    def lost(self, numbers: np.ndarray) -> np.ndarray:
        """Mark places (n,) that stand for a missing value."""
        return np.zeros(len(numbers), bool)

    @abstractmethod
    def restored(self, numbers: np.ndarray, absent: np.ndarray) -> pa.Array:
        """Invert `numbers`: values (n,) of `arrow`."""

    @property
    @abstractmethod
    def ranges(self) -> list[tuple[int | float, int | float]]:
        """The first and the last place of the values of each choice that is not missing; of a scaled column, of all."""

    @abstractmethod
    def range_text(self, code: int) -> str:
        """Return the values of a choice that is not missing, as a condition says them."""

    @property
    @abstractmethod
    def present_names(self) -> list[str]:
        """The names of the choices of values that are not missing, for people."""

    @property
    def choice_names(self) -> list[str]:
        """The names of all its choices."""
        return self.present_names + ["missing"] * self.missing

    def common_fields(self) -> dict[str, Any]:
        """Return what `fields` says of missing values and of others outside of what is declared, and the description."""
        fields: dict[str, Any] = {"missing": True} if self.missing else {}
        if self.missing_values != ("",):
            fields["missing_values"] = list(self.missing_values)
        return fields | {key: value for key in ("outside", "description") if (value := getattr(self, key))}

    def is_missing(self, values: pa.Array) -> np.ndarray:
        """Mark missing values (n,); NaN is no value either, and no text of a file is NaN here."""
        absent = pc.is_null(values, nan_is_null=True)
        if pa.types.is_string(values.type):
            # An empty field is missing in any column, unless it is one of its categories.
            texts = self.missing_values if self.missing or not self.takes_empty() else ()
            absent = pc.or_(absent, pc.is_in(values, pa.array(texts, pa.string())))
        elif are_numbers(values.type) and (codes := self._missing_numbers):
            absent = pc.or_(absent, pa.array(np.isin(floats_of(values), codes)))
        return absent.to_numpy(zero_copy_only=False)

    def _absent(self, values: pa.Array) -> np.ndarray:
        """Mark missing values (n,), where there may be any."""
        absent = self.is_missing(values)
        if absent.any() and not self.missing:
            raise Misfit(int(absent.argmax()), "a value is missing", "fill it in, or declare missing: true")
        return absent

    @cached_property
    def _missing_numbers(self) -> list[float]:
        """The texts for a missing value that are numbers, such as -9, which files with types have as numbers."""
        numbers = []
        for text in self.missing_values:
            with suppress(ValueError):
                numbers.append(float(text))
        return numbers

    def takes_empty(self) -> bool:
        """Tell whether the empty text is a value."""
        return False


def is_text(value: Any) -> bool:
    """Tell whether a value is a string that UTF-8 can hold."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def shortened(value: Any) -> str:
    """Return a value as a message shows it.

    Example:
        >>> shortened("x" * 100)
        "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."
    """
    try:
        text = repr(value)
    except ValueError:
        text = "a huge number"
    return text if len(text) <= 40 else f"{text[:35]}..."

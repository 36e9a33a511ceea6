"""A column of a table: its public declaration, and the way of a value to one choice, or one unit, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.names import are_numbers, floats_of
from lightning_dpgen.data.reading import CLAMP
from lightning_dpgen.data.tables.arrays import Misfit, plain

if TYPE_CHECKING:
    from lightning_dpgen.data.tables.description import ColumnDescription

# The longest key that a message quotes.
_LONGEST_KEY = 100


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


class Key:
    """An attribute that is what the description declares under the same name; None where it has no such key."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, described: Any, owner: type | None = None) -> Any:
        return self if described is None else getattr(described.declared, self._name, None)


@dataclass(frozen=True)
class Column(ABC):
    """A column by its name and its finished description, which is checked."""

    name: str
    declared: ColumnDescription

    description = Key()

    @property
    @abstractmethod
    def arrow(self) -> pa.DataType | None:
        """The type in a synthetic table; None if it is not in there."""

    def with_values(self, **keys: Any) -> Column:
        """Return the column with other values of some keys of its description.

        Raises:
            BadSchema: if these make no sense.
        """
        try:
            return self.declared.with_values(**keys).build(self.name)
        except BadSchema as error:
            raise BadSchema(error.problem, self.name, error.key) from None

    def with_bins(self, bins: int) -> Column:
        """Return the column with this many bins, where it is cut into bins whose number is not declared."""
        return self


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


@dataclass(frozen=True)
class Modelled(Column):
    """A column that is learned: a group of `choices`, a unit if it is `scaled`, or both.

    A missing value is a choice of its own, the last one.
    """

    missing, missing_values, outside = Key(), Key(), Key()

    def check_missing_values(self) -> Self:
        """Return the column, if no text stands for a missing value and for another one.

        Raises:
            BadSchema: naming the text.
        """
        for text in self.missing_values if self.missing else ():
            with suppress(Misfit):
                if self.takes(pa.array([text])):
                    expected = "no text that is also one of the values"
                    raise BadSchema(f"{shortened(text)}: expected {expected}", self.name, "missing_values")
        return self

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
    def noisy_shares(self) -> tuple[np.ndarray, float] | None:
        """The shares of its first choices among themselves, as they were bought, and the noise in each; None for none."""
        return None

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
        rows, _, (coded, scaled) = self._of_present(values, lambda present: self.encode_present(present, clamp, counted))
        if len(rows) == len(values):
            return coded, scaled
        codes = np.full(len(values), self.present, np.int64)
        codes[rows] = coded
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
        rows, absent, found = self._of_present(values, lambda present: self.places(present, clamp, counted))
        numbers = np.zeros(len(values), found.dtype)
        numbers[rows] = found
        # Clamped values may have become missing.
        lost = self.lost(numbers) & ~absent
        return np.where(lost, 0, numbers), absent | lost

    def _of_present(self, values: pa.Array, read: Callable[[pa.Array], Any]) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return the rows whose values are not missing, where others are (n,), and what is read of the former."""
        values = self.readable(values)
        absent = self.absent(values)
        rows = np.flatnonzero(~absent)
        if len(rows) < len(values):
            # Where all are missing, their type is unknown.
            values = values.filter(pa.array(~absent)) if len(rows) else pa.array([], pa.string())
        try:
            return rows, absent, read(values)
        except Misfit as misfit:
            raise misfit.moved(rows) from None

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

    def absent(self, values: pa.Array) -> np.ndarray:
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

    @abstractmethod
    def takes(self, text: pa.Array) -> bool:
        """Tell whether a text (1,) is one of the values, missing ones aside.

        Raises:
            Misfit: if it cannot be read as any.
        """

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

"""Scales, on which the values of a type are numbers: read from arrays and from a schema, and written back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.numbers import are_numbers, floats_of
from lightning_dpgen.data.tables.arrays import Misfit, parsed, shown, wrong_type

# Beyond these, float64 has no room for whole numbers, or for widths of bins.
LARGEST_WHOLE, LARGEST = 2**53, 1e100


class Scale(ABC):
    """Values as ticks: whole numbers where `whole`, of which `unit` make 1 (a day, of dates); else float64.

    Attributes:
        expected: a description of a value, for messages.
        arrow: the type of a synthetic column.
    """

    expected: ClassVar[str]
    whole: ClassVar[bool] = True
    arrow: ClassVar[pa.DataType]

    @property
    def unit(self) -> int:
        return 1

    @abstractmethod
    def tick(self, declared: Any) -> int | float:
        """Return the tick of a value of a schema; raise ValueError, saying what is expected, if it is none."""

    @abstractmethod
    def declared(self, tick: int | float) -> int | float | str:
        """Return the value as a schema writes it."""

    @abstractmethod
    def ticks(self, values: pa.Array) -> np.ndarray:
        """Return ticks (n,) int64, or float64 which may be infinite, of values none of which is missing.

        Raises:
            Misfit: naming the first that is none.
        """

    @abstractmethod
    def column(self, ticks: np.ndarray, absent: np.ndarray) -> pa.Array:
        """Return values of `arrow`, null where `absent`."""


@dataclass(frozen=True)
class Integers(Scale):
    """Whole numbers.

    Example:
        >>> Integers().ticks(pa.array(["7", "8.0"]))
        array([7., 8.])
    """

    expected: ClassVar[str] = "a whole number, without thousands separators"
    arrow: ClassVar[pa.DataType] = pa.int64()

    def tick(self, declared: Any) -> int:
        if type(declared) is float and declared.is_integer():
            declared = int(declared)
        if type(declared) is not int:
            raise ValueError("a whole number")
        if abs(declared) > LARGEST_WHOLE:
            raise ValueError(
                "a whole number, at most 2^53: larger ones are mostly codes, which type: fake makes up, type: drop leaves "
                "out, and type: category takes as texts; an amount may be of type: number"
            )
        return declared

    def declared(self, tick: int | float) -> int:
        return int(tick)

    def ticks(self, values: pa.Array) -> np.ndarray:
        texts = values
        if pa.types.is_string(values.type):
            # Programs write whole numbers with a point in a column in which some are missing. All texts are read in one
            # way, since int64 would hold larger ones where no other record has a point.
            values = parsed(values, pa.float64(), self.expected)
        elif pa.types.is_integer(values.type) and values.type != pa.uint64():
            return values.cast(pa.int64()).to_numpy()
        found = _floats(values, self.expected)
        broken = found != np.rint(found)
        if broken.any():
            row = int(broken.argmax())
            raise Misfit(row, f"{shown(texts, row)}: expected {self.expected}")
        return found

    def column(self, ticks: np.ndarray, absent: np.ndarray) -> pa.Array:
        return pa.array(ticks, self.arrow, mask=absent)


@dataclass(frozen=True)
class Decimals(Scale):
    """Real numbers; with `decimals` whole numbers of the last decimal place.

    Example:
        >>> Decimals(2).ticks(pa.array(["1.25", "3"]))
        array([125., 300.])
    """

    decimals: int | None = None
    expected: ClassVar[str] = "a number, without thousands separators and with a decimal point"
    arrow: ClassVar[pa.DataType] = pa.float64()

    @property
    def whole(self) -> bool:
        return self.decimals is not None

    @property
    def unit(self) -> int:
        return 10 ** (self.decimals or 0)

    def tick(self, declared: Any) -> int | float:
        if type(declared) not in (int, float) or not abs(declared) <= LARGEST:
            raise ValueError(f"a number, at most {LARGEST:g}")
        if self.decimals is None:
            return float(declared) + 0.0
        tick = round(declared * self.unit)
        if abs(tick) > LARGEST_WHOLE or tick / self.unit != declared:
            raise ValueError(f"a number of {self.decimals} decimals, of at most 15 digits")
        return tick

    def declared(self, tick: int | float) -> float:
        return float(tick / self.unit)

    def ticks(self, values: pa.Array) -> np.ndarray:
        texts = values
        if pa.types.is_string(values.type):
            values = parsed(values, pa.float64(), self.expected)
        found = _floats(values, self.expected)
        broken = np.isnan(found)
        if broken.any():
            row = int(broken.argmax())
            problem = f"{shown(texts, row)}: expected {self.expected}"
            raise Misfit(row, problem, "correct it, or list it under missing_values")
        with np.errstate(over="ignore"):
            return found if self.decimals is None else np.rint(found * self.unit)

    def column(self, ticks: np.ndarray, absent: np.ndarray) -> pa.Array:
        return pa.array(ticks / self.unit, self.arrow, mask=absent)


def _floats(values: pa.Array, expected: str) -> np.ndarray:
    if not are_numbers(values.type):
        raise wrong_type(values, expected)
    return floats_of(values)

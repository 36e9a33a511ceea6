"""Scales, on which numbers, dates and times are numbers: read from arrays and from a schema, and written back."""

from __future__ import annotations

import datetime
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.names import are_numbers, floats_of
from lightning_dpgen.data.tables.arrays import Misfit, parsed, quote_cell, wrong_type

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
        ticks = _floats(values, self.expected)
        broken = ticks != np.rint(ticks)
        if broken.any():
            row = int(broken.argmax())
            raise Misfit(row, f"{quote_cell(texts, row)}: expected {self.expected}")
        return ticks

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
        ticks = _floats(values, self.expected)
        broken = np.isnan(ticks)
        if broken.any():
            row = int(broken.argmax())
            problem = f"{quote_cell(texts, row)}: expected {self.expected}"
            raise Misfit(row, problem, "correct it, or list it under missing_values")
        with np.errstate(over="ignore"):
            return ticks if self.decimals is None else np.rint(ticks * self.unit)

    def column(self, ticks: np.ndarray, absent: np.ndarray) -> pa.Array:
        return pa.array(ticks / self.unit, self.arrow, mask=absent)


def _floats(values: pa.Array, expected: str) -> np.ndarray:
    if not are_numbers(values.type):
        raise wrong_type(values, expected)
    return floats_of(values)


RESOLUTIONS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_EPOCH = datetime.date(1970, 1, 1)
_DAY = 86400
_MICROS = 10**6
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True)
class Dates(Scale):
    """Days since 1970.

    Example:
        >>> Dates().tick("1970-01-08"), Dates().declared(7)
        (7, '1970-01-08')
    """

    expected: ClassVar[str] = "a date as YYYY-MM-DD"
    arrow: ClassVar[pa.DataType] = pa.date32()

    def tick(self, declared: Any) -> int:
        if not isinstance(declared, str):
            raise ValueError(self.expected)
        try:
            return datetime.date.fromisoformat(declared).toordinal() - _EPOCH.toordinal()
        except ValueError:
            raise ValueError(self.expected) from None

    def declared(self, tick: int | float) -> str:
        return datetime.date.fromordinal(int(tick) + _EPOCH.toordinal()).isoformat()

    def ticks(self, values: pa.Array) -> np.ndarray:
        if pa.types.is_string(values.type):
            values = parsed(values, pa.date32(), self.expected)
        if pa.types.is_timestamp(values.type) or pa.types.is_date64(values.type):
            return _seconds(values, "a date", values) // _DAY
        if not pa.types.is_date32(values.type):
            raise wrong_type(values, "dates")
        return values.cast(pa.int32()).to_numpy().astype(np.int64)

    def column(self, ticks: np.ndarray, absent: np.ndarray) -> pa.Array:
        return pa.array(ticks.astype(np.int32), mask=absent).view(self.arrow)


@dataclass(frozen=True)
class Datetimes(Scale):
    """Seconds, minutes, hours or days since 1970 as clocks show them; what is finer is cut off.

    Args:
        zone: the zone of the clocks, where values have an offset; None where they have none, in whatever zone.

    Example:
        >>> times = Datetimes("hour", "Europe/Berlin")
        >>> times.declared(times.ticks(pa.array(["2024-07-31 22:30Z"]))[0])
        '2024-08-01 00:00:00'
    """

    resolution: str
    zone: str | None = None

    @property
    def expected(self) -> str:  # type: ignore[override]
        without = "a date and time as YYYY-MM-DD HH:MM:SS"
        return f"{without}, without a time zone" if self.zone is None else f"{without}+HH:MM, with its offset"

    @property
    def arrow(self) -> pa.DataType:  # type: ignore[override]
        return pa.timestamp("s", self.zone)

    @property
    def unit(self) -> int:
        return max(1, _DAY // RESOLUTIONS[self.resolution])

    def tick(self, declared: Any) -> int:
        try:
            moment = datetime.datetime.fromisoformat(declared)
            seconds = (moment - datetime.datetime(1970, 1, 1)).total_seconds()
        except (ValueError, TypeError):
            raise ValueError(self.expected) from None
        return _whole(seconds, self.resolution)

    def declared(self, tick: int | float) -> str:
        start = datetime.datetime(1970, 1, 1)
        return (start + datetime.timedelta(seconds=int(tick) * RESOLUTIONS[self.resolution])).isoformat(" ")

    def ticks(self, values: pa.Array) -> np.ndarray:
        texts = values
        if self.zone is not None:
            return _seconds(self._local(values), self.expected, texts) // RESOLUTIONS[self.resolution]
        if pa.types.is_string(values.type):
            values = parsed(values, pa.timestamp("us"), self.expected)
        elif pa.types.is_date(values.type):
            values = values.cast(pa.timestamp("s"))
        return _seconds(values, self.expected, texts) // RESOLUTIONS[self.resolution]

    def column(self, ticks: np.ndarray, absent: np.ndarray) -> pa.Array:
        local = pa.array(ticks * RESOLUTIONS[self.resolution], mask=absent).view(pa.timestamp("s"))
        if self.zone is None:
            return local
        # An hour that clocks show twice is the first one, and one that they skip is the end of the gap.
        return pc.assume_timezone(local, self.zone, ambiguous="earliest", nonexistent="latest")

    def _local(self, values: pa.Array) -> pa.Array:
        """Return moments as the clocks of the zone show them."""
        if pa.types.is_string(values.type):
            values = parsed(values, pa.timestamp("us", "UTC"), self.expected)
        if not pa.types.is_timestamp(values.type):
            raise wrong_type(values, self.expected)
        if values.type.tz is None:
            raise Misfit(None, f"holds times without a zone: expected {self.expected}", "leave zone out of the schema")
        return pc.local_timestamp(values.cast(pa.timestamp(values.type.unit, self.zone)))


@dataclass(frozen=True)
class Times(Scale):
    """Seconds, minutes or hours since midnight; what is finer is cut off."""

    resolution: str
    expected: ClassVar[str] = "a time of day as HH:MM or HH:MM:SS"
    arrow: ClassVar[pa.DataType] = pa.time32("s")

    @property
    def unit(self) -> int:
        return 3600 // RESOLUTIONS[self.resolution]

    def tick(self, declared: Any) -> int:
        try:
            moment = datetime.time.fromisoformat(declared)
        except (ValueError, TypeError):
            raise ValueError(self.expected) from None
        if moment.tzinfo is not None:
            raise ValueError(self.expected)
        seconds = (moment.hour * 60 + moment.minute) * 60 + moment.second + moment.microsecond / _MICROS
        return _whole(seconds, self.resolution)

    def declared(self, tick: int | float) -> str:
        return str(datetime.timedelta(seconds=int(tick) * RESOLUTIONS[self.resolution])).zfill(8)

    def ticks(self, values: pa.Array) -> np.ndarray:
        if pa.types.is_string(values.type):
            whole = pc.binary_join_element_wise("1970-01-01", values, "T")
            try:
                seconds = parsed(whole, pa.timestamp("us"), self.expected).cast(pa.int64()).to_numpy() // _MICROS
            except Misfit as misfit:
                raise Misfit(misfit.row, f"{quote_cell(values, misfit.row)}: expected {self.expected}") from None
        elif pa.types.is_time(values.type):
            whole_number = pa.int32() if pa.types.is_time32(values.type) else pa.int64()
            seconds = values.cast(whole_number).to_numpy() // _PER_SECOND[values.type.unit]
        else:
            raise wrong_type(values, "times of day")
        return seconds.astype(np.int64) // RESOLUTIONS[self.resolution]

    def column(self, ticks: np.ndarray, absent: np.ndarray) -> pa.Array:
        return pa.array((ticks * RESOLUTIONS[self.resolution]).astype(np.int32), mask=absent).view(self.arrow)


# The scales of types by their names, in seconds where they have any.
MOMENTS: dict[str, Scale] = {"date": Dates(), "datetime": Datetimes("second"), "time": Times("second")}


def is_zone(name: Any) -> bool:
    """Tell whether there is a time zone of this name.

    Example:
        >>> is_zone("Europe/Berlin"), is_zone("Mars/Olympus")
        (True, False)
    """
    if not isinstance(name, str) or not name.replace("/", "").replace("_", "").replace("-", "").replace("+", "").isalnum():
        return False
    try:
        pc.local_timestamp(pa.array([0], pa.timestamp("s", name)))
    except (pa.ArrowException, ValueError):
        return False
    return True


def _whole(seconds: float, resolution: str) -> int:
    ticks = seconds / RESOLUTIONS[resolution]
    if not math.isfinite(ticks) or ticks != int(ticks):
        raise ValueError(f"a whole {resolution}, which is the resolution")
    return int(ticks)


def _seconds(values: pa.Array, expected: str, texts: pa.Array) -> np.ndarray:
    """Return whole seconds since 1970, rounded down."""
    if pa.types.is_date64(values.type):
        return values.cast(pa.int64()).to_numpy() // 1000
    if not pa.types.is_timestamp(values.type):
        raise wrong_type(texts, expected)
    if values.type.tz is not None:
        raise Misfit(
            None,
            f"holds times of the zone {values.type.tz}: expected {expected}",
            "take local times, without their zone, or declare type: datetime and zone: that whose clocks count",
        )
    return values.cast(pa.int64()).to_numpy() // _PER_SECOND[values.type.unit]

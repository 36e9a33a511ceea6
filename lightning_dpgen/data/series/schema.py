"""Series: as many readings in a row for each record, such as the load of a day, of one channel or several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.names import Name, label_classes, names_type, public_names, quote
from lightning_dpgen.data.schema import LabelledSchema
from lightning_dpgen.data.series.form import SeriesForm, words_of

MOST_NUMBERS = 100_000
MOST_DECIMALS = 12


@dataclass(frozen=True)
class SeriesSchema(LabelledSchema):
    """Series of one length; everything here is declared, nothing is read off the data.

    A reading x of a channel is encoded as (x - low) / (high - low), so that bounds come back exactly. The numbers of a
    record run by time, and at each time by channel: that of time t and channel c is at ``t * channels + c``, as in a
    C-ordered array (length, channels). The label follows as a group where there is one.

    Args:
        length: readings of a record in each channel.
        low, high: bounds of the readings, one for all channels or one each; finite, low below high.
        channels: their names, all text.
        classes: what the label may be, names or whole numbers; empty without a label.
        decimals: to which synthetic readings are rounded, one for all channels or one each; None not to round. Bounds
            must have no more.
        steps: names of the times, such as ``00:30``, for figures and as columns of files; empty for 0, 1, ...
        written: the form in which files have such series, real and synthetic ones, and their names of columns; schemas that
            differ in it alone are equal.

    Raises:
        ValueError: for anything else.

    Example:
        >>> schema = SeriesSchema(3, low=0.0, high=10.0, decimals=1)
        >>> schema.columns, schema.layout.units
        (['t_0', 't_1', 't_2'], 3)
        >>> encoded = Encoded(schema.scaled(np.array([[0.0, 2.5, 10.0]])), np.zeros((1, 0), np.uint8))
        >>> schema.decode(encoded, np.random.default_rng(0)).to_pydict()
        {'t_0': [0.0], 't_1': [2.5], 't_2': [10.0]}
    """

    kind: ClassVar[str] = "series"

    length: int
    low: float | tuple[float, ...]
    high: float | tuple[float, ...]
    channels: tuple[str, ...] = ("value",)
    classes: tuple[Name, ...] = ()
    decimals: int | tuple[int | None, ...] | None = None
    steps: tuple[str, ...] = field(default=(), repr=False)
    written: SeriesForm = field(default=SeriesForm(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if type(self.length) is not int or not 1 <= self.length <= MOST_NUMBERS:
            raise ValueError(f"length={quote(self.length)}: expected a whole number from 1 to {MOST_NUMBERS:,}")
        channels = public_names("channels", self.channels, 1, MOST_NUMBERS)
        if len(channels) * self.length > MOST_NUMBERS:
            raise ValueError(f"length={self.length} of {len(channels)} channels: expected at most {MOST_NUMBERS:,} numbers")
        if type(channels[0]) is not str:
            raise ValueError(f"channels={quote(channels)}: expected text")
        self._set("channels", channels)
        self._set("classes", label_classes(self.classes))
        self._set("steps", public_names("steps", self.steps, 0, MOST_NUMBERS))
        if self.steps and (len(self.steps) != self.length or type(self.steps[0]) is not str):
            raise ValueError(f"steps: expected none, or {self.length} names of the times as text, found {len(self.steps)}")
        for name in ("low", "high", "decimals"):
            self._set(name, self._for_each(name))
        self._check_bounds()
        columns, own = self.written.columns, len(channels) * (self.length if self.written.form == "wide" else 1)
        if columns is not None and len(columns) != own:
            raise ValueError(f"columns={quote(list(columns))}: expected {own} names, of all readings that stand in a row")
        if self.written.time is not None and not self.steps:
            raise ValueError(
                f"time={quote(self.written.time)}: expected steps, the public times of a series, as in steps=1980..1987: "
                "those of the file are values of records"
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _for_each(self, name: str) -> tuple:
        given = getattr(self, name)
        if isinstance(given, list | tuple):
            if len(given) != len(self.channels):
                raise ValueError(
                    f"{name}={quote(given)}: expected one number, or {len(self.channels)}, one for each channel"
                )
            return tuple(given)
        return (given,) * len(self.channels)

    def _check_bounds(self) -> None:
        for channel, low, high, decimals in zip(self.channels, self.low, self.high, self.decimals, strict=True):
            what = f"low={quote(low)}, high={quote(high)} (channel {quote(channel)})"
            if not all(isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= 1e30 for x in (low, high)):
                raise ValueError(f"{what}: expected two numbers within -1e30 and 1e30")
            # Numbers between bounds so near each other would be lost to rounding.
            if not high - low > 1e-12 * max(abs(low), abs(high)):
                raise ValueError(f"{what}: expected low below high")
            if decimals is None:
                continue
            if type(decimals) is not int or not 0 <= decimals <= MOST_DECIMALS:
                raise ValueError(f"decimals={quote(decimals)}: expected a whole number from 0 to {MOST_DECIMALS}, or none")
            if round(low, decimals) != low or round(high, decimals) != high:
                raise ValueError(f"{what}: expected bounds of no more than decimals={decimals}")
        self._set("low", tuple(map(float, self.low)))
        self._set("high", tuple(map(float, self.high)))

    @cached_property
    def layout(self) -> Layout:
        groups = (len(self.classes),) if self.classes else ()
        units = self.length * len(self.channels)
        # Readings at 0.7 of their range, root mean square, are this long: loads lie below their bounds most of the time.
        return Layout(units, groups=groups, label=0 if groups else None, norm=math.sqrt(units / 2 + len(groups)))

    @property
    def axes(self) -> tuple[int, ...]:
        """The length and the number of channels, as units fill them."""
        return (self.length, len(self.channels))

    @property
    def columns(self) -> list[str]:
        """The columns of readings: ``t_0``... of one channel, ``<channel>_0``... of several, by time and then channel."""
        channels = ("t",) if len(self.channels) == 1 else self.channels
        return [f"{channel}_{t}" for t in range(self.length) for channel in channels]

    @cached_property
    def words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the channels and of the times for people, from the file's header where it says them; or no times."""
        names, times = words_of(self.channels, self.written)
        return names, self.steps or times

    @property
    def arrow(self) -> pa.Schema:
        columns = [pa.field(name, pa.float64()) for name in self.columns]
        if self.classes:
            columns.append(pa.field("label", names_type(self.classes)))
        return pa.schema(columns)

    def scaled(self, readings: np.ndarray) -> np.ndarray:
        """Return readings (n, units) as float32 in [0, 1]; those beyond the bounds are moved to them."""
        low, high = self.bounds()
        return np.clip((readings - low) / (high - low), 0.0, 1.0).astype(np.float32)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return low and high of each unit, both (units,)."""
        return np.tile(self.low, self.length), np.tile(self.high, self.length)

    def decode(self, encoded: Encoded, random: np.random.Generator, before: int = 0) -> pa.RecordBatch:
        """Return records as a table of readings, float64 within their bounds, and `label`; nothing is random."""
        scaled = np.asarray(encoded.units, np.float64)
        low, high = self.bounds()
        decimals = self.decimals * self.length
        columns = []
        for unit, places in enumerate(decimals):
            # This is exact at both ends, and low + u (high - low) is not.
            values = low[unit] * (1.0 - scaled[:, unit]) + high[unit] * scaled[:, unit]
            values = values if places is None else np.round(values, places)
            # Adding 0 makes a negative zero positive.
            columns.append(pa.array(np.clip(values, low[unit], high[unit]) + 0.0))
        if self.classes:
            columns.append(pa.array(self.classes, names_type(self.classes)).take(pa.array(encoded.codes[:, 0])))
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    def unlabelled(self) -> SeriesSchema:
        """Return the schema of the same series without their label."""
        return replace(self, classes=())

    def as_json(self) -> dict[str, Any]:
        """Return all that it declares."""
        fields = {name: list(getattr(self, name)) for name in ("low", "high", "channels", "classes", "decimals", "steps")}
        written = {"written": kept} if (kept := self.written.as_json()) else {}
        return {"kind": self.kind, "length": self.length, **fields} | written

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SeriesSchema:
        """Return the schema that `as_json` described.

        Raises:
            ValueError: for another kind of record, missing or foreign fields, or what no schema may hold.
        """
        if not isinstance(fields, Mapping) or fields.get("kind") != cls.kind:
            raise ValueError("the schema does not describe series")
        rest = {name: value for name, value in fields.items() if name not in ("kind", "written")}
        lists = {"low", "high", "channels", "classes", "decimals", "steps"}
        if set(rest) != {"length", *lists}:
            found = quote(sorted(map(str, fields)))
            raise ValueError(f"the schema has the fields {found}: expected kind, length and {', '.join(sorted(lists))}")
        for name in sorted(lists):
            if not isinstance(rest[name], Sequence) or isinstance(rest[name], str):
                raise ValueError(f"{name}={quote(rest[name])}: expected a list")
        return cls(**rest, written=SeriesForm.from_json(fields.get("written", {})))

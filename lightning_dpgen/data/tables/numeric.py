"""Columns of numbers, dates and times."""

from __future__ import annotations

import datetime
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.tables.arrays import Misfit, shown
from lightning_dpgen.data.tables.bins import TRANSFORMS, Bins
from lightning_dpgen.data.tables.column import BadSchema, Beyond, Modelled
from lightning_dpgen.data.tables.datetimes import RESOLUTIONS, Dates, Datetimes, Times, is_zone
from lightning_dpgen.data.tables.density import Density
from lightning_dpgen.data.tables.likely_keys import with_likely_keys
from lightning_dpgen.data.tables.moment_form import LAST_YEAR, MomentForm
from lightning_dpgen.data.tables.scales import Decimals, Integers, Scale
from lightning_dpgen.data.tables.written_form import BARE, NumberForm, WrittenForm, problem_of_signs, problem_of_unit
from lightning_dpgen.data.value_grid import ValueGrid

TYPES = ("integer", "number", "date", "datetime", "time")
MOST_BINS = 10_000
# The words for values beyond the bounds.
BELOW, ABOVE = "below low", "above high"
_MOST_SPECIAL = 1000
_MOST_PIECES, _MOST_COUNT = 10_000, 1e15
# Keys of how values are written in text, where that is not as programs do.
_WRITTEN = ("decimal", "thousands", "unit", "negative", "format", "zone")
# A number as people write it, and YAML does not read it.
_WITH_COMMA = re.compile(r"[+-]?\d[\d.,' ]*")
# A unit is a multiple of 1 / 2^24, which float32 holds exactly.
_GRID = 2**24


@dataclass(frozen=True, kw_only=True)
class Numeric(Modelled):
    """Numbers, dates or times between two declared bounds: a choice among bins, or one unit.

    Whole values (integers, dates, numbers of so many decimals, times of a resolution) are cut at whole values, and have a
    choice each where there are no more of them than bins. Values of a bin are told apart at random.

    Args:
        type: ``integer``, ``number``, ``date``, ``datetime`` or ``time``.
        low, high: the bounds, both included; dates and times as ISO text. Of a time of day, the whole day by default.
        decimals: of numbers, 0 to 15, to which they are rounded; None for real numbers. Of whole numbers, the zeros with
            which text has them, as in 23.0.
        resolution: of ``datetime`` and ``time``: ``second`` (the default), ``minute``, ``hour`` or ``day``; cut off below.
        bins: their number; None where it is left to `TableSchema.completed`.
        edges: the starts of the bins after the first, between `low` and `high`; in place of `bins`.
        transform: of the distance from `low` (in days, of dates; in hours, of times), after which bins are of equal
            width: ``linear``, ``log`` (log1p) or ``sqrt``.
        special: values that have a choice of their own, inside the bounds or not.
        density: pairs of a value and a count (or share) of the values from it to the next pair's, the first from `low`.
            Bins that are left open are cut by it, and values of a bin are drawn by it. Found privately (`find_values`) or
            public; empty for evenly.
        density_noise: the standard deviation of the noise in a count.
        decimal, thousands: of text that stands for numbers, the sign before decimals and the one between thousands; None
            for those of the table.
        unit, negative: of text that stands for numbers, the numbers 1 and -1 as they are written, such as ``$1`` and
            ``($1)``; None for no unit, and for a minus before all.
        format: of text that stands for dates or times, as in ``%d.%m.%Y``; None for ISO 8601.
        zone: of ``datetime``, a name such as ``Europe/Berlin``: values have an offset, and are read and written as what the
            clocks of this zone show.
        encoding: ``bins``, or ``scaled`` for one unit in [0, 1], exact for up to 2^24 + 1 whole values, else on a
            grid of as many.

    Example:
        >>> age = Numeric(name="age", type="integer", low=17, high=90, bins=4)
        >>> codes, _ = age.encode(pa.array(["17", "90", "40"]), False, Counter())
        >>> codes.tolist(), age.choices
        ([0, 3, 1], 4)
        >>> age.decode(codes, None, np.random.default_rng(0))[0].as_py() < 36
        True
    """

    type: str
    low: Any = None
    high: Any = None
    decimals: int | None = None
    resolution: str | None = None
    bins: int | None = None
    edges: tuple = ()
    transform: str = "linear"
    special: tuple = ()
    encoding: str = "bins"
    density: tuple = ()
    density_noise: float = 0.0
    decimal: str | None = None
    thousands: str | None = None
    unit: str | None = None
    negative: str | None = None
    format: str | None = None
    zone: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.type not in TYPES:
            self.refuse("type", self.type, f"one of {', '.join(TYPES)}")
        self._check_kind()
        self._check_written()
        if self.type == "time":
            full = {"second": "23:59:59", "minute": "23:59", "hour": "23:00"}
            self._set("low", "00:00" if self.low is None else self.low)
            self._set("high", full[self.resolution] if self.high is None else self.high)
        for key in ("low", "high"):
            if getattr(self, key) is None:
                raise BadSchema("is missing: expected a bound from public knowledge", self.name, key)
            self._set(key, self._declared(key, getattr(self, key)))
        if self._low > self._high:
            self.refuse("high", self.high, f"low={self.low} or more")
        for key in ("edges", "special"):
            listed = getattr(self, key)
            if not isinstance(listed, list | tuple):
                self.refuse(key, listed, "a list")
            self._set(key, tuple(self._declared(key, value) for value in listed))
        self._check_years()
        self._check_density()
        self._check_choices()
        self._check_missing_values()

    @cached_property
    def scale(self) -> Scale:
        """The scale on which its values are numbers."""
        return scale_of(self.type, self.decimals, self.resolution, self.zone)

    def form(self, decimal: str = ".", thousands: str = "") -> WrittenForm | None:
        """Return the declared form of its texts, by these signs of the table; None where it is that of programs."""
        return form_of({key: getattr(self, key) for key in ("type", "high", *_WRITTEN)}, decimal, thousands)

    @property
    def scaled(self) -> bool:
        return self.encoding == "scaled"

    @property
    def undecided(self) -> bool:
        """True where it is cut into bins whose number is not declared."""
        return not self.scaled and self.bins is None and not self.edges

    @property
    def most_choices(self) -> int:
        """A bound of `present` from above, without working it out."""
        return 2 if self.scaled else max(self.bins or 0, len(self.edges) + 1) + len(self.special) + 1

    @property
    def present(self) -> int:
        return 1 if self.scaled else self._bins.count

    @property
    def arrow(self) -> pa.DataType:
        return self.scale.arrow

    @property
    def grid(self) -> ValueGrid:
        """The tree between its bounds by which its distribution is found."""
        return ValueGrid(self._low, self._high, self.scale.whole)

    def ticks(self, values: pa.Array) -> np.ndarray:
        """Return the places (n,) float64 of values on `grid`, moved to the bounds; NaN where missing or special.

        Raises:
            Misfit: naming the first value that cannot be read.
        """
        numbers, absent = self.numbers(values, True, Counter())
        return np.where(absent | np.isin(numbers, self._special), np.nan, numbers)

    @property
    def special_ticks(self) -> np.ndarray:
        """The special values as ticks (special,), increasing."""
        return self._special

    def with_density(self, pieces: Sequence[Sequence[float]], noise: float) -> Numeric:
        """Return the same with the density that `find_values` has found on `grid`."""
        density = tuple((self.scale.declared(start), mass) for start, mass in pieces)
        return replace(self, density=density, density_noise=noise)

    def with_bins(self, bins: int) -> Numeric:
        """Return the same with this many bins, or as many as its density asks for, where it is undecided."""
        if not self.undecided:
            return self
        density = self._density
        # Few whole numbers have a bin each.
        if density is None or (self.scale.whole and self._width < bins):
            return replace(self, bins=bins)
        starts = density.cut(bins, self.density_noise)[1:].tolist()
        edges = tuple(self.scale.declared(tick) for tick in starts)
        return replace(self, edges=edges, transform="linear") if edges else replace(self, bins=1, transform="linear")

    def fields(self) -> dict[str, Any]:
        what: dict[str, Any] = {"type": self.type, "low": self.low, "high": self.high}
        for key, default in (("decimals", None), ("bins", None), ("transform", "linear"), ("encoding", "bins"),
                             *((key, None) for key in _WRITTEN)):  # fmt: skip
            if getattr(self, key) != default:
                what[key] = getattr(self, key)
        if self.resolution not in (None, "second"):
            what["resolution"] = self.resolution
        for key in ("edges", "special"):
            if getattr(self, key):
                what[key] = list(getattr(self, key))
        if self.density:
            what |= {"density": [list(piece) for piece in self.density], "density_noise": self.density_noise}
        return what | self.common_fields()

    @property
    def present_names(self) -> list[str]:
        if self.scaled:
            return ["a number"]
        ranges = [f"{self._shown(a)} to {self._shown(b)}" if a < b else self._shown(a) for a, b in self._bins.ranges]
        return ranges + [self._shown(tick) for tick in self._special.tolist()]

    @property
    def ordered(self) -> int:
        return 0 if self.scaled else len(self._bins.starts)

    def value_at(self, share: float) -> str:
        """Return the value at a share of the way from `low` to `high`, in words.

        Example:
            >>> Numeric(name="age", type="integer", low=17, high=90, encoding="scaled").value_at(0.5)
            '54'
        """
        tick = self._low + share * self._width
        return self._shown(round(tick) if self.scale.whole else tick)

    def alone(self, code: int) -> bool:
        return not self.scaled and self._bins.alone(code)

    def places(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> np.ndarray:
        return self._within(values, clamp, counted)

    def restored(self, numbers: np.ndarray, absent: np.ndarray) -> pa.Array:
        return self.scale.column(numbers, absent)

    @property
    def ranges(self) -> list[tuple[int | float, int | float]]:
        if self.scaled:
            return [self.limits]
        return [*self._bins.ranges, *((tick, tick) for tick in self._special.tolist())]

    def range_text(self, code: int) -> str:
        low, high = (self.scale.declared(tick) for tick in self.ranges[code])
        return str(low) if low == high else f"{low}..{high}"

    @property
    def limits(self) -> tuple[int | float, int | float]:
        """The bounds as ticks."""
        return self._low, self._high

    def encode_present(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> tuple[np.ndarray, np.ndarray | None]:
        ticks = self._within(values, clamp, counted)
        if not self.scaled:
            return self._bins.encode(ticks), None
        steps = np.rint((ticks - self._low) / self._width * self._steps)
        return np.zeros(len(ticks), np.int64), (steps / self._steps).astype(np.float32)

    def decode(self, codes: np.ndarray, units: np.ndarray | None, random: np.random.Generator) -> pa.Array:
        absent = codes >= self.present if self.missing else np.zeros(len(codes), bool)
        if not self.scaled:
            ticks = np.full(len(codes), self._low)
            ticks[~absent] = self._bins.decode(codes[~absent], random)
            return self.scale.column(ticks, absent)
        steps = np.rint(np.clip(units.astype(np.float64), 0.0, 1.0) * self._steps)
        ticks = self._low + steps * (self._width / self._steps)
        if self.scale.whole:
            ticks = np.rint(ticks).astype(np.int64)
        return self.scale.column(np.minimum(ticks, self._high), absent)

    def shares(self, intervals: Sequence[tuple[int | float, int | float]]) -> np.ndarray:
        """Return for each choice but a missing one the share of its ticks, as they are drawn, within closed intervals.

        It is of a column that is cut into bins.
        """
        return self._bins.shares(intervals)

    def beyond(self, values: pa.Array) -> list[Beyond]:
        bounds = {BELOW: self.low, ABOVE: self.high}
        return [Beyond(what, rows, str(bounds[what])) for what, rows in self._outside(self._ticks(values)).items()]

    def _within(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> np.ndarray:
        """Return ticks (n,), all within the bounds, or special."""
        ticks = self._ticks(values)
        outside = self._outside(ticks)
        if outside and not clamp:
            row = int(np.logical_or.reduce(list(outside.values())).argmax())
            below = BELOW in outside and outside[BELOW][row]
            bound = f"below low, {self.low}" if below else f"above high, {self.high}"
            raise Misfit(
                row,
                f"{shown(values, row)} is {bound}",
                "correct it, change the bound in the schema, or let outside=clamp move it there",
            )
        for what, rows in outside.items():
            counted[f"{self.name}: {what}"] += int(rows.sum())
            ticks = np.where(rows, self._low if what == BELOW else self._high, ticks)
        return ticks.astype(np.int64) if self.scale.whole else ticks

    def _ticks(self, values: pa.Array) -> np.ndarray:
        try:
            return self.scale.ticks(values)
        except Misfit as misfit:
            raise with_likely_keys(misfit, values, self.type) from None

    def _outside(self, ticks: np.ndarray) -> dict[str, np.ndarray]:
        """Return the ticks (n,) that lie below and above the bounds, where there are any, and are not special."""
        bare = ~np.isin(ticks, self._special) if self.special else np.ones(len(ticks), bool)
        found = {BELOW: (ticks < self._low) & bare, ABOVE: (ticks > self._high) & bare}
        return {what: rows for what, rows in found.items() if rows.any()}

    @cached_property
    def _low(self) -> int | float:
        return self.scale.tick(self.low)

    @cached_property
    def _high(self) -> int | float:
        return self.scale.tick(self.high)

    @cached_property
    def _special(self) -> np.ndarray:
        return np.array(sorted(map(self.scale.tick, self.special)), np.int64 if self.scale.whole else np.float64)

    @property
    def _width(self) -> int | float:
        return self._high - self._low

    @property
    def _steps(self) -> int:
        return min(self._width, _GRID) if self.scale.whole else _GRID

    @cached_property
    def _bins(self) -> Bins:
        whole = self.scale.whole
        if self.edges:
            starts = np.array([self._low, *map(self.scale.tick, self.edges)], np.int64 if whole else np.float64)
            return Bins(self._low, self._high, whole, starts, self._special, self._density)
        if self.bins is None:
            raise BadSchema("expected how many, or a schema completed by TableSchema.completed", self.name, "bins")
        cut = Bins.cut(self._low, self._high, whole, self.bins, self.transform, self.scale.unit, self._special)
        return replace(cut, density=self._density)

    @cached_property
    def _density(self) -> Density | None:
        if not self.density:
            return None
        kind = np.int64 if self.scale.whole else np.float64
        starts = np.array([self.scale.tick(value) for value, _ in self.density], kind)
        masses = np.array([mass for _, mass in self.density], np.float64)
        return Density(starts, masses, self._high, self.scale.whole)

    def _shown(self, tick: int | float) -> str:
        value = self.scale.declared(tick)
        return f"{value:.6g}" if isinstance(value, float) else str(value)

    def _set(self, key: str, value: Any) -> None:
        object.__setattr__(self, key, value)

    def _declared(self, key: str, value: Any) -> Any:
        """Return a value of the schema in the one form in which it is written."""
        if isinstance(value, datetime.date | datetime.time):
            value = value.isoformat()
        try:
            return self.scale.declared(self.scale.tick(value))
        except ValueError as error:
            comma = isinstance(value, str) and _WITH_COMMA.fullmatch(value.strip()) and self.type in ("integer", "number")
            told = ", with a decimal point and nothing between thousands, as in 1.5 or 10000"
            self.refuse(key, value, f"{error}{told if comma else ''}")

    def _check_density(self) -> None:
        pairs, expected = self.density, "pairs of a value and a count, as in [[0, 120.5], [1, 3]], at most 10,000"
        if not isinstance(pairs, list | tuple) or len(pairs) > _MOST_PIECES:
            self.refuse("density", pairs, expected)
        found = []
        for pair in pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not _is_count(pair[1]):
                self.refuse("density", pair, expected)
            found.append((self._declared("density", pair[0]), float(pair[1])))
        self._set("density", tuple(found))
        if not _is_count(self.density_noise) or (self.density_noise and not pairs):
            self.refuse("density_noise", self.density_noise, "a number, 0 or more, and a density beside it")
        self._set("density_noise", float(self.density_noise))
        if not pairs:
            return
        if self.scaled:
            raise BadSchema("has no meaning with encoding: scaled; leave one of them out", self.name, "density")
        ticks = [self.scale.tick(value) for value, _ in found]
        most = self._high if self.scale.whole else max(self._low, np.nextafter(self._high, -np.inf))
        if ticks[0] != self._low or ticks[-1] > most or not all(a < b for a, b in itertools.pairwise(ticks)):
            self.refuse("density", [value for value, _ in found], "increasing values from low, up to high")

    def _check_kind(self) -> None:
        if self.decimals is not None:
            if self.type not in ("integer", "number"):
                raise BadSchema("expected only with type: integer or number", self.name, "decimals")
            if type(self.decimals) is not int or not 0 <= self.decimals <= 15:
                self.refuse("decimals", self.decimals, "a whole number from 0 to 15")
        if self.type not in ("datetime", "time"):
            if self.resolution is not None:
                raise BadSchema("expected only with type: datetime or time", self.name, "resolution")
            return
        known = [name for name in RESOLUTIONS if self.type == "datetime" or name != "day"]
        self._set("resolution", "second" if self.resolution is None else self.resolution)
        if self.resolution not in known:
            self.refuse("resolution", self.resolution, f"one of {', '.join(known)}")

    def _check_written(self) -> None:
        if self.format is not None:
            if self.type not in ("date", "datetime", "time") or self.zone is not None:
                raise BadSchema("expected only with type: date, datetime without a zone, or time", self.name, "format")
            try:
                MomentForm(self.format if isinstance(self.format, str) else "", self.type)
            except ValueError as error:
                self.refuse("format", self.format, str(error))
        if self.zone is not None and (self.type != "datetime" or not is_zone(self.zone)):
            self.refuse("zone", self.zone, "the name of a zone, such as Europe/Berlin or UTC, with type: datetime")
        if (self.decimal, self.thousands) != (None, None):
            if self.type not in ("integer", "number"):
                raise BadSchema("expected only with type: integer or number", self.name, "decimal")
            if problem := problem_of_signs(self.decimal or ".", self.thousands or ""):
                raise BadSchema(problem, self.name, "decimal")
        if (self.unit, self.negative) != (None, None):
            if self.type not in ("integer", "number"):
                raise BadSchema("expected only with type: integer or number", self.name, "unit")
            if found := problem_of_unit(BARE if self.unit is None else self.unit, self.negative):
                raise BadSchema(found[1], self.name, found[0])

    def _check_years(self) -> None:
        """Refuse values that two digits of a year do not tell apart."""
        form = self.form()
        if isinstance(form, MomentForm) and form.two_digits:
            for key, value in [("low", self.low), *(("special", value) for value in self.special)]:
                if not form.last_year - 100 < int(value[:4]) <= form.last_year:
                    expected = f"a year from {form.last_year - 99} to {form.last_year}, which two digits (%y) tell apart"
                    self.refuse(key, value, expected)

    def _check_choices(self) -> None:
        if self.encoding not in ("bins", "scaled"):
            self.refuse("encoding", self.encoding, "bins or scaled")
        if self.transform not in TRANSFORMS:
            self.refuse("transform", self.transform, f"one of {', '.join(TRANSFORMS)}")
        if self.scaled:
            for key, default in (("bins", None), ("edges", ()), ("special", ()), ("transform", "linear")):
                if getattr(self, key) != default:
                    raise BadSchema("has no meaning with encoding: scaled; leave one of them out", self.name, key)
            # The grid between the bounds needs room, however large they are.
            room = 1 if self.scale.whole else 2**27 * np.spacing(max(abs(self._low), abs(self._high)))
            if self._width < room:
                raise BadSchema(f"low={self.low} and high={self.high} are too close together for it", self.name, "encoding")
        if self.bins is not None and (type(self.bins) is not int or not 1 <= self.bins <= MOST_BINS):
            self.refuse("bins", self.bins, f"a whole number from 1 to {MOST_BINS}, or null for the default")
        if self.edges:
            ticks = [self._low, *map(self.scale.tick, self.edges)]
            room = self._high if self.scale.whole else np.nextafter(self._high, -np.inf)
            if not all(a < b for a, b in itertools.pairwise(ticks)) or ticks[-1] > room or len(ticks) > MOST_BINS:
                self.refuse("edges", list(self.edges), "increasing values between low and high, where bins begin")
            if self.bins is not None or self.transform != "linear":
                raise BadSchema("expected either edges, or bins and their transform", self.name, "edges")
        if len(self.special) > _MOST_SPECIAL:
            self.refuse("special", list(self.special), f"at most {_MOST_SPECIAL} values")
        self.refuse_twice("special", self.special)
        if not self.scaled and not self.undecided:
            try:
                self._bins.count  # noqa: B018
            except ValueError as error:
                raise BadSchema(str(error), self.name, "bins") from None

    def _check_missing_values(self) -> None:
        for text in self.missing_values:
            try:
                ticks = self.scale.ticks(pa.array([text]))
            except Misfit:
                continue
            if not self._outside(ticks):
                self.refuse("missing_values", text, "no text that is also a value within the bounds, or a special one")


def _is_count(value: Any) -> bool:
    return type(value) in (int, float) and 0.0 <= value <= _MOST_COUNT


def scale_of(kind: str, decimals: int | None = None, resolution: str | None = None, zone: str | None = None) -> Scale:
    """Return the scale on which values of a type are numbers."""
    if kind == "integer":
        return Integers()
    if kind == "number":
        return Decimals(decimals)
    if kind == "datetime":
        return Datetimes(resolution, zone)
    return Dates() if kind == "date" else Times(resolution)


def form_of(fields: Mapping[str, Any], decimal: str, thousands: str) -> WrittenForm | None:
    """Return the form of a column by what a schema says of it, and by the signs of the table; None for that of programs.

    Raises:
        ValueError: for a format that is none.

    Example:
        >>> form_of({"type": "number", "decimal": ","}, ".", "") == NumberForm(",")
        True
    """
    if fields.get("format") is not None:
        # Two digits of a year are of the hundred years that end with the bound, which is public.
        year = re.match(r"\d{4}", str(fields.get("high")))
        return MomentForm(fields["format"], fields["type"], int(year[0]) if year else LAST_YEAR)
    if fields["type"] not in ("integer", "number"):
        return None
    own = fields.get("decimal") or decimal, fields.get("thousands")
    unit = {"unit": fields.get("unit") or BARE, "negative": fields.get("negative")}
    form = NumberForm(own[0], thousands if own[1] is None else own[1], **unit)
    return None if form == NumberForm() else form

"""Descriptions of columns of numbers, dates and times: bounds, how they are cut into choices, and how they are written."""

from __future__ import annotations

import datetime
import itertools
import re
from abc import abstractmethod
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field, WithJsonSchema

from lightning_dpgen.data.tables.bins import Bins, Transform
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.description import (
    BOUNDS,
    PRIVATE,
    Listed,
    ModelledDescription,
    Text,
    key,
    refuse,
    refuse_twice,
)
from lightning_dpgen.data.tables.moment_form import LAST_YEAR, MomentForm
from lightning_dpgen.data.tables.numeric import OF_DISTANCE, Numeric
from lightning_dpgen.data.tables.relative import Relative
from lightning_dpgen.data.tables.scales import Dates, Datetimes, Decimals, Integers, Scale, Times, is_zone
from lightning_dpgen.data.tables.written_form import (
    ANY_DECIMAL,
    ANY_THOUSANDS,
    BARE,
    DecimalSign,
    NumberForm,
    ThousandsSign,
    WrittenForm,
    problem_of_signs,
    problem_of_unit,
)

MOST_BINS = 10_000
_MAY_BE_PRIVATE = ("integer", "number", "date")
_MOST_PIECES, _MOST_SPECIAL = 10_000, 1000
# Special values have the next numbers beyond all distances, which are told apart below 2^53.
_LARGEST = 2**52
# A number as people write it, and YAML does not read it.
_WITH_COMMA = re.compile(r"[+-]?\d[\d.,' ]*")
MAY_BE_FOUND = "; low: private (and high) has them found"
_RANGE = (
    "between which bounds does every possible record lie? Bounds as narrow as public knowledge allows cost the least "
    f"noise{MAY_BE_FOUND}"
)
_TAIL = "Do most lie far below high, as amounts of money do? (transform: log, or edges)"
_VALUE = {"type": ["number", "string"]}
_BOUND = WithJsonSchema(
    {"anyOf": [{"type": "number"}, {"type": "string", "description": "a date or time, as 2021-12-31"}, {"const": PRIVATE}]}
)
_Values = Annotated[tuple[Annotated[Any, WithJsonSchema(_VALUE)], ...], Listed]
_Piece = Annotated[tuple[Annotated[Any, WithJsonSchema(_VALUE)], Annotated[float, Field(ge=0, le=1e15)]], Listed]
_PIECES = f"pairs of a value and a count, as in [[0, 120.5], [1, 3]], at most {_MOST_PIECES:,}"


class NumericDescription(ModelledDescription):
    """The description of numbers, dates or times between two bounds."""

    low: Annotated[Any, _BOUND] = None
    """the lower bound, included; `private` has it found (types `integer`, `number`, `date`) (default: must be given, but
    for `time`)"""
    high: Annotated[Any, _BOUND] = None
    """the upper bound, included; `private` has it found (the same types) (default: must be given, but for `time`)"""
    bins: int | None = Field(None, ge=1, le=MOST_BINS)
    """the number of bins of equal width; a synthetic value is drawn at random within its bin (default: none: about as many
    bins of equal mass as `bins` of the run says, by a distribution that `bins_share` buys; without it as many bins of
    equal width)"""
    edges: _Values = key((), expected="a list of values, where bins begin")
    """the lower ends of all bins except the first, instead of `bins`"""
    transform: Transform = "linear"
    """the transformation after which bins have equal width: `linear`, `log` (of 1 plus the distance from `low`) or
    `sqrt`"""
    special: _Values = key((), expected=f"a list of at most {_MOST_SPECIAL:,} values", max_length=_MOST_SPECIAL)
    """values that each are a choice of their own, within the bounds or not"""
    density: Annotated[tuple[_Piece, ...], Listed] = key((), expected=_PIECES, max_length=_MOST_PIECES)
    """the distribution of the values, if it is public and need not be bought: pairs of a value and the count (or share) of
    values from it to the value of the next pair; the first pair begins at `low`. Open bins are cut by this
    distribution, and values within a bin are drawn from it (default: none: evenly)"""
    density_noise: float = Field(0.0, ge=0, le=1e15)
    """the standard deviation of the noise in a count of `density`"""
    encoding: Literal["bins", "scaled"] = "bins"
    """`bins`; or `scaled`, for one number in [0, 1] instead of bins (below)"""
    relative_to: Text | None = key(None, expected="the name of another column")
    """another column of the same type: the model learns distances from it instead of values (below); `bins`, `edges`,
    `transform`, `encoding` and `density` then describe the distance"""
    distance: Annotated[tuple[float | int, float | int], Listed] | None = key(
        None, expected="the least and the largest, as in [0, 180]"
    )
    """the smallest and the largest distance, such as [0, 180]: in days for a date, in units of `resolution` for a time
    (default: 0 to the distance between the bounds)"""

    @property
    @abstractmethod
    def scale(self) -> Scale:
        """The scale on which its values are numbers."""

    @property
    def unfinished(self) -> str | None:
        return BOUNDS if PRIVATE in (self.low, self.high) else None

    @property
    def undecided(self) -> bool:
        """True where it is cut into bins whose number is not declared."""
        return self.encoding == "bins" and self.bins is None and not self.edges

    def _always_dumped(self) -> set[str]:
        return {"density_noise"} if self.density else set()

    def check(self) -> None:
        super().check()
        if self.unfinished:
            self._check_private()
            return
        self._check_bounds()
        if self.relative_to is None:
            if self.distance is not None:
                raise BadSchema("has a meaning only with relative_to: the name of another column", key="distance")
            self._check_density()
            self._check_scaled()
            self._check_cut()
        else:
            apart = self.apart
            self._set("distance", (apart.low, apart.high))
            for name in OF_DISTANCE:
                self._set(name, getattr(apart, name))

    def _check_private(self) -> None:
        if self.low != self.high or self.type not in _MAY_BE_PRIVATE:
            problem = f"low and high are found together: write {PRIVATE} for both, of a column of type "
            raise BadSchema(problem + ", ".join(_MAY_BE_PRIVATE), key="low")
        if self.relative_to is not None:
            raise BadSchema("expected bounds that are declared, and not found privately", key="relative_to")
        if self.edges or self.special or self.density:
            raise BadSchema("edges, special values and a density need declared bounds", key="low")

    def _check_bounds(self) -> None:
        for name in ("low", "high"):
            if getattr(self, name) is None:
                raise BadSchema("is missing: expected a bound from public knowledge", key=name)
            self._set(name, self._written(name, getattr(self, name)))
        if self.scale.tick(self.low) > self.scale.tick(self.high):
            refuse("high", self.high, f"low={self.low} or more")
        self._set("special", tuple(self._written("special", value) for value in self.special))
        refuse_twice("special", self.special)

    def _check_density(self) -> None:
        if self.density_noise and not self.density:
            refuse("density_noise", self.density_noise, "a number, 0 or more, and a density beside it")
        if not self.density:
            return
        if self.encoding == "scaled":
            raise BadSchema("has no meaning with encoding: scaled; leave one of them out", key="density")
        self._set("density", tuple((self._written("density", value), mass) for value, mass in self.density))
        starts = [value for value, _ in self.density]
        if starts[0] != self.low or not self._increase(starts):
            refuse("density", starts, "increasing values from low, up to high")

    def _check_scaled(self) -> None:
        if self.encoding != "scaled":
            return
        for name in ("bins", "edges", "special", "transform"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise BadSchema("has no meaning with encoding: scaled; leave one of them out", key=name)
        low, high = map(self.scale.tick, (self.low, self.high))
        # The grid between the bounds needs room, however large they are.
        room = 1 if self.scale.whole else 2**27 * np.spacing(max(abs(low), abs(high)))
        if high - low < room:
            raise BadSchema(f"low={self.low} and high={self.high} are too close together for it", key="encoding")

    def _check_cut(self) -> None:
        self._set("edges", tuple(self._written("edges", value) for value in self.edges))
        if self.edges:
            if not self._increase([self.low, *self.edges]) or len(self.edges) >= MOST_BINS:
                refuse("edges", list(self.edges), "increasing values between low and high, where bins begin")
            if self.bins is not None or self.transform != "linear":
                raise BadSchema("expected either edges, or bins and their transform", key="edges")
        if self.encoding == "bins" and not self.undecided:
            try:
                self.cut()
            except ValueError as error:
                raise BadSchema(str(error), key="bins") from None

    def _increase(self, values: list[Any]) -> bool:
        """Tell whether values increase, and the last one leaves room up to `high` for a value of its own."""
        ticks, high = list(map(self.scale.tick, values)), self.scale.tick(self.high)
        most = high if self.scale.whole else max(ticks[0], np.nextafter(high, -np.inf))
        return ticks[-1] <= most and all(a < b for a, b in itertools.pairwise(ticks))

    def _written(self, name: str, value: Any) -> Any:
        """Return a value in the one form in which it is written."""
        if isinstance(value, datetime.date | datetime.time):
            value = value.isoformat()
        try:
            return self.scale.declared(self.scale.tick(value))
        except ValueError as error:
            numbers = isinstance(self, _NumbersDescription)
            comma = numbers and isinstance(value, str) and _WITH_COMMA.fullmatch(value.strip())
            more = ", with a decimal point and nothing between thousands, as in 1.5 or 10000"
            refuse(name, value, f"{error}{more if comma else ''}")

    def _set(self, name: str, value: Any) -> None:
        # The description is not yet shared.
        self.__dict__[name] = value

    def cut(self) -> Bins:
        """Return the bins, and the special values beside them, of a description that is decided.

        Raises:
            ValueError: for bins that float64 does not tell apart.
        """
        scale, low, high = self.scale, self.scale.tick(self.low), self.scale.tick(self.high)
        kind = np.int64 if scale.whole else np.float64
        special = np.array(sorted(map(scale.tick, self.special)), kind)
        if self.edges:
            return Bins(low, high, scale.whole, np.array([low, *map(scale.tick, self.edges)], kind), special)
        assert self.bins is not None
        return Bins.cut(low, high, scale.whole, self.bins, self.transform, scale.unit, special)

    @property
    def value(self) -> Self:
        """The description of a column that is learned by its distance, as it is read and written."""
        return self.with_values(relative_to=None, distance=None, **dict.fromkeys(OF_DISTANCE))

    @property
    def apart(self) -> NumericDescription:
        """The description of the distances of a column that is learned by them: in whole days of dates, in units of the
        resolution of times, or as the numbers are.
        """
        width = self.scale.tick(self.high) - self.scale.tick(self.low)
        is_number = isinstance(self, _NumbersDescription)
        low, high = self.distance or (0, self.scale.declared(width) if is_number else width)
        fields: dict[str, Any] = {"type": "integer", "missing": self.missing, "outside": self.outside}
        fields |= {name: getattr(self, name) for name in OF_DISTANCE}
        kind: type[NumericDescription] = IntegerDescription
        if isinstance(self, NumberDescription):
            kind, fields = NumberDescription, fields | {"type": "number", "decimals": self.decimals}
        try:
            bare = kind.of(fields | {"low": low, "high": high} | dict.fromkeys(OF_DISTANCE))
            ends = bare.scale.tick(bare.low), bare.scale.tick(bare.high)
            if self.special and max(map(abs, ends)) > _LARGEST:
                raise BadSchema("expected distances below 2^52 beside special values", key="distance")
            # Special values have places of their own beyond all distances.
            special = [bare.scale.declared(ends[1] + 1 + place) for place in range(len(self.special))]
            return kind.of(fields | {"low": low, "high": high, "special": special})
        except BadSchema as error:
            raise BadSchema(error.problem, key="distance" if error.key in ("low", "high") else error.key) from None

    def build(self, name: str) -> Numeric | Relative:
        if self.relative_to is None:
            return Numeric(name, self).check_missing_values()
        if self.relative_to == name:
            raise BadSchema(f"{self.relative_to!r}: expected the name of another column", name, "relative_to")
        return Relative(name, self, Numeric(name, self.value).check_missing_values(), Numeric(name, self.apart))


class _NumbersDescription(NumericDescription):
    decimals: int | None = Field(None, ge=0, le=15)
    """the number of decimals, 0 to 15, to which numbers are rounded and with which text files show them; of type `integer`
    the zeros that text files show, as in 23.0 (default: none: real numbers, and whole ones without a point)"""
    decimal: DecimalSign | None = key(None, expected=ANY_DECIMAL)
    """the sign before the decimals of this column, if its numbers are text (default: that of the table)"""
    thousands: ThousandsSign | None = key(None, expected=ANY_THOUSANDS)
    """the sign between the thousands of this column, if its numbers are text; `""` for none, as in postal codes (default:
    that of the table)"""
    unit: str | None = None
    """the number 1 as this column writes it, if its numbers are text: `"1 €"`, `"$1"`, `"1 %"` (12.5 % is the number
    12.5), `1kg`; each number has this unit, with any spaces beside it (default: no unit)"""
    negative: str | None = None
    """the number -1 as this column writes it, with its unit, if its numbers are text: `"(1)"`, `"1-"`, `"$-1"`, `"($1)"`,
    or `"\u22121"` with the minus of typesetters (default: a minus before unit and number)"""

    def check(self) -> None:
        super().check()
        if problem := problem_of_signs(self.decimal or ".", self.thousands or ""):
            raise BadSchema(problem, key="decimal")
        if found := problem_of_unit(BARE if self.unit is None else self.unit, self.negative):
            raise BadSchema(found[1], key=found[0])

    @property
    def scale(self) -> Scale:
        return Decimals(self.decimals) if isinstance(self, NumberDescription) else Integers()

    def form(self, decimal: str = ".", thousands: str = "") -> WrittenForm | None:
        between = thousands if self.thousands is None else self.thousands
        form = NumberForm(self.decimal or decimal, between, unit=self.unit or BARE, negative=self.negative)
        return None if form == NumberForm() else form


class IntegerDescription(_NumbersDescription):
    holds = "whole numbers within bounds"
    decide = f"{_RANGE}. Does a code such as -1 occur? (special) {_TAIL}"

    type: Literal["integer"]


class NumberDescription(_NumbersDescription):
    holds = "numbers within bounds"
    decide = f"{_RANGE}. How many decimals do they have? (decimals) {_TAIL}"

    type: Literal["number"]


class _MomentDescription(NumericDescription):
    format: str | None = None
    """how dates or times are written in text or by digits: `"%d.%m.%Y"`, `"%Y%m%d"`, `"%d %b %y"`, `"%I:%M %p"`, `"%s"`
    (below) (default: ISO 8601, as in 2024-01-31)"""

    def form(self, decimal: str = ".", thousands: str = "") -> MomentForm | None:
        # Two digits of a year are of the hundred years that end with the bound, which is public.
        year = re.match(r"\d{4}", str(self.high))
        last = int(year[0]) if year else LAST_YEAR
        return None if self.format is None else MomentForm(self.format, self.type, last)

    def check(self) -> None:
        super().check()
        try:
            form = self.form()
        except ValueError as error:
            refuse("format", self.format, str(error))
        if form is None or not form.two_digits or self.unfinished:
            return
        for name, value in [("low", self.low), *(("special", value) for value in self.special)]:
            if not form.last_year - 100 < int(value[:4]) <= form.last_year:
                years = f"{form.last_year - 99} to {form.last_year}"
                refuse(name, value, f"a year from {years}, which two digits (%y) tell apart")


class DateDescription(_MomentDescription):
    holds = "days within bounds"
    decide = f"{_RANGE}. Does a code stand for no date? (special)"
    type: Literal["date"]

    @property
    def scale(self) -> Scale:
        return Dates()


def _zone(name: str) -> str:
    if not is_zone(name):
        raise ValueError("the name of a zone, such as Europe/Berlin or UTC")
    return name


class DatetimeDescription(_MomentDescription):
    holds = "times within bounds"
    decide = f"{_RANGE}. How fine must it be? (resolution)"

    type: Literal["datetime"]
    resolution: Literal["second", "minute", "hour", "day"] = "second"
    """`second`, `minute`, `hour`, or `day` of a `datetime`; the rest is cut off"""
    zone: Annotated[str, AfterValidator(_zone)] | None = None
    """the time zone of the column, such as `Europe/Berlin`: values have an offset, bounds are local times without one
    (default: none: values have no offset)"""

    @property
    def scale(self) -> Scale:
        return Datetimes(self.resolution, self.zone)

    def check(self) -> None:
        super().check()
        if self.format is not None and self.zone is not None:
            raise BadSchema("expected only with type: date, datetime without a zone, or time", key="format")


class TimeDescription(_MomentDescription):
    holds = "times of day"
    decide = "how fine must it be? (resolution)"

    type: Literal["time"]
    resolution: Literal["second", "minute", "hour"] = "second"
    """`second`, `minute`, `hour`, or `day` of a `datetime`; the rest is cut off"""

    @property
    def scale(self) -> Scale:
        return Times(self.resolution)

    def _check_bounds(self) -> None:
        full = {"second": "23:59:59", "minute": "23:59", "hour": "23:00"}
        self._set("low", "00:00" if self.low is None else self.low)
        self._set("high", full[self.resolution] if self.high is None else self.high)
        super()._check_bounds()

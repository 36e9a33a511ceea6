"""Formats of dates and times in text, by the directives of strptime that are read in one way alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.names import texts_of
from lightning_dpgen.data.tables.written_form import WrittenForm

# A directive, with the flag for no zeros before a number or for capitals, as in strftime of GNU and BSD.
_DIRECTIVE = re.compile(r"%(-[mdHI]|\^[bBaA]|3f|[YymdjbBaAHIMSpPfs])")
_DIGITS = {"Y": 4, "y": 2, "m": 2, "d": 2, "j": 3, "H": 2, "I": 2, "M": 2, "S": 2, "f": 6, "3f": 3}
# The widths of numbers with signs on both sides.
_LOOSE = {"Y": r"\d{4}", "y": r"\d\d", "j": r"\d{1,3}", "f": r"\d{1,9}", "3f": r"\d{3}"}
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NAMES = {
    "b": [name[:3] for name in _MONTHS], "B": _MONTHS, "a": [name[:3] for name in _WEEKDAYS], "A": _WEEKDAYS,
    "p": ("am", "pm"), "P": ("am", "pm"),
}  # fmt: skip
# Directives that say the same of a moment.
_SAME = {"y": "Y", "b": "m", "B": "m", "A": "a", "P": "p", "3f": "f"}
_DAYS = ("Ymd", "Yj")
_CLOCKS = ("H", "HM", "HMS", "HMSf", "Ip", "IMp", "IMSp", "IMSfp")
_PARTS = {"date": _DAYS, "datetime": (*(day + clock for day in _DAYS for clock in _CLOCKS), "s", "sf"), "time": _CLOCKS}
_EXPECTED = {
    "date": "%Y %m %d, each once, with other signs between them, as in %d.%m.%Y (also %y, %b and %B, %j and %a)",
    "datetime": "%Y %m %d and %H %M %S, each once, as in %d.%m.%Y %H:%M (also %y, %b and %B, %j, %a, %I with %p, %f), or "
    "%s alone",
    "time": "%H %M %S, each once, as in %H:%M (also %I with %p, and %f)",
}
# The last year of two digits by the rule of POSIX.
LAST_YEAR = 2068


@dataclass(frozen=True)
class MomentForm(WrittenForm):
    """Dates and times by a format.

    ``%Y %m %d %H %M %S`` are read with one digit or two, where signs stand between them. ``%j`` is the day of the year,
    ``%I`` with ``%p`` (or ``%P`` in small letters) the hour of twelve, ``%b`` and ``%B`` the English month, ``%a`` and
    ``%A`` the English weekday, which must be that of the day, and ``%s`` seconds since 1970 in UTC. ``%f`` and ``%3f`` are
    parts of a second, which are cut off, and written as zeros. ``%-d`` writes no zero before the number, ``%^b`` capitals.
    In a format of digits alone, ``%-d`` in front reads numbers that have lost the zeros before them.

    Args:
        format, kind: the format, and the type of the column.
        last_year: years of two digits (``%y``) are those of the hundred years up to it.

    Raises:
        ValueError: for another format, saying what is expected.

    Example:
        >>> form = MomentForm("%d.%m.%Y", "date")
        >>> form.read(pa.array(["7.3.2024", "31.02.2024"])).to_pylist()
        ['2024-03-07', '2024-02-31']
        >>> form.written(pa.array(["2024-03-07"]).cast(pa.date32())).to_pylist()
        ['07.03.2024']
        >>> MomentForm("%d%^b%y", "date", last_year=2023).read(pa.array(["07MAR24", "07mar23"])).to_pylist()
        ['1924-03-07', '2023-03-07']
        >>> MomentForm("%-H%M", "time").read(pa.array(["533", "5"])).to_pylist()
        ['05:33', '00:05']
    """

    format: str
    kind: str
    last_year: int = LAST_YEAR

    def __post_init__(self) -> None:
        parts = sorted(_SAME.get(letter, letter) for letter in self._letters if letter not in "aA")
        weekdays = len(self._letters) - len(parts)
        known = parts in map(sorted, _PARTS[self.kind]) and weekdays <= ("Y" in parts)
        if not known or "%" in "".join(self._literals) or not self._is_told_apart:
            raise ValueError(_EXPECTED[self.kind])

    @property
    def example(self) -> str:  # type: ignore[override]
        return self.written(pa.array([86399], pa.timestamp("s")))[0].as_py()

    @property
    def declared(self) -> str:  # type: ignore[override]
        return f'format: "{self.format}"'

    @property
    def parts(self) -> list[str]:
        """The signs between directives, and these without their percent signs, by turns."""
        return _DIRECTIVE.split(self.format)

    @property
    def two_digits(self) -> bool:
        """Tell whether it has two digits of a year alone."""
        return "y" in self._letters

    def fits(self, texts: pa.Array) -> np.ndarray:
        texts = self._with_zeros(texts)
        fits = pc.match_substring_regex(texts, self._pattern).to_numpy(zero_copy_only=False)
        weekday = next((letter for letter in self._letters if letter in "aA"), None)
        if weekday is None or not fits.any():
            return fits
        days = pc.strptime(pc.utf8_slice_codeunits(self.read(texts), 0, 10), "%Y-%m-%d", "s", error_is_null=True)
        said = pc.utf8_lower(pc.struct_field(pc.extract_regex(texts, self._pattern), weekday))
        # A day that there is not has no weekday, and is refused as such.
        same = pc.equal(said, pc.utf8_lower(pc.strftime(days, format=f"%{weekday}"))).fill_null(True)
        return fits & same.to_numpy(zero_copy_only=False)

    def read(self, texts: pa.Array) -> pa.Array:
        found = pc.extract_regex(self._with_zeros(texts), self._pattern)
        parts = {letter[-1]: pc.struct_field(found, letter[-1]) for letter in self._letters}
        if "s" in parts:
            return pc.strftime(parts["s"].cast(pa.int64()).cast(pa.timestamp("s")), format="%Y-%m-%d %H:%M:%S")
        day, clock = self._day(parts), _clock(parts)
        return day if clock is None else clock if day is None else pc.binary_join_element_wise(day, clock, " ")

    def written(self, values: pa.Array) -> pa.Array:
        if pa.types.is_time(values.type):
            values = values.cast(pa.int32()).cast(pa.int64())
        elif pa.types.is_date(values.type):
            values = values.cast(pa.timestamp("s"))
        values = values.cast(pa.timestamp("s"))
        special = re.split(r"(%(?:-.|\^.|3f|[Pfs]))", self.format)
        pieces = [_written(values, piece) for piece in special if piece]
        texts = pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, "")
        if self._lost_zeros:
            texts = _without_zeros(texts)
        return texts

    def spelled_as(self, texts: pa.Array) -> MomentForm:
        """Return the same format with the zeros and capitals with which texts (n,) of this form are written."""
        found, parts = pc.extract_regex(texts, self._pattern), self.parts
        for place, letter in enumerate(self._letters):
            fields = set(pc.unique(pc.struct_field(found, letter[-1])).to_pylist())
            bare = any(len(field) == 1 for field in fields) and not any(field.startswith("0") for field in fields)
            if letter in "mdHI" and bare and not self._touches(place):
                parts[2 * place + 1] = f"-{letter}"
            elif letter in "bBaA" and all(field.isupper() for field in fields):
                parts[2 * place + 1] = f"^{letter}"
            elif letter == "p" and all(field.islower() for field in fields):
                parts[2 * place + 1] = "P"
        parts[1::2] = [f"%{part}" for part in parts[1::2]]
        return MomentForm("".join(parts), self.kind, self.last_year)

    def of_numbers(self, values: pa.Array) -> pa.Array:
        """Return numbers as the texts that they stand for, where the format is of digits alone; others as they are."""
        if any(self._literals) or not all(letter in _DIGITS or letter == "s" for letter in self._letters):
            return values
        width = 0 if "s" in self._letters else sum(_DIGITS[letter] for letter in self._letters)
        return pc.utf8_lpad(texts_of(values), width, "0")

    def _day(self, parts: dict[str, pa.Array]) -> pa.Array | None:
        if not {"Y", "y"} & set(parts):
            return None
        year = parts.get("Y")
        if year is None:
            years = [str(self.last_year - (self.last_year - two) % 100).zfill(4) for two in range(100)]
            year = pa.array(years).take(parts["y"].cast(pa.int32()))
        if "j" in parts:
            return _day_of_year(year, parts["j"])
        name = parts.get("b", parts.get("B"))
        if name is None:
            month = parts["m"]
        else:
            months = pa.array(_NAMES["b"])
            month = pc.add(pc.index_in(pc.utf8_slice_codeunits(pc.utf8_lower(name), 0, 3), months), 1).cast(pa.string())
        return pc.binary_join_element_wise(year, pc.utf8_lpad(month, 2, "0"), pc.utf8_lpad(parts["d"], 2, "0"), "-")

    @cached_property
    def _letters(self) -> list[str]:
        return [part if part == "3f" else part[-1] for part in self.parts[1::2]]

    @property
    def _literals(self) -> list[str]:
        return self.parts[::2]

    @property
    def _lost_zeros(self) -> bool:
        """Tell whether it is of digits alone, whose leading zeros numbers do not have."""
        return self.format.startswith("%-") and not any(self._literals) and len(self._letters) > 1

    @property
    def _is_told_apart(self) -> bool:
        """Tell whether each number without a fixed width has signs beside it that are no digits."""
        flags = [part.startswith("-") for part in self.parts[1::2]]
        loose = [place for place, flag in enumerate(flags) if flag and self._touches(place)]
        return not loose or (loose == [0] and self._lost_zeros and all(letter in _DIGITS for letter in self._letters))

    def _touches(self, place: int) -> bool:
        """Tell whether digits may stand beside the number of a directive."""
        before, after = self._literals[place : place + 2]
        touches = [before[-1:].isdigit(), after[:1].isdigit()]
        touches += [not before and place > 0 and self._letters[place - 1] in (*_DIGITS, "s")]
        touches += [not after and place + 1 < len(self._letters) and self._letters[place + 1] in (*_DIGITS, "s")]
        return any(touches)

    def _with_zeros(self, texts: pa.Array) -> pa.Array:
        if not self._lost_zeros:
            return texts
        return pc.utf8_lpad(pc.utf8_trim_whitespace(texts), sum(_DIGITS[letter] for letter in self._letters), "0")

    @cached_property
    def _pattern(self) -> str:
        parts = [re.escape(literal) for literal in self._literals]
        for place, letter in enumerate(self._letters):
            if letter in _NAMES:
                pattern = f"(?i:{'|'.join(_NAMES[letter])})"
            elif letter == "s":
                pattern = r"-?\d{1,11}"
            elif letter == "I":
                pattern = "0[1-9]|1[0-2]" if self._touches(place) else "0?[1-9]|1[0-2]"
            else:
                pattern = rf"\d{{{_DIGITS[letter]}}}" if self._touches(place) else _LOOSE.get(letter, r"\d{1,2}")
            parts[place] += f"(?P<{letter[-1]}>{pattern})"
        return rf"^\s*{''.join(parts)}\s*$"


def _clock(parts: dict[str, pa.Array]) -> pa.Array | None:
    hours = parts.get("H")
    if "I" in parts:
        twelve = parts["I"].cast(pa.int32())
        is_late = pc.equal(pc.utf8_lower(parts.get("p", parts.get("P"))), "pm")
        hours = pc.add(pc.if_else(pc.equal(twelve, 12), 0, twelve), pc.if_else(is_late, 12, 0)).cast(pa.string())
    if hours is None:
        return None
    finer = [parts[letter] for letter in "MS" if letter in parts]
    if not finer:
        return pc.binary_join_element_wise(pc.utf8_lpad(hours, 2, "0"), "00", ":")
    return pc.binary_join_element_wise(*(pc.utf8_lpad(part, 2, "0") for part in (hours, *finer)), ":")


def _day_of_year(years: pa.Array, days: pa.Array) -> pa.Array:
    """Return days of years as ISO text; that of one that there is not is no date."""
    since, number = (part.cast(pa.int64()).fill_null(0).to_numpy() for part in (years, days))
    first = (since - 1970).astype("datetime64[Y]")
    found = first.astype("datetime64[D]") + (number - 1)
    texts = np.where((found.astype("datetime64[Y]") == first) & (number > 0), np.datetime_as_string(found), "no day")
    return pa.array(texts, pa.string(), mask=years.is_null().to_numpy(zero_copy_only=False))


def _written(values: pa.Array, piece: str) -> pa.Array:
    """Return what stands for a piece of a format: of directives that Arrow has, or one more."""
    if piece[1:2] == "-":
        return _without_zeros(pc.strftime(values, format=f"%{piece[2]}"))
    if piece[1:2] == "^":
        return pc.utf8_upper(pc.strftime(values, format=f"%{piece[2]}"))
    if piece == "%P":
        return pc.utf8_lower(pc.strftime(values, format="%p"))
    if piece == "%s":
        return values.cast(pa.int64()).cast(pa.string())
    return pc.strftime(values, format={"%f": "000000", "%3f": "000"}.get(piece, piece))


def _without_zeros(texts: pa.Array) -> pa.Array:
    bare = pc.utf8_ltrim(texts, characters="0")
    return pc.if_else(pc.equal(bare, ""), "0", bare)

"""Forms in which a file of text writes numbers, dates and times, as a schema declares them: read and written."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Spaces of three kinds are one sign: programs write any of them between thousands.
DecimalSign, ThousandsSign = Literal[".", ","], Literal["", ".", ",", "'", " "]
DECIMALS, THOUSANDS = get_args(DecimalSign), get_args(ThousandsSign)
# The same in words.
ANY_DECIMAL, ANY_THOUSANDS = "'.' or ','", "one of '.', ',', ' ' and \"'\""
# Fields of text in double quotes: those that need them (RFC 4180), all texts, or all fields.
NEEDED, OF_TEXTS, OF_ALL = QUOTES = ("needed", "texts", "all")
SPACES = " \u00a0\u202f"
# The number in a unit: a 1 that is no digit of a longer number.
_ONE = re.compile(r"(?<!\d)1(?!\d)")
BARE = "1"
_MINUS, _LONGEST_UNIT = "-\u2212", 20
# Signs by which a spreadsheet takes a field for a formula, or that would end a field, or stand in a number.
_NO_UNIT = frozenset("=@+|!()\"'\\")


class WrittenForm(ABC):
    """A form of texts that stand for numbers, dates or times.

    Attributes:
        example: a text of this form.
        declared: the keys of a schema that declare it, for messages.
    """

    example: str
    declared: str

    @abstractmethod
    def fits(self, texts: pa.Array) -> np.ndarray:
        """Mark the texts (n,) that have this form."""

    @abstractmethod
    def read(self, texts: pa.Array) -> pa.Array:
        """Return texts that have this form as programs write them: with a decimal point, and dates as ISO 8601 does."""

    @abstractmethod
    def written(self, values: pa.Array) -> pa.Array:
        """Return values, as a synthetic column has them, as texts of this form; null stays null."""


@dataclass(frozen=True)
class NumberForm(WrittenForm):
    """Numbers with a sign before the decimals, and perhaps one between thousands, a unit, and a sign of negative ones.

    Args:
        decimal, thousands: the signs; an empty one for none.
        decimals: the decimals with which numbers are written; None for as many as each number has. Any are read.
        unit: the number 1 as it is written, such as ``1 €`` or ``$1``. Each number has the unit; spaces before and behind
            the number do not matter.
        negative: the number -1, one of `negatives_of` the unit; None for a minus before all.

    Example:
        >>> form = NumberForm(",", ".")
        >>> form.read(pa.array(["1.234,5", "-7"])).to_pylist(), form.fits(pa.array(["1.23", "1.234"])).tolist()
        (['1234.5', '-7'], [False, True])
        >>> form.written(pa.array([1234567.5, -0.25])).to_pylist()
        ['1.234.567,5', '-0,25']
        >>> NumberForm(",", decimals=2).written(pa.array([0.0, 1234.5])).to_pylist()
        ['0,00', '1234,50']
        >>> form = NumberForm(unit="$1", negative="($1)")
        >>> form.read(pa.array(["$5", "($5.5)"])).to_pylist(), form.fits(pa.array(["5", "€5"])).tolist()
        (['5', '-5.5'], [False, False])
    """

    decimal: str = "."
    thousands: str = ""
    decimals: int | None = None
    unit: str = BARE
    negative: str | None = None

    @property
    def example(self) -> str:  # type: ignore[override]
        return _ONE.sub(f"1{self.thousands}234{self.decimal}5", self.unit)

    @property
    def declared(self) -> str:  # type: ignore[override]
        between = f'thousands: "{self.thousands}"' if self.thousands else "no thousands"
        signs = f'decimal: "{self.decimal}" and {between}'
        return " and ".join([signs, *(f'{key}: "{value}"' for key, value in self.of_unit.items())])

    @property
    def of_unit(self) -> dict[str, str]:
        """The keys of a schema that declare its unit and its negative numbers."""
        unit = {} if self.unit == BARE else {"unit": self.unit}
        return unit if self.negative in (None, f"-{self.unit}") else unit | {"negative": self.negative}

    def fits(self, texts: pa.Array) -> np.ndarray:
        return pc.match_substring_regex(texts, self._pattern).to_numpy(zero_copy_only=False)

    def read(self, texts: pa.Array) -> pa.Array:
        if self.of_unit:
            found = pc.extract_regex(texts, self._pattern)
            positive, negative = (pc.struct_field(found, group) for group in ("positive", "negative"))
            sign = pc.if_else(pc.equal(negative, ""), "", "-")
            texts = pc.binary_join_element_wise(sign, positive, negative, "")
        if self.thousands:
            texts = pc.replace_substring_regex(texts, self._between, "")
        return pc.replace_substring(texts, self.decimal, ".")

    def written(self, values: pa.Array) -> pa.Array:
        return pa.array([None if value is None else self._text(value) for value in values.to_pylist()], pa.string())

    def _text(self, value: int | float) -> str:
        digits = _digits(value) if self.decimals is None else f"{value:.{self.decimals}f}"
        digits, is_negative = digits.removeprefix("-"), digits.startswith("-")
        if self.thousands:
            whole, rest = re.fullmatch(r"(\d+)(.*)", digits).groups()
            digits = f"{int(whole):,}".replace(",", self.thousands) + rest.replace(".", self.decimal, 1)
        elif self.decimal != ".":
            digits = digits.replace(".", self.decimal)
        before, _, after = parts_of_unit(self._negative if is_negative else self.unit)
        return before + digits + after

    @property
    def _negative(self) -> str:
        return f"-{self.unit}" if self.negative is None else self.negative

    @property
    def _between(self) -> str:
        return f"[{SPACES}]" if self.thousands == " " else re.escape(self.thousands)

    @cached_property
    def _pattern(self) -> str:
        whole = rf"(?:\d+|\d{{1,3}}(?:{self._between}\d{{3}})+)" if self.thousands else r"\d+"
        point = re.escape(self.decimal)
        (before, after), (under, behind) = (map(_loose, parts_of_unit(one)[::2]) for one in (self.unit, self._negative))

        def digits(end: str) -> str:
            # A bare decimal sign may end a text. Before other signs it is one of these: 5,- is a price and not -5.
            return rf"(?:{whole}(?:{point}\d{'+' if end else '*'})?|{point}\d+)(?:[eE][+-]?\d+)?"

        positive, negative = f"(?P<positive>{digits(after)})", f"(?P<negative>{digits(behind)})"
        return rf"^\s*(?:\+?{before}{positive}{after}|{under}{negative}{behind})\s*$"


def parts_of_unit(unit: str) -> list[str]:
    """Return what stands before the number of a unit, the number 1, and what stands behind it.

    Example:
        >>> parts_of_unit("1 l/100km")
        ['', '1', ' l/100km']
    """
    return re.split(f"({_ONE.pattern})", unit)


def negatives_of(unit: str) -> list[str]:
    """Return how the number -1 may be written with a unit.

    Example:
        >>> negatives_of("$1")[:4]
        ['-$1', '$-1', '$1-', '($1)']
    """
    before, _, after = parts_of_unit(unit)
    of_signs = [
        text
        for minus in _MINUS
        for text in (
            f"{minus}{unit}", f"{before}{minus}1{after}", f"{unit}{minus}", f"{before}1{minus}{after}",
            f"({unit})", f"{before}(1){after}",
        )
    ]  # fmt: skip
    return list(dict.fromkeys(of_signs))


def problem_of_unit(unit: object, negative: object) -> tuple[str, str] | None:
    """Return the key and what is wrong with a unit and the form of negative numbers; None if nothing is.

    Example:
        >>> problem_of_unit("1 €", "(1 €)"), problem_of_unit("EUR", None)[0], problem_of_unit("$1", "(1)")[0]
        (None, 'unit', 'negative')
    """
    problem = f"{str(unit)[:_LONGEST_UNIT]!r}: expected the number 1 as it is written, such as '1 €', '$1' or '1%'"
    if not isinstance(unit, str) or len(_ONE.findall(unit)) != 1 or unit != unit.strip():
        return "unit", problem
    if len(unit) > _LONGEST_UNIT or not unit.replace("\u00a0", " ").replace("\u202f", " ").isprintable():
        return "unit", f"{problem}, of at most {_LONGEST_UNIT} signs"
    if (signs := _NO_UNIT.intersection(unit)) or unit[0] in _MINUS:
        return "unit", f"{problem}, without {min(signs, default=unit[0])}"
    if negative is not None and negative not in negatives_of(unit):
        expected = ", ".join(map(repr, negatives_of(unit)))
        return "negative", f"{str(negative)[:_LONGEST_UNIT]!r}: expected the number -1 as it is written: one of {expected}"
    return None


def _loose(text: str) -> str:
    """Return the pattern of what stands on one side of a number: spaces beside the number and within do not matter."""
    parts = [re.escape(part) for part in re.split(f"[{SPACES}]+", text) if part]
    spaces = f"[{SPACES}]*"
    return spaces.join(["", *parts, ""]) if parts else ""


def with_offset(moments: pa.Array) -> pa.Array:
    """Return moments of a zone as text with their offset, as ISO 8601 writes it but for a blank in place of T.

    A moment whose offset is no whole minute, as before standard time, is text of UTC: no text holds its seconds.

    Example:
        >>> with_offset(pa.array([0, -3 * 10**9], pa.timestamp("s", "Europe/Berlin"))).to_pylist()
        ['1970-01-01 01:00:00+01:00', '1874-12-07 18:40:00+00:00']
    """
    utc = moments.cast(pa.timestamp("s", "UTC"))
    offsets = pc.subtract(pc.local_timestamp(moments).cast(pa.int64()), utc.cast(pa.int64()))
    in_minutes = pc.equal(pc.multiply(pc.divide(offsets, 60), 60), offsets)
    form = "%Y-%m-%d %H:%M:%S%z"
    texts = pc.if_else(in_minutes, pc.strftime(moments, format=form), pc.strftime(utc, format=form))
    return pc.replace_substring_regex(texts, r"(\d\d)$", r":\1")


def problem_of_signs(decimal: str, thousands: str) -> str | None:
    """Return what is wrong with the signs before decimals and between thousands; None if nothing is.

    Example:
        >>> problem_of_signs(",", "."), problem_of_signs(",", ",")
        (None, "',': expected another sign between thousands than before decimals")
    """
    return f"{decimal!r}: expected another sign between thousands than before decimals" if decimal == thousands else None


def _digits(value: int | float) -> str:
    """Return a number with a decimal point and no exponent, where that is not too long; a whole float without decimals."""
    text = repr(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e16:
        return str(int(value))
    if "e" in text and abs(value) > 1e-6:
        return np.format_float_positional(value, trim="-")
    return text

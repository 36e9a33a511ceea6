"""Forms in which a file of text writes numbers, dates and times, as a schema declares them: read and written."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DECIMALS = (".", ",")
# Spaces of three kinds are one sign: programs write any of them between thousands.
THOUSANDS = ("", ".", ",", "'", " ")
# Fields of text in double quotes: those that need them (RFC 4180), all texts, or all fields.
NEEDED, OF_TEXTS, OF_ALL = QUOTES = ("needed", "texts", "all")
_SPACES = " \u00a0\u202f"
_DIRECTIVES = {"Y": r"\d{4}", "m": r"\d{1,2}", "d": r"\d{1,2}", "H": r"\d{1,2}", "M": r"\d{1,2}", "S": r"\d{1,2}"}
_PARTS = {"date": ("Ymd",), "datetime": ("YmdHM", "YmdHMS"), "time": ("HM", "HMS")}


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
    """Numbers with a sign before the decimals, and perhaps one between thousands.

    Args:
        decimal, thousands: the signs; an empty one for none.
        decimals: the decimals with which numbers are written; None for as many as each number has. Any are read.

    Example:
        >>> form = NumberForm(",", ".")
        >>> form.read(pa.array(["1.234,5", "-7"])).to_pylist(), form.fits(pa.array(["1.23", "1.234"])).tolist()
        (['1234.5', '-7'], [False, True])
        >>> form.written(pa.array([1234567.5, -0.25])).to_pylist()
        ['1.234.567,5', '-0,25']
        >>> NumberForm(",", decimals=2).written(pa.array([0.0, 1234.5])).to_pylist()
        ['0,00', '1234,50']
    """

    decimal: str = "."
    thousands: str = ""
    decimals: int | None = None

    @property
    def example(self) -> str:  # type: ignore[override]
        return f"1{self.thousands}234{self.decimal}5"

    @property
    def declared(self) -> str:  # type: ignore[override]
        between = f'thousands: "{self.thousands}"' if self.thousands else "no thousands"
        return f'decimal: "{self.decimal}" and {between}'

    def fits(self, texts: pa.Array) -> np.ndarray:
        return pc.match_substring_regex(texts, self._pattern).to_numpy(zero_copy_only=False)

    def read(self, texts: pa.Array) -> pa.Array:
        if self.thousands:
            texts = pc.replace_substring_regex(texts, self._between, "")
        return pc.replace_substring(texts, self.decimal, ".")

    def written(self, values: pa.Array) -> pa.Array:
        plain = [None if value is None else self._digits(value) for value in values.to_pylist()]
        if self.thousands:
            plain = [None if text is None else self._grouped(text) for text in plain]
        elif self.decimal != ".":
            plain = [None if text is None else text.replace(".", self.decimal) for text in plain]
        return pa.array(plain, pa.string())

    def _digits(self, value: int | float) -> str:
        return _digits(value) if self.decimals is None else f"{value:.{self.decimals}f}"

    @property
    def _between(self) -> str:
        return f"[{_SPACES}]" if self.thousands == " " else re.escape(self.thousands)

    @cached_property
    def _pattern(self) -> str:
        whole = rf"(\d+|\d{{1,3}}({self._between}\d{{3}})+)" if self.thousands else r"\d+"
        point = re.escape(self.decimal)
        return rf"^\s*[+-]?({whole}({point}\d*)?|{point}\d+)([eE][+-]?\d+)?\s*$"

    def _grouped(self, text: str) -> str:
        sign, digits, rest = re.fullmatch(r"(-?)(\d+)(.*)", text).groups()
        groups = f"{int(digits):,}".replace(",", self.thousands)
        return sign + groups + rest.replace(".", self.decimal, 1)


@dataclass(frozen=True)
class MomentForm(WrittenForm):
    """Dates and times by a format of ``%Y %m %d %H %M %S``, each once.

    Raises:
        ValueError: for another format, saying what is expected.

    Example:
        >>> form = MomentForm("%d.%m.%Y", "date")
        >>> form.read(pa.array(["7.3.2024", "31.02.2024"])).to_pylist()
        ['2024-03-07', '2024-02-31']
        >>> form.written(pa.array(["2024-03-07"]).cast(pa.date32())).to_pylist()
        ['07.03.2024']
    """

    format: str
    kind: str

    def __post_init__(self) -> None:
        if sorted(self._found) not in map(sorted, _PARTS[self.kind]) or "%" in re.sub(r"%[YmdHMS]", "", self.format):
            each = " or ".join(" ".join(f"%{part}" for part in parts) for parts in _PARTS[self.kind])
            raise ValueError(f"{each}, each once, with other signs between them, as in %d.%m.%Y")

    @property
    def example(self) -> str:  # type: ignore[override]
        return self.written(pa.array([86399], pa.timestamp("s")))[0].as_py()

    @property
    def declared(self) -> str:  # type: ignore[override]
        return f'format: "{self.format}"'

    def fits(self, texts: pa.Array) -> np.ndarray:
        return pc.match_substring_regex(texts, self._pattern).to_numpy(zero_copy_only=False)

    def read(self, texts: pa.Array) -> pa.Array:
        found = pc.extract_regex(texts, self._pattern)
        parts = {part: pc.utf8_lpad(pc.struct_field(found, part), 2, "0") for part in self._found}
        day = pc.binary_join_element_wise(*(parts[part] for part in "Ymd"), "-") if "Y" in parts else None
        clock = (
            pc.binary_join_element_wise(*(parts[part] for part in "HMS" if part in parts), ":") if "H" in parts else None
        )
        return day if clock is None else clock if day is None else pc.binary_join_element_wise(day, clock, " ")

    def written(self, values: pa.Array) -> pa.Array:
        if pa.types.is_time(values.type):
            values = values.cast(pa.int32()).cast(pa.int64())
        elif pa.types.is_date(values.type):
            values = values.cast(pa.timestamp("s"))
        return pc.strftime(values.cast(pa.timestamp("s")), format=self.format)

    @property
    def _found(self) -> list[str]:
        return re.findall(r"%([YmdHMS])", self.format)

    @cached_property
    def _pattern(self) -> str:
        parts = re.split(r"%([YmdHMS])", self.format)
        for i in range(1, len(parts), 2):
            parts[i] = f"(?P<{parts[i]}>{_DIRECTIVES[parts[i]]})"
        parts[::2] = map(re.escape, parts[::2])
        return rf"^\s*{''.join(parts)}\s*$"


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


def form_of(fields: Mapping[str, Any], decimal: str, thousands: str) -> WrittenForm | None:
    """Return the form of a column by what a schema says of it, and by the signs of the table; None for that of programs.

    Raises:
        ValueError: for a format that is none.

    Example:
        >>> form_of({"type": "number", "decimal": ","}, ".", "")
        NumberForm(decimal=',', thousands='', decimals=None)
    """
    if fields.get("format") is not None:
        return MomentForm(fields["format"], fields["type"])
    if fields["type"] not in ("integer", "number"):
        return None
    own = fields.get("decimal") or decimal, fields.get("thousands")
    form = NumberForm(own[0], thousands if own[1] is None else own[1])
    return None if form == NumberForm() else form


def problem_of_signs(decimal: object, thousands: object) -> str | None:
    """Return what is wrong with the signs before decimals and between thousands; None if nothing is.

    Example:
        >>> problem_of_signs(",", "."), problem_of_signs(",", ",")
        (None, "',': expected another sign between thousands than before decimals")
    """
    if decimal not in DECIMALS:
        return f"decimal: {str(decimal)[:20]!r}: expected '.' or ','"
    if thousands not in THOUSANDS:
        return f"thousands: {str(thousands)[:20]!r}: expected one of '.', ',', ' ' and \"'\""
    return f"{decimal!r}: expected another sign between thousands than before decimals" if decimal == thousands else None


def _digits(value: int | float) -> str:
    """Return a number with a decimal point and no exponent, where that is not too long; a whole float without decimals."""
    text = repr(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e16:
        return str(int(value))
    if "e" in text and abs(value) > 1e-6:
        return np.format_float_positional(value, trim="-")
    return text

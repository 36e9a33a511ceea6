"""Forms in which a file of text is probably written, told from its bytes: for drafts of schemas, and nothing else."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.files.text import UNREADABLE, UTF8, damaged, opened
from lightning_dpgen.data.tables.arrays import Misfit
from lightning_dpgen.data.tables.datetimes import Dates, Datetimes
from lightning_dpgen.data.tables.scales import Decimals
from lightning_dpgen.data.tables.written_form import MomentForm, NumberForm

_LOOKED_AT = 1 << 20
_WORDS = (
    ("no", "yes"), ("n", "y"), ("f", "t"), ("nein", "ja"), ("nee", "ja"), ("nej", "ja"), ("non", "oui"), ("no", "si"),
    ("no", "sí"), ("não", "sim"), ("nie", "tak"), ("falsch", "wahr"), ("faux", "vrai"),
)  # fmt: skip
_SIGNS = [NumberForm(*signs) for signs in ((",", "."), (",", " "), (",", "'"), (".", ","), (".", " "), (".", "'"))]
_DATES = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%Y.%m.%d")
_CLOCKS = (("", "date"), (" %H:%M", "datetime"), (" %H:%M:%S", "datetime"))

# Codes in numbers: 999 and more nines, -9 and more; 99 is too often a bound.
_NINES = re.compile(r"999+|-9+")
_CODED_DAYS = ("1900-01-01", "9999-12-31")


def likely_charset(path: Path) -> str:
    """Return the encoding in which a file of text is probably written.

    Raises:
        BadRecords: if it cannot be unpacked.
    """
    try:
        with opened(path) as file:
            first = file.read(_LOOKED_AT)
    except UNREADABLE as error:
        raise damaged(path, error) from None
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # Text of few letters beyond ASCII has a zero in each of its pairs of bytes, in one of the two places.
    halves = [np.frombuffer(first[start : len(first) // 2 * 2 : 2], np.uint8) for start in (0, 1)]
    zeros = [float((half == 0).mean()) if len(half) else 0.0 for half in halves]
    if max(zeros) > 0.5 and min(zeros) < 0.1:
        return "utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"
    try:
        # The last character may be cut.
        codecs.getincrementaldecoder(UTF8)().decode(first)
    except UnicodeDecodeError:
        # The five bytes that cp1252 does not have are none of Latin-1's letters either.
        return "cp1252" if not set(first) & {0x81, 0x8D, 0x8F, 0x90, 0x9D} else "iso8859-1"
    return UTF8


def likely_signs(columns: Sequence[pa.Array]) -> NumberForm:
    """Return the signs by which the most columns are numbers that are none as programs write them.

    Args:
        columns: the texts of each, none missing.

    Example:
        >>> likely_signs([pa.array(["1.234,5", "7,25"]), pa.array(["12.500", "999"])])
        NumberForm(decimal=',', thousands='.')
        >>> likely_signs([pa.array(["1234.5"]), pa.array(["a, b"])])
        NumberForm(decimal='.', thousands='')
    """
    odd = [texts for texts in columns if len(texts) and not _reads(Decimals(), texts)]
    fitting = [sum(bool(form.fits(texts).all()) for texts in odd) for form in _SIGNS]
    if not any(fitting):
        return NumberForm()
    # A comma alone stands before decimals, as where 1,234 may be either: a person checks it.
    best = _SIGNS[int(np.argmax(fitting))]
    numbers = [texts for texts in columns if len(texts) and best.fits(texts).all()]
    used = any(pc.any(pc.match_substring(texts, sign)).as_py() for texts in numbers for sign in _same(best.thousands))
    return best if used else NumberForm(best.decimal)


def likely_words(texts: pa.Array) -> list[str] | None:
    """Return the words for false and true of which texts consist; None where they are no such pair.

    Example:
        >>> likely_words(pa.array(["Ja", "Nein", "ja"])), likely_words(pa.array(["a"]))
        (['nein', 'ja'], None)
    """
    found = set(pc.unique(pc.utf8_lower(texts)).to_pylist())
    return next((list(pair) for pair in _WORDS if found == set(pair)), None)


def likely_moments(texts: pa.Array) -> list[MomentForm]:
    """Return the formats by which all texts are dates, or dates and times.

    Example:
        >>> [form.format for form in likely_moments(pa.array(["1/2/2024", "3/4/2024"]))]
        ['%d/%m/%Y', '%m/%d/%Y']
    """
    forms = [MomentForm(date + clock, kind) for date in _DATES for clock, kind in _CLOCKS]
    scales = {"date": Dates(), "datetime": Datetimes("second")}
    return [form for form in forms if form.fits(texts).all() and _reads(scales[form.kind], form.read(texts))]


def _same(sign: str) -> str:
    return " \u00a0\u202f" if sign == " " else sign


def _reads(scale: Dates | Datetimes | Decimals, texts: pa.Array) -> bool:
    try:
        scale.ticks(texts)
    except Misfit:
        return False
    return True


def likely_code(bound: object) -> bool:
    """Tell whether a bound looks like a code for a value that is not known, and like no number, day or time.

    Example:
        >>> [likely_code(bound) for bound in (999, -1, "9999-12-31", 1900, 99, 120, 9.5)]
        [True, True, True, False, False, False, False]
    """
    if isinstance(bound, bool):
        return False
    if isinstance(bound, int | float):
        return bound == -1 or bool(_NINES.fullmatch(f"{bound:g}" if bound < 10**6 else str(bound)))
    return str(bound)[:10] in _CODED_DAYS

"""Forms in which a file of text is probably written, told from its bytes: for drafts of schemas and for messages."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.files.text import PACKED, UNREADABLE, UTF8, damaged, opened
from lightning_dpgen.data.tables.arrays import Misfit
from lightning_dpgen.data.tables.scales import Decimals, Scale
from lightning_dpgen.data.tables.written_form import NEEDED, OF_ALL, OF_TEXTS, NumberForm

_LOOKED_AT = 1 << 20
# More digits than these are of a measurement that is not rounded.
_MOST_DECIMALS = 6
# A number, date or time, or a word for a missing value.
_BARE = re.compile(r"[\d.,:/' +-]*(?:[eET][\d.:+-]*Z?)?|NA|NaN|nan|NULL|null")
_PLAIN = NumberForm()
_WORDS = (
    ("no", "yes"), ("n", "y"), ("f", "t"), ("nein", "ja"), ("nee", "ja"), ("nej", "ja"), ("non", "oui"), ("no", "si"),
    ("no", "sí"), ("não", "sim"), ("nie", "tak"), ("falsch", "wahr"), ("faux", "vrai"),
)  # fmt: skip
TRUTH = ("false", "true")
SIGNS = [NumberForm(*signs) for signs in ((",", "."), (",", " "), (",", "'"), (".", ","), (".", " "), (".", "'"))]
# Codes in numbers: 999 and more nines, -9 and more; 99 is too often a bound.
_NINES = re.compile(r"999+|-9+")
_CODED_DAYS = ("1900-01-01", "9999-12-31")


def likely_charset(path: Path) -> str:
    """Return the encoding in which a file of text is probably written.

    Raises:
        BadRecords: if it cannot be unpacked.
    """
    first = first_bytes(path)
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
        >>> likely_signs([pa.array(["1.234,5", "7,25"]), pa.array(["12.500", "999"])]) == NumberForm(",", ".")
        True
        >>> likely_signs([pa.array(["9'000"]), pa.array(["8.50"])]) == NumberForm(".", "'")
        True
        >>> likely_signs([pa.array(["1234.5"]), pa.array(["a, b"])]) == NumberForm()
        True
    """
    full = [texts for texts in columns if len(texts)]
    odd = [not reads(Decimals(), texts) for texts in full]
    fitting = [[bool(form.fits(texts).all()) for texts in full] for form in SIGNS]
    # Columns that programs read, too, decide between signs that explain as many of the others.
    scores = [(sum(fits for fits, is_odd in zip(found, odd, strict=True) if is_odd), sum(found)) for found in fitting]
    if not max(scores)[0]:
        return NumberForm()
    # A comma alone stands before decimals, as where 1,234 may be either: a person checks it.
    best = SIGNS[scores.index(max(scores))]
    used = any(holds_thousands(texts, best) for texts in full if best.fits(texts).all())
    return best if used else NumberForm(best.decimal)


def holds_thousands(texts: pa.Array, form: NumberForm) -> bool:
    """Tell whether one of the numbers has a sign between its thousands.

    Example:
        >>> holds_thousands(pa.array(["7", "1.234"]), NumberForm(",", "."))
        True
    """
    return any(pc.any(pc.match_substring(texts, sign)).as_py() for sign in _same(form.thousands))


def likely_decimals(texts: pa.Array, form: NumberForm) -> int | None:
    """Return the most decimals of numbers; None where they are too many to be a number of decimals, or have exponents.

    Args:
        texts: numbers by the signs of `form`, none missing.

    Example:
        >>> likely_decimals(pa.array(["0,00", "3,5"]), NumberForm(",")), likely_decimals(pa.array(["0.333333333"]), _PLAIN)
        (2, None)
    """
    if pc.any(pc.match_substring(pc.utf8_lower(texts), "e")).as_py():
        return None
    behind = pc.struct_field(pc.extract_regex(texts, rf"{re.escape(form.decimal)}(?P<behind>\d*)\s*$"), "behind")
    most = pc.max(pc.utf8_length(behind)).as_py() or 0
    return most if most <= _MOST_DECIMALS else None


def has_same_decimals(texts: pa.Array, form: NumberForm, decimals: int) -> bool:
    """Tell whether each number has so many decimals.

    Example:
        >>> has_same_decimals(pa.array(["0,00", "3,50"]), NumberForm(","), 2)
        True
    """
    pattern = rf"{re.escape(form.decimal)}\d{{{decimals}}}\s*$"
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


def likely_quotes(path: Path, separator: str, charset: str) -> str:
    """Return which fields of a file of text stand in double quotes, one of `data.tables.written_form.QUOTES`.

    Raises:
        BadRecords: if it cannot be unpacked.
    """
    text = first_bytes(path).decode(charset, errors="ignore").removeprefix("\ufeff")
    cut = re.escape(separator)
    fields = re.findall(rf'(?:^|(?<=[{cut}\r\n]))("(?:[^"]|"")*"|[^{cut}"\r\n]+)(?=[{cut}\r\n])', text)
    bare = [field for field in fields if field[0] != '"' and field.strip()]
    if len(bare) == len(fields):
        return NEEDED
    if not bare:
        return OF_ALL
    # Programs that put texts in quotes leave the word for a missing value bare.
    return OF_TEXTS if all(_BARE.fullmatch(field.strip()) for field in bare) else NEEDED


def likely_words(texts: pa.Array) -> list[str] | None:
    """Return the words for false and for true of which texts consist; None where they are no such pair.

    Example:
        >>> likely_words(pa.array(["Ja", "Nein", "ja"])), likely_words(pa.array(["Ja", "Nein"]))
        (['nein', 'ja'], ['Nein', 'Ja'])
        >>> likely_words(pa.array(["TRUE", "TRUE"])), likely_words(pa.array(["a"]))
        (['FALSE', 'TRUE'], None)
    """
    spelled = set(pc.unique(texts).to_pylist())
    found = {text.lower() for text in spelled}
    # A column that says true throughout is one of true and false all the same.
    pair = TRUTH if found <= set(TRUTH) else next((pair for pair in _WORDS if found == set(pair)), None)
    if pair is None:
        return None
    capitals = (str.lower, str.capitalize, str.upper)
    spell = next((spell for spell in capitals if spelled <= set(map(spell, pair))), str.lower)
    return list(map(spell, pair))


def first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file of text, unpacked; raise BadRecords where it cannot be."""
    try:
        with opened(path) as file:
            return file.read(_LOOKED_AT)
    except UNREADABLE as error:
        raise damaged(path, error) from None


def last_bytes(path: Path) -> bytes:
    """Return the last bytes of a file of text that is not packed; of a packed one the last of `first_bytes`."""
    if path.suffix in PACKED:
        return first_bytes(path)
    with open(path, "rb") as file:
        # An even number, since letters of UTF-16 have two bytes.
        file.seek(max(path.stat().st_size // 2 * 2 - _LOOKED_AT // 16, 0))
        return file.read()


def _same(sign: str) -> str:
    return " \u00a0\u202f" if sign == " " else sign


def reads(scale: Scale, texts: pa.Array) -> bool:
    """Tell whether all texts are values of a scale, as programs write them."""
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

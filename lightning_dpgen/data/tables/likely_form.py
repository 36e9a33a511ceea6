"""Forms in which a file, its numbers, dates and times are probably written: for drafts of schemas and for messages."""

from __future__ import annotations

import codecs
import datetime
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.files.text import PACKED, UNREADABLE, UTF8, damaged, opened
from lightning_dpgen.data.tables.arrays import Misfit
from lightning_dpgen.data.tables.moment_form import MomentForm
from lightning_dpgen.data.tables.scales import MOMENTS, Decimals, Integers, Scale
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
    signs = " \u00a0\u202f" if form.thousands == " " else form.thousands
    return any(pc.any(pc.match_substring(texts, sign)).as_py() for sign in signs)


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


_OF_NUMBERS = (
    "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%Y.%m.%d", "%Y-%m-%d",
    "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y", "%m-%d-%y", "%y-%m-%d", "%Y-%j",
)  # fmt: skip
_OF_NAMES = (
    *(f"%d{sign}%b{sign}{year}" for sign in (" ", "-", "/", "") for year in ("%Y", "%y")),
    "%b %d, %Y", "%b %d %Y", "%d. %b %Y", "%a, %d %b %Y", "%a %d %b %Y", "%A, %d %b %Y", "%A, %b %d, %Y",
)  # fmt: skip
_DATES = (*_OF_NUMBERS, *(form.replace("%b", name) for name in ("%b", "%B") for form in _OF_NAMES))
_TIMES = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p", "%I:%M%p", "%I %p")
# Forms of digits alone: numbers may be so, too, unless all are days of these years.
_OF_DIGITS = (
    ("%Y%m%d", "date"), ("%d%m%Y", "date"), ("%m%d%Y", "date"), ("%-d%m%Y", "date"), ("%-m%d%Y", "date"),
    ("%Y%m%d%H%M", "datetime"), ("%Y%m%d%H%M%S", "datetime"),
)  # fmt: skip
_FIRST_YEAR, _LAST_YEAR = 1900, 2100
# Forms of ISO 8601 that programs read as they are, and would write with a blank and seconds.
_ISO = [
    MomentForm(form, kind)
    for form, kind in (
        ("%Y-%m-%dT%H:%M:%S", "datetime"), ("%Y-%m-%d %H:%M", "datetime"), ("%Y-%m-%dT%H:%M", "datetime"),
        *((f"%Y-%m-%d{sign}%H:%M:%S.{part}", "datetime") for sign in " T" for part in ("%3f", "%f")),
        ("%H:%M", "time"),
    )
]  # fmt: skip
_FORMS = [
    *(MomentForm(form, "date") for form in _DATES),
    *(MomentForm(f"{form} {clock}", "datetime") for form in _DATES for clock in _TIMES),
    *(MomentForm(form, "time") for form in _TIMES),
]
_EXAMPLE = int(datetime.datetime(2024, 12, 31, 23, 5, 9, tzinfo=datetime.UTC).timestamp())
# Numbers of so many digits are seconds, or thousandths of them, of the years 1990 to 2040.
_SECONDS = (631_152_000, 2_208_988_800)
# Different numbers from which it is no chance that all end in minutes.
_MANY, _FEW = 20, 8


def likely_moments(texts: pa.Array, *kinds: str) -> list[MomentForm]:
    """Return the formats by which all texts are dates, or times, or both; two where the order of day and month is open.

    Args:
        texts: texts (n,).
        kinds: the types among which formats are looked for; all by default.

    Example:
        >>> [form.format for form in likely_moments(pa.array(["11/02/2024", "10/04/2024"]))]
        ['%d/%m/%Y', '%m/%d/%Y']
        >>> [form.format for form in likely_moments(pa.array(["19 AUG 23 2:54 pm", "1 MAY 23 11:00 am"]))]
        ['%-d %^b %y %-I:%M %P']
    """
    if not _have_digits(texts):
        return []
    forms = [form for form in _FORMS if form.kind in kinds] if kinds else _FORMS
    found = [form.spelled_as(texts) for form in forms if _fits(form, texts)]
    # In May a short month is a whole one.
    return list({form.format.replace("B", "b"): form for form in reversed(found)}.values())[::-1]


def likely_digits(texts: pa.Array) -> list[MomentForm]:
    """Return the formats of digits alone by which all texts are dates, or dates and times, of `_FIRST_YEAR` and later.

    Example:
        >>> [form.format for form in likely_digits(pa.array(["20240320", "20231231"]))]
        ['%Y%m%d']
        >>> [form.format for form in likely_digits(pa.array(["8042024", "27062024"]))]
        ['%-d%m%Y']
    """
    if not pc.all(pc.match_substring_regex(texts, r"^\s*\d{7,14}\s*$")).as_py():
        return []
    forms: list[MomentForm] = []
    for form in (MomentForm(*form) for form in _OF_DIGITS):
        lost = form.format.startswith("%-")
        # Digits that have kept their zeros are read by the form that writes them.
        if (lost and form.format.replace("-", "") in [one.format for one in forms]) or not _fits(form, texts):
            continue
        years = pc.utf8_slice_codeunits(form.read(texts), 0, 4).cast(pa.int32())
        if pc.min(years).as_py() >= _FIRST_YEAR and pc.max(years).as_py() <= _LAST_YEAR:
            forms.append(form)
    return forms


def likely_numbers(texts: pa.Array) -> tuple[str, str] | None:
    """Return the type and the format of moments that whole numbers may be as well, for a person to decide; None for none.

    Example:
        >>> likely_numbers(pa.array([str(1692403200 + 60 * i) for i in range(9)]))
        ('datetime', '%s')
        >>> likely_numbers(pa.array([str(100 * (1 + i // 60) + i % 60) for i in range(90)]))
        ('time', '%-H%M')
    """
    if not reads(Integers(), texts):
        return None
    numbers = np.unique(Integers().ticks(texts))
    if not np.isfinite(numbers).all():
        return None
    for unit, form in ((1, "%s"), (1000, "%s%3f")):
        if len(numbers) >= _FEW and _SECONDS[0] * unit <= numbers[0] and numbers[-1] < _SECONDS[1] * unit:
            return "datetime", form
    hours = numbers[numbers >= 100]
    # Round numbers end as minutes, too.
    are_minutes = (numbers % 100 < 60).all() and (hours % 10 != 0).any()
    if len(hours) < _MANY or numbers[0] < 0 or numbers[-1] >= 2400 or not are_minutes:
        return None
    has_zeros = pc.all(pc.match_substring_regex(texts, r"^\s*\d{4}\s*$")).as_py()
    return "time", "%H%M" if has_zeros else "%-H%M"


def likely_two(texts: pa.Array) -> tuple[MomentForm, MomentForm] | None:
    """Return two formats each of which reads some texts, and both together all; None where there are no two such.

    Example:
        >>> [form.format for form in likely_two(pa.array(["13.02.2024", "2024-03-01", "14.02.2024"]))]
        ['%d.%m.%Y', '%Y-%m-%d']
        >>> [form.format for form in likely_two(pa.array(["19 Aug 2023", "08/19/23", "08/20/23"]))]
        ['%m/%d/%y', '%d %b %Y']
    """
    forms = [*_FORMS, *_ISO, *(MomentForm(*form) for form in _OF_DIGITS), MomentForm("%Y-%m-%d %H:%M:%S", "datetime")]
    if not _have_digits(texts) or not any(form.fits(texts[:1])[0] for form in forms):
        return None
    fitting = [form.fits(texts) for form in forms]
    first = int(np.argmax([fits.sum() for fits in fitting]))
    rest = ~fitting[first]
    second = next((place for place, fits in enumerate(fitting) if rest.any() and fits[rest].all()), None)
    if second is None:
        return None

    def reading(rows: np.ndarray, form: MomentForm) -> MomentForm:
        # Several forms have one pattern, and days and months tell which it is.
        of_them = texts.filter(pa.array(rows))
        return next((one for one in forms if _fits(one, of_them)), form)

    return reading(~rest, forms[first]), reading(rest, forms[second])


def example_of(form: MomentForm) -> str:
    """Return a moment in a format that shows the order of its parts.

    Example:
        >>> example_of(MomentForm("%d.%m.%Y", "date"))
        '31.12.2024'
    """
    return form.written(pa.array([_EXAMPLE], pa.timestamp("s")))[0].as_py()


def likely_iso_format(texts: pa.Array, kind: str) -> MomentForm | None:
    """Return the form of dates and times that are ISO 8601 but not as programs write it; None for any other.

    Example:
        >>> likely_iso_format(pa.array(["2024-01-31T10:05"]), "datetime").format
        '%Y-%m-%dT%H:%M'
    """
    fitting = (form for form in _ISO if form.kind == kind and form.fits(texts).all())
    return next((form for form in fitting if not form.format.endswith("%f") or _has_six(texts)), None)


def _fits(form: MomentForm, texts: pa.Array) -> bool:
    if not form.fits(texts[:1]).all() or not form.fits(texts).all():
        return False
    return (not form.format.endswith("%f") or _has_six(texts)) and reads(MOMENTS[form.kind], form.read(texts))


def _have_digits(texts: pa.Array) -> bool:
    """Tell whether each text has a digit, as moments in all formats have: there are hundreds of formats to try."""
    return bool(pc.all(pc.match_substring_regex(texts, r"\d")).as_py())


def _has_six(texts: pa.Array) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, r"\.\d{6}\s*$")).as_py())

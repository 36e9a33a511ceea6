"""Formats in which texts are probably dates and times: for drafts of schemas and for messages."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.tables.datetimes import Dates, Datetimes, Times
from lightning_dpgen.data.tables.likely_form import reads
from lightning_dpgen.data.tables.moment_form import MomentForm
from lightning_dpgen.data.tables.scales import Integers, Scale

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
_SCALES: dict[str, Scale] = {"date": Dates(), "datetime": Datetimes("second"), "time": Times("second")}
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
    found: list[MomentForm] = []
    for form in (MomentForm(*form) for form in _OF_DIGITS):
        lost = form.format.startswith("%-")
        # Digits that have kept their zeros are read by the form that writes them.
        if (lost and form.format.replace("-", "") in [one.format for one in found]) or not _fits(form, texts):
            continue
        years = pc.utf8_slice_codeunits(form.read(texts), 0, 4).cast(pa.int32())
        if pc.min(years).as_py() >= _FIRST_YEAR and pc.max(years).as_py() <= _LAST_YEAR:
            found.append(form)
    return found


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
    return (not form.format.endswith("%f") or _has_six(texts)) and reads(_SCALES[form.kind], form.read(texts))


def _have_digits(texts: pa.Array) -> bool:
    """Tell whether each text has a digit, as moments in all formats have: there are hundreds of formats to try."""
    return bool(pc.all(pc.match_substring_regex(texts, r"\d")).as_py())


def _has_six(texts: pa.Array) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, r"\.\d{6}\s*$")).as_py())

"""Rows, separators and units of a file of text as they probably are, and the keys that declare them."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from lightning_dpgen.data.files.delimited import default_separator
from lightning_dpgen.data.tables.arrays import Misfit
from lightning_dpgen.data.tables.likely_form import (
    SIGNS,
    first_bytes,
    holds_thousands,
    last_bytes,
    likely_digits,
    likely_moments,
    reads,
)
from lightning_dpgen.data.tables.scales import Decimals, Integers
from lightning_dpgen.data.tables.written_form import BARE, SPACES, NumberForm, negatives_of, problem_of_unit

# Words that say that nothing is known, in small letters. A number, a date or true and false is none of them.
_MISSING = frozenset({
    "na", "n/a", "n.a.", "n.a", "#n/a", "<na>", "null", "(null)", "#null!", "nan", "nat", "none", "nil", "\\n", "?", "-",
    "--", "---", "\u2013", "\u2014", ".", "..", "...", "unknown", "missing", "not available",
})  # fmt: skip
_TOTALS = frozenset({
    "total", "totals", "subtotal", "sum", "grand total", "summe", "gesamt", "insgesamt", "gesamtsumme", "somme", "suma",
    "totale", "totaal",
})  # fmt: skip
_CURRENCIES = frozenset({
    "EUR", "USD", "GBP", "CHF", "JPY", "CNY", "INR", "SEK", "NOK", "DKK", "PLN", "CZK", "HUF", "CAD", "AUD", "NZD", "BRL",
    "MXN", "ZAR", "TRY", "KRW", "SGD", "Rs", "Rs.", "kr", "kr.", "Fr.", "zł", "Kč", "Ft",
})  # fmt: skip
_MEASURES = frozenset({
    "mg", "g", "kg", "lb", "lbs", "oz", "mm", "cm", "m", "km", "mi", "ft", "l", "ml", "dl", "kW", "Wh", "kWh", "MWh", "Hz",
    "ms", "s", "min", "h", "bpm", "mmHg", "m²", "m³", "km/h", "mg/dl", "mg/dL", "mmol/l", "mmol/L", "pt", "px", "kB", "MB",
    "GB", "cal", "kcal", "kJ",
})  # fmt: skip
_LETTERS = re.compile(r"[^\W\d_]{1,8}(?:/[^\W\d_]{1,8})?[²³]?")
_NUMBER = re.compile(rf"\d(?:[\d.,'{SPACES}]*\d)?(?:[eE][+-]?\d+)?")
_MINUS = "-\u2212"
# Different numbers from which letters behind them are a unit and no part of a code; so many decimals are, too.
_FEWEST = 8


@dataclass(frozen=True)
class Amounts:
    """Texts of numbers without their unit.

    Args:
        bare: the texts (n,), each with a minus in front where it is negative.
        unit, negative: the keys of a schema; None for none, and for a minus in front of all.
    """

    bare: pa.Array
    unit: str | None
    negative: str | None

    @property
    def fields(self) -> dict[str, str]:
        """The keys of a schema."""
        return {key: value for key, value in (("unit", self.unit), ("negative", self.negative)) if value is not None}


def likely_amounts(texts: pa.Array) -> Amounts:
    """Return texts without the one unit that all of them have; as they are where they have none, or several.

    Example:
        >>> found = likely_amounts(pa.array(["334,59 €", "(12 €)"]))
        >>> found.bare.to_pylist(), found.fields
        (['334,59', '-12'], {'unit': '1 €', 'negative': '(1 €)'})
        >>> likely_amounts(pa.array(["-5", "5 lb"])).fields, likely_amounts(pa.array(["3A", "4A"])).fields
        ({}, {})
    """
    parted = [_parted(text) for text in texts.to_pylist()]
    plain = Amounts(texts, None, None)
    if not parted or any(one is None for one in parted):
        return plain
    unit = _one_of(unit for _, unit, _ in parted)
    negative = _one_of(negative for _, _, negative in parted if negative is not None)
    if not unit or negative == "" or (unit == BARE and negative in (None, "-1")):
        return plain
    if negative is not None and negative not in negatives_of(unit):
        negative = next((one for one in negatives_of(unit) if _tight(one) == _tight(negative)), "")
    if problem_of_unit(unit, negative) or not _is_unit(unit, [number for number, _, _ in parted]):
        return plain
    bare = [f"{'-' * (minus is not None)}{number}" for number, _, minus in parted]
    return Amounts(pa.array(bare), None if unit == BARE else unit, None if negative == f"-{unit}" else negative)


def several_units(texts: pa.Array) -> list[str]:
    """Return the units of texts of numbers that have no one unit, all of them known ones; an empty list for other texts.

    Example:
        >>> several_units(pa.array(["5 kg", "5 lb", "7"])), several_units(pa.array(["1st", "2nd"]))
        (['1 kg', '1 lb', '1'], [])
    """
    parted = [_parted(text) for text in texts.to_pylist()]
    units = {_tight(one[1]): one[1] for one in parted if one is not None}
    if any(one is None for one in parted) or len(units) < 2:
        return []
    return list(units.values()) if all(map(_is_known, units.values())) else []


def is_missing_word(text: str) -> bool:
    """Tell whether a text is a word by which programs and people say that a value is missing.

    Example:
        >>> [is_missing_word(text) for text in ("NA", "n/a", "-", "no", "0", "Nan")]
        [True, True, True, False, False, True]
    """
    return text.strip().lower() in _MISSING


def is_total(text: str) -> bool:
    """Tell whether a text names a row of sums.

    Example:
        >>> is_total("Total:"), is_total("total eclipse")
        (True, False)
    """
    return text.strip().rstrip(":").strip().lower() in _TOTALS


def _parted(text: str) -> tuple[str, str, str | None] | None:
    """Return the number of a text, the number 1 with its unit, and -1 where it is negative; None for no number."""
    text = text.strip()
    match = _NUMBER.search(text)
    if match is None or any(sign.isdecimal() for sign in text[match.end() :]):
        return None
    before, number, after = text[: match.start()], match[0], text[match.end() :]
    # A point before the digits is that of decimals, but behind letters that of an abbreviation.
    if before.endswith((".", ",")) and not before[-2:-1].isalpha():
        before, number = before[:-1], before[-1] + number
    if after in (".", ","):
        number, after = number + after, ""
    unit, negative = f"{before}1{after}", None
    if before.startswith("+"):
        unit = f"{before[1:]}1{after}"
    elif before.startswith("(") and after.endswith(")"):
        unit, negative = f"{before[1:]}1{after[:-1]}", unit
    elif before.endswith("(") and after.startswith(")"):
        unit, negative = f"{before[:-1]}1{after[1:]}", unit
    elif before and (before[0] in _MINUS or before[-1] in _MINUS):
        unit, negative = f"{before.strip(_MINUS)}1{after}", unit
    elif after and after not in (",-", ".-") and (after[0] in _MINUS or after[-1] in _MINUS):
        unit, negative = f"{before}1{after.strip(_MINUS)}", unit
    return number, unit.strip(), negative


def _one_of(spelled: object) -> str | None:
    """Return the usual spelling of the one text that all are but for spaces; "" for several, and None for none."""
    counts = Counter(spelled)
    if len({_tight(text) for text in counts}) > 1:
        return ""
    return counts.most_common(1)[0][0] if counts else None


def _tight(text: str) -> str:
    return re.sub(f"[{SPACES}]", "", text)


def _sides(unit: str) -> list[str]:
    return [side.strip(SPACES) for side in unit.split("1", 1)]


def _is_known(unit: str) -> bool:
    """Tell whether a unit is a sign, a currency or a measure that many tables have."""
    before, after = _sides(unit)
    return (not before or before in _CURRENCIES or _is_sign(before)) and (
        not after or after in _CURRENCIES | _MEASURES or _is_sign(after)
    )


def _is_sign(side: str) -> bool:
    side = re.sub(r"^[A-Z]{1,2}(?=\W)|(?<=°)[CF]$|^[.,][-\u2013\u2014]$", "", side)
    return all(sign in "%\u2030°" or unicodedata.category(sign) == "Sc" for sign in side)


def _is_unit(unit: str, numbers: list[str]) -> bool:
    """Tell whether what stands beside numbers is a unit, and not a part of codes such as A1 or 3rd."""
    if any(re.match(r"0\d", number) for number in numbers):
        return False
    before, after = _sides(unit)
    # A letter behind few whole numbers is a part of a code more often.
    if not (len(after) == 1 and after.isalpha()) and _is_known(unit):
        return True
    amounts = any(re.search(r"[.,]", number) for number in numbers) or len(set(numbers)) >= _FEWEST
    return not before and amounts and _LETTERS.fullmatch(after) is not None


_MARKS = ("#", "//", "%", "!")
_SEPARATORS = ";\t|"
_LINES = 200
# Lines above the header in which exports tell what a table is.
_MOST_ABOVE = 50
# The last lines, among which sums stand.
_LAST = 3


@dataclass(frozen=True)
class Rows:
    """The signs by which the rows of a file of text are told from other lines.

    Args:
        separator: between fields.
        skip_rows, comment: as a schema declares them.
    """

    separator: str
    skip_rows: int = 0
    comment: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, int | str | list[str]]:
        """The keys of a schema, but for the separator."""
        marks = self.comment[0] if len(self.comment) == 1 else list(self.comment)
        return ({"skip_rows": self.skip_rows} if self.skip_rows else {}) | ({"comment": marks} if marks else {})


def likely_rows(path: Path, charset: str) -> Rows:
    """Return how the rows of a file of text are told from a title, comments and sums.

    Raises:
        BadRecords: if it cannot be unpacked.
    """
    lines = first_bytes(path).decode(charset, errors="ignore").removeprefix("\ufeff").splitlines()[:_LINES]
    last = last_bytes(path).decode(charset, errors="ignore").splitlines()[-_LAST:]
    return _rows_among(lines, last, default_separator(path))


def _rows_among(lines: list[str], last: list[str], separator: str) -> Rows:
    """Return the same of the first and the last lines of a file.

    Example:
        >>> _rows_among(["Visits 2023", "", "a;b;c", "1;2;3", "4;5;6"], ["4;5;6", "Total;7;9"], ",")
        Rows(separator=';', skip_rows=2, comment=('Total',))
        >>> _rows_among(["# by LIMS", "a,b", "1,2", "# note", "3,4"], ["3,4"], ",")
        Rows(separator=',', skip_rows=0, comment=('#',))
        >>> _rows_among(["##v1", "#id,b", "1,2", "3,4"], ["3,4"], ",")
        Rows(separator=',', skip_rows=1, comment=())
    """
    first = next((line for line in lines if line.strip()), "")
    mark = next((mark for mark in _MARKS if first.startswith(mark)), "")
    rows = [line for line in lines if line.strip() and not (mark and line.startswith(mark))]
    usual = {sign: _usual_count(rows, sign) for sign in dict.fromkeys((separator, *_SEPARATORS))}
    # A comma before decimals is in each record, and not in the names above them.
    places = {sign: _first_of(rows, sign, count) for sign, count in usual.items() if count > 1}
    separator = min(places, key=places.__getitem__, default=separator)
    count = usual[separator]
    sums = dict.fromkeys(_split(line, separator)[0].strip() for line in last if line.strip() and line[0] not in '" ')
    totals = tuple(text for text in sums if is_total(text))
    if mark:
        marked = [place for place, line in enumerate(lines) if line.startswith(mark)]
        # The names themselves begin so in files of genes and the like, in the last line before the records.
        last_above = next(place for place in marked if place + 1 not in marked)
        fields = list(map(partial(_split, separator=separator), [lines[last_above], *rows]))
        if len(fields[0]) != count or count == 1 or (len(fields) > 2 and _are_names(fields[1], fields[2:])):
            return Rows(separator, 0, (mark, *totals))
        return Rows(separator, last_above, totals)
    return Rows(separator, title_rows([_split(line, separator) for line in lines], count), totals)


def title_rows(rows: list[list[str]], count: int) -> int:
    """Return the number of rows above the one with the names of the columns; 0 where it is not plain that it has names.

    Args:
        rows: their fields.
        count: the fields of most of them.

    Example:
        >>> title_rows([["Visits 2023"], [""], ["day", "cost"], ["1", "5"], ["2", "7"]], 2)
        2
        >>> title_rows([["who"], ["Smith", "John"], ["Brown", "Ann"]], 2)
        0
    """
    for place, fields in enumerate(rows[:_MOST_ABOVE]):
        full = sum(bool(field.strip()) for field in fields)
        if len(fields) == count and 2 * full > count and (full > 1 or count == 1):
            above = [row for row in rows[:place] if any(field.strip() for field in row)]
            return place if above and _are_names(fields, rows[place + 1 :]) else 0
    return 0


def _are_names(fields: list[str], below: list[list[str]]) -> bool:
    """Tell whether fields are names and no record, whose values would stand in a draft: those below have digits there."""
    with_digits = [
        2 * sum(len(row) == len(fields) and bool(re.search(r"\d", row[place])) for row in below) > len(below)
        for place in range(len(fields))
    ]
    digits = [bool(re.search(r"\d", field)) or is_missing_word(field) for field in fields]
    pairs = [(one, other) for one, other, name in zip(digits, with_digits, fields, strict=True) if name.strip()]
    return (False, True) in pairs and (True, True) not in pairs


def _first_of(lines: list[str], separator: str, count: int) -> int:
    """Return the place of the first line with so many fields."""
    return next((place for place, line in enumerate(lines) if len(_split(line, separator)) == count), len(lines))


def _usual_count(lines: list[str], separator: str) -> int:
    """Return the number of fields of most lines; 1 where lines differ."""
    counts = Counter(len(_split(line, separator)) for line in lines)
    most, times = counts.most_common(1)[0] if counts else (1, 0)
    return most if 2 * times > len(lines) else 1


def _split(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator), [""]) or [""]
    except csv.Error:
        return [line]


# Signs that no number as programs write them has.
_STRANGE = re.compile(r"[^\d.,'\seE+-]+")


def likely_keys(text: str, kind: str) -> list[str]:
    """Return what a schema may declare of a column of a type so that a text is one of its values, as YAML; each will do.

    Example:
        >>> likely_keys("28.02.2023", "date"), likely_keys("1.234,50", "number"), likely_keys("1,234", "integer")
        (['format: "%d.%m.%Y"'], ["decimal: ',' and thousands: '.'"], ["thousands: ','"])
        >>> likely_keys("8,21", "number"), likely_keys("unknown", "number")
        (["decimal: ','"], [])
        >>> print(*likely_keys("334,59 €", "number"), *likely_keys("02:54 PM", "time"))
        decimal: ',' and unit: "1 €" format: "%I:%M %p"
    """
    texts = pa.array([text])
    if kind in ("date", "datetime", "time"):
        forms = [*likely_moments(texts, kind), *likely_digits(texts)]
        return [f'format: "{form.format}"' for form in forms if form.kind == kind]
    if kind not in ("integer", "number"):
        return []
    amounts, scale = likely_amounts(texts), Integers() if kind == "integer" else Decimals()
    unit = [f'{key}: "{value}"' for key, value in amounts.fields.items()]
    bare, text = amounts.bare, amounts.bare[0].as_py()
    declarations = [unit] if unit and reads(scale, bare) else []
    for form in (NumberForm(","), *SIGNS):
        parted = holds_thousands(bare, form) if form.thousands else False
        # A sign that the text has not is needed only where the other sign takes its usual place.
        useless = form.decimal == "," and "," not in text and form.thousands != "."
        if parted != bool(form.thousands) or useless or not form.fits(bare).all() or not reads(scale, form.read(bare)):
            continue
        quote = '"' if form.thousands == "'" else "'"
        keys = [f"decimal: '{form.decimal}'"] * (form.decimal != ".")
        declarations.append([*keys, *[f"thousands: {quote}{form.thousands}{quote}"] * parted, *unit])
    return [" and ".join(keys) for keys in declarations]


def likely_advice(text: str, *kinds: str) -> str:
    """Return what to declare of a text that was refused in a column of one of these types; "" where nothing is likely.

    Example:
        >>> likely_advice("n/a", "number")
        'if it says that a value is missing, declare missing: true and missing_values: ["n/a"] in the schema'
        >>> print(likely_advice("5 €", "integer", "number"))
        if it is written so, declare unit: "1 €" in the schema ('€' is not understood)
        >>> likely_advice("Bonn", "category")
        ''
    """
    if is_missing_word(text):
        said = text if "\\" not in text else text.replace("\\", "\\\\")
        return f'if it says that a value is missing, declare missing: true and missing_values: ["{said}"] in the schema'
    if is_total(text):
        return f'if the row is a sum of others and no record, declare comment: "{text}" in the schema'
    keys = dict.fromkeys(key for kind in kinds for key in likely_keys(text, kind))
    if not keys:
        return ""
    strange = _STRANGE.search(text) if any("unit" in key or "negative" in key for key in keys) else None
    named = "" if strange is None else f" ({strange[0]!r} is not understood)"
    return f"if it is written so, declare {' or '.join(keys)} in the schema{named}"


def with_likely_keys(misfit: Misfit, values: pa.Array, kind: str) -> Misfit:
    """Return the refusal of a value of a column of a type with the advice of what a schema may declare of its form."""
    text = values[misfit.row].as_py() if misfit.row is not None and pa.types.is_string(values.type) else None
    advice = "" if text is None else likely_advice(text, kind)
    return Misfit(misfit.row, misfit.problem, advice) if advice else misfit

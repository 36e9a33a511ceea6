"""Units that probably stand beside numbers, and words for a missing value or a total: for drafts and for messages."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa

from lightning_dpgen.data.tables.written_form import BARE, SPACES, negatives_of, problem_of_unit

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
        >>> likely_amounts(pa.array(["5 kg", "5 lb"])).fields, likely_amounts(pa.array(["3A", "4A"])).fields
        ({}, {})
    """
    parted = [_parted(text) for text in texts.to_pylist()]
    plain = Amounts(texts, None, None)
    if not parted or any(one is None for one in parted):
        return plain
    unit = _one_of(unit for _, unit, _ in parted)
    negative = _one_of(negative for _, _, negative in parted if negative is not None)
    if unit is None or negative == "" or (unit == BARE and negative in (None, "-1")):
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
    found = _NUMBER.search(text)
    if found is None or any(sign.isdecimal() for sign in text[found.end() :]):
        return None
    before, number, after = text[: found.start()], found[0], text[found.end() :]
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

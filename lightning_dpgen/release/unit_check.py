"""The unit of privacy in words where it is a person, and the check of a certificate's unit against what is declared."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

# Records by any name: in the plural a unit has several, however they are counted.
_RECORDS = {"records", "rows", "entries", "lines", "observations", "samples", "examples", "instances", "contributions"}
_NUMBERS = {
    "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "fifteen", "twenty",
    "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "hundred", "hundreds", "thousand",
    "thousands", "million", "millions", "dozen", "dozens", "couple",
}  # fmt: skip
_BOUNDS = {"most", "max", "maximum", "up", "than", "less", "fewer", "limited", "unlimited", "unbounded", "≤", "<=", "<"}
_SEVERAL = {
    "all", "every", "each", "several", "many", "multiple", "numerous", "various", "both", "few", "number", "their",
    "his", "her", "its",
}.union(_BOUNDS)  # fmt: skip
# A number behind these counts what the unit is one of, or says when and where.
_OF = {"of", "in", "from", "among", "since", "until", "between", "and"}
# A number of these is a length or an age.
_TIMES = {"seconds", "minutes", "hours", "days", "nights", "weeks", "months", "quarters", "years"}
_SINGULAR = {
    "series", "species", "census", "analysis", "diagnosis", "basis", "status", "bus", "campus", "corpus", "virus",
    "news", "gas", "this", "his", "its",
}  # fmt: skip
_PLURAL = {"data", "people", "children", "men", "women"}
# The words behind a number among which its plural may stand, as in "all of their medical records".
_NEAR = 4
_APOSTROPHES = "['\u2019]"
_WORD = re.compile(rf"[^\W\d_]+(?:{_APOSTROPHES}[^\W\d_]+)?|\d[\d.,]*|<=|[≤<]")


def unit_of_persons(most: int) -> str:
    """Return the unit of a run in which at most so many records of a person take part.

    Example:
        >>> unit_of_persons(4)
        'one person with at most 4 records'
    """
    return f"one person with at most {most} record{'s' if most > 1 else ''}"


def counts_persons(certificate: Mapping[str, Any]) -> bool:
    """Return whether a record is a person with all rows, and so is the unit, unless a setting calls it by another name."""
    return certificate["declared"].get("data") == "histories" and certificate["unit"].startswith("one person")


def protects_persons(certificate: Mapping[str, Any]) -> bool:
    """Return whether the unit is a person with all records that took part.

    Example:
        >>> protects_persons({"unit": "one person with at most 3 records", "declared": {"max_rows": 3}})
        True
        >>> [protects_persons({"unit": unit, "declared": {"data": "histories"}}) for unit in ("one person", "one firm")]
        [True, False]
    """
    return "max_rows" in certificate["declared"] or counts_persons(certificate)


def promises_records(unit: str) -> bool:
    """Return whether a unit promises, in English words, several records of whatever it is one of, or a bound of them.

    Only settings keep such a promise. It is found in any case, any spaces and any form that Unicode has of a character: a
    plural word for records; or a word for several or for a bound, or a number from 2, with a plural behind it. A word of
    letters of two alphabets is none that people can read, and counts as a promise, too.

    Example:
        >>> promises_records("one person, with up to 40 records"), promises_records("One  customer and ALL their visits")
        (True, True)
        >>> promises_records("one household"), promises_records("one patient's stay of 2 days")
        (False, False)
    """
    text = unicodedata.normalize("NFKC", unit)
    text = "".join(c for c in text if unicodedata.category(c) != "Cf").casefold()
    words = [re.sub(f"{_APOSTROPHES}s?$", "", word) for word in _WORD.findall(text)]
    if any(word in _RECORDS or _has_two_alphabets(word) for word in words):
        return True
    # The bound of a run in which a person has one record, too.
    if "record" in words and _BOUNDS & set(words):
        return True
    for place, word in enumerate(words):
        behind = words[place + 1 : place + 1 + _NEAR]
        before = words[place - 1] if place else ""
        if word in ("every", "each") or (word in _SEVERAL and any(map(_is_plural, behind))):
            return True
        if _is_number(word) and before not in _OF and any(_is_plural(w) and w not in _TIMES for w in behind):
            return True
    return False


def check_unit(certificate: Mapping[str, Any], by_settings: bool, default: str | None = None) -> list[str]:
    """Check that the unit says of persons and their records what is declared of them.

    Other words are the curator's own, and nothing here tells whether they are true.

    Args:
        certificate: of a shape that was checked.
        by_settings: whether a run of the program has declared its settings in it, in which a unit of persons follows from
            the column of persons and the largest number of records.
        default: the unit that these settings have where none is given, which may say what rows a record is made of.

    Returns:
        What is wrong, a line each.
    """
    declared, unit = certificate["declared"], certificate["unit"]
    most, person = declared.get("max_rows"), declared.get("person")
    if by_settings and (person is None) != (most is None):
        return [
            f"declared: max_rows is {'missing' if most is None else 'there'} and person is "
            f"{'missing' if person is None else 'there'}, and settings have both or neither"
        ]
    due = None if most is None else unit_of_persons(most)
    if by_settings and due is not None and unit != due:
        return [f"unit: it is {unit[:200]!r}, and declared.person with declared.max_rows={most} make {due!r}"]
    if unit in (due, default) or not (by_settings or due is not None) or not promises_records(unit):
        return []
    if most is not None and set(re.findall(r"\d+", unit)) == {str(most)}:
        return []
    bound = "is missing, so nothing bounds a person's records" if most is None else f"is {most}"
    return [f"unit: it is {unit[:200]!r}, and declared.max_rows {bound}"]


def _is_plural(word: str) -> bool:
    ends = word.endswith("s") and not word.endswith("ss") and len(word) > 2
    return word in _PLURAL or (ends and word not in _SINGULAR)


def _is_number(word: str) -> bool:
    if word[0].isdigit():
        return re.sub("[.,]", "", word).lstrip("0") not in ("", "1")
    return word in _NUMBERS


def _has_two_alphabets(word: str) -> bool:
    """Return whether letters that look alike may stand for each other in a word."""
    return len({unicodedata.name(letter, "").split(" ")[0] for letter in word if letter.isalpha()}) > 1

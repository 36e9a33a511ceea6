"""The unit of privacy in words where it is a person, and the check of a certificate's unit against what is declared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Any number, so that none hides from the check by its form.
_OF_PERSONS = re.compile(r"one person with at most ([0-9,.]+) records?")


def unit_of_persons(most: int) -> str:
    """Return the unit of a run in which at most so many records of a person take part.

    Example:
        >>> unit_of_persons(4)
        'one person with at most 4 records'
    """
    return f"one person with at most {most} record{'s' if most > 1 else ''}"


def is_of_persons(unit: str) -> bool:
    """Return whether a unit has the words that only the settings of persons make.

    Example:
        >>> is_of_persons("one person with at most 40 records"), is_of_persons("one household")
        (True, False)
    """
    return _OF_PERSONS.fullmatch(unit.strip()) is not None


def check_unit(certificate: Mapping[str, Any], by_settings: bool) -> list[str]:
    """Check that the unit says of persons and their records what is declared of them.

    Other words are the curator's own, and nothing here tells whether they are true.

    Args:
        certificate: of a shape that was checked.
        by_settings: whether a run of the program has declared its settings in it, in which a unit of persons follows from
            the column of persons and the largest number of records.

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
    if is_of_persons(unit) and unit != due and (by_settings or due is not None):
        bound = "is missing, so nothing bounds a person's records" if most is None else f"is {most}"
        return [f"unit: it is {unit[:200]!r}, and declared.max_rows {bound}"]
    return []

"""The label of pictures, baskets and series: as a condition on records, and the names of its choices."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lightning_dpgen.data.names import Name, one_of, positions, shown

LABEL = "label"


def label_is(classes: tuple[Name, ...], column: str, value: Any) -> tuple[int, frozenset[int]]:
    """Return the group, and those of its choices, that say that the label has a value; see `Schema.where`.

    Args:
        classes: the values of the label; empty without a label.
        column: of a synthetic table.
        value: as text, or as the classes are.

    Raises:
        ValueError: for another column, or a value that is no class.

    Example:
        >>> label_is(("day", "night"), "label", "night")
        (0, frozenset({1}))
    """
    if not classes:
        raise ValueError(f"column {shown(column)}: the records have no label, on which a condition could be set")
    if column != LABEL:
        raise ValueError(f"column {shown(column)}: a condition can be set on the column {LABEL!r} alone")
    try:
        place = int(positions(classes, pa.array([value]))[0])
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        place = -1
    if place < 0:
        raise ValueError(f"column {LABEL!r}: {shown(value)}: expected {one_of(classes)}")
    return 0, frozenset({place})


def label_choices(classes: tuple[Name, ...]) -> dict[str, list[str]]:
    """Return the names of the choices of the label, if there is one; see `Schema.choices`.

    Example:
        >>> label_choices((1, 2)), label_choices(())
        ({'label': ['1', '2']}, {})
    """
    return {LABEL: list(map(str, classes))} if classes else {}

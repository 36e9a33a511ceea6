"""The universe of baskets: the items of a public list."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from lightning_dpgen.common.folders import place_of
from lightning_dpgen.common.strict_json import parse_json
from lightning_dpgen.data.baskets.schema import MOST_ITEMS
from lightning_dpgen.data.files.text import check_there, decoded
from lightning_dpgen.data.names import Name, public_names, shown
from lightning_dpgen.sampling.errors import BadRecords

NO_UNIVERSE = (
    "items: baskets need the list of all items that there may be, and which of them occur is private, so that "
    "reading the list off the data would be a leak: declare it, as in items=FILE or items=1..16470"
)
_ENDINGS = (".txt", ".csv", ".json")
_RANGE = re.compile(r"(-?\d{1,18})(\.\.|:)(-?\d{1,18})")
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
_MOST_BYTES = 1 << 26


def read_items(source: str | Path | None) -> tuple[Name, ...]:
    """Return the items that a public list declares.

    Args:
        source: ``1..16470``, whole numbers from the first to the last; ``0:16470``, the same as Python counts, the end left
            out; or a file: .txt with one item a line, .csv with one column, .json with a list. Where all lines are
            whole numbers, so are the items.

    Raises:
        MissingData: if there is no such file.
        BadRecords: for a list with an item twice, an empty one, or none; names the line.
        ValueError: for None: a universe is never read off the data; says what to do.

    Example:
        >>> read_items("1..4"), read_items("0:3")
        ((1, 2, 3, 4), (0, 1, 2))
    """
    if source is None or source == "":
        raise ValueError(NO_UNIVERSE)
    ends = _RANGE.fullmatch(str(source))
    if ends:
        return _between(int(ends[1]), int(ends[3]) - (ends[2] == ":"), str(source))
    # A number, as a command line may give it, is no list of one item.
    path = place_of(str(source))
    if path.suffix not in _ENDINGS:
        raise BadRecords(
            f"items={shown(str(source))}: expected whole numbers such as 1..16470, or a file that ends in "
            f"{', '.join(_ENDINGS)}"
        )
    check_there(path, "items")
    if path.stat().st_size > _MOST_BYTES:
        raise BadRecords(f"{path} is larger than {_MOST_BYTES >> 20} MiB: expected a list of at most {MOST_ITEMS:,} items")
    text = "".join(decoded(line, f"{path}, line {i}") for i, line in enumerate(path.read_bytes().splitlines(True), 1))
    text = text.removeprefix("\ufeff")
    if path.suffix == ".json":
        items = _json(path, text)
    else:
        items = _lines(path, text)
    try:
        return public_names(str(path), items, 1, MOST_ITEMS)
    except ValueError as error:
        # Places are lines, since only empty lines at the end are passed over.
        raise BadRecords(str(error) if path.suffix == ".json" else str(error).replace("(place", "(line")) from None


def _between(first: int, last: int, source: str) -> tuple[int, ...]:
    if not 0 <= last - first < MOST_ITEMS:
        raise BadRecords(f"items={shown(source)}: expected 1 to {MOST_ITEMS:,} items, the smallest first")
    return tuple(range(first, last + 1))


def _json(path: Path, text: str) -> list:
    try:
        items = parse_json(text.encode())
    except ValueError as error:
        raise BadRecords(f"{path}: {error}") from None
    if not isinstance(items, list):
        raise BadRecords(f"{path} holds a {type(items).__name__}: expected a list of items")
    return items


def _lines(path: Path, text: str) -> list:
    lines = text.rstrip().split("\n")
    if path.suffix == ".csv":
        try:
            rows = list(csv.reader(lines))
        except csv.Error as error:
            raise BadRecords(f"{path} cannot be read as CSV: {str(error)[:100]}") from None
        for place, row in enumerate(rows, 1):
            if len(row) != 1:
                raise BadRecords(f"{path}, line {place}: found {len(row)} fields, expected one item in each line")
        lines = [row[0] for row in rows]
    items = [line.strip() for line in lines]
    return [int(item) for item in items] if all(_WHOLE.fullmatch(item) for item in items) else items

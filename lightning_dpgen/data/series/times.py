"""The times of a series: declared ones, as text, and the places of a file's own among them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.names import Name, plain, positions, shown, whole_numbers

DAY = 86_400
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_EPOCH = datetime.datetime(1970, 1, 1)
_SECOND = datetime.timedelta(seconds=1)


def read_steps(source: str | Sequence[Name], length: int) -> tuple[str, ...]:
    """Return the times that a public declaration gives.

    Args:
        source: a list, or ``FIRST..LAST``: as many as the length says, evenly spaced; both are whole numbers, times of day
            (``00:30``), dates or moments in ISO form.
        length: how many there are.

    Raises:
        ValueError: for anything else.

    Example:
        >>> read_steps("1980..1986", 4), read_steps("00:00..18:00", 4)
        (('1980', '1982', '1984', '1986'), ('00:00', '06:00', '12:00', '18:00'))
        >>> read_steps("2024-02-28..2024-03-01", 3)
        ('2024-02-28', '2024-02-29', '2024-03-01')
    """
    if not isinstance(source, str):
        return tuple(str(step) if type(step) is int else step for step in source)
    first, _, last = (part.strip() for part in source.partition(".."))
    for number, written in _KINDS:
        ends = number(first), number(last)
        if None in ends:
            continue
        apart = ends[1] - ends[0]
        if (apart == 0) if length == 1 else (apart > 0 and apart % (length - 1) == 0):
            each = apart // (length - 1) if length > 1 else 0
            return tuple(written(ends[0] + i * each, first) for i in range(length))
    raise ValueError(
        f"steps={shown(source)}: expected {length} times in a list, or FIRST..LAST, between which {length} are evenly "
        "spaced: whole numbers (1980..1987), times of day (00:00..23:30), dates or moments"
    )


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"0|-?[1-9]\d{0,17}", text) else None


def _clock(text: str) -> int | None:
    match = _CLOCK.fullmatch(text)
    return None if match is None else int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3] or 0)


def _written_clock(seconds: int, like: str) -> str:
    whole = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}"
    return whole if len(like) == len(whole) and seconds % 60 == 0 else f"{whole}:{seconds % 60:02d}"


def _day(text: str) -> int | None:
    try:
        return (datetime.date.fromisoformat(text) - _EPOCH.date()).days if len(text) == 10 else None
    except ValueError:
        return None


def _moment(text: str) -> int | None:
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if found.tzinfo is not None or found.microsecond else (found - _EPOCH) // _SECOND


def _written_moment(seconds: int, like: str) -> str:
    moment = _EPOCH + seconds * _SECOND
    return moment.isoformat(like[10:11] or " ", "minutes" if len(like) == 16 and not moment.second else "seconds")


# Each kind of time: its number, and a text of a number like the first one.
_KINDS: tuple[tuple[Callable[[str], int | None], Callable[[int, str], str]], ...] = (
    (_whole, lambda number, _: str(number)),
    (_clock, _written_clock),
    (_day, lambda days, _: (_EPOCH.date() + datetime.timedelta(days)).isoformat()),
    (_moment, _written_moment),
)


def clock_seconds(steps: Sequence[str]) -> np.ndarray | None:
    """Return times of day as seconds from midnight (length,), if all are such and each is after the one before.

    Example:
        >>> clock_seconds(("00:00", "12:30")), clock_seconds(("spring", "autumn"))
        (array([    0, 45000]), None)
    """
    found = [_clock(step) for step in steps]
    if not found or None in found:
        return None
    seconds = np.array(found)
    return seconds if (np.diff(seconds) > 0).all() else None


def steps_array(steps: Sequence[str]) -> pa.Array:
    """Return times as a column of a file has them: whole numbers where all are, or else text."""
    texts = pa.array(steps, pa.string())
    numbers = whole_numbers(texts)
    return texts if numbers.null_count else numbers


def places_of_times(steps: tuple[str, ...], values: pa.Array) -> np.ndarray:
    """Return the place of each value of a column among the declared times: (n,) int64, -1 for any other.

    Example:
        >>> places_of_times(("1980", "1981"), pa.array([1981, 1979]))
        array([ 1, -1])
    """
    values = plain(values)
    kind = values.type
    if pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
        try:
            known = pa.array(steps, pa.string()).cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            return np.full(len(values), -1)
        at = pc.index_in(values.cast(pa.timestamp("us"), safe=False), value_set=known, skip_nulls=True)
        return pc.fill_null(at, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_time(kind):
        values = pa.array([value and value.isoformat() for value in values.to_pylist()], pa.string())
        steps = tuple(f"{step}:00" if len(step) == 5 and _clock(step) is not None else step for step in steps)
    return positions(steps, values)

"""The form in which files hold series, their times as text, and the names of channels and times as columns say them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.names import FileForm, Name, plain, positions, quote, whole_numbers

FORMS = ("wide", "long")
# Ways to tell days of the week apart: the names of the classes, and the class of each day from Monday on.
WEEKDAYS = {
    "each": (("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"), (0, 1, 2, 3, 4, 5, 6)),
    "weekend": (("Monday to Friday", "weekend"), (0, 0, 0, 0, 0, 1, 1)),
}


@dataclass(frozen=True)
class SeriesForm(FileForm):
    """The form in which series are written.

    Args:
        form: ``wide``, one series a row; or ``long``, one time a row.
        header: whether the first line of a text file names the columns; None: it does, and numbers are refused there, since
            a series would be lost if they were one. Without names a wide file has the label first, where the schema has
            classes, then the readings, and a long file cannot be read.
        separator: between fields; None for what goes with the ending.
        columns: of the readings: in a wide file one for each reading, by time and then channel; in a long one for each
            channel. None: the schema's own (``t_0``..., its steps, its channels) where they are there, or else all that
            are left.
        label, person: names of columns. A series of a long file is of one person: rows of two persons are never of one
            series, whatever else they have in common.
        by: long: the column whose values tell series apart.
        day: long: a column of time stamps (ISO, without a zone); the readings of one date make a series, ordered by time.
            Without `by`, `day` and `person` each `length` rows make a series, in the order of the file; a person goes
            with at least one of the other two.
        time: long, with `by`: the column of times within a series, each of which has all of the schema's steps, in any
            order of its rows. Without it, they stand in the order of the file.
        weekdays: long, with `day`: the label is the day of the week, ``each`` of them or ``weekend`` and all others
            (`WEEKDAYS` has the classes).

    Raises:
        ValueError: for anything else.
    """

    # The column of persons is in none of a release's files.
    kept: ClassVar[tuple[str, ...]] = ("form", "header", "separator", "columns", "label", "by", "day", "time", "weekdays")

    form: str = "wide"
    header: bool | None = None
    separator: str | None = None
    columns: Sequence[str] | None = None
    label: str = "label"
    person: str | None = None
    by: str | None = None
    day: str | None = None
    time: str | None = None
    weekdays: str | None = None

    def __post_init__(self) -> None:
        if self.weekdays is not None and (self.weekdays not in WEEKDAYS or self.day is None):
            raise ValueError(
                f"weekdays={quote(self.weekdays)} day={quote(self.day)}: expected {' or '.join(WEEKDAYS)}, and the column "
                "of times, or neither"
            )
        if self.form not in FORMS:
            raise ValueError(f"form={quote(self.form)}: expected {' or '.join(FORMS)}")
        columns = () if self.columns is None else self.columns
        if not isinstance(columns, list | tuple) or not all(isinstance(name, str) for name in columns):
            raise ValueError(f"columns={quote(self.columns)}: expected a list of names")
        if len(set(columns)) < len(columns) or (self.columns is not None and not columns):
            raise ValueError(f"columns={quote(self.columns)}: expected each name once, and at least one")
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(columns))
        if self.form == "wide" and (self.by is not None or self.day is not None):
            raise ValueError(
                f"by={quote(self.by)} day={quote(self.day)}: apply only to long files; expected form=long, or neither"
            )
        if self.time is not None and (self.form == "wide" or self.by is None or self.day is not None):
            raise ValueError(
                f"time={quote(self.time)}: expected form=long and by, the column that identifies the series, without day, "
                "which has the times"
            )
        if self.form == "long" and self.person is not None and self.by is None and self.day is None:
            raise ValueError(
                f"person={quote(self.person)} with neither by nor day: series cut by the order of rows alone would shift "
                "with each row of another person; name the column that identifies the series (by), or the column of "
                "times (day)"
            )
        for name in ("label", "person", "by", "day", "time", "separator"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"{name}={quote(getattr(self, name))}: of a file or table, expected text, such as a name")
        if self.separator is not None and (len(self.separator.encode()) != 1 or self.separator in '"\r\n'):
            raise ValueError(f"separator={quote(self.separator)}: expected one character")
        if not isinstance(self.header, bool | None):
            raise ValueError(f"header={quote(self.header)}: expected true or false")
        if self.header is False and (self.form == "long" or self.columns is not None or self.person is not None):
            raise ValueError("header=False: expected a wide file, and no columns or person, which are found by their names")


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
        f"steps={quote(source)}: expected {length} times in a list, or FIRST..LAST, between which {length} are evenly "
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
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is not None or moment.microsecond else (moment - _EPOCH) // _SECOND


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
    clocks = [_clock(step) for step in steps]
    if not clocks or None in clocks:
        return None
    seconds = np.array(clocks)
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


_BETWEEN = "_."


def words_of(channels: tuple[str, ...], written: SeriesForm) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of channels, and of times where columns say them: none otherwise.

    Example:
        >>> words_of(("value",), SeriesForm(columns=("lwage_1980", "lwage_1981")))
        (('lwage',), ('1980', '1981'))
        >>> words_of(("a", "b"), SeriesForm(columns=("a0", "b0", "a1", "b1")))
        (('a', 'b'), ('0', '1'))
        >>> words_of(("value",), SeriesForm(columns=("spring", "autumn")))
        (('value',), ('spring', 'autumn'))
    """
    if written.columns is None or written.form == "long":
        return tuple(written.columns or channels), ()
    count = len(channels)
    parts = [_parts(written.columns[i::count], channel) for i, channel in enumerate(channels)]
    if all(times == parts[0][1] for _, times in parts):
        return tuple(name for name, _ in parts), parts[0][1]
    return channels, ()


def _parts(columns: Sequence[str], channel: str) -> tuple[str, tuple[str, ...]]:
    """Return the name of a channel, and its times."""
    common = commonprefix(columns)  # noqa: RUF071
    # A prefix of numbers is a part of the times, such as of dates.
    begins = common[: max(map(common.rfind, _BETWEEN)) + 1]
    name = channel if common.startswith(channel) else begins.rstrip(_BETWEEN)
    times = tuple(column.removeprefix(name).lstrip(_BETWEEN) for column in columns)
    if len(columns) == 1 or not any(map(str.isalpha, name)) or not all(times):
        return channel, tuple(columns)
    return name, times

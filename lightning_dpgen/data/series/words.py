"""The names of channels and times, as the columns of a file say them."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix

from lightning_dpgen.data.series.form import SeriesForm

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

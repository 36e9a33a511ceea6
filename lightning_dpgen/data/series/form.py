"""The form in which files hold series: one series a row (wide), or one time a row (long)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightning_dpgen.data.names import check_written, kept_fields, shown

FORMS = ("wide", "long")
# Ways to tell days of the week apart: the names of the classes, and the class of each day from Monday on.
WEEKDAYS = {
    "each": (("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"), (0, 1, 2, 3, 4, 5, 6)),
    "weekend": (("Monday to Friday", "weekend"), (0, 0, 0, 0, 0, 1, 1)),
}
# The settings of a form that a release keeps; the column of persons is in none of its files.
_KEPT = ("form", "header", "separator", "columns", "label", "by", "day", "time", "weekdays")


@dataclass(frozen=True)
class SeriesForm:
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
                f"weekdays={shown(self.weekdays)} day={shown(self.day)}: expected {' or '.join(WEEKDAYS)}, and the column "
                "of times, or neither"
            )
        if self.form not in FORMS:
            raise ValueError(f"form={shown(self.form)}: expected {' or '.join(FORMS)}")
        columns = () if self.columns is None else self.columns
        if not isinstance(columns, list | tuple) or not all(isinstance(name, str) for name in columns):
            raise ValueError(f"columns={shown(self.columns)}: expected a list of names")
        if len(set(columns)) < len(columns) or (self.columns is not None and not columns):
            raise ValueError(f"columns={shown(self.columns)}: expected each name once, and at least one")
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(columns))
        if self.form == "wide" and (self.by is not None or self.day is not None):
            raise ValueError(
                f"by={shown(self.by)} day={shown(self.day)}: apply only to long files; expected form=long, or neither"
            )
        if self.time is not None and (self.form == "wide" or self.by is None or self.day is not None):
            raise ValueError(
                f"time={shown(self.time)}: expected form=long and by, the column that identifies the series, without day, "
                "which has the times"
            )
        if self.form == "long" and self.person is not None and self.by is None and self.day is None:
            raise ValueError(
                f"person={shown(self.person)} with neither by nor day: series cut by the order of rows alone would shift "
                "with each row of another person; name the column that identifies the series (by), or the column of "
                "times (day)"
            )
        for name in ("label", "person", "by", "day", "time", "separator"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"{name}={shown(getattr(self, name))}: of a file or table, expected text, such as a name")
        if self.separator is not None and (len(self.separator.encode()) != 1 or self.separator in '"\r\n'):
            raise ValueError(f"separator={shown(self.separator)}: expected one character")
        if not isinstance(self.header, bool | None):
            raise ValueError(f"header={shown(self.header)}: expected true or false")
        if self.header is False and (self.form == "long" or self.columns is not None or self.person is not None):
            raise ValueError("header=False: expected a wide file, and no columns or person, which are found by their names")

    def as_json(self) -> dict[str, Any]:
        """Return what a release keeps of it."""
        return kept_fields(self, _KEPT)

    @classmethod
    def from_json(cls, fields: Any) -> SeriesForm:
        """Return the form that `as_json` described.

        Raises:
            ValueError: for foreign fields, or what no form may hold.
        """
        check_written(fields, _KEPT)
        return cls(**fields)

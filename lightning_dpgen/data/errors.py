"""What is wrong with data, for the person who handed them over."""

from __future__ import annotations


class BadRecords(ValueError):
    """The records are not what the schema declares, or not kept in what lots can be drawn from."""


class MissingData(FileNotFoundError):
    """A data file is not where it is looked for."""

"""The error about records that no lot can be drawn from."""

from __future__ import annotations


class BadRecords(ValueError):
    """The records are not what the schema declares, or are kept in a form that no lot can be drawn from."""


# The cure for records of several lengths.
PAD = "records of unequal length are padded to one public length, with a mask, or their length, as a further column"

"""The error about records that no lot can be drawn from."""

from __future__ import annotations

# The cure for records of several lengths.
PAD = "records of unequal length are padded to one public length, with a mask, or their length, as a further column"


class BadRecords(ValueError):
    """The records are not what the schema declares, or are kept in a form that no lot can be drawn from."""


def describe_change(problem: str) -> str:
    """Return the message about records that were written to after they had been checked.

    Args:
        problem: what they no longer satisfy, without a number of theirs.
    """
    return f"the records were changed after they had been checked ({problem}): leave them as they are, or pass a copy"

"""The error about a data file that is not there."""

from __future__ import annotations


class MissingData(FileNotFoundError):
    """A data file is not where it is looked for."""

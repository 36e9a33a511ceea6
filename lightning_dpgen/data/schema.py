"""The interface of a description of records, whatever their kind."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.conditions import Condition, Said
from lightning_dpgen.data.layout import Encoded, Layout


class Schema(Protocol):
    """Public knowledge of a record, and the one way in which it is written as numbers and back.

    Each kind of data has a class of its own, beside the readers of its files. Everything in it is declared.

    Attributes:
        kind: its name in `as_json`.
    """

    kind: ClassVar[str]

    @property
    def layout(self) -> Layout:
        """The layout of a record as numbers."""

    @property
    def arrow(self) -> pa.Schema:
        """The columns of a table of synthetic records."""

    def decode(self, encoded: Encoded, random: np.random.Generator, before: int = 0) -> pa.RecordBatch:
        """Return records as a table of `arrow`, after `before` others; what was merged is told apart at random."""

    def condition(self, said: Said) -> Condition:
        """Return a condition on one column of `arrow`.

        Raises:
            ValueError: for one that no record can fulfil, or that makes no sense of the column.
        """

    @property
    def choices(self) -> dict[str, list[str]]:
        """The column of each group of the layout, in order, and the names of its choices."""

    def as_json(self) -> dict[str, Any]:
        """Return all that it declares, `kind` too, for a release."""

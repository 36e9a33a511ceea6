"""What a description of records has to offer, whatever kind of records they are."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.layout import Encoded, Layout


class Schema(Protocol):
    """What is publicly known of a record, and the one way in which it is written as numbers and back.

    A kind of data has a class of its own, with whatever reads its files. Everything in it is declared.

    Attributes:
        kind: its name in `as_json`.
    """

    kind: ClassVar[str]

    @property
    def layout(self) -> Layout:
        """How a record is written as numbers."""

    @property
    def arrow(self) -> pa.Schema:
        """Columns of a table of synthetic records."""

    def decode(self, encoded: Encoded, random: np.random.Generator, before: int = 0) -> pa.RecordBatch:
        """Records as a table of `arrow`, after so many `before`; what the encoding has merged is told apart at random."""

    def where(self, column: str, value: Any) -> tuple[int, frozenset[int]]:
        """The group of the layout, and those of its choices, that say that a column of `arrow` has a value.

        Args:
            column: its name.
            value: as text, or of the column's own type; None for missing.

        Raises:
            ValueError: if no choice says just that.
        """

    @property
    def choices(self) -> dict[str, list[str]]:
        """Of each group of the layout, in their order: its column, and what its choices are called."""

    def as_json(self) -> dict[str, Any]:
        """All that it declares, `kind` too, for a release."""

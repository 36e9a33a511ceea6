"""The base of all descriptions of records: what is publicly known of a record, and how it is written as numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.conditions import Condition, Said
from lightning_dpgen.data.layout import Encoded, Layout


class Schema(ABC):
    """Public knowledge of a record, and the one way in which it is written as numbers and back.

    Each kind of records has a class of its own, beside the readers of its files. Everything in it is declared. What tables,
    series or pictures alone have is empty here, so that the code that learns and draws asks for a property, never for a
    class; what else differs between kinds is in `data.kinds.Kind`.

    Attributes:
        kind: its name in `as_json`.
        axes: the lengths of the axes along which neighbours are alike, and last the number of channels, as units fill them;
            None where no two numbers are neighbours.
        label_given_rest: whether a label of generated records can be drawn anew given all their other choices.
        modelled, recorded, open: the columns of a table, as `TableSchema` has them.
        sheet: the name of the table in files that hold several.
        restricts: whether some decoded records are no records, since they break a constraint.
    """

    kind: ClassVar[str]
    label_given_rest: ClassVar[bool] = False

    axes: tuple[int, ...] | None = None
    modelled: Sequence[Any] = ()
    recorded: Sequence[Any] = ()
    open: Sequence[Any] = ()
    restricts: bool = False
    sheet: str | None = None

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The layout of a record as numbers."""

    @property
    @abstractmethod
    def arrow(self) -> pa.Schema:
        """The columns of a table of synthetic records."""

    @abstractmethod
    def decode(self, encoded: Encoded, random: np.random.Generator, before: int = 0) -> pa.RecordBatch:
        """Return records as a table of `arrow`, after `before` others; what was merged is told apart at random."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """Return all that it declares, `kind` too, for a release."""

    @classmethod
    @abstractmethod
    def from_json(cls, fields: Any) -> Self:
        """Return the schema that `as_json` described. Safe to call on what strangers have written.

        Raises:
            ValueError: for anything else.
        """

    def condition(self, said: Said) -> Condition:
        """Return a condition on one column of `arrow`.

        Raises:
            ValueError: for one that no record can fulfil, or that makes no sense of the column.
        """
        raise ValueError(f"column {said.column!r}: records of kind {self.kind} take no conditions")

    def check_together(self, conditions: Sequence[Said]) -> None:  # noqa: B027
        """Refuse conditions where it is sure that no record fulfils them all.

        Raises:
            ValueError: naming the column, or the constraint.
        """

    @property
    def dimensions(self) -> int:
        """The number of axes along which neighbours are alike: 2 of pictures, 1 of series, 0 of other records."""
        return 0 if self.axes is None else len(self.axes) - 1

    @property
    def choices(self) -> dict[str, list[str]]:
        """The column of each group of the layout, in order, and the names of its choices."""
        return {}

    @property
    def label_values(self) -> tuple[str, list[Any]]:
        """The name of the label, and its values in the order of their choices; none without a label."""
        return "label", []

    @property
    def relatives(self) -> Mapping[str, Any]:
        """The columns that are learned by their distance from another one."""
        return {}

    @property
    def made_up(self) -> Sequence[str]:
        """The names of columns that are made up anew in each synthetic record."""
        return ()

    @property
    def ungrouped(self) -> Mapping[str, Sequence[str]]:
        """The constraints that tell more values of a column apart than groups of its rare ones do, by its name."""
        return {}

    @property
    def constraint_texts(self) -> tuple[Sequence[str], Sequence[str]]:
        """The constraints that synthetic records keep, in words: declared ones, and those that noisy tables show."""
        return (), ()

    @property
    def record_bytes(self) -> int:
        """The bytes that a synthetic record takes in a file at most, but for long texts."""
        return 8 * (self.layout.units + len(self.layout.groups))

    @property
    def declared_alone(self) -> Self:
        """The same without what was found in released numbers: all of it was declared."""
        return self

    def impossible_pairs(self) -> list[tuple[int, int, np.ndarray]]:
        """Return two groups of the layout, and the pairs (a, b) of their choices that no record can have, bool."""
        return []

    def unlabelled(self) -> Schema | None:
        """Return the schema of the same records without their label; None where they cannot be read without it."""
        return None

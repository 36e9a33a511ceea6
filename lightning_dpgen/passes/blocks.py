"""Records in blocks: an ordered sequence of keys, and the records of each, read when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.sampling.lots import persons_of


class Blocks(Protocol):
    """Records of one schema, divided into blocks of which only a few are in memory.

    A pass may read blocks in any order, in several processes and more than once. An implementation can be pickled, and a
    copy of it in another process reads the same records.

    Attributes:
        schema: the public description of the records.
        keys: the names of the blocks, each once. A key says where a block begins in its source (a file and a row group, or
            a file and a place in bytes). It never tells a number of records.
    """

    schema: Schema
    keys: Sequence[str]

    def __len__(self) -> int:
        """Return the number of records; private."""

    def check_persons(self, max_rows: int) -> None:
        """Refuse blocks that do not say whose the records are, where a person may have several, or one with more.

        Raises:
            ValueError, BadRecords: as `sampling.lots.persons_of`.
        """

    def read(self, key: str) -> Records:
        """Return the records of a block, which are the same each time.

        Raises:
            BadRecords: for a block that cannot be read, naming it.
            OSError: from the disk.
        """


@dataclass(frozen=True, eq=False, repr=False)
class Slices:
    """Records in memory as blocks of so many rows, the last of which may be shorter.

    Args:
        records: private.
        rows: of a block.

    Raises:
        ValueError: for fewer rows than one.

    Example:
        >>> import numpy as np
        >>> from lightning_dpgen.data.layout import Encoded
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> records = Records(ImageSchema(1, 2, levels=1), Encoded(np.eye(2, dtype=np.uint8), np.zeros((2, 0), np.uint8)))
        >>> blocks = Slices(records, rows=1)
        >>> blocks.keys, blocks.read("slice 1").encoded.units
        (['slice 0', 'slice 1'], array([[0, 1]], dtype=uint8))
    """

    records: Records
    rows: int

    def __post_init__(self) -> None:
        if type(self.rows) is not int or self.rows < 1:
            raise ValueError(f"rows={self.rows!r}: expected a whole number, 1 or more")

    @property
    def schema(self) -> Schema:
        """The schema of the records."""
        return self.records.schema

    @property
    def keys(self) -> list[str]:
        """The names of the blocks, by their places."""
        return [f"slice {i}" for i in range(-(-len(self.records) // self.rows))]

    def __len__(self) -> int:
        return len(self.records)

    def check_persons(self, max_rows: int) -> None:
        """Refuse a person with more records, or an unknown one."""
        persons_of(self.records, None, max_rows)

    def read(self, key: str) -> Records:
        """Return the records of a block."""
        start = int(key.removeprefix("slice ")) * self.rows
        rows, own = slice(start, start + self.rows), self.records
        persons = None if own.persons is None else own.persons[rows]
        values = None if own.values is None else own.values[rows]
        return Records(own.schema, own.encoded[rows], persons, values)

"""Records of any kind as networks, splits and recipes take them, and tables and pictures as such records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.reading import Table, read_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.sampling.as_store import store_of
from lightning_dpgen.sampling.csr import check_csr, merge_entries, read_stretch
from lightning_dpgen.sampling.errors import BadRecords, describe_change
from lightning_dpgen.sampling.multi_hot import MultiHotStore
from lightning_dpgen.sampling.stores import ScaledStore, Steps, Store

if TYPE_CHECKING:
    from lightning_dpgen.data.histories.values import HistoryValues
    from lightning_dpgen.data.tables.values import TableValues

# The count of numbers that are written out at a time.
_AT_ONCE = 1 << 22


@dataclass(frozen=True, eq=False, repr=False)
class Records(Store):
    """Records of one schema. They stay as they are encoded; lots hold them written out as (B, width) float32 in [0, 1].

    Arrays are not copied, since they may be most of the memory. They are checked here, and each sum enforces its bound on
    the numbers that it adds up (docs/guarantees/sums.md, "What a bound rests on"). So what is written into them later
    changes results and no bound, or is refused where it is read.

    Args:
        schema: their public description.
        encoded: the records themselves.
        persons: (N,) whole numbers, the owner of each record; None where no person has several.
        values: of a table or of histories: the same records by their values, where something is computed of these.

    Raises:
        BadRecords: if they are not what the schema's layout says. The message names no record, so it may be shown.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> schema = ImageSchema(1, 2, levels=4, classes=2)
        >>> records = Records(schema, Encoded(np.array([[0, 4]], np.uint8), np.array([[1]], np.uint8)))
        >>> records.take(np.array([0]))
        tensor([[0., 1., 0., 1.]])
    """

    schema: Schema
    encoded: Encoded
    persons: np.ndarray | None = None
    values: TableValues | HistoryValues | None = None

    def __post_init__(self) -> None:
        layout, units, codes = self.schema.layout, self.encoded.units, self.encoded.codes
        if units.shape != (len(codes), layout.units) or codes.ndim != 2 or codes.shape[1] != len(layout.groups):
            raise BadRecords(
                f"encoded records have units of shape {units.shape} and codes of shape {codes.shape}: expected (N, "
                f"{layout.units}) and (N, {len(layout.groups)})"
            )
        if scipy.sparse.issparse(units):
            check_csr(units, "encoded units")
        if any(isinstance(array, np.ma.MaskedArray) for array in self.arrays):
            raise BadRecords("the records hold a masked array: expected a value in every place; fill in what is masked")
        values = units.data if scipy.sparse.issparse(units) else units
        if values.dtype.kind not in ("f" if layout.levels is None else "ui"):
            raise BadRecords(f"encoded units are {values.dtype}: expected float32 without levels, whole numbers with them")
        # NaN fails the comparison too. Without the bounds one record could make features overflow for all.
        for block in np.array_split(values, max(1, values.size // _AT_ONCE)):
            if not ((block >= 0) & (block <= (layout.levels or 1))).all():
                raise BadRecords("the records hold NaN, or values outside [0, 1]: replace or drop those records first")
        # Several entries at one place would be added up.
        if scipy.sparse.issparse(units) and merge_entries(units).nnz != units.nnz:
            raise BadRecords(
                "encoded units hold a place twice in one record: make a new csr_array of their data, indices and indptr, "
                "and call sum_duplicates() on that (the old one may remember that there was no such place)"
            )
        if layout.most is not None and len(codes) and _most_held(units) > layout.most:
            raise BadRecords(f"a record has more units at 1 than the {layout.most} of its schema: cut it to them")
        fit = codes.dtype.kind in "ui"
        if not fit or (len(codes) and ((codes.min(axis=0) < 0) | (codes.max(axis=0) >= layout.groups)).any()):
            raise BadRecords("encoded codes: expected whole numbers below the number of choices of their group")

    def __len__(self) -> int:
        return len(self.encoded)

    def parts(self, most: int) -> Iterator[tuple[slice, Encoded]]:
        """Yield the encoded records, so many at a time, with their rows.

        Dense ones are the same objects each time they are asked for, by which something that follows from them can be kept
        in a `WeakKeyDictionary`: it is gone with the records.
        """
        units, codes = self.encoded.units, self.encoded.codes
        if scipy.sparse.issparse(units):
            for rows in self._cut(most):
                part = read_stretch(rows, units.indptr, units.indices, units.data, units.shape[1])
                yield rows, Encoded(part, codes[rows])
            return
        if most not in self._parts:
            self._parts[most] = [(rows, self.encoded[rows]) for rows in self._cut(most)]
        yield from self._parts[most]

    def _cut(self, most: int) -> Iterator[slice]:
        return (slice(start, min(start + most, len(self))) for start in range(0, len(self), most))

    @cached_property
    def _parts(self) -> dict[int, list[tuple[slice, Encoded]]]:
        return {}

    @cached_property
    def _units(self) -> Store:
        units, levels = self.encoded.units, self.schema.layout.levels
        scaled = units.dtype == np.uint8 and not scipy.sparse.issparse(units)
        return store_of(units, scale=levels if scaled else None)

    @cached_property
    def _codes(self) -> Store:
        return store_of(self.encoded.codes)

    def take(self, positions: np.ndarray) -> Tensor:
        return self._joined(self._written(positions), self._codes.take(positions), 1.0)

    @property
    def steps(self) -> Steps | None:
        levels = self.schema.layout.levels
        # The 1 of a choice must fit into a byte, too.
        in_bytes = isinstance(self._units, ScaledStore) and levels < 2**8
        return Steps(1.0 / levels, bits=(levels - 1).bit_length()) if in_bytes else None

    def stretch(self, rows: slice) -> Tensor | scipy.sparse.csr_array:
        layout, units = self.schema.layout, self._units.stretch(rows)
        if self.steps is not None:
            return self._joined(units, torch.from_numpy(self.encoded.codes[rows]), layout.levels)
        if not scipy.sparse.issparse(units):
            return super().stretch(rows)
        if not layout.groups:
            return units
        chosen = self._places(torch.from_numpy(self.encoded.codes[rows])).numpy() - layout.units
        ends = np.arange(0, chosen.size + 1, len(layout.groups))
        shape = (len(chosen), layout.width - layout.units)
        choices = scipy.sparse.csr_array((np.ones(chosen.size, np.float32), chosen.reshape(-1), ends), shape=shape)
        return scipy.sparse.hstack([units, choices], format="csr")

    def _joined(self, units: Tensor, codes: Tensor, one: float) -> Tensor:
        """Write out (B, units) and (B, groups) as (B, width), with this number for a 1."""
        layout = self.schema.layout
        if not layout.groups:
            return units
        rows = torch.zeros(len(units), layout.width, dtype=units.dtype)
        rows[:, : layout.units] = units
        return rows.scatter_(1, self._places(codes), one)

    def _written(self, positions: np.ndarray) -> Tensor:
        """Return the units (B, units) in [0, 1]."""
        units = self._units.take(positions)
        return units if units.dtype == torch.float32 else units.to(torch.float32).div_(self.schema.layout.levels)

    def _places(self, codes: Tensor) -> Tensor:
        """Return the place (B, groups) of the 1 of each group."""
        codes, spans = codes.to(torch.int64), self.schema.layout.spans
        places = codes + torch.tensor([span.start for span in spans])
        # The 1 of another group would be overwritten, and one beyond the width would be that of another record.
        if ((codes < 0) | (places >= torch.tensor([span.stop for span in spans]))).any():
            raise BadRecords(describe_change("a choice that its group has not"))
        return places

    def blocks(self) -> Iterator[Tensor]:
        yield from self._units.blocks()

    def multi_hot(self) -> MultiHotStore | None:
        """Return the same records as the places of their ones; None where they are not sparse, or hold many ones."""
        layout, units = self.schema.layout, self.encoded.units
        if not scipy.sparse.issparse(units) or layout.max_ones is None:
            return None
        starts = tuple(span.start for span in layout.spans)
        return MultiHotStore(units, layout.most, self.encoded.codes, starts, layout.width, self.persons)

    @property
    def arrays(self) -> list[np.ndarray]:
        """The arrays that hold the records."""
        units = self.encoded.units
        parts = [units.data, units.indices, units.indptr] if scipy.sparse.issparse(units) else [units]
        return [*parts, self.encoded.codes, *([] if self.persons is None else [self.persons])]


def _most_held(units: np.ndarray | scipy.sparse.csr_array) -> int:
    """Return the largest number of units that a record holds."""
    held = np.diff(units.indptr) if scipy.sparse.issparse(units) else np.count_nonzero(units, axis=1)
    return int(held.max())


def encode_images(images: np.ndarray, labels: np.ndarray | None, schema: ImageSchema) -> Records:
    """Return pictures and labels as `Records`; see `ImageSchema.encode`.

    Example:
        >>> schema = ImageSchema(1, 2, levels=4, classes=2)
        >>> encode_images(np.array([[0, 4]]), np.array([1]), schema).take(np.array([0]))
        tensor([[0., 1., 0., 1.]])
    """
    return Records(schema, schema.encode(images, labels))


def encode_table(frame: Table, schema: TableSchema, *, outside: str = "refuse") -> Records:
    """Return the records of a table; arguments and errors are those of `read_table`.

    Example:
        >>> import pandas as pd
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> schema = parse_schema("columns: {age: {type: integer, low: 0, high: 99, bins: 10}}")
        >>> encode_table(pd.DataFrame({"age": [7, 42]}), schema).take(np.array([1]))
        tensor([[0., 0., 0., 0., 1., 0., 0., 0., 0., 0.]])
    """
    return Records(schema, read_table(frame, schema, outside=outside).encoded)

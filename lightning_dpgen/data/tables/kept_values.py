"""Values of encoded records, drawn again where they break a constraint."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.given import GivenRows
from lightning_dpgen.data.tables.schema import TableSchema

# The values of records that break a constraint are drawn again at most so often, and only while that mends any of them,
# before the records are.
_VALUES = 10


def draw_kept_values(
    schema: TableSchema, encoded: Encoded, random: np.random.Generator, given: GivenRows | None = None
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Draw the values of records, again where they break a constraint; return them, and which (n,) keep all.

    Choices are learned from records that keep the constraints, so they are more to be trusted than values within a bin.

    Args:
        given: rows whose given cells stand in the place of drawn ones.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> column = "{type: integer, low: 0, high: 19, bins: 2}"
        >>> schema = parse_schema(f"{{columns: {{a: {column}, b: {column}}}, constraints: [a <= b]}}")
        >>> encoded = Encoded(np.zeros((100, 0), np.float32), np.zeros((100, 2), np.uint8))
        >>> values, kept = draw_kept_values(schema, encoded, np.random.default_rng(0))
        >>> int(kept.sum()) > 95, int(schema.rules.kept(schema.values(encoded, np.random.default_rng(0))).sum()) < 70
        (True, True)
    """
    cells, known = ({}, None) if given is None else (given.cells, given.known)
    values = schema.values(encoded, random, cells)
    kept = schema.rules.kept(values, known)
    for _ in range(_VALUES if schema.rules.restrict else 0):
        again = np.flatnonzero(~kept)
        if not len(again):
            break
        some = None if given is None else given[again]
        drawn = schema.values(encoded[again], random, {} if some is None else some.cells)
        fine = schema.rules.kept(drawn, None if some is None else some.known)
        if not fine.any():
            break
        order = np.arange(len(kept))
        order[again[fine]] = len(kept) + np.flatnonzero(fine)
        values = pa.Table.from_batches([values, drawn]).take(pa.array(order)).combine_chunks().to_batches()[0]
        kept[again[fine]] = True
    return values, kept

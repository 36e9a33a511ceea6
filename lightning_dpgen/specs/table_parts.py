"""The parts of a table's description that are found in its records, with noise: bounds, categories and distributions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.grouped import CERTAIN, MOST_COMMON
from lightning_dpgen.data.tables.open_columns import BOUNDS, VALUES
from lightning_dpgen.data.tables.open_part import Part
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.specs.data import DataSpec
from lightning_dpgen.specs.defaults import FEWEST_BINS
from lightning_dpgen.specs.source import abbreviate


def table_parts(schema: TableSchema, spec: DataSpec) -> dict[str, Part]:
    """Return what is to be found of the columns of a table, by their names."""
    rows, parts = spec.most_rows, {}
    for column in schema.open:
        whole = column.find == BOUNDS and column.scale.whole
        # A label has a choice for each value.
        bought = spec.share_of_values is not None and column.undecided and column.name != schema.label
        parts[column.name] = Part(column.find, rows, whole, column=column if bought else None)
    if spec.share_of_values is None:
        return parts
    # The default number of bins is not known before n is.
    looked_at = [*schema.undecided(spec.bins or FEWEST_BINS), *schema.of_many_values]
    return parts | {column.name: Part(VALUES, rows, grid=column.grid) for column in looked_at}


def filled(schema: TableSchema, found: Mapping[str, Any] | None) -> TableSchema:
    """Return the schema with what was found; before anything was, with anything in its place."""
    return schema.filled(found or {column.name: [0, 1] if column.find == BOUNDS else ["a"] for column in schema.open})


def with_common(schema: TableSchema, parts: Mapping[str, Part], most: float) -> TableSchema:
    """Return the schema before categories with very many values are counted: as many are common then as may be.

    Args:
        most: the most values that can have a count that stands out of noise.
    """
    grids = {name: part.grid for name, part in parts.items() if part.counted and part.grid is not None}
    common = min(most, MOST_COMMON)
    found = {
        name: {"counts": [2.0 * CERTAIN * (place < common) for place in range(grid.span)], "noise": 1.0}
        for name, grid in grids.items()
    }
    return schema.filled(found)


def told(schema: Schema, found: Mapping[str, Any]) -> dict[str, str]:
    """Return in words what was found of each column; of other records than those of a table nothing is."""
    columns = {column.name: column for column in schema.open} if isinstance(schema, TableSchema) else {}
    said = {}
    for name, value in found.items():
        parts = []
        if name in columns:
            fields = columns[name].filled(value)
            parts.append(f"from {fields['low']} to {fields['high']}" if "low" in fields else abbreviate(fields["values"]))
        if isinstance(value, dict) and "counts" in value:
            parts.append(filled(schema, found).rules.learned[name].in_words)
        elif isinstance(value, dict):
            parts.append(f"how it is distributed, in {len(value['pieces']):,} pieces")
        said[name] = "; ".join(parts)
    return said

"""The parts of a table's description that are found in its records, with noise: bounds, categories and distributions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_dpgen.data.tables.description import BOUNDS, VALUES
from lightning_dpgen.data.tables.grouped import CERTAIN, MOST_COMMON
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.search import Part
from lightning_dpgen.specs.data import DataSpec
from lightning_dpgen.specs.defaults import FEWEST_BINS
from lightning_dpgen.specs.source import abbreviate


def table_parts(schema: TableSchema, spec: DataSpec) -> dict[str, Part]:
    """Return what is to be found of the columns of a table, by their names."""
    rows, parts = spec.most_rows, {}
    for column in schema.open:
        bounds = column.find == BOUNDS
        # A label has a choice for each value.
        bought = bounds and spec.share_of_values is not None and column.declared.undecided and column.name != schema.label
        parts[column.name] = Part(column.find, rows, bounds and column.scale.whole, column=column if bought else None)
    if spec.share_of_values is None:
        return parts
    # The default number of bins is not known before n is.
    looked_at = [*schema.undecided(spec.bins or FEWEST_BINS), *schema.of_many_values]
    return parts | {column.name: Part(VALUES, rows, grid=column.grid) for column in looked_at}


def fill_parts(schema: TableSchema, found: Mapping[str, Any] | None) -> TableSchema:
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


def found_in_words(schema: TableSchema, found: Mapping[str, Any]) -> dict[str, str]:
    """Return in words what was found of each column."""
    columns = {column.name: column for column in schema.open}
    said = {}
    for name, value in found.items():
        parts = []
        if name in columns:
            about = columns[name].complete(value)
            bounds = columns[name].find == BOUNDS
            parts.append(f"from {about.low} to {about.high}" if bounds else abbreviate(about.values))
        if isinstance(value, dict) and "counts" in value:
            parts.append(fill_parts(schema, found).rules.learned[name].in_words)
        elif isinstance(value, dict):
            parts.append(f"how it is distributed, in {len(value['pieces']):,} pieces")
        said[name] = "; ".join(parts)
    return said

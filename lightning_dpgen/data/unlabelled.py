"""Records whose label is asked for: read without one, and encoded as others are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.descriptions import column_of
from lightning_dpgen.data.tables.schema import TableSchema


def unlabelled(schema: Schema) -> Schema | None:
    """Return the schema of the same records without their label, which a file may have all the same where it is a table.

    Constraints that speak of the label are left out. None is returned where other columns follow from it.

    Example:
        >>> unlabelled(ImageSchema(2, 2, levels=1, classes=2)).layout.groups
        ()
    """
    if isinstance(schema, ImageSchema):
        return replace(schema, classes=0, names=())
    if isinstance(schema, SeriesSchema):
        return replace(schema, classes=())
    if not isinstance(schema, TableSchema):
        return None
    dropped = column_of(schema.label, {"type": "drop"}) if schema.label else None
    columns = [dropped if column.name == schema.label else column for column in schema.columns]
    try:
        plain = schema.changed(columns, label=None, constraints=(), found_constraints=())
    except BadSchema:  # a column is relative to it
        return None
    kept = tuple(said for said in schema.constraints if _holds(plain, said))
    plain = plain.changed(constraints=kept)
    others = [size for group, size in enumerate(schema.layout.groups) if group != schema.layout.label]
    return plain if (plain.layout.units, list(plain.layout.groups)) == (schema.layout.units, others) else None


def _holds(schema: TableSchema, constraint: object) -> bool:
    try:
        schema.changed(constraints=(constraint,))
    except BadSchema:
        return False
    return True


def with_any_label(encoded: Encoded, layout: Layout) -> Encoded:
    """Return records without a label as records of a layout with one: the first, which says nothing.

    Example:
        >>> with_any_label(Encoded(np.zeros((1, 0)), np.array([[1, 2]])), Layout(0, groups=(2, 5, 3), label=1)).codes
        array([[1, 0, 2]])
    """
    return Encoded(encoded.units, np.insert(encoded.codes, layout.label, 0, axis=1))

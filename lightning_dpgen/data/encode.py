"""Tables and pictures as `Records`, which networks and recipes take."""

from __future__ import annotations

import numpy as np

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.reading import Table, read_table
from lightning_dpgen.data.tables.schema import TableSchema


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

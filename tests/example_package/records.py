"""Records of people, drawn at random, in every form that `data=own` takes."""

import numpy as np
import pandas as pd

from lightning_dpgen import Records, TableSchema
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.schema_keys import column_of

SCHEMA = TableSchema((
    column_of("sex", {"type": "category", "values": ["F", "M"]}),
    column_of("age", {"type": "integer", "low": 0, "high": 99, "bins": 5}),
), label="sex")  # fmt: skip
# The rows of each call of `people`.
called = []


def codes(rows=300, seed=0):
    random = np.random.default_rng(seed)
    return np.stack([random.integers(0, 2, rows), random.integers(0, 5, rows)], axis=1).astype(np.uint8)


def encoded(rows=300, seed=0):
    """Return a pair of schema and `Encoded`."""
    return SCHEMA, Encoded(np.zeros((rows, 0), np.float32), codes(rows, seed))


def people(rows=300, seed=0):
    """Return a pair of schema and `Records`."""
    called.append(rows)
    schema, records = encoded(rows, seed)
    return schema, Records(schema, records)


def owned(rows=300):
    """Return a pair of schema and `Records` of persons with three records each."""
    schema, records = encoded(rows)
    return schema, Records(schema, records, np.arange(rows) // 3)


def frame(rows=300):
    """Return a pair of frame and schema."""
    chosen = codes(rows)
    sexes = np.array(["F", "M"])[chosen[:, 0]]
    return pd.DataFrame({"sex": sexes, "age": 20 * chosen[:, 1], "who": np.arange(rows) // 3}), SCHEMA


def undeclared(rows=300):
    """Return a frame and a schema that leaves bins, and bounds, to be found."""
    random = np.random.default_rng(0)
    schema = TableSchema((
        column_of("visits", {"type": "integer", "low": 0, "high": 300}),
        column_of("age", {"type": "integer", "low": "private", "high": "private"}),
    ))  # fmt: skip
    return pd.DataFrame({"visits": random.geometric(0.4, rows) - 1, "age": random.integers(20, 70, rows)}), schema

"""Kinds of constraints over columns of each kind, and all rows there can be that keep them."""

import itertools
from collections import Counter

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import parse_schema

SCHEMA = parse_schema("""columns:
  a: {type: integer, low: 0, high: 4, bins: 5}
  b: {type: integer, low: 1, high: 4, missing: true, bins: 2}
  c: {type: number, low: 0, high: 2, decimals: 0, bins: 3, special: [-1]}
  s: {type: category, values: [x, y, z]}
  t: {type: category, values: [u, v], missing: true}
  r: {type: integer, low: 0, high: 5, relative_to: a, distance: [0, 3], bins: 4, missing: true, special: [9]}
  d: {type: integer, low: 0, high: 7, missing: true, bins: 4}
""")
KINDS = {
    "order": ["a < b", "b <= c + 1", "a + c >= b"],
    "products": ["a * b <= 6", "a * c >= b - 2", "a / b <= 2", "2 * a > r + 1"],
    "order of distances": ["r <= b", "r > c + 1", "a + 1 < r"],
    "sum": ["d = a + b", "d = a + r", "d = b - c", "d = 2 * a - c", "d = a * b - b / 2", "d = a / c"],
    "condition on a computed one": ["d >= 3 if s = x", "d < r", "d is missing if and only if t = u"],
    "if": ["a = 3 if s = x", "r > 2 if t = v", "b is missing if a >= 3", "c = -1 if r = 9"],
    "if and only if": [
        "r is missing if and only if t = u", "b is missing if and only if c = -1", "r = 9 if and only if a = 0"
    ],
    "several": ["a > 2 if s = x and t = u", "r is not missing if s = y and a < 2", "a < b if s != z"],
    "mapping": [{"column": "d", "of": "t", "mapping": {"u": 1, "v": 6, "": None}}],
    "combinations": [{"columns": ["s", "t"], "allowed": [["x", "u"], ["y", ""], ["z", "v"], ["z", "u"]]}],
}  # fmt: skip


def schema_of(constraints):
    derived = any("d" in str(one).split()[0] or (isinstance(one, dict) and one.get("column") == "d") for one in constraints)
    columns = [column for column in SCHEMA.columns if derived or column.name != "d"]
    return TableSchema(columns, constraints=list(constraints))


def rows_that_keep(schema):
    """Return codes (n, groups) of all rows there can be that keep the constraints, of those whose values are encoded."""
    values = {
        "a": range(5), "b": [None, 1, 2, 3, 4], "c": [-1, 0, 1, 2], "s": [0, 1, 2], "t": [None, 0, 1],
        "r": [None, 0, 1, 2, 3, 4, 5, 9], "d": [None, *range(8)],
    }  # fmt: skip
    names = [column.name for column in schema.columns]
    free = [name for name in names if name not in schema.rules.derived]
    rows = np.array(list(itertools.product(*(values[name] for name in free))), object)
    arrays = {}
    for place, name in enumerate(free):
        absent = np.array([value is None for value in rows[:, place]])
        numbers = np.where(absent, 0, rows[:, place]).astype(np.float64 if name == "c" else np.int64)
        numbers = numbers.astype(np.int64)
        arrays[name] = schema.rules.columns[name].restored(numbers, absent)
    from_others = {name: (numbers, absent) for name in free for numbers, absent in [
        schema.rules.columns[name].numbers(arrays[name], True, Counter())
    ]}  # fmt: skip
    if schema.rules.derived:
        schema.rules._compute(schema.rules._declared, from_others, len(rows))
    arrays |= {name: schema.rules.columns[name].restored(*from_others[name]) for name in schema.rules.derived}
    batch = pa.record_batch({name: arrays[name] for name in names})
    batch = batch.filter(pa.array(schema.rules.kept(batch)))
    return schema.encode(batch).codes if len(batch) else np.zeros((0, len(schema.layout.groups)), int)

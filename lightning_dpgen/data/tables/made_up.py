"""Columns that are not learned: dropped, or made up anew for each synthetic table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import WithJsonSchema

from lightning_dpgen.data.tables.column import BadSchema, Column, Key, is_text
from lightning_dpgen.data.tables.description import ColumnDescription, refuse

_FIRST = (
    "Ada", "Amir", "Ana", "Ben", "Chen", "Clara", "David", "Elif", "Emma", "Eva", "Farah", "Felix", "Grace", "Hana", "Hugo",
    "Ines", "Ivan", "Jan", "Kofi", "Lara", "Leo", "Lin", "Maria", "Mila", "Nia", "Noah", "Olga", "Omar", "Paul", "Rosa",
    "Sam", "Sara", "Tom", "Uma", "Vera", "Wei", "Yara", "Zoe",
)  # fmt: skip
_LAST = (
    "Abbas", "Ali", "Bauer", "Brown", "Chen", "Costa", "Diaz", "Diallo", "Fischer", "Garcia", "Haddad", "Hansen", "Ito",
    "Ivanova", "Jensen", "Jones", "Khan", "Kim", "Kowalski", "Lee", "Lopez", "Mensah", "Moreau", "Muller", "Nguyen",
    "Novak", "Okafor", "Patel", "Rossi", "Santos", "Sato", "Silva", "Singh", "Smith", "Tanaka", "Weber", "Yilmaz", "Zhang",
)  # fmt: skip


class DropDescription(ColumnDescription):
    holds = "the column is left out"
    decide = "nothing: the column is not in the synthetic table"

    type: Literal["drop"]

    def build(self, name: str) -> Dropped:
        return Dropped(name, self)


class FakeDescription(ColumnDescription):
    holds = "made-up values, which do not depend on the records"
    decide = "which made-up value takes its place?"

    type: Literal["fake"]
    fake: Literal["row_number", "uuid", "name", "email"] | None = None
    """`row_number`, `uuid`, `name` or `email`"""
    constant: Annotated[Any, WithJsonSchema({"type": ["string", "number", "boolean"]})] = None
    """one value for all rows"""

    def check(self) -> None:
        if (self.fake is None) == (self.constant is None):
            known = "row_number, uuid, name, email"
            raise BadSchema(f"expected one of fake ({known}) and constant", key="fake")
        value = self.constant
        fine = is_text(value) or type(value) is bool or (type(value) is int and abs(value) < 2**63)
        if value is not None and not fine and not (type(value) is float and np.isfinite(value)):
            refuse("constant", value, "text, a number, true or false")

    def build(self, name: str) -> Fake:
        return Fake(name, self)


@dataclass(frozen=True)
class Dropped(Column):
    """A column of the records that a synthetic table does not have."""

    @property
    def arrow(self) -> None:
        return None


@dataclass(frozen=True)
class Fake(Column):
    """A column that a synthetic table has, but not from the records.

    It numbers the rows of each table that is drawn, makes up identifiers, names or addresses, or is constant.

    Example:
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> column_of("who", {"type": "fake", "fake": "name"}).make(1, np.random.default_rng(0))[0].as_py()
        'Tom Nguyen'
    """

    fake, constant = Key(), Key()

    @property
    def arrow(self) -> pa.DataType:
        if self.constant is not None:
            return {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}[type(self.constant)]
        return pa.int64() if self.fake == "row_number" else pa.string()

    def make(self, rows: int, random: np.random.Generator, before: int = 0) -> pa.Array:
        """Return values for this many rows, after `before` others."""
        if self.constant is not None:
            return pa.repeat(pa.scalar(self.constant, self.arrow), rows)
        if self.fake == "row_number":
            return pa.array(np.arange(before + 1, before + rows + 1))
        if self.fake == "uuid":
            return _uuids(rows, random)
        first = pa.array(_FIRST).take(pa.array(random.integers(0, len(_FIRST), rows)))
        last = pa.array(_LAST).take(pa.array(random.integers(0, len(_LAST), rows)))
        if self.fake == "name":
            return pc.binary_join_element_wise(first, last, " ")
        digits = pa.array(random.integers(0, 10**6, rows)).cast(pa.string())
        address = pc.utf8_lower(pc.binary_join_element_wise(first, last, digits, "."))
        return pc.binary_join_element_wise(address, "example.com", "@")


def _uuids(rows: int, random: np.random.Generator) -> pa.Array:
    """Draw version 4 identifiers: random but for the digits that say so."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)[random.integers(0, 16, (rows, 32))]
    digits[:, 12] = ord("4")
    digits[:, 16] = np.frombuffer(b"89ab", np.uint8)[random.integers(0, 4, rows)]
    text = np.insert(digits, [8, 12, 16, 20], ord("-"), axis=1)
    offsets = np.arange(0, 36 * rows + 1, 36, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text)))

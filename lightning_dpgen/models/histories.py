"""Histories: a forest draws persons and their first rows, and each further row follows from what was before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.models.forests import StackedForests
from lightning_dpgen.models.history_rows import DrawnRows, draw_rows
from lightning_dpgen.models.history_steps import Steps
from lightning_dpgen.models.outputs import chosen


class PersonLevel(Schema):
    """A person as a whole: attributes, and of each table of rows the number of rows, the first time and the first row.

    Args:
        schema: of the histories (`data.histories.schema`).

    Attributes:
        heads: the groups of each table, of which the first is that of the number of rows.
    """

    kind: ClassVar[str] = "persons of histories"

    def __init__(self, schema: Any) -> None:
        self.of = schema
        start, self.heads = schema.attributes, []
        for table in schema.tables:
            self.heads.append(slice(start, start + table.head))
            start += table.head

    @cached_property
    def places(self) -> np.ndarray:
        """The groups of a person among those of a history."""
        tables = [np.arange(part.start, part.start + table.head)
                  for table, part in zip(self.of.tables, self.of.parts, strict=True)]  # fmt: skip
        return np.concatenate([np.arange(self.of.attributes), *tables])

    @cached_property
    def layout(self) -> Layout:
        whole = self.of.layout
        groups, ordered = (tuple(of[place] for place in self.places) for of in (whole.groups, whole.ordered))
        return Layout(0, None, groups, whole.label, ordered=ordered)

    @property
    def choices(self) -> dict[str, list[str]]:
        choices = list(self.of.choices.items())
        return dict(choices[place] for place in self.places)

    @property
    def label_values(self) -> tuple[str, list[Any]]:
        return self.of.label_values

    def impossible_pairs(self) -> list[tuple[int, int, np.ndarray]]:
        """Return the pairs of choices that no person has: a person without rows has no first one, and others have."""
        groups, pairs = self.layout.groups, []
        if self.of.persons is not None:
            pairs += self.of.persons.impossible_pairs()
        for head in self.heads:
            for group in range(head.start + 1, head.stop):
                none = np.zeros((groups[head.start], groups[group]), bool)
                none[0, :-1] = none[1:, -1] = True
                pairs.append((head.start, group, none))
        return pairs

    def encode(self, encoded: Encoded) -> Encoded:
        """Return the persons of histories."""
        return Encoded(encoded.units, encoded.codes[:, self.places])

    @property
    def arrow(self) -> pa.Schema:
        raise TypeError("persons of histories are no records of their own")

    def decode(self, encoded: Encoded, random: np.random.Generator, before: int = 0) -> pa.RecordBatch:
        raise TypeError("persons of histories are no records of their own")

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "of": self.of.as_json()}

    @classmethod
    def from_json(cls, fields: Any) -> PersonLevel:
        raise TypeError("persons of histories are described by their histories")


class StackedHistories(nn.Module):
    """k components of persons, whose rows after the first are drawn one after the other, by tables that all share.

    A target t of a row is drawn by ``softmax(b_t + sum over its features f of A_ft[code of f])``. Given a person, the rows
    of one table follow from none of another.

    Args:
        schema: the public description of a record.
        k: number of components of persons.
        parents: as of `StackedForests`, of the groups of `PersonLevel`.

    Attributes:
        persons: the forests of persons.
        steps: those of each table of rows.

    Example:
        >>> from lightning_dpgen.data.histories.row_table import RowTable
        >>> from lightning_dpgen.data.histories.schema import HistorySchema
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> rows = parse_schema("columns: {ward: {type: category, values: [a, b]}}")
        >>> schema = HistorySchema(None, (RowTable("visits", rows, max_rows=3),))
        >>> network = StackedHistories(schema, k=1, parents=[-1, -1])
        >>> network.draw(torch.zeros(2, dtype=torch.int64), torch.Generator().manual_seed(0)).shape
        torch.Size([2, 4])
    """

    kind = "histories"

    def __init__(self, schema: Any, k: int, parents: Sequence[int]) -> None:
        super().__init__()
        self.schema, self.k = schema, k
        self.level = PersonLevel(schema)
        self.persons = StackedForests(self.level, k, parents)
        self.steps = [Steps(schema, number) for number in range(len(schema.tables))]
        for t, steps in enumerate(self.steps):
            for j, (name, size, _) in enumerate(steps.targets):
                self.register_buffer(f"level_{t}_{j}", torch.zeros(size))
                for i, feature in enumerate(steps.features[name]):
                    self.register_buffer(f"table_{t}_{j}_{i}", torch.zeros(feature.size, size))

    @property
    def settings(self) -> dict[str, Any]:
        return {"parents": list(self.persons.parents)}

    def level_of(self, table: int, target: int) -> Tensor:
        """Return the level (choices,) of a target."""
        return self.get_buffer(f"level_{table}_{target}")

    def tables_of(self, table: int, target: int) -> list[Tensor]:
        """Return the tables of a target, one for each feature."""
        name = self.steps[table].targets[target][0]
        return [self.get_buffer(f"table_{table}_{target}_{i}") for i in range(len(self.steps[table].features[name]))]

    def draw(self, component: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the choices (n, groups), int64, of a record of each of these components (n,): on the CPU, in their order."""
        persons = self.draw_persons(component, generator)
        codes = np.tile(np.array(self.schema.layout.groups, np.int64) - 1, (len(persons), 1))
        codes[:, self.level.places] = persons
        for t, (table, part) in enumerate(zip(self.schema.tables, self.schema.parts, strict=True)):
            for rows in self.rows_after(t, persons, generator):
                first = part.start + table.place(rows.place).start
                for i in range(table.per_row):
                    codes[rows.who, first + i] = rows.codes[f"now: column {i}"]
                if table.order is not None:
                    codes[rows.who, first - 1] = rows.codes["now: gap"]
        return torch.from_numpy(codes)

    def draw_persons(self, component: Tensor, generator: torch.Generator) -> np.ndarray:
        """Draw persons (n, groups of `PersonLevel`), int64: one has a first row exactly where the number of rows says so.

        The forest ties most first rows to the number. Where one is in another tree, it is drawn again, given its parent.
        """
        codes, groups = self.persons.draw(component, generator), self.level.layout.groups
        number_of = {group: head.start for head in self.level.heads for group in range(head.start + 1, head.stop)}
        for group in self.persons.order:
            if (number := number_of.get(group)) is None:
                continue
            none = groups[group] - 1
            codes[codes[:, number] == 0, group] = none
            wrong = ((codes[:, number] > 0) & (codes[:, group] == none)).nonzero()[:, 0]
            if len(wrong):
                shares = self.persons.shares(group, component[wrong], codes[wrong])[:, :none]
                codes[wrong, group] = chosen(shares.clamp(min=1e-30), torch.rand(len(wrong), generator=generator))
        return codes.numpy()

    def rows_after(self, table: int, persons: np.ndarray, generator: torch.Generator) -> Iterator[DrawnRows]:
        """Draw the second rows of persons (n, groups of `PersonLevel`) in a table, then the third ones, and so on."""
        steps = self.steps[table]
        levels = [self.level_of(table, j).numpy() for j in range(len(steps.targets))]
        tables = {name: [own.numpy() for own in self.tables_of(table, j)] for j, (name, _, _) in enumerate(steps.targets)}
        fixed = self.fixed_codes(table, persons)
        return draw_rows(steps, levels, tables, fixed, persons[:, self.level.heads[table]], generator)

    def fixed_codes(self, table: int, persons: np.ndarray) -> dict[str, np.ndarray]:
        """Return the codes of those features of a table's steps that stay the same for a person, each (n,)."""
        numbers = [persons[:, head.start] for head in self.level.heads]
        return self.steps[table].of_persons(persons[:, : self.schema.attributes], numbers)

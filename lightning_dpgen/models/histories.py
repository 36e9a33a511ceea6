"""Histories: a forest draws persons and their first rows, and each further row follows from what was before it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from lightning_dpgen.data.histories.rules import LAST
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.models.forests import StackedForests
from lightning_dpgen.models.history_masks import RowMasks, barred_starts, most_rows
from lightning_dpgen.models.history_rows import DrawnRows, draw_rows
from lightning_dpgen.models.history_steps import Steps, column_of, count_edges
from lightning_dpgen.models.outputs import chosen
from lightning_dpgen.models.wide_columns import NEW, WideColumn

# The most places in a bin of numbers of rows.
_PLACES = 16


class PersonLevel(Schema):
    """A person as a whole: attributes, and of each table of rows the number of rows, the first time and the first row.

    A large number of rows is a bin and a place in it, so that what goes with it is seen through less noise. In bins of more
    numbers than `_PLACES` a place stands for several.

    Args:
        schema: of the histories (`data.histories.schema`).

    Attributes:
        edges: for each table where the bins of numbers of rows begin.
        heads: for each table its groups; the first is that of the number of rows, or of its bin, and the place is next.
    """

    kind: ClassVar[str] = "persons of histories"

    def __init__(self, schema: Any) -> None:
        self.of = schema
        self.edges = [count_edges(table.max_rows) for table in schema.tables]
        ends = itertools.accumulate(
            (table.head + self._binned(t) for t, table in enumerate(schema.tables)), initial=schema.attributes
        )
        self.heads = [slice(start, end) for start, end in itertools.pairwise(ends)]

    def _binned(self, table: int) -> bool:
        return len(self.edges[table]) <= self.of.tables[table].max_rows

    def _widths(self, table: int) -> np.ndarray:
        return np.diff(self.edges[table], append=self.of.tables[table].max_rows + 1)

    def _numbers(self, table: int) -> np.ndarray:
        """Return how many numbers of rows a place of each bin stands for."""
        return -(-self._widths(table) // _PLACES)

    @cached_property
    def _groups(self) -> list[tuple[int, int, str, list[str]]]:
        """The number of choices of each group, how many are in an order, its name and theirs."""
        whole, groups = self.of.layout, []
        ordered, choices = whole.ordered or (0,) * len(whole.groups), list(self.of.choices.items())
        for place in self.places:
            groups.append((whole.groups[place], ordered[place], *choices[place]))
        for t in reversed(range(len(self.edges))):
            if self._binned(t):
                edges, widths, start = (
                    self.edges[t],
                    self._widths(t),
                    self.heads[t].start - sum(map(self._binned, range(t))),
                )
                bins = [f"{low} to {low + width - 1}" if width > 1 else str(low)
                        for low, width in zip(edges, widths, strict=True)]  # fmt: skip
                name, most = groups[start][2], int((-(-widths // self._numbers(t))).max())
                within = (most, most, f"{name}, place in its bin", [str(place) for place in range(most)])
                groups[start : start + 1] = [(len(bins), len(bins), name, bins), within]
        return groups

    @cached_property
    def places(self) -> np.ndarray:
        """The groups of a person among those of a history."""
        tables = [np.arange(part.start, part.start + table.head)
                  for table, part in zip(self.of.tables, self.of.parts, strict=True)]  # fmt: skip
        return np.concatenate([np.arange(self.of.attributes), *tables])

    @cached_property
    def layout(self) -> Layout:
        groups, ordered = ([own[i] for own in self._groups] for i in (0, 1))
        return Layout(0, None, tuple(groups), self.of.layout.label, ordered=tuple(ordered))

    @property
    def choices(self) -> dict[str, list[str]]:
        return {name: own for _, _, name, own in self._groups}

    @property
    def label_values(self) -> tuple[str, list[Any]]:
        return self.of.label_values

    @cached_property
    def rules(self) -> dict[int, tuple[int, np.ndarray]]:
        """For each group that follows a number of rows: the group of the number, and which pairs of their choices are none.

        A person without rows has no first one, and others have; a bin has as many places as it has numbers.
        """
        groups, rules = self.layout.groups, {}
        for t, head in enumerate(self.heads):
            for group in range(head.start + 1, head.stop):
                none = np.zeros((groups[head.start], groups[group]), bool)
                if group == head.start + 1 and self._binned(t):
                    none |= np.arange(groups[group]) * self._numbers(t)[:, None] >= self._widths(t)[:, None]
                else:
                    none[0, :-1] = none[1:, -1] = True
                rules[group] = (head.start, none)
            # A row that is last is the first one of persons with one row alone.
            for rule in self.of.rules[t].sequence:
                if rule.word == LAST:
                    group = head.stop - self.of.tables[t].per_row + rule.column
                    rules[group][1][2:, :-1] |= rule.labels >= 0
        return rules

    def impossible_pairs(self) -> list[tuple[int, int, np.ndarray]]:
        """Return the pairs of choices that no person has."""
        pairs = [] if self.of.persons is None else self.of.persons.impossible_pairs()
        pairs += [(number, group, none) for group, (number, none) in self.rules.items()]
        pairs += itertools.chain(*self.barred)
        return pairs

    @cached_property
    def barred(self) -> list[list[tuple[int, int, np.ndarray]]]:
        """For each table the pairs of choices that no first row has: two groups, the second of them of that row."""
        groups, barred = self.layout.groups, []
        for head, table, rules in zip(self.heads, self.of.tables, self.of.rules, strict=True):
            start = head.stop - table.per_row
            pairs: dict[tuple[int, int], np.ndarray] = {}
            within = [(start + first, start + second, none) for first, second, none in table.pairs]
            within += [(rule.attribute, start + rule.column, rule.barred) for rule in rules.pairs]
            for first, second, none in within:
                wide = pairs.setdefault((first, second), np.zeros((groups[first], groups[second]), bool))
                wide[: len(none), :-1] |= none
            barred.append([(*both, none) for both, none in pairs.items()])
        return barred

    def encode(self, encoded: Encoded) -> Encoded:
        """Return the persons of histories."""
        columns = [encoded.codes[:, : self.of.attributes]]
        for t, (table, part) in enumerate(zip(self.of.tables, self.of.parts, strict=True)):
            head = encoded.codes[:, part.start : part.start + table.head]
            if self._binned(t):
                counts = head[:, 0].astype(np.int64)
                bins = np.searchsorted(self.edges[t], counts, side="right") - 1
                places = (counts - self.edges[t][bins]) // self._numbers(t)[bins]
                columns += [np.stack([bins, places], axis=1).astype(head.dtype), head[:, 1:]]
            else:
                columns.append(head)
        return Encoded(encoded.units, np.concatenate(columns, axis=1))

    def without_rows(self, table: int) -> Tensor:
        """Return the choices (groups,) of a person without rows in a table, up to the first row."""
        head = self.heads[table]
        choices = torch.tensor(self.layout.groups[head]) - 1
        choices[: 1 + self._binned(table)] = 0
        return choices

    def heads_of(self, codes: np.ndarray, uniform: np.ndarray) -> list[np.ndarray]:
        """Return for each table the choices (n, groups) up to the first row, as `RowTable` has them.

        Args:
            uniform: (n,) numbers, by which one of the numbers of rows is taken that a place stands for.
        """
        heads = [codes[:, head] for head in self.heads]
        for t, head in enumerate(heads):
            if self._binned(t):
                bins, numbers = head[:, 0], self._numbers(t)[head[:, 0]]
                place = head[:, 1] * numbers + (uniform * numbers).astype(np.int64)
                counts = self.edges[t][bins] + np.minimum(place, self._widths(t)[bins] - 1)
                heads[t] = np.concatenate([counts[:, None], head[:, 2:]], axis=1)
        return heads

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
                if name in steps.wide:
                    self.register_buffer(f"first_{t}_{j}", torch.zeros(size))
                for i, feature in enumerate(steps.features[name]):
                    self.register_buffer(f"table_{t}_{j}_{i}", torch.zeros(steps.shape_of(feature, size)))

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

    def first_of(self, table: int, target: int) -> Tensor:
        """Return the logarithms (choices,) of the shares of a wide column in first rows."""
        return self.get_buffer(f"first_{table}_{target}")

    def draw(self, component: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the choices (n, groups), int64, of a record of each of these components (n,): on the CPU, in their order."""
        attributes, heads = self.draw_persons(component, generator)
        codes = np.tile(np.array(self.schema.layout.groups, np.int64) - 1, (len(component), 1))
        codes[:, self.level.places] = np.concatenate([attributes, *heads], axis=1)
        for t, (table, part) in enumerate(zip(self.schema.tables, self.schema.parts, strict=True)):
            counts = np.minimum(heads[t][:, 0], 1)
            for rows in self.rows_after(t, attributes, heads, generator):
                counts[rows.who] += 1
                first = part.start + table.place(rows.place).start
                for i in range(table.per_row):
                    codes[rows.who, first + i] = rows.codes[f"now: column {i}"]
                if table.order is not None:
                    codes[rows.who, first - 1] = rows.codes["now: gap"]
            codes[:, part.start] = counts
        return torch.from_numpy(codes)

    def draw_persons(self, component: Tensor, generator: torch.Generator) -> tuple[np.ndarray, list[np.ndarray]]:
        """Draw persons: attributes (n, attributes), and for each table the choices (n, groups) up to the first row.

        The forest ties most first rows to the number of rows. Where one is in another tree, and does not go with the
        number, it is drawn again, given its parent.
        """
        codes = self.persons.draw(component, generator)
        for group in self.persons.order:
            if group not in self.level.rules:
                continue
            number, none = self.level.rules[group]
            barred = torch.from_numpy(none)
            wrong = barred[codes[:, number], codes[:, group]].nonzero()[:, 0]
            if len(wrong):
                shares = self.persons.shares(group, component[wrong], codes[wrong]).clamp(min=1e-30)
                shares = shares * ~barred[codes[wrong, number]]
                codes[wrong, group] = chosen(shares, torch.rand(len(wrong), generator=generator))
        for t in range(len(self.steps)):
            self._tie_first_rows(t, codes, generator)
        self._keep_constraints(component, codes, generator)
        drawn, uniform = codes.numpy(), torch.rand(len(codes), generator=generator).numpy()
        attributes, heads = drawn[:, : self.schema.attributes], self.level.heads_of(drawn, uniform)
        for table, rules, head in zip(self.schema.tables, self.schema.rules, heads, strict=True):
            head[:, 0] = most_rows(rules, table, attributes, head)
        return attributes, heads

    def _tie_first_rows(self, table: int, codes: Tensor, generator: torch.Generator) -> None:
        """Draw wide columns of first rows again, given the other columns, where all rows have shown what goes together."""
        steps, head = self.steps[table], self.level.heads[table]
        start, rows = head.stop - steps.table.per_row, codes[:, head.start].nonzero()[:, 0].numpy()
        for j, (name, _, _) in enumerate(steps.targets):
            if name not in steps.wide or not len(rows):
                continue
            first, *ties = (own.numpy() for own in (self.first_of(table, j), *self.tables_of(table, j)[1:]))
            column = WideColumn(steps, name, first, [np.zeros((1, len(first))), *ties])
            if column.ties:
                others = {f"now: {other}": codes[rows, start + column_of(other)].numpy() for other in column.ties}
                uniform = torch.rand(len(rows), generator=generator).numpy()
                drawn, _ = column.draw_new(
                    np.zeros(len(rows), np.int64), np.full(len(rows), NEW), others, uniform, None, ()
                )
                codes[rows, start + column_of(name)] = torch.from_numpy(drawn)

    def _keep_constraints(self, component: Tensor, codes: Tensor, generator: torch.Generator) -> None:
        """Draw first times and columns of first rows again, given what is before them, where no row has these choices."""
        attributes = codes[:, : self.schema.attributes].numpy()
        for t, (table, rules, head) in enumerate(zip(self.schema.tables, self.schema.rules, self.level.heads, strict=True)):
            start = head.stop - table.per_row
            stuck = torch.zeros(len(codes), dtype=torch.bool)
            for group in range(start - (table.order is not None), head.stop):
                before = [
                    (first, torch.from_numpy(barred)) for first, second, barred in self.level.barred[t] if second == group
                ]
                rows = (codes[:, head.start] > 0).nonzero()[:, 0]
                last = any(rule.word == LAST and start + rule.column == group for rule in rules.sequence)
                if not len(rows) or not (before or last or (group < start and rules.times)):
                    continue
                if group < start:
                    none = torch.from_numpy(barred_starts(rules, table, attributes[rows.numpy()]))
                else:
                    before.append((head.start, torch.from_numpy(self.level.rules[group][1])))
                    none = torch.stack([barred[codes[rows, first]] for first, barred in before]).any(dim=0)[:, :-1]
                wrong = none[torch.arange(len(rows)), codes[rows, group]]
                rows, none = rows[wrong], none[wrong]
                stuck[rows[none.all(dim=1)]] = True
                shares = self.persons.shares(group, component[rows], codes[rows])[:, :-1].clamp(min=1e-30) * ~none
                codes[rows, group] = chosen(shares, torch.rand(len(rows), generator=generator)).clamp(max=none.shape[1] - 1)
            # Rules may leave a person no row, or none like the first ones that are drawn.
            if rules:
                codes[stuck, head] = self.level.without_rows(t)
            else:
                codes[stuck, start : head.stop] = torch.tensor(table.possible)

    def rows_after(
        self, table: int, attributes: np.ndarray, heads: Sequence[np.ndarray], generator: torch.Generator
    ) -> Iterator[DrawnRows]:
        """Draw the second rows of persons, as `draw_persons` returns them, in a table, then the third ones, and so on."""
        steps = self.steps[table]
        levels = [self.level_of(table, j).numpy() for j in range(len(steps.targets))]
        tables = {name: [own.numpy() for own in self.tables_of(table, j)] for j, (name, _, _) in enumerate(steps.targets)}
        fixed = steps.of_persons(attributes, [head[:, 0] for head in heads])
        masks = RowMasks(self.schema.rules[table], steps.table, attributes)
        return draw_rows(steps, levels, tables, fixed, heads[table], generator, masks)

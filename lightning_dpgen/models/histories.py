"""Histories: a forest draws persons and their first rows, and each further row follows from what was before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.models.forests import StackedForests
from lightning_dpgen.models.outputs import chosen

# Bins of the time at which a row begins, between the first and the last that are possible.
_TIMES = 12
# Where a row has more columns than this, attributes reach all but the first of them through the rows before alone.
_FEW = 2


class PersonLevel(Schema):
    """A person as a whole: attributes, the number of rows, the first time and the first row.

    Args:
        schema: of the histories (`data.histories.schema`).
    """

    kind: ClassVar[str] = "persons of histories"

    def __init__(self, schema: Any) -> None:
        self.of = schema

    @cached_property
    def layout(self) -> Layout:
        whole, end = self.of.layout, self.of.place(0).stop
        return Layout(0, None, whole.groups[:end], whole.label, ordered=whole.ordered[:end])

    @property
    def choices(self) -> dict[str, list[str]]:
        return dict(list(self.of.choices.items())[: len(self.layout.groups)])

    @property
    def label_values(self) -> tuple[str, list[Any]]:
        return self.of.label_values

    def impossible_pairs(self) -> list[tuple[int, int, np.ndarray]]:
        """Return the pairs of choices that no person has: a person without rows has no first one, and others have."""
        count, groups, pairs = self.of.attributes, self.layout.groups, []
        if self.of.persons is not None:
            pairs += self.of.persons.impossible_pairs()
        for group in range(count + 1, len(groups)):
            none = np.zeros((groups[count], groups[group]), bool)
            none[0, :-1] = none[1:, -1] = True
            pairs.append((count, group, none))
        return pairs

    def encode(self, encoded: Encoded) -> Encoded:
        """Return the persons of histories."""
        return Encoded(encoded.units, encoded.codes[:, : len(self.layout.groups)])

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


@dataclass(frozen=True)
class Feature:
    """A number that a row follows from, as one of so many choices.

    Args:
        name: of the feature.
        size: the number of its choices.
        ordered: how many of its first choices are in an order.
    """

    name: str
    size: int
    ordered: int


class Steps:
    """The steps of histories: from a row, and all before it, to the next; what a column of the next row may follow from.

    Targets are the distance, where rows have an order, and the columns of a row, in the order in which they are drawn.

    Args:
        schema: of the histories; public.

    Attributes:
        targets: the number of choices of each target, and how many of the first are in an order.
        features: for each target its features.
    """

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        rows, order = schema.rows.layout, schema.order
        of_rows = rows.ordered or (0,) * len(rows.groups)
        self.targets = [("gap", order.gap.choices, order.gap.ordered)] if order is not None else []
        self.targets += [(f"column {i}", size, of_rows[i]) for i, size in enumerate(rows.groups)]
        attributes = () if schema.persons is None else schema.persons.layout.groups
        of_attributes = (schema.persons.layout.ordered if attributes else ()) or (0,) * len(attributes)
        m = schema.max_rows
        # Where rows have times, these say what the place would say, with less noise.
        common = [
            Feature("rows", m + 1, m + 1),
            Feature("place", m, m) if order is None else Feature("time", _TIMES, _TIMES),
        ]
        common += [Feature(f"attribute {i}", size, of_attributes[i]) for i, size in enumerate(attributes)]
        self.features: dict[str, list[Feature]] = {}
        for j, (name, size, ordered) in enumerate(self.targets):
            # The distance before the second row is none.
            own = [Feature(f"before: {name}", size + (name == "gap"), ordered)]
            first = name in ("gap", "column 0") or len(rows.groups) <= _FEW
            if name == "gap":
                own.append(Feature("before: column 0", rows.groups[0], of_rows[0]))
            elif ordered:
                own.append(Feature(f"mean: {name}", size + 1, ordered))
            now = [Feature(f"now: {other}", *rest) for other, *rest in self.targets[:j]]
            self.features[name] = [*(common if first else common[1:2] if order is not None else []), *own, *now]

    @property
    def tables(self) -> list[tuple[str, Feature, int]]:
        """All pairs of a target and a feature, with the number of the target's choices."""
        return [(name, feature, size) for name, size, _ in self.targets for feature in self.features[name]]

    def times(self, ticks: np.ndarray) -> np.ndarray:
        """Return the bins of times (n,), as ticks."""
        order = self.schema.order
        assert order is not None
        low, high = int(order.start.limits[0]), order.last
        return np.clip((ticks - low) * _TIMES // max(high - low + 1, 1), 0, _TIMES - 1)

    def of_histories(self, encoded: Encoded) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Return all steps of histories: the person (S,), the number of that person's steps (S,), and codes by name.

        The time of a row is that of the middle of its bins: a function of the person's own choices.
        """
        schema = self.schema
        attributes, counts, starts, gaps, rows = schema.parted(encoded)
        person = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(len(person)) - np.repeat(np.cumsum(counts) - counts, counts)
        step = np.flatnonzero(place > 0)
        who = person[step]
        codes = {"rows": counts[who], "place": place[step]}
        codes |= {f"attribute {i}": attributes[who, i] for i in range(attributes.shape[1])}
        if schema.order is not None:
            assert starts is not None
            times = self._ticks(counts, starts, gaps)
            codes["time"] = self.times(times)[step - 1]
            codes["now: gap"] = gaps[step]
            codes["before: gap"] = np.where(place[step] > 1, gaps[step - 1], schema.order.gap.choices)
        for i, (size, ordered) in enumerate(zip(schema.rows.layout.groups, self._ordered_columns, strict=True)):
            column = rows[:, i]
            codes[f"now: column {i}"], codes[f"before: column {i}"] = column[step], column[step - 1]
            if ordered:
                there = column < ordered
                total = _running(np.where(there, column, 0), place)
                number = _running(there.astype(np.int64), place)
                codes[f"mean: column {i}"] = mean_codes(total, number, size)[step - 1]
        return who, counts[who] - 1, codes

    @cached_property
    def _ordered_columns(self) -> tuple[int, ...]:
        layout = self.schema.rows.layout
        return layout.ordered or (0,) * len(layout.groups)

    @cached_property
    def middles(self) -> tuple[np.ndarray, np.ndarray]:
        """The middle ticks of the bins of first times, and of distances."""
        order = self.schema.order
        assert order is not None
        return tuple(
            np.array([(low + high) // 2 for low, high in column.ranges], np.int64) for column in (order.start, order.gap)
        )

    def _ticks(self, counts: np.ndarray, starts: np.ndarray, gaps: np.ndarray) -> np.ndarray:
        first, distance = self.middles
        steps, begins = distance[gaps], (np.cumsum(counts) - counts)[counts > 0]
        steps[begins] = first[starts[counts > 0]]
        total = np.cumsum(steps)
        return total - np.repeat((total - steps)[begins], counts[counts > 0])


def _running(numbers: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return running sums (R,) of numbers within each history."""
    total = np.cumsum(numbers)
    begins = np.flatnonzero(place == 0)
    sizes = np.diff(np.append(begins, len(place)))
    return total - np.repeat((total - numbers)[begins], sizes)


def mean_codes(total: np.ndarray, number: np.ndarray, size: int) -> np.ndarray:
    """Return the codes of means so far, to the nearest one; the last for fewer than two values, which say it themselves."""
    return np.where(number > 1, (2 * total + number) // (2 * np.maximum(number, 1)), size)


class StackedHistories(nn.Module):
    """k components of persons, whose rows after the first are drawn one after the other, by tables that all share.

    A target t of a row is drawn by ``softmax(b_t + sum over its features f of A_ft[code of f])``.

    Args:
        schema: the public description of a record.
        k: number of components of persons.
        parents: as of `StackedForests`, of the groups of `PersonLevel`.

    Attributes:
        persons: the forests of persons.

    Example:
        >>> from lightning_dpgen.data.histories.schema import HistorySchema
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> rows = parse_schema("columns: {ward: {type: category, values: [a, b]}}")
        >>> schema = HistorySchema(None, rows, max_rows=3)
        >>> network = StackedHistories(schema, k=1, parents=[-1, -1])
        >>> network.draw(torch.zeros(2, dtype=torch.int64), torch.Generator().manual_seed(0)).shape
        torch.Size([2, 4])
    """

    kind = "histories"

    def __init__(self, schema: Any, k: int, parents: Sequence[int]) -> None:
        super().__init__()
        self.schema, self.k = schema, k
        self.persons = StackedForests(PersonLevel(schema), k, parents)
        self.steps = Steps(schema)
        for j, (name, size, _) in enumerate(self.steps.targets):
            self.register_buffer(f"level_{j}", torch.zeros(size))
            for i, feature in enumerate(self.steps.features[name]):
                self.register_buffer(f"table_{j}_{i}", torch.zeros(feature.size, size))

    @property
    def settings(self) -> dict[str, Any]:
        return {"parents": list(self.persons.parents)}

    def tables_of(self, target: int) -> list[Tensor]:
        """Return the tables of a target, one for each feature."""
        name = self.steps.targets[target][0]
        return [self.get_buffer(f"table_{target}_{i}") for i in range(len(self.steps.features[name]))]

    def draw(self, component: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the choices (n, groups), int64, of a record of each of these components (n,): on the CPU, in their order."""
        persons = self.persons.draw(component, generator).numpy()
        parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for who, _, codes in self.rows_after(persons, generator):
            gap = codes.get("now: gap", np.zeros(len(who), np.int64))
            columns = np.stack([codes[f"now: column {i}"] for i in range(self.schema.per_row)], axis=1)
            parts.append((who, gap, columns))
        return torch.from_numpy(self._joined(persons, parts))

    def rows_after(self, persons: np.ndarray, generator: torch.Generator) -> Iterator[tuple[np.ndarray, int, dict]]:
        """Draw the second rows of persons (n, groups of `PersonLevel`), then the third ones, and so on.

        Yields:
            The persons who have such a row, its place, and the codes of all features and targets, by name.
        """
        schema, steps = self.schema, self.steps
        counts, attributes = persons[:, schema.attributes], persons[:, : schema.attributes]
        first = persons[:, schema.place(0)].copy()
        state = {f"before: column {i}": first[:, i] for i in range(schema.per_row)}
        if schema.order is not None:
            starts = np.minimum(persons[:, schema.attributes + 1], schema.order.start.choices - 1)
            state["time"] = steps.middles[0][starts]
            state["before: gap"] = np.full(len(persons), schema.order.gap.choices)
        totals, numbers = {}, {}
        for i, ordered in enumerate(steps._ordered_columns):
            if ordered:
                there = first[:, i] < ordered
                totals[i], numbers[i] = np.where(there, first[:, i], 0), there.astype(np.int64)
        for place in range(1, schema.max_rows):
            who = np.flatnonzero(counts > place)
            if not len(who):
                return
            codes = {"rows": counts[who], "place": np.full(len(who), place)}
            codes |= {f"attribute {i}": attributes[who, i] for i in range(schema.attributes)}
            codes |= {name: own[who] for name, own in state.items() if name != "time"}
            codes |= {f"mean: column {i}": mean_codes(totals[i][who], numbers[i][who], schema.rows.layout.groups[i])
                      for i in totals}  # fmt: skip
            if schema.order is not None:
                codes["time"] = steps.times(state["time"][who])
            for j, (name, _, _) in enumerate(steps.targets):
                logits = self.get_buffer(f"level_{j}").double()
                for table, feature in zip(self.tables_of(j), steps.features[name], strict=True):
                    logits = logits + table.double()[torch.from_numpy(codes[feature.name])]
                shares = torch.softmax(logits.expand(len(who), -1), dim=1)
                uniform = torch.rand(len(who), generator=generator, dtype=torch.float64)
                codes[f"shares: {name}"] = shares.numpy()
                codes[f"now: {name}"] = chosen(shares, uniform).numpy()
            yield who, place, codes
            for i in range(schema.per_row):
                now = codes[f"now: column {i}"]
                state[f"before: column {i}"][who] = now
                if i in totals:
                    there = now < steps._ordered_columns[i]
                    totals[i][who] += np.where(there, now, 0)
                    numbers[i][who] += there
            if schema.order is not None:
                state["before: gap"][who] = codes["now: gap"]
                state["time"][who] += steps.middles[1][codes["now: gap"]]

    def _joined(self, persons: np.ndarray, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> np.ndarray:
        schema = self.schema
        codes = np.tile(np.array(schema.layout.groups, np.int64) - 1, (len(persons), 1))
        codes[:, : persons.shape[1]] = persons
        for place, (who, gap, columns) in enumerate(parts, start=1):
            at = schema.place(place)
            codes[who, at] = columns
            if schema.order is not None:
                codes[who, at.start - 1] = gap
        return codes

"""A column of very many categories as it is learned: common values by themselves, and all others in a few groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Beyond, Modelled
from lightning_dpgen.data.tables.value_set import ValueSet, choices_with

# A value is common where its count is so many deviations of its noise, or so many records where there is hardly any noise.
CERTAIN = 5.0
# The most common values, so that it is known before they are counted how large tables may become; and groups of the others.
MOST_COMMON, GROUPS = 1000, 16
# The most kinds of values.
MOST_KINDS = 100


@dataclass(frozen=True)
class Grouped(Modelled):
    """A column of categories whose noisy counts are known, with a choice for each common value and for groups of others.

    Groups hold about equally many values, in the order of their counts, so each has its own share. A value of a group is
    drawn evenly: what noise hides is not told apart. Values of different kinds are in different groups.

    Args:
        value: the column as it is read and written; its counts are public, such as those that were bought with noise.
        kinds: (values,) whole numbers; public. None where all values are of one kind.

    Example:
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> city = {"type": "category", "values": ["a", "b", "c", "d"], "counts": [2, 90, 1, -3], "counts_noise": 2}
        >>> column = Grouped.of(column_of("city", city))
        >>> column.present, column.encode(pa.array(["b", "a"]), False, Counter())[0].tolist(), column.present_names[0]
        (2, [0, 1], 'b')
    """

    value: Category
    kinds: tuple[int, ...] | None = None

    @classmethod
    def of(cls, value: Category, kinds: Sequence[int] | None = None) -> Grouped:
        return cls(value.name, value.declared, value, None if kinds is None else tuple(kinds))

    @cached_property
    def _members(self) -> list[np.ndarray]:
        """The places of the values of each choice: common ones in their order, then groups of falling counts."""
        counts = np.array(self.value.counts)
        falling = np.argsort(-counts, kind="stable")
        sure = int((counts > CERTAIN * max(self.value.counts_noise, 1.0)).sum())
        common, rare = np.split(falling, [min(sure, MOST_COMMON)])
        of_kinds = [rare]
        if self.kinds is not None:
            kinds = np.array(self.kinds)[rare]
            of_kinds = [rare[kinds == kind] for kind in np.unique(kinds)]
        groups = max(GROUPS // len(of_kinds), 1)
        parts = [part for own in of_kinds for part in np.array_split(own, max(1, min(groups, len(own) // 2))) if len(part)]
        return [*np.sort(common)[:, None], *parts]

    @cached_property
    def _choice_of(self) -> np.ndarray:
        """The choice of each value, and of a missing one."""
        choices = np.full(self.value.present + 1, self.present, np.int64)
        for choice, places in enumerate(self._members):
            choices[places] = choice
        return choices

    @property
    def present(self) -> int:
        return len(self._members)

    @property
    def in_words(self) -> str:
        """The number of common values and of groups, in words."""
        common = sum(map(self.alone, range(self.present)))
        rare = f"the other {self.value.present - common:,} in {say_count(self.present - common, 'group')}"
        return f"{say_count(common, 'common value')} by themselves, {rare}"

    def encode(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> tuple[np.ndarray, np.ndarray | None]:
        return self._choice_of[self.value.encode(values, clamp, counted)[0]], None

    def encode_present(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> tuple[np.ndarray, np.ndarray | None]:
        return self._choice_of[self.value.encode_present(values, clamp, counted)[0]], None

    def decode(self, codes: np.ndarray, units: np.ndarray | None, random: np.random.Generator) -> pa.Array:
        sizes = np.array([*map(len, self._members), 1])
        together, starts = np.concatenate([*self._members, [self.value.present]]), sizes.cumsum() - sizes
        return self.value.decode(together[starts[codes] + random.integers(sizes[codes])], None, random)

    def choices_with(self, values: ValueSet) -> tuple[set[int], set[int]]:
        """Return the choices that are not missing with some value of a set, and those with values of the set alone."""
        places = np.arange(self.value.present)
        inside = values.holds(places, np.zeros(len(places), bool))
        may, mixed = (set(self._choice_of[:-1][rows].tolist()) for rows in (inside, ~inside))
        return may, may - mixed

    def alone(self, code: int) -> bool:
        return len(self._members[code]) == 1

    def places(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> np.ndarray:
        return self.value.places(values, clamp, counted)

    def lost(self, numbers: np.ndarray) -> np.ndarray:
        return self.value.lost(numbers)

    def restored(self, numbers: np.ndarray, absent: np.ndarray) -> pa.Array:
        return self.value.restored(numbers, absent)

    def beyond(self, values: pa.Array) -> list[Beyond]:
        return self.value.beyond(values)

    def takes(self, text: pa.Array) -> bool:
        return self.value.takes(text)

    def takes_empty(self) -> bool:
        return self.value.takes_empty()

    @property
    def ranges(self) -> list[tuple[int | float, int | float]]:
        """The first and the last place of each choice; between those of a group others lie, too."""
        return [(int(places.min()), int(places.max())) for places in self._members]

    @property
    def present_names(self) -> list[str]:
        names = self.value.present_names
        groups = [len(places) > 1 for places in self._members]
        numbers = np.cumsum(groups).tolist()
        return [
            f"rare values, group {number} of {numbers[-1]}" if group else names[places[0]]
            for places, group, number in zip(self._members, groups, numbers, strict=True)
        ]

    def values_with(self, choices: slice) -> ValueSet:
        """Return the values of some choices that are not missing."""
        places = np.sort(np.concatenate(self._members[choices]))
        firsts = np.flatnonzero(np.diff(places, prepend=-2) > 1)
        lasts = np.append(firsts[1:], len(places)) - 1
        return ValueSet(tuple(zip(places[firsts].tolist(), places[lasts].tolist(), strict=True)))

    def range_text(self, code: int) -> str:
        return self.present_names[code]

    @property
    def arrow(self) -> pa.DataType:
        return self.value.arrow


def choices_of(column: Modelled, values: ValueSet) -> tuple[set[int], set[int]]:
    """Return the choices of a learned column some value of which belongs to a set, and those all of whose values do.

    Missing is among both where it belongs to the set.
    """
    missing = {column.present} if values.missing else set()
    if isinstance(column, Grouped):
        may, sure = column.choices_with(values)
    else:
        may, sure = choices_with(column, values), {c for c, ends in enumerate(column.ranges) if values.covers(*ends)}
    return may | missing, sure | missing

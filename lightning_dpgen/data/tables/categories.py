"""Columns of categories: text, whole numbers, or true and false."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.names import one_of
from lightning_dpgen.data.numbers import are_numbers, texts_of
from lightning_dpgen.data.tables.arrays import Misfit, how_to_correct, shown, wrong_type
from lightning_dpgen.data.tables.column import BadSchema, Beyond, Modelled, is_text, shortened
from lightning_dpgen.data.tables.likely_keys import likely_advice
from lightning_dpgen.data.tables.scales import Integers
from lightning_dpgen.data.value_grid import ValueGrid

_TRUTH = {False: ("false", "f", "no", "n", "0"), True: ("true", "t", "yes", "y", "1")}
_LARGEST = 2**53
# Values of a category from which on rare ones are learned together by default.
MANY = 1000
# The word for values that a column does not have.
NOT_LISTED = "not listed"


@dataclass(frozen=True, kw_only=True)
class Category(Modelled):
    """One of a list of values that is public.

    Args:
        values: all values there can be: different texts, whole numbers, or true and false. A synthetic table has them as
            string, int64 or bool.
        words: the texts for false and for true in files, where there are no other values; None for any of the usual ones.
        other: the one of them that stands for unlisted values when these are clamped; None if none does.
        ignore_case: whether texts are read in upper and lower case alike; synthetic tables have them as they are listed.
        counts: about how many records have each value, in their order: found privately (`find_values`) or public. With
            them rare values are learned together (`Grouped`); empty to learn each by itself.
        counts_noise: the standard deviation of the noise in a count.

    Example:
        >>> column = Category(name="city", values=("Oslo", "Rome", "elsewhere"), other="elsewhere")
        >>> counted = Counter()
        >>> column.encode(pa.array(["Rome", "Bonn"]), True, counted)[0].tolist(), dict(counted)
        ([1, 2], {'city: not listed': 1})
    """

    values: tuple[str, ...] | tuple[int, ...] | tuple[bool, ...] = ()
    other: str | int | bool | None = None
    words: tuple[str, str] | None = None
    ignore_case: bool = False
    counts: tuple[float, ...] = ()
    counts_noise: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        values, kind = self.values, None
        if isinstance(values, list | tuple) and values:
            values, kind = tuple(values), type(values[0])
        if kind not in (str, int, bool):
            self.refuse("values", values, "a list of texts, of whole numbers, or of true and false")
        for value in values:
            if type(value) is not kind or (kind is str and not is_text(value)) or (kind is int and abs(value) > _LARGEST):
                self.refuse("values", value, f"only {_KINDS[kind]}, as the first one is; put texts in quotes")
        self.refuse_twice("values", values)
        object.__setattr__(self, "values", values)
        if self.words is not None:
            self._check_words(kind)
        self._check_case(kind)
        self._check_counts()
        if self.other is not None and (type(self.other) is not kind or self.other not in values):
            self.refuse("other", self.other, "one of the values")
        for text in self.missing_values if self.missing else ():
            try:
                found = self._codes(pa.array([text]))[0]
            except Misfit:
                continue
            if found >= 0:
                self.refuse("missing_values", text, "no text that is also one of the values")

    @property
    def kind(self) -> type:
        """The type of the values: str, int or bool."""
        return type(self.values[0])

    @property
    def present(self) -> int:
        return len(self.values)

    @property
    def arrow(self) -> pa.DataType:
        return {str: pa.string(), int: pa.int64(), bool: pa.bool_()}[self.kind]

    def fields(self) -> dict[str, Any]:
        what: dict[str, Any] = {"type": "category", "values": list(self.values)}
        if self.values == (False, True) and self.kind is bool and self.other is None:
            what = {"type": "boolean"}
        if self.other is not None:
            what["other"] = self.other
        if self.words is not None:
            what["words"] = list(self.words)
        if self.ignore_case:
            what["ignore_case"] = True
        if self.counts:
            what |= {"counts": list(self.counts), "counts_noise": self.counts_noise}
        return what | self.common_fields()

    @property
    def present_names(self) -> list[str]:
        if self.kind is not bool:
            return list(map(str, self.values))
        return [(self.words or ("false", "true"))[value] for value in self.values]

    @property
    def grid(self) -> ValueGrid:
        """Its values as leaves of one level, by which they are counted."""
        return ValueGrid(0, self.present - 1, True, depth=1)

    def ticks(self, values: pa.Array) -> np.ndarray:
        """Return the places (n,) float64 of values on `grid`; NaN where they are missing.

        Raises:
            Misfit: naming the first value that cannot be read.
        """
        numbers, absent = self.numbers(values, True, Counter())
        return np.where(absent, np.nan, numbers)

    def with_counts(self, counts: Sequence[float], noise: float) -> Category:
        """Return the same with the counts that `find_values` has found on `grid`."""
        return replace(self, counts=tuple(counts), counts_noise=noise)

    def readable(self, values: pa.Array) -> pa.Array:
        values = super().readable(values)
        # A workbook has a code such as 12 as a number, and shows it as this text.
        return texts_of(values) if self.kind is str and are_numbers(values.type) else values

    def asked(self, value: Any) -> Any:
        # Conditions are written with true and false, too, whatever words files have for them.
        words = map(str.lower, self.words or ())
        said = self.words is not None and isinstance(value, str) and value.lower() in {"true", "false"}.difference(words)
        return value.lower() == "true" if said else value

    def alone(self, code: int) -> bool:
        return True

    def places(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> np.ndarray:
        return self.encode_present(values, clamp, counted)[0]

    def lost(self, numbers: np.ndarray) -> np.ndarray:
        return numbers >= self.present

    def restored(self, numbers: np.ndarray, absent: np.ndarray) -> pa.Array:
        return self._choices.take(pa.array(np.where(absent, self.present, numbers)))

    def range_text(self, code: int) -> str:
        return self.present_names[code]

    @property
    def ranges(self) -> list[tuple[int | float, int | float]]:
        return [(code, code) for code in range(self.present)]

    def takes_empty(self) -> bool:
        return self.kind is str and "" in self.values

    def encode_present(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> tuple[np.ndarray, np.ndarray | None]:
        codes = self._codes(values)
        unlisted = codes < 0
        if not unlisted.any():
            return codes, None
        moves_to = self.values.index(self.other) if self.other is not None else len(self.values)
        to = self._stand_in
        if not clamp or to is None:
            if to is not None:
                advice = f"list it, or let outside=clamp turn it to {to}"
            elif self.kind is bool:
                advice = "correct it"
            else:
                advice = "list it, or declare other: one of the values, and use outside=clamp"
            row = int(unlisted.argmax())
            advice = " or ".join([*self.likely_cures(values[row].as_py()), advice])
            expected = one_of(self.values) if self.kind is not bool else " or ".join(self.words or ("true", "false"))
            likely = likely_advice(str(values[row].as_py()), "category")
            advice = how_to_correct(values, row, f"{advice}; {likely}" if likely else advice)
            raise Misfit(row, f"{shown(values, row)}: expected {expected}", advice)
        counted[f"{self.name}: {NOT_LISTED}"] += int(unlisted.sum())
        codes[unlisted] = moves_to
        return codes, None

    def beyond(self, values: pa.Array) -> list[Beyond]:
        unlisted = self._codes(values) < 0
        return [Beyond(NOT_LISTED, unlisted, self._stand_in)] if unlisted.any() else []

    def likely_cures(self, value: Any) -> list[str]:
        """Return what a schema may declare so that an unlisted value is one of those that are listed.

        Example:
            >>> Category(name="city", values=("Oslo", "Rome")).likely_cures("OSLO")
            ["declare ignore_case: true if 'OSLO' is 'Oslo'"]
        """
        if self.kind is not str or not isinstance(value, str):
            return []
        plain = value.strip().lower()
        near = next((one for one in self.values if one.strip().lower() == plain), None)
        if near is None:
            return []
        if value.strip() == near.strip():
            return [f"take away the spaces around it if {shortened(value)} is {shortened(near)}"]
        spaces = ", and take away the spaces around it," if value.strip() != value else ""
        return [f"declare ignore_case: true{spaces} if {shortened(value)} is {shortened(near)}"]

    @property
    def _stand_in(self) -> str | None:
        """The value that an unlisted one is moved to, in words; None where there is none."""
        return repr(self.other) if self.other is not None else "missing" if self.missing else None

    def decode(self, codes: np.ndarray, units: np.ndarray | None, random: np.random.Generator) -> pa.Array:
        return self._choices.take(pa.array(codes))

    @cached_property
    def _choices(self) -> pa.Array:
        return pa.array([*self.values, None], self.arrow)

    def _check_counts(self) -> None:
        counts, most = self.counts, 1e15
        if not isinstance(counts, list | tuple) or len(counts) not in (0, len(self.values)):
            self.refuse("counts", counts, f"a number for each of {len(self.values):,} values")
        for count in counts:
            if type(count) not in (int, float) or not abs(count) <= most:
                self.refuse("counts", count, "a number, such as 12.5")
        if type(self.counts_noise) not in (int, float) or not 0.0 <= self.counts_noise <= most:
            self.refuse("counts_noise", self.counts_noise, "a number, 0 or more")
        if self.counts_noise and not counts:
            raise BadSchema("has a meaning only with counts", self.name, "counts_noise")
        object.__setattr__(self, "counts", tuple(map(float, counts)))
        object.__setattr__(self, "counts_noise", float(self.counts_noise))

    def _check_words(self, kind: type) -> None:
        words = self.words
        if kind is not bool:
            raise BadSchema("expected only with type: boolean", self.name, "words")
        if not isinstance(words, list | tuple) or len(words) != 2 or not all(is_text(word) and word for word in words):
            self.refuse("words", words, 'the two words for false and for true, as in [no, yes], or in quotes ["0", "1"]')
        if words[0].lower() == words[1].lower() or any(word != word.strip() for word in words):
            self.refuse("words", words, "two words that differ in more than capitals, without spaces around them")
        object.__setattr__(self, "words", tuple(words))

    def _check_case(self, kind: type) -> None:
        if type(self.ignore_case) is not bool or (self.ignore_case and kind is not str):
            self.refuse("ignore_case", self.ignore_case, "true or false, of values that are texts")
        lowered = self._lowered.to_pylist() if self.ignore_case else []
        if len(set(lowered)) < len(lowered):
            twice = next(value for value, low in zip(self.values, lowered, strict=True) if lowered.count(low) > 1)
            self.refuse("values", twice, "values that differ in more than upper and lower case, with ignore_case: true")

    @cached_property
    def _lowered(self) -> pa.Array:
        return pc.utf8_lower(self._choices[:-1])

    def _codes(self, values: pa.Array) -> np.ndarray:
        """Return places (n,) int64, -1 for what is not listed."""
        if self.kind is str:
            if not pa.types.is_string(values.type):
                raise wrong_type(values, "text")
            listed = self._lowered if self.ignore_case else self._choices[:-1]
            found = pc.index_in(pc.utf8_lower(values) if self.ignore_case else values, listed)
        elif self.kind is int:
            numbers = pa.array(Integers().ticks(values))
            found = pc.index_in(numbers, self._choices[:-1].cast(numbers.type))
        else:
            found = pc.index_in(_truths(values, self.words), self._choices[:-1])
        return found.fill_null(-1).to_numpy().astype(np.int64)


_KINDS = {str: "texts", int: "whole numbers below 2^53", bool: "true and false"}


def _truths(values: pa.Array, declared: tuple[str, str] | None = None) -> pa.Array:
    """Return true and false, and null for what is neither; texts by the declared words, or else the usual ones."""
    if pa.types.is_boolean(values.type):
        return values
    if pa.types.is_string(values.type):
        if declared is not None:
            return pc.equal(pc.index_in(pc.utf8_lower(values), pc.utf8_lower(pa.array(declared))), 1)
        words = pa.array(_TRUTH[False] + _TRUTH[True])
        found = pc.index_in(pc.utf8_lower(values), words)
        return pc.greater_equal(found, len(_TRUTH[False]))
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        # Both have the type of the values: Arrow compares uint64 with a plain 1 as int64, which does not hold all of them.
        zero, one = pa.scalar(0, values.type), pa.scalar(1, values.type)
        truths = pc.equal(values, one)
        return pc.if_else(pc.or_(truths, pc.equal(values, zero)), truths, None)
    raise wrong_type(values, "true and false")

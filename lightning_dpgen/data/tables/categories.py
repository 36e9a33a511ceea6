"""Columns of categories: text, whole numbers, or true and false."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field, WithJsonSchema

from lightning_dpgen.data.discovery.value_grid import ValueGrid
from lightning_dpgen.data.names import are_numbers, one_of, texts_of
from lightning_dpgen.data.tables.arrays import Misfit, how_to_correct, quote_cell, wrong_type
from lightning_dpgen.data.tables.column import BadSchema, Beyond, Key, Modelled, is_text, shortened
from lightning_dpgen.data.tables.description import (
    KEYS,
    PRIVATE,
    Listed,
    ModelledDescription,
    Text,
    key,
    refuse,
    refuse_twice,
)
from lightning_dpgen.data.tables.likely_rows import likely_advice
from lightning_dpgen.data.tables.scales import Integers

_TRUTH = {False: ("false", "f", "no", "n", "0"), True: ("true", "t", "yes", "y", "1")}
# Values of a category from which on rare ones are learned together by default.
MANY = 1000
# The word for values that a column does not have.
NOT_LISTED = "not listed"
_LISTED = "a list of texts, of whole numbers, or of true and false"
_KINDS = {str: "texts", int: "whole numbers below 2^53", bool: "true and false"}
_VALUE = {"type": ["string", "integer", "boolean"]}
_VALUES = {"anyOf": [{"type": "array", "minItems": 1, "items": _VALUE}, {"const": PRIVATE}]}
_Count = Annotated[float, Field(ge=-1e15, le=1e15)]


def _values(values: Any) -> Any:
    if values == PRIVATE:
        return values
    kind = type(values[0]) if isinstance(values, list | tuple) and values else None
    if kind not in _KINDS:
        raise ValueError(_LISTED)
    for value in values:
        if type(value) is not kind or (kind is str and not is_text(value)) or (kind is int and abs(value) > 2**53):
            refuse("values", value, f"only {_KINDS[kind]}, as the first one is; put texts in quotes")
    refuse_twice("values", values)
    return tuple(values)


class _Words(ModelledDescription):
    """The keys of both types that may hold true and false."""

    words: Annotated[tuple[Text, Text], Listed] | None = key(
        None, expected='the two words for false and for true, as in [no, yes], or in quotes ["0", "1"]'
    )
    """the texts for false and for true, such as `[no, yes]`, in upper or lower case; text files, workbooks, pages and
    rules have these texts, and a DataFrame or Parquet file has true and false (default: true, yes, t, y, 1 and their
    opposites are read, and true and false are written)"""

    def check(self) -> None:
        super().check()
        words = self.words
        if words and (words[0].lower() == words[1].lower() or any(not word or word != word.strip() for word in words)):
            refuse("words", list(words), "two words that differ in more than capitals, without spaces around them")


class CategoryDescription(_Words):
    holds = "texts or whole numbers from a list"
    decide = "which values are possible, including rare ones? Rare values may share one (other)"

    type: Literal["category"]
    values: Annotated[Any, AfterValidator(_values), WithJsonSchema(_VALUES)] = ()
    """all possible values; `private` has them found with a share of the budget (default: must be given)"""
    other: Annotated[Any, WithJsonSchema(_VALUE)] = None
    """the value in this list that stands for unlisted values (`outside: clamp`)"""
    ignore_case: bool = False
    """whether upper and lower case are alike in texts that are read; synthetic tables have them as `values` does"""
    counts: Annotated[tuple[_Count, ...], Listed] = key((), expected="numbers, one for each of the values, such as 12.5")
    """about how many records have each value, in the order of `values`, if that is public and need not be bought: rare
    values are then learned together, in groups (default: none: bought with `bins_share` where there are more than
    1,000 values, else each value is learned by itself)"""
    counts_noise: float = Field(0.0, ge=0, le=1e15)
    """the standard deviation of the noise in a count of `counts`"""

    @property
    def unfinished(self) -> str | None:
        return KEYS if self.values == PRIVATE else None

    def _always_dumped(self) -> set[str]:
        return {"counts_noise"} if self.counts else set()

    def check(self) -> None:
        super().check()
        if self.unfinished:
            if self.other is not None and not is_text(self.other):
                raise BadSchema("categories that are found are texts: expected a text, or none", key="other")
            return
        if not self.values:
            refuse("values", self.values, _LISTED)
        kind = type(self.values[0])
        if self.words is not None and kind is not bool:
            raise BadSchema("expected only with type: boolean", key="words")
        if self.other is not None and (type(self.other) is not kind or self.other not in self.values):
            refuse("other", self.other, "one of the values")
        if self.ignore_case:
            self._check_case(kind)
        if len(self.counts) not in (0, len(self.values)):
            refuse("counts", list(self.counts), f"a number for each of {len(self.values):,} values")
        if self.counts_noise and not self.counts:
            raise BadSchema("has a meaning only with counts", key="counts_noise")

    def _check_case(self, kind: type) -> None:
        if kind is not str:
            refuse("ignore_case", self.ignore_case, "true or false, of values that are texts")
        first: dict[str, str] = {}
        for value, low in zip(self.values, pc.utf8_lower(list(self.values)).to_pylist(), strict=True):
            if first.setdefault(low, value) != value:
                expected = "values that differ in more than upper and lower case, with ignore_case: true"
                refuse("values", first[low], expected)

    def build(self, name: str) -> Category:
        return Category(name, self).check_missing_values()


class BooleanDescription(_Words):
    holds = "true and false"
    decide = "may it be missing?"
    values: ClassVar = (False, True)

    type: Literal["boolean"]

    def build(self, name: str) -> Category:
        return Category(name, self).check_missing_values()


@dataclass(frozen=True)
class Category(Modelled):
    """One of a list of values that is public: texts, whole numbers, or true and false.

    A synthetic table has them as string, int64 or bool. With counts, which are found privately (`find_values`) or public,
    rare values are learned together (`Grouped`).

    Example:
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> city = {"type": "category", "values": ["Oslo", "Rome", "elsewhere"], "other": "elsewhere"}
        >>> counted = Counter()
        >>> column_of("city", city).encode(pa.array(["Rome", "Bonn"]), True, counted)[0].tolist(), dict(counted)
        ([1, 2], {'city: not listed': 1})
    """

    values, other, words, ignore_case = Key(), Key(), Key(), Key()
    counts, counts_noise = Key(), Key()

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
        return self.with_values(counts=tuple(counts), counts_noise=noise)

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

    def takes(self, text: pa.Array) -> bool:
        return bool(self._codes(text)[0] >= 0)

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
            raise Misfit(row, f"{quote_cell(values, row)}: expected {expected}", advice)
        counted[f"{self.name}: {NOT_LISTED}"] += int(unlisted.sum())
        codes[unlisted] = moves_to
        return codes, None

    def beyond(self, values: pa.Array) -> list[Beyond]:
        unlisted = self._codes(values) < 0
        return [Beyond(NOT_LISTED, unlisted, self._stand_in)] if unlisted.any() else []

    def likely_cures(self, value: Any) -> list[str]:
        """Return what a schema may declare so that an unlisted value is one of those that are listed.

        Example:
            >>> from lightning_dpgen.data.tables.schema_keys import column_of
            >>> column_of("city", {"type": "category", "values": ["Oslo", "Rome"]}).likely_cures("OSLO")
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

    @cached_property
    def _lowered(self) -> pa.Array:
        return pc.utf8_lower(self._choices[:-1])

    def _codes(self, values: pa.Array) -> np.ndarray:
        """Return places (n,) int64, -1 for what is not listed."""
        if self.kind is str:
            if not pa.types.is_string(values.type):
                raise wrong_type(values, "text")
            listed = self._lowered if self.ignore_case else self._choices[:-1]
            places = pc.index_in(pc.utf8_lower(values) if self.ignore_case else values, listed)
        elif self.kind is int:
            numbers = pa.array(Integers().ticks(values))
            places = pc.index_in(numbers, self._choices[:-1].cast(numbers.type))
        else:
            places = pc.index_in(_truths(values, self.words), self._choices[:-1])
        return places.fill_null(-1).to_numpy().astype(np.int64)


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

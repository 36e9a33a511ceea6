"""Rules that noisy tables of counts show: a choice of one column with which another column has one choice only."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from lightning_dpgen.data.layout import Layout
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.constraint_texts import MOST_LETTERS, most_constraints
from lightning_dpgen.data.tables.grouped import Grouped
from lightning_dpgen.measure.pair_tables import NoisyTables

# A rule is found where more records than so many deviations of the noise would break it by chance, of which this part is
# measured at most,
_EXPECTED, _PART = 10.0, 0.05
# and where so many deviations more than are measured are at most this part of the records that it is about.
_CERTAIN, _EXCEPTIONS = 3.0, 0.02


class FoundRule(NamedTuple):
    """A record with a choice of one group has a choice of another one.

    Args:
        given: the group and the choice from which it follows.
        then: the group and the choice that follow.
    """

    given: tuple[int, int]
    then: tuple[int, int]


def find_rules(layout: Layout, tables: NoisyTables) -> list[FoundRule]:
    """Return the rules between groups that tables of two groups show, other than the label. Post-processing.

    A rule that hardly any record breaks counts as one: at most 2 % of those with the choice that it is about, and noise
    hides more exceptions once in 740. If the columns had nothing to do with each other, many records would break it.
    """
    tables = tables.of_all
    shares = {group: np.maximum(counts / tables.total, 0.0) for group, (counts,) in tables.singles.items()}
    found = []
    for pair, (counts,) in tables.pairs.items():
        if layout.label in pair:
            continue
        for given, then, crossed in ((*pair, counts), (*pair[::-1], counts.T)):
            deviation = tables.deviation_of(*pair) * math.sqrt(crossed.shape[1] - 1)
            others = crossed.sum(axis=1, keepdims=True) - crossed
            expected = tables.total * np.outer(shares[given], 1.0 - shares[then])
            about = tables.total * shares[given][:, None]
            rare = (others + _CERTAIN * deviation <= _EXCEPTIONS * about) & (others < _PART * expected)
            plain = (expected > _EXPECTED * deviation) & rare
            found += [FoundRule((given, a), (then, b)) for a, b in np.argwhere(plain).tolist()]
    return found


def broken_pairs(schema: Schema, rules: Sequence[FoundRule]) -> np.ndarray:
    """Return the pairs of choices (width, width) that rules and declared constraints leave out, True there."""
    layout = schema.layout
    pairs = np.zeros((layout.width, layout.width), bool)
    for (given, choice), (then, other) in rules:
        left_out = pairs[layout.spans[given].start + choice, layout.spans[then]]
        left_out[np.arange(layout.groups[then]) != other] = True
    for first, second, impossible in schema.impossible_pairs():
        pairs[layout.spans[first], layout.spans[second]] |= impossible
    return pairs | pairs.T


def with_rules(schema: Schema, rules: Sequence[FoundRule]) -> Schema:
    """Return the schema of a table with rules as constraints of its synthetic rows.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> columns = "a: {type: category, values: [x, y, z]}, b: {type: integer, low: 0, high: 9, bins: 5}"
        >>> schema = parse_schema(f"columns: {{{columns}}}")
        >>> with_rules(schema, [FoundRule((0, 1), (1, 0)), FoundRule((0, 2), (1, 0))]).found_constraints
        ('b = 0..1 if a in (y, z)',)
    """
    if not rules:
        return schema
    names, givens = list(schema.choices), defaultdict(list)
    known = {(first, second): impossible for first, second, impossible in schema.impossible_pairs()}
    # A distance is in no condition.
    apart = {place for place, name in enumerate(names) if name in schema.rules.relatives}
    together = {
        (place, choice)
        for place, column in enumerate(column for column in schema.modelled if column.choices)
        if isinstance(column, Grouped)
        for choice in range(column.present)
        if not column.alone(choice)
    }
    for (given, choice), then in rules:
        # No condition names the values of a group.
        if apart & {given, then[0]} or together & {(given, choice), then} or _is_declared(known, (given, choice), then):
            continue
        # A missing value is told in words of its own.
        missing = schema.choices[names[given]][choice] == "missing"
        givens[given, then, missing].append(choice)
    texts = [
        f"{schema.condition_text(names[group], [choice])} if {schema.condition_text(names[given], choices)}"
        for (given, (group, choice), _), choices in givens.items()
    ]
    # A release could not be read again with more.
    most = most_constraints(schema.rules.columns) - len(schema.constraints)
    letters = list(itertools.accumulate(map(len, texts)))
    kept = [text for text, sum_of in zip(texts[: max(most, 0)], letters, strict=False) if sum_of <= MOST_LETTERS // 2]
    return _with_all(schema, kept)


def _with_all(schema: Schema, texts: Sequence[str]) -> Schema:
    """Return the schema with constraints; without those that no row could keep beside the others.

    Measurements are paid for, so there is a release whatever noise makes of the tables.
    """
    try:
        return schema.changed(found_constraints=tuple(texts))
    except BadSchema:
        pass
    for text in texts:
        with suppress(BadSchema):
            schema = schema.changed(found_constraints=(*schema.found_constraints, text))
    return schema


def _is_declared(known: Mapping[tuple[int, int], np.ndarray], given: tuple[int, int], then: tuple[int, int]) -> bool:
    """Return whether declared constraints leave out all that a rule does."""
    (first, choice), (second, other) = given, then
    if (first, second) in known:
        left_out = known[first, second][choice]
    elif (second, first) in known:
        left_out = known[second, first][:, choice]
    else:
        return False
    return bool(np.delete(left_out, other).all())

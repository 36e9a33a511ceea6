"""Noisy tables of the choices of one group and of two: shares, rules that they show, and columns that noise hides."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lightning_dpgen.common.plain_text import listed, say_count
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.constraint_texts import MOST_LETTERS, most_constraints
from lightning_dpgen.data.tables.grouped import Grouped
from lightning_dpgen.measure.statistics import Marginals
from lightning_dpgen.measure.workload import Measured

# The most rounds of iterative proportional fitting, which ends where sums are so near to what they should be.
_ROUNDS, _NEAR = 30, 1e-9
# Shares that are at most so large are none.
LEAST = 1e-30


@dataclass(frozen=True)
class NoisyMoments:
    """Noisy sums of products of contrasts of groups.

    Args:
        sums: (d, d), symmetric, in records.
        deviation: standard deviation of the noise of a number beside the diagonal.
        contrasts: for each group (choices, contrasts); those that are 0 for all choices were not measured.
    """

    sums: np.ndarray
    deviation: float
    contrasts: Sequence[np.ndarray]

    @cached_property
    def spans(self) -> list[slice]:
        """For each group the places of its contrasts."""
        ends = itertools.accumulate((own.shape[1] for own in self.contrasts), initial=0)
        return [slice(start, end) for start, end in itertools.pairwise(ends)]

    def of(self, first: int, second: int) -> np.ndarray:
        """Return the sums of products of the contrasts of two groups, (contrasts of the first, of the second)."""
        return self.sums[self.spans[first], self.spans[second]]


@dataclass(frozen=True)
class NoisyTables:
    """Noisy counts of the choices of each group, and of each two, perhaps by the label.

    Args:
        singles: by group, (labels, choices).
        pairs: by two groups, the lower first; (labels, choices, choices).
        single_deviation, pair_deviation: standard deviation of the noise of a number of each.
        total: the number of records, as it is estimated.
        label: the group by whose choices counts are told apart; None where there is one table of each, of all records.
        deviations: standard deviations of tables that other counts have made more exact, by their groups (`sharpened`).
        ordered: for each group, how many of its first choices are in an order (`Layout.ordered`); empty for none.
        sets: counts of three groups or more, an axis for each; of all records, whatever their label.
        set_deviation: standard deviation of the noise of a number of those.
        moments: of contrasts of the groups (`measure.pair_moments`), which tell two groups' ranks with far less noise than
            their table does; None where they were not measured.
    """

    singles: Mapping[int, np.ndarray]
    pairs: Mapping[tuple[int, int], np.ndarray]
    single_deviation: float
    pair_deviation: float
    total: float
    label: int | None = None
    deviations: Mapping[tuple[int, ...], float] = field(default_factory=dict)
    ordered: Sequence[int] = ()
    sets: Mapping[tuple[int, ...], np.ndarray] = field(default_factory=dict)
    set_deviation: float = 0.0
    moments: NoisyMoments | None = None

    @property
    def labels(self) -> int:
        """The number of tables of each group."""
        return len(next(iter(self.singles.values())))

    @cached_property
    def of_all(self) -> NoisyTables:
        """The tables of all records, whatever their label, which has one of its own then."""
        if self.label is None:
            return self
        singles = {group: counts.sum(axis=0)[None] for group, counts in self.singles.items()}
        # The counts of labels are those of each table, which trust them the less the more choices it has.
        weights = {group: 1.0 / counts.shape[1] for group, counts in self.singles.items()}
        of_labels = sum(weights[group] * counts.sum(axis=1) for group, counts in self.singles.items())
        singles[self.label] = of_labels[None] / sum(weights.values())
        pairs = {pair: counts.sum(axis=0)[None] for pair, counts in self.pairs.items()}
        root = math.sqrt(self.labels)
        finer = {groups: root * own for groups, own in self.deviations.items()}
        deviation, of_pairs = root * self.single_deviation, root * self.pair_deviation
        return NoisyTables(
            singles, pairs, deviation, of_pairs, self.total, deviations=finer, ordered=self.ordered, moments=self.moments
        )

    def deviation_of(self, *groups: int) -> float:
        """Return the standard deviation of the noise of a number in the table of one group, or of two."""
        return self.deviations.get(groups, self.single_deviation if len(groups) == 1 else self.pair_deviation)

    def sharpened(self, groups: tuple[int, ...], counts: np.ndarray, deviation: float) -> NoisyTables:
        """Return the tables with what other counts of the same records say, which have noise of their own.

        Each table of these groups moves to the estimate of least variance of its cells and its sums, in which the other
        counts say the same: those of more groups are added up. A deviation is never below the true one.

        Args:
            groups: any of them, in the order of the axes.
            counts: an axis for each group.
            deviation: the standard deviation of the noise of each number.

        Example:
            >>> before = NoisyTables({0: np.array([[6.0, 2.0]])}, {}, 2.0, 2.0, total=8.0)
            >>> after = before.sharpened((0,), np.array([4.0, 4.0]), 2.0)
            >>> after.singles[0], round(after.deviation_of(0), 3)
            (array([[5., 3.]]), 1.414)
        """
        singles, pairs, deviations = dict(self.singles), dict(self.pairs), dict(self.deviations)
        for members, table in [*(((group,), table) for group, table in singles.items()), *pairs.items()]:
            if not set(members) <= set(groups):
                continue
            # The first axis is that of the label, or there is one table.
            axes = (-1 if self.label is None else self.label, *members)
            added = tuple(axis for axis, group in enumerate(groups) if group not in axes)
            kept = [group for group in groups if group in axes]
            summed = tuple(axis for axis, group in enumerate(axes) if group not in groups)
            other = counts.sum(axis=added).transpose([kept.index(group) for group in axes if group in groups])
            number = math.prod(table.shape[axis] for axis in summed)
            # Without noise all counts say the same.
            variance = max(self.deviation_of(*members), 1e-9) ** 2
            noise = max(deviation, 1e-9) ** 2 * math.prod(counts.shape[axis] for axis in added)
            gain = variance / (number * variance + noise)
            moved = table + gain * (np.expand_dims(other, summed) - table.sum(axis=summed, keepdims=True))
            (singles if len(members) == 1 else pairs)[members[0] if len(members) == 1 else members] = moved
            if self.deviation_of(*members):
                deviations[members] = math.sqrt(variance * (1.0 - gain))
        return replace(self, singles=singles, pairs=pairs, deviations=deviations)

    def shares(self) -> list[np.ndarray]:
        """Return the shares of each group's choices: its own counts and those of its pairs, by their inverse variance."""
        tables = self.of_all
        trust = {group: 1.0 / max(tables.deviation_of(group), 1.0) ** 2 for group in tables.singles}
        sums = {group: trust[group] * counts[0] for group, counts in tables.singles.items()}
        for pair, (counts,) in tables.pairs.items():
            for group, axis in zip(pair, (1, 0), strict=True):
                variance = max(tables.deviation_of(*pair), 1.0) ** 2 * counts.shape[axis]
                sums[group] = sums[group] + counts.sum(axis=axis) / variance
                trust[group] += 1.0 / variance
        return [nearest_shares(sums[group] / trust[group] / tables.total) for group in sorted(sums)]


@dataclass(frozen=True)
class PairShares:
    """The shares of the choices of two groups, as they are estimated.

    Args:
        shares: (choices, choices).
        sure: by how many deviations of the noise this is better than that the groups have nothing to do with each other.
        precision: the inverse variance of a cell, in units of that of its noisy count; above 1 where few numbers estimate
            all cells.
    """

    shares: np.ndarray
    sure: float
    precision: float = 1.0

    @property
    def information(self) -> float:
        """The mutual information of both groups, in nats."""
        return mutual_information(self.shares)


def nearest_shares(values: np.ndarray) -> np.ndarray:
    """Return the shares that are nearest to numbers (Euclidean projection on the simplex; Duchi et al. 2008).

    Example:
        >>> nearest_shares(np.array([0.7, 0.5, -0.4])).round(2)
        array([0.6, 0.4, 0. ])
    """
    ordered = np.sort(values, axis=None)[::-1]
    over = (np.cumsum(ordered) - 1.0) / np.arange(1, ordered.size + 1)
    return np.maximum(values - over[np.flatnonzero(ordered > over)[-1]], 0.0)


def mutual_information(shares: np.ndarray) -> float:
    """Return the mutual information of rows and columns of shares, in nats.

    Example:
        >>> round(mutual_information(np.eye(2) / 2), 3), round(mutual_information(np.ones((2, 2)) / 4), 3)
        (0.693, 0.0)
    """
    alone = np.outer(shares.sum(axis=1), shares.sum(axis=0))
    there = shares > LEAST
    return max(0.0, float((shares[there] * np.log(shares[there] / alone[there])).sum()))


def fitted_to(shares: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return a table with these shares of rows and columns, by iterative proportional fitting; cells of 0 stay 0."""
    down, across = np.ones(len(rows)), np.ones(len(columns))
    for number in range(_ROUNDS):
        sums = down * (shares @ across)
        # Those of columns are right after each round.
        if number and np.abs(sums - rows).max() < _NEAR:
            break
        down *= np.divide(rows, sums, out=np.ones_like(sums), where=sums > LEAST)
        sums = across * (down @ shares)
        across *= np.divide(columns, sums, out=np.ones_like(sums), where=sums > LEAST)
    shares = down[:, None] * shares * across
    return shares / max(float(shares.sum()), LEAST)


def strongest_tree(groups: int, information: Mapping[tuple[int, int], float]) -> list[tuple[int, int]]:
    """Return the edges of a forest of pairs of groups with the largest sum of information, strongest first.

    Pairs that are not given have none (Chow and Liu 1968, by Kruskal's algorithm).

    Example:
        >>> strongest_tree(4, {(0, 1): 0.5, (0, 2): 0.2, (1, 2): 0.4})
        [(0, 1), (1, 2)]
    """
    tree = list(range(groups))
    edges = []
    for pair in sorted(information, key=lambda pair: (-information[pair], pair)):
        first, second = (tree[group] for group in pair)
        if first != second:
            edges.append(pair)
            tree = [first if own == second else own for own in tree]
    return edges


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
    rules = []
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
            rules += [FoundRule((given, a), (then, b)) for a, b in np.argwhere(plain).tolist()]
    return rules


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
    # Constraints are of the columns of a table.
    if not rules or not schema.modelled:
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
        return schema.with_values(found_constraints=tuple(texts))
    except BadSchema:
        pass
    for text in texts:
        with suppress(BadSchema):
            schema = schema.with_values(found_constraints=(*schema.found_constraints, text))
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


def total_of(statistics: Mapping[str, Marginals], measured: Mapping[str, Measured]) -> float:
    """Estimate the number of records from all tables, weighted by their inverse variance."""
    weighted, trust = 0.0, 0.0
    for name, tables in statistics.items():
        variance = max(measured[name].deviation, 1e-9) ** 2
        for counts in tables.tables_of(measured[name].sums):
            weighted += float(counts.sum()) / (variance * counts.numel())
            trust += 1.0 / (variance * counts.numel())
    return max(weighted / trust, 1.0)


class LostColumns(str):
    """A warning of columns that would be nothing but noise.

    Attributes:
        names: of the columns.
    """

    names: list[str]

    def __new__(cls, text: str, names: list[str]) -> LostColumns:
        warning = super().__new__(cls, text)
        warning.names = names
        return warning


def lost_columns(schema: Schema, noise: Mapping[int, float], n: int) -> LostColumns | None:
    """Return which columns would be nothing but noise, whose values have fewer records on average than counts have noise.

    Args:
        noise: by group, the standard deviation of what all counts together tell of one of its choices.
        n: the declared number of records.
    """
    sizes, names = schema.layout.groups, list(schema.choices)
    lost = [group for group, deviation in noise.items() if sizes[group] * deviation > n]
    if not lost:
        return None
    worst = max(lost, key=lambda group: sizes[group] * noise[group])
    text = (
        f"{say_count(len(lost), 'column')} would be nothing but noise ({listed(names[group] for group in lost)}): a value "
        f"of {names[worst]} has {n / sizes[worst]:,.1f} records on average, and its count noise of standard deviation "
        f"{noise[worst]:,.1f}; put rare values together, cut numbers into fewer bins, or leave columns out"
    )
    return LostColumns(text, [names[group] for group in lost])


def what_to_leave_out(schema: Schema) -> str:
    """Advise a user whose table has too many cells, naming the columns of most values."""
    named_groups = enumerate(zip(schema.choices, schema.layout.groups, strict=True))
    sizes = {name: size for group, (name, size) in named_groups if group != schema.layout.label}
    named = listed(f"{name} ({sizes[name]})" for name in sorted(sizes, key=lambda name: -sizes[name])[:3])
    return (
        f"cut numbers into fewer bins, or leave out columns of little use (type: drop), first those of most values: {named}"
    )

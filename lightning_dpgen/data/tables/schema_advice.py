"""Advice on a schema: warnings of what it does, from public facts, or from a sample that the curator declares public."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.conditions import quoted_name
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.categories import MANY, Category
from lightning_dpgen.data.tables.constraint_texts import parse_constraints
from lightning_dpgen.data.tables.grouped import GROUPS
from lightning_dpgen.data.tables.likely_form import likely_code
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.row_rules import CONSTRAINTS
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import KINDS, keys_of, meaning_of

# Records behind a value of a category in units of its noise.
_CLEAR = 3.0
# Whole values in a bin of equal width, above which they may differ by much; decades of ages have ten.
_WIDE = 10
# The share of a sample in one bin, and in one value, from which on little else is seen.
_ONE_BIN, _ONE_VALUE = 0.9, 0.99
# Names of columns in one line.
_MOST_NAMED = 4


def warnings_of(schema: TableSchema, n: int | None = None, noise: float | None = None) -> Iterator[tuple[str, str]]:
    """Yield columns with what their declarations do, from public facts alone.

    Args:
        n: the declared number of records; None where it is not known yet.
        noise: the standard deviation of the noise in a count, if one column alone had the budget; None without one.

    Example:
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> column = column_of("previous", {"type": "integer", "low": 0, "high": 300, "bins": 29})
        >>> list(warnings_of(TableSchema((column,))))[0][1][:60]
        'each of 29 bins of equal width holds about 10 values, which '
    """
    columns = schema.modelled
    for column in columns:
        if isinstance(column, Category):
            yield from _of_category(column, n, None if noise is None else noise * math.sqrt(len(columns)))
        elif isinstance(column, Numeric):
            yield from _of_numbers(column)
    for earlier, later in schema.rules.in_order:
        if not earlier.special:
            yield (
                later.name,
                f"is never before {earlier.name}, but learned by itself, so what lies between them is told coarsely; with "
                f"relative_to: {earlier.name} it is learned by the distance",
            )
    yield from _of_unrelated(schema)
    yield from schema.rules.unreachable()


def warning_of_few(schema: TableSchema, n: int, noise: float) -> str | None:
    """Return that most tables of two columns hold more noise than records, from public facts alone; None for other schemas.

    Args:
        schema: with its bins decided.
        n: the declared number of records.
        noise: the standard deviation of the noise in a count, if one column alone had the budget.

    Example:
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> columns = [column_of(name, {"type": "integer", "low": 0, "high": 9, "bins": 10}) for name in "abcdefgh"]
        >>> [warning_of_few(TableSchema(tuple(columns)), n, 1.3) is None for n in (100, 1000)]
        [False, True]
    """
    sizes = [column.choices for column in schema.modelled if column.choices]
    tables = [math.prod(pair) for pair in itertools.combinations(sizes, 2)]
    if not tables:
        return None
    mean, deviation = n / float(np.median(tables)), noise * math.sqrt(len(tables))
    if deviation <= mean:
        return None
    return (
        f"hardly worth publishing: in most tables of two columns a cell holds {mean:,.1f} records on average, and noise of "
        f"about {deviation:,.1f}, so what goes together is lost; leave columns out, or take more records or epsilon"
    )


def _of_unrelated(schema: TableSchema) -> Iterator[tuple[str, str]]:
    """Ask once for the order of dates and times that nothing relates, neither directly nor through other columns."""
    columns = {column.name: column for column in schema.recorded if isinstance(column, Numeric)}
    dates = [column for column in columns.values() if column.type in ("date", "datetime")]
    apart = {name: {name} for name in columns}
    related = [one.columns for one in parse_constraints(schema.constraints, schema.rules.columns, CONSTRAINTS)]
    related += [(column.name, column.relative_to) for column in schema.rules.relatives.values()]
    for first, *others in related:
        for other in others:
            if first in apart and other in apart and apart[first] is not apart[other]:
                apart[first] |= apart[other]
                apart |= dict.fromkeys(apart[first], apart[first])
    pairs = [
        (one, other)
        for one, other in itertools.combinations(dates, 2)
        if one.scale == other.scale
        and apart[one.name] is not apart[other.name]
        and _bounds(one)[0] <= _bounds(other)[1]
        and _bounds(other)[0] <= _bounds(one)[1]
    ]
    if not pairs:
        return
    # Columns with nearly the same bounds are most likely the begin and the end of one thing.
    earlier, later = min(pairs, key=lambda pair: sum(abs(a - b) for a, b in zip(*map(_bounds, pair), strict=True)))
    if _bounds(later) < _bounds(earlier):
        earlier, later = later, earlier
    left, right = quoted_name(earlier.name), quoted_name(later.name)
    concerned = list(dict.fromkeys(column.name for pair in pairs for column in pair))
    more = [name for name in concerned if name not in (earlier.name, later.name)]
    others = listed(more, _MOST_NAMED)
    yield (
        later.name,
        f"can {left} be after {right}? Nothing says so, and synthetic rows will have it. If no record has, declare "
        f"relative_to: {earlier.name} for {later.name}, or the constraint {left} <= {right}"
        + (f". The same question is open for {others}" if more else ""),
    )


def _bounds(column: Numeric) -> tuple[int | float, int | float]:
    return column.scale.tick(column.low), column.scale.tick(column.high)


def _of_category(column: Category, n: int | None, noise: float | None) -> Iterator[tuple[str, str]]:
    count = len(column.values)
    known = n is not None and noise is not None
    if n / count >= _CLEAR * noise if known else count <= MANY:
        return
    noisy = (
        f", of which each has {n / count:,.1f} records on average, and a count has noise of about {noise:,.1f}"
        if known
        else ""
    )
    lost = "rare values are not told apart"
    if count > MANY and not column.counts:
        lost = (
            "a share of the budget (bins_share) finds those that many records have, and the others are learned in "
            f"{GROUPS} groups, within which they are not told apart"
        )
    yield column.name, f"{count:,} values{noisy}: {lost}; put them together under one (other), or leave it out (type: drop)"


def _of_numbers(column: Numeric) -> Iterator[tuple[str, str]]:
    for key, bound in (("low", column.low), ("high", column.high)):
        if likely_code(bound) and bound not in column.special:
            yield (
                column.name,
                f"{key}: {bound} looks like a code, such as for a value that is not known: if it is one, declare special: "
                f"[{bound}] and the bound of all other values",
            )
    if column.scaled or column.bins is None or column.density or column.transform != "linear":
        return
    # Values of a column of real numbers are never one apart.
    width = column.grid.span / column.bins if column.type in ("integer", "date") else None
    if width is not None and width > _WIDE:
        yield (
            column.name,
            f"each of {column.bins:,} bins of equal width holds about {width:,.0f} values, which are drawn evenly: where "
            "many records have one of them, such as 0, it is lost. Leave bins out, so that they follow the records for a "
            "share of the budget; or name such values in special, or take transform: log",
        )


def warnings_of_sample(
    schema: TableSchema, decided: TableSchema, sample: Encoded, counted: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """Yield columns with what their declarations do to records that are public.

    Args:
        schema: as it was declared.
        decided: the same with bins of equal width, by which the sample was encoded.
        sample: records that the curator declares to be public.
        counted: the values that were moved, by what `TableSchema.encode` calls them.
    """
    for what, count in sorted(counted.items()):
        name, _, how = what.partition(": ")
        yield name, f"{count:,} values of the sample are {how or 'outside of what is declared'}"
    left_open = {column.name for column in schema.undecided(0)}
    grouped = [column for column in decided.modelled if column.choices]
    for place, column in enumerate(grouped):
        shares = np.bincount(sample.codes[:, place].astype(np.int64), minlength=column.choices) / max(len(sample), 1)
        most = int(shares.argmax())
        share, named = float(shares[most]), column.choice_names[most]
        if share >= _ONE_VALUE and column.alone(most):
            yield column.name, f"{share:.1%} of the sample are {named}: there is little else to learn"
        elif share >= _ONE_BIN and not column.alone(most):
            problem = f"{share:.1%} of the sample are in one bin of equal width ({named}), whose values are drawn evenly"
            advice = "leave bins out, so that they follow the records for a share of the budget, or choose edges there"
            if column.name in left_open:
                advice = "bins that follow the records are needed here, as bins_share buys them; or name edges"
            yield column.name, f"{problem}: {advice}"


def explained(name: str, fields: Mapping[str, Any]) -> list[str]:
    """Return what is declared of a column, what there is to decide, and the keys that it may have, a line each.

    Args:
        fields: as the file has them; some may still be open.

    Raises:
        ValueError: for a type that is none.
    """
    kind = fields.get("type")
    if kind not in KINDS:
        raise ValueError(f"type: {kind}: expected one of {', '.join(KINDS)}")
    lines = [f"{name}: {KINDS[kind].holds}", f"  decide: {KINDS[kind].decide}"]
    for name, field in keys_of(KINDS[kind]).items():
        given = f" = {fields[name]}" if fields.get(name) is not None else ""
        meaning, default = meaning_of(field)
        lines.append(f"  {name}{given}: {meaning}" + ("" if given else f" (default: {default})"))
    # The texts are those of a page, with marks and places of its own.
    return [line.replace("`", "").replace(" (below)", " (docs/reference/schema.md)") for line in lines]

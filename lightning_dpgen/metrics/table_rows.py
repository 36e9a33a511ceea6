"""Whole rows of a table: copies, values that real rows never have, broken constraints, and columns that determine others.

Private.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.measure import ROWS_OF_TABLES, TABLE, Listing, Result, average_and_worst, register

if TYPE_CHECKING:
    from lightning_dpgen.metrics.sides import TableSides

# The largest share of real records that may break a dependency; shuffled values must break it so many times as often.
BROKEN, _SHUFFLED = 0.01, 10
# Records that shuffled values must break it in, at least: fewer are chance.
_FEW = 30
# Pairs of records by which pairs of columns are sifted, the share of them that may differ, and pairs that are then counted.
_SIFTED, _DIFFER, _COUNTED = 1000, 0.05, 500
# Values that are looked at, of all columns together; dependencies that are listed, and broken constraints that are told.
_VALUES, _LISTED = 1 << 25, 10


@dataclass(frozen=True)
class Dependency:
    """A column that determines another one in nearly all real records. Private.

    Args:
        column: the one that determines.
        determined: the other.
        real: the share of real records whose value is not the commonest one beside theirs.
        broken: the number of synthetic records whose value is not the commonest one of real records beside theirs.
        judged: the number of synthetic records whose value of `column` any real record has.
    """

    column: str
    determined: str
    real: float
    broken: int
    judged: int

    @property
    def synthetic(self) -> float:
        """The share of the judged records that break it; 0 without any."""
        return self.broken / max(1, self.judged)


def find_dependencies(real: TableValues, synthetic: TableValues, seed: int = 0) -> list[Dependency]:
    """Return the dependencies that real records keep but for 1 %, those that synthetic ones break most often first.

    A missing value is a value. A dependency must tell something: with the determined values shuffled among the records, ten
    times as many would break it, and 30 at least. So neither a column of one value is determined, nor does one that is
    different in nearly all records determine others. Pairs of columns are sifted by 1,000 pairs of records with equal
    values; of more than 500 that are left, those are counted whose determined column varies most.

    Args:
        real, synthetic: records in random order, of which the first ones are looked at where there are very many values.
        seed: of the shuffle, and of the pairs of records.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> values = "{type: category, values: [a, b, c]}"
        >>> schema = parse_schema(f"columns: {{zip: {values}, region: {values}}}")
        >>> zips = np.arange(300) % 3
        >>> sides = [np.stack([zips, region], axis=1) for region in (zips % 2, zips // 2)]
        >>> found = find_dependencies(*(TableValues(schema, np.zeros((300, 0)), side) for side in sides))
        >>> [(own.column, own.determined, own.real, own.broken, own.judged) for own in found]
        [('zip', 'region', 0.0, 200, 300)]
    """
    columns = real.schema.recorded
    most = max(1, _VALUES // max(1, len(columns)))
    real, synthetic = real[:most], synthetic[:most]
    n, random = len(real), np.random.default_rng(seed)
    codes, sizes = [], []
    for column in columns:
        different, column_codes = np.unique(
            np.concatenate([side.column(column.name) for side in (real, synthetic)]), return_inverse=True
        )
        codes.append(column_codes.astype(np.int32))
        sizes.append(len(different))
    codes = np.stack(codes)
    known, drawn = codes[:, :n], codes[:, n:]
    # The chance that two records differ in a column.
    varied = np.array([1.0 - ((np.bincount(row) / n) ** 2).sum() for row in known])
    candidates = []
    for x, values in enumerate(known):
        order = np.argsort(values, kind="stable")
        equal = np.flatnonzero(values[order[1:]] == values[order[:-1]])
        if len(equal) < _FEW:
            continue
        some = random.permutation(equal)[:_SIFTED]
        differ = (known[:, order[some]] != known[:, order[some + 1]]).mean(axis=1)
        candidates += [(x, int(y)) for y in np.flatnonzero((differ <= _DIFFER) & (varied > BROKEN)) if y != x]
    candidates.sort(key=lambda pair: -varied[pair[1]])
    dependencies, shuffle = [], random.permutation(n)
    for x, y in candidates[:_COUNTED]:
        likely = _commonest(known[x], known[y], sizes[x], sizes[y])
        broken = int((likely[known[x]] != known[y]).sum())
        shuffled = known[y][shuffle]
        chance = int((_commonest(known[x], shuffled, sizes[x], sizes[y])[known[x]] != shuffled).sum())
        if broken <= BROKEN * n and chance >= max(_FEW, _SHUFFLED * broken):
            beside = likely[drawn[x]]
            off, judged = int(((beside >= 0) & (beside != drawn[y])).sum()), int((beside >= 0).sum())
            dependencies.append(Dependency(columns[x].name, columns[y].name, broken / n, off, judged))
    return sorted(dependencies, key=lambda column_codes: -column_codes.synthetic)


def _commonest(x: np.ndarray, y: np.ndarray, size: int, of_y: int) -> np.ndarray:
    """Return the commonest y (size,) beside each value of x; -1 beside a value that no record has."""
    pairs, counts = np.unique(x.astype(np.int64) * of_y + y, return_counts=True)
    order = np.argsort(counts, kind="stable")
    commonest = np.full(size, -1)
    # The last assignment stands, which is that of the largest count.
    commonest[pairs[order] // of_y] = pairs[order] % of_y
    return commonest


@register(
    TABLE, section=ROWS_OF_TABLES, place=40, better="target",
    says="Shares of rows, and of values. Best is what the real half has.",
)  # fmt: skip
def _look_at_rows(sides: TableSides) -> Result:
    results = []
    for other in sides.compared:
        numbers, real = _row_numbers(other, sides.real)
        _, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        scores = {
            "rows identical to another of the same side": float((counts[places] > 1).mean()),
            "rows identical to a real one": float(np.isin(numbers, real).mean()),
        }
        if never := list(never_occurring(sides.real, other).values()):
            scores |= average_and_worst("values that never occur in the real column", never)
        results.append(scores)
    return Result(*results)


def never_occurring(real: TableValues, other: TableValues) -> dict[str, float]:
    """Return the share of values that do not occur among real ones, of each column but those of real numbers."""
    columns = [c for c in real.schema.recorded if not isinstance(c, Numeric) or c.scale.whole]
    shares = {}
    for column in columns:
        values = other.column(column.name)
        values = values[~np.isnan(values)]
        known = np.isin(values, real.column(column.name))
        shares[column.name] = float(1.0 - known.mean()) if len(known) else 0.0
    return shares


def _row_numbers(*sides: TableValues) -> list[np.ndarray]:
    """Return a number for each record, equal for identical ones of all sides."""
    # Adding 0 makes a negative zero positive; an infinite number is no value.
    rows = [np.hstack([np.nan_to_num(side.numbers + 0.0, nan=np.inf, posinf=np.inf), side.codes]) for side in sides]
    both = np.ascontiguousarray(np.concatenate(rows))
    _, numbers = np.unique(both.view([("", both.dtype)] * both.shape[1]).reshape(-1), return_inverse=True)
    return np.split(numbers, np.cumsum([len(side) for side in sides])[:-1])


@register(
    TABLE, section=ROWS_OF_TABLES, place=41, better="target",
    says="Broken constraints, dates after others and what one column says of another are of all records; of many pairs of "
    "dates, those that differ most.",
)  # fmt: skip
def _break_constraints(sides: TableSides) -> Result:
    both = range(len(sides.compared))
    found = [{f"rows that break {name}": shares[side] for name, shares in sides.broken.items()} for side in both]
    return Result(*found, remarks={"rules": _in_words(sides.broken)})


def _in_words(broken: dict[str, tuple[float, float]]) -> list[str]:
    """Return the constraints that synthetic rows break most, in words, or one line that they break none."""
    worst = sorted(((synthetic, real, text) for text, (synthetic, real) in broken.items() if synthetic), reverse=True)
    lines = [
        f"{text} is broken by {synthetic:.2%} of the synthetic rows, and by {real:.2%} of the real ones"
        for synthetic, real, text in worst
    ]
    many = f"all {len(broken)} constraints are" if len(broken) > 1 else "the one constraint is"
    return lines[:_LISTED] or [f"{many} kept by every synthetic row"] * bool(broken)


@register(TABLE, section=ROWS_OF_TABLES, place=43, better="target")
def _break_dependencies(sides: TableSides) -> Result:
    if not sides.dependencies:
        return Result()
    both = zip(*((own.synthetic, own.real) for own in sides.dependencies), strict=True)
    title = "rows that break what one column says of another"
    found = [average_and_worst(title, shares) for shares in list(both)[: len(sides.compared)]]
    return Result(*found, listings=[_listing(sides.dependencies)])


def _listing(found: list[Dependency]) -> Listing:
    head = ("column", "determines", "broken, real", "broken, synthetic", "rows", "of rows with a known value")
    listed = [(own.column, own.determined, own.real, own.synthetic, own.broken, own.judged) for own in found[:_LISTED]]
    note = (
        "Columns whose value says that of another one in 99 % of the real records or more, by no chance; a missing value "
        "is a value. A synthetic record breaks it if it has another value than most real records with its value of the "
        "first column. Those that synthetic records break most often."
    )
    return Listing("columns that determine others", note, head, listed)

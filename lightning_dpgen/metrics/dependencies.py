"""Columns whose value another column determines in nearly all real records, and how often others break that. Private."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_dpgen.data.tables.values import TableValues

# The largest share of real records that may break a dependency; shuffled values must break it so many times as often.
BROKEN, _SHUFFLED = 0.01, 10
# Records that shuffled values must break it in, at least: fewer are chance.
_FEW = 30
# Pairs of records by which pairs of columns are sifted, the share of them that may differ, and pairs that are then counted.
_SIFTED, _DIFFER, _COUNTED = 1000, 0.05, 500
# Values that are looked at, of all columns together.
_VALUES = 1 << 25


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
        different, own = np.unique(
            np.concatenate([side.column(column.name) for side in (real, synthetic)]), return_inverse=True
        )
        codes.append(own.astype(np.int32))
        sizes.append(len(different))
    codes = np.stack(codes)
    known, made = codes[:, :n], codes[:, n:]
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
    found, shuffle = [], random.permutation(n)
    for x, y in candidates[:_COUNTED]:
        likely = _commonest(known[x], known[y], sizes[x], sizes[y])
        broken = int((likely[known[x]] != known[y]).sum())
        shuffled = known[y][shuffle]
        chance = int((_commonest(known[x], shuffled, sizes[x], sizes[y])[known[x]] != shuffled).sum())
        if broken <= BROKEN * n and chance >= max(_FEW, _SHUFFLED * broken):
            beside = likely[made[x]]
            off, judged = int(((beside >= 0) & (beside != made[y])).sum()), int((beside >= 0).sum())
            found.append(Dependency(columns[x].name, columns[y].name, broken / n, off, judged))
    return sorted(found, key=lambda own: -own.synthetic)


def _commonest(x: np.ndarray, y: np.ndarray, size: int, of_y: int) -> np.ndarray:
    """Return the commonest y (size,) beside each value of x; -1 beside a value that no record has."""
    pairs, counts = np.unique(x.astype(np.int64) * of_y + y, return_counts=True)
    order = np.argsort(counts, kind="stable")
    found = np.full(size, -1)
    # The last assignment stands, which is that of the largest count.
    found[pairs[order] // of_y] = pairs[order] % of_y
    return found

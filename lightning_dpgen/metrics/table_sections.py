"""The sections of the evaluation of a table, each of decoded values and never of a model's own bins. Private."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest, rankdata

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics import sections
from lightning_dpgen.metrics.attacks import nearness
from lightning_dpgen.metrics.columns import choose_pairs
from lightning_dpgen.metrics.correlation import AssociationDistance
from lightning_dpgen.metrics.dependencies import Dependency, find_dependencies
from lightning_dpgen.metrics.detection import FOLDS, detection
from lightning_dpgen.metrics.features import written_out
from lightning_dpgen.metrics.marginals import MarginalDistance
from lightning_dpgen.metrics.named_pairs import LISTED, missing_together, worst_pairs
from lightning_dpgen.metrics.numeric_columns import NumericDistance
from lightning_dpgen.metrics.numeric_summaries import orders, ordinary, spreads, summaries
from lightning_dpgen.metrics.predicted_columns import boosted_scores, choose_targets
from lightning_dpgen.metrics.quantile_bins import QuantileBins, binned, quantile_bins
from lightning_dpgen.metrics.sections import Interval, Listing, Section
from lightning_dpgen.metrics.train_on_synthetic import train_on_synthetic
from lightning_dpgen.privacy.plain_text import listed

# Groups of a column that are compared, at most, and the records of a side that one needs.
GROUPS, FEW = 12, 30
# Records of a side whose nearest real one is searched for, and real ones among which it is.
CLOSEST, AMONG = 2_000, 10_000
# Pairs of columns of numbers whose correlations are compared: of more, a choice; numbers that are written out at a time.
CORRELATED, _NUMBERS = 300, 1 << 24
ONE_MEAN, ONE_WORST, TWO_MEAN = "one column, mean", "one column, worst", "two columns, mean"
DETECTED = "detected, 2 AUC - 1"


@dataclass(frozen=True, eq=False)
class TableSides:
    """The records that are compared. Private.

    Args:
        real: half of the records that were learned from, or as many of it as are compared.
        other: as many of the other half, in the place of synthetic ones; None where there are too few.
        synthetic: as many synthetic ones.
        learned: all records that were learned from.
        made: all synthetic ones.
        held_out: records that were not learned from; None without any.
        by: the column whose groups are compared; None for none.
        broken: the share of records that break each declared constraint, of synthetic ones and of real ones, by its name.
        seed: of all draws.
    """

    real: TableValues
    other: TableValues | None
    synthetic: TableValues
    learned: TableValues
    made: TableValues
    held_out: TableValues | None
    by: str | None
    broken: dict[str, tuple[float, float]]
    seed: int

    @property
    def compared(self) -> list[TableValues]:
        """Return the synthetic records, and the real ones in their place if there are any."""
        return [self.synthetic] + ([] if self.other is None else [self.other])

    @cached_property
    def bins(self) -> dict[str, QuantileBins]:
        """Bins at quantiles of all real records."""
        return quantile_bins(self.learned)

    @cached_property
    def dependencies(self) -> list[Dependency]:
        """Columns that another one determines in real records, those that synthetic ones break most often first."""
        return find_dependencies(self.learned, self.made, self.seed)

    @cached_property
    def spreads(self) -> np.ndarray:
        """The range of nearly all real values of each column of numbers (columns of numbers,)."""
        return spreads(self.learned)

    @cached_property
    def scaled(self) -> dict[str, Encoded | None]:
        """Each side as units and groups."""
        sides = {name: getattr(self, name) for name in ("real", "other", "synthetic", "learned", "made", "held_out")}
        return {name: None if side is None else side.scaled()[0] for name, side in sides.items()}

    @cached_property
    def layout(self) -> Layout:
        """The layout of `scaled`."""
        return self.real.scaled()[1]


def columns_section(sides: TableSides) -> Section:
    """Compare single columns: numbers by their distribution functions and how far they lie, categories by shares."""
    found, distances = [], {}
    for other in sides.compared:
        own = column_distances(sides.real, other, sides.spreads)
        distances = distances or own
        scores = _mean_and_worst("one column", own)
        if sides.real.of_numbers:
            for words, far in _numeric(sides.real, other, sides.spreads).items():
                scores |= {f"{words}, mean": float(far.mean()), f"{words}, worst": float(far.max())}
        if sides.real.of_codes:
            scores |= _mean_and_worst("categories, total variation", {c.name: own[c.name] for c in sides.real.of_codes})
        scores["missing values, largest difference of shares"] = _missing(sides.real, other)
        found.append(scores)
    metric = _pairs_metric(sides, sides.synthetic)
    shares, columns = metric.shares(), []
    summary = summaries(sides.learned, sides.made)
    for place, column in enumerate(sides.real.schema.recorded):
        synthetic, real = shares[place].numpy()
        names = column.choice_names if isinstance(column, Category) else []
        if isinstance(column, Numeric):
            bins = sides.bins[column.name]
            order = bins.order()
            names = [bins.names(column)[bin] for bin in order]
            synthetic, real = synthetic[order], real[order]
            there = (synthetic > 0) | (real > 0)
            synthetic, real = synthetic[there], real[there]
            names = [name for name, seen in zip(names, there, strict=True) if seen]
        columns.append(
            {"name": column.name, "column": place, "group": place, "distance": distances[column.name],
             "choices": names, "synthetic": synthetic, "real": real, "summary": summary.get(column.name)}
        )  # fmt: skip
    columns.sort(key=lambda column: -column["distance"])
    return _section(found, {"columns": columns})


_KS, _MOVED = "numbers, Kolmogorov-Smirnov", "numbers, Wasserstein in ranges of 98 % of the real values, 1 at most"


def column_distances(real: TableValues, other: TableValues, lengths: np.ndarray) -> dict[str, float]:
    """Return the distance of each column, in [0, 1]: total variation for categories, the larger of two for numbers.

    These are Kolmogorov-Smirnov and Wasserstein in units of `lengths`. The second is the larger one only where values lie
    beyond that range: few of them, far away, make another mean.

    Args:
        lengths: (columns of numbers,) as `spreads` returns them.
    """
    found = {}
    if real.of_numbers:
        far = np.maximum(*_numeric(real, other, lengths).values()).tolist()
        found = dict(zip((column.name for column in real.of_numbers), far, strict=True))
    for column in real.of_codes:
        size = len(column.values) + 1
        shares = [np.bincount(side.column(column.name), minlength=size) / len(side) for side in (real, other)]
        found[column.name] = float(0.5 * np.abs(shares[0] - shares[1]).sum())
    return {column.name: found[column.name] for column in real.schema.recorded}


def pairs_section(sides: TableSides) -> Section | str:
    """Compare tables of two columns, numbers in bins at quantiles of the real ones; and associations of columns."""
    columns = sides.real.schema.recorded
    if len(columns) < 2:
        return "the records have no two columns"
    found, figures = [], {}
    for other in sides.compared:
        metric = _pairs_metric(sides, other)
        two_way = metric.distances()["two_way"]
        if not len(two_way):
            return "the tables of two columns have too many cells"
        pairs = zip(metric.pairs, two_way, strict=True)
        figures = figures or {"pairs": [{"columns": (int(a), int(b)), "distance": float(far)} for (a, b), far in pairs]}
        scores = {TWO_MEAN: float(two_way.mean()), "two columns, worst": float(two_way.max())}
        scores |= _associations(sides, other)
        if len(sides.real.of_numbers) > 1:
            of_numbers = choose_pairs(np.ones(len(sides.real.of_numbers), np.int64), CORRELATED, CORRELATED, sides.seed)
            own, made = (rank_correlations(side.numbers, of_numbers) for side in (sides.real, other))
            differences = np.abs(own - made)
            scores["rank correlation, mean difference"] = float(differences.mean())
            scores["rank correlation, worst difference"] = float(differences.max())
        found.append(scores)
    missing, listing = missing_together(sides.real, sides.compared)
    listings = [worst_pairs(sides.real, sides.compared, sides.bins, sides.seed)] + ([] if listing is None else [listing])
    found = [scores | more for scores, more in zip(found, missing, strict=True)]
    return replace(_section(found, figures), listings=listings)


def rank_correlations(numbers: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation (pairs,) of columns (n, columns), of records that have both; 0 if one is constant.

    Example:
        >>> columns = np.array([[1.0, 9.0], [2.0, 8.0], [5.0, 1.0], [np.nan, 4.0]])
        >>> rank_correlations(columns, np.array([[0, 1]])).tolist()
        [-1.0]
    """
    found = np.zeros(len(pairs))
    for place, (a, b) in enumerate(pairs):
        both = ~(np.isnan(numbers[:, a]) | np.isnan(numbers[:, b]))
        if both.any():
            ranks = [rankdata(numbers[both, column]) for column in (a, b)]
            deviation = [values.std() for values in ranks]
            if all(deviation):
                one, other = (values - values.mean() for values in ranks)
                found[place] = (one * other).mean() / (deviation[0] * deviation[1])
    return found.clip(-1.0, 1.0)


def rows_section(sides: TableSides) -> Section:
    """Look at whole rows: repeated ones, copies, values that real ones never have, broken rules, orders of dates."""
    found, in_order = [], orders(sides.learned, sides.made)
    for place, other in enumerate(sides.compared):
        own, real = _row_numbers(other, sides.real)
        _, places, counts = np.unique(own, return_inverse=True, return_counts=True)
        never = never_occurring(sides.real, other)
        scores = {
            "rows identical to another of the same side": float((counts[places] > 1).mean()),
            "rows identical to a real one": float(np.isin(own, real).mean()),
        }
        if never:
            scores |= _mean_and_worst("values that never occur in the real column", never)
        scores |= {f"rows that break {name}": shares[place] for name, shares in sides.broken.items()}
        scores |= {order.score: (order.synthetic, order.real)[place] for order in in_order}
        if depend := {(own.column, own.determined): (own.synthetic, own.real)[place] for own in sides.dependencies}:
            scores |= _mean_and_worst("rows that break what one column says of another", depend)
        found.append(scores)
    figures = {"out_of_order": [order.text for order in in_order if order.far], "rules": _told(sides.broken)}
    return replace(_section(found, figures), listings=_dependencies(sides.dependencies))


def _told(broken: dict[str, tuple[float, float]]) -> list[str]:
    """Return the constraints that synthetic rows break most, in words, or one line that they break none."""
    worst = sorted(((made, real, text) for text, (made, real) in broken.items() if made), reverse=True)
    told = [
        f"{text} is broken by {made:.2%} of the synthetic rows, and by {real:.2%} of the real ones"
        for made, real, text in worst
    ]
    many = f"all {len(broken)} constraints are" if len(broken) > 1 else "the one constraint is"
    return told[:LISTED] or [f"{many} kept by every synthetic row"] * bool(broken)


def _dependencies(found: list[Dependency]) -> list[Listing]:
    head = ("column", "determines", "broken, real", "broken, synthetic", "rows", "of rows with a known value")
    listed = [(own.column, own.determined, own.real, own.synthetic, own.broken, own.judged) for own in found[:LISTED]]
    note = (
        "Columns whose value says that of another one in 99 % of the real records or more, by no chance; a missing value "
        "is a value. A synthetic record breaks it if it has another value than most real records with its value of the "
        "first column. Those that synthetic records break most often."
    )
    return [Listing("columns that determine others", note, head, listed)] if listed else []


def never_occurring(real: TableValues, other: TableValues) -> dict[str, float]:
    """Return the share of values that do not occur among real ones, of each column but those of real numbers."""
    columns = [c for c in real.schema.recorded if not isinstance(c, Numeric) or c.scale.whole]
    found = {}
    for column in columns:
        values = other.column(column.name)
        values = values[~np.isnan(values)]
        known = np.isin(values, real.column(column.name))
        found[column.name] = float(1.0 - known.mean()) if len(known) else 0.0
    return found


def groups_section(sides: TableSides) -> Section | str:
    """Compare the groups of a declared column, each by its share and by the distances of the other columns in it.

    The sides of a group have as many records.
    """
    if sides.by is None:
        return "left out, as the table has no label; --by COLUMN names the column whose groups are compared"
    columns = {column.name: column for column in sides.real.schema.recorded}
    column = columns[sides.by]
    codes = [_group_of(side, column, sides.bins) for side in (sides.real, *sides.compared)]
    size = int(max(part.max(initial=0) for part in codes)) + 1
    counts = np.stack([np.bincount(part, minlength=size) for part in codes])
    names = column.choice_names if isinstance(column, Category) else sides.bins[column.name].names(column)
    names = [*names, "missing"]
    chosen = np.argsort(-counts[0], kind="stable")[:GROUPS]
    found, few = [{} for _ in sides.compared], []
    for group in sorted(chosen[counts[0][chosen] > 0].tolist()):
        title = f"{column.name} {names[group]}"
        for scores, count, side in zip(found, counts[1:, group], sides.compared, strict=True):
            scores[f"{title}: difference of shares"] = float(abs(count / len(side) - counts[0, group] / len(sides.real)))
        least = int(counts[:, group].min())
        if least < FEW:
            few.append(str(names[group]))
            continue
        rows = [np.flatnonzero(part == group)[:least] for part in codes]
        real = sides.real[rows[0]]
        for scores, other, own in zip(found, sides.compared, rows[1:], strict=True):
            distances = column_distances(real, other[own], sides.spreads)
            del distances[column.name]
            if distances:
                scores |= _mean_and_worst(f"{title}: one column", distances)
    note = f"groups with fewer than {FEW} records of a side have their shares alone ({listed(few)})" if few else None
    return replace(_section(found, {}), note=note)


def training_section(sides: TableSides) -> Section | str:
    """Train on synthetic, test on real ones; beside it the same with as many real ones in their place.

    Classifiers learn the label, and gradient boosting the columns that real records predict best (`choose_targets`).
    """
    test = "other" if sides.held_out is None else "held_out"
    if sides.scaled[test] is None:
        return "there are too few real records to put some aside for the test"
    found, apart = [{}, {}], defaultdict(set)
    determined = [{own.column, own.determined} for own in sides.dependencies]
    for tied in [*sides.real.schema.rules.tied, *determined]:
        for name in tied:
            apart[name] |= tied
    targets = choose_targets(sides.real, apart, sides.seed)
    for scores, side in zip(found, ("synthetic", "real"), strict=True):
        if sides.layout.label is not None:
            scores |= train_on_synthetic(sides.scaled[side], sides.scaled[test], sides.layout, total=False, seed=sides.seed)
        scores |= boosted_scores(targets, getattr(sides, side), getattr(sides, test), sides.seed)
    return _section(found, {}) if found[0] else "the records have no label to be learned, and no column that others predict"


def detection_section(sides: TableSides) -> Section | str:
    """Ask a classifier to tell real from synthetic records by their values."""
    if min(len(sides.real), len(sides.synthetic)) < FOLDS:
        return f"there are fewer than {FOLDS} records on one side"
    found = []
    for side in ("synthetic", "other"):
        if sides.scaled[side] is not None and len(sides.scaled[side]) >= FOLDS:
            told = detection(sides.scaled["real"], sides.scaled[side], sides.layout, total=False, seed=sides.seed)
            found.append({"AUC": told["AUC"], DETECTED: told["detected"]})
    return _section(found, {})


def closest_section(sides: TableSides) -> Section | str:
    """Find the closest record that was learned from, of synthetic records and of others in their place.

    Distances are Euclidean: a number counts as its place in the declared range, and another category as the root of 2.
    """
    unseen = sides.held_out is not None
    learned, place = ("learned", "held_out") if unseen else ("real", "other")
    if sides.scaled[place] is None or not sides.layout.width:
        return "there are too few real records"
    random = np.random.default_rng(sides.seed)
    pools = [_shuffled(sides.scaled[side], random) for side in (learned, place, "made")]
    most = max(FEW, _NUMBERS // sides.layout.width)
    among = written_out(pools[0][: min(AMONG, most)], sides.layout)
    others, made = (written_out(pool[: min(CLOSEST, most)], sides.layout) for pool in pools[1:])
    found = []
    for asked in (made, others):
        far = -nearness(asked, among).numpy()
        found.append(
            {"median": float(np.median(far)), "closest twentieth": float(np.quantile(far, 0.05)),
             "share at distance 0": float((far == 0).mean())}
        )  # fmt: skip
    intervals = {}
    size = min(AMONG, most, len(pools[0]), len(pools[1]))
    if unseen and size >= FEW:
        to = [-nearness(made, written_out(pool[:size], sides.layout)).numpy() for pool in pools[:2]]
        near, ties = int((to[0] < to[1]).sum()), int((to[0] == to[1]).sum())
        if told := len(to[0]) - ties:
            name = "closer to a record learned from than to a held-out one"
            found[0][name] = near / told
            interval = binomtest(near, told).proportion_ci(0.95, method="exact")
            intervals[name] = Interval(float(interval.low), float(interval.high), told)
    return replace(_section(found, {}), intervals=intervals, note=None if unseen else _NO_HELD_OUT)


_NO_HELD_OUT = (
    "the real records in the place of synthetic ones were learned from, too; held-out records (--held-out FILE) also show "
    "whether synthetic ones are closer to those that were learned from"
)


def transport_section(sides: TableSides) -> Section | str:
    """Compute the Wasserstein distance of whole records, over random directions."""
    found = sections.transport_section(_encoded_sides(sides, "real", "synthetic", "other", unseen=False))
    if isinstance(found, str):
        return found
    whole = "whole records, sliced"
    reference = {name: value for name, value in found.reference.items() if name == whole}
    return Section({whole: found.scores[whole]}, reference, {})


def membership_section(sides: TableSides) -> Section | str:
    """Attack the release as `metrics.sections.membership_section` does, by the values of records."""
    return sections.membership_section(
        _encoded_sides(sides, "learned", "made", "held_out", unseen=sides.held_out is not None)
    )


def _encoded_sides(sides: TableSides, real: str, synthetic: str, other: str, *, unseen: bool) -> sections.Sides:
    parts = sides.scaled
    return sections.Sides(
        "table", sides.layout, (), parts[real], parts[synthetic], parts[other], unseen, sides.seed, seen="by their values"
    )


def _shuffled(encoded: Encoded, random: np.random.Generator) -> Encoded:
    return encoded[random.permutation(len(encoded))]


def _group_of(values: TableValues, column: Any, bins: dict[str, QuantileBins]) -> np.ndarray:
    found = values.column(column.name)
    return found if isinstance(column, Category) else bins[column.name].codes(found)


def _pairs_metric(sides: TableSides, other: TableValues) -> MarginalDistance:
    real, layout = binned(sides.real, sides.bins)
    metric = MarginalDistance(layout, seed=sides.seed)
    metric.update(real, real=True)
    metric.update(binned(other, sides.bins)[0], real=False)
    return metric


def _associations(sides: TableSides, other: TableValues) -> dict[str, float]:
    real, layout = binned(sides.real, sides.bins)
    metric = AssociationDistance(layout, seed=sides.seed)
    metric.update(real, real=True)
    metric.update(binned(other, sides.bins)[0], real=False)
    found = metric.compute()
    words = {"groups_mean": "Cramer's V, mean difference", "groups_worst": "Cramer's V, worst difference"}
    return {words[name]: float(value) for name, value in found.items() if name in words}


def _numeric(real: TableValues, other: TableValues, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """Return both distances of columns of numbers, each (columns of numbers,) in [0, 1].

    Special and missing values are shares of the first, and no lengths of the second.
    """
    found = {}
    for words, name, sides in (
        (_KS, "kolmogorov_smirnov", (real.numbers, other.numbers)),
        (_MOVED, "wasserstein", (ordinary(real), ordinary(other))),
    ):
        metric = NumericDistance(torch.from_numpy(lengths))
        for numbers, is_real in zip(sides, (True, False), strict=True):
            metric.update(torch.from_numpy(numbers), real=is_real)
        found[words] = metric.distances()[name].clamp(max=1.0).numpy()
    return found


def _missing(real: TableValues, other: TableValues) -> float:
    found = [0.0]
    for column in real.schema.recorded:
        if column.missing:
            sides = [side.column(column.name) for side in (real, other)]
            absent = [np.isnan(s) if isinstance(column, Numeric) else s == len(column.values) for s in sides]
            found.append(abs(float(absent[0].mean() - absent[1].mean())))
    return max(found)


def _row_numbers(*sides: TableValues) -> list[np.ndarray]:
    """Return a number for each record, equal for identical ones of all sides."""
    # Adding 0 makes a negative zero positive; an infinite number is no value.
    rows = [np.hstack([np.nan_to_num(side.numbers + 0.0, nan=np.inf, posinf=np.inf), side.codes]) for side in sides]
    both = np.ascontiguousarray(np.concatenate(rows))
    _, numbers = np.unique(both.view([("", both.dtype)] * both.shape[1]).reshape(-1), return_inverse=True)
    return np.split(numbers, np.cumsum([len(side) for side in sides])[:-1])


def _mean_and_worst(title: str, values: dict[str, float]) -> dict[str, float]:
    numbers = list(values.values())
    return {f"{title}, mean": float(np.mean(numbers)), f"{title}, worst": float(np.max(numbers))}


def _section(found: list[dict[str, float]], figures: dict[str, Any]) -> Section:
    return Section(found[0], found[1] if len(found) > 1 else {}, figures)

"""Pairs of columns of a table, those that differ most by name, and columns that the others predict best. Private."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Modelled
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.classifiers import TRAINING
from lightning_dpgen.metrics.columns import MOST_CATEGORIES, choose_pairs, count_pairs
from lightning_dpgen.metrics.marginals import GROUPS_APART, AssociationDistance, MarginalDistance
from lightning_dpgen.metrics.measure import A_TEST, TABLE, Listing, Need, Plot, Result, register
from lightning_dpgen.metrics.sides import EncodedSides, TableSides, compare, named_scores
from lightning_dpgen.metrics.summaries import BINS, QuantileBins, binned

# Pairs that are listed, and looked at: of more, a choice; and values of pairs that are counted of a side.
LISTED, MOST_PAIRS, _COUNTED = 10, 20_000, 1 << 28
WORST_PAIRS = "pairs of columns that differ most, and where"
_DRAWN, _MAPS = 4, "Shares of records with two values together: darker where there are more, by the root of the share."
# Records of a side that must lack a value, and that must have one, before associations of missing values are compared.
FEW = 30
# Pairs of columns of numbers whose correlations are compared: of more, a choice.
CORRELATED = 300
PAIRS, TWO_MEAN = "pairs of columns", "two columns, mean"


def levels(column: Modelled, sides: Sequence[np.ndarray], bins: QuantileBins | None) -> tuple[list[np.ndarray], list[str]]:
    """Return the level (n,) of each value of a column, and the names of the levels, missing last.

    A number is in one of its bins. A category has no more levels than `BINS`, its rarer values on the first side together.

    Args:
        sides: numbers, or codes, of the column on each side.
        bins: those of a column of numbers; None of a category.
    """
    if bins is not None:
        return [bins.codes(values) for values in sides], bins.names(column)
    names, present = list(column.present_names), column.present
    if present <= BINS:
        return list(sides), [*names, "missing"]
    kept = np.argsort(-np.bincount(sides[0], minlength=present + 1)[:present], kind="stable")[: BINS - 1]
    places = np.full(present + 1, BINS - 1)
    places[kept], places[present] = np.arange(BINS - 1), BINS
    named = [*(names[place] for place in kept), f"another of {present - BINS + 1:,} values", "missing"]
    return [places[values] for values in sides], named


def _absent(values: TableValues, column: Modelled) -> np.ndarray:
    found = values.column(column.name)
    return found >= column.present if isinstance(column, Category) else np.isnan(found)


def _together(absent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares (columns, columns) of records that lack both, and the correlations of lacking them."""
    ones = absent.astype(np.float64)
    joint, shares = ones.T @ ones / len(ones), ones.mean(axis=0)
    deviation = np.sqrt(shares * (1.0 - shares))
    scale = np.outer(deviation, deviation)
    phi = np.divide(joint - np.outer(shares, shares), scale, out=np.zeros_like(joint), where=scale > 0)
    return joint, phi.clip(-1.0, 1.0)


def rank_correlations(numbers: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation (pairs,) of columns (n, columns), of records that have both; 0 if one is constant.

    Example:
        >>> columns = np.array([[1.0, 9.0], [2.0, 8.0], [5.0, 1.0], [np.nan, 4.0]])
        >>> rank_correlations(columns, np.array([[0, 1]])).tolist()
        [-1.0]
    """
    correlations = np.zeros(len(pairs))
    for place, (a, b) in enumerate(pairs):
        both = ~(np.isnan(numbers[:, a]) | np.isnan(numbers[:, b]))
        if both.any():
            ranks = [rankdata(numbers[both, column]) for column in (a, b)]
            deviation = [values.std() for values in ranks]
            if all(deviation):
                one, other = (values - values.mean() for values in ranks)
                correlations[place] = (one * other).mean() / (deviation[0] * deviation[1])
    return correlations.clip(-1.0, 1.0)


_TWO_COLUMNS = Need(lambda sides: len(sides.real.schema.recorded) > 1, "the records have no two columns")


@register(
    TABLE, section=PAIRS, place=30, better="lower", needs=(_TWO_COLUMNS,),
    says="Total variation of the tables of two columns, Cramer's V in them, and rank correlations of numbers. Numbers are "
    "cut at tenths of the real column, which the model has not seen, and values of many records have a bin of their own.",
    glance={TWO_MEAN: "mean distance of two columns"},
)  # fmt: skip
def _compare_pairs(sides: TableSides) -> Result | str:
    """Compare tables of two columns, numbers in bins at quantiles of the real ones; and associations of columns."""
    (real, layout), *others = (binned(side, sides.bins) for side in (sides.real, *sides.compared))
    other = others[1][0] if len(others) > 1 else None
    cut = EncodedSides(kind=TABLE, layout=layout, real=real, synthetic=others[0][0], other=other)
    tables = compare(MarginalDistance(layout, seed=sides.seed), cut)
    distances = [metric.distances()["two_way"] for metric in tables]
    if not len(distances[0]):
        return "the tables of two columns have too many cells"
    pairs = zip(tables[0].pairs, distances[0], strict=True)
    scores = [{TWO_MEAN: float(two_way.mean()), "two columns, worst": float(two_way.max())} for two_way in distances]
    associated = named_scores(compare(AssociationDistance(layout, seed=sides.seed), cut), GROUPS_APART)
    for one, more, other in zip(scores, associated, sides.compared, strict=True):
        one |= more | _rank_differences(sides, other)
    return Result(
        *scores, figures={"pairs": [{"columns": (int(a), int(b)), "distance": float(far)} for (a, b), far in pairs]}
    )


def _rank_differences(sides: TableSides, other: TableValues) -> dict[str, float]:
    columns = len(sides.real.of_numbers)
    if columns < 2:
        return {}
    pairs = choose_pairs(np.ones(columns, np.int64), CORRELATED, CORRELATED, sides.seed)
    real, made = (rank_correlations(side.numbers, pairs) for side in (sides.real, other))
    apart = np.abs(real - made)
    return {
        "rank correlation, mean difference": float(apart.mean()), "rank correlation, worst difference": float(apart.max())
    }  # fmt: skip


@register(
    TABLE, section=PAIRS, place=32, better="lower", needs=(_TWO_COLUMNS,),
    says="Missing together: the correlation (phi) of lacking two columns.",
)  # fmt: skip
def _missing_together(sides: TableSides) -> Result:
    """Compare the associations (phi) of missing values of two columns: scores of each side, and a list of the worst.

    Columns that few real records lack, or have, are left out. Without two others there is nothing.
    """
    absent = [np.stack([_absent(side, c) for c in side.schema.recorded], axis=1) for side in (sides.real, *sides.compared)]
    counts = absent[0].sum(axis=0)
    some = np.flatnonzero((counts >= FEW) & (counts <= len(sides.real) - FEW))
    if len(some) < 2:
        return Result()
    a, b = np.triu_indices(len(some), 1)
    tables = [tuple(of[a, b] for of in _together(side[:, some])) for side in absent]
    scores = []
    for _, phi in tables[1:]:
        differences = np.abs(phi - tables[0][1])
        words = {"mean": differences.mean(), "worst": differences.max()}
        scores.append({f"missing together, phi, {what} difference": float(far) for what, far in words.items()})
    (together, phi), (made_together, made_phi), *_ = tables
    names = [sides.real.schema.recorded[place].name for place in some]
    listed = [
        (names[a[at]], names[b[at]], *(float(of[at]) for of in (together, made_together, phi, made_phi)))
        for at in np.argsort(-np.abs(phi - made_phi), kind="stable")[:LISTED]
    ]
    head = ("column", "other column", "both missing, real", "both missing, synthetic", "phi, real", "phi, synthetic")
    note = (
        "The share of records that lack both, and the correlation (phi) of lacking the one and the other, which is 0 where "
        "one says nothing of the other; those whose correlations differ most. Columns that fewer than "
        f"{FEW} of the real half lack are left out."
    )
    return Result(*scores, listings=[Listing("columns that are missing together", note, head, listed)])


@register(TABLE, section=PAIRS, place=31, better="lower", needs=(_TWO_COLUMNS,))
def _list_pairs(sides: TableSides) -> Result:
    """List the pairs of columns whose shares of values differ most, each with the two values where they do.

    Pairs are in the order of their total variation distance, less that of real records in the place of synthetic ones,
    since many values differ by chance.
    """
    columns, bins = sides.real.schema.recorded, sides.bins
    pairs = choose_pairs(np.ones(len(columns), np.int64), MOST_PAIRS, MOST_PAIRS, sides.seed)
    parts = [side[: max(1, _COUNTED // len(pairs))] for side in (sides.real, *sides.compared)]
    found = [levels(c, [side.column(c.name) for side in parts], bins.get(c.name)) for c in columns]
    names, sizes = [named for _, named in found], np.array([len(named) for _, named in found])
    coded = [np.stack([codes[place].astype(np.uint8) for codes, _ in found]) for place in range(len(parts))]

    def shares(pair: np.ndarray) -> list[np.ndarray]:
        return [count_pairs(side, sizes, pair[None]) / side.shape[1] for side in coded]

    distances = np.zeros((len(pairs), len(sides.compared)))
    for place, pair in enumerate(pairs):
        real, *others = shares(pair)
        distances[place] = [0.5 * np.abs(real - other).sum() for other in others]
    listed, plots, beyond = [], [], distances[:, 0] - distances[:, 1:].sum(axis=1)
    for place in np.argsort(-beyond, kind="stable")[:LISTED]:
        a, b = pairs[place]
        real, synthetic, *_ = shares(pairs[place])
        cell = int(np.abs(real - synthetic).argmax())
        one, other = divmod(cell, int(sizes[b]))
        cells = columns[a].name, names[a][one], columns[b].name, names[b][other]
        listed.append((*cells, float(real[cell]), float(synthetic[cell]), *distances[place].tolist()))
        if len(plots) < _DRAWN:
            drawn = {"real": real.reshape(sizes[a], -1), "synthetic": synthetic.reshape(sizes[a], -1)}
            caption, axes = f"{columns[a].name} and {columns[b].name}", (columns[a].name, columns[b].name)
            drawn |= {"names": (names[a], names[b]), "axes": axes, "alt": f"shares of {caption}, real and synthetic"}
            plots.append(Plot("Pairs that differ most, drawn", caption, "two_maps", drawn, (_MAPS,)))
    head = ("column", "value", "other column", "other value", "share, real", "share, synthetic", "distance")
    head += ("distance of real ones",) * (len(sides.compared) > 1)
    note = (
        "The total variation distance of the real half and as many synthetic records, and the pair of values whose shares "
        "differ most. Pairs are in the order of that distance less the one of the other real half, since pairs of many "
        "values differ by chance. Numbers are in tenths of the real column, and rare categories count together."
    )
    return Result(listings=[Listing(WORST_PAIRS, note, head, listed)], plots=plots)


# Columns that are chosen, and looked at; records of a tree, and of its test; the least gain of a column that is chosen.
CHOSEN, _COLUMNS, TREE_ROWS, _LEAST = 3, 100, 1_000, 0.05
# Records that boosting learns from, and is tested on, at most; its rounds; those that a test needs, and of rarer values.
ROWS, _ROUNDS, _FEW, _RARE = 10_000, 50, 30, 10
AUC, ACCURACY, R2 = "AUC", "accuracy", "R2"


@dataclass(frozen=True, eq=False)
class Target:
    """A column that the others are to predict.

    Args:
        column: a category, its rarer values together and a missing one a value, or numbers where they are ordinary ones.
        others: the columns that are looked at.
        real: records that decide which values of a category are rare, and whether it has two.
    """

    column: Modelled
    others: list[Modelled]
    real: TableValues

    @property
    def measure(self) -> str:
        """AUC of a category of two values, accuracy of more, R2 of numbers."""
        if not isinstance(self.column, Category):
            return R2
        return AUC if len(np.unique(self.answers(self.real))) == 2 else ACCURACY

    def answers(self, side: TableValues) -> np.ndarray:
        """Return what is to be predicted (n,) float64; NaN where a number is missing or special."""
        values = side.column(self.column.name)
        if not isinstance(self.column, Category):
            return np.where(np.isin(values, self.column.special_ticks), np.nan, values)
        return levels(self.column, [self.real.column(self.column.name), values], None)[0][1].astype(np.float64)

    def features(self, values: TableValues) -> tuple[np.ndarray, list[bool]]:
        """Return the columns that are looked at (n, columns), NaN where a number is missing, and mark the categories."""
        columns = [np.zeros((len(values), 0)), *(values.column(c.name)[:, None] for c in self.others)]
        return np.hstack(columns), [isinstance(c, Category) and c.present < MOST_CATEGORIES for c in self.others]

    def score(
        self, train: TableValues, test: TableValues, seed: int, *, boosted: bool = True
    ) -> tuple[float, float] | None:
        """Return how well a learner predicts the column, and one answer for all; None where too few of `test` tell.

        Args:
            train: the records that it learns from.
            test: those that it is asked for.
            seed: of the learner.
            boosted: whether that is gradient boosting; a tree otherwise.
        """
        (x, few), y, answers, measure = self.features(train), self.answers(train), self.answers(test), self.measure
        learned, tested = ~np.isnan(y), ~np.isnan(answers)
        x, y, asked, answers = x[learned], y[learned], self.features(test)[0][tested], answers[tested]
        if measure == AUC:
            positive = self.answers(self.real).max()
            y, answers = (y == positive).astype(float), (answers == positive).astype(float)
        return score_learner((x, y), (asked, answers), few, measure, seed, boosted=boosted)


def score_learner(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    categories: Sequence[bool],
    measure: str,
    seed: int,
    *,
    boosted: bool = True,
) -> tuple[float, float] | None:
    """Return how well a learner answers, and one answer for all; None where too few of the test tell.

    Args:
        train, test: features (n, features), and the answers (n,), of AUC 0 or 1.
        categories: whether each feature is a category.
        measure: `AUC`, `ACCURACY` or `R2`.
        seed, boosted: as of `Target.score`.
    """
    (x, y), (asked, answers) = train, test
    counts = np.unique(answers, return_counts=True)[1]
    if len(answers) < _FEW or not x.shape[1] or len(answers) - counts.max() < _RARE:
        return None
    if measure == R2:
        kind = HistGradientBoostingRegressor if boosted else DecisionTreeRegressor
    else:
        kind = HistGradientBoostingClassifier if boosted else DecisionTreeClassifier
    how = {"max_iter": _ROUNDS, "early_stopping": False, "categorical_features": categories}
    model = kind(**(how if boosted else {"max_depth": 6, "min_samples_leaf": 10}), random_state=seed)
    if len(y) < _FEW or (y == y[0]).all():
        # Nothing can be learned: one answer for all.
        predicted = np.full(len(answers), np.median(y) if len(y) else answers.mean())
    else:
        model.fit(x, y)
        predicted = model.predict_proba(asked)[:, 1] if measure == AUC else model.predict(asked)
    if measure == AUC:
        return float(roc_auc_score(answers, predicted)), 0.5
    if measure == R2:
        return float(r2_score(answers, predicted)), 0.0
    return float((predicted == answers).mean()), float(counts.max() / len(answers))


def choose_targets(real: TableValues, apart: dict[str, Iterable[str]], seed: int) -> list[Target]:
    """Return the columns that others predict best among real records, `CHOSEN` at most.

    A tree learns each from 1,000 records and is tested on as many others. Its gain is the part of what one answer for all
    leaves, (score - that of one answer) / (1 - that of one answer), where the score is the AUC of a category of two values,
    the accuracy of one of more, R2 of numbers. Columns with less than 5 % are left out, as is the label.

    Args:
        real: records in random order.
        apart: for each column, those that are not to be looked at: one determines the other, or a constraint ties both.
        seed: of the trees, and of the 100 columns that are looked at where there are more.
    """
    half = min(TREE_ROWS, len(real) // 2)
    train, test = real[:half], real[half : 2 * half]
    order = np.random.default_rng(seed).permutation(len(real.schema.recorded))
    columns = [real.schema.recorded[place] for place in np.sort(order[:_COLUMNS])]
    gains = []
    for column in columns:
        if column.name == real.schema.label:
            continue
        away = {column.name, *apart.get(column.name, ())}
        target = Target(column, [other for other in columns if other.name not in away], real)
        if (scored := target.score(train, test, seed, boosted=False)) is not None:
            gains.append(((scored[0] - scored[1]) / (1.0 - scored[1]), target))
    best = sorted((gain for gain in gains if gain[0] >= _LEAST), key=lambda gain: -gain[0])
    return [target for _, target in best[:CHOSEN]]


def boosted_scores(targets: list[Target], train: TableValues, test: TableValues, seed: int) -> dict[str, float]:
    """Return the score of gradient boosting for each target, and of one answer for all of a category of many values.

    Args:
        train: the records that it learns from, `ROWS` at most.
        test: real ones, as many at most.
    """
    scores = {}
    for target in targets:
        if (scored := target.score(train[:ROWS], test[:ROWS], seed)) is not None:
            name, measure = target.column.name, target.measure
            scores[f"{name} by gradient boosting, {measure}"] = scored[0]
            if measure == ACCURACY:
                scores[f"{name}, commonest value, accuracy"] = scored[1]
    return scores


@register(
    TABLE, section=TRAINING, place=61, better="higher", needs=(A_TEST,),
    says="Trees see values, and no bins. Gradient boosting also learns three other columns: those that trees predict best "
    "among some real records (of two values by AUC, of more by accuracy, of numbers by R2). It does not see columns of "
    "which one determines the other, or that a constraint ties to them.",
)  # fmt: skip
def _predict(sides: TableSides) -> Result | str:
    """Train on synthetic records, test on real ones; beside it the same with as many real ones in their place."""
    apart = defaultdict(set)
    determined = [{own.column, own.determined} for own in sides.dependencies]
    for tied in [*sides.real.schema.rules.tied, *determined]:
        for name in tied:
            apart[name] |= tied
    targets = choose_targets(sides.real, apart, sides.seed)
    found = [boosted_scores(targets, side, sides.test, sides.seed) for side in (sides.synthetic, sides.real)]
    return Result(*found) if found[0] else "no column that others predict"

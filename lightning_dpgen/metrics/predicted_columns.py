"""Columns that the others predict best among real records, and how well synthetic ones teach that. Private."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Modelled
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.classifiers import TRAINING
from lightning_dpgen.metrics.columns import MOST_CATEGORIES
from lightning_dpgen.metrics.measure import A_TEST, TABLE, Result, register
from lightning_dpgen.metrics.sides import TableSides
from lightning_dpgen.metrics.table_pairs import levels

# Columns that are chosen, and looked at; records of a tree, and of its test; the least gain of a column that is chosen.
CHOSEN, _COLUMNS, _TREE_ROWS, _LEAST = 3, 100, 1_000, 0.05
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

    def answers(self, values: TableValues) -> np.ndarray:
        """Return what is to be predicted (n,) float64; NaN where a number is missing or special."""
        found = values.column(self.column.name)
        if not isinstance(self.column, Category):
            return np.where(np.isin(found, self.column.special_ticks), np.nan, found)
        return levels(self.column, [self.real.column(self.column.name), found], None)[0][1].astype(np.float64)

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
        counts = np.unique(answers, return_counts=True)[1]
        if len(answers) < _FEW or not x.shape[1] or len(answers) - counts.max() < _RARE:
            return None
        if measure == R2:
            kind = HistGradientBoostingRegressor if boosted else DecisionTreeRegressor
        else:
            kind = HistGradientBoostingClassifier if boosted else DecisionTreeClassifier
        how = {"max_iter": _ROUNDS, "early_stopping": False, "categorical_features": few}
        model = kind(**(how if boosted else {"max_depth": 6, "min_samples_leaf": 10}), random_state=seed)
        if len(y) < _FEW or (y == y[0]).all():
            # Nothing can be learned: one answer for all.
            told = np.full(len(answers), np.median(y) if len(y) else answers.mean())
        else:
            model.fit(x, y)
            told = model.predict_proba(asked)[:, 1] if measure == AUC else model.predict(asked)
        if measure == AUC:
            return float(roc_auc_score(answers, told)), 0.5
        if measure == R2:
            return float(r2_score(answers, told)), 0.0
        return float((told == answers).mean()), float(counts.max() / len(answers))


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
    half = min(_TREE_ROWS, len(real) // 2)
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
    found = {}
    for target in targets:
        if (scored := target.score(train[:ROWS], test[:ROWS], seed)) is not None:
            name, measure = target.column.name, target.measure
            found[f"{name} by gradient boosting, {measure}"] = scored[0]
            if measure == ACCURACY:
                found[f"{name}, commonest value, accuracy"] = scored[1]
    return found


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

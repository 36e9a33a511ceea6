"""The quality of a synthetic table: 1 less the mean of four distances in [0, 1], which other measures compute. Private."""

from __future__ import annotations

from typing import Any

from lightning_dpgen.metrics.classifiers import DETECTED, DETECTION
from lightning_dpgen.metrics.measure import COLUMNS, TABLE, Glance, Result, beside_real, register
from lightning_dpgen.metrics.table_columns import ONE_MEAN, ONE_WORST
from lightning_dpgen.metrics.table_pairs import PAIRS, TWO_MEAN

QUALITY, HEADLINE, WORST = "quality", "quality, 1 less the mean of its parts", "distance of the worst column"
# The parts of the quality: section, score, and words.
_PARTS = (
    (COLUMNS, ONE_MEAN, "mean distance of a column"),
    (COLUMNS, ONE_WORST, WORST),
    (PAIRS, TWO_MEAN, "mean distance of two columns"),
    (DETECTION, DETECTED, "told apart, 2 AUC - 1"),
)


def _glances(evaluation: Any) -> list[Glance]:
    scores, reference = (of.get(QUALITY, {}) for of in (evaluation.scores, evaluation.reference))
    words = {HEADLINE: "quality: 1 would be equal to real records", WORST: WORST}
    worst = {WORST: f"{evaluation.worst_column[0]}"} if evaluation.worst_column else {}
    return [
        Glance(scores[score], said, worst.get(score, ""), beside_real(reference.get(score)))
        for score, said in words.items()
        if score in scores
    ]


@register(
    TABLE, section=QUALITY, place=5, better="higher", of_results=True,
    says="1 less the mean of the four distances below it, each between 0 and 1, of which lower is better: 1 if synthetic "
    "and real records were equal in all of them. Perfect data would score like the real half beside it. One bad column is "
    "seen by the worst one, however many are good.",
    glance=_glances,
)  # fmt: skip
def _average(results: dict[str, Result | str | None]) -> Result | str:
    """Compute the quality of the results of other sections: a reason where there are none, None where time was over.

    A part that a table cannot have is no part of it: one column has no pairs. A part that time has left out is missed.
    """
    if late := dict.fromkeys(section for section, *_ in _PARTS if results[section] is None):
        return f"left out, as parts of it were not computed: {', '.join(late)}"
    found = []
    for side in ("scores", "reference"):
        parts = {
            words: getattr(results[section], side)[score]
            for section, score, words in _PARTS
            if score in getattr(results[section], side, {})
        }
        found.append({HEADLINE: 1.0 - sum(parts.values()) / len(parts)} | parts if parts else {})
    return Result(*found)

"""The quality of a synthetic table: 1 less the mean of four distances in [0, 1]; and the report of SDMetrics. Private."""

from __future__ import annotations

import warnings
from typing import Any

import pandas as pd

from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.classifiers import DETECTED, DETECTION
from lightning_dpgen.metrics.measure import COLUMNS, TABLE, Glance, Need, Result, rate, register
from lightning_dpgen.metrics.sides import TableSides
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
    words = {HEADLINE: ("quality: 1 would be equal to real records", (1.0, 0.0)), WORST: (WORST, (0.0, 1.0))}
    worst = {WORST: f"{evaluation.worst_column[0]}"} if evaluation.worst_column else {}
    return [
        rate(scores[score], reference.get(score), said, ends, name=worst.get(score, ""))
        for score, (said, ends) in words.items()
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
    averages = []
    for side in ("scores", "reference"):
        parts = {
            words: getattr(results[section], side)[score]
            for section, score, words in _PARTS
            if score in getattr(results[section], side, {})
        }
        averages.append({HEADLINE: 1.0 - sum(parts.values()) / len(parts)} | parts if parts else {})
    return Result(*averages)


class MissingLibrary(ImportError):
    """A library that is an extra of this package, and is not installed."""


def import_quality_report() -> type:
    """Return the class of the report.

    Raises:
        MissingLibrary: if SDMetrics is not installed.
    """
    try:
        with warnings.catch_warnings():
            # Newer versions have another place for it, older ones this alone.
            warnings.simplefilter("ignore")
            from sdmetrics.reports.single_table import QualityReport
    except ImportError as error:
        raise MissingLibrary(
            f"SDMetrics cannot be imported ({error}): pip install 'lightning_dpgen[sdmetrics]' installs it"
        ) from None
    return QualityReport


def quality_report(real: TableValues, synthetic: TableValues) -> dict[str, float]:
    """Return the overall score of SDMetrics' quality report and those of its properties, in [0, 1]; higher is better.

    Dates and times are numbers to it.

    Raises:
        MissingLibrary: if SDMetrics is not installed.
    """
    report = import_quality_report()()
    numeric = {column.name for column in real.of_numbers}
    metadata = {
        "columns": {
            column.name: {"sdtype": "numerical" if column.name in numeric else "categorical"}
            for column in real.schema.recorded
        }
    }
    with warnings.catch_warnings():
        # It warns of columns in which there is nothing to compare.
        warnings.simplefilter("ignore")
        report.generate(_frame(real), _frame(synthetic), metadata, verbose=False)
    properties = report.get_properties()
    found = {"overall score": float(report.get_score())}
    return found | {
        str(name).lower(): float(score)
        for name, score in zip(properties["Property"], properties["Score"], strict=True)
        if pd.notna(score)
    }


def _frame(values: TableValues) -> pd.DataFrame:
    columns = {}
    for column in values.schema.recorded:
        cells = values.column(column.name)
        if isinstance(column, Numeric):
            columns[column.name] = cells
        else:
            columns[column.name] = pd.Series([*column.present_names, None], dtype=object).to_numpy()[cells]
    return pd.DataFrame(columns)


@register(
    TABLE, section="SDMetrics", place=95, better="higher", needs=(Need(lambda sides: sides.sdmetrics),),
    says="The quality report of SDMetrics, of the same records.",
)  # fmt: skip
def _report(sides: TableSides) -> Result:
    return Result(*(quality_report(sides.real, other) for other in sides.compared))

"""The quality report of SDMetrics, for readers who know it. Private."""

from __future__ import annotations

import warnings

import pandas as pd

from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.measure import TABLE, Need, Result, register
from lightning_dpgen.metrics.sides import TableSides


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
        own = values.column(column.name)
        if isinstance(column, Numeric):
            columns[column.name] = own
        else:
            columns[column.name] = pd.Series([*column.present_names, None], dtype=object).to_numpy()[own]
    return pd.DataFrame(columns)


@register(
    TABLE, section="SDMetrics", place=95, better="higher", needs=(Need(lambda sides: sides.sdmetrics),),
    says="The quality report of SDMetrics, of the same records.",
)  # fmt: skip
def _report(sides: TableSides) -> Result:
    return Result(*(quality_report(sides.real, other) for other in sides.compared))

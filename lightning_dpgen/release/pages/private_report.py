"""The private report: the results of an evaluation, in one page that must not be published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from lightning_dpgen.common.folders import owner_only
from lightning_dpgen.metrics.evaluation import Evaluation
from lightning_dpgen.metrics.judgement import all_glances, judge
from lightning_dpgen.metrics.measure import Plot, format_score, meaning, measures_of
from lightning_dpgen.metrics.summaries import FIGURES, Summary
from lightning_dpgen.release.pages import charts
from lightning_dpgen.release.pages import private_plots as plots
from lightning_dpgen.release.pages.report import environment
from lightning_dpgen.release.pages.text import printable

# The most columns that are drawn; of more, those that differ most.
COLUMNS, PAIRED_COLUMNS = 24, 30
# Letters of the names of columns.
_LETTERS = 40
# The form of a part of the page in which a plot is alone; others stand side by side.
_FORMS = {"sheet": "pixels", "operating_curves": "square", "two_maps": "pair", "numbers": "pair"}


def write_private_report(
    path: Path,
    evaluation: Evaluation,
    *,
    title: str,
    facts: Mapping[str, Any] | None = None,
    counted: Mapping[str, int] | None = None,
    warnings: Sequence[str] = (),
) -> None:
    """Write one self-contained page: no script, nothing loaded from elsewhere, and a warning on top that it is private.

    Args:
        path: a place in a folder that is not published.
        evaluation: the results; its figures are computed from real records.
        title: the records, in words.
        facts: other facts about the release, such as its epsilon.
        counted: what was changed or left out where the records were read, and how often.
        warnings: what the run has warned of because of its records.

    Raises:
        OSError: where the page cannot be written.
    """
    page = environment(autoescape=True)
    page.filters |= {"score": format_score, "printable": partial(printable, most=_LETTERS)}
    sections = measures_of(evaluation.kind)
    text = page.get_template("private_report.html.jinja").render(
        title=title,
        e=evaluation,
        facts=dict(facts or {}),
        warnings=warnings,
        counted=dict(counted or {}),
        what={section: meaning(measures) for section, measures in sections.items()},
        glance=all_glances(evaluation),
        judgement=judge(evaluation),
        parts=_parts(evaluation.plots),
        columns=_columns(evaluation),
        figures=FIGURES,
        summaries=_summaries(evaluation),
        all_columns=len(evaluation.figures.get("columns", ())),
        pairs=_pairs(evaluation),
    )
    with open(path, "w", encoding="utf-8", opener=owner_only) as file:
        file.write(text)


def _parts(drawn: Sequence[Plot]) -> list[dict[str, Any]]:
    """Draw the plots, those of one heading side by side."""
    parts: dict[str, dict[str, Any]] = {}
    for plot in drawn:
        form = _FORMS.get(plot.draw, "wide")
        part = parts.setdefault(plot.heading, {"heading": plot.heading, "form": form, "notes": plot.notes, "plots": []})
        draw = getattr(plots, plot.draw, None) or getattr(charts, plot.draw)
        part["plots"].append((plot.caption, draw(**plot.content)))
    return list(parts.values())


def _columns(evaluation: Evaluation) -> list[dict[str, Any]]:
    worst, columns = evaluation.figures.get("columns", []), []
    for column in sorted(worst[:COLUMNS], key=lambda column: column["column"]):
        said = f"{column['name']}: shares of values, real and synthetic"
        columns.append(column | {"plot": plots.bars(column["real"], column["synthetic"], column["choices"], said)})
    return columns


def _summaries(evaluation: Evaluation) -> list[Summary]:
    """Return the summaries of the columns of numbers that differ most, in the order of the table."""
    places = {column["name"]: column["column"] for column in evaluation.figures.get("columns", ())}
    return sorted(evaluation.summaries[:COLUMNS], key=lambda summary: places[summary.name])


def _pairs(evaluation: Evaluation) -> Markup | None:
    """Draw distances of two columns off the diagonal, of one on it."""
    worst = evaluation.figures.get("columns", [])
    drawn = sorted(worst[:PAIRED_COLUMNS], key=lambda column: column["column"])
    if len(drawn) < 2:
        return None
    places = {column["column"]: place for place, column in enumerate(drawn)}
    values = np.full((len(drawn), len(drawn)), np.nan)
    for column in drawn:
        values[places[column["column"]], places[column["column"]]] = column["distance"]
    for pair in evaluation.figures.get("pairs", ()):
        a, b = (places.get(column) for column in pair["columns"])
        if a is not None and b is not None:
            values[a, b] = values[b, a] = pair["distance"]
    return plots.heat_map(values, [column["name"] for column in drawn], "distances of pairs of columns")

"""The private report: the results of an evaluation, in one page that must not be published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from lightning_dpgen.metrics import evaluation as parts
from lightning_dpgen.metrics import table_evaluation as tables
from lightning_dpgen.metrics.evaluation import Evaluation
from lightning_dpgen.metrics.numeric_summaries import FIGURES, Summary
from lightning_dpgen.metrics.sections import Interval
from lightning_dpgen.metrics.train_on_synthetic import CLASSIFIERS
from lightning_dpgen.privacy.folders import owner_only
from lightning_dpgen.release import private_plots as plots
from lightning_dpgen.release.report import environment
from lightning_dpgen.release.text import printable

# The most columns that are drawn; of more, those that differ most.
COLUMNS, PAIRED_COLUMNS = 24, 30
# Sizes of baskets that find room side by side.
_SMALL = 30
_WHAT = {
    parts.COLUMNS: "Total variation distance between the shares of values, and of pairs of values: 0 equal, 1 disjoint. "
    "Lower is better.",
    parts.ASSOCIATIONS: "Cramer's V of two columns, or the correlation of two units: how far the synthetic one is from the "
    "real one. Lower is better.",
    parts.PIXELS: "Means of pixels, covariances of pairs of them, and the shares of labels. Lower is better.",
    parts.ITEMS: "Total variation distance between what is bought, and between the sizes of baskets. Lower is better.",
    parts.QUERIES: "How many baskets hold all, or any, of some items: mean relative error of 1,000 random queries in each "
    "row, true answers below 0.1 % of the baskets counted as that. Few baskets hold many random items, so answering 0 does "
    "well where all are asked for; items taken together test which go together. Lower is better.",
    parts.CURVES: "Differences of curves of readings in [0, 1], and of the shape of a series, each reading a share of its "
    "sum. Lower is better.",
    parts.NEAREST: "How far series are from the nearest real one by dynamic time warping, which moves a reading by up "
    "to a tenth of the length: the root of the sum of squared differences, in units of the range between the declared "
    "bounds. Below that of held-out real ones where records are copied, above it where they are like no "
    "real one.",
    parts.CLASSIFIER: "The classifier that the release holds, on real records that nothing was learned from: how often its "
    "answer is right, its mean log loss in nats, and by how much the probability of its answer is off on average.",
    parts.TRAINING: "Classifiers that learn the label from synthetic records, tested on real ones; beside them, the same "
    "learned from real records. Higher is better.",
    parts.DETECTION: "Gradient boosting that is asked whether a record is real or synthetic, cross-validated: AUC 0.5 if "
    "it cannot tell, 1 if it always can. Lower is better.",
    parts.TRANSPORT: "How far records have to be moved to become the real ones, along random directions and unit by unit, "
    "each choice written as 0 and 1. Lower is better.",
    parts.MEMBERSHIP: "An attacker who sees the synthetic records guesses which real ones were learned from: those "
    "near to a synthetic one, or where synthetic records are denser than other real ones. 0.5 is guessing, and the "
    "distance from it is what counts: an AUC far below it says that held-out records are more like the synthetic ones than "
    "those that were learned from. Where the interval of an accuracy (95 % for all attacks together) holds 0.5, the attack "
    "finds nothing. Held-out records of another time or place are told from the others without any leak.",
}
# Sections of a table, which is compared by its values.
_WHAT_OF_TABLES = {
    tables.QUALITY: "1 less the mean of the four distances below it, each between 0 and 1: 1 if synthetic and real records "
    "were equal in all of them. Perfect data would score like the real half beside it. One bad column is seen by the worst "
    "one, however many are good. Higher is better; of the parts below it, lower.",
    parts.COLUMNS: "Values as a file holds them, in no bins. Numbers: the largest difference of two distribution functions "
    "(Kolmogorov-Smirnov; missing values count as the largest), and how far values have to be moved (Wasserstein, special "
    "values left out) in units of the range from the 1 % to the 99 % quantile of the real ones. A column counts with the "
    "larger of the two. Categories: total variation. 0 equal, 1 disjoint. Lower is better.",
    tables.PAIRS: "Total variation of the tables of two columns, Cramer's V in them, and rank correlations of numbers. "
    "Numbers are cut at tenths of the real column, which the model has not seen, and values of many records have a bin of "
    "their own. Missing together: the correlation (phi) of lacking two columns. Lower is better.",
    parts.DETECTION: "Gradient boosting that is asked whether a record is real or synthetic, by its values, "
    "cross-validated on as many of each: AUC 0.5 if it cannot tell, 1 if it always can. Lower is better.",
    tables.RECORDS: "Shares of rows, and of values. Best is what the real half has. Broken constraints, dates after others "
    "and what one column says of another are of all records; of many pairs of dates, those that differ most.",
    tables.GROUPS: "The same distances of columns within the groups of one column, as many records of each side. Lower is "
    "better.",
    parts.TRAINING: "Classifiers that learn the label from synthetic records, tested on real ones; beside them, the same "
    "learned from as many real records. Trees see values, and no bins. Gradient boosting also learns three other columns: "
    "those that trees predict best among some real records (of two values by AUC, of more by accuracy, of numbers by R2). "
    "It does not see columns of which one determines the other, or that a constraint ties to them. Higher is better.",
    parts.TRANSPORT: "How far records have to be moved to become the real ones, along random directions; a number is its "
    "place in the declared range, a category is written as 0 and 1. Lower is better.",
    tables.CLOSEST: "A diagnostic of copying, and no evidence of privacy: the distance of a record to the closest one that "
    "was learned from. A number counts as its place in the declared range, and another category as the root of 2. Where "
    "synthetic records are much closer than the real ones beside them, they may be copies, or no two real rows are alike. "
    "Held-out records decide: where nothing is copied, half of the synthetic ones are closer to a record that was learned "
    "from than to a held-out one (ties are left out).",
    tables.SDMETRICS: "The quality report of SDMetrics, of the same records. Higher is better.",
}
_GLANCE = (
    (parts.CLASSIFIER, "accuracy", "accuracy of the released classifier"),
    (tables.QUALITY, tables.HEADLINE, "quality: 1 would be equal to real records"),
    (tables.QUALITY, "distance of the worst column", "distance of the worst column"),
    (parts.COLUMNS, "one column, mean", "mean distance of a column"),
    (parts.COLUMNS, "two columns, mean", "mean distance of two columns"),
    (tables.PAIRS, "two columns, mean", "mean distance of two columns"),
    (parts.ITEMS, "items bought, total variation", "distance of items bought"),
    (parts.ITEMS, "basket sizes, total variation", "distance of basket sizes"),
    (parts.QUERIES, "all of 2 to 4 items taken together", "error of items together"),
    (parts.CURVES, "mean curve, rms difference", "difference of mean curves"),
    (parts.NEAREST, "distance, mean", "distance to the nearest real series, in ranges of the readings"),
    (parts.DETECTION, "AUC", "AUC of telling them apart"),
)

# Scores that are told with the name of the worst column, of which so many letters.
_WORST, _LETTERS = "distance of the worst column", 40


def write_private_report(
    path: Path,
    evaluation: Evaluation,
    *,
    title: str,
    choices: Sequence[Sequence[str]] | None = None,
    bounds: tuple[np.ndarray, np.ndarray] | None = None,
    shape: tuple[int, int] | None = None,
    facts: Mapping[str, Any] | None = None,
    counted: Mapping[str, int] | None = None,
    warnings: Sequence[str] = (),
) -> None:
    """Write one self-contained page: no script, nothing loaded from elsewhere, and a warning on top that it is private.

    Args:
        path: a place in a folder that is not published.
        evaluation: the results; its figures are computed from real records.
        title: the records, in words.
        choices: for each group of the layout, the names of its choices; None for numbers, or those that the evaluation of
            a table has.
        bounds: of series: the values (units,) that units of 0 and of 1 stand for, between which curves are drawn; None for
            0 and 1.
        shape: height and width of pictures, whose pixels are the units; None draws none.
        facts: other facts about the release, such as its epsilon.
        counted: what was changed or left out where the records were read, and how often.
        warnings: what the run has warned of because of its records.

    Raises:
        ValueError: for a shape, choices or bounds that do not fit the evaluation.
        OSError: where the page cannot be written.
    """
    page = environment(autoescape=True)
    page.filters |= {"score": _score, "printable": partial(printable, most=_LETTERS)}
    text = page.get_template("private_report.html.jinja").render(
        title=title,
        e=evaluation,
        facts=dict(facts or {}),
        warnings=warnings,
        counted=dict(counted or {}),
        what=_WHAT | (_WHAT_OF_TABLES if evaluation.kind == "table" else {}),
        glance=_glance(evaluation),
        attack=_strongest_attack(evaluation),
        pictures=_pictures(evaluation, shape),
        curves=_curves(evaluation, bounds),
        nearest=_nearest(evaluation, bounds),
        baskets=_baskets(evaluation),
        columns=_columns(evaluation, choices),
        figures=FIGURES,
        summaries=_summaries(evaluation),
        all_columns=len(evaluation.figures.get("columns", ())),
        pairs=_pairs(evaluation),
        membership=_membership(evaluation),
        held_out_note=evaluation.notes.get(parts.MEMBERSHIP),
    )
    with open(path, "w", encoding="utf-8", opener=owner_only) as file:
        file.write(text)


def _score(value: float | None) -> str:
    """Write three significant digits, or fewer.

    Example:
        >>> _score(0.8571), _score(0.00123), _score(0.0), _score(1234.5), _score(None), _score(-0.25)
        ('0.857', '0.0012', '0', '1,234', '', '-0.250')
    """
    if value is None:
        return ""
    if not value or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.4f}"


def _glance(evaluation: Evaluation) -> list[tuple[float, float | None, str]]:
    """Return the scores to look at first: value, that of held-out records, and the name."""
    found = []
    for section, score, words in _GLANCE:
        if (value := evaluation.scores.get(section, {}).get(score)) is not None:
            if score == _WORST and (worst := evaluation.worst_column) is not None:
                words = f"{words}, {printable(worst[0], _LETTERS)}"
            found.append((value, evaluation.reference.get(section, {}).get(score), words))
    trained = {
        name: value
        for name, value in evaluation.scores.get(parts.TRAINING, {}).items()
        if name in {f"{classifier}, accuracy" for classifier in CLASSIFIERS}
    }
    if trained:
        best = max(trained, key=trained.__getitem__)
        found.append((trained[best], evaluation.reference[parts.TRAINING][best], f"accuracy, {best.partition(',')[0]}"))
    return found


def _strongest_attack(evaluation: Evaluation) -> tuple[str, float, Interval, float] | None:
    """Return the attack that is surely farthest from guessing: its name, accuracy, interval and AUC.

    Where no interval leaves 0.5 out, AUCs decide.
    """
    found = []
    for name, accuracy in evaluation.scores.get(parts.MEMBERSHIP, {}).items():
        attack, _, score = name.partition(": ")
        if score == "accuracy":
            area = evaluation.scores[parts.MEMBERSHIP][f"{attack}: AUC"]
            found.append((attack, accuracy, evaluation.intervals[parts.MEMBERSHIP][name], area))
    return max(found, key=lambda own: (max(own[2].low - 0.5, 0.5 - own[2].high, 0.0), abs(own[3] - 0.5)), default=None)


def _columns(evaluation: Evaluation, choices: Sequence[Sequence[str]] | None) -> list[dict[str, Any]]:
    worst = evaluation.figures.get("columns", [])
    if choices is not None and worst and len(choices) != len(worst):
        raise ValueError(f"{len(choices)} lists of choices: expected {len(worst)}, one for each group of the layout")
    found = []
    for column in sorted(worst[:COLUMNS], key=lambda column: column["column"]):
        called = column.get("choices") if choices is None else choices[column["group"]]
        if called is not None and len(called) != len(column["real"]):
            raise ValueError(f"{len(called)} choices of {column['name']!r}: expected {len(column['real'])} names")
        said = f"{column['name']}: shares of values, real and synthetic"
        found.append(column | {"plot": plots.bars(column["real"], column["synthetic"], called, said)})
    return found


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


def _pictures(evaluation: Evaluation, shape: tuple[int, int] | None) -> list[tuple[str, Markup]]:
    means = evaluation.figures.get("mean_units")
    if means is None or shape is None:
        return []
    if shape[0] * shape[1] != len(means["real"]):
        raise ValueError(f"shape={tuple(shape)}: expected height and width of pictures of {len(means['real'])} pixels")
    pictures = evaluation.figures["samples"].reshape(-1, *shape)
    difference = np.abs(means["real"] - means["synthetic"])
    three = np.stack([means["real"], means["synthetic"], difference]).reshape(-1, *shape)
    words = "Mean of the real pictures, of the synthetic ones, and how far they differ"
    return [
        ("Synthetic pictures", plots.sheet(pictures, 12, "synthetic pictures")),
        (words, plots.sheet(three, 3, "mean pictures", least=150)),
    ]


def _scale(bounds: tuple[np.ndarray, np.ndarray] | None, units: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of units of 0, and those of 1 less these."""
    low, high = (np.zeros(units), np.ones(units)) if bounds is None else bounds
    if len(low) != units or len(high) != units:
        raise ValueError(f"bounds of {len(low)} and {len(high)} units: expected {units} each, as a series has")
    return low, high - low


def _curves(evaluation: Evaluation, bounds: tuple[np.ndarray, np.ndarray] | None) -> list[tuple[str, Markup]]:
    curves = evaluation.figures.get("curves")
    if curves is None:
        return []
    mean, spread, lagged, shape = (curves[name] for name in ("mean", "spread", "autocorrelation", "shape"))
    low, width = _scale(bounds, len(mean["real"]))
    mean = {side: low + width * curve for side, curve in mean.items()}
    bands = (width * spread["real"], width * spread["synthetic"])
    found = [
        (
            "Mean, and one standard deviation around it",
            plots.lines(**mean, said="mean curves", along="reading", up="value", spread=bands),
        ),
        ("Shape: each reading as a share of its series", plots.lines(**shape, said="shapes", along="reading", up="share")),
    ]
    if len(lagged["real"]):
        found.append(("Autocorrelation", plots.lines(**lagged, said="autocorrelations", along="lag", up="correlation")))
    found.append(
        ("Some synthetic series", plots.samples(low + width * evaluation.figures["samples"][:8], "synthetic series"))
    )
    return found


def _membership(evaluation: Evaluation) -> Markup | None:
    rates = evaluation.figures.get("membership")
    return None if rates is None else plots.operating_curves(rates, "ROC curves of attacks")


def _nearest(evaluation: Evaluation, bounds: tuple[np.ndarray, np.ndarray] | None) -> list[tuple[str, Markup]]:
    """Draw some synthetic series, each beside the real one that is nearest; their first channel."""
    sides = evaluation.figures.get("nearest")
    if sides is None:
        return []
    _, readings, channels = sides["real"].shape
    low, width = (values[::channels] for values in _scale(bounds, readings * channels))
    real, synthetic = (low + width * sides[side][:, :, 0] for side in ("real", "synthetic"))
    return [
        (f"Synthetic series {number}", plots.lines(*pair, said="a series and the nearest", along="reading", up="value"))
        for number, pair in enumerate(zip(real, synthetic, strict=True), start=1)
    ]


def _baskets(evaluation: Evaluation) -> list[tuple[str, Markup]]:
    items, sizes = evaluation.figures.get("items"), evaluation.figures.get("sizes")
    if items is None:
        return []
    ranked = {side: np.sort(shares)[::-1] for side, shares in items.items()}
    # Shares of 0 are not on a logarithmic axis.
    ranked = {side: np.where(shares > 0, shares, np.nan) for side, shares in ranked.items()}
    largest = 1 + max(int(np.flatnonzero(shares).max(initial=0)) for shares in sizes.values())
    sized = {side: np.where(shares > 0, shares, np.nan)[:largest] for side, shares in sizes.items()}
    log, share = ("log", "log"), "share of baskets"
    found = [
        ("Items by how often they are bought",
         plots.lines(**ranked, said="item shares by rank", along="rank", up=share, scales=log)),
        ("Each item", plots.scatter(**items, said="item shares, real and synthetic", of=share)),
        ("Sizes of baskets",
         plots.lines(**sized, said="basket sizes", along="items in a basket", up=share, at=range(largest),
                     scales=("linear" if largest <= _SMALL else "symlog", "log"))),
    ]  # fmt: skip
    errors = [
        [value for name, value in scores.get(parts.QUERIES, {}).items() if name.startswith("any")]
        for scores in (evaluation.reference, evaluation.scores)
    ]
    if all(errors):
        drawn = plots.lines(
            *errors, said="errors of counting queries", along="longest query, % of the largest basket", up="relative error",
            at=range(20, 101, 20),
        )  # fmt: skip
        found.append(("Queries for any of some items", drawn))
    return found

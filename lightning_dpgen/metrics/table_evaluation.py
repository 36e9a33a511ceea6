"""The evaluation of a synthetic table against real records, by their values. Private."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics import table_sections as tables
from lightning_dpgen.metrics.evaluation import (
    COLUMNS,
    DETECTION,
    MEMBERSHIP,
    ROWS,
    TRAINING,
    TRANSPORT,
    Evaluation,
    run_sections,
)
from lightning_dpgen.metrics.sdmetrics_report import sdmetrics_section
from lightning_dpgen.metrics.tensors import check_seconds
from lightning_dpgen.privacy.plain_text import listed

QUALITY, PAIRS, RECORDS, GROUPS = "quality", "pairs of columns", "rows", "groups"
CLOSEST, SDMETRICS = "distance to the closest record", "SDMetrics"
_COMPUTED = {
    COLUMNS: tables.columns_section, PAIRS: tables.pairs_section, DETECTION: tables.detection_section,
    RECORDS: tables.rows_section, GROUPS: tables.groups_section, TRAINING: tables.training_section,
    TRANSPORT: tables.transport_section, MEMBERSHIP: tables.membership_section, CLOSEST: tables.closest_section,
}  # fmt: skip
# The parts of the quality, each a distance in [0, 1]: section, score, and words.
_PARTS = (
    (COLUMNS, tables.ONE_MEAN, "mean distance of a column"),
    (COLUMNS, tables.ONE_WORST, "distance of the worst column"),
    (PAIRS, tables.TWO_MEAN, "mean distance of two columns"),
    (DETECTION, tables.DETECTED, "told apart, 2 AUC - 1"),
)
HEADLINE = "quality, 1 less the mean of its parts"


def evaluate_table(
    real: TableValues,
    synthetic: TableValues,
    *,
    held_out: TableValues | None = None,
    by: str | None = None,
    sdmetrics: bool = False,
    seed: int = 0,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Evaluation:
    """Compare a synthetic table with real records, by values as a file holds them.

    The real records are halved at random. The synthetic ones are compared with one half, and so are as many of the other
    half in their place, which are as good as can be expected: perfect data would score like them. All sides of a
    comparison have as many records, since distances of few are larger by chance. Numbers are cut, where they must be, at
    quantiles of real records, and never at a model's own bins. A column of numbers counts with the larger of its
    Kolmogorov-Smirnov distance and its Wasserstein distance, the latter in units of the range of 98 % of the real values:
    declared bounds play no part, however wide they are.

    The section ``quality`` has one number: 1 less the mean of four distances in [0, 1] (the mean column, the worst column,
    the mean pair of columns, and 2 AUC - 1 of a classifier that tells real from synthetic records). 1 would be equal in
    all four. It means something beside that of the real half alone.

    Args:
        real: the records that the generator has learned from, at least one.
        synthetic: synthetic records, at least one; half as many as the real ones are compared, `ROWS` at most.
        held_out: real records that the generator has not learned from; classifiers are tested on them, and they are what
            membership inference and the closest records need.
        by: the column whose groups are compared; None for the label, if there is one.
        sdmetrics: whether SDMetrics' quality report is computed, too.
        seed: seed of all draws: halves, pairs, classifiers.
        seconds, progress: as of `evaluate_encoded`.

    Raises:
        ValueError: for no record on one side, another schema, an unknown column, or a limit that is not positive.
        MissingLibrary: for sdmetrics, where it is not installed.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> schema = parse_schema("columns: {age: {type: integer, low: 0, high: 99, bins: 1}}")
        >>> ages = np.random.default_rng(0).integers(0, 99, (400, 1)).astype(float)
        >>> real, poor = (TableValues(schema, part, np.zeros((len(part), 0), int)) for part in (ages, ages[:200] // 4))
        >>> found = evaluate_table(real, poor)
        >>> found.scores["quality"][HEADLINE] < 0.5 < found.reference["quality"][HEADLINE]
        True
    """
    check_seconds(seconds)
    given = {"real": real, "synthetic": synthetic} | ({} if held_out is None else {"held out": held_out})
    for name, values in given.items():
        if not len(values):
            raise ValueError(f"there is no {name} record: expected at least one to compare")
        if values.schema != real.schema:
            raise ValueError(f"the {name} records are of another schema than the real ones")
    modelled = [column.name for column in real.schema.recorded]
    if by is not None and by not in modelled:
        raise ValueError(f"by={by!r}: expected a column of the table: {listed(modelled)}")
    sides = _halved(given, by or real.schema.label, seed)
    named = {name: partial(_untimed, compute, sides) for name, compute in _COMPUTED.items()}
    if sdmetrics:
        named[SDMETRICS] = partial(_untimed, sdmetrics_section, sides)
    found = run_sections(named, seconds, progress)
    _add_quality(found)
    rows = {name: (len(values), len(values)) for name, values in given.items()}
    rows["real"] = (len(real), len(sides.real) + (0 if sides.other is None else len(sides.other)))
    rows["synthetic"] = (len(synthetic), len(sides.synthetic))
    if held_out is not None:
        rows["held out"] = (len(held_out), len(sides.held_out))
    return Evaluation("table", rows=rows, held_out=_said(held_out is not None), **found)


def _untimed(compute: Callable, sides: tables.TableSides, _: float | None):
    return compute(sides)


def _halved(given: Mapping[str, TableValues], by: str | None, seed: int) -> tables.TableSides:
    """Choose the records of each side, as many of each."""
    random = np.random.default_rng(seed)
    real, synthetic = (part[random.permutation(len(part))] for part in (given["real"], given["synthetic"]))
    half = max(1, len(real) // 2)
    size = min(half, len(synthetic), ROWS)
    one, other = real[:size], real[half : half + size]
    held_out = given.get("held out")
    if held_out is not None:
        held_out = held_out[random.permutation(len(held_out))][:ROWS]
    by_side = [dict(part.schema.rules.broken(part.rows())) for part in (synthetic, real)]
    shares = {text: (made, by_side[1][text]) for text, made in by_side[0].items()}
    there = other if len(other) == size else None
    return tables.TableSides(one, there, synthetic[:size], real, synthetic[:ROWS], held_out, by, shares, seed)


def _add_quality(found: dict[str, Any]) -> None:
    """Put the quality, and its parts, before all other sections.

    A part that a table cannot have is no part of it: one column has no pairs. A part that time has left out is missed.
    """
    sections = dict.fromkeys(section for section, *_ in _PARTS)
    if late := [section for section in sections if found["notes"].get(section, "").startswith("skipped")]:
        found["notes"][QUALITY] = f"left out, as parts of it were not computed: {', '.join(late)}"
        return
    for side in ("scores", "reference"):
        scores = found[side]
        parts = {words: scores[section][score] for section, score, words in _PARTS if section in scores}
        if parts:
            found[side] = {QUALITY: {HEADLINE: 1.0 - sum(parts.values()) / len(parts)} | parts, **scores}


def _said(held_out: bool) -> str:
    halves = "half of the records that were given as learned from, compared with the other half"
    if not held_out:
        return f"{halves}; no record was given as not learned from"
    return f"{halves}; classifiers are tested on held-out records, given as not learned from, and so are attacks and copies"

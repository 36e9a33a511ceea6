"""The check of the answers of a release against what its settings ask for, and the noise that its certificate states."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.measure.tables import ASKED, TABLES
from lightning_dpgen.release.answers import COUNT, DECIMALS, ERROR, HIGH, LOW, cells_of, header_of, interval
from lightning_dpgen.release.drawing.opened import open_ordinary
from lightning_dpgen.release.files import ANSWERS
from lightning_dpgen.release.rows.tables import csv_text
from lightning_dpgen.release.stated_noises import sums_of
from lightning_dpgen.release.verdict import Verdict
from lightning_dpgen.verification.declared_settings import settings_of

_LARGEST_FILE = 1 << 28
# Limits are computed from a rounded count and a rounded error.
_ROUNDING = 4.0 * 10.0**-DECIMALS
# Relative tolerance of the stated noise: that of a multiplier, whose last digits differ.
_NOISE = 1e-6


def check_answers(folder: Path, certificate: Mapping[str, Any], verdict: Verdict) -> None:
    """Check that the counts of a release are of the sets of columns that it declares, with the error of its noise.

    Args:
        certificate: whose stages and noises are those of its settings (`plan_check`).
    """
    settings = settings_of(certificate)
    sets, schema = settings.spec.data.asked_sets, settings.schema
    due = bool(sets)
    if due != (ANSWERS in certificate["released"]):
        problem = "the settings ask for counts, and there are none" if due else "no settings ask for these counts"
        verdict.problems.append(f"{ANSWERS}: {problem}")
    if verdict.problems or not due:
        return
    try:
        with open_ordinary(folder / ANSWERS, _LARGEST_FILE) as file:
            problem = next(_wrong(io.TextIOWrapper(file, "utf-8", newline=""), schema, sets, certificate), None)
    except (ValueError, OSError, csv.Error) as error:
        problem = f"cannot be read: {' '.join(str(error).split())[:200]}"
    if problem is not None:
        verdict.problems.append(f"{ANSWERS}: {problem}")
    else:
        # A selection states no noise of its trials.
        error = ", with the error of the noise on them" if sums_of(certificate, TABLES) else ""
        verdict.checks.append(f"{ANSWERS} holds the counts that are asked for{error}")


def _wrong(file: io.TextIOWrapper, schema: Schema, sets: list[list[str]], certificate: Mapping[str, Any]) -> Iterator[str]:
    """Give what is wrong with a file of answers, first things first."""
    before, numbers = header_of(sets), [COUNT, ERROR, LOW, HIGH]
    lines = csv.reader(file)
    header = next(lines, [])
    if header != [*before, *numbers]:
        yield f"its columns are {str(header)[:200]}: expected {', '.join([*before, *numbers])}"
        return
    width = len(header)
    columns = [pa.array(cells) for cells in zip(*cells_of(schema, sets), strict=True)]
    # Written as they were, with an apostrophe before what a spreadsheet would run.
    due = csv.reader(io.StringIO("".join(csv_text([pa.record_batch(dict(zip(before, columns, strict=True)))]))))
    next(due)
    rows = []
    for number, (expected, line) in enumerate(itertools.zip_longest(due, lines, fillvalue=[]), 2):
        if line[: len(before)] != expected or len(line) != width:
            stated_cells = ", ".join(filter(None, line[: len(before)]))[:100] or "missing"
            yield f"line {number} is {stated_cells}: expected {', '.join(filter(None, expected))[:100] or 'no more lines'}"
            return
        rows.append([float(text) for text in line[len(before) :]])
    counts, errors, low, high = np.array(rows).T
    if not np.isfinite(rows).all() or (errors != errors[0]).any() or errors[0] <= 0.0:
        yield "its numbers are not finite, or the errors of counts differ or are not above 0: expected one error for all"
        return
    error = errors[0]
    for limit, expected in zip((low, high), interval(counts, error), strict=True):
        if (np.abs(limit - expected) > _ROUNDING + 1e-9 * np.abs(expected)).any():
            yield "its limits do not follow from counts and errors"
            return
    bound = math.sqrt(len(sets))
    for entry in sums_of(certificate, TABLES):
        if ASKED not in entry["names"]:
            continue
        stated = entry["multiplier"] * bound * entry["records"]
        if not math.isclose(entry["scale"], stated, rel_tol=1e-3):
            yield (
                f"{len(sets):,} tables of counts need noise of standard deviation {stated:,.6g}, and the certificate "
                f"states {entry['scale']:,.6g}"
            )
        if abs(error - stated) > _NOISE * stated + 10.0**-DECIMALS:
            yield f"its errors are {error:,.6g}, and the noise on its counts has standard deviation {stated:,.6g}"

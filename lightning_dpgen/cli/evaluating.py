"""The command `evaluate` once its arguments are checked: records are read and compared with the release. Private."""

from __future__ import annotations

import argparse
from typing import Any

from lightning_dpgen.common.folders import place_of
from lightning_dpgen.data.kinds import kind_named, kind_of
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.row_sample import SAMPLED, RowSample
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.evaluation import Evaluation
from lightning_dpgen.metrics.measure import Listing
from lightning_dpgen.metrics.numeric_summaries import FIGURES
from lightning_dpgen.metrics.sdmetrics_report import MissingLibrary, import_quality_report
from lightning_dpgen.release.against_real import BANNER, REAL_ROWS, REPORT, evaluate, write_evaluation
from lightning_dpgen.release.drawing.sampler import load_release
from lightning_dpgen.release.pages.text import printable
from lightning_dpgen.runs.table import aligned
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.source import Source
from lightning_dpgen.specs.usage_error import UsageError, describe_os_error

_LONGEST_NAME, _LONGEST_LINE = 60, 400
# Columns of numbers that are summed up, rows of a listing, and the letters of their names.
_COLUMNS, _LISTED, _LETTERS = 12, 5, 24


def run(arguments: argparse.Namespace, certificate: dict[str, Any], source: Source, aside: Source | None) -> int:
    """Compare a release with real records, and with held-out ones of `aside`; gives the exit status."""
    release = load_release(arguments.release)
    if arguments.sdmetrics:
        try:
            import_quality_report()
        except MissingLibrary as error:
            raise UsageError(f"--sdmetrics: {error}") from None
    sample = RowSample(REAL_ROWS if arguments.real_rows is None else arguments.real_rows, arguments.seed)
    held_out, counted_aside = (None, {}) if aside is None else _held_out(aside, release.schema, sample)
    real, counted = _read(source, release.schema, sample)
    if aside is None and source.held_out:
        held_out, _ = _read(source, release.schema, sample, held_out=True)
    print(BANNER)
    counted |= {f"held-out records: {what}": count for what, count in counted_aside.items()}
    if SAMPLED in counted:
        counted[f"rows of the sample, by the public seed {arguments.seed}"] = len(real)
    for what, count in counted.items():
        print(f"reading: {what}: {count:,}")
    evaluation = evaluate(
        release,
        real,
        held_out=held_out,
        synthetic=None if arguments.synthetic is None else place_of(arguments.synthetic),
        rows=arguments.rows,
        seconds=arguments.seconds,
        seed=arguments.seed,
        by=arguments.by,
        sdmetrics=arguments.sdmetrics,
    )
    folder = arguments.release.resolve().parent / "private"
    facts = {name: certificate[name] for name in ("epsilon", "delta") if certificate.get(name) is not None}
    try:
        write_evaluation(folder, evaluation, data=source.spec.source, facts=facts, counted=counted)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written ({error.strerror or error})") from None
    if (worst := evaluation.worst_column) is not None:
        print(f"worst column: {printable(worst[0], _LONGEST_NAME)}, distance {worst[1]:.4f}")
    for subject, texts in evaluation.remarks.items():
        for text in texts:
            print(f"{subject}: {printable(text, _LONGEST_LINE)}")
    if evaluation.summaries:
        print(f"\n{summary_table(evaluation)}\n")
    for listing in evaluation.listings:
        print(f"{listing_table(listing)}\n")
    print(table(evaluation))
    whose = "" if kind_named(evaluation.kind).tabular else "held-out records, "
    print(f"real records in the place of synthetic ones: {whose}{evaluation.held_out}")
    print(f"written to {folder}; open {folder / REPORT} in a browser")
    return 0


def table(evaluation: Evaluation) -> str:
    """Return every score beside that of real records in the place of synthetic ones. Private.

    Example:
        >>> scores = {"columns": {"one column, mean": 0.25}}
        >>> print(table(Evaluation("table", scores, {}, {"curves": "none here"}, {}, "", {})))
        score                      synthetic  real
        -------------------------  ---------  ----
        columns: one column, mean  0.2500
        <BLANKLINE>
        curves: none here
    """
    rows = [("score", "synthetic", "real")]
    for section, scores in evaluation.scores.items():
        reference, intervals = (of.get(section, {}) for of in (evaluation.reference, evaluation.intervals))
        for name, value in scores.items():
            said, number = f"{section}: {name}", f"{value:.4f}"
            if interval := intervals.get(name):
                said += f", {interval.tested:,} tested"
                number += f" ({interval.low:.4f} to {interval.high:.4f})"
            rows.append((said, number, f"{reference[name]:.4f}" if name in reference else ""))
    notes = [f"{section}: {note}" for section, note in evaluation.notes.items()]
    return "\n".join([aligned(rows), *([""] if notes else []), *notes])


def summary_table(evaluation: Evaluation) -> str:
    """Return the columns of numbers that differ most in a few figures, real beside synthetic values. Private.

    Example:
        >>> from lightning_dpgen.metrics.numeric_summaries import Summary
        >>> summary = Summary("age", (41.2, 11.8, 17, 18, 18, 76, 80, 95), (40.9, 12.1, 17, 17, 18, 77, 88, 99))
        >>> print(summary_table(Evaluation("table", {}, {}, {}, {}, "", {"columns": [{"summary": summary}]})))
        column  values     mean  standard deviation  least  0.1 %  1 %  99 %  99.9 %  largest
        ------  ---------  ----  ------------------  -----  -----  ---  ----  ------  -------
        age     real       41.2  11.8                17     18     18   76    80      95
                synthetic  40.9  12.1                17     17     18   77    88      99
    """
    rows = [("column", "values", *FIGURES)]
    for summary in evaluation.summaries[:_COLUMNS]:
        for name, side in ((printable(summary.name, _LETTERS), "real"), ("", "synthetic")):
            rows.append((name, side, *(summary.sides[side] or ("none",) * len(FIGURES))))
    more = len(evaluation.summaries) - _COLUMNS
    return aligned(rows) + (f"\nand {more} more columns of numbers, which differ less" if more > 0 else "")


def listing_table(listing: Listing) -> str:
    """Return the first rows of a listing below its title. Private.

    Example:
        >>> print(listing_table(Listing("worst", "", ("column", "share", "rows"), [("age", 0.25, 1200)])))
        worst:
        column  share   rows
        ------  ------  -----
        age     0.2500  1,200
    """
    rows = [listing.head, *(tuple(map(_cell, row)) for row in listing.rows[:_LISTED])]
    more = len(listing.rows) - _LISTED
    return f"{listing.title}:\n{aligned(rows)}" + (f"\nand {more} more on the page" if more > 0 else "")


def _cell(value: str | int | float) -> str:
    if isinstance(value, str):
        return printable(value, _LETTERS)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _read(
    source: Source, schema: Schema, sample: RowSample, *, held_out: bool = False
) -> tuple[Records | TableValues, dict[str, int]]:
    """Read records, and those of a table by their values."""
    records, counted = source.records(schema, held_out=held_out, values=kind_of(schema).tabular, sample=sample)
    if not kind_of(schema).tabular:
        return records, counted
    if records.values is not None:
        return records, counted
    drawn = "records that came encoded, so that values within a bin were drawn"
    return TableValues.drawn(schema, records.encoded), counted | {drawn: len(records)}


def _held_out(source: Source, schema: Schema, sample: RowSample) -> tuple[Records | TableValues, dict[str, int]]:
    """Read held-out records; a mistake in their file names the argument that has named it."""
    try:
        return _read(source, schema, sample)
    except (UsageError, OSError, BadRecords) as error:
        said = describe_os_error(error) if isinstance(error, OSError) else str(error)
        said = said.replace("data.path", "--held-out")
        raise UsageError(said if "--held-out" in said else f"--held-out: {said}") from None

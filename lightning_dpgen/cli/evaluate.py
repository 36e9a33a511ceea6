"""`dpgen evaluate`: compare a release with real data. What it prints and writes is computed from real records."""

from __future__ import annotations

import argparse
import itertools
import math
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from filecmp import cmp
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_dpgen.cli.arguments import Parser, loading, whole_number
from lightning_dpgen.cli.real_records import other_draw, real_source
from lightning_dpgen.common.folders import place_of
from lightning_dpgen.common.nearest_word import suggest_file
from lightning_dpgen.common.passwords import without_passwords
from lightning_dpgen.common.plain_text import align_columns, listed
from lightning_dpgen.data.row_sample import SAMPLED, RowSample
from lightning_dpgen.data.schema import Schema, kind_named, kind_of
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.measure import Listing
from lightning_dpgen.metrics.summaries import FIGURES
from lightning_dpgen.release.drawing.description import PROJECTION, read_description, schema_in
from lightning_dpgen.release.files import SYNTHETIC, NotARelease, read_certificate, release_folder
from lightning_dpgen.release.pages.text import printable
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.source import Source, source_of
from lightning_dpgen.specs.usage_error import UsageError, describe_os_error

if TYPE_CHECKING:
    from lightning_dpgen.data.records import Records
    from lightning_dpgen.metrics.evaluation import Evaluation

_LONGEST_NAME, _LONGEST_LINE, _LONGEST_JUDGED = 60, 400, 4_000
# Columns of numbers that are summed up, rows of a listing, and the letters of their names.
_COLUMNS, _LISTED, _LETTERS = 12, 5, 24
# Real records that are looked at by default, and the most synthetic ones.
_REAL_ROWS, _MOST_ROWS = 500_000, 1_000_000
_SELECT = re.compile(r"\s*(?:select|with)\s", re.IGNORECASE)


def make_parser() -> Parser:
    parser = Parser(
        prog="dpgen evaluate",
        description="Compare a release with real data. The result is private: it is written beside the release, into "
        "private/, and never into it.",
    )
    parser.add_argument("release", type=release_folder, help="the folder of a release, or of the run that made it")
    parser.add_argument(
        "data",
        nargs="*",
        help="the real data: data=mnist, data=table data.path=F, data=images data.path=F ...; what describes them publicly "
        "is in the release",
    )
    parser.add_argument(
        "--held-out",
        metavar="FILE",
        help="real records that nothing was learned from, in the form of data.path (a table in any kind of file, or a "
        "query where data.query is one); also data.held_out=FILE; membership inference needs them",
    )
    parser.add_argument("--by", metavar="COLUMN", help="of a table: compare the groups of this column, too (the label)")
    parser.add_argument(
        "--sdmetrics", action="store_true", help="of a table: SDMetrics' quality report, too; needs the extra sdmetrics"
    )
    parser.add_argument("--seconds", type=_seconds, help="start no part of the evaluation later than this")
    parser.add_argument("--rows", type=whole_number, help="synthetic records to draw (as many as real ones, up to 50,000)")
    parser.add_argument(
        "--synthetic",
        metavar="PLACE",
        help="of a table: a file or folder of records that were drawn from it before, of which a sample is compared",
    )
    parser.add_argument(
        "--real-rows",
        type=whole_number,
        help=f"of a table: the most real records to look at, a sample by the seed where there are more ({_REAL_ROWS:,})",
    )
    parser.add_argument(
        "--seed", type=whole_number, default=0, help="of the synthetic records, and of a sample of real ones (0)"
    )
    return parser


def run(argv: Sequence[str]) -> int:
    arguments = make_parser().parse_intermixed_args(argv)
    # Mistakes are reported before the import of what compares records.
    arguments.data, arguments.held_out = _without_held_out(arguments.data, arguments.held_out)
    if arguments.rows is not None and not 1 <= arguments.rows <= _MOST_ROWS:
        raise UsageError(f"--rows {arguments.rows}: expected 1 to {_MOST_ROWS:,}, of which 50,000 at most are compared")
    if arguments.real_rows == 0:
        raise UsageError("--real-rows 0: expected 1 or more, or nothing can be compared")
    # The seed of classifiers has 32 bits.
    if arguments.seed >= 2**32:
        raise UsageError(f"--seed {arguments.seed}: expected a number below 2^32")
    description = read_description(arguments.release)
    if description.get("model") == PROJECTION:
        raise UsageError(f"{arguments.release} holds projected rows: its report says how well distances are recovered")
    source = aside = None
    certificate: dict[str, Any] = {}
    with suppress(NotARelease):  # a model can be evaluated without its certificate
        certificate = read_certificate(arguments.release)
    # A model without a schema is refused where it is loaded.
    if (schema := schema_in(arguments.release, description)) is not None:
        _check_of_tables(arguments, schema)
        source = real_source(arguments.data, certificate, schema.kind)
        if (text := other_draw(source.spec, certificate)) is not None:
            print(f"dpgen: warning: {text}", file=sys.stderr)
        aside = None if arguments.held_out is None else _beside(source, arguments.held_out, arguments.release)
    return _evaluate(arguments, certificate, source, aside)


def _beside(source: Source, path: str, release: Path) -> Source:
    """Return the source of held-out records: a file or folder of the form of the others, or a query of their database."""
    learned_path, of_database = getattr(source.spec, "path", None), getattr(source.spec, "url", None) is not None
    if learned_path is None and not of_database:
        known = " has held-out records of its own" if source.held_out else ": its records are in no file"
        raise UsageError(f"--held-out {path}: data={source.spec.source}{known}; leave it out")
    if of_database and _SELECT.match(path):
        if path.split() == source.spec.query.split():
            raise UsageError(f"--held-out {path}: is the data.query of the training records; expected other records")
        return source_of(source.spec.changed(query=path))
    if "://" in path:
        expected = "a query of data.url (select ...), or a file" if of_database else "a file"
        raise UsageError(
            f"--held-out {without_passwords(path)}: is a URL: expected {expected}, also one of SQLite or DuckDB"
        )
    place = place_of(path)
    if not path or not place.exists():
        raise UsageError(f"--held-out {path or repr(path)}: there is no such file{suggest_file(place) if path else ''}")
    changed = {"url": None, "query": None, "rows_independent": None} if of_database else {}
    aside, made = source_of(source.spec.changed(path=str(place), **changed)), release / SYNTHETIC
    learned = [] if learned_path is None else [
        (file, "of the records that were learned from (data.path)") for file in _files(source, Path(learned_path))
    ]  # fmt: skip
    for file, (other, what) in itertools.product(_files(aside, place), (*learned, (made, "of synthetic records"))):
        # Copies under other names, too.
        alike = file.is_file() and other.is_file() and cmp(file, other, False)
        if other.exists() and (file.samefile(other) or alike):
            raise UsageError(f"--held-out {file}: is the file {what}; expected real records that the training did not use")
    return aside


def _files(source: Source, place: Path) -> list[Path]:
    """Return the files of records: those which a file names that describes them; a folder is looked at as one."""
    return [place] if place.is_dir() else source.files()


def _without_held_out(words: Sequence[str], file: str | None) -> tuple[list[str], str | None]:
    """Return the words about the data but data.held_out=FILE, and the file of held-out records."""
    name = "data.held_out="
    files = [word.removeprefix(name) for word in words if word.startswith(name)] + ([] if file is None else [file])
    if len(files) > 1:
        raise UsageError(
            f"data.held_out={files[0]}: expected one file of held-out records, by this setting or by --held-out"
        )
    return [word for word in words if not word.startswith(name)], files[0] if files else None


def _check_of_tables(arguments: argparse.Namespace, schema: Schema) -> None:
    """Refuse what tables alone have, and what cannot be computed, before a record is read."""
    if kind_of(schema).tabular:
        known = [column.name for column in schema.recorded]
        if arguments.by is not None and arguments.by not in known:
            raise UsageError(f"--by {arguments.by}: expected a column of the table: {listed(known)}")
        _check_synthetic(arguments.synthetic)
        return
    for name in ("by", "sdmetrics", "synthetic", "real_rows"):
        if getattr(arguments, name):
            name = f"--{name.replace('_', '-')}"
            raise UsageError(f"{name}: is only for tables, and the release is of kind {schema.kind}")


def _check_synthetic(path: str | None) -> None:
    if path is not None and not (path and (place := place_of(path)).exists()):
        raise UsageError(f"--synthetic {path or repr(path)}: there is no such file{suggest_file(place) if path else ''}")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a positive number of seconds")
    return value


def _evaluate(arguments: argparse.Namespace, certificate: dict[str, Any], source: Source, aside: Source | None) -> int:
    """Compare a release with real records, and with held-out ones of `aside`; gives the exit status."""
    with loading():
        from lightning_dpgen.metrics.judgement import judge
        from lightning_dpgen.metrics.quality import MissingLibrary, import_quality_report
        from lightning_dpgen.release.against_real import BANNER, REAL_ROWS, REPORT, evaluate, write_evaluation
        from lightning_dpgen.release.drawing.release import load_release
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
        certificate=certificate,
    )
    folder = arguments.release.resolve().parent / "private"
    facts = {name: certificate[name] for name in ("epsilon", "delta") if certificate.get(name) is not None}
    try:
        write_evaluation(folder, evaluation, data=source.spec.source, facts=facts, counted=counted)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written ({error.strerror or error})") from None
    judged = judge(evaluation).lines.items()
    print("\n".join(f"{about}: {printable(text, _LONGEST_JUDGED)}" for about, text in judged), end="\n\n")
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
    whose = "" if kind_named(evaluation.kind).by_values else "held-out records, "
    print(f"real records in the place of synthetic ones: {whose}{evaluation.held_out}")
    print(f"written to {folder}; open {folder / REPORT} in a browser")
    return 0


def table(evaluation: Evaluation) -> str:
    """Return every score beside that of real records in the place of synthetic ones. Private.

    Example:
        >>> from lightning_dpgen.metrics.evaluation import Evaluation
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
            label, number = f"{section}: {name}", f"{value:.4f}"
            if interval := intervals.get(name):
                label += f", {interval.tested:,} tested"
                number += f" ({interval.low:.4f} to {interval.high:.4f})"
            rows.append((label, number, f"{reference[name]:.4f}" if name in reference else ""))
    notes = [f"{section}: {note}" for section, note in evaluation.notes.items()]
    return "\n".join([align_columns(rows), *([""] if notes else []), *notes])


def summary_table(evaluation: Evaluation) -> str:
    """Return the columns of numbers that differ most in a few figures, real beside synthetic values. Private.

    Example:
        >>> from lightning_dpgen.metrics.evaluation import Evaluation
        >>> from lightning_dpgen.metrics.summaries import Summary
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
    return align_columns(rows) + (f"\nand {more} more columns of numbers, which differ less" if more > 0 else "")


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
    return f"{listing.title}:\n{align_columns(rows)}" + (f"\nand {more} more on the page" if more > 0 else "")


def _cell(value: str | int | float) -> str:
    if isinstance(value, str):
        return printable(value, _LETTERS)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _read(
    source: Source, schema: Schema, sample: RowSample, *, held_out: bool = False
) -> tuple[Records | TableValues, dict[str, int]]:
    """Read records, and by their values where these are compared."""
    kind = kind_of(schema)
    records, counted = source.records(schema, held_out=held_out, values=kind.by_values, sample=sample)
    if records.values is not None or not kind.tabular:
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

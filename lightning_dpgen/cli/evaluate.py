"""`dpgen evaluate`: compare a release with real data. What it prints and writes is computed from real records."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from filecmp import cmp
from pathlib import Path
from typing import Any

from lightning_dpgen.cli.arguments import Parser, whole_number
from lightning_dpgen.cli.imported import imported
from lightning_dpgen.cli.real_records import real_source
from lightning_dpgen.common.folders import place_of
from lightning_dpgen.common.nearest_word import suggest_file
from lightning_dpgen.common.passwords import without_passwords
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.kinds import kind_of
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.release.drawing.description import PROJECTION, read_description, schema_in
from lightning_dpgen.release.files import SYNTHETIC, NotARelease, read_certificate
from lightning_dpgen.release.folder import release_folder
from lightning_dpgen.specs.source import Source, source_of
from lightning_dpgen.specs.usage_error import UsageError

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
    # A mistake is told before what compares records is imported.
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
        aside = None if arguments.held_out is None else _beside(source, arguments.held_out, arguments.release)
    return imported("evaluating").run(arguments, certificate, source, aside)


def _beside(source: Source, path: str, release: Path) -> Source:
    """Return the source of held-out records: a file or folder of the form of the others, or a query of their database."""
    own, of_database = getattr(source.spec, "path", None), getattr(source.spec, "url", None) is not None
    if own is None and not of_database:
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
    made = release / SYNTHETIC
    learned = [] if own is None else [(Path(own), "of the records that were learned from (data.path)")]
    for other, what in (*learned, (made, "of synthetic records")):
        # Copies under other names, too.
        if other.exists() and (place.samefile(other) or (place.is_file() and other.is_file() and cmp(place, other, False))):
            raise UsageError(f"--held-out {path}: is the file {what}; expected real records that the training did not use")
    changed = {"url": None, "query": None, "rows_independent": None} if of_database else {}
    return source_of(source.spec.changed(path=str(place), **changed))


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

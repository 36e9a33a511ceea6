"""`dpgen sample`: synthetic records from a release, to the terminal, a file, a folder of pictures, or a database."""

from __future__ import annotations

import itertools
import os
import secrets
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lightning_dpgen.cli.arguments import Parser, whole_number
from lightning_dpgen.data.files.kinds import DATABASES, WORKBOOK
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.privacy.folders import place_of
from lightning_dpgen.privacy.passwords import without_passwords
from lightning_dpgen.release.as_read import AsRead
from lightning_dpgen.release.certificate import NotARelease
from lightning_dpgen.release.database_table import check_new_table, write_to_database
from lightning_dpgen.release.folder import release_folder
from lightning_dpgen.release.long_series import NUMBER, TIME, long_chunks
from lightning_dpgen.release.mark import NOT_PRIVATE
from lightning_dpgen.release.picture_folder import write_pictures
from lightning_dpgen.release.projected import ProjectedRows
from lightning_dpgen.release.rejection import TooRare
from lightning_dpgen.release.sampler import Release, load_release
from lightning_dpgen.release.tables import FORMATS, csv_text, write_table
from lightning_dpgen.release.verify import read_certificate
from lightning_dpgen.release.workbook import MOST_ROWS_OF_A_SHEET, SHEET, check_sheet
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.usage_error import UsageError

# Records to draw by default: a file of them, or a look.
_WRITTEN, _SHOWN = 1000, 10
_MOST = 10**9
_SQLITE = tuple(ending for ending in DATABASES if ending != ".duckdb")


def make_parser() -> Parser:
    parser = Parser(
        prog="dpgen sample",
        description="Draw synthetic records from a release, as many as you like: it costs no further privacy.",
    )
    parser.add_argument("release", type=release_folder, help="the folder of a release, or of the run that made it")
    parser.add_argument(
        "-n",
        type=whole_number,
        help=f"how many records, at most {_MOST:,} ({_WRITTEN} to a file, {_SHOWN} to the terminal)",
    )
    parser.add_argument(
        "-o",
        dest="output",
        help=f"a new file ({', '.join(FORMATS)}), in the form that a table was read in; the URL of a database, with "
        "--table; for pictures also a new folder (FOLDER/); without it, records are printed as CSV",
    )
    parser.add_argument("--table", help=f"the new table of the database, or the sheet of the .xlsx file ({SHEET})")
    parser.add_argument(
        "--form", choices=("wide", "long"), help="series: one a row, or one time a row (as they were read, or wide)"
    )
    parser.add_argument("--seed", type=whole_number, help="makes the draw repeatable")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="CONDITION",
        help="only records that fulfil it, drawn until there are enough: label=3, job!=cook, 'age>=60', age=60..80, "
        "'job in (cook, vet)', 'job is missing'; may be repeated, and all of them hold then",
    )
    parser.add_argument("--component", type=whole_number, help="of the mixture, counted from 0: only records of this one")
    parser.add_argument(
        "--no-escape",
        action="store_true",
        help="in CSV, write text that begins with = + - @ as it is: by default an apostrophe before it keeps spreadsheets "
        "from running it as a formula",
    )
    return parser


def run(argv: Sequence[str]) -> int:
    arguments = make_parser().parse_args(argv)
    if arguments.seed is not None and arguments.seed >= 2**63:
        raise UsageError(f"--seed {arguments.seed}: expected a number below 2^63")
    if arguments.n is not None and arguments.n > _MOST:
        raise UsageError(f"-n {arguments.n}: expected a number of records up to {_MOST:,}")
    place = None if arguments.output is None else _place(arguments.output, arguments.table)
    release = load_release(arguments.release)
    if isinstance(release, ProjectedRows):
        raise UsageError(
            f"{arguments.release} holds projected rows, one for each record, and no model to draw from: read "
            f"{arguments.release}/projected.parquet, or use load_release in Python"
        )
    if arguments.component is not None:
        try:
            release = release.component(arguments.component)
        except ValueError as error:
            raise UsageError(f"--{error}") from None
    n, pictures = arguments.n, place is not None and place.folder
    if pictures and not isinstance(release.schema, ImageSchema):
        raise UsageError(f"-o {place}: a folder is for pictures, and the release is of {release.schema.kind}: name a file")
    if arguments.form is not None and not isinstance(release.schema, SeriesSchema):
        raise UsageError(f"--form {arguments.form}: is about series, and this release is of {release.schema.kind}")
    _check(release, arguments.where)
    if n is None:
        n = _SHOWN if place is None else _WRITTEN
    if place is not None and place.path is not None and place.path.suffix == WORKBOOK and n > MOST_ROWS_OF_A_SHEET:
        raise UsageError(f"-n {n}: a sheet holds {MOST_ROWS_OF_A_SHEET:,} records: write a .csv or .parquet file")
    try:
        if pictures:
            write_pictures(
                place.path, release.schema, release.encoded(n, arguments.seed, arguments.where), private=release.private
            )
        else:
            chunks, columns = release.chunks(n, arguments.seed, arguments.where), release.arrow
            if isinstance(release.schema, SeriesSchema) and _is_long(arguments):
                chunks, columns = _long(chunks, columns, release.schema, arguments.release)
            _write(place, chunks, columns, AsRead.of(release.schema), escape=not arguments.no_escape)
    except TooRare as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        if place is None:
            raise
        raise UsageError(f"-o {place}: cannot be written ({error.strerror or error})") from None
    except NotARelease:
        raise
    # A file of this format cannot hold it, or a database refuses it.
    except ValueError as error:
        raise UsageError(f"{arguments.release if place is None else f'-o {place}'}: {error}") from None
    if place is None:
        print(f"{n:,} synthetic records; -n says how many, -o FILE.parquet or FILE.csv writes them", file=sys.stderr)
    else:
        print(f"{n:,} synthetic records in {place}")
    if not release.private:
        marked = place is not None and (place.folder or (place.path is not None and place.path.suffix == ".parquet"))
        carried = "the metadata of the file says so" if marked else "and CSV has no place to say so: a .parquet file has"
        print(f"{NOT_PRIVATE}: this release protects no one; {carried}", file=sys.stderr)
    return 0


@dataclass(frozen=True)
class _Place:
    """The place of records: a file or a folder, or a table of a database.

    Args:
        path: of the file or folder.
        folder: whether it is one, of pictures.
        url: of the database.
        table: in the database, or the sheet of a workbook.
    """

    path: Path | None = None
    folder: bool = False
    url: str | None = None
    table: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.url is None else f"{without_passwords(self.url)}, table {self.table}"


def _place(name: str, table: str | None) -> _Place:
    """Return where records may be written.

    Raises:
        UsageError: if they may not.
    """
    if "://" in name:
        if not table:
            raise UsageError(f"-o {without_passwords(name)}: give its new table a name, as in --table people")
        try:
            check_new_table(name, table)
        except BadRecords as error:
            # It names the database.
            raise UsageError(f"-o {error}") from None
        except ValueError as error:
            raise UsageError(f"-o {without_passwords(name)}: {error}") from None
        return _Place(url=name, table=table)
    output, folder = place_of(name), name.endswith(("/", os.sep))
    if not folder and output.suffix not in FORMATS:
        raise UsageError(
            f"-o {output}: expected a name that ends in {', '.join(FORMATS)}, the URL of a database, or FOLDER/ of pictures"
        )
    if table is not None:
        try:
            if output.suffix not in (WORKBOOK, *DATABASES):
                raise ValueError("names a table of a database, or the sheet of an .xlsx file: leave it out")
            if output.suffix == WORKBOOK:
                check_sheet(table)
        except ValueError as error:
            raise UsageError(f"--table {table}: {error}") from None
    if os.path.lexists(output):
        more = f", or give the URL sqlite:///{output} and --table for a new table in it" if output.suffix in _SQLITE else ""
        raise UsageError(f"-o {output}: exists already; choose another name{more}")
    if not output.parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}")
    return _Place(output, folder, table=table)


def _is_long(arguments: Namespace) -> bool:
    """Tell whether series are asked for with one time a row, or were read so."""
    return arguments.form == "long" or (arguments.form is None and _declared(arguments.release).get("form") == "long")


def _declared(release: Path) -> dict[str, Any]:
    with suppress(NotARelease):  # a model gives records without its certificate
        declared = read_certificate(release).get("declared")
        return declared if isinstance(declared, dict) else {}
    return {}


def _long(
    chunks: Iterator[pa.RecordBatch], columns: pa.Schema, schema: SeriesSchema, release: Path
) -> tuple[Iterator[pa.RecordBatch], pa.Schema]:
    """Return series with one time a row, under the names that the columns of the real ones had."""
    declared = _declared(release)
    number, time = declared.get("by") or NUMBER, declared.get("day") or TIME
    if len({number, time, *schema.channels, "label"}) < 3 + len(schema.channels):
        number, time = NUMBER, TIME
    made = long_chunks(chunks, schema, number, time)
    first = next(made)
    return itertools.chain([first], made), first.schema.with_metadata(columns.metadata)


def _write(
    place: _Place | None, chunks: Iterable[pa.RecordBatch], columns: pa.Schema, form: AsRead, *, escape: bool
) -> None:
    if place is None:
        for text in csv_text(chunks, escape=escape, form=form):
            print(text, end="")
    elif place.url is not None:
        write_to_database(place.url, place.table, map(form.values, chunks), form.schema(columns))
    else:
        _write_file(place.path, chunks, columns, form, escape=escape, sheet=place.table or SHEET)


def _write_file(
    output: Path, chunks: Iterable[pa.RecordBatch], schema: pa.Schema, form: AsRead, *, escape: bool, sheet: str
) -> None:
    # Written beside its place and renamed, so that an interrupted draw leaves no half file under the final name.
    # A name of its own: what stands there, such as a link, may be another user's.
    part = output.with_name(f".{output.stem}.{secrets.token_hex(4)}.part{output.suffix}")
    try:
        write_table(part, chunks, schema, escape=escape, form=form, sheet=sheet)
        os.replace(part, output)
    finally:
        part.unlink(missing_ok=True)


def _check(release: Release, words: Sequence[str]) -> None:
    """Refuse conditions that make no sense.

    Raises:
        UsageError: naming the condition.
    """
    for word in [*words, words]:
        try:
            release.check_conditions(word)
        except ValueError as error:
            said, named = str(error), word if isinstance(word, str) else " --where ".join(word)
            raise UsageError(f"--where {said}" if said.startswith(f"{named}: ") else f"--where {named}: {said}") from None

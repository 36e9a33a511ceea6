"""`dpgen sample`: synthetic records from a release, to the terminal, a file, a folder of pictures, or a database."""

from __future__ import annotations

import os
import secrets
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lightning_dpgen.cli.arguments import Parser, loading, whole_number
from lightning_dpgen.cli.outputs import Place, check_new, new_place, private_place
from lightning_dpgen.common.folders import owner_only, place_of
from lightning_dpgen.common.plain_text import listed, say_count
from lightning_dpgen.data.files.kinds import DATABASES, SQLITE, WORKBOOK
from lightning_dpgen.data.schema import Schema, kind_of
from lightning_dpgen.release.drawing.description import (
    PROJECTION,
    balanced_group,
    check_component,
    conditions_on,
    read_description,
    schema_in,
)
from lightning_dpgen.release.files import PROJECTED, NotARelease, release_folder
from lightning_dpgen.release.publishing.mark import NOT_PRIVATE, completed_schema
from lightning_dpgen.release.rows.database_table import write_tables_to_duckdb, write_to_database, write_to_sqlite
from lightning_dpgen.release.rows.output_format import OutputFormat
from lightning_dpgen.release.rows.tables import (
    FORMATS,
    MOST_ROWS_OF_A_SHEET,
    OF_BASKETS,
    OF_FOLDERS,
    SHEET,
    check_sheet,
    csv_text,
    write_table,
)
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    from lightning_dpgen.release.rows.folder_of_rows import DrawSpec

BANNER = "PRIVATE where the given rows are: the certificate covers the model alone, and none of these rows."
_MORE = "-n says how many, "
_GOES_ON = "files that are finished stay, and the same command goes on"
# Files that hold several tables, or lists of rows.
_WITH_SEVERAL = (*DATABASES, ".parquet", ".jsonl")
# Records to draw by default: a file of them, or a look.
_WRITTEN, _SHOWN = 1000, 10
_MOST, _MOST_PROCESSES = 10**9, 1024


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
        help=f"a new file ({', '.join(FORMATS)}), in the form that the records were read in; the URL of a database, with "
        "--table; FOLDER/ for files of a million records each, which the same command goes on with, for pictures, or for "
        "the tables of histories; without it, records are printed as CSV",
    )
    parser.add_argument(
        "--format",
        choices=[ending.removeprefix(".") for ending in OF_FOLDERS],
        help="of the files in FOLDER/ (parquet; for pictures one PNG each)",
    )
    parser.add_argument(
        "--processes",
        type=whole_number,
        default=1,
        help="processes that write to FOLDER/, with a few hundred MiB of memory each; the records are the same (1)",
    )
    parser.add_argument(
        "--table", help=f"the new table of the database, or the sheet of the .xlsx file (the schema's table, or {SHEET})"
    )
    parser.add_argument(
        "--form",
        help="series: wide or long, one in each row or one time in each row (default: as they were read, or wide); "
        "histories: persons, or the name of a table of rows, for a file of one table (the same -n and --seed make them "
        "belong together)",
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
    parser.add_argument(
        "--balance",
        metavar="COLUMN",
        help="as many records of each value of this column, or of each bin of numbers, as of any other one",
    )
    parser.add_argument(
        "--given",
        metavar="FILE",
        help="complete the rows of this file, one record for each, in their order: columns that are absent and cells that "
        "are empty are drawn given all others. What is written is as private as these rows",
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
    # Mistakes are reported before the import of what draws records.
    if arguments.seed is not None and arguments.seed >= 2**63:
        raise UsageError(f"--seed {arguments.seed}: expected a number below 2^63")
    if arguments.n is not None and arguments.n > _MOST:
        raise UsageError(f"-n {arguments.n}: expected a number of records up to {_MOST:,}")
    if arguments.given is not None:
        place = _place_of_given(arguments)
    else:
        place = None if arguments.output is None else new_place(arguments.output, arguments.table)
    _check_folder(arguments, place)
    arguments.n = (_SHOWN if place is None else _WRITTEN) if arguments.n is None else arguments.n
    description = read_description(arguments.release)
    if description.get("model") == PROJECTION:
        raise UsageError(
            f"{arguments.release} holds projected rows, one for each record, and no model to draw from: read "
            f"{arguments.release}/{PROJECTED}, or use load_release in Python"
        )
    schema = schema_in(arguments.release, description)
    if schema is not None:
        _check(arguments, place, schema, description.get("k"))
    return _draw(arguments, place)


def _place_of_given(arguments: Namespace) -> Place | None:
    """Return where completed rows may be written, which is no release; None for the terminal."""
    of_draws = {"-n": arguments.n, "--where": arguments.where, "--balance": arguments.balance, "--table": arguments.table}
    of_draws |= {"--form": arguments.form, "--format": arguments.format}
    if said := [name for name, value in of_draws.items() if value not in (None, [])]:
        raise UsageError(f"{said[0]}: the rows of --given {arguments.given} say what is drawn: leave one of them out")
    if arguments.output is None:
        return None
    return Place(private_place(arguments.output, arguments.release, "completed rows", OF_FOLDERS))


def _check_folder(arguments: Namespace, place: Place | None) -> None:
    """Refuse arguments about a folder of rows without one."""
    folder = place is not None and place.folder
    if arguments.format is not None and not folder:
        raise UsageError(f"--format {arguments.format}: applies to the files of a folder: expected -o FOLDER/")
    if not 1 <= arguments.processes <= _MOST_PROCESSES:
        raise UsageError(f"--processes {arguments.processes}: expected 1 to {_MOST_PROCESSES}")
    if arguments.processes > 1 and not folder:
        raise UsageError(f"--processes {arguments.processes}: one file is written by one process: expected -o FOLDER/")


def _check(arguments: Namespace, place: Place | None, schema: Schema, components: Any) -> None:
    """Refuse what makes no sense of these records."""
    if arguments.component is not None and type(components) is int:
        try:
            check_component(arguments.component, components)
        except ValueError as error:
            raise UsageError(f"--{error}") from None
    kind = kind_of(schema)
    if place is not None and place.folder and arguments.format is None and kind.write_folder() is not None:
        check_new(place.path)
    of_baskets = place is not None and place.path is not None and not place.folder and place.path.suffix in OF_BASKETS
    if of_baskets and place.path.suffix not in kind.endings:
        raise UsageError(
            f"-o {place}: {', '.join(OF_BASKETS)} are of baskets, and this release is of kind {schema.kind}: expected a "
            f"name that ends in {', '.join(FORMATS)}"
        )
    forms = kind.forms(schema)
    if arguments.form is not None and arguments.form not in forms:
        expected = f"expected {' or '.join(forms)}" if forms else "leave it out"
        raise UsageError(f"--form {arguments.form}: this release is of kind {schema.kind}: {expected}")
    if arguments.form is None and (names := _tables_of(schema)):
        _check_several(arguments, place, names)
    if arguments.given is not None and not kind.tabular:
        raise UsageError(f"--given {arguments.given}: this release is of kind {schema.kind}: expected one of a table")
    if arguments.balance is not None:
        try:
            balanced_group(schema, arguments.balance)
        except ValueError as error:
            raise UsageError(f"--{error}") from None
    for word in [*arguments.where, arguments.where]:
        try:
            conditions_on(schema, word)
        except ValueError as error:
            said, named = str(error), word if isinstance(word, str) else " --where ".join(word)
            raise UsageError(f"--where {said}" if said.startswith(f"{named}: ") else f"--where {named}: {said}") from None
    if (
        place is not None
        and place.path is not None
        and place.path.suffix == WORKBOOK
        and arguments.n > MOST_ROWS_OF_A_SHEET
    ):
        raise UsageError(f"-n {arguments.n}: a sheet holds {MOST_ROWS_OF_A_SHEET:,} records: write a .csv or .parquet file")


def _tables_of(schema: Schema) -> list[str]:
    """Return the tables that records have together; none where one alone says anything but keys."""
    tables = kind_of(schema).related(schema)
    return list(tables) if sum(len(table.columns) > 1 for table in tables.values()) > 1 else []


def _check_several(arguments: Namespace, place: Place | None, names: Sequence[str]) -> None:
    """Refuse one place for several tables."""
    if arguments.table is not None:
        raise UsageError(
            f"--table {arguments.table}: names one table, and these records have {listed(names)}: say which one by --form, "
            "or leave it out for all of them in a file of SQLite"
        )
    if place is not None and place.folder:
        check_new(place.path)
        if arguments.processes > 1:
            raise UsageError(
                f"--processes {arguments.processes}: one process writes {listed(names)}: leave it out, or name one: --form"
            )
    elif place is not None and (place.path is None or place.path.suffix not in _WITH_SEVERAL):
        raise UsageError(
            f"-o {place}: holds one table, and these records have {listed(names)}: -o FOLDER/ writes a file of each "
            "(--format csv), -o FILE.sqlite one file of all, and --form one of them"
        )


def _draw(arguments: Namespace, place: Place | None) -> int:
    """Draw records to a place, or to the terminal; gives the exit status."""
    with loading():
        from lightning_dpgen.release.drawing.draws import TooRare
        from lightning_dpgen.release.rows.folder_of_rows import DrawSpec, write_tables
    where, n, ending_note = tuple(arguments.where), arguments.n, ""
    ending = _ending(place, arguments.format)
    draw = DrawSpec(
        arguments.release, n, arguments.seed, where, arguments.component, arguments.form, ending, arguments.balance
    )
    release = draw.release
    what = "synthetic person" if kind_of(release.schema).word == "person" else "synthetic record"
    write_folder = kind_of(release.schema).write_folder()
    try:
        if arguments.given is not None:
            n, what = _complete(place, draw, arguments), "completed row"
        elif place is not None and place.folder and arguments.format is None and write_folder is not None:
            encoded = release.sample_encoded(n, arguments.seed, where, draw.balance)
            write_folder(place.path, release.schema, encoded, private=release.private)
        elif place is not None and place.folder and _tables_of(release.schema) and draw.form is None:
            ending_note = f": {listed(write_tables(place.path, draw, not arguments.no_escape))}"
        elif place is not None and place.folder:
            ending_note = _write_folder(place, draw, arguments)
        else:
            _write(place, draw, escape=not arguments.no_escape, sheet=_sheet(place, release.schema))
    except TooRare as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        if place is None:
            raise
        more = f"; {_GOES_ON}" if place.folder and write_folder is None else ""
        raise UsageError(f"-o {place}: cannot be written ({error.strerror or error}){more}") from None
    except NotARelease:
        raise
    # A file of this format cannot hold it, or a database refuses it.
    except ValueError as error:
        raise UsageError(f"{arguments.release if place is None else f'-o {place}'}: {error}") from None
    if place is None:
        print(
            f"{say_count(n, what)}; {_MORE if arguments.given is None else ''}-o {_places(release.schema)} writes them",
            file=sys.stderr,
        )
    else:
        print(f"{say_count(n, what)} in {place}{ending_note}")
    if not release.private:
        marked = place is not None and place.path is not None and _holds_mark(place, arguments.format)
        carried = "the metadata of the file says so" if marked else "and CSV has no place to say so: a .parquet file has"
        print(f"{NOT_PRIVATE}: this release protects no one; {carried}", file=sys.stderr)
    return 0


def _places(schema: Schema) -> str:
    return "FOLDER/ or FILE.sqlite" if _tables_of(schema) else "FILE.parquet or FILE.csv"


def _complete(place: Place | None, draw: DrawSpec, arguments: Namespace) -> int:
    """Complete given rows and write them for their owner alone; gives their number."""
    from lightning_dpgen.release.drawing.draws import TooRare

    release, escape = draw.release, not arguments.no_escape
    try:
        given = release.given_rows(place_of(arguments.given))
        # Nothing is written before all rows are complete.
        chunks = list(release.complete_blocks(given, arguments.seed))
    except (BadRecords, TooRare) as error:
        raise UsageError(f"--given {error}") from None
    except OSError as error:
        raise UsageError(f"--given {arguments.given}: cannot be read ({error.strerror or error})") from None
    print(BANNER, file=sys.stderr)
    for line in given.notes:
        print(f"--given {arguments.given}: {line}", file=sys.stderr)
    columns, form = (
        completed_schema(given.arrow.with_metadata(release.arrow.metadata)),
        release.form.without_types(given.kept),
    )
    if place is not None:
        _write_file(place.path, chunks, columns, form, escape=escape, sheet=SHEET, private=True)
    else:
        for text in csv_text(chunks, escape=escape, form=form):
            print(text, end="")
    return len(given)


def _write_folder(place: Place, draw: DrawSpec, arguments: Namespace) -> str:
    """Write a folder of files, and say what was there."""
    from lightning_dpgen.release.rows.folder_of_rows import LostProcess, RowsFolder

    try:
        rows, there = RowsFolder(place.path, draw, not arguments.no_escape).write(arguments.processes)
    except KeyboardInterrupt:
        print(f"-o {place}: {_GOES_ON}", file=sys.stderr)
        raise
    except LostProcess as error:
        raise UsageError(f"-o {place}: {error}; {_GOES_ON}") from None
    resumed = f"; {there:,} of the files were there" if there else ""
    return f", up to {rows:,} in a file{resumed}"


def _ending(place: Place | None, asked: str | None) -> str:
    """Return the ending of the files that are written; records are printed as CSV."""
    if place is None:
        return ".csv"
    if place.folder:
        return OF_FOLDERS[0] if asked is None else f".{asked}"
    return DATABASES[0] if place.url is not None else place.path.suffix


def _sheet(place: Place | None, schema: Schema) -> str:
    """Return the name of the sheet or table of a file: the one that is asked for, or that a workbook's schema names."""
    if place is not None and place.table:
        return place.table
    named = schema.sheet
    if named is None or place is None or place.path is None or place.path.suffix != WORKBOOK:
        return SHEET
    try:
        check_sheet(named)
    except ValueError:
        return SHEET
    return named


def _write(place: Place | None, draw: DrawSpec, *, escape: bool, sheet: str) -> None:
    if place is not None and place.path is not None and place.path.suffix in DATABASES and draw.related:
        write = write_to_sqlite if place.path.suffix in SQLITE else write_tables_to_duckdb
        with _part_of(place.path) as part:
            write(part, draw.record_blocks(), draw.related)
        return
    if place is None and draw.form is None and (names := _tables_of(draw.release.schema)):
        chunks = list(draw.record_blocks())
        for name in names:
            written = draw.related[name]
            print(f"{name}:")
            for text in csv_text(written.rows(chunks, 0), escape=escape, form=written.form):
                print(text, end="")
        return
    chunks, columns, form = draw.sample_blocks(), draw.columns, draw.written_form
    if place is None:
        for text in csv_text(chunks, escape=escape, form=form):
            print(text, end="")
    elif place.url is not None:
        write_to_database(place.url, place.table, map(form.values, chunks), form.schema(columns))
    else:
        _write_file(place.path, chunks, columns, form, escape=escape, sheet=sheet)


def _write_file(
    output: Path,
    chunks: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    form: OutputFormat,
    *,
    escape: bool,
    sheet: str,
    private: bool = False,
) -> None:
    with _part_of(output) as part:
        if private:
            open(part, "xb", opener=owner_only).close()
        write_table(part, chunks, schema, escape=escape, form=form, sheet=sheet)


@contextmanager
def _part_of(output: Path) -> Iterator[Path]:
    """Give the place of a file that is written beside its own, and renamed: an interrupted draw leaves no half file."""
    # A name of its own: what stands there, such as a link, may be another user's.
    part = output.with_name(f".{output.stem}.{secrets.token_hex(4)}.part{output.suffix}")
    try:
        yield part
        os.replace(part, output)
    finally:
        part.unlink(missing_ok=True)


def _holds_mark(place: Place, ending: str | None) -> bool:
    """Tell whether what was written has metadata: pictures and Parquet files."""
    if place.folder:
        return ending == "parquet" or ending is None
    return place.path.suffix == ".parquet"

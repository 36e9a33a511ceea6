"""The command `sample` once its arguments are checked: records are drawn and written."""

from __future__ import annotations

import os
import secrets
import sys
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from lightning_dpgen.cli.sample import Place
from lightning_dpgen.common.folders import owner_only, place_of
from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.data.files.kinds import DATABASES, WORKBOOK
from lightning_dpgen.data.kinds import kind_of
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.release.drawing.draw_spec import DrawSpec
from lightning_dpgen.release.drawing.rejection import TooRare
from lightning_dpgen.release.files import NotARelease
from lightning_dpgen.release.publishing.mark import NOT_PRIVATE, completed_schema
from lightning_dpgen.release.rows.as_read import AsRead
from lightning_dpgen.release.rows.database_table import write_to_database
from lightning_dpgen.release.rows.folder_of_rows import LostProcess, RowsFolder
from lightning_dpgen.release.rows.tables import OF_FOLDERS, csv_text, write_table
from lightning_dpgen.release.rows.workbook import SHEET, check_sheet
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.usage_error import UsageError

BANNER = "PRIVATE where the given rows are: the certificate covers the model alone, and none of these rows."
_MORE = "-n says how many, "
_GOES_ON = "files that are finished stay, and the same command goes on"


def run(arguments: Namespace, place: Place | None) -> int:
    """Draw records to a place, or to the terminal; gives the exit status."""
    where, n, said = tuple(arguments.where), arguments.n, ""
    ending = _ending(place, arguments.format)
    draw = DrawSpec(
        arguments.release, n, arguments.seed, where, arguments.component, arguments.form, ending, arguments.balance
    )
    release, what = draw.release, "synthetic record"
    write_folder = kind_of(release.schema).write_folder()
    try:
        if arguments.given is not None:
            n, what = _complete(place, draw, arguments), "completed row"
        elif (
            place is not None
            and place.folder
            and arguments.format is None
            and (write := kind_of(release.schema).write_folder())
        ):
            write(
                place.path, release.schema, release.encoded(n, arguments.seed, where, draw.balance), private=release.private
            )
        elif place is not None and place.folder:
            said = _write_folder(place, draw, arguments)
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
            f"{say_count(n, what)}; {_MORE if arguments.given is None else ''}-o FILE.parquet or FILE.csv writes them",
            file=sys.stderr,
        )
    else:
        print(f"{say_count(n, what)} in {place}{said}")
    if not release.private:
        marked = place is not None and place.path is not None and _holds_mark(place, arguments.format)
        carried = "the metadata of the file says so" if marked else "and CSV has no place to say so: a .parquet file has"
        print(f"{NOT_PRIVATE}: this release protects no one; {carried}", file=sys.stderr)
    return 0


def _complete(place: Place | None, draw: DrawSpec, arguments: Namespace) -> int:
    """Complete given rows and write them for their owner alone; gives their number."""
    release, escape = draw.release, not arguments.no_escape
    try:
        given = release.given_rows(place_of(arguments.given))
        # Nothing is written before all rows are complete.
        chunks = list(release.completed(given, arguments.seed))
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
    try:
        rows, there = RowsFolder(place.path, draw, not arguments.no_escape).write(arguments.processes)
    except KeyboardInterrupt:
        print(f"-o {place}: {_GOES_ON}", file=sys.stderr)
        raise
    except LostProcess as error:
        raise UsageError(f"-o {place}: {error}; {_GOES_ON}") from None
    kept = f"; {there:,} of the files were there" if there else ""
    return f", up to {rows:,} in a file{kept}"


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
    chunks, columns, form = draw.chunks(), draw.columns, draw.written_form
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
    form: AsRead,
    *,
    escape: bool,
    sheet: str,
    private: bool = False,
) -> None:
    # Written beside its place and renamed, so that an interrupted draw leaves no half file under the final name.
    # A name of its own: what stands there, such as a link, may be another user's.
    part = output.with_name(f".{output.stem}.{secrets.token_hex(4)}.part{output.suffix}")
    try:
        if private:
            open(part, "xb", opener=owner_only).close()
        write_table(part, chunks, schema, escape=escape, form=form, sheet=sheet)
        os.replace(part, output)
    finally:
        part.unlink(missing_ok=True)


def _holds_mark(place: Place, ending: str | None) -> bool:
    """Tell whether what was written has metadata: pictures and Parquet files."""
    if place.folder:
        return ending == "parquet" or ending is None
    return place.path.suffix == ".parquet"

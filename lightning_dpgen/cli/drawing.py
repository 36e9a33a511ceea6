"""The command `sample` once its arguments are checked: records are drawn and written."""

from __future__ import annotations

import itertools
import os
import secrets
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from lightning_dpgen.cli.sample import Place
from lightning_dpgen.data.files.kinds import WORKBOOK
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.release.as_read import AsRead
from lightning_dpgen.release.database_table import write_to_database
from lightning_dpgen.release.files import NotARelease, read_certificate
from lightning_dpgen.release.long_series import NUMBER, TIME, long_chunks
from lightning_dpgen.release.mark import NOT_PRIVATE
from lightning_dpgen.release.picture_folder import write_pictures
from lightning_dpgen.release.rejection import TooRare
from lightning_dpgen.release.sampler import load_release
from lightning_dpgen.release.tables import csv_text, write_table
from lightning_dpgen.release.workbook import SHEET, check_sheet
from lightning_dpgen.specs.usage_error import UsageError


def run(arguments: Namespace, place: Place | None) -> int:
    """Draw records to a place, or to the terminal; gives the exit status."""
    release, n = load_release(arguments.release), arguments.n
    if arguments.component is not None:
        release = release.component(arguments.component)
    try:
        if place is not None and place.folder:
            write_pictures(
                place.path, release.schema, release.encoded(n, arguments.seed, arguments.where), private=release.private
            )
        else:
            chunks, columns = release.chunks(n, arguments.seed, arguments.where), release.arrow
            if isinstance(release.schema, SeriesSchema) and _is_long(arguments):
                chunks, columns = _long(chunks, columns, release.schema, arguments.release)
            sheet = _sheet(place, release.schema)
            _write(place, chunks, columns, AsRead.of(release.schema), escape=not arguments.no_escape, sheet=sheet)
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


def _sheet(place: Place | None, schema: Schema) -> str:
    """Return the name of the sheet or table of a file: the one that is asked for, or that a workbook's schema names."""
    if place is not None and place.table:
        return place.table
    named = schema.table if isinstance(schema, TableSchema) else None
    if named is None or place is None or place.path is None or place.path.suffix != WORKBOOK:
        return SHEET
    try:
        check_sheet(named)
    except ValueError:
        return SHEET
    return named


def _write(
    place: Place | None,
    chunks: Iterable[pa.RecordBatch],
    columns: pa.Schema,
    form: AsRead,
    *,
    escape: bool,
    sheet: str,
) -> None:
    if place is None:
        for text in csv_text(chunks, escape=escape, form=form):
            print(text, end="")
    elif place.url is not None:
        write_to_database(place.url, place.table, map(form.values, chunks), form.schema(columns))
    else:
        _write_file(place.path, chunks, columns, form, escape=escape, sheet=sheet)


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

"""`dpgen sample`: synthetic records from a release, to the terminal, a file, a folder of pictures, or a database."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_dpgen.cli.arguments import Parser, whole_number
from lightning_dpgen.cli.imported import imported
from lightning_dpgen.cli.private_table import private_place
from lightning_dpgen.common.folders import place_of
from lightning_dpgen.common.passwords import without_passwords
from lightning_dpgen.data.files.kinds import DATABASES, WORKBOOK
from lightning_dpgen.data.kinds import kind_of
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.release.drawing.description import (
    PROJECTION,
    balanced_group,
    check_component,
    conditions_on,
    read_description,
    schema_in,
)
from lightning_dpgen.release.files import PROJECTED
from lightning_dpgen.release.folder import IN_RELEASE, lies_in_release, release_folder
from lightning_dpgen.release.rows.database_table import check_new_table
from lightning_dpgen.release.rows.tables import FORMATS, OF_BASKETS, OF_FOLDERS
from lightning_dpgen.release.rows.workbook import MOST_ROWS_OF_A_SHEET, SHEET, check_sheet
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.usage_error import UsageError

# Records to draw by default: a file of them, or a look.
_WRITTEN, _SHOWN = 1000, 10
_MOST, _MOST_PROCESSES = 10**9, 1024
# Databases that are files.
_IN_FILES = ("sqlite", "duckdb")
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
        help=f"a new file ({', '.join(FORMATS)}), in the form that the records were read in; the URL of a database, with "
        "--table; FOLDER/ for files of a million records each, which the same command goes on with, or pictures; without "
        "it, records are printed as CSV",
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
        choices=("wide", "long"),
        help="series: one in each row, or one time in each row (default: as they were read, or wide)",
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
    # A mistake is told before what draws records is imported.
    if arguments.seed is not None and arguments.seed >= 2**63:
        raise UsageError(f"--seed {arguments.seed}: expected a number below 2^63")
    if arguments.n is not None and arguments.n > _MOST:
        raise UsageError(f"-n {arguments.n}: expected a number of records up to {_MOST:,}")
    if arguments.given is not None:
        place = _place_of_given(arguments)
    else:
        place = None if arguments.output is None else _place(arguments.output, arguments.table)
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
    return imported("drawing").run(arguments, place)


def _place_of_given(arguments: Namespace) -> Place | None:
    """Return where completed rows may be written, which is no release; None for the terminal.

    Raises:
        UsageError: if they may not, or for arguments that say which records to draw.
    """
    of_draws = {"-n": arguments.n, "--where": arguments.where, "--balance": arguments.balance, "--table": arguments.table}
    of_draws |= {"--form": arguments.form, "--format": arguments.format}
    if said := [name for name, value in of_draws.items() if value not in (None, [])]:
        raise UsageError(f"{said[0]}: the rows of --given {arguments.given} say what is drawn: leave one of them out")
    if arguments.output is None:
        return None
    return Place(private_place(arguments.output, arguments.release, "completed rows", OF_FOLDERS))


def _check_new(place: Path) -> None:
    if os.path.lexists(place):
        raise UsageError(f"-o {place}: exists already; choose another name")


def _check_folder(arguments: Namespace, place: Place | None) -> None:
    """Refuse arguments about a folder of rows without one.

    Raises:
        UsageError: naming the argument.
    """
    folder = place is not None and place.folder
    if arguments.format is not None and not folder:
        raise UsageError(f"--format {arguments.format}: applies to the files of a folder: expected -o FOLDER/")
    if not 1 <= arguments.processes <= _MOST_PROCESSES:
        raise UsageError(f"--processes {arguments.processes}: expected 1 to {_MOST_PROCESSES}")
    if arguments.processes > 1 and not folder:
        raise UsageError(f"--processes {arguments.processes}: one file is written by one process: expected -o FOLDER/")


def _check(arguments: Namespace, place: Place | None, schema: Schema, components: Any) -> None:
    """Refuse what makes no sense of these records.

    Raises:
        UsageError: naming the argument.
    """
    if arguments.component is not None and type(components) is int:
        try:
            check_component(arguments.component, components)
        except ValueError as error:
            raise UsageError(f"--{error}") from None
    kind = kind_of(schema)
    if place is not None and place.folder and arguments.format is None and kind.write_folder() is not None:
        _check_new(place.path)
    of_baskets = place is not None and place.path is not None and not place.folder and place.path.suffix in OF_BASKETS
    if of_baskets and place.path.suffix not in kind.endings:
        raise UsageError(
            f"-o {place}: {', '.join(OF_BASKETS)} are of baskets, and this release is of kind {schema.kind}: expected a "
            f"name that ends in {', '.join(FORMATS)}"
        )
    if arguments.form is not None and not kind.forms:
        raise UsageError(f"--form {arguments.form}: applies to series, and this release is of kind {schema.kind}")
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


@dataclass(frozen=True)
class Place:
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


def _place(name: str, table: str | None) -> Place:
    """Return where records may be written.

    Raises:
        UsageError: if they may not.
    """
    system, is_file, file = name.partition(":///")
    # Other databases are no files.
    path = name if "://" not in name else file if is_file and system.startswith(_IN_FILES) else None
    if path is not None and lies_in_release(place_of(path)):
        raise UsageError(f"-o {without_passwords(name)}: {IN_RELEASE}")
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
        return Place(url=name, table=table)
    output, folder = place_of(name), name.endswith(("/", os.sep))
    if not folder and output.suffix not in (*FORMATS, *OF_BASKETS):
        raise UsageError(
            f"-o {output}: expected a name that ends in {', '.join(FORMATS)}, the URL of a database, or FOLDER/"
        )
    if table is not None:
        try:
            if output.suffix not in (WORKBOOK, *DATABASES):
                raise ValueError("names a table of a database, or the sheet of an .xlsx file: leave it out")
            if output.suffix == WORKBOOK:
                check_sheet(table)
        except ValueError as error:
            raise UsageError(f"--table {table}: {error}") from None
    # A folder of rows may have been begun.
    if os.path.lexists(output) and not (folder and output.is_dir()):
        more = f", or give the URL sqlite:///{output} and --table for a new table in it" if output.suffix in _SQLITE else ""
        raise UsageError(f"-o {output}: exists already; choose another name{more}")
    if not output.parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}")
    return Place(output, folder, table=table)

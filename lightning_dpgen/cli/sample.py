"""`dpgen sample`: synthetic records from a release, to the terminal, or to Parquet or CSV."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from lightning_dpgen.cli.arguments import Parser, whole_number
from lightning_dpgen.privacy.folders import place_of
from lightning_dpgen.release.folder import release_folder
from lightning_dpgen.release.mark import NOT_PRIVATE
from lightning_dpgen.release.projected import ProjectedRows
from lightning_dpgen.release.rejection import TooRare
from lightning_dpgen.release.sampler import Release, load_release
from lightning_dpgen.release.tables import FORMATS, csv_text, write_table
from lightning_dpgen.specs.usage_error import UsageError

# Records to draw by default: a file of them, or a look.
_WRITTEN, _SHOWN = 1000, 10
_MOST = 10**9


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
    parser.add_argument("-o", dest="output", help="a new .parquet or .csv file; without it, records are printed as CSV")
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
    output = None if arguments.output is None else _place(arguments.output)
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
    try:
        columns = release.arrow
    except ValueError as error:
        raise UsageError(f"{arguments.release}: {error}") from None
    _check(release, arguments.where)
    n = arguments.n
    if n is None:
        n = _SHOWN if output is None else _WRITTEN
    chunks = release.chunks(n, arguments.seed, arguments.where)
    try:
        if output is None:
            for text in csv_text(chunks, escape=not arguments.no_escape):
                print(text, end="")
            print(f"{n:,} synthetic records; -n says how many, -o FILE.parquet or FILE.csv writes them", file=sys.stderr)
        else:
            _write(output, chunks, columns, escape=not arguments.no_escape)
            print(f"{n:,} synthetic records in {output}")
    except TooRare as error:
        raise UsageError(str(error)) from None
    if not release.private:
        marked = output is not None and output.suffix == ".parquet"
        carried = "the metadata of the file says so" if marked else "and CSV has no place to say so: a .parquet file has"
        print(f"{NOT_PRIVATE}: this release protects no one; {carried}", file=sys.stderr)
    return 0


def _place(name: str) -> Path:
    """Return where a file may be written.

    Raises:
        UsageError: if it may not.
    """
    output = place_of(name)
    if output.suffix not in FORMATS:
        raise UsageError(f"-o {output}: expected a name that ends in {' or '.join(FORMATS)}")
    if os.path.lexists(output):
        raise UsageError(f"-o {output}: exists already; choose another name")
    if not output.parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}")
    return output


def _write(output: Path, chunks: Iterable[pa.RecordBatch], schema: pa.Schema, *, escape: bool) -> None:
    # Written beside its place and renamed, so that an interrupted draw leaves no half file under the final name.
    # A name of its own: what stands there, such as a link, may be another user's.
    part = output.with_name(f".{output.stem}.{secrets.token_hex(4)}.part{output.suffix}")
    try:
        write_table(part, chunks, schema, escape=escape)
        os.replace(part, output)
    except OSError as error:
        raise UsageError(f"-o {output}: cannot be written ({error.strerror or error})") from None
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

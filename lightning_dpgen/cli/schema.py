"""`dpgen schema`: a draft of a table's schema, from the types in its file or from what another program knows of it."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from lightning_dpgen.cli.arguments import Parser
from lightning_dpgen.data.files.database import DatabaseQuery
from lightning_dpgen.data.files.kinds import KNOWN
from lightning_dpgen.data.files.rows import rows_of
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.importers import read_domain, read_sdv
from lightning_dpgen.data.tables.schema_draft import OPEN, draft_of_file, draft_of_rows, draft_text
from lightning_dpgen.privacy.folders import place_of
from lightning_dpgen.privacy.passwords import without_passwords
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.compose import written
from lightning_dpgen.specs.usage_error import UsageError

_NOTES = (
    "For dpgen train: data.person=COLUMN data.max_rows=M where a person has several records, and data.outside=clamp",
    "moves what is not listed, or beyond the bounds, which is refused otherwise.",
    "Numbers are cut into bins;  encoding: scaled  keeps one a number between low and high, for networks alone and not",
    "for model=measured. docs/SCHEMA.md has all keys.",
)
_IMPORTERS = {"sdv": read_sdv, "dpsynth": read_domain}


def _asked(arguments: Namespace) -> DatabaseQuery | None:
    """Return the query that is to be described; None where there is a file.

    Raises:
        UsageError: if one of URL and query is given without the other, or the URL has a password.
    """
    of_url = "://" in arguments.file
    if of_url != (arguments.query is not None) or (arguments.rows_independent and not of_url):
        raise UsageError(
            f"{without_passwords(arguments.file)}: expected the URL of a database with --query, or a file without it"
        )
    if not of_url:
        return None
    try:
        return DatabaseQuery(arguments.file, arguments.query, arguments.rows_independent)
    except ValueError as error:
        raise UsageError(f"{without_passwords(arguments.file)}: {error}") from None


def run(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="dpgen schema",
        description="Draft the schema of a table. Only names and types are taken from a file of records: bounds "
        f"and categories are left as {OPEN}, for public knowledge, since those of the file would reveal records.",
    )
    parser.add_argument(
        "file",
        help=f"a file whose name ends in {KNOWN}; the URL of a database, with --query; with --from, a file of that program",
    )
    parser.add_argument("--table", help="the sheet of a workbook, or the table of a database, where there are several")
    parser.add_argument("--query", help="in SQL, where the file is the URL of a database (postgresql://ann@host/db)")
    parser.add_argument(
        "--rows-independent",
        action="store_true",
        help="declares that each row of the query depends on one record alone, where its form does not show that",
    )
    parser.add_argument("-o", dest="output", help="a new file (FILE.schema.yaml)")
    parser.add_argument(
        "--from", dest="origin", choices=_IMPORTERS, help="sdv: metadata of one table; dpsynth: a domain file, also of mbi"
    )
    parser.add_argument("--no-header", action="store_true", help="a file of text begins with a record, not with names")
    arguments = parser.parse_args(argv)
    asked = _asked(arguments)
    path = place_of(asked.system if asked else arguments.file)
    if asked is None and (not path.exists() or (arguments.origin and not path.is_file())):
        raise UsageError(f"{path}: expected a file")
    for word, given in (("--no-header", arguments.no_header), ("--table", arguments.table)):
        beside = "--from" if arguments.origin else "a URL"
        if (arguments.origin or asked) and given:
            raise UsageError(f"{word} is about a file of records: leave it out with {beside}")
    output = place_of(arguments.output) if arguments.output else path.with_name(f"{path.name.split('.')[0]}.schema.yaml")
    if output.exists():
        raise UsageError(f"-o {output}: exists already; choose another name")
    about: dict[str, Any] = {}
    try:
        if asked:
            columns = draft_of_rows(rows_of(asked))
        elif arguments.origin:
            columns = _IMPORTERS[arguments.origin](path)
        else:
            columns, about = draft_of_file(path, header=not arguments.no_header, table=arguments.table)
    except BadSchema as error:
        raise UsageError(str(error)) from None
    except BadRecords as error:
        raise UsageError(str(error).replace("rows_independent=True", "--rows-independent")) from None
    text = draft_text(columns, "a query" if asked else " ".join(path.name.split()), about, _NOTES)
    try:
        with open(output, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"-o {output}: cannot be written ({error.strerror or error})") from None
    unfilled = sum(f": {OPEN}" in line for line in text.splitlines() if not line.startswith("#"))
    print(f"{output}: {len(columns)} columns, {unfilled} lines to fill in in place of {OPEN}")
    if asked:
        where = [f"data.url={asked.url}", f"data.query={asked.query}"]
        where += ["data.rows_independent=true"] * asked.rows_independent
    else:
        where = ["data.path=FILE" if arguments.origin else written("data.path", path)]
    told = shlex.join(["dpgen", "train", "data=table", *where, written("data.schema", output), "data.n=NUMBER"])
    print(f"next, once they are filled in: {told}")
    return 0

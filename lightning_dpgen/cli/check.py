"""`dpgen check`: what a schema would refuse or move of the records of a file. The result is private; nothing is spent."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_dpgen.cli.arguments import Parser, loading
from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.specs.run import load_data_settings
from lightning_dpgen.specs.source import source_of
from lightning_dpgen.specs.usage_error import MISTAKE, OK, UsageError
from lightning_dpgen.specs.words import write_word

_HISTORIES = "data=histories"


def make_parser() -> Parser:
    parser = Parser(
        prog="dpgen check",
        description="List all that a schema would refuse or move of the records of a table, by column and share, with the "
        "likely cause. Spends nothing and writes nothing. What it prints is private. The exit status is 0 where "
        "dpgen train would go on, and 2 where it would stop.",
    )
    parser.add_argument(
        "file",
        help="the records: a file or folder, as for data.path; or the URL of a database; or data=histories, with the "
        "settings of these in the place of a schema",
    )
    parser.add_argument("schema", nargs="?", help="their schema (.yaml)")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="NAME=VALUE",
        help="settings of the data, as for dpgen train: data.outside=clamp, data.max_moved=0.1, data.person=COLUMN",
    )
    return parser


def run(argv: Sequence[str]) -> int:
    arguments = make_parser().parse_intermixed_args(argv)
    if arguments.file == _HISTORIES:
        return _check_histories([_HISTORIES, *filter(None, (arguments.schema, *arguments.settings))])
    if arguments.schema is None:
        raise UsageError(f"{arguments.file}: expected a schema behind it: dpgen check FILE SCHEMA")
    for word in (arguments.file, arguments.schema):
        if word.startswith("data."):
            raise UsageError(f"{word}: expected a file and its schema first, as in dpgen check FILE SCHEMA {word}")
    given = [word for word in arguments.settings if not word.startswith(("data.path=", "data.schema=", "data.url="))]
    if len(given) < len(arguments.settings) or any("=" not in word for word in given):
        raise UsageError("expected one file and its schema, and settings of the data after them: dpgen check FILE SCHEMA")
    place = write_word("data.url" if "://" in arguments.file else "data.path", arguments.file)
    source = source_of(load_data_settings(["data=table", place, write_word("data.schema", arguments.schema), *given]))
    source.files()
    report = source.check_table()
    assert report is not None, "a table can be checked"
    print(report)
    return OK if report.passes else MISTAKE


def _check_histories(words: Sequence[str]) -> int:
    """Read histories as a run does, and say what is left out or changed; what would be refused is an error."""
    source = source_of(load_data_settings(words))
    source.files()
    source.check_records()
    schema = source.declare()
    with loading():
        from lightning_dpgen.runs.moved import moved_lines
    records, counted = source.records(schema)
    print(f"reading (private, stays here): {say_count(len(records), source.word)}, whose histories fit the description")
    for line in moved_lines(counted, len(records)):
        print(line)
    return OK

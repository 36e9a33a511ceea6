"""`dpgen schema`: drafts of a table's schema, by the types in its file or what another program knows, and of histories."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import ne
from pathlib import Path
from typing import Any

from lightning_dpgen.cli.arguments import Parser, loading, whole_number
from lightning_dpgen.common.folders import place_of
from lightning_dpgen.common.nearest_word import suggest, suggest_file
from lightning_dpgen.common.passwords import without_passwords
from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.data.files.database import DatabaseQuery
from lightning_dpgen.data.files.kinds import KNOWN
from lightning_dpgen.data.files.rows import rows_of
from lightning_dpgen.data.histories.draft import draft_description, draft_of_table
from lightning_dpgen.data.tables.arrays import BadValue
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.importers import read_domain, read_sdv
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_advice import explained, warning_of_few, warnings_of, warnings_of_sample
from lightning_dpgen.data.tables.schema_draft import OPEN, draft_of_file, draft_of_rows, draft_text
from lightning_dpgen.data.tables.schema_file import read_leniently, read_yaml
from lightning_dpgen.data.tables.schema_keys import json_schema
from lightning_dpgen.privacy.accounting.epsilon_range import check_epsilon, gaussian_mu
from lightning_dpgen.release.files import IN_RELEASE, lies_in_release
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.data import TableSpec
from lightning_dpgen.specs.defaults import FEWEST_FOR_BINS, default_bins
from lightning_dpgen.specs.privacy import default_delta
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.specs.words import write_word

_NOTES = (
    "For dpgen train: data.person=COLUMN data.max_rows=M where a person has several records, and data.outside=clamp",
    "moves what is not listed, or beyond the bounds, which is refused otherwise. data.person loses the order of a person's",
    "records;  dpgen schema --person COLUMN FILE ...  drafts a description of histories (data=histories), which keep it.",
    "Numbers are cut into bins;  encoding: scaled  keeps one a number between low and high, for networks alone and not",
    "for model=measured. docs/reference/schema.md has all keys.",
)
_LEFT_OUT = (
    "What the file says of the bounds and values of {} columns is left out, since a program may have read it off the "
    "records; --declared-public takes it."
)
_OF_SEVERAL = 'dpgen schema --person COLUMN sqlite:///FILE --query "select ..." --query "select ..."'
_SCHEMAS = (".yaml", ".yml")
# A share that stands for the one that is to be given.
_SHARE = "data.discovery_share=0.05"
# Bins by which a sample is looked at where the schema leaves them open.
_BINS = 20
_IMPORTERS = {"sdv": read_sdv, "dpsynth": read_domain}


def _read_queries(place: str, arguments: Namespace) -> list[DatabaseQuery]:
    """Return the queries that are to be described; none where there is a file."""
    of_url = "://" in place
    if of_url != bool(arguments.query) or (arguments.rows_independent and not of_url):
        raise UsageError(f"{without_passwords(place)}: expected the URL of a database with --query, or a file without it")
    if len(arguments.query) > 1 and arguments.person is None:
        raise UsageError(f"--query {arguments.query[1]}: stands a second time: expected one, or --person COLUMN, too")
    try:
        return [DatabaseQuery(place, query, arguments.rows_independent) for query in arguments.query]
    except ValueError as error:
        raise UsageError(f"{without_passwords(place)}: {error}") from None


def make_parser() -> Parser:
    parser = Parser(
        prog="dpgen schema",
        description="Draft the schema of a table. Only names and types are taken from a file of records: bounds "
        f"and categories are left as {OPEN}, for public knowledge, since those of the file would reveal records.",
    )
    parser.add_argument(
        "files",
        metavar="file",
        nargs="*",
        help=f"a file whose name ends in {KNOWN}; the URL of a database, with --query; with --from, a file of that "
        "program; or a schema (.yaml) to check; with --person, one file or several",
    )
    parser.add_argument(
        "--person",
        metavar="COLUMN",
        help="draft a description of histories (data=histories) instead: the column that names the person of a row. The "
        "file in which each person has one row is the table of persons; all rows are read to tell what stays the same",
    )
    parser.add_argument(
        "--order",
        metavar="COLUMN",
        action="append",
        default=[],
        help="with --person: the column of times; once for each name, where tables have several",
    )
    parser.add_argument("--table", help="the sheet of a workbook, or the table of a database, where there are several")
    parser.add_argument(
        "--query",
        action="append",
        default=[],
        help="in SQL, where the file is the URL of a database (postgresql://ann@host/db); with --person one a table",
    )
    parser.add_argument(
        "--rows-independent",
        action="store_true",
        help="declares that each row of the query depends on one record alone, where its form does not show that",
    )
    parser.add_argument("-o", dest="output", help="a new file (FILE.schema.yaml, with --person FILE.histories.yaml)")
    parser.add_argument(
        "--from", dest="origin", choices=_IMPORTERS, help="sdv: metadata of one table; dpsynth: a domain file, also of mbi"
    )
    parser.add_argument(
        "--declared-public",
        action="store_true",
        help="with --from: you declare that bounds and values of that file are public, and that none was read off the "
        f"private records; they are {OPEN} otherwise",
    )
    parser.add_argument("--no-header", action="store_true", help="a file of text begins with a record, not with names")
    parser.add_argument("--explain", metavar="COLUMN", help="of a schema: what is declared of a column, and what may be")
    parser.add_argument("--n", type=whole_number, help="of a schema: the declared number of records, for warnings")
    parser.add_argument("--epsilon", type=float, help="of a schema: the budget, for warnings and refusals of a run")
    parser.add_argument(
        "--public-sample",
        metavar="FILE",
        help="of a schema: records that you declare PUBLIC, for warnings; never the private ones",
    )
    parser.add_argument(
        "--json-schema", action="store_true", help="print the JSON Schema of schema files, by which editors complete them"
    )
    return parser


def run(argv: Sequence[str]) -> int:
    arguments = make_parser().parse_intermixed_args(argv)
    if arguments.json_schema:
        print(json.dumps(json_schema(), indent=2))
        return 0
    if not arguments.files:
        raise UsageError("expected a file of records, or a schema (.yaml): dpgen schema FILE")
    if arguments.person is not None:
        return _draft_histories(arguments)
    for order in arguments.order:
        raise UsageError(f"--order {order}: orders the rows of a person: expected --person COLUMN, too")
    if len(arguments.files) > 1:
        raise UsageError(
            f"{len(arguments.files)} files: expected one; tables with the histories of persons are drafted together by "
            "dpgen schema --person COLUMN FILE FILE"
        )
    (file,) = arguments.files
    asked = next(iter(_read_queries(file, arguments)), None)
    path = place_of(asked.system if asked else file)
    if asked is None and (not path.exists() or (arguments.origin and not path.is_file())):
        raise UsageError(f"{path}: expected a file{suggest_file(path)}")
    of_schema = {"--explain": arguments.explain, "--n": arguments.n, "--epsilon": arguments.epsilon}
    of_schema["--public-sample"] = arguments.public_sample
    if asked is None and path.suffix in _SCHEMAS and arguments.origin is None:
        try:
            return _explain(path, arguments.explain) if arguments.explain is not None else _check(path, arguments)
        except (BadSchema, BadValue) as error:
            raise UsageError(str(error)) from None
    for option, value in of_schema.items():
        if value is not None:
            raise UsageError(f"{option} {value}: needs a schema, whose name ends in .yaml; {path.name} is not one")
    for word, given in (("--no-header", arguments.no_header), ("--table", arguments.table)):
        beside = "--from" if arguments.origin else "a URL"
        if (arguments.origin or asked) and given:
            raise UsageError(f"{word} applies to a file of records: leave it out with {beside}")
    if arguments.declared_public and not arguments.origin:
        raise UsageError(
            "--declared-public applies to a file of another program: leave it out without --from, since no bound or value "
            "of a file of records is taken"
        )
    output = _output(arguments, path, "schema")
    about: dict[str, Any] = {}
    notes: tuple[str, ...] = _NOTES
    try:
        if asked:
            columns = draft_of_rows(rows_of(asked))
        elif arguments.origin:
            columns = _IMPORTERS[arguments.origin](path, declared_public=arguments.declared_public)
            if left := sum(map(ne, columns, _IMPORTERS[arguments.origin](path, declared_public=True))):
                notes = (*_NOTES, _LEFT_OUT.format(left))
        else:
            columns, about = draft_of_file(path, header=not arguments.no_header, table=arguments.table)
    except BadSchema as error:
        raise UsageError(str(error)) from None
    except BadRecords as error:
        raise UsageError(str(error).replace("rows_independent=True", "--rows-independent")) from None
    text = draft_text(columns, "a query" if asked else " ".join(path.name.split()), about, notes)
    unfilled = _write(output, text)
    for column in columns:
        if not column.name:
            print(f"{path}: {column.why['type']}")
    many = sum(bool(column.name) for column in columns)
    print(f"{output}: {say_count(many, 'column')}, {unfilled}")
    for note in notes[len(_NOTES) :]:
        print(note)
    if asked:
        where = [f"data.url={asked.url}", f"data.query={asked.query}"]
        where += ["data.rows_independent=true"] * asked.rows_independent
    else:
        where = ["data.path=FILE" if arguments.origin else write_word("data.path", path)]
    if not arguments.origin:
        of_table = [asked.url, "--query", asked.query] if asked else [str(path)]
        histories = shlex.join(["dpgen", "schema", "--person", "COLUMN", *of_table])
        print(f"where a person has several records:  {histories}   # drafts histories, which keep them together")
    words = ["data=table", *where, write_word("data.schema", output), "data.n=NUMBER"]
    train_command = shlex.join(["dpgen", "train", *words])
    print("next, once they are filled in:")
    checked = shlex.join(["dpgen", "schema", str(output), "--n", "NUMBER", "--epsilon", "EPSILON"])
    print(f"  {checked}   # checks the schema, and reads no record")
    print(f"  {train_command}   # where a person has several records, add data.person=COLUMN data.max_rows=M")
    return 0


def _draft_histories(arguments: Namespace) -> int:
    """Write the draft of a description of histories."""
    refused = {
        "--from": arguments.origin, "--explain": arguments.explain, "--n": arguments.n,
        "--epsilon": arguments.epsilon, "--public-sample": arguments.public_sample,
    }  # fmt: skip
    for option, value in refused.items():
        if value is not None:
            raise UsageError(f"{option} {value}: leave it out with --person, which drafts histories from their files")
    if arguments.declared_public:
        raise UsageError("--declared-public: leave it out with --person")
    queries = _read_queries(arguments.files[0], arguments) if len(arguments.files) == 1 or arguments.query else []
    if queries and (len(arguments.files) > 1 or arguments.table or arguments.no_header):
        raise UsageError("--query: expected one URL of a database, without --table and --no-header")
    paths: list[Path] = [] if queries else [place_of(file) for file in arguments.files]
    sources: list[Path | DatabaseQuery] = [*queries, *paths]
    if arguments.table is not None and len(paths) > 1:
        raise UsageError(f"--table {arguments.table}: applies to one file: save each table as a file")
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: expected a file{suggest_file(path)}")
        if path.suffix in _SCHEMAS:
            raise UsageError(f"{path}: expected a file of records with --person, whose description is drafted")
    if twice := [path for path, count in Counter(paths).items() if count > 1]:
        raise UsageError(f"{twice[0]}: stands twice: expected each file once")
    try:
        tables = [
            draft_of_table(source, arguments.person, header=not arguments.no_header, table=arguments.table)
            for source in sources
        ]
        rows = next((one for one in tables if one.has_several), tables[0])
        output = _output(arguments, rows.source if isinstance(rows.source, Path) else Path(rows.name), "histories")
        text = draft_description(tables, arguments.person, arguments.order, output.parent)
    except BadSchema as error:
        raise UsageError(str(error)) from None
    except BadRecords as error:
        text = re.sub(r"\b(person|order)=", r"--\1 ", str(error), count=1)
        several = f"; or draft several, a query each, by {_OF_SEVERAL}" if "tables: name one" in text else ""
        raise UsageError(text.replace("rows_independent=True", "--rows-independent") + several) from None
    unfilled = _write(output, text)
    print(f"{output}: {say_count(len(tables), 'table')}, {unfilled}")
    words = ["data=histories", write_word("data.path", output), "data.n=PERSONS", "privacy.epsilon=EPSILON"]
    words += ["data.rows_independent=true"] * arguments.rows_independent
    print("next, once they are filled in:")
    print(f"  {shlex.join(['dpgen', 'budget', *words])}   # checks the description, and reads no record")
    print(f"  {shlex.join(['dpgen', 'train', *words])}")
    return 0


def _output(arguments: Namespace, path: Path, kind: str) -> Path:
    """Return the new file that a draft is written to."""
    output = place_of(arguments.output) if arguments.output else path.with_name(f"{path.name.split('.')[0]}.{kind}.yaml")
    if output.exists():
        raise UsageError(f"-o {output}: exists already; choose another name")
    if lies_in_release(output):
        raise UsageError(f"-o {output}: {IN_RELEASE}")
    return output


def _write(output: Path, text: str) -> str:
    """Write a draft, and return how much of it is to be filled in."""
    try:
        with open(output, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"-o {output}: cannot be written ({error.strerror or error})") from None
    unfilled = sum(f": {OPEN}" in line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return f"{say_count(unfilled, 'line')} to fill in in place of {OPEN}"


def _explain(path: Path, name: str) -> int:
    """Print what is declared of a column, also in a draft that is not filled in."""
    columns = read_yaml(path).get("columns")
    if not isinstance(columns, dict) or not columns:
        raise UsageError(f"{path}: expected the key columns, with the name and the declarations of each column")
    if name not in columns:
        raise UsageError(f"--explain {name}: {path.name} has no such column{suggest(name, columns)}")
    fields = columns[name] if isinstance(columns[name], dict) else {}
    try:
        print("\n".join(explained(name, fields)))
    except ValueError as error:
        raise UsageError(f"{path}: column {name}: {error}") from None
    return 0


def _check(path: Path, arguments: argparse.Namespace) -> int:
    """Print what a schema does, and all that a run would refuse, from public facts alone; return the exit status."""
    schema, problems = read_leniently(path)
    if len(problems) == 1 and arguments.epsilon is None:
        raise problems[0]
    noise, n = None, arguments.n
    if arguments.epsilon is not None:
        if not n:
            raise UsageError(f"--epsilon {arguments.epsilon:g}: needs --n, the declared number of records")
        try:
            check_epsilon(arguments.epsilon, "--epsilon")
        except ValueError as error:
            raise UsageError(str(error)) from None
        noise = 1.0 / gaussian_mu(arguments.epsilon, default_delta(n))
    for problem in problems:
        print(f"  refused: {problem}")
    if schema is None:
        many = say_count(len(problems), "problem")
        raise UsageError(f"{path}: {many}; correct what is wrong first, since too little is left without it")
    warnings = list(warnings_of(schema, n, noise))
    if noise is not None and schema.undecided(_BINS) and n / noise < FEWEST_FOR_BINS:
        text = (
            f"those left open are of equal width: {say_count(n, 'record')} at epsilon {arguments.epsilon:g} buy no others"
        )
        warnings.append(("bins", text))
    if noise is not None:
        bins = default_bins(n, arguments.epsilon, default_delta(n))
        if text := warning_of_few(schema.with_bins(bins), n, noise):
            warnings.append((f"{say_count(n, 'record')} at epsilon {arguments.epsilon:g}", text))
    refused = len(problems)
    if noise is not None:
        for refuses, text in _objections(path, schema, n, arguments.epsilon):
            refused += refuses
            if refuses:
                print(f"  refused: {text}")
            else:
                warnings.append(("dpgen train", text))
    if arguments.public_sample is not None:
        warnings += _of_sample(schema, arguments.public_sample)
    for name, text in warnings:
        print(f"  {name}: {text}")
    if refused:
        raise UsageError(f"{path}: {say_count(refused, 'problem')}, for which dpgen train would refuse it")
    of = "the schema, and the sample that you declare public" if arguments.public_sample else "the schema alone"
    many = "no warning" if not warnings else say_count(len(warnings), "warning")
    print(f"{path}: a schema of {say_count(len(schema.columns), 'column')}; {many}, from {of}")
    return 0


def _objections(path: Path, schema: TableSchema, n: int, epsilon: float) -> Iterator[tuple[bool, str]]:
    """Yield what would be said of a schema, and whether the run would be refused; no record is read.

    It is checked by the very code of a run. A cure by a setting is printed, and the rest is checked as if that were given.

    Args:
        path: its file, for messages.
    """
    with loading():
        from lightning_dpgen.kinds.tables import TableFile
        from lightning_dpgen.privacy.errors import BudgetTooSmall
        from lightning_dpgen.runs.warnings import plan_warnings
        from lightning_dpgen.specs.run import load_settings
        from lightning_dpgen.specs.settings import complete_settings
    words = ["data=table", write_word("data.schema", path), f"data.n={n}", f"privacy.epsilon={epsilon!r}"]
    if schema.open:
        names = ", ".join(column.name for column in schema.open)
        yield (
            False,
            f"what is found privately ({names}) is paid for: add {_SHARE}, or another share, to the settings of a run",
        )
        words.append(_SHARE)
    try:
        spec = load_settings(words)
        assert isinstance(spec.data, TableSpec), "data=table is one"
        settings = complete_settings(spec, TableFile(spec.data, schema=schema))
        plan = settings.plan()
    except (UsageError, BudgetTooSmall) as refusal:
        yield True, str(refusal)
        return
    if settings.choice_reason is not None and "passed over" in settings.choice_reason:
        yield False, settings.choice_reason
    for text in plan_warnings(settings, plan):
        if text is not None:
            yield False, text


def _of_sample(schema: TableSchema, name: str) -> list[tuple[str, str]]:
    if schema.open:
        raise UsageError("--public-sample: the schema leaves parts to be found privately (private); declare them first")
    place = place_of(name)
    if not place.is_file():
        raise UsageError(f"--public-sample {name}: there is no such file{suggest_file(place)}")
    decided = schema.with_bins(_BINS)
    reading = read_table(place, decided, outside="clamp")
    return list(warnings_of_sample(schema, decided, reading.encoded, reading.counted))

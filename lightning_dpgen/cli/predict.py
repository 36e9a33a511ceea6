"""`dpgen predict`: labels of records, by the classifier of a release. They are private where the records are."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_dpgen.cli.arguments import Parser, loading
from lightning_dpgen.cli.outputs import CSV, PARQUET, private_place, write_private_table
from lightning_dpgen.cli.real_records import real_source
from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.release.drawing.description import LABELLED, check_classifier, read_description, schema_in
from lightning_dpgen.release.files import NotARelease, read_certificate, release_folder
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    from lightning_dpgen.data.records import Records
    from lightning_dpgen.data.schema import Schema
    from lightning_dpgen.specs.source import Source

BANNER = "PRIVATE: predictions are functions of single records, and no certificate covers them."
# Settings of how a file is written, by which the training has read it. Rows of a person are not left out here.
_FORM = ("outside", "form", "separator", "columns", "header", "by", "day", "fit", "high")


def make_parser() -> Parser:
    parser = Parser(
        prog="dpgen predict",
        description="Write the most probable label of each record, and the probability of every label, by the classifier "
        "of a release (model=classifier, or model.label_share). The result is private where the records are.",
    )
    parser.add_argument("release", type=release_folder, help="the folder of a release, or of the run that made it")
    parser.add_argument(
        "data",
        nargs="*",
        metavar="FILE",
        help="the records, in the form that the training has read; the label may be missing, and is not looked at; also "
        "data=mnist, or data=table data.url=... for other places and forms",
    )
    parser.add_argument("-o", dest="output", required=True, help="a new .csv or .parquet file for its owner alone")
    return parser


def run(argv: Sequence[str]) -> int:
    arguments = make_parser().parse_intermixed_args(argv)
    # Mistakes are reported before the import of what classifies records.
    output = private_place(arguments.output, arguments.release, "predictions for records", (CSV, PARQUET))
    description = read_description(arguments.release)
    schema = schema_in(arguments.release, description)
    try:
        check_classifier(schema is not None and description.get(LABELLED))
    except ValueError as error:
        raise UsageError(f"{arguments.release}: {error}") from None
    certificate: dict[str, Any] = {}
    with suppress(NotARelease):  # a model can be used without its certificate
        certificate = read_certificate(arguments.release)
    source = real_source(_words(arguments.data, schema.kind), certificate, schema.kind, as_trained=_FORM)
    return _write_labels(arguments, output, source)


def _words(given: Sequence[str], kind: str) -> list[str]:
    """Return words about the data, with a file named as the program names it elsewhere."""
    files = [word for word in given if "=" not in word]
    if len(files) > 1:
        raise UsageError(f"{files[1]}: expected one file of records, and {files[0]} is already given")
    if files and (twice := [word for word in given if word.startswith("data.path=")]):
        raise UsageError(f"{twice[0]}: expected one file of records, and {files[0]} is already given")
    if not given:
        raise UsageError("expected the file of the records, as in dpgen predict RELEASE FILE -o labels.csv")
    words = [word for word in given if word not in files]
    if files and not any(word.startswith("data=") for word in words):
        words.append(f"data={kind}")
    return words + [f"data.path={file}" for file in files]


def _write_labels(arguments: Namespace, output: Path, source: Source) -> int:
    """Write the labels of records to a new file; gives the exit status."""
    with loading():
        import pyarrow as pa

        from lightning_dpgen.release.drawing.release import load_release
    release = load_release(arguments.release)
    records, counted = _read(source, release.schema)
    print(BANNER)
    for what, count in counted.items():
        print(f"reading: {what}: {count:,}")
    labels = release.predict(records)
    write_private_table(output, pa.Table.from_pandas(labels, preserve_index=False))
    print(f"{say_count(len(labels), 'label')} in {output}, each with the probabilities of all {len(labels.columns) - 1}")
    return 0


def _read(source: Source, schema: Schema) -> tuple[Records, dict[str, int]]:
    """Read records without their label, or with it where the file cannot be read otherwise."""

    plain = schema.unlabelled()
    if plain is None:
        return source.records(schema)
    try:
        return source.records(plain)
    except BadRecords as error:
        # Pictures in a folder for each class, and files of series that the label is a column of.
        try:
            return source.records(schema)
        except BadRecords:
            raise error from None

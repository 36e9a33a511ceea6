"""`dpgen encode`: codes of real records, by the encoder of a release. They are private where the records are."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_dpgen.cli.arguments import Parser, loading
from lightning_dpgen.cli.outputs import private_place, write_private_table
from lightning_dpgen.cli.real_records import real_source
from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.release.drawing.description import check_encoder, read_description, schema_in
from lightning_dpgen.release.files import NotARelease, read_certificate, release_folder
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    from lightning_dpgen.specs.source import Source

BANNER = "PRIVATE: codes are functions of single real records, and no certificate covers them; do not publish them."


def make_parser() -> Parser:
    parser = Parser(
        prog="dpgen encode",
        description="Write the codes of real records by the encoder of a release (model=vae): a row each, with the "
        "component that most probably made it. The result is private where the records are.",
    )
    parser.add_argument("release", type=release_folder, help="the folder of a release, or of the run that made it")
    parser.add_argument(
        "data",
        nargs="*",
        help="the real data: data=mnist, data=table data.path=F, data=images data.path=F ...; what describes them publicly "
        "is in the release",
    )
    parser.add_argument("-o", dest="output", required=True, help="a new .parquet file, which its owner alone may read")
    return parser


def run(argv: Sequence[str]) -> int:
    arguments = make_parser().parse_intermixed_args(argv)
    # Mistakes are reported before the import of what encodes records.
    output = private_place(arguments.output, arguments.release, "codes")
    description = read_description(arguments.release)
    try:
        check_encoder(description.get("model"))
    except ValueError as error:
        raise UsageError(f"{arguments.release}: {error}") from None
    source = None
    certificate: dict[str, Any] = {}
    with suppress(NotARelease):  # a model has an encoder without its certificate
        certificate = read_certificate(arguments.release)
    # A model without a schema is refused where it is loaded.
    if (schema := schema_in(arguments.release, description)) is not None:
        source = real_source(arguments.data, certificate, schema.kind)
    return _write_codes(arguments, output, source)


def _write_codes(arguments: Namespace, output: Path, source: Source) -> int:
    """Write the codes of records to a new file; gives the exit status."""
    with loading():
        import pyarrow as pa

        from lightning_dpgen.release.drawing.release import load_release
    release = load_release(arguments.release)
    records, counted = source.records(release.schema)
    print(BANNER)
    for what, count in counted.items():
        print(f"reading: {what}: {count:,}")
    try:
        codes = release.encode(records)
    except ValueError as error:
        raise UsageError(f"{arguments.release}: {error}") from None
    write_private_table(output, pa.Table.from_pandas(codes, preserve_index=False))
    print(f"{say_count(len(codes), 'code')} of {say_count(len(codes.columns) - 1, 'dimension')} in {output}")
    return 0

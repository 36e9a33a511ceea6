"""`dpgen encode`: codes of real records, by the encoder of a release. They are private where the records are."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lightning_dpgen.cli.arguments import Parser
from lightning_dpgen.cli.real_records import real_source
from lightning_dpgen.privacy.folders import owner_only, place_of
from lightning_dpgen.release.certificate import CERTIFICATE, NotARelease
from lightning_dpgen.release.folder import release_folder
from lightning_dpgen.release.projected import ProjectedRows
from lightning_dpgen.release.sampler import load_release
from lightning_dpgen.release.verify import read_certificate
from lightning_dpgen.specs.usage_error import UsageError

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
    output = _place(arguments.output, arguments.release)
    release = load_release(arguments.release)
    if isinstance(release, ProjectedRows):
        raise UsageError(f"{arguments.release} holds projected rows, and no encoder: expected a release of model=vae")
    certificate: dict[str, Any] = {}
    with suppress(NotARelease):  # a model has an encoder without its certificate
        certificate = read_certificate(arguments.release)
    source = real_source(arguments.data, certificate, release.schema.kind)
    records, counted = source.records(release.schema)
    print(BANNER)
    for what, count in counted.items():
        print(f"reading: {what}: {count:,}")
    try:
        codes = release.encode(records)
    except ValueError as error:
        raise UsageError(f"{arguments.release}: {error}") from None
    _write(output, pa.Table.from_pandas(codes, preserve_index=False))
    print(f"{len(codes):,} codes of {len(codes.columns) - 1} dimensions in {output}")
    return 0


def _place(name: str, release: Path) -> Path:
    """Return where codes may be written.

    Raises:
        UsageError: if they may not, as into the release, which is published.
    """
    output = place_of(name)
    if output.suffix != ".parquet":
        raise UsageError(f"-o {output}: expected a name that ends in .parquet")
    if os.path.lexists(output):
        raise UsageError(f"-o {output}: exists already; choose another name")
    if not output.parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {output.parent}")
    place = output.parent.resolve()
    if place.is_relative_to(release.resolve()) or any((own / CERTIFICATE).is_file() for own in (place, *place.parents)):
        raise UsageError(
            f"-o {output}: lies in a release, which may be published, and codes may not; choose another folder"
        )
    return output


def _write(output: Path, table: pa.Table) -> None:
    # Written beside its place and renamed, so that an interruption leaves no half file under the final name.
    part = output.with_name(f".{output.stem}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "wb", opener=owner_only) as file:
            pq.write_table(table, file, compression="zstd")
        os.replace(part, output)
    except OSError as error:
        raise UsageError(f"-o {output}: cannot be written ({error.strerror or error})") from None
    finally:
        part.unlink(missing_ok=True)

"""`dpgen sample`: synthetic records from a release, to Parquet or CSV."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lightning_dpgen.cli.arguments import Parser, whole_number
from lightning_dpgen.cli.mistake import Mistake
from lightning_dpgen.release.projected import ProjectedRows
from lightning_dpgen.release.sampler import load_release
from lightning_dpgen.release.tables import FORMATS, write_table


def run(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="dpgen sample",
        description="Draw synthetic records from a release, as many as you like: it costs no further privacy.",
    )
    parser.add_argument("release", help="the folder of a release")
    parser.add_argument("-n", type=whole_number, default=1000, help="how many records (1000)")
    parser.add_argument("-o", dest="output", default="synthetic.parquet", help="a new .parquet or .csv file")
    parser.add_argument("--seed", type=whole_number, help="makes the draw repeatable")
    try:
        arguments = parser.parse_args(argv)
    except SystemExit:
        return 0
    if arguments.seed is not None and arguments.seed >= 2**63:
        raise Mistake(f"--seed {arguments.seed}: expected a number below 2^63")
    output = Path(arguments.output)
    if output.suffix not in FORMATS:
        raise Mistake(f"-o {output}: expected a name that ends in {' or '.join(FORMATS)}")
    if output.exists():
        raise Mistake(f"-o {output}: exists already; choose another name")
    if not output.parent.is_dir():
        raise Mistake(f"-o {output}: there is no folder {output.parent}")
    release = load_release(arguments.release)
    if isinstance(release, ProjectedRows):
        raise Mistake(
            f"{arguments.release} holds projected rows, one for each record, and no model to draw from: read "
            f"{arguments.release}/projected.parquet, or use load_release in Python"
        )
    # Written beside its place and renamed, so that an interrupted draw leaves no half file under the final name.
    part = output.with_name(f".{output.stem}.part{output.suffix}")
    try:
        write_table(part, release.chunks(arguments.n, arguments.seed), release.schema.arrow)
        os.replace(part, output)
    except OSError as error:
        raise Mistake(f"-o {output}: cannot be written ({error.strerror or error})") from None
    finally:
        part.unlink(missing_ok=True)
    print(f"{arguments.n:,} synthetic records in {output}")
    return 0

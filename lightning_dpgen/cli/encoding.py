"""The command `encode` once its arguments are checked: records are read, and their codes written. Private."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pyarrow as pa

from lightning_dpgen.cli.private_table import write_private_table
from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.release.drawing.sampler import load_release
from lightning_dpgen.specs.source import Source
from lightning_dpgen.specs.usage_error import UsageError

BANNER = "PRIVATE: codes are functions of single real records, and no certificate covers them; do not publish them."


def run(arguments: Namespace, output: Path, source: Source) -> int:
    """Write the codes of records to a new file; gives the exit status."""
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

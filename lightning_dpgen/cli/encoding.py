"""The command `encode` once its arguments are checked: records are read, and their codes written. Private."""

from __future__ import annotations

import os
import secrets
from argparse import Namespace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lightning_dpgen.privacy.folders import owner_only
from lightning_dpgen.release.sampler import load_release
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
    _write(output, pa.Table.from_pandas(codes, preserve_index=False))
    print(f"{len(codes):,} codes of {len(codes.columns) - 1} dimensions in {output}")
    return 0


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

"""The command `predict` once its arguments are checked: records are read, and their labels written. Private."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pyarrow as pa

from lightning_dpgen.cli.private_table import write_private_table
from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.unlabelled import unlabelled
from lightning_dpgen.release.drawing.sampler import load_release
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.source import Source

BANNER = "PRIVATE: predictions are functions of single records, and no certificate covers them."


def run(arguments: Namespace, output: Path, source: Source) -> int:
    """Write the labels of records to a new file; gives the exit status."""
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
    plain = unlabelled(schema)
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

"""A release compared with real records. The result is private, and is written beside the release, never into it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from lightning_dpgen.common.folders import make_private, owner_only, read_plain, sync_folder
from lightning_dpgen.data.files.database import DatabaseQuery
from lightning_dpgen.data.files.text import MissingData
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.persons import bounded
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.row_sample import SAMPLED, RowSample
from lightning_dpgen.data.schema import Schema, kind_of
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.measure.label_gradients import labels_of
from lightning_dpgen.metrics.evaluation import Evaluation, evaluate_table
from lightning_dpgen.metrics.judgement import find_worst
from lightning_dpgen.metrics.measure import UNSEEN
from lightning_dpgen.metrics.sides import ROWS, Answers
from lightning_dpgen.models.labelled import LabelledNetwork
from lightning_dpgen.privacy.ledger import FILE_NAME
from lightning_dpgen.release.causes import known_causes
from lightning_dpgen.release.drawing.predictions import label_shares
from lightning_dpgen.release.drawing.release import Release, load_release
from lightning_dpgen.release.files import EVALUATION, WARNINGS, NotARelease, read_certificate, release_folder
from lightning_dpgen.release.pages.private_report import write_private_report
from lightning_dpgen.release.projected import ProjectedRows
from lightning_dpgen.sampling.errors import BadRecords

# Records of a table that are looked at where no other number is said, and the most synthetic ones that are drawn.
REAL_ROWS, MOST_ROWS = 500_000, 1_000_000
REAL_RECORDS = "real records"
BANNER = "PRIVATE: what follows is computed from real records and is not covered by the certificate; do not publish it."
REPORT = "report.html"
_LARGEST_WARNINGS = 1 << 16

# A table in memory, in a file, in a database or by its values, tables of histories by their names, or other records, which
# are encoded already.
OneTable = DatabaseQuery | pd.DataFrame | pa.Table | pa.RecordBatch | str | Path
Real = Records | Encoded | TableValues | OneTable | Mapping[str, OneTable]


def evaluate(
    release: Release | str | Path,
    records: Real,
    *,
    held_out: Real | None = None,
    synthetic: Real | None = None,
    rows: int | None = None,
    real_rows: int | None = REAL_ROWS,
    seconds: float | None = None,
    seed: int = 0,
    person: str | None = None,
    max_rows: int | None = None,
    outside: str = "refuse",
    by: str | None = None,
    sdmetrics: bool = False,
    certificate: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Evaluation:
    """Compare a release with real records. PRIVATE: no noise is in the result, and no certificate covers it.

    Args:
        release: the release, its folder, or that of the run that made it.
        records: the records that it was made from. Of a table: a DataFrame, a table of Arrow, the path of a file, a
            `DatabaseQuery`, `TableValues` or `Records` that keep them, since it is compared by its values. Of histories:
            a dict of such tables. Of any other kind `Records`, or an `Encoded` of the release's schema. Values of
            histories that keep none are drawn within their bins.
        held_out: records that it was not made from, likewise. Without any, a third of `records` is put aside, or half of
            histories; a table is compared by halves in either case.
        synthetic: of a table: records that were drawn from the release before, likewise; None to draw them here.
        rows: number of synthetic records to draw, or to take of `synthetic`, at most 1,000,000; None for as many as there
            are real ones, at most as many as are used.
        real_rows: of a table: the most real records that are looked at, and held-out ones; of more that a path, a query, a
            DataFrame or a table of Arrow has, a sample by the seed is read, which a note says, and no more than twice as
            many are in memory; None for all.
        seconds: parts that would start later than this are left out and noted, and one that can stop early does; None
            without a limit.
        seed: seed of the synthetic records, and of what the evaluation draws.
        person, max_rows: for a table: the column that names the person of a row, and the rows of a person that are used.
        outside: for a table: ``refuse`` values that the schema does not allow, or ``clamp`` them.
        by: for a table: the column whose groups are compared; None for the label.
        sdmetrics: for a table: whether SDMetrics' quality report is computed, too; it is an extra.
        certificate: that of the release, whose noise explains errors; None to read it where `release` is a folder.
        progress: told each part before it starts.

    Raises:
        BadRecords: for records that are not of the release's schema, or none at all.
        ValueError: for projected rows, or a wrong argument.
        MissingLibrary: for sdmetrics, where it is not installed.
        NotARelease, MissingData: if there is nothing at a path.

    Example:
        >>> found = evaluate("runs/mine/release", frame)                    # doctest: +SKIP
        >>> found.scores["quality"]["distance of the worst column"]         # doctest: +SKIP
        0.031
    """
    if isinstance(release, str | Path):
        with suppress(NotARelease):  # a model can be evaluated without its certificate
            certificate = certificate or read_certificate(release_folder(release))
        release = load_release(release)
    if not isinstance(release, Release):
        what = "projected rows: their report says how well distances are recovered"
        raise ValueError(what if isinstance(release, ProjectedRows) else f"release={release!r}: expected a release")
    if rows is not None and (type(rows) is not int or not 1 <= rows <= MOST_ROWS):
        raise ValueError(f"rows={rows!r}: expected a whole number from 1 to {MOST_ROWS:,}")
    schema = release.schema
    kind = kind_of(schema)
    table = kind.tabular
    if not table and (by is not None or sdmetrics or synthetic is not None):
        given = f"by={by!r}, sdmetrics={sdmetrics!r}, synthetic={synthetic!r}"
        raise ValueError(f"{given}: is only for tables, and the release is of kind {schema.kind}")
    counted, sample = Counter[str](), None if real_rows is None else RowSample(real_rows, seed)
    as_read = {"person": person, "max_rows": max_rows, "outside": outside, "sample": sample} if table else {}
    read = _values if table else _encoded
    real = read(records, schema, **as_read, **({"counted": counted} if table else {}))
    with _naming("held_out"):
        aside = None if held_out is None else read(held_out, schema, **as_read)
    for name, found in (("records", real), ("held_out", aside)):
        if found is not None and not len(found):
            raise BadRecords(f"{name} hold no record: nothing to compare with")
    count = min(len(real), ROWS) if rows is None else rows
    answers = None
    if isinstance(release.mixture.network, LabelledNetwork):
        answers = _answers(release, _classified(held_out, schema, as_read))
    asked = {"answers": answers, "seed": seed, "seconds": seconds, "progress": progress}
    if table:
        made = _drawn(release, count, seed) if synthetic is None else _given(synthetic, schema, count, seed)
        evaluation = evaluate_table(real, made, held_out=aside, by=by, sdmetrics=sdmetrics, **asked)
        if SAMPLED in counted:
            note = f"a sample of {len(real):,} by the public seed {seed}, of {counted[SAMPLED]:,} rows"
            evaluation = replace(evaluation, notes={REAL_RECORDS: note, **evaluation.notes})
    else:
        evaluation = kind.evaluate(release, real, aside, count, **asked)
    names = [names for apart in find_worst(evaluation) for _, names, *_ in apart]
    causes = known_causes(release.mixture, certificate or {}, real, names) if table else {}
    return replace(evaluation, causes=causes, private=release.private)


def write_evaluation(
    folder: Path, evaluation: Evaluation, *, data: str, facts: dict[str, Any], counted: Mapping[str, int] | None = None
) -> None:
    """Write an evaluation as JSON and as a page, both of which say that they are private.

    Args:
        folder: a private one, made if it is not there; its owner alone may read it from then on.
        data: the real records, in words.
        facts: facts about the release, such as its epsilon.
        counted: what was changed or left out where the records were read, and how often.
    """
    make_private(folder, FILE_NAME, EVALUATION)
    page, text = folder / f".{REPORT}.part", folder / f".{EVALUATION}.part"
    try:
        write_private_report(
            page, evaluation, title=data, facts=facts, counted=counted, warnings=_warnings(folder / WARNINGS)
        )
        told = {"warning": BANNER, "data": data, **facts, "reading": dict(counted or {}), **evaluation.as_json()}
        with open(text, "w", encoding="utf-8", opener=owner_only) as file:
            file.write(json.dumps(told, indent=2) + "\n")
        # Both belong to one evaluation: this one, or the one before.
        os.replace(page, folder / REPORT)
        os.replace(text, folder / EVALUATION)
        sync_folder(folder)
    finally:
        page.unlink(missing_ok=True)
        text.unlink(missing_ok=True)


def _warnings(path: Path) -> list[str]:
    """Return what the run beside a release has warned of because of its records; none where it has kept nothing."""
    try:
        content = json.loads(read_plain(path, _LARGEST_WARNINGS))
    except (OSError, ValueError):
        return []
    return [text for text in content if isinstance(text, str)] if isinstance(content, list) else []


def _answers(release: Release, held_out: Encoded | None) -> Answers:
    """Ask the classifier of a release for the labels of held-out records."""
    if held_out is None:
        return UNSEEN.reason
    return label_shares(release.mixture, held_out), labels_of(held_out, release.schema.layout)


@contextmanager
def _naming(argument: str) -> Iterator[None]:
    """Name the argument in the errors of its records."""
    try:
        yield
    except (MissingData, BadRecords) as error:
        kind = MissingData if isinstance(error, MissingData) else BadRecords
        raise kind(f"{argument}: {error}") from None


def _drawn(release: Release, count: int, seed: int) -> TableValues:
    return TableValues.joined([TableValues.of(batch, release.schema) for batch in release.sample_blocks(count, seed)])


def _given(synthetic: Real, schema: Schema, count: int, seed: int) -> TableValues:
    """Return a sample of records that were drawn before."""
    with _naming("synthetic"):
        # One record is of one person.
        values = _values(synthetic, schema, person=None, max_rows=None, outside="refuse", sample=RowSample(count, seed))
    if not len(values):
        raise BadRecords("synthetic holds no record: nothing to compare with")
    return values


def _classified(records: Real | None, schema: Schema, as_read: Mapping[str, Any]) -> Encoded | None:
    """Return records as the classifier sees them, all those of a person; None for none, or for values of a table alone."""
    if records is None or isinstance(records, TableValues):
        return None
    if isinstance(records, Records | Encoded):
        return records.encoded if isinstance(records, Records) else records
    return read_table(records, schema, **{name: of for name, of in as_read.items() if name != "max_rows"}).encoded


def _encoded(records: Real, schema: Schema) -> Records:
    if isinstance(records, Records):
        if records.schema != schema:
            raise BadRecords("the records are of another schema than the release: encode them by release.schema")
        return records
    if isinstance(records, Encoded):
        return Records(schema, records)
    if isinstance(records, Mapping):
        return kind_of(schema).read_tables(records, schema)
    raise BadRecords(
        f"records are a {type(records).__name__}, and the release is of kind {schema.kind}: expected Records, or an "
        "Encoded of release.schema"
    )


def _values(
    records: Real,
    schema: Schema,
    *,
    person: str | None,
    max_rows: int | None,
    outside: str,
    sample: RowSample | None,
    counted: Counter[str] | None = None,
) -> TableValues:
    if isinstance(records, TableValues):
        if records.schema != schema:
            raise BadRecords("the records are of another schema than the release: read them by release.schema")
        return records
    if isinstance(records, Records) and records.values is not None:
        return _values(records.values, schema, person=person, max_rows=max_rows, outside=outside, sample=sample)
    if isinstance(records, Records | Encoded):
        article = "an" if isinstance(records, Encoded) else "a"
        raise BadRecords(
            f"records are {article} {type(records).__name__}, which holds bins in place of values: expected the table "
            "itself, as a DataFrame, an Arrow table or the path of a file"
        )
    if (person is None) != (max_rows is None):
        raise ValueError(f"person={person!r} with max_rows={max_rows!r}: expected both, or neither")
    reading = read_table(records, schema, outside=outside, person=person, values=True, sample=sample)
    if counted is not None:
        counted.update(reading.counted)
    if person is None:
        return reading.values
    return reading.values[bounded(reading.encoded, reading.persons, max_rows)]

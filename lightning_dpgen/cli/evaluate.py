"""`dpgen evaluate`: compare a release with real data. What it prints and writes is computed from real records."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from lightning_dpgen.cli import kinds
from lightning_dpgen.cli.arguments import Parser, whole_number
from lightning_dpgen.cli.mistake import Mistake
from lightning_dpgen.cli.settings import read_settings
from lightning_dpgen.data.records import Records
from lightning_dpgen.metrics.labels import LabelDistance, TrainOnSynthetic
from lightning_dpgen.metrics.moments import MomentDistance
from lightning_dpgen.release.projected import ProjectedRows
from lightning_dpgen.release.sampler import Release, load_release

BANNER = "PRIVATE: what follows is computed from real records and is not covered by the certificate; do not publish it."
_CLASSIFIER_ROWS = 20_000


def run(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="dpgen evaluate",
        description="Compare a release with real data. The result is private: it is written beside the release, into "
        "private/, and never into it.",
    )
    parser.add_argument("release", help="the folder of a release")
    parser.add_argument("data", nargs="*", help="the real data, as for train: data=mnist, data=images data.path=F ...")
    parser.add_argument("--seed", type=whole_number, default=0, help="of the synthetic records drawn (0)")
    try:
        arguments = parser.parse_args(argv)
    except SystemExit:
        return 0
    release = load_release(arguments.release)
    if isinstance(release, ProjectedRows):
        raise Mistake(f"{arguments.release} holds projected rows: its report says how well distances are recovered")
    conf = read_settings([*arguments.data, "privacy=off"]).conf.data
    schema = release.schema
    real, _ = kinds.records_of(conf, schema)
    held_out = kinds.records_of(conf, schema, held_out=True)[0] if kinds.KINDS[conf.source].held_out else None
    if not len(real):
        raise Mistake("the real data hold no record: nothing to compare with")
    scores = compare(release, real, held_out, seed=arguments.seed)
    text = json.dumps({"warning": BANNER, "data": conf.source, **scores}, indent=2)
    output = Path(arguments.release).resolve().parent / "private" / "evaluation.json"
    try:
        output.parent.mkdir(mode=0o700, exist_ok=True)
        output.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise Mistake(f"{output}: cannot be written ({error.strerror})") from None
    print(BANNER)
    for name, value in scores.items():
        print(f"  {name:<44}{value:.4f}")
    print(f"written to {output}")
    return 0


def compare(release: Release, real: Records, held_out: Records | None, *, seed: int) -> dict[str, float]:
    """Scores of as many synthetic records as there are real ones; keys say what they are. Private."""
    layout = real.schema.layout
    synthetic = Records(real.schema, release.encoded(len(real), seed))
    moments = MomentDistance(layout.units)
    for records, is_real in ((real, True), (synthetic, False)):
        for rows in _written(records):
            moments.update(rows[:, : layout.units], real=is_real)
    distances = moments.compute()
    scores = {
        "pixel means, rms difference": float(distances["means"]),
        "pixel covariances, rms difference": float(distances["covariances"]),
    }
    if layout.label is not None:
        labels = LabelDistance(layout.groups[layout.label])
        labels.update(_labels(real), real=True)
        labels.update(_labels(synthetic), real=False)
        scores["labels, total variation"] = float(labels.compute())
        if held_out is not None:
            scores["accuracy on held-out, trained on synthetic"] = _accuracy(synthetic, held_out)
            scores["accuracy on held-out, trained on real"] = _accuracy(real, held_out)
    return scores


def _written(records: Records) -> list[torch.Tensor]:
    return [records.take(rows) for rows in np.array_split(np.arange(len(records)), max(1, len(records) // 4096))]


def _labels(records: Records) -> torch.Tensor:
    return torch.from_numpy(records.encoded.codes[:, records.schema.layout.label].astype(np.int64))


def _accuracy(train: Records, test: Records) -> float:
    units, metric = train.schema.layout.units, TrainOnSynthetic()
    rows = np.arange(min(len(train), _CLASSIFIER_ROWS))
    metric.update(train.take(rows)[:, :units], _labels(train)[: len(rows)], test=False)
    metric.update(test.take(np.arange(len(test)))[:, :units], _labels(test), test=True)
    with warnings.catch_warnings():
        # A classifier that has not fully converged after 200 rounds is part of the protocol.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return float(metric.compute())

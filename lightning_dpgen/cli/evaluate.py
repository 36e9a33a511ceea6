"""`dpgen evaluate`: compare a release with real data. What it prints and writes is computed from real records."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from sklearn.exceptions import ConvergenceWarning

from lightning_dpgen.cli.arguments import Parser, whole_number
from lightning_dpgen.cli.mistake import Mistake
from lightning_dpgen.cli.settings import read_settings
from lightning_dpgen.data.records import Records, encode_images
from lightning_dpgen.data.sources import load
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
    real = load(conf.source, schema, path=conf.path)
    held_out = None if conf.source == "images" else load(conf.source, schema, held_out=True)
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
    schema = real.schema
    chunks = [_encoded(rows, schema) for rows in release.chunks(len(real), seed)]
    synthetic = Records(schema, torch.cat([chunk.encoded for chunk in chunks]))
    moments = MomentDistance(schema.pixels)
    moments.update(real.pixels, real=True)
    moments.update(synthetic.pixels, real=False)
    distances = moments.compute()
    scores = {
        "pixel means, rms difference": float(distances["means"]),
        "pixel covariances, rms difference": float(distances["covariances"]),
    }
    if schema.classes:
        labels = LabelDistance(schema.classes)
        labels.update(real.labels, real=True)
        labels.update(synthetic.labels, real=False)
        scores["labels, total variation"] = float(labels.compute())
        if held_out is not None:
            scores["accuracy on held-out, trained on synthetic"] = _accuracy(synthetic, held_out)
            scores["accuracy on held-out, trained on real"] = _accuracy(real, held_out)
    return scores


def _encoded(rows, schema) -> Records:
    """Synthetic rows, encoded as records: binary pixels are 0 and 1 already."""
    plain = type(schema)(schema.height, schema.width, schema.out_levels, schema.classes)
    return encode_images(rows[:, : schema.pixels], rows[:, -1] if schema.classes else None, plain)


def _accuracy(train: Records, test: Records) -> float:
    metric = TrainOnSynthetic()
    metric.update(train.pixels[:_CLASSIFIER_ROWS], train.labels[:_CLASSIFIER_ROWS], test=False)
    metric.update(test.pixels, test.labels, test=True)
    with warnings.catch_warnings():
        # A classifier that has not fully converged after 200 rounds is part of the protocol.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return float(metric.compute())

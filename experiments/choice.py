"""The best model for each kind of records, size and budget: the table by which `model=auto` chooses.

    python experiments/choice.py FOLDER [--kinds table,baskets] [--write]

Records are simulated, or public pictures (Fashion-MNIST); none of them are those of the league table. Each candidate of
`specs/model_choice.py` is trained by `dpgen train` with its defaults on half of them, with a label and without, at
several epsilons. What it makes is scored against the other half: with a label by the accuracy of a random forest that was
trained on it, over that of one trained on the first half; without one by the mean of two scores from 0 to 1: how little
gradient boosting tells synthetic from real records, and how near their second moments are; of baskets by how near to 0 the
mean relative error of queries is that count baskets with all of a few items. What has been computed is kept in FOLDER;
--write puts the means over seeds into the package (`lightning_dpgen/specs/model_choice.json`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from kept import Kept
from simulated_baskets import simulate

from lightning_dpgen.api import schema_of
from lightning_dpgen.cli.main import main as dpgen
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.metrics.counting_queries import CountingQueryError, queries_together
from lightning_dpgen.metrics.detection import detection
from lightning_dpgen.metrics.train_on_synthetic import train_on_synthetic
from lightning_dpgen.release.sampler import load_release
from lightning_dpgen.specs import model_choice as choice
from lightning_dpgen.specs.defaults import strength_of

N = 10_000
EPSILONS, DELTA = (0.3, 1.0, 4.0, 16.0), 1e-5
FOREST = "random forest"


def table(label: bool, random: np.random.Generator) -> tuple[Schema, Encoded]:
    """Draw twelve columns of 2 to 10 categories that depend on eight hidden kinds; a label by a nonlinear score."""
    sizes, kinds = [2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 10], 8
    kind = random.integers(0, kinds, 2 * N)
    columns = []
    for size in sizes:
        shares = random.dirichlet(np.full(size, 0.4), kinds)
        columns.append((shares[kind].cumsum(axis=1) < random.random((2 * N, 1))).sum(axis=1).clip(max=size - 1))
    codes = np.stack(columns, axis=1)
    own, pairs = [random.normal(size=size) for size in sizes], random.normal(size=(4, 10, 10))
    score = sum(weights[column] for weights, column in zip(own, columns, strict=True))
    score = score + sum(2.0 * p[columns[i], columns[11 - i]] for i, p in enumerate(pairs))
    answer = random.random(2 * N) < 1.0 / (1.0 + np.exp(-1.5 * (score - np.median(score))))
    fields = {f"a{i}": {"type": "category", "values": [f"v{v}" for v in range(size)]} for i, size in enumerate(sizes)}
    if label:
        fields["y"] = {"type": "boolean"}
        codes = np.column_stack([codes, answer])
    schema = schema_of({"columns": fields, **({"label": "y"} if label else {})}).completed(10)
    return schema, Encoded(np.zeros((2 * N, 0), np.float32), codes.astype(np.uint8))


def baskets(label: bool, random: np.random.Generator) -> tuple[Schema, Encoded]:
    """Draw riders of a simulated network; the label says if a basket leans to the first or the last lines."""
    units = simulate("transit", 2 * N, int(random.integers(1 << 30)))
    units = scipy.sparse.csr_array(units)
    schema = BasketSchema(tuple(range(units.shape[1])), 57, ("a", "b") if label else ())
    towards = units @ np.where(random.random(units.shape[1]) < 0.5, 1.0, -1.0)
    return schema, schema.encode(units, (towards > 0).astype(np.int64) if label else None)


def series(label: bool, random: np.random.Generator) -> tuple[Schema, Encoded]:
    """Draw days of 48 half hours: a base, one or two peaks that move, and noise; the label is the number of peaks."""
    hours, peaks = np.arange(48), random.integers(1, 3, 2 * N)
    first, second = random.normal(16, 2, 2 * N), random.normal(36, 3, 2 * N)
    height = random.gamma(4.0, 0.08, (2, 2 * N))
    values = 0.15 + 0.05 * random.random((2 * N, 1)) + 0.03 * random.normal(size=(2 * N, 48))
    for at, high, there in ((first, height[0], peaks > 1), (second, height[1], peaks > 0)):
        values += (there * high)[:, None] * np.exp(-0.5 * np.square((hours - at[:, None]) / 3.0))
    schema = SeriesSchema(48, low=0.0, high=1.0, classes=("one", "two") if label else ())
    codes = (peaks - 1)[:, None] if label else np.zeros((2 * N, 0))
    return schema, Encoded(values.clip(0.0, 1.0).astype(np.float32), codes.astype(np.uint8))


def images(label: bool, random: np.random.Generator) -> tuple[Schema, Encoded]:
    """Draw public pictures of clothes."""
    source = public_set("fashion_mnist").schema
    own = load_public_set("fashion_mnist", source, held_out=False).encoded[random.permutation(60_000)[: 2 * N]]
    schema = ImageSchema(28, 28, levels=255, classes=10 if label else 0)
    return schema, Encoded(own.units, own.codes if label else own.codes[:, :0])


KINDS: dict[str, Callable[[bool, np.random.Generator], tuple[Schema, Encoded]]] = {
    "table": table, "baskets": baskets, "series": series, "images": images,
}  # fmt: skip


def given(kind: str, label: bool, seed: int) -> tuple[Schema, Encoded]:
    """Return the first half, as `dpgen train data=own` asks for it."""
    schema, encoded = KINDS[kind](label, np.random.default_rng([seed, label]))
    return schema, encoded[np.arange(N)]


def score(schema: Schema, made: Encoded, train: Encoded, test: Encoded) -> float:
    """Return a score from 0 (or the score of a guess) to 1."""
    if schema.layout.label is not None:
        of = [train_on_synthetic(own, test, schema.layout, classifiers=[FOREST]) for own in (made, train)]
        return of[0][f"{FOREST}, accuracy"] / of[1][f"{FOREST}, accuracy"]
    if isinstance(schema, BasketSchema):
        asked = CountingQueryError(queries_together(test.units, np.random.default_rng(0)))
        asked.update(test.units, real=True)
        asked.update(made.units, real=False)
        return max(0.0, 1.0 - float(asked.errors()["all"].mean()))
    ours, theirs = (_moments(schema, own) for own in (made, test))
    far = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    return 0.5 * (1.0 - detection(test, made, schema.layout)["detected"]) + 0.5 * max(0.0, 1.0 - far)


def _moments(schema: Schema, encoded: Encoded) -> np.ndarray:
    """Return covariances of all numbers of records."""
    rows = Records(schema, encoded).take(np.arange(len(encoded))).double().numpy()
    return np.cov(rows.T)


def cell(folder: Path, kind: str, label: bool, epsilon: float, candidate: str, seed: int) -> dict[str, float]:
    """Train one candidate, and score it."""
    schema, encoded = KINDS[kind](label, np.random.default_rng([seed, label]))
    run = folder / f"{kind}.{label}.{epsilon:g}.{candidate}.{seed}"
    settings = [f"model={candidate}"]
    start = time.perf_counter()
    if not (run / "release").is_dir():
        options = f"{{kind: {kind}, label: {str(label).lower()}, seed: {seed}}}"
        status = dpgen(
            ["train", "data=own", "data.target=choice.given", f"data.options={options}", f"data.n={N}", *settings,
             f"privacy.epsilon={epsilon:g}", f"privacy.delta={DELTA:g}", f"seed={seed}", "rows=0", "trainer.threads=1",
             f"run_dir={run}"]
        )  # fmt: skip
        if status:
            raise SystemExit(status)
    seconds = time.perf_counter() - start
    made = load_release(run / "release").encoded(N, seed)
    return {"score": score(schema, made, encoded[np.arange(N)], encoded[np.arange(N, 2 * N)]), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--candidates", default=",".join(choice.CANDIDATES))
    parser.add_argument("--epsilons", default=",".join(f"{epsilon:g}" for epsilon in EPSILONS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="put the means into the package")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept, trials = Kept(asked.folder / "choice.json"), []
    for epsilon in map(float, asked.epsilons.split(",")):
        for kind in asked.kinds.split(","):
            for label in (True, False):
                scores = {}
                for candidate in asked.candidates.split(","):
                    found = []
                    for seed in range(asked.seeds):
                        about = {"kind": kind, "label": label, "epsilon": epsilon, "candidate": candidate, "seed": seed}
                        found.append(kept.get(about, lambda about=about: cell(asked.folder, **about)))
                    scores[candidate] = round(float(np.mean([own["score"] for own in found])), 3)
                schema = KINDS[kind](label, np.random.default_rng([0, label]))[0]
                trials.append(
                    {"kind": kind, "label": label, "width": schema.layout.width,
                     "strength": round(strength_of(N, epsilon, DELTA)), "scores": scores}
                )  # fmt: skip
                print(trials[-1], flush=True)
    if asked.write:
        choice.TABLE.write_text(json.dumps(trials, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    # `data.target` imports this file by its name.
    sys.path.insert(0, str(Path(__file__).parent))
    main()

"""The best model for each kind of records, size and budget: the table by which `model=auto` chooses.

    python -m experiments.league.choice FOLDER [--names towns,sales,riders] [--epsilons 1,8] [--write]

Records are simulated (tables: `choice_tables.py`), or public pictures (Fashion-MNIST); none of them are those of the
league table. Each candidate of `specs/defaults.py` is trained by `dpgen train` with its defaults on half of them. What
it makes is scored against the other half.

Tables are files with a schema of bounds and values. A score is the mean of two or three parts, each of which is 1 for other
real rows, and 0 where nothing was learned:

* the label, if there is one: how well a random forest that was trained on what was made tells it (AUC of two values,
  accuracy of more), beyond a guess;
* pairs: how much nearer pairs of columns are to real ones, by their mean total variation on bins at quantiles of real rows,
  than those of columns drawn independently. It is left out where no two columns go together;
* detection: how little gradient boosting tells synthetic from real rows.

Some tables, Adult and Mushroom among them, are held out: no trial of theirs is in the table that ships. The rule is judged
by them, and by each other table without trials of its own: by its regret, which is the best score less that of the model
that it takes.

Baskets, series and pictures are scored, with a label, by the accuracy of a random forest that was trained on what was made,
over that of one trained on the first half; without one by the mean of two scores from 0 to 1: how little gradient boosting
tells synthetic from real records, and how near their second moments are; of baskets by how near to 0 the mean relative
error of queries is that count baskets with all of a few items.

What has been computed is kept in FOLDER; --write puts the means over seeds into the package
(`lightning_dpgen/specs/model_choice.json`), in place of earlier trials of the same names. DPGEN_DATA names the folder of
the public sets.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch

from experiments.common.arguments import read_count
from experiments.common.kept import Kept
from experiments.common.training import train
from experiments.league.choice_tables import TABLES
from experiments.league.everyday_tables import pair_distances
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.simulated.baskets import draw_baskets
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.baskets import CountingQueryError, queries_together
from lightning_dpgen.metrics.classifiers import detection, train_on_synthetic
from lightning_dpgen.metrics.summaries import QuantileBins, binned, quantile_bins
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.specs import defaults
from lightning_dpgen.specs.defaults import strength_of

# The number of records other than tables.
N = 10_000
EPSILONS, DELTA = (1.0, 8.0), 1e-5
FOREST = "random forest"
# Pairs of columns go together where they are so much farther from independent ones than from real ones.
TOGETHER = 0.01


def baskets(label: bool, random: np.random.Generator) -> tuple[Schema, Encoded]:
    """Draw riders of a simulated network; the label says if a basket leans to the first or the last lines."""
    units = draw_baskets("transit", 2 * N, seed=int(random.integers(1 << 30)))
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
    "baskets": baskets, "series": series, "images": images,
}  # fmt: skip
# Their trials: kinds of records by name.
NAMES = {"riders": "baskets", "days": "series", "clothes": "images"}


def given(kind: str, label: bool, seed: int) -> tuple[Schema, Encoded]:
    """Return the first half, as `dpgen train data=own` asks for it."""
    schema, encoded = KINDS[kind](label, np.random.default_rng([seed, label]))
    return schema, encoded[np.arange(N)]


def score(schema: Schema, made: Encoded, train: Encoded, test: Encoded) -> float:
    """Return a score of records other than tables, from 0 (or the score of a guess) to 1."""
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
    """Train one candidate on records other than tables, and score it."""
    schema, encoded = KINDS[kind](label, np.random.default_rng([seed, label]))
    options = f"{{kind: {kind}, label: {str(label).lower()}, seed: {seed}}}"
    data = ["data=own", "data.target=experiments.league.choice.given", f"data.options={options}", f"data.n={N}"]
    run, seconds = trained(folder / f"{kind}.{label}.{epsilon:g}.{candidate}.{seed}", data, epsilon, candidate, seed)
    made = load_release(run / "release").sample_encoded(N, seed)
    return {"score": score(schema, made, encoded[np.arange(N)], encoded[np.arange(N, 2 * N)]), "seconds": seconds}


def trained(run: Path, data: list[str], epsilon: float, candidate: str, seed: int) -> tuple[Path, float]:
    """Train one candidate, and return its folder and the seconds that this took."""
    start = time.perf_counter()
    budget = [f"privacy.epsilon={epsilon:g}", f"privacy.delta={DELTA:g}"]
    train(run, [*data, f"model={candidate}", *budget, f"seed={seed}", "rows=0", "trainer.threads=1"])
    return run, time.perf_counter() - start


class Halves:
    """The rows of a table that models learn from, and other ones with which what is made is compared."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.trial, self.seed = name, TABLES[name], seed
        # Values are compared, so bins do not matter.
        self.schema = parse_schema(self.trial.schema).with_bins(2)

    @cached_property
    def rows(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Those that are learned from, and others."""
        drawn = self.trial.table.draw(2 * self.trial.n, self.seed)
        return drawn[: self.trial.n], drawn[self.trial.n :]

    def values(self, frame: pd.DataFrame) -> TableValues:
        """Return rows as numbers and codes."""
        return read_table(frame, self.schema, outside="clamp", values=True).values

    @cached_property
    def sides(self) -> tuple[TableValues, TableValues]:
        """The rows as numbers and codes."""
        learned, others = map(self.values, self.rows)
        return learned, others

    @cached_property
    def bins(self) -> dict[str, QuantileBins]:
        """Bins at quantiles of the rows that are learned from."""
        return quantile_bins(self.sides[0])

    def measures(self, made: TableValues) -> dict[str, float]:
        """Return how rows compare with the others."""
        others, found, label = self.sides[1], {}, self.schema.label
        (ours, layout), (theirs, _) = (binned(values, self.bins) for values in (made, others))
        if label is not None:
            layout = replace(layout, label=[column.name for column in self.schema.recorded].index(label))
            found = train_on_synthetic(ours, theirs, layout, classifiers=[FOREST])
        detected = detection(theirs, ours, layout)["detected"]
        return found | {"detected": detected, "pairs": float(np.mean([*pair_distances(others, made).values()]))}

    @cached_property
    def limits(self) -> dict[str, float]:
        """The same of the rows that are learned from, and the distance of pairs of their columns drawn independently."""
        random = np.random.default_rng(self.seed)
        shuffled = self.values(pd.DataFrame({name: random.permutation(own) for name, own in self.rows[0].items()}))
        independent = float(np.mean([*pair_distances(self.sides[1], shuffled).values()]))
        real = {f"real {name}": value for name, value in self.measures(self.sides[0]).items()}
        return real | {"independent": independent}

    def cell(self, folder: Path, epsilon: float, candidate: str) -> dict[str, float]:
        """Train one candidate, and return what its score is made of."""
        n, run = self.trial.n, folder / f"{self.name}.{epsilon:g}.{candidate}.{self.seed}"
        file, described = Path(f"{run}.csv"), Path(f"{run}.schema.yaml")
        self.rows[0].to_csv(file, index=False)
        described.write_text(self.trial.schema, encoding="utf-8")
        data = ["data=table", f"data.path={file}", f"data.schema={described}", f"data.n={n}"]
        run, seconds = trained(run, data, epsilon, candidate, self.seed)
        release = load_release(run / "release")
        measures = self.measures(self.values(release.table(n, self.seed).to_pandas()))
        return measures | self.limits | {"seconds": seconds, "width": release.schema.layout.width}


def table_score(cell: dict[str, float]) -> float:
    """Return the score of what was made of a table."""
    parts = [1.0 - cell["detected"]]
    if f"{FOREST}, accuracy" in cell:
        name, guess = f"{FOREST}, AUC", 0.5
        if name not in cell:
            name, guess = f"{FOREST}, accuracy", cell["real commonest label, accuracy"]
        parts.append((cell[name] - guess) / (cell[f"real {name}"] - guess))
    together = cell["independent"] - cell["real pairs"]
    if together > TOGETHER:
        parts.append((cell["independent"] - cell["pairs"]) / together)
    return float(np.mean(np.clip(parts, 0.0, 1.0)))


def table_trial(kept: Kept, name: str, epsilon: float, candidates: list[str], seeds: int) -> dict[str, Any]:
    """Return the trial of a table; its width is that of the bins that the first candidate has found."""
    halves = [Halves(name, seed) for seed in range(seeds)]
    cells = {}
    for own, candidate in itertools.product(halves, candidates):
        about = {"name": name, "epsilon": epsilon, "candidate": candidate, "seed": own.seed}
        cells[own.seed, candidate] = kept.get(about, partial(own.cell, kept.path.parent, epsilon, candidate))
    scores = {candidate: [table_score(cells[own.seed, candidate]) for own in halves] for candidate in candidates}
    shape = {"kind": "table", "label": halves[0].schema.label is not None, "width": cells[0, candidates[0]]["width"]}
    return trial(name, shape, halves[0].trial.n, epsilon, scores)


def other_trial(kept: Kept, name: str, label: bool, epsilon: float, candidates: list[str], seeds: int) -> dict[str, Any]:
    """Return a trial of other records."""
    kind, scores = NAMES[name], {}
    for candidate in candidates:
        about = {"kind": kind, "label": label, "epsilon": epsilon, "candidate": candidate}
        every = [about | {"seed": seed} for seed in range(seeds)]
        scores[candidate] = [kept.get(own, partial(cell, kept.path.parent, **own))["score"] for own in every]
    width = KINDS[kind](label, np.random.default_rng([0, label]))[0].layout.width
    return trial(name, {"kind": kind, "label": label, "width": width}, N, epsilon, scores)


def trial(name: str, shape: dict[str, Any], n: int, epsilon: float, scores: dict[str, list[float]]) -> dict[str, Any]:
    """Return a trial as the table that ships has it."""
    means = {candidate: round(float(np.mean(own)), 3) for candidate, own in scores.items()}
    return {"name": name, **shape, "strength": round(strength_of(n, epsilon, DELTA)), "scores": means}


def judge(trials: list[dict[str, Any]]) -> None:
    """Print what the rule takes for tables by trials of others, what it loses, and what always taking the first does."""
    always, lost = defaults.CANDIDATES[0], {False: [], True: []}
    for own in trials:
        table, scores = TABLES[own["name"]], own["scores"]
        others = [other for other in trials if other["name"] != own["name"] and other["label"] == own["label"]]
        if others := [other for other in others if not TABLES[other["name"]].held_out]:
            (took, *_), best = defaults.judged_by(own, others)[0], max(scores.values())
            lost[table.held_out].append((best - scores[took], best - scores[always]))
            print(f"{own['name']}, {own['strength']:,}: took {took}, {best - scores[took]:.3f} below the best of {scores}")
    for held_out, regrets in lost.items():
        if regrets:
            rule, first = np.mean(regrets, axis=0)
            print(f"{'held out' if held_out else 'left out in turn'}: regret {rule:.4f}; of {always} alone {first:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", default=",".join([*TABLES, *NAMES]))
    parser.add_argument("--candidates", default=",".join(defaults.CANDIDATES))
    parser.add_argument("--epsilons", default=",".join(f"{epsilon:g}" for epsilon in EPSILONS))
    parser.add_argument("--seeds", type=read_count, default=1)
    parser.add_argument("--write", action="store_true", help="put the means into the package")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept, trials = Kept(asked.folder / "choice.json"), []
    names, candidates = asked.names.split(","), asked.candidates.split(",")
    for epsilon, name in itertools.product(map(float, asked.epsilons.split(",")), names):
        if name in TABLES:
            trials.append(table_trial(kept, name, epsilon, candidates, asked.seeds))
        else:
            trials += [other_trial(kept, name, label, epsilon, candidates, asked.seeds) for label in (True, False)]
        print(trials[-1], flush=True)
    judge([own for own in trials if own["name"] in TABLES])
    if asked.write:
        earlier = [own for own in json.loads(defaults.TABLE.read_text(encoding="utf-8")) if own["name"] not in names]
        ships = [own for own in trials if own["name"] not in TABLES or not TABLES[own["name"]].held_out]
        lines = ",\n".join(json.dumps(own) for own in [*ships, *earlier])
        defaults.TABLE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()

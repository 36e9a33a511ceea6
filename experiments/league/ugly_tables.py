"""Learn tables that are as ugly as those of offices, with public bounds and nothing else declared.

    python -m experiments.league.ugly_tables FOLDER [--epsilon 3] [--runs 3] [--constraints] [TABLE ...]

Each of four made-up tables of 20,000 rows (`made_up_tables.py`) is learned with the default settings. Printed are, beside
the same for real halves where it has a meaning: the accuracy of a forest on other real rows, balanced; the AUC of boosted
trees that tell rows apart by raw values; the largest Kolmogorov-Smirnov distance of a column of numbers; the mean total
variation of triples of columns on common bins; the largest share of rows that break a rule that all real rows keep; and
seconds of processor from file to release. With --constraints the rules are declared in the schema, and a stay as
a distance between dates.
"""

from __future__ import annotations

import argparse
import itertools
import re
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.common.arguments import read_count, read_positive
from experiments.common.kept import Kept
from experiments.common.training import train
from experiments.league.made_up_tables import TABLES, MadeUp
from experiments.league.paid_bins import scores

ROWS, TRIPLES = 20_000, 40
# A missing number is a value of its own, beyond all others.
_MISSING = -1e6


def in_numbers(frame: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """Return columns in the order of another table, dates as days, and missing numbers as a number."""
    found = frame[list(like)].copy()
    for name in found:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", str(like[name].iloc[0])):
            found[name] = pd.to_datetime(found[name].astype(str)).astype("datetime64[s]").astype("int64") / 86_400
        if pd.api.types.is_numeric_dtype(found[name]):
            found[name] = found[name].astype(float).fillna(_MISSING)
    return found


def triples(real: pd.DataFrame, made: pd.DataFrame, seed: int) -> float:
    """Return the mean total variation of triples of columns, numbers in eight bins by quantiles of real ones at most."""
    codes = []
    for name in real:
        if real[name].dtype == float:
            cuts = np.unique(np.quantile(real[name], np.arange(1, 8) / 8))
            codes.append([np.searchsorted(cuts, part[name], side="right") for part in (real, made)])
        else:
            kinds = sorted(set(real[name]) | set(made[name]))
            codes.append([pd.Categorical(part[name], kinds).codes.astype(int) for part in (real, made)])
    chosen = list(itertools.combinations(range(len(codes)), 3))
    far = []
    for number in np.random.default_rng(seed).permutation(len(chosen))[:TRIPLES]:
        cells = [sum(codes[c][side] * 100**place for place, c in enumerate(chosen[number])) for side in (0, 1)]
        shares = [pd.Series(side).value_counts(normalize=True) for side in cells]
        far.append(0.5 * shares[0].subtract(shares[1], fill_value=0.0).abs().sum())
    return float(np.mean(far))


def measured(place: Path, table: MadeUp, epsilon: float, run: int, declared: bool) -> list[float]:
    """Return the scores of a table that is learned in a folder, and those of real rows."""
    real, other = table.draw(ROWS, run), table.draw(ROWS, 1000 + run)
    file, described = Path(f"{place}.csv"), Path(f"{place}.schema.yaml")
    real.to_csv(file, index=False)
    described.write_text(table.declared if declared else table.schema, encoding="utf-8")
    begun = time.process_time()
    data = ["data=table", f"data.path={file}", f"data.schema={described}", f"data.n={ROWS}"]
    train(place, [*data, f"privacy.epsilon={epsilon:g}", f"seed={run}"])
    seconds = time.process_time() - begun
    made = pd.read_parquet(place / "release" / "synthetic.parquet")
    broken = max(float(1.0 - rule(made).mean()) for rule in table.rules.values())
    one, two, three = (in_numbers(part, real) for part in (real, other, made))
    far, told, forest = scores(one, two, three, table.label, run)
    own = scores(one, two, one, table.label, run)[2]
    return [own, forest, told, far, triples(one, two, run), triples(one, three, run), broken, seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("tables", nargs="*", default=list(TABLES))
    parser.add_argument("--epsilon", type=read_positive, default=3.0)
    parser.add_argument("--runs", type=read_count, default=3)
    parser.add_argument("--constraints", action="store_true")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(asked.folder / "ugly_tables.json")
    print("table       forest real  synthetic  told apart  worst KS  triples real  synthetic  broken  seconds")
    for name in asked.tables:
        rows = []
        for run in range(asked.runs):
            what = {"table": name, "epsilon": asked.epsilon, "run": run, "constraints": asked.constraints}
            place = asked.folder / "_".join(map(str, what.values()))
            learned = partial(measured, place, TABLES[name], asked.epsilon, run, asked.constraints)
            rows.append(kept.get(what, learned))
        own, forest, told, far, halves, triple, broken, seconds = np.mean(rows, axis=0)
        line = f"{own:11.3f}  {forest:9.3f}  {told:10.3f}  {far:8.3f}  {halves:12.3f}  {triple:9.3f}  {broken:6.4f}"
        print(f"{name:10}{line}  {seconds:7.1f}", flush=True)


if __name__ == "__main__":
    main()

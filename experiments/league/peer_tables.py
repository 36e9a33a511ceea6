"""Models of tables by other projects beside `dpgen train model=measured`, on the same rows, bins and budgets.

    python -m experiments.league.peer_tables FOLDER
    python -m experiments.league.peer_tables FOLDER --data adult-balanced --rows "dpmm AIM" --epsilons 3 --runs 1
    python -m experiments.league.peer_tables FOLDER --data customers flights adult --runs 1
    python -m experiments.league.peer_tables FOLDER --data flights --rows measured --again

Each peer runs in an environment of its own, FOLDER/environments/NAME, which is made from PyPI when it is first needed;
`experiments/peers/` has its requirements and the program that runs there. Seconds are those of processor of the whole
command, from its start to the synthetic rows; each runs on one thread, and is stopped after `--limit` of them.

Adult balanced and Mushroom have the rows, test rows and bins of `classifiers.py`. A forest and boosting learn from
as many synthetic rows as there are real ones, and answer for real test rows: on the codes of public bins, and on raw
values. Peers get the codes, and raw values are drawn within a bin, as `dpgen` does; those with bins of their own get raw
values in another row. The quality report of SDMetrics compares raw rows with the test rows.

Customers, flights and Adult as it is (`everyday_tables.py`) are judged by their pairs: the total variation of pairs of
columns, joined to some ten levels each, between the synthetic rows and those that were learned from (mean, the 95th of
100, and the worst pair by its name); the AUC of boosting on raw values, for held-out rows (`has_ira`, an arrival more than
a quarter of an hour late, `income`); the share with an account among the richest eighth of customers; the share of flights
whose hour is not that of their time; the share of rows that break the declared rule that is broken most. Peers get the
codes of bins at quantiles of the real rows, among which are all that pairs are compared in, and the lists of frequent
values, at no cost. For the real rows the distances are those of the held-out ones.

A cell is kept in FOLDER/peer_tables.json as soon as it is there, and synthetic rows in a folder of their own, so the
command can be stopped and given again, with other parts or more runs; `--again` makes cells anew. It writes
peer_tables.csv and peer_tables.md of all that FOLDER holds by then, with the spread (standard deviation) over runs.
DPGEN_DATA names the folder of the public sets.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.common.arguments import read_count
from experiments.common.kept import Kept
from experiments.league.classifiers import DELTA, learned, tables
from experiments.league.environments import installed, program
from experiments.league.everyday_tables import (
    ADULT,
    CUSTOMERS,
    FLIGHTS,
    EverydayTable,
    pair_distances,
    share_of_savers,
    wrong_hours,
)
from experiments.league.tasks import AdultBalanced, Mushroom
from lightning_dpgen.data.layout import Encoded, smallest_integer
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import schema_text
from lightning_dpgen.data.tables.values import TableValues

LABELLED = {"adult-balanced": AdultBalanced, "mushroom": Mushroom}
EPSILONS = (1.0, 3.0)
IN_BINS, RAW = ("forest, bins", "boosting, bins"), ("forest, raw", "boosting, raw")
QUALITY, OWN = "SDMetrics", "own answers"
DISTANCES, RULES = ("pairs, mean", "95 %", "worst"), "rule broken most"
AUC, SAVERS, HOURS = "AUC", "has_ira, top eighth", "hour wrong"
COLUMNS = (*IN_BINS, *RAW, QUALITY, OWN, *DISTANCES, AUC, SAVERS, HOURS, RULES)
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# JAX has threads of its own.
THREADS |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1", "JAX_PLATFORMS": "cpu"}


@dataclass(frozen=True)
class Paired:
    """A table that is judged by its pairs of columns.

    Args:
        title: of its part of the results.
        table: how it is made.
        shares: further scores of synthetic rows beside real ones, by their names.
    """

    title: str
    table: EverydayTable
    shares: dict[str, Callable[[TableValues, TableValues], float]] = field(default_factory=dict)


PAIRED = {
    "customers": Paired("Customers", CUSTOMERS, {SAVERS: share_of_savers}),
    "flights": Paired("Flights, 60,000", FLIGHTS, {HOURS: wrong_hours}),
    "adult": Paired("Adult", ADULT),
}
TASKS = LABELLED | PAIRED


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        name: the name in the table; it holds no comma.
        peer: the environment, with the program `peers/tables_<peer>.py`; None for `dpgen` and for real rows.
        mechanism: the name that the peer has for it.
        binned: hand over codes of public bins, not raw values.
        settings: those of the peer, or of `dpgen train`.
        runs: the most that are made, since some take long.
        data: the tables that it is made for.
        given: let `dpgen` have the bins of peers.
    """

    name: str
    peer: str | None = None
    mechanism: str = ""
    binned: bool = True
    settings: Any = field(default_factory=dict)
    runs: int = 3
    data: tuple[str, ...] = tuple(TASKS)
    given: bool = False


# Where all columns are categories a peer has no bins of its own to find.
NUMBERS = ("adult-balanced",)
REAL, IN_PEERS_BINS = "real", "real in the bins of peers"
# Peers that answer for test rows, and make no synthetic ones.
PREDICTORS = ("diffprivlib",)
MEASURED = ["model=measured"]
# The share of the budget for values that are found, where a schema says that they are private.
DISCOVERY = 0.05
# Fits go on after they have converged, with 25 halvings a step, for 5,000 steps by default.
STEPS = {"gen_kwargs": {"n_iters": 1000}}
# The cheapest first.
ROWS = (
    Row(REAL),
    Row(IN_PEERS_BINS, data=tuple(PAIRED)),
    Row("copula (not private)", "copula", data=tuple(PAIRED)),
    Row("measured", settings=MEASURED),
    Row("measured with clear labels", settings=[*MEASURED, "model.label_sharpness=4"]),
    Row("measured in public bins", settings=[*MEASURED, "data.bins_share=0"], data=NUMBERS),
    Row("measured in the bins of peers", settings=[*MEASURED, "data.bins_share=0"], data=tuple(PAIRED), given=True),
    Row("diffprivlib naive Bayes", "diffprivlib", "GaussianNB", binned=False, data=tuple(LABELLED)),
    Row("dpmm PrivBayes", "dpmm", "PrivBayes", settings=STEPS),
    Row("dpmm PrivBayes with its own bins", "dpmm", "PrivBayes", binned=False, settings=STEPS, data=NUMBERS),
    Row("dpmm MST", "dpmm", "MST", settings=STEPS),
    Row("dpmm MST with its own bins", "dpmm", "MST", binned=False, settings=STEPS, data=NUMBERS),
    Row("smartnoise MST", "smartnoise", "MST", runs=1),
    # The model size is that of its authors for comparisons. Each fit begins where the one before has ended.
    Row("dpmm AIM", "dpmm", "AIM", settings={"max_model_size": 80, "gen_kwargs": {"n_iters": 250}}, runs=1),
    Row("smartnoise AIM", "smartnoise", "AIM", runs=1),
)


class Made:
    """Rows of a table: in public bins, and by their values."""

    def __init__(self, encoded: Encoded, values: TableValues) -> None:
        self.encoded, self.values = encoded, values

    @classmethod
    def of_codes(cls, codes: pd.DataFrame, schema: TableSchema, seed: int) -> Made:
        """Draw the values of each bin, as `dpgen` does."""
        dtype = smallest_integer(max(schema.layout.groups))
        encoded = Encoded(np.empty((len(codes), 0), np.float32), codes.to_numpy(dtype))
        return cls(encoded, TableValues.drawn(schema, encoded, seed))

    @classmethod
    def of_values(cls, frame: pd.DataFrame, schema: TableSchema) -> Made:
        """Put values into the bins of a schema, those outside of its bounds into the nearest."""
        read = read_table(frame, schema, outside="clamp", values=True)
        return cls(read.encoded, read.values)

    @property
    def schema(self) -> TableSchema:
        return self.values.schema

    def binned(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (N, columns) codes of public bins without the label, and (N,) labels."""
        label = self.schema.layout.label
        return np.delete(self.encoded.codes, label, axis=1), self.encoded.codes[:, label]

    def raw(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (N, columns) numbers, categories as codes, without the label, and (N,) labels."""
        names = [column.name for column in self.schema.recorded if column.name != self.schema.label]
        return np.stack([self.values.column(name) for name in names], axis=1), self.values.column(self.schema.label)

    def codes(self) -> pd.DataFrame:
        names = [column.name for column in self.schema.modelled if column.choices]
        return pd.DataFrame(self.encoded.codes, columns=names)

    def frame(self) -> pd.DataFrame:
        """Return the values, those of categories as words."""
        found = {}
        for column in self.schema.recorded:
            own = self.values.column(column.name)
            if isinstance(column, Numeric):
                found[column.name] = own.astype(np.int64)
            else:
                found[column.name] = np.array(words(column), dtype=object)[own]
        return pd.DataFrame(found)


def words(column: Category) -> list[str]:
    """Return the values of a column of categories, a missing one as it is in the file."""
    return [*map(str, column.present_names), *(column.missing_values[:1] if column.missing else ())]


def described(schema: TableSchema, binned: bool) -> dict[str, dict]:
    """Return what is public of the columns, as peers are told."""
    if binned:
        names = [column.name for column in schema.modelled if column.choices]
        return {name: {"values": list(range(size))} for name, size in zip(names, schema.layout.groups, strict=True)}
    return {
        column.name: {"low": column.low, "high": column.high} if isinstance(column, Numeric) else {"values": words(column)}
        for column in schema.recorded
    }


class Unfinished(Exception):
    """A command that was stopped, since it took longer than it may."""


def timed(command: list, folder: Path, limit: int) -> float:
    """Run a command and return its seconds of processor.

    Args:
        limit: the most of them that it may take.

    Raises:
        Unfinished: if it takes more.
        RuntimeError: if it fails; with its last lines.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    log = folder / "log.txt"

    def stop_in_time() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))

    with log.open("w", encoding="utf-8") as out:
        done = subprocess.run(
            command, env=os.environ | THREADS, stdout=out, stderr=subprocess.STDOUT, preexec_fn=stop_in_time
        )
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise Unfinished(f"stopped by {signal.Signals(-done.returncode).name}; it may take {limit} s of processor")
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode}: {log.read_text(encoding='utf-8')[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Comparison:
    """One table at one budget, with the rows of one run.

    Args:
        folder: the folder of environments, and of synthetic rows.
        data: a name of `TASKS`.
        limit: the seconds of processor that a command may take.
    """

    def __init__(self, folder: Path, data: str, epsilon: float, run: int, limit: int) -> None:
        self.folder, self.data, self.epsilon, self.run, self.limit = folder, data, epsilon, run, limit
        self.train, self.test = (Made(part.encoded, part.values) for part in self.records())

    def records(self) -> tuple[Records, Records]:
        """Return rows that are learned from, and test rows, in the bins of peers."""
        return tables(self.data, self.epsilon, self.run)

    def cell(self, row: Row, *, again: bool) -> dict[str, Any]:
        """Return scores by column, and seconds of processor where a model was trained.

        Args:
            again: make the rows anew, also where they are there.
        """
        if row.name == REAL:
            return self.judged(self.train)
        place = (
            self.folder / "made" / re.sub(r"[^a-z0-9]+", "_", f"{self.data} {row.name} {self.epsilon:g} {self.run}".lower())
        )
        # A command that was interrupted has no time of its own.
        if again or not (place / "seconds.json").is_file():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            try:
                seconds = self.peer(row, place) if row.peer else self.measured(row, place)
            except Unfinished:
                return {"scores": {}, "unfinished": self.limit}
            (place / "seconds.json").write_text(json.dumps(seconds), encoding="utf-8")
        seconds = json.loads((place / "seconds.json").read_text(encoding="utf-8"))
        if row.peer is None:
            made = Made.of_values(pd.read_parquet(place / "run" / "release" / "synthetic.parquet"), self.test.schema)
        else:
            made = pd.read_csv(place / "made.csv", keep_default_na=False)
            if row.peer in PREDICTORS:
                right = made[self.test.schema.label].astype(str) == self.test.frame()[self.test.schema.label]
                return {"scores": {OWN: float(right.mean())}, "seconds": seconds}
            made = Made.of_codes(made, self.test.schema, self.run) if row.binned else Made.of_values(made, self.test.schema)
        return self.judged(made) | {"seconds": seconds}

    def measured(self, row: Row, place: Path) -> float:
        """Let `dpgen train` make as many synthetic rows as there are real ones; return its seconds."""
        budget = [f"privacy.epsilon={self.epsilon:g}", f"privacy.delta={DELTA}", f"seed={self.run}"]
        words = [*self.data_settings(row, place), *row.settings, *budget, f"run_dir={place / 'run'}"]
        return timed([sys.executable, "-m", "lightning_dpgen", "train", *words], place, self.limit)

    def data_settings(self, row: Row, place: Path) -> list[str]:
        """Return settings of `dpgen train` for the data."""
        task = LABELLED[self.data](self.folder)
        # The league leaves bins unpaid; here a row says so where it does.
        return [word for word in task.settings(self.run) if not word.startswith("data.bins_share")]

    def peer(self, row: Row, place: Path) -> float:
        """Let a peer make as many synthetic rows as there are real ones, or answers; return its seconds."""
        python = installed(row.peer, self.folder / "environments")
        asked = {
            "mechanism": row.mechanism, "settings": row.settings, "binned": row.binned, "epsilon": self.epsilon,
            "delta": DELTA, "n": len(self.train.values), "label": self.train.schema.label,
            "columns": described(self.train.schema, row.binned),
        }  # fmt: skip
        (place / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
        for name, part in (("table", self.train), ("test", self.test)):
            if name == "table" or row.peer in PREDICTORS:
                (part.codes() if row.binned else part.frame()).to_csv(place / f"{name}.csv", index=False)
        return timed([python, program(f"tables_{row.peer}"), place], place, self.limit)

    def judged(self, made: Made) -> dict[str, Any]:
        """Return a cell of rows that stand for the training rows."""
        return {"scores": self.scores(made)}

    def scores(self, made: Made) -> dict[str, float]:
        """Return the scores of rows that stand for the training rows."""
        found = dict(zip(IN_BINS, learned(made.binned(), self.test.binned(), self.run), strict=False))
        # A table of categories alone has the same features in bins.
        if made.values.of_numbers:
            found |= dict(zip(RAW, learned(made.raw(), self.test.raw(), self.run), strict=False))
        return found | {QUALITY: self.quality(made)}

    def quality(self, made: Made) -> float:
        """Return the overall score of SDMetrics' quality report, compared with the test rows."""
        python = installed("sdmetrics", self.folder / "environments")
        kinds = {c.name: "numerical" if isinstance(c, Numeric) else "categorical" for c in made.schema.recorded}
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            (place / "columns.json").write_text(json.dumps(kinds), encoding="utf-8")
            self.test.frame().to_csv(place / "real.csv", index=False)
            made.frame().to_csv(place / "synthetic.csv", index=False)
            done = subprocess.run(
                [python, program("quality_sdmetrics"), place], env=os.environ | THREADS, capture_output=True, text=True
            )
        if done.returncode:
            raise RuntimeError(f"SDMetrics: exit status {done.returncode}: {done.stderr[-2000:]}")
        return float(done.stdout)


class ByPairs(Comparison):
    """A table that is judged by its pairs."""

    def records(self) -> tuple[Records, Records]:
        return PAIRED[self.data].table.tables(self.folder)

    def data_settings(self, row: Row, place: Path) -> list[str]:
        table, schema = PAIRED[self.data].table, place / "table.schema.yaml"
        described = schema_text(self.train.schema) if row.given else table.described
        schema.write_text(described, encoding="utf-8")
        settings = ["data=table", f"data.path={table.files(self.folder)[0]}", f"data.schema={schema}", f"data.n={table.n}"]
        if row.given:
            return [*settings, "data.outside=clamp", "data.max_moved=1"]
        private = "values: private" in table.described
        return [*settings, f"data.discovery_share={DISCOVERY}"] if private else settings

    def cell(self, row: Row, *, again: bool) -> dict[str, Any]:
        if row.name == IN_PEERS_BINS:
            return self.judged(Made.of_codes(self.train.codes(), self.train.schema, self.run))
        return super().cell(row, again=again)

    def judged(self, made: Made) -> dict[str, Any]:
        task, real = PAIRED[self.data], self.train.values
        # Rows are at no distance from themselves.
        far = pair_distances(real, self.test.values if made is self.train else made.values)
        distances, worst = np.array([*far.values()]), max(far, key=far.get)
        scores = dict(zip(DISTANCES, (distances.mean(), np.quantile(distances, 0.95), far[worst]), strict=True))
        scores[AUC] = task.table.question.auc(made.values, self.test.values, self.run)
        scores |= {name: share(real, made.values) for name, share in task.shares.items()}
        if broken := made.schema.rules.broken(made.values.rows()):
            scores[RULES] = max(share for _, share in broken)
        return {"scores": {name: float(score) for name, score in scores.items()}, "worst": " x ".join(worst)}


@dataclass(frozen=True)
class Line:
    """The cells of one or more runs of a row at an epsilon."""

    data: str
    row: Row
    epsilon: float
    cells: list[dict]

    def score(self, column: str) -> tuple[float, float | None] | None:
        """Return mean and standard deviation, which is not known for one run; None where the row has no such score."""
        found = [cell["scores"][column] for cell in self.cells if column in cell["scores"]]
        if not found:
            return None
        return statistics.mean(found), statistics.stdev(found) if len(found) > 1 else None

    @property
    def seconds(self) -> str:
        """Seconds of processor in words; nothing of rows that no command made."""
        if unfinished := [cell["unfinished"] for cell in self.cells if "unfinished" in cell]:
            return f"not finished in {max(unfinished):,}"
        found = [cell["seconds"] for cell in self.cells if "seconds" in cell]
        return f"{statistics.mean(found):.0f}" if found else ""

    @property
    def worst(self) -> str:
        """The pair of columns that is worst in the first run, where pairs are compared."""
        return self.cells[0].get("worst", "")


def key(data: str, row: Row, epsilon: float, run: int) -> dict:
    """Return the key of a cell."""
    about = [row.peer, row.mechanism, row.binned, row.settings]
    return {"data": data, "row": row.name, "about": about, "epsilon": f"{epsilon:g}", "run": run}


def lines(kept: Kept) -> Iterator[Line]:
    """Return all that was kept, whichever command has made it."""
    runs = sorted({json.loads(text)["run"] for text in kept.found})
    for data in TASKS:
        for row in ROWS:
            for epsilon in EPSILONS:
                cells = [kept.look(key(data, row, epsilon, run)) for run in runs]
                if found := [cell for cell in cells if cell is not None]:
                    yield Line(data, row, epsilon, found)


def write_csv(path: Path, found: list[Line]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["data", "row", "epsilon", "delta", "score", "mean", "spread", "runs", "seconds"])
        for line in found:
            for column in COLUMNS:
                if (score := line.score(column)) is not None:
                    mean, spread = ("" if value is None else f"{value:.5f}" for value in score)
                    about = [line.data, line.row.name, f"{line.epsilon:g}", DELTA]
                    out.writerow([*about, column, mean, spread, len(line.cells), line.seconds])


def markdown(found: list[Line]) -> str:
    text = []
    for data, task in TASKS.items():
        of_data = [line for line in found if line.data == data]
        columns = [column for column in COLUMNS if any(line.score(column) for line in of_data)]
        pairs = ["worst pair"] if data in PAIRED else []
        head = ["row", "epsilon", *columns, *pairs, "runs", "seconds"]
        if of_data:
            text += ["", f"### {task.title} (delta {DELTA:g})", "", _cells(head), _cells(["---"] * len(head))]
        for line in of_data:
            scores = [_shown(line.score(column)) for column in columns]
            scores += [line.worst] if pairs else []
            text.append(_cells([line.row.name, f"{line.epsilon:g}", *scores, str(len(line.cells)), line.seconds]))
    return "\n".join([*text, ""]).lstrip()


def _shown(score: tuple[float, float | None] | None) -> str:
    """Return mean and spread as experiments/README.md has them."""
    return "" if score is None else _short(score[0]) + ("" if score[1] is None else f" ({_short(score[1])})")


def _short(score: float) -> str:
    return f"{score:.3f}".removeprefix("0")


def _cells(values: list[str]) -> str:
    return f"| {' | '.join(values)} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rows", nargs="+", choices=[row.name for row in ROWS], default=[row.name for row in ROWS])
    parser.add_argument("--epsilons", nargs="+", type=float, choices=EPSILONS, default=list(EPSILONS))
    parser.add_argument("--runs", type=read_count, default=3, help="some rows have fewer, since they take long")
    parser.add_argument("--limit", type=read_count, default=2_400, help="seconds of processor that a command may take")
    parser.add_argument("--again", action="store_true", help="make cells anew, also those that are there")
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    kept, failed = Kept(given.folder / "peer_tables.json"), 0
    try:
        for row in (row for row in ROWS if row.name in given.rows):
            for data in (data for data in given.data if data in row.data):
                for epsilon in given.epsilons:
                    for run in range(min(given.runs, row.runs)):
                        said = f"{data}, {row.name}, epsilon {epsilon:g}, run {run}"
                        try:
                            asked, place = key(data, row, epsilon, run), given.folder.resolve()
                            again = given.again or (kept.look(asked) or {}).get("unfinished", given.limit) < given.limit
                            made = partial(made_cell, place, data, row, epsilon, run, given.limit, again=again)
                            cell = kept.get(asked, made, again=again)
                            print(f"{said}: {json.dumps(cell)}", flush=True)
                        except Exception:
                            # A cell that cannot be made does not stop a night's work.
                            failed += 1
                            print(f"{said}: failed", file=sys.stderr)
                            traceback.print_exc()
    finally:
        # The table is written also when the command is stopped.
        if found := list(lines(kept)):
            write_csv(given.folder / "peer_tables.csv", found)
            (given.folder / "peer_tables.md").write_text(markdown(found), encoding="utf-8")
    return 1 if failed else 0


def made_cell(folder: Path, data: str, row: Row, epsilon: float, run: int, limit: int, *, again: bool) -> dict[str, Any]:
    kind = ByPairs if data in PAIRED else Comparison
    return kind(folder, data, epsilon, run, limit).cell(row, again=again)


if __name__ == "__main__":
    sys.exit(main())

"""The league table: models of `dpgen train` on tables, baskets and pictures at several budgets, beside simple rivals.

    python -m experiments.league.league FOLDER
    python -m experiments.league.league FOLDER --tasks mushroom,adult --rows "measured,naive Bayes" --epsilons 1 --runs 1

Tasks are those of `tasks.py` (mushroom, bms, adult, transit, mnist); rows are models with their defaults, each as
`dpgen train` trains it, a private rival without training (naive Bayes tables, independent items by size, pictures of
independent pixels), models without privacy, and real records (for baskets a random half). Seconds are those of the whole
command, from its start to the release, on one thread; for a rival those of reading, measuring and drawing. Each run has
another seed; noise is never seeded in a training.

A cell is kept in FOLDER/<task>.json as soon as it is there, so the command can be stopped and given again, with other
parts or more runs; run one command at a time for a task. It writes league.csv, league.md and league.png of all that FOLDER
holds by then, with the spread (standard deviation) over runs. Cells of other versions of the package stay: to make a cell
again, take it out of the file, or begin another folder. A cell that cannot be made is reported, left out, and tried again
by the next command; the exit status is 1 then. DPGEN_DATA names the folder of the public sets.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.exceptions import ConvergenceWarning

from experiments.common.arguments import read_count
from experiments.common.kept import Kept
from experiments.league.tasks import TASKS, Task
from lightning_dpgen.common.strict_json import read_json
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.release.files import CERTIFICATE, release_folder

# Names and settings of `dpgen train`, the cheapest first. A name holds no comma.
MODELS: list[tuple[str, list[str]]] = [
    ("measured", ["model=measured"]),
    ("vae", ["model=vae"]),
    ("wgan", ["model=wgan"]),
    ("rbm", ["model=rbm"]),
]
# Those that are trained without privacy as well.
TWINS = ("measured", "vae")
NOT_PRIVATE = " (not private)"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        name: the name in the table.
        about: everything that its results depend on beside task, epsilon and run.
        private: make it at each epsilon of a task, not just once.
        made: a function of task, epsilon and run that gives its records, their seconds, and the epsilon of a certificate.
    """

    name: str
    about: list[str]
    private: bool
    made: Callable[[Task, float, int], tuple[Encoded, dict[str, float]]]


def rows_of(task: type[Task]) -> list[Row]:
    """Return the rows of a task, the cheapest first."""

    def real(task: Task, epsilon: float, run: int) -> tuple[Encoded, dict[str, float]]:
        return task.kept_real(run), {}

    def baseline(task: Task, epsilon: float, run: int) -> tuple[Encoded, dict[str, float]]:
        start = time.perf_counter()
        made = task.simple(epsilon, run)
        return made, {"seconds": time.perf_counter() - start}

    def model(name: str, settings: list[str], private: bool) -> Row:
        def made(task: Task, epsilon: float, run: int) -> tuple[Encoded, dict[str, float]]:
            return trained(task, settings, epsilon, run)

        return Row(name, settings, private, made)

    return [
        Row(task.real, [], False, real),
        Row(task.baseline, [], True, baseline),
        *(model(name, settings, True) for name, settings in (*MODELS, *task.models)),
        *(model(name + NOT_PRIVATE, settings, False) for name, settings in MODELS if name in TWINS),
    ]


def _named() -> list[str]:
    return [name for name, _ in (*MODELS, *(own for task in TASKS.values() for own in task.models))]


def trained(task: Task, settings: list[str], epsilon: float, run: int) -> tuple[Encoded, dict[str, float]]:
    """Return records of a release that `dpgen train` makes, started as by a user.

    Raises:
        RuntimeError: if it fails; with its last lines.
    """
    folder = task.folder / f"{type(task).__name__}.run"
    # An interrupted run has no time of its own.
    shutil.rmtree(folder, ignore_errors=True)
    budget = [f"privacy.epsilon={epsilon:g}"] if math.isfinite(epsilon) else ["privacy=off"]
    asked = [*task.settings(run), *settings, *budget, f"privacy.delta={task.delta}", f"seed={run}", f"run_dir={folder}"]
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "lightning_dpgen", "train", *asked],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"dpgen train {' '.join(asked)}: exit status {done.returncode}: {done.stdout[-2000:]}")
    release = release_folder(folder)
    certificate = read_json(release / CERTIFICATE)
    made = task.drawn(load_release(release), epsilon, run)
    shutil.rmtree(folder)
    return made, {"seconds": seconds} | ({"certified": certificate["epsilon"]} if certificate["private"] else {})


def asked(row: Row, epsilon: float, run: int) -> dict:
    """Return the key of a cell."""
    return {"row": row.name, "settings": row.about, "epsilon": f"{epsilon:g}", "run": run}


def compute(task: Task, row: Row, epsilon: float, run: int, kept: Kept) -> None:
    """Make a cell unless it is there."""

    def cell() -> dict:
        made, took = row.made(task, epsilon, run)
        start = time.perf_counter()
        scores = dict(zip(task.columns, task.scores(made, epsilon, run), strict=True))
        said = "  ".join(f"{column} {value:.4f}" for column, value in scores.items())
        spent = f"{took['seconds']:.1f} s, " if took else ""
        scoring = f"scored in {time.perf_counter() - start:.1f} s"
        print(f"{kept.path.stem}, {row.name}, epsilon {epsilon:g}, run {run}: {said}  ({spent}{scoring})", flush=True)
        return {"scores": scores} | took

    kept.get(asked(row, epsilon, run), cell)


@dataclass(frozen=True)
class Line:
    """The scores of one or more runs of a row at an epsilon."""

    task: str
    row: Row
    epsilon: float
    cells: list[dict]

    def scores(self, column: str) -> tuple[float, float | None]:
        """Return mean and standard deviation, which is not known for one run."""
        found = [cell["scores"][column] for cell in self.cells]
        return statistics.mean(found), statistics.stdev(found) if len(found) > 1 else None

    @property
    def seconds(self) -> float | None:
        return statistics.mean(cell["seconds"] for cell in self.cells) if "seconds" in self.cells[0] else None


def lines(folder: Path) -> Iterator[Line]:
    """Return all that the folder holds, whichever command has made it."""
    for name, task in TASKS.items():
        kept = Kept(folder / f"{name}.json")
        runs = sorted({json.loads(key)["run"] for key in kept.found})
        for row in rows_of(task):
            for epsilon in task.epsilons if row.private else (math.inf,):
                cells = [kept.look(asked(row, epsilon, run)) for run in runs]
                if found := [cell for cell in cells if cell is not None]:
                    yield Line(name, row, epsilon, found)


def write_csv(path: Path, found: list[Line]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["task", "row", "epsilon", "delta", "score", "mean", "spread", "runs", "seconds"])
        for line in found:
            task = TASKS[line.task]
            delta, seconds = task.delta if line.row.private else "", "" if line.seconds is None else f"{line.seconds:.1f}"
            for column in task.columns:
                mean, spread = ("" if value is None else f"{value:.5f}" for value in line.scores(column))
                about = [line.task, line.row.name, f"{line.epsilon:g}", delta]
                out.writerow([*about, column, mean, spread, len(line.cells), seconds])


def markdown(found: list[Line]) -> str:
    text = []
    for name, task in TASKS.items():
        if not any(line.task == name for line in found):
            continue
        head = ["row", "epsilon", *task.columns, "runs", "seconds"]
        text += ["", f"### {task.title} (delta {task.delta:g})", "", _cells(head), _cells(["---"] * len(head))]
        for line in (line for line in found if line.task == name):
            values = [_shown(*line.scores(column)) for column in task.columns]
            seconds = "" if line.seconds is None else f"{line.seconds:.1f}"
            text.append(_cells([line.row.name, f"{line.epsilon:g}", *values, str(len(line.cells)), seconds]))
    return "\n".join([*text, ""]).lstrip()


def _shown(mean: float, spread: float | None) -> str:
    return f"{mean:.4f}" + ("" if spread is None else f" ({spread:.4f})")


def _cells(values: list[str]) -> str:
    return f"| {' | '.join(values)} |"


def picture(path: Path, found: list[Line]) -> None:
    """Draw a panel for each task, epsilon across; rows that are not private are levels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in TASKS if any(line.task == name for line in found)]
    figure, axes = pyplot.subplots(1, len(names), figsize=(max(4.2 * len(names), 6.0), 5.6), squeeze=False)
    colours = dict(zip(dict.fromkeys(_named()), pyplot.colormaps["tab10"].colors, strict=False))
    handles = {}
    for axis, name in zip(axes[0], names, strict=True):
        task = TASKS[name]
        rows = {line.row.name: line.row for line in found if line.task == name}
        for place, row in enumerate(rows.values()):
            of_row = [line for line in found if line.task == name and line.row.name == row.name]
            means, spreads = zip(*(line.scores(task.shown) for line in of_row), strict=True)
            label = {task.real: "real records (baskets: half)", task.baseline: "simple rival"}.get(row.name, row.name)
            look = {"color": colours.get(row.name.removesuffix(NOT_PRIVATE), "black"), "label": label}
            if row.private:
                # Points are moved aside a little, so that bars can be told apart.
                across = [line.epsilon * 1.03 ** (place - len(rows) / 2) for line in of_row]
                style = "--" if row.name == task.baseline else "-"
                bars = [spread or 0.0 for spread in spreads]
                drawn = axis.errorbar(across, means, bars, linestyle=style, marker="o", ms=4, capsize=3, **look)
            else:
                drawn = axis.axhline(means[0], linestyle="-." if row.name == task.real else ":", **look)
            handles.setdefault(label, drawn)
        axis.set(title=task.title.replace(": ", "\n"), xlabel="epsilon", ylabel=task.shown, xscale="log")
        axis.set_xticks(task.epsilons, [f"{epsilon:g}" for epsilon in task.epsilons])
        axis.minorticks_off()
        axis.set_xlim(task.epsilons[0] / 1.4, task.epsilons[-1] * 1.4)
        axis.grid(alpha=0.3)
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=4, fontsize=8)
    figure.tight_layout(rect=(0, 0.06 + 0.04 * (len(handles) // 4), 1, 1))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = dict.fromkeys(row.name for task in TASKS.values() for row in rows_of(task))

    def among(choices: list[str]) -> Callable[[str], list[str]]:
        def read(text: str) -> list[str]:
            found = [part.strip() for part in text.split(",")]
            if foreign := [part for part in found if part not in choices]:
                raise argparse.ArgumentTypeError(f"{foreign[0]!r}: expected some of {', '.join(choices)}, commas between")
            return found

        return read

    def numbers(text: str) -> list[float]:
        return [float(part) for part in text.split(",")]

    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", type=among(list(TASKS)), default=list(TASKS))
    parser.add_argument("--rows", type=among(list(known)), default=list(known))
    parser.add_argument("--epsilons", type=numbers, help="some of a task's own; rows that are not private are always made")
    parser.add_argument("--runs", type=read_count, default=5)
    found = parser.parse_args(arguments)
    every = {epsilon for name in found.tasks for epsilon in TASKS[name].epsilons}
    if foreign := set(found.epsilons or ()) - every:
        parser.error(f"--epsilons {min(foreign):g}: expected some of {', '.join(f'{e:g}' for e in sorted(every))}")
    return found


def main(arguments: list[str] | None = None) -> int:
    given = parsed(arguments)
    torch.set_num_threads(1)
    # Classifiers warn that they stop where their protocol says.
    warnings.simplefilter("ignore", ConvergenceWarning)
    given.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    try:
        for name in (name for name in TASKS if name in given.tasks):
            task, kept = TASKS[name](given.folder.resolve()), Kept(given.folder / f"{name}.json")
            for row in (row for row in rows_of(TASKS[name]) if row.name in given.rows):
                for epsilon in task.epsilons if row.private else (math.inf,):
                    if row.private and epsilon not in (given.epsilons or task.epsilons):
                        continue
                    for run in range(given.runs):
                        try:
                            compute(task, row, epsilon, run, kept)
                        except Exception:
                            # A cell that cannot be made does not stop a night's work.
                            failed += 1
                            print(f"{name}, {row.name}, epsilon {epsilon:g}, run {run}: failed", file=sys.stderr)
                            traceback.print_exc()
    finally:
        # The table is written also when the command is stopped.
        if found := list(lines(given.folder)):
            write_csv(given.folder / "league.csv", found)
            (given.folder / "league.md").write_text(markdown(found), encoding="utf-8")
            picture(given.folder / "league.png", found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

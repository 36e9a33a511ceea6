"""Figures 5, 6 and 8 of DPGM: counting queries on TRANSIT and CDR, for baselines and any number of releases.

    python -m experiments.dpgm.queries transit FOLDER [RELEASE ...]
    python -m experiments.dpgm.queries cdr FOLDER --records 400000 --seeds 3 runs/a/release runs/b/release

A RELEASE is a folder that `dpgen train data=transit`, or `data=cdr data.n=400000`, has made from these baskets (its run's
folder is enough). The command prints a table and draws FOLDER/transit.queries.epsilon1.png: mean relative error of 1,000
queries of each of the paper's five sets, read as ALL and as ANY, and of items that were taken together (ALL). Each seed
has its own queries, noise and synthetic baskets, as many as real ones; the second line of a row is the standard deviation
over seeds. A second table divides these errors by those of the best private baseline, independent items by size. Results
are kept in FOLDER/transit.queries.json, and not computed again: the command can be stopped and given again, with more
releases or seeds.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy.sparse
import torch

from experiments.common.kept import Kept
from experiments.dpgm.baselines import BY_SIZE, Budget, rivals
from lightning_dpgen.common.strict_json import read_json
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.data.simulated.baskets import WORLDS
from lightning_dpgen.metrics.baskets import QUERIES, CountingQueryError, queries_together, uniform_queries
from lightning_dpgen.release.drawing.release import Release, load_release
from lightning_dpgen.release.files import CERTIFICATE, RELEASE, release_folder
from lightning_dpgen.specs.privacy import default_delta

SETS = 5
COLUMNS = [f"{reading} {i}" for reading in ("all", "any") for i in range(1, SETS + 1)] + ["together"]
# Section 6.3 prints the ends of a curve, sets 1 and 5. Its text has no number for MWEM on TRANSIT.
PAPER = {
    "transit": {"paper, DPGM, epsilon 1, reading not stated": (0.09, 0.02)},
    "cdr": {
        "paper, DPGM, epsilon 1, reading not stated": (0.017, 0.0012),
        "paper, MWEM, epsilon 2, reading not stated": (0.11, 0.05),
    },
}
# Synthetic baskets that a release draws at a time.
_AT_ONCE = 50_000


@dataclass(frozen=True, eq=False)
class Data:
    """Real baskets."""

    schema: BasketSchema
    baskets: scipy.sparse.csr_array

    @classmethod
    def simulated(cls, name: str, records: int | None) -> Data:
        """Return so many baskets of a simulated set, or as many as the paper had."""
        return cls(public_set(name).schema, load_public_set(name, n=records).encoded.units)

    @cached_property
    def digest(self) -> str:
        found = hashlib.sha256(str(self.baskets.shape).encode())
        for places in (self.baskets.indptr, self.baskets.indices):
            found.update(places.astype(np.int64))
        return found.hexdigest()

    def queries(self, seed: int) -> scipy.sparse.csr_array:
        """Return the five sets and the one of items taken together, one after the other."""
        random, largest = np.random.default_rng([seed, 2]), self.schema.max_items
        sets = [uniform_queries(len(self.schema.items), i * largest // SETS, random) for i in range(1, SETS + 1)]
        return scipy.sparse.vstack([*sets, queries_together(self.baskets, random)], format="csr")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        name: the name in the table.
        about: everything that its results depend on, beside data, queries and seed.
        drawn: a function of a seed that gives its synthetic baskets, a part at a time.
    """

    name: str
    about: dict
    drawn: Callable[[int], Iterable[np.ndarray | scipy.sparse.csr_array]]


def baseline_rows(data: Data, epsilon: float) -> list[Row]:
    delta = default_delta(data.baskets.shape[0])
    return [
        Row(
            name,
            {"baseline": name, "epsilon": epsilon, "delta": delta},
            lambda seed, rival=rival: [rival(data.baskets, data.schema.max_items, Budget(epsilon, delta, seed))],
        )
        for name, rival in rivals(data.schema.max_items, epsilon).items()
    ]


def release_row(data: Data, folder: Path) -> Row:
    """Return the row of a release, with the name of its run's folder.

    Raises:
        ValueError: if it is of other baskets.
    """
    run = release_folder(folder)
    release = load_release(run)
    if not isinstance(release, Release) or getattr(release.schema, "items", None) != data.schema.items:
        raise ValueError(f"{run} is not a release of baskets over the items of these")
    certificate = read_json(run / CERTIFICATE)
    name = run.resolve().parent.name if run.name == RELEASE else run.name
    said = f"epsilon {certificate['epsilon']:.4g}" if certificate["private"] else "not private"

    def drawn(seed: int) -> Iterator[np.ndarray | scipy.sparse.csr_array]:
        n = data.baskets.shape[0]
        for start in range(0, n, _AT_ONCE):
            # The seed has 32 bits, which is all that torch keeps.
            key = int(np.random.SeedSequence([seed, start]).generate_state(1)[0])
            yield release.sample_encoded(min(_AT_ONCE, n - start), seed=key).units

    return Row(f"{name}, {said}", {"release": certificate["digest"]}, drawn)


def errors(data: Data, rows: list[Row], seed: int, kept: Kept) -> list[list[float]]:
    """Return each row's error in each of `COLUMNS`, with the queries of one seed."""
    digest, queries = data.digest, data.queries(seed)
    about = {"data": digest, "seed": seed, "queries": QUERIES}

    def answered() -> list:
        metric = CountingQueryError(queries)
        metric.update(data.baskets, real=True)
        return [metric.all_of[1].tolist(), metric.any_of[1].tolist()]

    real = CountingQueryError(queries)
    real.records[1] = data.baskets.shape[0]
    real.all_of[1], real.any_of[1] = map(torch.tensor, kept.get(about | {"real": True}, answered))

    def measured(row: Row) -> list[float]:
        start, metric = time.perf_counter(), copy.deepcopy(real)
        for part in row.drawn(seed):
            metric.update(part, real=False)
        found = {name: values.reshape(SETS + 1, QUERIES).mean(dim=1) for name, values in metric.errors().items()}
        print(f"seed {seed}: {row.name}: {time.perf_counter() - start:.0f} s", flush=True)
        return [*found["all"][:SETS].tolist(), *found["any"][:SETS].tolist(), float(found["all"][SETS])]

    return [kept.get(about | row.about, lambda row=row: measured(row)) for row in rows]


def table(name: str, rows: list[Row], found: np.ndarray) -> str:
    """Write means over seeds of (seeds, rows, columns), the standard deviation below each where there are several."""
    width = max(len(row) for row in [*(row.name for row in rows), *PAPER[name]]) + 2
    lines = [f"{'':<{width}}" + "".join(f"{column:>10}" for column in COLUMNS)]
    for row, values in zip(rows, found.transpose(1, 2, 0), strict=True):
        lines.append(f"{row.name:<{width}}" + "".join(f"{value.mean():>10.5f}" for value in values))
        if len(found) > 1:
            lines.append(f"{'':<{width}}" + "".join(f"{f'+-{statistics.stdev(value):.5f}':>10}" for value in values))
    for row, (first, last) in PAPER[name].items():
        lines.append(f"{row:<{width}}{first:>10.5f}{'':>30}{last:>10.5f}")
    return "\n".join(lines)


def ratios(rows: list[Row], found: np.ndarray, over: str) -> str:
    """Return errors of each row over those of the row `over`: five sets together as ALL and as ANY, and items together."""
    sums = np.stack([found[..., :SETS].sum(-1), found[..., SETS : 2 * SETS].sum(-1), found[..., -1]], -1).mean(0)
    sums /= sums[[row.name for row in rows].index(over)]
    width = max(len(row.name) for row in rows) + 2
    lines = [f"{f'over {over}':<{width}}" + "".join(f"{column:>10}" for column in ("all", "any", "together"))]
    lines += [f"{row.name:<{width}}" + "".join(f"{x:>10.2f}" for x in line) for row, line in zip(rows, sums, strict=True)]
    return "\n".join(lines)


def picture(name: str, data: Data, rows: list[Row], found: np.ndarray, path: Path) -> None:
    """Draw the error against the longest query of a set, a panel for each reading, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    longest = [i * data.schema.max_items // SETS for i in range(1, SETS + 1)]
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.4 + 0.25 * -(-len(rows) // 2)), sharey=True)
    colours = pyplot.colormaps["tab20"].colors
    for axis, reading, first in zip(axes, ("ALL", "ANY"), (0, SETS), strict=True):
        for i, row in enumerate(rows):
            style = "--" if "baseline" in row.about else "-"
            values = found[:, i, first : first + SETS]
            axis.errorbar(
                longest, values.mean(axis=0), values.std(axis=0), color=colours[i % len(colours)], linestyle=style,
                marker="o", ms=3, capsize=2, label=row.name,
            )  # fmt: skip
        for i, (row, ends) in enumerate(PAPER[name].items()):
            axis.plot([longest[0], longest[-1]], ends, "k", linestyle="", marker="*^"[i], ms=9, mfc="none", label=row)
        axis.set(title=f"baskets that hold {reading} of a query's items", xlabel="longest query of the set", yscale="log")
        axis.set_xticks(longest)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("mean relative error")
    figure.suptitle(f"{name.upper()}, simulated: {data.baskets.shape[0]:,} baskets, {len(found)} seeds")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2, fontsize=8)
    figure.tight_layout(rect=(0, 0.22 * -(-len(labels) // 2) / figure.get_figheight(), 1, 1))
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(WORLDS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("releases", nargs="*", type=Path)
    parser.add_argument("--records", type=int, help="number of records of a smaller simulation")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=1.0, help="epsilon of the baselines")
    asked = parser.parse_intermixed_args(arguments)
    if asked.seeds < 1:
        parser.error(f"--seeds {asked.seeds}: expected 1 or more")
    torch.set_num_threads(1)
    try:
        data = Data.simulated(asked.name, asked.records)
        rows = [*baseline_rows(data, asked.epsilon), *(release_row(data, folder) for folder in asked.releases)]
    except (ValueError, OSError) as error:
        parser.error(str(error))
    asked.folder.mkdir(parents=True, exist_ok=True)
    n = data.baskets.shape[0]
    stem = asked.name if n == WORLDS[asked.name].records else f"{asked.name}_{n}"
    kept = Kept(asked.folder / f"{stem}.queries.json")
    found = np.array([errors(data, rows, seed, kept) for seed in range(asked.seeds)])
    print(table(asked.name, rows, found))
    print(ratios(rows, found, f"{BY_SIZE}, epsilon {asked.epsilon:g}"))
    picture(asked.name, data, rows, found, asked.folder / f"{stem}.queries.epsilon{asked.epsilon:g}.png")
    print(f"{n:,} baskets; baselines at delta {default_delta(n):g}, one basket added or removed")


if __name__ == "__main__":
    main()

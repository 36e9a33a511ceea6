"""Figures 5, 6 and 8 of DPGM: counting queries on TRANSIT and CDR, for baselines, MWEM and any number of releases.

    python -m experiments.dpgm.queries transit FOLDER [RELEASE ...]
    python -m experiments.dpgm.queries cdr FOLDER --records 400000 --seeds 3 runs/a/release runs/b/release

A RELEASE is a folder that `dpgen train data=transit`, or `data=cdr data.n=400000`, has made from these baskets (its run's
folder is enough). The command prints a table and draws FOLDER/dpgm_queries_transit_epsilon1.png: mean relative error of
1,000 queries of each of the paper's five sets, read as ALL, as ANY and as VISITS (how many visits its items had, a basket's
counted one by one), and of items that were taken together (ALL). Each seed has its own queries, noise and synthetic
baskets, as many as real ones; the second line of a row is the standard deviation over seeds. A second table divides these
errors by those of independent items by size. Results are kept in FOLDER/dpgm_queries_transit.json, and not computed again:
the command can be stopped and given again, with more releases or seeds. Releases that are kept for this epsilon have their
rows without being named: experiments/results has ours.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy.sparse
import torch

from experiments.common.arguments import read_count, read_positive
from experiments.common.kept import Kept
from experiments.common.pictures import save_picture
from experiments.dpgm.baselines import BY_SIZE, Budget, rivals
from experiments.dpgm.mwem import over_baskets, over_visits
from lightning_dpgen.common.strict_json import read_json
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.data.simulated.baskets import WORLDS
from lightning_dpgen.metrics.baskets import QUERIES, SANITY, CountingQueryError, queries_together, uniform_queries
from lightning_dpgen.release.drawing.release import Release, load_release
from lightning_dpgen.release.files import CERTIFICATE, RELEASE, release_folder
from lightning_dpgen.specs.privacy import default_delta

SETS, READINGS = 5, ("all", "any", "visits")
COLUMNS = [f"{reading} {i}" for reading in READINGS for i in range(1, SETS + 1)] + ["together"]
TITLES = ("baskets that hold ALL of a query's items", "baskets that hold ANY of them", "VISITS to them")
# Section 6.3 prints the ends of a curve, sets 1 and 5. Its text has no number for MWEM on TRANSIT.
PAPER = {
    "transit": {"paper, DPGM, epsilon 1, reading not stated": (0.09, 0.02)},
    "cdr": {
        "paper, DPGM, epsilon 1, reading not stated": (0.017, 0.0012),
        "paper, MWEM, epsilon 2, reading not stated": (0.11, 0.05),
    },
}
MWEM = {"MWEM over visits, cut to 12": over_visits, "MWEM over baskets": over_baskets}
MARKERS = "os^vD<>phPX8"
# Synthetic baskets that a release draws at a time.
_AT_ONCE = 50_000


@dataclass(frozen=True, eq=False)
class Asked:
    """Queries of one seed, and what the real baskets answer.

    Args:
        queries: the five sets.
        metric: of these and of items taken together, with the real answers.
        visits: (items,) real visits to each item, a basket.
    """

    queries: scipy.sparse.csr_array
    metric: CountingQueryError
    visits: np.ndarray


class Data:
    """Baskets that queries are asked of, which are not read before they are asked for.

    Args:
        read: the function that reads them, or draws them.
    """

    def __init__(self, name: str, schema: BasketSchema, n: int, read: Callable[[], scipy.sparse.csr_array]) -> None:
        self.name, self.schema, self.n, self._read = name, schema, n, read

    @classmethod
    def simulated(cls, name: str, records: int | None = None) -> Data:
        """Return so many baskets of a simulated set; None stands for as many as the paper has."""
        n = records or WORLDS[name].records
        return cls(name, public_set(name).schema, n, lambda: load_public_set(name, n=n).encoded.units)

    @cached_property
    def baskets(self) -> scipy.sparse.csr_array:
        return self._read()

    def asked(self, seed: int) -> Asked:
        random, largest = np.random.default_rng([seed, 2]), self.schema.max_items
        sets = [uniform_queries(len(self.schema.items), i * largest // SETS, random) for i in range(1, SETS + 1)]
        queries = scipy.sparse.csr_array(scipy.sparse.vstack(sets))
        metric = CountingQueryError(scipy.sparse.vstack([queries, queries_together(self.baskets, random)], format="csr"))
        metric.update(self.baskets, real=True)
        return Asked(queries, metric, self.baskets.sum(axis=0) / self.n)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        name: the name in the table.
        about: everything that its results depend on, beside data, queries and seed.
        drawn: a function of a seed, and of what is asked, that gives its synthetic baskets, a part at a time; None where
            all its results are kept.
    """

    name: str
    about: dict
    drawn: Callable[[int, Asked], Iterable[np.ndarray | scipy.sparse.csr_array]] | None = None


def baseline_rows(data: Data, epsilon: float) -> list[Row]:
    delta, largest = default_delta(data.n), data.schema.max_items
    drawn = {
        name: lambda seed, _, rival=rival: [rival(data.baskets, largest, Budget(epsilon, delta, seed))]
        for name, rival in rivals(largest, epsilon).items()
    } | {
        f"{name}, epsilon {epsilon:g}": lambda seed, asked, rival=rival: [
            rival(data.baskets, largest, asked.queries, Budget(epsilon, delta, seed))
        ]
        for name, rival in MWEM.items()
    }
    return [Row(name, {"baseline": name, "delta": delta}, made) for name, made in drawn.items()]


def release_row(data: Data, folder: Path, epsilon: float) -> Row:
    """Return the row of a release, with the name of its run's folder, in the figure of an epsilon.

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

    def drawn(seed: int, _: Asked) -> Iterator[np.ndarray | scipy.sparse.csr_array]:
        for start in range(0, data.n, _AT_ONCE):
            # The seed has 32 bits, which is all that torch keeps.
            key = int(np.random.SeedSequence([seed, start]).generate_state(1)[0])
            yield release.sample_encoded(min(_AT_ONCE, data.n - start), seed=key).units

    name = f"{name}, {said}"
    return Row(name, {"release": name, "digest": certificate["digest"], "beside": epsilon}, drawn)


def kept_releases(kept: Kept, epsilon: float, seeds: int, others: list[Row]) -> list[Row]:
    """Return the rows of other releases whose results are kept for so many seeds, in the figure of an epsilon."""
    known, found = [row.about for row in others], {}
    for about in map(json.loads, kept.found):
        if about.get("beside") == epsilon and about["queries"] == QUERIES and about["seed"] < seeds:
            row = {name: about[name] for name in ("release", "digest", "beside")}
            found.setdefault(json.dumps(row), []).append(about["seed"])
    rows = [json.loads(row) for row, there in found.items() if len(there) == seeds]
    return [Row(row["release"], row) for row in rows if row not in known]


def errors(data: Data, rows: list[Row], seed: int, kept: Kept) -> list[list[float]]:
    """Return each row's error in each of `COLUMNS`, with the queries of one seed."""
    asked = functools.cache(lambda: data.asked(seed))

    def measured(row: Row) -> list[float]:
        start, metric, visits = time.perf_counter(), copy.deepcopy(asked().metric), np.zeros(len(data.schema.items))
        for part in row.drawn(seed, asked()):
            metric.update(part, real=False)
            visits += np.asarray(part.sum(axis=0))
        found = {name: values.reshape(SETS + 1, QUERIES).mean(dim=1) for name, values in metric.errors().items()}
        synthetic, real = (asked().queries @ each for each in (visits / int(metric.records[0]), asked().visits))
        of_visits = (np.abs(synthetic - real) / np.maximum(real, SANITY)).reshape(SETS, QUERIES).mean(axis=1)
        print(f"seed {seed}: {row.name}: {time.perf_counter() - start:.0f} s", flush=True)
        return [
            *found["all"][:SETS].tolist(),
            *found["any"][:SETS].tolist(),
            *of_visits.tolist(),
            float(found["all"][SETS]),
        ]

    about = {"seed": seed, "queries": QUERIES}
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
    """Return errors of each row over those of the row `over`: five sets together in each reading, and items together."""
    sets = [found[..., first : first + SETS].sum(-1) for first in range(0, SETS * len(READINGS), SETS)]
    sums = np.stack([*sets, found[..., -1]], -1).mean(0)
    sums /= sums[[row.name for row in rows].index(over)]
    width = max(len(row.name) for row in [*rows, Row(f"over {over}", {})]) + 2
    lines = [f"{f'over {over}':<{width}}" + "".join(f"{column:>10}" for column in (*READINGS, "together"))]
    lines += [f"{row.name:<{width}}" + "".join(f"{x:>10.2f}" for x in line) for row, line in zip(rows, sums, strict=True)]
    return "\n".join(lines)


def picture(data: Data, rows: list[Row], found: np.ndarray, path: Path) -> None:
    """Draw the error against the longest query of a set, a panel for each reading, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    longest = [i * data.schema.max_items // SETS for i in range(1, SETS + 1)]
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.4 + 0.25 * -(-len(rows) // 2)), sharey=True)
    colours = [*pyplot.colormaps["tab10"].colors, *pyplot.colormaps["Dark2"].colors]
    for axis, title, first in zip(axes, TITLES, range(0, SETS * len(READINGS), SETS), strict=True):
        for i, row in enumerate(rows):
            rival = row.name.startswith("MWEM")
            style = {"linestyle": "-" if rival else "--" if "baseline" in row.about else ":", "lw": 2.5 if rival else 1.5}
            values = found[:, i, first : first + SETS]
            # Marks of rows on one level stand in each other.
            axis.errorbar(
                longest, values.mean(axis=0), values.std(axis=0), color=colours[i % len(colours)],
                marker=MARKERS[i % len(MARKERS)], ms=10 - 7 * i / len(rows), mfc="none", capsize=2, label=row.name, **style,
            )  # fmt: skip
        for i, (row, ends) in enumerate(PAPER[data.name].items()):
            axis.plot([longest[0], longest[-1]], ends, "k", linestyle="", marker="*^"[i], ms=9, mfc="none", label=row)
        axis.set(title=title, xlabel="longest query of the set", yscale="log")
        axis.set_xticks(longest)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("mean relative error")
    figure.suptitle(f"{data.name.upper()}, simulated: {data.n:,} baskets, seeds: {len(found)}")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2, fontsize=8)
    figure.tight_layout(rect=(0, 0.22 * -(-len(labels) // 2) / figure.get_figheight(), 1, 1))
    save_picture(figure, path)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(WORLDS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("releases", nargs="*", type=Path)
    parser.add_argument("--records", type=read_count, help="number of records of a smaller simulation")
    parser.add_argument("--seeds", type=read_count, default=3)
    parser.add_argument("--epsilon", type=read_positive, default=1.0, help="epsilon of the baselines")
    asked = parser.parse_intermixed_args(arguments)
    torch.set_num_threads(1)
    data = Data.simulated(asked.name, asked.records)
    about = asked.name + (f"_{data.n}" if data.n != WORLDS[asked.name].records else "")
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(asked.folder / f"dpgm_queries_{about}.json")
    try:
        releases = [release_row(data, folder, asked.epsilon) for folder in asked.releases]
    except (ValueError, OSError) as error:
        parser.error(str(error))
    rows = [*baseline_rows(data, asked.epsilon), *releases, *kept_releases(kept, asked.epsilon, asked.seeds, releases)]
    found = np.array([errors(data, rows, seed, kept) for seed in range(asked.seeds)])
    print(table(asked.name, rows, found))
    print(ratios(rows, found, f"{BY_SIZE}, epsilon {asked.epsilon:g}"))
    picture(data, rows, found, asked.folder / f"dpgm_queries_{about}_epsilon{asked.epsilon:g}.png")
    print(f"{data.n:,} baskets; baselines at delta {default_delta(data.n):g}, one basket added or removed")


if __name__ == "__main__":
    main()

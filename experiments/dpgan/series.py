"""Figure 3 of dp-GAN: days of readings, generated at epsilon 6, beside the nearest real ones.

    python -m experiments.dpgan.series FOLDER [--data NAME ...] [--only VARIANT ...] [--seed SEED]

The data are national demand (`uk_demand`) and 3,000 days of simulated meters of 96 readings; by name also 20,000 days of
meters (the unit a day, or a meter of which there are a thousand), and two households of a few hundred days. A row is a
variant: the paper's form (`conf/experiment/dpgan_series.yaml`), its twin without privacy, this package's networks with
their defaults, autoencoders of whole waves (`dpgan_series_best.yaml`), and measured statistics, also at epsilon 1. Columns
are the mean and worst difference between correlations of two readings, the AUC of telling made days from the real ones
that were learned from, and the mean distance to the nearest of these by dynamic time warping. Beside them stand real days
that were held out, in the place of made ones. Those of `uk_demand` are its last year, so two halves of the other years,
divided at random, are the bound of what could be reached. Made readings are rounded to their declared decimals, as in a
release. Scores and the first made days are kept in FOLDER, and a picture of each set.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from experiments.common.kept import Kept
from experiments.common.training import train
from lightning_dpgen import load_release
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.simulated.meters import METERS
from lightning_dpgen.metrics.classifiers import DETECTION
from lightning_dpgen.metrics.evaluation import compute_section
from lightning_dpgen.metrics.measure import measures_of
from lightning_dpgen.metrics.series_and_pictures import NearestSeries
from lightning_dpgen.metrics.sides import EncodedSides

DRAWN = 4
# The sets of the two pictures.
PICTURED = ["uk_demand", "meters, 3,000 days"]
COLUMNS = ("correlation, mean difference", "correlation, worst difference", "AUC", "distance, mean")


@dataclass(frozen=True)
class Days:
    """A set of days.

    Args:
        read: the days that are learned from, or held out.
        settings: for `dpgen train`.
    """

    schema: SeriesSchema
    read: Callable[[bool], Encoded]
    settings: list[str]


def variants() -> dict[str, list[str]]:
    """Return the settings of each variant."""
    private = ["privacy.epsilon=6", "privacy.delta=1e-5"]
    return {
        "faithful": ["experiment=dpgan_series", *private],
        "faithful, not private": ["experiment=dpgan_series", "privacy=off"],
        "wgan": ["model=wgan", *private],
        "vae": ["model=vae", *private],
        "waves": ["experiment=dpgan_series_best", *private],
        "waves, censored": ["experiment=dpgan_series_best", "model.likelihood=censored", *private],
        "measured": ["model=measured", *private],
        "measured, epsilon 1": ["model=measured", "privacy.epsilon=1", "privacy.delta=1e-5"],
    }


def sets() -> dict[str, Days]:
    """Return the data by their names."""
    known = {name: _days(name, [f"data={name}"]) for name in ("uk_demand", "ausgrid", "powercons")}
    simulated = {}
    for n, unit in ((3000, "days"), (20_000, "days"), (20_000, "days of a meter")):
        # Two more than the days of a meter on average are few to most meters.
        of_persons = [] if unit == "days" else ["data.person=meter", f"data.max_rows={n // METERS + 2}"]
        simulated[f"meters, {n:,} {unit}"] = _days("meters", ["data=meters", f"data.n={n}", *of_persons], n)
    return known | simulated


def _days(name: str, settings: list[str], n: int | None = None) -> Days:
    """Return the days of a set; of a simulated one another draw, of other households, is held out."""

    def read(held_out: bool) -> Encoded:
        other = {"held_out": held_out} if n is None else {"n": n, "draw": int(held_out)}
        return load_public_set(name, **other).encoded

    return Days(public_set(name).schema, read, settings)


def scores(days: Days, real: Encoded, other: Encoded) -> list[float]:
    """Return the columns for other days, generated or real, beside real ones."""
    schema, measures, found = days.schema, measures_of("series"), {}
    sides = EncodedSides(kind="series", layout=schema.layout, real=real, synthetic=other, channels=len(schema.channels))
    for section in ("associations", DETECTION, "nearest real series"):
        found |= compute_section(measures[section], sides).scores
    return [found[name] for name in COLUMNS]


def learned(folder: Path, name: str, variant: str, days: Days, real: Encoded, seed: int) -> dict[str, list]:
    """Return the columns and the first days of a run, which is trained unless it was before.

    Days are rounded as in its release, and written as text, a day a line.
    """
    run = folder / f"{name}_{variant}_{seed}".replace(" ", "_").replace(",", "")
    train(run, [*days.settings, f"seed={seed}", *variants()[variant]])
    made = load_release(run / "release").sample_encoded(len(real), seed)
    rounded = days.schema.decode(made, np.random.default_rng(0)).to_pandas()[days.schema.columns].to_numpy()
    found = scores(days, real, Encoded(days.schema.scaled(rounded), made.codes))
    return {"scores": found, "days": [" ".join(f"{reading:g}" for reading in day) for day in rounded[:DRAWN]]}


def real_rows(days: Days) -> dict[str, list[float]]:
    """Return the columns for held-out days, and for a half of the others at random beside the other half."""
    real = days.read(False)
    order = np.random.default_rng(0).permutation(len(real))
    halves = [real[np.sort(part)] for part in np.array_split(order, 2)]
    return {"held-out days": scores(days, real, days.read(True)), "half beside half": scores(days, *halves)}


def draw(path: Path, shown: dict[str, np.ndarray], real: Encoded, days: Days) -> None:
    """Draw a few days (days, readings), a variant in each row, and the real day that is nearest to each."""
    low, high = days.schema.bounds()
    length, channels = days.schema.axes
    size = (3.0 * DRAWN, 1.5 * len(shown))
    figure, axes = plt.subplots(len(shown), DRAWN, figsize=size, sharex=True, sharey=True, squeeze=False)
    for row, (name, own) in zip(axes, shown.items(), strict=True):
        metric = NearestSeries(length, channels=channels)
        metric.update(torch.from_numpy(np.asarray(real.units)), real=True)
        metric.update(torch.from_numpy(np.asarray(days.schema.scaled(own))), real=False)
        for axis, made, place in zip(row, own, metric.nearest()[1].tolist(), strict=False):
            nearest = low + (high - low) * real.units[place]
            for values, colour, width in ((nearest, "#aab3bf", 2.6), (made, "#1f5fa8", 1.0)):
                axis.plot(values[::channels], color=colour, linewidth=width)
            axis.spines[["top", "right"]].set_visible(False)
        row[0].set_title(name, loc="left", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=60)
    plt.close(figure)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", nargs="+", choices=sets(), default=PICTURED)
    parser.add_argument("--only", nargs="+", choices=variants())
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(asked.folder / "dpgan_series.json")
    for name in asked.data:
        days = sets()[name]
        print(f"{name}: {', '.join(COLUMNS)}", flush=True)
        real, held_out = days.read(False), days.read(True)
        low, high = days.schema.bounds()
        rows, shown = {}, {"held-out days": low + (high - low) * np.asarray(held_out.units[:DRAWN], np.float64)}
        for variant, settings in variants().items():
            if asked.only and variant not in asked.only:
                continue
            cell = {"data": name, "settings": settings, "seed": asked.seed}
            found = kept.get(cell, partial(learned, asked.folder, name, variant, days, real, asked.seed))
            rows[variant] = found["scores"]
            shown[variant] = np.array([[float(reading) for reading in day.split()] for day in found["days"]])
        rows |= kept.get({"data": name}, partial(real_rows, days))
        for row, values in rows.items():
            print(f"  {row}: " + "  ".join(f"{value:.3f}" for value in values), flush=True)
        draw(asked.folder / f"dpgan_series_{name.partition(',')[0]}.png", shown, real, days)


if __name__ == "__main__":
    main()

"""A fleet of water meters, simulated: days of 96 readings, since the data of dp-GAN's Figure 3 are not public.

    python -m experiments.common.simulated_meters FOLDER [--days 20000] [--meters 1000]

A household has a neighbourhood of four, a size, and hours at which it rises and comes home. A day is a sum of uses
(showers, kitchen, toilets, garden) at hours that scatter about these, in litres a quarter of an hour; in one day of twenty
a pipe leaks from some hour on. The command writes FOLDER/meters_DAYS.csv, a day a row: meter, label (the neighbourhood),
and t_0 to t_95, in tenths of a litre up to 200. Meters have a few days each, drawn at random. Everything is drawn from a
fixed seed and is public.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

SEED, READINGS, LARGEST = 20191003, 96, 200.0
NEIGHBOURHOODS = ("centre", "garden", "hill", "port")
# For each neighbourhood: hours at which households rise and come home, their mean size, and uses of the garden a day.
_HABITS = {
    "centre": (7.5, 19.0, 1.8, 0.0),
    "garden": (6.5, 18.0, 3.0, 0.5),
    "hill": (7.0, 18.5, 2.4, 0.2),
    "port": (5.0, 15.0, 2.2, 0.0),
}
# Uses a person and day, their litres, and their quarters of an hour.
_SHOWER, _KITCHEN, _TOILET = (0.8, 50.0, 2), (2.0, 12.0, 2), (4.0, 6.0, 1)
_LEAKS = 0.05


def meters(days: int, count: int, seed: int = SEED) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw days, and return readings (days, 96) in litres, neighbourhoods (days,) and meters (days,) as numbers."""
    random = np.random.default_rng(seed)
    place = random.integers(len(NEIGHBOURHOODS), size=count)
    habits = np.array([_HABITS[name] for name in NEIGHBOURHOODS])[place]
    hours = habits[:, :2] + 0.7 * random.standard_normal((count, 2))
    people = 1 + random.poisson(habits[:, 2] - 1.0)
    meter = random.integers(count, size=days)
    readings = np.zeros((days, READINGS))
    # The morning and the evening of each use; those of toilets scatter over the day.
    for (uses, litres, length), scatter in ((_SHOWER, 0.5), (_KITCHEN, 1.0), (_TOILET, 4.0)):
        for part in (0, 1):
            number = random.poisson(0.5 * uses * people[meter])
            _add(readings, number, hours[meter, part], scatter, litres, length, random)
    _add(readings, random.poisson(habits[meter, 3]), hours[meter, 1] + 1.0, 0.7, 160.0, 4, random)
    leaks = random.random(days) < _LEAKS
    begins = random.integers(READINGS, size=days)
    flow = random.gamma(3.0, 2.0, size=days)
    readings += np.where(leaks[:, None] & (np.arange(READINGS) >= begins[:, None]), flow[:, None], 0.0)
    return readings.clip(0.0, LARGEST).round(1), place[meter], meter


def _add(
    readings: np.ndarray, number: np.ndarray, hour: np.ndarray, scatter: float, litres: float, length: int,
    random: np.random.Generator,
) -> None:  # fmt: skip
    """Add so many uses to each day, about an hour, in place."""
    day = np.repeat(np.arange(len(readings)), number)
    begins = np.floor(4.0 * (hour[day] + scatter * random.standard_normal(len(day)))).astype(int) % READINGS
    amount = random.gamma(4.0, litres / 4.0, size=len(day)) / length
    for later in range(length):
        np.add.at(readings, (day, (begins + later) % READINGS), amount)


def written(folder: Path, days: int, count: int, seed: int = SEED) -> Path:
    """Write the file of so many days."""
    readings, place, meter = meters(days, count, seed)
    frame = pd.DataFrame(readings, columns=[f"t_{i}" for i in range(READINGS)])
    frame.insert(0, "label", np.array(NEIGHBOURHOODS)[place])
    frame.insert(0, "meter", meter)
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path := folder / f"meters_{days}.csv", index=False)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int, default=20_000)
    parser.add_argument("--meters", type=int, default=1000)
    asked = parser.parse_args()
    for name in ("days", "meters"):
        if getattr(asked, name) < 1:
            parser.error(f"--{name} {getattr(asked, name)}: expected 1 or more")
    path = written(asked.folder, asked.days, asked.meters)
    described = (
        f"dpgen train data=series data.path={path} data.length={READINGS} data.low=0 data.high={LARGEST:g} data.decimals=1 "
        f"data.classes=[{','.join(NEIGHBOURHOODS)}] data.n={asked.days}"
    )
    print(f"the unit a day:   {described}")
    most = -(-2 * asked.days // asked.meters)
    print(f"the unit a meter: {described} data.person=meter data.max_rows={most}")


if __name__ == "__main__":
    main()

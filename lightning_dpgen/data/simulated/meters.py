"""A fleet of water meters, simulated: days of 96 readings, since the data of dp-GAN's Figure 3 are not public."""

from __future__ import annotations

import numpy as np

from lightning_dpgen.data.public_sets import PublicSet
from lightning_dpgen.data.series.reading import read_series
from lightning_dpgen.data.series.schema import SeriesSchema

SEED, METERS, READINGS, LARGEST = 20191003, 1000, 96, 200.0
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


def draw_meters(days: int, draw: int = 0, *, count: int = METERS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw days, and return readings (days, 96) in litres, neighbourhoods (days,) and meters (days,) as numbers.

    A household has a neighbourhood of four, a size, and hours at which it rises and comes home. A day is a sum of uses
    (showers, kitchen, toilets, garden) at hours that scatter about these, in tenths of a litre a quarter of an hour, up to
    200; in one day of twenty a pipe leaks from some hour on. Meters have a few days each, drawn at random. Draws are of
    other households in the same neighbourhoods.

    Example:
        >>> [array.shape for array in draw_meters(3)]
        [(3, 96), (3,), (3,)]
    """
    random = np.random.default_rng(SEED + draw)
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


def make_meters() -> PublicSet:
    def read(drawn, schema, _):
        readings, place, meter = drawn
        return read_series(readings, schema, label=np.array(NEIGHBOURHOODS)[place], person=meter)

    schema = SeriesSchema(READINGS, 0.0, LARGEST, classes=NEIGHBOURHOODS, decimals=1)
    return PublicSet(schema, 20_000, read, draw=draw_meters, person="meter")

"""Simulated meters are the same each time, within their bounds, and a file of them is read as series."""

import numpy as np

from experiments.common import simulated_meters
from lightning_dpgen.data.series.reading import read_series
from lightning_dpgen.data.series.schema import SeriesSchema


def test_days_are_as_described():
    readings, place, meter = simulated_meters.meters(4000, 500)
    assert readings.shape == (4000, 96) and readings.min() == 0.0 and readings.max() <= simulated_meters.LARGEST
    assert all(len(set(place[meter == m])) == 1 for m in np.unique(meter)), "a meter has one neighbourhood"
    totals = readings.sum(axis=1)
    assert 100 < totals.mean() < 400 and totals[place == 1].mean() > 1.3 * totals[place == 0].mean(), "gardens take water"
    early = readings[:, 16:24].sum(axis=1)
    assert early[place == 3].mean() > 2.0 * early[place == 0].mean(), "the port rises early"
    again = simulated_meters.meters(4000, 500)
    assert all(np.array_equal(a, b) for a, b in zip((readings, place, meter), again, strict=True))


def test_a_file_is_read_as_series_of_meters(tmp_path):
    path = simulated_meters.written(tmp_path, 60, 20)
    schema = SeriesSchema(
        length=96, low=0.0, high=simulated_meters.LARGEST, classes=simulated_meters.NEIGHBOURHOODS, decimals=1
    )
    reading = read_series(path, schema, person="meter")
    assert len(reading.encoded) == 60 and 10 < len(np.unique(reading.persons)) <= 20

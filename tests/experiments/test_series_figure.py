"""Figure 3 of dp-GAN: settings that can be planned, and columns that mean what they say."""

import numpy as np
import pytest

from experiments.dpgan.series import COLUMNS, Days, real_rows, scores, sets, variants
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.specs.settings import load_complete_settings

SCHEMA = SeriesSchema(8, low=0.0, high=1.0)


def days(n, seed):
    """Draw days that rise or fall, so that their first and last readings go against each other."""
    slopes = np.random.default_rng(seed).uniform(-0.4, 0.4, (n, 1))
    units = 0.5 + slopes * np.linspace(-1.0, 1.0, 8)
    return Encoded(units.astype(np.float32), np.zeros((n, 0), np.uint8))


def described(read):
    return Days(SCHEMA, read, [])


@pytest.mark.parametrize(
    "name", ["uk_demand", "ausgrid", "powercons", "meters, 3,000 days", "meters, 20,000 days of a meter"]
)
def test_every_variant_has_a_plan(name):
    own = sets()[name]
    for settings in variants().values():
        asked = load_complete_settings([*own.settings, *settings])
        assert asked.plan().epsilon <= 6.0 or "privacy=off" in settings


def test_days_beside_themselves_and_days_turned_about():
    real = days(60, 0)
    same = dict(zip(COLUMNS, scores(described(None), real, real), strict=True))
    assert same["correlation, worst difference"] == same["distance, mean"] == 0.0
    turned = Encoded(real.units.copy(), real.codes)
    turned.units[:, 4:] = turned.units[:, :4]
    found = dict(zip(COLUMNS, scores(described(None), real, turned), strict=True))
    # Readings of the two halves had a correlation of -1, and have one of 1.
    assert found["correlation, worst difference"] == pytest.approx(2.0, abs=1e-3)
    assert found["distance, mean"] > 0.0 and found["AUC"] > 0.9


def test_real_rows_are_of_held_out_days_and_of_halves():
    rows = real_rows(described(lambda held_out: days(60, int(held_out))))
    assert set(rows) == {"held-out days", "half beside half"}
    assert all(len(row) == len(COLUMNS) for row in rows.values())

"""Rivals without training move by no more than their sensitivity, and without noise have the shares of the data."""

import doctest

import numpy as np
import pytest
import torch

from experiments.dpgm.baselines import Budget
from experiments.league import rivals as trivial_rivals
from experiments.league.rivals import RADIUS, class_means, naive_bayes
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of

N = 4000
PICTURES = ImageSchema(20, 20, levels=255, classes=3)


def _table(n, seed=0):
    """Return a table whose columns c and d follow the label b; a does not."""
    values = {"a": list("stuvw"), "b": ["no", "yes"], "c": list("xyz"), "d": list("uvwxyz")}
    columns = (column_of(name, {"type": "category", "values": of}) for name, of in values.items())
    schema = TableSchema(tuple(columns), label="b")
    random = np.random.default_rng(seed)
    label = (random.random(n) < 0.3).astype(np.int64)
    codes = [random.integers(0, 5, n), label, (label + (random.random(n) < 0.2)) % 3, label * 3 + random.integers(0, 3, n)]
    return Records(schema, Encoded(np.zeros((n, 0), np.float32), np.stack(codes, axis=1).astype(np.uint8)))


def _pictures(n, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, n)
    # Some are longer than the bound.
    units = (random.random((n, 400)) < 0.15 + 0.1 * labels[:, None]) * random.integers(200, 256, (n, 1))
    return Records(PICTURES, Encoded(units.astype(np.uint8), labels[:, None].astype(np.uint8)))


RIVALS = {"naive Bayes": (naive_bayes, _table), "class means": (class_means, _pictures)}


def test_examples():
    assert doctest.testmod(trivial_rivals).failed == 0


@pytest.mark.parametrize("name", RIVALS)
def test_rivals_are_records_and_as_seeded(name):
    rival, records = RIVALS[name]
    real = records(500)
    made, again, other = (rival(real, 300, Budget(1.0, 1e-5, seed)) for seed in (0, 0, 1))
    assert len(Records(real.schema, made)) == 300
    assert np.array_equal(made.codes, again.codes) and np.array_equal(made.units, again.units)
    assert not np.array_equal(made.codes, other.codes)


@pytest.mark.parametrize("name", RIVALS)
def test_one_record_more_moves_what_is_measured_by_its_sensitivity_at_most(name, monkeypatch):
    rival, records = RIVALS[name]
    measured = []

    def seen(access, noise, values, sensitivity=1.0, **_):
        measured.append((values.numpy().copy(), sensitivity))
        access.consume(noise)
        return values

    def counted(access, noise, places, bins):
        return seen(access, noise, torch.bincount(places, minlength=bins).double())

    monkeypatch.setattr(trivial_rivals, "gaussian", seen)
    monkeypatch.setattr(trivial_rivals, "noisy_histogram", counted)
    real = records(201)
    for row in range(20):
        measured.clear()
        fewer = Records(real.schema, real.encoded[np.delete(np.arange(201), row)])
        for side in (real, fewer):
            rival(side, 200, Budget(1.0, 1e-5, 0))
        half = len(measured) // 2
        moved = []
        for (before, sensitivity), (after, again) in zip(measured[:half], measured[half:], strict=True):
            assert sensitivity == again
            moved.append(np.linalg.norm(after - before) / sensitivity)
        assert max(moved) == pytest.approx(1.0) or name == "class means"
        assert max(moved) <= 1.0 + 1e-9


def test_pictures_beyond_the_bound_are_shortened_to_it():
    long = np.full((2, 400), 0.9)
    long[1] = 0.1
    norms = np.linalg.norm(trivial_rivals._shortened(long), axis=1)
    assert norms == pytest.approx([RADIUS, 2.0])


def test_without_noise_tables_have_the_shares_of_the_data():
    real = _table(N)
    made = naive_bayes(real, N, Budget(1000.0, 1e-5, 3))
    for column, choices in enumerate(real.schema.layout.groups):
        for label in (0, 1):
            both = [
                np.bincount(side.codes[side.codes[:, 1] == label, column], minlength=choices) / N
                for side in (real.encoded, made)
            ]
            # Both sides are drawn, the second with shares of the first: six deviations, 2e-9 for each of 30.
            assert np.abs(both[0] - both[1]).max() < 6 * np.sqrt(0.25 / N)
    # Columns still follow the label: c is never 2 without it.
    assert not ((made.codes[:, 2] == 2) & (made.codes[:, 1] == 0)).sum() > 0.01 * N


def test_without_noise_pictures_have_the_means_of_their_class():
    real = _pictures(N)
    made = class_means(real, N, Budget(1000.0, 1e-5, 3))
    shortened = trivial_rivals._shortened(real.encoded.units / 255)
    for label in range(3):
        expected = shortened[real.encoded.codes[:, 0] == label].mean(axis=0)
        of_class = made.units[made.codes[:, 0] == label] / 255
        # Each of 400 pixels is a coin in each of about 1,300 pictures: six deviations.
        assert np.abs(of_class.mean(axis=0) - expected).max() < 6 * np.sqrt(0.25 / 1200)
        assert set(np.unique(of_class)) <= {0.0, 1.0}

"""Nearest real series by dynamic time warping, against a table filled by plain loops, and within a time."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics.records import few_trees
from metrics.test_evaluation import section

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics import NearestSeries, evaluation, series_and_pictures
from lightning_dpgen.metrics.evaluation import evaluate_encoded
from lightning_dpgen.metrics.marginals import TRANSPORT

CURVES, NEAREST = "curves", "nearest real series"


@pytest.fixture(scope="module", autouse=True)
def _few_trees():
    with few_trees():
        yield


def warped(a, b, band):
    """Find the best path from the first readings to the last, by its definition."""
    table = np.full((len(a) + 1, len(b) + 1), np.inf)
    table[0, 0] = 0.0
    for i, j in itertools.product(range(len(a)), range(len(b))):
        if abs(i - j) <= band:
            before = min(table[i, j], table[i, j + 1], table[i + 1, j])
            table[i + 1, j + 1] = ((a[i] - b[j]) ** 2).sum() + before
    return math.sqrt(table[-1, -1])


def compared(real, synthetic, **given):
    metric = NearestSeries(real.shape[1], channels=real.shape[2], **given)
    for part in np.array_split(real, 2):
        metric.update(torch.from_numpy(part).flatten(1), real=True)
    metric.update(torch.from_numpy(synthetic).flatten(1), real=False)
    return metric


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 2), st.sampled_from([0, 1, 3, None]), st.integers(0, 99))
def test_distances_are_those_of_the_best_path_within_the_band(n, readings, channels, band, seed):
    random = np.random.default_rng(seed)
    band = None if band is None else min(band, readings - 1)
    real, synthetic = random.random((n, readings, channels)), random.random((3, readings, channels))
    metric = compared(real, synthetic, band=band)
    all_pairs = np.array([[warped(a, b, metric.band) for b in real] for a in synthetic])
    distances, places = metric.nearest()
    np.testing.assert_allclose(distances, all_pairs.min(axis=1), atol=1e-9)
    assert places.tolist() == all_pairs.argmin(axis=1).tolist()
    found = metric.compute()
    assert float(found["mean"]) == pytest.approx(all_pairs.min(axis=1).mean())
    assert float(found["median"]) == pytest.approx(np.median(all_pairs.min(axis=1)))


def test_a_peak_that_comes_later_is_near_within_the_band_alone():
    real, later = np.zeros((2, 1, 20, 1))
    real[0, 5], later[0, 8] = 1.0, 1.0
    assert float(compared(real, later, band=3).nearest()[0]) == 0.0
    assert float(compared(real, later, band=2).nearest()[0]) == pytest.approx(math.sqrt(2.0))


def test_real_series_are_taken_in_parts_and_the_nearest_of_all_is_found(monkeypatch):
    random = np.random.default_rng(0)
    real = random.random((20, 6, 1))
    monkeypatch.setattr(series_and_pictures, "_CELLS", 60)
    distances, places = compared(real, real[[19, 0, 7]]).nearest()
    assert places.tolist() == [19, 0, 7] and not distances.any()


def test_series_for_which_there_is_no_time_are_left_out(monkeypatch):
    ticks = iter([0.0, 0.0, 1.0, 2.0, 6.0])
    monkeypatch.setattr(series_and_pictures.time, "monotonic", lambda: next(ticks))
    real = np.random.default_rng(0).random((4, 6, 1))
    metric = compared(real, real, seconds=5.0)
    assert metric.nearest()[1].tolist() == [0, 1, 2]
    late = iter([0.0, 6.0])
    monkeypatch.setattr(series_and_pictures.time, "monotonic", lambda: next(late))
    assert math.isnan(metric.compute()["mean"])


def series(n, seed):
    return Encoded(np.random.default_rng(seed).random((n, 12)).astype(np.float32), np.zeros((n, 0), np.uint8))


def drawn(found):
    return [plot for plot in found.plots if plot.heading == "Nearest real series"]


def test_the_evaluation_says_where_time_was_over(monkeypatch):
    """A section that is computed from fewer series says so, and one of none is a note alone."""
    layout, asked = Layout(units=12), {"kind": "series", "held_out": series(5, 2), "channels": 2}
    found = evaluate_encoded(series(20, 0), series(9, 1), layout, **asked)
    assert NEAREST not in found.notes and [plot.content["real"].shape for plot in drawn(found)] == [(6,)] * 6
    assert set(found.scores[NEAREST]) == set(found.reference[NEAREST]) == {"distance, mean", "distance, median"}
    clock = itertools.count()
    monkeypatch.setattr(series_and_pictures.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(series_and_pictures, "SECONDS", 4.0)
    found = evaluate_encoded(series(20, 0), series(9, 1), layout, **asked)
    late = "the first 4 of {}, as 4 seconds were over"
    assert found.notes[NEAREST] == f"synthetic series: {late.format(9)}; held-out series: {late.format(5)}"
    monkeypatch.setattr(series_and_pictures, "SECONDS", 0.5)
    found = evaluate_encoded(series(20, 0), series(9, 1), layout, **asked)
    assert found.notes[NEAREST] == "synthetic series: none of 9, as 0.5 seconds were over" and NEAREST not in found.scores


def test_scores_stay_where_there_was_no_time_for_the_held_out_series(monkeypatch):
    clock = iter([0.0, 0.0, 0.0, 0.0, 5.0])
    monkeypatch.setattr(series_and_pictures.time, "monotonic", lambda: next(clock))
    found = section(NEAREST, Layout(units=12), series(5, 0), series(2, 1), series(3, 2), seconds=4.0)
    assert found.scores["distance, mean"] > 0.0 and found.reference == {}
    assert found.note == "held-out series: none of 3, as 2 seconds were over"


@pytest.mark.parametrize(("left", "limit"), [(None, 10.0), (1e6, 10.0), (5.0, 2.5)])
def test_each_side_has_half_of_the_time_that_is_left(monkeypatch, left, limit):
    limits, search = [], series_and_pictures.nearest_series

    def seen(real, synthetic, band, seconds):
        limits.append(seconds)
        return search(real, synthetic, band, seconds)

    monkeypatch.setattr(series_and_pictures, "nearest_series", seen)
    asked = {"kind": "series", "held_out": series(5, 2), "seconds": left}
    if left is not None:
        monkeypatch.setattr(evaluation.time, "monotonic", lambda: 0.0)
    evaluate_encoded(series(20, 0), series(9, 1), Layout(units=12), **asked)
    assert limits == [limit] * 2


@pytest.mark.parametrize("levels", [4, 255])
def test_distances_are_of_readings_between_0_and_1_whatever_their_levels(levels):
    """Whole numbers of levels are divided by these, in every section that compares readings."""
    random = np.random.default_rng(0)
    whole = [random.integers(0, levels + 1, (n, 12)).astype(np.uint8) for n in (20, 9, 5)]
    found = []
    for layout, scale in ((Layout(units=12, levels=levels), None), (Layout(units=12), levels)):
        sides = [units if scale is None else (units / scale).astype(np.float32) for units in whole]
        real, made, held_out = (Encoded(units, np.zeros((len(units), 0), np.uint8)) for units in sides)
        found.append(evaluate_encoded(real, made, layout, kind="series", held_out=held_out))
    for name in (NEAREST, CURVES, TRANSPORT):
        assert found[0].scores[name] == pytest.approx(found[1].scores[name], rel=1e-5)
        assert found[0].reference[name] == pytest.approx(found[1].reference[name], rel=1e-5)
    curves = [np.array([plot.content["real"] for plot in drawn(each)]) for each in found]
    assert np.allclose(*curves) and curves[0].max() <= 1.0


@pytest.mark.parametrize(("channels", "units", "kind"), [(5, 12, "series"), (0, 12, "series"), (2, 12, "images")])
def test_channels_that_do_not_fit_are_refused(channels, units, kind):
    with pytest.raises(ValueError, match=f"channels={channels} with kind='{kind}'"):
        evaluate_encoded(series(5, 0), series(5, 1), Layout(units=units), kind=kind, channels=channels)


BAD = {
    "readings": (lambda: NearestSeries(0), "readings=0: expected"),
    "channels": (lambda: NearestSeries(3, channels=0.5), "channels=0.5: expected"),
    "band": (lambda: NearestSeries(3, band=3), "band=3: expected"),
    "seconds": (lambda: NearestSeries(3, seconds=0.0), "seconds=0.0: expected"),
    "shape": (lambda: NearestSeries(3).update(torch.zeros(2, 4), real=True), r"expected \(n, 3\)"),
    "not finite": (lambda: NearestSeries(1).update(torch.full((1, 1), torch.nan), real=True), "NaN"),
    "none": (lambda: NearestSeries(3).nearest(), "at least one on each side"),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD.keys())
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()

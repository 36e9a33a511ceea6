"""Curves of series against plain formulas, and the laws of a distance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_dpgen.metrics.series_and_pictures import SeriesDistance, autocorrelations

law = settings(max_examples=40, deadline=None)


def compared(real, synthetic):
    metric = SeriesDistance(real.shape[1])
    for part in np.array_split(real, 2):
        metric.update(part, real=True)
    metric.update(synthetic, real=False)
    return {name: float(value) for name, value in metric.compute().items()}


def plain_autocorrelation(curve, lag):
    centred = curve - curve.mean()
    below = (centred**2).sum()
    return (centred[lag:] * centred[:-lag]).sum() / below if below > 1e-9 else 0.0


@law
@given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 99))
def test_curves_are_those_of_plain_formulas(n, readings, seed):
    random = np.random.default_rng(seed)
    real, synthetic = random.random((n, readings)), random.random((n + 1, readings)) ** 2
    found = compared(real, synthetic)
    lags = range(1, readings // 2 + 1)
    sides = [
        {
            "mean": side.mean(axis=0),
            "spread": side.std(axis=0),
            "autocorrelation": np.array([[plain_autocorrelation(row, lag) for lag in lags] for row in side]).mean(axis=0),
            "shape": (side / side.sum(axis=1, keepdims=True)).mean(axis=0),
        }
        for side in (real, synthetic)
    ]
    for name in found:
        difference = sides[0][name] - sides[1][name]
        rms = np.sqrt((difference**2).sum() / max(1, len(difference)))
        plain = 0.5 * np.abs(difference).sum() if name == "shape" else rms
        assert found[name] == pytest.approx(plain, abs=1e-9)
        assert 0.0 <= found[name] <= (2.0 if name == "autocorrelation" else 1.0)


@law
@given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 99))
def test_laws_of_a_distance(n, readings, seed):
    random = np.random.default_rng(seed)
    real, synthetic = random.random((n, readings)), random.random((n + 1, readings))
    assert compared(real, random.permutation(real)) == pytest.approx(dict.fromkeys(compared(real, real), 0.0), abs=1e-7)
    assert compared(real, synthetic) == pytest.approx(compared(synthetic, real))


def test_flat_series_and_series_of_zeros():
    flat, zeros = np.full((2, 6), 0.3, np.float32), np.zeros((2, 6), np.float32)
    assert not autocorrelations(np.concatenate([flat, zeros]).astype(float), 3).any()
    found = compared(flat, zeros)
    assert found == pytest.approx({"mean": 0.3, "spread": 0.0, "autocorrelation": 0.0, "shape": 0.0}, abs=1e-7)


def test_series_of_another_length_and_none_are_refused():
    metric = SeriesDistance(4)
    with pytest.raises(ValueError, match="expected 4 readings"):
        metric.update(np.zeros((2, 3)), real=True)
    metric.update(np.zeros((0, 4)), real=True)
    with pytest.raises(ValueError, match="expected at least one"):
        metric.compute()

"""Whole numbers for Gaussian and Laplace noise have the law of the rounded number, by chi-square against mpmath.

Seeds are fixed, so a false alarm does not come and go; drawn anew, each check would give one in a million.
"""

import functools
import itertools

import mpmath
import numpy as np
import pytest
from scipy import stats

from lightning_dpgen.privacy.keystream import Keystream
from lightning_dpgen.privacy.rounded_normal import rounded_normals
from lightning_dpgen.privacy.rounded_vectors import rounded_sphericals

COUNT = 400_000
FALSE_ALARM = 1e-6


def _beyond_normal(x):
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def _beyond_laplace(x):
    return mpmath.exp(-x) / 2 if x > 0 else 1 - mpmath.exp(x) / 2


@functools.cache
def _bins(beyond, scale, count):
    """Return the largest whole number of each bin but the last, and the expected count of each bin.

    Bins are single whole numbers, or half of the scale wide; beyond the first and the last border 40 or more are expected.
    """
    width = max(1, int(scale) // 2)
    borders = [(k, (k + mpmath.mpf(0.5)) / scale) for k in range(-40 * width, 40 * width, width)]
    kept = [(k, border) for k, border in borders if count * beyond(abs(border)) > 40]
    tails = [1, *(beyond(border) for _, border in kept), 0]
    return [k for k, _ in kept], np.array([float(count * (one - other)) for one, other in itertools.pairwise(tails)])


def _has_law(drawn, beyond, scale):
    edges, expected = _bins(beyond, scale, len(drawn))
    return _fits(np.bincount(np.searchsorted(edges, drawn), minlength=len(expected)), expected)


def _fits(seen, expected):
    assert len(expected) >= 3 and expected.min() >= 5
    return stats.chi2.sf(((seen - expected) ** 2 / expected).sum(), len(expected) - 1) > FALSE_ALARM


def _normals(sigma, seed=5):
    return rounded_normals(np.random.PCG64DXSM(seed).random_raw, COUNT, sigma)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.5, 1e6])
def test_rounded_normals_have_their_law(sigma):
    assert _has_law(_normals(sigma), _beyond_normal, sigma)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.5, 1e6])
def test_a_wrong_scale_or_an_end_of_the_tail_would_be_seen(sigma):
    """Rounded float64 normals of 1.01 sigma fail, and so do ours where those beyond 3.3 sigma are drawn again."""
    normals = np.random.default_rng(5).standard_normal(COUNT)
    assert _has_law(np.rint(sigma * normals).astype(np.int64), _beyond_normal, sigma)
    assert not _has_law(np.rint(1.01 * sigma * normals).astype(np.int64), _beyond_normal, sigma)
    inner = np.rint(sigma * normals[np.abs(normals) < 3.3]).astype(np.int64)
    assert sigma < 1 or not _has_law(inner, _beyond_normal, sigma)


@pytest.mark.parametrize("scale", [0.4, 3.3])
def test_rounded_laplace_numbers_have_their_law(scale):
    """Differences of geometric numbers, the discrete Laplace law, are another one and fail."""
    drawn = rounded_sphericals(np.random.PCG64DXSM(6).random_raw, COUNT, 1, scale)[:, 0]
    assert _has_law(drawn, _beyond_laplace, scale)
    ratio = 1 - np.exp(-1 / scale)
    first, second = np.random.default_rng(6).geometric(ratio, (2, COUNT))
    assert not _has_law(first - second, _beyond_laplace, scale)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.3, 7.5, 1e6])
def test_a_thousand_million_numbers_have_their_law(sigma):
    """They come from the cipher; normals of 1.0001 sigma would be off by 6 sigma in their variance alone."""
    count, at_once, source = 10**9, 10**6, Keystream()
    edges, expected = _bins(_beyond_normal, sigma, count)
    seen = np.zeros(len(expected), np.int64)
    for _ in range(count // at_once):
        drawn = rounded_normals(source.random_raw, at_once, sigma)
        seen += np.bincount(np.searchsorted(edges, drawn), minlength=len(seen))
    assert _fits(seen, expected)

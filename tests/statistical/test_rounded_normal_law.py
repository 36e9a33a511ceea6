"""Whole numbers for Gaussian, Laplace and spherical noise have the law of the rounded number, by chi-square and mpmath.

Seeds are fixed, so a false alarm does not come and go; drawn anew, each check would give one in a million.
"""

import functools
import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from lightning_dpgen.privacy.noise.rounded_normal import rounded_normals
from lightning_dpgen.privacy.noise.rounded_vectors import rounded_sphericals
from lightning_dpgen.privacy.noise.stream import Keystream

COUNT = 400_000
FALSE_ALARM = 1e-6


def _beyond_normal(x):
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def _beyond_laplace(x):
    return mpmath.exp(-x) / 2 if x > 0 else 1 - mpmath.exp(x) / 2


def _beyond_coordinate(x):
    """Return the chance that the first of three numbers of density exp(-|z|) / (8 pi) is beyond x."""
    tail = (2 + abs(x)) * mpmath.exp(-abs(x)) / 4
    return tail if x > 0 else 1 - tail


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


@functools.cache
def _cells(scale):
    """Return the chance of each vector of two numbers up to 3 in size, as (7, 7), by integration of the density."""
    density = lambda y, x: math.exp(-math.hypot(x, y) / scale) / (2 * math.pi * scale**2)  # noqa: E731
    own = {
        cell: integrate.dblquad(density, *itertools.chain(*((max(a - 0.5, 0), a + 0.5) for a in cell)), epsabs=1e-13)[0]
        for cell in itertools.combinations_with_replacement(range(4), 2)
    }
    sides = range(-3, 4)
    return np.array([[own[tuple(sorted((abs(a), abs(b))))] * 2.0 ** ((a == 0) + (b == 0)) for a in sides] for b in sides])


def _count_pairs(drawn):
    """Return how often each vector of `_cells` was drawn, and any other."""
    places = ((drawn + 3) @ np.array([7, 1])).clip(0, 49)
    places[np.abs(drawn).max(axis=1) > 3] = 49
    return np.bincount(places, minlength=50)


@pytest.mark.slow
@pytest.mark.parametrize("k, scale", [(1, 3.3), (2, 0.7), (3, 1.9)])
def test_a_thousand_million_numbers_of_vectors_have_their_law(k, scale):
    """They come from the cipher: Laplace numbers, pairs, and the first numbers of three."""
    count, at_once, source = 10**9 // k, 10**6, Keystream()
    if k == 2:
        inner = _cells(scale).ravel()
        expected = np.append(inner, 1.0 - inner.sum()) * (count // at_once * at_once)
        tally = _count_pairs
    else:
        edges, expected = _bins(_beyond_laplace if k == 1 else _beyond_coordinate, scale, count // at_once * at_once)
        tally = lambda drawn: np.bincount(np.searchsorted(edges, drawn[:, 0]), minlength=len(expected))  # noqa: E731
    seen = np.zeros(len(expected), np.int64)
    for _ in range(count // at_once):
        seen += tally(rounded_sphericals(source.random_raw, at_once, k, scale))
    assert _fits(seen, expected)

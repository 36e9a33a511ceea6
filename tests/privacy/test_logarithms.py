"""Logarithms are within their proved errors, against mpmath."""

import random
from fractions import Fraction

import mpmath
import numpy as np

from lightning_dpgen.privacy.noise import noisy_maximum
from lightning_dpgen.privacy.noise.noisy_maximum import bound_log, estimate_logs


def _worst(points):
    """Return the largest error of estimates at points, over the size of the logarithm."""
    with mpmath.workprec(300):
        exact = [mpmath.log(mpmath.mpf(float(x))) for x in points]
        return max(
            abs(float(y / x) - 1.0) if x else abs(float(y)) for x, y in zip(exact, estimate_logs(points), strict=True)
        )


def test_bounds_enclose_the_logarithm():
    choose = random.Random(1)
    for _ in range(400):
        x = Fraction(choose.randrange(1, 1 << choose.randrange(1, 200)), choose.randrange(1, 1 << choose.randrange(1, 200)))
        near_one = Fraction(1) + Fraction(choose.choice((-1, 1)), 1 << choose.randrange(2, 190))
        for own in (x, near_one):
            bits = choose.randrange(300)
            low, high = bound_log(own, bits)
            with mpmath.workprec(700):
                exact = mpmath.ldexp(mpmath.log(mpmath.mpf(own.numerator) / own.denominator), bits)
                assert low <= exact <= high and high - low <= 2


def test_estimates_are_within_their_error(monkeypatch):
    """Also near 1, where a logarithm is small, at both ends of float64, and beside the border of the reduced range."""
    draw, border = np.random.default_rng(0), np.sqrt(0.5)
    near_one = [1.0 - 2.0 ** -draw.uniform(1, 53, 400), 1.0 + 2.0 ** -draw.uniform(1, 52, 400)]
    ends = [border, np.nextafter(border, 0.0), np.nextafter(border, 1.0), 1.0, 2.0**-1022, np.finfo(float).max]
    points = np.concatenate([draw.random(400), *near_one, np.exp(draw.uniform(-700, 700, 400)), ends])
    assert _worst(points) < noisy_maximum.ERROR
    monkeypatch.setattr(noisy_maximum, "_TERMS", 7)
    assert _worst(np.array([np.nextafter(border, 1.0)])) > 2.0**-53
    monkeypatch.setattr(noisy_maximum, "_TERMS", 6)
    assert _worst(np.array([np.nextafter(border, 1.0)])) > noisy_maximum.ERROR

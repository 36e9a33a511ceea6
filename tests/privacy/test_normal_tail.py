"""Bounds of the normal tail hold against mpmath, at all sizes and precisions, and are narrow."""

import random
from fractions import Fraction

import mpmath
import pytest

from lightning_dpgen.privacy.noise.normal_quantiles import _compute_pi, bound_tail


def _tail(x, bits):
    with mpmath.workprec(4 * bits + 400):
        return mpmath.erfc(mpmath.mpf(x.numerator) / x.denominator / mpmath.sqrt(2)) / 2 * 2**bits


@pytest.mark.parametrize("bits", [1, 8, 64, 128, 320])
def test_bounds_hold_and_are_narrow(bits):
    chosen = random.Random(bits)
    sizes = [0.0, 2.0**-80, 1e-9, *(chosen.uniform(0, 1) for _ in range(20)), *(chosen.uniform(0, 40) for _ in range(40))]
    # The last x with a series of its own, and the first without.
    border = (1.4 * bits) ** 0.5
    for x in [Fraction(size) / chosen.choice([1, 3, 7**9]) for size in [*sizes, border - 1e-9, border + 1e-9]]:
        low, high = bound_tail(x, bits)
        assert low <= _tail(x, bits) <= high <= low + 2


def test_a_bound_of_one_tail_does_not_hold_for_its_neighbour():
    """The same comparison fails for a tail that is wrong by a millionth."""
    x = Fraction(17, 10)
    low, high = bound_tail(x, 64)
    assert not low <= _tail(x * (1 + Fraction(1, 10**6)), 64) <= high


@pytest.mark.parametrize("places", [64, 128, 1024])
def test_pi(places):
    with mpmath.workprec(places + 100):
        assert 0 <= mpmath.pi * mpmath.mpf(2) ** places - _compute_pi(places) <= 2

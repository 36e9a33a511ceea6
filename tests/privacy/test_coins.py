"""Coins are exact, by a count of all bytes that they can meet; whole-number noise has the law that they give it."""

import math
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from contracts.laws import lots as laws

from lightning_dpgen.privacy import coins


def test_every_pair_of_bytes_once_gives_exactly_the_probability():
    """There are 65,536 coins, one for each pair of bytes; only those whose first byte ties see their second."""
    for numerator in (0, 1, 255, 256, 257, 2**15, 2**16 - 1, 2**16):
        given = [np.arange(256, dtype=np.uint8).repeat(256), np.arange(256, dtype=np.uint8)]

        def octets(size, given=given):
            assert size == len(given[0])
            return given.pop(0)

        found = coins.heads(octets, 2**16, coins.digits(Fraction(numerator, 2**16)))
        assert found.tolist() == list(range(numerator))


@pytest.mark.parametrize("probability", [0.0, 1.0, 0.1, 0.0017, 1 / 3, 1 - 2**-53, 5e-324])
def test_digits_are_the_float_itself(probability):
    found = coins.digits(Fraction(probability))
    assert sum(Fraction(digit, 256 ** (place + 1)) for place, digit in enumerate(found)) == Fraction(probability)


def test_impossible_arguments():
    for probability in (Fraction(-1, 2), Fraction(3, 2)):
        with pytest.raises(ValueError, match="from 0 to 1"):
            coins.digits(probability)
    for scale in (0.0, -1.0, math.inf, math.nan, 2.0**60):
        with pytest.raises(ValueError, match="scale="):
            coins.geometric(lambda size: np.zeros(size, np.uint8), 3, scale)


@pytest.mark.parametrize("rate", [1.0, 0.5, 1 / 16])
def test_a_sample_in_blocks_has_each_record_at_its_own_place(rate):
    laws.a_sample_has_each_record_at_its_own_place(rate)


@pytest.mark.parametrize("scale", [0.05, 0.5, 4.0, 1000.3])
def test_binary_digits_make_a_geometric_number(scale):
    """The chance of x, multiplied together from its digits, is (1 - exp(-1 / scale)) exp(-x / scale)."""
    *below, above = (sum(found[i] * 256.0 ** -(i + 1) for i in range(60)) for found in coins._of_geometric(scale))
    assert above == pytest.approx(math.exp(-(2 ** len(below)) / scale), rel=1e-9)
    chances = list(below)
    for x in (0, 1, 2, 3, 5, 17, 900):
        if x >= 2 ** len(chances):
            continue
        together = math.prod(p if x >> place & 1 else 1 - p for place, p in enumerate(chances))
        assert together == pytest.approx(-math.expm1(-1 / scale) * math.exp(-x / scale), rel=1e-9)


def test_a_huge_scale_fits():
    """Bytes are 0 up to the first digit of a probability that is not, so all binary digits are 1; then comes a 255."""
    *below, _ = coins._of_geometric(2.0**52)
    given = [0 for found in below for _ in range(1 + next(i for i in range(99) if found[i]))] + [255]
    found = coins.geometric(lambda size: np.full(size, given.pop(0), np.uint8), 3, 2.0**52)
    assert (found == 2**60 - 1).all(), "all digits 1, and no overflow"


def test_nothing_ends_at_the_last_binary_digit():
    """The coin above the digits falls as its probability says: here of bytes that are its own digits, and one below."""
    scale = 0.9
    *below, above = coins._of_geometric(scale)
    heads = bytes([*(above[place] for place in range(99)), above[99] - 1])
    given = b"\xff" * len(below) + heads + b"\xff"
    found = coins.geometric(lambda size, left=list(given): np.array([left.pop(0)], np.uint8), 1, scale)
    assert found.tolist() == [1 << len(below)]
    with pytest.raises(OverflowError, match="int64"):
        coins.geometric(lambda size: np.zeros(size, np.uint8), 1, 2.0**52)


def test_endless_digits_are_those_of_more_precision():
    for found, probability in (
        (coins.EndlessDigits(lambda context: context.exp(Decimal(-1))), lambda: mpmath.exp(-1)),
        (coins._of_geometric(3.3)[0], lambda: 1 / (1 + mpmath.exp(1 / mpmath.mpf(3.3)))),
        (coins._of_geometric(0.9)[-1], lambda: mpmath.exp(-256 / mpmath.mpf(0.9))),
    ):
        with mpmath.workprec(8 * 320):
            digits = int(probability() * 256**300).to_bytes(300, "big")
        assert bytes(found[place] for place in range(300)) == digits

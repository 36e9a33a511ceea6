"""Coins are exact, by a count of all bytes that they can meet."""

from fractions import Fraction

import numpy as np
import pytest
from contracts.laws import lots as laws

from lightning_dpgen.privacy.noise import coins


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


@pytest.mark.parametrize("rate", [1.0, 0.5, 1 / 16])
def test_a_sample_in_blocks_has_each_record_at_its_own_place(rate):
    laws.a_sample_has_each_record_at_its_own_place(rate)

"""The error of the table of normal quantiles is proved piece by piece: a seeded part here, all of them where it is slow."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from lightning_dpgen.privacy.noise import normal_quantiles as quantiles
from lightning_dpgen.privacy.noise.normal_quantiles import bound_error, find_piece, make_table, read_table
from lightning_dpgen.privacy.noise.rounded_normal import ERROR

COLUMNS = range(1, (quantiles.OCTAVES << quantiles.BITS) + 1)


def _some(count):
    """Return columns at the ends of octaves, and as many in between."""
    ends = [1, 2, 256, 257, COLUMNS[-1] // 2, COLUMNS[-1] - 255, COLUMNS[-1]]
    return ends + np.random.default_rng(1).choice(COLUMNS, count, replace=False).tolist()


@pytest.mark.parametrize("column", _some(40))
def test_the_error_of_a_piece_is_proved(column):
    assert bound_error(read_table(), column) < ERROR


@pytest.mark.slow
def test_the_error_of_every_piece_is_proved_and_the_table_can_be_made_again():
    assert max(bound_error(read_table(), column) for column in COLUMNS) < ERROR
    assert make_table().tobytes() == read_table().tobytes()


@pytest.mark.parametrize("row", range(quantiles.DEGREE + 1))
def test_a_wrong_coefficient_has_no_proof(row):
    """The change moves the polynomial by 2^-47 of a standard deviation in its piece, eight times what is proved."""
    for column in (1, 1000, COLUMNS[-1]):
        table = read_table().copy()
        _, width = find_piece(column)
        table[row, column] += 2.0**-47 / width**row
        assert bound_error(table, column) > ERROR


def test_a_quantile_that_was_not_enclosed_is_no_proof(monkeypatch):
    approximate = quantiles._approximate
    quantiles._enclose.cache_clear()
    monkeypatch.setattr(quantiles, "_approximate", lambda amount: approximate(amount) + mpmath.mpf(2) ** -90)
    with pytest.raises(ArithmeticError, match="not found"):
        bound_error(read_table(), 1)
    quantiles._enclose.cache_clear()


def test_a_proof_holds_for_what_is_computed():
    """Errors of polynomials at both ends of pieces, against mpmath: within the proof, and not far below it."""
    worst = 0.0
    for column in _some(5):
        low, width = find_piece(column)
        coefficients = read_table()[:, column].tolist()
        for amount in (low, low + width // 3, low + width - max(1, low >> 52)):
            computed = 0.0
            for own in reversed(coefficients):
                computed = computed * float(amount - low) + own
            with mpmath.workprec(200):
                exact = mpmath.sqrt(2) * mpmath.erfinv(1 - mpmath.mpf(amount) / 2**63)
                error = float(abs(computed - exact))
            assert error < bound_error(read_table(), column)
            worst = max(worst, error)
    assert worst > ERROR / 40


def test_pieces_follow_each_other():
    ends = [find_piece(column) for column in COLUMNS]
    assert all(low + width == following for (low, width), (following, _) in itertools.pairwise(ends))
    assert ends[0][0] == 2 ** (63 - quantiles.OCTAVES) and sum(ends[-1]) == 2**63
    table = read_table()
    assert table.shape == (quantiles.DEGREE + 1, len(COLUMNS) + 2) and np.isnan(table[:, [0, -1]]).all()
    assert np.isfinite(table[:, 1:-1]).all() and (np.abs(table[:, 1:-1]) > 1e-290).all(), "no product underflows"


def test_taylor_coefficients_are_those_of_the_quantile():
    """The first two derivatives at the middle, 2^62, against a difference quotient of mpmath."""
    with mpmath.workprec(200):
        found = quantiles._expand(mpmath, quantiles._approximate(Fraction(2**62)), 2)
        step = Fraction(2**30)
        before, middle, after = (quantiles._approximate(2**62 + sign * step) for sign in (-1, 0, 1))
        assert math.isclose(found[1], (after - before) / (2 * step.numerator), rel_tol=1e-15)
        assert math.isclose(2 * found[2], (after - 2 * middle + before) / step.numerator**2, rel_tol=1e-12)

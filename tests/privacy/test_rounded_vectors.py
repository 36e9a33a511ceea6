"""Rounded spherical and Laplace vectors are those of their words, at borders, in the tail and with any of the digits."""

import functools
import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from lightning_dpgen.privacy.noise import rounded_vectors
from lightning_dpgen.privacy.noise.rounded_vectors import _bound_quantile, rounded_sphericals

FALSE_ALARM = 1e-6


def _source(first, rest=2**63 + 12345):
    """Return the words of the first draws, and the same word for all further digits."""
    given = list(first)

    def words(size):
        taken, given[:size] = given[:size], []
        return np.array(taken + [rest] * (size - len(taken)), np.uint64)

    return words


def _exact(first, rest=2**63 + 12345):
    """Return the vector before scale and rounding, by mpmath at 240 bits; four more words are enough of its digits."""
    numbers = []
    with mpmath.workprec(240):
        for word in first:
            digits = functools.reduce(lambda all_, own: all_ << 64 | own, [rest] * 4, word)
            sign = -1 if word >> 63 else 1
            digits = (1 << 320) - 1 - digits if sign < 0 else digits
            numbers.append(sign * _quantile(mpmath.mpf(digits) / mpmath.mpf(2) ** 320))
        k = len(numbers) // 2
        near, total = (mpmath.fsum(own * own for own in some) for some in (numbers[:k], numbers))
        return [own * total / mpmath.sqrt(near) / 2 for own in numbers[:k]]


def _quantile(chance):
    """Return the x that a normal number is beyond with this chance, at most 1/2."""
    start = -stats.norm.ppf(float(chance)) if chance > 1e-280 else 37
    return mpmath.findroot(lambda x: mpmath.log(mpmath.erfc(x / mpmath.sqrt(2)) / 2) - mpmath.log(chance), start)


def _rounded(exact, scale):
    with mpmath.workprec(240):
        return [int(mpmath.nint(own * mpmath.mpf(scale))) for own in exact]


def _words(k, seed):
    """Give 2k words, one of them beyond the table."""
    random = np.random.default_rng(seed)
    first = [int(own) for own in random.integers(0, 2**64, 2 * k, dtype=np.uint64)]
    first[int(random.integers(2 * k))] = int(random.integers(1, 2**49)) if seed % 2 else 2**64 - 1 - seed
    return first


@pytest.mark.parametrize("k, seed", [(1, 0), (1, 1), (2, 2), (3, 3), (9, 5)])
def test_vectors_are_those_of_their_words(monkeypatch, k, seed):
    """Also at borders: scales are those at which one of the numbers is a whole number and a half, and the floats beside."""
    first = _words(k, seed)
    exact = _exact(first)
    scales = [0.3, 1000.0, 2.0**30]
    for place in range(min(k, 2)):
        for whole in (0, 7, 10**6):
            near = float((whole + mpmath.mpf(0.5)) / abs(exact[place]))
            scales += [near, float(np.nextafter(near, 0)), float(np.nextafter(near, np.inf))]
    for scale in scales:
        assert rounded_sphericals(_source(first), 1, k, scale).tolist() == [_rounded(exact, scale)]
    monkeypatch.setattr(rounded_vectors, "_round_by_floats", lambda normals, scale, out, *_: np.arange(len(out)))
    for scale in scales[:4]:
        assert rounded_sphericals(_source(first), 1, k, scale).tolist() == [_rounded(exact, scale)]


def test_without_the_margin_some_are_wrong(monkeypatch):
    """The checks above are not blind: without the proved errors numbers at borders are rounded to the other side."""
    monkeypatch.setattr(rounded_vectors, "_ERROR", 0.0)
    monkeypatch.setattr(rounded_vectors, "_ROUNDING", 0.0)
    wrong = 0
    for seed in range(12):
        first = [int(own) for own in np.random.default_rng(seed).integers(2**50, 2**63, 4, dtype=np.uint64)]
        exact = _exact(first)
        scale = float((10**6 + mpmath.mpf(0.5)) / abs(exact[0]))
        wrong += rounded_sphericals(_source(first), 1, 2, scale).tolist() != [_rounded(exact, scale)]
    assert wrong


@pytest.mark.parametrize("k", [1, 2, 7, 30])
def test_what_floats_decide_holds_for_all_normal_numbers_within_their_error(k):
    """A number is put just beyond a border by errors that all pull one way, and the floats see it on the near side.

    Where they decide nevertheless, the vector is not that of its words.
    """
    random, decided = np.random.default_rng(k), 0
    for _ in range(12):
        normals = random.standard_normal((2 * k, 1)) * random.choice([0.3, 1.0, 3.0])
        place = int(np.abs(normals[:k, 0]).argmax())
        with mpmath.workprec(200):
            numbers = [mpmath.mpf(float(own)) for own in normals[:, 0]]
            near, total = (mpmath.fsum(own * own for own in some) for some in (numbers[:k], numbers))
            # The gradient of g_i (|G|^2 + |H|^2) / |G| in each number, by whose signs the errors go.
            slopes = [
                2 * own / mpmath.sqrt(near) - (own * total / mpmath.sqrt(near) ** 3 if row < k else 0)
                for row, own in enumerate(numbers)
            ]
            slopes = [numbers[place] * slope for slope in slopes]
            slopes[place] += total / mpmath.sqrt(near)
            up = mpmath.sign(numbers[place]) * mpmath.mpf(rounded_vectors._ERROR)
            moved = [own + up * mpmath.sign(slope) for own, slope in zip(numbers, slopes, strict=True)]
            near, total = (mpmath.fsum(own * own for own in some) for some in (moved[:k], moved))
            true = [abs(own) * total / mpmath.sqrt(near) / 2 for own in moved[:k]]
        whole = int(random.integers(10**3, 10**6))
        scale = float(np.nextafter(float((whole + mpmath.mpf(0.5)) / true[place]), np.inf))
        out, room = np.zeros((1, k), np.int64), np.empty((2, 2 * k, 1))
        undecided = rounded_vectors._round_by_floats(normals.copy(), scale, out, *room)
        assert len(undecided) or abs(out[0]).tolist() == [int(mpmath.nint(own * scale)) for own in true]
        # At a quarter of a step from all borders floats are enough.
        clear = float((whole + mpmath.mpf(0.25)) / true[place])
        decided += not len(rounded_vectors._round_by_floats(normals.copy(), clear, out, *room))
    assert decided or k > 2


@pytest.mark.parametrize(
    "digits, bits", [(1, 64), (2**49, 64), (2**63 - 1, 64), (12345, 128), (2**127 - 1, 128), (7**80, 256)]
)
def test_quantiles_are_enclosed(digits, bits):
    with mpmath.workprec(400):
        ends = [_quantile(mpmath.mpf(own) / mpmath.mpf(2) ** bits) for own in (digits, digits + 1)]
        for places in (52, bits):
            low, high = _bound_quantile(digits, bits, places)
            unit = mpmath.mpf(2) ** -places
            assert low * unit <= ends[1] <= ends[0] <= high * unit
            assert high - low <= 8 + 4 * (ends[0] - ends[1]) / unit


def test_blocks_give_vectors_of_their_own():
    drawn = rounded_sphericals(np.random.PCG64DXSM(1).random_raw, 3000, 7, 50.0)
    assert len(np.unique(drawn, axis=0)) == 3000
    assert abs(np.corrcoef(np.abs(drawn[:-1]).sum(axis=1), np.abs(drawn[1:]).sum(axis=1))[0, 1]) < 5.5 / math.sqrt(3000)
    assert rounded_sphericals(np.random.PCG64DXSM(1).random_raw, 0, 7, 50.0).shape == (0, 7)


@functools.cache
def _cells(scale):
    """Return the chance of each vector of two numbers up to 3 in size, by integration of the density."""
    density = lambda y, x: math.exp(-math.hypot(x, y) / scale) / (2 * math.pi * scale**2)  # noqa: E731
    quarter = {
        (a, b): integrate.dblquad(density, max(a - 0.5, 0), a + 0.5, max(b - 0.5, 0), b + 0.5)[0]
        * (1 + (a == 0))
        * (1 + (b == 0))
        for a in range(4)
        for b in range(4)
    }
    return {(a, b): quarter[abs(a), abs(b)] for a in range(-3, 4) for b in range(-3, 4)}


def _fits(drawn, scale):
    cells = _cells(scale)
    seen = np.array([(drawn == cell).all(axis=1).sum() for cell in cells])
    expected = len(drawn) * np.array(list(cells.values()))
    seen, expected = np.append(seen, len(drawn) - seen.sum()), np.append(expected, len(drawn) - expected.sum())
    assert expected.min() > 20
    return stats.chi2.sf(((seen - expected) ** 2 / expected).sum(), len(seen) - 1) > FALSE_ALARM


def test_small_vectors_have_their_law():
    """Chi-square over 49 vectors and the rest; a scale that is 5 % larger fails, and so do two Laplace numbers."""
    drawn = rounded_sphericals(np.random.PCG64DXSM(2).random_raw, 60_000, 2, 0.7)
    assert _fits(drawn, 0.7)
    assert not _fits(rounded_sphericals(np.random.PCG64DXSM(2).random_raw, 60_000, 2, 0.735), 0.7)
    assert not _fits(rounded_sphericals(np.random.PCG64DXSM(2).random_raw, 120_000, 1, 0.7).reshape(-1, 2), 0.7)


@pytest.mark.parametrize("k", [1, 4, 30])
def test_lengths_have_the_gamma_law(k):
    drawn = rounded_sphericals(np.random.PCG64DXSM(k).random_raw, 20_000, k, 2.0**20) * 2.0**-20
    lengths = np.linalg.norm(drawn, axis=1)
    assert stats.kstest(lengths, stats.gamma(k).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(1.1 * lengths, stats.gamma(k).cdf).pvalue < FALSE_ALARM


def test_impossible_arguments(monkeypatch):
    words = np.random.PCG64DXSM(0).random_raw
    for count, k, scale in ((3, 2, 2.0**46), (3, 2, 2.0**-21), (3, 2, math.nan), (3, 0, 1.0), (-1, 2, 1.0)):
        with pytest.raises(ValueError, match="expected"):
            rounded_sphericals(words, count, k, scale)
    monkeypatch.setattr(rounded_vectors, "_LARGEST", 2**50)
    with pytest.raises(OverflowError, match="int64"):
        rounded_sphericals(_source([1, 5]), 1, 1, 2.0**45)

"""Whole numbers for Gaussian noise are round(sigma Z) of their words: at borders, by table and by digits, at the ends."""

import math
import random

import mpmath
import numpy as np
import pytest

from lightning_dpgen.privacy.noise import rounded_normal
from lightning_dpgen.privacy.noise.rounded_normal import rounded_normals
from lightning_dpgen.privacy.noise.stream import Keystream

SIGMAS = [0.3, 1.0, 7.5, 1e6, math.pi * 2**30, 2.0**45]
ONES = 2**64 - 1


class Given:
    """A source that hands out given words in their order, and knows how many it has handed out."""

    def __init__(self, words):
        self.words, self.taken = np.asarray(words, np.uint64), 0

    def __call__(self, size):
        self.taken += size
        return self.words[self.taken - size : self.taken].copy()


def _random_words(size, seed=1):
    return np.random.PCG64DXSM(seed).random_raw(size)


def _digits(size, count, negative):
    """Return `count` words with the digits of a number, and three more with 0; all bits of a negative one are flipped."""
    words = [size >> 64 * place & ONES for place in reversed(range(count))] + [0] * 3
    return [word ^ ONES for word in words] if negative else words


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("count", [1, 2])
def test_at_borders_it_is_what_mpmath_says(sigma, count):
    """X is at a border in its first word or in its second, or misses it by a few units of that word.

    From the 0th unit on, or with one unit more, sigma Z is within about 1e-17 of k + 1/2, or 1e-36, in parts of sigma.
    """
    chosen = random.Random(count)
    for k in [0, *(chosen.randrange(math.ceil(3.5 * sigma)) for _ in range(9))]:
        with mpmath.workprec(64 * count + 136):
            tail = mpmath.erfc((mpmath.mpf(k) + 0.5) / mpmath.mpf(sigma) / mpmath.sqrt(2)) / 2
            last_beyond = int(mpmath.floor(tail * mpmath.mpf(2) ** (64 * count)))
        for away in (-200, -1, 0, 1, 2, 200):
            for negative in (False, True):
                source = Given(_digits(last_beyond + away, count, negative))
                size = k + 1 if away <= 0 else k
                assert rounded_normals(source, 1, sigma).tolist() == [-size if negative else size]
                if away == 0:
                    assert source.taken == count + 1, "the words so far hold the border between them"


@pytest.mark.parametrize("sigma", [2.0**-20, *SIGMAS])
def test_numbers_are_quantiles_of_their_words(sigma):
    """The quantile is mpmath's inverse of the error function, at 200 bits, in the middle of what the word leaves open."""
    words = _random_words(12, seed=3)
    for word, found in zip(words, rounded_normals(Given([*words, *[2**63] * 12]), 12, sigma).tolist(), strict=True):
        with mpmath.workprec(200):
            x = (int(word.astype(np.int64)) + mpmath.mpf(0.5)) / 2**63
            assert found == mpmath.nint(sigma * mpmath.sign(x) * mpmath.sqrt(2) * mpmath.erfinv(1 - abs(x)))


@pytest.mark.parametrize("sigma", [2.0**-20, *SIGMAS])
def test_the_table_decides_as_digits_do(sigma, monkeypatch):
    """With an error said to be so wide that nothing is decided by the table, the numbers are the same."""
    words = np.concatenate([_random_words(700), _random_words(100, seed=2) >> np.uint64(14)])
    by_table = rounded_normals(Given([*words, *[2**63] * 100]), len(words), sigma)
    asked = []
    by_digits = rounded_normal._round_by_digits
    monkeypatch.setattr(rounded_normal, "_round_by_digits", lambda *given: asked.append(given) or by_digits(*given))
    monkeypatch.setattr(rounded_normal, "ERROR", 1.0 / sigma)
    assert (rounded_normals(Given([*words, *[2**63] * 100]), len(words), sigma) == by_table).all()
    assert len(asked) == len(words)


def test_an_error_said_to_be_smaller_than_it_is_gives_wrong_numbers(monkeypatch):
    """Without its margin the table decides wrongly, which the test above would see."""
    words = _random_words(1000)
    right = rounded_normals(Given([*words, *words]), 1000, 2.0**45)
    monkeypatch.setattr(rounded_normal, "ERROR", 0.0)
    assert (rounded_normals(Given([*words, *words]), 1000, 2.0**45) != right).any()


def test_few_numbers_need_digits(monkeypatch):
    """The tail beyond the table has probability 2^-14: 32 of 2^19 are expected there, and 80 or more have chance 1e-12."""
    asked = []
    by_digits = rounded_normal._round_by_digits
    monkeypatch.setattr(rounded_normal, "_round_by_digits", lambda *given: asked.append(given[0]) or by_digits(*given))
    source = Given(_random_words(2**19 + 10))
    rounded_normals(source, 2**19, 1e4)
    assert 0 < len(asked) < 80 and source.taken == 2**19
    assert all(-(2**49) <= first < 2**49 for first in asked)


def test_the_words_alone_decide_in_any_number_of_blocks(monkeypatch):
    words = _random_words(5000)
    whole = rounded_normals(Given(words), 5000, 1e5)
    assert (rounded_normals(Given(words), 5000, 1e5) == whole).all()
    monkeypatch.setattr(rounded_normal, "_AT_ONCE", 999)
    assert (rounded_normals(Given(words), 5000, 1e5) == whole).all()
    assert (rounded_normals(Given(words[::-1]), 5000, 1e5) == whole[::-1]).all()
    # A word with all bits flipped is the negative number.
    assert (rounded_normals(Given(~words), 5000, 1e5) == -whole).all()


@pytest.mark.parametrize("sigma", [2.0**-20, 1.0, 2.0**45])
def test_words_at_the_ends(sigma):
    """X near 0 has no cap: each word of zeros takes the tail to another 2^-64, and a 1 after n of them ends it."""
    middle = rounded_normals(Given([2**63 - 1, 2**63]), 2, sigma).tolist()
    assert middle == [0, 0]
    for zeros in (1, 2, 7):
        size = rounded_normals(Given([0] * zeros + [1, 0]), 1, sigma).tolist()
        with mpmath.workprec(200):
            tail = -64 * (zeros + 1) * mpmath.log(2)
            z = mpmath.findroot(
                lambda x, tail=tail: mpmath.log(mpmath.erfc(x / mpmath.sqrt(2)) / 2) - tail, mpmath.sqrt(-2 * tail)
            )
            assert size == [int(mpmath.nint(sigma * z))]
        assert rounded_normals(Given([ONES] * zeros + [ONES - 1, ONES]), 1, sigma).tolist() == [-size[0]]


def test_a_draw_beyond_int64_is_an_error(monkeypatch):
    monkeypatch.setattr(rounded_normal, "_round_by_digits", lambda *given: 2**63)
    with pytest.raises(OverflowError):
        rounded_normals(Given([0]), 1, 2.0**45)


@pytest.mark.parametrize("sigma", [0.0, -1.0, 2.0**-21, 2.0**46, math.inf, math.nan, "a", True])
def test_other_sigmas_are_refused_before_a_word_is_drawn(sigma):
    source = Given([])
    with pytest.raises(ValueError, match=r"sigma=.*from 2\^-20 to 2\^45"):
        rounded_normals(source, 5, sigma)
    with pytest.raises(ValueError, match=r"count=-1: expected a whole number"):
        rounded_normals(source, -1, 1.0)
    assert source.taken == 0


def test_no_number_is_a_number_too():
    found = rounded_normals(Keystream().random_raw, 0, 1.0)
    assert found.shape == (0,) and found.dtype == np.int64


def test_a_guess_that_is_far_off_changes_no_number(monkeypatch):
    words = _random_words(15)
    found = rounded_normals(Given([*words, *words]), 15, 20.0)
    monkeypatch.setattr(rounded_normal, "ERROR", 1.0)
    for far in (0, 60):
        monkeypatch.setattr(rounded_normal, "_guess", lambda digits, bits, sigma, far=far: far)
        assert (rounded_normals(Given([*words, *words]), 15, 20.0) == found).all()

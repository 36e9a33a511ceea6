"""The noisy maximum is that of real numbers, at near ties and with any of the digits, and has its law."""

import functools
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from lightning_dpgen.privacy.noise import noisy_maximum
from lightning_dpgen.privacy.noise.noisy_maximum import _bound_loss, find_noisy_maximum
from lightning_dpgen.privacy.noise.stream import Keystream

# The chance that a test of a law fails although all is right; seeds are fixed.
ALARM = 1e-6


class Source:
    """Words that were chosen, in order, then those of a generator; all that were given are kept."""

    def __init__(self, chosen=(), seed=0):
        self._chosen, self._bits, self.given = list(chosen), np.random.PCG64DXSM(seed), []

    def __call__(self, size):
        taken, self._chosen = self._chosen[:size], self._chosen[size:]
        words = [*taken, *self._bits.random_raw(size - len(taken)).tolist()]
        self.given += words
        return np.array(words, np.uint64)


def _gumbel(words):
    """Return -ln(-ln U) by mpmath for a U of these words, and then a half."""
    digits = functools.reduce(lambda known, word: known << 64 | word, words, 0)
    return -mpmath.log(-mpmath.log((mpmath.mpf(digits) + mpmath.mpf(0.5)) / mpmath.mpf(2) ** (64 * len(words))))


def _tie_word(score, word, other, scale):
    """Return the first words of a U, as one number of 192 bits, for which `other` nearly ties with a score and its word."""
    value = mpmath.mpf(int(score - other)) / mpmath.mpf(scale) + _gumbel([word, 0, 0, 0])
    return int(mpmath.floor(mpmath.exp(-mpmath.exp(-value)) * mpmath.mpf(2) ** 192))


@pytest.mark.parametrize("scale", [0.37, 20.0, 2.0**30 / 3])
@pytest.mark.parametrize("apart", [-1, 0, 1])
def test_the_winner_of_a_near_tie_is_that_of_real_numbers(scale, apart):
    """Two candidates tie in their first word, or in two of them, or but for the last place of the second or third."""
    with mpmath.workprec(1200):
        for seed, depth in ((0, 1), (1, 2), (2, 3), (3, 2)):
            word = int(np.random.default_rng(seed).integers(2**40, 2**64, dtype=np.uint64))
            scores = np.array([seed * 3, int(seed * 3 + scale * 0.5 * (seed - 1)), -int(50 * scale) - 5])
            tie = (_tie_word(scores[0], word, scores[1], scale) >> 64 * (3 - depth)) + apart
            others = [tie >> 64 * place & 2**64 - 1 for place in reversed(range(depth))]
            # Words go to the candidates in turn: first of all three, and then of the two that are left.
            later = [own for place in range(1, depth) for own in (0, others[place])]
            source = Source([word, others[0], 5 * 2**61, *later])
            found = find_noisy_maximum(source, scores, scale)
            # The third takes part in the first round alone.
            mine, theirs = source.given[:1] + source.given[3::2], source.given[1:2] + source.given[4::2]
            values = [
                mpmath.mpf(int(s)) / mpmath.mpf(scale) + _gumbel(w) for s, w in zip(scores, (mine, theirs), strict=False)
            ]
            assert len(mine) >= depth
            assert found == int(values[1] > values[0])


def test_floats_without_their_error_choose_wrongly(monkeypatch):
    """The check above is not blind: without proved errors, float64 decides some of the ties to the wrong side."""
    monkeypatch.setattr(noisy_maximum, "_find_likely", _nearest_float)
    wrong = 0
    with mpmath.workprec(600):
        for seed in range(12):
            word = int(np.random.default_rng(seed).integers(2**40, 2**64, dtype=np.uint64))
            other = (_tie_word(7, word, 3, 20.0) >> 128) + 1
            source = Source([word, other])
            found = find_noisy_maximum(source, np.array([7, 3]), 20.0)
            values = [mpmath.mpf(s) / 20 + _gumbel([w]) for s, w in ((7, word), (3, other))]
            wrong += found != int(values[1] > values[0])
    assert wrong


def _nearest_float(first, behind, scale):
    uniform = (first + 0.5) * 2.0**-64
    return np.flatnonzero((value := behind / scale + np.log(-np.log(uniform))) == value.min())[:1]


@pytest.mark.parametrize("word", [0, 1, 2**20, 2**63, 2**64 - 2**9, 2**64 - 1])
def test_errors_of_floats_and_bounds_of_digits_hold_at_the_ends(word):
    """A word beside a candidate that lies at either end of what floats leave open; digits bound both."""
    first = np.array([word, 2**63], np.uint64)
    with mpmath.workprec(300):
        for behind in (0, 12345, 2**62):
            for end in (0, 1):
                digits = (word << 128) + (end * (2**128 - 1))
                low, high = _bound_loss(digits, 192, behind, Fraction(1000))
                uniform = (mpmath.mpf(digits) + mpmath.mpf(0.5)) / mpmath.mpf(2) ** 192
                exact = mpmath.ldexp(mpmath.mpf(behind) / 1000 + mpmath.log(-mpmath.log(uniform)), 192)
                assert (low is None or low <= exact) and (high is None or exact <= high)
        likely = noisy_maximum._find_likely(first, np.array([0, 0]), 1000.0)
        assert set(likely) >= {int(word < 2**63)}


def test_the_same_winner_with_floats_and_by_digits_alone(monkeypatch):
    draw = np.random.default_rng(3)
    tried = [(draw.integers(-9, 9, int(draw.integers(1, 30))), float(draw.uniform(0.1, 9.0))) for _ in range(60)]
    found = [find_noisy_maximum(Source(seed=place), *own) for place, own in enumerate(tried)]
    monkeypatch.setattr(noisy_maximum, "_find_likely", lambda first, behind, scale: np.arange(len(first)))
    assert found == [find_noisy_maximum(Source(seed=place), *own) for place, own in enumerate(tried)]
    assert len(set(found)) > 5


@pytest.mark.parametrize("words", [[0, 0, 3], [2**64 - 1] * 3, [0, 2**64 - 1, 2**63], [2**64 - 1, 0, 2**64 - 1]])
def test_words_without_an_end_take_more_digits(words):
    """U near 0 or 1 has no bound at one end until more digits are known; the others decide meanwhile."""
    source = Source(words)
    found = find_noisy_maximum(source, np.array([0, 0, 0]), 1.0)
    assert words[found] == max(words)
    assert (len(source.given) > 3) == (words.count(max(words)) > 1)


@pytest.mark.parametrize("by_digits", [False, True])
def test_the_law_is_that_of_the_exponential_mechanism(monkeypatch, by_digits):
    """Chi-square against exact probabilities, false alarm 1e-6; those of 0.8 and of 1.25 of the scale fail."""
    if by_digits:
        monkeypatch.setattr(noisy_maximum, "_find_likely", lambda first, behind, scale: np.arange(len(first)))
    scores, scale, count = np.array([0, 3, 9, 7, -4, 9]), 3.0, 500 if by_digits else 5000
    source = Source(seed=4)
    seen = np.bincount([find_noisy_maximum(source, scores, scale) for _ in range(count)], minlength=len(scores))

    def fits(scale):
        weights = np.exp(scores / scale)
        return stats.chisquare(seen, count * weights / weights.sum()).pvalue > ALARM

    assert fits(scale)
    assert by_digits or not (fits(0.8 * scale) or fits(1.25 * scale))


def test_large_differences_and_single_candidates():
    words = Keystream().random_raw
    assert find_noisy_maximum(words, np.array([-(2**62) + 1, 2**62 - 1]), 2.0**-20) == 1
    assert find_noisy_maximum(words, np.array([5]), 1.0) == 0
    assert find_noisy_maximum(words, np.append(np.zeros(10**4, np.int64), 400), 3.0) == 10**4
    for scale in (2.0**46, 2.0**-21, np.nan):
        with pytest.raises(ValueError, match="expected"):
            find_noisy_maximum(words, np.array([5, 6]), scale)
    assert noisy_maximum.ERROR == 2.0**-48

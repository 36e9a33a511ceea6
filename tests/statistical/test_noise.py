"""The private stream: right law, right tail, unknowable, never saved. Fixed seeds; 5 sigma: false alarm 6e-7."""

import copy
import math
import os
import pickle

import numpy as np
import pytest
import torch
from contracts import laws
from scipy import stats

from lightning_dpgen.privacy.noise import PrivateStream

COUNT = 4_000_001  # odd, and many pieces


@pytest.fixture(scope="module")
def normals():
    return PrivateStream(seed=1).normal((COUNT,)).numpy()


def _off(observed: float, expected: float, deviation: float) -> bool:
    return abs(observed - expected) > 5 * deviation


def test_moments(normals):
    x = normals.astype(np.float64)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert not _off((x**power).mean(), moment, math.sqrt(variance / COUNT))


def test_the_same_check_rejects_a_wrong_scale(normals):
    assert _off(np.square(normals * 1.01, dtype=np.float64).mean(), 1, math.sqrt(2 / COUNT))


@pytest.mark.parametrize("beyond", [1.0, 2.0, 3.0, 4.0, 4.5, 4.8])
def test_tail(normals, beyond):
    share = 2 * stats.norm.sf(beyond)
    found = (np.abs(normals) > beyond).sum()
    assert not _off(found, share * COUNT, math.sqrt(share * COUNT))


def test_distribution_of_radius_and_angle(normals):
    """Kolmogorov-Smirnov on the two halves that one word pair made; p below 1e-6 is a false alarm of 1e-6."""
    half = 1 << 17
    first, second = normals[:half].astype(np.float64), normals[half : 2 * half].astype(np.float64)
    assert stats.kstest(np.hypot(first, second), stats.rayleigh.cdf).pvalue > 1e-6
    assert stats.kstest(np.arctan2(second, first), stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 1e-6
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(half)


def test_small_words_are_continued_below_the_binary_point():
    """A word of 0 gives a uniform in (0, 1], not a cap: the radius beyond 31 bits (6.55) is reached, with its own law."""
    words = torch.zeros(20_000)
    PrivateStream(seed=3)._refine(words)
    assert stats.kstest(words.double().numpy(), stats.uniform(0, 1).cdf).pvalue > 1e-6
    assert torch.sqrt(-2 * torch.log(words * 2.0**-31)).max() > 7.0
    large = torch.full((1000,), 2.0**16)
    PrivateStream(seed=3)._refine(large)
    assert (large == 2.0**16).all()


@pytest.mark.parametrize("shape", [(0,), (1,), (2,), (3, 5), (257,), (1 << 18,), ((1 << 18) + 1,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_size_is_filled(shape, dtype):
    out = torch.full(shape, torch.nan, dtype=dtype)
    assert torch.isfinite(PrivateStream(seed=0).normal_(out)).all()


def test_seeded_streams_repeat():
    assert torch.equal(PrivateStream(seed=5).normal((8,)), PrivateStream(seed=5).normal((8,)))
    assert PrivateStream(seed=5).seeded and not PrivateStream().seeded


def test_seeds_do_not_reach_it():
    laws.no_seed_reaches_the_private_stream()
    laws.the_key_of_a_gpu_is_the_operating_systems()


@pytest.mark.parametrize("save", [pickle.dumps, copy.copy, copy.deepcopy])
def test_never_saved(save):
    with pytest.raises(TypeError, match="never saved"):
        save(PrivateStream())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_keyed_anew():
    stream = PrivateStream()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, stream.normal((4,)).numpy().tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 16) != stream.normal((4,)).numpy().tobytes()


def test_poisson_sample():
    """Size Binomial(200, 0.1) and equal inclusion: a z-score of each at 5 sigma."""
    stream, draws, population, rate = PrivateStream(seed=2), 4000, 200, 0.1
    samples = [stream.poisson_sample(population, rate) for _ in range(draws)]
    assert all((np.diff(s) > 0).all() for s in samples)
    sizes = np.array([len(s) for s in samples])
    variance = population * rate * (1 - rate)
    assert not _off(sizes.mean(), population * rate, math.sqrt(variance / draws))
    assert not _off(sizes.var(), variance, variance * math.sqrt(2.2 / draws))
    included = np.bincount(np.concatenate(samples), minlength=population)
    assert np.abs(included - draws * rate).max() < 5.5 * math.sqrt(draws * rate * (1 - rate))
    # Lots of a fixed size, which are not Poisson samples, would fail.
    assert _off(np.full(draws, 20).var(), variance, variance * math.sqrt(2.2 / draws))


def test_poisson_sample_at_its_limits():
    stream = PrivateStream(seed=2)
    assert len(stream.poisson_sample(0, 0.5)) == 0
    assert stream.poisson_sample(5, 1.0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("multiplier", "sensitivity"), [(1.0, 1.0), (0.8, 3.0), (5.0, 1e-3)])
def test_the_mechanism_adds_multiplier_times_sensitivity(multiplier, sensitivity, dtype):
    laws.noise_is_multiplier_times_sensitivity(multiplier, sensitivity, dtype)

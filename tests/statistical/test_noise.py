"""The private stream, of both kinds, has the right law and the right tail, is unknowable and is never saved.

Seeds and keys are fixed, so a false alarm does not come and go; drawn anew, a check at 5 sigma would give one in 6e-7.
"""

import copy
import math
import os
import pickle

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from contracts.laws import noise as laws
from scipy import stats

from lightning_dpgen.privacy.noise.stream import PrivateStream

COUNT = 4_000_001  # an odd number, of many pieces


@pytest.fixture(scope="module")
def normals(stream_of):
    return stream_of(1).normal((COUNT,)).numpy()


@pytest.fixture(params=[False, True], ids=["standard", "secure"])
def secure(request):
    return request.param


def _off(observed: float, expected: float, deviation: float) -> bool:
    return abs(observed - expected) > 5 * deviation


def test_moments(normals):
    x = normals.astype(np.float64)
    squares = x * x
    for powers, moment, variance in ((x, 0, 1), (squares, 1, 2), (squares * x, 0, 15), (squares * squares, 3, 96)):
        assert not _off(powers.mean(), moment, math.sqrt(variance / COUNT))


def test_the_same_check_rejects_a_wrong_scale(normals):
    assert _off(np.square(normals * 1.01, dtype=np.float64).mean(), 1, math.sqrt(2 / COUNT))


@pytest.mark.parametrize("beyond", [1.0, 2.0, 3.0, 4.0, 4.5, 4.8])
def test_tail(normals, beyond):
    share = 2 * stats.norm.sf(beyond)
    found = (np.abs(normals) > beyond).sum()
    assert not _off(found, share * COUNT, math.sqrt(share * COUNT))


def test_distribution_of_radius_and_angle(normals):
    """A Kolmogorov-Smirnov test on the two halves of each pair of words; p below 1e-6 is a false alarm of 1e-6."""
    half = 1 << 17
    first, second = normals[:half].astype(np.float64), normals[half : 2 * half].astype(np.float64)
    assert stats.kstest(np.hypot(first, second), stats.rayleigh.cdf).pvalue > 1e-6
    assert stats.kstest(np.arctan2(second, first), stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 1e-6
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(half)


@pytest.mark.parametrize(("dtype", "bits", "fine"), [(torch.float32, 31, 2.0**16), (torch.float64, 63, 2.0**43)])
def test_small_words_are_continued_below_the_binary_point(stream_of, dtype, bits, fine):
    """A word of 0 gives a uniform in (0, 1], not a cap: a radius beyond all bits (6.55, 9.35) is reached, with its law."""
    words = torch.zeros(20_000, dtype=dtype)
    stream_of(3)._refine(words)
    assert stats.kstest(words.double().numpy(), stats.uniform(0, 1).cdf).pvalue > 1e-6
    cap = math.sqrt(2 * bits * math.log(2))
    assert cap < torch.sqrt(-2 * torch.log(words * 2.0**-bits)).min() and words.min() > 0
    assert torch.sqrt(-2 * torch.log(words * 2.0**-bits)).max() > cap + 0.45
    large = torch.full((1000,), fine, dtype=dtype)
    stream_of(3)._refine(large)
    assert (large == fine).all()


def test_normals_in_float64(stream_of):
    """A Kolmogorov-Smirnov test over all, and the second moment; 3 % off must fail."""
    sample = stream_of(7).normal((100_001,), dtype=torch.float64).numpy()
    assert stats.kstest(sample, stats.norm.cdf).pvalue > 1e-6
    for values, off in ((sample, False), (1.03 * sample, True)):
        assert _off(np.square(values).mean(), 1, math.sqrt(2 / len(sample))) == off
    assert (sample.astype(np.float32) != sample).mean() > 0.99


def test_laplace_numbers(stream_of):
    sample = stream_of(8).add_rounded_laplace_(torch.zeros(100_000, dtype=torch.int64), 2.0**30).numpy() / 2.0**30
    assert stats.kstest(sample, stats.laplace.cdf).pvalue > 1e-6
    assert stats.kstest(sample / math.sqrt(2), stats.laplace.cdf).pvalue < 1e-6


@pytest.mark.parametrize("word", [0, 1, 2**64 - 2, 2**64 - 1])
def test_the_last_words_give_finite_numbers(stream_of, monkeypatch, word):
    """Words are all bits 0 and all bits 1, where logarithms end."""
    stream = stream_of(0)

    class Same:
        def random_raw(self, size):
            return np.full(size, word, np.uint64)

    monkeypatch.setattr(stream, "_bits", Same())
    for dtype in (torch.float32, torch.float64):
        assert torch.isfinite(stream.normal((5,), dtype=dtype)).all()


@pytest.mark.parametrize("shape", [(0,), (1,), (2,), (3, 5), (257,), (1 << 18,), ((1 << 18) + 1,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_size_is_filled(stream_of, shape, dtype):
    out = torch.full(shape, torch.nan, dtype=dtype)
    assert torch.isfinite(stream_of(0).normal_(out)).all()


def test_seeded_streams_repeat():
    assert torch.equal(PrivateStream(seed=5).normal((8,)), PrivateStream(seed=5).normal((8,)))
    assert PrivateStream(seed=5).seeded and not PrivateStream().seeded


def test_a_secure_stream_takes_no_seed():
    with pytest.raises(ValueError, match="takes no seed"):
        PrivateStream(seed=5, secure=True)
    assert "noise and sampling" in PrivateStream(secure=True).source and "PCG64" in PrivateStream().source
    assert "seed" in PrivateStream(seed=5).source


SEEDS = {"torch": torch.manual_seed, "numpy": np.random.seed, "lightning": pl.seed_everything}


@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
def test_no_public_seed_reaches_it(secure, seed, monkeypatch):
    """It reaches neither a new stream, nor an older one, nor its sampling; the stream takes nothing from public ones."""
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # Lightning sets it and never takes it back
    there = PrivateStream(secure=secure)
    draws = []
    for _ in range(2):
        seed(0)
        public = torch.get_rng_state(), np.random.get_state()[1].copy()
        new = PrivateStream(secure=secure)
        draws.append([there.normal((8,)), new.normal((8,)), torch.from_numpy(new.poisson_sample(500, 0.5).copy())])
        assert torch.equal(torch.get_rng_state(), public[0]) and (np.random.get_state()[1] == public[1]).all()
    assert not any(torch.equal(first, second) for first, second in zip(*draws, strict=True))


@pytest.mark.parametrize("save", [pickle.dumps, copy.copy, copy.deepcopy])
def test_never_saved(secure, save):
    with pytest.raises(TypeError, match="never saved"):
        save(PrivateStream(secure=secure))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forked_children_are_keyed_anew(secure, dtype):
    """Two children and their parent draw three different things from a stream in mid-course."""
    stream = PrivateStream(secure=secure)
    stream.normal((5,))
    seen = set()
    for _ in range(2):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, stream.normal((4,), dtype=dtype).numpy().tobytes())
            os._exit(0)
        os.waitpid(child, 0)
        seen.add(os.read(read, 64))
        os.close(read)
        os.close(write)
    assert len(seen | {stream.normal((4,), dtype=dtype).numpy().tobytes()}) == 3


def test_no_number_is_handed_out_twice(stream_of):
    laws.no_number_of_the_stream_is_handed_out_twice(stream_of)


def test_poisson_sample(stream_of):
    """The size is Binomial(200, 0.1) and inclusion is equal: a z-score of each at 5 sigma."""
    stream, draws, population, rate = stream_of(2), 4000, 200, 0.1
    samples = [stream.poisson_sample(population, rate) for _ in range(draws)]
    assert all((np.diff(s) > 0).all() for s in samples)
    sizes = np.array([len(s) for s in samples])
    variance = population * rate * (1 - rate)
    assert not _off(sizes.mean(), population * rate, math.sqrt(variance / draws))
    assert not _off(sizes.var(), variance, variance * math.sqrt(2.2 / draws))
    included = np.bincount(np.concatenate(samples), minlength=population)
    assert np.abs(included - draws * rate).max() < 5.5 * math.sqrt(draws * rate * (1 - rate))
    # Lots of a fixed size are no Poisson samples and would fail.
    assert _off(np.full(draws, 20).var(), variance, variance * math.sqrt(2.2 / draws))


def test_poisson_sample_at_its_limits(stream_of):
    stream = stream_of(2)
    assert len(stream.poisson_sample(0, 0.5)) == 0
    assert stream.poisson_sample(5, 1.0).tolist() == [0, 1, 2, 3, 4]
    assert len(stream.poisson_sample(300_000, 1e-300)) == 0
    for rate in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError):
            stream.poisson_sample(5, rate)


def test_a_poisson_sample_of_many_records(stream_of):
    """More records than are drawn at a time: 300,000 in 30 equal parts, each count at 5.5 sigma."""
    sample = stream_of(4).poisson_sample(300_000, 0.01)
    assert (np.diff(sample) > 0).all() and sample.dtype == np.int64
    assert np.abs(np.histogram(sample, 30, (0, 300_000))[0] - 100).max() < 5.5 * math.sqrt(99)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("multiplier", "sensitivity"), [(1.0, 1.0), (0.8, 3.0), (5.0, 1e-3)])
def test_the_mechanism_adds_multiplier_times_sensitivity(multiplier, sensitivity, dtype):
    laws.noise_is_multiplier_times_sensitivity(multiplier, sensitivity, dtype)

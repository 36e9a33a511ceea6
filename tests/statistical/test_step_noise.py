"""A whole private step adds N(0, (multiplier C / L)^2) to every parameter, whatever is in the lot.

Seeds are fixed. Each check is a z-score at 5.5 on a mean square of 20,000 or more normals: a false alarm of 4e-8.
"""

import math

import pytest
import torch
from contracts.laws.noise import (
    deviates,
    every_component_is_noised_alike_also_without_records,
)

from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.noise import stream as noise
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.noise.units import grid_step


@pytest.mark.parametrize("size", [0, 6])
def test_every_component_is_noised_alike_also_without_records(size):
    every_component_is_noised_alike_also_without_records(size)


def test_pieces_of_a_large_draw_are_independent(account_of):
    """Noise is drawn piece by piece into one scratch tensor: a piece used twice would correlate perfectly."""
    piece = 2 * noise._PAIRS
    with account_of({"sum": 2.0}).open("training") as access:
        noisy = gaussian(access, "sum", torch.zeros(2 * piece + 7), sensitivity=0.5)
    assert not deviates(noisy, 1.0) and deviates(noisy, 1.01)
    first, second = noisy[:piece].double(), noisy[piece : 2 * piece].double()
    half = piece // 2
    for a, b in ((first, second), (first[:half], first[half:]), (first[:-1], first[1:])):
        assert abs(float((a * b).mean())) < 5.5 / math.sqrt(len(a))
        # Magnitudes do not correlate either, although the two halves of a Box-Muller pair share a radius.
        assert abs(float(((a.square() - 1) * (b.square() - 1)).mean())) < 5.5 * 2 / math.sqrt(len(a))
    assert (noisy[-7:] != 0).all()


def test_float64_sums_get_float64_noise(account_of):
    with account_of({"sum": 1.0}).open("training") as access:
        noisy = gaussian(access, "sum", torch.zeros(20_000, dtype=torch.float64), sensitivity=3.0)
    assert noisy.dtype == torch.float64 and not deviates(noisy, 3.0) and deviates(noisy, 3.0 * math.sqrt(2))
    assert (noisy % grid_step(3.0) == 0.0).all()
    drawn = PrivateStream(seed=0).normal((100,), dtype=torch.float64)
    assert (drawn.float().double() != drawn).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_noise_of_low_precision_is_refused(dtype):
    with pytest.raises(TypeError, match="float32 or float64"):
        PrivateStream(seed=0).normal((3,), dtype=dtype)


def test_the_whole_path_reaches_far_into_the_tail(stream_of, monkeypatch):
    """Words are 0 and 1 (the smallest uniforms): normals of torch end at 5.77, these go beyond 6.5 by their own law."""
    stream = stream_of(4)
    monkeypatch.setattr(stream, "_words", lambda pairs, device, dtype: torch.zeros(2, pairs, dtype=torch.int32))
    values = stream.normal((2000,))[:1000]  # angle 0: the cosine half is the radius itself
    assert values.min() > 6.5 and values.max() > 7.2 and torch.isfinite(values).all()
    # u is uniform in (0, 2^-31]: the radius r exceeds t with probability 2^31 exp(-t^2 / 2). At t = 6.9 that is 0.0988;
    # 5.5 standard deviations of a share of 1000 are 0.052.
    expected = 2.0**31 * math.exp(-(6.9**2) / 2)
    assert abs(float((values > 6.9).double().mean()) - expected) < 5.5 * math.sqrt(expected * (1 - expected) / 1000)

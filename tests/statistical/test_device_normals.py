"""Normals of a GPU, in Triton's interpreter: words of Philox, Box and Muller's formula, the whole tail.

Seeds are fixed. A Kolmogorov-Smirnov test fails below 1e-6, its false alarm.
"""

import math
import pickle

import numpy as np
import pytest
import torch
from scipy import stats
from statistical.philox import BITS, DRAW, KEY, expected_pair, philox
from triton_process import ended_process, interpreted  # noqa: F401

from lightning_dpgen.privacy.noise import device_normals
from lightning_dpgen.privacy.noise.device_normals import DeviceNormals

# The interpreter of older versions fails with numpy 2.4 and later; they compile the kernels all the same.
pytest.importorskip("triton", minversion="3.7")


def drawn(size, dtype, deviation=1.0):
    normals, out = DeviceNormals(KEY), torch.zeros(size, dtype=dtype)
    normals._draws = DRAW
    normals.add_(out, deviation)
    return out


def test_the_oracle_is_philox():
    counter = 0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344  # a known answer of the authors' Random123
    assert philox(0x299F31D0A4093822, counter) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("dtype", BITS)
@interpreted
def test_normals_follow_from_key_draw_and_place(dtype):
    size, deviation = 2 * device_normals._BLOCK + 301, 2.5
    half, found = (size + 1) // 2, drawn(size, dtype, deviation).double().numpy() / deviation
    for place in (0, 1, device_normals._BLOCK - 1, device_normals._BLOCK, half - 2):
        assert np.allclose(
            found[[place, half + place]], expected_pair(place, dtype), atol=3e-6 if dtype == torch.float32 else 1e-14
        )
    # An odd number leaves the last one of a pair out.
    assert np.allclose(found[half - 1], expected_pair(half - 1, dtype)[0], atol=3e-6)


@pytest.mark.parametrize("dtype", BITS)
@interpreted
def test_normals_have_their_law_and_are_added(dtype):
    found = drawn(60_001, dtype)
    assert (
        stats.kstest(found.numpy(), stats.norm.cdf).pvalue
        > 1e-6
        > stats.kstest(1.05 * found.numpy(), stats.norm.cdf).pvalue
    )
    half = len(found) // 2
    assert abs(np.corrcoef(found[:half], found[-half:])[0, 1]) < 5.0 / math.sqrt(half)
    normals, twice = DeviceNormals(KEY), torch.full((60_001,), 3.0, dtype=dtype)
    normals._draws = DRAW
    normals.add_(twice, 1.0)
    assert torch.allclose(twice - 3.0, found, atol=1e-6)
    # The next draw is another one.
    again = torch.zeros_like(found)
    normals.add_(again, 1.0)
    assert abs(np.corrcoef(found, again)[0, 1]) < 5.0 / math.sqrt(len(found))


@pytest.mark.parametrize("dtype", BITS)
@interpreted
def test_a_radius_beyond_all_bits_is_reached(dtype):
    """Every word of a radius is taken as small: radii follow from the 53 bits behind it alone."""
    import triton.language as tl

    philox, cap = tl.philox, math.sqrt(2.0 * BITS[dtype] * math.log(2.0))

    def small(key, c0, c1, *rest):
        words = list(philox(key, c0, c1, *rest))
        # The first block holds the radius and the angle, and for float32 the bits behind the radius.
        for i in () if c1.handle.data.any() else (0, 1) if dtype == torch.float32 else range(4):
            words[i] = words[i] * 0
        return tuple(words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tl, "philox", small)
        found = drawn(4000, dtype)[:2000].double().numpy()
    assert found.min() > cap - 1e-3 and found.max() > cap + 0.4 and np.isfinite(found).all()
    # With u uniform in (0, 2^-bits], exp(-r^2 / 2) times 2^bits is uniform.
    assert stats.kstest(np.exp(-np.square(found) / 2.0 + BITS[dtype] * math.log(2.0)), stats.uniform.cdf).pvalue > 1e-6


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float32, 10.791), (torch.float64, 12.681)])
@interpreted
def test_the_least_uniform_has_53_bits_behind_all_others(dtype, largest):
    import triton.language as tl

    philox = tl.philox
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tl, "philox", lambda *given: tuple(word * 0 for word in philox(*given)))
        found = drawn(8, dtype)
    assert torch.allclose(found[:4], torch.full((4,), largest, dtype=dtype), atol=1e-3) and not found[4:].any()


@interpreted
def test_places_count_beyond_32_bits():
    """The counters of a block far behind; nothing is loaded or stored."""
    import triton.language as tl
    from triton.runtime.interpreter import interpreter_semantic

    philox, program, counters = tl.philox, tl.program_id, []
    block = (3 << 32) // device_normals._BLOCK

    def counted(key, low, high, *rest):
        counters.append((int(low.handle.data[0]), int(high.handle.data[0])))
        return philox(key, low, high, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tl, "philox", counted)
        patch.setattr(tl, "program_id", lambda axis: program(axis, _semantic=interpreter_semantic) + block)
        # No place is below the number of pairs.
        drawn(2, torch.float32)
        drawn(2, torch.float64)
    assert counters == [(0, 3), (0, 3), (0, 3 | 1 << 30)]


def test_draws_are_counted_before_they_are_made(monkeypatch):
    """One that is interrupted is not made again; keys are never saved."""

    def interrupt(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(device_normals, "launch", interrupt)
    normals = DeviceNormals(KEY)
    with pytest.raises(KeyboardInterrupt):
        normals.add_(torch.zeros(4), 1.0)
    assert normals._draws == 1
    with pytest.raises(TypeError, match="never saved"):
        pickle.dumps(normals)


@pytest.mark.parametrize("deviation", [1e-40, 1e39, math.inf, math.nan])
def test_a_kernel_serves_deviations_that_float32_holds(deviation, monkeypatch):
    monkeypatch.setattr(device_normals, "serves", lambda *given: True)
    assert DeviceNormals.serve(torch.zeros(1)) and not DeviceNormals.serve(torch.zeros(1), deviation)


@interpreted
def test_a_kernel_that_draws_other_normals_serves_nothing():
    device_normals._try_normals(torch.device("cpu"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_normals, "_FINE", 2**31 - 1)
        patch.setattr(math, "pi", 3.0)
        with pytest.raises(ArithmeticError):
            device_normals._try_normals(torch.device("cpu"))


@pytest.mark.parametrize("deviation", [1e-30, 1.0 / 3.0, 7e20])
@interpreted
def test_a_deviation_keeps_the_digits_of_float64(deviation):
    normals, deviations = drawn(100, torch.float64), drawn(100, torch.float64, deviation)
    assert torch.allclose(deviations / deviation, normals, rtol=1e-14, atol=0.0)

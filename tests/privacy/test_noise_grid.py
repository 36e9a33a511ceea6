"""Noisy sums of real numbers lie on a public grid, however they are made, and rounding looks at nothing else."""

import math

import numpy as np
import pytest
import torch
from contracts.laws.accounts import account_of
from contracts.threads import together

from lightning_dpgen.gradients.clipping import Fixed
from lightning_dpgen.gradients.per_sample_gradients import materialised
from lightning_dpgen.gradients.privatize import GradientBuffer, privatize
from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.noise.units import grid_step, needs_float64, round_to_grid_

REAL = {
    "gaussian": ({}, mechanisms.gaussian),
    "of a shard": ({}, lambda *given, **named: mechanisms.gaussian(*given, **named, of_shard=True)),
    "large beside float32": ({}, lambda *given, **named: mechanisms.gaussian(*given, **named, largest=1e5)),
}


def _on_grid(values, step):
    """Return whether values are multiples of a step, and not all of twice the step."""
    values = values.double()
    return bool((values % step == 0.0).all() and (values % (2.0 * step) != 0.0).any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", REAL)
def test_every_noisy_sum_of_reals_is_on_the_grid_of_its_noise(name, dtype):
    kinds, draw = REAL[name]
    for multiplier in (0.7, 3e-5):
        with account_of({"x": multiplier}, kinds=kinds).open("training") as access:
            noisy = draw(access, "x", torch.full((2, 5000), 1.0 / 3.0, dtype=dtype), sensitivity=3.0)
        assert noisy.dtype == dtype and noisy.shape == (2, 5000)
        assert _on_grid(noisy, grid_step(multiplier * 3.0))


@pytest.mark.parametrize("size", [2, 3])
def test_the_sum_over_ranks_is_rounded_and_not_its_parts(monkeypatch, size):
    def work(ranks):
        account = account_of({"x": 0.8}, seed=3)
        account.join(ranks)
        with account.open("training") as access:
            return mechanisms.gaussian(access, "x", torch.full((1000,), (1.0 + ranks.rank) / 7.0), sensitivity=1.0)

    sums = together(size, work)
    assert all(torch.equal(sums[0], other) for other in sums) and _on_grid(sums[0], grid_step(0.8))
    # The same where each part is rounded: the others' exact numbers show.
    add = PrivateStream.add_normal_
    monkeypatch.setattr(PrivateStream, "add_normal_", lambda self, part, s: round_to_grid_(add(self, part, s), s))
    monkeypatch.setattr(mechanisms, "round_to_grid_", lambda noisy, deviation: noisy)
    assert not _on_grid(together(size, work)[0], grid_step(0.8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_to_the_nearest_step_and_keeps_what_has_no_digits_below(dtype):
    random = np.random.default_rng(0)
    for deviation in (1.0, 0.3, 1.999, 5e-7, 3e9):
        step = grid_step(deviation)
        assert 2.0**-9 * deviation < step <= 2.0**-8 * deviation and math.frexp(step)[0] == 0.5
        values = torch.from_numpy(random.normal(size=300_000) * deviation).to(dtype)
        expected = np.rint(values.double().numpy() / step) * step
        rounded = round_to_grid_(values.clone(), deviation)
        assert rounded.dtype == dtype and np.array_equal(rounded.double().numpy(), expected)
        # float32 has no digits below a step from 2^23 steps on, float64 from 2^52 steps on.
        digits = 23 if dtype == torch.float32 else 52
        large = torch.from_numpy(random.uniform(1.0, 2.0**60, 1000)).to(dtype).mul_(step * 2.0**digits)
        assert torch.equal(round_to_grid_(large.clone(), deviation), large)


def _noised_in(lot, multiplier, rule, monkeypatch):
    """Return the type in which the noise of a step is added, whose gradients are float32."""
    seen, add = [], PrivateStream.add_normal_
    with monkeypatch.context() as patch:
        patch.setattr(PrivateStream, "add_normal_", lambda self, part, s: seen.append(part.dtype) or add(self, part, s))
        weight = torch.nn.Parameter(torch.zeros(2, 50))
        out = GradientBuffer([weight])
        with account_of({"gradient": multiplier}).open("training") as access:
            privatize([(materialised({weight: torch.zeros(0, 2, 50)}), rule)], access, lot, out)
    assert out.flat.dtype == torch.float32 and _on_grid(out.flat, grid_step(multiplier * 0.7 / lot))
    return seen


def test_noise_of_large_lots_is_added_in_float64(monkeypatch):
    """float32's last place at the length of a whole lot in one number is a thousandth of the noise at a lot of 16,384."""
    for lot, multiplier, expected in (
        (600.0, 1.1, torch.float32),
        (16384.0, 1.0, torch.float64),
        (16384.0, 20.0, torch.float32),
        (600.0, 0.01, torch.float64),
    ):
        assert _noised_in(lot, multiplier, Fixed(0.7), monkeypatch) == [expected], (lot, multiplier)
    assert not needs_float64(torch.zeros(1, dtype=torch.float64), 1e9, 1.0)
    assert not needs_float64(torch.zeros(1, device="meta"), 0.0, 1.0)

"""Known attacks on noise in floating point: a naive mechanism falls to each, and no mechanism of this package does.

An attacker sees noisy numbers, knows the size of the noise and how it is computed, and asks which of two exact values, 0 or
1, lies beneath. Each attack says beside which of them that very output is possible. Where it is one alone, the attacker is
certain, however little the guarantee allows.

* Mironov (2012): Laplace noise is ``b ln u`` of a uniform u on a grid of 2^-53. An output is impossible beside x if none of
  the u near to ``exp(-|y - x| / b)`` gives it to the last bit.
* Haney, Desfontaines, Hartman, Shrestha and Hay (2022): ``1 + noise`` has few digits below 2^-53, ``0 + noise`` has many.
  An output is impossible beside x if no floating-point number gives it when x is added, whatever the law of the noise.
* Holohan and Braghin (2021), and Jin, McMurtry, Rubinstein and Ohrimenko (2022) for training: two outputs with the two
  normals of one draw by Box and Muller's formula give back both uniforms, which must be on their grid.

The same attacks are run against projections, which release a row for each record: the noise of a row is all that hides it.

A mechanism that rounds is attacked in the same way, with the rounding as the last step of what is computed again. Seeds are
fixed. A chi-square test of low bits fails by chance with probability 1e-6. Shares of outputs are ten standard errors or
more from their limits, and a share of 0 is 0 for any seed.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.access import GAUSSIAN, LAPLACE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise import units
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.noise.units import grid_step, round_to_grid_
from lightning_dpgen.projection.matrices import make_matrix
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection

ALARM = 1e-6
COUNT = 1 << 12
# The deviation of the noise, or its scale: a product with a power of two would lose nothing.
SIZE = 1.3
CANDIDATES = (0.0, 1.0)
# Uniforms that are tried on each side of the one that an output points to.
NEAR = 4
# Steps of the grid on which sums of whole numbers lie here, in 1.
WHOLE = 1024


def _decided(attack, draw, beneath=float):
    """Return how often an attack is certain and right, for outputs beneath which is 0 and for those beneath which is 1.

    Args:
        beneath: a function that gives what is known to lie beneath outputs of each, a number or a row of them.
    """
    shares = []
    for truth in CANDIDATES:
        outputs = draw(truth)
        right, wrong = (attack(outputs, beneath(x)) for x in (truth, 1.0 - truth))
        assert right.mean() > 0.999, "the attack computes something else than the mechanism"
        shares.append(float((right & ~wrong).mean()))
    return shares


def _keep(noisy):
    return noisy


def _round_to_grid(noisy):
    return round_to_grid_(torch.from_numpy(noisy), SIZE).numpy()


def _round_to_whole(noisy):
    return np.rint(noisy * WHOLE) / WHOLE


def _draw_naive_laplace(x):
    random = np.random.default_rng(int(x))
    return x + SIZE * random.choice((-1.0, 1.0), COUNT) * np.log(1.0 - random.random(COUNT))


def _draw_naive_normals(x):
    """Return (2, COUNT) numbers of x + sigma * torch.randn in float64: the pairs of its formula are eight apart."""
    drawn = torch.randn(2 * COUNT, dtype=torch.float64, generator=torch.Generator().manual_seed(int(x)))
    return (x + SIZE * drawn).view(-1, 2, 8).transpose(0, 1).reshape(2, COUNT).numpy()


def _draws(kind, mechanism, dtype, account_of):
    """Return a function that draws (2, COUNT) numbers of a mechanism; the pairs of the stream's formula are rows."""

    def draw(x):
        whole = WHOLE if dtype == torch.int64 else 1
        with account_of({"x": SIZE}, kinds={"x": kind}, seed=3 + int(x)).open("training") as access:
            values = torch.full((2 * COUNT,), x * whole).to(dtype)
            return (mechanism(access, "x", values, sensitivity=whole) / whole).view(2, COUNT).numpy()

    return draw


def _by_support(finish, size=SIZE):
    """Attack as Mironov does: compute the output again from all uniforms near to the one that it points to."""

    def attack(outputs, x):
        middle = np.rint(np.exp(-abs(outputs - x) / size) * 2.0**53)
        sign = np.where(outputs < x, 1.0, -1.0)
        found = np.zeros(outputs.shape, bool)
        for step in range(-NEAR, NEAR + 1):
            uniform = np.clip(middle + step, 1.0, 2.0**53) * 2.0**-53
            found |= finish((x + size * sign * np.log(uniform)).astype(outputs.dtype)) == outputs
        return found

    return attack


def _by_precision(outputs, x):
    """Attack as Haney and others do: look for a floating-point number that gives the output when it is added to x."""
    x = outputs.dtype.type(x)
    nearest = outputs - x
    tried = (np.nextafter(nearest, -np.inf, dtype=x.dtype), nearest, np.nextafter(nearest, np.inf, dtype=x.dtype))
    return np.any([x + noise == outputs for noise in tried], axis=0)


def _by_pairs(finish, size=SIZE):
    """Attack as Holohan and Braghin do: compute two outputs again from all uniforms near to those that they point to."""

    def attack(outputs, x):
        first, second = (outputs - x) / size
        radius = np.rint(np.exp(-(first**2 + second**2) / 2.0) * 2.0**53)
        turn = np.rint(np.arctan2(second, first) / (2.0 * np.pi) % 1.0 * 2.0**53)
        # Near to the origin the last digits of an output leave the angle open: the attacker takes x for possible.
        found = np.hypot(first, second) < 0.25
        for step in range(-NEAR, NEAR + 1):
            length = np.sqrt(-2.0 * np.log(np.clip(radius + step, 1.0, 2.0**53) * 2.0**-53))
            for other in range(-NEAR, NEAR + 1):
                angle = 2.0 * np.pi * ((turn + other) % 2.0**53 * 2.0**-53)
                cosine, sine = (finish(x + size * (length * wave)) for wave in (np.cos(angle), np.sin(angle)))
                found |= (cosine == outputs[0]) & (sine == outputs[1])
        return found

    return attack


def _by_pairs_of_the_stream(finish):
    """Attack in the same way the formula of the private stream in float32, which has words of 31 and 32 bits."""

    def attack(outputs, x):
        first, second = ((torch.from_numpy(outputs).double() - x) / SIZE).unbind()
        size = torch.hypot(first, second)
        words = (size**2 / -2.0).exp().mul_(2.0**31).float()
        turn = (torch.atan2(second, first) / math.pi * 2.0**31).float()
        # The rounding of both outputs may leave more open than is tried: the attacker takes x for possible.
        blur = torch.from_numpy(abs(outputs).max(axis=0)).clamp(min=1.0) * 2.0**-23
        open_radius, open_turn = size * blur, blur / size / (math.pi * turn.abs() * 2.0**-31)
        found = ((open_radius > NEAR * 2.0**-24) | (open_turn > NEAR * 2.0**-24)).numpy()
        for radius in _neighbours(words):
            length = (radius * 2.0**-31).log_().mul_(-2.0).sqrt_()
            for angle in _neighbours(turn):
                angle = angle * (math.pi * 2.0**-31)
                cosine, sine = (
                    finish(torch.full_like(length, x).addcmul_(wave, length, value=SIZE).numpy())
                    for wave in (angle.cos(), angle.sin())
                )
                found |= (cosine == outputs[0]) & (sine == outputs[1])
        return found

    return attack


def _neighbours(numbers):
    """Return whole numbers in float32 at and around the given ones, one in each place of float32."""
    places = numbers.view(torch.int32)
    return [(places + step).view(torch.float32).round() for step in range(-NEAR, NEAR + 1)]


def _differ_in_low_bits(draw, unit):
    """Return whether the last four bits, in units, of outputs beneath which is 0 and 1 differ in law (chi-square)."""
    counts = [np.bincount(np.rint(draw(x).ravel() / unit % 16).astype(int) % 16, minlength=16) for x in CANDIDATES]
    return stats.chi2_contingency(np.array(counts)[:, np.sum(counts, axis=0) > 0]).pvalue < ALARM


def test_the_naive_mechanism_falls_to_each_attack():
    """Laplace numbers are known with certainty from 6 in 10 outputs, normals from 4 in 10, or from 19 of 20 pairs."""
    assert min(_decided(_by_support(_keep), _draw_naive_laplace)) > 0.55
    assert max(_decided(_by_precision, _draw_naive_normals)) > 0.3
    assert max(_decided(_by_precision, _draw_naive_laplace)) > 0.3
    assert min(_decided(_by_pairs(_keep), _draw_naive_normals)) > 0.9
    for draw in (_draw_naive_laplace, _draw_naive_normals):
        assert _differ_in_low_bits(draw, 2.0**-56)


def test_gradients_would_fall_without_the_grid_or_on_a_fine_one(account_of, monkeypatch):
    draw = _draws(GAUSSIAN, mechanisms.gaussian, torch.float32, account_of)
    assert _decided(_by_pairs_of_the_stream(_round_to_grid), draw) == [0.0, 0.0]
    monkeypatch.setattr(units, "_STEPS", 23)
    fine = _decided(_by_pairs_of_the_stream(_round_to_grid), draw)
    monkeypatch.setattr(mechanisms, "round_to_grid_", lambda noisy, deviation: noisy)
    assert max(fine) > 0.05 and min(_decided(_by_pairs_of_the_stream(_keep), draw)) > 0.15


@pytest.mark.parametrize(
    ("kind", "mechanism", "dtype", "attack"),
    [
        (GAUSSIAN, mechanisms.gaussian, torch.float32, _by_pairs),
        (GAUSSIAN, mechanisms.gaussian, torch.float64, _by_pairs),
        (GAUSSIAN, mechanisms.rounded_gaussian, torch.int64, _by_pairs),
        (LAPLACE, mechanisms.rounded_laplace, torch.int64, _by_support),
    ],
)
def test_no_mechanism_falls_to_any_attack(account_of, kind, mechanism, dtype, attack):
    draw = _draws(kind, mechanism, dtype, account_of)
    finish, unit = (_round_to_whole, 1.0 / WHOLE) if dtype == torch.int64 else (_round_to_grid, grid_step(SIZE))
    assert _decided(attack(finish), draw) == [0.0, 0.0]
    assert _decided(_by_precision, draw) == [0.0, 0.0]
    outputs = draw(1.0)
    assert (outputs % unit == 0.0).all() and (outputs % (2.0 * unit) != 0.0).any()
    assert not _differ_in_low_bits(draw, unit)


# Rows of three numbers, projected to two, of which those of 1 are a half in each place.
ROW, INTO = 3, 2


def _projection(noise):
    return Projection(make_matrix("gaussian", ROW, INTO, seed=1), Neighbourhood("row", radius=1.0), noise)


def _rows(x, count=1):
    return np.full((count, ROW), x / 2.0)


def _in_pairs(outputs):
    """Return (2, n, INTO) numbers of rows whose flat places are eight apart, as the pairs of `torch.randn` are."""
    return outputs.reshape(-1, 2, 8).swapaxes(0, 1).reshape(2, -1, INTO)


def _draw_naive_projection(noise):
    """Return a function that draws rows (2 * COUNT, INTO), projected and with noise in floating point."""
    matrix = _projection(noise).matrix

    def draw(x):
        projected, random = _rows(x, 2 * COUNT) @ matrix, np.random.default_rng(int(x))
        if noise == "laplace":
            signs = random.choice((-1.0, 1.0), projected.shape)
            return projected + SIZE * signs * np.log(1.0 - random.random(projected.shape))
        public = torch.Generator().manual_seed(int(x))
        normal = torch.randn(projected.shape, dtype=torch.float64, generator=public).numpy()
        if noise == "spherical":
            normal *= random.gamma(INTO, size=(len(normal), 1)) / np.linalg.norm(normal, axis=1, keepdims=True)
        return projected + SIZE * normal

    return draw


def _draw_projection(projection, plan):
    """Return a function that draws rows (2 * COUNT, INTO) as they are released."""

    def draw(x):
        return projection.release(_rows(x, 2 * COUNT), Account(plan, stream=PrivateStream(seed=5 + int(x))))[0]

    return draw


# The attack that is made for a noise, and the least share of numbers that it is certain of, of naive rows of 0 and of 1.
AGAINST = {
    "laplace": (_by_support, min, 0.55),
    "spherical": (lambda finish, size=SIZE: _by_precision, max, 0.15),
    "gaussian": (lambda finish, size=SIZE: lambda outputs, x: _by_pairs(finish, size)(_in_pairs(outputs), x), min, 0.9),
}


@pytest.mark.parametrize("noise", AGAINST)
def test_a_projection_with_noise_in_floating_point_falls_and_ours_does_not(noise):
    projection, (attack, least, share) = _projection(noise), AGAINST[noise]
    naive = _draw_naive_projection(noise)
    assert least(_decided(attack(_keep), naive, lambda x: (_rows(x) @ projection.matrix)[0])) > share
    plan = projection.plan(2.0, 1e-5 if noise == "gaussian" else 0.0)
    draw, grid = _draw_projection(projection, plan), projection.grid

    def beneath(x):
        return projection.steps(_rows(x))[0][0] * grid

    made_for_ours = attack(lambda noisy: np.rint(noisy / grid) * grid, projection.scale(plan))
    assert _decided(made_for_ours, draw, beneath) == [0.0, 0.0]
    assert _decided(_by_precision, draw, beneath) == [0.0, 0.0]
    outputs = draw(1.0)
    assert (outputs % grid == 0.0).all() and (outputs % (2.0 * grid) != 0.0).any()
    assert _differ_in_low_bits(naive, 2.0**-56) and not _differ_in_low_bits(draw, grid)

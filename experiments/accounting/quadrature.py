"""Epsilon by a contour integral: no grid of losses, no FFT, and nothing shared with the accountants that it checks.

For a privacy loss S with moments ``M(z) = E e^(zS)``, and any c > 0,

    delta(eps) = E (1 - e^(eps - S))+ = 1 / (2 pi i) * integral of M(z) e^(-z eps) / (z (z + 1)) dz

along the line from c - i oo to c + i oo, since ``e^(-z eps) / (z (z + 1))`` is the two-sided Laplace transform of
``(1 - e^(eps - s))+``. Losses of a composition add, so M is a product of the moments of single steps. Those of a
Poisson-sampled Gaussian of multiplier m are Gaussian means of a power of one ratio,
``r(x) = 1 - q + q e^((2x - 1) / 2m^2)``, for x from N(0, m^2): of ``r^(z+1)`` when the record is removed, of ``r^(-z)``
when it is added. The trapezoidal rule gives them to the last digits, as all is analytic. The rule of Gauss and Legendre
integrates along the contour, panel by panel, until the rest is negligible.

The reported error is the change of epsilon when the contour is moved, its panels narrowed and the step in x halved, plus
the part that was cut off. The integral does not depend on c, so two contours that agree are two computations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import integrate
from scipy.optimize import brentq, minimize_scalar

REMOVED, ADDED = "removed", "added"
_NODES, _PANELS, _CHUNK = 24, 40_000, 1 << 21
# The shares of a mean over x, and of the integral over the contour, that may be neglected.
_CUT, _TAIL = 46.0, 1e-9


@dataclass(frozen=True)
class Part:
    """`count` equal steps: Gaussian noise of a multiplier after Poisson sampling at a rate, or Laplace noise."""

    multiplier: float
    count: int = 1
    rate: float = 1.0
    laplace: bool = False


def epsilon_by_quadrature(parts: Sequence[Part], delta: float) -> tuple[float, float]:
    """Return epsilon of a composition under add-or-remove-one, and an estimate of its error."""
    answers = [_one_way(parts, delta, way) for way in (REMOVED, ADDED)]
    return max(epsilon for epsilon, _ in answers), max(error for _, error in answers)


def _one_way(parts: Sequence[Part], delta: float, way: str) -> tuple[float, float]:
    if len(parts) == 1 and parts[0].count == 1 and not parts[0].laplace:
        return _one_step(parts[0], delta, way)
    # The second contour is below the saddle, since beyond it the moments of a sampled step explode.
    first, cut = _by_contour(parts, delta, way, shift=0.85, fine=1.0)
    second, again = _by_contour(parts, delta, way, shift=0.6, fine=2.0)
    return second, abs(first - second) + cut + again


def _one_step(part: Part, delta: float, way: str) -> tuple[float, float]:
    """Return epsilon of a single step, by an ordinary integral of (p - e^eps q)+."""
    m, q = part.multiplier, part.rate

    def out(x):
        return math.exp(-x * x / (2 * m * m)) / (m * math.sqrt(2 * math.pi))

    def mixed(x):
        return (1 - q) * out(x) + q * out(x - 1)

    errors = []

    def at(epsilon: float) -> float:
        p, other = (mixed, out) if way == REMOVED else (out, mixed)
        sign = 1 if way == REMOVED else -1
        # The loss is monotone in x, so p prevails on a half-line.
        level = (math.exp(sign * epsilon) - 1 + q) / q
        if level <= 0:
            return 0.0
        edge = m * m * math.log(level) + 0.5
        low, high = (edge, max(edge, 1) + 40 * m) if way == REMOVED else (min(edge, 0) - 40 * m, edge)
        value, error = integrate.quad(
            lambda x: p(x) - math.exp(epsilon) * other(x), low, high, points=[edge + sign * m], limit=500,
            epsabs=0, epsrel=1e-11,
        )  # fmt: skip
        errors.append(error / delta)
        return value

    if at(0.0) <= delta:
        return 0.0, 0.0
    high = 1.0
    while at(high) > delta:
        high *= 2
    # d log delta / d eps is below -1 at every delta of interest, so a relative error of delta is at most one of epsilon.
    return brentq(lambda e: at(e) - delta, 0.0, high, xtol=1e-13), max(errors)


def _by_contour(parts: Sequence[Part], delta: float, way: str, *, shift: float, fine: float) -> tuple[float, float]:
    c = shift * _saddle(parts, delta, way)
    spread = _spread(parts, c, way)
    level = _log_moment(parts, np.array([complex(c)]), way, fine).real[0]
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    # A panel resolves the bulk of the loss, and the largest loss of a single step, whose phase turns the quickest.
    width = min(3.0 / spread, 16.0 / max(_largest_loss(part, c, way) for part in parts)) / fine
    # M over its value at the saddle, so that nothing overflows; the factor comes back in logarithms.
    z, values = [], []
    for start in range(0, _PANELS, 16):
        lefts = width * (start + np.arange(16))
        t = (lefts[:, None] + width * (nodes + 1) / 2).ravel()
        here = c + 1j * t
        value = np.exp(_log_moment(parts, here, way, fine) - level) / (here * (here + 1)) * np.tile(weights, 16) * width / 2
        z.append(here)
        values.append(value)
        size = np.abs(value).sum()
        if start == 0:
            whole = size
        # The rest is bounded as if it fell off like 1 / t^2, which is the slowest that it can.
        rest = size * (start + 16) / 16
        if rest < _TAIL * whole:
            break
    z, values = np.concatenate(z), np.concatenate(values)

    def log_delta(epsilon: float) -> float:
        total = float((values * np.exp(-(z - c) * epsilon)).sum().real) / math.pi
        return math.log(total) + level - c * epsilon if total > 0 else -math.inf

    goal = math.log(delta)
    # The contour passes near the saddle of the answer; away from it the sum is a small difference of large numbers.
    guess = _guess(parts, delta, way, c / shift)
    low, high = 0.5 * guess, guess
    while log_delta(high) > goal:
        high *= 1.1
    while low > 1e-12 and not log_delta(low) > goal:
        low *= 0.8
    epsilon = brentq(lambda e: log_delta(e) - goal, low, high, xtol=1e-13)
    slope = (log_delta(epsilon * (1 - 1e-4)) - log_delta(epsilon * (1 + 1e-4))) / (2e-4 * epsilon)
    return epsilon, rest / math.pi * math.exp(level - c * epsilon - goal) / slope


def _saddle(parts: Sequence[Part], delta: float, way: str) -> float:
    places = np.exp(np.linspace(-3, 12, 151))
    guesses = [_guess(parts, delta, way, c) for c in places]
    i = int(np.argmin(guesses))
    around = (places[max(i - 1, 0)], places[min(i + 1, len(places) - 1)])
    return minimize_scalar(lambda c: _guess(parts, delta, way, c), bounds=around, method="bounded").x


def _guess(parts: Sequence[Part], delta: float, way: str, c: float) -> float:
    """Return the epsilon at which the absolute value of the integrand, at the real point c, is delta."""
    level = _log_moment(parts, np.array([complex(c)]), way, 1.0).real[0]
    return (level - math.log(delta) - math.log(c * (c + 1))) / c


def _spread(parts: Sequence[Part], c: float, way: str) -> float:
    """Return the standard deviation of the loss under the law tilted by e^(cS), by a second difference."""
    step = 1e-3 * c
    low, middle, high = _log_moment(parts, np.array([c - step, c, c + step], dtype=complex), way, 1.0).real
    return math.sqrt(max(low - 2 * middle + high, 1e-12) / step**2)


def _largest_loss(part: Part, c: float, way: str) -> float:
    if part.laplace:
        return 1.0 / part.multiplier
    _, log_ratio, _ = _points(part, np.array([c + 1 if way == REMOVED else -c], dtype=complex), 1.0)
    return float(np.abs(log_ratio).max())


def _log_moment(parts: Sequence[Part], z: np.ndarray, way: str, fine: float) -> np.ndarray:
    return sum(part.count * _log_moment_of_one(part, z, way, fine) for part in parts)


def _log_moment_of_one(part: Part, z: np.ndarray, way: str, fine: float) -> np.ndarray:
    b = part.multiplier
    if part.laplace:
        # The loss is 1/b on one side, -1/b on the other, and (1 - 2x) / b between.
        low = np.exp(-(2 * z + 1) / b)
        return z / b + np.log((1 + low + (1 - low) / (1 + 2 * z)) / 2)
    power = z + 1 if way == REMOVED else -z
    x, log_ratio, log_weight = _points(part, power, fine)
    top = (power.real[0] * log_ratio + log_weight).max()
    out = np.empty(len(power), dtype=complex)
    rows = max(1, _CHUNK // len(x))
    for start in range(0, len(power), rows):
        out[start : start + rows] = np.exp(power[start : start + rows, None] * log_ratio + (log_weight - top)).sum(axis=1)
    return np.log(out) + top


def _points(part: Part, power: np.ndarray, fine: float):
    """Return the points in x that make up the mean of r^power, log r and the log weights there."""
    m, q, real = part.multiplier, part.rate, power.real[0]
    reach = 16 * m + abs(real) + 1
    wide = np.linspace(-reach, reach, 20_001)
    size = real * _log_ratio(wide, m, q) - wide**2 / (2 * m * m)
    kept = wide[size > size.max() - _CUT]
    gap = wide[1] - wide[0]
    # Along x + iy the integrand grows no faster than e^(|power| y / m^2), and r has no zero below y = pi m^2: with this
    # step the rule errs by about e^-45.
    step = 2 * math.pi / (np.abs(power).max() / m**2 + 45.0 / m) / fine
    x = np.arange(kept[0] - gap, kept[-1] + gap + step, step)
    return x, _log_ratio(x, m, q), math.log(step) - x**2 / (2 * m * m) - math.log(m * math.sqrt(2 * math.pi))


def _log_ratio(x: np.ndarray, m: float, q: float) -> np.ndarray:
    exponent = (2 * x - 1) / (2 * m * m)
    if q == 1.0:
        return exponent
    return np.logaddexp(math.log1p(-q), math.log(q) + exponent)

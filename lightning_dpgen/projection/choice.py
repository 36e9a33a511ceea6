"""The choice of k, matrix and noise by the expected error of recovered distances, before a record is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_dpgen.projection.matrices import distortion, make_matrix
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection
from lightning_dpgen.projection.recovery import Recovery

# Kinds of matrices to try. Ties are common at k = d, where a projection only rotates, so the simplest comes first.
TRIED = ("identity", "hashed", "orthonormal")
# Clusters, neighbourhoods and mean distances are computed from many rows of a release, so errors are of a mean over pairs.
PAIRS = 1000
PURE_NOISES, APPROXIMATE_NOISES = ("laplace", "spherical"), ("gaussian",)


@dataclass(frozen=True)
class Option:
    """One way to release the rows, and the errors of distances under it.

    Attributes:
        matrix, k, noise: the kind of matrix, its columns, and the noise.
        error: standard deviation of a recovered squared distance over the typical one, over the draws of projection and
            noise, if the typical one is the true one.
        error_of_mean: the same for the mean over many pairs: their noises average out, and the distortion that all of them
            share, since the projection is drawn once, does not.
    """

    matrix: str
    k: int
    noise: str
    scale: float
    error: float
    error_of_mean: float


def typical_distance(neighbourhood: Neighbourhood, d: int) -> float:
    """Return the distance between two rows that errors are computed for by default.

    For rows within a radius it is the distance of two at right angles on its border; for elements within a radius, that of
    two rows uniform within it. For a declared distance it is four times that, as in the paper's clusters.
    """
    if not neighbourhood.enforced:
        return 4.0 * neighbourhood.distance
    return neighbourhood.radius * math.sqrt(2.0 if neighbourhood.unit == "row" else 2.0 * d / 3.0)


def options(
    d: int,
    neighbourhood: Neighbourhood,
    epsilon: float,
    delta: float = 0.0,
    *,
    ks: Sequence[int] | None = None,
    matrices: Sequence[str] = TRIED,
    noises: Sequence[str] | None = None,
    typical: float | None = None,
    count_share: float = 0.01,
    seed: int = 0,
) -> list[Option]:
    """List all ways to release rows of d columns at a budget, the best first: by the error of a mean over `PAIRS` pairs.

    Each is a draw from the public seed, with the sensitivity of this draw. The identity stands for the raw rivals: noise on
    the rows as they are.

    Args:
        ks: numbers of columns to try; None for a ladder from 1 to d, or for d alone where only the identity is tried.
        matrices: kinds of matrices to try.
        noises: noises to try; None for those that go with delta.
        typical: the distance between two rows for which the error is computed; None for `typical_distance`.

    Raises:
        ValueError: for an invalid budget or neighbourhood.

    Example:
        >>> best = options(50, Neighbourhood("element", distance=1.0), epsilon=4.0)[0]
        >>> best.matrix, best.k, best.noise
        ('identity', 50, 'laplace')
    """
    noises = noises or (APPROXIMATE_NOISES if delta else PURE_NOISES)
    squared = (typical or typical_distance(neighbourhood, d)) ** 2
    ways = []
    if ks is None:
        ks = [d] if tuple(matrices) == ("identity",) else ladder(d)
    for k in ks:
        for kind in matrices:
            if kind == "identity" and k != d and len(matrices) > 1:
                continue
            matrix = make_matrix(kind, d, k, seed)
            for noise in noises:
                projection = Projection(matrix, neighbourhood, noise)
                scale = projection.scale(projection.plan(epsilon, delta, count_share=count_share))
                shared = distortion(kind, d, k) * squared**2
                own = Recovery(k, noise, scale, 0.0).variance(squared)
                errors = (math.sqrt(shared + own / pairs) / squared for pairs in (1, PAIRS))
                ways.append(Option(kind, k, noise, scale, *errors))
    # Rounding must not decide between two options: the first that was tried is the simpler one.
    return sorted(ways, key=lambda option: float(f"{option.error_of_mean:.9g}"))


def ladder(d: int) -> list[int]:
    """Return 1, 2, 3, 5, 10, 20, 50, ... below d, and d."""
    steps = [factor * 10**power for power in range(12) for factor in (1, 2, 3, 5) if factor != 3 or power == 0]
    return [*(step for step in steps if step < d), d]

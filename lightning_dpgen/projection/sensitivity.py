"""The sensitivity of a drawn projection, exact or bounded from above, in the norm of each noise.

A row changes by v. The released row changes by vP, measured in L1 (for Laplace noise) or in L2 (for spherical and Gaussian
noise). The matrix is known and does not depend on the records, so there is no probability of failure.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.access import GAUSSIAN, LAPLACE, PURE

# Up to this k signs are enumerated: 2^19 vectors, as s and -s count once.
EXACT_UP_TO = 20
_CHUNK = 1 << 14
# Columns whose products with each other add so little count as orthogonal.
_ORTHOGONAL = 1.0 + 1e-4
# Steps of the subgradient, each an eigenvalue problem of size k, and the largest k that takes more than one.
_STEPS, _IMPROVED_UP_TO = 100, 512
# The factor is far above what rounding in float64 can hide in sums of this size, and too small to matter for the noise.
_ROUNDED_UP = 1.0 + 1e-9


def largest_row(matrix: np.ndarray, norm: int) -> float:
    """Return ``max |vP|`` over v of L1 norm at most 1, in the L1 or L2 norm: the largest row of P, as a norm is convex."""
    return _ROUNDED_UP * float(np.linalg.norm(matrix, ord=norm, axis=1).max())


def l2_of_a_row(matrix: np.ndarray) -> float:
    """Return ``max |vP|_2`` over v of L2 norm at most 1: the largest singular value of P."""
    return _ROUNDED_UP * float(np.linalg.norm(matrix, ord=2))


def l1_of_a_row(matrix: np.ndarray) -> float:
    """Return ``max |vP|_1`` over v of L2 norm at most 1: ``max |Ps|_2`` over sign vectors s, the dual norm.

    ``|vP|_1 = max_s <vP, s> = max_s <v, Ps>``. It is exact by enumeration up to k = 20, and where the columns are
    orthogonal (there every s gives the same); otherwise it is an upper bound (see `_dual_bound`).

    Example:
        >>> round(l1_of_a_row(np.eye(4)), 6)
        2.0
    """
    gram = matrix.T @ matrix
    k = len(gram)
    # The sum is always a bound, and near to the answer where columns are orthogonal but for the rounding of their numbers.
    total = float(np.abs(gram).sum())
    if total <= _ORTHOGONAL * np.trace(gram):
        return _ROUNDED_UP * math.sqrt(total)
    largest = _largest_over_signs(gram) if k <= EXACT_UP_TO else min(total, _dual_bound(gram))
    return _ROUNDED_UP * math.sqrt(largest)


def _largest_over_signs(gram: np.ndarray) -> float:
    k = len(gram)
    bits = np.arange(k - 1)
    largest = 0.0
    for start in range(0, 2 ** (k - 1), _CHUNK):
        codes = np.arange(start, min(start + _CHUNK, 2 ** (k - 1)))
        signs = np.ones((len(codes), k))
        signs[:, : k - 1] = 1.0 - 2.0 * ((codes[:, None] >> bits) & 1)
        largest = max(largest, float(np.einsum("ij,ij->i", signs @ gram, signs).max()))
    return largest


def _dual_bound(gram: np.ndarray) -> float:
    """Return an upper bound of ``max s^T G s`` over sign vectors, within a few per cent where enumeration can check it.

    For any u, ``s^T G s = s^T (G - diag u) s + sum u <= k lambda_max(G - diag u) + sum u``: the dual of the semidefinite
    relaxation of Goemans and Williamson. u = 0 gives ``k sigma_max(P)^2``; subgradient steps improve on it, and every one
    of them is a bound, converged or not.
    """
    k = len(gram)
    u, best = np.zeros(k), math.inf
    for step in range(_STEPS if k <= _IMPROVED_UP_TO else 1):
        values, vectors = np.linalg.eigh(gram - np.diag(u))
        best = min(best, k * values[-1] + u.sum())
        u += (values[-1] - values.mean()) * (k * vectors[:, -1] ** 2 - 1.0) / (k * math.sqrt(step + 1.0))
    return float(best)


@dataclass(frozen=True)
class Noise:
    """Noise on a released row of k numbers.

    Args:
        kind: the kind in `Access.kinds`.
        norm: 1 or 2, the norm that a change is measured in.
        add: the mechanism that adds it to rows (n, k) in whole steps of a grid.
        variance: variance of one coordinate, at scale 1, for k.
        fourth: ``E |z|^4`` of a whole row, at scale 1, for k.
    """

    kind: str
    norm: int
    add: Callable[..., Tensor]
    variance: Callable[[int], float]
    fourth: Callable[[int], float]

    def sensitivity(self, matrix: np.ndarray, unit: str) -> float:
        """Return the largest change of a released row when a row, or an element of it, moves by 1."""
        if unit == "element":
            return largest_row(matrix, self.norm)
        return l1_of_a_row(matrix) if self.norm == 1 else l2_of_a_row(matrix)

    def pair_variance(self, scale: float, k: int) -> float:
        """Return the variance of ``|z - z'|^2`` for the noises of two rows.

        ``|z|^2 + |z'|^2 - 2 <z, z'>``: the cross terms vanish by symmetry, and ``E <z, z'>^2 = (E|z|^2)^2 / k`` where
        coordinates are uncorrelated and alike.
        """
        second, fourth = scale**2 * k * self.variance(k), scale**4 * self.fourth(k)
        return 2.0 * fourth - 2.0 * second**2 + 4.0 * second**2 / k


_SPHERICAL = functools.partial(mechanisms.rounded_spherical, by_row=True)
# Laplace of scale b: E z^2 = 2 b^2, E z^4 = 24 b^4. Spherical: |z| is a sum of k exponentials. Gaussian: of scale sigma.
NOISES = {
    "laplace": Noise(LAPLACE, 1, mechanisms.rounded_laplace, lambda k: 2.0, lambda k: 24.0 * k + 4.0 * k * (k - 1.0)),
    "spherical": Noise(PURE, 2, _SPHERICAL, lambda k: k + 1.0, lambda k: k * (k + 1.0) * (k + 2.0) * (k + 3.0)),
    "gaussian": Noise(GAUSSIAN, 2, mechanisms.rounded_gaussian, lambda k: 1.0, lambda k: k * (k + 2.0)),
}

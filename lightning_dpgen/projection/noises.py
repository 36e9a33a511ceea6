"""The noises of a projection: the calibration of each, and its effect on squared distances."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.access import GAUSSIAN, LAPLACE, PURE
from lightning_dpgen.projection.sensitivity import l1_of_a_row, l2_of_a_row, largest_row


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

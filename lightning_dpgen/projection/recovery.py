"""Distances, neighbours and kernels that an analyst computes from released rows, at no further cost of privacy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from lightning_dpgen.projection.sensitivity import NOISES

_CHUNK = 1 << 22


@dataclass(frozen=True)
class Recovery:
    """Estimates of squared distances between the original rows, from released ones, and their errors.

    Args:
        k: columns of the released rows.
        noise: ``laplace``, ``spherical`` or ``gaussian``.
        scale: scale of the noise; 0 for none.
        distortion: variance of ``|aP|^2 / |a|^2`` over the draw of the projection; see `matrices.distortion`.

    Example:
        >>> recovery = Recovery(k=2, noise="laplace", scale=0.5, distortion=1.0)
        >>> round(recovery.variance(16.0), 1)
        327.0
    """

    k: int
    noise: str
    scale: float
    distortion: float

    @property
    def coordinate_variance(self) -> float:
        """Variance of the noise of one released number."""
        return self.scale**2 * NOISES[self.noise].variance(self.k)

    def squared_distances(self, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Estimate squared distances of pairs without bias: (n,) from two (n, k). They may be negative.

        The estimate is ``|y - y'|^2 - 2 k v`` for two different rows, v the noise's variance (the paper's Algorithm 2).
        """
        difference = rows - others
        return np.einsum("ij,ij->i", difference, difference) - 2.0 * self.k * self.coordinate_variance

    def variance(self, squared_distance: npt.ArrayLike) -> np.ndarray | float:
        """Return the variance of the estimate for a true squared distance, over the draws of projection and noise.

        It is ``distortion |a|^4 + 8 v |a|^2 + Var |z - z'|^2``. For Gaussian projections and Laplace noise of variance s^2:
        ``(2/k) |a|^4 + 8 s^2 |a|^2 + 14 k s^4`` (the paper's Claim 7 subtracts a constant from it; docs/PRIVACY.md).
        """
        squared = np.asarray(squared_distance, dtype=np.float64)
        own = NOISES[self.noise].pair_variance(self.scale, self.k)
        variance = self.distortion * squared**2 + 8.0 * self.coordinate_variance * squared + own
        return variance if variance.ndim else float(variance)

    def interval(self, estimates: npt.ArrayLike, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of an interval that holds the true squared distance in a share `coverage` of all pairs.

        It holds all distances t from which the estimate is at most z standard deviations away, ``(D - t)^2 <= z^2 Var(t)``:
        a normal approximation, good where many terms add up and conservative near zero. The upper end is infinite where
        the projection alone distorts so much that no distance is excluded.

        Raises:
            ValueError: if coverage is not between 0 and 1.
        """
        if not 0.0 < coverage < 1.0:
            raise ValueError(f"coverage={coverage}: expected a number between 0 and 1")
        estimates = np.asarray(estimates, dtype=np.float64)
        square = norm.ppf(0.5 + coverage / 2.0) ** 2
        noise_variance = NOISES[self.noise].pair_variance(self.scale, self.k)
        # (1 - z^2 c) t^2 - 2 (D + 4 z^2 v) t + D^2 - z^2 own <= 0
        lead = 1.0 - square * self.distortion
        half = estimates + 4.0 * square * self.coordinate_variance
        rest = estimates**2 - square * noise_variance
        root = np.sqrt(np.maximum(half**2 - lead * rest, 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            # The roots are written so that nothing cancels, and are right also where lead is 0 or less.
            low = np.where(half + root > 0.0, rest / (half + root), 0.0)
            high = (half + root) / lead if lead > 0.0 else np.full_like(half, math.inf)
        return np.maximum(low, 0.0), np.maximum(high, 0.0)

    def neighbours(self, rows: np.ndarray, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the `rows` nearest to each query: their places (q, count), nearest first, and recovered squared distances.

        Args:
            rows: (n, k) released rows.
            queries: (q, k) released rows; a query that is one of `rows` finds itself first, at a distance of about
                ``- 2 k v``.
            count: the number of nearest rows, at most n.

        Raises:
            ValueError: for a count outside 1..n.
        """
        if not 1 <= count <= len(rows):
            raise ValueError(f"count={count}: expected 1 to {len(rows)}, the number of rows")
        places, distances = [], []
        for squared in self._pairwise(rows, queries):
            nearest = np.argpartition(squared, count - 1, axis=1)[:, :count]
            nearest_squared = np.take_along_axis(squared, nearest, axis=1)
            order = np.argsort(nearest_squared, axis=1, kind="stable")
            places.append(np.take_along_axis(nearest, order, axis=1))
            distances.append(np.take_along_axis(nearest_squared, order, axis=1))
        return np.concatenate(places), np.concatenate(distances)

    def _pairwise(self, rows: np.ndarray, queries: np.ndarray) -> Iterator[np.ndarray]:
        """Recover squared distances (some queries, n), a chunk of queries at a time."""
        # Rows are float64, and moved near the origin: squares of large numbers nearly cancel, and leave only rounding.
        offset = rows.mean(axis=0, dtype=np.float64)
        rows, queries = rows - offset, queries - offset
        squares = np.einsum("ij,ij->i", rows, rows)
        step = max(1, _CHUNK // len(rows))
        for start in range(0, len(queries), step):
            part = queries[start : start + step]
            own = np.einsum("ij,ij->i", part, part)
            yield own[:, None] + squares - 2.0 * (part @ rows.T) - 2.0 * self.k * self.coordinate_variance

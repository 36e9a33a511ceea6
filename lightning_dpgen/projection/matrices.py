"""Random projections: matrices P (d, k) with ``E[P P^T] = I``, so that squared lengths are kept on average.

They are drawn from a public seed and never look at a record, which is why they may be published and why noise may be
calibrated on the one that was drawn.
"""

from __future__ import annotations

import math

import numpy as np

_STREAM = 1
MATRICES = ("gaussian", "orthonormal", "rademacher", "sparse", "hashed", "identity")


def make_matrix(kind: str, d: int, k: int, seed: int) -> np.ndarray:
    """A projection (d, k), float64.

    Args:
        kind: ``gaussian`` (the paper's: entries N(0, 1/k)); ``orthonormal`` (k random orthonormal columns times
            sqrt(d/k)); ``rademacher`` (+-1/sqrt(k)); ``sparse`` (Achlioptas 2003: two thirds zero, the rest +-sqrt(3/k));
            ``hashed`` (Charikar, Chen and Farach-Colton 2002: each column of the data goes to one of k sums with a random
            sign, here with sums of equal size, which makes the columns orthogonal); ``identity`` (k = d: the data itself).
        d: columns of the data.
        k: columns of what is released, at most d.
        seed: public.

    Raises:
        ValueError: for an unknown kind, k outside 1..d, or an identity with k below d.

    Example:
        >>> make_matrix("hashed", 4, 2, seed=0).shape
        (4, 2)
    """
    if kind not in MATRICES:
        raise ValueError(f"matrix={kind!r}: expected one of {', '.join(MATRICES)}")
    if not isinstance(k, (int, np.integer)) or not 1 <= k <= d:
        raise ValueError(f"k={k}: expected 1 to d={d}, the number of columns")
    # A stream of its own: simulated rows are drawn from the same public seed.
    random = np.random.default_rng([seed, _STREAM])
    if kind == "identity":
        if k != d:
            raise ValueError(f"k={k} with matrix='identity': expected k={d}, as many as the data have columns")
        return np.eye(d)
    if kind == "gaussian":
        return random.normal(0.0, 1.0 / math.sqrt(k), (d, k))
    if kind == "orthonormal":
        return _orthonormal(d, k, random) * math.sqrt(d / k)
    if kind == "rademacher":
        return random.choice([-1.0, 1.0], (d, k)) / math.sqrt(k)
    if kind == "sparse":
        return random.choice([-1.0, 0.0, 1.0], (d, k), p=[1 / 6, 2 / 3, 1 / 6]) * math.sqrt(3.0 / k)
    matrix = np.zeros((d, k))
    matrix[random.permutation(d), np.arange(d) % k] = random.choice([-1.0, 1.0], d)
    return matrix


def distortion(kind: str, d: int, k: int) -> float:
    """The variance of ``|aP|^2 / |a|^2`` over the draw of P: for the worst a, which is most of them.

    Gaussian: 2/k. Orthonormal: ``|aP|^2 = (d/k) |a|^2 Beta(k/2, (d-k)/2)``. Rademacher: ``(2/k) (1 - sum a_i^4 / |a|^4)``,
    at most 2/k. Sparse: 2/k, as the fourth moment of its entries is a Gaussian's. Hashed: ``2p (1 - sum a_i^4 / |a|^4)``,
    where p is the probability that two columns share a sum.
    """
    if kind == "identity" or (k == d and kind in ("orthonormal", "hashed")):
        return 0.0
    if kind == "orthonormal":
        return 2.0 * (d - k) / (k * (d + 2.0))
    if kind == "hashed":
        sizes = np.bincount(np.arange(d) % k, minlength=k)
        return 2.0 * float((sizes * (sizes - 1.0)).sum()) / (d * (d - 1.0))
    return 2.0 / k


def _orthonormal(d: int, k: int, random: np.random.Generator) -> np.ndarray:
    """k uniformly distributed orthonormal columns: QR of a Gaussian matrix, with the signs that make it uniform."""
    q, r = np.linalg.qr(random.normal(size=(d, k)))
    return q * np.sign(np.diag(r))

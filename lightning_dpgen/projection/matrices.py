"""Random projections: matrices P (d, k) with ``E[P P^T] = I``, so that squared lengths are kept on average.

They are drawn from a public seed and never look at a record, so a matrix may be published, and noise may be calibrated on
the one that was drawn.
"""

from __future__ import annotations

import math

import numpy as np

_STREAM = 1
# A verifier of a release makes its float64 matrix again, within a gigabyte of memory and a few seconds.
MOST_NUMBERS, _MOST_PRODUCTS = 1 << 24, 1.5e10
MATRICES = ("gaussian", "orthonormal", "rademacher", "sparse", "hashed", "identity")


def make_matrix(kind: str, d: int, k: int, seed: int) -> np.ndarray:
    """Draw a projection (d, k), in float64.

    Args:
        kind: ``gaussian`` (the paper's: entries N(0, 1/k)); ``orthonormal`` (k random orthonormal columns times
            sqrt(d/k)); ``rademacher`` (+-1/sqrt(k)); ``sparse`` (Achlioptas 2003: two thirds zero, the rest +-sqrt(3/k));
            ``hashed`` (Charikar, Chen and Farach-Colton 2002: each column of the data goes to one of k sums with a random
            sign, here with sums of equal size, which makes the columns orthogonal); ``identity`` (k = d: the data itself).
        d: columns of the data.
        k: columns of the released rows, at most d.
        seed: public seed.

    Raises:
        ValueError: as for `check_matrix`.

    Example:
        >>> make_matrix("hashed", 4, 2, seed=0).shape
        (4, 2)
    """
    check_matrix(kind, d, k)
    # A stream of its own: simulated rows are drawn from the same public seed.
    random = np.random.default_rng([seed, _STREAM])
    if kind == "identity":
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


def check_matrix(kind: str, d: int, k: int) -> None:
    """Refuse a matrix that `make_matrix` does not make; nothing is made here.

    Raises:
        ValueError: for an unknown kind, sizes that do not go with it, or more numbers or products than a verifier of the
            release can be asked to compute again.
    """
    if kind not in MATRICES:
        raise ValueError(f"matrix={kind!r}: expected one of {', '.join(MATRICES)}")
    for name, value in (("d", d), ("k", k)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise ValueError(f"{name}={value!r}: expected a whole number")
    if not 1 <= k <= d:
        raise ValueError(f"k={k}: expected 1 to d={d}, the number of columns")
    if kind == "identity" and k != d:
        raise ValueError(f"k={k} with matrix='identity': expected k={d}, as many as the data have columns")
    if d * k > MOST_NUMBERS:
        raise ValueError(f"d={d}, k={k}: expected a matrix of at most {MOST_NUMBERS:,} numbers; project to fewer columns")
    # Its sensitivity is a singular value, which takes so many products.
    if d * k * k > _MOST_PRODUCTS:
        raise ValueError(
            f"d={d}, k={k}: expected at most {_MOST_PRODUCTS:.2g} products (d k^2) to find its sensitivity; project to "
            "fewer columns"
        )


def distortion(kind: str, d: int, k: int) -> float:
    """Return the variance of ``|aP|^2 / |a|^2`` over the draw of P for the worst a; most others come close to it.

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
    """Draw k uniformly distributed orthonormal columns: QR of a Gaussian matrix, with the signs that make it uniform."""
    q, r = np.linalg.qr(random.normal(size=(d, k)))
    return q * np.sign(np.diag(r))

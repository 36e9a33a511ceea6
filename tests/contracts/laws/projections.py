"""Laws of the projection release."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.accountant import gaussian_epsilon
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.projection import sensitivity
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection


def no_sign_vector_passes_the_dual_norm(k=5) -> None:
    """Check it wherever the largest is: each sign vector in turn is planted as the largest, so every chunk holds it."""
    noise = 0.1 * np.random.default_rng(k).normal(size=(12, k))
    vectors = np.array(list(itertools.product([-1.0, 1.0], repeat=k)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sensitivity, "_CHUNK", 4)
        for planted in vectors:
            matrix = noise + planted
            largest = np.linalg.norm(vectors @ matrix.T, axis=1).max()
            assert largest * (1.0 - 1e-12) <= sensitivity.l1_of_a_row(matrix) <= largest * (1.0 + 1e-8)


def a_replaced_row_costs_at_most_epsilon(noise="laplace", unit="row") -> None:
    """Check how far the worst neighbours move the exact release, over the noise of rows of zeros.

    The worst rows are found without the package: over all sign vectors, or as the longest row of the matrix. The noise is
    estimated from 120,000 numbers; 3 % is more than six standard errors.
    """
    d, k, epsilon, delta = 12, 4, 1.0, 1e-5 if noise == "gaussian" else 0.0
    matrix = np.random.default_rng(0).normal(size=(d, k)) / math.sqrt(k)
    projection = Projection(matrix, Neighbourhood(unit, radius=2.0), noise)
    plan = projection.plan(epsilon, delta)
    drawn, _ = projection.release(np.zeros((30_000, d)), Account(plan, stream=PrivateStream(seed=4)))
    drawn = drawn.astype(np.float64)
    order = 1 if noise == "laplace" else 2
    if unit == "element":
        worst = np.eye(d)[np.linalg.norm(matrix, ord=order, axis=1).argmax()]
    elif noise == "laplace":
        signs = np.array(list(itertools.product([-1.0, 1.0], repeat=k)))
        worst = matrix @ signs[np.linalg.norm(signs @ matrix.T, axis=1).argmax()]
    else:
        worst = np.linalg.svd(matrix)[0][:, 0]
    worst = worst / np.linalg.norm(worst)
    exact = [projection.grid * projection._exact(far * worst[None])[0] for far in (2.0, -2.0, 1e3, -1e3)]
    moved = max(np.linalg.norm((one - other).ravel(), ord=order) for one in exact for other in exact)
    scale = {
        "laplace": np.abs(drawn).mean(),
        "spherical": np.linalg.norm(drawn, axis=1).mean() / k,
        "gaussian": drawn.std(),
    }[noise]
    spent = gaussian_epsilon(moved / scale, delta) if delta else moved / scale
    # A hundredth of the budget pays for the count of rows that were pulled back.
    assert 0.97 * 0.98 * epsilon < spent < 1.03 * epsilon

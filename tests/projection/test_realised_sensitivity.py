"""No neighbour moves a release by more than is declared, and some neighbour moves it by at least 95 % of that."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse
from contracts.laws import projections as laws

from lightning_dpgen.projection import sensitivity
from lightning_dpgen.projection.matrices import MATRICES, make_matrix
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection, check_rows
from lightning_dpgen.projection.sensitivity import NOISES, _dual_bound, l1_of_a_row, l2_of_a_row, largest_row
from lightning_dpgen.sampling.errors import BadRecords


def _moved(projection, before, after, norm):
    """Measure the move of the exact release between two tables that differ in one row."""
    around = np.random.default_rng(5).normal(size=(3, projection.d))
    exact = [projection._exact(np.vstack([around, row]))[0] for row in (before, after)]
    assert np.array_equal(exact[0][:3], exact[1][:3]), "the other rows do not move"
    moved = [abs(int(one) - int(other)) for one, other in zip(exact[0][3], exact[1][3], strict=True)]
    total = sum(moved) if norm == 1 else math.sqrt(sum(own**2 for own in moved))
    return total * projection.grid


def _worst_direction(matrix, norm, random):
    """Find the largest |vP| over |v|_2 = 1: over all sign vectors if these are few, else by ascent from several starts."""
    best, k = None, matrix.shape[1]
    if norm == 1 and k <= 12:
        signs = np.array(list(itertools.product([-1.0, 1.0], repeat=k)))
        v = matrix @ signs[np.linalg.norm(signs @ matrix.T, axis=1).argmax()]
        return v / np.linalg.norm(v)
    for _ in range(30):
        v = random.normal(size=len(matrix))
        for _ in range(60):
            image = v @ matrix
            v = matrix @ (np.sign(image) if norm == 1 else image)
            v /= np.linalg.norm(v)
        size = np.linalg.norm(v @ matrix, ord=norm)
        if best is None or size > best[0]:
            best = size, v
    return best[1]


def _pairs(projection, norm, random):
    """Give neighbours that may be bad: along the worst direction or column, at the border, beyond it, anywhere."""
    around, d = projection.neighbourhood, projection.d
    centre = np.zeros(d) if projection.centre is None else projection.centre
    if around.unit == "row":
        worst = _worst_direction(projection.matrix, norm, random)
        if around.enforced:
            for far in (1.0, 1.5, 1e6):
                yield centre + far * around.radius * worst, centre - far * around.radius * worst
                yield centre + far * around.radius * worst, centre - 0.3 * worst
            for _ in range(200):
                yield tuple(centre + 3 * around.radius * random.normal(size=(2, d)))
        else:
            start = random.normal(size=d)
            yield start, start + around.distance * worst
            yield 100.0 * start, 100.0 * start - around.distance * worst
    else:
        column = np.zeros(d)
        column[np.linalg.norm(projection.matrix, ord=norm, axis=1).argmax()] = 1.0
        start = random.normal(size=d)
        if around.enforced:
            start -= column * start
            for far in (1.0, 3.0, 1e6):
                yield start + column * (centre + far * around.radius), start + column * (centre - far * around.radius)
        else:
            yield start, start + around.distance * column


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("unit", ["row", "element"])
@pytest.mark.parametrize("how", [{"radius": 2.0}, {"distance": 0.7}], ids=["radius", "distance"])
def test_neighbours(kind, noise, unit, how):
    random = np.random.default_rng(1)
    d, k = (8, 8) if kind == "identity" else (30, 7)
    centre = random.normal(size=d)
    projection = Projection(make_matrix(kind, d, k, seed=2), Neighbourhood(unit, **how), noise, centre)
    norm = NOISES[noise].norm
    moved = [_moved(projection, *pair, norm) for pair in _pairs(projection, norm, random)]
    assert 0.95 * projection.sensitivity < max(moved) <= projection.sensitivity


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("unit", ["row", "element"])
def test_the_noise_is_as_large_as_the_worst_neighbours_need(noise, unit):
    laws.a_replaced_row_costs_at_most_epsilon(noise, unit)


def test_a_row_that_is_not_pulled_back_would_be_noticed():
    """The search above is not blind: without the radius it passes the declared sensitivity at once."""
    matrix = make_matrix("gaussian", 30, 7, seed=2)
    enforced = Projection(matrix, Neighbourhood("row", radius=2.0), "laplace")
    free = Projection(matrix, Neighbourhood("row", distance=4.0), "laplace")
    pairs = list(_pairs(enforced, 1, np.random.default_rng(1)))
    assert max(_moved(free, *pair, 1) for pair in pairs) > 1.4 * enforced.sensitivity
    assert enforced.sensitivity == pytest.approx(free.sensitivity, rel=1e-3)


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_the_dual_norm_is_exact(k):
    matrix = make_matrix("gaussian", 12, k, seed=k)
    brute = max(np.linalg.norm(matrix @ np.array(s)) for s in itertools.product([-1.0, 1.0], repeat=k))
    assert l1_of_a_row(matrix) == pytest.approx(brute, rel=1e-8) and l1_of_a_row(matrix) >= brute


@pytest.mark.parametrize("k", [3, 5, 8])
def test_the_dual_norm_is_exact_however_sign_vectors_are_cut(k):
    laws.no_sign_vector_passes_the_dual_norm(k)


@pytest.mark.parametrize("k", [16, sensitivity.EXACT_UP_TO + 1])
def test_no_sign_vector_passes_the_dual_norm_where_there_are_many(k):
    """Try several chunks, and sizes that are no longer enumerated; the largest is the first one, or any."""
    random = np.random.default_rng(k)
    for planted in (np.ones(k), np.where(random.random(k) < 0.5, -1.0, 1.0)):
        matrix = 0.1 * random.normal(size=(30, k)) + planted
        some = np.vstack([planted, np.sign(random.normal(size=(200, k)))])
        assert l1_of_a_row(matrix) >= np.linalg.norm(some @ matrix.T, axis=1).max() * (1 - 1e-12)


@pytest.mark.parametrize("kind", ["gaussian", "rademacher", "sparse"])
def test_beyond_enumeration_there_is_a_bound(kind):
    for seed in range(4):
        matrix = make_matrix(kind, 40, 12, seed)
        bound, exact = np.sqrt(_dual_bound(matrix.T @ matrix)), l1_of_a_row(matrix)
        assert exact <= bound * (1 + 1e-9) <= 1.06 * exact
        assert bound < 0.99 * np.sqrt(12) * np.linalg.norm(matrix, 2), "better than the largest singular value alone"
    wide = make_matrix(kind, 120, 60, seed=0)
    found = _worst_direction(wide, 1, np.random.default_rng(0)) @ wide
    assert np.abs(found).sum() <= l1_of_a_row(wide) <= 1.2 * np.abs(found).sum()


def test_orthogonal_columns_need_no_enumeration():
    assert l1_of_a_row(make_matrix("orthonormal", 100, 50, seed=0)) == pytest.approx(10.0, rel=1e-8)
    assert l1_of_a_row(make_matrix("hashed", 100, 50, seed=0)) == pytest.approx(10.0, rel=1e-8)
    assert l2_of_a_row(make_matrix("hashed", 103, 50, seed=0)) == pytest.approx(3**0.5, rel=1e-8)
    assert largest_row(make_matrix("hashed", 100, 50, seed=0), 1) == pytest.approx(1.0, rel=1e-8)


@pytest.mark.parametrize("unit", ["row", "element"])
@pytest.mark.parametrize("centre", [None, "some"])
def test_sparse_rows_are_treated_like_dense_ones(unit, centre):
    random = np.random.default_rng(0)
    dense = random.normal(size=(50, 9)) * (random.random((50, 9)) < 0.3)
    sparse = scipy.sparse.coo_array(dense)
    # A value in two parts, and a stored zero.
    order = np.argsort(np.concatenate([sparse.coords[0]] * 2 + [[0]]), kind="stable")
    columns = np.concatenate([sparse.coords[1]] * 2 + [[3]])[order]
    data = np.concatenate([sparse.data / 2, sparse.data / 2, [0.0]])[order]
    counts = 2 * np.bincount(sparse.coords[0], minlength=50) + (np.arange(50) == 0)
    odd = scipy.sparse.csr_array((data, columns, np.concatenate([[0], np.cumsum(counts)])), shape=(50, 9))
    assert not odd.has_canonical_format
    projection = Projection(
        make_matrix("gaussian", 9, 4, seed=1),
        Neighbourhood(unit, radius=0.8),
        "laplace",
        None if centre is None else random.normal(size=9),
    )
    exact, clipped = projection._exact(check_rows(dense))
    assert 0 < clipped < 50 or centre
    for other in (odd, scipy.sparse.csc_array(dense), scipy.sparse.csr_matrix(dense)):
        again, count = projection._exact(check_rows(other))
        assert np.array_equal(again, exact)
        assert count == clipped


@pytest.mark.parametrize("unit", ["row", "element"])
@pytest.mark.parametrize("far", [1e9, 1e15, 1e20])
def test_a_far_centre_widens_nothing(unit, far):
    centre = np.full(30, far)
    projection = Projection(make_matrix("orthonormal", 30, 7, 2), Neighbourhood(unit, radius=1.0), "laplace", centre)
    random = np.random.default_rng(0)
    for _ in range(40):
        pair = centre + 10.0 ** random.uniform(-1, 20) * random.normal(size=(2, 30))
        if unit == "element":
            pair[1, 1:] = pair[0, 1:]
        moved = _moved(projection, *pair, 1)
        assert moved <= projection.sensitivity


def test_a_declared_distance_among_numbers_too_large_for_it_is_refused():
    projection = Projection(make_matrix("orthonormal", 30, 7, 2), Neighbourhood("row", distance=1.0), "laplace")
    with pytest.raises(BadRecords, match="give a centre"):
        projection._exact(np.full((2, 30), 1e9))

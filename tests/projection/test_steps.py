"""Projected rows are exact functions of their own row: an oracle in whole numbers of Python has the same steps."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse

from lightning_dpgen.projection.matrices import MATRICES, make_matrix
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.sensitivity import NOISES
from lightning_dpgen.projection.steps import Steps, matrix_unit, round_matrix

D, K = 40, 6
CENTRE = np.linspace(-1.0, 1.0, D)


def _steps(unit, how, noise="laplace", centre=CENTRE, kind="gaussian", d=D, k=K):
    return Steps(round_matrix(make_matrix(kind, d, k, 3)), Neighbourhood(unit, **how), noise, centre)


def _projected(steps, whole):
    """Project rows of whole units by fractions, and round to nearest."""
    matrix, half = [[int(own) for own in row] for row in steps._whole], Fraction(1, 2)
    return [
        [math.floor(Fraction(sum(a * row[j] for a, row in zip(own, matrix, strict=True)), 2**steps._shift) + half)
         for j in range(len(matrix[0]))]
        for own in whole
    ]  # fmt: skip


@pytest.mark.parametrize("size", [0.1, 30.0, 3e4, 7e5])
@pytest.mark.parametrize("unit", ["row", "element"])
def test_rows_near_declared_ones(unit, size):
    """Large rows take several products, of parts of their bits; nearest whole units are rounded as in Python."""
    steps = _steps(unit, {"distance": 1.0})
    rows = CENTRE + np.random.default_rng(0).uniform(-size, size, (20, D))
    units = Fraction(steps._unit)
    centre = [round(Fraction(float(own)) / units) for own in CENTRE]
    whole = [[round(Fraction(float(own)) / units) - at for own, at in zip(row, centre, strict=True)] for row in rows]
    assert steps(rows)[0].tolist() == _projected(steps, whole)


@pytest.mark.parametrize("kind", MATRICES)
def test_elements_within_a_radius(kind):
    k = D if kind == "identity" else K
    steps = _steps("element", {"radius": 2.0}, kind=kind, k=k, centre=None)
    rows = np.random.default_rng(0).uniform(-3.0, 3.0, (20, D))
    units, largest = Fraction(steps._unit), math.floor(2.0 / steps._unit)
    whole = [[max(-largest, min(largest, round(Fraction(float(own)) / units))) for own in row] for row in rows]
    drawn, far = steps(rows)
    assert drawn.tolist() == _projected(steps, whole)
    assert far.tolist() == [any(abs(own) > 2.0 for own in row) for row in rows]


@pytest.mark.parametrize("d", [2, 40, 5000])
def test_rows_within_a_radius_are_no_longer_in_whole_numbers(d):
    """Their norm is at most the bound; and within a few units of it where a row was pulled back, in its own direction."""
    steps = _steps("row", {"radius": 2.0}, centre=None, d=d, k=2)
    random = np.random.default_rng(d)
    rows = random.normal(size=(60, d))
    rows *= (10.0 ** random.uniform(-2, 12, 60) / np.linalg.norm(rows, axis=1))[:, None]
    rows[:2] = 0.0
    rows[1, 0] = 1e30
    whole, far = steps._pull_back(rows)
    lengths = [math.isqrt(sum(int(own) ** 2 for own in row)) for row in whole]
    assert max(lengths) <= steps._bound and far.tolist() == (np.linalg.norm(rows, axis=1) > 2.0).tolist()
    assert min(own for own, pulled in zip(lengths, far, strict=True) if pulled) >= steps._bound - 2 * math.sqrt(d) - 2
    expected = rows * np.minimum(1.0, 2.0 / np.maximum(np.linalg.norm(rows, axis=1), 1e-9))[:, None]
    assert np.abs(whole * steps._unit - expected).max() <= 3 * steps._unit
    assert steps(rows[:20])[0].tolist() == _projected(steps, [[int(own) for own in row] for row in whole[:20]])


def test_rows_on_the_border_are_not_counted():
    rows = np.random.default_rng(0).normal(size=(500, D))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    assert not _steps("row", {"radius": 1.0}, centre=None)(rows)[1].any()
    assert _steps("row", {"radius": 1.0}, centre=None)(1.001 * rows)[1].all()


@pytest.mark.parametrize("unit", ["row", "element"])
@pytest.mark.parametrize("how", [{"radius": 2.0}, {"distance": 0.7}], ids=["radius", "distance"])
def test_a_row_is_projected_alike_in_any_company(unit, how):
    random = np.random.default_rng(1)
    rows = random.normal(size=(97, D)) * 10.0 ** random.uniform(-1, 3, (97, 1)) * (random.random((97, D)) < 0.4)
    steps = _steps(unit, how, centre=None)
    together = steps(rows)[0]
    for some in (slice(0, 1), slice(5, 12), slice(3, 97, 7)):
        assert np.array_equal(steps(np.asfortranarray(rows[some]))[0], together[some])
        assert np.array_equal(steps(scipy.sparse.csr_array(rows[some]))[0], together[some])


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_grid_costs_less_than_a_thousandth(noise, scale):
    for unit in ("row", "element"):
        for how in ("radius", "distance"):
            steps = _steps(unit, {how: scale}, noise, None)
            own = Neighbourhood(unit, **{how: scale}).change * NOISES[noise].sensitivity(
                round_matrix(make_matrix("gaussian", D, K, 3)), unit
            )
            assert own * (1 - 1e-5) < steps.sensitivity * steps.grid < own * 1.0005
            assert math.frexp(steps.grid)[0] == 0.5


def test_matrices_are_rounded_once():
    for kind in MATRICES:
        drawn = make_matrix(kind, 9, 9 if kind == "identity" else 4, 0)
        rounded = round_matrix(drawn)
        assert np.abs(rounded - drawn).max() <= 0.5 * matrix_unit(drawn) and np.array_equal(round_matrix(rounded), rounded)


@pytest.mark.parametrize("matrix", [np.full((2, 1), size) for size in (1e-300, 2.2e-162, 0.0, 1e290)])
def test_matrices_far_from_one_are_refused(matrix):
    """Squares of numbers near 1e-162 have lost digits, and a length made of them is too short."""
    with pytest.raises(ValueError, match=r"expected 1e-100 to 1e\+100"):
        Steps(matrix, Neighbourhood("row", radius=1.0), "gaussian")


@pytest.mark.parametrize("form", [np.array, scipy.sparse.csr_array])
def test_a_row_that_is_too_long_nevertheless_becomes_zero(monkeypatch, form):
    """Roots that are too small leave rows beyond the radius, which their squares in whole numbers notice."""
    steps, root = _steps("row", {"radius": 1.0}, centre=None), np.sqrt
    rows = form(np.stack([np.full(D, 3.0), np.full(D, 0.01)]))
    kept = steps(rows)[0]
    monkeypatch.setattr(np, "sqrt", lambda x: 0.9 * root(x))
    assert steps(rows)[0].tolist() == [[0] * K, kept[1].tolist()] and kept.any(axis=1).all()

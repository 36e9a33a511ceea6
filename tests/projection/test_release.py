"""A projection spends its budget once, on checked rows, and says what it could not protect."""

import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.pipeline import make_pipeline

from lightning_dpgen import PrivateProjection
from lightning_dpgen.data.simulated.points import blobs
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError, PlanMismatch
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.projection.choice import ladder, options
from lightning_dpgen.projection.matrices import distortion, make_matrix
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection
from lightning_dpgen.projection.recovery import Recovery
from lightning_dpgen.projection.sensitivity import NOISES
from lightning_dpgen.sampling.errors import BadRecords

ROWS, LABELS = blobs(400, 6, seed=1)


def _projection(noise="laplace", unit="row", **how):
    return Projection(make_matrix("identity", 6, 6, 0), Neighbourhood(unit, **(how or {"radius": 5.0})), noise)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("unit", ["row", "element"])
def test_the_plan_costs_epsilon_and_the_noise_is_what_it_says(noise, unit):
    projection, delta = _projection(noise, unit), 1e-5 if noise == "gaussian" else 0.0
    plan = projection.plan(3.0, delta)
    assert plan.relation == "replace_one" and 2.99 < plan.epsilon <= 3.0
    if not delta:
        assert projection.scale(plan) == pytest.approx(projection.sensitivity / (0.99 * 3.0), rel=1e-5)
    else:
        # One Gaussian beside a count of one hundredth of mu^2: the classical answer, with the sensitivity of a replacement.
        from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_mu

        mu = gaussian_mu(3.0, delta) * math.sqrt(0.99)
        assert projection.scale(plan) == pytest.approx(projection.sensitivity / mu, rel=1e-3)


@pytest.mark.parametrize("noise", NOISES)
def test_noise_of_different_rows_is_independent_and_of_its_scale(noise):
    projection = _projection(noise)
    plan = projection.plan(2.0, 1e-5 if noise == "gaussian" else 0.0)
    released, _ = projection.release(np.zeros((20_000, 6)), Account(plan, stream=PrivateStream(seed=2)))
    expected = projection.scale(plan) ** 2 * NOISES[noise].variance(6)
    # Standard errors of 120,000 numbers, heavy tails included: 1 %; a factor of sqrt 2 would be 40 %.
    assert released.var() == pytest.approx(expected, rel=0.05)
    neighbours = np.corrcoef(released[:-1].ravel(), released[1:].ravel())[0, 1]
    lengths = np.linalg.norm(released, axis=1)
    assert abs(neighbours) < 0.015 and abs(np.corrcoef(lengths[:-1], lengths[1:])[0, 1]) < 0.035, "4.4 standard errors"


def test_a_second_release_is_refused():
    projection = _projection()
    account = Account(projection.plan(1.0))
    projection.release(ROWS, account)
    with pytest.raises(PlanMismatch, match="that many have been made"):
        projection.release(ROWS, account)
    fitted = PrivateProjection(3, radius=5.0).fit(ROWS)
    fitted.transform(ROWS)
    with pytest.raises(LedgerError, match="has released its rows"):
        fitted.transform(ROWS[:5])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda x: x.__setitem__((3, 2), np.nan), "NaN"),
        (lambda x: x.__setitem__((3, 2), np.inf), "NaN, or values beyond"),
        (lambda x: x.__setitem__((3, 2), -1e31), "values beyond"),
    ],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_bad_rows_cost_nothing(spoil, words, sparse):
    import scipy.sparse

    rows = ROWS.copy()
    spoil(rows)
    projection = _projection()
    account = Account(projection.plan(1.0))
    with pytest.raises(BadRecords, match=words):
        projection.release(scipy.sparse.csr_array(rows) if sparse else rows, account)
    for other in (ROWS[:, :5], ROWS[0], ROWS[:0], ROWS.astype(str), ROWS.astype(object)):
        with pytest.raises(BadRecords, match="expected"):
            projection.release(other, account)
    assert not account.ledger.accesses


def test_how_many_rows_were_pulled_back_is_counted_with_noise():
    projection = _projection(radius=np.quantile(np.linalg.norm(ROWS, axis=1), 0.3))
    counts = []
    for seed in range(60):
        account = Account(projection.plan(4.0), stream=PrivateStream(seed=seed))
        counts.append(projection.release(ROWS, account)[1])
    # Laplace noise of scale 25: a standard error of 4.6 for the mean of 60.
    assert abs(np.mean(counts) - 280) < 21 and np.std(counts) == pytest.approx(35, rel=0.45)
    assert projection.release(ROWS, Account(projection.plan(4.0, count_share=0.0)))[1] is None
    free = _projection(distance=1.0)
    assert [stage.name for stage in free.plan(4.0).stages] == ["rows"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "give one of them"),
        ({"radius": 1.0, "distance": 1.0}, "give one of them"),
        ({"radius": -1.0}, "radius=-1.0"),
        ({"distance": math.inf}, "distance=inf"),
        ({"radius": 8.64e13}, "1e-12 to 1e"),
        ({"radius": 1.0, "n_components": 2.5}, "k=2.5"),
        ({"radius": 1.0, "random_state": None}, "random_state=None"),
        ({"radius": 1.0, "unit": "table"}, "unit='table'"),
        ({"radius": 1.0, "n_components": 7}, "k=7"),
        ({"radius": 1.0, "n_components": 0}, "k=0"),
        ({"radius": 1.0, "matrix": "magic"}, "matrix='magic'"),
        ({"radius": 1.0, "matrix": "identity", "n_components": 3}, "expected k=6"),
        ({"radius": 1.0, "noise": "uniform"}, "noise='uniform'"),
        ({"radius": 1.0, "noise": "gaussian"}, "needs a delta above 0"),
        ({"radius": 1.0, "noise": "laplace", "delta": 1e-5}, "delta is 0"),
        ({"radius": 1.0, "epsilon": 0.0}, "epsilon=0"),
        ({"radius": 1.0, "epsilon": math.nan}, "epsilon=nan"),
        ({"radius": 1.0, "count_share": 1.0}, "count_share=1.0"),
        ({"radius": 1.0, "centre": np.zeros(5)}, "centre"),
    ],
)
def test_what_does_not_go_together(arguments, words):
    with pytest.raises(ValueError, match=words):
        PrivateProjection(**arguments).fit(ROWS)


def test_it_is_a_transformer():
    projection = PrivateProjection(6, epsilon=50.0, radius=8.0, random_state=3)
    assert clone(projection).get_params() == projection.get_params()
    pipeline = make_pipeline(projection, KMeans(2, n_init=4, random_state=0))
    found = pipeline.fit_predict(ROWS)
    assert max(np.mean(found == LABELS), np.mean(found != LABELS)) > 0.9
    fitted = pipeline[0]
    assert list(fitted.get_feature_names_out()) == [f"projected_{i}" for i in range(6)]
    assert fitted.n_features_in_ == 6 and fitted.account_.plan.spent.epsilon <= 50.0
    frame = PrivateProjection(2, radius=8.0).set_output(transform="pandas").fit_transform(ROWS)
    assert list(frame.columns) == ["projected_0", "projected_1"]


def test_fit_looks_at_no_row():
    one, other = (PrivateProjection(3, radius=5.0).fit(rows) for rows in (ROWS, np.full_like(ROWS, np.nan)))
    assert np.array_equal(one.projection_.matrix, other.projection_.matrix) and one.scale_ == other.scale_


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["row", "element"])
def test_the_expected_error_is_the_error(unit):
    """Errors of options fit over draws of matrix and noise; 20 % is four standard errors of a standard deviation of 400."""
    d, a = 20, np.random.default_rng(0).normal(size=20)
    a *= 5.0 / np.linalg.norm(a)
    neighbourhood = Neighbourhood(unit, distance=1.0)
    for option in options(d, neighbourhood, 4.0, ks=[5, 20], typical=5.0)[::2]:
        errors = []
        for seed in range(400):
            matrix = make_matrix(option.matrix, d, option.k, seed)
            projection = Projection(matrix, neighbourhood, option.noise)
            plan = projection.plan(4.0)
            released, _ = projection.release(np.stack([a, 0 * a]), Account(plan, stream=PrivateStream(seed=seed)))
            recovery = Recovery(option.k, option.noise, projection.scale(plan), distortion(option.matrix, d, option.k))
            errors.append(float(recovery.squared_distances(released[:1], released[1:])[0]) - 25.0)
        assert np.std(errors) == pytest.approx(25.0 * option.error, rel=0.2), option


def test_the_raw_rivals_are_recommended_where_they_win():
    best = options(100, Neighbourhood("element", distance=1.0), 4.0, typical=14.0)[0]
    assert best.matrix == "identity" and best.noise == "laplace"
    assert options(50, Neighbourhood("row", radius=30.0), 0.2)[0].k < 50, "and not where they do not"
    gaussian = options(100, Neighbourhood("row", distance=1.0), 4.0, 1e-5, typical=14.0)[0]
    assert gaussian.matrix == "identity" and gaussian.noise == "gaussian"
    assert ladder(12) == [1, 2, 3, 5, 10, 12] and ladder(1) == [1]

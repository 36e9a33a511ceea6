"""Gaussians of noisy moments: what is found without noise, how much noise is taken off, and what a run may lose."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.measure.gaussians import GaussianRecipe, label_components
from lightning_dpgen.measure.moments import _in_common, factors_of, likely_counts, likely_means, through_clipping
from lightning_dpgen.measure.pictures import curve
from lightning_dpgen.measure.recipe import MostlyNoise
from lightning_dpgen.measure.statistics import Counts, Histogram
from lightning_dpgen.measure.workload import Workload
from lightning_dpgen.models.bases import cosines
from lightning_dpgen.models.gaussians import StackedGaussians
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_mu
from lightning_dpgen.privacy.errors import LedgerError, PlanMismatch
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.release.drawing.draws import block_streams
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.sampling.errors import BadRecords

SERIES = SeriesSchema(6, low=0.0, high=1.0, classes=("a", "b"))


def some_series(n, seed=0):
    """Draw two classes of Gaussians well inside the bounds, and return their means and covariances too."""
    random = np.random.default_rng(seed)
    mixing = random.normal(size=(2, 6, 6)) * 0.03
    means = random.uniform(0.35, 0.65, (2, 6))
    labels = np.repeat([0, 1], [n // 4, n - n // 4])
    units = means[labels] + np.einsum("nd,ndm->nm", random.normal(size=(n, 6)), mixing[labels])
    records = Records(SERIES, Encoded(np.clip(units, 0, 1).astype(np.float32), labels[:, None].astype(np.uint8)))
    return records, means, mixing.transpose(0, 2, 1) @ mixing


def recipe(n, **changed):
    return GaussianRecipe(SERIES, 2, n, **({"size": 6, "radius": 2.0, "spread": 1.0} | changed))


def fitted(records, epsilon, **changed):
    own = recipe(len(records), **changed)
    account = Account(make_plan(own.specs(1.0), epsilon=epsilon, delta=1e-5))
    component = label_components(records)
    return own.measure(records, component, account), account


def test_without_noise_it_is_the_gaussian_of_each_class():
    records, means, covariances = some_series(40_000)
    mixture, account = fitted(records, math.inf)
    basis = cosines(SERIES.layout, SERIES.axes, 6).vectors.numpy()
    assert account.finished and mixture.weights.tolist() == pytest.approx([0.25, 0.75])
    for c in range(2):
        factors = mixture.network.factors[c].double().numpy()
        own = records.encoded.units[records.encoded.codes[:, 0] == c]
        np.testing.assert_allclose(mixture.network.centres[c].numpy() @ basis, own.mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(basis.T @ factors.T @ factors @ basis, np.cov(own.T, bias=True), atol=1e-6)
        np.testing.assert_allclose(np.cov(own.T), covariances[c], atol=3e-4)
    drawn = mixture.sample(40_000, torch.Generator().manual_seed(0))
    assert np.bincount(drawn.codes[:, 0]).tolist() == pytest.approx([10_000, 30_000], rel=0.03)
    for c in range(2):
        own = drawn.units[drawn.codes[:, 0] == c]
        np.testing.assert_allclose(own.mean(axis=0), means[c], atol=5e-3)
        np.testing.assert_allclose(np.cov(own.T), covariances[c], atol=1e-3)


def test_the_noise_of_a_plan_costs_what_two_gaussians_cost_by_hand():
    """Counts, means and moments by their multipliers: inverse squares add, and the sum is the budget's mu^2."""
    own = recipe(1000)
    plan = make_plan(own.specs(1.0), epsilon=2.0, delta=1e-5)
    inverse = [m**-2 for stage in plan.stages for m in stage.access.multipliers.values()]
    assert math.sqrt(sum(inverse)) == pytest.approx(gaussian_mu(2.0, 1e-5), rel=1e-4)
    assert sum(inverse[:2]) / sum(inverse) == pytest.approx(0.15)
    assert plan.epsilon <= 2.0 and [len(stage.access.multipliers) for stage in plan.stages] == [2, 1]


def test_what_noise_adds_to_variances_is_taken_off():
    """Mean over draws of the noise: traces within three standard errors (one false alarm in 400), without it far off."""
    d, k, n, deviation = 20, 2, 1000.0, 10.0
    random = np.random.default_rng(0)
    true = np.diag(np.r_[[1.0, 0.5, 0.3], np.full(d - 3, 1e-6)])
    traces, naive = [], []
    for _ in range(40):
        noisy = n * true + deviation * random.normal(size=(k, d, d))
        factors = factors_of(torch.from_numpy(noisy), torch.full((k,), n, dtype=torch.float64), deviation)
        traces.append(float(factors.square().sum()) / k)
        values = np.linalg.eigvalsh((noisy[0] + noisy[0].T) / 2 / n)
        naive.append(values[values > 0].sum())
    assert np.mean(traces) == pytest.approx(1.8, abs=3 * np.std(traces) / 40**0.5 + 0.01)
    assert np.mean(naive) > 2.0


@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_moments_are_those_of_records_once_units_are_cut(spread):
    """Pixels of which most are at an end; beside a narrow Gaussian, of which cutting takes nothing."""
    random = np.random.default_rng(0)
    vectors = cosines(SERIES.layout, SERIES.axes, 6).vectors
    mixing = torch.from_numpy(spread * random.normal(size=(6, 6)))
    centre = torch.from_numpy(random.uniform(0.3, 0.7, 6)) @ vectors.T

    def cut(centre, factor):
        z = torch.from_numpy(random.normal(size=(200_000, len(factor))))
        units = ((centre + z @ factor) @ vectors).clamp(0.0, 1.0)
        return (units @ vectors.T).mean(dim=0), torch.cov((units @ vectors.T).T)

    # Moments that there can be: those of a Gaussian that was cut.
    mean, covariance = cut(centre, mixing)
    factor = torch.linalg.cholesky(covariance).T
    own, wider = through_clipping(mean, factor, vectors)
    found_mean, found = cut(own, wider)
    plain = cut(mean, factor)[1]
    assert (found_mean - mean).norm() < 0.02 and (found - covariance).norm() < 0.06 * covariance.norm()
    if spread == 0.3:
        assert (plain - covariance).norm() > 0.25 * covariance.norm()
    else:
        torch.testing.assert_close(wider.T @ wider, covariance, atol=2e-4, rtol=0.0)


def test_strokes_of_which_no_gaussian_has_the_moments_are_brought_nearer():
    """Thin lines on black: many waves hardly vary, and cutting the wide ones comes out there. A correction of each wave in
    units of its own deviation runs away from them."""
    random, schema = np.random.default_rng(0), ImageSchema(12, 12, levels=255)
    vectors = cosines(schema.layout, schema.axes, 60).vectors
    rows, columns = np.arange(12), np.arange(12)
    middles = random.normal(5.5, 0.7, (4000, 1)) + random.normal(0.2, 0.3, (4000, 1)) * (5.5 - rows)
    lines = (1.5 * np.exp(-np.square(columns - middles[:, :, None])) - 0.2).clip(0.0, 1.0)
    lines[:, [0, 1, 10, 11]] = 0.0
    moments = torch.from_numpy(lines.reshape(4000, 144)) @ vectors.T
    mean, covariance = moments.mean(dim=0), torch.cov(moments.T)
    values, directions = torch.linalg.eigh(covariance)
    factor = (directions * values.clamp(min=0.0).sqrt()).T

    def far(centre, factor):
        z = torch.from_numpy(np.random.default_rng(1).normal(size=(20_000, len(factor))))
        made = ((centre + z @ factor) @ vectors).clamp(0.0, 1.0) @ vectors.T
        return float((made.mean(dim=0) - mean).norm()), float((torch.cov(made.T) - covariance).norm() / covariance.norm())

    plain, fitted = far(mean, factor), far(*through_clipping(mean, factor, vectors))
    assert fitted[0] < 0.5 * plain[0] and fitted[1] < 0.5 * plain[1]


def test_noise_that_cutting_takes_from_a_mean_is_not_put_back():
    """Dark pictures. A noisy mean has pixels below 0, which no records have; to reach it, what noise has made bright has to
    become brighter."""
    random, schema = np.random.default_rng(0), ImageSchema(12, 12, levels=255)
    vectors = cosines(schema.layout, schema.axes, 60).vectors
    truth = torch.from_numpy(random.choice([0.02, 0.9], 144, p=[0.8, 0.2])) @ vectors.T
    factor, noise = 0.1 * torch.eye(60, dtype=torch.float64), 0.4
    z = torch.from_numpy(random.normal(size=(2000, 60)))
    gains = []
    for _ in range(8):
        centre = truth + noise * torch.from_numpy(random.normal(size=60))
        far = []
        for known in (0.0, noise):
            own, wider = through_clipping(centre, factor, vectors, known)
            made = ((own + z @ wider) @ vectors).clamp(0.0, 1.0) @ vectors.T
            far.append(float((made.mean(dim=0) - truth).norm()))
        gains.append(1.0 - far[1] / far[0])
    # It is .04, with a standard error of .006.
    assert np.mean(gains) > 0.02


@pytest.mark.parametrize(("apart", "gain"), [(0.0, 5.0), (100.0, 1.3), (1000.0, 0.9)])
def test_counts_are_drawn_together_as_far_as_noise_has_them_apart(apart, gain):
    """Compare their squared errors, on average over 200 draws."""
    random = np.random.default_rng(0)
    truth = 1500.0 + apart * torch.from_numpy(random.normal(size=10))
    errors = []
    for _ in range(200):
        noisy = truth + 100.0 * torch.from_numpy(random.normal(size=10))
        errors.append([float((found - truth).square().sum()) for found in (noisy, likely_counts(noisy, 100.0))])
    before, after = np.mean(errors, axis=0)
    assert before / after > gain
    torch.testing.assert_close(likely_counts(truth, 0.0), truth)
    torch.testing.assert_close(likely_counts(truth - 1e6, 0.0), torch.ones_like(truth))


def test_means_are_drawn_together_as_far_as_noise_has_them_apart():
    """In 20 directions components differ by 1, in 20 not at all; noise of their means is 1, of one of few records 100.
    Mean squared errors of 200 draws, which are 1 and 10,000 of means that are not drawn together."""
    random, k = np.random.default_rng(0), 10
    counts = torch.full((k,), 1000.0, dtype=torch.float64)
    counts[-1] = 10.0
    errors, said = [], []
    for _ in range(200):
        truth = torch.from_numpy(random.normal(size=(k, 40)) * np.r_[np.ones(20), np.zeros(20)])
        sums = truth * counts[:, None] + 1000.0 * torch.from_numpy(random.normal(size=(k, 40)))
        means, left = likely_means(sums, counts, 1000.0)
        square = (means - truth).square()
        errors.append([float(part.mean()) for part in (square[:-1, :20], square[:-1, 20:], square[-1])])
        said.append(left.tolist())
    differing, alike, rare = np.mean(errors, axis=0)
    assert 0.5 < differing < 0.75 and alike < 0.35 and rare < 1.0
    # Less by what is not known of the common mean, and of how far components differ.
    assert 0.5 < np.square(said)[:, 0].mean() / ((differing + alike) / 2) < 1.0
    plain, none = likely_means(sums, counts, 0.0)
    torch.testing.assert_close(plain, sums / counts[:, None])
    assert not none.any()
    torch.testing.assert_close(likely_means(sums[:1], counts[:1], 1000.0)[0], sums[:1] / 1000.0)


def a_network(pieces=16, channels=("x", "y")):
    """Draw two components of a series of two channels, the second wider than its bounds."""
    schema = SeriesSchema(6, low=0.0, high=1.0, channels=channels)
    network = StackedGaussians(schema, 2, size=schema.layout.units, rank=6, pieces=pieces)
    random = np.random.default_rng(0)
    vectors = cosines(schema.layout, schema.axes, network.size).vectors
    spread = np.tile(np.linspace(0.1, 0.5, len(channels)), 6)
    for c, middle in enumerate((0.4, 0.6)):
        network.centres[c] = torch.full((schema.layout.units,), middle, dtype=torch.float64) @ vectors.T
        network.factors[c] = torch.from_numpy(random.normal(size=(6, len(spread))) * 0.4 * spread) @ vectors.T
    return network


def made_by(network, n=40_000, seed=1):
    return network.generate((0, n // 2, n), torch.Generator().manual_seed(seed)).double()


def shares(histogram, values):
    """Sums without noise, as they are measured."""
    return histogram.of_values(values).double() * histogram.unit


@pytest.mark.parametrize("pieces", [1, 16])
def test_values_are_spread_as_those_of_records_are(pieces):
    """Two channels, one squeezed to the middle, one mostly at its ends; shares of 40,000 records, to 0.015."""
    network = a_network(pieces)
    asked = Histogram(network.schema.layout, 2, pieces)
    values = network.before_curve((0, 20_000, 40_000), torch.Generator().manual_seed(1)).double()
    wanted = torch.stack([0.5 + 0.3 * (values[:, ::2] - 0.5), 0.2 + 3.0 * (values[:, 1::2] - 0.5)], dim=2).flatten(1)
    due = shares(asked, wanted)
    assert (shares(asked, made_by(network)) - due).abs().max() > 0.2 * 40_000
    network.knots.copy_(curve(asked, due, 0.0, 40_000.0, network, torch.ones(2)))
    assert (network.knots.diff(dim=1) >= 0.0).all()
    found = shares(asked, made_by(network, seed=2))
    if pieces > 1:
        torch.testing.assert_close(found, due, atol=0.015 * 40_000, rtol=0.0)
        assert (made_by(network).mean(dim=0) - wanted.clamp(0.0, 1.0).mean(dim=0)).abs().max() < 0.03
    else:
        # The shares at each end.
        torch.testing.assert_close(found[:, [0, -1]], due[:, [0, -1]], atol=0.015 * 40_000, rtol=0.0)


def test_values_that_are_spread_as_they_should_be_stay_as_they_are():
    network = a_network()
    asked = Histogram(network.schema.layout, 2, 16)
    own = shares(asked, network.before_curve((0, 20_000, 40_000), torch.Generator().manual_seed(1)).double())
    straight = network.knots.clone()
    noise = torch.randn(2, 18, generator=torch.Generator().manual_seed(2))
    for sums, deviation in ((own, 0.0), (own + 300.0 * noise, 300.0)):
        network.knots.copy_(curve(asked, sums, deviation, 40_000.0, network, torch.ones(2)))
        assert (network.knots - straight).abs().max() < 0.02


def test_noise_that_outweighs_all_bends_nothing():
    """5 deviations of 36 numbers, at 2.5 each: fewer than one in two would be certain; far fewer are certain enough."""
    network = a_network()
    asked = Histogram(network.schema.layout, 2, 16)
    straight = network.knots.clone()
    own = shares(asked, made_by(network, 100))
    noisy = own + 500.0 * torch.randn(2, 18, generator=torch.Generator().manual_seed(3))
    found = curve(asked, noisy.double(), 500.0, 100.0, network, torch.ones(2))
    assert found.isfinite().all() and found.shape == straight.shape


def test_two_levels_are_told_apart_by_a_step():
    schema = ImageSchema(4, 4, levels=1)
    own = GaussianRecipe(schema, 1, 2000, size=16, radius=4.0, spread=2.0)
    random = np.random.default_rng(0)
    pixels = (random.random((2000, 16)) < np.linspace(0.05, 0.3, 16)).astype(np.uint8)
    records = Records(schema, Encoded(pixels, np.zeros((2000, 0), np.uint8)))
    account = Account(make_plan(own.specs(1.0), epsilon=math.inf, delta=1e-5))
    mixture = own.measure(records, torch.zeros(2000, dtype=torch.int64), account)
    units = mixture.network.generate((0, 4000), torch.Generator().manual_seed(0))
    assert set(units.unique().tolist()) == {0.0, 1.0}
    assert float(units.mean()) == pytest.approx(pixels.mean(), abs=0.01)


def test_noise_alone_is_no_direction():
    factors = factors_of(torch.randn(3, 30, 30, dtype=torch.float64), torch.full((3,), 50.0, dtype=torch.float64), 1.4)
    assert not factors.any() and factors.shape == (3, 1, 30)


def test_components_that_are_alike_borrow_from_each_other_and_others_do_not():
    random, d, n = np.random.default_rng(1), 8, 500.0
    alike = np.stack([np.eye(d)] * 6)
    own = np.stack([np.diag(random.permutation(np.r_[np.full(4, 0.1), np.full(4, 2.0)])) for _ in range(6)])
    errors = {}
    for name, true in (("alike", alike), ("own", own)):
        noisy = n * true + 60.0 * random.normal(size=true.shape)
        factors = factors_of(torch.from_numpy(noisy), torch.full((6,), n, dtype=torch.float64), 60.0).numpy()
        errors[name] = np.linalg.norm(factors.transpose(0, 2, 1) @ factors - true, axis=(1, 2)).mean()
        alone = np.linalg.norm((noisy + noisy.transpose(0, 2, 1)) / 2 / n - true, axis=(1, 2)).mean()
        # Others are given less variance than is as likely as not.
        assert errors[name] < (0.5 if name == "alike" else 1.4) * alone


def test_what_is_in_doubt_is_given_less_variance_and_what_is_known_is_not():
    """Shapes that differ, mean trace of ten draws: 8 with little noise, else 6.7 (deviation 0.1), and not 7.8."""
    random, n = np.random.default_rng(2), 500.0
    for deviation, low, high in ((0.5, 7.95, 8.05), (100.0, 6.2, 7.2)):
        traces = []
        for _ in range(10):
            true = np.stack([np.diag(random.permutation(np.r_[np.full(4, 0.4), np.full(4, 1.6)])) for _ in range(6)])
            noisy = torch.from_numpy(n * true + deviation * random.normal(size=true.shape))
            symmetric = 0.5 * (noisy + noisy.transpose(1, 2))
            found, _ = _in_common(symmetric, torch.full((6,), n, dtype=torch.float64), deviation / math.sqrt(2.0))
            traces.append(float(found.diagonal(dim1=1, dim2=2).sum()) / 6)
        assert low < np.mean(traces) < high


def test_where_components_differ_each_keeps_what_is_beyond_noise_in_its_own_directions():
    """Each has one long direction of variance 4 that no other has, and noise of 0.1 a number (edge 0.9 of 20 directions):
    it comes back to 0.15, mean of ten draws, where moments that are drawn to what is common lose a fifth of it."""
    random, k, d, n = np.random.default_rng(3), 6, 20, 500.0
    found, common = [], []
    for _ in range(10):
        long = np.linalg.qr(random.normal(size=(d, k)))[0].T
        true = 0.05 * np.eye(d) + 4.0 * long[:, :, None] * long[:, None, :]
        noisy = torch.from_numpy(n * true + 0.1 * math.sqrt(2.0) * n * random.normal(size=true.shape))
        counts = torch.full((k,), n, dtype=torch.float64)
        factors = factors_of(noisy, counts, 0.1 * math.sqrt(2.0) * n).numpy()
        found += [np.square(own @ direction).sum() for own, direction in zip(factors, long, strict=True)]
        drawn, differ = _in_common(0.5 * (noisy + noisy.transpose(1, 2)), counts, 0.1 * n)
        common += [direction @ own @ direction for own, direction in zip(drawn.numpy(), long, strict=True)]
        assert (differ > 0.9).all()
    assert np.mean(found) == pytest.approx(4.05, abs=0.15) and np.mean(common) < 3.4


@pytest.mark.parametrize("cells", [1, 3])
def test_a_run_goes_on_after_each_access_and_measures_nothing_twice(cells):
    records, *_ = some_series(2000)
    own = recipe(2000, cells=cells)
    component, stages = label_components(records), [workload.stage for workload in own.workloads]
    states = []
    account = Account(make_plan(own.specs(1.0), epsilon=3.0, delta=1e-5))
    whole = own.measure(records, component, account, save=states.append)
    assert [list(state) for state in states] == [stages[: i + 1] for i in range(2 if cells == 1 else 4)]
    assert not any(account.remaining(stage) for stage in stages) and all(own.fits(state) for state in states)
    # A finished state needs no record, and another recipe finds the same cells.
    again = recipe(2000, cells=cells).measure(None, None, account, state=states[-1])
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[name])
    with pytest.raises(PlanMismatch, match="that many have been made"):
        own.measure(records, component, account, state=states[0])


def test_a_release_is_read_back_as_it_was_written(tmp_path):
    schema = ImageSchema(5, 4, levels=255, classes=3)
    random = np.random.default_rng(0)
    pixels, labels = random.integers(0, 256, (300, 20)).astype(np.uint8), random.integers(0, 3, (300, 1)).astype(np.uint8)
    records = Records(schema, Encoded(pixels, labels))
    own = GaussianRecipe(schema, 3, 300, size=9, radius=3.0, spread=1.5, cells=2)
    component = label_components(records)
    assert component.tolist() == labels[:, 0].tolist()
    mixture = own.measure(records, component, Account(make_plan(own.specs(1.0), epsilon=5.0, delta=1e-4)))
    write_model(tmp_path, mixture)
    release = load_release(tmp_path)
    mine = mixture.sample(50, block_streams(3, 0)[0])
    theirs = release.sample_encoded(50, 3)
    assert np.array_equal(mine.units, theirs.units) and np.array_equal(mine.codes, theirs.codes)
    for c, label in enumerate(mixture.network.shares.argmax(dim=1).tolist()):
        assert set(release.sample_component(c, 9, 0).codes[:, 0]) == {label}
    assert set(release.sample_encoded(20, 0, {"label": "2"}).codes[:, 0]) == {2}


def test_a_share_of_all_is_refused():
    with pytest.raises(ValueError, match=r"means_share=1\.0: expected a number above 0, below 1"):
        recipe(10, means_share=1.0)


def test_a_state_is_known_for_what_it_is():
    records, *_ = some_series(100)
    own, kept = recipe(100), []
    account = Account(make_plan(own.specs(1.0), epsilon=5.0, delta=1e-4))
    own.measure(records, torch.zeros(100, dtype=torch.int64), account, save=kept.append)
    first, both = kept
    assert own.fits({}) and own.fits(first) and own.fits(both)
    assert not own.fits({"squares": both["squares"]}) and not own.fits({**both, "more": first["means"]})
    assert not own.fits({"means": first["means"] * 2})
    assert not recipe(100, size=5).fits(first)
    broken = dataclasses.replace(first["means"][0]["counts"], deviation=math.nan)
    for state in ({"means": 3}, {"means": ({"counts": 1.0},)}, [], {"means": ({**first["means"][0], "counts": broken},)}):
        assert not own.fits(state) or state == []
    for state in ("means", {"means": 3}):
        with pytest.raises(ValueError, match="which is not what this recipe measures"):
            own.measure(None, None, None, state=state)


@pytest.mark.parametrize("changed", ["an unknown stage", "another size"])
def test_a_state_of_another_recipe_is_refused_before_anything_is_spent(changed):
    records, *_ = some_series(100)
    own, component, kept = recipe(100), torch.zeros(100, dtype=torch.int64), []
    own.measure(records, component, Account(make_plan(own.specs(1.0), epsilon=5.0, delta=1e-4)), save=kept.append)
    state = kept[0] | {"lost": kept[0]["means"]} if changed == "an unknown stage" else kept[0]
    other = own if changed == "an unknown stage" else recipe(100, size=5)
    with pytest.raises(ValueError, match=r"state: holds \[.*\], which is not what this recipe measures"):
        other.measure(records, component, None, state=state)


def test_what_is_missing_needs_an_account():
    records, *_ = some_series(100)
    own, component, kept = recipe(100), torch.zeros(100, dtype=torch.int64), []
    with pytest.raises(ValueError, match="account=None: the state lacks 'means'"):
        own.measure(records, component, None)
    own.measure(records, component, Account(make_plan(own.specs(1.0), epsilon=5.0, delta=1e-4)), save=kept.append)
    with pytest.raises(ValueError, match="account=None: the state lacks 'squares', which an account has to pay for"):
        own.measure(records, component, None, state=kept[0])


def test_measurements_of_two_runs_make_no_model():
    records, *_ = some_series(200)
    own, component = recipe(200), torch.zeros(200, dtype=torch.int64)
    kept = []
    for _ in range(2):
        account = Account(make_plan(own.specs(1.0), epsilon=5.0, delta=1e-4))
        states = []
        own.measure(records, component, account, save=states.append)
        kept.append(states)
    fresh = Account(make_plan(own.specs(1.0), epsilon=5.0, delta=1e-4))
    with pytest.raises(ValueError, match="measurements of another run"):
        own.measure(records, component, fresh, state=kept[0][0])
    with pytest.raises(ValueError, match="of two data sets"):
        own.measure(records, component, None, state=kept[0][0] | {"squares": kept[1][1]["squares"]})
    assert not fresh.ledger.accesses


def test_other_records_on_the_same_account_are_refused_before_anything_is_spent():
    own, component = recipe(200), torch.zeros(200, dtype=torch.int64)
    first, second = (some_series(200, seed)[0] for seed in (0, 1))
    account = Account(make_plan(own.specs(1.0), epsilon=5.0, delta=1e-4))
    means, _ = own.workloads
    state = {"means": (means.measure(own.statistics("means", {}), first, component, account),)}
    with pytest.raises(LedgerError, match="measurements of other records"):
        own.measure(second, component, account, state=state)
    assert account.remaining("squares") == 1
    own.measure(first, component, account, state=state)


def test_noise_that_hides_what_is_measured_is_said_from_python():
    records, *_ = some_series(100)
    own, component = recipe(100, radius=1e4), torch.zeros(100, dtype=torch.int64)
    account = Account(make_plan(own.specs(1.0), epsilon=0.5, delta=1e-4))
    with pytest.warns(MostlyNoise, match="the mean of a component is off by"):
        own.measure(records, component, account)


@pytest.mark.parametrize("bound", [None, math.inf, 0.0, math.nan])
def test_a_statistic_without_a_bound_is_refused_before_anything_is_spent(bound):
    class Unbounded(Counts):
        pass

    Unbounded.bound = bound
    records, *_ = some_series(100)
    workload = Workload("counts", {"counts": 1.0}, 100)
    account = Account(make_plan([workload.spec(1.0)], epsilon=1.0, delta=1e-4))
    with pytest.raises(ValueError, match=r"statistic 'counts' has bound=.*: expected a number from 1e-200 to 1e200"):
        workload.measure({"counts": Unbounded(2)}, records, torch.zeros(100, dtype=torch.int64), account)
    assert not account.ledger.accesses


@pytest.mark.parametrize("unit", [None, "a", 0.0, -1.0, math.inf, math.nan, 1e-300, 1.5])
def test_a_statistic_with_a_bad_unit_is_refused_before_anything_is_spent(unit):
    """Beside a unit above its bound no record could add anything."""
    statistic = Counts(2)
    statistic.unit = unit
    records, *_ = some_series(100)
    workload = Workload("counts", {"counts": 1.0}, 100)
    account = Account(make_plan([workload.spec(1.0)], epsilon=1.0, delta=1e-4))
    with pytest.raises(ValueError, match=r"statistic 'counts' has unit=.*: expected a number from 1e-250 to its bound, 1"):
        workload.measure({"counts": statistic}, records, torch.zeros(100, dtype=torch.int64), account)
    assert not account.ledger.accesses


class Amiss(Counts):
    """Counts whose sums are what they are told to be."""

    def __init__(self, sums):
        super().__init__(2)
        self._sums = torch.tensor(sums)

    def sums(self, records, component):
        return self._sums


class Short(Counts):
    """Counts that are not int64."""

    def of_all(self, records, component):
        return super().of_all(records, component).int()


PIXELS = ImageSchema(3, 2, levels=255)
NONE_EACH = torch.zeros(100, dtype=torch.int64)
AMISS = {
    "of other records": (Histogram(PIXELS.layout, 1, 4), NONE_EACH, "its bound holds for no others"),
    "one number for two": (Amiss([1]), NONE_EACH, r"sums of shape \(1,\) and torch.int64: expected \(2,\)"),
    "short numbers": (Short(2), NONE_EACH, r"of shape \(2,\) and torch.int32, expected \(2,\)"),
    "not whole numbers": (Amiss([1.0, math.nan]), NONE_EACH, "float32: expected .* that of the statistic, and torch.int64"),
    "sums near the end of int64": (Amiss([1, 2**62]), NONE_EACH, r"multiples of 'statistic bad' reach 2\^62"),
    "too few components": (Counts(2), NONE_EACH[:99], "component: .* expected int64, one for each record"),
    "components of another kind": (Counts(2), NONE_EACH.double(), "component: 1 axes of torch.float64"),
    "components of NumPy": (Counts(2), NONE_EACH.numpy(), "component: ndarray, expected a tensor of int64"),
    "no components": (Counts(2), None, "component: NoneType, expected a tensor of int64"),
    "a component too many": (Counts(2), NONE_EACH + 2, r"tells 2 apart, expected numbers from 0 to 1$"),
    "a component from behind": (Counts(2), NONE_EACH - 1, r"tells 2 apart, expected numbers from 0 to 1$"),
}


@pytest.mark.parametrize(("statistic", "component", "message"), AMISS.values(), ids=AMISS)
def test_a_bad_statistic_is_refused_before_anything_is_spent(statistic, component, message):
    records, *_ = some_series(100)
    workload = Workload("bad", {"bad": 1.0}, 100)
    account = Account(make_plan([workload.spec(1.0)], epsilon=1.0, delta=1e-4))
    with pytest.raises(ValueError, match=message):
        workload.measure({"bad": statistic}, records, component, account)
    assert not account.ledger.accesses


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"spread": 0.0}, r"spread=0\.0: expected a number from 1e-06 to 1e\+06"),
        ({"spread": 1e90}, r"spread=1e\+90: expected a number from"),
        ({"spread": "wide"}, "spread='wide': expected a number from"),
        ({"radius": math.inf}, "radius=inf: expected"),
        ({"k": 3}, "k=3: expected as many components for each of the 2 values of the label"),
        ({"k": 0}, "k=0: expected a whole number, 1 or more"),
        ({"k": "10"}, "k='10': expected a whole number"),
        ({"n": 0}, "n=0: expected a whole number, 1 or more"),
        ({"n": 1e300}, r"n=1e\+300: expected a whole number"),
        ({"size": 0}, "size=0: expected a whole number"),
        ({"size": 2.5}, r"size=2\.5: expected a whole number"),
        ({"size": 100}, r"size=100: expected a whole number from 1 to"),
        ({"symmetries": "small"}, "symmetries='small': expected Symmetries"),
    ],
)
def test_numbers_that_make_no_recipe_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(recipe(100), **numbers)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"noise_shares": {}}, "noise_shares={}, expected a positive number for each statistic"),
        ({"noise_shares": {"a": 0.0, "b": 0.0}}, "expected a positive number for each statistic"),
        ({"noise_shares": {"a": math.nan}}, "expected a positive number for each statistic"),
        ({"noise_shares": {"a": "much"}}, "noise_shares={'a': 'much'}, expected a positive number for each statistic"),
        ({"noise_shares": "a"}, "noise_shares=a, expected a positive number for each statistic"),
        ({"max_noise": 0}, "max_noise=0, expected the approximate number of records, above 0"),
        ({"max_noise": "100"}, "max_noise='100', expected the approximate number of records"),
        ({"share": -1.0}, r"share=-1\.0, expected a number above 0"),
        ({"share": True}, "share=True, expected a number above 0"),
        ({"rounds": 0}, "rounds=0, expected a whole number, 1 or more"),
        ({"rounds": 1.5}, r"rounds=1\.5, expected a whole number"),
    ],
)
def test_a_workload_that_makes_no_sense_is_refused(numbers, message):
    """Weights that sum to nothing among them."""
    with pytest.raises(ValueError, match=message):
        Workload(**({"stage": "s", "noise_shares": {"a": 1.0}, "max_noise": 10} | numbers))


@pytest.mark.parametrize("max_rows", [1, 3])
def test_noise_is_that_of_all_records_of_a_person(max_rows):
    """Draw 20,000 numbers: their deviation is off by 3 % once in a billion times; without persons it is a third."""
    records, *_ = some_series(100)
    records = dataclasses.replace(records, persons=np.arange(100) // max_rows)
    workload = Workload("counts", {"counts": 1.0}, 100)
    account = Account(make_plan([workload.spec(1.0)], epsilon=1.0, delta=1e-4, max_rows=max_rows))
    found = workload.measure({"counts": Counts(20_000)}, records, torch.zeros(100, dtype=torch.int64), account)["counts"]
    multiplier = account.plan.stage("counts").access.multipliers["counts"]
    assert found.deviation == pytest.approx(max_rows * multiplier)
    assert float(found.sums[1:].std()) == pytest.approx(max_rows * multiplier, rel=0.03)


def test_a_large_picture_is_fitted_in_little_memory():
    """Pictures of 12,288 units get as many numbers as small ones: 325 records and not 4,000."""
    schema = ImageSchema(64, 64, levels=255, channels=3)
    network, asked = StackedGaussians(schema, 1, size=3, rank=1, pieces=16), Histogram(schema.layout, 3, 16)
    drawn = []
    network.before_curve = lambda offsets, generator: drawn.append(offsets[-1]) or torch.rand(offsets[-1], 64 * 64 * 3)
    curve(asked, torch.ones(3, 18, dtype=torch.float64), 0.0, 18.0, network, torch.ones(1))
    assert drawn == [325]


def test_what_a_plan_does_not_cover_is_refused():
    records, *_ = some_series(100)
    own, component = recipe(100), torch.zeros(100, dtype=torch.int64)
    several = dataclasses.replace(records, persons=np.arange(100) // 50)
    with pytest.raises(BadRecords, match="more records than the plan's max_rows=1"):
        own.measure(several, component, Account(make_plan(own.specs(1.0), epsilon=5.0, delta=1e-4)))
    account = Account(make_plan(own.specs(1.0), epsilon=5.0, delta=1e-4, relation="replace_one"))
    with pytest.raises(LedgerError, match="under replace_one: expected add_or_remove_one"):
        own.measure(records, component, account)
    assert not account.ledger.accesses


def test_a_network_with_more_waves_than_numbers_is_refused():
    with pytest.raises(ValueError, match="rank=2, size=7: expected at most 7, and at most 6"):
        StackedGaussians(SERIES, 1, size=7, rank=2)


def test_the_curve_rises_by_equal_amounts_from_knot_to_knot():
    """Beside interpolation of one value at a time, at knots, beyond both ends, and at steps, which have no width."""
    network = StackedGaussians(ImageSchema(3, 5, channels=2, levels=9), k=1, size=4, rank=2, pieces=4)
    knots = torch.tensor([[-0.2, 0.1, 0.3, 0.4, 1.5], [0.0, 0.5, 0.5, 0.5, 0.75]])
    network.knots.copy_(knots)
    values = torch.rand(50, 30, generator=torch.Generator().manual_seed(0)) * 3.0 - 1.0
    values[0, :10], values[1, 0] = knots.T.flatten(), math.nan
    wanted = torch.tensor([[_risen(float(value), knots[i % 2].tolist()) for i, value in enumerate(row)] for row in values])
    torch.testing.assert_close(network._through_curve(values), wanted, equal_nan=True)


def _risen(value: float, knots: list[float]) -> float:
    if math.isnan(value) or value >= knots[-1] or value < knots[0]:
        return value if math.isnan(value) else float(value >= knots[-1])
    piece = max(i for i in range(len(knots) - 1) if knots[i] <= value)
    return (piece + (value - knots[piece]) / (knots[piece + 1] - knots[piece])) / (len(knots) - 1)

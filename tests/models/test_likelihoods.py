"""Likelihoods of units: densities of the textbook, gradients of autograd, draws of the same distribution."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.models.outputs import LIKELIHOODS, UnitLikelihood, _beyond, _censored_loss, _log_below
from lightning_dpgen.models.slow_waves import SlowWaves
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.release.drawing.model_files import rebuilt

OFFSETS = (0, 2, 2, 5)
FORMS = [(kind, scale) for kind in LIKELIHOODS for scale in (None, 0.3) if kind != "bernoulli" or scale is None]


def _made(kind, scale):
    likelihood = UnitLikelihood(3, 4, kind, scale=scale).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in likelihood.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    logits = torch.randn(5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    x = torch.rand(5, 4, generator=generator, dtype=torch.float64)
    x[:2, 0], x[3:, 1] = 0.0, 1.0
    return likelihood, logits, x


@pytest.mark.parametrize(("kind", "scale"), FORMS)
def test_a_loss_is_the_negative_logarithm_of_the_density(kind, scale):
    likelihood, logits, x = _made(kind, scale)
    mean, x = torch.sigmoid(logits).detach().numpy(), x.numpy()
    found = likelihood.loss(logits, torch.from_numpy(x), OFFSETS).detach().numpy()
    if kind == "bernoulli":
        expected = -(x * np.log(mean) + (1 - x) * np.log(1 - mean))
    else:
        width = likelihood._scales(OFFSETS, logits.device)
        width = width if isinstance(width, float) else width.detach().numpy()
        if kind == "censored":
            mean = 2.0 * mean - 0.5
        family = scipy.stats.laplace if kind == "laplace" else scipy.stats.norm
        expected = -family.logpdf(x, mean, width)
        if kind == "censored":
            expected = np.where(x == 0.0, -family.logcdf(0.0, mean, width), expected)
            expected = np.where(x == 1.0, -family.logsf(1.0, mean, width), expected)
    np.testing.assert_allclose(found, expected.sum(axis=1))


@pytest.mark.parametrize(("kind", "scale"), FORMS)
def test_gradients_written_out_are_those_of_autograd(kind, scale):
    likelihood, logits, x = _made(kind, scale)
    in_logits, in_scale = likelihood.gradient(logits.detach(), x, OFFSETS)
    losses = likelihood.loss(logits, x, OFFSETS)
    torch.testing.assert_close(in_logits, torch.autograd.grad(losses.sum(), logits, retain_graph=True)[0])
    assert set(in_scale) == set(likelihood.parameters())
    for parameter, factors in in_scale.items():
        each = [torch.autograd.grad(loss, parameter, retain_graph=True)[0] for loss in losses]
        torch.testing.assert_close(factors.materialise(), torch.stack(each))


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_draws_have_the_distribution_of_the_loss(kind):
    """Kolmogorov and Smirnov, 20,000 draws: a right draw fails with a chance of 1e-4, and one of twice the scale always."""
    likelihood = UnitLikelihood(1, 1, kind, scale=0.05)
    means = torch.full((20_000, 1), 0.5)
    drawn = likelihood.draw(means, (0, 20_000), torch.Generator().manual_seed(0)).numpy()[:, 0]
    family = scipy.stats.norm if kind == "gaussian" else scipy.stats.laplace
    assert scipy.stats.kstest(drawn, family(0.5, 0.05).cdf).pvalue > 1e-4
    assert scipy.stats.kstest(drawn, family(0.5, 0.1).cdf).pvalue < 1e-12


def test_draws_stay_where_units_are():
    drawn = UnitLikelihood(1, 1, "gaussian", scale=1.0).draw(torch.full((99, 1), 0.9), (0, 99), torch.Generator())
    assert float(drawn.min()) >= 0.0 and float(drawn.max()) == 1.0


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_a_unit_that_never_changes_stops_at_the_floor(kind):
    likelihood = UnitLikelihood(1, 1, kind, floor=0.05)
    optimizer = torch.optim.Adam(likelihood.parameters(), lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        likelihood.loss(torch.zeros(4, 1), torch.full((4, 1), 0.5), (0, 4)).sum().backward()
        optimizer.step()
    assert 0.05 <= float(likelihood._scales((0, 1), torch.device("cpu")).detach()) < 0.0501


BAD = {
    "another": ({"kind": "poisson"}, "likelihood='poisson': expected one of bernoulli, gaussian, laplace"),
    "a scale of none": ({"kind": "bernoulli", "scale": 0.1}, "scale=0.1 with likelihood='bernoulli'"),
    "below the floor": ({"kind": "gaussian", "scale": 0.001}, "scale=0.001: expected a number from the floor"),
    "no number": ({"kind": "gaussian", "scale": math.nan}, "scale=nan"),
    "a floor of 0": ({"kind": "gaussian", "floor": 0.0}, "floor=0.0: expected a number from 0.0001 to 1"),
}


@pytest.mark.parametrize(("settings", "words"), BAD.values(), ids=BAD.keys())
def test_what_makes_no_sense_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        UnitLikelihood(1, 1, **settings)


SCHEMA = SeriesSchema(length=2, low=0.0, high=1.0)


@pytest.mark.parametrize(("kind", "scale"), FORMS)
def test_a_network_generates_and_is_read_again_with_its_likelihood(kind, scale):
    network = StackedVAE(SCHEMA, 2, hidden=3, likelihood=kind, scale=scale, generator=torch.Generator().manual_seed(0))
    made = network.generate((0, 500, 1000), torch.Generator().manual_seed(0))
    assert made.min() >= 0.0 and made.max() <= 1.0
    again = rebuilt(network).generate((0, 500, 1000), torch.Generator().manual_seed(0))
    assert torch.equal(made, again)
    spread = float(made[:, 0].std())
    assert spread < 0.1 if kind == "bernoulli" else spread > 0.15


def test_the_logarithm_of_a_small_probability_is_exact():
    t = torch.linspace(-40.0, 8.0, 500, dtype=torch.float64)
    np.testing.assert_allclose(_log_below(t).numpy(), scipy.stats.norm.logcdf(t.numpy()), rtol=1e-6, atol=1e-12)


def test_censored_units_are_at_an_end_as_often_as_their_loss_says():
    """5,000 draws of each of three means: a share is off by more than .03 with a chance of 1e-4."""
    likelihood = UnitLikelihood(1, 3, "censored", scale=0.2)
    logits = torch.tensor([[-1.5, 0.0, 2.0]])
    drawn = likelihood.draw(torch.sigmoid(logits).expand(5000, 3), (0, 5000), torch.Generator().manual_seed(0))
    at_ends = [likelihood.loss(logits, torch.full((1, 3), end), (0, 1)) for end in (0.0, 1.0)]
    for end, loss in zip((0.0, 1.0), at_ends, strict=True):
        each = _censored_loss(_beyond(torch.sigmoid(logits)), torch.full((1, 3), end), torch.tensor(0.2))
        assert torch.allclose(each.sum(dim=1), loss)
        assert ((drawn == end).float().mean(dim=0) - torch.exp(-each[0])).abs().max() < 0.03


def _waves(kind, scale):
    """Make a likelihood of series of three times and two channels, off by whole waves."""
    schema = SeriesSchema(length=3, low=0.0, high=1.0, channels=("a", "b"))
    likelihood = UnitLikelihood(3, 6, kind, scale=scale, waves=SlowWaves(schema)).double()
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    return likelihood, logits, torch.rand(5, 6, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_waves_are_off_by_one_gaussian_of_all_readings(scale):
    likelihood, logits, x = _waves("gaussian", scale)
    back, width = likelihood.waves.back.numpy(), 0.2 if scale is None else scale
    covariance = width**2 * back.T @ back
    mean = torch.sigmoid(logits).detach().numpy()
    expected = [-scipy.stats.multivariate_normal.logpdf(a, b, covariance) for a, b in zip(x.numpy(), mean, strict=True)]
    np.testing.assert_allclose(likelihood.loss(logits, x, OFFSETS).detach().numpy(), expected)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_gradients_of_waves_are_those_of_autograd(kind, scale):
    likelihood, logits, x = _waves(kind, scale)
    in_logits, in_scale = likelihood.gradient(logits.detach(), x, OFFSETS)
    losses = likelihood.loss(logits, x, OFFSETS)
    torch.testing.assert_close(in_logits, torch.autograd.grad(losses.sum(), logits, retain_graph=True)[0])
    for parameter, factors in in_scale.items():
        each = [torch.autograd.grad(loss, parameter, retain_graph=True)[0] for loss in losses]
        torch.testing.assert_close(factors.materialise(), torch.stack(each))


def test_draws_of_waves_have_the_covariance_of_the_loss():
    """20,000 draws: a covariance is off by more than a twentieth of the variances with a chance below 1e-6."""
    schema = SeriesSchema(length=3, low=0.0, high=1.0)
    likelihood = UnitLikelihood(1, 3, "gaussian", scale=0.05, waves=SlowWaves(schema))
    drawn = likelihood.draw(torch.full((20_000, 3), 0.5), (0, 20_000), torch.Generator().manual_seed(0)).double()
    back = 0.05 * likelihood.waves.back
    off = (torch.cov(drawn.T) - back.T @ back).abs().max()
    assert off < 0.05 * float((back.T @ back).diagonal().min())


def test_waves_need_series_that_are_not_too_long():
    with pytest.raises(ValueError, match="network='waves' needs series"):
        SlowWaves(ImageSchema(2, 2, levels=1))
    with pytest.raises(ValueError, match="series of 2,049 numbers: network='waves' takes 2,048 at most"):
        SlowWaves(SeriesSchema(length=2049, low=0.0, high=1.0))


@pytest.mark.parametrize("bias", ["start_at", "hold_at"])
def test_a_network_of_waves_generates_the_means_that_it_is_given(bias):
    """The mean of 20,000 days is off by more than .01 with a chance below 1e-6."""
    schema = SeriesSchema(length=4, low=0.0, high=1.0)
    network = StackedVAE(
        schema, 1, network="waves", hidden=3, likelihood="gaussian", scale=0.02, generator=torch.Generator().manual_seed(0)
    )
    means = torch.tensor([[0.2, 0.4, 0.7, 0.5]])
    if bias == "hold_at":
        network.hold_at(means, torch.zeros(1))
        made = network.generate((0, 20_000), torch.Generator().manual_seed(0))
        assert (made.mean(dim=0) - means).abs().max() < 0.01
    else:
        network.start_at(means)
        torch.testing.assert_close(torch.sigmoid(network._logits(network.output_bias)), means)


def test_noisy_means_become_as_smooth_as_waves_are_expected_to_be():
    """Means whose waves have their sizes come back nearer than they were, in each wave, as linear Bayes says.

    The mean square of 4,000 errors is off by more than a tenth of itself with a chance below 1e-5.
    """
    waves = SlowWaves(SeriesSchema(length=6, low=0.0, high=1.0))
    generator = torch.Generator().manual_seed(0)
    true = 0.5 + waves.series(torch.randn(4000, 6, generator=generator, dtype=torch.float64))
    noisy = true + 0.3 * torch.randn(4000, 6, generator=generator, dtype=torch.float64)
    off = waves.of(waves.likely(noisy, torch.full((4000,), 0.3, dtype=torch.float64)) - true).square().mean(dim=0)
    ratio = (0.3 / waves.sizes).square()
    assert ((off - ratio / (1.0 + ratio)).abs() < 0.1 * off).all()
    assert torch.equal(StackedVAE(SCHEMA, 1, hidden=3).likely(noisy[:, :2], ratio[:1]), noisy[:, :2])

"""Likelihoods of units: densities of the textbook, gradients of autograd, draws of the same distribution."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.models.outputs import LIKELIHOODS, UnitLikelihood
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
    return likelihood, logits, torch.rand(5, 4, generator=generator, dtype=torch.float64)


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
        family = scipy.stats.norm if kind == "gaussian" else scipy.stats.laplace
        expected = -family.logpdf(x, mean, width)
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

"""Priors of codes: densities integrate to 1, draws are theirs, gradients are those of autograd, settings come back."""

import math

import pytest
import torch

from lightning_dpgen.models.priors import MixturePrior, NormalPrior, SparsePrior, make_prior

CENTRES = [[1.0, 0.0], [-1.0, 0.5], [0.0, -1.5]]
PRIORS = {
    "normal": NormalPrior(2),
    "sparse": SparsePrior(2, off=0.7, scale=0.3),
    "mixture": MixturePrior(CENTRES, scale=0.4),
    "learned": MixturePrior(CENTRES, scale=0.25, learned=True),
}
each_prior = pytest.mark.parametrize("prior", [prior.double() for prior in PRIORS.values()], ids=PRIORS)


@each_prior
@torch.no_grad()
def test_a_density_integrates_to_one_and_draws_are_of_it(prior):
    grid = torch.linspace(-8.0, 8.0, 257, dtype=torch.float64)
    points, cell = torch.cartesian_prod(grid, grid), (grid[1] - grid[0]) ** 2
    density = prior.log_density(points).exp()
    assert float(density.sum() * cell) == pytest.approx(1.0, abs=1e-6)
    drawn = prior.draw(torch.randn(40_000, prior.noise, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    # The share of draws in each of four quadrants about (.3, .1) has a deviation below .0025: five of these are exceeded
    # once in 400,000 runs.
    for signs in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        inside = [((part - torch.tensor([0.3, 0.1])) * torch.tensor(signs) > 0).all(dim=1) for part in (points, drawn)]
        assert abs(float((density * inside[0]).sum() * cell) - float(inside[1].double().mean())) < 0.0125 + 0.005


@each_prior
def test_gradients_are_those_of_autograd(prior):
    z = (2.0 * torch.randn(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))).requires_grad_()
    torch.testing.assert_close(prior.score(z), torch.autograd.grad(prior.log_density(z).sum(), z)[0])
    for parameter, found in prior.gradients(z).items():
        for i in range(len(z)):
            (own,) = torch.autograd.grad(prior.log_density(z[i : i + 1]).sum(), parameter)
            torch.testing.assert_close(found[i], own)


@each_prior
@torch.no_grad()
def test_a_characteristic_function_is_the_mean_of_waves(prior):
    frequencies = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    drawn = prior.draw(torch.randn(100_000, prior.noise, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))
    for wave, expected in zip((torch.cos, torch.sin), prior.characteristic(frequencies), strict=True):
        # A mean of numbers within 1 has a deviation below .0032: five of these are exceeded once in a million runs.
        assert (wave(drawn @ frequencies).mean(dim=0) - expected).abs().max() < 0.016


@each_prior
def test_settings_make_the_same_prior(prior):
    again = make_prior(2, prior.settings)
    assert again.settings == prior.settings and type(again) is type(prior)
    assert again.noise == prior.noise and sum(p.numel() for p in again.parameters()) == 6 * (len(list(prior.parameters())))


def test_most_dimensions_of_a_sparse_code_are_near_zero():
    drawn = SparsePrior(50).draw(torch.randn(2000, 100, generator=torch.Generator().manual_seed(0)))
    assert float((drawn.abs() < 0.2).float().mean()) == pytest.approx(0.8 + 0.2 * math.erf(0.2 / math.sqrt(2.0)), abs=0.01)


BAD = {
    "another kind": ({"kind": "uniform"}, "kind='uniform': expected one of normal, sparse, mixture"),
    "no kind": ({}, "kind=None"),
    "a foreign setting": ({"kind": "normal", "scale": 1.0}, "scale: a normal prior has no such setting"),
    "never off": ({"kind": "sparse", "off": 0.0}, "off=0.0: expected a number from 0.0001, below 1"),
    "not a number": ({"kind": "sparse", "scale": "thin"}, "scale='thin'"),
    "no centres": ({"kind": "mixture"}, "centres=None: expected K lists"),
    "uneven centres": ({"kind": "mixture", "centres": [[1.0], [1.0, 2.0]]}, "expected K lists of as many"),
    "other dimensions": ({"kind": "mixture", "centres": [[1.0, 2.0, 3.0]]}, "centres of 3 numbers: expected 2"),
    "an infinite centre": ({"kind": "mixture", "centres": [[math.inf, 0.0]]}, "finite"),
    "a flat part": ({"kind": "mixture", "centres": [[0.0, 0.0]], "scale": 0.0}, "scale=0.0"),
}


@pytest.mark.parametrize(("settings", "words"), BAD.values(), ids=BAD)
def test_what_is_no_prior_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        make_prior(2, settings)

"""Divergences of groups of codes against their definitions, written out for one group at a time."""

import math

import pytest
import torch
from torch.distributions import Normal

from lightning_dpgen.models.divergences import (
    KERNELS,
    LEAST_WIDTH,
    SCALES,
    GroupCodes,
    kl_from_prior,
    make_kernel,
    mmd,
    mmd_gradient,
    total_correlation,
)
from lightning_dpgen.models.priors import NormalPrior

SIZES = (4, 1, 0, 3)


def _codes(latent=3):
    mean, log_variance, noise = torch.randn(3, len(SIZES), 4, latent, dtype=torch.float64, generator=_generator())
    mask = torch.arange(4) < torch.tensor(SIZES)[:, None]
    return GroupCodes(mean + torch.exp(0.5 * log_variance) * noise, mean, log_variance, mask)


def _generator(seed=0):
    return torch.Generator().manual_seed(seed)


VALUES = {
    "cauchy": lambda t: sum((c / (c + t.square())).sum() for c in SCALES),
    "gaussian": lambda t: torch.exp(-t.square().sum() / (2 * len(t))),
    "imq": lambda t: 2 * len(t) / (2 * len(t) + t.square().sum()),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_discrepancy_is_that_of_pairs(name):
    codes, draws, value = _codes(), torch.randn(5, 3, dtype=torch.float64, generator=_generator(1)), VALUES[name]
    found = mmd(codes, draws, make_kernel(name, 3))
    for j, size in enumerate(SIZES):
        z = codes.z[j, :size]
        among = [value(z[a] - z[b]) for a in range(size) for b in range(size) if a != b]
        across = [value(z[a] - draw) for a in range(size) for draw in draws]
        prior = [value(draws[a] - draws[b]) for a in range(5) for b in range(5) if a != b]
        expected = 0.0
        if size:
            expected = sum(among) / max(len(among), 1) - 2 * sum(across) / len(across) + sum(prior) / len(prior)
        assert float(found[j]) == pytest.approx(float(expected), abs=1e-9)


def test_kl_is_the_mean_log_ratio_over_draws():
    codes, draws = _codes(), torch.randn(6, 3, dtype=torch.float64, generator=_generator(1))
    found = kl_from_prior(codes, draws, NormalPrior(3))
    for j, size in enumerate(SIZES):
        expected = 0.0
        if size:
            parts = Normal(codes.mean[j, :size], torch.exp(0.5 * codes.log_variance[j, :size]))
            density = parts.log_prob(draws[:, None]).sum(dim=2).exp().mean(dim=1)
            expected = float((Normal(0.0, 1.0).log_prob(draws).sum(dim=1) - density.log()).mean())
        assert float(found[j]) == pytest.approx(expected, abs=1e-9)


def test_total_correlation_is_that_of_the_mixture_of_a_group():
    codes = _codes()
    found = total_correlation(codes)
    for j, size in enumerate(SIZES):
        expected = 0.0
        if size:
            parts = Normal(codes.mean[j, :size], torch.exp(0.5 * codes.log_variance[j, :size]))
            each = parts.log_prob(codes.z[j, :size, None]).exp()
            joint, marginals = each.prod(dim=2).mean(dim=1), each.mean(dim=1).prod(dim=1)
            expected = float((joint / marginals).log().mean())
        assert float(found[j]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("divergence", ["mmd", "kl", "tc"])
def test_codes_that_are_far_off_give_finite_numbers(divergence):
    z, here = torch.full((2, 3, 2), 1e4), torch.tensor([[True] * 3, [False] * 3])
    codes = GroupCodes(z.requires_grad_(), z, torch.full_like(z, -20.0), here)
    draws = torch.randn(4, 2, generator=_generator())
    found = {
        "mmd": lambda: mmd(codes, draws, make_kernel("cauchy", 2)),
        "kl": lambda: kl_from_prior(codes, draws, NormalPrior(2)),
        "tc": lambda: total_correlation(codes),
    }[divergence]()
    assert torch.isfinite(found).all() and found[1] == 0.0
    (gradient,) = torch.autograd.grad(found.sum(), z)
    assert torch.isfinite(gradient).all()


def test_a_kernel_without_a_bound_is_refused():
    with pytest.raises(ValueError, match="kernel='linear': expected one of cauchy, gaussian, imq, which are bounded"):
        make_kernel("linear", 2)


def test_a_group_near_its_prior_has_none():
    """1,000 codes and as many draws of one distribution: each estimate is within .1 of 0, which is far beyond chance."""
    z = torch.randn(1, 1000, 2, generator=_generator())
    codes = GroupCodes(z, torch.zeros_like(z), torch.zeros_like(z), torch.ones(1, 1000, dtype=torch.bool))
    draws = torch.randn(1000, 2, generator=_generator(1))
    assert abs(float(mmd(codes, draws, make_kernel("cauchy", 2)))) < 0.1
    assert abs(float(kl_from_prior(codes, draws, NormalPrior(2)))) < 0.1
    assert abs(float(total_correlation(codes))) < 0.1 and math.isfinite(float(total_correlation(codes)))


@pytest.mark.parametrize("width", [LEAST_WIDTH, 1.0, 30.0])
@pytest.mark.parametrize("name", KERNELS)
def test_the_gradient_of_a_discrepancy_is_that_of_autograd(name, width):
    """Groups have no code, one, two and more; the rows where there is none are 0."""
    generator = torch.Generator().manual_seed(0)
    z = width * torch.randn(4, 6, 3, dtype=torch.float64, generator=generator)
    mask = torch.arange(6) < torch.tensor([0, 1, 2, 6])[:, None]
    draws = width * torch.randn(5, 3, dtype=torch.float64, generator=generator)
    kernel, z = make_kernel(name, 3, width), z * mask[:, :, None]
    leaf = z.clone().requires_grad_()
    (expected,) = torch.autograd.grad(mmd(GroupCodes(leaf, leaf, leaf, mask), draws, kernel).sum(), leaf)
    torch.testing.assert_close(mmd_gradient(GroupCodes(z, z, z, mask), draws, kernel), expected * mask[:, :, None])


@pytest.mark.parametrize("name", KERNELS)
def test_a_gradient_in_float32_is_exact_also_for_codes_far_from_0(name):
    """Products of codes would cancel: at 1,000 from 0 and a width of .1 nothing was left of the gradient."""
    generator = torch.Generator().manual_seed(0)
    z = 1000.0 + 0.1 * torch.randn(1, 5, 2, generator=generator).double()
    draws = 1000.0 + 0.1 * torch.randn(4, 2, generator=generator).double()
    kernel, here = make_kernel(name, 2, 0.1), torch.ones(1, 5, dtype=torch.bool)
    z, draws = z.float(), draws.float()
    exact = mmd_gradient(GroupCodes(z.double(), z.double(), z.double(), here), draws.double(), kernel)
    found = mmd_gradient(GroupCodes(z, z, z, here), draws, kernel)
    torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=1e-3 * float(exact.abs().max()))

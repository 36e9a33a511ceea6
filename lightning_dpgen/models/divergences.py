"""Divergences of the codes of a group of records from a prior (PriVAE, "batch-wise" terms)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_dpgen.models.kernels import Kernel
from lightning_dpgen.models.priors import Prior

DIVERGENCES = ("mmd", "kl", "tc")
_LOG_TWO_PI = math.log(2.0 * math.pi)


@dataclass(frozen=True)
class GroupCodes:
    """The codes of m groups of up to r records: normal distributions, and a draw of each.

    Args:
        z: (m, r, d) draws.
        mean, log_variance: (m, r, d) of the distributions that they were drawn from.
        mask: (m, r), true where there is a record.
    """

    z: Tensor
    mean: Tensor
    log_variance: Tensor
    mask: Tensor

    @property
    def sizes(self) -> Tensor:
        """The number of records of each group (m,), at least 1."""
        return self.mask.sum(dim=1).clamp(min=1).to(self.z.dtype)

    def log_density(self, points: Tensor) -> Tensor:
        """Return the log density (m, r, s, d) of each dimension of points (m or 1, s, d), by each record's distribution."""
        off = points[:, None] - self.mean[:, :, None]
        return -0.5 * (
            off.square() * torch.exp(-self.log_variance)[:, :, None] + self.log_variance[:, :, None] + _LOG_TWO_PI
        )

    def log_mean(self, log_densities: Tensor) -> Tensor:
        """Return the logarithm of the mean over the records of each group, (m, r, ...) to (m, ...).

        Where there is no record, it is that of the places, a finite number.
        """
        shape = (*self.mask.shape, *(1,) * (log_densities.dim() - 2))
        empty = ~self.mask.any(dim=1, keepdim=True)
        kept = torch.where((self.mask | empty).view(shape), log_densities, -math.inf)
        return torch.logsumexp(kept, dim=1) - self.sizes.log().view(-1, *(1,) * (log_densities.dim() - 2))


def mmd(codes: GroupCodes, draws: Tensor, kernel: Kernel) -> Tensor:
    """Compute the squared maximum mean discrepancy between the codes of each group and draws of the prior.

    Means are over pairs of two different codes, or draws (a U-statistic; Gretton et al. 2012, lemma 6), so it may be below
    0, and its expectation is not moved by the size of a group.

    Args:
        codes: of the groups.
        draws: (s, d), two and more, public.
        kernel: between two codes.

    Returns:
        (m,); 0 for a group without a record.

    Example:
        >>> from lightning_dpgen.models.kernels import make_kernel
        >>> z, here = torch.randn(1, 400, 2), torch.ones(1, 400, dtype=torch.bool)
        >>> codes = GroupCodes(z, z, torch.zeros_like(z), here)
        >>> bool(mmd(codes, torch.randn(400, 2), make_kernel("gaussian", 2)).abs() < 0.02)
        True
    """
    here, count = codes.mask.to(codes.z.dtype), codes.sizes
    among = kernel(codes.z, codes.z)
    among = (among * here[:, :, None] * here[:, None, :]).sum(dim=(1, 2)) - kernel.at_zero * here.sum(dim=1)
    across = (kernel(codes.z, draws[None]).mean(dim=2) * here).sum(dim=1)
    others = len(draws) * (len(draws) - 1)
    prior = (kernel(draws, draws).sum() - kernel.at_zero * len(draws)) / others
    return among / (count * (count - 1.0)).clamp(min=1.0) - 2.0 * across / count + prior * codes.mask.any(dim=1)


def mmd_gradient(codes: GroupCodes, draws: Tensor, kernel: Kernel) -> Tensor:
    """Return the gradient (m, r, d) of `mmd` of each group with respect to the draws z of its codes."""
    here, count = codes.mask.to(codes.z.dtype), codes.sizes[:, None]
    # A code is the first of as many pairs as it is the second of.
    among = here * (2.0 / (count * (count - 1.0)).clamp(min=1.0))
    across = (-2.0 / (len(draws) * count)).expand(-1, len(draws))
    others = torch.cat([codes.z, draws.expand(len(count), -1, -1)], dim=1)
    return kernel.back(codes.z, others, here[:, :, None] * torch.cat([among, across], dim=1)[:, None])


def kl_from_prior(codes: GroupCodes, draws: Tensor, prior: Prior) -> Tensor:
    """Estimate KL(p(z) || q(z)) of the prior from the mean of the distributions of a group's codes, by draws of the prior.

    The mean over draws z of ``log p(z) - log(mean over records of q(z | x))`` (PriVAE, section 5.2, whose sum over records
    has no part in a gradient).

    Args:
        codes: of the groups.
        draws: (s, d), public.
        prior: that they were drawn from.

    Returns:
        (m,); 0 for a group without a record.
    """
    of_codes = codes.log_mean(codes.log_density(draws[None]).sum(dim=3))
    return (prior.log_density(draws) - of_codes).mean(dim=1) * codes.mask.any(dim=1)


def total_correlation(codes: GroupCodes) -> Tensor:
    """Estimate the total correlation of a group's codes: KL of their joint distribution from the product of its dimensions.

    Densities at each code are means over the distributions of the group's codes (Chen et al. 2018, minibatches).

    Returns:
        (m,); 0 for a group without a record.
    """
    each = codes.log_density(codes.z)
    joint, marginal = codes.log_mean(each.sum(dim=3)), codes.log_mean(each).sum(dim=2)
    here = codes.mask.to(codes.z.dtype)
    return ((joint - marginal) * here).sum(dim=1) / codes.sizes


class CodeEmbedding:
    """Random features of codes, of norm 1, whose products approximate a kernel over its value at 0.

    Args:
        kernel: of codes of d dimensions.
        prior: of the codes, whose mean embedding is known in closed form.
        features: the number of features, pairs of a cosine and a sine: a multiple of twice the kernel's blocks.
        generator: public generator of the frequencies.

    Attributes:
        of_prior: (features,) the mean over codes of the prior.
        at_zero: the kernel's value at 0, by which squared distances of embeddings are smaller than discrepancies.

    Raises:
        ValueError: for another number of features; for a prior of other dimensions than the kernel's, or one whose centres
            are learned, whose mean changes.

    Example:
        >>> from lightning_dpgen.models.kernels import make_kernel
        >>> from lightning_dpgen.models.priors import NormalPrior
        >>> embedding = CodeEmbedding(make_kernel("gaussian", 2), NormalPrior(2), features=10)
        >>> float(embedding(torch.randn(3, 2)).norm(dim=1).sum().round())
        3.0
    """

    def __init__(self, kernel: Kernel, prior: Prior, features: int = 64, generator: torch.Generator | None = None) -> None:
        if not isinstance(kernel, Kernel):
            raise ValueError(f"kernel={kernel!r}: expected a kernel of lightning_dpgen.models.kernels")
        if type(features) is not int or features < 2 or features % (2 * kernel.blocks):
            raise ValueError(f"features={features!r}: expected a multiple of {2 * kernel.blocks}")
        if prior.latent != kernel.latent:
            raise ValueError(f"prior: of {prior.latent} dimensions: expected {kernel.latent}, as many as the kernel's")
        if any(True for _ in prior.parameters()):
            raise ValueError("prior: has learned centres: expected fixed ones, whose mean embedding is a constant")
        self._frequencies, self.at_zero = kernel.frequencies(features // 2, generator), kernel.at_zero
        self.of_prior = torch.cat(prior.characteristic(self._frequencies)) / math.sqrt(features // 2)

    def __call__(self, z: Tensor) -> Tensor:
        """Map codes (B, latent) to features (B, features)."""
        phase = z @ self._frequencies.to(z)
        return torch.cat([phase.cos(), phase.sin()], dim=1) / math.sqrt(phase.shape[1])

    def back(self, z: Tensor, direction: Tensor) -> Tensor:
        """Return the gradient (B, latent), with respect to codes (B, latent), of the product of features and a direction.

        Args:
            direction: (features,).
        """
        frequencies = self._frequencies.to(z)
        phase, (cosines, sines) = z @ frequencies, direction.to(z).chunk(2)
        return (phase.cos() * sines - phase.sin() * cosines) @ frequencies.T / math.sqrt(phase.shape[1])

    def to(self, device: torch.device) -> CodeEmbedding:
        """Move its numbers to a device, and return itself."""
        self._frequencies, self.of_prior = self._frequencies.to(device), self.of_prior.to(device)
        return self


# The divergences of groups by name, given codes, draws of the prior, the prior and a kernel.
OF_GROUPS: Mapping[str, Callable[[GroupCodes, Tensor, Prior, Kernel], Tensor]] = {
    "mmd": lambda codes, draws, prior, kernel: mmd(codes, draws, kernel),
    "kl": lambda codes, draws, prior, kernel: kl_from_prior(codes, draws, prior),
    "tc": lambda codes, draws, prior, kernel: total_correlation(codes),
}
# The gradients of those that depend on draws of codes alone, (m, r, d) with respect to these.
GRADIENTS_OF_GROUPS: Mapping[str, Callable[[GroupCodes, Tensor, Prior, Kernel], Tensor]] = {
    "mmd": lambda codes, draws, prior, kernel: mmd_gradient(codes, draws, kernel),
}

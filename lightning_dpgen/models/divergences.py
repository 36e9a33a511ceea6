"""Divergences of the codes of a group of records from a prior (PriVAE, "batch-wise" terms), and their kernels."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_dpgen.models.priors import Prior

# A smaller width would make the rounding of codes, which depends on the size of a lot, visible in the kernel.
LEAST_WIDTH, MOST_WIDTH = 0.01, 1e6
# The scales of the sum of Cauchy kernels (PriVAE, section 5.1).
SCALES = (0.2, 0.4, 1.0, 2.0, 4.0, 10.0)


class Kernel(ABC):
    """A bounded kernel k(a, b) of the difference of two codes of d dimensions.

    Each is the mean of ``cos(w . (a - b))`` over random frequencies w, times k(a, a) (Bochner), so codes have features
    whose products approximate it (Rahimi and Recht 2007).

    Args:
        latent: d.
        width: differences are divided by it.

    Attributes:
        latent: d.
        at_zero: k(a, a), the largest value.
        blocks: into how many equal parts frequencies are divided, each of which has a distribution of its own.
    """

    at_zero: float
    blocks: int

    def __init__(self, latent: int, width: float = 1.0) -> None:
        self.latent, self._width = latent, width

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Return k between all codes a (..., r, d) and b (..., s, d), (..., r, s)."""
        return self._values(a / self._width, b / self._width) if self._width != 1.0 else self._values(a, b)

    def back(self, a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient (..., r, d), with respect to a, of the sum of k between a and b with weights (..., r, s)."""
        return self._back(a / self._width, b / self._width, weights) / self._width

    def frequencies(self, pairs: int, generator: torch.Generator | None) -> Tensor:
        """Draw frequencies (d, pairs), a multiple of `blocks`."""
        return self._frequencies(pairs, generator) / self._width

    @abstractmethod
    def _values(self, a: Tensor, b: Tensor) -> Tensor:
        """Compute k for a width of 1."""

    @abstractmethod
    def _back(self, a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
        """Compute `back` for a width of 1."""

    @abstractmethod
    def _frequencies(self, pairs: int, generator: torch.Generator | None) -> Tensor:
        """Draw frequencies for a width of 1."""


class _Radial(Kernel):
    """A kernel of the Euclidean distance of two codes."""

    at_zero, blocks = 1.0, 1

    def _values(self, a: Tensor, b: Tensor) -> Tensor:
        squares = a.square().sum(dim=-1)[..., :, None] + b.square().sum(dim=-1)[..., None, :]
        return self._of_squares((squares - 2.0 * a @ b.mT).clamp(min=0.0))

    def _back(self, a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
        # Products of codes would cancel where these are far from 0, and what rounding leaves depends on other groups.
        differences = _differences(a, b)
        slopes = self._slopes(self._of_squares(differences.square().sum(dim=0))).mul_(weights).mul_(2.0)
        return differences.mul_(slopes).sum(dim=-1).movedim(0, -1)

    @abstractmethod
    def _of_squares(self, squares: Tensor) -> Tensor:
        """Compute k for squared distances."""

    @abstractmethod
    def _slopes(self, values: Tensor) -> Tensor:
        """Compute the derivative of k with respect to a squared distance, from its values."""


class GaussianKernel(_Radial):
    """``exp(-|a - b|^2 / 2 d)``."""

    def _of_squares(self, squares: Tensor) -> Tensor:
        return torch.exp(squares * (-0.5 / self.latent))

    def _slopes(self, values: Tensor) -> Tensor:
        return values * (-0.5 / self.latent)

    def _frequencies(self, pairs: int, generator: torch.Generator | None) -> Tensor:
        return torch.randn(self.latent, pairs, generator=generator) / math.sqrt(self.latent)


class InverseMultiquadric(_Radial):
    """``2 d / (2 d + |a - b|^2)``: the mean of Gaussian kernels whose inverse squared widths are exponential."""

    def _of_squares(self, squares: Tensor) -> Tensor:
        scale = 2.0 * self.latent
        return scale / (scale + squares)

    def _slopes(self, values: Tensor) -> Tensor:
        return values.square() * (-0.5 / self.latent)

    def _frequencies(self, pairs: int, generator: torch.Generator | None) -> Tensor:
        widths = torch.rand(pairs, generator=generator).clamp(min=1e-7).log().neg() / (2.0 * self.latent)
        return torch.randn(self.latent, pairs, generator=generator) * (2.0 * widths).sqrt()


class CauchySum(Kernel):
    """The sum of ``c / (c + (a_i - b_i)^2)`` over dimensions i and six scales c (PriVAE, section 5.1)."""

    def __init__(self, latent: int, width: float = 1.0) -> None:
        super().__init__(latent, width)
        self.blocks = latent * len(SCALES)
        self.at_zero = float(self.blocks)

    def _values(self, a: Tensor, b: Tensor) -> Tensor:
        return _CauchySum.apply(a[..., :, None, :] - b[..., None, :, :])[0]

    def _back(self, a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
        # One dimension at a time stays in a processor's cache, which halves the time.
        found = []
        for own, other in zip(a.movedim(-1, 0), b.movedim(-1, 0), strict=True):
            differences = own[..., :, None] - other[..., None, :]
            slopes, squares = torch.zeros_like(differences), differences.square()
            for scale in SCALES:
                each = squares.add(scale).reciprocal_()
                slopes.addcmul_(each, each, value=-2.0 * scale)
            found.append(slopes.mul_(differences).mul_(weights).sum(dim=-1))
        return torch.stack(found, dim=-1)

    def _frequencies(self, pairs: int, generator: torch.Generator | None) -> Tensor:
        # c / (c + t^2) is the mean of cos(w t) for w of a Laplace distribution of scale c^-1/2.
        pairs_each = pairs // self.blocks
        uniform = torch.rand(self.latent, len(SCALES), pairs_each, generator=generator) - 0.5
        laplace = -uniform.sign() * torch.log1p((-2.0 * uniform.abs()).clamp(min=-1.0 + 1e-7))
        laplace = laplace / torch.tensor(SCALES).sqrt()[:, None]
        out = torch.zeros(self.latent, self.latent, len(SCALES) * pairs_each)
        dimensions = torch.arange(self.latent)
        out[dimensions, dimensions] = laplace.flatten(1)
        return out.flatten(1)


def _differences(a: Tensor, b: Tensor) -> Tensor:
    """Return the differences (d, ..., r, s) of codes, as sums over a short last dimension take several times as long."""
    a, b = (x.movedim(-1, 0).contiguous() for x in (a, b))
    return a[..., :, None] - b[..., None, :]


class _CauchySum(torch.autograd.Function):
    """The sum of Cauchy kernels of differences (..., d) over d and scales: one pass, for values and slopes together."""

    generate_vmap_rule = True

    @staticmethod
    def forward(differences):
        squares = differences.square()
        total, slope = torch.zeros_like(squares), torch.zeros_like(squares)
        for scale in SCALES:
            each = torch.reciprocal(squares + scale).mul_(scale)
            total += each
            slope.addcmul_(each, each, value=-2.0 / scale)
        return total.sum(dim=-1), slope.mul_(differences)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, gradient, _):
        (slope,) = ctx.saved_tensors
        return gradient[..., None] * slope


KERNELS = {"cauchy": CauchySum, "gaussian": GaussianKernel, "imq": InverseMultiquadric}


def make_kernel(name: str, latent: int, width: float = 1.0) -> Kernel:
    """Make one of `KERNELS` for codes of so many dimensions.

    Raises:
        ValueError: for another name: a kernel without a bound has no embedding of bounded length; for a width that is not
            above 0.

    Example:
        >>> kernel = make_kernel("imq", latent=2)
        >>> kernel(torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
        tensor([[1.0000, 0.5000]])
    """
    if type(latent) is not int or latent < 1:
        raise ValueError(f"latent={latent!r}: expected a whole number, 1 or more")
    if not isinstance(name, str) or name not in KERNELS:
        raise ValueError(f"kernel={name!r}: expected one of {', '.join(KERNELS)}, which are bounded")
    if type(width) not in (int, float) or not LEAST_WIDTH <= width <= MOST_WIDTH:
        raise ValueError(f"width={width!r}: expected a number from {LEAST_WIDTH:g} to {MOST_WIDTH:g}")
    return KERNELS[name](latent, float(width))


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
        >>> from lightning_dpgen.models.priors import NormalPrior
        >>> embedding = CodeEmbedding(make_kernel("gaussian", 2), NormalPrior(2), features=10)
        >>> float(embedding(torch.randn(3, 2)).norm(dim=1).sum().round())
        3.0
    """

    def __init__(self, kernel: Kernel, prior: Prior, features: int = 64, generator: torch.Generator | None = None) -> None:
        if not isinstance(kernel, Kernel):
            raise ValueError(f"kernel={kernel!r}: expected a kernel of lightning_dpgen.models.divergences")
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
        """Return the gradient (B, latent), by codes (B, latent), of the product of features and a direction (features,)."""
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
    "mmd": lambda codes, draws, prior, kernel: mmd_gradient(codes, draws, kernel)
}


@dataclass(frozen=True)
class Pull:
    """The product of the embedding of a code and a released direction (features,), as a loss."""

    embedding: CodeEmbedding
    direction: Tensor

    def loss(self, z: Tensor) -> Tensor:
        """Return it for codes (B, latent), (B,)."""
        return (self.embedding(z) * self.direction).sum(dim=1)

    def gradient(self, z: Tensor) -> Tensor:
        """Return its gradient (B, latent) with respect to codes (B, latent)."""
        return self.embedding.back(z, self.direction)

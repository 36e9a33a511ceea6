"""Kernels between codes, by which a maximum mean discrepancy compares two sets of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

KERNELS = ("cauchy", "gaussian", "imq")
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
        return self._of_squares(self._squares(a, b))

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

    def _squares(self, a: Tensor, b: Tensor) -> Tensor:
        squares = a.square().sum(dim=-1)[..., :, None] + b.square().sum(dim=-1)[..., None, :]
        return (squares - 2.0 * a @ b.mT).clamp(min=0.0)


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
        differences = _differences(a, b)
        slopes, squares = torch.zeros_like(differences), differences.square()
        for scale in SCALES:
            each = squares.add(scale).reciprocal_()
            slopes.addcmul_(each, each, value=-2.0 * scale)
        return slopes.mul_(differences).mul_(weights).sum(dim=-1).movedim(0, -1)

    def _frequencies(self, pairs: int, generator: torch.Generator | None) -> Tensor:
        # c / (c + t^2) is the mean of cos(w t) for w of a Laplace distribution of scale c^-1/2.
        each = pairs // self.blocks
        uniform = torch.rand(self.latent, len(SCALES), each, generator=generator) - 0.5
        laplace = -uniform.sign() * torch.log1p((-2.0 * uniform.abs()).clamp(min=-1.0 + 1e-7))
        laplace = laplace / torch.tensor(SCALES).sqrt()[:, None]
        out = torch.zeros(self.latent, self.latent, len(SCALES) * each)
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
    kinds = {"cauchy": CauchySum, "gaussian": GaussianKernel, "imq": InverseMultiquadric}
    if type(latent) is not int or latent < 1:
        raise ValueError(f"latent={latent!r}: expected a whole number, 1 or more")
    if not isinstance(name, str) or name not in kinds:
        raise ValueError(f"kernel={name!r}: expected one of {', '.join(KERNELS)}, which are bounded")
    if type(width) not in (int, float) or not LEAST_WIDTH <= width <= MOST_WIDTH:
        raise ValueError(f"width={width!r}: expected a number from {LEAST_WIDTH:g} to {MOST_WIDTH:g}")
    return kinds[name](latent, float(width))

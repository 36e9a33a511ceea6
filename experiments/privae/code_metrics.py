"""Metrics of the codes of an autoencoder: sparsity, distance from the prior, likelihood of records."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lightning_dpgen.models.divergences import Kernel
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.sampling.lots import Lot

# Codes beside which a kernel is computed at a time: numbers of one block of pairs.
_PAIRS = 1 << 24


class HoyerSparsity(Metric):
    """The mean Hoyer sparsity of codes, each dimension divided by its deviation over all of them (PriVAE, equation 17).

    ``(sqrt d - |y|_1 / |y|_2) / (sqrt d - 1)`` is 0 where all d dimensions of y are as large, and 1 where one alone is not
    0 (Hurley and Rickard 2009). Standard normal codes of 50 dimensions have .231.

    Args:
        latent: d, 2 and more.

    Example:
        >>> metric = HoyerSparsity(latent=4)
        >>> metric.update(torch.eye(4))
        >>> round(float(metric.compute()), 4)
        1.0
    """

    full_state_update = False
    higher_is_better = True
    codes: list[Tensor]

    def __init__(self, latent: int, **kwargs) -> None:
        super().__init__(**kwargs)
        if type(latent) is not int or latent < 2:
            raise ValueError(f"latent={latent!r}: expected a whole number from 2")
        self.latent = latent
        self.add_state("codes", [], dist_reduce_fx="cat")

    def update(self, codes: Tensor) -> None:
        """Take in codes (n, latent).

        Raises:
            ValueError: for another width, or numbers that are not finite.
        """
        self.codes.append(_checked(codes, self.latent))

    def compute(self) -> Tensor:
        """Return the mean, from 0 to 1; NaN for fewer than 2 codes. A dimension that never varies counts as 0.

        A code of zeros has a sparsity of 0.
        """
        codes = dim_zero_cat(self.codes) if len(self.codes) else torch.zeros(0, self.latent)
        if len(codes) < 2:
            return torch.tensor(math.nan)
        deviation = codes.double().std(dim=0)
        scaled = torch.where(deviation > 0, codes / deviation.clamp(min=1e-300), 0.0)
        root = math.sqrt(self.latent)
        length = torch.linalg.vector_norm(scaled, dim=1)
        ratio = torch.where(length > 0, scaled.abs().sum(dim=1) / length, root)
        return ((root - ratio) / (root - 1.0)).mean()


class CodeDiscrepancy(Metric):
    """The squared maximum mean discrepancy between codes and draws of their prior (Gretton et al. 2012, lemma 6).

    Args:
        kernel: see `models.divergences.make_kernel`.
        latent: d.

    Example:
        >>> from lightning_dpgen.models.divergences import make_kernel
        >>> metric, z = CodeDiscrepancy(make_kernel("cauchy", 2), latent=2), torch.randn(300, 2)
        >>> metric.update(z, prior=False); metric.update(torch.randn(300, 2), prior=True)
        >>> bool(metric.compute() < 0.2)
        True
    """

    full_state_update = False
    higher_is_better = False
    codes: list[Tensor]
    draws: list[Tensor]

    def __init__(self, kernel: Kernel, latent: int, **kwargs) -> None:
        super().__init__(**kwargs)
        if not isinstance(kernel, Kernel):
            raise ValueError(f"kernel={kernel!r}: expected a kernel of lightning_dpgen.models.divergences")
        if latent != kernel.latent:
            raise ValueError(f"latent={latent!r}: expected {kernel.latent}, as many as the kernel's")
        self._kernel, self.latent = kernel, latent
        for name in ("codes", "draws"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, codes: Tensor, *, prior: bool) -> None:
        """Take in codes (n, latent), of records or drawn from the prior.

        Raises:
            ValueError: for another width, or numbers that are not finite.
        """
        (self.draws if prior else self.codes).append(_checked(codes, self.latent))

    def compute(self) -> Tensor:
        """Return the discrepancy, without the pairs of a code and itself; NaN for fewer than two of either."""
        if not len(self.codes) or not len(self.draws):
            return torch.tensor(math.nan)
        z, draws = dim_zero_cat(self.codes), dim_zero_cat(self.draws)
        parts = []
        for own in (z, draws):
            if len(own) < 2:
                return torch.tensor(math.nan)
            parts.append((self._total(own, own) - self._kernel.at_zero * len(own)) / (len(own) * (len(own) - 1)))
        return parts[0] + parts[1] - 2.0 * self._total(z, draws) / (len(z) * len(draws))

    def _total(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the sum of the kernel over all pairs, a block at a time."""
        rows = max(1, _PAIRS // (len(b) * self.latent))
        return torch.stack([self._kernel(part, b).double().sum() for part in a.split(rows)]).sum()


class ImportanceLikelihood(Metric):
    """The mean log likelihood of records by importance sampling of their codes (Burda et al. 2016), in nats.

    Each record counts with the logarithm of the mean of ``p(x|z) p(z) / q(z|x)`` over draws z of q. It is a lower bound, on
    average, that rises with the number of draws.

    Example:
        >>> metric = ImportanceLikelihood()
        >>> metric.update(torch.tensor([[-3.0, -3.0], [-1.0, -1.0]]))
        >>> float(metric.compute())
        -2.0
    """

    full_state_update = False
    higher_is_better = True
    total: Tensor
    count: Tensor

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, log_weights: Tensor) -> None:
        """Take in ``log p(x|z) + log p(z) - log q(z|x)`` (n, draws) of records, as `log_weights` returns them.

        Raises:
            ValueError: for another shape, NaN or infinity; minus infinity is a draw that could not be.
        """
        wrong = log_weights.dim() != 2 or not log_weights.shape[1] or (log_weights.isnan() | log_weights.isposinf()).any()
        if wrong:
            raise ValueError(
                f"log_weights: {tuple(log_weights.shape)}: expected (n, draws) numbers, a draw and more, no NaN or infinity"
            )
        each = torch.logsumexp(log_weights.double(), dim=1) - math.log(log_weights.shape[1])
        self.total += each.sum()
        self.count += len(each)

    def compute(self) -> Tensor:
        """Return the mean over records; NaN without any."""
        return self.total / self.count


def _checked(codes: Tensor, latent: int) -> Tensor:
    if not isinstance(codes, Tensor):
        raise ValueError(f"codes: a {type(codes).__name__}: expected a tensor (n, {latent})")
    if codes.dim() != 2 or codes.shape[1] != latent or not codes.isfinite().all():
        raise ValueError(f"codes: {tuple(codes.shape)}: expected (n, {latent}) finite numbers")
    return codes.detach()


@torch.no_grad()
def log_weights(network: StackedVAE, lot: Lot, noise: Tensor) -> Tensor:
    """Return ``log p(x|z) + log p(z) - log q(z|x)`` of each record and draw of its code, (B, draws).

    Args:
        noise: (B, draws latent) normal numbers, a record's own.
    """
    mean, log_variance = network.encode(lot.records, lot.offsets)
    weights = []
    for normal in noise.split(network.latent, dim=1):
        z = mean + torch.exp(0.5 * log_variance) * normal
        log_q = -0.5 * (normal.square() + log_variance + math.log(2.0 * math.pi)).sum(dim=1)
        reconstruction = network._reconstruction(lot, network.decode(z, lot.offsets))
        weights.append(network.prior.log_density(z) - log_q - reconstruction)
    return torch.stack(weights, dim=1)

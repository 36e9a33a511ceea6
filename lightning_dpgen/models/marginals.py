"""Output biases that hold a network's average records at noisy means that were released."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lightning_dpgen.data.layout import Layout
from lightning_dpgen.models.outputs import means

# Codes over which a component is averaged, most and fewest, and numbers that they are decoded to at a time.
_CODES, _FEWEST, _NUMBERS = 4096, 256, 1 << 23
_ROUNDS, _CLOSE = 40, 0.01
# Targets are at least so far from 0 and 1. A step is at most so many times as long as where all codes give one mean.
_LEAST, _LONGEST = 1e-5, 4.0


@torch.no_grad()
def held_bias(
    decode: Callable[[Tensor, Sequence[int]], Tensor],
    bias: Tensor,
    targets: Tensor,
    noise: Tensor,
    latent: int,
    layout: Layout,
) -> Tensor:
    """Return the output bias with which each component generates, on average over its codes, the best estimate of its mean.

    Training by clipped gradients moves the average record: records with long gradients, such as large baskets, count too
    little. The means of clusters were released without that bias, but with noise. The variance of a component's error is
    the part of the squared difference that noise does not explain, and the component is moved by the share of that in both
    variances (the linear Bayes estimate); nothing is spent. The effect of the codes on a record stays as it was learned.

    Each number moves by Newton's method on its logit or logarithm, as if it were the only one, until none is off by more
    than a hundredth of itself. The codes are a fixed low-discrepancy sequence: this is a function of its arguments alone.

    Args:
        decode: maps codes (B, latent) sorted by component, and the offsets of the components, to logits (B, width)
            without the bias.
        bias: (k, width) the bias in training.
        targets: (k, width) means of units and shares of choices. Public.
        noise: (k,) standard deviation of the noise of each number of the targets. Public.
        latent: dimensions of a code.

    Returns:
        (k, width) the bias.

    Example:
        >>> layout = Layout(units=1, levels=1)
        >>> bias = held_bias(lambda z, _: 3.0 * z, torch.zeros(1, 1), torch.tensor([[0.2]]), torch.zeros(1), 1, layout)
        >>> z = torch.randn(100_000, 1, generator=torch.Generator().manual_seed(0))
        >>> round(float(torch.sigmoid(3.0 * z + bias).mean()), 2)
        0.2
    """
    k, width = targets.shape
    sobol = torch.quasirandom.SobolEngine(latent, scramble=True, seed=0)
    count = max(_FEWEST, min(_CODES, _NUMBERS // width))
    codes = torch.special.ndtri(sobol.draw(count, dtype=torch.float64).clamp(1e-6, 1.0 - 1e-6)).float()
    out = torch.empty(k, width)
    for c in range(k):
        free = decode(codes, [0] * (c + 1) + [count] * (k - c))
        believed = _believed(means(free + bias[c], layout).mean(dim=0), targets[c], float(noise[c]), layout)
        out[c] = _held(free, bias[c], _logits(believed, layout), layout)
    return out


def _believed(made: Tensor, target: Tensor, noise: float, layout: Layout) -> Tensor:
    """Estimate means (width,) from a component's own and the released ones, for units and for choices apart.

    A number p is expected to be off in proportion to ``sqrt(p (1 - p))``.
    """
    out = made.clone()
    for part in (slice(0, layout.units), slice(layout.units, layout.width)):
        p, off = made[part], target[part] - made[part]
        spread = p * (1.0 - p)
        factor = (off.square().sum() - len(p) * noise**2).clamp(min=0.0) / spread.sum().clamp(min=1e-12)
        out[part] += off * (factor * spread / (factor * spread + noise**2).clamp(min=1e-30) if noise else 1.0)
    for span in layout.spans:
        out[span] = out[span].clamp(min=_LEAST) / out[span].clamp(min=_LEAST).sum()
    return out


def _held(free: Tensor, bias: Tensor, target: Tensor, layout: Layout) -> Tensor:
    """Find the bias (width,) for one component's logits (codes, width); `target` is as `_logits` returns it."""
    bias = bias.clone()
    for _ in range(_ROUNDS):
        made = means(free + bias, layout)
        mean = made.mean(dim=0).clamp(_LEAST, 1.0 - _LEAST)
        # The logit of a mean moves by this share of a change of the bias: 1 where codes make no difference, else less.
        moves = (made * (1.0 - made)).mean(dim=0) / (mean * (1.0 - mean))
        step = (target - _logits(mean, layout)) / moves.clamp(1.0 / _LONGEST, 1.0)
        bias += step
        if step.abs().max() < _CLOSE:
            break
    return bias


def _logits(mean: Tensor, layout: Layout) -> Tensor:
    """Return the logits of units, and the logarithms of shares."""
    mean, units = mean.clamp(_LEAST, 1.0 - _LEAST), layout.units
    return torch.cat([torch.logit(mean[:units]), torch.log(mean[units:])])

"""The way from a network's numbers to records: means, shares, losses and draws; likelihoods of units; biases at means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer
from lightning_dpgen.gradients.component_factors import OneComponent
from lightning_dpgen.gradients.factors import Dense, GradientFactors
from lightning_dpgen.gradients.stacked_ops import components
from lightning_dpgen.models.slow_waves import SlowWaves
from lightning_dpgen.sampling.multi_hot import find_ones


def successive_sample(rates: Tensor, sizes: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw in each row as many distinct items as its size says; return the rows and the items.

    Items are drawn with replacement, and items that a row already has are passed over: the distribution is exact. A row
    that is still short after some draws beyond its size gets the rest by a race, which has the same distribution: an item
    of rate r arrives after an exponential time of mean 1/r, and the first ones are taken. So ten of a thousand items cost
    about ten draws, not a thousand.

    Args:
        rates: (n, m) float, each above 0.
        sizes: (n,) whole numbers from 0 to m.
        generator: a generator of the CPU.

    Returns:
        Rows and items, two tensors (sizes.sum(),); no pair occurs twice.

    Example:
        >>> rates = torch.tensor([[1.0, 2.0, 3.0], [1e-9, 1.0, 1e-9]])
        >>> rows, items = successive_sample(rates, torch.tensor([3, 1]), torch.Generator().manual_seed(0))
        >>> sorted(zip(rows.tolist(), items.tolist()))
        [(0, 0), (0, 1), (0, 2), (1, 1)]
    """
    largest = int(sizes.max()) if len(sizes) else 0
    rows, items = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0, dtype=torch.int64)]
    low = 0
    while low < largest:
        # Sizes within a factor of two are drawn together, so that a small basket takes fewer draws than a large one.
        high = 2 * low or 1
        band = ((low < sizes) & (sizes <= high)).nonzero()[:, 0]
        band_rates, wanted = rates[band], sizes[band]
        # Rounding a sum of a thousand rates to 32 bits would change the chances of rare items.
        sums, draws = band_rates.double().cumsum(dim=1), high + high // 4 + 2
        at = torch.rand(len(band_rates), draws, dtype=sums.dtype, generator=generator).mul_(sums[:, -1:])
        drawn = torch.searchsorted(sums, at, right=True).clamp_(max=rates.shape[1] - 1)
        ordered, places = drawn.sort(dim=1, stable=True)
        # Draws of an item that a row had not drawn before.
        new = torch.ones_like(drawn, dtype=torch.bool).scatter_(1, places[:, 1:], ordered[:, 1:] != ordered[:, :-1])
        rank = new.cumsum(dim=1)
        row, place = (new & (rank <= wanted[:, None])).nonzero(as_tuple=True)
        short = (rank[:, -1] < wanted).nonzero()[:, 0]
        late, arrived = _race(band_rates[short], drawn[short], (wanted - rank[:, -1])[short], generator)
        rows += [band[row], band[short][late]]
        items += [drawn[row, place], arrived]
        low = high
    return torch.cat(rows), torch.cat(items)


def _race(rates: Tensor, taken: Tensor, wanted: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw so many more items in each row, none that is taken; return the rows and the items."""
    arrivals = torch.empty_like(rates).exponential_(generator=generator).div_(rates).scatter_(1, taken, torch.inf)
    first = arrivals.topk(int(wanted.max()) if len(wanted) else 0, dim=1, largest=False).indices
    row, place = (torch.arange(first.shape[1]) < wanted[:, None]).nonzero(as_tuple=True)
    return row, first[row, place]


def means(logits: Tensor, layout: Layout) -> Tensor:
    """Return means of units by the logistic function, and shares of each group's choices by softmax, (..., width).

    Example:
        >>> means(torch.zeros(1, 3), Layout(units=1, groups=(2,)))
        tensor([[0.5000, 0.5000, 0.5000]])
    """
    parts = [torch.sigmoid(logits[..., : layout.units])]
    parts += [torch.softmax(group, dim=-1) for group in _groups(logits, layout)]
    return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]


def logits(means: Tensor, layout: Layout, least: float = 0.005) -> Tensor:
    """Invert `means`, with numbers clamped to `least` to 1 - `least`.

    Where few of many numbers are 1, the least is so much smaller that all of them stay a small part of a record:
    ``least m / n`` where at most m of n units are 1, and ``least 10 / n`` for a group of more than 10 choices, n.

    Example:
        >>> layout = Layout(units=1000, levels=1, most=10)
        >>> round(float(means(logits(torch.zeros(1, 1000), layout), layout).sum()), 4)
        0.05
    """
    low = least if layout.most is None else least * layout.most / layout.units
    parts = [torch.logit(means[..., : layout.units].clamp(low, 1.0 - least))]
    for shares in _groups(means, layout):
        parts.append(torch.log(shares.clamp(least * min(1.0, 10.0 / shares.shape[-1]), 1.0)))
    return torch.cat(parts, dim=-1)


def cross_entropy(logits: Tensor, x: Tensor, layout: Layout) -> Tensor:
    """Return the negative log likelihood (B,) of records x (B, width), in nats; a unit counts as a probability."""
    units = layout.units
    loss = F.binary_cross_entropy_with_logits(logits[:, :units], x[:, :units], reduction="none").sum(dim=1)
    return loss + choice_entropy(logits, x, layout)


def choice_entropy(logits: Tensor, x: Tensor, layout: Layout) -> Tensor:
    """Return the part of `cross_entropy` that is of groups."""
    loss = logits.new_zeros(len(logits))
    for own, group in zip(_groups(logits, layout), _groups(x, layout), strict=True):
        loss = loss - (group * F.log_softmax(own, dim=1)).sum(dim=1)
    return loss


def cross_entropy_gradient(logits: Tensor, x: Tensor, layout: Layout) -> Tensor:
    """Return the gradient (B, width) of `cross_entropy` with respect to the logits.

    For records as the places of their ones (B, ones) it is written over the logits, which are many then.
    """
    if not x.is_floating_point():
        logits[:, : layout.units].sigmoid_()
        for span in layout.spans:
            logits[:, span] = torch.softmax(logits[:, span], dim=1)
        return logits.index_put_(find_ones(x, layout.width), logits.new_tensor(-1.0), accumulate=True)
    gradient = torch.sigmoid(logits)
    for span in layout.spans:
        group = x[:, span]
        torch.mul(torch.softmax(logits[:, span], dim=1), group.sum(dim=1, keepdim=True), out=gradient[:, span])
    return gradient.sub_(x)


def draw_groups(means: Tensor, layout: Layout, generator: torch.Generator) -> Tensor:
    """Draw a choice of each group by its shares, (..., groups). A uniform number for each is drawn on the CPU."""
    uniform = torch.rand(*means.shape[:-1], len(layout.groups), generator=generator).to(means)
    codes = torch.empty(uniform.shape, dtype=torch.int64, device=means.device)
    alike: dict[int, list[int]] = {}
    for group, choices in enumerate(layout.groups):
        alike.setdefault(choices, []).append(group)
    starts = [span.start for span in layout.spans]
    for choices, groups in alike.items():
        # A wide table has thousands of groups of one size.
        places = torch.tensor([starts[group] for group in groups])[:, None] + torch.arange(choices)
        codes[..., groups] = chosen(means[..., places.to(means.device)], uniform[..., groups])
    return codes


def chosen(shares: Tensor, uniform: Tensor) -> Tensor:
    """Return the choice (...) in whose part of the shares (..., choices) a uniform number lies."""
    sums = shares.cumsum(dim=-1)
    # Rounding may leave the last sum below 1.
    below = sums <= uniform[..., None] * sums[..., -1:]
    return below.sum(dim=-1).clamp_(max=shares.shape[-1] - 1)


def chosen_in(sums: Tensor, rows: Tensor, uniform: Tensor) -> Tensor:
    """Return what `chosen` does, (n,), of shares that many records have in common: by their sums, which are searched.

    Args:
        sums: (rows, choices) sums of the shares, from the first choice on.
        rows: (n,) the row of each record, int64.
        uniform: (n,) a uniform number for each.

    Example:
        >>> sums = torch.tensor([[0.25, 0.5, 1.0], [0.0, 0.0, 1.0]])
        >>> chosen_in(sums, torch.tensor([0, 0, 1]), torch.tensor([0.2, 0.5, 0.2])).tolist()
        [0, 2, 2]
    """
    choices = sums.shape[1]
    flat, before = sums.flatten(), rows * choices - 1
    wanted, places = uniform * flat[before + choices], torch.zeros_like(rows)
    step = 1 << choices.bit_length()
    while step := step >> 1:
        further = (places + step).clamp_(max=choices)
        places = torch.where(flat[before + further] <= wanted, further, places)
    return places.clamp_(max=choices - 1)


def draw(means: Tensor, layout: Layout, generator: torch.Generator) -> Encoded:
    """Draw records (n, width) from means and shares: units of two levels are drawn, others are their means, rounded.

    Where a group says how many units are 1 (`Layout.sizes`), it is drawn first, and then units one after the other in
    proportion to -log(1 - p) until there are as many. So each unit is drawn nearly as often as its mean p says.

    Example:
        >>> few = Layout(units=4, levels=1, groups=(3,), most=2, sizes=(0, 1, 2))
        >>> means = torch.tensor([0.9, 0.9, 0.1, 0.1, 0.0, 0.0, 1.0]).expand(3, 7)
        >>> draw(means, few, torch.Generator().manual_seed(0)).units.sum(axis=1)
        array([2, 2, 2], dtype=uint64)
    """
    if layout.sizes:
        codes = draw_groups(means, layout, generator)
        units = _of_sizes(means[:, : layout.units], codes[:, -1], layout, generator)
        return Encoded(units, codes.numpy().astype(smallest_integer(max(layout.groups)), copy=False))
    units = means[:, : layout.units]
    if layout.levels == 1:
        units = (torch.rand(units.shape, generator=generator) < units).to(torch.uint8).numpy()
    elif layout.levels is not None:
        units = torch.round(units * layout.levels).numpy().astype(smallest_integer(layout.levels))
    else:
        units = units.numpy()
    codes = draw_groups(means, layout, generator).numpy()
    return Encoded(units, codes.astype(smallest_integer(max(layout.groups, default=0)), copy=False))


def _of_sizes(means: Tensor, bins: Tensor, layout: Layout, generator: torch.Generator) -> scipy.sparse.csr_array:
    """Draw units (n, units) of 0 and 1: each row has as many ones as a number drawn uniformly from its bin."""
    starts = torch.tensor([*layout.sizes, layout.most + 1])
    first, after = starts[bins], starts[bins + 1]
    # Rounding may reach the first size of the next bin.
    sizes = torch.minimum(first + (torch.rand(len(bins), generator=generator) * (after - first)).long(), after - 1)
    rates = -torch.log1p(-means.clamp(1e-12, 1.0 - 1e-6))
    rows, items = successive_sample(rates, sizes, generator)
    ones = np.ones(len(rows), np.uint8)
    return scipy.sparse.coo_array((ones, (rows.numpy(), items.numpy())), shape=means.shape).tocsr()


def _groups(x: Tensor, layout: Layout) -> tuple[Tensor, ...]:
    """Split off the numbers of each group."""
    return x[..., layout.units :].split(layout.groups, dim=-1) if layout.groups else ()


LIKELIHOODS = ("bernoulli", "gaussian", "laplace", "censored")
# A learned scale begins here: below the deviation of uniform numbers, .29.
_START = 0.2
# The change of the logarithm of a scale for a change of its parameter by 1. The steps of Adam are of one length for all
# parameters, and a scale has further to go than a weight.
_GAIN = 4.0


class UnitLikelihood(nn.Module):
    """The likelihood of each unit, whose mean is the logistic function of a logit.

    A scale is the standard deviation of a Gaussian, or the scale of a Laplace distribution; draws beyond [0, 1] are moved
    to its ends. A Bernoulli has none: a unit between 0 and 1 counts as a probability, and is generated as its mean.

    A censored unit (Tobin 1958) is a Gaussian number cut at 0 and 1, where it counts by the probability of all that is
    beyond: a reading may be exactly 0 most of the time. Its mean before the cut is ``2 sigmoid(logit) - 1/2``, since one
    that is often cut is beyond the ends.

    Args:
        k, units: the numbers of components and units.
        kind: one of `LIKELIHOODS`.
        scale: fixed and public; None learns one for each component and unit.
        floor: the least scale. Without one a unit that is always the same has an unbounded likelihood.
        waves: of series, whose scales are those of waves, in parts of their sizes: they are off by whole waves, not reading
            by reading. None for units that are off by themselves.

    Raises:
        ValueError: for another kind, a scale for a Bernoulli, or one that is not from the floor to 1.

    Example:
        >>> likelihood = UnitLikelihood(1, 2, "gaussian", scale=0.5)
        >>> likelihood.loss(torch.zeros(1, 2), torch.tensor([[0.5, 1.0]]), (0, 1))
        tensor([0.9516])
    """

    def __init__(
        self,
        k: int,
        units: int,
        kind: str = "bernoulli",
        *,
        scale: float | None = None,
        floor: float = 0.01,
        waves: SlowWaves | None = None,
    ) -> None:
        super().__init__()
        if kind not in LIKELIHOODS:
            raise ValueError(f"likelihood={kind!r}: expected one of {', '.join(LIKELIHOODS)}")
        if not isinstance(floor, float) or not 1e-4 <= floor <= 1.0:
            raise ValueError(f"floor={floor!r}: expected a number from 0.0001 to 1")
        if scale is not None and kind == "bernoulli":
            raise ValueError(f"scale={scale!r} with likelihood='bernoulli': expected None, since it has no scale")
        if scale is not None and not (isinstance(scale, float) and floor <= scale <= 1.0):
            raise ValueError(f"scale={scale!r}: expected a number from the floor, {floor:g}, to 1")
        self.kind, self.scale, self.floor, self.waves = kind, scale, floor, waves
        self.log_scale: nn.Parameter | None = None
        if kind != "bernoulli" and scale is None:
            self.log_scale = nn.Parameter(torch.full((k, units), math.log(max(_START - floor, 0.1 * floor)) / _GAIN))

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments by which a release says how units are drawn; none for a Bernoulli."""
        return {} if self.kind == "bernoulli" else {"likelihood": self.kind, "scale": self.scale, "floor": self.floor}

    def _scales(self, offsets: Sequence[int], device: torch.device) -> Tensor | float:
        """Return the scale of each unit of each record, (B, units), or the fixed one."""
        if self.log_scale is None:
            return 1.0 if self.scale is None else self.scale
        return self.floor + torch.exp(_GAIN * self.log_scale[components(offsets, device)])

    def loss(self, logits: Tensor, x: Tensor, offsets: Sequence[int]) -> Tensor:
        """Return the negative log likelihood (B,) of units x (B, units), in nats."""
        if self.kind == "bernoulli":
            return F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(dim=1)
        scale = torch.as_tensor(self._scales(offsets, x.device), dtype=x.dtype, device=x.device)
        mean = torch.sigmoid(logits)
        if self.kind == "censored":
            return _censored_loss(_beyond(mean), x, scale).sum(dim=1)
        off = self._into(x - mean) / scale
        if self.kind == "gaussian":
            losses = 0.5 * off.square() + torch.log(scale) + 0.5 * math.log(2.0 * math.pi)
        else:
            losses = off.abs() + torch.log(2.0 * scale)
        return losses.sum(dim=1) + (0.0 if self.waves is None else self.waves.log_volume)

    def _into(self, off: Tensor) -> Tensor:
        """Return by how much each number with a scale of its own is off, for units that are off by (B, units)."""
        return off if self.waves is None else self.waves.of(off)

    @torch.no_grad()
    def gradient(
        self, logits: Tensor, x: Tensor, offsets: Sequence[int]
    ) -> tuple[Tensor, dict[nn.Parameter, GradientFactors]]:
        """Return the gradients of `loss` with respect to the logits (B, units) and, by record, to a learned scale."""
        mean = torch.sigmoid(logits)
        if self.kind == "bernoulli":
            return mean - x, {}
        scale = self._scales(offsets, x.device)
        off = self._into(x - (_beyond(mean) if self.kind == "censored" else mean)) / scale
        if self.kind == "censored":
            in_logits, in_log = _censored_gradient(off, x, scale)
        elif self.kind == "gaussian":
            in_logits, in_log = -off / scale, 1.0 - off.square()
        else:
            in_logits, in_log = -off.sign() / scale, 1.0 - off.abs()
        if self.waves is not None:
            in_logits = in_logits @ self.waves.into.to(in_logits).T
        in_logits = in_logits * mean * (1.0 - mean)
        if self.log_scale is None:
            return in_logits, {}
        in_log = in_log * (scale - self.floor) / scale * _GAIN
        return in_logits, {self.log_scale: OneComponent(Dense(in_log), offsets)}

    @torch.no_grad()
    def draw(self, means: Tensor, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Draw units (n, units) about their means, on the CPU; those of a Bernoulli are left to `outputs.draw`."""
        if self.kind == "bernoulli":
            return means
        scale = self._scales(offsets, means.device)
        if self.kind == "censored":
            means = _beyond(means)
        if self.kind != "laplace":
            off = torch.randn(means.shape, generator=generator)
        else:
            uniform = torch.rand(means.shape, generator=generator) - 0.5
            off = -uniform.sign() * torch.log1p(-2.0 * uniform.abs())
        off = scale * off
        return (means + (off if self.waves is None else self.waves.series(off))).clamp_(0.0, 1.0)


def _beyond(mean: Tensor) -> Tensor:
    """Stretch means in (0, 1) to twice their range."""
    return 2.0 * mean - 0.5


def _censored_loss(mean: Tensor, x: Tensor, scale: Tensor) -> Tensor:
    """Return the negative log likelihood of each of units x that were cut at 0 and 1."""
    inner = 0.5 * ((x - mean) / scale).square() + torch.log(scale) + 0.5 * math.log(2.0 * math.pi)
    beyond = -_log_below(torch.where(x <= 0.0, -mean, mean - 1.0) / scale)
    return torch.where((x <= 0.0) | (x >= 1.0), beyond, inner)


def _censored_gradient(off: Tensor, x: Tensor, scale: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return the gradients of `_censored_loss` with respect to twice the mean and to the logarithm of the scale.

    Args:
        off: by how many scales a unit is above its mean before the cut.
    """
    low, high = x <= 0.0, x >= 1.0
    ends = torch.where(low, off, -off)
    hazard = torch.exp(-0.5 * ends.square() - 0.5 * math.log(2.0 * math.pi) - _log_below(ends))
    steep = torch.where(low, hazard, torch.where(high, -hazard, -off))
    return 2.0 * steep / scale, torch.where(low | high, hazard * ends, 1.0 - off.square())


def _log_below(t: Tensor) -> Tensor:
    """Return the logarithm of the standard normal distribution function: by its tail's series below -8.

    `torch.special.log_ndtr` has no rule for `torch.vmap`.
    """
    near, far = t.clamp(min=-8.0), t.clamp(max=-8.0)
    squared = far.square().reciprocal()
    tail = torch.log1p(squared * (-1.0 + squared * (3.0 - 15.0 * squared)))
    tail = tail - 0.5 * far.square() - torch.log(-far) - 0.5 * math.log(2.0 * math.pi)
    return torch.where(t < -8.0, tail, torch.log(0.5 * torch.special.erfc(near * -math.sqrt(0.5))))


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


def _believed(generated: Tensor, target: Tensor, noise: float, layout: Layout) -> Tensor:
    """Estimate means (width,) from a component's own and the released ones, for units and for choices apart.

    A number p is expected to be off in proportion to ``sqrt(p (1 - p))``.
    """
    out = generated.clone()
    for part in (slice(0, layout.units), slice(layout.units, layout.width)):
        p, off = generated[part], target[part] - generated[part]
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
        mean_units = means(free + bias, layout)
        mean = mean_units.mean(dim=0).clamp(_LEAST, 1.0 - _LEAST)
        # The logit of a mean moves by this share of a change of the bias: 1 where codes make no difference, else less.
        moves = (mean_units * (1.0 - mean_units)).mean(dim=0) / (mean * (1.0 - mean))
        step = (target - _logits(mean, layout)) / moves.clamp(1.0 / _LONGEST, 1.0)
        bias += step
        if step.abs().max() < _CLOSE:
            break
    return bias


def _logits(mean: Tensor, layout: Layout) -> Tensor:
    """Return the logits of units, and the logarithms of shares."""
    mean, units = mean.clamp(_LEAST, 1.0 - _LEAST), layout.units
    return torch.cat([torch.logit(mean[:units]), torch.log(mean[units:])])

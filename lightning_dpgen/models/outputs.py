"""The way from a network's numbers to records by their layout: means and shares, losses, and draws."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer
from lightning_dpgen.models.successive import successive_sample
from lightning_dpgen.sampling.multi_hot import find_ones


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
        gradient = _means_in_place(logits, layout)
        gradient.index_put_(find_ones(x, layout.width), gradient.new_tensor(-1.0), accumulate=True)
        return gradient
    gradient = torch.sigmoid(logits)
    for span in layout.spans:
        group = x[:, span]
        torch.mul(torch.softmax(logits[:, span], dim=1), group.sum(dim=1, keepdim=True), out=gradient[:, span])
    return gradient.sub_(x)


def _means_in_place(logits: Tensor, layout: Layout) -> Tensor:
    """Compute `means` in the memory of the logits."""
    logits[:, : layout.units].sigmoid_()
    for span in layout.spans:
        logits[:, span] = torch.softmax(logits[:, span], dim=1)
    return logits


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
    wanted, found = uniform * flat[before + choices], torch.zeros_like(rows)
    step = 1 << choices.bit_length()
    while step := step >> 1:
        further = (found + step).clamp_(max=choices)
        found = torch.where(flat[before + further] <= wanted, further, found)
    return found.clamp_(max=choices - 1)


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

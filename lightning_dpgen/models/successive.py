"""Successive sampling: distinct items, one after the other, each in proportion to its rate among those still there."""

from __future__ import annotations

import torch
from torch import Tensor


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
        own, wanted = rates[band], sizes[band]
        # Rounding a sum of a thousand rates to 32 bits would change the chances of rare items.
        drawn = _with_replacement(own.double(), high + high // 4 + 2, generator)
        new = _first_times(drawn)
        rank = new.cumsum(dim=1)
        row, place = (new & (rank <= wanted[:, None])).nonzero(as_tuple=True)
        short = (rank[:, -1] < wanted).nonzero()[:, 0]
        late, arrived = _race(own[short], drawn[short], (wanted - rank[:, -1])[short], generator)
        rows += [band[row], band[short][late]]
        items += [drawn[row, place], arrived]
        low = high
    return torch.cat(rows), torch.cat(items)


def _with_replacement(rates: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """Draw items (n, draws) with replacement."""
    sums = rates.cumsum(dim=1)
    at = torch.rand(len(rates), draws, dtype=rates.dtype, generator=generator).mul_(sums[:, -1:])
    return torch.searchsorted(sums, at, right=True).clamp_(max=rates.shape[1] - 1)


def _first_times(drawn: Tensor) -> Tensor:
    """Return the mask of a row's draws of an item that it had not drawn before."""
    ordered, places = drawn.sort(dim=1, stable=True)
    return torch.ones_like(drawn, dtype=torch.bool).scatter_(1, places[:, 1:], ordered[:, 1:] != ordered[:, :-1])


def _race(rates: Tensor, taken: Tensor, wanted: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw so many more items in each row, none that is taken; return the rows and the items."""
    arrivals = torch.empty_like(rates).exponential_(generator=generator).div_(rates).scatter_(1, taken, torch.inf)
    first = arrivals.topk(int(wanted.max()) if len(wanted) else 0, dim=1, largest=False).indices
    row, place = (torch.arange(first.shape[1]) < wanted[:, None]).nonzero(as_tuple=True)
    return row, first[row, place]

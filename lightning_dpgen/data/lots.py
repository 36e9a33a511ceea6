"""Poisson lots: every record takes part independently at one public rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from lightning_dpgen.privacy.account import Account


@dataclass(frozen=True, eq=False)
class Draw:
    """The identity of one draw of records: gradients carry it, so that no lot is spent by two accesses.

    Args:
        rate: the Poisson rate at which the records were drawn, if this software drew them.
    """

    rate: float | None = None


@dataclass(frozen=True)
class Lot:
    """The records of one step, sorted by the component that they belong to. Everything in it is private.

    Args:
        records: (B, m), or a tuple or dict of tensors (B, ...); B is random and may be 0.
        offsets: k + 1 positions; the records of component c are ``records[offsets[c]:offsets[c + 1]]``.
        draw: its identity; copies of a lot share it.
    """

    records: Any
    offsets: tuple[int, ...]
    draw: Draw = field(default_factory=Draw, repr=False, compare=False)

    def __len__(self) -> int:
        return self.offsets[-1]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that the records consist of."""
        return tree_leaves(self.records)

    def mapped(self, change: Callable[[Tensor], Tensor], offsets: tuple[int, ...] | None = None) -> Lot:
        """With `change` done to each tensor."""
        return Lot(tree_map(change, self.records), self.offsets if offsets is None else offsets, self.draw)

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Lot:
        """On that device; real numbers in that precision."""
        return self.mapped(lambda x: x.to(device, dtype if x.is_floating_point() else None))

    def padded(self, more: int) -> Lot:
        """With as many records of zeros behind the others."""
        return self.mapped(
            lambda x: torch.cat([x, x.new_zeros(more, *x.shape[1:])]), (*self.offsets[:-1], self.offsets[-1] + more)
        )


class PoissonLots:
    """An endless source of Poisson lots from records that are held in memory.

    Sampling is a random size and distinct positions, fetched at once; an empty lot is a lot like any other, since
    skipping it would tell that it was empty.

    Args:
        records: (N, m), finite.
        account: its plan says the rate, its private stream draws the samples.
        stage: the plan's stage that the lots are for.
        clusters: (N,) the component of each record, in 0..k-1; None for a single component.
        k: number of components.
    """

    def __init__(
        self,
        records: Tensor,
        account: Account,
        *,
        stage: str = "training",
        clusters: Tensor | None = None,
        k: int = 1,
    ) -> None:
        if clusters is None:
            clusters = torch.zeros(len(records), dtype=torch.long)
        order = torch.argsort(clusters, stable=True)
        self._records = records[order].contiguous()
        self._bounds = np.searchsorted(clusters[order].numpy(), np.arange(k + 1))
        self.rate = account.plan.stage(stage).access.rate
        self._stream = account.stream

    def draw(self) -> Lot:
        """One Poisson lot."""
        taken = self._stream.poisson_sample(len(self._records), self.rate)
        records = self._records.index_select(0, torch.from_numpy(taken))
        return Lot(records, tuple(np.searchsorted(taken, self._bounds).tolist()), Draw(self.rate))


class LotBlocks:
    """A run's lots in blocks: what a Trainer takes as its dataloader.

    Each batch that Lightning sees is a block of several lots, so that its overhead is paid once a block. Lots are drawn
    when they are asked for. The number of steps is the plan's, never a function of how many records there are.

    Args:
        lots: where lots come from.
        steps: how many lots in all.
        block: how many lots a batch.
    """

    def __init__(self, lots: PoissonLots, steps: int, block: int) -> None:
        self.steps, self.block, self._lots = steps, block, lots

    def __len__(self) -> int:
        return -(-self.steps // self.block)

    def __iter__(self) -> Iterator[list]:
        for start in range(0, self.steps, self.block):
            yield LotBlock(self._lots, min(self.block, self.steps - start))


class LotBlock:
    """A few lots, drawn one after the other while they are iterated over; `len` is public."""

    def __init__(self, lots: PoissonLots, size: int) -> None:
        self._lots, self._size = lots, size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Lot]:
        for _ in range(self._size):
            yield self._lots.draw()

"""The blocks in which synthetic records are drawn, each by public randomness of its own, so in any order and by anyone."""

from __future__ import annotations

import numpy as np
import torch

from lightning_dpgen.data.layout import Layout
from lightning_dpgen.sampling.randomness import WORDS, make_twister_state

# The most records of a block, and numbers of their layout: so few that memory is used again and not fetched anew. Choices
# are drawn from sums that records have in common, and their values take a while for each block.
LARGEST_BLOCK = 10_000
_NUMBERS, _NUMBERS_OF_CHOICES = 1 << 22, 1 << 24
# A column of very many takes longer than its records do, so a block has more of these.
_MANY_GROUPS, _AT_LEAST = 1000, 500


def block_rows(layout: Layout) -> int:
    """Return the number of records of a block: 1, 2 or 5 and zeros, so that `LARGEST_BLOCK` is a multiple of it.

    Example:
        >>> [block_rows(Layout(units=units)) for units in (20, 784, 100_000)]
        [10000, 5000, 20]
        >>> block_rows(Layout(units=0, groups=(1_000,)))
        10000
    """
    least = _AT_LEAST if len(layout.groups) >= _MANY_GROUPS else 1
    most = min(LARGEST_BLOCK, max(least, (_NUMBERS if layout.units else _NUMBERS_OF_CHOICES) // layout.width))
    return max(step * 10**zeros for step in (1, 2, 5) for zeros in range(5) if step * 10**zeros <= most)


def block_streams(seed: int, block: int) -> tuple[torch.Generator, np.random.Generator]:
    """Return the two generators of a block, which no other block and no other seed has.

    Args:
        seed: of all blocks, 0 or more; public.
        block: its number, from 0.

    Example:
        >>> one, other = (block_streams(7, block)[1].random() for block in (0, 1))
        >>> one == other, one == block_streams(7, 0)[1].random()
        (False, True)
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(block,))
    words = sequence.generate_state(1 + WORDS, np.uint64)
    state = make_twister_state(words[:1], words[1:] >> np.uint64(32))
    return torch.Generator().set_state(state), np.random.default_rng(sequence.spawn(1)[0])

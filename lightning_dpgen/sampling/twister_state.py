"""States of torch's generator on the processor, a Mersenne twister, whose every word is given."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Words of 32 bits of the twister.
WORDS = 624
# Places in a state of torch: its seed of 64 bits, and its words, each in 64.
_SEED_AT, _WORDS_AT = 0, 24
# The state of a generator from which nothing was drawn.
_UNUSED = torch.Generator().get_state()


def make_twister_state(seed: np.ndarray, words: np.ndarray) -> Tensor:
    """Make a state from which nothing was drawn; ``manual_seed`` would keep 32 bits of a seed.

    Args:
        seed: (1,) uint64, the number by which the state is told from others.
        words: (624,) uint64 below 2^32, all of what is drawn.

    Example:
        >>> generator = torch.Generator().set_state(make_twister_state(np.ones(1, np.uint64), np.ones(624, np.uint64)))
        >>> generator.initial_seed()
        1
    """
    state = _UNUSED.clone()
    octets = state.numpy()
    octets[_SEED_AT : _SEED_AT + 8].view(np.uint64)[:] = seed
    octets[_WORDS_AT : _WORDS_AT + 8 * WORDS].view(np.uint64)[:] = words
    return state

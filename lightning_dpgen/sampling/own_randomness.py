"""Randomness of the global generators that no public seed reaches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def randomness_of_their_own() -> Iterator[None]:
    """Key the global generators by the operating system within the block; afterwards they are where they were."""
    before = torch.default_generator.get_state(), np.random.get_bit_generator(), random.getstate()
    try:
        torch.default_generator.seed()
        np.random.set_bit_generator(np.random.PCG64DXSM())
        random.seed()
        yield
    finally:
        torch.default_generator.set_state(before[0])
        np.random.set_bit_generator(before[1])
        random.setstate(before[2])

"""Randomness of records that a user's module draws from torch's own generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.privacy.noise import PrivateStream
from lightning_dpgen.sampling.own_randomness import randomness_of_their_own

# Places in the state of torch's Mersenne twister: its seed of 64 bits, and its 624 words of 32 bits, each in 64.
_SEED_AT, _WORDS_AT, _WORDS = 0, 24, 624


@contextmanager
def torch_draws_from(stream: PrivateStream, device: torch.device) -> Iterator[None]:
    """Key torch's default generators from the private stream inside this context, and numpy's and Python's by the system.

    Afterwards all are where they were.

    A public seed, or a position in a public sequence of numbers, would let one record change what the others draw. The
    numbers are as good as those of the stream's statistical generator: unknown without the key, not cryptographic.

    Args:
        stream: the account's private stream.
        device: the device whose generator is keyed, besides the processor's.
    """
    default = torch.default_generator
    on_device = device.type == "cuda"
    device_before = torch.cuda.get_rng_state(device) if on_device else None
    with randomness_of_their_own():
        try:
            default.set_state(_keyed(stream))
            if on_device:
                torch.cuda.default_generators[device.index or 0].manual_seed(int(stream.words(1)[0] >> 1))
            yield
        finally:
            if on_device:
                torch.cuda.set_rng_state(device_before, device)


def _keyed(stream: PrivateStream) -> Tensor:
    """Make a fresh state of the processor's generator, all words from the stream: manual_seed would keep 32 bits.

    Its seed is from the stream, too, so that `Guard` can tell it from another state.
    """
    state = torch.Generator().get_state()
    fresh = stream.words(1 + _WORDS)
    state.numpy()[_SEED_AT : _SEED_AT + 8].view(np.uint64)[:] = fresh[:1] >> np.uint64(1)
    state.numpy()[_WORDS_AT : _WORDS_AT + 8 * _WORDS].view(np.uint64)[:] = fresh[1:] >> np.uint64(32)
    return state

"""Randomness of records that a user's module draws from torch's own generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.stores import randomness_of_their_own
from lightning_dpgen.privacy.noise import PrivateStream

# Of the state of torch's Mersenne twister: where its 624 words of 32 bits begin, each in 64.
_WORDS_AT, _WORDS = 24, 624


@contextmanager
def torch_draws_from(stream: PrivateStream, device: torch.device) -> Iterator[None]:
    """Within it, torch's default generators are keyed from the private stream, others by the operating system.

    Those of numpy and Python are meant. Afterwards all are where they were.

    A public seed, or a position in a public sequence of numbers, would let one record change what the others draw. The
    numbers are as good as those of the stream's statistical generator: unknown without the key, not cryptographic.

    Args:
        stream: the account's.
        device: whose generator is keyed too, beside the processor's.
    """
    default = torch.default_generator
    on_device = device.type == "cuda"
    device_before = torch.cuda.get_rng_state(device) if on_device else None
    with randomness_of_their_own():
        try:
            default.set_state(_keyed(stream))
            seed = default.initial_seed()
            if on_device:
                torch.cuda.default_generators[device.index or 0].manual_seed(int(stream.words(1)[0] >> 1))
            yield
            if default.initial_seed() != seed:
                raise ValueError(
                    "torch was seeded while a loss was computed (manual_seed, seed_everything): its numbers would go to "
                    "records by their position, so that one record would change what the others draw. Seed before training"
                )
        finally:
            if on_device:
                torch.cuda.set_rng_state(device_before, device)


def _keyed(stream: PrivateStream) -> Tensor:
    """A fresh state of the processor's generator with all its words from the stream: manual_seed would keep 32 bits."""
    state = torch.Generator().get_state()
    words = state.numpy()[_WORDS_AT : _WORDS_AT + 8 * _WORDS].view(np.uint64)
    words[:] = stream.words(_WORDS) >> np.uint64(32)
    return state

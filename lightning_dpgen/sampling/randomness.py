"""Randomness of the global generators that no public seed reaches."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from types import TracebackType

import numpy as np
import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack


def torch_generators() -> tuple[torch.Generator, ...]:
    """Return the generators that functions of torch draw from by default: the processor's, and one of each GPU in use."""
    return torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())


def generator_states() -> tuple[bytes, ...]:
    """Return the states of torch's default generators, which tell whether a function has drawn.

    Example:
        >>> before = generator_states()
        >>> _ = torch.zeros(2)
        >>> before == generator_states()
        True
        >>> _ = torch.rand(2)
        >>> before == generator_states()
        False
    """
    generators = torch_generators()
    if len(generators) > 1 and torch.cuda.is_current_stream_capturing():
        # A GPU's has no state to look at while a graph is captured. A function that drew is found out when it is replayed.
        generators = generators[:1]
    # A transform of torch.func would hide the numbers of a state.
    with temporarily_clear_interpreter_stack():
        return tuple(generator.get_state().numpy().tobytes() for generator in generators)


@functools.cache
def _numpy_generator() -> np.random.PCG64DXSM:
    """Return the generator of this process that the system has keyed: it goes on where it was, and its place is secret."""
    return np.random.PCG64DXSM()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_numpy_generator.cache_clear)


class randomness_of_their_own:
    """A context in which the global generators are keyed by the operating system; afterwards they are where they were.

    Args:
        key: keys one of torch's generators; by default from the operating system.
    """

    def __init__(self, key: Callable[[torch.Generator], object] = torch.Generator.seed) -> None:
        self._key = key

    def __enter__(self) -> None:
        self._states = [(generator, generator.get_state()) for generator in torch_generators()]
        # Another context may be open, in another thread, and end before this one or after it: only the first of them puts
        # NumPy's own generator back, or that of these contexts would stay.
        bits = np.random.get_bit_generator()
        self._others = None if bits is _numpy_generator() else bits, random.getstate()
        try:
            for generator, _ in self._states:
                self._key(generator)
            np.random.set_bit_generator(_numpy_generator())
            # By default it would take ten times as many bytes from the system.
            random.seed(int.from_bytes(os.urandom(32)))
        except BaseException:
            self._put_back()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._put_back()

    def _put_back(self) -> None:
        for generator, state in self._states:
            generator.set_state(state)
        if self._others[0] is not None:
            np.random.set_bit_generator(self._others[0])
        random.setstate(self._others[1])


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

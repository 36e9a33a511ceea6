"""Copies of lots to a GPU while it still computes the step before."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def copied(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device.

    A GPU copies from pinned memory, on a queue of its own, for which work that is queued next waits. So a lot is on its way
    while the step before is computed, if the program is ahead of the device. Torch keeps the pinned memory until it has
    been read, and takes it again for a later lot.
    """
    if device.type != "cuda" or x.device.type != "cpu":
        return x.to(device)
    with torch.cuda.device(device):
        of_copies, of_steps = _queue_of_copies(torch.cuda.current_device()), torch.cuda.current_stream()
        with torch.cuda.stream(of_copies):
            copy = x.pin_memory().to(device, non_blocking=True)
        of_steps.wait_stream(of_copies)
        # Its memory is given to another copy only after the steps that read it.
        copy.record_stream(of_steps)
    return copy


@functools.cache
def _queue_of_copies(device: int) -> torch.cuda.Stream:
    """Return the queue of a device on which lots are copied."""
    return torch.cuda.Stream(device)

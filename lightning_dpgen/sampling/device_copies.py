"""Copies of lots to a GPU while it still computes the step before."""

from __future__ import annotations

import functools
from collections import deque

import torch
from torch import Tensor

# Steps that a program may be ahead of a GPU.
_AHEAD = 2


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


class StepsAhead:
    """A program is let run two steps ahead of a GPU and no more, since lots that wait there take memory."""

    def __init__(self) -> None:
        self._ends: deque[torch.cuda.Event] = deque()

    def end_step(self, device: torch.device) -> None:
        """Wait until the step before the last one is computed; all work of this step is queued on the current stream."""
        if device.type != "cuda":
            return
        end = torch.cuda.Event()
        end.record(torch.cuda.current_stream(device))
        self._ends.append(end)
        if len(self._ends) > _AHEAD:
            self._ends.popleft().synchronize()


@functools.cache
def _queue_of_copies(device: int) -> torch.cuda.Stream:
    """Return the queue of a device on which lots are copied."""
    return torch.cuda.Stream(device)

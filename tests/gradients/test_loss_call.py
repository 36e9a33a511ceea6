"""Changes that threads make while they compute losses are put back by the last one, in whatever order they leave."""

import threading

import pytest
import torch
from torch.utils import checkpoint

from lightning_dpgen.gradients.isolation.loss_call import REPLACED_FUNCTIONS

PLACES = {
    "tracing": lambda: torch.jit.is_tracing,
    "checkpoints": lambda: checkpoint.CheckpointFunction,
    "scripts": lambda: torch.jit.trace,
}


@pytest.mark.parametrize("found", PLACES.values(), ids=PLACES)
def test_threads_leave_in_the_order_in_which_they_came(found):
    """The first one leaves before the second: each would put back what it found, and the second the first one's."""
    before, entered, leave, seen = found(), threading.Event(), threading.Event(), []

    def second():
        with REPLACED_FUNCTIONS:
            entered.set()
            leave.wait(10)
            seen.append(found() is not before)

    thread = threading.Thread(target=second)
    with REPLACED_FUNCTIONS:
        thread.start()
        assert entered.wait(10)
    assert found() is not before
    leave.set()
    thread.join()
    assert found() is before and seen == [True]

"""Changes that threads make while they compute losses are put back by the last one, in whatever order they leave."""

import threading

import pytest
import torch
from torch.utils import checkpoint

from lightning_dpgen.gradients.activation_checkpoints import without_checkpoints
from lightning_dpgen.gradients.refusals import refuse_unwatched
from lightning_dpgen.gradients.traced_code import answer_as_traced

CHANGES = {
    "tracing": (answer_as_traced, lambda: torch.jit.is_tracing),
    "checkpoints": (without_checkpoints, lambda: checkpoint.CheckpointFunction),
    "doors": (refuse_unwatched, lambda: torch.jit.trace),
}


@pytest.mark.parametrize(("change", "found"), CHANGES.values(), ids=CHANGES)
def test_threads_leave_in_the_order_in_which_they_came(change, found):
    """The first one leaves before the second: each would put back what it found, and the second the first one's."""
    before, entered, leave, seen = found(), threading.Event(), threading.Event(), []

    def second():
        with change():
            entered.set()
            leave.wait(10)
            seen.append(found() is not before)

    thread = threading.Thread(target=second)
    with change():
        thread.start()
        assert entered.wait(10)
    assert found() is not before
    leave.set()
    thread.join()
    assert found() is before and seen == [True]

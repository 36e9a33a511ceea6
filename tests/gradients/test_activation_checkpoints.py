"""Checkpoints of a loss change neither gradients nor draws, and are torch's own again where no loss is computed."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from lightning_dpgen.gradients.engines import ENGINES, term_gradients
from lightning_dpgen.gradients.isolation import loss_call
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

WAYS = {
    "reentrant": lambda layers, x: checkpoint(layers, x, use_reentrant=True),
    "not reentrant": lambda layers, x: checkpoint(layers, x, use_reentrant=False, preserve_rng_state=False),
    "in parts": lambda layers, x: checkpoint_sequential(layers, 2, x, use_reentrant=False),
    "none": lambda layers, x: layers(x),
}


def _gradients(way, engine):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 4))
    term = PerRecord(lambda lot, _: way(layers, lot.records).square().sum(dim=1))
    lot = Lot(torch.rand(6, 4), (0, 6))
    found = term_gradients(layers, term, lot, PrivateStream(0), engine=engine)
    out = {p: torch.zeros_like(p) for p in layers.parameters()}
    found.weighted_sum(torch.arange(6.0), out)
    return torch.cat([x.flatten() for x in out.values()])


@pytest.mark.filterwarnings("ignore:activation checkpointing")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", list(WAYS)[:-1])
def test_gradients_and_draws_are_those_without_a_checkpoint(way, engine):
    assert torch.equal(_gradients(WAYS[way], engine), _gradients(WAYS["none"], engine))


@pytest.mark.parametrize("way", list(WAYS)[:-1])
def test_it_says_once_that_memory_is_not_saved(way):
    loss_call._say_memory_is_not_saved.cache_clear()
    with pytest.warns(UserWarning, match="without checkpoints") as said:
        _gradients(WAYS[way], "ghost")
    assert len(said) == 1
    _gradients(WAYS[way], "ghost")


@pytest.mark.parametrize("reentrant", [True, False])
def test_other_threads_and_later_calls_have_checkpoints(reentrant):
    """Torch's own checkpoint calls its function again on the way back."""
    calls = []

    def run():
        x = torch.ones(2, requires_grad=True)
        checkpoint(lambda x: (calls.append(1), x.exp())[1], x, use_reentrant=reentrant).sum().backward()

    with loss_call.REPLACED_FUNCTIONS:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(60)
    assert len(calls) == 2
    run()
    assert len(calls) == 4


def test_the_last_of_several_threads_gives_checkpoints_back():
    own, entered, leave = torch.utils.checkpoint.CheckpointFunction, threading.Event(), threading.Event()

    def other():
        with loss_call.REPLACED_FUNCTIONS:
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(60)
    with loss_call.REPLACED_FUNCTIONS:
        leave.set()
        thread.join(60)
        assert torch.utils.checkpoint.CheckpointFunction is not own
    assert torch.utils.checkpoint.CheckpointFunction is own

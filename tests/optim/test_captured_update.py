"""A captured update moves parameters as the optimizer does, bit for bit, whatever changes between two of them."""

import copy

import pytest
import torch
from on_gpu.gpu_mark import DEVICES
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_post_hook

from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.optim import captured_update
from lightning_dpgen.optim.captured_update import CapturedUpdate
from lightning_dpgen.optim.flat import FlatGroups

MAKERS = {
    "SGD": (lambda p: optim.SGD(p, lr=0.1), True),
    "SGD with momentum": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01), True),
    "fused SGD": (lambda p: optim.SGD(p, lr=0.1, momentum=0.5, fused=True), True),
    "fused Adam": (lambda p: optim.Adam(p, lr=0.1, fused=True), True),
    "fused AdamW": (lambda p: optim.AdamW(p, lr=0.1, amsgrad=True, fused=True), True),
    # Their Python follows from the number of updates.
    "Adam": (lambda p: optim.Adam(p, lr=0.1), False),
    "RAdam": (lambda p: optim.RAdam(p, lr=0.1), False),
    # A group that is not fused would keep the learning rate of its capture.
    "SGD of two kinds": (lambda p: optim.SGD([p[0] | {"fused": True}, p[1] | {"fused": False}], lr=0.1), False),
    "betas as tensors": (lambda p: optim.Adam(p, lr=0.1, betas=(torch.tensor(0.9), torch.tensor(0.99)), fused=True), False),
    "a learning rate as a tensor": (lambda p: optim.Adam(p, lr=torch.tensor(0.1), fused=True), False),
}


def _nothing(optimizer, t):
    pass


def _schedule(optimizer, t):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (t + 1)


def _decay(optimizer, t):
    optimizer.param_groups[0]["weight_decay"] = 0.1 * (t // 4)


def _reload(optimizer, t):
    if t == 4:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


CHANGES = {"nothing": _nothing, "a schedule": _schedule, "weight decay": _decay, "a state that is loaded": _reload}


def _updates(make, change, captured, monkeypatch, device="cpu", steps=8):
    """Return the parameters after each update, and how often the Python of the optimizer ran."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to(device)
    groups = [{"params": list(network[0].parameters())}, {"params": list(network[1].parameters()), "lr": 0.03}]
    optimizer = make(groups)
    buffer = GradientBuffer(network.parameters())
    flats = FlatGroups(optimizer, buffer)
    update, calls, found = CapturedUpdate(optimizer, flats), [], []
    monkeypatch.setattr(optimizer, "step", lambda step=optimizer.step: calls.append(step()))
    generator = torch.Generator().manual_seed(1)
    for t in range(steps):
        buffer.flat.copy_(torch.randn(buffer.flat.shape, generator=generator))
        with flats.in_their_place():
            change(optimizer, t)
        if captured:
            update()
        else:
            with flats.in_their_place():
                optimizer.step()
        found.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    return found, len(calls)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", MAKERS)
def test_captured_updates_are_those_of_the_optimizer(name, change, device, monkeypatch):
    make, replayed = MAKERS[name]
    if name == "a learning rate as a tensor" and change == "a schedule":
        pytest.skip("it is written into")
    if device == "cuda" and name == "betas as tensors":
        pytest.skip("torch takes them as numbers alone there")
    expected, every = _updates(make, CHANGES[change], False, monkeypatch, device)
    found, calls = _updates(make, CHANGES[change], True, monkeypatch, device)
    for own, its in zip(found, expected, strict=True):
        # A kernel of CUDA reads a learning rate in float32 where it is a tensor.
        torch.testing.assert_close(own, its, rtol=0.0, atol=0.0 if device == "cpu" else 1e-6)
    assert every == 8
    # Two before, and one for each capture. SGD alone has no state.
    schedule, loaded = (1 if "fused" in name else 6), (1 if name == "SGD" else 2)
    captures = {"nothing": 1, "a schedule": schedule, "weight decay": 2, "a state that is loaded": loaded}[change]
    assert calls == (2 + captures if replayed else 8)


@pytest.mark.parametrize("of_all", [False, True])
def test_hooks_are_called_in_each_update(of_all, monkeypatch):
    calls, register = [], register_optimizer_step_post_hook

    def make(groups):
        optimizer = optim.SGD(groups, lr=0.1)
        handles.append((register if of_all else optimizer.register_step_post_hook)(lambda *_: calls.append(1)))
        return optimizer

    handles = []
    _updates(make, _nothing, True, monkeypatch)
    handles[0].remove()
    assert len(calls) == 8


def test_an_update_that_cannot_be_captured_on_a_gpu_is_made_as_ever(monkeypatch):
    """The device is a stand-in, on which nothing is computed while a capture fails."""

    def fail(compute, device):
        raise RuntimeError("a capture that CUDA refuses")

    expected, _ = _updates(MAKERS["fused Adam"][0], _schedule, False, monkeypatch)
    monkeypatch.setattr(captured_update, "record_once", fail)
    with pytest.raises(RuntimeError, match="refuses"):
        _updates(MAKERS["fused Adam"][0], _schedule, True, monkeypatch)
    monkeypatch.setattr(captured_update, "_computes_nothing", lambda device: True)
    found, calls = _updates(MAKERS["fused Adam"][0], _schedule, True, monkeypatch)
    assert calls == 8 and all(map(torch.equal, found, expected))


def test_a_setting_that_changes_each_time_is_captured_no_more(monkeypatch):
    captures, record = [], captured_update.record_once
    monkeypatch.setattr(captured_update, "record_once", lambda *given: captures.append(1) or record(*given))
    _updates(MAKERS["SGD"][0], _schedule, True, monkeypatch, steps=20)
    assert len(captures) == captured_update._AGAIN + 1

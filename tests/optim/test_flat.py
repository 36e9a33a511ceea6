"""Parameters that are views of one tensor step as they would one by one, and look to everybody as if they were alone."""

import copy

import pytest
import torch
from contracts.drawn import draw_of
from torch import nn, optim

from lightning_dpgen.gradients.clipping import Fixed
from lightning_dpgen.optim.flat import FlatGroups
from lightning_dpgen.optim.private import PrivateOptimizer

OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "fused sgd": lambda p: optim.SGD(p, lr=0.1, fused=True),
    "adam": lambda p: optim.Adam(p, lr=0.1, amsgrad=True),
    "fused adamw": lambda p: optim.AdamW(p, lr=0.1, fused=True),
    "adadelta": lambda p: optim.Adadelta(p, lr=0.1),
    "adamax": lambda p: optim.Adamax(p, lr=0.1),
    "nadam": lambda p: optim.NAdam(p, lr=0.1),
    "radam": lambda p: optim.RAdam(p, lr=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.1, centered=True, momentum=0.5),
    "two groups": lambda p: optim.Adam([{"params": p[:1], "lr": 1.0}, {"params": p[1:], "weight_decay": 0.5}], lr=0.1),
}


def _network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(12, 2))


def _private(network, make, account_of):
    account = account_of({"gradient": 0.0})
    return PrivateOptimizer(make(list(network.parameters())), account=account, clipping=Fixed(1.0), expected_batch_size=2.0)


def _fill(optimizer, number):
    optimizer.expect(draw_of(optimizer.account, 3))
    for i, p in enumerate(optimizer.params):
        p.grad_sample = torch.randn(3, *p.shape, generator=torch.Generator().manual_seed(100 * number + i))


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_it_steps_as_for_one_parameter_after_the_other(make, account_of):
    network, alone = _network(), _network()
    optimizer, plain = _private(network, make, account_of), make(list(alone.parameters()))
    assert len({p.untyped_storage().data_ptr() for p in network.parameters()}) == len(optimizer.param_groups)
    for number in range(4):
        _fill(optimizer, number)
        for p, own in zip(alone.parameters(), network.parameters(), strict=True):
            p.grad = own.grad_sample.sum(dim=0) / 2.0
        optimizer.step()
        plain.step()
    for p, own in zip(alone.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(own, p, rtol=1e-6, atol=1e-7)


def test_groups_hold_the_parameters_themselves_and_their_rates_count(account_of):
    network = _network()
    optimizer = _private(network, OPTIMIZERS["two groups"], account_of)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)
    before = [p.detach().clone() for p in network.parameters()]
    _fill(optimizer, 0)
    optimizer.step()
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert all(a is b for a, b in zip(held, network.parameters(), strict=True))
    moved = [float((p.detach() - b).abs().max()) for p, b in zip(network.parameters(), before, strict=True)]
    assert moved[0] > 0.5 > moved[1] > 0
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.0]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_its_state_is_that_of_the_torch_optimizer(make, account_of):
    """Each takes up the state of the other, and goes on as the other does; so do two of a kind."""
    network, alone, third = _network(), _network(), _network()
    optimizer, plain = _private(network, make, account_of), make(list(alone.parameters()))
    assert optimizer.state_dict()["state"] == plain.state_dict()["state"] == {}
    _fill(optimizer, 0)
    _move(plain, alone, network)
    optimizer.step()
    given, expected = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(plain.state_dict())
    assert given.pop("last_bounds") is not None and given["param_groups"] == expected["param_groups"]
    torch.testing.assert_close(given["state"], expected["state"], rtol=1e-6, atol=1e-7)
    # The private one goes on in torch's, torch's in a private one.
    third.load_state_dict(alone.state_dict())
    second = _private(third, make, account_of)
    plain.load_state_dict(given)
    second.load_state_dict(expected)
    for each in (optimizer, second):
        _fill(each, 1)
    _move(plain, alone, network)
    optimizer.step()
    second.step()
    for p, own, other in zip(alone.parameters(), network.parameters(), third.parameters(), strict=True):
        torch.testing.assert_close(own, p, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(other, p, rtol=1e-6, atol=1e-7)


def _move(plain, alone, network):
    """Let a torch optimizer make the step of the sums that wait in a network."""
    for p, own in zip(alone.parameters(), network.parameters(), strict=True):
        p.grad = own.grad_sample.sum(dim=0) / 2.0
    plain.step()


def test_a_state_of_frozen_parameters_has_their_places_too(account_of):
    network, alone = _network(), _network()
    for own in (network, alone):
        own[0].weight.requires_grad_(False)
    optimizer, plain = _private(network, OPTIMIZERS["adam"], account_of), OPTIMIZERS["adam"](list(alone.parameters()))
    _fill(optimizer, 0)
    optimizer.step()
    state = optimizer.state_dict()
    assert sorted(state["state"]) == [1, 2, 3] and state["param_groups"][0]["params"] == [0, 1, 2, 3]
    plain.load_state_dict(state)
    optimizer.load_state_dict(plain.state_dict())


ODD = {
    "other groups": (lambda s: s["param_groups"].append(s["param_groups"][0]), "groups of"),
    "a parameter without state": (lambda s: s["state"].pop(1), "state of 3 of 4"),
    "other numbers": (lambda s: s["state"][0].pop("exp_avg"), "different numbers"),
    "other shapes": (lambda s: s["state"][0].update(exp_avg=torch.zeros(2)), "exp_avg is of parameters of other shapes"),
    "other steps": (lambda s: s["state"][2].update(step=torch.tensor(7.0)), "step differs"),
}


@pytest.mark.parametrize(("change", "said"), ODD.values(), ids=ODD.keys())
def test_a_state_of_something_else_is_refused_and_changes_nothing(change, said, account_of):
    network = _network()
    optimizer = _private(network, OPTIMIZERS["adam"], account_of)
    _fill(optimizer, 0)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    other = copy.deepcopy(before)
    change(other)
    with pytest.raises(ValueError, match=said):
        optimizer.load_state_dict(other)
    torch.testing.assert_close(optimizer.state_dict()["state"], before["state"])
    assert optimizer.state_dict()["last_bounds"] == before["last_bounds"]


def test_numbers_that_were_put_in_place_of_others_are_the_ones_that_move(account_of):
    network = _network()
    optimizer = _private(network, OPTIMIZERS["fused sgd"], account_of)
    optimizer.expect(draw_of(optimizer.account, 2))
    for p in network.parameters():
        p.data = torch.full_like(p, 7.0)
        p.grad_sample = torch.ones(2, *p.shape)
    optimizer.step()
    assert all(torch.allclose(p, torch.tensor(6.9)) for p in network.parameters())


def test_a_network_that_is_moved_afterwards_is_refused_before_anything_is_charged(account_of):
    network = _network()
    optimizer = _private(network, OPTIMIZERS["adam"], account_of)
    network.double()
    _fill(optimizer, 0)
    with pytest.raises(RuntimeError, match="move the network first"):
        optimizer.step()
    assert not optimizer.account.done


def test_a_gradient_that_a_hook_puts_in_place_of_another_counts(account_of):
    network = _network()
    optimizer = _private(network, OPTIMIZERS["fused sgd"], account_of)
    before = [p.detach().clone() for p in network.parameters()]

    def hook(held):
        for p in held.params:
            p.grad = torch.ones_like(p)

    optimizer.attach_step_hook(hook)
    _fill(optimizer, 0)
    optimizer.step()
    for p, b in zip(network.parameters(), before, strict=True):
        assert torch.allclose(p, b - 0.1)


def test_a_frozen_parameter_stays_what_it_is(account_of):
    network = _network()
    network[0].bias.requires_grad_(False)
    optimizer = _private(network, OPTIMIZERS["adam"], account_of)
    before = network[0].bias.clone()
    optimizer.expect(draw_of(optimizer.account, 2))
    for p in network.parameters():
        if p.requires_grad:
            p.grad_sample = torch.ones(2, *p.shape)
    optimizer.step()
    assert torch.equal(network[0].bias, before)


OTHERS = {
    "a line search": optim.LBFGS,
    "a group of none": lambda p: optim.Adam([{"params": p}, {"params": []}]),
    "two types": lambda p: optim.Adam([*p, nn.Parameter(torch.zeros(2, dtype=torch.float64))]),
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS.keys())
def test_others_are_left_as_they_are(make):
    assert not FlatGroups.possible(make(list(_network().parameters())))


def test_an_optimizer_that_has_stepped_keeps_its_state():
    parameters = list(_network().parameters())
    optimizer = optim.Adam(parameters)
    parameters[0].grad = torch.zeros_like(parameters[0])
    optimizer.step()
    assert not FlatGroups.possible(optimizer)


def test_parameters_and_optimizers_that_no_noise_fits_are_refused(account_of):
    account = account_of({"gradient": 1.0})

    def private(inner):
        return PrivateOptimizer(inner, account=account, clipping=Fixed(1.0), expected_batch_size=2.0)

    mixed = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, dtype=torch.float64))]
    with pytest.raises(ValueError, match="all in float32, or all in float64"):
        private(optim.SGD(mixed, lr=0.1))
    with pytest.raises(ValueError, match="bfloat16"):
        private(optim.SGD([nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))], lr=0.1))
    with pytest.raises(ValueError, match="LBFGS"):
        private(optim.LBFGS([nn.Parameter(torch.zeros(2))]))

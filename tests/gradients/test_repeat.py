"""Gradients that are replayed are those of the code of the loss, to the last bit, or the code is called each time."""

import functools
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from gradients.families import RULED
from gradients.strangers import STRANGERS, WIDTH
from marks import only
from torch import nn

from lightning_dpgen.gradients import engines, repeat
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

SIZES = (7, 5, 9, 2, 1, 7, 12, 0, 5, 30)


def _sum(network, gradients):
    buffer = GradientBuffer([p for p in network.parameters() if p.requires_grad])
    gradients.weighted_sum(torch.ones(len(gradients), dtype=torch.float64), buffer.views)
    return buffer.flat.clone()


def _by_code(patch):
    def compute_by_code(*_, by_code, keyed, **__):
        with keyed():
            return by_code()

    patch.setattr(engines, "repeat", compute_by_code)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(repeat, "_BEFORE", 2)
    monkeypatch.setattr(repeat, "_COMPARED_EVERY", 50)


def _all(network, term, lots, change=lambda number: None):
    """Return norms, losses and sums of all lots; each has randomness of its own that follows from its number."""
    results = []
    for number, lot in enumerate(lots):
        change(number)
        gradients = term_gradients(network, term, lot, PrivateStream(number))
        results.append((gradients.norms(), gradients.losses, _sum(network, gradients)))
    return results


def _check(make, lots, change=lambda *_: None):
    """Compare a run that replays with one by code, each of a network that is made anew; return the first one's network."""
    found = []
    for by_code in (False, True):
        network, term = make()
        with pytest.MonkeyPatch.context() as patch:
            if by_code:
                _by_code(patch)
            found.append((network, _all(network, term, lots, functools.partial(change, network))))
    for number, (ours, theirs) in enumerate(zip(found[0][1], found[1][1], strict=True)):
        assert all(map(torch.equal, ours, theirs)), number
    return found[0][0]


def _programs(network):
    return [state.program for state in repeat._states.get(network, {}).values() if state.program is not None]


ONE = {name: make for name, make in RULED.items() if make().k == 1 and make().term.forms is None}


@pytest.mark.filterwarnings("ignore:no rule for")
@pytest.mark.parametrize("name", only(ONE.keys(), *list(ONE)[::5]))
def test_each_layer_is_replayed_to_the_last_bit(name):
    def make():
        torch.manual_seed(0)
        case = ONE[name]()
        return case.network, case.term

    case = ONE[name]()
    network = _check(make, [case.lot((0, size), seed=size) for size in SIZES])
    assert _programs(network) or repeat.why_not(network) or case.beside is not None or case.term_on is not None


STRANGE = [name for name, kind in STRANGERS.items() if kind.refused is None and "ghost" in kind.engines]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", only(STRANGE, *STRANGE[::3]))
def test_whatever_code_does_its_gradients_are_those_of_the_code(name):
    def make():
        network = STRANGERS[name]()
        return network, PerRecord(lambda lot, _: network(*lot.records))

    def records(size):
        generator = torch.Generator().manual_seed(size)
        return torch.rand(size, WIDTH, generator=generator), torch.randint(3, (size,), generator=generator)

    _check(make, [Lot(records(size), (0, size)) for size in SIZES if size > 1])


class _Small(nn.Module):
    """A network with a loss that `way` changes."""

    def __init__(self, way=None):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.drop, self.scale, self.count = nn.Dropout(0.5), 1.0, 0
        self.register_buffer("shift", torch.zeros(5))
        self.way = way

    def loss(self, lot, _):
        x = self.drop(torch.tanh(self.first(lot.records[0]) + self.shift)) * self.scale
        x = x if self.way is None else self.way(self, x)
        return F.cross_entropy(self.last(x), lot.records[1], reduction="none")


def _lots(sizes=(7, 5, 9, 6, 8, 5, 7, 4)):
    generator = torch.Generator().manual_seed(0)
    draw = functools.partial(torch.rand, generator=generator)
    return [Lot((draw(size, 4), draw(size).mul(3).long()), (0, size)) for size in sizes]


def _small(way=None):
    network = _Small(way)
    return network, PerRecord(network.loss)


def test_a_loss_that_calls_torch_alone_is_replayed_for_lots_of_any_size():
    network = _check(_small, _lots())
    assert len(_programs(network)) == 1 and not repeat.why_not(network)


CHANGES = {
    "a number of a layer": lambda network: setattr(network, "scale", network.scale * 1.5),
    "a layer": lambda network: setattr(network, "drop", nn.Dropout(0.2)),
    "the rate of a layer": lambda network: setattr(network.drop, "p", network.drop.p / 2),
    "a buffer": lambda network: setattr(network, "shift", network.shift + 1.0),
    "what a buffer holds": lambda network: network.shift.add_(0.1),
    "training and evaluation": lambda network: network.train(not network.training),
    "what a parameter holds": lambda network: network.first.weight.data.mul_(0.9),
    "the memory of a parameter": lambda network: setattr(network.first.weight, "data", network.first.weight.data * 0.9),
    "a frozen parameter": lambda network: network.first.bias.requires_grad_(not network.first.bias.requires_grad),
    "a parameter": lambda network: setattr(network.last, "bias", nn.Parameter(torch.ones(3))),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_changed_between_lots_is_followed(change):
    _check(_small, _lots(), lambda network, number: change(network) if number in (3, 5) else None)


def _write(network, x):
    network.shift.add_(0.01)
    return x


def _count(network, x):
    network.count += 1
    return x * network.count


WAYS = {
    "looks at a number of a parameter": (lambda n, x: x * float(n.last.weight.detach().abs().sum()), "looks at a number"),
    "writes into a buffer": (_write, "writes into a tensor that is kept"),
    "counts": (_count, None),
    "says that it does more": (lambda n, x: [x, repeat.forbid_replay("it does more")][0], "it does more"),
}


@pytest.mark.parametrize(("way", "says"), WAYS.values(), ids=WAYS)
def test_code_that_does_more_than_call_torch_is_called_each_time(way, says):
    network = _check(functools.partial(_small, way), _lots())
    assert not _programs(network) and all(says in why for why in repeat.why_not(network))


def test_a_loss_that_changes_in_secret_is_noticed():
    factor = [1.0]

    def secret(network, x):
        return x * factor[0]

    network, term = _small(secret)
    _all(network, term, _lots((6, 5) * 40), lambda number: factor.insert(0, 1.0 + (number > 30)))
    assert not _programs(network) and "changes with time" in repeat.why_not(network)[0]


def test_closures_are_told_apart_by_what_they_hold():
    network = _Small()

    def term(factor, of):
        return PerRecord(lambda lot, noise: network.loss(lot, noise) * factor + 0.0 * len(of))

    lots = _lots()
    for factor in (1.0, 2.0):
        norms = [term_gradients(network, term(factor, ()), lot, PrivateStream(0)).norms() for lot in lots]
        assert torch.allclose(norms[-1] / factor, norms[-1] / factor)
    first = [term_gradients(network, term(1.0, "a"), lot, PrivateStream(0)).norms() for lot in lots]
    second = [term_gradients(network, term(3.0, "a"), lot, PrivateStream(0)).norms() for lot in lots]
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(3.0 * a, b)
    # A list may hold anything by the next lot.
    before = len(_programs(network))
    for lot in lots:
        term_gradients(network, term(1.0, []), lot, PrivateStream(0))
    assert len(_programs(network)) == before


def test_a_record_without_a_finite_gradient_is_silenced_as_ever():
    def make():
        network, term = _small()
        return network.eval(), term

    lots = _lots()
    lots[-1].records[0][1] = float("nan")
    network, term = make()
    results = _all(network, term, lots)
    assert results[-1][2].isfinite().all() and not results[-1][0][1].isfinite()
    assert _programs(network)


def test_nothing_is_kept_of_a_network_that_is_gone():
    network, term = _small()
    _all(network, term, _lots())
    assert _programs(network)
    gone = weakref.ref(network)
    del network, term
    gc.collect()
    assert gone() is None

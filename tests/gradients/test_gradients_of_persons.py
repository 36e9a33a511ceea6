"""Gradients of persons are sums over their records, clipped once; a lot is never cut within a person."""

import numpy as np
import pytest
import torch
from contracts.laws.accounts import account_of
from gradients.families import RULED
from torch import nn

from lightning_dpgen import Fixed, PerRecord, PoissonLots, PrivateOptimizer
from lightning_dpgen.clipping import PerComponent, PerLayer, PerPerson, Smoothed
from lightning_dpgen.gradients import MicroBatches, PerSampleGradients, term_gradients
from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.gradients.factors import Dense
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.privacy.access import LotId
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

PLAIN = ("one linear", "positions", "wide layer, few positions", "convolution", "embedding", "a scale and a shift")
# The person of each of six records, which lie in components of two records each.
WHOSE = {"one has all": [0] * 6, "over components": [0, 1, 2, 0, 1, 0], "one each": [0, 1, 2, 3, 4, 5]}


def _sums(gradients, parameters):
    """Return the gradient (rows, P) of each row, as the weighted sum that picks it out."""
    buffer, rows = GradientBuffer(parameters), []
    for weights in torch.eye(len(gradients), dtype=torch.float64):
        gradients.weighted_sum(weights, buffer.views)
        rows.append(buffer.flat.clone())
    return torch.stack(rows)


@pytest.mark.parametrize("whose", WHOSE.values(), ids=WHOSE.keys())
@pytest.mark.parametrize("name", [*PLAIN, *[n for n in RULED if n.startswith("vae k=3")][::4], "stacked convolutions"])
def test_equals_autograd_on_the_sum_of_the_losses_of_a_person(name, whose):
    torch.manual_seed(0)
    case, persons = RULED[name](), torch.tensor(whose)
    lot, noise = case.lot((0, 2, 4, 6)), case.noise(6)
    lot = Lot(lot.records, lot.offsets, LotId(size=6, persons=persons.numpy()), persons)
    parameters = [p for p in case.network.parameters() if p.requires_grad]
    expected = []
    for person in range(lot.units):
        loss = case.term.losses(lot, noise)[persons == person].sum()
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        expected.append(torch.cat([g.flatten() for g in found]))
    expected = torch.stack(expected)
    for engine in ENGINES if case.k == 1 else ["ghost"]:
        gradients = ENGINES[engine](case.network, case.term, lot, noise).of_persons(6)
        assert len(gradients) == lot.units and gradients.of_unit and gradients.groups is None
        torch.testing.assert_close(_sums(gradients, parameters), expected, rtol=1e-9, atol=1e-11)
        exact = expected.norm(dim=1)
        assert (gradients.norms() >= exact * (1.0 - 1e-7)).all()
        torch.testing.assert_close(gradients.norms(), exact, rtol=2e-3, atol=1e-7)


def test_a_person_with_a_number_that_is_not_finite_adds_exact_zeros():
    layer, x = nn.Linear(3, 2), torch.rand(4, 3)
    lot = Lot(x, (0, 4), LotId(), torch.tensor([0, 1, 0, 1]))
    sums = []
    for bad in (float("nan"), 1e30, 5.0):
        lot.records[2] = bad
        term = PerRecord(lambda lot, _: layer(lot.records).square().sum(dim=1))
        found = term_gradients(layer, term, lot, PrivateStream(seed=0)).of_persons(2)
        weights = Fixed(1.0).factors(found.norms(), 1.0)
        assert (weights[0] == 0.0) == (bad != 5.0) and weights[1] > 0.0
        buffer = GradientBuffer(layer.parameters())
        found.weighted_sum(weights * torch.tensor([0.0, 1.0]), buffer.views)
        sums.append(buffer.flat)
    assert torch.equal(sums[0], sums[1])
    torch.testing.assert_close(sums[0], sums[2])


def test_a_lot_without_persons_has_none():
    layer = nn.Linear(3, 2)
    lot = Lot(torch.zeros(0, 3), (0, 0), LotId(), torch.zeros(0, dtype=torch.long))
    for engine in ENGINES:
        term = PerRecord(lambda lot, _: layer(lot.records).square().sum(dim=1))
        found = term_gradients(layer, term, lot, PrivateStream(seed=0), engine=engine).of_persons(4)
        assert len(found) == 0 and found.norms().shape == (0,)


def _one_step(rule, max_rows, persons, cut=None):
    """Return the weights after one step without noise on six records, in parts if `cut` divides a lot."""
    account = account_of({"gradient": 1e-9}, max_rows=max_rows)
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    optimizer = PrivateOptimizer(
        torch.optim.SGD(network.parameters(), lr=1.0), account=account, clipping=rule, expected_batch_size=6
    )
    lot = PoissonLots(torch.linspace(0, 1, 18).view(6, 3), account, persons=persons).draw()
    term = PerRecord(lambda lot, _: network(lot.records).square().sum(dim=1))

    def gradients(part):
        return term_gradients(network, term, part, account.stream)

    optimizer.set_gradients(
        gradients(lot) if cut is None else MicroBatches(lambda: (gradients(part) for part in cut(lot)), lot.draw)
    )
    optimizer.step()
    account.verify_complete()
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def test_persons_of_one_record_each_are_records():
    records = _one_step(Fixed(0.1), 1, None)
    assert torch.equal(_one_step(PerPerson(Fixed(0.1)), 1, None), records)
    torch.testing.assert_close(_one_step(PerPerson(Fixed(0.1)), 2, np.arange(6)), records, rtol=1e-4, atol=1e-6)
    together = _one_step(PerPerson(Fixed(0.1)), 6, np.zeros(6, int))
    assert not torch.allclose(together, records, atol=1e-3)


@pytest.mark.parametrize("cut", [lambda lot: lot.cut(2), lambda lot: lot.divide(2), lambda lot: lot.cut(1)])
def test_parts_of_a_lot_give_the_same_step(cut):
    persons = np.array([5, 3, 5, 4, 3, 5])
    rule = PerPerson(PerLayer(Smoothed(Fixed(0.1))))
    whole = _one_step(rule, 3, persons)
    torch.testing.assert_close(_one_step(rule, 3, persons, cut=cut), whole, rtol=1e-4, atol=1e-6)


def _within_persons(lot):
    """Cut a lot in two halves as it stands, each with persons of its own counting."""
    for half in (slice(0, 3), slice(3, 6)):
        index = torch.unique(lot.persons[half], return_inverse=True)[1]
        yield Lot(lot.records[half], (0, 3), lot.draw, index)


def test_a_person_in_two_parts_is_refused():
    persons = np.array([5, 3, 5, 4, 3, 5])
    with pytest.raises(ValueError, match="hold records of one person apart"):
        _one_step(PerPerson(Fixed(0.1)), 3, persons, cut=_within_persons)
    with pytest.raises(ValueError, match="persons of these are not known"):
        _one_step(PerPerson(Fixed(0.1)), 3, persons, cut=lambda lot: [lot.map(lambda x: x[:3], (0, 3))])


def test_lots_are_cut_between_persons():
    persons = torch.tensor([0, 2, 1, 0, 2, 2, 3])
    lot = Lot(torch.arange(7), (0, 3, 7), LotId(size=7), persons)
    for parts in (list(lot.cut(1)), list(lot.cut(4)), list(lot.cut(99)), list(lot.divide(3)), list(lot.divide(9))):
        assert sorted(torch.cat([part.records for part in parts]).tolist()) == list(range(7))
        assert sum(part.units for part in parts) == 4
        for part in parts:
            whose = persons[part.records]
            assert ((part.persons[:, None] == part.persons) == (whose[:, None] == whose)).all()
            ends = torch.searchsorted(part.records, torch.tensor([0, 3, 7]))
            assert part.offsets == tuple(ends.tolist()) and part.draw is lot.draw
    assert [len(part) for part in lot.cut(4)] == [3, 4] and [len(part) for part in lot.cut(1)] == [2, 1, 3, 1]
    assert len(list(lot.divide(9))) == 9
    none = Lot(torch.zeros(0), (0, 0), LotId(size=0), torch.zeros(0, dtype=torch.long))
    assert [len(part) for part in none.cut(3)] == [0] and [len(part) for part in none.divide(2)] == [0, 0]


def test_what_has_no_persons_is_said():
    weight = nn.Parameter(torch.zeros(2))
    groups = PerSampleGradients({weight: Dense(torch.zeros(3, 2))}, [[weight]], 3, groups=3)
    with pytest.raises(ValueError, match="persons of these are not known"):
        groups.of_persons(2)
    for rule in (lambda: PerPerson(PerComponent(Fixed(1.0))), lambda: PerComponent(Smoothed(PerPerson(Fixed(1.0))))):
        with pytest.raises(ValueError, match="a person may have records in several components"):
            rule()
    with pytest.raises(ValueError, match="of=1: expected a clipping rule"):
        PerPerson(1)
    with pytest.raises(ValueError, match="persons: expected one for each record"):
        Lot(torch.zeros(3), (0, 3), LotId(), torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "autocast"])
def test_a_norm_is_never_too_small_in_float32(engine, mixed):
    """Check persons whose records nearly cancel, too."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 3))
    x, sign = torch.randn(8, 30), torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, 1.0, 1.0])
    x[4:6] = x[:2] + 1e-4
    lot = Lot((x, sign), (0, 8), LotId(), torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]))

    def loss(lot, _):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            return network(lot.records[0]).float().square().sum(dim=1) * lot.records[1]

    found = term_gradients(network, PerRecord(loss), lot, PrivateStream(seed=0), engine=engine).of_persons(2)
    buffer, norms = GradientBuffer(network.parameters()), found.norms()
    for weights, norm in zip(torch.eye(4), norms, strict=True):
        found.weighted_sum(weights, buffer.views)
        assert float(buffer.flat.double().norm()) <= float(norm)

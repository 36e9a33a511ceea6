"""Lots in slots: the gradients are the same, and no bit of a record's follows from which or how many others there are."""

import numpy as np
import pytest
import torch
from gradients.families import IN_SLOTS, IN_TWO_TYPES
from marks import only
from torch import nn

from lightning_dpgen.gradients.clipping import Fixed, PerPerson
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.micro_batches import LotParts, MicroBatches
from lightning_dpgen.gradients.privatize import GradientBuffer, add_clipped
from lightning_dpgen.gradients.terms import PerGroup, PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.slots import Slots, draw_places, enough_slots

SIZE = 9


def _gradients(case, records, places, *, mixed=False):
    """Compute the gradients of some records at some slots, each slot with the same randomness of its own."""
    lot = Lot(records, (0, len(records)), slots=Slots(SIZE, torch.tensor(places, dtype=torch.int64)))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
        return term_gradients(case.network, case.term, lot, PrivateStream(seed=3))


@pytest.mark.filterwarnings("ignore:no rule for", "ignore:There is a performance", "ignore:Mismatch dtype")
@pytest.mark.parametrize(("name", "mixed"), IN_TWO_TYPES)
def test_no_bit_of_a_record_follows_from_the_others(name, mixed):
    torch.manual_seed(0)
    case = IN_SLOTS[name]()
    case.float()
    lot = case.lot((0, SIZE))
    records = lot.records if case.indices else lot.records.float()
    parameters = [p for p in case.network.parameters() if p.requires_grad]
    places = [7, 2, 4, 0, 8, 1, 3, 6, 5]
    alone = None
    # One record alone, beside one more, and beside others, and as the last of them.
    for order in ([0], [0, 1], [0, 2, 3, 4], list(range(SIZE)), [5, 6, 0]):
        found = _gradients(case, records[order], [places[i] for i in order], mixed=mixed)
        at = order.index(0)
        buffer = GradientBuffer(parameters)
        found.weighted_sum(torch.eye(len(order))[at].to(buffer.flat.dtype), buffer.views)
        own = found.norms()[at], buffer.flat
        alone = alone or own
        assert torch.equal(own[0], alone[0]) and torch.equal(own[1], alone[1])


@pytest.mark.filterwarnings("ignore:no rule for", "ignore:There is a performance")
@pytest.mark.parametrize("name", only(IN_SLOTS.keys(), *list(IN_SLOTS)[1::3]))
def test_gradients_in_slots_are_those_of_the_lot(name):
    case = IN_SLOTS[name]()
    lot, noise = case.lot((0, 6)), case.noise(6)
    parameters = [p for p in case.network.parameters() if p.requires_grad]

    def found(lot):
        gradients, buffer = (
            term_gradients(case.network, case.term, lot, PrivateStream(seed=0), noise=noise),
            GradientBuffer(parameters),
        )
        gradients.weighted_sum(torch.linspace(0.1, 1.0, 6, dtype=torch.float64), buffer.views)
        assert len(gradients) == 6 and gradients.draw is lot.draw
        return gradients.norms(), torch.stack(gradients.layer_norms()), gradients.losses, buffer.flat

    torch.manual_seed(0)
    in_slots = Lot(lot.records, lot.offsets, slots=Slots(SIZE, torch.tensor([8, 1, 0, 5, 2, 7])))
    for own, expected in zip(found(in_slots), found(lot), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-8, atol=1e-10)


def _term():
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return network, PerRecord(lambda lot, _: network(lot.records).square().sum(dim=1))


def test_a_record_that_is_not_finite_adds_zeros():
    network, term = _term()
    records = torch.rand(4, 3)
    records[2] = float("inf")
    buffers = []
    for slots in (None, Slots(6, torch.tensor([5, 0, 3, 2]))):
        gradients = term_gradients(network, term, Lot(records, (0, 4), slots=slots), PrivateStream(seed=0))
        assert not torch.isfinite(gradients.norms()[2]) and int(torch.isfinite(gradients.norms()).sum()) == 3
        buffers.append(GradientBuffer(network.parameters()))
        add_clipped(gradients, Fixed(0.1), (0.1,), 4.0, buffers[-1], add=False)
    torch.testing.assert_close(*(buffer.flat for buffer in buffers))


def test_an_empty_row_holds_a_record_that_the_loss_takes():
    """Zeros would give this loss an infinite gradient, and every step would have to silence the empty rows."""
    network, _ = _term()
    term = PerRecord(lambda lot, _: network(lot.records.log()).sum(dim=1))
    lot = Lot(0.5 + torch.rand(2, 3), (0, 2), slots=Slots(5, torch.tensor([4, 1])))
    gradients = term_gradients(network, term, lot, PrivateStream(seed=0))
    assert torch.isfinite(gradients._all_norms).all() and len(gradients._all_norms) == 5


def test_an_empty_lot_has_slots_like_any_other():
    network, term = _term()
    lot = Lot(torch.zeros(0, 3), (0, 0), slots=Slots(5, torch.zeros(0, dtype=torch.int64)))
    gradients = term_gradients(network, term, lot, PrivateStream(seed=0))
    assert len(gradients) == 0 and gradients.norms().shape == gradients.losses.shape == (0,)
    buffer = GradientBuffer(network.parameters())
    buffer.flat.fill_(7.0)
    gradients.weighted_sum(torch.zeros(0), buffer.views)
    assert (buffer.flat == 0).all()


def test_persons_are_summed_over_their_slots():
    network, term = _term()
    records, persons = torch.rand(5, 3), torch.tensor([0, 1, 0, 2, 1])
    norms = []
    for slots in (None, Slots(8, torch.tensor([6, 1, 0, 3, 7]))):
        lot = Lot(records, (0, 5), persons=persons, slots=slots)
        gradients = term_gradients(network, term, lot, PrivateStream(seed=0)).of_persons(2)
        buffer = GradientBuffer(network.parameters())
        add_clipped(gradients, PerPerson(Fixed(0.1)), (0.1,), 5.0, buffer, add=False)
        norms.append((gradients.norms(), buffer.flat))
    for own, expected in zip(*norms, strict=True):
        torch.testing.assert_close(own, expected)


def test_groups_hold_records_and_no_empty_slot():
    network, _ = _term()
    term = PerGroup(lambda lot, _, groups: groups.gather(network(lot.records)).square().sum(dim=(1, 2)), groups=2, places=4)
    records = torch.rand(5, 3)
    found = []
    for slots in (None, Slots(8, torch.tensor([6, 1, 0, 3, 7]))):
        lot = Lot(records, (0, 5), slots=slots)
        gradients = term_gradients(network, term, lot, PrivateStream(seed=4))
        buffer = GradientBuffer(network.parameters())
        gradients.weighted_sum(torch.tensor([1.0, 2.0]), buffer.views)
        found.append((gradients.norms(), gradients.losses, buffer.flat))
        assert len(gradients) == gradients.groups == 2
    for own, expected in zip(*found, strict=True):
        torch.testing.assert_close(own, expected)


def test_parts_of_a_lot_are_in_slots_too():
    network, term = _term()
    records, stream = torch.rand(10, 3), PrivateStream(seed=0)
    parts, sizes = LotParts(4, expected_size=8.0, slots=14), []

    def of_part(part, number):
        sizes.append((part.slots.size, number))
        return term_gradients(network, term, part, stream)

    lot = Lot(records, (0, 10))
    gradients = parts.gradients(lot, of_part, stream)
    assert isinstance(gradients, MicroBatches)
    of_slots, of_lot = (GradientBuffer(network.parameters()) for _ in range(2))
    for _ in range(2):
        of_slots.flat.zero_()
        for part in gradients.parts():
            add_clipped(part, Fixed(0.1), (0.1,), 8.0, of_slots, add=True)
    assert sizes == [(7, 0), (7, 1)] * 2
    add_clipped(term_gradients(network, term, lot, stream), Fixed(0.1), (0.1,), 8.0, of_lot, add=False)
    torch.testing.assert_close(of_slots.flat, of_lot.flat)


def test_a_lot_larger_than_its_slots_is_taken_whole():
    parts = LotParts(None, expected_size=2.0, slots=4)
    stream = PrivateStream(seed=0)
    network, term = _term()
    lot = Lot(torch.rand(5, 3), (0, 5))
    gradients = parts.gradients(lot, lambda part, _: term_gradients(network, term, part, stream), stream)
    assert len(gradients) == 5 and gradients._places is None


def test_components_have_no_slots():
    with pytest.raises(ValueError, match="slots=9: expected lots of one component"):
        Lot(torch.rand(3, 2), (0, 1, 3)).in_slots(9, PrivateStream(seed=0))


def test_places_are_a_uniform_injective_map():
    """Each row is as likely for each record; a wrong map (the first rows) is found out."""
    stream, counts = PrivateStream(seed=1), np.zeros((3, 5))
    for _ in range(4000):
        places = draw_places(stream, 5, 3)
        assert len(set(places.tolist())) == 3
        counts[np.arange(3), places] += 1
    # Chi-square of four degrees of freedom for each record: 40 has a probability of 4e-8.
    statistic = ((counts - 800.0) ** 2 / 800.0).sum(axis=1)
    assert (statistic < 40.0).all()
    assert (((np.eye(3, 5) * 4000 - 800.0) ** 2 / 800.0).sum(axis=1) > 40.0).all()


def test_two_records_in_one_row_are_refused():
    with pytest.raises(ValueError, match="places: expected a row of its own for each record"):
        Slots(4, torch.tensor([0, 0]))


def test_slots_that_suffice():
    assert [enough_slots(mean) for mean in (32, 256, 8192)] == [71, 358, 8741]
    assert enough_slots(0.001) >= 1 and enough_slots(32, max_rows=4) > 71


def test_without_slots_bits_follow_from_the_size_of_a_lot():
    """The law above would be broken by rows that are as many as the records."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(300, 200), nn.Tanh(), nn.Linear(200, 50))
    term, records = PerRecord(lambda lot, _: network(lot.records).square().sum(dim=1)), torch.rand(40, 300)

    def norms(count, slots=None):
        slots = slots and Slots(slots, torch.arange(count))
        lot = Lot(records[:count], (0, count), slots=slots)
        return term_gradients(network, term, lot, PrivateStream(seed=0)).norms()[0]

    assert len({float(norms(count)) for count in (1, 2, 7, 23, 40)}) > 1
    assert len({float(norms(count, 40)) for count in (1, 2, 7, 23, 40)}) == 1

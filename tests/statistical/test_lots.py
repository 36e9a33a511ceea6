"""A lot is a Poisson sample, sorted by component, of a size that nothing public depends on."""

import pytest
import torch
from contracts.laws import lots as laws
from contracts.laws.lots import CLUSTERS, lots_of

from lightning_dpgen.sampling.lots import LotLoader


@pytest.mark.parametrize("rate", [0.05, 0.5, 1.0])
def test_each_record_meets_its_own_component_once(rate):
    lots = lots_of(rate, CLUSTERS)
    for _ in range(200):
        lot = lots.draw()
        assert len(lot.offsets) == 6 and lot.offsets[0] == 0 and lot.offsets[-1] == len(lot)
        names = lot.records[:, 0].long()
        assert len(names.unique()) == len(names)
        for c in range(5):
            assert (CLUSTERS[names[lot.offsets[c] : lot.offsets[c + 1]]] == c).all()
    if rate == 1.0:
        assert len(lot) == len(CLUSTERS)


def test_inclusion_is_independent_with_the_public_rate(stream_of):
    laws.inclusion_is_independent_with_the_public_rate(stream_of(8))


def test_no_records_give_empty_lots():
    lot = lots_of(0.5, torch.zeros(0, dtype=torch.long), k=2).draw()
    assert len(lot) == 0 and lot.offsets == (0, 0, 0)


@pytest.mark.parametrize(("steps", "block"), [(7, 3), (6, 3), (1, 10), (5, 1)])
def test_steps_are_the_plans_and_not_the_datas(steps, block):
    for clusters in (CLUSTERS, CLUSTERS[:0]):
        blocks = LotLoader(lots_of(0.2, clusters), steps, block)
        sizes = [len(list(part)) for part in blocks]
        assert sum(sizes) == steps and len(sizes) == len(blocks) and max(sizes) <= block
        assert [len(part) for part in blocks] == sizes


def test_two_epochs_over_the_same_blocks_are_different_samples():
    blocks = LotLoader(lots_of(0.5, CLUSTERS), 20, 20)
    first, second = ([lot.records.flatten().tolist() for part in blocks for lot in part] for _ in range(2))
    assert first != second

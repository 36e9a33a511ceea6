"""Lots whose records other processes fetch are those that this one would have fetched, and none costs before its step."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from lightning_dpgen import Account, BadRecords, Fixed, PoissonLots, make_plan, poisson_loader, training_stage
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.as_store import store_of
from lightning_dpgen.sampling.fetching import fetch_ahead

N, STEPS = 60, 6


class Squares(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"x": torch.tensor([float(i), float(i) ** 2]), "y": i % 3}


class Drawing(Squares):
    """Each item has a number of its own, as an augmentation would draw it."""

    def __getitem__(self, i):
        return torch.rand(1)


class Broken(Squares):
    def __getitem__(self, i):
        if i > 40:
            raise OSError("patient 41")
        return super().__getitem__(i)


class Face:
    """Looks like a data set of Hugging Face, which fetches many items at once."""

    __module__ = "datasets.arrow_dataset"

    def __len__(self):
        return N

    def __getitems__(self, rows):
        return [Squares()[i] for i in rows]

    def __getitem__(self, i):
        raise AssertionError("one by one")


def _account(seed=1):
    stage = training_stage(Fixed(1.0), n=N, sample_rate=0.3, steps=STEPS)
    return Account(make_plan([stage], epsilon=8.0, delta=1e-5), stream=PrivateStream(seed=seed))


def _lots(records, workers):
    return list(PoissonLots(records, _account()).draws(STEPS, workers))


@pytest.mark.parametrize("records", [Squares(), np.arange(N, dtype=np.float32)], ids=["data set", "array"])
def test_other_processes_fetch_the_same_lots(records):
    own, others = _lots(records, 0), _lots(records, 2)
    assert [lot.offsets for lot in own] == [lot.offsets for lot in others] and len(own) == STEPS
    for one, other in zip(own, others, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.tensors, other.tensors, strict=True))
        assert len(one) == len(one.tensors[0])


def test_items_draw_numbers_that_no_public_seed_gives():
    seen = []
    for _ in range(2):
        torch.manual_seed(0)
        seen += [float(x) for lot in _lots(Drawing(), 2) for x in lot.records]
    assert len(set(seen)) == len(seen) > 2 * STEPS


def test_an_item_that_cannot_be_fetched_is_one_line_without_it():
    with pytest.raises(BadRecords, match=r"cannot be fetched and collated \(OSError\)") as caught:
        _lots(Broken(), 1)
    assert "41" not in str(caught.value) and "\n" not in str(caught.value)


def test_data_sets_of_hugging_face_are_taken_as_they_are():
    lots = list(fetch_ahead(store_of(Face()), [np.array([3, 5])], workers=1))
    assert torch.equal(lots[0]["x"], torch.tensor([[3.0, 9.0], [5.0, 25.0]]))


class Streaming:
    __module__ = "datasets.iterable_dataset"


def test_what_is_streamed_is_refused():
    with pytest.raises(BadRecords, match=r"an IterableDataset \(Streaming\): expected a map-style Dataset"):
        store_of(Streaming())


class Splits(dict):
    __module__ = "datasets.dataset_dict"


class Unformatted(Face):
    """Gives lists of Python's numbers, as a data set of Hugging Face without a format does."""

    __module__ = "datasets.arrow_dataset"

    def __getitems__(self, rows):
        return [{"x": [1.0, 2.0], "y": i % 3} for i in rows]


def test_data_sets_of_hugging_face_that_are_none_of_records_are_told_what_to_do():
    with pytest.raises(BadRecords, match=r"a Splits of several data sets: expected one; pass records\['train'\]"):
        store_of(Splits(train=Face()))
    with pytest.raises(BadRecords, match=r"items hold lists.*records.with_format\('torch'\), or .*with_transform\("):
        store_of(Unformatted())


def test_lots_that_are_drawn_ahead_cost_nothing():
    account = _account()
    blocks = poisson_loader(Squares(), account, block=2, workers=2)
    first = next(iter(blocks))
    assert len(first) == 2 and len(next(iter(first)).tensors) == 2
    assert not account.ledger.accesses and account.remaining("training") == STEPS


@pytest.mark.parametrize("workers", [-1, 1.0, "2"])
def test_workers_that_make_no_sense_are_refused(workers):
    with pytest.raises(ValueError, match=r"workers=.*expected a whole number"):
        poisson_loader(Squares(), _account(), workers=workers)

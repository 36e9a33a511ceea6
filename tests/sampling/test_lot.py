"""A lot on its way to a device."""

import contextlib

import numpy as np
import pytest
import torch
from on_gpu.gpu_mark import needs_gpu

from lightning_dpgen.sampling import device_copies
from lightning_dpgen.sampling.lots import Lot, LotId, StoredLot
from lightning_dpgen.sampling.stores import Store

LOT = Lot({"x": torch.rand(3, 2), "y": torch.arange(3), "z": torch.rand(3).half()}, (0, 1, 3), LotId(0.5))


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_only_real_numbers_change_their_precision(dtype):
    lot = LOT.to("cpu", dtype)
    assert lot.records["x"].dtype == (dtype or torch.float32)
    assert lot.records["z"].dtype == (dtype or torch.float16)
    assert lot.records["y"].dtype == torch.int64
    assert lot.draw is LOT.draw and lot.offsets == LOT.offsets


def test_nothing_is_copied_to_where_it_is():
    assert LOT.to("cpu").records["x"] is LOT.records["x"]


@pytest.mark.parametrize(("device", "pinned"), [("cpu", False), ("meta", False), ("cuda:1", True)])
def test_only_for_a_gpu_is_memory_pinned_and_nobody_waits(device, pinned, monkeypatch):
    """Every tensor is pinned, copied as it is on a queue of its own, and then converted; the devices are stand-ins."""
    done = []

    class Queue:
        def __init__(self, device):
            self.device = device

        def wait_stream(self, other):
            done.append(("waits for", other.device))

    def pin_memory(self):
        done.append(("pin", self.dtype))
        return self

    def to(self, device=None, dtype=None, non_blocking=False):
        done.append((None if device is None else str(device), dtype, non_blocking))
        return self

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, queue: done.append(("kept for", queue.device)))
    for name, stand_in in (
        ("device", lambda _: contextlib.nullcontext()), ("stream", lambda _: contextlib.nullcontext()), ("Stream", Queue),
        ("current_device", lambda: "copies"), ("current_stream", lambda: Queue("steps")),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(device_copies, "_queue_of_copies", Queue)
    Lot((LOT.records["x"], LOT.records["y"]), (0, 3)).to(device, torch.float64)
    expected = []
    for own, wanted in ((torch.float32, torch.float64), (torch.int64, None)):
        if pinned:
            copy = ("pin", own), (device, None, True), ("waits for", "copies"), ("kept for", "steps")
            expected += [*copy, (None, wanted, False)]
        else:
            expected += [(device, wanted, False)]
    assert done == expected


@needs_gpu
def test_a_gpu_gets_the_same_records():
    lots = [LOT.to("cuda", torch.float64) for _ in range(20)]
    for lot in lots:
        for name, x in LOT.records.items():
            assert lot.records[name].is_cuda
            assert torch.equal(lot.records[name].cpu(), x.double() if x.is_floating_point() else x)


class Counting(Store):
    """Keeps the positions of records that were fetched."""

    def __init__(self):
        self.asked = []

    def __len__(self):
        return 9

    def take(self, positions):
        self.asked.append(positions.tolist())
        return torch.from_numpy(positions).float()


@pytest.mark.parametrize("persons", [None, torch.tensor([0, 1, 0, 2, 3, 3])], ids=["records", "persons"])
def test_parts_of_a_stored_lot_fetch_their_own_records_alone(persons):
    positions, store = np.array([0, 2, 3, 5, 6, 8]), Counting()
    stored = StoredLot(store, positions, (0, 4, 6), LotId(0.5), persons).to("cpu", torch.float64)
    whole = Lot(store.take(positions).double(), (0, 4, 6), stored.draw, persons)
    store.asked.clear()
    parts = [[*lot.cut(2), *lot.divide(4)] for lot in (stored, whole)]
    assert len(parts[0]) == len(parts[1]) == 7 and not store.asked
    for own, other in zip(*parts, strict=True):
        assert own.offsets == other.offsets and own.draw is other.draw
        assert own.records.dtype == torch.float64 and torch.equal(own.records, other.records)
        assert own.persons is other.persons is None or torch.equal(own.persons, other.persons)
    assert sorted(x for asked in store.asked for x in asked) == sorted([*positions.tolist()] * 2)
    # Records at hand are not fetched again.
    store.asked.clear()
    assert torch.equal(stored.records, whole.records) and stored.fetch().records is stored.records
    assert torch.equal(torch.cat([part.records for part in stored.cut(4)]), whole.records[: len(stored)])
    assert store.asked == [positions.tolist()]

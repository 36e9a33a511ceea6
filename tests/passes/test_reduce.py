"""Sums over blocks are the same whole numbers for any division and order of the records, and however often a block came."""

import random

import numpy as np
import pytest
import torch
from slices import Slices

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.passes import reduce as reducing
from lightning_dpgen.passes.reduce import InProcess, reduce

SCHEMA = ImageSchema(1, 3, levels=255)


def _records(n=41):
    units = np.random.default_rng(0).integers(0, 256, (n, 3)).astype(np.uint8)
    return Records(SCHEMA, Encoded(units, np.zeros((n, 0), np.uint8)))


class Ink:
    """Sums of the pixels, times a factor that takes them near the end of int64."""

    def __init__(self, factor=1):
        self.factor, self.shapes = factor, {"ink": (3,), "signed": ()}

    def __call__(self, records):
        units = torch.from_numpy(records.encoded.units.astype(np.int64))
        return {"ink": units.sum(0) * self.factor, "signed": ((units - 127) * self.factor).sum()}


class Shuffled:
    """Results in any order, some of them twice."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def map(self, task, keys):
        keys = [*keys, *self.random.sample(list(keys), len(keys) // 2)]
        self.random.shuffle(keys)
        for key in keys:
            yield key, task(key)


class Dies(InProcess):
    """A place that is lost after a few blocks."""

    def __init__(self, after):
        self.after = after

    def map(self, task, keys):
        for done, found in enumerate(super().map(task, keys)):
            if done == self.after:
                raise OSError("lost")
            yield found


@pytest.mark.parametrize("factor", [1, 2**48])
@pytest.mark.parametrize("rows", [1, 3, 6, 21, 41, 100])
def test_any_division_and_order_give_the_same_sums(rows, factor):
    records = _records()
    # Whole numbers of Python have no end.
    units = records.encoded.units.astype(object)
    expected = {"ink": (units.sum(axis=0) * factor).tolist(), "signed": ((units - 127) * factor).sum()}
    for compute in (None, Shuffled(1), Shuffled(2)):
        found = reduce(Slices(records, rows), Ink(factor), compute)
        assert {name: sums.tolist() for name, sums in found.items()} == expected


def test_no_records_have_sums_of_zero():
    assert {name: sums.tolist() for name, sums in reduce(Slices(_records(0), 4), Ink()).items()} == {
        "ink": [0, 0, 0], "signed": 0,
    }  # fmt: skip


def test_an_overflow_is_refused_whatever_the_division():
    records = _records()
    most = int(records.encoded.units.astype(int).sum(axis=0).max())
    fits = (2**62 - 1) // most
    for rows in (1, 7, 41):
        reduce(Slices(records, rows), Ink(fits))
        with pytest.raises(ValueError, match="reach 2\\^62"):
            reduce(Slices(records, rows), Ink(fits + 1))


@pytest.mark.parametrize(
    "bad", [{"ink": torch.zeros(3)}, {"ink": torch.zeros(2, dtype=torch.int64)}, {"pen": torch.zeros(3, dtype=torch.int64)}]
)
def test_other_sums_than_were_said_are_refused(bad):
    def function(_):
        return bad

    function.shapes = {"ink": (3,)}
    with pytest.raises(ValueError, match="partial sums"):
        reduce(Slices(_records(), 5), function)


def test_a_place_that_leaves_a_block_out_is_found_out():
    class Forgets(InProcess):
        def map(self, task, keys):
            return super().map(task, keys[1:])

    with pytest.raises(RuntimeError, match="slice 0"):
        reduce(Slices(_records(), 5), Ink(), Forgets())


def test_a_pass_goes_on_from_what_was_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(reducing, "_UNKEPT", -1.0)
    records, keep, read = _records(), tmp_path / "sums.pt", []
    expected = reduce(Slices(records, 5), Ink())

    class Seen(Ink):
        def __call__(self, records):
            read.append(len(records))
            return super().__call__(records)

    with pytest.raises(OSError, match="lost"):
        reduce(Slices(records, 5), Seen(), Dies(after=4), keep=keep, of="a")
    assert keep.stat().st_mode & 0o077 == 0
    read.clear()
    found = reduce(Slices(records, 5), Seen(), keep=keep, of="a")
    assert len(read) == 5 and all(torch.equal(found[name], expected[name]) for name in expected)
    # Sums of another pass, or of other blocks, are not taken for these.
    for blocks, of in ((Slices(records, 5), "b"), (Slices(records, 4), "a")):
        found = reduce(blocks, Ink(), keep=keep, of=of)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    keep.write_bytes(b"half")
    assert torch.equal(reduce(Slices(records, 5), Ink(), keep=keep)["ink"], expected["ink"])

"""A file that is saved is there whole or not at all, and room that was reserved on the disk is the room that it uses."""

import errno
import os

import pytest
import torch

from lightning_dpgen.privacy import durable


def _state(numbers):
    return {"head": "0" * 64, "made": {"tables": [{"one": (numbers, 2.5, "run")}]}}


@pytest.mark.parametrize("size", [0, 1, 1000, 100_000])
def test_what_is_saved_lies_where_room_was_reserved(tmp_path, monkeypatch, size):
    path = tmp_path / "state.pt"
    part = durable.partial_path(path)
    durable.reserve(path, _state(torch.zeros(size, dtype=torch.float64)))
    reserved, opener = part.stat(), durable.owner_only
    assert not path.exists() and part.stat().st_mode & 0o777 == 0o600

    def opened(name, flags):
        descriptor = opener(name, flags)
        assert os.fstat(descriptor).st_size == reserved.st_size  # no room of it is free for others meanwhile
        return descriptor

    monkeypatch.setattr(durable, "owner_only", opened)
    numbers = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    durable.save(path, _state(numbers))
    saved = path.stat()
    assert saved.st_ino == reserved.st_ino and saved.st_size <= reserved.st_size and not part.exists()
    assert torch.equal(durable.load(path)["made"]["tables"][0]["one"][0], numbers)


@pytest.mark.parametrize("name", ["fsync", "replace"])
@pytest.mark.parametrize("write", [durable.save, durable.reserve])
def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch, name, write):
    path = tmp_path / "state.pt"
    durable.save(path, 1)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(durable.os, name, full)
        if (write, name) != (durable.reserve, "replace"):
            with pytest.raises(OSError, match="No space"):
                write(path, 2)
    assert durable.load(path) == 1 and os.listdir(tmp_path) == ["state.pt"]


def test_a_link_in_the_place_of_a_part_is_left_alone(tmp_path):
    path, other = tmp_path / "state.pt", tmp_path / "other"
    other.write_text("mine")
    durable.partial_path(path).symlink_to(other)
    with pytest.raises(OSError, match=r"state\.pt\.part"):
        durable.save(path, 1)
    assert durable.partial_path(path).is_symlink() and other.read_text() == "mine"

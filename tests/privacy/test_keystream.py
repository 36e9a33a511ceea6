"""The keystream is AES-256 in counter mode, whole, and under a new key from the operating system when it is due."""

import copy
import pickle

import numpy as np
import pytest

from lightning_dpgen.privacy.noise import stream as private_stream
from lightning_dpgen.privacy.noise.stream import Keystream


def _keyed(*keys):
    """Make a keystream that uses these keys, one after the other."""
    stream, left = Keystream(), list(keys)
    stream._entropy = lambda size: left.pop(0).to_bytes(size, "big")
    return stream


def test_known_answer():
    """Key 0 with counters 0 and 1 gives H and E(K, Y0) of test case 13 of the GCM specification (McGrew and Viega)."""
    expected = "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738b"
    assert _keyed(0).random_raw(4).tobytes().hex() == expected


def test_words_do_not_depend_on_how_they_are_asked_for():
    whole = _keyed(7).random_raw(40_000)
    stream = _keyed(7)
    assert (np.concatenate([stream.random_raw(size) for size in (1, 0, 9_999, 30_000)]) == whole).all()
    assert len(np.unique(whole)) == len(whole)


def test_a_key_is_used_up_and_never_used_again(monkeypatch):
    monkeypatch.setattr(private_stream, "_KEY_LASTS", 1 << 17)
    stream = _keyed(1, 2, 3)
    words = stream.random_raw(3 << 14)
    for key, part in zip((1, 2, 3), words.reshape(3, -1), strict=True):
        assert (_keyed(key).random_raw(1 << 14) == part).all()
    with pytest.raises(IndexError):
        stream.random_raw(1)  # a fourth key is asked for


def test_two_keystreams_differ():
    assert (Keystream().random_raw(4) != Keystream().random_raw(4)).all()


@pytest.mark.parametrize("save", [pickle.dumps, copy.copy, copy.deepcopy])
def test_never_saved(save):
    with pytest.raises(TypeError, match="never saved"):
        save(Keystream())

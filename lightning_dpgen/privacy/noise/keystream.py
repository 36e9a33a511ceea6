"""The keystream of a cipher: random words that cannot be told from truly random ones without the key.

AES-256 in counter mode over zeros, by the ``cryptography`` package (OpenSSL). Where the processor has instructions for
AES, as nearly all have, it is quicker than ChaCha20 and than numpy's generators (benchmarks/noise.py).
"""

from __future__ import annotations

import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

# Bytes that one key makes. Few enough that a key found in memory tells little of what was drawn before, and that no block
# repeats by chance; many enough that a new key costs nothing.
_KEY_LASTS = 1 << 26
_ZEROS = memoryview(bytes(1 << 16))


class Keystream:
    """Random words from AES-256 in counter mode, each key drawn from the operating system and used for 64 MiB at most.

    It takes no seed. After a fork the child needs a new one, as `PrivateStream` makes.

    Example:
        >>> Keystream().random_raw(3).dtype
        dtype('uint64')
    """

    _entropy = staticmethod(os.urandom)

    def __init__(self) -> None:
        self._left = 0

    def __reduce__(self):
        raise TypeError("a keystream is never saved: a reader of the file could remove the noise")

    def random_raw(self, size: int) -> np.ndarray:
        """Return `size` uniform 64-bit words; the name is that of numpy's bit generators."""
        return self.fill(np.empty(size, np.uint64))

    def fill(self, words: np.ndarray) -> np.ndarray:
        """Fill a contiguous array of uint64 with uniform words."""
        out = words.view(np.uint8)
        for start in range(0, len(out), len(_ZEROS)):
            piece = out[start : start + len(_ZEROS)]
            if len(piece) > self._left:
                self._key()
            self._left -= len(piece)
            self._cipher.update_into(_ZEROS[: len(piece)], piece.data)
        return words

    def _key(self) -> None:
        # A key is never used twice, so the counter may start at 0.
        self._cipher = Cipher(algorithms.AES(self._entropy(32)), modes.CTR(bytes(16))).encryptor()
        self._left = _KEY_LASTS

"""The private stream: the randomness that must stay secret, and normals whose tail is right.

Noise, Poisson sampling and the randomness of each record are drawn from here and from nowhere else. The stream is
keyed by the operating system, is never saved, and is keyed anew in a forked child. On a CPU noise is made from words of a
cipher, which is also the quickest source here; lots are sampled by a statistical generator, unless the stream is `secure`.

Normals are made here from random words by Box and Muller's formula and not by ``torch.Tensor.normal_``, for two
reasons. ``torch.Generator.manual_seed`` keeps 32 bits of a key on a CPU. Moreover, float32 normals of torch stop at 5.77
standard deviations, as their uniforms have 24 bits; over a long run that alone costs more than the delta that is
claimed (docs/guarantees/accounting.md, "The tail"). Here a radius beyond 4.5 takes another 53 random bits.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import weakref

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from lightning_dpgen.privacy.noise.coins import poisson_sample
from lightning_dpgen.privacy.noise.device_normals import DeviceNormals
from lightning_dpgen.privacy.noise.noisy_maximum import find_noisy_maximum
from lightning_dpgen.privacy.noise.rounded_normal import rounded_normals
from lightning_dpgen.privacy.noise.rounded_vectors import rounded_sphericals

# The words in which certificates name the source of the noise.
STANDARD = (
    "AES-256 in counter mode (noise on a CPU), Philox (noise on a GPU), PCG64DXSM (sampling), keyed by the operating "
    "system; on sums of whole numbers round(sigma Z), exact; on other sums Box-Muller, full tail, rounded to a public grid"
)
SECURE = (
    "AES-256 in counter mode (noise and sampling), keyed by the operating system; on sums of whole numbers round(sigma Z), "
    "exact; on other sums Box-Muller, full tail, rounded to a public grid"
)
SEEDED = (
    "PCG64DXSM (CPU) or Philox (GPU), from a debugging seed; on sums of whole numbers round(sigma Z), exact; on other sums "
    "Box-Muller, full tail, rounded to a public grid"
)

# Pairs drawn at a time: few enough to stay in the processor's cache, many enough to hide the cost of a call. On a GPU
# without Triton each draw is a dozen calls and a wait, so it takes more at a time.
_PAIRS, _PAIRS_ON_DEVICE = 1 << 18, 1 << 21
# Whole numbers drawn at a time, so that the noise of large sums takes little memory beside them.
_WHOLE_AT_ONCE = 1 << 20
# Requests for at most so many normals are served from a reserve of so many that are drawn ahead.
_FEW, _RESERVE = 1 << 12, 1 << 15
# For each type of normals: the type of the words, the bits that give a radius, and the value below which 53 more bits
# continue these. For float32 that is 2^16 of 2^31, a radius above 4.5.
_WORDS = {torch.float32: (np.int32, 31, 2.0**16), torch.float64: (np.int64, 63, 2.0**43)}

_streams: weakref.WeakSet[PrivateStream] = weakref.WeakSet()
# Bytes that one key makes. Few enough that a key found in memory tells little of what was drawn before, and that no block
# repeats by chance; many enough that a new key costs nothing.
_KEY_LASTS = 1 << 26
_ZEROS = memoryview(bytes(1 << 16))


def _one_at_a_time(draw):
    """Let one thread draw at a time: two that shared a generator and its scratch memory would draw the same numbers."""

    @functools.wraps(draw)
    def drawn(self, *arguments, **keywords):
        with self._lock:
            return draw(self, *arguments, **keywords)

    return drawn


class PrivateStream:
    """Randomness keyed by the operating system.

    Noise on a CPU comes from AES-256 in counter mode. Sampling comes from PCG64DXSM (128-bit key), and noise on a GPU from
    torch's Philox (64-bit key): statistically sound and unknowable without their key, but not cryptographic; certificates
    say so. A secure stream takes all its words from the cipher.

    Args:
        seed: a seed for debugging alone: it makes the noise repeatable, and so removable. Certificates of such a run say
            that it is not private, and `dpgen verify` fails them.
        secure: True draws every word from AES-256, for sampling too. On a GPU the words are made on the CPU and copied.

    Raises:
        ValueError: for a secure stream with a seed, which would be secure in name only.

    Example:
        >>> stream = PrivateStream()
        >>> stream.normal((3, 2)).shape
        torch.Size([3, 2])
    """

    def __init__(self, seed: int | None = None, *, secure: bool = False) -> None:
        if secure and seed is not None:
            raise ValueError(f"seed={seed}: a secure stream takes no seed, since its noise could be removed")
        self.seeded, self.secure = seed is not None, secure
        self._seed = seed
        self._key()
        _streams.add(self)

    def part_of(self, rank: int) -> None:
        """Derive another debugging seed in each process but the first, where several were given the same."""
        if self._seed is not None and rank:
            self._seed = int(np.random.SeedSequence([self._seed, rank]).generate_state(1, np.uint64)[0] >> np.uint64(1))
            self._key()

    def _key(self) -> None:
        # A forked child needs a new lock, too: the thread that may have held it is gone.
        self._lock = threading.RLock()
        seeded = np.random.PCG64DXSM(self._seed) if self.seeded else None
        self._bits: np.random.PCG64DXSM | Keystream = seeded if seeded is not None else Keystream()
        sampling = seeded if seeded is not None else np.random.PCG64DXSM()
        self._sampler = None if self.secure else np.random.Generator(sampling)
        self._words_room = np.empty(0, np.uint64)
        self._on_device: dict[torch.device, torch.Generator] = {}
        self._normals: dict[torch.device, DeviceNormals] = {}
        self._scratch: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        self._reserve: dict[torch.dtype, Tensor] = {}

    @property
    def source(self) -> str:
        """The source of its numbers, in the words of a certificate."""
        return SEEDED if self.seeded else SECURE if self.secure else STANDARD

    def __reduce__(self):
        raise TypeError("a private stream is never saved: a reader of the file could remove the noise")

    def normal_(self, out: Tensor) -> Tensor:
        """Fill a contiguous float32 or float64 tensor with independent standard normals, tail included."""
        return self.add_normal_(out.zero_(), 1.0)

    @_one_at_a_time
    def add_normal_(self, out: Tensor, deviation: float) -> Tensor:
        """Add independent normals of a standard deviation, in place, in one pass over a contiguous tensor."""
        if out.dtype not in _WORDS:
            raise TypeError(f"noise is drawn in float32 or float64, not in {out.dtype}")
        if not out.numel():
            return out
        flat = out.view(-1)
        if flat.numel() <= _FEW and out.device.type == "cpu":
            flat.add_(self._from_reserve(flat.numel(), out.dtype), alpha=deviation)
            return out
        if flat.is_cuda and not self.secure and DeviceNormals.serve(flat, deviation):
            self._normals_on(flat.device).add_(flat, deviation)
            return out
        at_once = 2 * (_PAIRS if out.device.type == "cpu" else _PAIRS_ON_DEVICE)
        for start in range(0, flat.numel(), at_once):
            self._box_muller(flat[start : start + at_once], deviation)
        return out

    @_one_at_a_time
    def add_rounded_normal_(self, out: Tensor, sigma: float) -> Tensor:
        """Add to each number of an int64 tensor an independent one of exactly the law of round(sigma Z), in place.

        Z is standard normal. ``out`` is contiguous and on the CPU, and sigma is from 2^-20 to 2^45 (`rounded_normals`).
        """
        flat = out.view(-1)
        for start in range(0, flat.numel(), _WHOLE_AT_ONCE):
            part = flat[start : start + _WHOLE_AT_ONCE]
            part.add_(torch.from_numpy(rounded_normals(self._bits.random_raw, part.numel(), sigma)))
        return out

    @_one_at_a_time
    def add_rounded_spherical_(self, out: Tensor, scale: float) -> Tensor:
        """Add to each row of (n, k) int64 a vector of exactly the law of round(scale Z), in place.

        Z has a density proportional to ``exp(-|z|)``. ``out`` is contiguous and on the CPU, and the scale is from 2^-20 to
        2^45 (`rounded_sphericals`).
        """
        n, k = out.shape
        rows = max(1, _WHOLE_AT_ONCE // max(k, 1))
        for start in range(0, n, rows):
            part = out[start : start + rows]
            part.add_(torch.from_numpy(rounded_sphericals(self._bits.random_raw, len(part), k, scale)))
        return out

    def add_rounded_laplace_(self, out: Tensor, scale: float) -> Tensor:
        """Add to each number of an int64 tensor one of exactly the law of round(scale L), L Laplace; see the former."""
        return self.add_rounded_spherical_(out.view(-1, 1), scale).view(out.shape)

    @_one_at_a_time
    def noisy_maximum(self, scores: Tensor, scale: float) -> int:
        """Draw the place of the largest of (n,) int64 scores over a scale plus Gumbel numbers, exactly.

        Scores are on the CPU and below 2^62 in size; the scale is from 2^-20 to 2^45 (`find_noisy_maximum`).
        """
        return find_noisy_maximum(self._bits.random_raw, scores.numpy(), scale)

    def normal(
        self, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
    ) -> Tensor:
        """Draw independent standard normals of a shape."""
        return self.normal_(torch.empty(shape, dtype=dtype, device=device))

    def _from_reserve(self, size: int, dtype: torch.dtype) -> Tensor:
        """Take a few normals of those that were drawn ahead, since a draw of their own would cost many times as much."""
        reserve = self._reserve.get(dtype)
        if reserve is None or len(reserve) < size:
            with torch.inference_mode(False):
                reserve = torch.zeros(_RESERVE, dtype=dtype)
                self._box_muller(reserve, 1.0)
        given, self._reserve[dtype] = reserve[:size], reserve[size:]
        return given

    @_one_at_a_time
    def words(self, size: int) -> np.ndarray:
        """Draw `size` uniform words of 64 bits."""
        return self._bits.random_raw(size)

    def integers(self, size: int, below: int) -> np.ndarray:
        """Draw `size` independent int64 from 0 to ``below - 1``, each within 2^-63 of equal probability."""
        return (self.words(size) % np.uint64(below)).astype(np.int64)

    @_one_at_a_time
    def poisson_sample(self, population: int, rate: float) -> np.ndarray:
        """Draw a Poisson sample: the sorted positions of records, each of `population` independently at probability `rate`.

        A binomial size and then distinct positions have the same law as one coin a record, at the cost of the sample
        alone. A secure stream throws the coins, at a nanosecond or two each. At rate 1 nothing is drawn.
        """
        if rate == 1.0:
            return np.arange(population)
        random = self._sampler
        if random is None:
            return poisson_sample(self._octets, population, rate)
        size = random.binomial(population, rate)
        positions = random.choice(population, size=size, replace=False, shuffle=False)
        positions.sort()
        return positions

    def subset(self, items: np.ndarray, largest: int) -> np.ndarray:
        """Draw `largest` of the items, each set of so many alike, in their order; all where there are no more."""
        if len(items) <= largest:
            return items
        # The items with the smallest random words: two equal words have a probability of 2^-64.
        return items[np.sort(np.argpartition(self.words(len(items)), largest)[:largest])]

    def _box_muller(self, out: Tensor, deviation: float) -> None:
        """Add sqrt(-2 ln u) (cos t, sin t) to the two halves of `out`; u in (0, 1], t in (-pi, pi]."""
        half = (out.numel() + 1) // 2
        rest = out.numel() - half
        kept = (out.device, out.dtype)
        if kept not in self._scratch or self._scratch[kept].shape[1] < half:
            with torch.inference_mode(False):  # a tensor made in inference mode could be used there only
                self._scratch[kept] = torch.empty(3, max(_PAIRS, half), device=out.device, dtype=out.dtype)
        radius, angle, wave = self._scratch[kept][:, :half]
        words = self._words(half, out.device, out.dtype)
        _, bits, _ = _WORDS[out.dtype]
        radius.copy_(words[0].bitwise_and_(2**bits - 1))
        self._refine(radius)
        radius.mul_(2.0**-bits).log_().mul_(-2.0).sqrt_()
        angle.copy_(words[1]).mul_(math.pi * 2.0**-bits)
        out[:half].addcmul_(torch.cos(angle, out=wave), radius, value=deviation)
        out[half:].addcmul_(torch.sin(angle, out=wave)[:rest], radius[:rest], value=deviation)

    def _refine(self, magnitudes: Tensor) -> None:
        """Continue small integers below the binary point, where their logarithm needs more bits."""
        fine = _WORDS[magnitudes.dtype][2]
        if magnitudes.device.type == "cpu":  # numpy compares, and finds few among many, ten times as quickly
            values = magnitudes.numpy()
            places = np.flatnonzero(values < fine)
            values[places] += self._fractions(len(places))
        else:
            few = (magnitudes < fine).nonzero()[:, 0]
            fractions = torch.from_numpy(self._fractions(len(few))).to(magnitudes.dtype)
            magnitudes[few] += fractions.to(magnitudes.device)

    def _fractions(self, size: int) -> np.ndarray:
        """Draw uniform multiples of 2^-53 in (0, 1]: the open end keeps logarithms finite."""
        return ((self._bits.random_raw(size) >> np.uint64(11)) + np.uint64(1)) * 2.0**-53

    def _words(self, pairs: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw (2, pairs) uniform integers: 32 bits for float32, 64 for float64."""
        kind, bits, _ = _WORDS[dtype]
        if self.secure or device.type == "cpu" or bits > 31:
            raw = self._raw(pairs * (bits + 1) // 32)
            return torch.from_numpy(raw.view(kind)).view(2, pairs).to(device)
        if device not in self._on_device:
            self._on_device[device] = torch.Generator(device=device).manual_seed(self._key_of_device())
        words = torch.empty(2, pairs, dtype=torch.int32, device=device)
        return words.random_(-(2**31), 2**31, generator=self._on_device[device])

    def _normals_on(self, device: torch.device) -> DeviceNormals:
        if device not in self._normals:
            self._normals[device] = DeviceNormals(self._key_of_device() % 2**64)
        return self._normals[device]

    def _key_of_device(self) -> int:
        return int.from_bytes(os.urandom(8), "little") if self._seed is None else self._seed

    def _raw(self, size: int) -> np.ndarray:
        """Draw `size` words into memory that is used again: new pages would cost as much as the cipher."""
        if not isinstance(self._bits, Keystream):
            return self._bits.random_raw(size)
        if len(self._words_room) < size:
            self._words_room = np.empty(size, np.uint64)
        return self._bits.fill(self._words_room[:size])

    def _octets(self, size: int) -> np.ndarray:
        """Draw `size` uniform bytes."""
        return self._bits.random_raw(-(-size // 8)).view(np.uint8)[:size]


def _rekey_after_fork() -> None:
    for stream in list(_streams):
        stream._key()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_rekey_after_fork)


class Keystream:
    """Random words from AES-256 in counter mode, each key drawn from the operating system and used for 64 MiB at most.

    It takes no seed. After a fork the child needs a new one, as `PrivateStream` makes.

    Example:
        >>> Keystream().random_raw(3).dtype
        dtype('uint64')
    """

    _entropy = staticmethod(os.urandom)

    def __init__(self) -> None:
        self._bytes_of_key = 0

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
            if len(piece) > self._bytes_of_key:
                self._key()
            self._bytes_of_key -= len(piece)
            self._cipher.update_into(_ZEROS[: len(piece)], piece.data)
        return words

    def _key(self) -> None:
        # A key is never used twice, so the counter may start at 0.
        self._cipher = Cipher(algorithms.AES(self._entropy(32)), modes.CTR(bytes(16))).encryptor()
        self._bytes_of_key = _KEY_LASTS

"""The private stream: the randomness that nobody may know, and normals whose tail is right.

Noise, Poisson sampling and the randomness of each record are drawn from here and from nowhere else. The stream is
keyed by the operating system, is never saved, and is keyed anew in a forked child.

Normals are made here from random words by Box and Muller's formula and not by ``torch.Tensor.normal_``, for two
reasons. ``torch.Generator.manual_seed`` keeps 32 bits of a key on a CPU. And float32 normals of torch stop at 5.77
standard deviations, as their uniforms have 24 bits; over a long run that alone costs more than the delta that is
claimed (docs/PRIVACY.md, "The tail"). Here a radius beyond 4.5 takes another 53 random bits.
"""

from __future__ import annotations

import math
import os
import weakref

import numpy as np
import torch
from torch import Tensor

# Pairs drawn at a time: few enough to stay in the processor's cache, many enough to hide the cost of a call.
_PAIRS = 1 << 17
_ROW = 256
# A 31-bit uniform below 2^16 (radius above 4.5) gets its lower bits drawn as well.
_FINE = 2.0**16

_streams: weakref.WeakSet[PrivateStream] = weakref.WeakSet()


class PrivateStream:
    """Randomness keyed by the operating system.

    The generators are PCG64DXSM (128-bit key; CPU and all sampling) and torch's Philox on a GPU (64-bit key):
    statistically sound and unknowable without their key, but not cryptographic; certificates say so.

    Args:
        seed: only for debugging: makes the noise repeatable, and so removable. Certificates of such a run say that it
            is not private, and `dpgen verify` fails them.

    Example:
        >>> stream = PrivateStream()
        >>> stream.normal((3, 2)).shape
        torch.Size([3, 2])
    """

    source = "PCG64DXSM (CPU) or Philox (GPU), keyed by the operating system; normals by Box-Muller, full tail"

    def __init__(self, seed: int | None = None) -> None:
        self.seeded = seed is not None
        self._seed = seed
        self._key()
        _streams.add(self)

    def _key(self) -> None:
        self._bits = np.random.PCG64DXSM(self._seed)
        self._numpy = np.random.Generator(self._bits)
        self._on_device: dict[torch.device, torch.Generator] = {}
        self._scratch: dict[torch.device, Tensor] = {}

    def __reduce__(self):
        raise TypeError("a private stream is never saved: whoever reads the file could remove the noise")

    def normal_(self, out: Tensor) -> Tensor:
        """Fill a contiguous float32 or float64 tensor with independent standard normals, tail included."""
        return self.add_normal_(out.zero_(), 1.0)

    def add_normal_(self, out: Tensor, deviation: float) -> Tensor:
        """Add independent normals of that standard deviation, in place, in one pass over a contiguous tensor."""
        flat = out.view(-1)
        if out.dtype == torch.float64:
            flat.add_(torch.from_numpy(self._numpy.standard_normal(flat.numel())).to(out.device), alpha=deviation)
        elif out.dtype == torch.float32:
            for start in range(0, flat.numel(), 2 * _PAIRS):
                self._box_muller(flat[start : start + 2 * _PAIRS], deviation)
        else:
            raise TypeError(f"noise is drawn in float32 or float64, not in {out.dtype}")
        return out

    def add_laplace_(self, out: Tensor, scale: float) -> Tensor:
        """Add independent Laplace noise of that scale, in place; drawn in float64."""
        return out.add_(torch.from_numpy(self._numpy.laplace(scale=scale, size=tuple(out.shape))).to(out))

    def add_spherical_(self, out: Tensor, scale: float) -> Tensor:
        """Add one vector of density proportional to ``exp(-|z| / scale)`` to all of `out`, in place.

        A uniform direction, and a length from the gamma distribution of shape ``out.numel()``.
        """
        direction = self._numpy.standard_normal(tuple(out.shape))
        length = scale * self._numpy.gamma(out.numel())
        return out.add_(torch.from_numpy(direction * (length / np.linalg.norm(direction))).to(out))

    def gumbel(self, size: int) -> np.ndarray:
        """Independent standard Gumbel numbers, float64."""
        # The negative logarithm of an exponential: numpy's own goes through a uniform, whose tail ends earlier.
        return -np.log(self._numpy.standard_exponential(size))

    def discrete_laplace(self, shape: tuple[int, ...], scale: float) -> np.ndarray:
        """Independent whole numbers of probability proportional to ``exp(-|x| / scale)``: a difference of geometrics."""
        stop = -math.expm1(-1.0 / scale)
        return self._numpy.geometric(stop, shape) - self._numpy.geometric(stop, shape)

    def normal(self, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32, device=None) -> Tensor:
        """Independent standard normals of that shape."""
        return self.normal_(torch.empty(shape, dtype=dtype, device=device))

    def poisson_sample(self, population: int, rate: float) -> np.ndarray:
        """The sorted positions of a Poisson sample: each of `population` records independently with probability `rate`.

        Binomial size, then distinct positions: the same law as one coin a record, at the cost of the sample alone.
        """
        size = self._numpy.binomial(population, rate)
        return np.sort(self._numpy.choice(population, size=size, replace=False, shuffle=False))

    def _box_muller(self, out: Tensor, deviation: float) -> None:
        """Add sqrt(-2 ln u) (cos t, sin t) to the two halves of `out`; u in (0, 1], t in (-pi, pi]."""
        half = (out.numel() + 1) // 2
        rest = out.numel() - half
        if out.device not in self._scratch:
            with torch.inference_mode(False):  # made there, it would serve there only
                self._scratch[out.device] = torch.empty(3, _PAIRS, device=out.device)
        radius, angle, wave = self._scratch[out.device][:, :half]
        words = self._words(half, out.device)
        radius.copy_(words[0].bitwise_and_(0x7FFFFFFF))
        self._refine(radius)
        radius.mul_(2.0**-31).log_().mul_(-2.0).sqrt_()
        angle.copy_(words[1]).mul_(math.pi * 2.0**-31)
        out[:half].addcmul_(torch.cos(angle, out=wave), radius, value=deviation)
        out[half:].addcmul_(torch.sin(angle, out=wave)[:rest], radius[:rest], value=deviation)

    def _refine(self, magnitudes: Tensor) -> None:
        """Continue small 31-bit integers below the binary point, where their logarithm needs more bits."""
        whole = magnitudes.numel() // _ROW * _ROW
        rows = (magnitudes[:whole].view(-1, _ROW).amin(dim=1) < _FINE).nonzero()
        places = (rows * _ROW + torch.arange(_ROW, device=magnitudes.device)).view(-1)
        places = torch.cat([places, torch.arange(whole, magnitudes.numel(), device=magnitudes.device)])
        coarse = magnitudes[places]
        low = coarse < _FINE
        places, coarse = places[low], coarse[low]
        # The open upper end keeps u positive: 1 - [0, 1) lies in (0, 1].
        fraction = torch.from_numpy(1.0 - self._numpy.random(len(places))).to(coarse.device)
        magnitudes[places] = (coarse.double() + fraction).to(coarse.dtype)

    def _words(self, pairs: int, device: torch.device) -> Tensor:
        """(2, pairs) uniform 32-bit integers."""
        if device.type == "cpu":
            return torch.from_numpy(self._bits.random_raw(pairs).view(np.int32)).view(2, pairs)
        if device not in self._on_device:
            key = self._seed if self.seeded else int.from_bytes(os.urandom(8), "little")
            self._on_device[device] = torch.Generator(device=device).manual_seed(key)
        words = torch.empty(2, pairs, dtype=torch.int32, device=device)
        return words.random_(-(2**31), 2**31, generator=self._on_device[device])


def _rekey_after_fork() -> None:
    for stream in list(_streams):
        stream._key()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_rekey_after_fork)

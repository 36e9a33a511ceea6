"""Normals on a GPU in one pass over memory, without a wait for the device: a kernel in Triton."""

from __future__ import annotations

import math
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.common.device_kernels import AVAILABLE, kernel, launch, serves

if AVAILABLE:
    import triton
    import triton.language as tl

# Pairs of normals that one program draws.
_BLOCK = 1024
# The least standard deviation, and one over the largest.
_LEAST = 2.0**-100
# The normals of key 0 and draw 0 (`tests/statistical/philox.py`).
_KNOWN = {
    torch.float32: (0.9911377, -0.1536382, -0.9246626, 0.1808259),
    torch.float64: (-0.121518, -0.0818742, -1.3500327, -0.2227091),
}
# Below this a radius takes 53 more bits: of 2^31 for float32, of 2^63 for float64 (`stream`).
_FINE, _FINE_LONG = 2**16, 2**43


class DeviceNormals:
    """Independent standard normals from Philox4x32-10 (Salmon et al. 2011), by Box and Muller's formula, tail included.

    Each call counts as one draw. A pair of normals follows from the key, the number of the draw, and its place in it, so
    none is drawn twice. They have the law of `PrivateStream`'s normals: a radius beyond 4.5 takes another 53 bits.

    Args:
        key: 0 to 2^64 - 1; secret.
    """

    def __init__(self, key: int) -> None:
        self._key, self._draws = key, 0

    def __reduce__(self) -> NoReturn:
        raise TypeError("keyed normals are never saved: a reader of the file could remove the noise")

    @staticmethod
    def serve(x: Tensor, deviation: float = 1.0) -> bool:
        """Return True if normals of a standard deviation can be added to a tensor."""
        # A kernel is handed float32 numbers.
        return _LEAST <= deviation <= 1.0 / _LEAST and serves(x, _try_normals)

    def add_(self, out: Tensor, deviation: float) -> None:
        """Add normals of a standard deviation to a contiguous tensor (n,), float32 or float64, in place."""
        if out.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("noise within the capture of a CUDA graph: each replay would add the same; draw it outside")
        # Counted before it is drawn, so that no draw that was interrupted is made again.
        draw, self._draws = self._draws, self._draws + 1
        pairs = (len(out) + 1) // 2
        # A number of Python reaches a kernel as float32, and the rest of it as another one.
        most = float(np.float32(deviation))
        # Each half as a signed number of 32 bits, since others would be of another type.
        low, high = np.array([draw], np.uint64).view(np.uint32).view(np.int32).tolist()
        launch(
            _add_normals, triton.cdiv(pairs, _BLOCK), out, most, deviation - most, self._key, low, high,
            pairs, len(out) - pairs, LONG=out.dtype == torch.float64, FINE=_FINE,
            FINE_LONG=_FINE_LONG, PI=math.pi, BLOCK=_BLOCK,
        )  # fmt: skip


def _try_normals(device: torch.device) -> None:
    """Draw normals of a known key.

    Raises:
        ArithmeticError: if they are others.
    """
    for kind, expected in _KNOWN.items():
        out = torch.zeros(len(expected), dtype=kind, device=device)
        DeviceNormals(0).add_(out, 1.0)
        if not torch.allclose(out.cpu(), torch.tensor(expected, dtype=kind), rtol=0.0, atol=1e-5):
            raise ArithmeticError("a kernel computes other normals than it should")


@kernel("most", "rest_of_it", "key", "draw_low", "draw_high", "pairs", "rest")
def _add_normals(  # type: ignore[no-untyped-def]
    out, most, rest_of_it, key, draw_low, draw_high, pairs, rest, LONG: tl.constexpr, FINE: tl.constexpr,
    FINE_LONG: tl.constexpr, PI: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    low, high = at.to(tl.int32), (at >> 32).to(tl.int32)
    none = low * 0
    first, second = none + tl.to_tensor(draw_low).to(tl.int32), none + tl.to_tensor(draw_high).to(tl.int32)
    a, b, c, d = tl.philox(key, low, high, first, second)
    if LONG:
        # The next block of the same pair: places are below 2^62.
        e, f, _, _ = tl.philox(key, low, high | (1 << 30), first, second)
        whole = (((a.to(tl.uint64) << 32) | b.to(tl.uint64)) >> 1).to(tl.int64)
        fine = ((((e.to(tl.uint64) << 32) | f.to(tl.uint64)) >> 11) + 1).to(tl.float64) * (0.5**53)
        uniform = (whole.to(tl.float64) + tl.where(whole < FINE_LONG, fine, 0.0)) * (0.5**63)
        turn = ((c.to(tl.uint64) << 32) | d.to(tl.uint64)).to(tl.int64, bitcast=True).to(tl.float64) * (0.5**63)
        deviation = tl.to_tensor(most).to(tl.float64) + tl.to_tensor(rest_of_it).to(tl.float64)
    else:
        whole = (a >> 1).to(tl.int32)
        fine = ((((c.to(tl.uint64) << 32) | d.to(tl.uint64)) >> 11) + 1).to(tl.float64) * (0.5**53)
        uniform = ((whole.to(tl.float64) + tl.where(whole < FINE, fine, 0.0)) * (0.5**31)).to(tl.float32)
        turn = b.to(tl.int32, bitcast=True).to(tl.float32) * (0.5**31)
        deviation = most
    # An approximate logarithm of a number close to 1 may be above 0.
    radius = tl.sqrt(tl.maximum(-2.0 * tl.log(uniform), 0.0)) * deviation
    angle = turn * PI
    x = tl.load(out + at, mask=at < pairs, other=0.0)
    tl.store(out + at, x + radius * tl.cos(angle), mask=at < pairs)
    y = tl.load(out + pairs + at, mask=at < rest, other=0.0)
    tl.store(out + pairs + at, y + radius * tl.sin(angle), mask=at < rest)

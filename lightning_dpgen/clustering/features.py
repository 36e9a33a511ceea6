"""Random Fourier features: an explicit map in which the Gaussian kernel is an inner product."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lightning_dpgen.data.stores import Store

# Paired features have norm 1 exactly; computed in float32 it may exceed that by a few units in the last place.
FEATURE_NORM = 1.0 + 1e-5
_CHUNK = 4096


class FourierFeatures:
    """``z(x) = [cos(W x), sin(W x)] / sqrt(d/2)`` with rows of W from N(0, 2 gamma I): norm 1 for every record.

    Their inner products estimate ``exp(-gamma |x - y|^2)`` (Rahimi and Recht 2007). Pairing cosine and sine makes the
    norm 1 for each drawn W, so nothing needs clipping; the single-cosine features of DPGM reach sqrt(2)
    (docs/PRIVACY.md, "Features").

    Args:
        scale: (m,) public factor of each column before the kernel; a record's label may weigh more than a pixel.
        d: number of features, even.
        gamma: kernel width parameter.
        generator: public generator of W.

    Raises:
        ValueError: if d is not even and positive, or gamma not positive.

    Example:
        >>> features = FourierFeatures(torch.ones(3), d=8, gamma=0.5, generator=torch.Generator().manual_seed(0))
        >>> bool((features(torch.rand(5, 3)).norm(dim=1) <= FEATURE_NORM).all())
        True
    """

    def __init__(self, scale: Tensor, d: int, gamma: float, generator: torch.Generator) -> None:
        if d < 2 or d % 2:
            raise ValueError(f"d={d}: expected an even number, 2 or more (cosines and sines come in pairs)")
        if not gamma > 0:
            raise ValueError(f"gamma={gamma}: expected a positive number")
        self.d = d
        normals = torch.randn(len(scale), d // 2, generator=generator)
        self._frequencies = normals * math.sqrt(2.0 * gamma) * scale[:, None]

    def __call__(self, records: Tensor) -> Tensor:
        """(B, m) to (B, d)."""
        return self._of(records @ self._frequencies)

    def blocks(self, store: Store) -> Iterator[tuple[slice, Tensor]]:
        """Those of all records, anew each time: where a block of them is, and its features."""
        for start in range(0, len(store), _CHUNK):
            rows = slice(start, min(start + _CHUNK, len(store)))
            yield rows, self._of(store.product(rows, self._frequencies))

    def _of(self, angles: Tensor) -> Tensor:
        out = angles.new_empty(len(angles), self.d)
        torch.cos(angles, out=out[:, : self.d // 2])
        torch.sin(angles, out=out[:, self.d // 2 :])
        return out.mul_(math.sqrt(2.0 / self.d))

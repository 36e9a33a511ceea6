"""Slots: a fixed number of rows that each lot is laid out in, so that no shape follows from the number of its records.

The last bits of a product follow from its shape: kernels choose by it in what order they add. In a lot of one record more
all others would have other norms, by up to 3e-3 of them in TF32. In slots the shape is public, and each record has a row of
its own by a uniformly random injective map of records to rows. The map of fewer records is such a map of all of them,
restricted: the two can be drawn together, and then a record that is added takes a free row and moves no other
(docs/guarantees/records.md, "Positions are not names"). Rows without a record hold a made-up one, and have no weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.stats import poisson
from torch import Tensor

from lightning_dpgen.sampling.device_copies import copied

if TYPE_CHECKING:
    from lightning_dpgen.privacy.noise.stream import PrivateStream

# The chance that a lot has more records than slots. Such a lot is computed in a shape of its own, whole.
_OVERFLOW = 1e-9


@dataclass(frozen=True)
class Slots:
    """The rows of the records of a lot, among a fixed number of rows. Private, but for that number.

    Args:
        size: the number of rows S.
        places: (B,) int64, the row of each record; no two are alike.

    Example:
        >>> Slots(4, torch.tensor([2, 0])).spread(torch.tensor([5.0, 7.0]))
        tensor([7., 0., 5., 0.])
    """

    size: int
    places: Tensor

    def __post_init__(self) -> None:
        there = self.places.numpy() if self.places.device.type == "cpu" else self.places.cpu().numpy()
        if len(there) and not (np.diff(np.sort(there)) > 0).all():
            raise ValueError("places: expected a row of its own for each record")

    def places_on(self, device: torch.device) -> Tensor:
        """Return the places on a device, to which they are copied once."""
        if self.places.device != device:
            object.__setattr__(self, "places", copied(self.places, device))
        return self.places

    def spread(self, x: Tensor, empty: Tensor | None = None) -> Tensor:
        """Return (S, ...) with the rows of x (B, ...) at their places; others hold `empty` (1, ...), or zeros."""
        rows = x.new_zeros(self.size, *x.shape[1:])
        if empty is not None:
            rows[:] = empty
        return rows.index_copy_(0, self.places_on(x.device), x)


def draw_places(stream: PrivateStream, rows: int, records: int) -> np.ndarray:
    """Draw different rows (B,) for so many records, each injective map with the same probability.

    Its use of the stream follows from the number of rows alone.
    """
    return np.argsort(stream.words(rows), kind="stable")[:records]


def enough_slots(expected: float, max_rows: int = 1) -> int:
    """Return the number of rows that a Poisson lot exceeds with a probability below 1e-9.

    Args:
        expected: the expected number of records.
        max_rows: the most records of a unit, which come together.

    Example:
        >>> [enough_slots(mean) for mean in (32, 256, 8192)]
        [71, 358, 8741]
    """
    return max(1, max_rows * int(poisson.isf(_OVERFLOW, expected / max_rows)))

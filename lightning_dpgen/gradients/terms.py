"""The terms of a loss: a term's kind is what it is handed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from lightning_dpgen.data.lots import Lot


@dataclass(frozen=True)
class PerRecord:
    """A loss of each record by itself; its gradient is clipped to C a record (sensitivity C).

    Args:
        loss: ``loss(lot, noise) -> (B,)``; the i-th value may depend on the i-th record and the i-th row of the noise
            alone. Networks without batch statistics have this property row by row.
        noise: how many standard normals each record gets of its own, drawn from the private stream. Randomness that a
            record takes by its position from a public stream would let it change the others' (docs/PRIVACY.md).
    """

    loss: Callable[[Lot, Tensor], Tensor]
    noise: int = 0


@dataclass(frozen=True)
class DataFree:
    """A loss of parameters and public randomness alone: handed no record, so neither clipped nor noised.

    Args:
        loss: ``loss() -> scalar``.
    """

    loss: Callable[[], Tensor]


Term = PerRecord | DataFree

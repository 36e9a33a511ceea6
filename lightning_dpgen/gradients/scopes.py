"""What a clipping bound is for: the whole gradient of a record, each layer of it, or the component that it belongs to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lightning_dpgen.gradients.records import RecordGradients


@dataclass(frozen=True)
class LotNorms:
    """The norms that the bounds of a lot are chosen from, one column a bound. Private.

    Args:
        columns: of shape (R_j,): of one record (or group) in each row.
        touched: in how many columns one record has a norm.
        grouped: rows are groups, so that a record changes a norm where it otherwise adds one.
    """

    columns: Sequence[Tensor]
    touched: int = 1
    grouped: bool = False


class Scope(Protocol):
    """How gradients are cut into parts that each have a bound."""

    def check(self, gradients: RecordGradients) -> None:
        """Refuse gradients that cannot be cut so.

        Raises:
            ValueError: saying why.
        """

    def norms(self, gradients: RecordGradients) -> LotNorms:
        """The norms, one column a bound."""
        ...

    def weights(self, factors: Sequence[Tensor]) -> Tensor | Sequence[Tensor]:
        """From the factors of each column: a weight for each record, or one for each record and layer."""
        ...

    def sensitivity(self, bounds: Sequence[float]) -> float | Tensor:
        """How long a record's clipped gradient may be at most; or, where it touches one block of many, for each block."""
        ...


class Flat(Scope):
    """One bound for the whole gradient of a record."""

    def norms(self, gradients: RecordGradients) -> LotNorms:
        return LotNorms((gradients.norms(),), grouped=gradients.groups is not None)

    def weights(self, factors: Sequence[Tensor]) -> Tensor:
        return factors[0]

    def sensitivity(self, bounds: Sequence[float]) -> float:
        return bounds[0]


class Layers(Scope):
    """A bound for each layer of the network; a record may reach all of them at once."""

    def norms(self, gradients: RecordGradients) -> LotNorms:
        columns = gradients.layer_norms()
        return LotNorms(columns, touched=len(columns), grouped=gradients.groups is not None)

    def weights(self, factors: Sequence[Tensor]) -> Sequence[Tensor]:
        return factors

    def sensitivity(self, bounds: Sequence[float]) -> float:
        return math.sqrt(sum(bound**2 for bound in bounds))


class Components(Scope):
    """A bound for each component of a mixture, with noise of its own size; a record reaches the parameters of one."""

    def check(self, gradients: RecordGradients) -> None:
        if gradients.offsets is None or not gradients.by_component:
            raise ValueError(
                "a bound for each component (PerComponent) needs a per-record term on the lot of a mixture, and parameters "
                "that are all stacked, one slice a component"
            )

    def norms(self, gradients: RecordGradients) -> LotNorms:
        # Here too: parts of a lot, and gradients that wait for a mean, come by no other way.
        self.check(gradients)
        norms = gradients.norms()
        return LotNorms([norms[start:end] for start, end in itertools.pairwise(gradients.offsets)])

    def weights(self, factors: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(factors))

    def sensitivity(self, bounds: Sequence[float]) -> Tensor:
        return torch.tensor(bounds, dtype=torch.float64)

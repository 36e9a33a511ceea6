"""Scopes of a clipping bound: the whole gradient of a record, each layer of it, or the component that it belongs to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients


@dataclass(frozen=True)
class LotNorms:
    """The norms that the bounds of a lot are chosen from, one column a bound. Private.

    Args:
        columns: norms (R_j,), one of a record (or group) in each row.
        expected_rows: the expected number of rows over all processes, public: the expected lot, or the number of groups;
            rules that choose bounds are told it.
        touched: the number of columns in which one record has a norm.
        grouped: rows are groups, so that a record changes a norm and does not add one.
        of_unit: a person with all records has one row (`PerSampleGradients`).
    """

    columns: Sequence[Tensor]
    touched: int = 1
    grouped: bool = False
    of_unit: bool = False
    expected_rows: float | None = None


class Scope(Protocol):
    """A way to cut gradients into parts that each have a bound."""

    def check(self, gradients: PerSampleGradients) -> None:
        """Refuse gradients that cannot be cut this way.

        Raises:
            ValueError: saying why.
        """

    def norms(self, gradients: PerSampleGradients, expected_rows: float | None = None) -> LotNorms:
        """Return the norms, one column a bound."""
        ...

    def weights(self, factors: Sequence[Tensor]) -> Tensor | Sequence[Tensor]:
        """Turn the factors of each column into a weight for each record, or one for each record and layer."""
        ...

    def sensitivity(self, bounds: Sequence[float]) -> float | Tensor:
        """Return the greatest length of a record's clipped gradient; for each block, where a record touches one of many."""
        ...


class Flat(Scope):
    """One bound for the whole gradient of a record."""

    def norms(self, gradients: PerSampleGradients, expected_rows: float | None = None) -> LotNorms:
        return LotNorms((gradients.norms(),), 1, gradients.groups is not None, gradients.of_unit, expected_rows)

    def weights(self, factors: Sequence[Tensor]) -> Tensor:
        return factors[0]

    def sensitivity(self, bounds: Sequence[float]) -> float:
        return bounds[0]


class Layers(Scope):
    """A bound for each layer of the network; a record may reach all of them at once."""

    def norms(self, gradients: PerSampleGradients, expected_rows: float | None = None) -> LotNorms:
        columns = gradients.layer_norms()
        return LotNorms(columns, len(columns), gradients.groups is not None, gradients.of_unit, expected_rows)

    def weights(self, factors: Sequence[Tensor]) -> Sequence[Tensor]:
        return factors

    def sensitivity(self, bounds: Sequence[float]) -> float:
        return math.sqrt(sum(bound**2 for bound in bounds))


class Components(Scope):
    """A bound for each component of a mixture, with noise of its own size; a record reaches the parameters of one."""

    def check(self, gradients: PerSampleGradients) -> None:
        if gradients.offsets is None or not gradients.by_component:
            raise ValueError(
                "a bound for each component (PerComponent) needs a per-record term on the lot of a mixture, and "
                "parameters that are all stacked, one slice for each component"
            )

    def norms(self, gradients: PerSampleGradients, expected_rows: float | None = None) -> LotNorms:
        # Parts of a lot, and gradients that wait for a mean, are checked here alone.
        self.check(gradients)
        norms = gradients.norms()
        columns = [norms[start:end] for start, end in itertools.pairwise(gradients.offsets)]
        return LotNorms(columns, expected_rows=expected_rows)

    def weights(self, factors: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(factors))

    def sensitivity(self, bounds: Sequence[float]) -> Tensor:
        return torch.tensor(bounds, dtype=torch.float64)

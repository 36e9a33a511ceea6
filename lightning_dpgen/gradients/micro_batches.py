"""Micro-batches: a lot that is larger than memory, taken in parts.

There must be one bound for the whole lot. Where it follows from the number of the lot, one pass over the parts is enough:
each is clipped and added. Where it is chosen from the lot's norms, a first pass returns these and no gradient, and a second
one clips and adds: twice the work of a lot in one piece. In the second pass each record is clipped by the norm that it has
in that pass. This may differ from the first norm, if the record draws randomness of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Literal

import torch

from lightning_dpgen.gradients.lot_memory import records_that_fit
from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.gradients.scopes import LotNorms, Scope
from lightning_dpgen.privacy.lot_id import LotId
from lightning_dpgen.sampling.lots import Lot

# The records of a part: about so many, as many as memory holds, or all.
MicroBatch = int | Literal["auto"] | None


class MicroBatches:
    """The gradients of a lot, made part by part when they are asked for.

    Args:
        make: begins anew at each call, and returns the gradients of each part; at least one part (of no records, if there
            are none). Parts are disjoint, and together they are the whole lot.

    Example:
        A lot of some 50 records in parts of at most 8, in a bare loop:

        >>> from lightning_dpgen import Account, Fixed, PerRecord, PoissonLots, PrivateOptimizer
        >>> from lightning_dpgen import make_plan, term_gradients, training_stage
        >>> stage = training_stage(Fixed(1.0), n=100, sample_rate=0.5, steps=1)
        >>> account, network = Account(make_plan([stage], epsilon=2.0, delta=1e-5)), torch.nn.Linear(3, 1)
        >>> optimizer = PrivateOptimizer(torch.optim.SGD(network.parameters(), lr=1.0), account=account,
        ...                              clipping=Fixed(1.0))
        >>> lot = PoissonLots(torch.rand(100, 3), account).draw()
        >>> term = PerRecord(lambda lot, noise: network(lot.records).square().sum(dim=1))
        >>> make = lambda: (term_gradients(network, term, part, account.stream) for part in lot.cut(8))
        >>> optimizer.set_gradients(MicroBatches(make, lot.draw))
        >>> optimizer.step()
        >>> account.verify_complete()
    """

    groups = None
    of_unit = False

    def __init__(self, make: Callable[[], Iterable[RecordGradients]], draw: LotId) -> None:
        self._make, self.draw = make, draw
        # A pass whose first part was asked for, and that part.
        self._begun: list | None = None

    def of_persons(self, max_rows: int) -> MicroBatches:
        """Return the gradients of persons, none of whom is cut in two; see `RecordGradients.of_persons`."""
        if max_rows == 1 or self.of_unit:
            return self
        found = MicroBatches(lambda: (part.of_persons(max_rows) for part in self.parts()), self.draw)
        found.of_unit = True
        return found

    def first(self) -> RecordGradients:
        """Make the first part, with which the next pass begins.

        Raises:
            ValueError: as `parts`.
        """
        if self._begun is None:
            parts = self._pass()
            self._begun = [next(parts), parts]
        return self._begun[0]

    def parts(self) -> Iterator[RecordGradients]:
        """Make one pass over the parts, of which a caller that keeps none has one in memory.

        Raises:
            ValueError: if there is no part, or one is of groups, which may reach over several parts, or of another lot, or
                if all parts together have more records (or persons) than the lot.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            # It is held nowhere else while the next one is made.
            yield begun.pop(0)
        yield from self._pass() if begun is None else begun.pop()

    def _pass(self) -> Iterator[RecordGradients]:
        rows, most = None, self.draw.units if self.of_unit else self.draw.size
        for part in self._make():
            if part.groups is not None:
                raise ValueError("groups reach over the parts of a lot: take a lot with a per-group term in one piece")
            if part.draw is not self.draw:
                raise ValueError("a part is of another lot than its MicroBatches: cut one lot, whose parts keep its draw")
            rows = (rows or 0) + len(part)
            if most is not None and rows > most:
                raise ValueError(
                    "these parts have more records together than their lot, or hold records of one person apart: put each "
                    "record in one of them (Lot.cut and Lot.divided cut between persons)"
                )
            yield part
            # Else it would be held until the next one is made.
            del part
        if rows is None:
            raise ValueError("a lot in parts has no part: give one part of no records for an empty lot")


class LotParts:
    """The parts in which the lots of a fit are taken: as many for each lot, of whatever size, so that code cannot count.

    Args:
        micro_batch: about how many records' gradients are computed at a time; ``auto`` waits for `fit_memory`. None takes a
            lot in one piece.
        expected_size: the expected number of records of a lot in this process, public.

    Attributes:
        count: the number of parts.

    Example:
        >>> LotParts(64, expected_size=16_384).count
        256
    """

    def __init__(self, micro_batch: MicroBatch, expected_size: float) -> None:
        self._expected_size = expected_size
        self.count = self._count(micro_batch) if isinstance(micro_batch, int) else 1

    def _count(self, size: int) -> int:
        return max(1, math.ceil(self._expected_size / size))

    def fit_memory(self, compute: Callable[[int], Iterable[RecordGradients]], device: torch.device) -> None:
        """Take as many records at a time as half of the free memory holds.

        Args:
            compute: returns the gradients of so many made-up records.
            device: where it computes them.
        """

        def use(count: int) -> None:
            for own in compute(count):
                some = own.parameters[0]
                own.weighted_sum(own.norms().to(some), {p: torch.zeros_like(p) for p in own.parameters})

        self.count = self._count(records_that_fit(use, device))

    def gradients(self, lot: Lot, of_part: Callable[[Lot, int], RecordGradients]) -> RecordGradients | MicroBatches:
        """Return the gradients of a lot, in as many parts.

        Args:
            of_part: returns those of a part, given its number from 0; called again for each pass over the lot.
        """
        if self.count == 1:
            return of_part(lot, 0)
        return MicroBatches(lambda: (of_part(part, i) for i, part in enumerate(lot.divided(self.count))), lot.draw)


def check_micro_batch(size: MicroBatch) -> None:
    """Refuse a number of records that is none.

    Raises:
        ValueError: naming it.
    """
    if not (size is None or size == "auto" or (type(size) is int and size >= 1)):
        raise ValueError(f"micro_batch={size!r}: expected a whole number (int), 1 or more, 'auto' or None")


def lot_norms(gradients: RecordGradients | MicroBatches, scope: Scope, expected_rows: float, *, needed: bool) -> LotNorms:
    """Return the norms of a lot, from which its bounds are chosen.

    Args:
        expected_rows: as in `LotNorms`.
        needed: whether the bounds depend on the norms; if not, no pass is made over a lot in parts.
    """
    if isinstance(gradients, RecordGradients):
        return replace(scope.norms(gradients), expected_rows=expected_rows)
    if not needed:
        first = scope.norms(gradients.first())
        return replace(first, columns=[column[:0] for column in first.columns], expected_rows=expected_rows)
    # A loop's variable would hold a part while the next one is made.
    each = list(map(scope.norms, gradients.parts()))
    columns = zip(*(norms.columns for norms in each), strict=True)
    return replace(each[0], columns=[torch.cat(column) for column in columns], expected_rows=expected_rows)

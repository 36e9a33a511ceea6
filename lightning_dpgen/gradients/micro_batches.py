"""Micro-batches: a lot that is larger than memory, taken in parts.

There must be one bound for the whole lot. Where it follows from the number of the lot, one pass over the parts is enough:
each is clipped and added. Where it is chosen from the lot's norms, a first pass returns these and no gradient, and a second
one clips and adds: twice the work of a lot in one piece. (The first part is made once more, before anything is charged, to
see which parameters it is of.) In the second pass each record is clipped by the norm that it has in that pass. This may
differ from the first norm, if the record draws randomness of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch

from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.gradients.scopes import LotNorms, Scope
from lightning_dpgen.privacy.lot_id import LotId


class MicroBatches:
    """The gradients of a lot, made part by part when they are asked for.

    Args:
        make: begins anew at each call, and returns the gradients of each part; at least one part (of no records, if there
            are none). Parts are disjoint, and together they are the whole lot.

    Example:
        >>> make = lambda: (term_gradients(network, term, part, stream) for part in lot.cut(64))
        >>> optimizer.set_gradients(MicroBatches(make, lot.draw))  # doctest: +SKIP
    """

    groups = None
    of_unit = False

    def __init__(self, make: Callable[[], Iterable[RecordGradients]], draw: LotId) -> None:
        self._make, self.draw = make, draw

    def of_persons(self, max_rows: int) -> MicroBatches:
        """Return the gradients of persons, none of whom is cut in two; see `RecordGradients.of_persons`."""
        if max_rows == 1 or self.of_unit:
            return self
        found = MicroBatches(lambda: (part.of_persons(max_rows) for part in self.parts()), self.draw)
        found.of_unit = True
        return found

    def parts(self) -> Iterator[RecordGradients]:
        """Make one pass over the parts.

        Raises:
            ValueError: if there is no part, or one is of groups, which may reach over several parts, or of another lot, or
                if all parts together have more records (or persons) than the lot.
        """
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
        if rows is None:
            raise ValueError("a lot in parts has no part: give one part of no records for an empty lot")


def lot_norms(gradients: RecordGradients | MicroBatches, scope: Scope, expected_rows: float, *, needed: bool) -> LotNorms:
    """Return the norms of a lot, from which its bounds are chosen.

    Args:
        expected_rows: as in `LotNorms`.
        needed: whether the bounds depend on the norms; if not, no pass is made over a lot in parts.
    """
    if isinstance(gradients, RecordGradients):
        return replace(scope.norms(gradients), expected_rows=expected_rows)
    if not needed:
        first = scope.norms(next(gradients.parts()))
        return replace(first, columns=[column[:0] for column in first.columns], expected_rows=expected_rows)
    each = [scope.norms(part) for part in gradients.parts()]
    columns = zip(*(norms.columns for norms in each), strict=True)
    return replace(each[0], columns=[torch.cat(column) for column in columns], expected_rows=expected_rows)

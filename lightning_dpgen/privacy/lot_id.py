"""The identity of a draw of records, which ties gradients to the one lot that they are computed from, and its issue."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import numpy as np

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.errors import LedgerError


@dataclass(frozen=True, eq=False)
class LotId:
    """One draw of records, for one access.

    `Account.sample` issues the draws that an access may be opened against. One that is made by hand belongs to records
    that no sampler has drawn: gradients may be computed from them, but no step can be taken.

    Args:
        size: the number of records; private.
        parts: the number of processes that have a part of the lot each.
        persons: (size,) the person of each record, counted from 0 within the lot; private. None where each is a unit alone.
        step: the number of the step that it was drawn for, where records take turns; None for any.
    """

    stage: str | None = None
    size: int | None = field(default=None, repr=False)
    parts: int = 1
    persons: np.ndarray | None = field(default=None, repr=False)
    step: int | None = None

    @property
    def units(self) -> int | None:
        """The number of units of privacy, persons or records; private. None where `size` is."""
        return self.size if self.persons is None else len(np.unique(self.persons))


class IssuedLots:
    """The draws of one account: those that no access was made from yet, and those that are spent."""

    def __init__(self) -> None:
        self._issued: weakref.WeakSet[LotId] = weakref.WeakSet()
        self._spent: weakref.WeakSet[LotId] = weakref.WeakSet()

    def issue(self, draw: LotId) -> LotId:
        """Add a draw, which one access may be opened against."""
        self._issued.add(draw)
        return draw

    def check(self, access: Access, draw: LotId) -> None:
        """Raise LedgerError unless a draw was issued for such an access and is not spent; see `Account.check_draw`."""
        if draw in self._spent:
            raise LedgerError(
                "these records were used for an access already: draw a new lot for each step, and let one optimizer take "
                "all that is computed from a lot"
            )
        stage = access.stage
        if draw in self._issued and draw.stage == stage:
            return
        found = f"were drawn for stage {draw.stage!r}, or with another account," if draw.stage else "were not drawn at all,"
        raise LedgerError(
            f"stage {stage!r}: these records {found} so the plan's rate of {access.sample_rate:g} says nothing about them: "
            f"take each lot from PoissonLots or poisson_loader(records, account, stage={stage!r}), or the batches of an "
            "Opacus loop from AccountEngine(account).make_private(...); a full lot is drawn so, too. Nothing was charged"
        )

    def take(self, access: Access, draw: LotId, step: int) -> None:
        """Take a draw for the one access that it may be used for, with the number of that.

        Raises:
            LedgerError: as `check`, and for a lot that was drawn for another step.
        """
        self.check(access, draw)
        if draw.step is not None and draw.step != step:
            raise LedgerError(
                f"stage {draw.stage!r}: these records were drawn for step {draw.step}, and step {step} is next: records "
                "take turns there, so draw its own lot for each step. Nothing was charged"
            )
        self._issued.discard(draw)
        self._spent.add(draw)

"""An access that is open, from which mechanisms take the multipliers of their noise."""

from __future__ import annotations

import os

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.privacy.access import GAUSSIAN, Access
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE
from lightning_dpgen.privacy.drawn_noise import DrawnNoise
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.privacy.sampling.correlated_noise import CorrelatedNoise


class OpenAccess:
    """An access whose ledger line is written: each of its noises may be drawn once, until it is closed.

    Attributes:
        number: the number of accesses of its stage that came before and left their mark; public.
        max_rows: the most records that the unit of privacy has.
        ranks: the processes that share the access: each has a part of the records and draws a part of the noise.
        correlated: the noise of earlier steps, of which this one's takes back a part; None for independent noise.
        step: the number of accesses of its stage that were made before, lost ones among them.
        drawn: the noises that were drawn so far, in order.
    """

    def __init__(
        self,
        access: Access,
        stream: PrivateStream,
        relation: str = ADD_OR_REMOVE_ONE,
        number: int = 0,
        max_rows: int = 1,
        ranks: Ranks | None = None,
        correlated: CorrelatedNoise | None = None,
        step: int = 0,
    ) -> None:
        self.access, self.stream, self.relation, self.number = access, stream, relation, number
        self.max_rows, self.ranks = max_rows, ranks or Ranks()
        self.correlated, self.step = correlated, step
        self.drawn: list[DrawnNoise] = []
        self._left = dict(access.multipliers)
        self._open, self._process = True, os.getpid()

    @property
    def private(self) -> bool:
        """False in the non-private twin, where nothing is clipped and no noise is drawn."""
        return self.access.private

    def consume(self, name: str, kind: str = GAUSSIAN) -> float:
        """Return the multiplier of the noise `name`, which is thereby used up.

        Raises:
            LedgerError: if the access is closed, does not list the noise, lists it as another kind, or has given it out
                already; or in a forked child, where it would be drawn a second time.
        """
        if os.getpid() != self._process:
            raise LedgerError(f"noise {name!r}: this access belongs to process {self._process}, which forked since")
        if not self._open:
            raise LedgerError(f"noise {name!r}: the access of stage {self.access.stage!r} is closed")
        if name not in self._left:
            raise LedgerError(
                f"noise {name!r} was drawn already or is not listed; stage {self.access.stage!r} has "
                f"{listed(sorted(self._left)) or 'none'} left of {listed(sorted(self.access.multipliers))}"
            )
        if self.ranks.size > 1 and kind != GAUSSIAN:
            raise LedgerError(
                f"noise {name!r}: {kind} is not a sum of parts, so {self.ranks.size} processes cannot share it"
            )
        if self.access.kind(name) != kind:
            planned = self.access.kind(name)
            raise LedgerError(f"noise {name!r} of stage {self.access.stage!r} is {planned} in the plan, not {kind}")
        return self._left.pop(name)

    def _close(self) -> None:
        self._open = False

    def _check_used_up(self) -> None:
        if self._left and self.private:
            raise LedgerError(f"stage {self.access.stage!r}: {listed(sorted(self._left))} was paid for and never drawn")

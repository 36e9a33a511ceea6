"""Poisson lots that are cut to a largest number of records, and the probability with which that costs privacy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scipy.special import betainc

from lightning_dpgen.privacy.delta_events import SMALLEST_FAILURE
from lightning_dpgen.privacy.errors import PlanMismatch
from lightning_dpgen.privacy.number_arguments import read_whole
from lightning_dpgen.privacy.strict_json import check_shape, shape

# Far more than the incomplete beta function is off.
_ROUNDING = 1e-9
_LARGEST = 10**12
_WHOLE = {"type": "integer", "minimum": 1, "maximum": _LARGEST}
_SHAPE = shape(largest_lot=_WHOLE, at_most=_WHOLE)


@dataclass(frozen=True)
class Truncation:
    """The cut of a Poisson lot: of more than `largest_lot` units so many are chosen at random, each set alike.

    Whether a record meets a full lot follows from the coins of the others alone. With no more than `at_most` records in
    all, that has a probability below `failure`, and otherwise the lot is an ordinary one (docs/guarantees/lots.md,
    "Truncated lots").

    Args:
        largest_lot: the most units (records, or persons) in a lot.
        at_most: the most units that any data set of this kind can hold: public, and certain.

    Raises:
        ValueError: for numbers that are no whole ones, from 1 to 10^12.

    Example:
        >>> 1e-12 < Truncation(160, at_most=1000).failure(0.1) < 1e-8
        True
    """

    largest_lot: int
    at_most: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "largest_lot", read_whole("largest_lot", self.largest_lot))
        object.__setattr__(self, "at_most", read_whole("at_most", self.at_most, of=" of records"))
        for name in ("largest_lot", "at_most"):
            if getattr(self, name) > _LARGEST:
                raise ValueError(f"{name}={getattr(self, name)}: expected a whole number from 1 to {_LARGEST:,}")

    def failure(self, sample_rate: float) -> float:
        """Return an upper bound of the probability that a record meets a full lot: that of as many others in it.

        It is 0 where there cannot be so many.
        """
        if self.at_most <= self.largest_lot:
            return 0.0
        tail = float(betainc(self.largest_lot, self.at_most - self.largest_lot, sample_rate))
        return min(1.0, max(tail * (1.0 + _ROUNDING), SMALLEST_FAILURE))

    def check(self, stage: str, units: int) -> None:
        """Refuse more records than there can be; the message does not say how many there are.

        Raises:
            PlanMismatch: naming the bound.
        """
        if units > self.at_most:
            raise PlanMismatch(
                f"stage {stage!r}: there are more records than at_most={self.at_most}, and the guarantee holds for no "
                "more: give a bound that is known of all data of this kind (a population, a capacity) and not found by "
                "trying; nothing was charged"
            )

    def as_json(self) -> dict[str, int]:
        """Return the numbers as they stand in a ledger."""
        return {"largest_lot": self.largest_lot, "at_most": self.at_most}

    @classmethod
    def from_json(cls, fields: Any) -> Truncation:
        """Return the cut that `as_json` described.

        Raises:
            ValueError: if the fields describe none.
        """
        check_shape(fields, _SHAPE)
        return cls(int(fields["largest_lot"]), int(fields["at_most"]))

"""The strategy of correlated noise: how the noise of a step follows from the steps before it, and how far a record reaches.

Gradients are the rows of G, one for each step, each clipped and divided by its bound. Steps release the rows of
``G + C^-1 Z``, where Z is independent Gaussian noise and C a public lower-triangular matrix, the strategy: post-processing
of the Gaussian mechanism ``C G + Z`` (docs/guarantees/correlated_noise.md, "Correlated noise"). Noise of later steps takes
back a part of the noise of earlier ones, so that sums of many gradients hold less of it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lightning_dpgen.common.strict_json import check_shape, shape

CYCLIC = "cyclic"
MOST_STEPS, MOST_BANDS = 10**6, 4096
# The most strategies of a plan, so that others can compute their sensitivities in seconds.
MOST_STRATEGIES = 16
_WHOLE = {"type": "integer", "minimum": 1, "maximum": MOST_STEPS}
_NUMBERS = {"type": "array", "maxItems": MOST_BANDS, "items": {"type": "number", "minimum": 0, "maximum": 1}}
_NONE = {"type": "array", "maxItems": 0}
# Strategies of older files could have buffers, whose lists must be empty.
_SHAPE = shape(sampler={"enum": [CYCLIC]}, steps=_WHOLE, period=_WHOLE, coefficients=_NUMBERS, decays_=_NONE, scales_=_NONE)


@dataclass(frozen=True)
class Strategy:
    """A banded lower-triangular Toeplitz matrix C, for records that take turns.

    Each record belongs to one of `period` groups, drawn for it alone; a step draws a Poisson sample of the next group.

    Args:
        steps: the number of steps T.
        period: the number of groups: a record takes part at most once in so many steps.
        coefficients: the first column of C, from 1, never rising, 0 or more; as many as groups at most.

    Raises:
        ValueError: for anything else; beyond the groups the cost of bands is not proved.

    Example:
        >>> round(Strategy(steps=8, period=4, coefficients=(1.0, 0.5)).sensitivity ** 2, 9)
        1.25
    """

    steps: int
    period: int
    coefficients: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", tuple(float(value) for value in self.coefficients))
        for name in ("steps", "period"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= MOST_STEPS:
                raise ValueError(f"{name}={value!r} of a strategy: expected a whole number from 1 to {MOST_STEPS:,}")
        column = self.coefficients
        if not 1 <= len(column) <= MOST_BANDS or column[0] != 1.0:
            raise ValueError(f"coefficients: expected 1 to {MOST_BANDS:,} numbers, of which the first is 1")
        if not all(0.0 <= later <= earlier for earlier, later in itertools.pairwise(column)):
            raise ValueError(
                "coefficients: expected numbers of 0 or more that never rise: of others sensitivity is not known"
            )
        if len(column) > self.period:
            raise ValueError(
                f"{len(column)} bands and period={self.period}: expected at most as many bands as groups, so that no "
                "record takes part twice within the reach of its noise"
            )

    @property
    def rounds(self) -> int:
        """The largest number of steps in which a record can take part."""
        return -(-self.steps // self.period)

    @cached_property
    def sensitivity(self) -> float:
        """The largest L2 norm that one record, whose rows are no longer than 1, adds to one independent release of ``C G``.

        Each round of all groups is one release, to which a record adds one column of C.
        """
        return float(np.linalg.norm(self.coefficients[: self.steps]))

    @cached_property
    def digest(self) -> str:
        """A digest, by which lines of a ledger name the strategy of their plan."""
        return hashlib.blake2b(json.dumps(self.as_json()).encode(), digest_size=16).hexdigest()

    def is_close(self, other: Strategy) -> bool:
        """Return whether two strategies are equal but for rounding of their coefficients."""
        same = (self.steps, self.period, len(self.coefficients)) == (other.steps, other.period, len(other.coefficients))
        return same and np.allclose(self.coefficients, other.coefficients, rtol=1e-9, atol=1e-12)

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        fields = {"sampler": CYCLIC, "steps": self.steps, "period": self.period, "coefficients": list(self.coefficients)}
        # Certificates and ledgers of before have empty lists of buffers, and are compared with what is written today.
        return fields | {"decays": [], "scales": []}

    @classmethod
    def from_json(cls, fields: Any) -> Strategy:
        """Return the strategy that `as_json` described; fields may be anything that was read.

        Raises:
            ValueError: if they describe none.
        """
        check_shape(fields, _SHAPE)
        if unknown := set(fields) - {"sampler", "steps", "period", "coefficients", "decays", "scales"}:
            raise ValueError(f"a strategy has no field {min(unknown)[:40]!r}")
        return cls(int(fields["steps"]), int(fields["period"]), tuple(fields["coefficients"]))

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
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.signal import lfilter

from lightning_dpgen.privacy.strict_json import check_shape, shape

# The samplers under which correlated noise is proved.
CYCLIC, FIXED_ORDER = "cyclic", "fixed_order"
MOST_STEPS, MOST_BANDS, MOST_BUFFERS = 10**6, 4096, 16
# The most strategies of a plan, so that others can compute their sensitivities in seconds.
MOST_STRATEGIES = 16
_WHOLE = {"type": "integer", "minimum": 1, "maximum": MOST_STEPS}


def _numbers(most: int) -> dict[str, Any]:
    return {"type": "array", "maxItems": most, "items": {"type": "number", "minimum": 0, "maximum": 1}}


_SHAPE = shape(
    sampler={"enum": [CYCLIC, FIXED_ORDER]},
    steps=_WHOLE,
    period=_WHOLE,
    coefficients=_numbers(MOST_BANDS),
    decays=_numbers(MOST_BUFFERS),
    scales=_numbers(MOST_BUFFERS),
)


@dataclass(frozen=True)
class Strategy:
    """A lower-triangular Toeplitz matrix C, and the sampler whose records it is for.

    The first column of C is banded (`coefficients`), or buffered: 1, and then ``sum_j scales[j] decays[j]^(i - 1)`` in row
    i (a buffered linear Toeplitz matrix; Dvijotham and others 2024).

    Args:
        sampler: ``cyclic``: each record belongs to one of `period` groups, drawn for it alone; a step draws a Poisson
            sample of the next group. ``fixed_order``: steps take the records in their order, a pass in `period` steps.
        steps: the number of steps T.
        period: the number of groups, or of the steps of a pass: a record takes part at most once in so many steps.
        coefficients: the first column of C, from 1, never rising, 0 or more.
        decays, scales: of the buffers, each in [0, 1); scales add up to 1 at most.

    Raises:
        ValueError: for anything else, or bands beyond the groups of a cyclic sampler, whose cost is not proved.

    Example:
        >>> round(Strategy("fixed_order", steps=8, period=4, coefficients=(1.0, 0.5)).sensitivity ** 2, 9)
        2.5
    """

    sampler: str
    steps: int
    period: int
    coefficients: tuple[float, ...] = (1.0,)
    decays: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("coefficients", "decays", "scales"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        if self.sampler not in (CYCLIC, FIXED_ORDER):
            raise ValueError(f"sampler={self.sampler!r}: expected {CYCLIC!r} or {FIXED_ORDER!r}")
        for name in ("steps", "period"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= MOST_STEPS:
                raise ValueError(f"{name}={value!r} of a strategy: expected a whole number from 1 to {MOST_STEPS:,}")
        own = self.coefficients
        if not 1 <= len(own) <= MOST_BANDS or own[0] != 1.0:
            raise ValueError(f"coefficients: expected 1 to {MOST_BANDS:,} numbers, of which the first is 1")
        if not all(0.0 <= later <= earlier for earlier, later in itertools.pairwise(own)):
            raise ValueError(
                "coefficients: expected numbers of 0 or more that never rise: of others sensitivity is not known"
            )
        if len(self.decays) != len(self.scales) or len(self.decays) > MOST_BUFFERS:
            raise ValueError(f"decays and scales: expected as many of each, at most {MOST_BUFFERS}")
        if not all(0.0 <= decay < 1.0 for decay in self.decays) or not all(scale >= 0.0 for scale in self.scales):
            raise ValueError("decays and scales: expected decays from 0, below 1, and scales of 0 or more")
        if math.fsum(self.scales) > 1.0:
            raise ValueError("scales add up to more than 1, so that the coefficients rise: expected 1 at most")
        if self.decays and len(own) > 1:
            raise ValueError("coefficients and decays: expected the one or the other")
        if self.sampler == CYCLIC and (self.decays or len(own) > self.period):
            found = "buffers" if self.decays else f"{len(own)} bands"
            raise ValueError(
                f"{found} and period={self.period} of a cyclic sampler: expected at most as many bands as groups, so that "
                "no record takes part twice within the reach of its noise"
            )

    @property
    def rounds(self) -> int:
        """The largest number of steps in which a record can take part."""
        return -(-self.steps // self.period)

    @cached_property
    def column(self) -> np.ndarray:
        """The (steps,) first column of C, float64; read-only."""
        column = np.zeros(self.steps)
        if self.decays:
            column[0] = 1.0
            for decay, scale in zip(self.decays, self.scales, strict=True):
                start = np.zeros(self.steps - 1)
                start[:1] = scale
                column[1:] += lfilter([1.0], [1.0, -decay], start)
        else:
            own = np.array(self.coefficients[: self.steps])
            column[: len(own)] = own
        column.setflags(write=False)
        return column

    @cached_property
    def sensitivity(self) -> float:
        """The largest L2 norm that one record, whose rows are no longer than 1, adds to one independent release of ``C G``.

        In a fixed order all steps are one release: the length of the sum of the columns 0, `period`, 2 `period` and so on,
        than which no columns at least `period` apart add up to more (Kalinin and Lampert 2024, Theorem 2; proved in
        docs/PRIVACY.md). Cyclic sampling makes one release of each round, to which a record adds one column.
        """
        column = self.column
        return float(np.linalg.norm(column if self.sampler == CYCLIC else comb(column, self.period)))

    @cached_property
    def digest(self) -> str:
        """A digest, by which lines of a ledger name the strategy of their plan."""
        return hashlib.blake2b(json.dumps(self.as_json()).encode(), digest_size=16).hexdigest()

    def is_close(self, other: Strategy) -> bool:
        """Return whether two strategies are equal but for rounding of their coefficients."""
        same = (self.sampler, self.steps, self.period) == (other.sampler, other.steps, other.period)
        pairs = [(getattr(self, name), getattr(other, name)) for name in ("coefficients", "decays", "scales")]
        return same and all(len(a) == len(b) and np.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in pairs)

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, fields: Any) -> Strategy:
        """Return the strategy that `as_json` described; fields may be anything that was read.

        Raises:
            ValueError: if they describe none.
        """
        check_shape(fields, _SHAPE)
        if set(fields) != set(cls.__dataclass_fields__):
            raise ValueError(f"a strategy has the fields {', '.join(cls.__dataclass_fields__)}, and no others")
        whole = {name: int(fields[name]) for name in ("steps", "period")}
        return cls(**_as_tuples(fields) | whole)


def _as_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def comb(column: np.ndarray, period: int) -> np.ndarray:
    """Return the (T,) sum of a column, (T,), and of itself moved down by `period`, twice `period`, and so on.

    Example:
        >>> comb(np.array([1.0, 0.5, 0.25]), 2).tolist()
        [1.0, 0.5, 1.25]
    """
    rows = np.pad(column, (0, -len(column) % period)).reshape(-1, period)
    return rows.cumsum(axis=0).ravel()[: len(column)]

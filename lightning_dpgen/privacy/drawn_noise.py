"""A noise as it was drawn: by which mechanism, and for a sum of whole numbers its unit, its bound and its size."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_dpgen.privacy.access import GAUSSIAN, LAPLACE, PURE
from lightning_dpgen.privacy.exact_unit import read_unit
from lightning_dpgen.privacy.pld import REPLACE_ONE
from lightning_dpgen.privacy.strict_json import check_shape, shape

ROUNDED_GAUSSIAN, ROUNDED_LAPLACE = "rounded_gaussian", "rounded_laplace"
ROUNDED_SPHERICAL, DISCRETE_LAPLACE = "rounded_spherical", "discrete_laplace"
REAL_GAUSSIAN, CORRELATED, NOISY_MAX = "gaussian", "correlated_gaussian", "report_noisy_max"
# The mechanisms for sums of whole numbers: the kind of noise of each, and the norm of the bound.
SUMS = {
    ROUNDED_GAUSSIAN: (GAUSSIAN, "L2"),
    ROUNDED_LAPLACE: (LAPLACE, "L1"),
    ROUNDED_SPHERICAL: (PURE, "L2"),
    DISCRETE_LAPLACE: (PURE, "L1"),
}
# All others: the kind of noise of each.
OTHERS = {REAL_GAUSSIAN: GAUSSIAN, CORRELATED: GAUSSIAN, NOISY_MAX: PURE}
_POSITIVE = {"type": "number", "exclusiveMinimum": 0}
_SHAPE = shape(
    mechanism={"enum": [*SUMS, *OTHERS]},
    stage={"type": "string"},
    name={"type": "string"},
    multiplier=_POSITIVE,
    unit_={"type": "string"},
    bound_in_units_=_POSITIVE,
    records_={"type": "integer", "minimum": 1},
)


@dataclass(frozen=True)
class DrawnNoise:
    """One noise of an access. All of it is public.

    Args:
        mechanism: the function of `mechanisms` that has drawn it.
        stage, name: the stage of the access, and the noise among those of the access.
        multiplier: that of the plan.
        unit: the number that a multiple of 1 stands for (`exact_unit`); None for a noise on no sum of whole numbers.
        bound_in_units: the most by which one record moves the sum, in the norm of the mechanism.
        records: the number of times that one unit of privacy moves it by as much.

    Example:
        >>> DrawnNoise("rounded_gaussian", "means", "sum", 2.0, "2^-3", 8.0).scale_in_units("add_or_remove_one")
        16.0
    """

    mechanism: str
    stage: str
    name: str
    multiplier: float
    unit: str | None = None
    bound_in_units: float | None = None
    records: int = 1

    def scale_in_units(self, relation: str) -> float | None:
        """Return the size of the noise in units, a Gaussian's standard deviation or another's scale; None for no sum."""
        if self.bound_in_units is None:
            return None
        return scale_in_units(self.mechanism, self.multiplier, self.bound_in_units, self.records, relation)

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON; without those of sums where it is none."""
        fields = dataclasses.asdict(self)
        return (
            fields
            if self.unit is not None
            else {name: fields[name] for name in ("mechanism", "stage", "name", "multiplier")}
        )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> DrawnNoise:
        """Return the noise that `as_json` described.

        Raises:
            ValueError: if the fields describe none.
        """
        check_shape(fields, _SHAPE)
        noise = cls(**{field.name: fields[field.name] for field in dataclasses.fields(cls) if field.name in fields})
        if (noise.mechanism in SUMS) != (noise.unit is not None) or (noise.unit is None) != (noise.bound_in_units is None):
            raise ValueError(
                f"mechanism={noise.mechanism!r}: expected unit and bound_in_units for a sum of whole numbers alone"
            )
        if noise.unit is not None:
            read_unit(noise.unit)
        return noise


def scale_in_units(mechanism: str, multiplier: float, bound_in_units: float, records: int, relation: str) -> float:
    """Return the size of the noise of a sum, in its units; under replace-one a Gaussian's multiplier is twice the ratio."""
    ratio = multiplier / 2.0 if relation == REPLACE_ONE and mechanism == ROUNDED_GAUSSIAN else multiplier
    return ratio * bound_in_units * records

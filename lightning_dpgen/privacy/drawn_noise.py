"""The mechanisms, and a noise as it was drawn: by which of them, and for a sum of whole numbers its unit and its bound."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lightning_dpgen.common.strict_json import check_shape, shape
from lightning_dpgen.privacy.access import GAUSSIAN, LAPLACE, PURE
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE

# A fraction whose odd part is below this is written as one; any other number of float64 is a whole number times 2^e.
_SMALL = 1 << 16
_SHORT = 10**15
_FORM = re.compile(
    r"(?P<top>[1-9]\d{0,15})(?:/(?P<bottom>[1-9]\d{0,15})|\*2\^(?P<times>-?[1-9]\d{0,3}))?|2\^(?P<power>-?[1-9]\d{0,3})"
)
_LARGEST_POWER = 1100


@dataclass(frozen=True)
class Mechanism:
    """A way to noise a value, by the name of its function in `mechanisms`.

    Ledger, certificate, `verify` and pages ask this table; the audit has a case for each, and the laws of noise go over it.

    Args:
        kind: how an access counts it: ``gaussian``, ``laplace`` or ``pure``.
        norm: for a sum of whole numbers, the norm of its bound, ``L1`` or ``L2``; None for what is no such sum.
        chooses: whether the outcome is one of several places, and no number with noise.
        correlated: whether the noises of all steps are one event.
    """

    name: str
    kind: str
    norm: str | None = None
    chooses: bool = False
    correlated: bool = False

    @property
    def is_real(self) -> bool:
        """True if real numbers are noised; their sum is then rounded to a grid beside the noise."""
        return self.norm is None and not self.chooses

    def scale_in_units(self, multiplier: float, bound_in_units: float, records: int, relation: str) -> float:
        """Return the size of the noise on a sum, in its units: a Gaussian's standard deviation or another's scale.

        Under replace-one a Gaussian's multiplier is twice the ratio.
        """
        ratio = multiplier / 2.0 if relation == REPLACE_ONE and self.kind == GAUSSIAN else multiplier
        return ratio * bound_in_units * records


ROUNDED_GAUSSIAN = Mechanism("rounded_gaussian", GAUSSIAN, "L2")
ROUNDED_LAPLACE = Mechanism("rounded_laplace", LAPLACE, "L1")
ROUNDED_SPHERICAL = Mechanism("rounded_spherical", PURE, "L2")
# No run draws it any more; older certificates of projections state it.
DISCRETE_LAPLACE = Mechanism("discrete_laplace", PURE, "L1")
REAL_GAUSSIAN = Mechanism("gaussian", GAUSSIAN)
CORRELATED = Mechanism("correlated_gaussian", GAUSSIAN, correlated=True)
NOISY_MAX = Mechanism("report_noisy_max", PURE, chooses=True)
_ALL = (ROUNDED_GAUSSIAN, ROUNDED_LAPLACE, ROUNDED_SPHERICAL, DISCRETE_LAPLACE, REAL_GAUSSIAN, CORRELATED, NOISY_MAX)
MECHANISMS = {mechanism.name: mechanism for mechanism in _ALL}
_POSITIVE = {"type": "number", "exclusiveMinimum": 0}
_SHAPE = shape(
    mechanism={"enum": [*MECHANISMS]},
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
        unit: the number that a multiple of 1 stands for (`write_unit`); None for a noise on no sum of whole numbers.
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
        mechanism = MECHANISMS[self.mechanism]
        return mechanism.scale_in_units(self.multiplier, self.bound_in_units, self.records, relation)

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
        whole = MECHANISMS[noise.mechanism].norm is not None
        if (noise.unit is not None, noise.bound_in_units is not None) != (whole, whole):
            raise ValueError(
                f"mechanism={noise.mechanism!r}: expected unit and bound_in_units for a sum of whole numbers alone"
            )
        if noise.unit is not None:
            read_unit(noise.unit)
        return noise


def write_unit(unit: float) -> str:
    """Write a unit as a power of two, as a fraction of small numbers, or as a whole number times a power of two.

    A fraction stands for the unit that was meant where float64 has no such number: the unit is the nearest one to it.

    Args:
        unit: positive and finite.

    Example:
        >>> [write_unit(unit) for unit in (1.0, 2.0**-28, 1 / 784, 3.0, 0.1 + 0.2)]
        ['1', '2^-28', '1/784', '3', '1351079888211149*2^-52']
    """
    part, power = math.frexp(unit)
    if part == 0.5:
        return "1" if power == 1 else f"2^{power - 1}"
    short = Fraction(part).limit_denominator(_SMALL)
    if float(short) == part:
        exact = short * Fraction(2) ** power
        if max(exact.numerator, exact.denominator) < _SHORT:
            return str(exact)
    top = int(math.ldexp(part, 53))
    zeros = (top & -top).bit_length() - 1
    times = power - 53 + zeros
    return f"{top >> zeros}*2^{times}" if times else str(top >> zeros)


def read_unit(text: str) -> Fraction:
    """Return the number that `write_unit` has written.

    Raises:
        ValueError: for any other text.

    Example:
        >>> read_unit("2^-3"), read_unit("1/784"), read_unit("5/16")
        (Fraction(1, 8), Fraction(1, 784), Fraction(5, 16))
    """
    match = _FORM.fullmatch(text) if len(text) <= 64 else None
    if match is not None:
        power = int(match["power"] or match["times"] or 0)
        if abs(power) <= _LARGEST_POWER:
            unit = Fraction(int(match["top"] or 1), int(match["bottom"] or 1)) * Fraction(2) ** power
            # There is one way to write each unit.
            if 2.0**-1000 < unit < 2.0**1000 and write_unit(float(unit)) == text:
                return unit
    raise ValueError(f"unit={text[:64]!r}: expected a power of two (2^-8), a fraction (1/784) or 655371*2^-90")

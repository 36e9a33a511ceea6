"""Neighbouring tables of a projection: one row or one element is replaced, and moves by at most a public distance."""

import numbers
from dataclasses import dataclass

_LEAST, _MOST = 1e-12, 1e12


@dataclass(frozen=True)
class Neighbourhood:
    """One replaced row, or one replaced element, and the distance that it may move.

    Either `radius` is given: rows (or elements) farther than that from a public centre are pulled back to it, so every
    replacement is covered and moves by at most twice the radius. Or `distance` is given, as in the paper: replacements that
    move by at most so much are covered, and nothing enforces it.

    Args:
        unit: ``row`` (distances are Euclidean), or ``element`` (one number of one row).
        radius: public radius, chosen without looking at the records.
        distance: public distance.

    Raises:
        ValueError: for another unit, neither or both of radius and distance, or one that is not positive and finite.

    Example:
        >>> Neighbourhood("row", radius=2.0).change
        4.0
    """

    unit: str
    radius: float | None = None
    distance: float | None = None

    def __post_init__(self) -> None:
        if self.unit not in ("row", "element"):
            raise ValueError(f"unit={self.unit!r}: expected row or element")
        if (self.radius is None) == (self.distance is None):
            raise ValueError(
                f"radius={self.radius}, distance={self.distance}: give one of them. With a radius, rows or elements "
                "farther from the centre are pulled back to it, and any replacement is covered. With a distance, "
                "replacements within it are covered, and nothing enforces it"
            )
        name, value = ("distance", self.distance) if self.radius is None else ("radius", self.radius)
        if not (isinstance(value, numbers.Real) and _LEAST <= value <= _MOST):
            raise ValueError(f"{name}={value}: expected a number from {_LEAST:g} to {_MOST:g}; scale the rows otherwise")
        # Certificates hold it as a float.
        object.__setattr__(self, name, float(value))

    @property
    def enforced(self) -> bool:
        """True if every replacement is covered, because values are pulled back."""
        return self.radius is not None

    @property
    def change(self) -> float:
        """The most that a row moves: in L2 where the unit is a row, in one coordinate where it is an element."""
        return 2.0 * self.radius if self.enforced else self.distance

    @property
    def words(self) -> str:
        """The unit of privacy in the words of certificates: "with ... replaced by ..."."""
        if self.unit == "row":
            if self.enforced:
                return (
                    f"one row replaced by any other row (rows farther than {self.radius:g} from a public centre were "
                    "pulled back to that distance)"
                )
            return (
                f"one row replaced by another at a Euclidean distance of at most {self.distance:g} (declared, not "
                "enforced: against a row m times as far away the protection is m times weaker)"
            )
        reach = (
            f"any other value (values farther than {self.radius:g} from a public centre were pulled back to that distance)"
            if self.enforced
            else f"another at most {self.distance:g} away (declared, not enforced: m times as far, m times weaker)"
        )
        return (
            f"one element of one row replaced by {reach}; a person whose row differs in m elements is protected m times "
            "less, and a whole row is not the unit of this release"
        )

"""The result of a verification, and the tolerance of the numbers that it compares."""

from __future__ import annotations

from dataclasses import dataclass, field

# Relative tolerance of numbers that are recomputed by the same rule; written numbers are rounded up.
TOLERANCE = 1e-6


@dataclass
class Verdict:
    """The result of a verification.

    Attributes:
        problems: reasons why the release must not be trusted; empty if there are none.
        checks: confirmed facts, a line each.
        missing: why the release cannot be checked here, where a package that it needs is missing; None if there is nothing.
        epsilon: epsilon recomputed from the event tree; None if that was not possible.
        notes: facts worth knowing that decide nothing.
        has_plan: whether stages and noises were held against the plan of settings that the certificate declares. Those of a
            program of one's own are as that program states them, and a forged certificate may leave settings out.
    """

    problems: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    epsilon: float | None = None
    notes: list[str] = field(default_factory=list)
    has_plan: bool = True
    missing: str | None = None

    @property
    def good(self) -> bool:
        return not self.problems and self.missing is None

    @property
    def reason(self) -> str:
        """The first problem, or what is missing; empty where the verdict is good."""
        return (self.problems or [self.missing or ""])[0]

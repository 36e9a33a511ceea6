"""The range of epsilon that is planned for and accounted for, everywhere, and the epsilon above which to be wary."""

from __future__ import annotations

import math

from lightning_dpgen.common.number_arguments import check_number

# Beyond this nothing is protected, and a loss distribution would need gigabytes: reported as infinite.
LARGEST_EPSILON = 1000.0
# Below it nothing can be computed soundly.
SMALLEST_EPSILON = 1e-6
# Above it the worst case that a guarantee allows is nearly certain.
CAUTIOUS_EPSILON = 20.0


def check_epsilon(epsilon: float, name: str = "epsilon") -> None:
    """Raise ValueError unless a budget of this epsilon can be planned for."""
    expected = f"from {SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}"
    check_number(name, epsilon, lambda value: SMALLEST_EPSILON <= value <= LARGEST_EPSILON, expected)


def caution(epsilon: float | None) -> str | None:
    """Return a warning of what an epsilon means that is above `CAUTIOUS_EPSILON`; None for one that is not.

    Example:
        >>> caution(4.0) is None, caution(25.0)[:66]
        (True, 'epsilon 25 is above 20, where the guarantee says next to nothing: ')
    """
    if epsilon is None or not CAUTIOUS_EPSILON < epsilon <= LARGEST_EPSILON:
        return None
    return (
        f"epsilon {epsilon:g} is above {CAUTIOUS_EPSILON:g}, where the guarantee says next to nothing: one person's "
        f"presence may change the odds of an outcome by e^{epsilon:g}, about 10^{int(epsilon / math.log(10.0))}, so by "
        "this bound an attacker may be nearly certain who is in the data; 10 or less is the custom"
    )

"""The samplers by name: who takes part in a lot, and the reasons for which others are refused."""

from __future__ import annotations

from types import MappingProxyType

from lightning_dpgen.privacy.strategy import CYCLIC, FIXED_ORDER

POISSON, TRUNCATED = "poisson", "truncated_poisson"
# The samplers for which a cost is proved, each with its law.
SAMPLERS = MappingProxyType(
    {
        POISSON: "each record takes part in each lot independently, with probability sample_rate",
        TRUNCATED: "a Poisson lot, of which largest_lot records are chosen at random where it holds more",
        CYCLIC: "each record belongs to one of several groups, by a draw of its own, and takes part by another in its turn",
        FIXED_ORDER: "steps take the records in their order; one record is replaced by nothing at its place",
    }
)
_SHUFFLED = "passes in a shuffled order can cost more than Poisson lots, and no useful bound of their cost is proved"
# Names that users of other libraries know, each with the reason for which it is refused.
_REFUSED = {
    "shuffle": _SHUFFLED,
    "uniform": "lots of a fixed size have an account where a record is replaced and n is public, not in the relation here",
    "balls_in_bins": "its cost is estimated by drawing its losses at random, which gives no bound that is certain",
}
_REFUSED |= {"shuffled": _SHUFFLED, "sequential": _SHUFFLED, "without_replacement": _REFUSED["uniform"]}


def check_sampler(name: object) -> None:
    """Refuse a name that is of no sampler whose cost is proved.

    Raises:
        ValueError: saying why, and what is proved.

    Example:
        >>> check_sampler("poisson")
        >>> check_sampler("shuffle")
        Traceback (most recent call last):
        ValueError: sampler='shuffle': passes in a shuffled order can cost more than Poisson lots, ...
    """
    if isinstance(name, str) and name in SAMPLERS:
        return
    why = _REFUSED.get(name) if isinstance(name, str) else None
    known = f"expected {' or '.join(map(repr, SAMPLERS))}" if why is None else f"{why}: take {POISSON!r}"
    raise ValueError(f"sampler={str(name)[:60]!r}: {known} ({SAMPLERS[POISSON]})")

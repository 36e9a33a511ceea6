"""The event of a mechanism that may fail with a small probability, and the delta that such failures leave."""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs
import dp_accounting

from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE, Unaccountable

# If failures leave less than this part of delta, rounding would decide what is left.
_ROUNDING = 1e-9
# The smallest probability that a float and a normal quantile can still tell from 0.
SMALLEST_FAILURE = 1e-40


@attrs.frozen
class EpsilonDeltaDpEvent(dp_accounting.DpEvent):
    """A mechanism that is known to be (epsilon, delta)-private under add-or-remove-one, and nothing more.

    Name and fields are those that dp-accounting has for it after its release 0.6, which lacks it.

    Example:
        >>> EpsilonDeltaDpEvent(0.0, 1e-7)
        EpsilonDeltaDpEvent(epsilon=0.0, delta=1e-07)
    """

    epsilon: float
    delta: float


def left_of(delta: float, failures: Iterable[tuple[dp_accounting.DpEvent, int]], relation: str) -> float:
    """Return the delta at which the rest of a composition must be accounted for, beside some (0, d)-private events.

    The worst (0, d)-private mechanism fails openly with probability d and says nothing otherwise. So whatever `rest` is,
    ``delta(eps) = f + (1 - f) delta_rest(eps)`` exactly, with ``1 - f`` the product of all ``1 - d``
    (docs/guarantees/sums.md, "Keys above a threshold"). A record replaced is one removed and one added: d twice.

    Args:
        delta: the delta of the whole composition.
        failures: each an `EpsilonDeltaDpEvent` of epsilon 0, and how often it stands there.
        relation: ``add_or_remove_one`` or ``replace_one``.

    Returns:
        ``(delta - f) / (1 - f)``; 0 if nothing is left, so that no epsilon is finite.

    Raises:
        Unaccountable: for an event with an epsilon of its own.

    Example:
        >>> round(left_of(1e-5, [(EpsilonDeltaDpEvent(0.0, 1e-6), 2)], "add_or_remove_one") * 1e6, 4)
        8.0
    """
    logs, times = [], 2.0 if relation == REPLACE_ONE else 1.0
    for event, count in failures:
        if event.epsilon != 0.0:
            raise Unaccountable(f"{event}: only a mechanism that is private except for its delta can be accounted for")
        if times * event.delta >= 1.0:
            return 0.0
        logs.append(count * math.log1p(-times * event.delta))
    # Summed without rounding, so that no order of events makes a difference.
    log_sound = math.fsum(logs)
    left = (delta + math.expm1(log_sound)) / math.exp(log_sound)
    return left if left > _ROUNDING * delta else 0.0

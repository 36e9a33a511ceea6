"""The total of a study: what its runs cost together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_dpgen.privacy.accounting.event_parts import failure_probability
from lightning_dpgen.privacy.accounting.events import decode
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE, Unaccountable
from lightning_dpgen.privacy.accounting.renyi import RDP_ORDERS, pure_moments, rdp_to_epsilon_offset, renyi_moments

# The part of delta from which failures and pairs are paid where runs are composed by moments; the orders have the rest.
_PAIRS = 0.5
# Beyond it there is no delta left, and exp would overflow.
_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class Total:
    """The cost of the runs of a study together.

    Args:
        epsilon, delta: upper bounds.
        relation: the relation under which they hold: that of the first run.
    """

    epsilon: float
    delta: float
    relation: str
    runs: int


def compose_runs(entries: Sequence[Mapping[str, Any]], epsilon: float, delta: float) -> Total:
    """Compose the entries of a study; where a run has entered several times, its last entry counts.

    Args:
        entries: lines of the study, in order; one without an event is of a run that was stopped before it drew anything.
        epsilon, delta: the total of the study; cost is stated at its delta.

    Raises:
        Unaccountable: if an entry has no account under the relation of the first one.
    """
    last = {entry["run"]: entry for entry in entries}
    # The first entry fixes the way in which runs are composed, before any of them has a result.
    relation, moments = (entries[0]["relation"], entries[0]["moments"]) if entries else (ADD_OR_REMOVE_ONE, True)
    if relation == ADD_OR_REMOVE_ONE and any(entry["relation"] != relation for entry in last.values()):
        raise Unaccountable(
            f"it is about a record replaced ({REPLACE_ONE}), and the first run of this study about one added or "
            "removed, for which that has no account; begin another study with a run about a record replaced"
        )
    runs = [entry for entry in last.values() if entry["event"] is not None]
    cost = _by_moments(runs, relation, epsilon, delta) if moments else _by_pairs(runs, relation, delta)
    return Total(cost, delta, relation, len(last))


def _by_pairs(entries: Sequence[Mapping[str, Any]], relation: str, delta: float) -> float:
    """Return the sum of epsilons; infinite where the deltas add up to more than the total's."""
    pairs = [_pair(entry, relation) for entry in entries]
    within = math.fsum(part for _, part in pairs) <= delta
    return math.fsum(cost for cost, _ in pairs) if within else math.inf


def _by_moments(entries: Sequence[Mapping[str, Any]], relation: str, epsilon: float, delta: float) -> float:
    """Return epsilon by the best of the orders; infinite where failures use up their part of delta."""
    moments, failures = np.zeros(len(RDP_ORDERS)), []
    for entry in entries:
        if entry["moments"]:
            event = decode(entry["event"])
            moments += renyi_moments(event, RDP_ORDERS)
            failures.append(failure_probability(event))
        else:
            cost, failure = _pair(entry, relation)
            moments += pure_moments(cost, RDP_ORDERS)
            failures.append(failure)
    if math.fsum(failures) > _PAIRS * delta:
        return math.inf
    if not entries:
        return 0.0
    shares = _shares(epsilon, delta)
    orders = zip(RDP_ORDERS, moments, strict=True)
    return max(0.0, min(float(moment) + rdp_to_epsilon_offset(a, delta * shares[a]) for a, moment in orders))


def _pair(entry: Mapping[str, Any], relation: str) -> tuple[float, float]:
    """Return the cost of a run as (epsilon, delta) under a relation; raise Unaccountable if it has entered with no pair."""
    if entry["relation"] != relation and entry["replaced"] is not None:
        return tuple(entry["replaced"])
    if entry["pair"] is None:
        raise Unaccountable("runs of this study enter with their (epsilon, delta), as its first one did; expected a pair")
    epsilon, delta = entry["pair"]
    if entry["relation"] == relation:
        return epsilon, delta
    # A record replaced is one removed and one added.
    return 2.0 * epsilon, delta * (1.0 + math.exp(min(epsilon, _LARGEST_EXPONENT)))


def _shares(epsilon: float, delta: float) -> dict[int, float]:
    """Return the share of delta of each order, fixed with the total: the best for a Gaussian gets as much as all others."""
    of_all = (1.0 - _PAIRS) / 2.0
    first = max(RDP_ORDERS, key=lambda order: (epsilon - rdp_to_epsilon_offset(order, of_all * delta)) / order)
    rest = of_all / (len(RDP_ORDERS) - 1)
    return {order: of_all if order == first else rest for order in RDP_ORDERS}

"""The cost of several runs together, where no study has a total for them."""

from __future__ import annotations

from collections.abc import Sequence

import dp_accounting

from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import round_up
from lightning_dpgen.privacy.accounting.events import compose_events


def say_together(events: Sequence[dp_accounting.DpEvent], delta: float, what: str = "releases") -> str:
    """Return what runs tell together, in words: an upper bound about one record that takes part in all of them.

    The bound is that of a composition whose parts are fixed in advance: budgets and settings of no run may follow from the
    results of another one, for which a `Study` has an account.

    Args:
        events: of all that each run has drawn, or may have.
        delta: at which epsilon is stated.
        what: the runs, in a word.

    Example:
        >>> say_together([dp_accounting.GaussianDpEvent(4.0)] * 2, 1e-5)
        'about people whose records are in all of these runs, the 2 releases tell together: epsilon 1.35647 at delta 1e-05'
    """
    epsilon = compute_epsilon(compose_events(list(events)), delta).epsilon
    return (
        f"about people whose records are in all of these runs, the {len(events)} {what} tell together: epsilon "
        f"{round_up(epsilon):g} at delta {delta:g}"
    )

"""Renyi moments of events: looser than privacy loss distributions, far quicker, and sound at any delta."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import dp_accounting
import numpy as np
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from scipy.special import gammaln

from lightning_dpgen.privacy.accounting.event_parts import Leaves, join_gaussians, leaves_of, without_failures
from lightning_dpgen.privacy.accounting.private_selection import OneOfDpEvent, selected_moments

RDP_ORDERS = [*range(2, 33), 40, 48, 64, 96, 128, 192, 256, 512, 1024]
# A search needs only a few; the largest orders take longest.
_FEW_ORDERS = [2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64]


def compute_epsilon_by_rdp(event: dp_accounting.DpEvent, delta: float) -> float:
    """Return epsilon by Renyi moments: looser and far quicker, for brackets and searches."""
    event, delta = without_failures(event, delta)
    flat = join_gaussians(event)
    return math.inf if flat is None or delta == 0.0 else epsilon_by_rdp(tuple(leaves_of(flat, 1)), delta)


def renyi_moments(event: dp_accounting.DpEvent, orders: Sequence[int]) -> np.ndarray:
    """Return the (orders,) Renyi moments of an event under add-or-remove-one, without failures; infinite if not private.

    Example:
        >>> renyi_moments(dp_accounting.GaussianDpEvent(1.0), [2, 4]).tolist()
        [1.0, 2.0]
    """
    flat = join_gaussians(without_failures(event, 0.5)[0])
    if flat is None:
        return np.full(len(orders), math.inf)
    return sum((count * moments_of(leaf, tuple(orders)) for leaf, count in leaves_of(flat, 1)), np.zeros(len(orders)))


def pure_moments(epsilon: float, orders: Sequence[int]) -> np.ndarray:
    """Return the (orders,) largest Renyi moments of an `epsilon`-private mechanism: those of randomised response.

    Example:
        >>> pure_moments(1.0, [2, 1024]).round(3).tolist()
        [0.735, 1.0]
    """
    a = np.asarray(orders, dtype=float)
    return (np.logaddexp(a * epsilon, (1.0 - a) * epsilon) - np.logaddexp(0.0, epsilon)) / (a - 1.0)


def rdp_to_epsilon_offset(order: int, delta: float) -> float:
    """Return what turns a Renyi moment into an epsilon, as a sum (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    return math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1)


# Plan, certificate and verification ask for the same numbers, and so does the next run with these settings.
@functools.lru_cache(maxsize=4096)
def epsilon_by_rdp(leaves: Leaves, delta: float, quick: bool = True) -> float:
    """Return epsilon by the best of the orders; a quick answer tries few of them."""
    # Whole orders only: the fractional ones fail to converge for large lots and add nothing to a bracket.
    orders = _FEW_ORDERS if quick else RDP_ORDERS
    moments = sum((count * moments_of(leaf, tuple(orders)) for leaf, count in leaves), np.zeros(len(orders)))
    epsilon, order = compute_epsilon(orders, moments, delta)
    # A small epsilon needs large orders.
    return epsilon_by_rdp(leaves, delta, quick=False) if quick and order == _FEW_ORDERS[-1] else float(epsilon)


def profile_by_rdp(leaves: Leaves, epsilons: np.ndarray) -> np.ndarray:
    """Return the (n,) delta at each epsilon by the best order (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    orders = np.array(RDP_ORDERS, dtype=float)
    moments = sum((count * moments_of(leaf, tuple(RDP_ORDERS)) for leaf, count in leaves), np.zeros(len(orders)))
    logs = (orders - 1.0) * (moments + np.log1p(-1.0 / orders) - epsilons[:, None]) - np.log(orders)
    return np.exp(np.minimum(logs.min(axis=1), 0.0))


@functools.lru_cache(maxsize=4096)
def moments_of(event: dp_accounting.DpEvent, orders: tuple[int, ...]) -> np.ndarray:
    """Return the (orders,) Renyi moments of an event."""
    if isinstance(event, OneOfDpEvent):
        return np.max([moments_of(one, orders) for one in event.events], axis=0)
    if isinstance(event, dp_accounting.dp_event.RepeatAndSelectDpEvent):
        return selected_moments(moments_of(event.event, orders), orders, event.mean, event.shape)
    if isinstance(event, dp_accounting.PoissonSampledDpEvent) and isinstance(event.event, dp_accounting.GaussianDpEvent):
        rate, multiplier = float(event.sampling_probability), float(event.event.noise_multiplier)
        if 0.0 < rate < 1.0 and multiplier > 0.0 and all(type(order) is int for order in orders):
            return sampled_moments(rate, multiplier, orders)
    return RdpAccountant(orders=list(orders)).compose(event).rdp


def sampled_moments(rate: float, multiplier: float, orders: Sequence[int]) -> np.ndarray:
    """Return the (orders,) Renyi moments of a Gaussian on a Poisson sample (Mironov, Talwar and Zhang 2019, Section 3.3).

    They are those of dp-accounting, which adds the terms of each order one by one in Python, but also right in each digit
    where they are as small as rounding.

    Args:
        rate: in (0, 1).
        multiplier: above 0.
        orders: whole numbers from 2.

    Example:
        >>> sampled_moments(0.1, 1.0, [2, 8]).round(4).tolist()
        [0.017, 1.3784]
    """
    moments = np.empty(len(orders))
    for place, order in enumerate(orders):
        i = np.arange(2.0, order + 1.0)
        chosen = gammaln(order + 1.0) - gammaln(i + 1.0) - gammaln(order - i + 1.0)
        grown = (i * i - i) / (2.0 * multiplier**2)
        # The sum less 1, which rounding beside 1 would hide: shares add up to 1, and each grows by e^grown - 1.
        logs = chosen + i * math.log(rate) + (order - i) * math.log1p(-rate) + grown + np.log(-np.expm1(-grown))
        largest = logs.max()
        moments[place] = np.logaddexp(0.0, largest + math.log(np.exp(logs - largest).sum())) / (order - 1.0)
    return moments

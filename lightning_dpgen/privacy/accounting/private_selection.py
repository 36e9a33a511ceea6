"""The best of a secret number of trials: the law of their number, the cost of choosing among them, and the draw.

The runs of a grid compose: each is paid for. But if the number of trials is drawn from a law that is fixed in advance and
stays secret, and nothing is told about the losers, the winner costs little more than two trials, however many there were
(Papernot and Steinke 2022, "Hyperparameter tuning with Renyi differential privacy").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Context, Decimal

import attrs
import dp_accounting
import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta
from scipy.optimize import brentq

from lightning_dpgen.privacy.noise.rounded_normal import Words

# The shape of each law, as `RepeatAndSelectDpEvent` has it: truncated negative binomial ones, and the Poisson law.
SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}
SMALLEST_MEAN, LARGEST_MEAN = 1.01, 1000.0
# Decimal places to which chances of numbers of trials are computed, beyond those of the digits that are known.
_PLACES = 20


@attrs.frozen
class OneOfDpEvent(dp_accounting.DpEvent):
    """One of several events, drawn without a look at the records; it costs at most as much as the dearest of them.

    dp-accounting has no such event. The draw is told with the outcome, so ``exp((a - 1) D_a)`` of the whole is the mean of
    that of the parts.

    Example:
        >>> OneOfDpEvent([dp_accounting.GaussianDpEvent(2.0), dp_accounting.GaussianDpEvent(3.0)]).events[0]
        GaussianDpEvent(noise_multiplier=2.0)
    """

    events: Sequence[dp_accounting.DpEvent] = attrs.field(converter=tuple)


def one_of(events: Sequence[dp_accounting.DpEvent]) -> dp_accounting.DpEvent:
    """Return the event of one of these; where all are equal, that event itself."""
    different = [event for position, event in enumerate(events) if event not in events[:position]]
    return different[0] if len(different) == 1 else OneOfDpEvent(different)


def selected_moments(moments: np.ndarray, orders: Sequence[float], mean: float, shape: float) -> np.ndarray:
    """Return the Renyi moments of the best of a random number of trials.

    Theorem 2 of Papernot and Steinke for the truncated negative binomial laws, Theorem 6 for the Poisson law.

    Args:
        moments: (orders,) the moments of one trial, with its score.
        orders: numbers above 1.
        mean: the mean number of trials.
        shape: the shape of its law, one of `SHAPES`.

    Returns:
        (orders,)

    Example:
        >>> one = 0.1 * np.array([2.0, 8.0, 32.0])
        >>> bool((selected_moments(one, [2.0, 8.0, 32.0], 10.0, 0.0) > one).all())
        True
    """
    of_trial, a = np.asarray(moments, dtype=np.float64), np.asarray(orders, dtype=np.float64)
    whole = of_trial + math.log(mean) / (a - 1.0)
    if math.isinf(shape):
        at = np.log1p(1.0 / (a - 1.0))
        whole += mean * np.array([compute_delta(a, of_trial, epsilon)[0] for epsilon in at])
    else:
        whole += (1.0 + shape) * np.min((1.0 - 1.0 / a) * of_trial - math.log(_gamma(mean, shape)) / a)
    # Moments grow with the order.
    return np.minimum.accumulate(whole[::-1])[::-1]


def draw_trial_count(words: Words, law: str, mean: float) -> int:
    """Draw a number of trials from a law, exactly; it can be 0 under the Poisson law alone.

    The number is k where a uniform U is between the chance of fewer than k trials and that of k or fewer. Both are bounded
    by decimal numbers; where the bounds leave more than one number, more digits of U and of the law are taken. So the draw
    has the law itself, the tail included (docs/guarantees/several_releases.md, "The best of several trials").

    Args:
        words: a function that makes as many independent, uniform uint64 as it is asked for, such as `PrivateStream.words`.
        law: a key of `SHAPES`.
        mean: the mean of the law, from `SMALLEST_MEAN` to `LARGEST_MEAN`.

    Example:
        >>> draw_trial_count(lambda size: np.full(size, 15 << 60, np.uint64), "geometric", 2.0)
        5
    """
    digits, bits = 0, 0
    while True:
        digits, bits = digits << 64 | int(words(1)[0]), bits + 64
        # A bit is less than a third of a decimal place.
        number = _find_number(digits, bits, law, mean, _PLACES + bits // 3)
        if number is not None:
            return number


def _find_number(digits: int, bits: int, law: str, mean: float, places: int) -> int | None:
    """Return the number for every U from `digits` to ``digits + 1``, times 2^-bits, or None if there may be several.

    Args:
        places: decimal places to which probabilities are computed.
    """
    context = Context(prec=places)
    # A quotient by 2^bits has as many decimal places as bits, and so is exact.
    exact = Context(prec=2 * bits)
    low, high = (exact.divide(Decimal(end), Decimal(1 << bits)) for end in (digits, digits + 1))
    total = Decimal(0)
    for number, probability in _law(law, mean, context):
        total = context.add(total, probability)
        # Each probability is a chain of roundings, of less than 10^(1 - places) of it each.
        error = context.multiply(Decimal(number + 2), Decimal(10) ** (2 - places))
        if high <= context.subtract(total, error):
            return number
        if low < context.add(total, error):
            return None
    raise AssertionError("a law has no end")


def most_trials(law: str, mean: float, chance: float = 1e-12) -> int:
    """Return a number of trials that is exceeded with a probability of at most `chance`.

    Under the truncated negative binomial laws the probability of more than k trials is at most ``mean r^k``, with r the
    ratio of their tails. Under the Poisson law, from ``e^2 mean`` on, it is at most ``exp(-k)`` by Chernoff's bound.

    Example:
        >>> most_trials("geometric", 2.0), most_trials("poisson", 100.0)
        (41, 739)
    """
    if law == "poisson":
        return math.ceil(max(math.e**2 * mean, -math.log(chance)))
    return math.ceil(math.log(mean / chance) / -math.log1p(-_gamma(mean, SHAPES[law])))


def probability_of_none(law: str, mean: float) -> float:
    """Return the probability that there is no trial at all."""
    return math.exp(-mean) if law == "poisson" else 0.0


def _law(law: str, mean: float, context: Context) -> Iterator[tuple[int, Decimal]]:
    """Yield the numbers of a law in order, with their probabilities, computed in a context of decimal numbers."""
    exact, one = Decimal(mean), Decimal(1)
    if law == "poisson":
        # A minus sign would round to the digits of the thread's own context.
        number, probability = 0, context.exp(exact.copy_negate())
        while True:
            yield number, probability
            number += 1
            probability = context.divide(context.multiply(probability, exact), Decimal(number))
    if law == "geometric":
        power, rest = context.divide(one, exact), context.divide(context.subtract(exact, one), exact)
    else:
        gamma = Decimal(_gamma(mean, SHAPES[law]))
        rest = context.subtract(one, gamma)
        power = context.divide(rest, context.ln(gamma).copy_negate())
    number = 1
    while True:
        yield number, power if law == "geometric" else context.divide(power, Decimal(number))
        power = context.multiply(power, rest)
        number += 1


def _gamma(mean: float, shape: float) -> float:
    """Return the parameter of the geometric or logarithmic law of a mean."""
    if shape == SHAPES["geometric"]:
        return 1.0 / mean
    return brentq(lambda gamma: (1.0 / gamma - 1.0) / -math.log(gamma) - mean, 1e-3 / mean**2, 1.0 - 1e-12, xtol=1e-15)

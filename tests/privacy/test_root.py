"""The multiplier that meets a limit is found for falling costs of any form, and quickly for those of accountants."""

import math

import pytest

from lightning_dpgen.privacy.accounting.epsilon_range import LARGEST_EPSILON
from lightning_dpgen.privacy.planning.solving import smallest_multiplier_within

# Each cost has the multiplier at which it falls to 2; those without one are never as dear within reach.
COSTS = {
    "a power": (lambda m: 6.0 * m**-1.5, 3.0 ** (1 / 1.5)),
    "two powers": (lambda m: m**-2 + m**-0.5, 1.0),
    "an exponential": (lambda m: math.exp(3.0 - m), 3.0 - math.log(2.0)),
    "a jump": (lambda m: 1.0 if m >= 1.7 else 9.0, 1.7),
    "stairs": (lambda m: 0.5 * math.ceil(12.0 / m), 3.0),
    "infinite at first": (lambda m: 2.6 / m if m > 1.2 else math.inf, 1.3),
    "beyond the largest at first": (lambda m: 1.8 / m if m > 0.85 else 3.0 * LARGEST_EPSILON, 0.9),
    "nothing in the end": (lambda m: max(0.0, 5.0 - m), 3.0),
    "flat, then steep": (lambda m: 1.9 - 1e-6 * m if m > 0.7 else 1.9 * (0.7 / m) ** 30, 0.7 / (2.0 / 1.9) ** (1 / 30)),
    "always cheap": (lambda m: 1e-3 / m, None),
    "always free": (lambda m: 0.0, None),
}


@pytest.mark.parametrize("start", [0.3, 1.0, 2.9, 8.0])
@pytest.mark.parametrize("cost", COSTS)
def test_meets_the_target_from_below(cost, start):
    cost_at, where = COSTS[cost]
    found = smallest_multiplier_within(cost_at, 2.0, 10.0, start=start)
    assert cost_at(found) <= 2.0
    if where is None:
        # Less noise than this protects nothing, so the search stops there.
        assert found < 0.2
    else:
        assert cost_at(found) >= 2.0 * (1.0 - 1.1e-4) or found <= where * (1.0 + 1.1e-4)


@pytest.mark.parametrize("start", [0.5, 5.0])
def test_where_the_largest_is_too_dear_it_is_the_answer(start):
    assert smallest_multiplier_within(lambda m: 9.0 / m, 2.0, 3.0, start=start) == 3.0
    assert smallest_multiplier_within(lambda m: math.inf, 2.0, 3.0, start=start) == 3.0


def test_few_evaluations_are_made():
    calls = []
    smallest_multiplier_within(lambda m: calls.append(m) or m**-1.2 + 0.3 * m**-2, 0.9, 50.0, start=1.0)
    assert len(calls) <= 5

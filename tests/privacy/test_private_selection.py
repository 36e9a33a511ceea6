"""The best of a secret number of trials: its cost against another implementation and an exact one, and its law."""

import functools
import itertools
import json
import math
from decimal import Context

import mpmath
import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.event_parts import hashable
from lightning_dpgen.privacy.accounting.events import UnknownEvent, decode, encode
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE, Unaccountable
from lightning_dpgen.privacy.accounting.private_selection import (
    LARGEST_MEAN,
    SHAPES,
    SMALLEST_MEAN,
    OneOfDpEvent,
    _gamma,
    _law,
    draw_trial_count,
    one_of,
    probability_of_none,
)
from lightning_dpgen.privacy.accounting.renyi import RDP_ORDERS, moments_of
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError
from lightning_dpgen.privacy.mechanisms import number_of_trials
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.privacy.studies.study import Study, study_entry

ORDERS = [*range(2, 33), 40, 48, 64, 96, 128, 192, 256, 512, 1024]
GAUSSIAN, LAPLACE = dp_event.GaussianDpEvent(2.0), dp_event.LaplaceDpEvent(3.0)
LOTS = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 1000)
RUN = dp_event.ComposedDpEvent([GAUSSIAN, LOTS])


@pytest.mark.parametrize("law", SHAPES)
@pytest.mark.parametrize("mean", [1.5, 5.0, 10.0, 200.0])
@pytest.mark.parametrize("event", [GAUSSIAN, LAPLACE, RUN], ids=["gaussian", "laplace", "run"])
def test_costs_what_another_implementation_says(law, mean, event):
    whole = dp_event.RepeatAndSelectDpEvent(event, mean, SHAPES[law])
    for delta in (1e-3, 1e-6):
        found = compute_epsilon(whole, delta)
        assert found.epsilon == pytest.approx(RdpAccountant(ORDERS).compose(whole).get_epsilon(delta), rel=1e-6)
        assert found.method == "rdp"


@pytest.mark.parametrize("law", SHAPES)
def test_no_delta_of_the_best_of_gaussian_trials_is_above_what_is_certified(law):
    """One trial is N(x, s^2) and its score is its value, so the best is the largest, whose law is known exactly."""
    deviation, mean, delta = 2.0, 50.0, 1e-3
    trial = dp_event.GaussianDpEvent(deviation)

    values = np.linspace(-20.0, 20.0, 400_001)
    present, absent = (_density(law, mean, values, centre, deviation) for centre in (1.0, 0.0))

    def exact(epsilon):
        pairs = ((present, absent), (absent, present))
        return max(np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0.0), values) for p, q in pairs)

    certified = compute_epsilon(dp_event.RepeatAndSelectDpEvent(trial, mean, SHAPES[law]), delta).epsilon
    assert exact(certified) <= delta
    # The epsilon of one trial does not bound the best of several.
    assert exact(compute_epsilon(trial, delta).epsilon) > delta


def _density(law, mean, value, centre, deviation):
    """Return the density of the best of a random number of normals: that of one, times the generating function's slope."""
    below = stats.norm.cdf(value, centre, deviation)
    if law == "poisson":
        slope = mean * np.exp(mean * (below - 1.0))
    elif law == "geometric":
        gamma = 1.0 / mean
        slope = gamma / (1.0 - (1.0 - gamma) * below) ** 2
    else:
        gamma = stats_gamma(mean)
        slope = (1.0 - gamma) / (-math.log(gamma) * (1.0 - (1.0 - gamma) * below))
    return slope * stats.norm.pdf(value, centre, deviation)


@functools.cache
def stats_gamma(mean):
    """Find the parameter of the logarithmic law of a mean, by bisection."""
    low, high = 1e-6, 1.0 - 1e-6
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if stats.logser(1.0 - middle).mean() > mean else (low, middle)
    return low


REFERENCE = {
    "geometric": lambda mean: stats.geom(1.0 / mean),
    "logarithmic": lambda mean: stats.logser(1.0 - stats_gamma(mean)),
    "poisson": lambda mean: stats.poisson(mean),
}


def _p_value(numbers, law):
    """Test numbers against a law by chi-square; a tail that is expected fewer than ten times is pooled."""
    most = 1 + int((len(numbers) * law.sf(np.arange(1, 10**4)) < 10.0).argmax())
    found = np.bincount(np.minimum(numbers, most), minlength=most + 1)
    expected = len(numbers) * np.append(law.pmf(np.arange(most)), law.sf(most - 1))
    kept = expected > 0.0
    assert not found[~kept].any()
    return stats.chisquare(found[kept], expected[kept] * found.sum() / expected[kept].sum()).pvalue


@pytest.mark.parametrize("law", SHAPES)
def test_the_number_has_its_law(law):
    """There are 8,000 draws from a fixed seed. A right law fails with probability 1e-4; a mean a quarter larger fails."""
    words = np.random.PCG64DXSM(0).random_raw
    numbers = np.array([draw_trial_count(words, law, 6.0) for _ in range(8000)])
    assert _p_value(numbers, REFERENCE[law](6.0)) > 1e-4
    assert _p_value(numbers, REFERENCE[law](7.5)) < 1e-4
    assert probability_of_none(law, 6.0) == pytest.approx(REFERENCE[law](6.0).pmf(0))


@pytest.mark.parametrize("law", SHAPES)
@pytest.mark.parametrize("mean", [SMALLEST_MEAN, 10.0, pytest.param(LARGEST_MEAN, marks=pytest.mark.slow)])
def test_the_law_is_one_and_has_its_mean(law, mean):
    numbers = itertools.islice(_law(law, mean, Context(prec=40)), 40_000 if law == "poisson" else 400_000)
    total = first = 0.0
    for number, probability in numbers:
        total, first = total + float(probability), first + number * float(probability)
        if number > 2 * mean and probability < 1e-15:
            break
    assert total == pytest.approx(1.0, abs=1e-9) and first == pytest.approx(mean, rel=1e-6)


def _given(*chosen):
    """Return a function that gives these words, one at a time, and then the last one for ever."""
    left = list(chosen)
    return lambda size: np.array([left.pop(0) if len(left) > 1 else left[0]], np.uint64)


def _number(law, mean, *chosen):
    """Return the number of a U with these words, and then the last one for ever, by mpmath."""
    with mpmath.workprec(900):
        digits = functools.reduce(lambda known, word: known << 64 | word, [*chosen, *[chosen[-1]] * 9])
        uniform, total = mpmath.mpf(digits) / mpmath.mpf(2) ** (64 * (len(chosen) + 9)), mpmath.mpf(0)
        exact, gamma = mpmath.mpf(mean), mpmath.mpf(float(_gamma(mean, SHAPES[law]))) if law == "logarithmic" else None
        scale = -mpmath.log(gamma) if gamma else None
        for number in itertools.count(int(law != "poisson")):
            if law == "poisson":
                total += mpmath.exp(-exact) * exact**number / mpmath.factorial(number)
            elif law == "geometric":
                total += (1 - 1 / exact) ** (number - 1) / exact
            else:
                total += (1 - gamma) ** number / (number * scale)
            if uniform < total:
                return number, total


@pytest.mark.parametrize("law", SHAPES)
@pytest.mark.parametrize("mean", [1.3, 12.1])
def test_the_number_is_that_of_the_law_in_real_numbers(law, mean):
    """Also at a border: U is the chance of so many or fewer but for the last place of its third word, and in the tail."""
    for first in (0, 1, 2**62, 2**63 + 5, 2**64 - 1 - 2**20):
        number, total = _number(law, mean, first, 7)
        assert draw_trial_count(_given(first, 7), law, mean) == number
        with mpmath.workprec(900):
            border = int(mpmath.floor(total * mpmath.mpf(2) ** 192))
        for apart in (-1, 0, 1):
            words = [border + apart >> 64 * place & 2**64 - 1 for place in (2, 1, 0)]
            assert draw_trial_count(_given(*words, 12345), law, mean) == _number(law, mean, *words, 12345)[0]


def test_ends_where_the_first_words_are_those_of_no_number():
    """Words of 1 alone stand for U = 1; another word after some of them ends the search, far in the tail."""
    for law in SHAPES:
        assert draw_trial_count(_given(0), law, LARGEST_MEAN) <= 1
        assert 10 < draw_trial_count(_given(2**64 - 1, 2**64 - 1, 5), law, 3.0) < 10**4


def test_one_of_several_costs_at_each_order_what_the_dearest_does():
    other = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.001, dp_event.GaussianDpEvent(0.6)), 500)
    both = compute_epsilon(dp_event.RepeatAndSelectDpEvent(OneOfDpEvent([GAUSSIAN, other]), 10.0, 0.0), 1e-5).epsilon
    alone = [
        compute_epsilon(dp_event.RepeatAndSelectDpEvent(event, 10.0, 0.0), 1e-5).epsilon for event in (GAUSSIAN, other)
    ]
    assert both >= max(alone)
    assert one_of([GAUSSIAN, dp_event.GaussianDpEvent(2.0)]) == GAUSSIAN
    assert len(one_of([RUN, GAUSSIAN, RUN]).events) == 2


def test_the_moments_of_one_of_several_are_the_largest_at_each_order():
    """The events have very different costs, or one is dearer at low orders and the other at high ones."""
    steps = dp_event.PoissonSampledDpEvent(0.001, dp_event.GaussianDpEvent(0.6))
    mixed = hashable(dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(8.0), dp_event.LaplaceDpEvent(2.0)]))
    many = dp_event.SelfComposedDpEvent(steps, 500)
    events = [dp_event.GaussianDpEvent(50.0), dp_event.GaussianDpEvent(0.5), steps, many, mixed]
    alone = {event: moments_of(event, tuple(RDP_ORDERS)) for event in events}
    for some in [*itertools.permutations(events, 2), *itertools.combinations(events, 3), events]:
        assert (moments_of(OneOfDpEvent(some), tuple(RDP_ORDERS)) == np.max([alone[one] for one in some], axis=0)).all()
    over = alone[many] > alone[mixed]
    assert over.any() and not over.all(), "neither is the dearest at every order"


@pytest.mark.parametrize("shape", SHAPES.values())
def test_a_tree_comes_back_from_json(shape):
    event = dp_event.RepeatAndSelectDpEvent(OneOfDpEvent([RUN, GAUSSIAN]), 10.0, shape)
    text = json.dumps(encode(event), allow_nan=False)
    assert encode(decode(json.loads(text))) == encode(event)
    assert compute_epsilon(decode(json.loads(text)), 1e-5) == compute_epsilon(event, 1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"mean": 1.0}, {"mean": 1e9}, {"mean": "5"}, {"shape": 0.5}, {"shape": -1.0}, {"shape": True}, {"shape": "oo"},
        {"event": encode(dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 5.0, 0.0))},
        {"event": {"type": "EpsilonDeltaDpEvent", "epsilon": 0.0, "delta": 1e-7}},
        {"event": {"type": "NonPrivateDpEvent"}}, {"mean": 1.0001},
        {"event": {"type": "ComposedDpEvent", "events": [{"type": "OneOfDpEvent", "events": [encode(GAUSSIAN)]}]}},
        {"event": {"type": "OneOfDpEvent", "events": []}},
    ],
    ids=str,
)  # fmt: skip
def test_another_tree_is_refused(change):
    tree = encode(dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 5.0, 0.0))
    with pytest.raises(UnknownEvent):
        decode(tree | change)


def test_one_of_several_stands_under_a_selection_alone():
    with pytest.raises(UnknownEvent, match="under a selection"):
        decode(encode(OneOfDpEvent([GAUSSIAN, LAPLACE])))
    deep = dp_event.SelfComposedDpEvent(dp_event.ComposedDpEvent([GAUSSIAN, LAPLACE]), 3)
    whole = decode(encode(dp_event.RepeatAndSelectDpEvent(deep, 5.0, 0.0)))
    assert compute_epsilon(whole, 1e-5).epsilon == pytest.approx(
        RdpAccountant(ORDERS).compose(whole).get_epsilon(1e-5), rel=1e-6
    )


def test_of_a_record_replaced_nothing_is_known():
    with pytest.raises(Unaccountable, match="best of several"):
        compute_epsilon(dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 5.0, 0.0), 1e-5, relation=REPLACE_ONE)


def _plan(**kinds):
    access = Access("selection", {"trials": 5.0}, kinds={"trials": "geometric"} | kinds, trials=(GAUSSIAN, RUN))
    return Plan((Stage(access, 1, 1.0),), 9.0, 1e-5)


def test_is_charged_before_the_number_is_drawn_and_once(tmp_path):
    account = Account(_plan(), tmp_path / "ledger.jsonl")
    with account.open("selection") as access:
        assert "RepeatAndSelect" not in (tmp_path / "ledger.jsonl").read_text().splitlines()[-1]
        line = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[-1])
        assert line["stage"] == "selection" and len(line["trials"]) == 2
        assert number_of_trials(access, "trials") >= 1
        with pytest.raises(LedgerError):
            number_of_trials(access, "trials")
    account.verify_complete()
    # The ledger does not hold the number itself.
    again = Account.resume(tmp_path / "ledger.jsonl")
    again.ledger.close()
    assert again.accesses == account.accesses and encode(again.event) == encode(_plan().event)


@pytest.mark.parametrize(
    "wrong",
    [
        {"multipliers": {"trials": 1.0}}, {"multipliers": {"trials": 5.0, "more": 1.0}}, {"kinds": {}}, {"trials": ()},
        {"sampler": Poisson(0.5)},
    ],
    ids=str,
)  # fmt: skip
def test_an_access_that_is_no_selection_is_refused(wrong):
    right = {"multipliers": {"trials": 5.0}, "kinds": {"trials": "poisson"}, "trials": (GAUSSIAN,)}
    Access("selection", **right)
    with pytest.raises(ValueError, match=r"selection|gaussian"):
        Access("selection", **right | wrong)


def test_enters_a_study_by_its_moments(tmp_path):
    plan = _plan()
    assert study_entry(plan)["moments"] and "replaced" not in study_entry(plan)
    study = Study(tmp_path / "s.jsonl", epsilon=20.0, delta=1e-5)
    alone = study.enter("one", plan.event, **study_entry(plan)).epsilon
    # One costs not less than by itself at the best of all orders; two of them cost less than twice as much.
    assert plan.spent.epsilon <= alone < 1.3 * plan.spent.epsilon
    assert study.enter("two", plan.event, **study_entry(plan)).epsilon < 1.8 * alone
    with pytest.raises(BudgetTooSmall):
        study.enter("three", plan.event, relation="add_or_remove_one", pair=(19.0, 1e-6))


def test_a_trial_that_lost_what_it_paid_for_does_not_go_on(tmp_path):
    stages = (Stage(Access("mean", {"sum": 4.0}), 1, 0.5), Stage(Access("training", {"gradient": 9.0}), 5, 0.5))
    plan = Plan(stages, 4.0, 1e-5)
    account = Account(plan, tmp_path / "ledger.jsonl")
    from lightning_dpgen.privacy.mechanisms import gaussian

    with account.open("mean") as access:
        gaussian(access, "sum", torch.zeros(1), sensitivity=1.0)
    account.ledger.close()
    kept = Account.resume(tmp_path / "ledger.jsonl", exact=True)
    kept.go_on({"mean": 1})
    assert kept.plan == plan
    kept.ledger.close()
    lost = Account.resume(tmp_path / "ledger.jsonl", exact=True)
    with pytest.raises(BudgetTooSmall, match="the plan is fixed"):
        lost.go_on({})
    lost.ledger.close()

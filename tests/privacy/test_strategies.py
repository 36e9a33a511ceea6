"""No record reaches farther than the sensitivity of a strategy says, and strategies that are found are the best ones."""

import json
import math
from pathlib import Path

import dp_accounting
import numpy as np
import pytest

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.accounting.event_parts import CorrelatedGaussianDpEvent, gaussian_history
from lightning_dpgen.privacy.accounting.events import UnknownEvent, decode, encode, stage_events
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.privacy.sampling.sampler_choice import banded_strategy, make_sampler, prefix_error
from lightning_dpgen.privacy.sampling.samplers import Cyclic, Poisson, TruncatedPoisson
from lightning_dpgen.privacy.sampling.strategy import Strategy

GOLDEN = json.loads(Path(__file__).with_name("jax_privacy_strategies.json").read_text())


def _matrix(strategy):
    column = np.zeros(strategy.steps)
    column[: len(strategy.coefficients)] = strategy.coefficients[: strategy.steps]
    steps = strategy.steps
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(steps)] for i in range(steps)])


def _some(random, period, steps=9):
    bands = random.integers(1, period + 1)
    return Strategy(steps, period, np.sort(np.append(random.random(bands - 1), 1.0))[::-1])


@pytest.mark.parametrize("period", [1, 2, 3, 5, 9, 12])
def test_sensitivity_is_the_farthest_that_a_record_reaches_in_a_round(period):
    """Each round is a release of its own, to which a record adds one column."""
    random = np.random.default_rng(period)
    for _ in range(4):
        strategy = _some(random, period)
        assert strategy.sensitivity == pytest.approx(np.linalg.norm(_matrix(strategy), axis=0).max(), rel=1e-12)


def test_a_memory_that_was_lost_lets_no_record_reach_farther():
    random, steps = np.random.default_rng(1), 7
    for period in (1, 2, 4):
        strategy = _some(random, period, steps)
        for _ in range(20):
            # Each step has forgotten any of the rows before it.
            kept = np.tril(random.random((steps, steps)) < 0.6, -1) | np.eye(steps, dtype=bool)
            lengths = np.linalg.norm(_matrix(strategy) * kept, axis=0)
            assert lengths.max() <= strategy.sensitivity * (1 + 1e-12)


WRONG = [
    ({"coefficients": (1.0, 0.5, 0.6)}, "never rise"),
    ({"coefficients": (1.0, -0.5)}, "never rise"),
    ({"coefficients": (2.0, 1.0)}, "the first is 1"),
    ({"coefficients": (1.0, float("nan"))}, "never rise"),
    ({"coefficients": (1.0, 0.5, 0.4, 0.3, 0.2)}, "at most as many bands as groups"),
    ({"steps": 0}, "steps=0"),
    ({"period": 2.0}, "period=2.0"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_strategy_that_is_not_proved_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Strategy(**{"steps": 10, "period": 4, "coefficients": (1.0, 0.5)} | change)


@pytest.mark.parametrize("given", GOLDEN["banded"], ids=lambda given: f"{given['steps']}-{given['bands']}")
def test_banded_strategies_are_those_of_jax_privacy(given):
    steps, bands = given["steps"], given["bands"]
    ours, theirs = banded_strategy(steps, bands, bands), Strategy(steps, bands, given["coefficients"])
    assert prefix_error(theirs) == pytest.approx(given["error_of_one_pass"], rel=1e-9)
    assert prefix_error(ours) == pytest.approx(given["error_of_one_pass"], rel=1e-8)
    np.testing.assert_allclose(ours.coefficients, theirs.coefficients, atol=1e-4)


def test_the_error_is_that_of_linear_algebra():
    strategy = banded_strategy(60, 20, 5)
    factor = np.tril(np.ones((60, 60))) @ np.linalg.inv(_matrix(strategy))
    assert prefix_error(strategy) == pytest.approx(strategy.sensitivity * np.linalg.norm(factor) / np.sqrt(60), rel=1e-9)


def test_a_best_strategy_cannot_be_moved_to_a_better_one():
    best = banded_strategy(200, 50, 6)
    for i in range(1, 6):
        for factor in (0.98, 1.02):
            moved = [*best.coefficients]
            moved[i] *= factor
            assert prefix_error(Strategy(200, 50, np.minimum.accumulate(moved))) > prefix_error(best)


def _plan(strategy, rate, epsilon=2.0, n=400):
    spec = StageSpec("training", {"gradient": 1.0}, strategy.steps, n, sampler=Cyclic(rate, strategy), n=n)
    return make_plan([spec], epsilon=epsilon, delta=1e-5)


def test_cyclic_sampling_costs_a_sampled_gaussian_for_each_round():
    plan = _plan(banded_strategy(50, 4, 4), 0.05)
    multiplier = plan.stages[0].access.multiplier
    standard = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.GaussianDpEvent(multiplier)), 13
    )
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    assert accountant.compose(standard).get_epsilon(1e-5) == pytest.approx(plan.epsilon, rel=5e-3)
    assert 1.99 < plan.epsilon <= 2.0
    assert gaussian_history(plan.event) == [(multiplier, 0.2, 13)], "the second accountant has the same"


def test_all_of_it_is_spent_by_the_first_step():
    plan = _plan(banded_strategy(50, 4, 4), 0.05)
    assert set(plan.curve("training").epsilons) == {plan.epsilon}
    access = plan.stages[0].access
    assert stage_events([(access, 1)]) == stage_events([(access, 30), (access, 20)]) == plan.stage_events
    with pytest.raises(ValueError, match="51 steps"):
        stage_events([(access, 51)])


def test_a_plan_is_read_as_it_was_written():
    plan = _plan(banded_strategy(50, 4, 4), 0.05)
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


def test_plans_beyond_what_is_proved_are_refused():
    strategy = Strategy(8, 4)
    cyclic = Access("training", {"gradient": 2.0}, Cyclic(0.25, strategy))
    assert Plan((Stage(cyclic, 8, 1.0),), 9.0, 1e-5).private
    for count, options, message in (
        (8, {"relation": REPLACE_ONE}, "relation='replace_one'"),
        (8, {"max_rows": 2}, "a unit of one record"),
        (9, {}, "9 steps"),
    ):
        with pytest.raises(ValueError, match=message):
            Plan((Stage(cyclic, count, 1.0),), 9.0, 1e-5, **options)
    with pytest.raises(ValueError, match="the gradient alone"):
        Access("training", {"gradient": 1.0, "norms": 2.0}, Cyclic(0.25, strategy))
    with pytest.raises(ValueError, match="at most 1/period"):
        Cyclic(0.3, strategy)
    with pytest.raises(ValueError, match="expected the same number"):
        StageSpec("training", {"gradient": 1.0}, 9, 50.0, sampler=Cyclic(0.25, strategy))
    with pytest.raises(BudgetTooSmall, match=r"epsilon=\S+ would do$"):
        _plan(banded_strategy(50, 4, 4), 0.05, epsilon=1e-4, n=20)


def _forged(change):
    tree = encode(CorrelatedGaussianDpEvent.of(1.0, 0.2, Strategy(20, 4, (1.0, 0.5, 0.25))))
    change(tree)
    return json.loads(json.dumps(tree))


def test_an_event_is_read_as_it_was_written():
    event = CorrelatedGaussianDpEvent.of(1.0, 0.2, Strategy(20, 4, (1.0, 0.5, 0.25)))
    assert decode(_forged(lambda tree: None)) == event


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(sensitivity=1.0), "moves this strategy"),
        (lambda t: t["strategy"].update(coefficients=[1.0, 0.5, 0.2]), "moves this strategy"),
        (lambda t: t["strategy"].update(coefficients=[1.0, 0.2, 0.5]), "never rise"),
        (lambda t: t["strategy"].update(period=2), "as many bands as groups"),
        (lambda t: t["strategy"].update(sampler="fixed_order"), "strategy of correlated noise"),
        (lambda t: t["strategy"].update(steps=10**9), "strategy of correlated noise"),
        (lambda t: t["strategy"].update(more=1), "strategy of correlated noise"),
        (lambda t: t.update(strategy=[]), "strategy of correlated noise"),
        (lambda t: t.update(sampling_probability=1.5), "sampling_probability"),
        (lambda t: t.update(noise_multiplier=0.0), "noise_multiplier"),
        (lambda t: t.pop("strategy"), "has the fields"),
    ],
)
def test_a_forged_event_is_refused(change, message):
    with pytest.raises(UnknownEvent, match=message):
        decode(_forged(change))


def test_a_tree_of_many_strategies_is_refused_before_any_is_computed():
    many = {"type": "ComposedDpEvent", "events": [_forged(lambda tree: None)] * 17}
    with pytest.raises(UnknownEvent, match="more than 16 strategies"):
        decode(many)


def test_the_bands_of_cyclic_sampling_are_those_of_the_least_error():
    settings = {"sample_rate": 0.02, "steps": 200, "epsilon": 4.0, "delta": 1e-5}
    chosen = make_sampler("cyclic", **settings).strategy

    def error(bands):
        strategy = banded_strategy(200, bands, bands)
        return _plan(strategy, 0.02, epsilon=4.0).stages[0].access.multiplier * prefix_error(strategy)

    bands = len(chosen.coefficients)
    assert chosen.period == bands > 1
    # Candidates are compared by Renyi moments, and neighbours may be nearly as good.
    assert error(bands) <= 1.02 * min(error(bands // 2), error(2 * bands)) and error(bands) < 0.9 * error(1)
    small = make_sampler("cyclic", **settings | {"epsilon": 0.1}).strategy
    assert small.period < chosen.period, "the smaller epsilon, the more amplification by sampling is worth"


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("poisson", {"bands": 2}, "no cost of correlated noise is proved"),
        ("poisson", {"largest_lot": 5}, "are not cut"),
        ("truncated_poisson", {"bands": 2}, "no cost of correlated noise is proved"),
        ("truncated_poisson", {"largest_lot": 5}, "at_most=..., a number"),
        ("cyclic", {"bands": 11}, "at most 10 bands"),
        ("cyclic", {"bands": 0}, "bands"),
        ("cyclic", {"bands": 5000}, "bands=5000"),
        ("cyclic", {"bands": 2.5}, "bands"),
        ("cyclic", {"epsilon": -1.0}, "epsilon"),
        ("cyclic", {"epsilon": "x"}, "epsilon"),
        ("cyclic", {"delta": 0.0}, "delta"),
        ("cyclic", {"steps": 0}, "steps"),
        ("cyclic", {"sample_rate": 2.0}, "sample_rate"),
        ("poisson", {"sample_rate": 0.0}, "sample_rate=0.0: expected a number above 0"),
        ("shuffle", {}, "shuffled order can cost more"),
    ],
)
def test_samplers_without_a_proof_are_refused_by_name(name, changes, message):
    settings = {"sample_rate": 0.1, "steps": 100, "epsilon": 1.0, "delta": 1e-5}
    with pytest.raises(ValueError, match=message):
        make_sampler(name, **settings | changes)


@pytest.mark.parametrize("rate", [0.0, 1.5, math.nan, "0.5", None])
@pytest.mark.parametrize(
    "make", [Poisson, lambda rate: TruncatedPoisson(rate, 5, 9), lambda rate: Cyclic(rate, Strategy(8, 4))]
)
def test_a_rate_is_a_probability(make, rate):
    with pytest.raises(ValueError, match="sample_rate="):
        make(rate)


@pytest.mark.parametrize("make", [lambda: Access("a", {"x": 1.0}, 0.5), lambda: StageSpec("a", {"x": 1.0}, 1, 9.0, 0.5)])
def test_a_rate_alone_is_no_sampler(make):
    with pytest.raises(ValueError, match=r"sampler=0\.5: expected a Sampler, such as Poisson\(0\.01\)"):
        make()


def test_a_plan_with_a_schedule_is_not_read_as_one_without():
    fields = Plan((Stage(Access("a", {"x": 1.0}), 4, 1.0),), 9.0, 1e-5).as_json()
    fields["stages"][0]["later"] = [{"from": 2, "stage": "a", "multipliers": {"x": 2.0}, "sample_rate": 1.0}]
    with pytest.raises(ValueError, match="stage 'a': a schedule of noise or rate"):
        Plan.from_json(fields)


def test_files_of_before_are_what_is_written_today():
    """Golden: the tree and the digest that the commit 7e44a9fb wrote, when strategies could have buffers."""
    strategy = Strategy(20, 4, (1.0, 0.5, 0.25))
    assert strategy.digest == "2310c63992a04cb7c70180a800b28e93"
    before = {"sampler": "cyclic", "steps": 20, "period": 4, "coefficients": [1.0, 0.5, 0.25], "decays": [], "scales": []}
    event = CorrelatedGaussianDpEvent.of(1.0, 0.2, strategy)
    assert encode(event)["strategy"] == before and decode(encode(event) | {"strategy": before}) == event

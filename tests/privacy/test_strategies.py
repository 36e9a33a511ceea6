"""No record reaches farther than the sensitivity of a strategy says, and strategies that are found are the best ones."""

import itertools
import json
from pathlib import Path

import dp_accounting
import numpy as np
import pytest

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.accountant import spent
from lightning_dpgen.privacy.calibration import make_plan
from lightning_dpgen.privacy.correlated_events import CorrelatedGaussianDpEvent
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.event_parts import gaussian_history
from lightning_dpgen.privacy.events import UnknownEvent, decode, encode, stage_events
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE, ZERO_OUT
from lightning_dpgen.privacy.stage_spec import StageSpec
from lightning_dpgen.privacy.strategy import CYCLIC, FIXED_ORDER, Strategy
from lightning_dpgen.privacy.strategy_choice import BandedNoise, BufferedNoise, make_strategy
from lightning_dpgen.privacy.strategy_search import banded_strategy, buffered_strategy, prefix_error

GOLDEN = json.loads(Path(__file__).with_name("jax_privacy_strategies.json").read_text())


def _matrix(strategy):
    steps = strategy.steps
    return np.array([[strategy.column[i - j] if i >= j else 0.0 for j in range(steps)] for i in range(steps)])


def _patterns(steps, period):
    """Yield all sets of steps in which a record may take part, any two of them at least a period apart."""
    for taken in itertools.product([0.0, 1.0], repeat=steps):
        at = np.flatnonzero(taken)
        if len(at) and (np.diff(at) >= period).all():
            yield np.array(taken)


def _reach(matrix, period):
    return max(float(np.linalg.norm(matrix @ taken)) for taken in _patterns(len(matrix), period))


def _some(random, sampler, period, steps=9):
    if random.random() < 0.5 or sampler == CYCLIC:
        bands = random.integers(1, (period if sampler == CYCLIC else steps) + 1)
        return Strategy(sampler, steps, period, np.sort(np.append(random.random(bands - 1), 1.0))[::-1])
    scales = random.random(2)
    return Strategy(sampler, steps, period, decays=random.random(2), scales=scales / scales.sum() * random.random())


@pytest.mark.parametrize("period", [1, 2, 3, 5, 9, 12])
def test_sensitivity_is_the_farthest_that_any_participation_reaches(period):
    random = np.random.default_rng(period)
    for _ in range(4):
        strategy = _some(random, FIXED_ORDER, period)
        assert strategy.sensitivity == pytest.approx(_reach(_matrix(strategy), period), rel=1e-12)
    # With cyclic sampling each round is a release of its own, to which one column belongs.
    strategy = _some(random, CYCLIC, period)
    assert strategy.sensitivity == pytest.approx(np.linalg.norm(_matrix(strategy), axis=0).max(), rel=1e-12)


def test_gradients_of_other_directions_reach_no_farther():
    random = np.random.default_rng(0)
    strategy = _some(random, FIXED_ORDER, 2)
    for taken in _patterns(9, 2):
        rows = random.normal(size=(9, 3))
        rows *= (taken / np.linalg.norm(rows, axis=1))[:, None]
        assert np.linalg.norm(_matrix(strategy) @ rows) <= strategy.sensitivity * (1 + 1e-12)


def test_the_formula_is_not_that_of_coefficients_that_rise():
    rising = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [2.0, 0.0, 1.0, 0.0], [0.0, 2.0, 0.0, 1.0]])
    by_formula = np.linalg.norm(rising @ [1.0, 0.0, 0.0, 1.0])
    assert _reach(rising, 1) > by_formula and _reach(rising, 3) == pytest.approx(by_formula)
    with pytest.raises(ValueError, match="never rise"):
        Strategy(FIXED_ORDER, 4, 1, (1.0, 0.0, 2.0))


def test_a_memory_that_was_lost_lets_no_record_reach_farther():
    random, steps = np.random.default_rng(1), 7
    for period in (1, 2, 4):
        strategy = _some(random, FIXED_ORDER, period, steps)
        for _ in range(20):
            # Each step has forgotten any of the rows before it.
            kept = np.tril(random.random((steps, steps)) < 0.6, -1) | np.eye(steps, dtype=bool)
            assert _reach(_matrix(strategy) * kept, period) <= strategy.sensitivity * (1 + 1e-12)


WRONG = [
    ({"coefficients": (1.0, 0.5, 0.6)}, "never rise"),
    ({"coefficients": (1.0, -0.5)}, "never rise"),
    ({"coefficients": (2.0, 1.0)}, "the first is 1"),
    ({"coefficients": (1.0, float("nan"))}, "never rise"),
    ({"coefficients": (1.0, 0.5, 0.4, 0.3, 0.2)}, "at most as many bands as groups"),
    ({"decays": (0.5,), "scales": (0.5,), "coefficients": (1.0,)}, "at most as many bands as groups"),
    ({"sampler": FIXED_ORDER, "decays": (0.5, 0.4), "scales": (0.6, 0.6)}, "more than 1"),
    ({"sampler": FIXED_ORDER, "decays": (1.0,), "scales": (0.5,)}, "below 1"),
    ({"sampler": FIXED_ORDER, "decays": (0.5,)}, "as many of each"),
    ({"sampler": FIXED_ORDER, "decays": (0.5,), "scales": (0.5,), "coefficients": (1.0, 0.5)}, "the one or the other"),
    ({"sampler": "poisson"}, "expected 'cyclic' or"),
    ({"steps": 0}, "steps=0"),
    ({"period": 2.0}, "period=2.0"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_strategy_that_is_not_proved_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Strategy(**{"sampler": CYCLIC, "steps": 10, "period": 4, "coefficients": (1.0, 0.5)} | change)


@pytest.mark.parametrize("given", GOLDEN["banded"], ids=lambda given: f"{given['steps']}-{given['bands']}")
def test_banded_strategies_are_those_of_jax_privacy(given):
    steps, bands = given["steps"], given["bands"]
    ours, theirs = banded_strategy(CYCLIC, steps, bands, bands), Strategy(CYCLIC, steps, bands, given["coefficients"])
    assert prefix_error(theirs) == pytest.approx(given["error_of_one_pass"], rel=1e-9)
    assert prefix_error(ours) == pytest.approx(given["error_of_one_pass"], rel=1e-8)
    np.testing.assert_allclose(ours.coefficients, theirs.coefficients, atol=1e-4)
    ordered = Strategy(FIXED_ORDER, steps, bands, given["coefficients"])
    assert ordered.sensitivity == pytest.approx(given["sensitivity_at_bands"], rel=1e-9)


@pytest.mark.parametrize("given", GOLDEN["buffered"], ids=lambda given: f"{given['steps']}-{given['period']}")
def test_buffered_strategies_are_as_good_as_those_of_jax_privacy(given):
    theirs = Strategy(FIXED_ORDER, given["steps"], given["period"], decays=given["decays"], scales=given["scales"])
    assert theirs.sensitivity == pytest.approx(given["sensitivity"], rel=1e-9)
    assert prefix_error(theirs) == pytest.approx(given["error"], rel=1e-9)
    ours = buffered_strategy(given["steps"], given["period"], 3)
    assert prefix_error(ours) <= given["error"] * 1.0001


@pytest.mark.parametrize("strategy", [banded_strategy(FIXED_ORDER, 60, 20, 5), buffered_strategy(60, 20, 2)])
def test_the_error_is_that_of_linear_algebra(strategy):
    factor = np.tril(np.ones((60, 60))) @ np.linalg.inv(_matrix(strategy))
    assert prefix_error(strategy) == pytest.approx(strategy.sensitivity * np.linalg.norm(factor) / np.sqrt(60), rel=1e-9)


def test_a_best_strategy_cannot_be_moved_to_a_better_one():
    best = banded_strategy(FIXED_ORDER, 200, 50, 6)
    for i in range(1, 6):
        for factor in (0.98, 1.02):
            moved = [*best.coefficients]
            moved[i] *= factor
            assert prefix_error(Strategy(FIXED_ORDER, 200, 50, np.minimum.accumulate(moved))) > prefix_error(best)


def _plan(strategy, rate, epsilon=2.0, n=400):
    spec = StageSpec("training", {"gradient": 1.0}, strategy.steps, n, sample_rate=rate, n=n, strategy=strategy)
    relation = ZERO_OUT if strategy.sampler == FIXED_ORDER else ADD_OR_REMOVE_ONE
    return make_plan([spec], epsilon=epsilon, delta=1e-5, relation=relation)


def test_cyclic_sampling_costs_a_sampled_gaussian_for_each_round():
    plan = _plan(banded_strategy(CYCLIC, 50, 4, 4), 0.05)
    multiplier = plan.stages[0].access.multiplier
    standard = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.GaussianDpEvent(multiplier)), 13
    )
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    assert accountant.compose(standard).get_epsilon(1e-5) == pytest.approx(plan.epsilon, rel=5e-3)
    assert 1.99 < plan.epsilon <= 2.0
    assert gaussian_history(plan.event) == [(multiplier, 0.2, 13)], "the second accountant has the same"


def test_a_fixed_order_costs_one_gaussian_for_all_steps():
    plan = _plan(banded_strategy(FIXED_ORDER, 50, 20, 4), 0.05)
    multiplier = plan.stages[0].access.multiplier
    assert plan.epsilon == spent(dp_accounting.GaussianDpEvent(multiplier), 1e-5).epsilon
    replaced = spent(plan.event, 1e-5, relation=REPLACE_ONE).epsilon
    assert replaced == spent(dp_accounting.GaussianDpEvent(multiplier / 2), 1e-5).epsilon


def test_all_of_it_is_spent_by_the_first_step():
    plan = _plan(banded_strategy(CYCLIC, 50, 4, 4), 0.05)
    assert set(plan.curve("training").epsilons) == {plan.epsilon}
    access = plan.stages[0].access
    assert stage_events([(access, 1)]) == stage_events([(access, 30), (access, 20)]) == plan.stage_events
    with pytest.raises(ValueError, match="51 steps"):
        stage_events([(access, 51)])


def test_a_plan_is_read_as_it_was_written():
    for plan in (_plan(banded_strategy(CYCLIC, 50, 4, 4), 0.05), _plan(buffered_strategy(50, 20, 2), 0.05)):
        assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


def test_plans_beyond_what_is_proved_are_refused():
    ordered = Access("training", {"gradient": 2.0}, 0.25, strategy=Strategy(FIXED_ORDER, 8, 4))
    cyclic = Access("training", {"gradient": 2.0}, 0.25, strategy=Strategy(CYCLIC, 8, 4))
    assert Plan((Stage(cyclic, 8, 1.0),), 9.0, 1e-5).private
    for access, count, options, message in (
        (ordered, 8, {}, "expected 'zero_out'"),
        (cyclic, 8, {"relation": REPLACE_ONE}, "relation='replace_one'"),
        (cyclic, 8, {"max_rows": 2}, "a unit of one record"),
        (cyclic, 9, {}, "9 steps"),
    ):
        with pytest.raises(ValueError, match=message):
            Plan((Stage(access, count, 1.0),), 9.0, 1e-5, **options)
    for noises, rate, strategy, message in (
        ({"gradient": 1.0, "norms": 2.0}, 0.25, Strategy(CYCLIC, 8, 4), "the gradient alone"),
        ({"gradient": 1.0}, 0.3, Strategy(CYCLIC, 8, 4), "at most 1/period"),
        ({"gradient": 1.0}, 0.2, Strategy(FIXED_ORDER, 8, 4), "1/period in a fixed order"),
    ):
        with pytest.raises(ValueError, match=message):
            Access("training", noises, rate, strategy=strategy)
    with pytest.raises(ValueError, match="expected the same number"):
        StageSpec("training", {"gradient": 1.0}, 9, 50.0, sample_rate=0.25, strategy=Strategy(CYCLIC, 8, 4))
    with pytest.raises(BudgetTooSmall, match=r"epsilon=\S+ would do$"):
        _plan(banded_strategy(CYCLIC, 50, 4, 4), 0.05, epsilon=1e-4, n=20)


def _forged(change):
    tree = encode(CorrelatedGaussianDpEvent.of(1.0, 0.2, Strategy(CYCLIC, 20, 4, (1.0, 0.5, 0.25))))
    change(tree)
    return json.loads(json.dumps(tree))


def test_an_event_is_read_as_it_was_written():
    event = CorrelatedGaussianDpEvent.of(1.0, 0.2, Strategy(CYCLIC, 20, 4, (1.0, 0.5, 0.25)))
    assert decode(_forged(lambda tree: None)) == event


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(sensitivity=1.0), "moves this strategy"),
        (lambda t: t["strategy"].update(coefficients=[1.0, 0.5, 0.2]), "moves this strategy"),
        (lambda t: t["strategy"].update(coefficients=[1.0, 0.2, 0.5]), "never rise"),
        (lambda t: t["strategy"].update(period=2), "as many bands as groups"),
        (lambda t: t["strategy"].update(sampler="fixed_order"), "moves this strategy|sampling_probability"),
        (lambda t: t["strategy"].update(steps=10**9), "strategy of correlated noise"),
        (lambda t: t["strategy"].update(more=1), "no others"),
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
    chosen = make_strategy("cyclic", None, **settings)

    def error(bands):
        strategy = banded_strategy(CYCLIC, 200, bands, bands)
        return _plan(strategy, 0.02, epsilon=4.0).stages[0].access.multiplier * prefix_error(strategy)

    bands = len(chosen.coefficients)
    assert chosen.period == bands > 1
    # Candidates are compared by Renyi moments, and neighbours may be nearly as good.
    assert error(bands) <= 1.02 * min(error(bands // 2), error(2 * bands)) and error(bands) < 0.9 * error(1)
    small = make_strategy("cyclic", None, **settings | {"epsilon": 0.1})
    assert small.period < chosen.period, "the smaller epsilon, the more amplification by sampling is worth"


@pytest.mark.parametrize(
    ("sampler", "noise", "message"),
    [
        ("poisson", BandedNoise(), "no cost of correlated noise is proved"),
        ("poisson", BufferedNoise(), "no cost of correlated noise is proved"),
        ("cyclic", BufferedNoise(), "expected BandedNoise"),
        ("cyclic", BandedNoise(bands=11), "at most 10 bands"),
        ("fixed_order", BandedNoise(bands=11), "expected 1 to 10"),
        ("shuffle", None, "shuffled order can cost more"),
        ("cyclic", 3, "noise=3"),
    ],
)
def test_combinations_without_a_proof_are_refused_by_name(sampler, noise, message):
    with pytest.raises(ValueError, match=message):
        make_strategy(sampler, noise, sample_rate=0.1, steps=100, epsilon=1.0, delta=1e-5)
    assert make_strategy("poisson", None, sample_rate=0.1, steps=100, epsilon=1.0, delta=1e-5) is None
    settings = {"sample_rate": 0.1, "steps": 100, "epsilon": 1.0, "delta": 1e-5}
    for name, wrong in (("epsilon", -1.0), ("epsilon", "x"), ("delta", 0.0), ("sample_rate", 2.0), ("steps", 0)):
        with pytest.raises(ValueError, match=name):
            make_strategy("cyclic", None, **settings | {name: wrong})
    for wrong in ({"bands": 0}, {"bands": 5000}, {"bands": 2.5}):
        with pytest.raises(ValueError, match="bands="):
            BandedNoise(**wrong)


def test_zero_out_is_the_relation_of_a_fixed_order_alone():
    stage = StageSpec("training", {"gradient": 1.0}, 10, max_noise=20.0, sample_rate=0.1)
    with pytest.raises(ValueError, match=r"zero_out.*fixed order"):
        make_plan([stage], epsilon=4.0, delta=1e-5, relation="zero_out")


@pytest.mark.parametrize("made", [lambda: BufferedNoise(None), lambda: BandedNoise(0)])
def test_a_number_of_buffers_or_bands_is_a_number(made):
    with pytest.raises(ValueError, match=r"buffers=None|bands=0"):
        made()

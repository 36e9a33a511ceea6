"""Any two of epsilon, noise and steps give the third; shares; pure plans; an unused share is given back."""

import math
import re
from dataclasses import replace

import pytest

from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.privacy.access import LAPLACE, PURE
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_epsilon, gaussian_mu
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.planning.calibration import make_first_plan, make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.privacy.sampling.samplers import Poisson

DELTA = 1e-5
SPLIT = StageSpec("split", {"counts": 0.2, "sums": 0.8}, 3, max_noise=1e4, share=0.25)


def _training(count=200, noise=None, share=None):
    return StageSpec(
        "training", {"norms": 0.05, "gradient": 0.95}, count, max_noise=1e4, sampler=Poisson(0.05), noise=noise, share=share
    )


def test_any_two_give_the_third():
    solved = make_plan([SPLIT, _training()], epsilon=2.0, delta=DELTA)
    noise = solved.stage("training").access.multiplier
    steps = make_plan([SPLIT, _training(count=None, noise=noise)], epsilon=2.0, delta=DELTA)
    assert steps.stage("training").count == pytest.approx(200, rel=0.02) and 1.98 < steps.epsilon <= 2.0
    epsilon = make_plan([SPLIT, _training(noise=noise)], epsilon=None, delta=DELTA)
    assert epsilon.epsilon == pytest.approx(2.0, rel=0.01) and epsilon.target_epsilon >= epsilon.epsilon
    for plan in (steps, epsilon):
        assert plan.stage("training").access.multiplier == pytest.approx(noise)
        assert plan.stage("split").access.multiplier == pytest.approx(solved.stage("split").access.multiplier, rel=0.02)


def test_one_step_more_would_not_fit():
    plan = make_plan([_training(count=None, noise=2.0)], epsilon=1.0, delta=DELTA)
    count = plan.stage("training").count
    more = make_plan([_training(count=count + 1, noise=2.0)], epsilon=None, delta=DELTA)
    assert plan.epsilon <= 1.0 < more.epsilon


def test_a_sampled_stage_has_the_mu_of_its_epsilon_alone():
    """Each stage costs its share, seen alone, up to the one factor that all of them have in common."""
    plan = make_plan([SPLIT, _training()], epsilon=2.0, delta=DELTA)
    mu = gaussian_mu(2.0, DELTA)
    factors = []
    for (_, event), stage in zip(plan.stage_events, plan.stages, strict=True):
        alone = gaussian_mu(compute_epsilon(event, DELTA).epsilon, DELTA)
        factors.append(alone / (math.sqrt(stage.share) * mu))
    assert factors[0] == pytest.approx(factors[1], rel=0.02) and factors[0] == pytest.approx(1.0, rel=0.05)


def test_shares_of_all_stages_are_divided_by_their_sum():
    halves = make_plan([SPLIT, _training(share=0.25)], epsilon=2.0, delta=DELTA)
    assert [stage.share for stage in halves.stages] == [0.5, 0.5]


def test_noise_of_one_stage_stays_and_the_others_use_what_is_left():
    fixed = StageSpec("count", {"n": 1.0}, 1, max_noise=1e4, share=0.01, noise=30.0)
    plan = make_plan([fixed, SPLIT, _training()], epsilon=2.0, delta=DELTA)
    assert plan.stage("count").access.multiplier == 30.0 and 1.99 < plan.epsilon <= 2.0


@pytest.mark.parametrize(
    ("specs", "epsilon"),
    [
        ([_training(count=None)], 1.0),
        ([_training(count=None, noise=1.0)], None),
        ([_training(count=None, noise=1.0), StageSpec("b", {"x": 1.0}, None, 10, share=0.1, noise=1.0)], 1.0),
        ([_training()], None),
        ([_training(noise=-1.0)], 1.0),
        ([_training(noise=math.inf)], 1.0),
        ([_training(noise=1e12)], None),
    ],
)
def test_too_many_unknowns_are_refused(specs, epsilon):
    with pytest.raises(ValueError):
        make_plan(specs, epsilon=epsilon, delta=DELTA)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [],
        lambda: [SPLIT, SPLIT],
        lambda: [StageSpec("t", {"g": 1.0}, 1.5, 10)],
        lambda: [StageSpec("t", {"g": 1.0}, True, 10)],
        lambda: [StageSpec("t", {"g": 0.0}, 1, 10)],
        lambda: [StageSpec("t", {"g": -1.0, "h": 2.0}, 1, 10)],
        lambda: [StageSpec("t", {"g": "1"}, 1, 10)],
        lambda: [StageSpec("t", {"g": 1.0}, 1, 10, noise="1")],
        lambda: [StageSpec("t", {}, 1, 10)],
    ],
)
def test_impossible_specs_are_refused(make):
    with pytest.raises(ValueError, match="expected") as error:
        make_plan(make(), epsilon=1.0, delta=DELTA)
    assert "weights" not in str(error.value), "an argument goes by its present name"


def test_a_plan_without_a_budget_needs_every_count():
    """Nothing says how many accesses fit into an infinite epsilon."""
    with pytest.raises(ValueError, match="stage 't': count=None: expected a number"):
        make_plan([StageSpec("t", {"g": 1.0}, None, 10, noise=1.0)], epsilon=math.inf, delta=DELTA)


@pytest.mark.parametrize("max_rows", [0, -1, 2.0, "2", True, None, math.nan])
def test_the_records_of_a_person_are_a_whole_number(max_rows):
    for make in (
        lambda: make_plan([SPLIT], epsilon=1.0, delta=DELTA, max_rows=max_rows),
        lambda: make_first_plan(replace(SPLIT, noise=9.0), epsilon=1.0, delta=DELTA, max_rows=max_rows),
    ):
        with pytest.raises(ValueError, match=f"^max_rows={max_rows!r}: expected a whole number, 1 or more$"):
            make()


@pytest.mark.parametrize("wrong", ["8", [8], None, True], ids=repr)
def test_a_budget_that_is_no_number_is_shown_as_it_was_written(wrong):
    for budget in ({"epsilon": wrong, "delta": DELTA}, {"epsilon": 1.0, "delta": wrong}):
        name = next(name for name, value in budget.items() if value is wrong)
        if (name, wrong) == ("epsilon", None):
            continue
        with pytest.raises(ValueError, match=f"^{re.escape(f'{name}={wrong!r}')}: expected a number"):
            make_plan([SPLIT], **budget)


def test_given_noise_that_is_too_dear_is_refused():
    with pytest.raises(BudgetTooSmall, match="cost"):
        make_plan([_training(noise=0.5)], epsilon=0.1, delta=DELTA)
    with pytest.raises(BudgetTooSmall, match="not one access"):
        make_plan([StageSpec("t", {"g": 1.0}, None, 100, noise=0.5)], epsilon=0.1, delta=DELTA)


def test_a_pure_plan_divides_epsilon_itself():
    specs = [
        StageSpec("counts", {"n": 1.0}, 2, max_noise=1e3, share=0.25, kinds={"n": LAPLACE}),
        StageSpec("choice", {"best": 1.0}, 4, max_noise=1e3, kinds={"best": PURE}),
    ]
    plan = make_plan(specs, epsilon=2.0, delta=0.0)
    assert plan.epsilon == pytest.approx(2.0, rel=1e-12) and plan.epsilon <= 2.0 * (1 + 1e-12)
    assert plan.stage("counts").access.multipliers["n"] == pytest.approx(2 / (0.25 * 2.0))
    assert plan.stage("choice").access.multipliers["best"] == pytest.approx(4 / (0.75 * 2.0))
    choices = StageSpec("choice", {"best": 1.0}, None, max_noise=1e3, noise=2.0, kinds={"best": PURE})
    steps = make_plan([specs[0], choices], epsilon=2.0, delta=0.0)
    assert steps.stage("choice").count == 3
    with pytest.raises(ValueError, match="only Laplace noise is pure"):
        make_plan([_training()], epsilon=1.0, delta=0.0)


def test_pure_noise_in_a_composition_with_a_delta():
    specs = [StageSpec("choice", {"best": 1.0}, 3, max_noise=1e3, share=0.3, kinds={"best": PURE}), _training()]
    plan = make_plan(specs, epsilon=2.0, delta=DELTA)
    assert 1.99 < plan.epsilon <= 2.0
    # Bounded losses compose differently from a Gaussian's; the common factor makes up for that.
    alone = compute_epsilon(dict(plan.stage_events)["choice"], DELTA).epsilon
    assert alone == pytest.approx(gaussian_epsilon(math.sqrt(0.3) * gaussian_mu(2.0, DELTA), DELTA), rel=0.25)


def test_a_stage_that_is_not_used_gives_its_share_back():
    one, ten = SplitSettings(k=1), SplitSettings(k=10)
    assert [spec.stage for spec in one.specs(1000)] == ["final pass"]
    with_means, without = ten.specs(1000)[-1], ten.specs(1000, means=False)[-1]
    assert without.noise_shares == {"counts": 1.0} and without.share == pytest.approx(0.1 * with_means.share)
    # The counts are as accurate as before.
    before, after = (d.access(d.share**-0.5).multipliers["counts"] for d in (with_means, without))
    assert before == pytest.approx(after)


def test_records_behind_a_number_are_written_out():
    """As a person writes them, not as 2e+04."""
    with pytest.raises(BudgetTooSmall, match="would outweigh all that about 20,000 records behind it can add up to"):
        make_plan([StageSpec("counts", {"all": 1.0}, 1, max_noise=20_000.0)], epsilon=1e-6, delta=1e-15)

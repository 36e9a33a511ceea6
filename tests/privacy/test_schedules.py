"""Schedules of noise and rate: they cost what their segments compose to, and each step is one of its own segment."""

import json
import math

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from scipy import stats

from lightning_dpgen import Account, Fixed, PoissonLots, PrivateTraining, make_plan, training_stage, verify
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.accountant import spent
from lightning_dpgen.privacy.calibration import make_first_plan, make_rest
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError
from lightning_dpgen.privacy.events import composed, encode
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.noise import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.segments import read_segments
from lightning_dpgen.privacy.stage_spec import StageSpec

DELTA = 1e-5
RATES, NOISES = [(100, 0.01), (200, 0.02)], [(150, 2.0), (150, 1.0)]
# The segments that the two schedules make together.
PIECES = [(100, 0.01, 2.0), (50, 0.02, 2.0), (150, 0.02, 1.0)]


def _plan(rates=RATES, noises=NOISES, steps=300, **more):
    spec = training_stage(Fixed(1.0), n=5000, sample_rate=rates, noise_schedule=noises, steps=steps)
    return make_plan([spec], **{"epsilon": 2.0, "delta": DELTA} | more)


def _composed(plan):
    """Return the event of the schedule, written down anew."""
    unit = plan.stages[0].access.multiplier / 2.0
    return dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(
                dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(unit * noise)), count
            )
            for count, rate, noise in PIECES
        ]
    )


@pytest.mark.parametrize("accountant", [pytest.param("pld", marks=pytest.mark.slow), "rdp"])
def test_a_schedule_costs_what_dp_accounting_says_of_its_segments(accountant):
    plan = _plan(accountant=accountant)
    assert encode(plan.event) == encode(_composed(plan))
    assert 1.99 < plan.epsilon <= 2.0
    if accountant == "pld":
        theirs = PLDAccountant(value_discretization_interval=1e-3).compose(_composed(plan)).get_epsilon(DELTA)
        assert plan.epsilon == pytest.approx(theirs, rel=5e-3)
    curve = plan.curve("training", points=4)
    first = dp_accounting.SelfComposedDpEvent(plan.stages[0].access.event, 75)
    assert curve.at(75) == pytest.approx(spent(first, DELTA, accountant=accountant).epsilon, rel=5e-3)
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


def test_one_factor_on_all_noises_meets_epsilon_and_noise_that_is_given_is_that_of_one():
    spec = training_stage(Fixed(1.0), n=5000, sample_rate=RATES, noise_schedule=NOISES, steps=300, noise=1.5)
    given = make_plan([spec], epsilon=None, delta=DELTA)
    assert [access.multiplier for access, _ in given.accesses] == [3.0, 3.0, 1.5]
    solved = _plan(epsilon=given.epsilon)
    assert [access.multiplier for access, _ in solved.accesses] == pytest.approx([3.0, 3.0, 1.5], rel=2e-3)
    assert not _plan(epsilon=math.inf).private
    equal = _plan(rates=[(120, 0.01), (180, 0.01)], noises=[(300, 1.0)])
    assert len(equal.accesses) == 1 and equal.event == _plan(rates=0.01, noises=None).event


def test_full_passes_of_other_noise_are_one_gaussian():
    plan = _plan(rates=1.0, noises=[(3, 1.0), (1, 0.5)], steps=4)
    unit = plan.stages[0].access.multiplier
    alone = dp_accounting.GaussianDpEvent((3 / unit**2 + 1 / (0.5 * unit) ** 2) ** -0.5)
    assert plan.spent.method == "closed form" and plan.epsilon == pytest.approx(spent(alone, DELTA).epsilon)


WRONG = {
    "a function of the step": {"rates": lambda step: 0.1},
    "a generator": {"noises": (piece for piece in NOISES)},
    "rates without steps": {"rates": [0.1, 0.2]},
    "a dict": {"rates": {100: 0.01, 200: 0.02}},
    "nothing": {"rates": []},
    "other steps": {"rates": [(100, 0.01), (100, 0.02)]},
    "half a step": {"noises": [(150.5, 1.0), (149.5, 2.0)]},
    "no steps": {"noises": [(0, 1.0), (300, 2.0)]},
    "no noise": {"noises": [(150, 0.0), (150, 1.0)]},
    "endless noise": {"noises": [(150, math.inf), (150, 1.0)]},
    "a rate above 1": {"rates": [(100, 1.01), (200, 0.02)]},
    "a word": {"noises": "linear"},
    "steps to be solved for": {"steps": None},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_schedule_that_is_not_fixed_before_the_first_step_is_refused_in_one_line(wrong):
    with pytest.raises(ValueError, match=r"sample_rate|noise_schedule|steps") as refused:
        _plan(**WRONG[wrong])
    assert "\n" not in str(refused.value) and not isinstance(refused.value, BudgetTooSmall)


def test_a_schedule_that_another_library_could_not_verify_is_refused():
    with pytest.raises(ValueError, match="300 segments of equal steps: expected 40 at most"):
        _plan(noises=[(1, 1.0 + i / 1e3) for i in range(300)], rates=0.01)
    later = tuple((i, Access("a", {"x": 1.0 + i / 1e4})) for i in range(1, 1001))
    with pytest.raises(ValueError, match="and segments of stages: expected at most 1,000"):
        Plan((Stage(Access("a", {"x": 1.0}), 2000, 1.0, later=later),), 1e4, DELTA)


@pytest.mark.parametrize(
    "later",
    [
        ((0, Access("a", {"x": 1.0})),),
        ((5, Access("a", {"x": 1.0})), (5, Access("a", {"x": 2.0}))),
        ((5, Access("b", {"x": 1.0})),),
        ((5, Access("a", {"y": 1.0})),),
        ((5, Access("a", {"x": 0.0})),),
        ((5, Access("a", {"x": 1.0}, kinds={"x": "laplace"})),),
    ],
)
def test_accesses_that_do_not_follow_each_other_make_no_stage(later):
    with pytest.raises(ValueError, match="scheduled accesses"):
        Stage(Access("a", {"x": 1.0}), 10, 1.0, later=later)
    with pytest.raises(ValueError, match="segments are of a given count"):
        StageSpec("a", {"x": 1.0}, None, 9, noise=1.0, segments=read_segments(RATES, NOISES, 300))


UNITS, WIDTH = 400, 3000
SHORT = {"rates": [(4, 0.1), (6, 0.5)], "noises": [(2, 1.0), (8, 3.0)], "steps": 10, "epsilon": 8.0, "accountant": "rdp"}
# Rate and relative noise of each step.
EACH = [(0.1, 1.0), (0.1, 1.0), (0.1, 3.0), (0.1, 3.0), *[(0.5, 3.0)] * 6]


def _step(account):
    """Make a step; return the size of its lot, its noise and what the access says of it."""
    positions, draw = account.sample("training", UNITS)
    with account.open("training", draw=draw) as access:
        noise = gaussian(access, "gradient", torch.zeros(WIDTH), sensitivity=1.0)
    return len(positions), float(noise.square().mean().sqrt()), access.access


def test_each_step_has_the_lot_and_the_noise_of_its_segment():
    """The seed is fixed; for any seed, a false alarm has probability 20 * 1e-9."""
    plan = _plan(**SHORT)
    unit, account = plan.stages[0].access.multiplier, Account(plan, stream=PrivateStream(seed=1))
    low, high = np.sqrt(stats.chi2.ppf([5e-10, 1 - 5e-10], WIDTH) / WIDTH)
    for rate, noise in EACH:
        size, deviation, access = _step(account)
        least, most = stats.binom.ppf([5e-10, 1 - 5e-10], UNITS, rate)
        assert least <= size <= most and low <= deviation / (unit * noise) <= high
        assert (access.sample_rate, access.multiplier) == pytest.approx((rate, unit * noise))
    # The noise and the rate of another segment would not pass.
    assert high / low < 3.0 and stats.binom.ppf(1 - 5e-10, UNITS, 0.1) < stats.binom.ppf(5e-10, UNITS, 0.5)
    account.verify_complete()
    assert [count for _, count in account.accesses] == [2, 2, 6]


def test_lots_that_are_drawn_ahead_are_for_the_steps_that_follow():
    plan = _plan(**SHORT)
    account = Account(plan)
    lots = PoissonLots(torch.zeros(UNITS, 1), account)
    first = list(lots.draws(10))
    assert [lot.draw.rate for lot in first] == [rate for rate, _ in EACH]
    with pytest.raises(LedgerError, match=r"drawn at a rate of 0.5, and the plan's schedule says 0.1"):
        account.check_draw("training", first[4].draw)
    for lot in first[:3]:
        with account.open("training", draw=lot.draw) as access:
            gaussian(access, "gradient", torch.zeros(1), sensitivity=1.0)
    assert [lot.draw.rate for lot in lots.draws(3)] == [0.1, 0.5, 0.5], "after three steps"
    assert [lots.draw(ahead).draw.rate for ahead in (0, 1)] == [0.1, 0.5]
    assert account.ledger.count("training") == 3, "drawing costs nothing"


def _die(account):
    account.ledger._file.close()
    account.ledger._witness.close()
    account.ledger._lock.release()


@pytest.mark.parametrize(("made", "counted"), [(1, 2), (3, 3), (4, 5)])
def test_a_crash_in_the_middle_goes_on_with_the_schedule_as_the_ledger_has_it(tmp_path, made, counted):
    """Blocks of lines end with a segment, so what was written ahead is never of another one."""
    plan = _plan(rates=[(80, 0.1), (120, 0.5)], noises=[(3, 1.0), (197, 3.0)], steps=200, epsilon=8.0, accountant="rdp")
    account = Account(plan, tmp_path / "ledger")
    for _ in range(made):
        _step(account)
    _die(account)
    again = Account.resume(tmp_path / "ledger")
    again.go_on({"training": 1})
    # Lines are written two by two, and those ahead of a crash count as made.
    assert again.plan == plan and again.ledger.count("training") == counted
    assert again.accesses == plan.stages[0].runs(0, counted)
    for _ in range(again.remaining("training")):
        with again.open("training", draw=again.sample("training", 3)[1]) as access:
            gaussian(access, "gradient", torch.zeros(1), sensitivity=1.0)
    again.verify_complete()


def test_what_was_lost_before_is_paid_by_the_end_of_the_schedule():
    counts = StageSpec("counts", {"n": 1.0}, 1, max_noise=1e3, share=0.05)
    training = training_stage(Fixed(1.0), n=5000, sample_rate=RATES, noise_schedule=NOISES, steps=300)
    plan = make_plan([counts, training], epsilon=2.0, delta=DELTA, accountant="rdp")
    rewritten = plan.rewritten({"counts": 2, "training": 0}, {"counts": 1})
    kept = rewritten.stage("training").count
    assert 200 < kept < 300 and rewritten.stage("training").runs() == plan.stage("training").runs(0, kept)
    assert rewritten.epsilon <= 2.0
    # One step more would be too much.
    events = composed([rewritten.composition, plan.stage("training").access_at(kept).event])
    assert plan.cost_of(events).epsilon > 2.0


@pytest.mark.filterwarnings("ignore")
def test_a_fit_with_a_schedule_is_certified_and_verified(tmp_path):
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.rates = torch.nn.Linear(3, 1), []

        def training_step(self, batch, _):
            self.rates.append(self.optimizers().param_groups[0]["lr"])
            return self.net(batch).square().sum(dim=1)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": decay, "interval": "epoch"}}

    private = PrivateTraining(
        torch.rand(300, 3), n=300, epsilon=8, delta=DELTA, sample_rate=[(4, 0.25), (4, 0.5)], steps=8,
        noise_schedule=[(6, 1.5), (2, 1.0)], clipping=Fixed(1.0), ledger=tmp_path / "ledger", accountant="rdp",
    )  # fmt: skip
    assert "sample_rate=0.25 to 0.5" in repr(private)
    model, quiet = Module(), {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    pl.Trainer(callbacks=[private.callback()], accelerator="cpu", logger=False, **quiet).fit(model, private.loader())
    # An epoch is one expected pass: four lots at first, and two after that.
    assert sorted(set(model.rates), reverse=True) == pytest.approx([1.0, 0.1, 0.01])
    certificate = private.release(model, tmp_path / "release")
    assert [run["count"] for run in certificate["event"]["events"]] == [4, 2, 2]
    assert verify(tmp_path / "release").good


def test_under_replace_one_all_segments_have_twice_the_noise():
    stage = training_stage(Fixed(1.0), n=1000, sample_rate=1.0, steps=20, noise_schedule=[(5, 1.0), (15, 2.0)])
    plans = [
        make_plan([stage], epsilon=4.0, delta=1e-5, relation=relation) for relation in ("add_or_remove_one", "replace_one")
    ]
    noises = [[access.multiplier for access, _ in plan.accesses] for plan in plans]
    assert noises[1] == pytest.approx([2.0 * noise for noise in noises[0]]) and plans[1].epsilon <= 4.0
    sampled = training_stage(Fixed(1.0), n=1000, sample_rate=[(5, 1.0), (15, 0.1)], steps=20)
    with pytest.raises(ValueError, match="full passes"):
        make_plan([sampled], epsilon=4.0, delta=1e-5, relation="replace_one")


def test_a_schedule_is_not_bought_first():
    spec = training_stage(Fixed(1.0), n=1000, sample_rate=1.0, steps=4, noise=24.0, noise_schedule=[(2, 1.0), (2, 2.0)])
    with pytest.raises(ValueError, match="expected full passes"):
        make_first_plan(spec, epsilon=2.0, delta=1e-5)


def test_the_rest_of_a_twin_keeps_its_accountant():
    specs = [training_stage(Fixed(1.0), n=1000, sample_rate=0.1, steps=4)]
    twin = make_plan(specs, epsilon=math.inf, delta=1e-5, accountant="rdp")
    assert make_rest(twin, specs).accountant == "rdp"

"""Runs that are stopped for good: the rest goes back to their study, and named times are certified at their own cost."""

import json
import math
import multiprocessing
import shutil
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
import torch
from contracts.laws import studies as laws
from dp_accounting.pld import privacy_loss_distribution
from scipy.optimize import brentq
from scipy.stats import norm

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.event_parts import CorrelatedGaussianDpEvent
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.privacy.accounting.renyi import renyi_moments
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.planning.calibration import make_first_plan, make_plan, make_rest
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.privacy.sampling.samplers import Cyclic, Poisson
from lightning_dpgen.privacy.sampling.strategy import Strategy
from lightning_dpgen.privacy.studies.entry import stop_run
from lightning_dpgen.privacy.studies.study import Study

GAUSSIAN, TIMES = dp_accounting.GaussianDpEvent, dp_accounting.SelfComposedDpEvent
DELTA = 1e-5


def _plan(count=6, multiplier=5.0, stops=(), delta=DELTA, **changes):
    plan = Plan((Stage(Access("steps", {"sum": multiplier}), count, 1.0),), target_epsilon=9.0, delta=delta, stops=stops)
    return replace(plan, **changes)


def _draw(account, times=1, stage="steps"):
    for _ in range(times):
        with account.open(stage) as access:
            gaussian(access, "sum", torch.zeros(2), sensitivity=1.0)


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path / "census.jsonl", epsilon=6.0, delta=DELTA)


def _alone(event, tmp_path, name="other"):
    """Return the total of a study that has run this alone."""
    return Study(tmp_path / f"{name}.jsonl", epsilon=6.0, delta=DELTA).check(event).epsilon


# Stopped runs in a study


def test_a_stopped_run_counts_with_what_it_has_drawn(study, tmp_path):
    account = Account(_plan(), tmp_path / "ledger.jsonl", study=study)
    _draw(account, 2)
    assert study.total.epsilon == _alone(TIMES(GAUSSIAN(5.0), 6), tmp_path)
    stopped = account.stop()
    assert stopped.drawn == (("steps", 2, 6),) and stopped.after == study.total and not stopped.whole
    assert study.total.epsilon == _alone(TIMES(GAUSSIAN(5.0), 2), tmp_path) == account.study_total.epsilon
    assert study.total.runs == 1 and "'steps' were drawn. The run is stopped for good" in str(stopped)
    with pytest.raises(LedgerError, match="closed"):
        _draw(account)
    # The rest is there for another run, which would not have fitted beside the whole.
    assert account.stop().after == study.total and study.total.runs == 1


def test_what_went_back_can_be_spent(study):
    large = TIMES(GAUSSIAN(2.5), 3)
    account = Account(_plan(10, 3.3), study=study)
    _draw(account)
    with pytest.raises(BudgetTooSmall):
        study.enter("large", large)
    account.stop()
    assert study.enter("large", large).epsilon <= 6.0


def test_a_run_that_has_drawn_nothing_gives_everything_back(study, tmp_path, monkeypatch):
    account = Account(_plan(), tmp_path / "ledger.jsonl", study=study)
    assert account.stop().study is None and study.total.runs == 0
    # A crash between the entry and the first line.
    account = Account(_plan(), tmp_path / "second.jsonl", study=study)
    monkeypatch.setattr(Ledger, "write", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        _draw(account)
    assert study.total.epsilon > 0.0
    account.stop()
    assert study.total.epsilon == 0.0 and Study(study.path).total == study.total


def test_a_finished_run_stays_as_it_is(study, tmp_path):
    account = Account(_plan(2), tmp_path / "ledger.jsonl", study=study)
    _draw(account, 2)
    before, written = study.total, study.path.read_bytes()
    assert account.stop().finished and not account.ledger.stopped
    account.verify_complete()
    assert "finished, so nothing goes back" in str(stop_run(tmp_path / "ledger.jsonl"))
    assert study.total == before and study.path.read_bytes() == written


def test_lines_that_were_written_ahead_of_a_crash_count(study, tmp_path):
    path = tmp_path / "ledger.jsonl"
    account = Account(_plan(1000, 60.0), path, study=study)
    _draw(account, 3)
    left = shutil.copytree(tmp_path, tmp_path / "after the crash")
    account.ledger.close()
    stopped = stop_run(left / "ledger.jsonl", study)
    assert stopped.drawn == (("steps", 10, 1000),), "a block of ten lines"
    # The run itself ended cleanly after three: stopped in two ways, it counts whole.
    assert stop_run(path, study).whole and study.total.epsilon == _alone(TIMES(GAUSSIAN(60.0), 1000), tmp_path)


def test_an_access_that_is_open_counts(study, tmp_path):
    account = Account(_plan(), study=study)
    with account.open("steps") as access:
        gaussian(access, "sum", torch.zeros(2), sensitivity=1.0)
        assert account.stop().drawn == (("steps", 1, 6),)
    assert study.total.epsilon == _alone(GAUSSIAN(5.0), tmp_path)


def test_no_other_process_stops_a_run_that_is_going_on(study, tmp_path):
    account = Account(_plan(), tmp_path / "ledger.jsonl", study=study)
    _draw(account)
    before = study.total
    with pytest.raises(LedgerError, match="is writing this ledger"):
        stop_run(tmp_path / "ledger.jsonl")
    child = multiprocessing.get_context("fork").Process(target=account.stop)
    child.start()
    child.join()
    assert child.exitcode != 0 and study.total == before
    _draw(account)
    account.ledger.close()


def test_the_ledger_is_stopped_before_the_study_and_a_second_call_completes_it(study, tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    account = Account(_plan(), path, study=study)
    _draw(account)
    whole = study.total

    def crash(self, *_):
        assert json.loads(path.read_text().splitlines()[-1])["stopped"] == 1
        raise OSError("a crash between the two")

    with monkeypatch.context() as patch:
        patch.setattr(Study, "stop", crash)
        with pytest.raises(OSError, match="between the two"):
            account.stop()
    assert study.total == whole
    with pytest.raises(LedgerError, match="was stopped for good"):
        Account.resume(path, study=study)
    assert stop_run(path).after.epsilon < whole.epsilon
    assert account.stop().after == study.total


def test_a_stopped_run_never_goes_on(study, tmp_path):
    """A copy of its ledger that was made before knows the study, and the study knows that the run was stopped."""
    path, copy = tmp_path / "ledger.jsonl", tmp_path / "copy"
    account = Account(_plan(), path, study=study)
    _draw(account)
    account.ledger.close()
    copy.mkdir()
    for name in ("ledger.jsonl", "ledger.jsonl.heads"):
        shutil.copy(tmp_path / name, copy / name)
    stop_run(path)
    with pytest.raises(LedgerError, match="was stopped for good"):
        Account.resume(path, study=study)
    with pytest.raises(LedgerError, match=r"study census: run .* was stopped for good"):
        Account.resume(copy / "ledger.jsonl", study=study)
    with pytest.raises(LedgerError, match=r"belongs to the study .*census.jsonl.* found none"):
        Account.resume(copy / "ledger.jsonl")
    other = Study(tmp_path / "other.jsonl", epsilon=6.0, delta=DELTA)
    with pytest.raises(LedgerError, match="belongs to the study"):
        Account.resume(copy / "ledger.jsonl", study=other)
    with pytest.raises(LedgerError, match="belongs to the study"):
        stop_run(copy / "ledger.jsonl", other)
    for ask in (study.enter, lambda run, event: study.check(event, run=run)):
        with pytest.raises(LedgerError, match="was stopped for good"):
            ask(account.ledger.run, GAUSSIAN(50.0))
    assert study.total.epsilon == _alone(GAUSSIAN(5.0), tmp_path)


def test_an_account_that_began_before_the_stop_of_a_copy_is_refused_when_it_enters_again(study, tmp_path):
    account = Account(_plan(), study=study)
    _draw(account)
    study.stop(account.ledger.run, None)
    account.plan = replace(account.plan, target_epsilon=8.0)
    with pytest.raises(LedgerError, match="was stopped for good"):
        _draw(account)


def _gone_on(tmp_path, study=None, **changes):
    """Return an account that has drawn one access and closed its ledger, and one that has drawn four more since."""
    path = tmp_path / "ledger.jsonl"
    account = Account(_plan(**changes), path, study=study)
    _draw(account)
    account.ledger.close()
    other = Account.resume(path, study=study)
    other.go_on(account.done)
    _draw(other, 4)
    return account, other


def test_what_another_account_has_drawn_since_counts_when_the_first_one_stops(study, tmp_path):
    account, other = _gone_on(tmp_path, study, stops=(1, 3))
    whole = study.total
    with pytest.raises(LedgerError, match="is writing this ledger"):
        account.stop()
    assert study.total == whole
    other.ledger.close()
    assert account.stop().drawn == (("steps", 5, 6),)
    assert study.total.epsilon == _alone(TIMES(GAUSSIAN(5.0), 5), tmp_path)
    assert account.named_stop is None and account.certify()[1].epsilon == account.plan.epsilon
    assert account.ledger.accesses == Ledger.read(tmp_path / "ledger.jsonl").accesses
    # An account that is told of nothing finds the last line, too.
    assert other.stop().drawn == (("steps", 5, 6),) and study.total.runs == 1
    assert other.ledger.stopped and other.certify()[1].epsilon == account.plan.epsilon


def test_a_run_that_another_account_has_finished_stays_whole(study, tmp_path):
    account, other = _gone_on(tmp_path, study)
    _draw(other)
    other.ledger.record_trained("last")
    other.verify_complete()
    before = study.total
    assert account.stop().finished and study.total == before and not account.ledger.stopped
    assert account.ledger.trained == "last"
    account.verify_complete()


def test_a_certificate_knows_what_another_account_has_stopped(tmp_path):
    account, other = _gone_on(tmp_path, stops=(1, 5))
    other.stop()
    event, spent = account.certify()
    assert account.named_stop == 5 and event == TIMES(GAUSSIAN(5.0), 5) and spent == other.certify()[1]


def test_a_ledger_that_is_gone_or_another_s_certifies_nothing(tmp_path):
    account, other = _gone_on(tmp_path)
    other.ledger.close()
    content = {name: (tmp_path / name).read_bytes() for name in ("ledger.jsonl", "ledger.jsonl.heads")}
    for name in content:
        (tmp_path / name).unlink()
    with pytest.raises(LedgerError, match="put the private folder back"):
        account.certify()
    Account(_plan(), tmp_path / "ledger.jsonl").ledger.close()
    for ask in (account.certify, account.stop):
        with pytest.raises(LedgerError, match="holds another run"):
            ask()
    for name in content:
        (tmp_path / name).write_bytes(content[name])
    assert account.certify()[1].epsilon == account.plan.epsilon and account.count("steps") == 5


def test_a_line_behind_the_last_one_is_damage(tmp_path, study):
    path = tmp_path / "ledger.jsonl"
    account = Account(_plan(), path, study=study)
    _draw(account)
    account.stop()
    from lightning_dpgen.privacy import chain

    heads, text = chain.seal_lines(account.ledger.head, [{"resumed": chain.now()}])
    file, known = chain.reopen(path)
    with file, known:
        file.seek(0, 2)
        known.seek(0, 2)
        chain.append(file, known, text, heads[-1])
    with pytest.raises(LedgerError, match="follows the last line of a run that was stopped"):
        Ledger.read(path)


def test_a_run_without_a_study_can_be_stopped_and_has_nothing_to_give_back(tmp_path):
    path = tmp_path / "ledger.jsonl"
    account = Account(_plan(), path)
    _draw(account)
    account.ledger.close()
    with pytest.raises(LedgerError, match="entered in no study"):
        stop_run(path)
    resumed = Account.resume(path)
    assert resumed.stop().study is None and resumed.ledger.stopped
    with pytest.raises(LedgerError, match="was stopped for good"):
        Account.resume(path)


def test_a_ledger_and_a_study_of_before_load_and_stop(tmp_path):
    """Neither knew of the other, and the study's first line had no identity of its own."""
    from lightning_dpgen.privacy import chain

    path = tmp_path / "old.jsonl"
    heads, text = chain.seal_lines(
        "", [{"study": 2, "epsilon": 6.0, "delta": DELTA, "opened": "2025-01-01T00:00:00+00:00"}]
    )
    for file in chain.create(path, text, heads[-1]):
        file.close()
    account = Account(_plan(), tmp_path / "ledger.jsonl")
    _draw(account, 2)
    account.ledger.close()
    study = Study(path)
    with pytest.raises(LedgerError, match="holds no entry of run"):
        stop_run(tmp_path / "ledger.jsonl", study)
    assert not Ledger.read(tmp_path / "ledger.jsonl").stopped
    whole = study.enter(account.ledger.run, account.plan.event)
    stopped = stop_run(tmp_path / "ledger.jsonl", study)
    assert stopped.whole and stopped.after == whole == study.total, "a copy may go on that does not know the study"


@pytest.mark.parametrize("drawn", [0, 1])
def test_a_run_that_began_without_its_study_counts_whole_after_a_stop(study, tmp_path, drawn):
    """A copy of its ledger from before it was entered, also an empty one, goes on without the study."""
    account = Account(_plan(), tmp_path / "ledger.jsonl")
    _draw(account, drawn)
    account.ledger.close()
    for end in ("", ".heads"):
        shutil.copy(tmp_path / f"ledger.jsonl{end}", tmp_path / f"copy.jsonl{end}")
    resumed = Account.resume(tmp_path / "ledger.jsonl", study=study)
    resumed.go_on(account.done)
    _draw(resumed)
    whole = study.total
    stopped = resumed.stop()
    assert stopped.whole and stopped.after == whole == study.total and resumed.ledger.stopped
    copy = Account.resume(tmp_path / "copy.jsonl")
    copy.go_on(account.done)
    _draw(copy, 6 - drawn)
    copy.verify_complete()
    assert study.total.epsilon == _alone(TIMES(GAUSSIAN(5.0), 6), tmp_path)


def test_a_ledger_names_its_study_before_it_has_its_name(study, tmp_path):
    """So no copy of it goes on without the study, though nothing has been drawn and nothing entered yet."""
    path = tmp_path / "ledger.jsonl"
    Account(_plan(), path, study=study).ledger.close()
    assert json.loads(path.read_text().splitlines()[1])["study"] == study.identity and study.total.runs == 0
    with pytest.raises(LedgerError, match="belongs to the study"):
        Account.resume(path)
    resumed = Account.resume(path, study=study)
    resumed.go_on({})
    _draw(resumed, 2)
    assert not resumed.stop().whole and study.total.epsilon == _alone(TIMES(GAUSSIAN(5.0), 2), tmp_path)


def test_pairs_and_references_stay_whole(study, tmp_path):
    laws.a_stopped_run_gives_nothing_back_under_pairs()
    # One run with its pair alone, in a study by moments.
    study.enter("a", GAUSSIAN(9.0))
    study.enter("pair", GAUSSIAN(5.0), pair=(1.0, 1e-7))
    before = study.total
    assert study.stop("pair", GAUSSIAN(50.0))[1] == before and study.total == before
    # A reference that was promised stands for whatever is drawn.
    first = make_first_plan(StageSpec("n", {"sum": 1.0}, 1, max_noise=1e9, share=0.1, noise=20.0), epsilon=1.0, delta=1e-6)
    account = Account(first, study=Study(tmp_path / "bought.jsonl", epsilon=6.0, delta=DELTA))
    _draw(account, stage="n")
    steps = StageSpec("steps", {"sum": 1.0}, 4, max_noise=1e9)
    bought = StageSpec("n", {"sum": 1.0}, 1, max_noise=1e9, share=0.1, noise=20.0)
    account.extend(make_rest(first, [bought, steps]))
    _draw(account)
    whole = account.study.total
    assert account.stop().whole and account.study.total == whole


def test_steps_in_turn_count_by_the_rounds_that_have_begun(tmp_path):
    """A record has one step in each round: of 9 steps in rounds of 4 the third round has begun."""
    strategy = Strategy(steps=20, period=4, coefficients=(1.0, 0.5))
    noise = CorrelatedGaussianDpEvent.of(2.0, 0.4, strategy)
    assert [noise.after(steps).count for steps in (1, 4, 5, 8, 9, 20)] == [1, 1, 2, 2, 3, 5]
    assert noise.after(20) == noise.standard
    plan = _plan()
    stage = Stage(Access("steps", {"gradient": 2.0}, Cyclic(0.1, strategy)), 20, 1.0)
    plan = replace(plan, stages=(stage,))
    from lightning_dpgen.privacy.reconcile import counted_event

    assert counted_event(plan, [(stage.access, 9)]) == noise.after(9)
    assert counted_event(plan, [(stage.access, 20)]) == noise.standard


def test_a_beginning_of_a_round_has_no_larger_moments_than_the_round():
    """Rows of a block, with the sample drawn once: moments of all beginnings are integrated here."""
    rate, deviation, coefficients = 0.3, 1.5, (1.0, 0.5)
    x = np.linspace(-9, 11, 801)
    a, b = np.meshgrid(x, x, indexing="ij")
    cell = (x[1] - x[0]) ** 2

    def density(shift):
        return norm.pdf(a, shift * coefficients[0], deviation) * norm.pdf(b, shift * coefficients[1], deviation)

    whole = (1 - rate) * density(0) + rate * density(1)
    first, nothing = whole.sum(axis=1), density(0).sum(axis=1)
    for order in (2, 4, 8):
        block = (whole**order * density(0) ** (1 - order)).sum() * cell
        begun = (first**order * nothing ** (1 - order)).sum() * cell
        assert 1.0 < begun <= block
        strategy = Strategy(steps=2, period=2, coefficients=coefficients)
        event = CorrelatedGaussianDpEvent.of(deviation / strategy.sensitivity, rate, strategy).after(1)
        assert math.log(block) / (order - 1) <= renyi_moments(event, [order])[0] * (1 + 1e-6)


def _worst_stop(losses, weights, steps, value):
    """Return the largest mean of ``value(step, loss)`` over all rules that stop by the losses so far.

    Args:
        losses, weights: (k,) the loss of a step at points, and their probabilities.
        value: a function of the number of steps and the (n,) losses so far.
    """
    grid = np.linspace(-12.0, 14.0, 2001)
    best = value(steps, grid)
    for step in range(steps - 1, -1, -1):
        going = np.interp((grid[:, None] + losses).ravel(), grid, best).reshape(len(grid), -1) @ weights
        best = np.maximum(value(step, grid), going) if step else going
    return float(np.interp(0.0, grid, best))


def _gaussian_losses(mu):
    x = np.linspace(-8.0, 8.0, 401)
    return mu * x + mu * mu / 2, norm.pdf(x) * (x[1] - x[0])


def _failing(epsilon, loss):
    return np.maximum(0.0, -np.expm1(np.minimum(epsilon - loss, 0.0)))


def test_what_follows_from_stopped_runs_stays_within_the_total(tmp_path):
    """A run is stopped by the loss so far, at the worst step of all; then what went back buys whatever harms most: a
    Gaussian, or a failure. All of it is integrated, and the true delta at the study's epsilon is below its delta."""
    epsilon, delta, steps, multiplier = 3.0, 1e-5, 5, 4.0
    options = {}

    def most(fits, high):
        low = 0.0
        for _ in range(14):
            middle = (low + high) / 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    for step in range(steps + 1):
        study = Study(tmp_path / f"{step}.jsonl", epsilon=epsilon, delta=delta)
        study.enter("run", TIMES(GAUSSIAN(multiplier), steps))
        if step < steps:
            study.stop("run", TIMES(GAUSSIAN(multiplier), step) if step else None)

        def fits(event, pair=None, study=study):
            try:
                study.check(event, pair=pair)
            except BudgetTooSmall:
                return False
            return True

        squared = most(lambda squared, fits=fits: squared > 0 and fits(GAUSSIAN(squared**-0.5)), 2.0)
        options[step] = squared**0.5, most(lambda d, fits=fits: d > 0 and fits(GAUSSIAN(9.0), (0.0, d)), delta)
    assert options[1][0] > options[3][0] > options[steps][0] > 0.0, "less drawn leaves more"

    def value(step, loss):
        on, failing = options[step]
        left = epsilon - loss
        go = norm.cdf(on / 2 - left / on) - np.exp(np.minimum(left + norm.logcdf(-on / 2 - left / on), 0.0))
        return np.maximum(failing + (1 - failing) * _failing(epsilon, loss), go)

    true = _worst_stop(*_gaussian_losses(1 / multiplier), steps, value)
    assert 0.2 * delta < true <= delta


def test_pairs_that_are_read_off_at_a_stop_would_pass_the_total():
    """The wrong rule: a study by pairs that counts a stopped run with the epsilon of what it has drawn, at the run's
    delta. The rest buys randomised response. The true delta at the total is more than twice the stated one."""
    total, delta, steps, mu = 6.0, 1e-5, 12, 0.25
    read = [_gaussian_epsilon(mu * math.sqrt(step), delta) if step else 0.0 for step in range(steps + 1)]
    assert read[-1] < total

    def value(step, loss):
        rest = total - read[step]
        true, false = 1.0 / (1.0 + math.exp(-rest)), 1.0 / (1.0 + math.exp(rest))
        return true * _failing(total, loss + rest) + false * _failing(total, loss - rest)

    assert _worst_stop(*_gaussian_losses(mu), steps, value) > 2.0 * delta


# Certificates at named times


def _gaussian_epsilon(mu, delta):
    def excess(e):
        return norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu) - delta

    return brentq(excess, 0.0, 100.0)


def test_a_run_that_stops_is_certified_at_the_next_named_time():
    """Oracle: the closed form of a Gaussian, at a third of delta."""
    plan = _plan(6, 5.0, stops=(2, 4))
    costs = {count: _gaussian_epsilon(math.sqrt(count) / 5.0, DELTA / 3) for count in (2, 4, 6)}
    assert plan.epsilon == pytest.approx(costs[6], rel=1e-9)
    for made, charged in ((1, 2), (2, 2), (3, 4), (4, 4), (5, 6), (6, 6)):
        account = Account(plan)
        _draw(account, made)
        assert account.certify()[1].epsilon == plan.epsilon, "before it is stopped for good it may still go on"
        account.stop()
        event, spent = account.certify()
        assert spent.epsilon == pytest.approx(costs[charged], rel=1e-9)
        assert account.named_stop == (charged if charged < 6 else None)
        assert event == TIMES(GAUSSIAN(5.0), charged)


def test_sampled_steps_at_named_times_agree_with_another_accountant():
    spec = StageSpec("steps", {"sum": 1.0}, 40, max_noise=1e3, sampler=Poisson(0.1))
    for accountant in ("pld", "rdp"):
        plan = make_plan([spec], epsilon=4.0, delta=DELTA, stops=[10, 20], accountant=accountant)
        assert 3.99 < plan.epsilon <= 4.0 and Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan
        access = plan.stages[0].access
        for count in (10, 20, 40):
            stated = plan.cost_of(plan.stopped_after(count).event).epsilon
            stock = privacy_loss_distribution.from_gaussian_mechanism(
                access.multiplier, sampling_prob=0.1, value_discretization_interval=1e-4
            )
            exact = stock.self_compose(count).get_epsilon_for_delta(DELTA / 3)
            assert exact * (1 - 2e-3) <= stated <= exact * (1.005 if accountant == "pld" else 1.3)


@pytest.mark.parametrize("direction", ["removed", "added"])
@pytest.mark.parametrize("rate", [1.0, 0.7])
def test_an_odometer_at_a_chosen_step_under_reports_and_named_times_do_not(rate, direction):
    """The worst rule stops by the losses so far. With an epsilon of each step the failures are several times delta; with
    named times they stay below it. This is an integral over all losses, for a record removed and for one added."""
    steps, deviation = 12, 4.0 if rate == 1.0 else 3.0
    spec = StageSpec("steps", {"sum": 1.0}, steps, max_noise=1e9, noise=deviation, sampler=Poisson(rate))
    once = make_plan([spec], epsilon=None, delta=DELTA)
    named = make_plan([spec], epsilon=None, delta=DELTA, stops=[3, 6])
    times = (3, 6, 12)
    x = np.linspace(-9.0 * deviation, 9.0 * deviation + 1.0, 601)
    without = norm.pdf(x, 0.0, deviation)
    with_it = (1 - rate) * without + rate * norm.pdf(x, 1.0, deviation)
    first, second = (with_it, without) if direction == "removed" else (without, with_it)
    losses, weights = np.log(first / second), first * (x[1] - x[0])
    read = [once.cost_of(once.stopped_after(step).event).epsilon if step else 0.0 for step in range(steps + 1)]
    stated = {time: named.cost_of(named.stopped_after(time).event).epsilon for time in times}
    charged = [stated[next(time for time in times if step <= time)] for step in range(steps + 1)]
    odometer = _worst_stop(losses, weights, steps, lambda step, loss: _failing(read[step], loss))
    at_named = _worst_stop(losses, weights, steps, lambda step, loss: _failing(charged[step], loss))
    assert at_named <= DELTA * (1 + 1e-3)
    # Under sampling a record that is added is the cheaper direction.
    assert odometer > (4.0 if rate == 1.0 or direction == "removed" else 1e-3) * DELTA


BAD = {
    "behind the end": ((7,), "rising, from 1 to 5"),
    "the end itself": ((6,), "rising"),
    "nothing": ((0,), "rising"),
    "falling": ((4, 2), "rising"),
    "a part": ((0.5,), "whole numbers"),
    "twice": ((2, 2), "rising"),
    "a truth": ((True,), "whole numbers"),
}


@pytest.mark.parametrize(("stops", "words"), BAD.values(), ids=BAD)
def test_times_that_make_no_sense_are_refused(stops, words):
    with pytest.raises(ValueError, match=words):
        _plan(stops=stops)


def test_plans_without_a_proof_take_no_stops():
    with pytest.raises(ValueError, match="at most 19"):
        _plan(50, stops=tuple(range(1, 21)))
    strategy = Strategy(steps=20, period=4, coefficients=(1.0, 0.5))
    cyclic = (Stage(Access("steps", {"gradient": 2.0}, Cyclic(0.1, strategy)), 20, 1.0),)
    first = make_first_plan(StageSpec("n", {"n": 1.0}, 1, max_noise=1e9, share=0.1, noise=20.0), epsilon=1.0, delta=1e-6)
    with_reference = replace(first, stages=(*first.stages, Stage(Access("steps", {"sum": 99.0}), 4, 1.0)))
    for other in (
        lambda: _plan(stops=(4,), stages=cyclic),
        lambda: replace(with_reference, stops=(2,)),
        lambda: _plan(stops=(4,), relation=REPLACE_ONE),
    ):
        with pytest.raises(ValueError, match="no stop is certified below the whole plan"):
            other()
    with pytest.raises(ValueError, match="of a record replaced no stop"):
        spec = StageSpec("a", {"x": 1.0}, 4, max_noise=1e9)
        make_plan([spec], epsilon=1.0, delta=DELTA, relation=REPLACE_ONE, stops=[2])


def test_a_run_with_other_stages_is_charged_for_them_whole():
    """Also where they are interleaved, and not all of their accesses were made."""
    stages = (Stage(Access("first", {"sum": 9.0}), 2, 0.1), Stage(Access("steps", {"sum": 5.0}), 6, 0.9))
    plan = Plan(stages, 9.0, DELTA, stops=(3,), flexible="steps")
    account = Account(plan)
    _draw(account, 1, "first")
    account.stop()
    assert account.named_stop is None and account.certify()[1].epsilon == plan.epsilon
    account = Account(plan)
    _draw(account, 2, "first")
    _draw(account, 2)
    account.stop()
    mu = math.sqrt(2 / 81 + 3 / 25)
    assert account.certify()[1].epsilon == pytest.approx(_gaussian_epsilon(mu, DELTA / 2), rel=1e-9)
    account = Account(replace(plan, stages=(replace(stages[0], interleaved=True), stages[1])))
    for stage in ("steps", "first", "steps"):
        _draw(account, 1, stage)
    account.stop()
    assert account.certify()[1].epsilon == pytest.approx(_gaussian_epsilon(mu, DELTA / 2), rel=1e-9)


def test_lost_steps_and_a_stop_go_together(tmp_path):
    """Steps that a crash has lost count where the run stops; the plan is the promised one."""
    path = tmp_path / "ledger.jsonl"
    account = Account(_plan(6, stops=(2, 4)), path)
    _draw(account, 3)
    account.ledger.close()
    resumed = Account.resume(path)
    resumed.go_on({"steps": 1})
    assert resumed.plan.stops == (2, 4)
    _draw(resumed)
    resumed.stop()
    assert resumed.ledger.count("steps") == 4 == resumed.named_stop


def test_a_rewritten_plan_divides_delta_as_before_and_its_run_is_charged_whole(tmp_path):
    """Otherwise failures at the named times of both plans would add up to more than delta."""
    stages = (Stage(Access("first", {"sum": 5.0}), 1, 0.1), Stage(Access("steps", {"sum": 5.0}), 6, 0.9))
    plan = Plan(stages, 3.0, DELTA, stops=(2, 5), flexible="steps")
    plan = replace(plan, target_epsilon=plan.epsilon * 1.0001)
    shorter = plan.rewrite({"first": 1, "steps": 0}, {})
    assert shorter.stage("first").count == 2 and shorter.stage("steps").count == 5 and shorter.stops == (2, 4)
    assert shorter.part_of_delta == plan.part_of_delta and shorter.epsilon <= plan.target_epsilon
    account = Account(plan, tmp_path / "ledger.jsonl")
    _draw(account, 1, "first")
    account.ledger.close()
    resumed = Account.resume(tmp_path / "ledger.jsonl")
    resumed.go_on({})
    _draw(resumed, 1, "first")
    _draw(resumed, 1)
    resumed.stop()
    assert resumed.plan == shorter and resumed.named_stop is None and resumed.certify()[1].epsilon == shorter.epsilon
    # As many steps as parts of delta are left, or nothing is.
    narrow = Plan((stages[0], replace(stages[1], count=4)), 3.0, DELTA, stops=(1, 2, 3), flexible="steps")
    with pytest.raises(BudgetTooSmall, match="no room"):
        replace(narrow, target_epsilon=narrow.epsilon * 1.0001).rewrite({"first": 1}, {})

"""Truncated Poisson lots: cut at random, at a delta that exact enumeration confirms, by a bound that is certain."""

import itertools
import json
import math
from fractions import Fraction
from types import SimpleNamespace

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from scipy import stats

from lightning_dpgen import (
    Account,
    Fixed,
    PoissonLots,
    PrivateOptimizer,
    PrivateTraining,
    StageSpec,
    make_plan,
    release_weights,
    training_stage,
    verify,
)
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.event_parts import EpsilonDeltaDpEvent
from lightning_dpgen.privacy.errors import PlanMismatch
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.sampler_choice import make_sampler
from lightning_dpgen.privacy.sampling.samplers import TRUNCATED, Poisson, TruncatedPoisson, truncation_failure
from lightning_dpgen.release.certificate import digest, statement

DELTA = 1e-5


def _stage(**changes):
    settings = {"name": TRUNCATED, "sample_rate": 0.05, "largest_lot": 110, "at_most": 1200}
    chosen = settings | {name: value for name, value in changes.items() if name in settings}
    sampler = make_sampler(**chosen, steps=60, epsilon=3.0, delta=DELTA)
    others = {name: value for name, value in changes.items() if name not in settings}
    return training_stage(Fixed(1.0), sampler=sampler, **{"n": 1000, "steps": 60} | others)


def _plan(accountant="rdp", **changes):
    return make_plan([_stage(**changes)], epsilon=3.0, delta=DELTA, accountant=accountant)


def _density(x, gradients, rate, largest, noise):
    """Return the density of the noisy sum of a truncated lot: over all coins, and all choices of so many records."""
    total = np.zeros_like(x)
    for size in range(len(gradients) + 1):
        chance = rate**size * (1 - rate) ** (len(gradients) - size)
        for lot in itertools.combinations(gradients, size):
            kept = list(itertools.combinations(lot, min(size, largest)))
            for cut in kept:
                total += chance / len(kept) * stats.norm.pdf(x, sum(cut), noise)
    return total


def _delta(p, q, epsilon, x):
    """Return the hockey-stick divergence of two densities at points of a grid."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * (x[1] - x[0]))


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 0.6), (0.6, 1.0), (0.9, 0.6)])
def test_the_true_loss_of_four_records_cut_to_two_is_below_what_is_stated(rate, noise):
    """One step, n = 4, B = 2, by enumeration: at each epsilon, in both directions, for the worst of eight data sets."""
    x = np.arange(-2 - 9 * noise, 2 + 9 * noise, 0.004)
    sampler = TruncatedPoisson(rate, 2, at_most=4)
    epsilons, beyond = np.linspace(0.0, 6.0, 13), 0.0
    alone, failure = stats.norm(0, noise).pdf(x), sampler.failure
    sampled = (1 - rate) * alone + rate * stats.norm(1, noise).pdf(x)
    access = Access("training", {"gradient": noise}, sampler)
    for others in itertools.combinations_with_replacement((-1.0, 1.0), 3):
        for record in (-1.0, 1.0):
            p, q = _density(x, (*others, record), rate, 2, noise), _density(x, others, rate, 2, noise)
            assert p.sum() * 0.004 == pytest.approx(1.0, abs=1e-6)
            for epsilon in epsilons:
                true = max(_delta(p, q, epsilon, x), _delta(q, p, epsilon, x))
                untruncated = max(_delta(sampled, alone, epsilon, x), _delta(alone, sampled, epsilon, x))
                assert true <= failure + (1.0 - failure) * untruncated + 1e-6
                beyond = max(beyond, true - untruncated)
            # The accountant, at the delta that it was asked for.
            delta = failure + 0.01 * (1.0 - failure)
            stated = compute_epsilon(access.event, delta).epsilon
            assert max(_delta(p, q, stated, x), _delta(q, p, stated, x)) <= delta + 1e-6
    # Without the failure the statement is false where lots are often full: a record takes the place of another one.
    assert beyond > 0.01 if rate > 0.5 else beyond < 1e-6


@pytest.mark.parametrize(("largest", "at_most", "rate"), [(2, 4, "1/3"), (5, 30, "1/10"), (1, 2, "1/100"), (20, 40, "1/2")])
def test_the_failure_is_that_of_as_many_others_exactly(largest, at_most, rate):
    q = Fraction(rate)
    exact = sum(
        math.comb(at_most - 1, size) * q**size * (1 - q) ** (at_most - 1 - size) for size in range(largest, at_most)
    )
    found = truncation_failure(float(q), largest, at_most)
    assert float(exact) <= found <= float(exact) * (1 + 1e-8)


def test_the_failure_in_the_far_tail_and_where_there_is_none():
    """A million records and a failure near 1e-20, against the sum of its terms in logarithms."""
    largest, at_most, rate = 1320, 10**6, 0.001
    sizes = np.arange(largest, 2500)
    exact = np.exp(np.logaddexp.reduce(stats.binom.logpmf(sizes, at_most - 1, rate)))
    found = truncation_failure(rate, largest, at_most)
    assert 1e-25 < found < 1e-15 and found == pytest.approx(exact, rel=1e-6)
    assert truncation_failure(0.5, 110, 110) == 0.0 < truncation_failure(1e-9, 10**5, 10**6)
    whole = Access("a", {"x": 1.0}, TruncatedPoisson(0.1, 110, 110))
    assert whole.event == Access("a", {"x": 1.0}, Poisson(0.1)).event


@pytest.mark.slow
def test_it_costs_no_less_than_the_event_that_dp_accounting_has_for_it():
    """A record that takes the place of another one is accounted for there; here it is a failure, which costs more."""
    plan = _plan("pld")
    access = plan.stages[0].access
    theirs = dp_accounting.TruncatedSubsampledGaussianDpEvent(1200, 0.05, 110, access.multiplier)
    accountant = PLDAccountant(value_discretization_interval=5e-3)
    least = accountant.compose(dp_accounting.SelfComposedDpEvent(theirs, 60)).get_epsilon(DELTA)
    assert least * 0.99 <= plan.epsilon <= 1.01 * least
    without = _plan(name="poisson", largest_lot=None, at_most=None)
    assert _plan().stages[0].access.multiplier > without.stages[0].access.multiplier
    failures = [e for e in access.event.events if isinstance(e, EpsilonDeltaDpEvent)]
    assert failures == [EpsilonDeltaDpEvent(0.0, access.sampler.failure)]
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


WRONG = {
    "no bound of records": ({"at_most": None}, "expected largest_lot"),
    "no bound of lots": ({"largest_lot": None}, "expected largest_lot"),
    "a bound below n": ({"at_most": 999}, "fewer than the declared n=1000"),
    "a lot that is too small": ({"largest_lot": 60}, r"largest_lot=1\d\d would take a hundredth"),
    "no lot": ({"largest_lot": 0}, "largest_lot=0"),
    "another sampler": ({"name": "poisson"}, "sampler='poisson' are not cut"),
    "full passes": ({"sample_rate": 1.0}, "sample_rate=1"),
    "open steps": ({"steps": None, "noise": 2.0}, "need a count"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_not_proved_is_refused_in_one_line(wrong):
    changes, words = WRONG[wrong]
    with pytest.raises(ValueError, match=words) as refused:
        _plan(**changes)
    assert "\n" not in str(refused.value)


def test_the_lot_that_a_refusal_names_would_do():
    with pytest.raises(ValueError, match="would take a hundredth") as refused:
        _plan(largest_lot=60)
    named = int(str(refused.value).split("largest_lot=")[2].split()[0])
    assert 60 * truncation_failure(0.05, named, 1200) <= DELTA / 100 < 60 * truncation_failure(0.05, named - 1, 1200)
    assert _plan(largest_lot=named).epsilon <= 3.0


def _account(largest=6, at_most=40, rate=0.25, count=3, **more):
    access = Access("training", {"gradient": 2.0}, TruncatedPoisson(rate, largest, at_most))
    return Account(Plan((Stage(access, count, 1.0),), 50.0, 0.5), **more)


@pytest.mark.parametrize("stream", [{"seed": 2}, {"secure": True}], ids=["seeded", "secure"])
def test_lots_are_cut_to_a_uniform_choice(stream):
    """Sizes and inclusions against the exact law, at a false-alarm probability of 1e-9 each."""
    account, draws, units = _account(rate=0.5, stream=PrivateStream(**stream)), 2000, 20
    times, sizes = np.zeros(units), np.zeros(7)
    for _ in range(draws):
        positions, draw = account.sample("training", units)
        assert draw.size == len(positions) <= 6 and (np.diff(positions) > 0).all()
        times[positions] += 1
        sizes[len(positions)] += 1
    law = stats.binom.pmf(np.arange(units + 1), units, 0.5)
    cut = np.append(law[:6], law[6:].sum())
    # Each size by its exact law: some have so few lots that a chi-square is far off.
    values = [stats.binomtest(int(lots), draws, part).pvalue for lots, part in zip(sizes, cut, strict=True)]
    assert min(values) > 1e-9 / len(values)
    each = (np.minimum(np.arange(units + 1), 6) * law).sum() / units
    assert np.abs(times - draws * each).max() < 6.5 * math.sqrt(draws * each)
    # A cut that takes the first ones would not pass, nor a sampler without a cut.
    assert draws * (0.5 - each) > 13 * math.sqrt(draws * each)


def test_more_records_than_there_can_be_are_refused_without_telling_how_many(tmp_path):
    account = _account()
    for ask in (lambda: account.sample("training", 41), lambda: PoissonLots(torch.zeros(41, 1), account).draw()):
        with pytest.raises(PlanMismatch, match="more records, or persons, than at_most=40") as refused:
            ask()
        assert "41" not in str(refused.value)
    persons = np.repeat(np.arange(40), 2)
    plan = Plan(account.plan.stages, 50.0, 0.5, max_rows=2)
    assert len(PoissonLots(torch.zeros(80, 1), Account(plan), persons=persons).draw()) <= 12, (
        "six persons, with all of theirs"
    )
    settings = {"n": 40, "epsilon": 8, "delta": DELTA, "sample_rate": 0.1, "steps": 2, "clipping": Fixed(1.0)}
    cut = {"sampler": TRUNCATED, "largest_lot": 30, "at_most": 40}
    with pytest.raises(PlanMismatch, match="nothing was charged"):
        PrivateTraining(torch.rand(41, 2), ledger=tmp_path / "ledger", **settings, **cut)
    assert not (tmp_path / "ledger").exists()
    with pytest.raises(PlanMismatch, match="cut as a whole"):
        account.join(SimpleNamespace(size=2))


def _released(folder):
    stage = _stage(n=60, sample_rate=0.25, steps=3, largest_lot=36, at_most=70)
    account, network = Account(make_plan([stage], epsilon=4.0, delta=1e-3, accountant="rdp")), torch.nn.Linear(3, 1)
    optimizer = PrivateOptimizer(torch.optim.SGD(network.parameters(), lr=1.0), account=account, clipping=Fixed(1.0))
    term = PerRecord(lambda lot, noise: network(lot.records).square().sum(dim=1))
    for lot in PoissonLots(torch.rand(60, 3), account).draws(3):
        optimizer.set_gradients(term_gradients(network, term, lot, account.stream))
        optimizer.step()
    account.verify_complete()
    return release_weights(network, account, folder, data="random numbers")


def test_a_certificate_says_the_bound_that_it_rests_on_and_verify_computes_the_failure_anew(tmp_path):
    certificate = _released(tmp_path / "release")
    declared = certificate["declared"]
    assert declared["truncated_lots"] == {"training": {"largest_lot": 36, "at_most": 70}}
    assert "can hold more than 70 records" in certificate["statement"]
    good = verify(tmp_path / "release")
    assert good.good and any("never hold more than 70 records" in note for note in good.notes)
    path = tmp_path / "release" / "privacy.json"
    forged = {
        "more records": {"training": {"largest_lot": 36, "at_most": 90}},
        "smaller lots": {"training": {"largest_lot": 35, "at_most": 70}},
        "another stage": {"training": {"largest_lot": 36, "at_most": 70}, "other": {"largest_lot": 36, "at_most": 70}},
        "fewer than declared": {"training": {"largest_lot": 36, "at_most": 36}},
        "no numbers": {"training": {"largest_lot": "36", "at_most": 70}},
        "no cut": None,
    }
    for name, said in forged.items():
        rest = {key: value for key, value in declared.items() if key != "truncated_lots"}
        changed = certificate | {"declared": rest if said is None else rest | {"truncated_lots": said}}
        changed |= {"statement": statement(changed)}
        path.write_text(json.dumps(changed | {"digest": digest(changed)}))
        problems = [p for p in verify(tmp_path / "release").problems if "does not hold the certificate" not in p]
        assert problems and any("lots" in p for p in problems), name
    for rows in ("4", True, 2.5, [1], None, -1, 0, 10**30):
        changed = certificate | {"declared": declared | {"max_rows": rows}}
        path.write_text(json.dumps(changed | {"digest": digest(changed)}))
        assert any("max_rows" in problem for problem in verify(tmp_path / "release").problems), rows


def test_deltas_and_cuts_are_both_taken_off_the_delta_of_a_plan():
    keys = StageSpec("keys", {"counts": 1.0}, 1, max_noise=1e3, share=0.2, deltas={"counts": 1e-6})
    plan = make_plan([keys, _stage()], epsilon=3.0, delta=DELTA, accountant="rdp")
    assert plan.stage("keys").access.deltas == {"counts": 1e-6} and 2.99 < plan.epsilon <= 3.0
    assert plan.stage("training").access.sampler == TruncatedPoisson(0.05, 110, 1200)


def test_a_number_that_no_reader_takes_is_refused():
    with pytest.raises(ValueError, match="at_most=10000000000000: expected"):
        TruncatedPoisson(0.1, 10**12, 10**13)

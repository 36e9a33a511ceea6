"""Accountants and samplers by name: the sound ones answer, the others are refused with a reason and what to take."""

import json
import math
import warnings

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.rdp import RdpAccountant
from opacus.accountants import GaussianAccountant
from scipy import integrate, stats

from lightning_dpgen import (
    Account,
    AccountEngine,
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
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE, Unaccountable
from lightning_dpgen.privacy.accounting.renyi import RDP_ORDERS
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.sampling.sampler_choice import make_sampler
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.release.certificate import digest, statement
from lightning_dpgen.specs.settings import load_complete_settings
from lightning_dpgen.specs.usage_error import UsageError

DELTA = 1e-5
LOT = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1))
EVENTS = [
    dp_accounting.SelfComposedDpEvent(LOT, 500),
    dp_accounting.GaussianDpEvent(2.0),
    dp_accounting.ComposedDpEvent([dp_accounting.LaplaceDpEvent(3.0), dp_accounting.SelfComposedDpEvent(LOT, 3)]),
]
STEPS = StageSpec("training", {"gradient": 1.0}, 100, max_noise=100, sampler=Poisson(0.01))


@pytest.mark.parametrize("event", EVENTS)
def test_moments_by_name_are_those_of_dp_accounting_and_never_below_the_default(event):
    named = compute_epsilon(event, DELTA, accountant="rdp")
    assert named.method == "rdp" and named.interval == 0.0
    assert named.epsilon == pytest.approx(RdpAccountant(RDP_ORDERS).compose(event).get_epsilon(DELTA), rel=1e-9)
    assert named.epsilon >= compute_epsilon(event, DELTA).epsilon


@pytest.mark.parametrize("noise", [None, 1.0])
def test_a_plan_is_calibrated_by_the_accountant_that_it_names(noise):
    """Moments overstate, so they ask for more noise, or fewer steps; the plan remembers which they were."""
    spec = (
        STEPS if noise is None else StageSpec("training", {"gradient": 1.0}, None, 100, sampler=Poisson(0.01), noise=noise)
    )
    plans = {name: make_plan([spec], epsilon=2.0, delta=DELTA, accountant=name) for name in ("pld", "rdp")}
    for name, plan in plans.items():
        assert plan.spent.method == name and 1.99 < plan.epsilon <= 2.0
        assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan
        assert plan.curve("training", points=1).epsilons[-1] == pytest.approx(plan.epsilon, rel=2e-3)
    first, second = plans["pld"].stages[0], plans["rdp"].stages[0]
    assert second.access.multiplier > 1.02 * first.access.multiplier if noise is None else second.count < 0.9 * first.count
    assert "accountant" not in plans["pld"].as_json(), "ledgers of plans by the default stay as they were"


def test_moments_under_replace_one_are_for_full_passes_with_gaussian_noise():
    assert compute_epsilon(
        dp_accounting.GaussianDpEvent(2.0), DELTA, relation=REPLACE_ONE, accountant="rdp"
    ) == compute_epsilon(dp_accounting.GaussianDpEvent(1.0), DELTA, accountant="rdp")
    with pytest.raises(Unaccountable, match=r"record replaced.*take 'pld'"):
        compute_epsilon(EVENTS[0], DELTA, relation=REPLACE_ONE, accountant="rdp")
    for wrong in ({"delta": 0.0}, {"delta": 0.0, "relation": REPLACE_ONE}):
        with pytest.raises(ValueError, match=r"accountant='rdp'.*'pld'"):
            make_plan([StageSpec("a", {"x": 1.0}, 1, 100, kinds={"x": "laplace"})], epsilon=1.0, accountant="rdp", **wrong)


@pytest.mark.parametrize("name", ["prv", "gdp", "clt", "zcdp", "moments", "PLD", "", None, 3, ["pld"]])
def test_an_accountant_that_gives_no_bound_is_refused_in_one_line_which_says_what_to_take(name):
    doors = [
        lambda: make_plan([STEPS], epsilon=2.0, delta=DELTA, accountant=name),
        lambda: compute_epsilon(EVENTS[0], DELTA, accountant=name),
        lambda: PrivateTraining(
            torch.rand(9, 2), n=9, epsilon=8, delta=DELTA, sample_rate=0.5, steps=2, clipping=Fixed(1.0), accountant=name
        ),
    ]
    for door in doors:
        with pytest.raises(ValueError, match=r"accountant=.*'(pld|rdp)'") as refused:
            door()
        assert "\n" not in str(refused.value)


def test_the_refusals_are_true():
    """The central limit is below what a lot costs; Opacus' PRV is the loss of a record removed, in closed form."""
    rate, noise = 0.001, 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limit = GaussianAccountant()
    limit.history = [(noise, rate, 1)]
    claimed = limit.get_epsilon(DELTA)
    # The delta of one lot at the claimed epsilon, by quadrature.
    base, moved = stats.norm(0, noise), stats.norm(1, noise)

    def excess(x):
        return max(0.0, (1 - rate) * base.pdf(x) + rate * moved.pdf(x) - math.exp(claimed) * base.pdf(x))

    assert integrate.quad(excess, -5, 8, limit=400, points=[0, 1, 2])[0] > 10 * DELTA

    from opacus.accountants.analysis.prv import PoissonSubsampledGaussianPRV

    x = np.linspace(-2.0, 3.0, 7)
    mixed = rate * moved.cdf(x) + (1 - rate) * base.cdf(x)
    losses = np.log1p(rate * (moved.pdf(x) / base.pdf(x) - 1))
    assert PoissonSubsampledGaussianPRV(rate, noise).cdf(losses) == pytest.approx(mixed, abs=1e-9), "of one removed"


@pytest.mark.parametrize("name", ["shuffle", "uniform", "without_replacement", "balls_in_bins", "Poisson", None])
def test_a_sampler_without_a_proof_is_refused_in_one_line_which_says_what_is_proved(name):
    for door in (
        lambda: make_sampler(name, 0.5, steps=2, epsilon=8.0, delta=DELTA),
        lambda: PrivateTraining(
            torch.rand(9, 2), n=9, epsilon=8, delta=DELTA, sample_rate=0.5, steps=2, clipping=Fixed(1.0), sampler=name
        ),
    ):
        with pytest.raises(ValueError, match=r"sampler=.*'poisson'.*independently") as refused:
            door()
        assert "\n" not in str(refused.value)


def test_the_engine_of_opacus_loops_takes_the_accountant_of_the_plan_alone():
    account = Account(make_plan([STEPS], epsilon=2.0, delta=DELTA, accountant="rdp"))
    assert AccountEngine(account, accountant="rdp").get_epsilon(DELTA) == account.plan.epsilon
    for name, words in (("pld", "make_plan"), ("prv", "record removed")):
        with pytest.raises(ValueError, match=words):
            AccountEngine(account, accountant=name)


def test_a_setting_names_the_accountant_of_a_run():
    words = ["data=digits", "model=measured", "privacy.epsilon=8"]
    settings = load_complete_settings([*words, "privacy.accountant=rdp"])
    assert settings.plan().accountant == "rdp" and settings.dump_for_resume()["privacy"]["accountant"] == "rdp"
    assert "accountant" not in load_complete_settings(words).dump_for_resume()["privacy"], "as runs were asked for before"
    for more, reason in (
        (["privacy.accountant=gdp"], "central limit"),
        (["privacy.accountant=rdp", "privacy.selection=geometric"], "in any case"),
        (["privacy=off", "privacy.accountant=rdp"], "privacy=off"),
    ):
        with pytest.raises(UsageError, match=reason):
            load_complete_settings([*[word for word in words if more[0] != "privacy=off" or "epsilon" not in word], *more])


def _released(folder):
    plan = make_plan(
        [training_stage(Fixed(1.0), n=60, sample_rate=0.5, steps=3)], epsilon=4.0, delta=1e-3, accountant="rdp"
    )
    account, network = Account(plan), torch.nn.Linear(3, 1)
    optimizer = PrivateOptimizer(torch.optim.SGD(network.parameters(), lr=1.0), account=account, clipping=Fixed(1.0))
    term = PerRecord(lambda lot, noise: network(lot.records).square().sum(dim=1))
    for lot in PoissonLots(torch.rand(60, 3), account).draws(3):
        optimizer.set_gradients(term_gradients(network, term, lot, account.stream))
        optimizer.step()
    account.verify_complete()
    return release_weights(network, account, folder, data="random numbers")


def test_a_certificate_says_who_computed_epsilon_and_verify_asks_the_same(tmp_path):
    certificate = _released(tmp_path / "release")
    assert certificate["accountant"]["chosen"] == "rdp" and "Rdp" in certificate["accountant"]["name"]
    assert certificate["also"]["replace_one_epsilon"] is None
    good = verify(tmp_path / "release")
    assert good.good and good.epsilon == pytest.approx(certificate["epsilon"], rel=1e-5)
    path = tmp_path / "release" / "privacy.json"
    for forged in ({"chosen": "gdp"}, {"chosen": "pld"}, {}, {"chosen": "rdp", "name": "dp_accounting.pld"}):
        rest = {key: value for key, value in certificate["accountant"].items() if key != "chosen"}
        changed = certificate | {"accountant": rest | forged}
        changed |= {"statement": statement(changed)}
        path.write_text(json.dumps(changed | {"digest": digest(changed)}))
        problems = verify(tmp_path / "release").problems
        assert any("accountant" in problem for problem in problems), forged

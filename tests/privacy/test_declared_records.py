"""A plan knows the number of records that it was made for, and keeps it through its ledger."""

import json
from dataclasses import replace

import pytest
import torch

from lightning_dpgen.gradients.clipping import Fixed
from lightning_dpgen.optim.stages import training_stage
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import PlanMismatch
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.planning.calibration import make_first_plan, make_plan, make_rest
from lightning_dpgen.privacy.planning.stage_spec import StageSpec

BUDGET = {"epsilon": 2.0, "delta": 1e-5}
COUNT = StageSpec("count", {"n": 1.0}, 1, max_noise=1e3, share=0.05, noise=24.0)
TRAINING = training_stage(Fixed(1.0), n=1000, sample_rate=0.1, steps=20)


def _counted(account):
    with account.open("count") as access:
        gaussian(access, "n", torch.zeros(1, dtype=torch.float64), sensitivity=1.0)
    return account


def test_a_plan_takes_it_from_its_stages():
    plan = make_plan([COUNT, TRAINING], **BUDGET)
    assert TRAINING.n == plan.n == 1000
    assert replace(plan, n=None) == make_plan([COUNT, replace(TRAINING, n=None)], **BUDGET)
    assert plan.rewrite({"count": 2, "training": 3}, {"count": 1}).n == 1000
    assert make_plan([COUNT], **BUDGET).n is None
    pure = replace(COUNT, kinds={"n": "laplace"}, n=7)
    assert make_plan([pure], epsilon=1.0, delta=0.0, relation="replace_one").n == 7


def test_two_stages_for_different_numbers_are_refused():
    other = replace(TRAINING, stage="tuning", share=0.2, n=1001)
    with pytest.raises(ValueError, match="stage 'tuning' is for n=1001 records and stage 'training' for n=1000"):
        make_plan([other, TRAINING], **BUDGET)
    first = make_first_plan(replace(COUNT, n=999), **BUDGET)
    assert first.n == 999
    with pytest.raises(ValueError, match="'training' is for n=1000 records and the plan that was promised for n=999"):
        make_rest(first, [COUNT, TRAINING])


@pytest.mark.parametrize("n", [0, -1, 10.0, True, "10"])
def test_it_is_a_whole_number(n):
    with pytest.raises(ValueError, match=r"'training': n=.*expected a whole number"):
        make_plan([replace(TRAINING, n=n)], **BUDGET)
    plan = make_plan([TRAINING], **BUDGET)
    with pytest.raises(ValueError, match=r"n=.*expected a whole number"):
        replace(plan, n=n)
    if n != 10.0:
        with pytest.raises(ValueError, match="n"):
            Plan.from_json(plan.as_json() | {"n": n})


def test_it_stands_in_the_ledger_and_may_be_missing_there(tmp_path):
    plan = make_plan([TRAINING], **BUDGET)
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan
    without = {name: value for name, value in plan.as_json().items() if name != "n"}
    assert Plan.from_json(without) == replace(plan, n=None) and replace(plan, n=None).as_json() == without
    Account(plan, tmp_path / "ledger").ledger.close()
    again = Account.resume(tmp_path / "ledger")
    again.ledger.close()
    assert again.plan.n == 1000


@pytest.mark.parametrize("promised", [None, 1000])
def test_it_is_known_once_it_was_bought(promised):
    account = _counted(Account(make_first_plan(replace(COUNT, n=promised), **BUDGET)))
    account.extend(make_rest(account.plan, [COUNT, TRAINING]))
    assert account.plan.n == 1000 and account.ledger.promise["n"] == 1000


def test_it_is_known_once_it_was_bought_where_all_stages_were_promised():
    promise = replace(make_plan([COUNT, TRAINING], **BUDGET), n=None)
    account = _counted(Account(promise))
    account.extend(make_rest(promise, [COUNT, TRAINING]))
    assert account.plan == replace(promise, n=1000)
    account.extend(promise)
    assert account.plan.n == 1000, "what is known stays known"
    with pytest.raises(PlanMismatch, match="for n=999 records, and the stages that were drawn were planned for n=1000"):
        account.extend(replace(promise, n=999))

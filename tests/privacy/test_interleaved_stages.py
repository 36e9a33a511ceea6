"""Accesses of an interleaved stage are made between those of the stages behind it, and once each."""

import json

import pytest
import torch

from lightning_dpgen import StageSpec, make_plan
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import PlanMismatch
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.plan import Plan

STEPS, LOOKS = 600, 400


def _plan(**changes):
    specs = [
        StageSpec("first", {"sum": 1.0}, 1, max_noise=1e3, share=0.1),
        StageSpec("looks", {"sum": 1.0}, LOOKS, max_noise=1e4, share=0.1, interleaved=True),
        StageSpec("steps", {"sum": 1.0}, STEPS, max_noise=1e4),
    ]
    return make_plan(specs, epsilon=2.0, delta=1e-5, **changes)


def _draw(account, stage, times=1):
    for _ in range(times):
        with account.open(stage) as access:
            gaussian(access, "sum", torch.zeros(1), sensitivity=1.0)


def test_a_ledger_keeps_it():
    plan = _plan()
    again = Plan.from_json(json.loads(json.dumps(plan.as_json())))
    assert again == plan and [stage.interleaved for stage in again.stages] == [False, True, False]
    assert "interleaved" not in plan.stages[0].as_json()


def test_they_stand_between_steps_and_not_before_what_comes_first(tmp_path):
    account = Account(_plan(), tmp_path / "ledger")
    for stage in ("looks", "steps"):
        with pytest.raises(PlanMismatch, match="before stage 'first' was complete"):
            _draw(account, stage)
    _draw(account, "first")
    for _ in range(3):
        _draw(account, "steps", 10)
        _draw(account, "looks")
    assert {stage: account.count(stage) for stage in ("first", "looks", "steps")} == {"first": 1, "looks": 3, "steps": 30}
    assert [(access.stage, count) for access, count in account.accesses] == [("first", 1), ("looks", 3), ("steps", 30)]
    # Lines of steps are written ahead in blocks, and a look between two of them leaves these as they are.
    assert len(account.ledger.accesses) == 7
    account.ledger.close()
    read = Ledger.read(tmp_path / "ledger")
    assert read.count("looks") == 3 and read.count("steps") == 30


def test_a_plan_that_is_made_whole_is_what_was_promised():
    account = Account(_plan())
    _draw(account, "first")
    _draw(account, "steps", STEPS)
    _draw(account, "looks", LOOKS)
    assert account.finished
    account.verify_complete()


def test_lost_ones_are_not_made_again():
    plan = _plan()
    assert plan.rewrite({"first": 1, "looks": 30, "steps": 100}, {"first": 1, "looks": 20, "steps": 70}) == plan
    # Accesses before them are made again, and steps are given up for these.
    rewritten = plan.rewrite({"first": 1, "looks": 30, "steps": 100}, {"looks": 20, "steps": 70})
    assert rewritten.stage("first").count == 2 and rewritten.stage("looks").count == LOOKS
    assert rewritten.stage("steps").count < STEPS and rewritten.epsilon <= 2.0


def test_fewer_or_more_of_them_are_no_complete_plan():
    account = Account(_plan())
    _draw(account, "first")
    _draw(account, "looks", LOOKS)
    with pytest.raises(PlanMismatch, match="that many have been made"):
        _draw(account, "looks")
    _draw(account, "steps", STEPS - 1)
    with pytest.raises(PlanMismatch, match="not what the plan promised"):
        account.verify_complete()

"""A plan is extended by one that begins with the same draws; it is compared by what is drawn, not how it was computed."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.reference import Reference
from lightning_dpgen.privacy.errors import PlanMismatch
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.privacy.sampling.samplers import Poisson

FIRST = Stage(Access("first", {"n": 10.0, "keys": 12.0}, deltas={"keys": 1e-7}), 1, 0.01)
LAST = Stage(Access("last", {"sum": 2.0}, sampler=Poisson(0.5)), 3, 0.99)
# The reference is far above the cost of the last stage.
REFERENCE = Reference(0.3, 1e-7, after=1)


def _plan(*stages, **others):
    return Plan(stages, 8.0, 1e-5, reference=REFERENCE, **others)


def _made(plan):
    account = Account(plan)
    for stage in plan.stages:
        with account.open(stage.name) as access:
            for name in access.access.multipliers:
                gaussian(access, name, torch.zeros(1, dtype=torch.float64), sensitivity=1.0)
    return account


def _changed(**changes):
    return replace(FIRST, access=replace(FIRST.access, **changes))


ROUNDED = math.nextafter(10.0, 11.0)
SAME = {
    "itself": FIRST,
    "another share": replace(FIRST, share=0.010000000000000002),
    "a share of another plan": replace(FIRST, share=0.5),
    "noise in its last digit": _changed(multipliers={"n": ROUNDED, "keys": 12.0}),
    "a delta in its last digit": _changed(deltas={"keys": math.nextafter(1e-7, 1.0)}),
    "names in another order": _changed(multipliers={"keys": 12.0, "n": 10.0}),
}
OTHERS = {
    "less noise": _changed(multipliers={"n": 10.0 * (1 - 1e-6), "keys": 12.0}),
    "more noise": _changed(multipliers={"n": 10.0 * (1 + 1e-6), "keys": 12.0}),
    "another noise": _changed(multipliers={"n": 10.0, "bounds": 12.0}, deltas={}),
    "one more noise": _changed(multipliers={"n": 10.0, "keys": 12.0, "bounds": 10.0}),
    "another rate": _changed(deltas={}, sampler=Poisson(0.999)),
    "another kind": _changed(deltas={}, kinds={"n": "laplace"}),
    "another delta": _changed(deltas={"keys": 2e-7}),
    "no delta": _changed(deltas={}),
    "another name": _changed(stage="one"),
    "more accesses": replace(FIRST, count=2),
}


@pytest.mark.parametrize("first", SAME.values(), ids=SAME)
def test_what_was_drawn_stays_as_it_was_drawn(first):
    account = _made(_plan(FIRST))
    account.extend(_plan(first, LAST))
    assert account.plan.stages == (FIRST, LAST) and account.ledger.promise["stages"][0]["share"] == 0.01
    for _ in range(3):
        with account.open("last", draw=account.sample("last", 9)[1]) as access:
            gaussian(access, "sum", torch.zeros(1), sensitivity=1.0)
    account.verify_complete()


@pytest.mark.parametrize("first", OTHERS.values(), ids=OTHERS)
def test_what_draws_otherwise_is_refused(first):
    account = _made(_plan(FIRST))
    for plan in (_plan(first, LAST), _plan(LAST, FIRST), _plan(LAST)):
        with pytest.raises(PlanMismatch, match="does not begin with the stages"):
            account.extend(plan)
    for others in ({"max_rows": 2}, {"relation": "replace_one", "reference": None}, {"reference": None}):
        with pytest.raises(PlanMismatch, match="does not begin with the stages"):
            account.extend(replace(_plan(FIRST, LAST), **others))
    assert account.plan == _plan(FIRST), "a refusal changes nothing"


def test_nothing_is_extended_before_it_was_made():
    with pytest.raises(PlanMismatch, match=r"\['first'\] have not"):
        Account(_plan(FIRST)).extend(_plan(FIRST, LAST))


def test_a_stage_has_the_share_that_it_was_given_in_every_plan():
    """Shares that add up to the whole but for rounding: alone, and beside any others."""
    random = np.random.default_rng(0)
    for _ in range(300):
        shares = random.dirichlet(np.ones(random.integers(2, 9)))
        shares[-1] = 1.0 - sum(shares[:-1].tolist())
        named = [(f"stage {i}", float(share)) for i, share in enumerate(shares)]
        specs = [StageSpec(name, {"sum": 1.0}, 1, max_noise=1e12, share=share, noise=1.0) for name, share in named]
        plan = make_plan(specs, epsilon=math.inf, delta=1e-5)
        assert [stage.share for stage in plan.stages] == [spec.share for spec in specs]
    halves = [replace(spec, share=spec.share / 2) for spec in specs]
    plan = make_plan(halves, epsilon=math.inf, delta=1e-5)
    assert [stage.share for stage in plan.stages] == pytest.approx([spec.share for spec in specs])

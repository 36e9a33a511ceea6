"""A run below a reference that is not for a record replaced: nothing is stated, nor charged, as if it were."""

import json
import math

import numpy as np
import pytest
import torch

from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.access import PURE
from lightning_dpgen.privacy.account import Account, study_entry
from lightning_dpgen.privacy.accountant import spent
from lightning_dpgen.privacy.calibration import Draft, make_first_plan, make_rest
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.loss import REPLACE_ONE
from lightning_dpgen.privacy.study import Study
from lightning_dpgen.release.certificate import make_certificate
from lightning_dpgen.release.verify import verify

EPSILON, DELTA = 4.0, 1e-5
COUNT = Draft("count", {"n": 1.0}, 1, largest=1e9, share=0.1, noise=3.0)
# Why no account of a record replaced is known, and what follows: a number of lots that nobody knows yet, or a choice.
FOLLOWING = {
    "lots": ({"sampled": None}, Draft("training", {"gradient": 1.0}, 20, largest=1e9, rate=0.1)),
    "a choice": ({"sampled": 0, "pure": True}, Draft("choice", {"best": 1.0}, 2, largest=1e9, kinds={"best": PURE})),
}


@pytest.fixture(params=FOLLOWING)
def account(request):
    """Of a run that has ended."""
    promised, following = FOLLOWING[request.param]
    first = make_first_plan(COUNT, epsilon=EPSILON, delta=DELTA, **promised)
    account = Account(first)
    with account.open("count") as access:
        mechanisms.gaussian(access, "n", torch.zeros(1), sensitivity=1.0)
    account.extend(make_rest(first, [COUNT, following]))
    while account.remaining(following.stage):
        if following.kinds:
            with account.open(following.stage) as access:
                mechanisms.report_noisy_max(access, "best", np.arange(3.0), sensitivity=1.0)
        else:
            _, draw = account.sample(following.stage, 50)
            with account.open(following.stage, draw=draw) as access:
                mechanisms.gaussian(access, "gradient", torch.zeros(3), sensitivity=1.0)
    account.settle()
    return account


def test_its_certificate_says_nothing_of_a_record_replaced(account, tmp_path):
    """Though the event of the reference alone would have such an epsilon."""
    plan = account.plan
    assert not plan.reference.replaceable and math.isfinite(spent(plan.event, DELTA, relation=REPLACE_ONE).epsilon)
    (tmp_path / "numbers.txt").write_text("1 2 3")
    certificate = make_certificate(account, unit="one row", declared={"n": 90}, released=["numbers.txt"], folder=tmp_path)
    (tmp_path / "privacy.json").write_text(json.dumps(certificate))
    assert certificate["reference"] == {"after": 1, "replaceable": False}
    assert certificate["also"]["replace_one_epsilon"] is None
    assert verify(tmp_path).problems == []


def test_a_study_of_records_replaced_charges_it_as_its_pair(account, tmp_path):
    """Which is one removed and one added: (2 e, (1 + exp e) d)."""
    plan, entry = account.plan, study_entry(account.plan)
    assert "replaced" not in entry and entry["pair"] == (plan.epsilon, DELTA)
    allowed = DELTA * (1.0 + math.exp(plan.epsilon))
    for delta, epsilon in ((1.001 * allowed, 2.0 * plan.epsilon), (0.999 * allowed, math.inf)):
        study = Study(tmp_path / f"{delta}.jsonl", epsilon=100.0, delta=delta)
        study.enter("rows", plan.event, relation=REPLACE_ONE, pair=(0.0, 0.0))
        if math.isfinite(epsilon):
            assert study.enter("a", plan.event, **entry).epsilon == pytest.approx(epsilon)
        else:
            with pytest.raises(BudgetTooSmall, match="no epsilon holds at that delta"):
                study.enter("a", plan.event, **entry)

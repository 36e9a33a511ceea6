"""Laws of a run below a reference that does not cover replaced records: nothing is stated or charged as if it did."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import pytest
import torch

from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.access import PURE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.planning.calibration import make_first_plan, make_rest
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.privacy.studies.study import Study, study_entry
from lightning_dpgen.release.certificate import make_certificate
from lightning_dpgen.verification.verify import verify

EPSILON, DELTA = 4.0, 1e-5
COUNT = StageSpec("count", {"n": 1.0}, 1, max_noise=1e9, share=0.1, noise=3.0)
# Reasons why no account of a replaced record is known, and what follows: a number of lots not known yet, or a choice.
FOLLOWING = {
    "lots": ({"sampled": None}, StageSpec("training", {"gradient": 1.0}, 20, max_noise=1e9, sampler=Poisson(0.1))),
    "a choice": ({"sampled": 0, "pure": True}, StageSpec("choice", {"best": 1.0}, 2, max_noise=1e9, kinds={"best": PURE})),
}


def account_of_a_run(kind: str) -> Account:
    """Return the plan of a run that has ended: a count, and what was planned from it."""
    promised, following = FOLLOWING[kind]
    first = make_first_plan(COUNT, epsilon=EPSILON, delta=DELTA, **promised)
    account = Account(first)
    with account.open("count") as access:
        mechanisms.gaussian(access, "n", torch.zeros(1), sensitivity=1.0)
    account.extend(make_rest(first, [COUNT, following]))
    while account.remaining(following.stage):
        if following.kinds:
            with account.open(following.stage) as access:
                mechanisms.report_noisy_max(access, "best", torch.arange(3), sensitivity=1.0)
        else:
            _, draw = account.sample(following.stage, 50)
            with account.open(following.stage, draw=draw) as access:
                mechanisms.gaussian(access, "gradient", torch.zeros(3), sensitivity=1.0)
    account.verify_complete()
    return account


def its_certificate_says_nothing_of_a_record_replaced(kind="lots") -> None:
    """Check it although the event of the reference alone would have such an epsilon."""
    account = account_of_a_run(kind)
    plan = account.plan
    assert not plan.reference.replaceable and math.isfinite(
        compute_epsilon(plan.event, DELTA, relation=REPLACE_ONE).epsilon
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "numbers.txt").write_text("1 2 3")
        certificate = make_certificate(account, unit="one row", declared={"n": 90}, released=["numbers.txt"], folder=folder)
        (folder / "privacy.json").write_text(json.dumps(certificate))
        assert certificate["reference"] == {"after": 1, "replaceable": False}
        assert certificate["also"]["replace_one_epsilon"] is None
        assert verify(folder).problems == []


def a_study_of_records_replaced_charges_its_pair(kind="lots") -> None:
    """Check the charge for one removed and one added: (2 e, (1 + exp e) d), and not the cost of the reference."""
    plan = account_of_a_run(kind).plan
    entry = study_entry(plan)
    assert "replaced" not in entry and entry["pair"] == (plan.epsilon, DELTA)
    delta = DELTA * (1.0 + math.exp(plan.epsilon))
    with tempfile.TemporaryDirectory() as folder:
        for name, part in (("enough", 1.001), ("less", 0.999)):
            study = Study(Path(folder) / f"{name}.jsonl", epsilon=100.0, delta=part * delta)
            study.enter("rows", plan.event, relation=REPLACE_ONE, pair=(0.0, 0.0))
            if part > 1.0:
                assert study.enter("run", plan.event, **entry).epsilon == pytest.approx(2.0 * plan.epsilon)
            else:
                with pytest.raises(BudgetTooSmall, match="no epsilon holds at that delta"):
                    study.enter("run", plan.event, **entry)

"""No noise without a ledger line, each multiplier once, and ledger equal to plan."""

import json
import os
import pickle

import pytest
import torch
from contracts.laws import accounts as laws

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError, PlanMismatch
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.plan import Plan, Stage


def _plan(*stages, off=False):
    return Plan(
        tuple(Stage(Access(name, {"sum": 0.0 if off else 50.0}), count, 0.5) for name, count in stages),
        target_epsilon=1.0,
        delta=1e-5,
    )


def _draw(account, stage):
    with account.open(stage) as access:
        gaussian(access, "sum", torch.zeros(2), sensitivity=1.0)


def test_a_complete_run_settles():
    account = Account(_plan(("first", 2), ("second", 3)))
    for stage in ("first", "first", "second", "second", "second"):
        _draw(account, stage)
    account.verify_complete()
    assert account.certify()[1].epsilon == account.plan.epsilon


def test_one_access_too_few_is_noticed():
    account = Account(_plan(("first", 2)))
    _draw(account, "first")
    with pytest.raises(PlanMismatch, match="not what the plan promised"):
        account.verify_complete()
    laws.stopping_early_does_not_lower_what_is_certified()


def test_one_access_too_many_is_refused_before_noise_is_drawn():
    account = Account(_plan(("first", 1)))
    _draw(account, "first")
    with pytest.raises(PlanMismatch, match="have been made"):
        _draw(account, "first")


def test_an_access_written_past_the_plan_is_noticed_and_charged():
    account = Account(_plan(("first", 1)))
    _draw(account, "first")
    account.ledger.write(account.plan.stages[0].access)
    with pytest.raises(PlanMismatch):
        account.verify_complete()
    assert account.certify()[1].epsilon > account.plan.epsilon


def test_stages_keep_their_order():
    account = Account(_plan(("first", 1), ("second", 1)))
    with pytest.raises(PlanMismatch, match="before stage 'first'"):
        _draw(account, "second")
    with pytest.raises(ValueError, match="stage='third': the plan has the stages"):
        _draw(account, "third")


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, float("inf"), float("nan")])
def test_a_sensitivity_must_be_positive_and_finite(account_of, sensitivity):
    with account_of({"a": 1.0}).open("training") as access, pytest.raises(ValueError, match="sensitivity"):
        gaussian(access, "a", torch.zeros(1), sensitivity=sensitivity)


def test_without_noise_values_stay(account_of):
    with account_of({"a": 0.0}).open("training") as access:
        assert gaussian(access, "a", torch.ones(3), sensitivity=float("inf")).tolist() == [1, 1, 1]


def test_the_file_holds_one_line_an_access_with_its_own_id(tmp_path):
    path = tmp_path / "ledger.jsonl"
    account = Account(_plan(("first", 4500)), path)
    for _ in range(3):
        _draw(account, "first")
    ahead = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum("id" in line for line in ahead) == 45, "a crash now over-counts, by at most a hundredth of the stage"
    assert sum("mechanism" in line for line in ahead) == 1, "alike in all accesses"
    account.ledger.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["ledger"] == 6 and lines[-1]["closed"] == 3
    entries = [line for line in lines if "id" in line]
    assert len({entry["id"] for entry in entries}) == 45 == 3 + len(lines[-1]["never_drawn"])
    with pytest.raises(FileExistsError):
        Ledger(path)


def test_a_run_that_is_not_private_has_one_entry():
    account = Account(_plan(("first", 2), ("second", 2), off=True))
    for stage in ("first", "first", "second", "second"):
        _draw(account, stage)
    account.verify_complete()
    assert len(account.ledger.accesses) == 1 and account.ledger.accesses[0][1] == 1
    assert account.certify()[1].epsilon == float("inf")


def test_nothing_is_drawn_after_the_last_line(tmp_path, account_of):
    for ledger in (None, tmp_path / "ledger.jsonl"):
        account = account_of({"a": 1.0}, count=3, ledger=ledger)
        with account.open("training") as access:
            access.consume("a")
        with pytest.raises(PlanMismatch):
            account.verify_complete()
        with pytest.raises(LedgerError, match="closed"), account.open("training"):
            pass


def test_a_forked_child_cannot_spend_the_plan_again(account_of):
    account = account_of({"a": 1.0}, count=3)
    child = os.fork()
    if child == 0:
        try:
            with account.open("training"):
                pass
        except LedgerError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_an_account_pays_for_one_data_set_also_where_some_accesses_name_none(account_of):
    class Records:
        pass

    account, first, second = account_of({"sum": 1.0}, count=4), Records(), Records()
    for of in (first, first, None):
        with account.open("training", of=of) as access:
            gaussian(access, "sum", torch.zeros(1), sensitivity=1.0)
    with (
        pytest.raises(LedgerError, match="has paid for measurements of other records"),
        account.open("training", of=second),
    ):
        pass
    assert account.remaining("training") == 1
    account.ledger.close()


def test_plans_travel_and_streams_do_not(account_of):
    account = account_of({"a": 1.0})
    assert pickle.loads(pickle.dumps(account.plan)) == account.plan
    with pytest.raises(TypeError, match="never saved"):
        pickle.dumps(account.stream)

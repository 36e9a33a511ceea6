"""A ledger that is opened again says at least what was drawn, and the plan that follows stays within the budget."""

import json
import math
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lightning_dpgen.privacy import chain
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError, PlanMismatch
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.privacy.sampling.samplers import Poisson

DRAFTS = [
    StageSpec("first", {"sum": 1.0}, 1, max_noise=1e3, share=0.1),
    StageSpec("split", {"counts": 0.2, "sums": 0.8}, 4, max_noise=1e3, share=0.3),
    StageSpec("training", {"gradient": 1.0}, 500, max_noise=1e3, sampler=Poisson(0.1)),
]
PLAN = make_plan(DRAFTS, epsilon=2.0, delta=1e-5)


def _draw(account, stage, times=1):
    for _ in range(times):
        with account.open(stage, draw=account.sample(stage, 9)[1]) as access:
            for name in access.access.multipliers:
                gaussian(access, name, torch.zeros(1), sensitivity=1.0)


def _crashed(path, *draws, plan=PLAN):
    """Write the ledger of a run that made these draws and died."""
    account = Account(plan, path, about={"who": "me"})
    for stage, times in draws:
        _draw(account, stage, times)
    done = account.done
    _die(account)
    return done


def _die(account):
    account.ledger._file.close()
    account.ledger._witness.close()
    account.ledger._lock.release()


OPEN = []


def _resume(path):
    OPEN.append(Account.resume(path))
    return OPEN[-1]


@pytest.fixture(autouse=True)
def _close():
    yield
    while OPEN:
        _die(OPEN.pop())


def _heads(path):
    return Path(f"{path}.heads")


def _forget_the_last_block(path):
    """Cut the heads as a crash while the last line is written does: the file that vouches for it is written later."""
    heads = _heads(path).read_bytes()
    _heads(path).write_bytes(heads[: heads.rstrip(b"\n").rfind(b"\n") + 1])


def _counts(account):
    return {stage.name: account.ledger.count(stage.name) for stage in account.plan.stages}


def test_what_was_written_ahead_counts_as_drawn_after_a_crash(tmp_path):
    path = tmp_path / "ledger"
    _crashed(path, ("first", 1), ("split", 4), ("training", 7))
    account = _resume(path)
    assert account.ledger.about == {"who": "me"} and account.plan.as_json() == PLAN.as_json()
    assert _counts(account) == {"first": 1, "split": 4, "training": 10}, "blocks of five lines"


def test_what_a_clean_stop_names_does_not(tmp_path):
    path = tmp_path / "ledger"
    account = Account(PLAN, path)
    for stage, times in (("first", 1), ("split", 4), ("training", 7)):
        _draw(account, stage, times)
    account.ledger.close()
    assert _counts(_resume(path))["training"] == 7


def test_a_line_cut_anywhere_is_closed_off(tmp_path):
    path = tmp_path / "ledger"
    _crashed(path, ("first", 1), ("split", 2))
    whole = path.read_bytes()
    _forget_the_last_block(path)
    heads = _heads(path).read_bytes()
    start = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(start + 1, len(whole)):
        path.write_bytes(whole[:cut])
        _heads(path).write_bytes(heads)
        # A line that lacks only its line break may have been in time.
        counted = 2 if cut == len(whole) - 1 else 1
        ledger = Ledger.reopen(path)
        assert ledger.count("split") == counted
        ledger.close()
        # It is cut once more, and what closed it off is part of the file now.
        again = Ledger.reopen(path)
        assert again.count("split") == counted and path.read_bytes().startswith(whole[:cut])
        again.close()


def test_closing_off_may_be_cut_too(tmp_path):
    path = tmp_path / "ledger"
    _crashed(path, ("first", 1), ("split", 2))
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    _forget_the_last_block(path)
    heads = _heads(path).read_bytes()
    Ledger.reopen(path).close()
    closed = path.read_bytes()
    for cut in range(len(whole) - 4, len(closed)):
        path.write_bytes(closed[:cut])
        _heads(path).write_bytes(heads)
        ledger = Ledger.reopen(path)
        assert ledger.count("first") == 1 and ledger.count("split") == 1
        ledger.close()


@pytest.mark.parametrize("at", ["write", "fsync", "check"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_line_that_cannot_be_written_leaves_a_ledger_that_can_be_opened(tmp_path, monkeypatch, at, error):
    path = tmp_path / "ledger"
    account = Account(PLAN, path)
    _draw(account, "first")

    def fail(*_):
        raise error

    class Half:
        """A file that writes half of what it is given, then fails; afterwards there is room again."""

        def __init__(self, file):
            self.file, self.full = file, True

        def write(self, text):
            if not self.full:
                return self.file.write(text)
            self.full = False
            self.file.write(text[: len(text) // 2])
            raise error

        def __getattr__(self, name):
            return getattr(self.file, name)

    with monkeypatch.context() as patch:
        if at == "write":
            account.ledger._file = Half(account.ledger._file)
        elif at == "fsync":
            patch.setattr("os.fsync", fail)
        else:
            patch.setattr("lightning_dpgen.privacy.chain.check", fail)
        with pytest.raises(error), account.open("split"):
            pytest.fail("noise could have been drawn")
    account.ledger.close()
    again = _resume(path)
    assert again.ledger.count("first") == 1 and again.ledger.count("split") <= 1


def test_a_whole_line_that_is_marked_as_torn_is_damage(tmp_path):
    path = tmp_path / "ledger"
    _crashed(path, ("first", 1), ("split", 2))
    path.write_bytes(path.read_bytes()[:-1] + b"#torn\n")
    with pytest.raises(LedgerError, match="is whole, and marked"):
        Ledger.reopen(path)


def _damage(lines):
    """Yield every way to spoil one line that is not the last."""
    for i in range(len(lines) - 1):
        yield f"line {i + 1} gone", lines[:i] + lines[i + 1 :]
        yield f"line {i + 1} twice", lines[: i + 1] + lines[i:]
        yield f"lines {i + 1} and {i + 2} swapped", [*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]]
        yield f"line {i + 1} garbled", [*lines[:i], b"\x00" * len(lines[i]), *lines[i + 1 :]]
        fields = json.loads(lines[i])
        for name, value in fields.items():
            changed = {"multipliers": {"sum": 99.0}, "rate": 0.5}.get(name, "0" if isinstance(value, str) else 0)
            yield f"{name} of line {i + 1}", [*lines[:i], json.dumps(fields | {name: changed}).encode(), *lines[i + 1 :]]


def test_any_other_damage_is_an_error_and_leaves_the_file(tmp_path):
    path = tmp_path / "ledger"
    _crashed(path, ("first", 1), ("split", 4), ("training", 1))
    lines = path.read_bytes().splitlines()
    for what, spoilt in _damage(lines):
        content = b"\n".join(spoilt) + b"\n"
        path.write_bytes(content)
        with pytest.raises(LedgerError, match=r"line \d|format"):
            Ledger.reopen(path)
            pytest.fail(what)
        assert path.read_bytes() == content, what


def test_lines_lost_at_the_end_are_noticed(tmp_path):
    path = tmp_path / "ledger"
    _crashed(path, ("first", 1), ("split", 4), ("training", 7))
    whole, heads = path.read_bytes(), _heads(path).read_bytes()
    lines = whole.splitlines(keepends=True)
    for left in range(1, len(lines)):
        content = b"".join(lines[:left])
        for cut in (content, content + lines[left][:9]):
            path.write_bytes(cut)
            with pytest.raises(LedgerError, match="lines are missing at its end"):
                Ledger.reopen(path)
            assert path.read_bytes() == cut
    path.write_bytes(whole)
    _heads(path).unlink()
    with pytest.raises(LedgerError, match="is missing, so it is not known"):
        Ledger.reopen(path)
    first = len(heads) - len(heads.lstrip(b"\n")) + 17
    for nothing in (b"", b"\n", heads[: first - 2]):
        _heads(path).write_bytes(nothing)
        with pytest.raises(LedgerError, match="missing at its end"):
            Ledger.reopen(path)
    # A crash cuts the file that vouches as well; it then says less, but nothing wrong.
    for cut in range(first, len(heads)):
        path.write_bytes(whole)
        _heads(path).write_bytes(heads[:cut])
        for _ in range(2):
            ledger = Ledger.reopen(path)
            assert ledger.count("training") == 10
            ledger.close()


def test_a_ledger_that_is_gone_is_not_begun_again(tmp_path):
    path = tmp_path / "ledger"
    _crashed(path, ("first", 1))
    path.unlink()
    with pytest.raises(LedgerError, match=r"is missing, and .* names lines that it held"):
        Account(PLAN, path)
    # Before the first line had its name nothing was drawn.
    _heads(path).write_bytes(_heads(path).read_bytes()[:18])
    Account(PLAN, path).ledger.close()


def test_threads_draw_each_noise_once(tmp_path):
    """Four threads draw on one account: as many accesses as planned are made, and no number is drawn twice."""
    account, drawn = Account(make_plan(DRAFTS[1:2], epsilon=2.0, delta=1e-5)), []

    def work():
        try:
            while True:
                with account.open("split") as access:
                    for name in access.access.multipliers:
                        drawn.append(gaussian(access, name, torch.zeros(300_000), sensitivity=1.0))
        except PlanMismatch:
            pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    account.verify_complete()
    numbers = torch.cat(drawn)
    assert len(numbers) == 4 * 2 * 300_000 and torch.isfinite(numbers).all()
    # Noisy numbers on one grid, with steps of up to 1/256 of their deviation, are equal at 331 places by chance, or fewer
    # (standard deviation 18); a piece that was drawn twice would be equal at 262,144.
    assert not any(torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])
    pairs = [(a == b).sum() for i, a in enumerate(drawn) for b in drawn[:i]]
    assert max(pairs) < 500


def test_stages_lost_after_later_ones_began_are_made_again(tmp_path):
    """The ledger has them out of the plan's order then; they cost the same together."""
    path = tmp_path / "ledger"
    _crashed(path, ("first", 1), ("split", 4), ("training", 7))
    account = _resume(path)
    account.go_on({})
    for stage in ("first", "split", "training"):
        _draw(account, stage, account.remaining(stage))
    account.verify_complete()
    event, spending = account.certify()
    assert event == account.plan.event and spending.epsilon <= 2.0
    assert [(stage.name, stage.count) for stage in account.plan.stages[:2]] == [("first", 2), ("split", 8)]
    assert sum(count for _, count in account.accesses) == sum(count for _, count in account.ledger.accesses)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_draws_writes_and_closes_nothing(tmp_path):
    path = tmp_path / "ledger"
    account = Account(PLAN, path)
    with account.open("first") as access:
        before = path.read_bytes()
        child = os.fork()
        if child == 0:
            told = 0
            for ask in (lambda: access.consume("sum"), lambda: account.ledger.write(PLAN.stages[1].access)):
                try:
                    ask()
                except LedgerError:
                    told += 1
            account.ledger.close()
            os._exit(0 if told == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and path.read_bytes() == before
        with pytest.raises(LedgerError, match="another run"):
            Ledger.reopen(path)
        gaussian(access, "sum", torch.zeros(1), sensitivity=1.0)
    account.ledger.close()


def test_other_versions_and_empty_files_are_refused(tmp_path):
    path = tmp_path / "ledger"
    path.write_bytes(b"")
    _heads(path).write_bytes(b"")
    with pytest.raises(LedgerError, match="no complete line"):
        Ledger.reopen(path)
    _crashed(tmp_path / "other", ("first", 1))
    header = json.loads((tmp_path / "other").read_text().splitlines()[0]) | {"ledger": 1}
    header["check"] = chain.check("", {k: v for k, v in header.items() if k != "check"})
    path.write_text(json.dumps(header) + "\n")
    with pytest.raises(LedgerError, match="format 1"):
        Ledger.reopen(path)


def test_one_process_at_a_time(tmp_path):
    account = Account(PLAN, tmp_path / "ledger")
    with pytest.raises(LedgerError, match="another run"):
        Account.resume(tmp_path / "ledger")
    account.ledger.close()
    _resume(tmp_path / "ledger")


def test_lost_steps_are_not_made_again(tmp_path):
    path = tmp_path / "ledger"
    _crashed(path, ("first", 1), ("split", 4), ("training", 60))
    account = _resume(path)
    account.go_on({"first": 1, "split": 4, "training": 40})
    assert account.plan.as_json() == PLAN.as_json() and account.remaining("training") == 440
    _draw(account, "training", 440)
    account.verify_complete()
    assert account.certify()[1].epsilon == PLAN.epsilon


@pytest.mark.slow
def test_lost_accesses_before_training_cost_it_steps_however_often(tmp_path):
    """A split is interrupted at its second access again and again; each time the budget holds."""
    path = tmp_path / "ledger"
    done = _crashed(path, ("first", 1), ("split", 1))
    counts = []
    for crash in range(1, 4):
        account = _resume(path)
        account.go_on(done)
        assert account.plan.stage("split").count == 4 + crash - 1, "an access that was lost before is not counted twice"
        assert account.plan.epsilon <= 2.0
        counts.append(account.plan.stage("training").count)
        _draw(account, "split")  # made, and lost with the process
        _die(account)
    assert counts[0] == 500 > counts[1] > counts[2] > 100
    account = _resume(path)
    account.go_on(done)
    _draw(account, "split", 3)
    _draw(account, "training", account.remaining("training"))
    account.verify_complete()
    event, cost = account.certify()
    assert cost.epsilon == compute_epsilon(account.event, 1e-5).epsilon <= 2.0
    assert account.ledger.count("split") == 4 + 3 and event == account.event
    # One step more would have been too much.
    stages = account.plan.as_json()
    stages["stages"][-1]["count"] += 2
    assert Plan.from_json(stages).epsilon > 2.0 * 0.999


@pytest.mark.parametrize(("made", "done"), [(0, 0), (60, 60), (420, 418)])
@pytest.mark.parametrize("multiple", [1, 7])
def test_what_is_left_of_training_ends_in_its_rhythm(multiple, made, done):
    """The most steps that fit whose results are a multiple: the next ones cost too much."""
    drafts = [*DRAFTS[:2], replace(DRAFTS[2], count=497, multiple=multiple)]
    plan = make_plan(drafts, epsilon=2.0, delta=1e-5)
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan
    before = {"first": 1, "split": 4}
    rewritten = plan.rewrite({**before, "split": 5, "training": made}, {**before, "training": done})
    count, lost = rewritten.stage("training").count, made - done
    assert rewritten.stage("split").count == 5 and made <= count < 497 and (count - lost) % multiple == 0

    def cost(steps):
        stages = [replace(stage, count=steps) if stage.name == "training" else stage for stage in rewritten.stages]
        return replace(rewritten, stages=tuple(stages)).epsilon

    assert cost(count) <= 2.0 * (1.0 - 1e-9) < cost(count + multiple)
    # Where steps alone were lost, all of them were promised.
    assert plan.rewrite({**before, "training": made}, {**before, "training": done}) == plan


def test_fewer_steps_than_make_a_difference_are_not_begun():
    drafts = [*DRAFTS[:2], replace(DRAFTS[2], count=500, multiple=250)]
    plan = make_plan(drafts, epsilon=2.0, delta=1e-5)
    with pytest.raises(BudgetTooSmall, match="no room for stage 'training'"):
        plan.rewrite({"first": 1, "split": 8}, {"first": 1})


@pytest.mark.parametrize("multiple", [1, 5])
def test_a_run_that_could_only_make_lost_steps_again_is_not_begun(multiple):
    """So many of 40 steps were lost that the rest changes nothing, or would pass their number."""
    drafts = [*DRAFTS[:2], replace(DRAFTS[2], count=40, multiple=multiple)]
    plan = make_plan(drafts, epsilon=2.0, delta=1e-5)
    made, useful = {"first": 1, "split": 5}, []
    for lost in range(1, 41):
        try:
            useful.append(plan.rewrite({**made, "training": lost}, {"first": 1}).stage("training").count - lost)
        except BudgetTooSmall:
            useful.append(0)
    assert 0 in useful and useful[0] > 0
    assert all(steps % multiple == 0 for steps in useful)
    # One multiple more would pass the budget, or the number that was planned.
    for lost in (lost for lost, steps in enumerate(useful, start=1) if steps == 0):
        counts = {"split": plan.stage("split").count + 5, "training": lost + multiple}
        stages = [replace(stage, count=counts.get(stage.name, stage.count)) for stage in plan.stages]
        assert lost + multiple > 40 or not plan.covers(replace(plan, stages=tuple(stages)).accesses)


@pytest.mark.parametrize("multiple", [2, 5])
def test_where_steps_alone_were_lost_the_rest_has_to_change_something(multiple):
    """The promise stays, unless what is left of it is no step of a generator."""
    plan = make_plan([*DRAFTS[:2], replace(DRAFTS[2], count=20, multiple=multiple)], epsilon=2.0, delta=1e-5)
    before = {"first": 1, "split": 4}
    for made in range(21):
        for done in range(0, made + 1, 2):
            now = {**before, "training": made}, {**before, "training": done}
            if 20 - (made - done) < multiple:
                with pytest.raises(BudgetTooSmall, match="no room for stage 'training'"):
                    plan.rewrite(*now)
            else:
                assert plan.rewrite(*now) == plan


@pytest.mark.slow
def test_when_nothing_is_left_it_says_so(tmp_path):
    path = tmp_path / "ledger"
    _crashed(path, ("first", 1))
    for _ in range(30):
        account = _resume(path)
        try:
            account.go_on({})
        except BudgetTooSmall as error:
            assert "no room for stage 'training'" in str(error)
            return
        _draw(account, "first")
        _die(account)
    pytest.fail("the budget never ended")


def test_a_state_of_another_run_is_refused(tmp_path):
    path = tmp_path / "ledger"
    _crashed(path, ("first", 1), ("split", 2))
    account = _resume(path)
    with pytest.raises(LedgerError, match="lines of the ledger are missing"):
        account.go_on({"first": 1, "split": 3})
    with pytest.raises(LedgerError, match="resumed"):
        _draw(account, "split")
    account.go_on({"first": 1, "split": 2})
    account.go_on({"first": 1, "split": 2})
    with pytest.raises(LedgerError, match="goes on once"):
        account.go_on({"first": 1, "split": 1})


def test_a_new_account_has_nothing_to_go_on_from():
    with pytest.raises(LedgerError, match="goes on once"):
        Account(PLAN).go_on({"first": 1})


def test_the_twin_without_privacy_goes_on_too(tmp_path):
    off = make_plan(DRAFTS, epsilon=math.inf, delta=1e-5)
    done = _crashed(tmp_path / "ledger", ("first", 1), ("split", 4), ("training", 5), plan=off)
    account = _resume(tmp_path / "ledger")
    account.go_on(done)
    assert account.remaining("training") == 495 and not account.plan.private
    _draw(account, "training", 495)
    account.verify_complete()


@pytest.mark.parametrize("first", [{"seed": 3}, {"secure": True}, {}], ids=["seeded", "secure", "standard"])
def test_a_run_goes_on_with_noise_of_the_same_source_only(tmp_path, first):
    """Otherwise a certificate would call noise secure, or unseeded, although half of it was not."""
    path = tmp_path / "ledger"
    account = Account(PLAN, path, PrivateStream(**first))
    _draw(account, "first")
    _die(account)
    for other in ({"seed": 3}, {"secure": True}, {}):
        if other == first:
            OPEN.append(Account.resume(path, PrivateStream(**other)))
            assert OPEN[-1].private == ("seed" not in first)
            _die(OPEN.pop())
        else:
            with pytest.raises(LedgerError, match="began with other noise"):
                Account.resume(path, PrivateStream(**other))

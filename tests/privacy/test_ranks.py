"""Several ranks share an account: rank 0 writes, all draw their part of the noise, and what goes wrong stops all."""

import copy
import math
import pickle

import pytest
import torch
from contracts.laws.accounts import account_of
from contracts.laws.noise import deviates
from contracts.threads import together

from lightning_dpgen.plugins.accountant import MomentsAccountant
from lightning_dpgen.privacy import account as accounts
from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.access import LAPLACE, Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError, RankLost, RanksDiffer
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.privacy.software import launched_as


def _plan(count=5, **multipliers):
    return Plan((Stage(Access("training", multipliers or {"sum": 0.8}, Poisson(1.0)), count, 1.0),), 1.0, 1e-5)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_noise_of_all_ranks_together_is_that_of_one(size):
    """A test of 50,000 numbers at a false alarm of 4e-8; whole noise from each of four ranks would be twice as much."""

    def work(ranks):
        account = account_of({"sum": 0.8}, seed=3)
        account.join(ranks)
        with account.open("training") as access:
            return gaussian(access, "sum", torch.full((50_000,), 1.0 / size), sensitivity=3.0)

    sums = together(size, work)
    assert all(torch.equal(sums[0], other) for other in sums)
    noise = sums[0] - 1.0
    assert not deviates(noise, 0.8 * 3.0) and deviates(noise, 0.8 * 3.0 * 1.05) and deviates(noise, 0.8 * 3.0 * 0.95)
    assert abs(float(noise.mean())) < 5.5 * 2.4 / math.sqrt(50_000)


def test_without_privacy_sums_are_exact():
    def work(ranks):
        account = account_of({"sum": 0.0})
        account.join(ranks)
        with account.open("training") as access:
            return gaussian(access, "sum", torch.full((3,), float(ranks.rank)), sensitivity=3.0).tolist()

    assert together(3, work) == [[3.0] * 3] * 3


def test_rank_0_writes_before_anybody_draws(tmp_path):
    path, written = tmp_path / "ledger.jsonl", []

    def work(ranks):
        account = Account(_plan(count=450), path if ranks.leads else None)
        account.join(ranks)
        for number in range(1, 451):
            with account.open("training") as access:
                # Each rank counts the lines on disk when it is about to draw.
                written.append((number, path.read_bytes().count(b'"id"')))
                gaussian(access, "sum", torch.zeros(1), sensitivity=1.0)
        account.verify_complete()
        return account.accesses

    first, second = together(2, work)
    assert first == second == [(Access("training", {"sum": 0.8}, Poisson(1.0)), 450)]
    assert all(lines >= number for number, lines in written) and len(written) == 900
    assert Ledger.read(path).accesses == first


def test_a_ledger_that_cannot_be_written_stops_all(monkeypatch):
    drawn = []

    def work(ranks):
        account = account_of({"sum": 0.8})
        account.join(ranks)
        if ranks.leads:
            monkeypatch.setattr(account.ledger, "write", lambda *_, **__: (_ for _ in ()).throw(OSError("disk is full")))
        try:
            with account.open("training"):
                drawn.append(ranks.rank)
        except RankLost:
            return "lost"

    with pytest.raises(OSError, match="disk is full"):
        together(2, work)
    assert drawn == []


def test_ranks_must_promise_the_same():
    def work(ranks):
        Account(_plan(count=5 + (ranks.rank == 2))).join(ranks)

    with pytest.raises(RanksDiffer, match="rank 2 has another plan"):
        together(3, work)


def test_ranks_must_run_the_same_software(monkeypatch):
    monkeypatch.setattr(accounts, "versions", lambda: {"torch": str(torch.rand(1))})

    def work(ranks):
        Account(_plan()).join(ranks)

    with pytest.raises(RanksDiffer, match="another software"):
        together(2, work)


def test_only_sums_are_shared():
    """Parts of a Laplace draw do not add up to a Laplace draw, and ranks do not hold the same keys."""
    laplace = Access("training", {"sum": 1.0}, kinds={"sum": LAPLACE})

    def work(ranks):
        account = Account(Plan((Stage(laplace, 1, 1.0),), 1.0, 0.0))
        account.join(ranks)
        with account.open("training") as access:
            mechanisms.rounded_laplace(access, "sum", torch.zeros(3, dtype=torch.int64), sensitivity=1.0)

    with pytest.raises(LedgerError, match="not a sum of parts"):
        together(2, work)


def test_what_rank_0_makes_alone_all_know_of():
    """The other ranks take what was made and count its accesses; the next access is shared again."""

    def work(ranks):
        account = account_of({"sum": 0.8}, count=3)
        account.join(ranks)

        def make():
            assert account.ranks.size == 1
            with account.open("training") as access:
                return gaussian(access, "sum", torch.zeros(4), sensitivity=1.0)

        made = account.on_rank_zero(make)
        with account.open("training") as access:
            shared = gaussian(access, "sum", torch.zeros(4), sensitivity=1.0)
        return made.tolist(), shared.tolist(), account.remaining("training"), account.done, account.ledger.run

    first, *others = together(3, work)
    assert all(other == first for other in others) and first[2:4] == (1, {"training": 2})


def test_where_rank_0_fails_alone_others_are_told():
    ends = {}

    def work(ranks):
        account = account_of({"sum": 0.8})
        account.join(ranks)
        try:
            account.on_rank_zero(lambda: 1 / 0)
        except (RankLost, ZeroDivisionError) as error:
            ends[ranks.rank] = type(error)
        assert account.ranks.size == 2

    together(2, work)
    assert ends == {0: ZeroDivisionError, 1: RankLost}


def test_seeds_of_ranks_differ():
    """Four ranks with the same noise would have twice its size."""

    def work(ranks):
        account = account_of({"sum": 1.0}, seed=7)
        account.join(ranks)
        return account.stream.normal((4,)).tolist()

    draws = together(4, work)
    assert len({tuple(draw) for draw in draws}) == 4
    assert draws[0] == PrivateStream(seed=7).normal((4,)).tolist()


LAUNCHERS = {"torchrun": "RANK", "Lightning's own": "LOCAL_RANK", "SLURM": "SLURM_PROCID"}


@pytest.mark.parametrize("name", LAUNCHERS.values(), ids=LAUNCHERS)
def test_other_ranks_leave_the_ledger_alone(monkeypatch, tmp_path, name):
    path = tmp_path / "ledger.jsonl"
    leader = Account(_plan(), path)
    monkeypatch.setenv(name, "2")
    assert launched_as() == 2
    account = Account(_plan(), path)
    assert account.ledger.path is None
    with pytest.raises(LedgerError, match="is rank 2 of several"), account.open("training"):
        pass
    with pytest.raises(LedgerError, match="its Trainer has one device"):
        account.join(Ranks())
    monkeypatch.delenv(name)
    with leader.open("training") as access:
        gaussian(access, "sum", torch.zeros(1), sensitivity=1.0)
    leader.ledger.close()
    before = path.read_bytes()
    monkeypatch.setenv(name, "1")
    assert Account.resume(path).ledger.count("training") == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize("save", [pickle.dumps, copy.copy, copy.deepcopy])
def test_no_account_is_saved_copied_or_sent_to_a_process(save):
    """A Trainer that starts processes by spawn pickles its callbacks, with the account, before any check of ours."""
    account = Account(_plan())
    with pytest.raises(TypeError, match=r"never saved or copied.*strategy='ddp'"):
        save(account)
    with pytest.raises(TypeError, match="never saved or copied"):
        pickle.dumps(MomentsAccountant(account))


def test_a_ledger_is_read_as_it_is_reopened(tmp_path):
    """This holds also where a crash has cut its last line short, or left it without its end."""
    path = tmp_path / "ledger.jsonl"
    plan = Plan((Stage(Access("training", {"sum": 1.0}), 3, 1.0),), 8.0, 1e-5)
    ledger = Ledger(path, plan=plan.as_json(), about={"b": 2}, noise="c")
    for _ in range(3):
        ledger.write(Access("training", {"sum": 1.0}), ahead=2)
    ledger.close()
    whole = path.read_bytes()
    heads = (tmp_path / "ledger.jsonl.heads").read_bytes()
    for content in (whole, whole[:-1], whole + b'{"id": "torn'):
        path.write_bytes(content)
        found = Ledger.read(path)
        assert path.read_bytes() == content
        reopened = Ledger.reopen(path)
        assert [found.accesses, found.plan, found.about, found.noise, found.run] == [
            reopened.accesses, reopened.plan, reopened.about, reopened.noise, reopened.run,
        ]  # fmt: skip
        reopened.close()
        (tmp_path / "ledger.jsonl.heads").write_bytes(heads)

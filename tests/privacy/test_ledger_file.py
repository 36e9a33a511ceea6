"""The ledger's file tells at least what was drawn, at every moment: blocks written ahead, stages in order, crashes."""

import errno
import json
import os

import pytest
import torch

from lightning_dpgen.privacy import chain
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError, PlanMismatch
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import Poisson

SPLIT, LOT = Access("split", {"sum": 9.0}), Access("training", {"norms": 8.0, "sum": 5.0}, sampler=Poisson(0.5))


def _account(path, off=False):
    stages = [
        (Access(a.stage, dict.fromkeys(a.multipliers, 0.0), Poisson(a.sample_rate)) if off else a, count)
        for a, count in ((SPLIT, 2), (LOT, 203))
    ]
    return Account(Plan(tuple(Stage(a, c, 0.5) for a, c in stages), 1.0, 1e-5), path)


def _entries(path):
    return [line for line in map(json.loads, path.read_text().splitlines()) if "id" in line]


def _draw(account, stage):
    with account.open(stage, draw=account.sample(stage, 9)[1]) as access:
        for name in list(access.access.multipliers):
            gaussian(access, name, torch.zeros(2), sensitivity=1.0)


def test_at_every_moment_the_file_lists_what_was_drawn(tmp_path):
    path = tmp_path / "ledger.jsonl"
    account = _account(path)
    drawn = []
    for stage in ["split"] * 2 + ["training"] * 203:
        with account.open(stage, draw=account.sample(stage, 9)[1]) as access:
            drawn.append(stage)
            listed = [entry["stage"] for entry in _entries(path)]
            assert listed[: len(drawn)] == drawn and len(listed) - len(drawn) < 200
            for name in access.access.multipliers:
                gaussian(access, name, torch.zeros(1), sensitivity=1.0)
    account.verify_complete()
    entries = _entries(path)
    assert len({entry["id"] for entry in entries}) == len(entries) == 205
    assert all(Access.from_json(entry) == LOT for entry in entries[2:])
    last = json.loads(path.read_text().splitlines()[-1])
    assert last.pop("check") and last == {"closed": 205, "never_drawn": []}


def test_lines_that_nothing_was_drawn_on_are_named(tmp_path):
    path = tmp_path / "ledger.jsonl"
    account = _account(path)
    for stage in ("split", "split", "training"):
        _draw(account, stage)
    account.ledger.close()
    never = json.loads(path.read_text().splitlines()[-1])["never_drawn"]
    ids = [entry["id"] for entry in _entries(path)]
    assert set(never) == set(ids[3:]) and len(ids) == 2 + 2


def test_another_access_than_the_one_written_ahead_gets_its_own_line(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    other = Access("training", {"norms": 8.0, "sum": 2.0}, sampler=Poisson(0.5))
    ledger.write(LOT, ahead=3)
    ledger.write(other)
    ledger.write(LOT)
    assert [e["multipliers"]["sum"] for e in _entries(path)] == [5.0, 5.0, 5.0, 2.0]
    assert ledger.accesses == [(LOT, 1), (other, 1), (LOT, 1)]
    ledger.close()
    assert json.loads(path.read_text().splitlines()[-1])["closed"] == 3


def test_ids_are_random(tmp_path):
    ids = []
    for name in ("a", "b"):
        ledger = Ledger(tmp_path / name)
        ledger.write(LOT, ahead=5)
        ledger.close()
        ids += [entry["id"] for entry in _entries(tmp_path / name)]
    assert len(set(ids)) == 10 and all(len(identity) == 16 for identity in ids)


def test_a_new_ledger_has_its_name_on_disk_before_anything_is_written_behind_its_first_lines(tmp_path, monkeypatch):
    """A file whose folder was not synced may be gone after a crash, with all that it says was spent."""
    path, named, fsync = tmp_path / "ledger.jsonl", [], os.fsync

    def noted(file):
        fsync(file)
        if os.path.samestat(os.fstat(file), tmp_path.stat()):
            named.append(path.exists() and len(path.read_bytes().splitlines()))

    monkeypatch.setattr(os, "fsync", noted)
    account = _account(path)
    assert named[-1] == 1
    account.ledger.close()


@pytest.mark.parametrize("written", ["nothing", "a part", "all of it"])
def test_nothing_is_drawn_after_a_line_that_may_not_be_on_disk(tmp_path, monkeypatch, written):
    """The next reader of the file sees if it is there, whatever the disk does by then."""
    account = _account(tmp_path / "ledger.jsonl")

    def full(file, heads, text, head):
        file.write(text[: {"nothing": 0, "a part": len(text) // 2, "all of it": len(text)}[written]])
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(chain, "append", full)
        with pytest.raises(OSError, match="no space"):
            _draw(account, "split")
    with pytest.raises(LedgerError, match="could not be written"):
        _draw(account, "split")
    account.ledger.close()


def test_an_error_inside_an_access_keeps_its_line_and_its_message(tmp_path):
    path = tmp_path / "ledger.jsonl"
    account = _account(path)
    kept = []
    with pytest.raises(RuntimeError, match="out of memory"), account.open("split") as access:
        kept.append(access)
        raise RuntimeError("out of memory")
    assert account.ledger.count("split") == 1, "what may have been drawn is charged"
    with pytest.raises(LedgerError, match="closed"):
        gaussian(kept[0], "sum", torch.zeros(1), sensitivity=1.0)
    account.ledger.close()


def test_a_run_without_privacy_writes_one_line_and_may_go_on(tmp_path):
    path = tmp_path / "ledger.jsonl"
    account = _account(path, off=True)
    for stage in ("split", "training", "training"):
        _draw(account, stage)
    account.verify_complete()
    assert len(_entries(path)) == 1 and not account.plan.private


def test_before_anything_is_drawn_there_is_nothing_to_certify():
    account = _account(None)
    for ask in (account.verify_complete, account.certify):
        with pytest.raises(PlanMismatch, match="nothing has been drawn"):
            ask()

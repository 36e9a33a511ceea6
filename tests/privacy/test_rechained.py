"""A line that was edited, with its checksums made again: whatever it says, one error says so, and nothing is written."""

import copy
import json

import dp_accounting
import pytest

from lightning_dpgen.privacy import chain
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.reference import Reference
from lightning_dpgen.privacy.errors import PrivacyError
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.privacy.studies.study import Study

WRONG = (None, True, -1, 0, 2, 1e300, "x", [], [[]], {}, {"x": 1})
REMOVED = object()


def _places(value, before=()):
    if before:
        yield before
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from _places(value[key], (*before, key))


def _edited(lines):
    """Yield every line with every place in it replaced by every wrong value."""
    for number, line in enumerate(lines):
        for place in _places(line):
            for wrong in (*WRONG, REMOVED):
                edited = copy.deepcopy(line)
                parent = edited
                for key in place[:-1]:
                    parent = parent[key]
                if wrong is REMOVED:
                    del parent[place[-1]]
                else:
                    parent[place[-1]] = wrong
                yield (number, place, wrong), [*lines[:number], edited, *lines[number + 1 :]]


def _rechain(path, lines):
    heads, text = chain.seal_lines("", lines)
    path.write_bytes(text)
    chain.heads_file(path).write_text(f"\n{heads[-1]}\n")
    return text


def _lines(path):
    return [{k: v for k, v in json.loads(line).items() if k != "check"} for line in path.read_bytes().splitlines()]


def _use(path):
    """Do all that going on with a run asks of a ledger, except for draws."""
    account = Account.resume(path)
    try:
        account.go_on({"first": 1})
        _ = account.finished, account.done, account.accesses, account.plan.spent
        account.certify()
    finally:
        account.ledger.close()


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "ledger.jsonl"
    stages = (
        Stage(Access("first", {"n": 9.0, "keys": 8.0}, deltas={"keys": 1e-8}), 1, 0.1),
        Stage(Access("last", {"sum": 6.0}, sampler=Poisson(0.5)), 3, 0.9),
    )
    # The reference is far above the cost of the last stage.
    reference = Reference(0.3, 1e-7, after=1)
    account = Account(Plan(stages[:1], 8.0, 1e-5, reference=reference), path, about={"settings": {"a": 1}})
    with account.open("first") as access:
        access.consume("n"), access.consume("keys")
    account.extend(Plan(stages, 8.0, 1e-5, flexible="last", reference=reference), {"n": 5})
    with account.open("last", draw=account.sample("last", 9)[1]) as access:
        access.consume("sum")
    account.ledger.write(stages[1].access, ahead=2)
    account.ledger.close()
    account = Account.resume(path)
    account.go_on({"first": 1})
    account.ledger.close()
    return path


def test_an_edited_ledger_is_refused_or_used(ledger, tmp_path):
    lines, path = _lines(ledger), tmp_path / "edited.jsonl"
    assert {"ledger", "promise", "plan", "id", "resumed", "closed"} <= set().union(*lines)
    refused = 0
    _rechain(path, lines)
    _use(path)
    for number, (what, edited) in enumerate(_edited(lines)):
        if number % 7:
            continue
        text = _rechain(path, edited)
        try:
            _use(path)
        except PrivacyError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 600, what
        except BaseException as error:
            raise AssertionError(f"line {what[0]}, {what[1]} = {what[2]!r}") from error
        assert path.read_bytes().startswith(text), "what was there stays"
    assert refused > 100, "most of it is no ledger"


def test_entries_cannot_be_taken_back_by_naming_them_twice(ledger, tmp_path):
    """Two entries with one id would count as one; an entry that is named as never drawn after the close counts as none."""
    lines, path = _lines(ledger), tmp_path / "edited.jsonl"
    entries = [line for line in lines if "id" in line]
    twice = [{**line, "id": entries[0]["id"]} if "id" in line else line for line in lines]
    closed = next(number for number, line in enumerate(lines) if "closed" in line)
    named = copy.deepcopy(lines[: closed + 1])
    named[closed]["never_drawn"].append(entries[0]["id"])
    for edited, words in ((twice, "appears twice"), (named, "entries stand before it")):
        _rechain(path, edited)
        with pytest.raises(PrivacyError, match=words):
            Account.resume(path)


def test_an_entry_that_says_nothing_is_damage(ledger, tmp_path):
    lines, path = _lines(ledger), tmp_path / "edited.jsonl"
    first = next(number for number, line in enumerate(lines) if "id" in line)
    lines[first] = {"id": lines[first]["id"]}
    _rechain(path, lines)
    with pytest.raises(PrivacyError, match=f"line {first + 1}"):
        Account.resume(path)


def test_an_edited_study_is_refused_or_used(tmp_path):
    path = tmp_path / "census.jsonl"
    study = Study(path, epsilon=5.0, delta=1e-6)
    study.records = "ab"
    lot = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(4.0))
    study.enter("a", dp_accounting.SelfComposedDpEvent(lot, 9))
    study.enter("b", dp_accounting.LaplaceDpEvent(9.0), pair=(0.1, 0.0))
    refused, lines = 0, _lines(path)
    for what, edited in _edited(lines):
        text = _rechain(path, edited)
        try:
            study = Study(path)
            _ = study.total, study.knows("ab"), study.check(dp_accounting.GaussianDpEvent(90.0))
        except PrivacyError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 600, what
        except BaseException as error:
            raise AssertionError(f"line {what[0]}, {what[1]} = {what[2]!r}") from error
        assert path.read_bytes() == text
    assert refused > 100


HOSTILE = {
    "brackets": b"[" * 100_000,
    "objects": b'{"check":' * 50_000,
    "a long number": b'{"check": ' + b"1" * 100_000 + b"}",
    "no object": b"3",
    "not text": b"\xff\xfe",
    "a checksum that is none": b'{"check": [1]}',
    "half a pair": b'{"check": "\\ud800"}',
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("end", [b"", b"\n"], ids=["cut short", "whole"])
def test_a_line_that_no_run_has_written_is_one_error(ledger, tmp_path, line, end):
    path = tmp_path / "census.jsonl"
    Study(path, epsilon=5.0, delta=1e-6)
    for file, use in ((ledger, _use), (path, lambda path: Study(path).total)):
        before = file.read_bytes()
        for content in (line + end, before + line + end):
            file.write_bytes(content)
            try:
                use(file)
                # A part of a line behind the last whole one is what a crash leaves.
                assert content.startswith(before) and not end
            except PrivacyError as error:
                assert "\n" not in str(error) and len(str(error)) < 600

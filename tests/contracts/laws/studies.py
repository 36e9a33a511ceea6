"""Laws of studies, and of the fingerprint by which they know the records of a run."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.accountant import ADD_OR_REMOVE_ONE, REPLACE_ONE, gaussian_epsilon
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.studies.study import Study
from lightning_dpgen.runs.identity import fingerprint


def records_that_differ_in_a_byte_are_others(largest=3 << 20) -> None:
    """Check first, middle and last bytes, one array of several, all sizes, and the same bytes divided differently."""
    key = "ab" * 16
    for size in (1, (1 << 20) - 1, (1 << 20) + 1, largest):
        array, small = np.zeros(size, np.uint8), np.zeros(3, np.uint8)
        before, second = fingerprint([array], key), fingerprint([small, array], key)
        assert before == fingerprint([array.copy()], key) != fingerprint([array], "cd" * 16)
        for place in {0, size // 2, size - 1}:
            array[place] = 1
            assert fingerprint([array], key) != before and fingerprint([small, array], key) != second
            array[place] = 0
        assert len({before, second, fingerprint([array, small], key), fingerprint([array[:, None]], key)}) == 4
        assert fingerprint([array.view(np.int8)], key) != before


def _run(study, multiplier, relation) -> None:
    """Make a run of one Gaussian, entered by its account when it draws."""
    plan = Plan((Stage(Access("sum", {"sum": multiplier}), 1, 1.0),), 9.0, 1e-7, relation=relation)
    with Account(plan, study=study).open("sum") as access:
        gaussian(access, "sum", torch.zeros(1), sensitivity=1.0)


def a_study_tells_no_less_than_its_runs_cost_together() -> None:
    """Check Gaussians, whose exact cost has a closed form: mu is 1 / m for a record added or removed, 2 / m for one
    replaced, and the squares of all runs add up. A study that begins with a run under replace-one is under it."""
    one, both = ADD_OR_REMOVE_ONE, REPLACE_ONE
    for runs in ([(4, one)], [(4, one), (5, one)], [(6, both)], [(9, both), (9, both)], [(8, both), (9, one), (12, one)]):
        with tempfile.TemporaryDirectory() as folder:
            study = Study(Path(folder) / "s.jsonl", epsilon=9.0, delta=1e-6)
            for multiplier, relation in runs:
                _run(study, multiplier, relation)
            total, replaced = study.total, any(relation == both for _, relation in runs)
            mu = (2.0 if replaced else 1.0) * math.sqrt(sum(multiplier**-2 for multiplier, _ in runs))
            assert (total.relation, total.runs) == (both if replaced else one, len(runs))
            assert total.epsilon >= gaussian_epsilon(mu, 1e-6)


def what_a_study_states_at_its_orders_fails_with_its_delta() -> None:
    """Check that each Renyi order has its own part of delta (a union bound), since results may decide which is the best.

    A Gaussian's moment of order a is a x, with x = 1 / (2 m^2). For Gaussians a study states the lower envelope of lines
    a x + c: the slope is the order, and c gives the order's part of delta, by the conversion of Canonne, Kamath and
    Steinke 2020. Together these parts are at most delta.
    """
    with tempfile.TemporaryDirectory() as folder:
        # A large total lets all orders be seen.
        for epsilon, delta in ((5.0, 1e-6), (30.0, 1e-5)):
            study = Study(Path(folder) / f"{epsilon}.jsonl", epsilon=epsilon, delta=delta)

            def stated(x, study=study):
                return study.check(dp_accounting.GaussianDpEvent((2.0 * x) ** -0.5)).epsilon

            parts = {}
            for x in np.geomspace(1e-7, 100.0, 200):
                try:
                    here, order = stated(x), (stated(1.001 * x) - stated(x)) / (0.001 * x)
                except BudgetTooSmall:
                    break
                if abs(order - round(order)) < 1e-3:
                    a = round(order)
                    left = here - a * x - math.log1p(-1.0 / a)
                    parts[a] = math.exp(-(a - 1) * left - math.log(a))
            assert len(parts) > 10 and sum(parts.values()) <= delta


def a_stopped_run_gives_nothing_back_under_pairs() -> None:
    """Check that a run of a study by pairs counts whole after a stop: a pair that is read off at a stop under-reports."""
    with tempfile.TemporaryDirectory() as folder:
        study = Study(Path(folder) / "s.jsonl", epsilon=9.0, delta=1e-6)
        steps = Stage(Access("sum", {"sum": 9.0}), 4, 1.0)
        for relation in (REPLACE_ONE, ADD_OR_REMOVE_ONE):
            account = Account(Plan((steps,), 9.0, 1e-7, relation=relation), study=study)
            with account.open("sum") as access:
                gaussian(access, "sum", torch.zeros(1), sensitivity=1.0)
            before = study.total
            account.stop()
            assert study.total == before


def the_ledger_is_stopped_before_its_study() -> None:
    """Check that the ledger's last line is on disk when the study counts less."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "ledger.jsonl"
        study = Study(Path(folder) / "s.jsonl", epsilon=9.0, delta=1e-6)
        account = Account(Plan((Stage(Access("sum", {"sum": 9.0}), 4, 1.0),), 9.0, 1e-7), path, study=study)
        with account.open("sum") as access:
            gaussian(access, "sum", torch.zeros(1), sensitivity=1.0)
        seen, stop = [], Study.stop

        def noted(self, *words):
            seen.append(Ledger.read(path).stopped)
            return stop(self, *words)

        patch.setattr(Study, "stop", noted)
        account.stop()
        assert seen == [True]


def what_a_stopped_run_has_drawn_stays_counted() -> None:
    """Check that a study counts all that was drawn before a stop, and that the run never enters again."""
    with tempfile.TemporaryDirectory() as folder:
        study = Study(Path(folder) / "s.jsonl", epsilon=9.0, delta=1e-6)
        account = Account(Plan((Stage(Access("sum", {"sum": 4.0}), 6, 1.0),), 9.0, 1e-7), study=study)
        for _ in range(3):
            with account.open("sum") as access:
                gaussian(access, "sum", torch.zeros(1), sensitivity=1.0)
        account.stop()
        assert study.total.epsilon >= gaussian_epsilon(math.sqrt(3.0) / 4.0, 1e-6)
        with pytest.raises(LedgerError, match="was stopped for good"):
            study.enter(account.ledger.run, account.plan.event)

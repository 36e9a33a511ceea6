"""The law of a selection that was killed: its trials cost what they were charged, whatever was lost."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from lightning_dpgen.cli.main import main
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.runs import select as selection

WORDS = [
    "model.hidden=4", "model.latent=2", "model.steps=3", "split.iterations=2", "split.features=8", "split.k=2", "rows=20",
    "privacy.selection=logarithmic", "privacy.selection_mean=5", "privacy.selection_score=fidelity",
    "privacy.fidelity_share=0.1", "trainer.accelerator=cpu",
]  # fmt: skip


def _quietly(run_dir: Path) -> int:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return main(["train", *WORDS, f"run_dir={run_dir}"])


def _counted(accesses: Iterable[tuple[Access, int]]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for access, count in accesses:
        counted[json.dumps(access.as_json(), sort_keys=True)] += count
    return counted


def a_killed_trial_costs_what_was_planned_or_fails(stage: str = "clustering") -> None:
    """Check a selection of one trial that is killed after an access, before its result was kept, and then goes on.

    Over both attempts the trial makes no more accesses than it was charged for, under the plan by which it was charged. So
    it fails, unless the noisy number that was lost is not asked for again.
    """
    attempts: list[tuple[Account, Counter[str]]] = []
    opened, learned = Account.open, selection.learn

    @contextmanager
    def killed(account, name, **keywords):
        with opened(account, name, **keywords) as access:
            yield access
        if name == stage:
            raise KeyboardInterrupt

    def followed(run, records):
        try:
            return learned(run, records)
        finally:
            attempts.append((run.account, _counted(run.account.ledger.accesses)))

    def one_trial(access, name):
        access.consume(name, "logarithmic")
        access.stream.integers = lambda size, below: np.zeros(size, np.int64)
        return 1

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "number_of_trials", one_trial)
        patch.setattr(selection, "learn", followed)
        with pytest.MonkeyPatch.context() as first:
            first.setattr(Account, "open", killed)
            assert _quietly(Path(folder) / "run") == 130
        status = _quietly(Path(folder) / "run")
    assert status in (0, 2) and attempts
    for account, made in attempts:
        assert account.plan.as_json() == account.ledger.promise, "the plan of a trial was rewritten"
        assert made <= _counted(account.plan.accesses), "a trial made more than it was charged for"

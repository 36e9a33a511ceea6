"""Laws of accesses, accounts and the ledger."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch

from lightning_dpgen.privacy.access import LAPLACE, PURE, Access, dominating_laplace
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_epsilon, round_up
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.release.certificate import make_certificate
from lightning_dpgen.sampling.lots import PoissonLots


def account_of(multipliers, *, count=1, rate=1.0, ledger=None, seed=0, max_rows=1, kinds=MappingProxyType({})):
    """Return an account for one stage ``training`` with the given noise multipliers (0: not private)."""
    stage = Stage(Access("training", multipliers, Poisson(rate), kinds), count, share=1.0)
    return Account(Plan((stage,), target_epsilon=1.0, delta=1e-5, max_rows=max_rows), ledger, PrivateStream(seed=seed))


def the_line_is_on_disk_before_the_noise_is_drawn() -> None:
    """Check that it is written, flushed and synced: the last fsync before each draw saw the file with its line."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "ledger.jsonl"
        account = account_of({"sum": 2.0}, ledger=path)
        seen, synced, fsync = [], [], os.fsync

        def noted(file):
            fsync(file)
            if os.path.samestat(os.fstat(file), path.stat()):
                synced.append(path.read_text())

        patch.setattr(os, "fsync", noted)

        class Stream:
            def add_normal_(self, out, deviation):
                seen.append((path.read_text(), synced[-1:]))
                return out

        account.stream = Stream()
        with account.open("training") as access:
            gaussian(access, "sum", torch.zeros(2), sensitivity=1.0)
        account.ledger.close()
        ((text, synced_text),) = seen
        assert synced_text == [text]
        lines = [json.loads(line) for line in text.splitlines()]
        assert len(lines) == 2, "the line of this access is not there yet"
        assert (
            lines[1]["stage"] == "training" and lines[1]["multipliers"] == {"sum": 2.0} and lines[1]["sample_rate"] == 1.0
        )


def each_noise_is_drawn_once_and_only_while_open() -> None:
    account = account_of({"a": 1.0, "b": 1.0}, count=3)
    with account.open("training") as access:
        gaussian(access, "a", torch.zeros(1), sensitivity=1.0)
        with pytest.raises(LedgerError, match="drawn already"):
            gaussian(access, "a", torch.zeros(1), sensitivity=1.0)
        with pytest.raises(LedgerError, match="not listed"):
            gaussian(access, "c", torch.zeros(1), sensitivity=1.0)
        gaussian(access, "b", torch.zeros(1), sensitivity=1.0)
    with pytest.raises(LedgerError, match="closed"):
        gaussian(access, "b", torch.zeros(1), sensitivity=1.0)
    with pytest.raises(LedgerError, match="never drawn"), account.open("training"):
        pass


def a_sampled_access_needs_a_lot() -> None:
    account = account_of({"gradient": 1.0}, rate=0.5)
    with pytest.raises(LedgerError, match="were not drawn at all"), account.open("training"):
        pass
    assert not account.ledger.accesses
    lot = PoissonLots(torch.zeros(9, 1), account).draw()
    with account.open("training", draw=lot.draw) as access:
        gaussian(access, "gradient", lot.records.sum(dim=0), sensitivity=1.0)
    account.verify_complete()


def each_noise_of_an_access_is_counted() -> None:
    """Check it also for equal noises. At delta 0 epsilons add up; above it, any noise but a Gaussian is its own event."""
    random = np.random.default_rng(0)
    for _ in range(100):
        several = random.choice([0.3, 1.0, 1.7, 4.0], int(random.integers(1, 7))).tolist()
        multipliers = {f"noise {place}": multiplier for place, multiplier in enumerate(several)}
        kinds = {name: str(random.choice([LAPLACE, PURE])) for name in multipliers}
        access = Access("s", multipliers, kinds=kinds)
        exact = access.event_at(pure=True)
        assert compute_epsilon(exact, 0.0).epsilon == pytest.approx(math.fsum(1.0 / m for m in several), rel=1e-12)
        dominated = [dominating_laplace(1.0 / m) if kinds[name] == PURE else m for name, m in multipliers.items()]
        for event, counted in ((exact, several), (access.event, dominated)):
            found = [one.noise_multiplier for one in getattr(event, "events", [event])]
            assert sorted(found) == sorted(counted)


def stopping_early_does_not_lower_what_is_certified() -> None:
    """Check that after one of two planned accesses the account and the certificate still state the cost of both."""
    plan = Plan((Stage(Access("training", {"sum": 5.0}), 2, 1.0),), target_epsilon=1.0, delta=1e-5)
    account = Account(plan)
    with account.open("training") as access:
        gaussian(access, "sum", torch.zeros(2), sensitivity=1.0)
    assert account.certify()[1].epsilon == plan.epsilon
    with tempfile.TemporaryDirectory() as folder:
        certificate = make_certificate(account, unit="one row", declared={"n": 9}, released=[], folder=Path(folder))
    assert certificate["epsilon"] == round_up(plan.epsilon)


def a_run_is_charged_up_to_a_time_that_its_plan_named() -> None:
    """Check that a stop costs the next named time, at the part of delta that each has; before it is final, the whole plan.

    The cost of one Gaussian has a closed form.
    """
    plan = Plan((Stage(Access("training", {"sum": 5.0}), 6, 1.0),), target_epsilon=9.0, delta=1e-5, stops=(2, 4))
    for made, charged in ((1, 2), (2, 2), (3, 4), (5, 6)):
        account = Account(plan)
        for _ in range(made):
            with account.open("training") as access:
                gaussian(access, "sum", torch.zeros(2), sensitivity=1.0)
        assert account.certify()[1].epsilon == plan.epsilon
        account.stop()
        assert account.certify()[1].epsilon >= gaussian_epsilon(math.sqrt(charged) / 5.0, 1e-5 / 3) * (1 - 1e-9)

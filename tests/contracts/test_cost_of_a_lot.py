"""All that one lot releases moves, together, by at most what the merged multiplier of its access pays for.

Each noise is divided by its own standard deviation; the joint L2 move of one record must then be at most
1 / (merged multiplier), which is what the accountant charges.
"""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_dpgen.clustering import kmeans
from lightning_dpgen.clustering.kmeans import SplitSettings, private_split
from lightning_dpgen.gradients import privatize
from lightning_dpgen.gradients.clipping import DPNorm, Fixed
from lightning_dpgen.gradients.records import Materialised
from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.plan import Plan, Stage


class Door:
    """In place of `gaussian`: keeps exact values over their deviation; both neighbours get the same answers."""

    def __init__(self):
        self.answers, self.walk = [], []

    def begin(self):
        self.walk = []
        return self

    def __call__(self, access, name, values, *, sensitivity):
        multiplier = access.take(name)
        self.walk.append((access, values.double().flatten() / (multiplier * sensitivity)))
        i = len(self.walk) - 1
        if i == len(self.answers):
            noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
            self.answers.append((values.double() + multiplier * sensitivity * noise).to(values.dtype))
        return values.copy_(self.answers[i])


def _overspent(door, run, first, second):
    """For each access: joint move times merged multiplier; above 1 is more than was paid for."""
    walks = []
    for data in (first, second):
        door.begin()
        run(data)
        walks.append(door.walk)
    moves = {}
    for (access, a), (_, b) in zip(*walks, strict=True):
        moves[access] = moves.get(access, 0.0) + float((a - b).square().sum())
    return [math.sqrt(square) * opened.access.multiplier for opened, square in moves.items()]


def _account(*stages):
    return Account(Plan(tuple(Stage(access, count, 0.5) for access, count in stages), 1.0, 1e-5))


RULES = {"fixed": Fixed(0.5), "dpnorm": DPNorm(c_max=2.0, bins=10, share=0.2)}
ROWS = torch.randn(9, 3, 4, generator=torch.Generator().manual_seed(0))


def _lot(rule):
    weight = torch.nn.Parameter(torch.zeros(3, 4))
    access = Access("training", {**dict.fromkeys(rule.weights, 4.0), "gradient": 1.0}, rate=0.1)

    def run(gradients):
        with _account((access, 1)).open("training") as opened:
            out = privatize.GradientBuffer([weight])
            privatize.privatize(Materialised({weight: gradients}), opened, rule, 5.0, out)

    return run


NUMBERS = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, 1e-30, 1e18, 3e38, math.inf, math.nan])


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(extra=st.lists(NUMBERS, min_size=12, max_size=12), place=st.integers(0, 9))
def test_no_record_costs_more_than_the_access(monkeypatch, rule, extra, place):
    door = Door()
    monkeypatch.setattr(mechanisms, "gaussian", door)
    monkeypatch.setattr(privatize, "gaussian", door)
    more = torch.cat([ROWS[:place], torch.tensor(extra).view(1, 3, 4), ROWS[place:]])
    assert max(_overspent(door, _lot(rule), ROWS, more)) <= 1.0
    # The first record of a lot of none, and the last that leaves.
    door = Door()
    monkeypatch.setattr(mechanisms, "gaussian", door)
    monkeypatch.setattr(privatize, "gaussian", door)
    assert max(_overspent(door, _lot(rule), torch.tensor(extra).view(1, 3, 4), ROWS[:0])) <= 1.0


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_large_record_costs_all_that_was_paid(monkeypatch, rule):
    """The bound is met, so that half the noise would be noticed; and a missing clip is noticed."""
    door = Door()
    monkeypatch.setattr(mechanisms, "gaussian", door)
    monkeypatch.setattr(privatize, "gaussian", door)
    more = torch.cat([100 * ROWS[:1], ROWS])
    assert 0.999 < max(_overspent(door, _lot(rule), ROWS, more)) <= 1.0
    monkeypatch.setattr(privatize, "clip_weights", lambda norms, bound: torch.ones_like(norms))
    assert max(_overspent(door, _lot(rule), ROWS, more)) > 10.0


SETTINGS = SplitSettings(k=4, iterations=2, features=10, radius=1.5)
RECORDS = torch.rand(30, 6, generator=torch.Generator().manual_seed(1))
EXTRA = {
    "zeros": torch.zeros(1, 6),
    "ones": torch.ones(1, 6),
    "one column": torch.eye(6)[2:3],
    "copy": RECORDS[4:5],
    "antipode": torch.full((1, 6), -50.0),
    "huge": torch.full((1, 6), 1e20),
}


def _whole_split(records):
    drafts = SETTINGS.drafts(30)
    account = _account(*((d.access(3.0), d.count) for d in drafts))
    private_split(records, torch.ones(6), SETTINGS, 30, account, torch.Generator().manual_seed(2))


@pytest.mark.parametrize("place", [0, 17, 30])
@pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA.keys())
def test_no_record_costs_a_split_more_than_its_accesses(monkeypatch, extra, place):
    door = Door()
    monkeypatch.setattr(kmeans, "gaussian", door)
    monkeypatch.setattr(mechanisms, "gaussian", door)
    spent = _overspent(door, _whole_split, RECORDS, torch.cat([RECORDS[:place], extra, RECORDS[place:]]))
    assert len(spent) == 4
    assert max(spent) <= 1.0 + 1e-9
    door = Door()
    monkeypatch.setattr(kmeans, "gaussian", door)
    monkeypatch.setattr(mechanisms, "gaussian", door)
    assert max(_overspent(door, _whole_split, extra, RECORDS[:0])) <= 1.0 + 1e-9, "a cluster of one"


def test_a_record_of_the_split_that_is_not_clipped_is_noticed(monkeypatch):
    door = Door()
    monkeypatch.setattr(kmeans, "gaussian", door)
    monkeypatch.setattr(mechanisms, "gaussian", door)
    monkeypatch.setattr(kmeans, "_clip", lambda records, radius: records)
    assert max(_overspent(door, _whole_split, RECORDS, torch.cat([5 * torch.ones(1, 6), RECORDS]))) > 1.0

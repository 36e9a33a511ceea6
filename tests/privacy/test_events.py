"""Event trees survive JSON, and nothing foreign is let in."""

import json
import math

import dp_accounting
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.accounting.events import UnknownEvent, decode, encode, stage_events
from lightning_dpgen.privacy.sampling.samplers import Poisson

GAUSSIANS = st.builds(dp_accounting.GaussianDpEvent, st.floats(0.01, 1e4))
TREES = st.recursive(
    GAUSSIANS
    | st.builds(dp_accounting.LaplaceDpEvent, st.floats(0.01, 1e4))
    | st.builds(dp_accounting.PoissonSampledDpEvent, st.floats(1e-6, 1.0), GAUSSIANS),
    lambda inner: (
        st.builds(dp_accounting.SelfComposedDpEvent, inner, st.integers(1, 20))
        | st.builds(dp_accounting.ComposedDpEvent, st.lists(inner, min_size=1, max_size=3))
    ),
    max_leaves=5,
)


def _depth(tree):
    return 1 + max(map(_depth, [tree.get("event", {}), *tree.get("events", [])])) if tree else 0


# Nested repetitions would stand for more accesses than there is time to account for.
@given(TREES)
@settings(deadline=None)
def test_round_trip(event):
    tree = json.loads(json.dumps(encode(event)))
    assume(_depth(tree) <= 7)
    assert decode(tree) == event


GOOD = {"type": "GaussianDpEvent", "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    "tree",
    [
        None,
        [],
        "GaussianDpEvent",
        {},
        {"type": 3},
        {"type": "os.system"},
        {"type": "NoOpDpEvent"},
        {"type": "GaussianDpEvent"},
        GOOD | {"extra": 1},
        *(GOOD | {"noise_multiplier": bad} for bad in (0, -1, math.nan, math.inf, "1", True, None, [1.0])),
        *({"type": "SelfComposedDpEvent", "event": GOOD, "count": bad} for bad in (0, 1.0, True, 10**12, "1")),
        {"type": "PoissonSampledDpEvent", "sampling_probability": 1.5, "event": GOOD},
        {"type": "ComposedDpEvent", "events": []},
        {"type": "ComposedDpEvent", "events": GOOD},
        {"type": "SelfComposedDpEvent", "event": {"type": "Foreign"}, "count": 2},
    ],
)
def test_anything_else_is_refused(tree):
    with pytest.raises(UnknownEvent):
        decode(tree)


def test_depth_is_limited():
    tree = GOOD
    for _ in range(100):
        tree = {"type": "SelfComposedDpEvent", "event": tree, "count": 1}
    with pytest.raises(UnknownEvent, match="deeper"):
        decode(tree)


def test_a_foreign_event_is_not_written():
    with pytest.raises(UnknownEvent):
        encode(dp_accounting.NoOpDpEvent())


def test_equal_neighbours_are_counted_and_stages_keep_their_order():
    a, b = Access("a", {"x": 1.0}), Access("b", {"x": 2.0}, sampler=Poisson(0.1))
    stages = stage_events([(a, 1), (b, 2), (b, 3)])
    assert [name for name, _ in stages] == ["a", "b"]
    assert stages[0][1] == dp_accounting.GaussianDpEvent(1.0)
    assert stages[1][1] == dp_accounting.SelfComposedDpEvent(b.event, 5)
    off = Access("b", {"x": 0.0})
    assert stage_events([(a, 1), (off, 2)]) == [("not private", dp_accounting.NonPrivateDpEvent())]

"""The joint release of one lot moves by at most what the merged multiplier of its access pays for.

Each noise is divided by its own standard deviation. The joint L2 move of one record must then be at most
1 / (merged multiplier), which is what the accountant charges. Everything public afterwards follows from the answers alone.
"""

import math

import pytest
import torch
from contracts.laws.clipping import (
    RULES,
    a_large_record_costs_all_that_was_paid,
    given_the_answers_a_step_is_the_same_for_any_lot,
    no_record_costs_more_than_the_access,
    what_a_lot_noises_is_a_sum_over_its_records,
)
from contracts.laws.clustering import (
    RECORDS,
    no_record_costs_a_split_more_than_its_accesses,
)
from hypothesis import given, settings
from hypothesis import strategies as st

NUMBERS = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, 1e-30, 1e18, 3e38, math.inf, math.nan])


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@settings(max_examples=25, deadline=None)
@given(extra=st.lists(NUMBERS, min_size=12, max_size=12), place=st.integers(0, 9))
def test_no_record_costs_more_than_the_access(rule, extra, place):
    no_record_costs_more_than_the_access(rule, torch.tensor(extra).view(1, 3, 4), place)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_large_record_costs_all_that_was_paid(rule):
    no_record_costs_more_than_the_access(rule)
    a_large_record_costs_all_that_was_paid(rule)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_lot_adds_up_and_only_answers_are_public(rule):
    what_a_lot_noises_is_a_sum_over_its_records(rule)
    given_the_answers_a_step_is_the_same_for_any_lot(rule)


EXTRA = {
    "zeros": torch.zeros(1, 6),
    "ones": torch.ones(1, 6),
    "one column": torch.eye(6)[2:3],
    "copy": RECORDS[4:5],
    "antipode": torch.full((1, 6), -50.0),
    "huge": torch.full((1, 6), 1e20),
}


@pytest.mark.parametrize("place", [0, 17, 30])
@pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA.keys())
def test_no_record_costs_a_split_more_than_its_accesses(extra, place):
    no_record_costs_a_split_more_than_its_accesses(extra, place)

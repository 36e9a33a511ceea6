"""Killed at random moments, a run goes on, and its certificate counts every line of its ledger."""

import random

import kill
import pytest


@pytest.mark.parametrize("seed", [pytest.param(0), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_nothing_is_lost(tmp_path, seed):
    kill.one_round(tmp_path, random.Random(seed))

"""Killed at random moments, a run goes on, and its certificate counts every line of its ledger."""

import random

import kill
import pytest


def test_nothing_is_lost(tmp_path):
    kill.one_round(tmp_path, random.Random(0), kills=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_nothing_is_lost_by_several_kills(tmp_path, seed):
    kill.one_round(tmp_path, random.Random(seed))

"""Several processes in a loop written for Opacus' DPDDP share one account: one ledger, one noise, each its own records."""

import os
import subprocess
import sys

import numpy as np
import opacus_ranks
import pytest

from lightning_dpgen import verify


def _run(folder, *words):
    """Run two processes; return their statuses and what they said."""
    command = [sys.executable, opacus_ranks.__file__]
    ranks = []
    for rank in range(2):
        surroundings = os.environ | {"RANK": str(rank), "PYTHONWARNINGS": "ignore"}
        words_of_rank = [*command, str(rank), str(folder), *words]
        ranks.append(subprocess.Popen(words_of_rank, env=surroundings, stderr=subprocess.PIPE, text=True))
    said = [rank.communicate(timeout=200)[1] for rank in ranks]
    return [rank.returncode for rank in ranks], said


@pytest.mark.parametrize("mode", ["hooks", pytest.param("ghost", marks=pytest.mark.slow)])
def test_processes_make_the_planned_steps_with_one_noise(mode, tmp_path):
    statuses, said = _run(tmp_path, mode)
    assert statuses == [0, 0], said
    one, other = (np.load(tmp_path / f"rank{rank}.npz") for rank in range(2))
    assert np.array_equal(one["moved"], other["moved"])
    # Each rank has about a half of the 400 records that are expected in 20 lots; six deviations of a binomial number.
    for rank in (one, other):
        assert abs(int(rank["seen"]) - 200) < 6 * 100**0.5
    # Sums of noise over 20 steps on 400 weights; six deviations of a chi-square law.
    planned = opacus_ranks.LR * float(one["noise"]) / 20 * opacus_ranks.STEPS**0.5
    assert abs(float((one["moved"] / planned).std()) - 1.0) < 6 / (2 * opacus_ranks.WIDTH) ** 0.5
    assert verify(tmp_path / "release").good


@pytest.mark.slow
def test_processes_that_split_their_records_in_other_ways_are_refused(tmp_path):
    statuses, said = _run(tmp_path, "hooks", "split")
    words = "has another choice of records (a split without a seed) than rank 0"
    assert 0 not in statuses and all(words in text for text in said) and not (tmp_path / "release").exists()

"""Two ranks with sharded parameters make the steps of one process with whole ones, and each shard has its noise.

Noise of 150 steps on each parameter's shard is compared with the planned variance by a chi-square test at a level of 1e-6,
and the draws of the two ranks for correlation at 1e-6: a false alarm in any of the eight has a chance below 1e-5
(seeds are fixed, so it does not come and go). The same tests find noise that is left out, doubled or the same (`BROKEN`).
"""

import json
import subprocess
import sys

import numpy as np
import pytest
from contracts import shard_steps
from contracts.shard_steps import BROKEN, CASES
from scipy.stats import chi2, norm

LEVEL, LAGS = 1e-6, 20
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Return the results of each of two processes, and its draws."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, shard_steps.__file__]
    made = [subprocess.Popen([*command, str(rank), "2", str(folder)]) for rank in range(2)]
    assert [rank.wait(timeout=500) for rank in made] == [0, 0]
    return [
        (json.loads((folder / f"rank{rank}.json").read_text()), dict(np.load(folder / f"rank{rank}.npz")))
        for rank in range(2)
    ]


@pytest.mark.parametrize("case", CASES)
def test_parameters_are_those_of_one_process(ranks, case):
    assert ranks[0][0][case] < 2e-6


def test_with_the_same_noise_sums_and_parameters_are_those_of_one_process(ranks):
    found = ranks[0][0]["same noise"]
    assert found["sums"] < 1e-6 and found["parameters"] < 2e-6
    assert 0.8 < found["noise"] < 1.2, "noise was there"


def _sound(ranks, name: str) -> bool:
    """Return whether the noise of each shard has the planned variance, and none follows that of another rank."""
    drawn = [[x for key, x in found.items() if key.startswith(f"{name}/")] for _, found in ranks]
    for shards in drawn:
        for x in shards:
            low, high = chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], x.size) / x.size if x.size else (0.0, 1.0)
            if x.size and not low <= np.square(x, dtype=float).mean() <= high:
                return False
    # In the order in which they were drawn; the rehearsal before them took one step's numbers, fewer on one rank.
    first, second = (np.concatenate(shards, axis=1).ravel() for shards in drawn)
    size = min(len(first), len(second)) - LAGS
    each = [
        np.sqrt(size) * np.corrcoef(a[:size], b[lag : lag + size])[0, 1]
        for a, b in ((first, second), (second, first))
        for lag in range(LAGS)
    ]
    return max(map(abs, each)) < norm.ppf(1 - LEVEL / 2 / len(each))


def test_each_shard_has_its_own_noise(ranks):
    assert _sound(ranks, "sound")
    shapes = [[x.shape[1] for key, x in found.items() if key.startswith("sound/")] for _, found in ranks]
    assert np.sum(shapes, axis=0).tolist() == [63, 9, 9, 1], "every number of each parameter is on one rank"


@pytest.mark.parametrize("name", BROKEN)
def test_the_test_finds_what_is_broken(ranks, name):
    assert not _sound(ranks, name)


def test_a_rehearsal_finds_a_shard_without_noise(ranks):
    assert not ranks[0][0]["left out"] and "noise of 0 times the planned size" in ranks[1][0]["left out"][0]


def test_ranks_that_do_not_share_the_account_are_refused(ranks):
    assert all("1 ranks share the account" in found["refusals"]["alone"] for found, _ in ranks)


def test_few_layers_are_whole_at_a_time(ranks):
    """One of eight is; gloo may hold the one before for a moment."""
    for found, _ in ranks:
        most, all_of_them = found["gathers"]
        assert most <= 2 / 8 * all_of_them

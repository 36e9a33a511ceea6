"""A run that is killed at random moments goes on, and its certificate counts every line of its ledger."""

import multiprocessing
import os
import random

import kill
import pytest

from lightning_dpgen.cli.main import main


class Forked:
    """A stand-in for a newly started program: a copy of this process, which has already imported everything."""

    def __init__(self, arguments):
        self._process = multiprocessing.get_context("fork").Process(target=main, args=(arguments,))
        self._process.start()

    def poll(self):
        return self._process.exitcode

    returncode = property(poll)

    def send_signal(self, which):
        os.kill(self._process.pid, which)

    def communicate(self):
        self._process.join()
        return "", ""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_nothing_is_lost(tmp_path):
    """The run is killed once, about a second after the first line of its ledger."""
    assert main(["budget", *kill.SETTINGS]) == 0, "the copies remember its numbers"
    assert kill.one_round(tmp_path, random.Random(26), kills=1, start=Forked)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_nothing_is_lost_by_several_kills(tmp_path, seed):
    kill.one_round(tmp_path, random.Random(seed))

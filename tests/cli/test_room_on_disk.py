"""A full disk is met before an access is opened, never after its noise: what a run draws has room before."""

import errno
import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from marks import but

from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.accounting.private_selection import SHAPES, draw_trial_count, most_trials
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.runs import select as selection
from lightning_dpgen.verification.verify import verify

pytestmark = pytest.mark.filterwarnings("ignore")

SCHEMA = """\
columns:
  age: {type: integer, low: private, high: private}
  city: {type: category, values: private}
"""
FIDELITY = "privacy.fidelity_share=0.1"
NETWORK = ["train", "model.steps=3", "model.hidden=8", "model.latent=2", "split.iterations=1", "split.features=16",
           "split.k=2", "rows=20", FIDELITY]  # fmt: skip
# For each command the files that it keeps, with how many accesses each is refused room for.
COMMANDS = {
    "bought first": (
        ["train", "data=table", "data.n_share=0.1", "data.discovery_share=0.2", "model=measured", "privacy.epsilon=20",
         "rows=20"],
        {"bought.pt": 1, "measured.pt": 1},
    ),
    "split": ([*NETWORK, "split.dimensions=4"], {"split.pt": 3, "fidelity.pt": 1}),
    "projected": (["project", "data.n=300", "data.d=12", "project.radius=6", "project.k=5"], {"projected.pt": 1}),
    "selection": (
        [*NETWORK, "split.k=1", "split.iterations=null", "privacy.selection=logarithmic", "privacy.selection_mean=5",
         "privacy.selection_score=fidelity"],
        {"selection.pt": 1, "split.pt": 1, "fidelity.pt": 1},
    ),
}  # fmt: skip


@pytest.fixture
def words(request, tmp_path, monkeypatch):
    """Return the words of a command, in a folder of its own."""
    words = [*COMMANDS[request.param][0], f"run_dir={tmp_path / 'run'}"]
    if "data=table" in words:
        random = np.random.default_rng(0)
        ages, cities = random.integers(20, 60, 1500), random.choice(["Rome", "Oslo", "a" * 99], 1500)
        pd.DataFrame({"age": ages, "city": cities}).to_csv(tmp_path / "t.csv", index=False)
        (tmp_path / "t.schema.yaml").write_text(SCHEMA)
        words += [f"data.path={tmp_path / 't.csv'}", f"data.schema={tmp_path / 't.schema.yaml'}", "data.outside=clamp"]

    def one_trial(access, name):
        access.consume(name, "logarithmic")
        return 1

    monkeypatch.setattr(selection, "number_of_trials", one_trial)
    return words


def _accesses(root):
    """Return how many full passes the ledgers of a run and of its trials hold."""
    accesses = [own for path in root.rglob("ledger.jsonl") for own in Ledger.read(path).accesses]
    return sum(count for access, count in accesses if access.sample_rate == 1.0)


@pytest.mark.parametrize("words", but(list(COMMANDS), "split"), indirect=True)
def test_a_full_disk_is_told_before_each_access_and_costs_nothing(dpgen, words, request, tmp_path, monkeypatch):
    """The first command is refused room at once, and each next one after the access at which the one before it stopped."""
    expected = COMMANDS[request.node.callspec.params["words"]][1]
    reserve, save, run = durable.reserve, durable.save, tmp_path / "run"
    refused, reserved, left = Counter(), {}, []

    def full(path, value):
        if not left:
            refused[path.name] += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        left.pop()
        reserve(path, value)
        reserved[path] = _accesses(run)

    def saved(path, value):
        room = durable.partial_path(path).stat().st_size if path in reserved else None
        save(path, value)
        if room is not None:
            # One look at the records was paid for since, or two for projected rows; all that is kept of it had room.
            assert _accesses(run) - reserved.pop(path) == (2 if path.name == "projected.pt" else 1)
            assert path.stat().st_size <= room

    monkeypatch.setattr(durable, "reserve", full)
    monkeypatch.setattr(durable, "save", saved)
    for number in range(sum(expected.values())):
        left[:] = [1] * min(number, 1)
        status, _, err = dpgen(*words)
        (line,) = [line for line in err.splitlines() if "dpgen: warning" not in line]
        assert status == 2 and "No space left on device, so " in line and "and the same command goes on" in line
        assert f"{'nothing more' if number else 'nothing'} was spent" in line
        if "what a trial makes" in line:
            assert f"run_dir={run}: " in line and "trials/" not in line and "bytes" not in line
        else:
            assert f"{run / 'private'}: " in line
            assert re.search(r"it takes ([\d,]+ bytes|as much room as all categories and items in the records);", line)
        assert _accesses(run) == number and not reserved and not (run / "release").exists()
    left[:] = [1]
    status, _, err = dpgen(*words)
    assert status == 0, err
    assert refused == expected and verify(run / "release").problems == []
    # A plan is rewritten where something was lost.
    ledger = Ledger.read(run / "private" / "ledger.jsonl")
    assert ledger.plan == ledger.promise


@pytest.mark.parametrize("law", SHAPES)
@pytest.mark.parametrize("mean", [1.01, 3.0, 40.0])
def test_a_number_of_trials_that_has_room_is_hardly_ever_exceeded(law, mean):
    """The draw at the uniform number 1 - 2^-30 is the quantile of that, and 1e-12 leaves more beyond it."""
    top = iter([((1 << 30) - 1) << 34, *[0] * 9])
    quantile = draw_trial_count(lambda size: np.full(size, next(top), np.uint64), law, mean)
    assert quantile <= most_trials(law, mean, 2.0**-30) <= most_trials(law, mean)
